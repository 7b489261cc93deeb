"""Writes one response over HTTP: as JSON, or as an event stream once something comes before it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from functools import lru_cache

import msgspec

from dragoman.core.cluster import SINGLE_HUB, Ownership
from dragoman.core.principal import Principal
from dragoman.mcp.protocol.revisions import Revision
from dragoman.mcp.server.client_state import ClientState
from dragoman.mcp.server.http_sessions import HttpSession
from dragoman.mcp.server.replay_streams import (
    RESPONSE,
    EventStream,
    Headers,
    Keepalive,
    KeepaliveMember,
)
from dragoman.wire import rpc
from dragoman.wire.http import JSON_HEADERS, HttpRequest, build_retry_after

CANCELLED = -32800
BAD_REQUEST_CODES = frozenset({-32700, -32600, -32602, -32020, -32021, -32022})


class AcceptedTypes(msgspec.Struct, frozen=True):
    json: bool
    stream: bool


@lru_cache(maxsize=64)  # clients send the same header with every request
def parse_accept(accept: bytes) -> AcceptedTypes:
    """Returns which kinds of response the value of an Accept header allows."""
    accept = accept.lower()
    accepts_all = b"*" in accept
    return AcceptedTypes(
        json=accepts_all or b"json" in accept, stream=accepts_all or b"event-stream" in accept
    )


class HttpResponder(msgspec.Struct, eq=False):
    """The response to one request.

    A request that is answered soon and sends nothing before starts no stream. A request that runs
    longer is watched: where a disconnect cancels, the client's disconnect cancels it, and a client
    that accepts streams gets comments that keep it from timing out.
    """

    client: ClientState
    accepted: AcceptedTypes
    request: HttpRequest
    _keepalive: Keepalive
    principal: Principal
    """With the credential of this request; other requests of the client may have others."""
    ownership: Ownership = SINGLE_HUB
    id: rpc.Id = None
    """Of the request, for the heir of this hub where there are several."""
    stream: EventStream | None = None
    cancelled: bool = False
    reason: str = "the request was cancelled"
    _left: bool = False
    _slot: set[KeepaliveMember] | None = None
    """The members that are kept alive together with it; None until it is watched."""
    _task: asyncio.Task[None] | None = None
    _deadline: int = 0

    async def run(self, work: Awaitable[bytes | None], id: rpc.Id) -> None:
        """Responds with the result of `work`."""
        loop, watched = self.request.loop, self._keepalive.watched
        self._task = asyncio.current_task(loop)
        self._deadline = watched.start(loop, self._watch)
        answer: bytes | None
        try:
            answer = await work
        except asyncio.CancelledError:
            if self._left:
                return  # the client has disconnected
            if not self.cancelled or self._task is None:
                raise
            self._task.uncancel()
            answer = rpc.encode_error(id, CANCELLED, self.reason)
        finally:
            self._task = None
            watched.cancel(self._deadline)
            if self._slot is not None:
                self._slot.discard(self)
                self.request.gone.remove_done_callback(self._disconnected)
        if self.stream is None and type(answer) is bytes and self.accepted.json:
            self.request.reply(200, JSON_HEADERS, answer)
        else:
            await self.finish(answer)

    def cancel(self, reason: str = "") -> None:
        """Cancels the request for its client, or for `reason`; the exchange still ends properly."""
        if self._task is not None and not self.cancelled:
            self.cancelled = True
            if reason:
                self.reason = f"the request was cancelled: {reason}"
            self._task.cancel(reason or None)

    def push(self, message: bytes) -> bool:
        """Sends a message before the response, at once. False if it could not be sent: the request
        is over, or the client does not read."""
        if self._task is None:
            return False
        if self.stream is None:
            if self.request.lost:
                return False  # and it has no event id to resume from
            self._start(None)
        return self.stream is not None and self.stream.send(message)

    async def finish(self, answer: bytes | None, headers: Headers | None = None) -> None:
        """Sends the response; None accepts a notification."""
        if self.stream is None:
            if answer is None:
                self.request.reply(202, headers or [], b"")
                return
            status = find_status(answer, self.client.revision)
            if isinstance(answer, rpc.EncodedError):
                if answer.retry_after:
                    headers = [*(headers or ()), build_retry_after(answer.retry_after)]
                elif answer.missing_scope and self.request.scope_challenge is not None:
                    headers = [*(headers or ()), self.request.scope_challenge]
            if self.accepted.json or status != 200:
                send_json(self.request, status, answer, headers)
                return
            self._start(headers)
        if self.stream is not None:
            await self.stream.finish(answer)

    # --- long requests -------------------------------------------------------------------------

    def _watch(self) -> None:
        if self._slot is not None:
            return
        self._keepalive.watched.cancel(self._deadline)
        self._slot = self._keepalive.add(self, self.request.loop)
        self.request.gone.add_done_callback(self._disconnected)
        is_primed = isinstance(self.client, HttpSession) and self.client.revision.has_priming_events
        if self.stream is None and self.accepted.stream and is_primed:
            self._start(None)  # so that the client can resume it

    def _disconnected(self, _: object) -> None:
        if self._task is not None and self.client.revision.disconnect_cancels:
            self._left = True
            self._task.cancel()

    def send_keepalive(self) -> None:
        if self.stream is None and self.accepted.stream:
            self._start(None)
        if self.stream is not None:
            self.stream.send_keepalive()

    def _start(self, headers: Headers | None) -> None:
        client = self.client
        if isinstance(client, HttpSession):
            self.stream = client.create_stream(self.request, RESPONSE, self.ownership, self.id)
        else:
            self.stream = EventStream(self.request)
        self.stream.open(headers)
        if self._task is not None:
            self._watch()


def find_status(answer: bytes, revision: Revision) -> int:
    """Older clients read errors from a 200; later ones get a status for them."""
    if not isinstance(answer, rpc.EncodedError):
        return 200
    if answer.code == rpc.INVALID_REQUEST:
        return 400
    if answer.missing_scope:
        return 403  # at every revision, as for a token without the scopes that all need
    if not revision.has_error_statuses:
        return 200
    if answer.retry_after:
        return 429
    if answer.code == rpc.METHOD_NOT_FOUND:
        return 404
    return 400 if answer.code in BAD_REQUEST_CODES else 200


def send_json(
    request: HttpRequest, status: int, body: bytes, headers: Headers | None = None
) -> None:
    request.reply(status, [*JSON_HEADERS, *headers] if headers else JSON_HEADERS, body)
