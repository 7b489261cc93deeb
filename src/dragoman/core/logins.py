"""Logins at servers and agents, as the pipeline sees them: the link that a caller is given.

The link leads to a page of the hub, never to the authorization server itself: the page says for
whom the login is, and ties it to the browser that has opened it.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol, runtime_checkable

from dragoman.core.call import Call
from dragoman.core.errors import HubError, LoginRequired
from dragoman.core.ports import Viewer
from dragoman.core.structs import Struct

if TYPE_CHECKING:
    from dragoman.core.tool import Tool


class LoginLink(Struct, frozen=True):
    """Where a person logs in, once and for a while."""

    id: str
    url: str
    done: asyncio.Future[str]
    """Done when the holder of the call has logged in, by this link or otherwise, with an empty
    text; or when the login has failed, with the reason."""


class LoginDesk(Protocol):
    """Hands out links to people who have to log in."""

    def open_link(self, call: Call, error: LoginRequired) -> LoginLink | None:
        """Returns the link for the person who started the call; None if that person may not log in
        for it, or the hub has no page that a browser can reach."""

    def explain(self, error: LoginRequired) -> LoginRequired:
        """Returns the error with the command that helps."""

    def find_link(self, id: str) -> LoginLink | None:
        """Finds a link that has not expired."""


class LoginNeeds(Protocol):
    """Which targets need a login before they can be called."""

    def list_needed(self, viewer: Viewer) -> frozenset[str]:
        """Lists the names of the targets that the client's calls will fail at until its user, or an
        administrator, has logged in there."""

    def list_login_tools(self) -> Sequence[Tool]:
        """Lists one tool for each target whose tools are unknown until a login: it stands for them
        in lists, and a call of it, or of any other tool of that target, gives the link."""


@runtime_checkable
class NeedsLogin(Protocol):
    """A target that may need a login before it is connected."""

    def find_login_problem(self) -> LoginRequired | None:
        """Returns a new error if it needs one."""


NO_LOGINS: frozenset[str] = frozenset()


def explain_login(error: LoginRequired, url: str) -> LoginRequired:
    """Builds the error with the link, for a client that cannot be asked to open it. The message has
    no link: events and logs have the message, and the link belongs to the caller."""
    message = f"{error}; open the page of this login in a browser, then make the call again"
    return LoginRequired(message, server=error.server, scopes=error.scopes, url=url)


def render_problem(error: HubError) -> str:
    """Renders an error for its caller: with the link of a login that it needs."""
    if isinstance(error, LoginRequired) and error.url:
        return f"{error}: {error.url}"
    return str(error)


MARK_LENGTH = 32


def mark_issuer(issuer: str) -> str:
    """Builds the part of a redirect URI that tells one issuer from all others: a code that arrives
    at the redirect URI of another issuer is sent nowhere (RFC 9700, section 4.4.2.2)."""
    return hashlib.sha256(issuer.encode()).hexdigest()[:MARK_LENGTH]


def is_mark(text: str) -> bool:
    return len(text) == MARK_LENGTH and not text.strip("0123456789abcdef")
