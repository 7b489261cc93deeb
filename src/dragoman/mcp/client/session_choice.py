"""Which session with a server a call goes over: a shared one, or one of the client's own.

A server learns what a client can be asked when a session of the handshake era begins, so a client
that can be asked needs a session that declares this. It also keeps the state that a server holds
for each session apart. A server may speak both eras: a client of the modern era needs no session
of its own there, and a client of the handshake era gets the half of the server that was written for
it. Knows neither wires nor how sessions are opened.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from time import monotonic
from typing import Any

from dragoman.core.call import Call
from dragoman.core.errors import HubError, Overloaded, TimedOut, Unreachable
from dragoman.core.ports import Viewer
from dragoman.mcp.client.session import UpstreamSession
from dragoman.mcp.config import ServerEntry
from dragoman.mcp.protocol.elicitation import select_askable
from dragoman.mcp.protocol.revisions import LATEST_HANDSHAKE, MODERN

log = logging.getLogger(__name__)

RETRY_SECONDS = 60.0
"""After an own session could not be opened, calls use the shared session for this long."""
MAX_RESTS = 30
"""Each failure in a row makes the rest longer by as much, up to so many times."""
MAX_SHARING = 20_000

Features = Mapping[str, Any]
NONE: Features = {}


class SessionChoice:
    def __init__(self, entry: ServerEntry) -> None:
        self._server = entry.name
        self._era = entry.era
        self._separable = entry.interactive is not False
        """Whether any client may have a session of its own."""
        self.asks = entry.interactive is True
        """Whether the server is known to ask questions, or to depend on what can be asked."""
        self.reason = "configured" if entry.interactive is not None else ""
        """Why it is treated as it is; empty while nothing is known."""
        self.separates_all = entry.interactive is True
        """Whether the configuration says that no two client sessions share one, in any era."""
        self._handshake: bool | None = None
        """Whether a server of the modern era speaks the other one too; None until it was tried."""
        self._failed_at = float("-inf")
        self._failures = 0
        """How often in a row a server of the modern era did not take the handshake."""
        self.sharing: set[str] = set()
        """Clients that use the shared session, which may hold state of theirs by now."""

    @property
    def separates(self) -> bool:
        """Whether even clients that can be asked nothing get sessions of their own."""
        return self.asks and self._separable

    @property
    def speaks_handshake(self) -> bool | None:
        """Of a server of the modern era; None until it was tried."""
        return self._handshake

    def learn(self, reason: str) -> None:
        """The server asks questions, or depends on what can be asked."""
        if self.asks or not self._separable:
            return
        self.asks, self.reason = True, reason
        log.info('server "%s": clients get sessions of their own: %s', self._server, reason)

    def note_shared(self, client: str) -> None:
        """The client makes a call over the shared session."""
        if client and len(self.sharing) < MAX_SHARING:
            self.sharing.add(client)

    def forget_client(self, client: str) -> None:
        self.sharing.discard(client)

    def reconnected(self) -> None:
        """The shared session is a new one: whatever it held for clients is gone."""
        self._handshake = None
        self._failed_at = float("-inf")
        self._failures = 0
        self.sharing.clear()

    def features_for(self, shared: UpstreamSession | None, call: Call | Viewer) -> Features | None:
        """What the session for this call declares; None where it is the shared one."""
        if not self._separable or self._era == "modern":
            return None
        revision = LATEST_HANDSHAKE
        if shared is not None and shared.modern:
            if call.revision in MODERN or self._handshake is False:
                return None
        elif shared is not None:
            revision = shared.revision
        if not self.asks:
            # Programs without an MCP session are worth one only once the server is known to ask.
            if not (call.client or call.revision) or call.client in self.sharing:
                return None
            if monotonic() - self._failed_at < RETRY_SECONDS:
                return None
        features = select_askable(call.features, revision)
        if features:
            return features
        alone = self.asks and call.client and call.client not in self.sharing
        if not alone or shared is None:
            return None
        if shared.modern and not (self.separates_all and self.prefers_handshake(call)):
            return None
        return NONE

    def prefers_handshake(self, call: Call | Viewer) -> bool:
        """Whether a caller that has no session of its own with a server of the modern era uses the
        one of the handshake era, if the server speaks that too: a client of that era does, where
        it has a session with the hub, on which it can be told things."""
        if not call.client or not call.revision or call.revision in MODERN:
            return False
        if self._handshake is False or self._era != "auto" or not self._separable:
            return False
        if self._handshake:
            return True
        rest = RETRY_SECONDS * min(self._failures, MAX_RESTS)
        return monotonic() - self._failed_at >= rest

    @property
    def has_failed(self) -> bool:
        """Whether a session of the handshake era could not be opened with a server of the modern
        era: nobody waits for the next attempt."""
        return self._failures > 0

    def may_share(self, shared: UpstreamSession, features: Features, error: HubError) -> bool:
        """Whether the call may go over the shared session after its own could not be opened."""
        if shared.modern:
            if not isinstance(error, Unreachable | TimedOut | Overloaded):
                self._handshake = False
            self._failed_at = monotonic()
            if not isinstance(error, Overloaded):  # which says nothing of the server
                self._failures += 1
            return True
        if self.asks and features:
            return False
        if not isinstance(error, Overloaded):
            self._failed_at = monotonic()
        return True

    def opened(self, shared: UpstreamSession | None) -> None:
        """A session of the handshake era was opened, a client's own or a second shared one."""
        if shared is not None and shared.modern:
            self._handshake = True
            self._failures = 0
