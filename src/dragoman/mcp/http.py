"""The face over Streamable HTTP, both eras on one endpoint: `POST`, `GET` and `DELETE` of `/mcp`.

Expects, beside ASGI's own, `principal`, `fields` (the headers) and `body` in the scope.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
from collections.abc import Mapping, MutableMapping
from typing import Any

from dragoman.core.principal import Principal
from dragoman.core.view import EVERYTHING
from dragoman.mcp import answering
from dragoman.mcp.answering import Answering, Receive, Send, more, send_json, start, until_gone
from dragoman.mcp.revisions import ASSUMED, HANDSHAKE, MODERN, MODERN_KEY, NUMBERS, R2607
from dragoman.mcp.server import Face, Peer, answer_batch, unsupported
from dragoman.mcp.sessions import MAX_STREAMS, Session, Sessions
from dragoman.wire import rpc, sse
from dragoman.wire.json import Malformed, decode, names_twice

Scope = MutableMapping[str, Any]

HEADER_MISMATCH = -32020


class HttpFace:
    def __init__(self, face: Face, key: bytes) -> None:
        self.face = face
        self.sessions = Sessions(key, EVERYTHING)
        self._closed = False
        self._stop_listening = face.hub.catalog.on_change(self.sessions.tell_changed)

    def close(self) -> None:
        """Ends all streams properly, and opens no more."""
        if not self._closed:
            self._closed = True
            self._stop_listening()
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
            await _not_allowed(send, "use POST, GET or DELETE", b"POST, GET, DELETE")

    # --- POST --------------------------------------------------------------------------------

    async def _post(self, scope: Scope, receive: Receive, send: Send) -> None:
        fields: Mapping[bytes, bytes] = scope["fields"]
        if not fields.get(b"content-type", b"").lower().startswith(b"application/json"):
            await _refuse(send, 415, "send a message as content-type application/json")
            return
        accept = fields.get(b"accept", b"*/*").lower()
        if not (b"json" in accept or b"event-stream" in accept or b"*" in accept):
            await _refuse(send, 406, "accept application/json and text/event-stream")
            return
        body: bytes = scope["body"]
        try:
            message = decode(body)
        except Malformed as problem:
            await send_json(send, 400, rpc.error(None, rpc.PARSE_ERROR, str(problem)))
            return
        if names_twice(body, rpc.ENVELOPE, rpc.PARAMS):
            await _refuse(send, 400, "a member is named twice", rpc.id_of(message))
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
                await send_json(send, 400, rpc.error(id, HEADER_MISMATCH, problem))
                return
            peer = Peer(principal, "mcp-http", EVERYTHING, R2607)
            await self._respond(message, Answering(peer, accept, receive, send))
            return
        version = fields.get(b"mcp-protocol-version", b"").decode("latin-1")
        if version and version not in HANDSHAKE:
            await send_json(send, 400, unsupported(rpc.id_of(message), version))
            return
        begins = isinstance(message, dict) and message.get("method") == "initialize"
        sent = fields.get(b"mcp-session-id")
        if sent is None or begins:
            peer = Peer(principal, "mcp-http", EVERYTHING, NUMBERS[version] if version else ASSUMED)
        else:
            found = self.sessions.find(sent.decode("latin-1"), principal)
            if found is None:
                await _no_session(send, rpc.id_of(message))
                return
            peer = found
        way = Answering(peer, accept, receive, send)
        await (self._initialize(message, way) if begins else self._respond(message, way))

    async def _initialize(self, message: dict[str, Any], way: Answering) -> None:
        answer = await self.face.answer(message, way.peer)
        if answer is None or answering.status_of(answer, way.peer.revision) != 200:
            await way.finish(answer)
            return
        session = self.sessions.begin(way.peer.principal, way.peer.revision)
        await way.finish(answer, [(b"mcp-session-id", session.id.encode())])

    async def _respond(self, message: Any, way: Answering) -> None:
        if isinstance(message, list):
            await way.finish(await answer_batch(self.face, message, way.peer))
        elif isinstance(message, dict) and message.get("method") == "tools/call":
            await way.call(self.face, message)
        else:
            await way.finish(await self.face.answer(message, way.peer))

    # --- GET and DELETE ------------------------------------------------------------------------

    async def _get(self, scope: Scope, receive: Receive, send: Send) -> None:
        fields: Mapping[bytes, bytes] = scope["fields"]
        id = _session_id(fields)
        if id is None:
            await _not_allowed(send, "a stream needs a session", b"POST")
            return
        session = self.sessions.find(id, scope["principal"])
        if session is None:
            await _no_session(send, None)
            return
        accept = fields.get(b"accept", b"").lower()
        if b"event-stream" not in accept and b"*" not in accept:
            await _refuse(send, 406, "accept text/event-stream")
        elif len(session.streams) >= MAX_STREAMS:
            await _refuse(send, 409, f"a session has at most {MAX_STREAMS} streams")
        elif self._closed:
            await _refuse(send, 503, "the hub is going down")
        else:
            await self._stream(session, receive, send)

    async def _stream(self, session: Session, receive: Receive, send: Send) -> None:
        """What the hub says unasked, until the client or the session goes."""
        queue: asyncio.Queue[bytes | None] = asyncio.Queue(answering.MAX_QUEUED)

        def push(message: bytes | None) -> None:
            if message is None or queue.full():  # the end, or a client that does not read
                while not queue.empty():
                    queue.get_nowait()
                message = None
            queue.put_nowait(message)

        session.streams.append(push)
        gone = asyncio.get_running_loop().create_task(until_gone(receive))
        gone.add_done_callback(lambda _: push(None))
        try:
            await start(send, 200, answering.STREAM_HEADERS)
            await more(send, sse.KEEPALIVE)
            while True:
                try:
                    async with asyncio.timeout(answering.KEEPALIVE_SECONDS):
                        message = await queue.get()
                except TimeoutError:
                    await more(send, sse.KEEPALIVE)
                    continue
                if message is None:
                    break
                await more(send, sse.event(message, name="message"))
            await send({"type": "http.response.body"})
        finally:
            gone.cancel()
            session.streams.remove(push)

    async def _delete(self, scope: Scope, send: Send) -> None:
        id = _session_id(scope["fields"])
        if id is None:
            await _not_allowed(send, "there is no session to end", b"POST")
            return
        session = self.sessions.find(id, scope["principal"])
        if session is None:
            await _no_session(send, None)
            return
        self.sessions.end(session)
        await start(send, 200, [])
        await send({"type": "http.response.body"})


# --- headers ------------------------------------------------------------------------------------


def _session_id(fields: Mapping[bytes, bytes]) -> str | None:
    """The session that is meant; the new era has none, whatever is sent."""
    id = fields.get(b"mcp-session-id")
    if id is None or fields.get(b"mcp-protocol-version", b"").decode("latin-1") in MODERN:
        return None
    return id.decode("latin-1")


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
        if isinstance(name, str | None) and header_text(fields.get(b"mcp-name")) != name:
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


# --- refusals -----------------------------------------------------------------------------------


async def _refuse(send: Send, status: int, problem: str, id: rpc.Id = None) -> None:
    await send_json(send, status, rpc.error(id, rpc.INVALID_REQUEST, problem))


async def _no_session(send: Send, id: rpc.Id) -> None:
    await _refuse(send, 404, "there is no such session; begin a new one with initialize", id)


async def _not_allowed(send: Send, text: str, methods: bytes) -> None:
    body = text.encode() + b"\n"
    headers = [(b"content-type", b"text/plain"), (b"content-length", b"%d" % len(body))]
    await start(send, 405, [*headers, (b"allow", methods)])
    await send({"type": "http.response.body", "body": body})
