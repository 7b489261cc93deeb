"""Holders: whose stored credential a call uses at a server or agent that needs a login.

A credential belongs to all callers (`SHARED`), or to one holder. A user's call uses the credential
of that user, whatever trace it carries. An agent that calls on behalf of a user uses that user's
credential and has none of its own; a call of which it is unknown for whom it is made has no holder
and is refused.
"""

from __future__ import annotations

import hashlib
from dataclasses import replace
from typing import TYPE_CHECKING

from dragoman.core.call import TaskNamed, Update, Updates
from dragoman.core.errors import Denied
from dragoman.core.principal import Principal

if TYPE_CHECKING:
    from dragoman.core.call import Call
    from dragoman.core.call_chains import RunningCall
    from dragoman.core.ports import Viewer

SHARED = "shared"
"""The holder of credentials that all callers use."""
OWNER_HOLDER = "owner"
"""The hub's owner: on the Unix socket, on loopback without a key, and with the configured key."""

_API_KEY = "api_key"
_PEOPLE = frozenset({"key", "user"})


def find_holder_of(principal: Principal) -> str | None:
    """Returns the holder that a principal is; None for one that acts for others: an agent, a
    schedule, a server."""
    if principal.serves:
        return None
    if principal.kind in ("owner", "local") or (
        principal.kind == "key" and principal.id == _API_KEY
    ):
        return OWNER_HOLDER
    return principal.key if principal.kind in _PEOPLE else None


def principal_from_holder(holder: str) -> Principal | None:
    """Returns the principal that a holder is; None for `SHARED` and the owner."""
    label, has_org, org = holder.partition("\0")
    kind, _, id = label.partition(":")
    return Principal(kind, id, org) if has_org else None


def find_root(call: Call | Viewer) -> Principal | None:
    """Finds the principal for whom a call is made: its own, or the nearest caller in its chain that
    does not act for others; None if that is unknown."""
    principal, trace = call.principal, getattr(call, "trace", None)
    if trace is None or trace.parent is None or find_holder_of(principal) is not None:
        return principal
    return None if trace.is_ambiguous else find_person(trace.parent)


def find_person(flight: RunningCall) -> Principal | None:
    """Like `find_root`, for a running call."""
    for one in flight.list_waiting():
        principal = one.principal
        if principal is None or not one.target:  # only its chain is known
            break
        if find_holder_of(principal) is not None:
            return principal
        if one.trace.is_ambiguous:
            return None
    root: Principal | None = flight.chain.root
    return root


def find_holder(call: Call | Viewer) -> str | None:
    """Finds the holder of a call; None if it has none."""
    root = find_root(call)
    return find_holder_of(root) if root is not None else None


def require_holder(call: Call, target: str) -> str:
    """Like `find_holder`; raises `Denied` if there is none."""
    root = find_root(call)
    holder = find_holder_of(root) if root is not None else None
    if holder is not None:
        return holder
    who = f'"{root.label}" started it' if root is not None else "who started it is unknown"
    raise Denied(
        f'"{call.tool.name}" was refused: "{target}" is used with the credentials of single users, '
        f"and this call is made for none: {who}"
    )


DIGITS = 16
"""Characters by which a handle names its holder."""


def bind_handle(handle: str, holder: str) -> str:
    """Binds the handle of a question to a holder: an agent that serves several users is one
    principal, to which the handle is bound otherwise."""
    return hashlib.sha256(holder.encode()).hexdigest()[:DIGITS] + handle


def bind_named(updates: Updates, holder: str) -> Updates:
    """Binds the handle by which a later call continues a task, as that of a question."""

    def pass_on(update: Update) -> None:
        if isinstance(update, TaskNamed):
            update = replace(update, handle=bind_handle(update.handle, holder))
        updates(update)

    return pass_on


def open_handle(handle: str, holder: str) -> str | None:
    """Returns the handle as it was before; None if it is bound to another holder."""
    rest = handle[DIGITS:]
    return rest if bind_handle(rest, holder) == handle else None


def render_holder(holder: str) -> str:
    """Renders a holder for people: `all users`, `the owner`, `user:anna`."""
    if holder == SHARED:
        return "all users"
    if holder == OWNER_HOLDER:
        return "the owner of the hub"
    label, _, org = holder.partition("\0")
    return label if org in ("", "default") else f"{label} ({org})"
