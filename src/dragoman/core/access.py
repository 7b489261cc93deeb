"""What every part of the hub that serves principals does when one of them loses access.

A key or a token is revoked or expires, or the first key is created and clients without one are not
served any more. The watcher of the keys calls `end_principals` of each part, and again a little
later for what was just starting.

Requests and streams end with their credential. Tasks, sessions and other things that outlive a
request belong to the user: they stay when a token merely expires, since the client refreshes it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Protocol

from dragoman.core.errors import InsufficientScope
from dragoman.core.ports import A2A_DISCOVER, TASK_CANCEL, TASK_READ
from dragoman.core.principal import Principal
from dragoman.core.scopes import ADMIN, ADMIN_RIGHTS, APPROVE, CALL, LIST

WhyEnded = Callable[[Principal], str]
"""Why the hub does not serve that principal with that credential any more; empty while it does."""

HUB_PREFIXES = ("dgm_", "dgt_", "dgr_")
"""The beginnings of keys and tokens that hubs issue."""

USER_REMOVED = "the user was removed"
TOKEN_EXPIRED = "the access token has expired"
SETTINGS_CHANGED = "the settings by which the access token was accepted have changed"
SESSION = "console:"
"""The prefix of the credentials of principals that act by a session of the console."""
SESSION_ENDED = "the session of the console has ended"
RENEWABLE = frozenset({TOKEN_EXPIRED, SETTINGS_CHANGED, SESSION_ENDED})
"""The reasons that leave alone what belongs to the user rather than to the token."""


class TokenRejected(Exception):
    """An access token is not accepted. Its text says why, to the sender of the token."""


def explain_lost_access(why_ended: WhyEnded, principal: Principal) -> str:
    """Why a thing that outlives its request ends; empty while it stays."""
    why = why_ended(principal)
    return "" if why in RENEWABLE else why


_SCOPES_OF: Mapping[str, tuple[str, ...]] = {
    A2A_DISCOVER: (LIST,),
    TASK_READ: (CALL,),
    TASK_CANCEL: (CALL,),
    # The person at a client is asked in the course of a call; the API needs the scope `approve`.
    APPROVE: (APPROVE, CALL),
}
"""The scopes of which an action needs one; those of other actions have the action's name."""


def require_scope(principal: Principal, scope: str, what: str = "") -> None:
    """Raises `InsufficientScope` unless the credential of the principal may be used for it."""
    if scope not in principal.rights:
        raise build_missing_scope(principal, scope, what)


def build_missing_scope(principal: Principal, scope: str, what: str = "") -> InsufficientScope:
    """`what` is the request that was refused; empty for an operation of the API."""
    begin = f"{what} was refused" if what else f'"{principal.label}" may not do this'
    return InsufficientScope(f"{begin}: {describe_missing_scope(principal, scope)}", scope)


@lru_cache(1_024)  # each read of a task comes through here
def find_missing_scope(rights: frozenset[str], action: str) -> str:
    """The scope that an action needs, where a credential with these rights may not be used for it;
    empty if it may."""
    scopes = _SCOPES_OF.get(action, (action,))
    return "" if any(scope in rights for scope in scopes) else scopes[0]


def describe_missing_scope(principal: Principal, scope: str) -> str:
    """Says that the credential does not have the scope, and how it gets it."""
    named = f'"{scope}", or "{ADMIN}"' if scope in ADMIN_RIGHTS else f'"{scope}"'
    if principal.kind == "key":
        lacking = f'the key "{principal.id}" does not have the scope {named}'
        return f"{lacking}; add it with: dragoman keys scopes {principal.id} --add {scope}"
    lacking = f'the access token of "{principal.label}" does not have the scope {named}'
    return f"{lacking}; ask for a token with it"


class ServesPrincipals(Protocol):
    def end_principals(self, why_ended: WhyEnded) -> None:
        """Ends the streams, calls, sessions and tasks of principals that are not served any more,
        and no others. Returns at once."""
