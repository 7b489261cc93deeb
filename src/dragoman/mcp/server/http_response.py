"""How one answer goes out over HTTP: plain JSON, or a stream once there is something to say first.

What is asked, and by whom, was settled before.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Coroutine
from typing import Any

from dragoman.mcp.protocol.errors import encode_crash
from dragoman.mcp.protocol.revisions import Revision
from dragoman.mcp.server.client_state import ClientState
from dragoman.mcp.server.http_sessions import HttpSession
from dragoman.mcp.server.replay_streams import (
    RESPONSE,
    EventStream,
    Headers,
    Keepalive,
    KeepaliveMember,
    ReplayStream,
)
from dragoman.wire import rpc
from dragoman.wire.http import JSON_HEADERS, HttpRequest

CANCELLED = -32800
BAD_REQUEST_CODES = frozenset({-32700, -32600, -32602, -32020, -32021, -32022})
_ERROR = re.compile(
    rb'\{"jsonrpc":"2\.0","id":(?:"(?:[^"\\]|\\.)*"|[^",]*),"error":\{"code":(-?\d+)'
)
"""How an error begins that `wire.rpc` has encoded."""


class HttpResponder:
    """One request's answer.

    What is answered soon and says nothing before starts no task and no stream. What takes long is
    watched: a client of the new era that goes away has cancelled it, and one that accepts streams
    is kept from giving up by comments.
    """

    __slots__ = (
        "_beat", "_beats", "_due", "_left", "_task", "cancelled", "may_stream", "must_stream",
        "peer", "request", "stream", "why",
    )  # fmt: skip

    def __init__(
        self, peer: ClientState, accept: bytes, request: HttpRequest, beats: Keepalive
    ) -> None:
        self.peer = peer
        self.request = request
        self.may_stream = b"event-stream" in accept or b"*" in accept
        self.must_stream = b"json" not in accept and b"*" not in accept
        self.stream: EventStream | None = None
        self.cancelled = False
        self.why = "the request was cancelled"
        self._left = False
        self._beats = beats
        self._beat: set[KeepaliveMember] | None = None
        """With whom it is kept alive; None until it is watched."""
        self._task: asyncio.Task[Any] | None = None
        """What is at work for it."""
        self._due = 0

    async def run(self, work: Coroutine[Any, Any, bytes | None], id: rpc.Id) -> None:
        """Answers with what comes of `work`."""
        loop = self.request.loop
        self._task = asyncio.current_task(loop)
        self._due = self._beats.watched.start(loop, self._watch)
        try:
            answer = await work
        except asyncio.CancelledError:
            if self._left:
                return  # the client has gone, and with it the one to answer
            if not self.cancelled or self._task is None:
                raise
            self._task.uncancel()
            answer = rpc.encode_error(id, CANCELLED, self.why)
        except Exception:
            answer = encode_crash(id)
        finally:
            self._task = None
            self._beats.watched.cancel(self._due)
            if self._beat is not None:
                self._beat.discard(self)
                self.request.gone.remove_done_callback(self._gone)
        if self.stream is None and answer is not None and not self.must_stream:
            send_json(self.request, status_of(answer, self.peer.revision), answer)
        else:
            await self.finish(answer)

    def cancel(self, why: str = "") -> None:
        """The client wants no answer any more, or `why` it gets none; the exchange must end all the
        same."""
        if self._task is not None and not self.cancelled:
            self.cancelled = True
            if why:
                self.why = f"the request was cancelled: {why}"
            self._task.cancel(why or None)

    def push(self, message: bytes) -> bool:
        """Says something before the answer, at once. False when it could not be sent: it is all
        over, or the client does not read."""
        if self._task is None:
            return False
        if self.stream is None:
            if self.request.lost:
                return False  # and it has no id to come again with
            self._start(None)
        return self.stream is not None and self.stream.send(message)

    async def finish(self, answer: bytes | None, headers: Headers | None = None) -> None:
        """Sends the answer; None is that of a notification."""
        if self.stream is None:
            if answer is None:
                self.request.reply(202, headers or [], b"")
                return
            status = status_of(answer, self.peer.revision)
            if not self.must_stream or status != 200:
                send_json(self.request, status, answer, headers)
                return
            self._start(headers)
        if self.stream is not None:
            await self.stream.finish(answer)

    # --- what takes long -----------------------------------------------------------------------

    def _watch(self) -> None:
        if self._beat is not None:
            return
        self._beats.watched.cancel(self._due)
        self._beat = self._beats.add(self, self.request.loop)
        self.request.gone.add_done_callback(self._gone)
        if self.stream is None and self.may_stream and _primed(self.peer):
            self._start(None)  # so that it can come again for the answer

    def _gone(self, _: object) -> None:
        """From 2026-07-28 on that cancels; before, it does not."""
        if self._task is not None and self.peer.revision.disconnect_cancels:
            self._left = True
            self._task.cancel()

    def send_keepalive(self) -> None:
        if self.stream is None and self.may_stream:
            self._start(None)
        if self.stream is not None:
            self.stream.send_keepalive()

    def _start(self, headers: Headers | None) -> None:
        peer = self.peer
        if isinstance(peer, HttpSession) and peer.resumable:
            self.stream = ReplayStream(self.request, peer.replay, RESPONSE)
        else:
            self.stream = EventStream(self.request)
        self.stream.open(headers, primed=_primed(peer))
        if self._task is not None:
            self._watch()


def _primed(peer: ClientState) -> bool:
    return isinstance(peer, HttpSession) and peer.primed


def status_of(answer: bytes, revision: Revision) -> int:
    """Old clients read errors from a 200; the new era gives them a status of their own."""
    error = _ERROR.match(answer)
    if error is None:
        return 200
    code = int(error[1])
    if code == rpc.INVALID_REQUEST:
        return 400
    if not revision.has_error_statuses:
        return 200
    if code == rpc.METHOD_NOT_FOUND:
        return 404
    return 400 if code in BAD_REQUEST_CODES else 200


def send_json(
    request: HttpRequest, status: int, body: bytes, headers: Headers | None = None
) -> None:
    request.reply(status, [*JSON_HEADERS, *headers] if headers else JSON_HEADERS, body)
