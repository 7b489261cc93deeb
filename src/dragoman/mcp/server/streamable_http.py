"""The Streamable HTTP transport, both eras on one endpoint: `POST`, `GET` and `DELETE` of `/mcp`.

Requests come here authenticated.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from dragoman.core.access import WhyEnded
from dragoman.core.background import Work
from dragoman.core.errors import Overloaded, StorageFailed, WorkFailed
from dragoman.core.ports import Handover, KeptEvent
from dragoman.core.principal import Principal
from dragoman.core.tool_filter import EVERYTHING, View
from dragoman.mcp.protocol.errors import encode_error
from dragoman.mcp.protocol.revisions import ASSUMED, LATEST, REVISIONS, Revision, find_version
from dragoman.mcp.server.client_state import ClientState, Push
from dragoman.mcp.server.dispatcher import ID_IN_USE, McpServer, encode_unsupported
from dragoman.mcp.server.header_check import HeaderCheck
from dragoman.mcp.server.http_response import AcceptedTypes, HttpResponder, parse_accept, send_json
from dragoman.mcp.server.http_sessions import (
    MAX_RUNNING,
    MAX_STREAMS,
    HttpSession,
    HttpSessions,
    parse_stream_id,
)
from dragoman.mcp.server.replay_streams import (
    NOTIFICATIONS,
    RESPONSE,
    STREAM_HEADERS,
    EventStream,
    Keepalive,
    ReplayStream,
    StreamKeepalive,
    parse_event_id,
)
from dragoman.wire import rpc, sse
from dragoman.wire.http import HttpRequest
from dragoman.wire.json import Malformed, decode, has_duplicate_names

PARAMS = (*rpc.PARAMS, b'"uri"', b'"taskId"', b'"inputResponses"', b'"requestState"')
"""The parameters that must not be repeated."""

INTERRUPTED = (
    "the call was interrupted: the hub that made it has died, and whether it has taken effect is "
    "unknown"
)
_STREAM = re.compile(rf"[{RESPONSE}{NOTIFICATIONS}][0-9a-f]{{8,160}}(\.[0-9a-f]{{1,32}})?")
"""The id of a stream in a cluster."""
UNLIMITED = frozenset(
    {"ping", "logging/setLevel", "tasks/get", "tasks/list", "tasks/update", "tasks/cancel"}
)
"""Brief methods that a session at its limit can still use, among others to end what is running."""


class StreamableHttpTransport:
    def __init__(self, server: McpServer, key: bytes, handover: Handover | None = None) -> None:
        """`handover` has what hubs that have ended have left, where there are several."""
        self.server = server
        self._ownership = server.hub.cluster
        self._handover = handover
        self.sessions = HttpSessions(key, server.subscriptions, self._ownership, handover)
        self.keepalive = Keepalive()
        self._find_mismatch = HeaderCheck(server.hub).find_mismatch
        self._closed = False

    def close(self) -> None:
        """Ends the streams of notifications properly, and opens no more."""
        if not self._closed:
            self._closed = True
            self.sessions.close()

    def end_principals(self, why_ended: WhyEnded) -> None:
        """Cancels the calls of principals that have lost access, also those whose clients have
        disconnected, and ends their sessions."""
        for one in self.keepalive.members():
            if isinstance(one, HttpResponder) and (why := why_ended(one.principal)):
                one.cancel(why)
        self.sessions.end_principals(why_ended)

    def __call__(
        self, request: HttpRequest, principal: Principal, endpoint: View = EVERYTHING
    ) -> Work[None] | None:
        """`endpoint` is what the address offers."""
        if principal.view:
            bound = self.server.hub.views.get_bound(principal.view)
            if endpoint is not EVERYTHING and endpoint is not bound:
                refuse_unknown_view(request)
                return None
            endpoint = bound
        if request.method == "POST":
            return self._post(request, principal, endpoint)
        if request.method == "GET":
            return self._get(request, principal, endpoint)
        if request.method == "DELETE":
            self._delete(request, principal, endpoint)
        else:
            refuse_method(request, "use POST, GET or DELETE", b"POST, GET, DELETE")
        return None

    # --- POST --------------------------------------------------------------------------------

    def _post(
        self, request: HttpRequest, principal: Principal, endpoint: View
    ) -> Work[None] | None:
        """Returns what sends the response; None if the request was refused."""
        fields = request.fields
        accepted = parse_accept(fields.get(b"accept", b"*/*"))
        message = parse_message(request, accepted)
        if message is None:
            return None
        client: ClientState | None
        version = fields.get(b"mcp-protocol-version", b"").decode("latin-1")
        revision = REVISIONS.get(version) if version else ASSUMED
        if (revision is None or revision.has_sessions) and find_version(message) is not None:
            revision = LATEST  # a request is refused then: its header must name the revision, too
        if revision is None:
            send_json(request, 400, encode_unsupported(rpc.find_id(message), version))
            return None
        is_modern = not revision.has_sessions
        if is_modern:
            client = ClientState(principal, "mcp-http", endpoint, revision)
        else:
            client = self._find_client(request, message, principal, revision, endpoint)
        if client is None:
            return None
        responder = HttpResponder(client, accepted, request, self.keepalive, principal)
        push = responder.push if accepted.stream else None
        if not isinstance(message, dict):  # a batch
            running = client.running if isinstance(client, HttpSession) else {}
            work = self.server.answer_tracked(message, client, push, running, fields)
            return responder.run(work, None)
        if not is_modern and "method" in message:
            if "id" not in message:
                # A cancelled request counts until it has ended: its stream may last.
                if isinstance(client, HttpSession) and (
                    cancel := client.running.get(rpc.find_cancelled(message))
                ):
                    cancel()
            elif isinstance(client, HttpSession):
                return self._answer_in_session(responder, client, message, push)
            elif message["method"] == "initialize":
                return self._initialize(responder, message, push)
        check = self._find_mismatch if is_modern else None
        work = self.server.answer(message, client, push, fields, check)
        return responder.run(work, message.get("id"))

    def _find_client(
        self,
        request: HttpRequest,
        message: Any,
        principal: Principal,
        revision: Revision,
        endpoint: View,
    ) -> ClientState | None:
        """Finds the session; creates a client of `revision` for a request without one. None if the
        request was refused."""
        id = request.fields.get(b"mcp-session-id")
        if id is None or (isinstance(message, dict) and message.get("method") == "initialize"):
            return ClientState(principal, "mcp-http", endpoint, revision)
        session = self.sessions.find(id.decode("latin-1"), principal, endpoint)
        if session is None:
            _refuse_session(request, rpc.find_id(message))
        return session

    async def _initialize(self, responder: HttpResponder, message: Any, push: Push | None) -> None:
        client, fields = responder.client, responder.request.fields
        answer = await self.server.answer(message, client, push, fields)
        headers = None
        if not isinstance(answer, rpc.EncodedError):
            headers = [(b"mcp-session-id", self.sessions.begin(client).id.encode())]
        await responder.finish(answer, headers)

    async def _answer_in_session(
        self, responder: HttpResponder, session: HttpSession, message: Any, push: Push | None
    ) -> None:
        """Answers a request that its client can cancel."""
        id = rpc.find_id(message)
        if self._handover is not None:
            responder.id, responder.ownership = id, self._ownership
        key, running = rpc.build_key(id), session.running
        if key in running:
            await responder.finish(rpc.encode_error(id, rpc.INVALID_REQUEST, ID_IN_USE))
            return
        if len(running) >= MAX_RUNNING and message["method"] not in UNLIMITED:
            problem = Overloaded(f"{MAX_RUNNING} requests of this session are running; wait")
            await responder.finish(encode_error(id, problem, session.revision))
            return
        running[key] = cancel = responder.cancel
        work = self.server.answer(message, session, push, responder.request.fields)
        del message  # the request may last
        try:
            await responder.run(work, id)
        finally:
            if running.get(key) is cancel:
                del running[key]

    # --- GET and DELETE ------------------------------------------------------------------------

    async def _get(self, request: HttpRequest, principal: Principal, endpoint: View) -> None:
        session = self._find_session(request, principal, endpoint, "a stream needs a session")
        if session is None:
            return
        if not parse_accept(request.fields.get(b"accept", b"")).stream:
            refuse(request, 406, "accept text/event-stream")
            return
        is_resumable = session.revision.has_resumable_streams
        last = request.fields.get(b"last-event-id", b"").decode("latin-1")
        found = session.replay.find(last) if is_resumable else None
        missed: list[KeptEvent] = []
        if last and is_resumable and self._handover is not None:
            parsed = parse_event_id(last)
            if parsed is not None and _needs_handover(parsed, found, self._ownership.mark):
                id, number = parsed
                try:
                    missed = await self._handover.load_events(session.replay.owner, id, number)
                except StorageFailed as error:
                    refuse(request, 503, f"the events cannot be read at the moment: {error}")
                    return
                if not id.startswith(NOTIFICATIONS):
                    await _end_response(request, session.revision, id, number, missed)
                    return
                found = session.replay.find(last)  # it may have been resumed meanwhile
        if last and is_resumable and not last.startswith(NOTIFICATIONS):
            await _resume_response(request, found)
        elif len(session.streams) >= MAX_STREAMS and not (found and found[0] in session.streams):
            refuse(request, 409, f"too many streams: a session has at most {MAX_STREAMS}")
        elif self._closed:
            refuse(request, 503, "the hub is shutting down")
        else:
            await self._stream(session, request, found, last, missed)

    async def _stream(
        self,
        session: HttpSession,
        request: HttpRequest,
        found: tuple[ReplayStream, int] | None,
        last: str,
        missed: Sequence[KeptEvent],
    ) -> None:
        """Sends notifications until the client disconnects or the session ends. `missed` are those
        after the event `last` that another hub has left."""
        stream: EventStream
        if found is not None:
            stream, number = found
            request.start(200, STREAM_HEADERS)
            await _send_events(request, [one for one in missed if one.number < stream.first])
            stream.resume(request, number)
        else:
            stream = session.create_stream(request, NOTIFICATIONS, self._ownership)
            parsed = parse_event_id(last) if self._handover is not None else None
            if parsed is None or not _needs_handover(parsed, found, self._ownership.mark):
                stream.open()
            elif isinstance(stream, ReplayStream):
                stream.continue_from(parsed[0], missed[-1].number if missed else parsed[1])
                request.start(200, STREAM_HEADERS)
                await _send_events(request, missed)
        member = StreamKeepalive(request)
        slot = self.keepalive.add(member, request.loop)
        session.streams.append(stream)
        try:
            request.send(sse.KEEPALIVE)
            if session.is_inherited:
                # Changes may have been missed while its hub was dead.
                session.is_inherited = False
                self.server.subscriptions.announce_lists(session)
            session.send_unsent(stream)
            await stream.wait_closed(request)
        finally:
            slot.discard(member)
            session.streams.remove(stream)
            if isinstance(stream, ReplayStream) and stream not in session.streams:
                session.replay.drop_if_empty(stream)

    def _delete(self, request: HttpRequest, principal: Principal, endpoint: View) -> None:
        session = self._find_session(request, principal, endpoint, "there is no session to end")
        if session is not None:
            self.sessions.end(session)
            request.reply(200, [], b"")

    def _find_session(
        self, request: HttpRequest, principal: Principal, endpoint: View, problem: str
    ) -> HttpSession | None:
        """Finds the session that the headers name; refuses the request if there is none."""
        id = request.fields.get(b"mcp-session-id")
        version = request.fields.get(b"mcp-protocol-version", b"").decode("latin-1")
        revision = REVISIONS.get(version) if version else ASSUMED
        if id is None or (revision is not None and not revision.has_sessions):
            refuse_method(request, problem, b"POST")
            return None
        if revision is None:
            send_json(request, 400, encode_unsupported(None, version))
            return None
        session = self.sessions.find(id.decode("latin-1"), principal, endpoint)
        if session is None:
            _refuse_session(request, None)
        return session


def _needs_handover(
    last: tuple[str, int], found: tuple[ReplayStream, int] | None, mark: str
) -> bool:
    """Whether events after that one are those of a hub that has ended. A response that this hub,
    with the id `mark`, does not keep any more may still be running."""
    id, number = last
    if found is None:
        return _STREAM.fullmatch(id) is not None and parse_stream_id(id)[0] != mark
    return number + 1 < found[0].first and id.startswith(NOTIFICATIONS)


async def _send_events(request: HttpRequest, events: Sequence[KeptEvent]) -> None:
    await request.write(b"".join(event.data for event in events))


async def _end_response(
    request: HttpRequest, revision: Revision, id: str, number: int, missed: Sequence[KeptEvent]
) -> None:
    """Sends the rest of a response of a hub that has ended. If it was not complete, the request has
    failed: this is known of streams whose id names it."""
    _, answers = parse_stream_id(id)
    is_complete = bool(missed) and missed[-1].is_last
    if answers is None and not is_complete:
        await _resume_response(request, None)
        return
    request.start(200, STREAM_HEADERS)
    await _send_events(request, missed)
    if not is_complete:
        failed = encode_error(answers, WorkFailed(INTERRUPTED), revision)
        number = missed[-1].number if missed else number
        await request.write(sse.encode_event(failed, name="message", id=f"{id}-{number + 1}"))
    request.end()


async def _resume_response(request: HttpRequest, found: tuple[ReplayStream, int] | None) -> None:
    """Sends the rest of a response to a client that reconnects."""
    if found is None:
        refuse(request, 400, "the events after that one are not kept; send the request again")
        return
    stream, number = found
    request.start(200, STREAM_HEADERS)
    stream.resume(request, number)
    if not stream.is_finished:
        await stream.wait_closed(request)


# --- messages and refusals ----------------------------------------------------------------------


def parse_message(request: HttpRequest, accepted: AcceptedTypes) -> Any:
    """Returns the message in a POST; None if the request was refused."""
    fields, body = request.fields, request.body
    kind = fields.get(b"content-type", b"")
    if kind != b"application/json" and not kind.lower().startswith(b"application/json"):
        refuse(request, 415, "send a message as content-type application/json")
        return None
    if not (accepted.json or accepted.stream):
        refuse(request, 406, "accept application/json and text/event-stream")
        return None
    try:
        message = decode(body)
    except Malformed as problem:
        send_json(request, 400, rpc.encode_error(None, rpc.PARSE_ERROR, str(problem)))
        return None
    if has_duplicate_names(body, message, rpc.ENVELOPE, PARAMS):
        refuse(request, 400, "invalid message: a member is repeated", rpc.find_id(message))
        return None
    if message is None:
        refuse(request, 400, "a message is a JSON object")
    return message


def refuse(request: HttpRequest, status: int, problem: str, id: rpc.Id = None) -> None:
    send_json(request, status, rpc.encode_error(id, rpc.INVALID_REQUEST, problem))


def _refuse_session(request: HttpRequest, id: rpc.Id) -> None:
    refuse(request, 404, "session not found; begin a new one with initialize", id)


def refuse_unknown_view(request: HttpRequest) -> None:
    refuse(request, 404, "there is no such view; see: dragoman views list")


def refuse_method(request: HttpRequest, problem: str, methods: bytes) -> None:
    headers = [(b"content-type", b"text/plain"), (b"allow", methods)]
    request.reply(405, headers, problem.encode() + b"\n")
