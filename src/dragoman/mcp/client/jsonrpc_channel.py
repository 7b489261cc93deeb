"""Requests and answers over one two-way stream of messages: matching, timeouts, cancelling.

Knows neither pipes nor sockets: whoever has the stream passes in what arrives and says how to send.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Iterator, Mapping
from itertools import islice
from time import thread_time
from typing import Any, Protocol

from dragoman.core.call import NOTHING
from dragoman.core.errors import BadReply, HubError, TimedOut, Unreachable, WorkFailed
from dragoman.core.read_pacing import LARGE
from dragoman.mcp.client.notifications import (
    NotificationSink,
    PendingServerRequests,
    RequestListener,
    ServerRequest,
)
from dragoman.mcp.protocol.framing import PREFIX, OversizedFrame, find_id, find_id_at_end
from dragoman.mcp.protocol.notifications import (
    ACKNOWLEDGED,
    CANCELLED,
    COMPLETED,
    MESSAGE,
    PROGRESS,
)
from dragoman.mcp.protocol.revisions import SUBSCRIPTION_KEY
from dragoman.wire import rpc
from dragoman.wire.json import Malformed, decode_reply

log = logging.getLogger(__name__)

CALLS = frozenset(
    {
        "tools/call",
        "prompts/get",
        "resources/read",
        "completion/complete",
        "tasks/get",
        "tasks/result",
    }
)
"""What is asked for somebody; the rest is the hub's own affair."""
MAX_BATCH = 1_000
"""Messages of one batch that are read."""
MANY = 100
"""Calls that are looked through for the one that a question belongs to."""
LEFT_SECONDS = 5.0
"""So long after a call was given up the server may still speak of it."""


class Wire(Protocol):
    """A way to talk to one server: stdio, Streamable HTTP or HTTP+SSE."""

    lost: asyncio.Future[str]
    """Done, with the reason in words, when this wire is of no more use."""

    async def request(
        self,
        method: str,
        params: dict[str, Any],
        timeout: float,
        listener: RequestListener | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> tuple[Any, int]:
        """The result and the bytes it came in. On expiry the server is told to cancel; progress
        gives the time again. `headers` are for wires that have such."""

    async def notify(self, method: str, params: dict[str, Any] | None = None) -> None: ...

    def set_session_listener(self, listener: RequestListener) -> None:
        """`listener` takes the questions that belong to no call."""

    async def close(self) -> None: ...


def failure_from_error(server: str, method: str, native: Any) -> WorkFailed:
    """The error a server answered with, as one of ours."""
    native = native if isinstance(native, dict) else {"code": -32603, "message": str(native)}
    code, words = native.get("code"), str(native.get("message", ""))[:1000]
    return WorkFailed(f'server "{server}" answered "{method}" with error {code}: {words}', native)


def deliver_request(
    asked: ServerRequest, listener: RequestListener | None, heard: NotificationSink
) -> bool:
    """A server's request to the call that it belongs to; refused where there is none, or where its
    client cannot be asked that."""
    if asked.method == "ping":
        asked.answer({})
    elif listener is None or listener.ask is None or not listener.ask(asked):
        heard(asked.method, asked.params)
        words = f'"{asked.method[:100]}" is not offered here'
        asked.refuse(rpc.METHOD_NOT_FOUND, words)
        return False
    return True


class UnansweredQuestion(WorkFailed):
    """A call that failed after a question of its was refused, most likely for that."""

    def __init__(self, message: str, native: dict[str, Any] | None, asked: ServerRequest) -> None:
        super().__init__(message, native)
        self.asked = asked


def build_unanswered(
    server: str, method: str, message: Mapping[str, Any], asked: ServerRequest
) -> UnansweredQuestion:
    """For an answer that is a failure, whether it says so in an error or in a result."""
    native = message.get("error")
    code = native.get("code") if isinstance(native, dict) else None
    return UnansweredQuestion(
        f'server "{server}" asked "{asked.method[:100]}", which was refused, and "{method}" failed'
        + (f" with error {code}" if code is not None else ""),
        native if isinstance(native, dict) else None,
        asked,
    )


def is_failure(message: Mapping[str, Any]) -> bool:
    result = message.get("result")
    return "error" in message or (isinstance(result, dict) and result.get("isError") is True)


class PendingRequest:
    __slots__ = ("future", "listener", "method", "refused", "timeout", "timer")

    def __init__(
        self,
        method: str,
        future: asyncio.Future[Any],
        timeout: float,
        listener: RequestListener | None,
    ) -> None:
        self.method = method
        self.future = future
        self.timeout = timeout
        self.listener = listener
        self.refused: ServerRequest | None = None
        """What the server asked of it in vain."""
        self.timer: asyncio.TimerHandle | None = None


Send = Callable[[bytes, Mapping[str, Any]], None]
"""Puts one message, without framing, on the stream or raises `Unreachable`. With it comes what
stands in its `_meta`, for streams that have another place for that too."""


class JsonRpcChannel:
    def __init__(self, server: str, send: Send, heard: NotificationSink) -> None:
        self.server = server
        self._send = send
        self._heard = heard
        self._requests = PendingServerRequests(self._reply)
        self._pending: dict[int, PendingRequest] = {}
        self._next = 0
        self._loop = asyncio.get_running_loop()
        self._complaints = 0
        self._left_by: str | None = None
        self._left_until = float("-inf")
        """Whose call was given up last, and how long the server may still talk of it."""
        self.session_listener: RequestListener | None = None
        """Who takes questions that belong to no call."""
        self.unsolicited = 0
        """Messages so far that answered nothing: notifications, requests, and what is neither."""
        self.spent = 0.0
        """Seconds of processor time that the large ones of these took."""

    async def request(
        self,
        method: str,
        params: dict[str, Any],
        timeout: float,
        listener: RequestListener | None = None,
    ) -> tuple[Any, int]:
        self._next += 1
        id = self._next
        pending = PendingRequest(method, self._loop.create_future(), timeout, listener)
        if listener is not None and listener.progress:
            params = {**params, "_meta": {**params.get("_meta", {}), "progressToken": id}}
        self._send(rpc.request(id, method, params), params.get("_meta", NOTHING))
        self._pending[id] = pending
        pending.timer = self._loop.call_later(timeout, self._expire, id)
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
        self._send(rpc.notification(method, params), NOTHING)

    def fail_pending(self, error: Callable[[], HubError]) -> None:
        """Nothing more will come: everyone who waits is told, each with an error of its own."""
        for pending in self._pending.values():
            if not pending.future.done():
                pending.future.set_exception(error())
        self._pending.clear()

    def reject_oversized(self, message: OversizedFrame, limit: int) -> None:
        """A message too large to keep was passed over; who waited for it is told. Some servers
        write the id first, others last."""
        id = find_id(message.prefix)[0]
        pending = self._find_pending(find_id_at_end(message.suffix) if id is None else id)
        if pending is None:
            self.report_invalid("a message larger than what is taken")
            return
        pending.future.set_exception(
            BadReply(
                f'server "{self.server}" answered "{pending.method}" with more than {limit} bytes, '
                "which is the most that the hub takes in one message; ask it for less"
            )
        )

    def _find_pending(self, id: Any) -> PendingRequest | None:
        """Who waits for an answer under `id`. Python takes True for 1; JSON does not."""
        pending = self._pending.get(id) if type(id) is int else None
        return pending if pending is not None and not pending.future.done() else None

    def receive(self, data: bytes) -> None:
        before = self.unsolicited
        begun = thread_time() if len(data) > LARGE else 0.0
        try:
            message = decode_reply(data)
        except Malformed as error:
            self._reject_malformed(data, error)
            message = []
        if isinstance(message, list):  # 2025-03-26: batches
            for item in message[:MAX_BATCH]:
                self._dispatch(item, len(data))
            if len(message) > MAX_BATCH:
                self.report_invalid(f"a batch of {len(message)}; {MAX_BATCH} are taken")
        else:
            self._dispatch(message, len(data))
        if begun and self.unsolicited != before:
            message = None  # which takes time, too
            self.spent += thread_time() - begun

    def _reject_malformed(self, data: bytes, error: Malformed) -> None:
        """Where it can be told whose answer it was to be, that one need not wait for another."""
        id, is_answer = find_id(data[:PREFIX])
        pending = self._find_pending(id) if is_answer else None
        if pending is None:
            self.report_invalid(str(error))
            return
        problem = f'server "{self.server}" answered "{pending.method}" with what is no message'
        pending.future.set_exception(BadReply(f"{problem}: {error}"))

    def _dispatch(self, message: Any, size: int) -> None:
        if not isinstance(message, dict):
            self.report_invalid("a message that is no object")
        elif "method" in message:
            self._handle_incoming(message)
        else:
            self._resolve(message, size)

    def _resolve(self, message: dict[str, Any], size: int) -> None:
        pending = self._find_pending(message.get("id"))
        if pending is None:
            self.unsolicited += 1  # late, or never asked
        elif pending.refused is not None and is_failure(message):
            pending.future.set_exception(
                build_unanswered(self.server, pending.method, message, pending.refused)
            )
        elif "error" in message:
            pending.future.set_exception(
                failure_from_error(self.server, pending.method, message["error"])
            )
        elif "result" in message:
            pending.future.set_result((message["result"], size))
        else:
            problem = f'server "{self.server}" answered "{pending.method}" with neither result nor'
            pending.future.set_exception(BadReply(f"{problem} error"))

    def _handle_incoming(self, message: dict[str, Any]) -> None:
        self.unsolicited += 1
        method, params = str(message["method"]), message.get("params")
        params = params if isinstance(params, dict) else {}
        if "id" in message:
            asked = self._requests.open(rpc.id_of(message), method, params)
            if method == "ping":
                asked.answer({})
            else:
                self._route_question(asked)
        elif method == PROGRESS:
            self._report_progress(params)
        elif method == MESSAGE:
            whose = self._find_log_listener()
            if whose is None or not whose.report_note(params):
                self._heard(method, params)
        elif method == ACKNOWLEDGED:
            self._acknowledge(params)
        elif method == CANCELLED:
            self._requests.cancel(params)
        elif method != COMPLETED or not self._requests.complete(params):
            self._heard(method, params)

    def _reply(self, message: bytes) -> None:
        with contextlib.suppress(Unreachable):
            self._send(message, NOTHING)

    def _route_question(self, asked: ServerRequest) -> None:
        """A question names no request either: it is the newest call's that can be asked at all, and
        where none can, it must have been the only one's."""
        calls = list(islice(self._list_calls(), MANY))
        askable = (call for call in calls if call.listener is not None and call.listener.ask)
        whose = next(askable, calls[0] if len(calls) == 1 else None)
        listener = whose.listener if whose is not None else None
        if self.session_listener is not None and (listener is None or listener.ask is None):
            listener, whose = self.session_listener, None
        if not deliver_request(asked, listener, self._heard) and whose is not None:
            whose.refused = asked

    def _list_calls(self) -> Iterator[PendingRequest]:
        """Those under way, the newest first."""
        for pending in reversed(self._pending.values()):
            if pending.method in CALLS and not pending.future.done():
                yield pending

    def _find_log_listener(self) -> RequestListener | None:
        """A line of the log names no request: it is somebody's only where it can be nobody else's,
        since one call is under way or all are of one client."""
        first: RequestListener | None = None
        for call in self._list_calls():
            listener = call.listener
            if listener is None:
                return None
            if first is None:
                first = listener
            elif not listener.client or listener.client != first.client:
                return None
        if first is not None and first.client != self._left_by:
            in_doubt = self._loop.time() < self._left_until  # about a call that was given up?
            return None if in_doubt else first
        return first

    def _acknowledge(self, params: Mapping[str, Any]) -> None:
        meta = params.get("_meta")
        pending = self._find_pending(meta.get(SUBSCRIPTION_KEY)) if isinstance(meta, dict) else None
        if pending is not None and pending.listener is not None and pending.listener.acknowledged:
            pending.listener.acknowledged(params)

    def _report_progress(self, params: Mapping[str, Any]) -> None:
        id = params.get("progressToken")
        pending = self._find_pending(id)
        if (
            pending is None
            or pending.listener is None
            or not pending.listener.report_progress(params)
        ):
            return
        if pending.timer is not None and type(id) is int:
            pending.timer.cancel()
            pending.timer = self._loop.call_later(pending.timeout, self._expire, id)

    def _expire(self, id: int) -> None:
        pending = self._pending.get(id)
        if pending is None or pending.future.done():
            return
        timeout = pending.timeout
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
        if pending.method in CALLS:
            client = pending.listener.client if pending.listener is not None else None
            now = self._loop.time()
            self._left_by = client if client == self._left_by or now > self._left_until else None
            self._left_until = now + LEFT_SECONDS
        try:
            self.notify(CANCELLED, {"requestId": id, "reason": reason})
        except Unreachable:
            log.debug("%s: gone before it could be told to cancel", self.server)

    def report_invalid(self, problem: str) -> None:
        self.unsolicited += 1
        self._complaints += 1
        if self._complaints <= 5:
            log.warning('server "%s" sent what is no message: %s', self.server, problem)
