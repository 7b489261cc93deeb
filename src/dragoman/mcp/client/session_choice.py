"""Decides which session with a server a call uses: a shared one, or one of the client's own.

A server of the handshake era learns what a client can be asked when the session begins, so a client
that can be asked needs a session that declares this. An own session also keeps apart the state that
a server holds per session. With a server of both eras a client of the modern era needs no own
session, and a client of the handshake era uses the half of the server that was written for it.
Knows neither wires nor how sessions are opened.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from time import monotonic
from typing import TYPE_CHECKING, Any

from dragoman.core.call import Call
from dragoman.core.errors import HubError, Overloaded, TimedOut, Unreachable
from dragoman.core.ports import Viewer
from dragoman.mcp.client.session import UpstreamSession
from dragoman.mcp.protocol.elicitation import select_declared
from dragoman.mcp.protocol.revisions import LATEST_HANDSHAKE, is_modern

if TYPE_CHECKING:
    from dragoman.mcp.client.upstream import Upstream

log = logging.getLogger(__name__)

MAX_FAILURES = 30
"""Failed handshakes up to which each one in a row makes the pause longer."""
MAX_SHARING = 20_000

Features = Mapping[str, Any]
NONE: Features = {}


class SessionChoice:
    def __init__(self, upstream: Upstream) -> None:
        entry = upstream.entry
        self._upstream = upstream
        self._era = entry.era
        self._may_separate = entry.interactive is not False
        """Whether any client may have a session of its own."""
        self.separates = entry.interactive is True
        """Whether the server is known to ask questions, or to depend on what a client can be asked:
        clients that can be asked nothing get sessions of their own, too."""
        self.separates_all = entry.interactive is True
        """Whether no two clients share a session, in any era, as configured."""
        self.reason = "configured" if entry.interactive is not None else ""
        """Why clients are separated or not; empty while nothing is known."""
        self.speaks_handshake: bool | None = None
        """Whether a server of the modern era also accepts a handshake; None until it was tried."""
        self._failed_at = float("-inf")
        self._failures = 0
        """Handshakes in a row that a server of the modern era did not accept."""
        self.sharing: set[str] = set()
        """Clients that use the shared session, which may hold state of theirs by now."""

    def learn(self, reason: str) -> None:
        """The server asks questions, or depends on what a client can be asked."""
        if self.separates or not self._may_separate:
            return
        self.separates, self.reason = True, reason
        log.info('server "%s": clients get sessions of their own: %s', self._upstream.name, reason)

    def note_shared(self, client: str) -> None:
        """The client makes a call over the shared session."""
        if client and len(self.sharing) < MAX_SHARING:
            self.sharing.add(client)

    def forget_client(self, client: str) -> None:
        self.sharing.discard(client)

    def reset(self) -> None:
        """The shared session is a new one: it holds no state of any client."""
        self.speaks_handshake = None
        self._failed_at = float("-inf")
        self._failures = 0
        self.sharing.clear()

    def find_declared(
        self, shared: UpstreamSession | None, viewer: Call | Viewer
    ) -> Features | None:
        """Returns the features that the client's own session declares; None if the client uses the
        shared session."""
        if not self._may_separate or self._era == "modern":
            return None
        revision = LATEST_HANDSHAKE
        if shared is not None and shared.modern:
            if is_modern(viewer.revision) or self.speaks_handshake is False:
                return None
        elif shared is not None:
            revision = shared.revision
        if not self.separates:
            # A program without an MCP session gets one only once the server is known to ask.
            if not (viewer.client or viewer.revision) or viewer.client in self.sharing:
                return None
            if monotonic() - self._failed_at < self._upstream.limits.retry_secs:
                return None
        features = select_declared(viewer.features, revision)
        if features:
            return features
        is_alone = self.separates and viewer.client and viewer.client not in self.sharing
        if not is_alone or shared is None:
            return None
        if shared.modern and not (self.separates_all and self.prefers_handshake(viewer)):
            return None
        return NONE

    def prefers_handshake(self, viewer: Call | Viewer) -> bool:
        """Whether a client without an own session uses the shared handshake session of a server
        of the modern era: a client of the handshake era with a session at the hub does, since it
        can receive notifications."""
        if not viewer.client or not viewer.revision or is_modern(viewer.revision):
            return False
        if self.speaks_handshake is False or self._era != "auto" or not self._may_separate:
            return False
        if self._upstream.is_per_user:  # no two users share a session of that era
            return False
        if self.speaks_handshake:
            return True
        pause = self._upstream.limits.retry_secs * min(self._failures, MAX_FAILURES)
        return monotonic() - self._failed_at >= pause

    @property
    def has_failed(self) -> bool:
        """Whether the last handshake with a server of the modern era failed: calls do not wait for
        the next one."""
        return self._failures > 0

    def may_share(self, shared: UpstreamSession, features: Features, error: HubError) -> bool:
        """Notes that a handshake session could not be opened; returns whether the call may use the
        shared session."""
        if shared.modern:
            if not isinstance(error, Unreachable | TimedOut | Overloaded):
                self.speaks_handshake = False
            self._failed_at = monotonic()
            if not isinstance(error, Overloaded):  # the hub's own limit, not the server's fault
                self._failures += 1
            return True
        if self.separates and features:
            return False
        if not isinstance(error, Overloaded):
            self._failed_at = monotonic()
        return True

    def note_opened(self, shared: UpstreamSession | None) -> None:
        """A handshake session was opened, a client's own or the second shared one."""
        if shared is not None and shared.modern:
            self.speaks_handshake = True
            self._failures = 0
