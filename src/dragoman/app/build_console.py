"""Builds the console, where it is served: its gate at once, the rest when it is opened."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from dragoman.app.hub_parts import HubParts
from dragoman.core.access import TokenRejected
from dragoman.core.admin_audit import record_done
from dragoman.core.principal import Principal
from dragoman.web.api import Api
from dragoman.web.app import PathMount
from dragoman.web.auth import API_KEY
from dragoman.web.console.gate import MAX_BODY, PREFIX, ConsoleGate
from dragoman.web.http.request import ServerRequest
from dragoman.web.http.sockets import is_loopback
from dragoman.web.peer_process import PeerIdentifier
from dragoman.wire.http import HttpRequest

if TYPE_CHECKING:
    from dragoman.web.console.site import ConsoleSite


def is_console_served(parts: HubParts) -> bool:
    config = parts.live.config
    return parts.state.mode == "daemon" and config.console.is_served(
        is_loopback(config.server.host)
    )


class HubSignIn:
    """Implements `web.console.site.ConsoleSignIn`."""

    def __init__(
        self, parts: HubParts, peers: PeerIdentifier, note_failed: Callable[[str], None]
    ) -> None:
        self._parts = parts
        self._peers = peers
        self._note_failed = note_failed

    def find_key(self, key: str, address: str) -> Principal | None:
        fields = {b"authorization": b"Bearer " + key.strip().encode("utf-8", "replace")}
        try:
            found = self._parts.auth.authenticator.authenticate(fields, lambda: None)
        except TokenRejected:
            found = None
        # Access tokens are for programs: they expire soon, and are not entered by hand.
        if isinstance(found, Principal) and found.kind == API_KEY.kind:
            return found
        self._note_failed(address)
        return None

    def find_user(self, request: HttpRequest) -> Principal | None:
        authority = self._parts.authority
        return authority.find_browser_user(request) if authority is not None else None

    def find_sender(self, request: HttpRequest) -> Principal | None:
        assert isinstance(request, ServerRequest)
        return request.find_peer(self._peers.identify_tcp)


def build_console(parts: HubParts) -> ConsoleGate | None:
    """Returns None where the console is not served."""
    if not is_console_served(parts):
        return None
    return ConsoleGate(lambda: parts.state.base, parts.guards.hub.cluster)


def connect_console(
    gate: ConsoleGate,
    parts: HubParts,
    api: Api,
    peers: PeerIdentifier,
    note_failed: Callable[[str], None],
) -> PathMount:
    """Gives the console what it is made of; returns its mount."""

    def note(verb: str, principal: Principal) -> None:
        record_done(parts.stores.audit, verb, "console", principal.label, "console", {})

    def open_site() -> ConsoleSite:
        from dragoman.web.console.sessions import ConsoleSessions
        from dragoman.web.console.site import ConsoleSite

        sessions = ConsoleSessions(ownership=parts.guards.hub.cluster)
        sign_in = HubSignIn(parts, peers, note_failed)
        return ConsoleSite(api, sign_in, gate.build_cookie, gate.is_same_origin, note, sessions)

    gate.connect(open_site)
    return PathMount(PREFIX, gate.serve, lambda path: True, body_bytes=MAX_BODY)
