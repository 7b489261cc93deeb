"""An immutable policy set, ready for evaluation. Its Cedar handles are opaque."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from dragoman.core.approvals import ApprovalRule
from dragoman.core.scopes import ADMIN, ADMIN_RIGHTS
from dragoman.policy.analysis import NAMESPACE, VOLATILE, PolicyReads, can_match
from dragoman.policy.entities import A2A_INVOKE, LIST, MCP_CALL, PrincipalEntity, ResourceEntity

ANY_CALL = "any_call"
CALLS = (MCP_CALL, A2A_INVOKE)
ADMIN_NAMES = (ADMIN, *ADMIN_RIGHTS)
ACTIONS = (*CALLS, LIST, "a2a_discover", "task_read", "task_cancel", "approve", *ADMIN_NAMES)

ERROR, WARNING = "error", "warning"


@dataclass(frozen=True, slots=True)
class PolicyFinding:
    """A problem of a policy set, and where it is."""

    level: str
    file: str
    line: int
    """0 if unknown."""
    policy: str
    """Its id; empty if it has none."""
    words: str

    def __str__(self) -> str:
        place = f"{self.file}:{self.line}" if self.line else self.file
        return ": ".join(part for part in (place, self.policy, self.words) if part)


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    id: str
    effect: str
    file: str
    line: int
    text: str
    annotations: Mapping[str, str]
    guardrail: bool
    form: Mapping[str, Any] = field(repr=False)
    """Its JSON form in Cedar, with folded ids."""
    read: PolicyReads = field(repr=False)

    @property
    def reads(self) -> tuple[str, ...]:
        """`principal.org`, `context.depth`, …"""
        return tuple(sorted(self.read.paths))

    @property
    def uncached(self) -> tuple[str, ...]:
        """What it reads that prevents the caching of decisions."""
        if self.read.opaque:
            return ("…",)
        return tuple(f"context.{name}" for name in sorted(self.read.context & VOLATILE))

    def can_match(self, who: PrincipalEntity | None, action: str, what: ResourceEntity) -> bool:
        """Whether its scope matches; without a principal, whether it can match any."""
        form = self.form
        above = [("Action", ANY_CALL)] if action in CALLS else []
        if action in ADMIN_RIGHTS:
            above = [("Action", ADMIN)]
        return (
            can_match(form["action"], ("Action", action), above)
            and self._can_match_resource(what)
            and (who is None or can_match(form["principal"], who.uid, who.ancestors))
        )

    def _can_match_resource(self, what: ResourceEntity) -> bool:
        scope = self.form["resource"]
        if can_match(scope, what.uid, what.ancestors):
            return True
        plain = what.plain if self.effect == "forbid" else None
        return plain is not None and can_match(scope, plain, what.ancestors)

    def render(self) -> dict[str, Any]:
        return {
            "id": self.id,
            "effect": self.effect,
            "file": self.file,
            "line": self.line,
            "guardrail": self.guardrail,
            "annotations": {name: text for name, text in self.annotations.items() if name != "id"},
            "text": self.text,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicySet:
    hash: str
    """Short; part of every decision."""
    policies: tuple[Policy, ...]
    """The guardrails first."""
    default: bool
    warnings: tuple[PolicyFinding, ...] = ()
    read: PolicyReads = field(repr=False)
    """Of all policies together."""
    all: Any = field(repr=False)
    """Cedar's handle of all policies."""
    guardrails: Any = field(repr=False)
    """Cedar's handle of the guardrails and a permit for everything else."""
    schema: Any = field(repr=False)
    approvals: Mapping[str, ApprovalRule] = field(default_factory=dict)
    """The approvals that policies demand, by their ids."""

    @property
    def asks_unless_approved(self) -> bool:
        """Whether a call may be denied that would be permitted with an approval."""
        reads = "approved" in self.read.context or self.read.opaque
        return bool(self.approvals) and reads

    def find_volatile(self, what: ResourceEntity) -> frozenset[str]:
        """Returns the context attributes that change with every call and that policies read for
        calls of `what`."""
        if self.read.opaque:
            return VOLATILE
        concerned = (one for one in self.policies if one.read.context & VOLATILE)
        found = (one.read.context for one in concerned if one.can_match(None, what.action, what))
        return frozenset().union(*found) & VOLATILE

    @property
    def reads_time(self) -> bool:
        """Whether decisions may change with the time."""
        return self.read.opaque or "now" in self.read.context


def render_action_uid(action: str) -> dict[str, str]:
    return {"type": f"{NAMESPACE}Action", "id": action}
