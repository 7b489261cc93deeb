"""Requests and answers over one two-way stream of messages: matching, timeouts, cancelling.

Knows neither pipes nor sockets: whoever has the stream passes in what arrives and says how to send.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Mapping
from typing import Any, Protocol

from dragoman.core.call import Progress, Updates, discard
from dragoman.core.errors import BadReply, HubError, TimedOut, Unreachable, WorkFailed
from dragoman.mcp.framing import PREFIX, peek
from dragoman.wire import rpc
from dragoman.wire.json import MAX_REPLY_TOKENS, Malformed, decode

log = logging.getLogger(__name__)

Heard = Callable[[str, Mapping[str, Any]], None]
"""Takes the notifications that belong to no request."""

CANCELLED = "notifications/cancelled"
PROGRESS = "notifications/progress"

UNASKED_PER_SECOND = 2_000
"""Messages that answer nothing; a server that sends more is read more slowly."""


class Wire(Protocol):
    """A way to talk to one server: stdio, Streamable HTTP or HTTP+SSE."""

    lost: asyncio.Future[str]
    """Done, with the reason in words, when this wire is of no more use."""

    async def request(
        self,
        method: str,
        params: dict[str, Any],
        timeout: float,
        updates: Updates = discard,
    ) -> tuple[Any, int]:
        """The result and the bytes it came in. On expiry the server is told to cancel."""

    async def notify(self, method: str, params: dict[str, Any] | None = None) -> None: ...

    async def close(self) -> None: ...


def failure(server: str, method: str, native: Any) -> WorkFailed:
    """The error a server answered with, as one of ours."""
    native = native if isinstance(native, dict) else {"code": -32603, "message": str(native)}
    code, words = native.get("code"), str(native.get("message", ""))[:1000]
    return WorkFailed(f'server "{server}" answered "{method}" with error {code}: {words}', native)


def progress_of(params: Mapping[str, Any]) -> Progress | None:
    progress, total = _number(params.get("progress")), _number(params.get("total"))
    message = params.get("message")
    if progress is None:
        return None
    words = message[:1000] if isinstance(message, str) else None
    return Progress(progress=progress, total=total, message=words)


def _number(value: Any) -> float | None:
    return value if isinstance(value, int | float) and not isinstance(value, bool) else None


class Pace:
    """Slows down a server that talks without being asked, so that nobody else is."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._unasked = 0.0
        self._counted_at = self._loop.time()

    def pause(self, unasked: int) -> float:
        """How many seconds to read nothing, after so many more messages."""
        if not unasked:
            return 0.0
        now = self._loop.time()
        self._unasked = max(0.0, self._unasked - (now - self._counted_at) * UNASKED_PER_SECOND)
        self._counted_at = now
        self._unasked += unasked
        if self._unasked <= UNASKED_PER_SECOND:
            return 0.0
        return min(1.0, self._unasked / UNASKED_PER_SECOND - 1.0 + 0.05)


LINES_AN_EVENT = 16
"""So many lines of a stream of events count as one message: comments are work too."""


class Pending:
    __slots__ = ("future", "highest", "method", "timer", "updates")

    def __init__(self, method: str, future: asyncio.Future[Any], updates: Updates) -> None:
        self.method = method
        self.future = future
        self.updates = updates
        self.highest = float("-inf")
        self.timer: asyncio.TimerHandle | None = None


class Duplex:
    """`send` puts one message, without framing, on the stream or raises `Unreachable`."""

    def __init__(self, server: str, send: Callable[[bytes], None], heard: Heard) -> None:
        self.server = server
        self._send = send
        self._heard = heard
        self._pending: dict[int, Pending] = {}
        self._next = 0
        self._loop = asyncio.get_running_loop()
        self._complaints = 0
        self.unasked = 0
        """Messages so far that answered nothing: notifications, requests, and what is neither."""

    async def request(
        self,
        method: str,
        params: dict[str, Any],
        timeout: float,
        updates: Updates = discard,
    ) -> tuple[Any, int]:
        self._next += 1
        id = self._next
        pending = Pending(method, self._loop.create_future(), updates)
        if updates is not discard:
            params = {**params, "_meta": {**params.get("_meta", {}), "progressToken": id}}
        self._send(rpc.request(id, method, params))
        self._pending[id] = pending
        pending.timer = self._loop.call_later(timeout, self._expire, id, timeout)
        try:
            answer: tuple[Any, int] = await pending.future
            return answer
        except asyncio.CancelledError:
            self._cancel(id, "the caller has gone")
            raise
        finally:
            pending.timer.cancel()
            self._pending.pop(id, None)

    def notify(self, method: str, params: dict[str, Any] | None = None) -> None:
        self._send(rpc.notification(method, params))

    def fail(self, error: Callable[[], HubError]) -> None:
        """Nothing more will come: everyone who waits is told, each with an error of its own."""
        for pending in self._pending.values():
            if not pending.future.done():
                pending.future.set_exception(error())
        self._pending.clear()

    def oversized(self, prefix: bytes, limit: int) -> None:
        """A message too large to keep was passed over; who waited for it is told."""
        pending = self._waiting(peek(prefix)[0])
        if pending is None:
            self.complain("a message larger than what is taken")
            return
        problem = f'server "{self.server}" answered "{pending.method}" with more than {limit} bytes'
        pending.future.set_exception(BadReply(problem))

    def _waiting(self, id: Any) -> Pending | None:
        """Who waits for an answer under `id`. Python takes True for 1; JSON does not."""
        pending = self._pending.get(id) if type(id) is int else None
        return pending if pending is not None and not pending.future.done() else None

    def receive(self, data: bytes) -> None:
        try:
            message = decode(data, max_tokens=MAX_REPLY_TOKENS)
        except Malformed as error:
            self._not_understood(data, error)
            return
        if isinstance(message, list):  # 2025-03-26: batches
            for item in message:
                self._receive(item, len(data))
        else:
            self._receive(message, len(data))

    def _not_understood(self, data: bytes, error: Malformed) -> None:
        """Where it can be told whose answer it was to be, that one need not wait for another."""
        id, is_answer = peek(data[:PREFIX])
        pending = self._waiting(id) if is_answer else None
        if pending is None:
            self.complain(str(error))
            return
        problem = f'server "{self.server}" answered "{pending.method}" with what is no message'
        pending.future.set_exception(BadReply(f"{problem}: {error}"))

    def _receive(self, message: Any, size: int) -> None:
        if not isinstance(message, dict):
            self.complain("a message that is no object")
        elif "method" in message:
            self._asked(message)
        else:
            self._answered(message, size)

    def _answered(self, message: dict[str, Any], size: int) -> None:
        pending = self._waiting(message.get("id"))
        if pending is None:
            self.unasked += 1  # late, or never asked
        elif "error" in message:
            pending.future.set_exception(failure(self.server, pending.method, message["error"]))
        elif "result" in message:
            pending.future.set_result((message["result"], size))
        else:
            problem = f'server "{self.server}" answered "{pending.method}" with neither result nor'
            pending.future.set_exception(BadReply(f"{problem} error"))

    def _asked(self, message: dict[str, Any]) -> None:
        self.unasked += 1
        method, params = str(message["method"]), message.get("params")
        params = params if isinstance(params, dict) else {}
        if "id" in message:
            id = rpc.id_of(message)
            if method == "ping":
                reply = rpc.result(id, {})
            else:  # the connection is shared, so no client's features were declared
                reply = rpc.error(id, rpc.METHOD_NOT_FOUND, f'"{method[:100]}" is not offered here')
            with contextlib.suppress(Unreachable):
                self._send(reply)
        elif method == PROGRESS:
            self._progress(params)
        else:
            self._heard(method, params)

    def _progress(self, params: Mapping[str, Any]) -> None:
        pending = self._waiting(params.get("progressToken"))
        update = progress_of(params)
        if pending is not None and update is not None and update.progress > pending.highest:
            pending.highest = update.progress
            pending.updates(update)

    def _expire(self, id: int, timeout: float) -> None:
        pending = self._pending.get(id)
        if pending is None or pending.future.done():
            return
        self._cancel(id, f"no answer within {timeout:g} s")
        pending.future.set_exception(
            TimedOut(
                f'server "{self.server}" did not answer "{pending.method}" within {timeout:g} s '
                "and was told to cancel; raise its timeout_secs if it needs more"
            )
        )

    def _cancel(self, id: int, reason: str) -> None:
        pending = self._pending.get(id)
        if pending is None or pending.method in ("initialize", "server/discover"):
            return
        try:
            self.notify(CANCELLED, {"requestId": id, "reason": reason})
        except Unreachable:
            log.debug("%s: gone before it could be told to cancel", self.server)

    def complain(self, problem: str) -> None:
        self.unasked += 1
        self._complaints += 1
        if self._complaints <= 5:
            log.warning('server "%s" sent what is no message: %s', self.server, problem)
