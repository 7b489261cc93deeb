"""JSON-RPC over one two-way stream of messages: matching responses, timeouts, cancellation.

`JsonRpcChannel` knows neither pipes nor sockets: a subclass sends messages and passes in what
arrives. `Wire` is what a session needs of any transport.
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
from dragoman.mcp.client.message_limit import MessageLimit
from dragoman.mcp.client.notifications import (
    NotificationSink,
    PendingServerRequests,
    RequestListener,
    UpstreamRequest,
)
from dragoman.mcp.protocol.framing import PREFIX, OversizedFrame, find_id, find_id_at_end
from dragoman.mcp.protocol.notifications import (
    ACKNOWLEDGED,
    CANCELLED,
    COMPLETED,
    MESSAGE,
    PROGRESS,
)
from dragoman.mcp.protocol.revisions import SUBSCRIPTION_KEY, Revision
from dragoman.mcp.protocol.translate import METHODS
from dragoman.wire import rpc
from dragoman.wire.json import Malformed, decode_reply

log = logging.getLogger(__name__)

CALLS = frozenset({*METHODS.values(), "tasks/get", "tasks/result"})
"""Requests on behalf of a client; the hub sends all others for itself."""
MAX_BATCH = 1_000
"""Messages read from one batch."""
MAX_SEARCHED = 100
"""Calls searched for the one that a question belongs to."""
LATE_LOG_SECONDS = 5.0
"""How long after a call was cancelled log messages may still be about it."""
FOREVER = 10.0**9


class Wire(Protocol):
    """The transport of one session: stdio, Streamable HTTP or HTTP+SSE."""

    lost: asyncio.Future[str]
    """Done, with the reason, when the transport can no longer be used."""

    @property
    def supports_sessions(self) -> bool:
        """Whether the server assigns session ids, which it may forget (Streamable HTTP). One
        server process serves all of its sessions and answers every request, if only with an HTTP
        status."""

    @property
    def has_push_streams(self) -> bool:
        """Whether notifications outside of requests come on streams that `listen` opens."""

    @property
    def sends_headers(self) -> bool:
        """Whether `headers` of a request reach the server."""

    async def request(
        self,
        method: str,
        params: dict[str, Any],
        timeout: float,
        listener: RequestListener | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> tuple[Any, int]:
        """Returns the result and its size in bytes. When the time is over the request is
        cancelled; progress restarts the time."""

    async def notify(self, method: str, params: dict[str, Any] | None = None) -> None: ...

    async def listen(
        self,
        method: str,
        params: dict[str, Any] | None,
        opened: Callable[[], None],
        listener: RequestListener | None = None,
    ) -> None:
        """Receives notifications until the server ends the stream. `opened` is called when the
        server has opened a push stream."""

    def set_session_listener(self, listener: RequestListener) -> None:
        """`listener` receives the questions that belong to no call."""

    def set_revision(self, revision: Revision | None) -> None:
        """Later requests declare this revision; None before a handshake, in a new session."""

    def suspect_lost(self, reason: str) -> None:
        """A request did not reach the server: a wire without a connection of its own is lost."""

    def mark_lost(self, reason: str) -> None:
        """Ends the use of the wire; pending requests fail."""

    async def close(self) -> None: ...


def failure_from_error(server: str, method: str, native: Any) -> WorkFailed:
    """Converts the error that a server answered with."""
    native = native if isinstance(native, dict) else {"code": -32603, "message": str(native)}
    code, text = native.get("code"), str(native.get("message", ""))[:1000]
    return WorkFailed(f'server "{server}" answered "{method}" with error {code}: {text}', native)


def deliver_request(
    request: UpstreamRequest, listener: RequestListener | None, sink: NotificationSink
) -> bool:
    """Passes a server's request to the call that it belongs to. Refuses it, and returns False,
    where there is no such call or its client cannot be asked this."""
    if request.method == "ping":
        request.answer({})
    elif listener is None or listener.ask is None or not listener.ask(request):
        sink(request.method, request.params)
        request.refuse(rpc.METHOD_NOT_FOUND, f'"{request.method[:100]}" is not supported here')
        return False
    return True


class UnansweredQuestion(WorkFailed):
    """A call that failed after its question was refused, most likely because of that."""

    def __init__(self, message: str, native: dict[str, Any] | None, asked: UpstreamRequest) -> None:
        super().__init__(message, native)
        self.asked = asked


def build_unanswered(
    server: str, method: str, message: Mapping[str, Any], asked: UpstreamRequest
) -> UnansweredQuestion:
    """For a response that reports a failure, in an error or in a result."""
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


class CallInFlight:
    """A request of the hub, as far as other messages of the server can be about it."""

    __slots__ = ("id", "listener", "refused")

    def __init__(self, listener: RequestListener | None, id: int | None = None) -> None:
        self.listener = listener
        self.id = id
        self.refused: UpstreamRequest | None = None
        """The server's question about this request that was refused."""


class IncomingRouter:
    """Routes the requests and notifications of a server to the calls that they are about."""

    def __init__(self, sink: NotificationSink) -> None:
        self._sink = sink
        self._requests = PendingServerRequests(self._reply)
        self._session_listener: RequestListener | None = None

    def set_session_listener(self, listener: RequestListener) -> None:
        self._session_listener = listener

    def _reply(self, message: bytes) -> None:
        raise NotImplementedError

    def _find_call(
        self, method: str, params: Mapping[str, Any], stream: CallInFlight | None
    ) -> CallInFlight | None:
        """Finds the call that a notification is about, or a question if `method` is empty. `stream`
        is the call whose own stream brought the message, on a wire that has such streams."""
        raise NotImplementedError

    def _handle_incoming(self, message: dict[str, Any], stream: CallInFlight | None = None) -> bool:
        """Handles a request or notification; True if it was progress."""
        method, params = str(message["method"]), message.get("params")
        params = params if isinstance(params, dict) else {}
        if "id" in message:
            request = self._requests.open(rpc.find_id(message), method, params)
            call = self._find_call("", params, stream)
            listener = call.listener if call is not None else None
            if self._session_listener is not None and (listener is None or listener.ask is None):
                call, listener = None, self._session_listener
            if not deliver_request(request, listener, self._sink) and call is not None:
                call.refused = request
        elif method in (PROGRESS, MESSAGE, ACKNOWLEDGED):
            call = self._find_call(method, params, stream)
            listener = call.listener if call is not None else None
            if method == PROGRESS:
                return listener is not None and listener.report_progress(params)
            if method == MESSAGE:
                if listener is None or not listener.report_log_message(params):
                    self._sink(method, params)
            elif listener is not None and listener.acknowledged is not None:
                listener.acknowledged(params)
        elif method == CANCELLED:
            self._requests.cancel(params)
        elif method != COMPLETED or not self._requests.complete(params):
            self._sink(method, params)
        return False


class PendingRequest(CallInFlight):
    __slots__ = ("future", "method", "timeout", "timer")

    def __init__(
        self,
        method: str,
        future: asyncio.Future[tuple[Any, int]],
        timeout: float,
        listener: RequestListener | None,
    ) -> None:
        self.listener = listener
        self.id = self.refused = None
        self.method = method
        self.future = future
        self.timeout = timeout
        self.timer: asyncio.TimerHandle | None = None


class JsonRpcChannel(IncomingRouter):
    """A `Wire` over one stream. Nothing here depends on the revision that is spoken."""

    supports_sessions = has_push_streams = sends_headers = False

    def __init__(
        self, server: str, sink: NotificationSink, limit: MessageLimit | None = None
    ) -> None:
        super().__init__(sink)
        self.server = server
        self.limit = MessageLimit(server) if limit is None else limit
        self._loop = asyncio.get_running_loop()
        self.lost: asyncio.Future[str] = self._loop.create_future()
        self._pending: dict[int, PendingRequest] = {}
        self._last_id = 0
        self._invalid = 0
        self._cancelled_by: str | None = None
        self._cancelled_until = float("-inf")
        """The client whose call was cancelled last, and how long logs may still be about it."""
        self.unsolicited = 0
        """Messages so far that answered no request: notifications, requests and invalid ones."""
        self.spent = 0.0
        """Seconds of CPU time that the large ones of these took."""

    def _send(self, message: bytes, meta: Mapping[str, Any]) -> None:
        """Sends one message, still without framing, or raises `Unreachable`. `meta` is its
        `_meta`, for transports that repeat the trace elsewhere."""
        raise NotImplementedError

    # --- sending -------------------------------------------------------------------------------

    async def request(
        self,
        method: str,
        params: dict[str, Any],
        timeout: float,
        listener: RequestListener | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> tuple[Any, int]:
        self._last_id = id = self._last_id + 1
        if listener is not None and listener.progress:
            params = {**params, "_meta": {**params.get("_meta", {}), "progressToken": id}}
        future: asyncio.Future[tuple[Any, int]] = self._loop.create_future()
        pending = PendingRequest(method, future, timeout, listener)
        self._send(rpc.encode_request(id, method, params), params.get("_meta", NOTHING))
        self._pending[id] = pending
        pending.timer = self._loop.call_later(timeout, self._expire, id)
        try:
            return await future
        except asyncio.CancelledError:
            self._cancel(id, "the caller cancelled the request")
            raise
        finally:
            pending.timer.cancel()
            self._pending.pop(id, None)

    async def notify(self, method: str, params: dict[str, Any] | None = None) -> None:
        self._send(rpc.encode_notification(method, params), NOTHING)

    async def listen(
        self,
        method: str,
        params: dict[str, Any] | None,
        opened: Callable[[], None],
        listener: RequestListener | None = None,
    ) -> None:
        await self.request(method, params or {}, FOREVER, listener)

    def set_revision(self, revision: Revision | None) -> None:
        """Messages on a stream do not depend on it."""

    def suspect_lost(self, reason: str) -> None:
        """The stream itself shows when it is lost: a full buffer is no such sign."""

    def mark_lost(self, reason: str, outlook: str = "") -> None:
        if self.lost.done():
            return
        self.lost.set_result(reason)
        text = f'server "{self.server}" was lost: {reason}. The request may or may not have been'
        for pending in self._pending.values():
            if not pending.future.done():
                pending.future.set_exception(Unreachable(f"{text} executed{outlook}"))
        self._pending.clear()

    def fail_request(self, message: bytes, error: HubError) -> None:
        """Fails the request that was to be sent as `message`."""
        sent = decode_reply(message)
        pending = self._pending.pop(sent["id"], None) if "method" in sent and "id" in sent else None
        if pending is not None and not pending.future.done():
            pending.future.set_exception(error)

    def _reply(self, message: bytes) -> None:
        with contextlib.suppress(Unreachable):
            self._send(message, NOTHING)

    def _expire(self, id: int) -> None:
        pending = self._pending.get(id)
        if pending is None or pending.future.done():
            return
        timeout = pending.timeout
        self._cancel(id, f"no response within {timeout:g} s")
        pending.future.set_exception(build_timed_out(self.server, pending.method, timeout))

    def _cancel(self, id: int, reason: str) -> None:
        pending = self._pending.get(id)
        if pending is None or pending.method in ("initialize", "server/discover"):
            return
        if pending.method in CALLS:
            client = pending.listener.client if pending.listener is not None else None
            now = self._loop.time()
            is_alone = client == self._cancelled_by or now > self._cancelled_until
            self._cancelled_by = client if is_alone else None
            self._cancelled_until = now + LATE_LOG_SECONDS
        try:
            params = {"requestId": id, "reason": reason}
            self._send(rpc.encode_notification(CANCELLED, params), NOTHING)
        except Unreachable:
            log.debug("%s: lost before the request could be cancelled", self.server)

    # --- receiving -----------------------------------------------------------------------------

    def receive(self, data: bytes) -> None:
        """Takes in one message."""
        before = self.unsolicited
        begun = thread_time() if len(data) > LARGE else 0.0
        try:
            message = decode_reply(data, self.limit.most)
        except Malformed as error:
            self._reject_malformed(data, error)
            message = []
        if len(data) > self.limit.bytes and not self._accept_size(message, len(data)):
            return
        if type(message) is dict and "result" in message and "method" not in message:
            id = message.get("id")  # most messages are results
            pending = self._pending.get(id) if type(id) is int else None
            if pending is not None and pending.refused is None and not pending.future.done():
                pending.future.set_result((message["result"], len(data)))
                return
        if isinstance(message, list):  # 2025-03-26: batches
            for item in message[:MAX_BATCH]:
                self._dispatch(item, len(data))
            if len(message) > MAX_BATCH:
                self.report_invalid(f"a batch of {len(message)}; {MAX_BATCH} are read")
        else:
            self._dispatch(message, len(data))
        if begun and self.unsolicited != before:
            message = None  # freeing it takes time as well
            self.spent += thread_time() - begun

    def _dispatch(self, message: Any, size: int) -> None:
        if not isinstance(message, dict):
            self.report_invalid("a message must be an object")
            return
        if "method" in message:
            self.unsolicited += 1
            if self._handle_incoming(message):
                self._restart_timer(message["params"]["progressToken"])
            return
        pending = self._find_pending(message.get("id"))
        if pending is None:
            self.unsolicited += 1  # late, or never requested
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

    def _find_pending(self, id: Any) -> PendingRequest | None:
        """Finds the request that waits for a response under `id`. Python equates True and 1, JSON
        does not."""
        pending = self._pending.get(id) if type(id) is int else None
        return pending if pending is not None and not pending.future.done() else None

    def _reject_malformed(self, data: bytes, error: Malformed) -> None:
        """Fails the request that an invalid response was for, if its id can be read."""
        id, is_answer = find_id(data[:PREFIX])
        pending = self._find_pending(id) if is_answer else None
        if pending is None:
            self.report_invalid(str(error))
            return
        problem = f'server "{self.server}" answered "{pending.method}" with an invalid message'
        pending.future.set_exception(BadReply(f"{problem}: {error}"))

    def _accept_size(self, message: Any, size: int) -> bool:
        """Whether a message above the limit is a result that repeats itself; otherwise fails the
        request that it answers."""
        is_result = isinstance(message, dict) and "result" in message and "method" not in message
        pending = self._find_pending(message.get("id")) if is_result else None
        if pending is None:
            self.report_invalid(f"a message larger than {self.limit.bytes} bytes")
            return False
        is_allowed = self.limit.allows(message["result"], size)
        if not is_allowed:
            pending.future.set_exception(self.limit.build_error(pending.method))
        return is_allowed

    def reject_oversized(self, message: OversizedFrame) -> None:
        """Fails the request whose response was skipped because of its size. Some servers write the
        id first, others last."""
        id = find_id(message.prefix)[0]
        pending = self._find_pending(find_id_at_end(message.suffix) if id is None else id)
        if pending is None:
            self.report_invalid(f"a message larger than {self.limit.bytes} bytes")
            return
        pending.future.set_exception(self.limit.build_error(pending.method))

    def report_invalid(self, problem: str) -> None:
        self.unsolicited += 1
        self._invalid += 1
        if self._invalid <= 5:
            log.warning('server "%s" sent an invalid message: %s', self.server, problem)

    # --- messages that answer no request -------------------------------------------------------

    def _find_call(
        self, method: str, params: Mapping[str, Any], stream: CallInFlight | None
    ) -> PendingRequest | None:
        if method == PROGRESS:
            return self._find_pending(params.get("progressToken"))
        if method == MESSAGE:
            return self._find_logged_call()
        if method == ACKNOWLEDGED:
            meta = params.get("_meta")
            return self._find_pending(meta.get(SUBSCRIPTION_KEY)) if type(meta) is dict else None
        # A question names no request: it belongs to the newest call that can be asked at all. If
        # none can, it was about the only call there is.
        calls = list(islice(self._list_calls(), MAX_SEARCHED))
        askable = (call for call in calls if call.listener is not None and call.listener.ask)
        return next(askable, calls[0] if len(calls) == 1 else None)

    def _list_calls(self) -> Iterator[PendingRequest]:
        """Yields the calls in flight, the newest first."""
        for pending in reversed(self._pending.values()):
            if pending.method in CALLS and not pending.future.done():
                yield pending

    def _find_logged_call(self) -> PendingRequest | None:
        """A log message names no request. It may only go to a client whose call it must be about:
        one call is in flight, or all calls are of one client."""
        first: PendingRequest | None = None
        client = ""
        for call in self._list_calls():
            if call.listener is None:
                return None
            if first is None:
                first, client = call, call.listener.client
            elif not call.listener.client or call.listener.client != client:
                return None
        if first is not None and client != self._cancelled_by:
            is_ambiguous = self._loop.time() < self._cancelled_until  # about the cancelled call?
            return None if is_ambiguous else first
        return first

    def _restart_timer(self, id: int) -> None:
        pending = self._pending.get(id)
        if pending is not None and pending.timer is not None:
            pending.timer.cancel()
            pending.timer = self._loop.call_later(pending.timeout, self._expire, id)


def build_timed_out(server: str, method: str, timeout: float) -> TimedOut:
    return TimedOut(
        f'server "{server}" did not answer "{method}" within {timeout:g} s: the request timed out '
        "and was cancelled; raise its timeout_secs if it needs longer"
    )
