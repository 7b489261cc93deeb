"""Serves a hub that waits for its database: `/healthz`, and the reason on every other path."""

from __future__ import annotations

from collections.abc import Callable

from dragoman.core.background import Work
from dragoman.web.http.request import ServerRequest
from dragoman.wire.json import encode

ALIVE = "/healthz"
_TEXT = [(b"content-type", b"text/plain")]
_REFUSAL = [(b"content-type", b"application/json"), (b"retry-after", b"1")]


class WaitingApp:
    """Implements `web.http.http1.Application`."""

    def __init__(self, find_reason: Callable[[], str]) -> None:
        """`find_reason` names no address and no user: everybody can read it."""
        self._find_reason = find_reason

    def admit(self, request: ServerRequest) -> bool:
        """No body is read, and no connection is kept for the hub that comes."""
        request.keep_alive = False
        return False

    def answer(self, request: ServerRequest) -> Work[None] | None:
        if request.path == ALIVE:
            request.reply(200, _TEXT, b"ok\n")
        else:
            message = f"the hub waits for its database: {self._find_reason()}"
            request.reply(503, _REFUSAL, encode({"error": {"message": message}}))
        return None
