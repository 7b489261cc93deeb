"""One configured MCP server as a target: how a call is sent to it, and what its answer becomes.

A server of the modern era returns its questions as a result, and the continuing call brings the
answers; one of the handshake era sends them during the call, on a session of the client's own. What
the server offers stays in the catalogs while it is being reconnected; a call then waits for the
current attempt, or fails with its reason.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import replace
from time import monotonic
from typing import Any

from dragoman.core import errors
from dragoman.core.background import Background, start_task
from dragoman.core.bus import Bus
from dragoman.core.call import NO_UPDATES, URL, Call, Result
from dragoman.core.catalog import Catalog
from dragoman.core.events import ElicitationCompleted, ResourceUpdated
from dragoman.core.holders import bind_handle, bind_named, find_holder, open_handle, require_holder
from dragoman.core.ports import ClientAsker, SchemaCompiler, Viewer
from dragoman.core.question_handles import build_needs_input, can_answer
from dragoman.core.structs import replace as replace_fields
from dragoman.core.tool import (
    COMPLETION,
    PROMPT,
    RESOURCE,
    SUBSCRIPTION,
    TOOL,
    Nowhere,
    TargetFacts,
    TargetTraits,
    Tool,
)
from dragoman.mcp.client import client_sessions, remote_tasks
from dragoman.mcp.client.catalog_sync import KINDS, CatalogSync, find_changed_kinds
from dragoman.mcp.client.connection import Connect, UpstreamConnection
from dragoman.mcp.client.holder_sessions import HolderSessions
from dragoman.mcp.client.jsonrpc_channel import FOREVER, UnansweredQuestion
from dragoman.mcp.client.limits import UpstreamLimits
from dragoman.mcp.client.notifications import RequestListener, listener_from_call
from dragoman.mcp.client.resource_subscriptions import ResourceSubscriptions
from dragoman.mcp.client.server_logs import ServerLogs
from dragoman.mcp.client.server_start import Installations
from dragoman.mcp.client.session import UpstreamSession, announces_resources
from dragoman.mcp.client.session_choice import SessionChoice
from dragoman.mcp.client.upstream_lists import UpstreamLists
from dragoman.mcp.client.url_elicitations import UrlElicitations
from dragoman.mcp.config import ServerEntry
from dragoman.mcp.protocol import elicitation
from dragoman.mcp.protocol.elicitation import AGAIN, TASKS_ONLY
from dragoman.mcp.protocol.mirrored_headers import HEADER_MISMATCH, build_param_headers
from dragoman.mcp.protocol.notifications import COMPLETED, MESSAGE, UPDATED
from dragoman.mcp.protocol.revisions import REVISIONS, is_modern, unwrap_result
from dragoman.mcp.protocol.translate import (
    METHODS,
    NO_COMPLETIONS,
    build_names,
    build_unknown_result_error,
    request_from_call,
    result_from_mcp,
    result_from_reply,
    select_server_meta,
)
from dragoman.processes.child_process import INSTALLER_SECONDS, OutputRing
from dragoman.wire.http import HolderClients

log = logging.getLogger(__name__)

_MAY_ASK = frozenset({TOOL, PROMPT, RESOURCE})
"""2026-07-28, multi round-trip requests: the kinds of calls that may need input."""
ASKS = "it asks questions"


class Upstream:
    withdraws = True
    """Whether it withdraws what it offers when it stops."""

    def __init__(
        self,
        entry: ServerEntry,
        connect: Connect,
        catalogs: Mapping[str, Catalog],
        bus: Bus,
        compile_schema: SchemaCompiler,
        limits: UpstreamLimits | None = None,
        asker: ClientAsker | None = None,
        clients: HolderClients | None = None,
        installations: Installations | None = None,
    ) -> None:
        """`clients` send the credentials of logins; None for a server that has none."""
        self.entry = entry
        self.name = entry.name
        self.limits = limits = limits or UpstreamLimits()
        self.answer_secs = entry.timeout_secs or limits.answer_secs
        """The timeout of requests that the hub sends for itself."""
        self.call_secs = entry.timeout_secs or FOREVER
        self.bus = bus
        self.installations = installations or Installations()
        self.asker = asker
        self.clients = clients
        self.is_per_user = clients is not None and clients.is_per_user
        """Whether each user's calls are made with a credential of that user."""
        self.traits = TargetTraits(
            facts=TargetFacts(
                type="Server",
                org=entry.org,
                transport=str(entry.transport.__struct_config__.tag),
                pinned=entry.pin != "off",
                reach=entry.find_reach(),
            ),
            ends_questions=True,
        )
        self.makes_tasks = False
        """Whether a shared session may answer a call with a task."""
        self.stderr = OutputRing()
        """What the child wrote there, and log messages that belong to no call."""
        self.sandbox = self.sandbox_problem = ""
        """The sandbox of a stdio server that was started, and why it is not the configured one."""
        self.sandbox_remarks: list[str] = []
        self._catalogs = catalogs
        self._logs = ServerLogs(self.name, self.stderr, bus)
        self._url_elicitations = UrlElicitations()
        self._background = Background(f'server "{self.name}"')
        self.choice = SessionChoice(self)
        self.connection = UpstreamConnection(self, connect)
        self.catalog = CatalogSync(self, catalogs, compile_schema)
        self.lists = UpstreamLists(self)
        self.client_sessions = client_sessions.ClientSessions(self)
        self.holders = HolderSessions(self, clients) if clients and self.is_per_user else None
        self.subscriptions = ResourceSubscriptions(
            self.name, self._announce_update, self.answer_secs
        )
        self.tasks = remote_tasks.UpstreamTasks(
            self.name, remote_tasks.RemoteTaskLimits(question_secs=limits.question_secs)
        )

    def start(self) -> None:
        self.connection.start()

    async def stop(self) -> None:
        """Withdraws what it offers at once; the server itself may take a while to end."""
        if self.withdraws:
            self.catalog.withdraw()
        self.subscriptions.close()
        self._background.cancel()
        self.connection.mark_stopped()
        # Only `wait` returns in time whatever it waits for: a task that ignores its cancellation
        # outlasts every `timeout` and `gather` around it.
        seconds = self.limits.stop_secs
        if self.connection.is_installing:
            seconds += INSTALLER_SECONDS
        work = start_task(self._disconnect())
        try:
            _, late = await asyncio.wait([work], timeout=seconds)
        finally:
            work.cancel()
            self.connection.cancel()
        if late:
            log.error('server "%s" did not stop within %g s', self.name, seconds)
        else:
            work.result()

    async def _disconnect(self) -> None:
        await self.tasks.close()  # while there is a connection
        self.connection.cancel()
        await asyncio.gather(self.client_sessions.close(), self.connection.close_handshake())
        if self.holders is not None:
            await self.holders.close()
        await self.connection.close()
        await self.lists.close()

    async def try_now(self) -> None:
        """Tries a server that has failed again at once, and waits for one that a user has just
        logged in at; raises if it fails again."""
        if self.connection.state == "failed" or self.connection.has_new_login:
            await self.connection.wait_session()

    # --- logins --------------------------------------------------------------------------------

    def note_login(self, holder: str) -> None:
        """The credential of `holder` is new, or was removed: what used the old one ends."""
        clients, session = self.clients, self.connection.session
        if self.holders is not None:
            self.holders.drop(holder)
            self.client_sessions.drop_holder(holder)
        is_gone = clients is not None and not clients.has_login(self.connection.list_holder)
        if session is not None and is_gone:
            self.connection.end_session("its login was removed")
        self.connection.note_login()

    def needs_login(self, viewer: Call | Viewer) -> bool:
        """Whether calls of such a client will fail until its user, or an administrator, logs in."""
        if self.connection.login is not None:
            return True
        if self.clients is None or not self.is_per_user:
            return False
        holder = find_holder(viewer)
        return holder is not None and not self.clients.has_login(holder)

    def find_login_problem(self) -> errors.LoginRequired | None:
        """Implements `core.logins.NeedsLogin`."""
        return self.connection.build_login_problem()

    @property
    def login_tool(self) -> Tool | None:
        """Stands for the tools of a server that has not been connected since the start, since it
        needs a login."""
        if self.connection.login is None or self.connection.restarts >= 0:
            return None
        definition: dict[str, Any] = {
            "name": "login",
            "description": f'Server "{self.name}" needs a login, and its tools are unknown until '
            "then. Call this tool to get the link, and list the tools again afterwards.",
            "inputSchema": {"type": "object", "properties": {}},
        }
        names = build_names(self, "login", (), self.entry.prefix)
        return Tool(
            name=names[0],
            alias=names[1],
            other_names=names[2],
            remote_name="login",
            description=definition["description"],
            definition=definition,
            target=self,
        )

    def drop_client(self, client: str) -> None:
        """Forgets a client that has disconnected."""
        self.client_sessions.drop_client(client)
        self.choice.forget_client(client)
        self._url_elicitations.forget_client(client)
        self.subscriptions.drop_client(client, self.connection.session)

    def note_features(
        self, features: Mapping[str, Any], *, is_main: bool = False, is_shared: bool = False
    ) -> None:
        """Notes the capabilities of a new session: whether calls may become tasks."""
        may_last = remote_tasks.makes_tasks(features) or (self.traits.may_last and not is_main)
        if is_main or is_shared:
            self.makes_tasks = may_last
        if may_last != self.traits.may_last:
            self.traits = replace(self.traits, may_last=may_last)

    # --- notifications -------------------------------------------------------------------------

    def handle_shared_notification(self, method: str, params: Mapping[str, Any]) -> None:
        """Handles what belongs to no call on a shared session."""
        if method in elicitation.ASKING:
            self.choice.learn(ASKS)
        else:
            self.handle_notification(method, params)

    def handle_holder_notification(self, method: str, params: Mapping[str, Any]) -> None:
        """Handles what belongs to no call on the session of one user: nothing of it is passed on,
        since it would reach others."""
        if method in elicitation.ASKING:
            self.choice.learn(ASKS)

    def handle_notification(
        self, method: str, params: Mapping[str, Any], client: str | None = None
    ) -> None:
        """Handles a notification on any session; `client` owns it, None for a shared one."""
        if method == MESSAGE:
            self._logs.write(params, client)
        elif method == UPDATED:
            self.subscriptions.notify_updated(params.get("uri"), select_server_meta(params))
        elif method == COMPLETED:
            id = params.get("elicitationId")
            owner = self._url_elicitations.complete(id, client)
            if owner is not None:
                self.bus.emit(ElicitationCompleted(owner, str(id), select_server_meta(params)))
        elif kinds := find_changed_kinds(method):
            self.lists.mark_changed(kinds, announced=True)

    def note_missed(self) -> None:
        """Notifications may have been missed."""
        self.lists.mark_changed(KINDS)
        self.subscriptions.notify_all()

    def reread_lists(self) -> None:
        """Notifications may have been missed on the second shared session."""
        self.lists.mark_stale()

    def _announce_update(self, uri: str, meta: Mapping[str, Any]) -> None:
        self.bus.emit(ResourceUpdated(f"{self.name}.{uri}", meta))

    # --- calls ---------------------------------------------------------------------------------

    async def run(self, call: Call) -> Result:
        if self.lists.differs:
            await self.lists.check(call)
        send: Callable[[UpstreamSession, Call], Awaitable[Result]] = self._route
        if self.is_per_user:
            send = self._route_for_holder
        elif call.tool.kind == SUBSCRIPTION:
            send = self._set_subscription
            if self.connection.session is None and not _is_subscribe(call):
                # Connected or not: what is not dropped here is renewed after each connection.
                return await self._set_subscription(None, call)
        connection = self.connection
        session = connection.session or await self._reconnect(call)
        connection.in_flight += 1
        try:
            try:
                return await send(session, call)
            except errors.LoginRequired as error:
                if not self.is_per_user:  # it is everyone's: the server needs a login
                    connection.end_session(str(error))
                raise
            except errors.Unreachable as error:
                if not connection.note_unreachable(session, error):
                    raise
            # Nothing was sent: only the call itself found the server lost.
            again = connection.session
            if again is None or (again is session and session.wire.lost.done()):
                again = await self._reconnect(call)
            return await send(again, call)
        finally:
            connection.in_flight -= 1
            connection.used_at = monotonic()

    async def _reconnect(self, call: Call) -> UpstreamSession:
        """Waits for the session. What the server offers was reviewed when it reconnected and may be
        quarantined by now: the earlier decision was about another definition."""
        session = await self.connection.wait_session()
        catalog = self._catalogs.get(call.tool.kind)
        found = catalog.find(call.tool.name).target if catalog is not None else None
        if isinstance(found, Nowhere):
            if isinstance(found.error, errors.Quarantined):
                raise errors.Quarantined(str(found.error))
            if isinstance(found.error, errors.StorageFailed):
                raise errors.StorageFailed(str(found.error))
        return session

    def _route_for_holder(self, session: UpstreamSession, call: Call) -> Awaitable[Result]:
        """Makes the call with the credential of the user who started its chain."""
        assert self.holders is not None
        if call.handle is None and (not call.features or call.features is TASKS_ONLY):
            holder = require_holder(call, self.name)
            view = self.holders.find_view(session, holder)
            if view is not None and call.tool.kind != SUBSCRIPTION:  # as with most calls
                return self._route(view, call)
        return self._call_for_holder(session, call)

    async def _call_for_holder(self, session: UpstreamSession, call: Call) -> Result:
        """A handle is bound to the user, too: agents that serve several users are one principal."""
        if call.tool.kind == SUBSCRIPTION:
            raise errors.InvalidInput(
                f'server "{self.name}" is used with the credentials of single users, and the hub '
                "does not follow changes of their resources"
            )
        holder = require_holder(call, self.name)
        assert self.holders is not None
        view = self.holders.find_view(session, holder)
        call = _open_holder_handle(call, holder)
        if call.task is not None:
            call = replace_fields(call, updates=bind_named(call.updates, holder))
        if view is not None:
            result = await self._route(view, call)
        else:
            async with self.holders.use(holder) as own:
                result = await self._route(own, call)
        if result.handle is None:
            return result
        return replace_fields(result, handle=bind_handle(result.handle, holder))

    async def _wait_session(self, call: Call) -> UpstreamSession:
        """Returns the session that requests about a task of the call use."""
        shared = await self.connection.wait_session()
        if self.holders is None:
            return shared
        holder = require_holder(call, self.name)
        return self.holders.find_view(shared, holder) or await self.holders.find(holder)

    def _route(self, session: UpstreamSession, call: Call) -> Awaitable[Result]:
        """Chooses the session for a call, at once for a client that can be asked nothing."""
        if call.handle is None and (not call.features or call.features is TASKS_ONLY):
            choice = self.choice
            if session.modern:
                if not call.client or is_modern(call.revision):
                    return self._call_shared(session, call)
                handshake = self.connection.handshake_session
                if handshake is not None and not choice.separates_all:
                    return self._call_shared(handshake, call)
                if choice.speaks_handshake is False:
                    return self._call_shared(session, call)
            elif not choice.separates:
                if call.client and call.client not in choice.sharing:
                    choice.note_shared(call.client)
                return self._call_shared(session, call)
        elif remote_tasks.is_task_handle(call.handle):
            follow = self.tasks.ask_about if call.sends_nothing else self.tasks.resume
            return follow(call, self._build_task_sender(call))
        return self._choose_session(session, call)

    async def _choose_session(self, session: UpstreamSession, call: Call) -> Result:
        handle = call.handle
        if handle is not None and handle.startswith(elicitation.PARKED):
            return await self._finish_own(call, self.client_sessions.resume(call))
        if handle is not None and not handle.startswith(AGAIN):
            if session.modern:  # the state is the server's, whichever session returns it
                return await self._call_shared(session, call)
            raise client_sessions.build_not_open(call)
        if handle is not None and call.answers is None:
            raise client_sessions.build_not_open(call)
        features = self.choice.find_declared(session, call)
        if features is None:
            return await self._call_shared(await self._find_shared(session, call), call)
        if call.tool.kind not in _MAY_ASK:  # a session is not opened for it
            has_own = call.client and self.client_sessions.find(call, features) is not None
            if not has_own:
                return await self._call_shared(session, call)
        try:
            outcome = self.client_sessions.call(call, features, self._build_sender(call))
            return await self._finish_own(call, outcome)
        except client_sessions.SessionNotOpened as problem:
            if isinstance(problem.error, errors.LoginRequired):
                raise problem.error from None
            if not self.choice.may_share(session, features, problem.error):
                raise problem.error from None
            self.choice.note_shared(call.client)
            log.info('server "%s": a client uses the shared session: %s', self.name, problem)
            return await self._call_shared(session, call)

    async def _find_shared(self, session: UpstreamSession, call: Call) -> UpstreamSession:
        """Returns the shared session for a client without an own one: that of the handshake era if
        the client prefers it and the server speaks it."""
        if not session.modern or not self.choice.prefers_handshake(call):
            return session
        if call.tool.kind == COMPLETION:  # none is opened for a completion
            return self.connection.handshake_session or session
        return await self.connection.find_handshake_session(session)

    async def _call_shared(self, session: UpstreamSession, call: Call) -> Result:
        kind = call.tool.kind
        if kind == COMPLETION and _completes_nothing(session):
            return Result(structured=NO_COMPLETIONS)
        params = request_from_call(call, session.revision)
        if self.makes_tasks:
            self._request_task(params, session, call)
        try:
            if (
                call.wanted_updates is NO_UPDATES
                and (not call.features or (call.features is TASKS_ONLY and not self.makes_tasks))
                and call.handle is None
                and call.answers is None
                and not self.catalog.mirrored
            ):  # as with most calls
                value, size = await session.request(METHODS[kind], params, self.call_secs)
            else:
                value, size = await self._send(session, call, params)
        except UnansweredQuestion as error:
            raise self._explain_unanswered(call, error) from error
        except errors.WorkFailed as error:
            if not await self._has_other_headers(session, call, error):
                return self._ask_to_visit(call, error)
            value, size = await self._send(session, call, params)
        if self.makes_tasks and kind == TOOL and remote_tasks.is_task(value):
            return await self._follow_task(session, call, value)
        is_complete = type(value) is dict and value.get("resultType", "complete") == "complete"
        is_plain = is_complete and kind == TOOL and "outputSchema" not in call.tool.definition
        if is_plain:  # as with most calls
            return result_from_mcp(value, size, self.name)
        return self._build_result(session, call, value, size)

    async def _send(
        self, session: UpstreamSession, call: Call, params: dict[str, Any]
    ) -> tuple[Any, int]:
        """Sends a call with what it has beside its arguments."""
        listener = listener_from_call(call)
        log_level = listener.log_level if listener is not None else None
        meta: Mapping[str, Any] | None = None
        headers: Mapping[str, str] | None = None
        if session.modern:
            meta = session.build_meta(call.features, log_level)
            if call.answers is not None:
                params["inputResponses"] = call.answers
            if call.handle is not None:
                _add_state(params, call)
            if mirrored := self._find_mirrored(call):
                headers = build_param_headers(mirrored, call.arguments)
        elif log_level is not None:
            await session.request_log_level(log_level, self.answer_secs)
        method = METHODS[call.tool.kind]
        return await session.request(method, params, self.call_secs, listener, headers, meta)

    def _find_mirrored(self, call: Call) -> Mapping[str, tuple[str, ...]] | None:
        """Returns the arguments that are also sent as headers."""
        return self.catalog.mirrored.get(call.tool.remote_name) if call.tool.kind == TOOL else None

    async def _has_other_headers(
        self, session: UpstreamSession, call: Call, error: errors.WorkFailed
    ) -> bool:
        """2026-07-28, transports: a server that rejects the headers of a request has not executed
        it; the tool may require other headers by now."""
        native = error.native or {}
        if native.get("code") != HEADER_MISMATCH or not session.modern or call.tool.kind != TOOL:
            return False
        before = self._find_mirrored(call)
        await self.lists.read(self.connection.session or session, [TOOL], 0)
        return self._find_mirrored(call) != before

    def _build_sender(self, call: Call) -> client_sessions.SendCall:
        """Builds what sends the call on a client's own session."""
        kind = call.tool.kind

        async def send(own: UpstreamSession, listener: RequestListener) -> tuple[Any, int]:
            if kind == COMPLETION and _completes_nothing(own):
                return {"completion": NO_COMPLETIONS}, 0
            if listener.log_level is not None:
                await own.request_log_level(listener.log_level, self.answer_secs)
            params = request_from_call(call, own.revision)
            self._request_task(params, own, call)
            value, size = await own.request(METHODS[kind], params, FOREVER, listener)
            if (
                kind == TOOL
                and remote_tasks.makes_tasks(own.features)
                and remote_tasks.is_task(value)
            ):
                send = _build_own_task_sender(own, listener, call)
                watched = call.wanted_updates.progress
                return await self.tasks.wait_result(
                    value, listener.updates, send, is_watched=watched
                )
            return value, size

        return send

    async def _finish_own(
        self, call: Call, work: Awaitable[tuple[Any, int] | client_sessions.OpenQuestions]
    ) -> Result:
        """Builds the result of a call on a client's own session."""
        try:
            outcome = await work
        except UnansweredQuestion as error:
            raise self._explain_unanswered(call, error) from error
        except errors.WorkFailed as error:
            return self._ask_to_visit(call, error)
        if isinstance(outcome, client_sessions.OpenQuestions):
            self.choice.learn(ASKS)
            return Result(questions=outcome.questions, handle=outcome.handle)
        return self._build_result(None, call, *outcome)

    # --- results -------------------------------------------------------------------------------

    def _build_result(
        self, session: UpstreamSession | None, call: Call, value: Any, size: int
    ) -> Result:
        """`session` is None for a client's own, which is of the handshake era."""
        tool = call.tool
        # A result without a type is complete: the handshake era has no types.
        kind = value.get("resultType", "complete") if isinstance(value, dict) else "complete"
        if kind == "complete":
            if tool.kind != TOOL:
                return result_from_reply(tool, value, size, self.name)
            schema = tool.definition.get("outputSchema")
            if schema is not None and (session is None or not session.modern):
                value = unwrap_result(value, schema)
            return result_from_mcp(value, size, self.name)
        if session is None or not session.modern:
            raise build_unknown_result_error(kind, self.name)
        if kind == "input_required":
            if tool.kind not in _MAY_ASK:
                raise errors.BadReply(
                    f'server "{self.name}" requires input for a call that cannot ask'
                )
            questions, handle = elicitation.questions_from_result(value, self.name)
            return Result(questions=questions, handle=handle)
        if kind == "task" or not session.find_shared_extensions(call.features):
            raise build_unknown_result_error(kind, self.name)
        return Result(extra=value, size=size)  # of an extension that both ends know

    def _ask_to_visit(self, call: Call, error: errors.WorkFailed) -> Result:
        """A server of 2025-11-25 that requires a user to visit URLs first answers with an error.
        Clients of that revision get the error unchanged. Others that can be asked are asked, and
        the call is made again after their answer. For all others it stays an error."""
        may_ask = can_answer(URL, call.features)
        questions = elicitation.questions_from_url_error(error.native) if may_ask else {}
        revision = REVISIONS.get(call.revision)
        if questions and revision is not None and revision.has_elicitation_ids:
            self._url_elicitations.note(call.client, error.native)
        elif questions:
            return Result(questions=questions, handle=AGAIN)
        raise error

    def _explain_unanswered(self, call: Call, error: UnansweredQuestion) -> errors.HubError:
        """Explains a call that failed because its question was refused. A client that can be asked
        was not, since the shared session declares nothing."""
        question = elicitation.question_from_request(error.asked.method, error.asked.params)
        problem = build_needs_input({"": question}, call) if question is not None else None
        if problem is not None:
            return problem
        advice = (
            "now that it is known to ask, call it again"
            if self.choice.separates
            else "it may ask no client, since it is configured with interactive = false"
        )
        return errors.WorkFailed(f"{error}; {advice}", error.native)

    # --- tasks ---------------------------------------------------------------------------------

    def _request_task(self, params: dict[str, Any], session: UpstreamSession, call: Call) -> None:
        if call.tool.kind == TOOL and remote_tasks.wants_task(session.features, call):
            params["task"] = remote_tasks.TASK

    async def _follow_task(self, session: UpstreamSession, call: Call, created: Any) -> Result:
        """Waits for the result of a call that the server has made a task of."""
        if session.modern:
            return await self.tasks.follow(created, call, self._build_task_sender(call))
        is_main = session is not self.connection.handshake_session
        send = self._build_task_sender(call, None if is_main else session)
        watched = call.wanted_updates.progress
        try:
            outcome = await self.tasks.wait_result(created, call.updates, send, is_watched=watched)
        except UnansweredQuestion as error:
            raise self._explain_unanswered(call, error) from error
        return result_from_mcp(*outcome, self.name)

    def _build_task_sender(
        self, call: Call, fixed: UpstreamSession | None = None
    ) -> remote_tasks.SendTaskRequest:
        """Builds what sends the requests about a task: over the current shared session, or over the
        session `fixed` that the task was created in."""
        features = elicitation.add_task_support(call.features)
        carried = call.trace.build_context()

        async def send(method: str, params: dict[str, Any], timeout: float) -> tuple[Any, int]:
            session = fixed or await self._wait_session(call)
            meta = session.build_meta(features, None)
            params["_meta"] = carried
            return await session.request(method, params, timeout, meta=meta)

        return send

    # --- subscriptions -------------------------------------------------------------------------

    async def _set_subscription(self, session: UpstreamSession | None, call: Call) -> Result:
        uri = call.tool.remote_name
        if session is None or not _is_subscribe(call):
            await asyncio.wait([self._unsubscribe(session, call)])
            return Result()
        if not announces_resources(session):  # perhaps it does in the other era
            await self._find_shared(session, call)
        try:
            await self.subscriptions.subscribe(session, call.client, uri)
        except errors.InvalidInput:
            if not session.modern or not await self._subscribe_alone(session, call):
                raise
            self.subscriptions.add(call.client, uri)
            return Result()
        try:
            await self._subscribe_own(session, call, True)
        except BaseException:  # the client never learns of the subscription, so it cannot end it
            self._unsubscribe(session, call)
            raise
        return Result()

    def _unsubscribe(self, session: UpstreamSession | None, call: Call) -> asyncio.Task[None]:
        """Ends the client's subscription even if the call is cancelled."""

        async def unsubscribe() -> None:
            await self.subscriptions.unsubscribe(session, call.client, call.tool.remote_name)
            await self._subscribe_own(session, call, False)

        return self._background.spawn(unsubscribe())

    async def _subscribe_own(
        self, session: UpstreamSession | None, call: Call, is_wanted: bool
    ) -> None:
        """Subscribes on the client's own sessions as well, which may be open while the shared
        session is not."""
        if self.choice.find_declared(session, call) is not None:
            await self.client_sessions.subscribe(call, call.tool.remote_name, is_wanted)

    async def _subscribe_alone(self, session: UpstreamSession, call: Call) -> bool:
        """Subscribes with a server that announces changes in handshake sessions only. False if the
        client has no such session."""
        features = self.choice.find_declared(session, call)
        if features is None:
            return False
        try:
            uri = call.tool.remote_name
            return await self.client_sessions.subscribe_alone(call, uri, features)
        except client_sessions.SessionNotOpened as problem:
            self.choice.may_share(session, features, problem.error)
            return False


def _build_own_task_sender(
    own: UpstreamSession, listener: RequestListener, call: Call
) -> remote_tasks.SendTaskRequest:
    """Builds what sends the requests about a task of a client's own session. The task's questions
    come while its result is awaited."""
    carried = call.trace.build_context()
    questions = RequestListener(
        listener.updates, log_level=listener.log_level, client=listener.client, ask=listener.ask
    )

    async def send(method: str, params: dict[str, Any], timeout: float) -> tuple[Any, int]:
        params["_meta"] = carried
        asks = questions if method == "tasks/result" else None
        return await own.request(method, params, timeout, asks)

    return send


def _open_holder_handle(call: Call, holder: str) -> Call:
    """Returns the call with the handle as it was before it was bound to a user."""
    if call.handle is None:
        return call
    handle = open_handle(call.handle, holder)
    if handle is None:
        raise client_sessions.build_not_open(call)
    return replace_fields(call, handle=handle)


def _completes_nothing(session: UpstreamSession) -> bool:
    """Whether the server declares that it has no completions; 2024-11-05 cannot declare it."""
    return session.revision.has_completions_capability and "completions" not in session.features


def _add_state(params: dict[str, Any], call: Call) -> None:
    handle = call.handle or ""
    if call.answers is None:  # there will be no answer, and the server holds nothing for one
        raise client_sessions.build_not_open(call)
    if handle.startswith(elicitation.STATE):
        params["requestState"] = handle.removeprefix(elicitation.STATE)
    elif not handle.startswith(elicitation.NO_STATE):
        raise client_sessions.build_not_open(call)


def _is_subscribe(call: Call) -> bool:
    return call.arguments.get("follow") is True
