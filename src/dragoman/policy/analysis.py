"""Finds what a policy reads, from its JSON form in Cedar: attributes, named entities, the context.

Decisions are cached for all requests that agree in what the policies read, so an unknown expression
counts as reading everything. Does not evaluate policies.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

Uid = tuple[str, str]
"""Type, without the namespace, and id."""

NAMESPACE = "Hub::"
VOLATILE = frozenset({"trace_id", "now", "args"})
"""Attributes that change with every call: decisions that depend on them are not cached."""

_PAIRS = frozenset({
    "==", "!=", "in", "<", "<=", ">", ">=", "&&", "||", "+", "-", "*", "contains", "containsAll",
    "containsAny", "getTag", "hasTag",
})  # fmt: skip
_SINGLE = frozenset({"!", "neg", "isEmpty"})
_TAGS = frozenset({"getTag", "hasTag"})


@dataclass(frozen=True, slots=True)
class PolicyReads:
    attributes: frozenset[str] = frozenset()
    """Names of attributes read of any entity, without those of the context itself."""
    context: frozenset[str] = frozenset()
    uids: frozenset[Uid] = frozenset()
    tested: frozenset[Uid] = frozenset()
    paths: frozenset[str] = frozenset()
    """The attributes as paths: `principal.org`, `context.depth`."""
    variables: frozenset[str] = frozenset()
    opaque: bool = False
    """What it reads is unknown."""
    longest: int = 0
    """The length of the longest text in it."""

    def __or__(self, other: PolicyReads) -> PolicyReads:
        return PolicyReads(
            self.attributes | other.attributes,
            self.context | other.context,
            self.uids | other.uids,
            self.tested | other.tested,
            self.paths | other.paths,
            self.variables | other.variables,
            self.opaque or other.opaque,
            max(self.longest, other.longest),
        )


@dataclass(slots=True)
class _ReadsCollector:
    attributes: set[str] = field(default_factory=set)
    context: set[str] = field(default_factory=set)
    uids: set[Uid] = field(default_factory=set)
    scoped: set[Uid] = field(default_factory=set)
    paths: set[str] = field(default_factory=set)
    variables: set[str] = field(default_factory=set)
    opaque: bool = False
    longest: int = 0

    def add_expression(self, body: Any) -> None:
        left = [body]
        while left:
            left += self._add_node(left.pop())

    def _add_node(self, node: Any) -> Iterable[Any]:
        """Records what this node reads; returns its operands."""
        if not isinstance(node, dict) or len(node) != 1:
            self.opaque = True
            return ()
        (op, at), *_ = node.items()
        if op == "Value":
            self._add_value(at)
            return ()
        if op == "Var":
            self.variables.add(str(at))
            self.opaque |= at == "context"  # as a whole: it may be compared
            return ()
        if op in (".", "has"):
            return self._add_attribute(at)
        return self._list_parts(op, at)

    def _add_attribute(self, at: Any) -> Iterable[Any]:
        base, name = at["left"], str(at["attr"])
        self.paths.add(f"{_render_path(base)}.{name}")
        if base == {"Var": "context"}:
            self.variables.add("context")
            self.context.add(name)
            return ()
        self.attributes.add(name)
        return (base,)

    def _list_parts(self, op: str, at: Any) -> Iterable[Any]:
        if op in _PAIRS:
            self.opaque |= op in _TAGS
            return at["left"], at["right"]
        if op in _SINGLE:
            return (at["arg"],)
        if op == "if-then-else":
            return at["if"], at["then"], at["else"]
        if op == "like":
            return (at["left"],)
        if op == "is":
            return (at["left"], at["in"]) if "in" in at else (at["left"],)
        if op == "Record" and isinstance(at, dict):
            return at.values()
        if isinstance(at, list):  # a set, or a call of an extension: `ip("10.0.0.1")`
            return at
        self.opaque = True
        return ()

    def _add_value(self, value: Any) -> None:
        if isinstance(value, str):
            self.longest = max(self.longest, len(value))
        elif isinstance(value, dict):
            if set(value) == {"__entity"}:
                self.uids.add(_parse_uid(value["__entity"]))
            else:
                self.opaque = True
        elif not isinstance(value, bool | int):
            self.opaque = True

    def build(self) -> PolicyReads:
        return PolicyReads(
            frozenset(self.attributes),
            frozenset(self.context),
            frozenset(self.uids | self.scoped),
            frozenset(self.uids),
            frozenset(self.paths),
            frozenset(self.variables),
            self.opaque,
            self.longest,
        )


def analyze(policy: Mapping[str, Any]) -> PolicyReads:
    """Analyzes one policy in Cedar's JSON form. Never raises for unknown expressions."""
    found = _ReadsCollector()
    try:
        found.scoped.update(_list_scope_uids(policy))
        for condition in policy["conditions"]:
            found.add_expression(condition["body"])
    except (KeyError, TypeError, AttributeError):
        found.opaque = True
    return found.build()


def _list_scope_uids(policy: Mapping[str, Any]) -> Iterator[Uid]:
    for part in ("principal", "action", "resource"):
        scope = policy[part]
        inner = scope.get("in", {})
        for one in (
            *(scope[name] for name in ("entity",) if name in scope),
            *scope.get("entities", ()),
            *(inner[name] for name in ("entity",) if name in inner),
        ):
            yield _parse_uid(one)


def can_match(scope: Mapping[str, Any], uid: Uid, ancestors: Collection[Uid]) -> bool:
    """Whether a part of a policy's scope, `principal`, `action` or `resource`, matches an entity.
    If it does not, Cedar evaluates no condition of the policy."""
    op = scope["op"]
    if op == "All":
        return True
    if op == "==":
        return "entity" in scope and _parse_uid(scope["entity"]) == uid
    if op == "in":
        named = [scope["entity"]] if "entity" in scope else scope.get("entities", [])
        return any(_parse_uid(one) == uid or _parse_uid(one) in ancestors for one in named)
    if op == "is":
        if scope["entity_type"] != NAMESPACE + uid[0]:
            return False
        inner = scope.get("in")
        return inner is None or can_match({"op": "in", **inner}, uid, ancestors)
    return True  # unknown: leave it to Cedar


def _parse_uid(entity: Mapping[str, Any]) -> Uid:
    return str(entity["type"]).removeprefix(NAMESPACE), str(entity["id"])


def _render_path(node: Any) -> str:
    names: list[str] = []
    while isinstance(node, dict) and "." in node:
        names.append(str(node["."]["attr"]))
        node = node["."]["left"]
    root = str(node["Var"]) if isinstance(node, dict) and "Var" in node else "…"
    return ".".join([root, *reversed(names)])
