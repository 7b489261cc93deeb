"""The Streamable HTTP transport, both eras: one POST a request, answered in JSON or as a stream.

Knows how messages travel; the session decides which revision is spoken.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping
from itertools import count
from time import thread_time
from typing import Any, NoReturn

from dragoman.core.background import Background, resolve
from dragoman.core.backoff import Backoff
from dragoman.core.body_budget import AnswerTooLong
from dragoman.core.call import NOTHING
from dragoman.core.errors import BadReply, HubError, TimedOut, Unreachable, WorkFailed
from dragoman.core.read_pacing import LARGE, LINES_AN_EVENT, Pace
from dragoman.core.trace import HEADERS as TRACE_HEADERS
from dragoman.core.trace import new_trace, trace_headers
from dragoman.core.urls import hide_secrets
from dragoman.mcp.client.jsonrpc_channel import (
    MAX_BATCH,
    CallInFlight,
    IncomingRouter,
    build_timed_out,
    build_unanswered,
    failure_from_error,
    is_failure,
)
from dragoman.mcp.client.message_limit import MessageLimit
from dragoman.mcp.client.notifications import NotificationSink, RequestListener
from dragoman.mcp.protocol.mirrored_headers import NAMED, encode_value
from dragoman.mcp.protocol.notifications import ACKNOWLEDGED, CANCELLED, PROGRESS
from dragoman.mcp.protocol.revisions import (
    CAPABILITIES_KEY,
    CLIENT_KEY,
    MODERN_KEY,
    Revision,
)
from dragoman.wire import rpc, sse
from dragoman.wire.http import FixedHeaders, HttpClient, HttpReply
from dragoman.wire.json import Malformed, decode, decode_reply

log = logging.getLogger(__name__)

JSON_TYPE, STREAM_TYPE = "application/json", "text/event-stream"
SESSION = "mcp-session-id"
MAX_CACHED_HEADERS = 4_096
MAX_CACHED_NAME = 256
"""Headers of longer names are not cached."""
MAX_RESUMPTIONS = 10
"""How often in a row a stream is resumed that brings nothing new."""
SHORTEST_RETRY, RETRY, LONGEST_RETRY = 0.05, 1.0, 60.0
"""Seconds before a stream is resumed: bounds for the server's `retry`, and the default."""
CONFIRM_SECONDS = 5.0
"""How long a server may take to confirm that it still speaks the modern era."""
LARGE_EVENT = 256 * 1024
"""Bytes of an answer in a stream that are kept without room in the budget of large results."""
MAX_BACKGROUND = 100
"""Replies and cancellations being posted; more are dropped."""


class SessionExpired(Unreachable):
    """The server has forgotten the session, so it has not executed the request."""


class WrongEra(Unreachable):
    """The server refused a request of the modern era without executing it."""


class UpstreamHttpError(BadReply):
    """A response with an error status and no JSON-RPC error."""

    def __init__(self, message: str, status: int) -> None:
        super().__init__(message)
        self.status = status


class StreamPosition:
    """How far a stream was read, and when to resume it."""

    __slots__ = ("id", "pause")

    def __init__(self) -> None:
        self.id: str | None = None
        self.pause = RETRY


class HttpWire(IncomingRouter):
    supports_sessions = has_push_streams = sends_headers = speaks_modern = True

    def __init__(
        self,
        server: str,
        http: HttpClient,
        url: str,
        headers: Mapping[str, str],
        sink: NotificationSink,
        limit: MessageLimit | None = None,
    ) -> None:
        super().__init__(sink)
        self.server = server
        self._limit = MessageLimit(server) if limit is None else limit
        self.url = url
        self._revision: Revision | None = None
        self._session: str | None = None
        self._loop = asyncio.get_running_loop()
        self.lost: asyncio.Future[str] = self._loop.create_future()
        self._http = http
        self._fixed = {
            name: value for name, value in headers.items() if name.lower() not in TRACE_HEADERS
        }
        self._ids = count(1)
        self._cached: dict[tuple[str, str | None], FixedHeaders] = {}
        self._background = Background(f'the HTTP connection to server "{server}"')
        self._askable: dict[int, CallInFlight] = {}
        """Calls in flight whose clients can be asked questions."""

    async def start(self) -> None:
        """There is no connection to open: each request is posted."""

    def share(self, http: HttpClient) -> HttpWire:
        """Returns a wire to the same server that sends with another client, whose credential it
        has. For the modern era, in which no request depends on another; it is lost with this one.
        """
        other = HttpWire(self.server, http, self.url, self._fixed, self._sink, self._limit)
        other.lost, other._ids, other._revision = self.lost, self._ids, self._revision
        return other

    # --- used by the session -------------------------------------------------------------------

    async def request(
        self,
        method: str,
        params: dict[str, Any],
        timeout: float,
        listener: RequestListener | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> tuple[Any, int]:
        if self.lost.done():  # and the session with it
            raise Unreachable(f'server "{self.server}" was lost: {self.lost.result()}', sent=False)
        id = next(self._ids)
        call: CallInFlight | None = None
        if listener is not None:
            if listener.progress:
                params = {**params, "_meta": {**params.get("_meta", {}), "progressToken": id}}
            if listener.ask is not None:
                call = self._askable[id] = CallInFlight(listener, id)
        sent = self._find_headers(method, params.get(NAMED[method]) if method in NAMED else None)
        in_session = SESSION in sent
        try:
            deadline = self._loop.time() + timeout
            message = rpc.encode_request(id, method, params)
            meta = params.get("_meta", NOTHING)
            extra = {**trace_headers(meta), **headers} if headers else trace_headers(meta)
            reply = await self._http.request(
                "POST", self.url, sent, message, timeout=timeout, extra_headers=extra
            )
            if method == "initialize":
                self._session = reply.headers.get(SESSION)
            if reply.status == 200 and reply.headers.get("content-type") == JSON_TYPE:
                data = await reply.body.read(self._limit.most)  # as nearly always
                return self._parse_answer(data, id, method), len(data)
            if reply.status != 200 or not _is_stream(reply):
                return await self._read_answer(reply, id, method, in_session, params)
            async with asyncio.timeout_at(deadline) as clock:  # reading a stream has no timeout
                call = call or CallInFlight(listener, id)
                return await self._read_stream_answer(reply, method, call, clock, timeout)
        except (TimedOut, TimeoutError):
            self._cancel(id, method, f"no response within {timeout:g} s")
            raise build_timed_out(self.server, method, timeout) from None
        except AnswerTooLong:
            raise self._limit.build_error(method) from None
        except asyncio.CancelledError:
            self._cancel(id, method, "the caller cancelled the request")
            raise
        finally:
            if listener is not None:
                self._askable.pop(id, None)

    async def notify(self, method: str, params: dict[str, Any] | None = None) -> None:
        message = rpc.encode_notification(method, params)
        async with asyncio.timeout(10):
            await self._post(method, message)

    async def listen(
        self,
        method: str,
        params: dict[str, Any] | None,
        opened: Callable[[], None],
        listener: RequestListener | None = None,
    ) -> None:
        """Follows a stream of notifications: a GET in a session, else a POST of `method`.

        Returns when the server ends the stream. Raises `SessionExpired`, or `UpstreamHttpError` if
        the server offers no such stream.
        """
        headers = self._build_own_headers(method)
        if params is None:
            headers["accept"] = STREAM_TYPE
            reply = await self._http.request("GET", self.url, headers, timeout=30)
        else:
            headers.update(trace_headers(params.get("_meta", NOTHING)))
            message = rpc.encode_request(next(self._ids), method, params)
            reply = await self._http.request("POST", self.url, headers, message, timeout=30)
        try:
            if reply.status == 404 and SESSION in headers:
                raise self._build_expired()
            if reply.status != 200 or not _is_stream(reply):
                raise UpstreamHttpError(f"HTTP {reply.status}", reply.status)
            opened()
            stream = CallInFlight(listener)
            async for incoming, _ in self._read_messages(reply, StreamPosition()):
                if "method" not in incoming:
                    return  # the response to the listen request ends it
                self._handle_incoming(incoming, stream)
        finally:
            reply.body.close()

    async def close(self) -> None:
        """Ends the session with the server, if there is one; does not wait long for that."""
        self._background.cancel()
        if self._session is not None and not self.lost.done():
            with contextlib.suppress(HubError, TimeoutError):
                async with asyncio.timeout(1):
                    headers = self._build_own_headers("")
                    reply = await self._http.request("DELETE", self.url, headers, timeout=1)
                    reply.body.close()
        self.mark_lost("it was closed")

    def mark_lost(self, reason: str) -> None:
        resolve(self.lost, reason)

    suspect_lost = mark_lost

    def set_revision(self, revision: Revision | None) -> None:
        if revision is None:
            self._session = None
        self._revision = revision
        self._cached.clear()

    # --- sending -------------------------------------------------------------------------------

    async def _post(self, method: str, message: bytes) -> None:
        headers = self._build_own_headers(method)
        reply = await self._http.request("POST", self.url, headers, message, timeout=10)
        reply.body.close()

    def _find_headers(self, method: str, name: Any) -> FixedHeaders:
        if type(name) is not str:
            name = None
        cached = self._cached.get((method, name))
        if cached is not None:
            return cached
        headers = FixedHeaders(self._fixed)
        headers["content-type"] = JSON_TYPE
        headers["accept"] = f"{JSON_TYPE}, {STREAM_TYPE}"
        revision = self._revision
        if revision is not None and revision.has_version_header:
            headers["mcp-protocol-version"] = revision.name
        if revision is not None and revision.has_mirrored_headers:
            headers["mcp-method"] = method
            if name is not None:
                headers["mcp-name"] = encode_value(name)
        elif self._session is not None:
            headers[SESSION] = self._session
        if name is not None and (len(name) > MAX_CACHED_NAME or NAMED.get(method) == "taskId"):
            return headers
        if len(self._cached) >= MAX_CACHED_HEADERS:
            self._cached.clear()
        self._cached[method, name] = headers
        return headers

    def _build_own_headers(self, method: str) -> dict[str, str]:
        """Builds the headers of a request that the hub sends for itself."""
        return {**self._find_headers(method, None), **new_trace().build_headers()}

    def _cancel(self, id: int, method: str, reason: str) -> None:
        is_implied = self._revision is not None and self._revision.disconnect_cancels
        if not is_implied and method != "initialize":
            self._send_later(self.notify(CANCELLED, {"requestId": id, "reason": reason}))

    def _send_later(self, work: Coroutine[Any, Any, None]) -> None:
        async def send() -> None:
            with contextlib.suppress(HubError, TimeoutError):
                await work

        if len(self._background) >= MAX_BACKGROUND:
            work.close()
        else:
            self._background.spawn(send())

    # --- receiving -----------------------------------------------------------------------------

    async def _read_answer(
        self, reply: HttpReply, id: int, method: str, in_session: bool, params: Mapping[str, Any]
    ) -> tuple[Any, int]:
        data = await reply.body.read(self._limit.most)
        if reply.status == 200:
            return self._parse_answer(data, id, method), len(data)
        if in_session and (
            reply.status == 404 or (reply.status == 400 and _is_session_refusal(data, id))
        ):
            raise self._build_expired()
        revision = self._revision
        if (
            revision is not None
            and not revision.has_sessions
            and method != "server/discover"
            and reply.status == 400
            and _is_era_refusal(data, id)
            and not await self._still_speaks(revision, params.get("_meta", NOTHING))
        ):
            self.mark_lost(f"it no longer speaks {revision.name}")
            raise WrongEra(f'server "{self.server}" does not speak {revision.name}', sent=False)
        self._raise_status(reply, data, method)

    async def _still_speaks(self, revision: Revision, meta: Mapping[str, Any]) -> bool:
        """Asks a server whose error reads like one of the other era: a text alone must not end a
        connection that others use."""
        own = {key: meta[key] for key in (MODERN_KEY, CAPABILITIES_KEY, CLIENT_KEY) if key in meta}
        try:
            result, _ = await self.request("server/discover", {"_meta": own}, CONFIRM_SECONDS)
        except HubError:
            return False
        versions = result.get("supportedVersions") if isinstance(result, dict) else None
        return isinstance(versions, list) and revision.name in versions

    def _build_expired(self) -> SessionExpired:
        return SessionExpired(f'server "{self.server}" has ended the session', sent=False)

    def _parse_answer(self, data: bytes, id: int, method: str) -> Any:
        try:
            message = decode_reply(data, self._limit.most)
        except Malformed as error:
            raise self._build_invalid(data, method, error) from None
        if len(data) > self._limit.bytes:
            self._check_size(method, message, len(data))
        is_result = type(message) is dict and message.get("id") == id and "error" not in message
        if is_result and "result" in message:  # as nearly always
            return message["result"]
        return self._extract_result(message, id, method)

    def _check_size(self, method: str, message: Any, size: int) -> None:
        result = message.get("result") if type(message) is dict else None
        if not self._limit.allows(result, size):
            raise self._limit.build_error(method)

    def _build_invalid(self, data: bytes, method: str, error: Malformed) -> BadReply:
        answered = f'server "{self.server}" answered "{method}"'
        if data[:100].lstrip()[:1] == b"<":
            return BadReply(f"{answered} with a web page instead of JSON; check its url")
        return BadReply(f"{answered} with an invalid message: {error}")

    def _extract_result(self, message: Any, id: int, method: str) -> Any:
        if isinstance(message, list):
            message = next((m for m in message if isinstance(m, dict) and m.get("id") == id), None)
        if isinstance(message, dict):
            if "error" in message:
                raise self._build_failure(method, message["error"])
            if "result" in message and message.get("id") == id:
                return message["result"]
        raise BadReply(f'server "{self.server}" answered "{method}" without a result')

    def _build_failure(self, method: str, error: Any) -> WorkFailed:
        if isinstance(error, dict) and isinstance(error.get("message"), str):
            error = {**error, "message": self._hide_secrets(error["message"])}
        return failure_from_error(self.server, method, error)

    def _hide_secrets(self, text: str) -> str:
        return hide_secrets(text, self.url, self._fixed.values())

    def _raise_status(self, reply: HttpReply, data: bytes, method: str) -> NoReturn:
        status = reply.status
        text = self._hide_secrets(data[:300].decode("utf-8", "replace"))
        if reply.headers.get("content-type", "").startswith(JSON_TYPE):
            with contextlib.suppress(Malformed):
                body = decode(data)
                if isinstance(body, dict) and isinstance(body.get("error"), dict):
                    raise self._build_failure(method, body["error"])
        if status in (401, 403):
            raise UpstreamHttpError(
                f'server "{self.server}" rejected the credentials (HTTP {status}); set them under '
                "headers in its transport",
                status,
            )
        raise UpstreamHttpError(
            f'server "{self.server}" answered "{method}" with HTTP {status}'
            + (f": {' '.join(text.split())}" if text.strip() else ""),
            status,
        )

    # --- streams -------------------------------------------------------------------------------

    async def _read_stream_answer(
        self,
        reply: HttpReply,
        method: str,
        call: CallInFlight,
        clock: asyncio.Timeout,
        timeout: float,
    ) -> tuple[Any, int]:
        position, fruitless = StreamPosition(), 0
        while True:
            last_id = position.id
            try:
                async for message, size in self._read_messages(reply, position, LARGE_EVENT):
                    if "method" in message:
                        if self._handle_incoming(message, call):
                            clock.reschedule(self._loop.time() + timeout)
                    elif message.get("id") == call.id:
                        if call.refused is not None and is_failure(message):
                            raise build_unanswered(self.server, method, message, call.refused)
                        if size > self._limit.bytes:
                            self._check_size(method, message, size)
                        return self._extract_result(message, message["id"], method), size
            except Unreachable:
                if not self._is_resumable(position, method):
                    raise
            finally:
                reply.body.close()
            fruitless = fruitless + 1 if position.id == last_id else 0
            if not self._is_resumable(position, method) or fruitless >= MAX_RESUMPTIONS:
                raise Unreachable(
                    f'server "{self.server}" ended the stream of "{method}" without a response; it '
                    "may or may not have been executed"
                )
            reply = await self._resume(position, method)

    def _is_resumable(self, position: StreamPosition, method: str) -> bool:
        revision = self._revision
        can_resume = revision is not None and revision.has_resumable_streams
        return can_resume and position.id is not None and method != "initialize"

    async def _resume(self, position: StreamPosition, method: str) -> HttpReply:
        """Opens the rest of a stream that ended early, within the time of the request."""
        headers = self._build_own_headers("")
        headers["accept"] = STREAM_TYPE
        headers["last-event-id"] = position.id or ""
        pause = position.pause
        backoff = Backoff(max(pause, RETRY) * 2, LONGEST_RETRY)
        for attempt in range(MAX_RESUMPTIONS):
            await asyncio.sleep(pause)
            try:
                reply = await self._http.request("GET", self.url, headers, timeout=30)
            except (Unreachable, TimedOut) as error:
                log.debug("%s: attempt %d to resume: %s", self.server, attempt + 1, error)
                pause = backoff.next_delay()
                continue
            if reply.status == 200 and _is_stream(reply):
                return reply
            reply.body.close()
            break
        raise Unreachable(
            f'server "{self.server}" ended the stream of "{method}" without a response and did not '
            "resume it; it may or may not have been executed"
        )

    async def _read_messages(
        self, reply: HttpReply, position: StreamPosition, most: int | None = None
    ) -> AsyncIterator[tuple[dict[str, Any], int]]:
        """Yields the messages of a stream, each with its size in bytes. For one of more than `most`
        bytes, by default the limit, room is reserved first."""
        parser, limit = sse.SseParser(self._limit.most), self._limit.bytes
        most = limit if most is None else most
        pace, has_room = Pace(), False
        async for chunk in reply.body.chunks():
            for piece in sse.split_pieces(chunk):
                events = self._parse_events(parser, piece, position)
                spent = 0.0
                for number, event in enumerate(events, 1):
                    if event.id and len(event.id) <= 1_000 and event.id.isprintable():
                        position.id = event.id
                    if event.event == "message" and event.data:
                        size = len(event.data)
                        begun = thread_time() if size > LARGE else 0.0
                        messages = self._decode_event(event.data)
                        while messages:
                            yield messages.pop(0), size
                        if begun:  # freeing it takes time as well
                            spent += thread_time() - begun
                    if not number % sse.TURN:
                        await asyncio.sleep(0)
                if (parser.pending > most) is not has_room:
                    has_room = not has_room
                    await reply.body.reserve(limit if has_room else 0)
                if pause := pace.pause(len(events) + piece.count(b"\n") // LINES_AN_EVENT, spent):
                    await asyncio.sleep(pause)

    def _parse_events(
        self, parser: sse.SseParser, piece: bytes, position: StreamPosition
    ) -> list[sse.ServerEvent]:
        try:
            events = parser.feed(piece)
        except sse.EventTooLong as error:
            raise BadReply(
                f'server "{self.server}" sent an event too large: {error}; request less data, or '
                "raise message_megabytes of the server"
            ) from None
        if parser.retry is not None:
            position.pause = min(max(parser.retry / 1000, SHORTEST_RETRY), LONGEST_RETRY)
        return events

    def _decode_event(self, data: bytes) -> list[dict[str, Any]]:
        """Decodes the messages of an event: one, or the first ones of a batch."""
        try:
            message = decode_reply(data, self._limit.most)
        except Malformed as error:
            raise self._build_invalid(data, "a stream", error) from None
        batch = message[:MAX_BATCH] if isinstance(message, list) else [message]
        return [item for item in batch if isinstance(item, dict)]

    def _find_call(
        self, method: str, params: Mapping[str, Any], stream: CallInFlight | None
    ) -> CallInFlight | None:
        """A message on the stream of a request belongs to it. A question or log message on a push
        stream belongs to the newest call: only the session of one client has askable calls."""
        id = stream.id if stream is not None else None
        if method == PROGRESS:
            return stream if id is not None and params.get("progressToken") == id else None
        if method != ACKNOWLEDGED and id is None and self._askable:
            return next(reversed(self._askable.values()))
        return stream

    def _reply(self, message: bytes) -> None:
        self._send_later(self._post("", message))


def _is_session_refusal(data: bytes, id: int) -> bool:
    """Whether a 400 is about the session. An error under the id of the request is about the
    request, which may have been executed."""
    if b"session" not in data[:2000].lower():
        return False
    try:
        error = decode(data)
    except Malformed:
        return True
    return not (isinstance(error, dict) and error.get("id") == id)


def _is_era_refusal(data: bytes, id: int) -> bool:
    """Whether a 400 comes from a server of the handshake era, which requires a session or does not
    know the revision, before it looks at the request."""
    text = data[:2000].lower()
    if b"session" not in text and b"protocol version" not in text:
        return False
    try:
        error = decode(data)
    except Malformed:
        return False
    return isinstance(error, dict) and "error" in error and error.get("id") != id


def _is_stream(reply: HttpReply) -> bool:
    return reply.headers.get("content-type", "").startswith(STREAM_TYPE)
