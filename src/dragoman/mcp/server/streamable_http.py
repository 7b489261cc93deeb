"""The face over Streamable HTTP, both eras on one endpoint: `POST`, `GET` and `DELETE` of `/mcp`.

Who is calling was settled before a request comes here.
"""

from __future__ import annotations

from collections.abc import Awaitable, Coroutine
from typing import Any

from dragoman.core.access import WhyEnded
from dragoman.core.errors import Overloaded
from dragoman.core.principal import Principal
from dragoman.core.tool_filter import EVERYTHING
from dragoman.mcp.protocol.errors import encode_crash, encode_error
from dragoman.mcp.protocol.mirrored_headers import HEADER_MISMATCH
from dragoman.mcp.protocol.revisions import (
    ASSUMED,
    CLIENT_KEY,
    HANDSHAKE,
    LATEST,
    MODERN,
    REVISIONS,
)
from dragoman.mcp.server import http_response
from dragoman.mcp.server.client_state import ClientState
from dragoman.mcp.server.dispatcher import McpServer, answer_batch, encode_unsupported
from dragoman.mcp.server.header_check import HeaderCheck, find_named_version
from dragoman.mcp.server.http_response import HttpResponder, send_json
from dragoman.mcp.server.http_sessions import MAX_RUNNING, MAX_STREAMS, HttpSession, HttpSessions
from dragoman.mcp.server.replay_streams import (
    NOTIFICATIONS,
    STREAM_HEADERS,
    EventStream,
    Keepalive,
    ReplayStream,
    StreamKeepalive,
)
from dragoman.wire import rpc, sse
from dragoman.wire.http import HttpRequest
from dragoman.wire.json import Malformed, decode, has_duplicate_names, is_compact

PARAMS = (*rpc.PARAMS, b'"uri"', b'"taskId"', b'"inputResponses"', b'"requestState"')
"""The parameters that must not be named twice."""


class StreamableHttpTransport:
    def __init__(self, face: McpServer, key: bytes) -> None:
        self.server = face
        self.sessions = HttpSessions(key, EVERYTHING, face)
        self.keepalive = Keepalive()
        self._headers = HeaderCheck(face.hub)
        self._closed = False

    def close(self) -> None:
        """Ends the streams on which nothing is answered, properly, and opens no more."""
        if not self._closed:
            self._closed = True
            self.sessions.close()

    def end_principals(self, why_ended: WhyEnded) -> None:
        """Calls end as if their clients had cancelled them, also those whose clients are away."""
        for one in self.keepalive.members():
            if isinstance(one, HttpResponder) and (why := why_ended(one.peer.principal)):
                one.cancel(why)
        self.sessions.end_principals(why_ended)

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
            refuse_method(request, "use POST, GET or DELETE", b"POST, GET, DELETE")

    # --- POST --------------------------------------------------------------------------------

    async def _post(self, request: HttpRequest, principal: Principal) -> None:
        accept = request.fields.get(b"accept", b"*/*").lower()
        message = parse_message(request, accept)
        if message is None:
            return
        try:
            peer = self._peer(request, message, principal)
        except Exception:
            send_json(request, 500, encode_crash(rpc.find_id(message)))
            return
        if peer is None:
            return
        way = HttpResponder(peer, accept, request, self.keepalive)
        push = way.push if way.may_stream else None
        if isinstance(message, list):
            for item in message:
                _cancel(item, peer)
            running = peer.running if isinstance(peer, HttpSession) else None
            work = answer_batch(self.server, message, peer, push, running, request.fields)
            await way.run(work, None)
            return
        begun = self.server.begin(message, peer, push, request.fields)
        if begun is None:
            _cancel(message, peer)
            await way.finish(None)
            return
        if not isinstance(begun, bytes) and message.get("method") == "initialize":
            begun = await begun  # at most as long as the hub takes to start
        if isinstance(begun, bytes):
            await way.finish(begun, self._begin_session(message, begun, peer))
            return
        id = message["id"]
        del message  # it may last
        if type(peer) is ClientState:  # no session that could cancel it
            await way.run(begun, id)
        else:
            await _run(begun, id, way)

    def _peer(self, request: HttpRequest, message: Any, principal: Principal) -> ClientState | None:
        """Who is asking, in which revision; None when the request was refused."""
        fields = request.fields
        version = fields.get(b"mcp-protocol-version", b"").decode("latin-1")
        named = find_named_version(message)
        if named is not None or version in MODERN:
            problem = self._headers.find_mismatch(message, fields, version, named, EVERYTHING)
            if problem is None:
                return ClientState(principal, "mcp-http", EVERYTHING, LATEST)
            send_json(
                request, 400, rpc.encode_error(rpc.find_id(message), HEADER_MISMATCH, problem)
            )
            return None
        if version and version not in HANDSHAKE:
            send_json(request, 400, encode_unsupported(rpc.find_id(message), version))
            return None
        sent = fields.get(b"mcp-session-id")
        if sent is None or (isinstance(message, dict) and message.get("method") == "initialize"):
            revision = REVISIONS[version] if version else ASSUMED
            return ClientState(principal, "mcp-http", EVERYTHING, revision)
        session = self.sessions.find(sent.decode("latin-1"), principal)
        if session is None:
            _no_session(request, rpc.find_id(message))
        return session

    def _begin_session(
        self, message: Any, answer: bytes, peer: ClientState
    ) -> list[tuple[bytes, bytes]] | None:
        """What goes with the answer to a good `initialize`."""
        if (
            not peer.revision.has_sessions
            or not isinstance(message, dict)
            or message.get("method") != "initialize"
            or http_response.status_of(answer, peer.revision) != 200
        ):
            return None
        return [(b"mcp-session-id", self.sessions.begin(peer).id.encode())]

    # --- GET and DELETE ------------------------------------------------------------------------

    async def _get(self, request: HttpRequest, principal: Principal) -> None:
        session = self._session(request, principal, "a stream needs a session")
        if session is None:
            return
        accept = request.fields.get(b"accept", b"").lower()
        if b"event-stream" not in accept and b"*" not in accept:
            refuse(request, 406, "accept text/event-stream")
            return
        last = request.fields.get(b"last-event-id", b"").decode("latin-1")
        found = session.replay.find(last) if session.resumable else None
        if last and session.resumable and not last.startswith(NOTIFICATIONS):
            await _answer_again(request, found)
        elif len(session.streams) >= MAX_STREAMS and not (found and found[0] in session.streams):
            refuse(request, 409, f"a session has at most {MAX_STREAMS} streams")
        elif self._closed:
            refuse(request, 503, "the hub is going down")
        else:
            await self._stream(session, request, found)

    async def _stream(
        self, session: HttpSession, request: HttpRequest, found: tuple[ReplayStream, int] | None
    ) -> None:
        """What the hub says unasked, until the client or the session goes."""
        if found is not None:
            stream: EventStream = found[0]
            request.start(200, STREAM_HEADERS)
            found[0].resume(request, found[1])
        else:
            kept = session.resumable
            stream = (
                ReplayStream(request, session.replay, NOTIFICATIONS)
                if kept
                else EventStream(request)
            )
            stream.open(primed=session.primed)
        beat = StreamKeepalive(request)
        beats = self.keepalive.add(beat, request.loop)
        session.streams.append(stream)
        try:
            request.send(sse.KEEPALIVE)
            session.send_unsent(stream)
            await stream.wait_closed(request)
        finally:
            beats.discard(beat)
            session.streams.remove(stream)
            if isinstance(stream, ReplayStream) and stream not in session.streams:
                session.replay.drop_if_empty(stream)

    def _delete(self, request: HttpRequest, principal: Principal) -> None:
        session = self._session(request, principal, "there is no session to end")
        if session is not None:
            self.sessions.end(session)
            request.reply(200, [], b"")

    def _session(self, request: HttpRequest, principal: Principal, why: str) -> HttpSession | None:
        """The session that is meant; the new era has none, whatever is sent."""
        id = request.fields.get(b"mcp-session-id")
        version = request.fields.get(b"mcp-protocol-version", b"").decode("latin-1")
        if id is None or version in MODERN:
            refuse_method(request, why, b"POST")
            return None
        if version and version not in HANDSHAKE:
            send_json(request, 400, encode_unsupported(None, version))
            return None
        session = self.sessions.find(id.decode("latin-1"), principal)
        if session is None:
            _no_session(request, None)
        return session


async def _run(work: Coroutine[Any, Any, bytes | None], id: rpc.Id, way: HttpResponder) -> None:
    """What its client may cancel."""
    session, key = way.peer, rpc.build_key(id)
    if not isinstance(session, HttpSession):
        await way.run(work, id)
        return
    if key in session.running:
        work.close()
        words = "a request with this id is still under way"
        await way.finish(rpc.encode_error(id, rpc.INVALID_REQUEST, words))
        return
    if len(session.running) >= MAX_RUNNING:
        work.close()
        problem = Overloaded(f"{MAX_RUNNING} requests of this session are under way; wait for some")
        await way.finish(encode_error(id, problem, session.revision))
        return
    session.running[key] = way.cancel
    try:
        await way.run(work, id)
    finally:
        del session.running[key]


async def _answer_again(request: HttpRequest, found: tuple[ReplayStream, int] | None) -> None:
    """The rest of a request's stream, for a client whose connection broke."""
    if found is None:
        refuse(request, 400, "what came after that event is not kept; send the request again")
        return
    stream, number = found
    request.start(200, STREAM_HEADERS)
    stream.resume(request, number)
    if not stream.is_finished:
        await stream.wait_closed(request)


def _cancel(message: Any, peer: ClientState) -> None:
    """Up to 2025-11-25 a client that hangs up has not cancelled, and one that says so has."""
    if (
        isinstance(peer, HttpSession)
        and isinstance(message, dict)
        and message.get("method") == "notifications/cancelled"
        and "id" not in message
    ):
        cancel = peer.running.get(rpc.find_cancelled(message))
        if cancel is not None:
            cancel()


# --- what is taken ------------------------------------------------------------------------------


def parse_message(request: HttpRequest, accept: bytes) -> Any:
    """The message in a POST; None when it was refused."""
    kind = request.fields.get(b"content-type", b"")
    if kind != b"application/json" and not kind.lower().startswith(b"application/json"):
        refuse(request, 415, "send a message as content-type application/json")
        return None
    if not (b"json" in accept or b"event-stream" in accept or b"*" in accept):
        refuse(request, 406, "accept application/json and text/event-stream")
        return None
    try:
        message = decode(request.body)
    except Malformed as problem:
        send_json(request, 400, rpc.encode_error(None, rpc.PARSE_ERROR, str(problem)))
        return None
    body = request.body
    if not is_compact(body, message) and has_duplicate_names(
        body, rpc.ENVELOPE, PARAMS, _named_client(message)
    ):
        refuse(request, 400, "a member is named twice", rpc.find_id(message))
        return None
    if message is None:
        refuse(request, 400, "a message is a JSON object")
    return message


def _named_client(message: Any) -> int:
    """Whether the message says its client's name, as every one of the new era does."""
    try:
        return int("name" in message["params"]["_meta"][CLIENT_KEY])
    except (KeyError, TypeError):
        return 0


# --- refusals -----------------------------------------------------------------------------------


def refuse(request: HttpRequest, status: int, problem: str, id: rpc.Id = None) -> None:
    send_json(request, status, rpc.encode_error(id, rpc.INVALID_REQUEST, problem))


def _no_session(request: HttpRequest, id: rpc.Id) -> None:
    refuse(request, 404, "there is no such session; begin a new one with initialize", id)


def refuse_method(request: HttpRequest, text: str, methods: bytes) -> None:
    headers = [(b"content-type", b"text/plain"), (b"allow", methods)]
    request.reply(405, headers, text.encode() + b"\n")
