"""A call as it is put to a server, in the words of the era it speaks, and what comes of it.

Questions too: a server of the modern era returns them and the continuing call brings the answers;
one of the handshake era sends them while it works, on a session that is the client's own. Which
session a call goes over is decided in `session_choice`.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from dragoman.core.call import NO_UPDATES, URL, Call, Result
from dragoman.core.errors import BadReply, HubError, InvalidInput, WorkFailed
from dragoman.core.question_handles import build_needs_input, can_answer
from dragoman.core.tool import COMPLETION, PROMPT, RESOURCE, TOOL
from dragoman.mcp.client.catalog_sync import CatalogSync
from dragoman.mcp.client.client_sessions import (
    ClientSessions,
    OpenQuestions,
    Request,
    SessionNotOpened,
)
from dragoman.mcp.client.handshake_session import HandshakeSession
from dragoman.mcp.client.interactive_listing import Listing
from dragoman.mcp.client.jsonrpc_channel import FOREVER, UnansweredQuestion
from dragoman.mcp.client.notifications import RequestListener, listener_from_call
from dragoman.mcp.client.remote_tasks import (
    TASK,
    Ask,
    UpstreamTasks,
    is_task,
    is_task_handle,
    makes_tasks,
    wants_task,
)
from dragoman.mcp.client.session import MODERN_META, UpstreamSession
from dragoman.mcp.client.session_choice import NONE, SessionChoice
from dragoman.mcp.client.url_elicitations import UrlElicitations
from dragoman.mcp.protocol.elicitation import (
    AGAIN,
    NO_STATE,
    PARKED,
    STATE,
    TASKS_ONLY,
    add_task_support,
    question_from_request,
    questions_from_result,
    questions_from_url_error,
)
from dragoman.mcp.protocol.mirrored_headers import HEADER_MISMATCH, build_param_headers
from dragoman.mcp.protocol.revisions import MODERN, NAMES, R2503, R2511, unwrap_result
from dragoman.mcp.protocol.translate import (
    METHODS,
    NO_COMPLETIONS,
    build_unknown_result_error,
    request_from_call,
    result_from_mcp,
    result_from_reply,
)

log = logging.getLogger(__name__)

_MAY_ASK = frozenset({TOOL, PROMPT, RESOURCE})
"""2026-07-28, multi round-trip requests: the kinds of calls that may need input."""

Beside = tuple[RequestListener | None, Mapping[str, str] | None, Mapping[str, Any]]
"""Who hears what is said beside the answer, headers, and what the request says of its sender."""


class Calls:
    def __init__(
        self,
        server: str,
        timeout: float,
        call_timeout: float,
        offers: CatalogSync,
        listing: Listing,
        personal: ClientSessions,
        tasks: UpstreamTasks,
        connected: Callable[[], Awaitable[UpstreamSession]],
        choice: SessionChoice,
        handshake: HandshakeSession,
    ) -> None:
        """`connected` gives the session that is shared, whichever it is by then. `timeout` bounds
        what the hub asks for itself, `call_timeout` a call."""
        self._server = server
        self._timeout = timeout
        self._call_timeout = call_timeout
        self._offers = offers
        self._listing = listing
        self._personal = personal
        self._tasks = tasks
        self._connected = connected
        self._choice = choice
        self._handshake = handshake
        self.lasts = False
        """Whether it makes tasks."""
        self.url_elicitations = UrlElicitations()

    def make(self, session: UpstreamSession, call: Call) -> Awaitable[Result]:
        if call.handle is not None and is_task_handle(call.handle):
            return self._tasks.resume(call, self._asker(call), self._finish)
        # Most calls are of somebody who can be asked nothing.
        if call.handle is None and (not call.features or call.features is TASKS_ONLY):
            choice = self._choice
            if session.modern:
                if not call.client or call.revision in MODERN:
                    return self._shared(session, call)
                if self._handshake.session is not None and not choice.separates_all:
                    return self._shared(self._handshake.session, call)
                if choice.speaks_handshake is False:
                    return self._shared(session, call)
            elif not choice.separates:
                if call.client and call.client not in choice.sharing:
                    choice.note_shared(call.client)
                return self._shared(session, call)
        return self._routed(session, call)

    async def _shared(self, session: UpstreamSession, call: Call) -> Result:
        kind = call.tool.kind
        if kind == COMPLETION and _completes_nothing(session):
            return Result(structured=NO_COMPLETIONS)
        params = self._params(session, call, self.lasts)
        try:
            if (
                call.wanted_updates is NO_UPDATES
                and (not call.features or (call.features is TASKS_ONLY and not self.lasts))
                and call.handle is None
                and call.answers is None
                and not self._offers.mirrored
            ):  # there is nothing to say beside the parameters, as with most calls
                value, size = await session.request(METHODS[kind], params, self._call_timeout)
            else:
                beside = await self._beside(session, call, params)
                value, size = await session.request(
                    METHODS[kind], params, self._call_timeout, *beside
                )
        except UnansweredQuestion as error:
            raise self._unanswered(call, error) from error
        except WorkFailed as error:
            if not await self._changed_headers(session, call, error):
                return self._addresses(call, error)
            beside = await self._beside(session, call, params)
            value, size = await session.request(METHODS[kind], params, self._call_timeout, *beside)
        if self.lasts and kind == TOOL and is_task(value):
            return await self._last(session, call, value)
        return self._result(session, call, value, size)

    async def _changed_headers(
        self, session: UpstreamSession, call: Call, error: WorkFailed
    ) -> bool:
        """2026-07-28, transports: a server that refuses a request for its headers has done nothing
        with it; the tool may want other ones by now."""
        native = error.native or {}
        if native.get("code") != HEADER_MISMATCH or not session.modern or call.tool.kind != TOOL:
            return False
        before = self._mirrored(call)
        await self._listing.refresh(session, [TOOL], 0)
        return self._mirrored(call) != before

    async def _routed(self, session: UpstreamSession, call: Call) -> Result:
        """Over the session of the caller's own where it has one, or is to have one."""
        handle = call.handle
        if handle is not None and handle.startswith(PARKED):
            return await self._own(call, self._personal.resume(call))
        if handle is not None and not handle.startswith(AGAIN):
            if session.modern:  # the state is the server's, whichever session brings it back
                return await self._shared(session, call)
            raise _not_continued(call)
        if handle is not None and call.answers is None:
            raise _not_continued(call)
        features = self._choice.features_for(session, call)
        if features is None:
            return await self._shared(await self.find_shared(session, call), call)
        if not self._is_worth_opening(call, features):
            return await self._shared(session, call)
        try:
            return await self._own(call, self._personal.call(call, features, self._request(call)))
        except SessionNotOpened as problem:
            if not self._choice.may_share(session, features, problem.error):
                raise problem.error from None
            self._choice.note_shared(call.client)
            log.info('server "%s": a client uses the shared session: %s', self._server, problem)
            return await self._shared(session, call)

    async def find_shared(self, session: UpstreamSession, call: Call) -> UpstreamSession:
        """The shared session for a caller that has none of its own: that of the handshake era,
        where the caller prefers it and the server speaks it."""
        if not session.modern or not self._choice.prefers_handshake(call):
            return session
        found = self._handshake.session
        if found is not None or call.tool.kind == COMPLETION:
            return found or session  # to complete something none is opened
        if self._choice.has_failed:
            self._handshake.try_again(lambda error: self._refuse_handshake(session, error))
            return session
        try:
            return await self._handshake.find()
        except HubError as error:
            self._refuse_handshake(session, error)
            return session

    def _refuse_handshake(self, session: UpstreamSession, error: HubError) -> None:
        self._choice.may_share(session, NONE, error)
        said = 'server "%s": clients of the handshake era use the modern session: %s'
        log.info(said, self._server, error)

    def _is_worth_opening(self, call: Call, features: Mapping[str, Any]) -> bool:
        return call.tool.kind in _MAY_ASK or self._personal.has(call, features)

    def _request(self, call: Call) -> Request:
        """Makes the call on a session of the client's own."""
        kind = call.tool.kind

        async def request(own: UpstreamSession, listener: RequestListener) -> tuple[Any, int]:
            if kind == COMPLETION and _completes_nothing(own):
                return {"completion": NO_COMPLETIONS}, 0
            if listener.notes is not None:
                await own.request_log_level(listener.notes, self._timeout)
            lasts = makes_tasks(own.features)
            params = self._params(own, call, lasts)
            value, size = await own.request(METHODS[kind], params, FOREVER, listener)
            if lasts and kind == TOOL and is_task(value):
                ask = _asker_on(own, listener, call.trace.build_context())
                watched = call.wanted_updates.progress
                return await self._tasks.wait_result(value, listener.updates, ask, watched=watched)
            return value, size

        return request

    async def follow(self, session: UpstreamSession | None, call: Call, yes: bool) -> None:
        """A resource, on the sessions of the caller's own; those may be there while the one that
        all share is not."""
        if self._choice.features_for(session, call) is not None:
            await self._personal.follow(call, call.tool.remote_name, yes)

    async def follow_alone(self, session: UpstreamSession, call: Call) -> bool:
        """A resource of a server that tells of changes in sessions of the handshake era only.
        False where the caller has no such session."""
        features = self._choice.features_for(session, call)
        if features is None:
            return False
        try:
            return await self._personal.follow_alone(call, call.tool.remote_name, features)
        except SessionNotOpened as problem:
            self._choice.may_share(session, features, problem.error)
            return False

    async def _own(self, call: Call, work: Awaitable[tuple[Any, int] | OpenQuestions]) -> Result:
        """What comes of a call on a session that is the client's own."""
        try:
            outcome = await work
        except UnansweredQuestion as error:
            raise self._unanswered(call, error) from error
        except WorkFailed as error:
            return self._addresses(call, error)
        if isinstance(outcome, OpenQuestions):
            self._choice.learn("it asks questions")
            return Result(questions=outcome.questions, handle=outcome.handle)
        return self._result(None, call, *outcome)

    def _addresses(self, call: Call, error: WorkFailed) -> Result:
        """A server of 2025-11-25 that wants URLs visited first says so in an error. Clients of that
        revision get the error as it is. Others who can be asked are asked, and the call is made
        again once they have answered. For all the rest it stays an error."""
        questions = questions_from_url_error(error.native) if can_answer(URL, call.features) else {}
        if questions and call.revision == NAMES[R2511]:
            self.url_elicitations.note(call.client, error.native)
        elif questions:
            return Result(questions=questions, handle=AGAIN)
        raise error

    def _unanswered(self, call: Call, error: UnansweredQuestion) -> HubError:
        """What to say of a call whose question could not be answered: what was asked. Who can be
        asked was not, since the shared session declares nothing."""
        question = question_from_request(error.asked.method, error.asked.params)
        problem = build_needs_input({"": question}, call) if question is not None else None
        if problem is not None:
            return problem
        advice = (
            "now that it is known to ask, call it again"
            if self._choice.separates
            else "it may ask nobody, since it is configured with interactive = false"
        )
        return WorkFailed(f"{error}; {advice}", error.native)

    # --- tasks -----------------------------------------------------------------------------------

    async def _last(self, session: UpstreamSession, call: Call, made: Any) -> Result:
        """What comes of a call of which the server has made a task."""
        if session.modern:
            return await self._tasks.follow(made, call, self._asker(call), self._finish)
        is_apart = session is self._handshake.session
        ask = self._asker(call, session if is_apart else None)
        watched = call.wanted_updates.progress
        try:
            outcome = await self._tasks.wait_result(made, call.updates, ask, watched=watched)
        except UnansweredQuestion as error:
            raise self._unanswered(call, error) from error
        return self._finish(*outcome)

    def _asker(self, call: Call, apart: UpstreamSession | None = None) -> Ask:
        """Sends the requests by which a task is followed, over whatever connection there is, or
        over the session that the task was made on where that is not the one that all share."""
        features = add_task_support(call.features)
        carried = call.trace.build_context()

        async def ask(method: str, params: dict[str, Any], timeout: float) -> tuple[Any, int]:
            session = apart or await self._connected()
            meta = session.build_meta(features, None)
            params["_meta"] = carried
            return await session.request(method, params, timeout, meta=meta)

        return ask

    def _finish(self, value: Any, size: int) -> Result:
        return result_from_mcp(value, size, self._server)

    # --- one request -----------------------------------------------------------------------------

    def _params(self, session: UpstreamSession, call: Call, lasts: bool) -> dict[str, Any]:
        params = request_from_call(call, session.revision)
        if lasts and call.tool.kind == TOOL and wants_task(session.features, call):
            params["task"] = TASK
        return params

    async def _beside(self, session: UpstreamSession, call: Call, params: dict[str, Any]) -> Beside:
        """What goes with the parameters, and what stands in them beside the arguments."""
        listener = listener_from_call(call)
        notes = listener.notes if listener is not None else None
        meta: Mapping[str, Any] = MODERN_META
        if not session.modern:
            if notes is not None:
                await session.request_log_level(notes, self._timeout)
        else:
            meta = session.build_meta(call.features, notes)
            if call.answers is not None:
                params["inputResponses"] = call.answers
            if call.handle is not None:
                _continue(params, call)
        mirrored = self._mirrored(call) if session.modern else None
        return listener, build_param_headers(mirrored, call.arguments) if mirrored else None, meta

    def _mirrored(self, call: Call) -> Mapping[str, tuple[str, ...]] | None:
        """Which of the arguments are sent as headers as well."""
        return self._offers.mirrored.get(call.tool.remote_name) if call.tool.kind == TOOL else None

    # --- what came of it -------------------------------------------------------------------------

    def _result(self, session: UpstreamSession | None, call: Call, value: Any, size: int) -> Result:
        """`session` is None for one of the client's own, which is of the handshake era."""
        tool = call.tool
        # One that says nothing of it is complete: older servers do not.
        kind = value.get("resultType", "complete") if isinstance(value, dict) else "complete"
        if kind == "complete":
            if tool.kind == TOOL:
                if session is None or not session.modern:
                    value = unwrap_result(value, tool.definition.get("outputSchema"))
                return result_from_mcp(value, size, self._server)
            return result_from_reply(tool, value, size, self._server)
        if session is None or not session.modern:
            raise build_unknown_result_error(kind, self._server)
        if kind == "input_required":
            if tool.kind not in _MAY_ASK:
                raise BadReply(f'server "{self._server}" asks for input where it may not')
            questions, handle = questions_from_result(value, self._server)
            return Result(questions=questions, handle=handle)
        if kind == "task" or not session.find_shared_extensions(call.features):
            raise build_unknown_result_error(kind, self._server)
        return Result(extra=value, size=size)  # of an extension that both ends know


def _asker_on(own: UpstreamSession, listener: RequestListener, carried: Mapping[str, Any]) -> Ask:
    """The same for a session of a client's own; what the task asks is asked meanwhile."""
    heard = RequestListener(
        listener.updates, notes=listener.notes, client=listener.client, ask=listener.ask
    )

    async def ask(method: str, params: dict[str, Any], timeout: float) -> tuple[Any, int]:
        asking = heard if method == "tasks/result" else None
        params["_meta"] = carried
        return await own.request(method, params, timeout, asking)

    return ask


def _completes_nothing(session: UpstreamSession) -> bool:
    """2025-03-26 and later say so; before, one can only ask."""
    return session.revision >= R2503 and "completions" not in session.features


def _continue(params: dict[str, Any], call: Call) -> None:
    handle = call.handle or ""
    if call.answers is None:  # nobody will answer, and the server keeps nothing that waits for it
        raise _not_continued(call)
    if handle.startswith(STATE):
        params["requestState"] = handle.removeprefix(STATE)
    elif not handle.startswith(NO_STATE):
        raise _not_continued(call)


def _not_continued(call: Call) -> InvalidInput:
    return InvalidInput(
        f'the question of "{call.tool.name}" is not open any more; begin the call again'
    )
