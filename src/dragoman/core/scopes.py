"""Scopes: what a credential may be used for, whatever the policies permit its principal.

The names mean the same in keys, access tokens, consent pages and policies. Other names have no
meaning of their own: policies may read them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import lru_cache

CALL, LIST, APPROVE, METRICS, ADMIN = "call", "list", "approve", "metrics", "admin"
REGISTRY, POLICIES, WORKFLOWS, PINS, USERS = "registry", "policies", "workflows", "pins", "users"

ADMIN_RIGHTS = (REGISTRY, POLICIES, WORKFLOWS, PINS, USERS)
"""What `admin` consists of. None of them can cause a program to run."""

MEANINGS: Mapping[str, str] = {
    CALL: "use the tools and agents that you may use",
    LIST: "see the tools and agents that you may use",
    APPROVE: "approve and deny calls that wait for an approval",
    METRICS: "read the metrics",
    REGISTRY: "add, change and remove servers and agents",
    POLICIES: "read and change the policies",
    WORKFLOWS: "create, change and delete workflows, and see all runs",
    PINS: "approve and reject changed tools",
    USERS: "see keys, sessions and the records of all users",
    ADMIN: "administer the hub: servers, agents, policies, workflows, pins, users",
}
"""What each scope lets a client do, as users read it."""

EVERY_SCOPE = (CALL, APPROVE, ADMIN)
"""The scopes that include all others: of a person who has signed in at the hub itself."""
ORDINARY = (CALL,)
"""The scopes of users, and of the keys of servers and agents, for which none was named."""
OF_KEYS = (CALL, APPROVE)
"""The same of other keys. By default no policy permits them to approve anything."""
OF_KEYS_WITH_ROLES = EVERY_SCOPE
"""The same of keys with roles: the policies decide what the roles may do."""

_ALSO: Mapping[str, tuple[str, ...]] = {
    CALL: (LIST,),
    ADMIN: (*ADMIN_RIGHTS, METRICS, LIST),
    **dict.fromkeys(ADMIN_RIGHTS, (LIST,)),  # to see what there is to administer
}
_SCOPED = frozenset({"key", "user"})
"""The kinds of principals whose credentials have scopes. The others have none: the hub itself has
identified them, by their process or as its own agents and workflows."""

EVERY_RIGHT = frozenset(MEANINGS)


@lru_cache(1_024)
def expand_scopes(scopes: tuple[str, ...]) -> frozenset[str]:
    """Returns the names in `MEANINGS` that the scopes include."""
    own = {scope for scope in scopes if scope in MEANINGS}
    return frozenset(own.union(*(_ALSO.get(scope, ()) for scope in own)))


def find_rights(kind: str, scopes: tuple[str, ...]) -> frozenset[str]:
    """Returns what a principal of that kind may use its credential for."""
    return expand_scopes(scopes) if kind in _SCOPED else EVERY_RIGHT


def has_hub_scope(scopes: Iterable[str]) -> bool:
    """Whether one of them is a scope of the hub, not only of policies."""
    return any(scope in MEANINGS for scope in scopes)
