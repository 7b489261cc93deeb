"""The face over Streamable HTTP, both eras on one endpoint: `POST`, `GET` and `DELETE` of `/mcp`.

Who is calling was settled before a request comes here.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
from collections.abc import Awaitable, Mapping
from typing import Any

from dragoman.core.ports import HttpRequest
from dragoman.core.principal import Principal
from dragoman.core.view import EVERYTHING
from dragoman.mcp import answering
from dragoman.mcp.answering import Answering, send_json
from dragoman.mcp.revisions import (
    ASSUMED,
    CLIENT_KEY,
    HANDSHAKE,
    MODERN,
    MODERN_KEY,
    NUMBERS,
    R2607,
)
from dragoman.mcp.server import Face, Peer, answer_batch, unsupported
from dragoman.mcp.sessions import MAX_STREAMS, Session, Sessions
from dragoman.wire import rpc, sse
from dragoman.wire.json import Malformed, decode, names_twice

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

    def __call__(self, request: HttpRequest, principal: Principal) -> Awaitable[None]:
        if request.method == "POST":
            return self._post(request, principal)
        return self._other(request, principal)

    async def _other(self, request: HttpRequest, principal: Principal) -> None:
        if request.method == "GET":
            await self._get(request, principal)
        elif request.method == "DELETE":
            self._delete(request, principal)
        else:
            _not_allowed(request, "use POST, GET or DELETE", b"POST, GET, DELETE")

    # --- POST --------------------------------------------------------------------------------

    async def _post(self, request: HttpRequest, principal: Principal) -> None:
        fields = request.fields
        if not fields.get(b"content-type", b"").lower().startswith(b"application/json"):
            _refuse(request, 415, "send a message as content-type application/json")
            return
        accept = fields.get(b"accept", b"*/*").lower()
        if not (b"json" in accept or b"event-stream" in accept or b"*" in accept):
            _refuse(request, 406, "accept application/json and text/event-stream")
            return
        try:
            message = decode(request.body)
        except Malformed as problem:
            send_json(request, 400, rpc.error(None, rpc.PARSE_ERROR, str(problem)))
            return
        if names_twice(request.body, rpc.ENVELOPE, rpc.PARAMS, _named_client(message)):
            _refuse(request, 400, "a member is named twice", rpc.id_of(message))
            return
        peer = self._peer(request, message, principal)
        if peer is None:
            return
        way = Answering(peer, accept, request)
        if isinstance(message, list):
            await way.finish(await answer_batch(self.face, message, peer))
            return
        method = message.get("method") if isinstance(message, dict) else None
        if method == "tools/call":
            if type(peer) is Peer:  # no session that could cancel it
                await way.call(self.face, message)
            else:
                await self._call(message, way)
        elif method == "notifications/cancelled" and "id" not in message:
            _cancel(message, peer)
            await way.finish(None)
        elif method == "initialize" and peer.revision != R2607:
            await self._initialize(message, way)
        else:
            await way.finish(await self.face.answer(message, peer))

    def _peer(self, request: HttpRequest, message: Any, principal: Principal) -> Peer | None:
        """Who is asking, in which revision; None when the request was refused."""
        fields = request.fields
        version = fields.get(b"mcp-protocol-version", b"").decode("latin-1")
        named = _meta_version(message)
        if named is not None or version in MODERN:
            problem = disagreement(message, fields, version, named)
            if problem is None:
                return Peer(principal, "mcp-http", EVERYTHING, R2607)
            id = rpc.id_of(message)
            send_json(request, 400, rpc.error(id, HEADER_MISMATCH, problem))
            return None
        if version and version not in HANDSHAKE:
            send_json(request, 400, unsupported(rpc.id_of(message), version))
            return None
        sent = fields.get(b"mcp-session-id")
        if sent is None or (isinstance(message, dict) and message.get("method") == "initialize"):
            revision = NUMBERS[version] if version else ASSUMED
            return Peer(principal, "mcp-http", EVERYTHING, revision)
        session = self.sessions.find(sent.decode("latin-1"), principal)
        if session is None:
            _no_session(request, rpc.id_of(message))
        return session

    async def _call(self, message: dict[str, Any], way: Answering) -> None:
        session, key = way.peer, rpc.key_of(rpc.id_of(message))
        if not isinstance(session, Session):
            await way.call(self.face, message)
            return
        session.running[key] = way.cancel
        try:
            await way.call(self.face, message)
        finally:
            session.running.pop(key, None)

    async def _initialize(self, message: dict[str, Any], way: Answering) -> None:
        answer = await self.face.answer(message, way.peer)
        if answer is None or answering.status_of(answer, way.peer.revision) != 200:
            await way.finish(answer)
            return
        session = self.sessions.begin(way.peer.principal, way.peer.revision)
        await way.finish(answer, [(b"mcp-session-id", session.id.encode())])

    # --- GET and DELETE ------------------------------------------------------------------------

    async def _get(self, request: HttpRequest, principal: Principal) -> None:
        id = _session_id(request.fields)
        if id is None:
            _not_allowed(request, "a stream needs a session", b"POST")
            return
        session = self.sessions.find(id, principal)
        if session is None:
            _no_session(request, None)
            return
        accept = request.fields.get(b"accept", b"").lower()
        if b"event-stream" not in accept and b"*" not in accept:
            _refuse(request, 406, "accept text/event-stream")
        elif len(session.streams) >= MAX_STREAMS:
            _refuse(request, 409, f"a session has at most {MAX_STREAMS} streams")
        elif self._closed:
            _refuse(request, 503, "the hub is going down")
        else:
            await self._stream(session, request)

    async def _stream(self, session: Session, request: HttpRequest) -> None:
        """What the hub says unasked, until the client or the session goes."""
        queue: asyncio.Queue[bytes | None] = asyncio.Queue(answering.MAX_QUEUED)

        def push(message: bytes | None) -> None:
            if message is None or queue.full():  # the end, or a client that does not read
                while not queue.empty():
                    queue.get_nowait()
                message = None
            queue.put_nowait(message)

        session.streams.append(push)
        request.gone.add_done_callback(lambda _: push(None))
        try:
            request.start(200, answering.STREAM_HEADERS)
            await request.write(sse.KEEPALIVE)
            while True:
                try:
                    async with asyncio.timeout(answering.KEEPALIVE_SECONDS):
                        message = await queue.get()
                except TimeoutError:
                    await request.write(sse.KEEPALIVE)
                    continue
                if message is None:
                    break
                await request.write(sse.event(message, name="message"))
            request.end()
        finally:
            session.streams.remove(push)

    def _delete(self, request: HttpRequest, principal: Principal) -> None:
        id = _session_id(request.fields)
        if id is None:
            _not_allowed(request, "there is no session to end", b"POST")
            return
        session = self.sessions.find(id, principal)
        if session is None:
            _no_session(request, None)
            return
        self.sessions.end(session)
        request.reply(200, [], b"")


def _cancel(message: dict[str, Any], peer: Peer) -> None:
    """Up to 2025-11-25 a client that hangs up has not cancelled, and one that says so has."""
    cancel = peer.running.get(rpc.cancelled_by(message)) if isinstance(peer, Session) else None
    if cancel is not None:
        cancel()


def _named_client(message: Any) -> int:
    """Whether the message says its client's name, as every one of the new era does."""
    try:
        return int("name" in message["params"]["_meta"][CLIENT_KEY])
    except (KeyError, TypeError):
        return 0


# --- headers ------------------------------------------------------------------------------------


def _session_id(fields: Mapping[bytes, bytes]) -> str | None:
    """The session that is meant; the new era has none, whatever is sent."""
    id = fields.get(b"mcp-session-id")
    if id is None or fields.get(b"mcp-protocol-version", b"").decode("latin-1") in MODERN:
        return None
    return id.decode("latin-1")


def _meta_version(message: Any) -> Any:
    params = message.get("params") if isinstance(message, dict) else None
    meta = params.get("_meta") if isinstance(params, dict) else None
    return meta.get(MODERN_KEY) if isinstance(meta, dict) else None


def disagreement(
    message: Any, fields: Mapping[bytes, bytes], version: str, named: Any
) -> str | None:
    """What a header says other than the body (2026-07-28, transports: they must be equal)."""
    if not isinstance(message, dict) or "id" not in message:
        return None
    method = message.get("method")
    if not isinstance(method, str):
        return None
    if named is not None and version != named:
        return f'MCP-Protocol-Version and "{MODERN_KEY}" must be the same'
    if header_text(fields.get(b"mcp-method")) != method:
        return 'Mcp-Method and "method" must be the same'
    if method == "tools/call":
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


def _refuse(request: HttpRequest, status: int, problem: str, id: rpc.Id = None) -> None:
    send_json(request, status, rpc.error(id, rpc.INVALID_REQUEST, problem))


def _no_session(request: HttpRequest, id: rpc.Id) -> None:
    _refuse(request, 404, "there is no such session; begin a new one with initialize", id)


def _not_allowed(request: HttpRequest, text: str, methods: bytes) -> None:
    headers = [(b"content-type", b"text/plain"), (b"allow", methods)]
    request.reply(405, headers, text.encode() + b"\n")
