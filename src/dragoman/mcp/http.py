"""The face over Streamable HTTP, both eras on one endpoint: `POST`, `GET` and `DELETE` of `/mcp`.

Expects, beside ASGI's own, `principal`, `fields` (the headers) and `body` in the scope.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
from collections.abc import Awaitable, Callable, Mapping, MutableMapping
from typing import Any

from dragoman.core.principal import Principal
from dragoman.core.view import EVERYTHING
from dragoman.mcp.revisions import ASSUMED, HANDSHAKE, MODERN, MODERN_KEY, NUMBERS, R2607
from dragoman.mcp.server import Face, Peer, Push, answer_batch
from dragoman.mcp.sessions import MAX_STREAMS, Session, Sessions
from dragoman.wire import rpc, sse
from dragoman.wire.json import MAX_BYTES, Malformed, decode, names_twice

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]

HEADER_MISMATCH = -32020
WATCH_AFTER = 1.0
"""A call that takes longer is watched for its client going away."""
KEEPALIVE_SECONDS = 15.0
MAX_QUEUED = 256
"""Messages waiting for a stream whose client does not read; more, and it is cut."""

JSON_HEADERS = [(b"content-type", b"application/json")]
STREAM_HEADERS = [
    (b"content-type", b"text/event-stream"),
    (b"cache-control", b"no-store"),
    (b"x-accel-buffering", b"no"),
]
BAD_REQUEST_CODES = frozenset({-32700, -32600, -32602, -32020, -32021, -32022})


class HttpFace:
    def __init__(self, face: Face, key: bytes) -> None:
        self.face = face
        self.sessions = Sessions(key, EVERYTHING)
        self._closing = asyncio.Event()
        self._stop_listening = face.hub.catalog.on_change(self.sessions.tell_changed)

    def close(self) -> None:
        """Ends all streams properly."""
        self._stop_listening()
        self._closing.set()
        self.sessions.close()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        method = scope["method"]
        if method == "POST":
            await self._post(scope, receive, send)
        elif method == "GET":
            await self._get(scope, receive, send)
        elif method == "DELETE":
            await self._delete(scope, send)
        else:
            await _plain(send, 405, "use POST, GET or DELETE", [(b"allow", b"POST, GET, DELETE")])

    # --- POST --------------------------------------------------------------------------------

    async def _post(self, scope: Scope, receive: Receive, send: Send) -> None:
        fields: Mapping[bytes, bytes] = scope["fields"]
        if not fields.get(b"content-type", b"").lower().startswith(b"application/json"):
            await _refuse(send, 415, "send a message as content-type application/json")
            return
        accept = fields.get(b"accept", b"*/*")
        if not any(kind in accept for kind in (b"json", b"event-stream", b"*")):
            await _refuse(send, 406, "accept application/json and text/event-stream")
            return
        body: bytes = scope["body"]
        try:
            message = decode(body)
        except Malformed as problem:
            await _json(send, 400, rpc.error(None, rpc.PARSE_ERROR, str(problem)))
            return
        if names_twice(body, rpc.ENVELOPE, rpc.PARAMS):
            id = rpc.id_of(message)
            await _json(send, 400, rpc.error(id, rpc.INVALID_REQUEST, "a member is named twice"))
            return
        await self._message(scope, message, accept, receive, send)

    async def _message(
        self, scope: Scope, message: Any, accept: bytes, receive: Receive, send: Send
    ) -> None:
        fields: Mapping[bytes, bytes] = scope["fields"]
        principal: Principal = scope["principal"]
        if is_modern(message, fields):
            problem = disagreement(message, fields)
            if problem is not None:
                id = rpc.id_of(message)
                await _json(send, 400, rpc.error(id, HEADER_MISMATCH, problem))
                return
            peer = Peer(principal, "mcp-http", EVERYTHING, R2607)
            await self._respond(message, peer, accept, receive, send, [])
            return
        found = self._legacy_peer(message, fields, principal)
        if isinstance(found, tuple):
            status, problem = found
            id = rpc.id_of(message)
            await _json(send, status, rpc.error(id, rpc.INVALID_REQUEST, problem))
            return
        headers = []
        if isinstance(message, dict) and message.get("method") == "initialize":
            wanted = message.get("params")
            answer = await self.face.answer(message, found)
            if wanted is None or isinstance(wanted, dict):
                session = self.sessions.begin(principal, found.revision)
                headers = [(b"mcp-session-id", session.id.encode())]
            await _json(send, 200, answer or b"", headers)
            return
        await self._respond(message, found, accept, receive, send, headers)

    def _legacy_peer(
        self, message: Any, fields: Mapping[bytes, bytes], principal: Principal
    ) -> Peer | tuple[int, str]:
        version = fields.get(b"mcp-protocol-version", b"").decode("latin-1")
        if version and version not in HANDSHAKE:
            return 400, f'MCP-Protocol-Version "{version[:40]}" is not spoken here'
        id = fields.get(b"mcp-session-id", b"").decode("latin-1")
        if id and not (isinstance(message, dict) and message.get("method") == "initialize"):
            return self.sessions.find(id, principal) or (
                404,
                "there is no such session; begin a new one with initialize",
            )
        revision = NUMBERS[version] if version else ASSUMED
        return Peer(principal, "mcp-http", EVERYTHING, revision)

    async def _respond(
        self,
        message: Any,
        peer: Peer,
        accept: bytes,
        receive: Receive,
        send: Send,
        headers: list[tuple[bytes, bytes]],
    ) -> None:
        if isinstance(message, dict) and message.get("method") == "tools/call":
            answering = Answering(self.face, message, peer, accept, receive, send)
            await answering.run(_wants_progress(message))
            return
        if isinstance(message, list):
            answer = await answer_batch(self.face, message, peer)
        else:
            answer = await self.face.answer(message, peer)
        if answer is None:
            await send({"type": "http.response.start", "status": 202, "headers": headers})
            await send({"type": "http.response.body"})
        else:
            await _json(send, status_of(answer, peer, message), answer, headers)

    # --- GET and DELETE ------------------------------------------------------------------------

    async def _get(self, scope: Scope, receive: Receive, send: Send) -> None:
        fields: Mapping[bytes, bytes] = scope["fields"]
        id = fields.get(b"mcp-session-id", b"").decode("latin-1")
        if not id:
            await _plain(send, 405, "a stream needs a session", [(b"allow", b"POST")])
            return
        session = self.sessions.find(id, scope["principal"])
        if session is None:
            await _refuse(send, 404, "there is no such session; begin a new one with initialize")
            return
        if b"event-stream" not in fields.get(b"accept", b"") and b"*" not in fields.get(
            b"accept", b""
        ):
            await _refuse(send, 406, "accept text/event-stream")
            return
        if len(session.streams) >= MAX_STREAMS:
            await _refuse(send, 409, f"a session has at most {MAX_STREAMS} streams")
            return
        await self._stream(session, receive, send)

    async def _stream(self, session: Session, receive: Receive, send: Send) -> None:
        """What the hub says unasked, until the client or the session goes."""
        queue: asyncio.Queue[bytes | None] = asyncio.Queue(MAX_QUEUED)

        def push(message: bytes | None) -> None:
            if message is None or queue.full():
                while not queue.empty():
                    queue.get_nowait()
                message = None
            queue.put_nowait(message)

        session.streams.append(push)
        gone = asyncio.get_running_loop().create_task(_gone(receive, lambda: push(None)))
        try:
            await send({"type": "http.response.start", "status": 200, "headers": STREAM_HEADERS})
            await _more(send, sse.KEEPALIVE)
            while True:
                try:
                    async with asyncio.timeout(KEEPALIVE_SECONDS):
                        message = await queue.get()
                except TimeoutError:
                    await _more(send, sse.KEEPALIVE)
                    continue
                if message is None:
                    break
                await _more(send, sse.event(message, name="message"))
            await send({"type": "http.response.body"})
        finally:
            gone.cancel()
            session.streams.remove(push)

    async def _delete(self, scope: Scope, send: Send) -> None:
        id = scope["fields"].get(b"mcp-session-id", b"").decode("latin-1")
        if not id:
            await _plain(send, 405, "there is no session to end", [(b"allow", b"POST")])
            return
        session = self.sessions.find(id, scope["principal"])
        if session is None:
            await _refuse(send, 404, "there is no such session")
            return
        self.sessions.end(session)
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body"})


class Answering:
    """One call's answer: plain JSON, or a stream once there is something to say before it.

    A plain call starts no task. One that takes long is watched: a client of the new era that goes
    away has cancelled it, and one that accepts streams is kept from giving up by comments.
    """

    def __init__(
        self, face: Face, message: Any, peer: Peer, accept: bytes, receive: Receive, send: Send
    ) -> None:
        self.face = face
        self.message = message
        self.peer = peer
        self.receive = receive
        self.send = send
        self.may_stream = b"event-stream" in accept or b"*" in accept
        self.must_stream = b"json" not in accept and b"*" not in accept
        self.streaming = False
        self.watcher: asyncio.Task[None] | None = None
        self.outbox: asyncio.Queue[bytes] | None = None

    async def run(self, wants_progress: bool) -> None:
        loop = asyncio.get_running_loop()
        call = asyncio.current_task()
        if wants_progress and self.may_stream:
            self.outbox = asyncio.Queue(MAX_QUEUED)
            self.watcher = loop.create_task(self._watch(call, 0))
            timer = None
        else:
            timer = loop.call_later(WATCH_AFTER, self._begin_watch, call)
        push: Push | None = self._push if self.outbox is not None else None
        try:
            answer = await self.face.answer(self.message, self.peer, push)
        except asyncio.CancelledError:
            if self.watcher is not None and self.watcher.done():
                return  # the client has gone, and with it the one to answer
            raise
        finally:
            if timer is not None:
                timer.cancel()
            if self.watcher is not None:
                self.watcher.cancel()
                await asyncio.gather(self.watcher, return_exceptions=True)
        await self._finish(answer)

    async def _finish(self, answer: bytes | None) -> None:
        while self.outbox is not None and not self.outbox.empty():
            await self._say(self.outbox.get_nowait())
        if answer is None:  # tools/call as a notification
            await self.send({"type": "http.response.start", "status": 202, "headers": []})
            await self.send({"type": "http.response.body"})
        elif self.streaming or self.must_stream:
            await self._say(answer)
            await self.send({"type": "http.response.body"})
        else:
            await _json(self.send, status_of(answer, self.peer, self.message), answer)

    def _push(self, message: bytes) -> None:
        if self.outbox is not None and not self.outbox.full():
            self.outbox.put_nowait(message)

    def _begin_watch(self, call: asyncio.Task[Any] | None) -> None:
        loop = asyncio.get_running_loop()
        self.watcher = loop.create_task(self._watch(call, WATCH_AFTER))

    async def _watch(self, call: asyncio.Task[Any] | None, elapsed: float) -> None:
        loop = asyncio.get_running_loop()
        gone = loop.create_task(_gone(self.receive, lambda: None))
        told: asyncio.Future[Any] | None = None
        next_comment = loop.time() + KEEPALIVE_SECONDS - elapsed
        try:
            while True:
                if self.outbox is not None and told is None:
                    told = loop.create_task(self.outbox.get())
                waiting: list[asyncio.Future[Any]] = [gone] if told is None else [gone, told]
                pause = max(0.0, next_comment - loop.time())
                await asyncio.wait(waiting, timeout=pause, return_when=asyncio.FIRST_COMPLETED)
                if gone.done():
                    if call is not None and self.peer.revision == R2607:
                        call.cancel()
                    return
                if told is not None and told.done():
                    message, told = told.result(), None
                    await self._say(message)
                elif loop.time() >= next_comment:
                    next_comment = loop.time() + KEEPALIVE_SECONDS
                    if self.may_stream:
                        await self._comment()
        finally:
            gone.cancel()
            if told is not None:
                if told.done() and self.outbox is not None:
                    await self._say(told.result())
                told.cancel()

    async def _comment(self) -> None:
        await self._start()
        await _more(self.send, sse.KEEPALIVE)

    async def _say(self, message: bytes) -> None:
        await self._start()
        await _more(self.send, sse.event(message, name="message"))

    async def _start(self) -> None:
        if not self.streaming:
            self.streaming = True
            start = {"type": "http.response.start", "status": 200, "headers": STREAM_HEADERS}
            await self.send(start)


# --- the new era's headers ----------------------------------------------------------------------


def is_modern(message: Any, fields: Mapping[bytes, bytes]) -> bool:
    version = fields.get(b"mcp-protocol-version")
    if version is not None and version.decode("latin-1") in MODERN:
        return True
    return _meta_version(message) is not None


def _meta_version(message: Any) -> Any:
    params = message.get("params") if isinstance(message, dict) else None
    meta = params.get("_meta") if isinstance(params, dict) else None
    return meta.get(MODERN_KEY) if isinstance(meta, dict) else None


def disagreement(message: Any, fields: Mapping[bytes, bytes]) -> str | None:
    """What a header says other than the body (2026-07-28, transports: they must be equal)."""
    if not isinstance(message, dict) or not isinstance(message.get("method"), str):
        return None
    if "id" not in message:
        return None
    version = _meta_version(message)
    if version is not None and header_text(fields.get(b"mcp-protocol-version")) != version:
        return f'MCP-Protocol-Version and "{MODERN_KEY}" must be the same'
    if header_text(fields.get(b"mcp-method")) != message["method"]:
        return 'Mcp-Method and "method" must be the same'
    if message["method"] == "tools/call":
        params = message.get("params")
        name = params.get("name") if isinstance(params, dict) else None
        if header_text(fields.get(b"mcp-name")) != name:
            return 'Mcp-Name and the "name" of the tool must be the same'
    return None


def header_text(value: bytes | None) -> str | None:
    if value is None:
        return None
    text = value.decode("latin-1")
    if text.startswith("=?base64?") and text.endswith("?="):
        try:
            return base64.b64decode(text[9:-2], validate=True).decode()
        except (binascii.Error, ValueError):
            return None
    return text


def status_of(answer: bytes, peer: Peer, message: Any) -> int:
    """Old clients read errors from a 200; the new era gives them a status of their own."""
    if not answer.startswith(b'{"jsonrpc":"2.0","id":') or b'"error":{"code":' not in answer[:400]:
        return 200
    error = decode(answer).get("error") if len(answer) < MAX_BYTES else None
    code = error.get("code") if isinstance(error, dict) else None
    if code == rpc.INVALID_REQUEST:
        return 400
    if peer.revision != R2607 or not isinstance(code, int):
        return 200
    if code == rpc.METHOD_NOT_FOUND:
        return 404
    return 400 if code in BAD_REQUEST_CODES else 200


# --- bodies and answers -------------------------------------------------------------------------


async def _gone(receive: Receive, then: Callable[[], None]) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
    then()


def _wants_progress(message: Any) -> bool:
    params = message.get("params")
    meta = params.get("_meta") if isinstance(params, dict) else None
    return isinstance(meta, dict) and isinstance(meta.get("progressToken"), str | int)


async def _json(
    send: Send, status: int, body: bytes, headers: list[tuple[bytes, bytes]] | None = None
) -> None:
    length = (b"content-length", str(len(body)).encode())
    fields = [*JSON_HEADERS, length, *(headers or ())]
    await send({"type": "http.response.start", "status": status, "headers": fields})
    await send({"type": "http.response.body", "body": body})


async def _more(send: Send, data: bytes) -> None:
    await send({"type": "http.response.body", "body": data, "more_body": True})


async def _refuse(send: Send, status: int, problem: str) -> None:
    await _json(send, status, rpc.error(None, rpc.INVALID_REQUEST, problem))


async def _plain(send: Send, status: int, text: str, headers: list[tuple[bytes, bytes]]) -> None:
    body = text.encode() + b"\n"
    fields = [(b"content-type", b"text/plain"), (b"content-length", str(len(body)).encode())]
    await send({"type": "http.response.start", "status": status, "headers": fields + headers})
    await send({"type": "http.response.body", "body": body})
