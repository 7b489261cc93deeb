"""Says which credentials of an existing home may do less since scopes limit them.

Keys that were made before keep their scopes, which had no effect when they were chosen. What such a
key may not do any more, although the policies permit it, is named together with the command that
restores it, at the first start and by `dragoman doctor`.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from dragoman.app.policy_admin.known_ids import principal_from_key
from dragoman.config import Config
from dragoman.core.principal import principal_from_server
from dragoman.core.scopes import ADMIN, ADMIN_RIGHTS, APPROVE, CALL
from dragoman.core.tool import TargetFacts, build_unknown_tool
from dragoman.policy.engine import PolicyEngine
from dragoman.policy.entities import SERVER
from dragoman.policy.policy_set import PolicySet
from dragoman.stores.keys import KeyRecord

SCOPES_LIMIT = 1
"""The number of the notice that `describe_changes` gives."""


class LostScopes(NamedTuple):
    key: str
    scopes: tuple[str, ...]
    """Those that would restore what the policies permit."""

    @property
    def fix(self) -> str:
        return f"dragoman keys scopes {self.key} " + " ".join(f"--add {one}" for one in self.scopes)

    def __str__(self) -> str:
        names = ", ".join(f'"{scope}"' for scope in self.scopes)
        return f'key "{self.key}" does not have the scope {names}, which it needs from now on'


def build_engine(policy_set: PolicySet) -> PolicyEngine:
    """Builds an engine for questions about keys and servers while no hub runs."""
    return PolicyEngine(
        policy_set, facts=lambda name: TargetFacts(type=SERVER), intact=lambda tool: True
    )


def find_lost_scopes(records: Iterable[KeyRecord], engine: PolicyEngine) -> Iterator[LostScopes]:
    """Finds the active keys whose scopes were not chosen for what they mean now, and that lack one
    for something that the policies permit."""
    now = time.time()
    for record in records:
        if record.scopes_chosen or record.get_state(now) != "active":
            continue
        principal = principal_from_key(record)
        lost = [CALL] if CALL not in principal.rights else []
        if not record.view:  # it administers nothing
            allowed = [one for one in ADMIN_RIGHTS if engine.decide_action(principal, one).allowed]
            missing = [right for right in allowed if right not in principal.rights]
            lost += [ADMIN] if len(missing) == len(ADMIN_RIGHTS) else missing
            if APPROVE not in principal.rights and engine.decide_action(principal, APPROVE).allowed:
                lost.append(APPROVE)
        if lost:
            yield LostScopes(record.name, tuple(lost))


def list_callers(names: Iterable[str], engine: PolicyEngine) -> list[str]:
    """Lists the servers whose processes the policies permit to call tools of other servers."""
    tool = build_unknown_tool("another.tool")
    return [
        name
        for name in names
        if engine.decide_first(principal_from_server(name), tool, "mcp-http").allowed
    ]


def describe_changes(
    config: Config, records: Iterable[KeyRecord], engine: PolicyEngine
) -> Iterator[str]:
    """Says once, to the owner of a home that an earlier version has used, what has changed for its
    credentials."""
    for lost in find_lost_scopes(records, engine):
        yield f"{lost}; restore it with: {lost.fix}"
    issuers = [*config.auth.jwt.issuers, config.auth.introspection]
    if any(issuer is not None for issuer in issuers):
        yield (
            "access tokens that name no scope of the hub have those of `default_scopes` of their "
            'issuer from now on: "call", which does not include "admin" or "approve", except for '
            "owners. See: dragoman docs sign-in"
        )
    if config.mcp_servers and engine.policy_set.default:
        yield (
            "processes of servers may not call tools and agents any more, unless a policy permits "
            'it or they use a key of their own; see "Servers that call" in: dragoman docs policies'
        )
