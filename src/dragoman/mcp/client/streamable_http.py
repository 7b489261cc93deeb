"""A server over Streamable HTTP, both eras: one POST a request, answered in JSON or as a stream.

Knows how messages travel; which era is spoken is told to it by `client`.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from time import thread_time
from typing import Any, NoReturn

from dragoman.core.call import NOTHING
from dragoman.core.errors import BadReply, HubError, TimedOut, Unreachable, WorkFailed
from dragoman.core.ports import FixedHeaders, HttpClient, Reply
from dragoman.core.read_pacing import LARGE, LINES_AN_EVENT, Pace
from dragoman.core.trace import HEADERS as TRACE_HEADERS
from dragoman.core.trace import headers_of, new_trace
from dragoman.core.urls import hide_secrets
from dragoman.mcp.client.jsonrpc_channel import (
    MAX_BATCH,
    build_unanswered,
    deliver_request,
    failure_from_error,
    is_failure,
)
from dragoman.mcp.client.notifications import (
    NotificationSink,
    PendingServerRequests,
    RequestListener,
    ServerRequest,
)
from dragoman.mcp.protocol.mirrored_headers import NAMED, encode_value
from dragoman.mcp.protocol.notifications import (
    ACKNOWLEDGED,
    CANCELLED,
    COMPLETED,
    MESSAGE,
    PROGRESS,
)
from dragoman.mcp.protocol.revisions import (
    CAPABILITIES_KEY,
    CLIENT_KEY,
    MODERN,
    MODERN_KEY,
    NAMES,
    R2503,
    R2506,
    R2607,
)
from dragoman.wire import rpc, sse
from dragoman.wire.json import MAX_BYTES, Malformed, decode, decode_reply

log = logging.getLogger(__name__)

JSON_TYPE, STREAM_TYPE = "application/json", "text/event-stream"
SESSION = "mcp-session-id"
KEPT_HEADERS = 4_096
LONGEST_KEPT = 256
"""Names longer than this are not kept with their headers."""
RESUMPTIONS = 10
"""So often in a row a stream is taken up again that brings nothing new."""
SHORTEST_RETRY, RETRY, LONGEST_RETRY = 0.05, 1.0, 60.0
"""Seconds before a stream is taken up again, whatever the server says, and where it says nothing.
"""


class SessionExpired(Unreachable):
    """The server knows our session no more, and so has done nothing with the request."""


CONFIRM_SECONDS = 5.0
"""How long a server may take to say that it still speaks the modern era."""


class WrongEra(Unreachable):
    """The server refuses a request of the modern era before it looks at it."""


class UpstreamHttpError(BadReply):
    """An answer whose status says no, and whose body is no JSON-RPC error."""

    def __init__(self, message: str, status: int) -> None:
        super().__init__(message)
        self.status = status


class StreamPosition:
    """How far a stream was read."""

    __slots__ = ("id", "pause")

    def __init__(self) -> None:
        self.id: str | None = None
        self.pause = RETRY


class HttpWire:
    def __init__(
        self,
        server: str,
        http: HttpClient,
        url: str,
        headers: Mapping[str, str],
        heard: NotificationSink,
    ) -> None:
        self.server = server
        self.url = url
        self.revision: int | None = None
        self.session: str | None = None
        self._loop = asyncio.get_running_loop()
        self.lost: asyncio.Future[str] = self._loop.create_future()
        self._http = http
        self._fixed = {
            name: value for name, value in headers.items() if name.lower() not in TRACE_HEADERS
        }
        self._heard = heard
        self._requests = PendingServerRequests(self._reply)
        self._next = 0
        self._kept: dict[tuple[str, str | None], FixedHeaders] = {}
        self._errands: set[asyncio.Task[None]] = set()
        self._outside: RequestListener | None = None
        self._asking: dict[int, RequestListener] = {}
        """Of the calls under way that can be asked something."""
        self._refused: dict[int, ServerRequest] = {}
        """What the server asked of calls under way in vain."""

    # --- what the client calls ---------------------------------------------------------------

    async def request(
        self,
        method: str,
        params: dict[str, Any],
        timeout: float,
        listener: RequestListener | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> tuple[Any, int]:
        if self.lost.done():  # the session with it: nobody could tell what this belongs to
            raise Unreachable(f'server "{self.server}" is gone: {self.lost.result()}', sent=False)
        self._next += 1
        id = self._next
        if listener is not None:
            if listener.progress:
                params = {**params, "_meta": {**params.get("_meta", {}), "progressToken": id}}
            if listener.ask is not None:
                self._asking[id] = listener
        sent = self._find_headers(method, params.get(NAMED[method]) if method in NAMED else None)
        in_session = SESSION in sent
        try:
            deadline = self._loop.time() + timeout
            message = rpc.request(id, method, params)
            meta = params.get("_meta", NOTHING)
            extra = {**headers_of(meta), **headers} if headers else headers_of(meta)
            reply = await self._http.request(
                "POST", self.url, sent, message, timeout=timeout, extra_headers=extra
            )
            if reply.status == 200 and reply.headers.get("content-type") == JSON_TYPE:
                if method == "initialize":
                    self._note_session(reply)
                data = await reply.body.read(MAX_BYTES)  # as nearly always
                return self._extract_result(self._decode(data, method), id, method), len(data)
            if reply.status != 200 or not _is_stream(reply):
                return await self._read_answer(reply, id, method, in_session, params)
            async with asyncio.timeout_at(deadline) as clock:  # a stream's reader keeps the time
                return await self._read_stream_answer(reply, id, method, listener, clock, timeout)
        except (TimedOut, TimeoutError):
            self._cancel(id, method, f"no answer within {timeout:g} s")
            raise TimedOut(
                f'server "{self.server}" did not answer "{method}" within {timeout:g} s and was '
                "told to cancel; raise its timeout_secs if it needs more"
            ) from None
        except asyncio.CancelledError:
            self._cancel(id, method, "the caller has gone")
            raise
        finally:
            if listener is not None:
                self._asking.pop(id, None)
            if self._refused:
                self._refused.pop(id, None)

    async def notify(self, method: str, params: dict[str, Any] | None = None) -> None:
        message = rpc.notification(method, params)
        async with asyncio.timeout(10):
            reply = await self._post(self._build_own_headers(method), message, 10)
            reply.body.close()

    def set_session_listener(self, listener: RequestListener) -> None:
        self._outside = listener

    async def listen(
        self,
        method: str,
        params: dict[str, Any] | None,
        opened: Callable[[], None],
        listener: RequestListener | None = None,
    ) -> None:
        """Follows a stream that answers nothing: a GET in the old era, a listen in the new.

        Calls `opened` once there is one, and returns when the server ends it; raises
        `SessionExpired`, or `HttpStatus` where there is no such stream.
        """
        headers = self._build_own_headers(method)
        if params is None:
            headers["accept"] = STREAM_TYPE
            reply = await self._http.request("GET", self.url, headers, timeout=30)
        else:
            self._next += 1
            headers.update(headers_of(params.get("_meta", NOTHING)))
            message = rpc.request(self._next, method, params)
            reply = await self._http.request("POST", self.url, headers, message, timeout=30)
        try:
            if reply.status == 404 and SESSION in headers:
                raise self._build_expired()
            if reply.status != 200 or not _is_stream(reply):
                raise UpstreamHttpError(f"HTTP {reply.status}", reply.status)
            opened()
            async for message_in, _ in self._read_messages(reply, StreamPosition()):
                if "method" not in message_in:
                    return  # the listen has ended
                self._handle_incoming(message_in, None, listener)
        finally:
            reply.body.close()

    async def close(self) -> None:
        """Says goodbye where there is a session to end; does not wait long for it."""
        for errand in self._errands:
            errand.cancel()
        if self.session is not None and not self.lost.done():
            with contextlib.suppress(HubError, TimeoutError):
                async with asyncio.timeout(1):
                    headers = self._build_own_headers("")
                    reply = await self._http.request("DELETE", self.url, headers, timeout=1)
                    reply.body.close()
        self.mark_lost("it was closed")

    def mark_lost(self, reason: str) -> None:
        if not self.lost.done():
            self.lost.set_result(reason)

    def set_revision(self, revision: int) -> None:
        """From now on every request says that it is of `revision`."""
        self.revision = revision
        self._kept.clear()

    def forget_session(self) -> None:
        self.session = None
        self.revision = None
        self._kept.clear()

    # --- sending -----------------------------------------------------------------------------

    def _post(self, headers: Mapping[str, str], message: bytes, timeout: float) -> Awaitable[Reply]:
        return self._http.request("POST", self.url, headers, message, timeout=timeout)

    def _find_headers(self, method: str, name: Any) -> FixedHeaders:
        if type(name) is not str:
            name = None
        kept = self._kept.get((method, name))
        if kept is not None:
            return kept
        headers = FixedHeaders(self._fixed)
        headers["content-type"] = JSON_TYPE
        headers["accept"] = f"{JSON_TYPE}, {STREAM_TYPE}"
        if self.revision is not None and self.revision >= R2506:
            headers["mcp-protocol-version"] = NAMES[self.revision]
        if self.revision == R2607:
            headers["mcp-method"] = method
            if name is not None:
                headers["mcp-name"] = encode_value(name)
        elif self.session is not None:
            headers[SESSION] = self.session
        if name is not None and (len(name) > LONGEST_KEPT or NAMED.get(method) == "taskId"):
            return headers
        if len(self._kept) >= KEPT_HEADERS:
            self._kept.clear()
        self._kept[method, name] = headers
        return headers

    def _build_own_headers(self, method: str) -> dict[str, str]:
        """Headers of what is sent for nobody in particular."""
        return {**self._find_headers(method, None), **new_trace().headers()}

    def _cancel(self, id: int, method: str, reason: str) -> None:
        """In the old era a message; in the new one the closed connection says it."""
        if self.revision != R2607 and method != "initialize":
            self._errand(self.notify(CANCELLED, {"requestId": id, "reason": reason}))

    def _errand(self, work: Any) -> None:
        async def run() -> None:
            with contextlib.suppress(HubError, TimeoutError):
                await work

        if len(self._errands) >= 100:
            work.close()
            return
        task = asyncio.get_running_loop().create_task(run())
        self._errands.add(task)
        task.add_done_callback(self._errands.discard)

    # --- receiving ---------------------------------------------------------------------------

    async def _read_answer(
        self, reply: Reply, id: int, method: str, in_session: bool, params: Mapping[str, Any]
    ) -> tuple[Any, int]:
        if method == "initialize":
            self._note_session(reply)
        data = await reply.body.read(MAX_BYTES)
        if reply.status == 200:
            return self._extract_result(self._decode(data, method), id, method), len(data)
        if in_session and (
            reply.status == 404 or (reply.status == 400 and _is_session_refusal(data, id))
        ):
            raise self._build_expired()
        is_modern = self.revision == R2607 and method != "server/discover"
        if (
            is_modern
            and reply.status == 400
            and _is_era_refusal(data, id)
            and not await self._is_still_modern(params.get("_meta", NOTHING))
        ):
            self.mark_lost("it does not speak 2026-07-28 any more")
            raise WrongEra(f'server "{self.server}" does not speak 2026-07-28', sent=False)
        self._raise_status(reply, data, method)

    async def _is_still_modern(self, meta: Mapping[str, Any]) -> bool:
        """Asks a server whose words sound like the other era. The words alone must not end a
        connection that others use."""
        own = {key: meta[key] for key in (MODERN_KEY, CAPABILITIES_KEY, CLIENT_KEY) if key in meta}
        try:
            result, _ = await self.request("server/discover", {"_meta": own}, CONFIRM_SECONDS)
        except HubError:
            return False
        versions = result.get("supportedVersions") if isinstance(result, dict) else None
        return isinstance(versions, list) and MODERN[-1] in versions

    def _build_expired(self) -> SessionExpired:
        return SessionExpired(f'server "{self.server}" has ended the session', sent=False)

    def _note_session(self, reply: Reply) -> None:
        self.session = reply.headers.get(SESSION)

    def _decode(self, data: bytes, method: str) -> Any:
        try:
            return decode_reply(data)
        except Malformed as error:
            if data[:100].lstrip()[:1] == b"<":
                raise BadReply(
                    f'server "{self.server}" answered "{method}" with a web page, which is no '
                    "message"
                ) from None
            raise BadReply(
                f'server "{self.server}" answered "{method}" with what is no message: {error}'
            ) from None

    def _extract_result(self, message: Any, id: int, method: str) -> Any:
        if isinstance(message, list):
            message = next((m for m in message if isinstance(m, dict) and m.get("id") == id), None)
        if isinstance(message, dict):
            if "error" in message:
                raise self._build_failure(method, message["error"])
            if "result" in message and message.get("id") == id:
                return message["result"]
        raise BadReply(f'server "{self.server}" answered "{method}" with no result')

    def _build_failure(self, method: str, error: Any) -> WorkFailed:
        if isinstance(error, dict) and isinstance(error.get("message"), str):
            error = {**error, "message": self._hide_secrets(error["message"])}
        return failure_from_error(self.server, method, error)

    def _hide_secrets(self, text: str) -> str:
        return hide_secrets(text, self.url, self._fixed.values())

    def _raise_status(self, reply: Reply, data: bytes, method: str) -> NoReturn:
        status = reply.status
        text = self._hide_secrets(data[:300].decode("utf-8", "replace"))
        if reply.headers.get("content-type", "").startswith(JSON_TYPE):
            with contextlib.suppress(Malformed):
                body = decode(data)
                if isinstance(body, dict) and isinstance(body.get("error"), dict):
                    raise self._build_failure(method, body["error"])
        if status == 401 and "resource_metadata=" in reply.headers.get("www-authenticate", ""):
            raise UpstreamHttpError(
                f'server "{self.server}" wants OAuth (HTTP 401), which the hub does not do yet; if '
                "it also takes a token, set that under headers in its transport",
                status,
            )
        if status in (401, 403):
            raise UpstreamHttpError(
                f'server "{self.server}" wants other credentials (HTTP {status}); set them under '
                "headers in its transport",
                status,
            )
        raise UpstreamHttpError(
            f'server "{self.server}" answered "{method}" with HTTP {status}'
            + (f": {' '.join(text.split())}" if text.strip() else ""),
            status,
        )

    async def _read_stream_answer(
        self,
        reply: Reply,
        id: int,
        method: str,
        listener: RequestListener | None,
        clock: asyncio.Timeout,
        timeout: float,
    ) -> tuple[Any, int]:
        if method == "initialize":
            self._note_session(reply)
        mark, fruitless = StreamPosition(), 0
        while True:
            known = mark.id
            try:
                async for message, size in self._read_messages(reply, mark):
                    if "method" in message:
                        if self._handle_incoming(message, id, listener):
                            clock.reschedule(self._loop.time() + timeout)
                    elif message.get("id") == id:
                        if id in self._refused and is_failure(message):
                            raise build_unanswered(self.server, method, message, self._refused[id])
                        return self._extract_result(message, id, method), size
            except Unreachable:
                if not self._is_resumable(mark, method):
                    raise
            finally:
                reply.body.close()
            fruitless = fruitless + 1 if mark.id == known else 0
            if not self._is_resumable(mark, method) or fruitless >= RESUMPTIONS:
                raise Unreachable(
                    f'server "{self.server}" ended the stream of "{method}" without an answer; it '
                    "may or may not have been done"
                )
            reply = await self._resume(mark, method)

    def _is_resumable(self, mark: StreamPosition, method: str) -> bool:
        """2025-03-26 to 2025-11-25, transports: resumability."""
        revision = self.revision
        known = revision is not None and R2503 <= revision < R2607
        return known and mark.id is not None and method != "initialize"

    async def _resume(self, mark: StreamPosition, method: str) -> Reply:
        """The rest of a stream that ended early. Whoever waits for it keeps the time."""
        headers = self._build_own_headers("")
        headers["accept"] = STREAM_TYPE
        headers["last-event-id"] = mark.id or ""
        pause = mark.pause
        for attempt in range(RESUMPTIONS):
            await asyncio.sleep(pause)
            try:
                reply = await self._http.request("GET", self.url, headers, timeout=30)
            except (Unreachable, TimedOut) as error:
                log.debug("%s: attempt %d to resume: %s", self.server, attempt + 1, error)
                pause = min(max(pause, RETRY) * 2, LONGEST_RETRY)
                continue
            if reply.status == 200 and _is_stream(reply):
                return reply
            reply.body.close()
            break
        raise Unreachable(
            f'server "{self.server}" ended the stream of "{method}" without an answer and does not '
            "let it be taken up again; it may or may not have been done"
        )

    async def _read_messages(
        self, reply: Reply, mark: StreamPosition
    ) -> AsyncIterator[tuple[dict[str, Any], int]]:
        """What comes on a stream, each with the bytes it came in."""
        parser = sse.Parser(MAX_BYTES)
        pace = Pace()
        async for chunk in reply.body.chunks():
            try:
                events = parser.feed(chunk)
            except sse.TooLong as error:
                raise BadReply(f'server "{self.server}" sent too much: {error}') from None
            if parser.retry is not None:
                mark.pause = min(max(parser.retry / 1000, SHORTEST_RETRY), LONGEST_RETRY)
            spent = 0.0
            for event in events:
                if event.id and len(event.id) <= 1_000 and event.id.isprintable():
                    mark.id = event.id
                if event.event != "message" or not event.data:
                    continue
                size = len(event.data)
                begun = thread_time() if size > LARGE else 0.0
                message = self._decode(event.data, "a stream")
                for item in message[:MAX_BATCH] if isinstance(message, list) else [message]:
                    if isinstance(item, dict):
                        yield item, size
                if begun:
                    message = item = None  # which takes time, too
                    spent += thread_time() - begun
            if pause := pace.pause(len(events) + chunk.count(b"\n") // LINES_AN_EVENT, spent):
                await asyncio.sleep(pause)

    def _handle_incoming(
        self, message: dict[str, Any], id: int | None, listener: RequestListener | None
    ) -> bool:
        """What a server says on a stream beside its answer; whether it was progress.

        What comes on the stream of a request belongs to that, and on the stream for all the rest a
        question is the newest call's, as it is where there is one stream only.
        """
        method, params = str(message["method"]), message.get("params")
        params = params if isinstance(params, dict) else {}
        if "id" in message:
            asked = self._requests.open(rpc.id_of(message), method, params)
            if id is None and self._asking:
                id, listener = next(reversed(self._asking.items()))
            if self._outside is not None and (listener is None or listener.ask is None):
                id, listener = None, self._outside
            if not deliver_request(asked, listener, self._heard) and id is not None:
                self._refused[id] = asked
        elif method == PROGRESS:
            token = params.get("progressToken")
            if listener is not None and id is not None and token == id:
                return listener.report_progress(params)
        elif method == ACKNOWLEDGED:
            if listener is not None and listener.acknowledged is not None:
                listener.acknowledged(params)
        elif method == CANCELLED:
            self._requests.cancel(params)
        elif method == MESSAGE:
            self._report_log(params, id, listener)
        elif method != COMPLETED or not self._requests.complete(params):
            self._heard(method, params)
        return False

    def _report_log(
        self, params: Mapping[str, Any], id: int | None, listener: RequestListener | None
    ) -> None:
        """A line of the server's log. On a session of a client's own each of them is that client's,
        so that the newest call under way may have those that come on no call's stream."""
        if id is None and self._asking:
            listener = next(reversed(self._asking.values()))
        if listener is None or not listener.report_note(params):
            self._heard(MESSAGE, params)

    def _reply(self, message: bytes) -> None:
        self._errand(self._deliver(message))

    async def _deliver(self, message: bytes) -> None:
        reply = await self._post(self._build_own_headers(""), message, 10)
        reply.body.close()


def _is_session_refusal(data: bytes, id: int) -> bool:
    """Whether a 400 is about the session. An error under the request's own id is about that, and
    the request may have been worked on."""
    if b"session" not in data[:2000].lower():
        return False
    try:
        error = decode(data)
    except Malformed:
        return True
    return not (isinstance(error, dict) and error.get("id") == id)


def _is_era_refusal(data: bytes, id: int) -> bool:
    """Whether a 400 is of a server of the handshake era, which wants a session, or does not know
    the revision, before it looks at the request."""
    words = data[:2000].lower()
    if b"session" not in words and b"protocol version" not in words:
        return False
    try:
        error = decode(data)
    except Malformed:
        return False
    return isinstance(error, dict) and "error" in error and error.get("id") != id


def _is_stream(reply: Reply) -> bool:
    return reply.headers.get("content-type", "").startswith(STREAM_TYPE)
