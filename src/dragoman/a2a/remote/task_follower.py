"""Sends a message to a remote agent and follows the task that the agent creates.

A task is followed by its stream, or by polling where the agent has none. A cancelled call cancels
the remote task; a call that times out leaves it running, and so does one whose caller asks for the
task later.
"""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from hashlib import sha256
from random import getrandbits
from time import monotonic
from typing import Any
from uuid import UUID, uuid4

from dragoman.a2a.client.client import RETURN_IMMEDIATELY, A2aClient
from dragoman.a2a.client.dialect_probe import ProbedAgent
from dragoman.a2a.client.endpoint import A2aErrorStatus, AgentHttpStatus
from dragoman.a2a.client.event_stream import AgentEventStream
from dragoman.a2a.protocol.dialects.operations import SKILL, TASK_ID
from dragoman.a2a.protocol.errors import (
    INTERNAL,
    PERMISSION_DENIED,
    RESOURCE_EXHAUSTED,
    UNAUTHENTICATED,
    UNAVAILABLE,
    A2aError,
)
from dragoman.a2a.protocol.validation import AUTH_REQUIRED
from dragoman.a2a.remote.remote_task import RemoteTask, encode_handle
from dragoman.core.background import STOPPING, Background, start_task
from dragoman.core.backoff import Backoff
from dragoman.core.call import (
    NO_UPDATES,
    Artifact,
    Call,
    MessageOrigin,
    Progress,
    TaskNamed,
    TaskStarted,
    Update,
)
from dragoman.core.errors import (
    BadReply,
    HubError,
    LoginRequired,
    Overloaded,
    TaskLost,
    TimedOut,
    Unreachable,
)
from dragoman.core.event_payloads import session_id_from_trace
from dragoman.core.tool_identity import KEY_META, WORKFLOW
from dragoman.core.trace import MEMBERS, trace_headers

log = logging.getLogger(__name__)

FIRST_POLL, LONGEST_POLL, POLL_FACTOR = 0.05, 5.0, 1.6
MAX_FAILURES = 5
"""Consecutive failed polls after which a task counts as failed."""
TRANSIENT = frozenset((429, 500, 502, 503, 504))
UNHELPFUL = frozenset(
    (INTERNAL, UNAUTHENTICATED, PERMISSION_DENIED, RESOURCE_EXHAUSTED, UNAVAILABLE)
)
UNHELPFUL_STATUSES = frozenset((*TRANSIENT, 401, 403, 407, 408, 425))
"""Answers that say nothing about the task that the agent was asked for."""
CANCEL_SECONDS = 5.0
CLOSE_SECONDS = 0.5
MAX_CANCELLING = 1_000
LOGIN_SECONDS = 5.0
"""How long a task may take to notice a login before it is sent a message."""
LONGEST_LOGIN_POLL = 10.0
MAX_LOGINS = 256
"""Tasks of one agent that are polled until a user has logged in."""
EXTENSION = re.compile(r"[A-Za-z][A-Za-z0-9+.-]{0,31}:[!-+\-.-~]{1,480}")
"""The URI of an extension; without a comma, which separates two of them in a header."""
LISTED, PAGES = 100, 5
"""Tasks that are searched for one that the hub began before it stopped: so many in a page."""
HISTORY = 20
ROUTED = frozenset(("agent", "skill", "skillId", SKILL, *MEMBERS))
"""Metadata for this hub: another hub would route by it, or continue another call chain."""


class AgentTasks:
    """What the followers of one agent share: its client, running cancellations, open logins."""

    def __init__(self, name: str, client: A2aClient) -> None:
        self.name = name
        self.client = client
        self.logins = 0
        self._cancelling = Background(f'agent "{name}"')

    async def close(self) -> None:
        await self._cancelling.close(CLOSE_SECONDS)

    def cancel(self, id: str, probed: ProbedAgent, headers: Mapping[str, str]) -> None:
        """Cancels a task in the background."""
        if len(self._cancelling) >= MAX_CANCELLING:
            log.warning('a task of agent "%s" is not cancelled: too many are', self.name)
            return
        self._cancelling.spawn(self._cancel(id, probed, headers))

    async def _cancel(self, id: str, probed: ProbedAgent, headers: Mapping[str, str]) -> None:
        try:
            async with asyncio.timeout(CANCEL_SECONDS):
                await self.client.cancel_task(probed, id, headers)
        except (HubError, A2aError, TimeoutError) as error:
            log.info('a task of agent "%s" could not be cancelled: %s', self.name, error)


class TaskFollower:
    """Follows the remote task of one call."""

    # Class attributes: most calls are answered at once and set none of them.
    timed_out = False
    timer: asyncio.TimerHandle | None = None
    _asyncio_task: asyncio.Task[Any] | None = None
    _cancelling = 0
    _extensions: Sequence[str] = ()
    _is_named = False

    def __init__(
        self, agent: AgentTasks, probed: ProbedAgent, call: Call, seconds: float | None
    ) -> None:
        """`seconds` is the timeout of a skill; None leaves the call to the hub's own timeout.

        A client that gets progress waits anew after each update, and one that supports tasks waits
        as long as a task may take: for these the hub's own timeout, which is longer, applies."""
        self.call = call
        self.probed = probed
        self._agent = agent
        self._seconds = seconds
        self._deadline = monotonic() + seconds if seconds is not None else None
        self._metadata = call.trace.build_context()
        self._headers = trace_headers(self._metadata)
        if call.message is not None and (activated := call.message.extensions):
            declared = probed.card.get("capabilities", {}).get("extensions") or ()
            known = {one.get("uri") for one in declared}
            self._activate([uri for uri in _list_extensions(activated) if uri in known])

    def _activate(self, extensions: Iterable[str]) -> None:
        """Names the extensions in a header, which overrides the one of the message's own."""
        self._extensions = list(dict.fromkeys([*self._extensions, *extensions]))
        if self._extensions and (header := self.probed.traits.extensions_header):
            self._headers[header] = ",".join(self._extensions)

    # --- requests ---------------------------------------------------------------------------------

    async def send(
        self, parts: Sequence[Mapping[str, Any]], context: str, task_id: str = ""
    ) -> RemoteTask:
        """Sends a message, to the task `task_id` if given, and follows its task until settled."""
        agent, probed = self._agent, self.probed
        request = self._build_request(parts, context, task_id)
        chosen_id = ""
        if probed.traits.client_names_task:
            chosen_id = request[TASK_ID] = self._choose_id()
        task = RemoteTask(agent.name, self._publish, task_id, "", chosen_id)
        self._is_named = bool(task_id)  # as its question is answered
        sending = self._send(task, request, answered=bool(task_id))
        try:
            await (sending if self.call.task is None else self._attach(task, sending))
        except BaseException as error:
            self._abandon(task, error)
            raise
        finally:
            if task.usage:
                self.call.notes.usage = task.usage
        return task

    async def _send(self, task: RemoteTask, request: dict[str, Any], *, answered: bool) -> None:
        agent, probed = self._agent, self.probed
        if probed.can_stream:
            self._start_timer()
            stream = await agent.client.stream_message(
                probed, request, self._headers, self._seconds
            )
            await self._read_stream(task, stream, answered=answered)
        else:
            if task.id:
                self._start_timer()
            # Without it the agent could wait: a task without an id cannot be cancelled.
            given = request.get("configuration")
            request["configuration"] = (
                {**given, **RETURN_IMMEDIATELY} if given else RETURN_IMMEDIATELY
            )
            answer = await agent.client.send_message(probed, request, self._headers, self._seconds)
            task.apply_event(answer)
        if task.id:
            self._note_id(task)
        if not task.is_settled or task.lacks_result:
            await self._follow(task)

    def _note_id(self, task: RemoteTask) -> None:
        """Notes the id for the audit, and names the task to a caller that may ask for it later."""
        self.call.notes.remote_task = task.id
        if self.call.task is None or self._is_named or task.is_over or not task.has_id:
            return
        self._is_named = True
        place = str(self.probed.endpoint or "")
        handle = encode_handle(task, "", place)
        self.call.updates(TaskNamed(handle=handle, id=task.id, agent=self._agent.name, place=place))

    def _choose_id(self) -> str:
        """Chooses the id of a new task where the client does: that of an attempt of a workflow's
        step is found again after a crash."""
        call = self.call
        if call.task is None or not call.attempt:
            return str(uuid4())
        words = f"{call.principal.key}\0{call.tool.name}\0{call.attempt}"
        return str(UUID(bytes=sha256(words.encode("utf-8", "replace")).digest()[:16], version=4))

    def _build_request(
        self, parts: Sequence[Mapping[str, Any]], context: str, task_id: str
    ) -> dict[str, Any]:
        """Builds the message, with the skill, the call chain and the client's own metadata."""
        call, origin = self.call, self.call.message
        message: dict[str, Any] = {
            "messageId": _build_message_id(call, task_id),
            "role": "ROLE_USER",
            "parts": parts,
        }
        if context:
            message["contextId"] = context
        if task_id:
            message["taskId"] = task_id
        request: dict[str, Any] = {"message": message}
        metadata: dict[str, Any] = {}
        extensions: list[str] = []
        if origin is not None:
            _carry_origin(origin, request, metadata)
            extensions = _list_extensions(origin.message_extensions)
        if (skill := call.tool.bridged) is not None:
            metadata[SKILL] = {
                "skillId": skill.skill_id,
                "correlationId": session_id_from_trace(call.tool, call.trace),
            }
            extensions.append(SKILL)
        metadata.update(self._metadata)
        message["metadata"] = metadata
        if extensions:
            message["extensions"] = extensions
            if self._extensions:
                self._activate(extensions)
        return request

    def cancel(self, id: str) -> None:
        self._agent.cancel(id, self.probed, self._headers)

    def _abandon(self, task: RemoteTask, error: BaseException) -> None:
        """Cancels the task of a call that ends early, unless it is settled or timed out."""
        unsent = isinstance(error, Unreachable) and not error.sent
        if unsent and not task.has_events:
            return
        if self._is_named and error.args[:1] == (STOPPING,):
            return  # its caller asks for it after the next start
        if task.id and not task.is_settled and not self.timed_out:
            self.cancel(task.id)
        if unsent or (isinstance(error, LoginRequired) and task.has_events):
            raise Unreachable(str(error)) from error  # the message itself was sent

    # --- logins (7.6) -----------------------------------------------------------------------------

    async def wait_for_login(self, task_id: str, context: str) -> RemoteTask:
        """Follows a task that waits for a login elsewhere, until it is settled. A call that is
        cancelled before the login leaves the task as it is."""
        agent = self._agent
        if agent.logins >= MAX_LOGINS:
            raise Overloaded(f'{MAX_LOGINS} logins of agent "{agent.name}" are waited for already')
        task = RemoteTask(agent.name, self._publish, task_id, context)
        task.state = AUTH_REQUIRED
        agent.logins += 1
        try:
            await self._poll(task, LONGEST_LOGIN_POLL, lambda: task.state != AUTH_REQUIRED)
        finally:
            agent.logins -= 1
        return await self._resume(task)

    async def continue_after_login(
        self, task_id: str, context: str, seconds: float
    ) -> RemoteTask | None:
        """Follows a task that continues by itself within `seconds` after a login; None if not."""
        self._start_timer()
        task = RemoteTask(self._agent.name, self._publish, task_id, context)
        backoff = Backoff(FIRST_POLL, 1.0, factor=POLL_FACTOR, jitter=0.0)
        until = monotonic() + seconds
        try:
            await self._fetch(task)
            while task.state == AUTH_REQUIRED:
                if monotonic() >= until:
                    return None
                await asyncio.sleep(backoff.next_delay())
                await self._fetch(task)
        except BaseException as error:
            self._abandon(task, error)
            raise
        return await self._resume(task)

    async def _resume(self, task: RemoteTask) -> RemoteTask:
        following = self._follow(task)
        try:
            await (following if self.call.task is None else self._attach(task, following))
        except BaseException as error:
            self._abandon(task, error)
            raise
        finally:
            if task.usage:
                self.call.notes.usage = task.usage
        return task

    # --- tasks that are left to themselves --------------------------------------------------------

    async def _attach(self, task: RemoteTask, work: Coroutine[Any, Any, None]) -> None:
        """Does the work for the attached time of the call. After that the task is left to itself,
        if the agent answers for it by its id; otherwise its connection stays."""
        assert self.call.task is not None
        seconds = self.call.task.attached_secs
        loop, leaving = asyncio.get_running_loop(), list[asyncio.Task[None]]()

        def leave() -> None:
            leaving.append(start_task(self._leave(task, limit, seconds), loop))

        try:
            async with asyncio.timeout(None) as limit:
                timer = loop.call_later(seconds, leave)
                try:
                    await work
                finally:
                    timer.cancel()
                    for one in leaving:
                        one.cancel()
        except TimeoutError:
            if not limit.expired():
                raise
        except (HubError, A2aError) as error:
            if not self._is_named or not says_nothing(error):
                raise
            self._publish(Progress(progress=0, message=str(error)))  # it is asked again later

    async def _leave(self, task: RemoteTask, limit: asyncio.Timeout, seconds: float) -> None:
        """Ends the attached time once the agent has answered for the task."""
        while True:
            try:
                if task.has_id and self._is_named:
                    client = self._agent.client
                    await client.get_task(self.probed, task.id, headers=self._headers)
                    limit.reschedule(asyncio.get_running_loop().time())
                    return
            except A2aError as error:
                log.info('agent "%s" cannot be asked for its tasks: %s', self._agent.name, error)
                return
            except HubError as error:
                log.info('agent "%s" is not asked for its task yet: %s', self._agent.name, error)
            await asyncio.sleep(max(seconds, 0.1))

    async def poll(self, task_id: str, context: str) -> RemoteTask:
        """Asks once how a task stands."""
        task = RemoteTask(self._agent.name, self._publish, task_id, context)
        self.call.notes.remote_task = task_id
        await self._fetch(task)
        if task.usage:
            self.call.notes.usage = task.usage
        return task

    async def find(self) -> RemoteTask:
        """Finds the task of an earlier attempt, by the id that the hub has chosen for the task or
        for its message, and follows it. Raises `TaskLost` if there is none."""
        task = RemoteTask(self._agent.name, self._publish)
        if self.probed.traits.client_names_task:
            task.id = self._choose_id()
            await self._fetch(task)
        elif not await self._find_listed(task):
            raise TaskLost(
                f'agent "{self._agent.name}" has no task with the message that the hub has sent'
            )
        self._note_id(task)
        return await self._resume(task)

    async def _find_listed(self, task: RemoteTask) -> bool:
        wanted, token = _build_message_id(self.call, ""), ""
        for _ in range(PAGES):
            request = {"pageSize": LISTED, "historyLength": HISTORY, "pageToken": token or None}
            page = await self._agent.client.list_tasks(self.probed, request)
            for one in page.get("tasks") or ():
                history = one.get("history") or () if isinstance(one, dict) else ()
                if any(_read_message_id(message) == wanted for message in history):
                    task.apply_snapshot(one)
                    await self._fetch(task)  # with its artifacts
                    return True
            following = page.get("nextPageToken")
            if not following or not isinstance(following, str):
                break
            token = following
        return False

    async def end(self, task_id: str) -> None:
        """Cancels a task, and waits for the answer."""
        self.call.notes.remote_task = task_id
        async with asyncio.timeout(CANCEL_SECONDS):
            await self._agent.client.cancel_task(self.probed, task_id, self._headers)

    # --- following --------------------------------------------------------------------------------

    async def _follow(self, task: RemoteTask) -> None:
        """Waits until the task is settled: by its stream again if that broke, else by polling."""
        self._start_timer()
        if not task.is_settled:
            if not task.id:
                raise BadReply(f'agent "{self._agent.name}" answered with a task without an id')
            self._note_id(task)
            if self.probed.can_stream:
                await self._subscribe(task)
            await self._poll(task, LONGEST_POLL, lambda: task.is_settled)
        if task.lacks_result:
            await self._fetch(task)

    async def _subscribe(self, task: RemoteTask) -> None:
        try:
            stream = await self._agent.client.subscribe(self.probed, task.id, headers=self._headers)
            await self._read_stream(task, stream)
        except (A2aError, Unreachable, TimedOut, BadReply) as error:
            log.debug('agent "%s" does not resume its stream: %s', self._agent.name, error)

    async def _read_stream(
        self, task: RemoteTask, stream: AgentEventStream, answered: bool = False
    ) -> None:
        """`answered`: the first snapshot may still ask what was just answered (the JavaScript SDK
        sends it); the events after it count, or the end of the stream."""
        try:
            async for event in stream:
                task.apply_event(event)
                if task.id:
                    self._note_id(task)
                stale = answered and "task" in event and not task.is_over
                if task.is_settled and not stale:
                    return
                answered = False
        except (Unreachable, TimedOut) as error:
            if not task.id:
                raise Unreachable(f"{error}; it may or may not have been done") from error
            log.info('the stream of agent "%s" broke: %s', self._agent.name, error)
        finally:
            await stream.close()
        if not task.id and not task.is_over:
            raise BadReply(f'agent "{self._agent.name}" ended its stream without an answer')

    async def _poll(self, task: RemoteTask, longest: float, is_done: Callable[[], bool]) -> None:
        backoff, failures = Backoff(FIRST_POLL, longest, factor=POLL_FACTOR, jitter=0.0), 0
        while not is_done():
            await asyncio.sleep(backoff.next_delay())
            try:
                await self._fetch(task)
                failures = 0
            except (Unreachable, TimedOut, AgentHttpStatus) as error:
                failures += 1
                permanent = isinstance(error, AgentHttpStatus) and error.status not in TRANSIENT
                if failures >= MAX_FAILURES or permanent:
                    raise

    async def _fetch(self, task: RemoteTask) -> None:
        client = self._agent.client
        task.apply_snapshot(await client.get_task(self.probed, task.id, headers=self._headers))

    # --- timeout ----------------------------------------------------------------------------------

    def _start_timer(self) -> None:
        """Limits the rest of the call; a single request has its own timeout."""
        if self._deadline is None or self.timer is not None:
            return
        task = self._asyncio_task = asyncio.current_task()
        assert task is not None
        self._cancelling = task.cancelling()
        left = max(0.0, self._deadline - monotonic())
        self.timer = task.get_loop().call_later(left, self._expire)

    def stop_timer(self) -> None:
        self._deadline = None
        if self.timer is not None:
            self.timer.cancel()

    def _expire(self) -> None:
        assert self._asyncio_task is not None
        self.timed_out = True
        self._asyncio_task.cancel()

    def take_timeout(self) -> bool:
        """Whether the cancellation of this call is that of its timer; then it is withdrawn."""
        task = self._asyncio_task
        return self.timed_out and task is not None and task.uncancel() <= self._cancelling

    def _publish(self, update: Update) -> None:
        wanted = self.call.wanted_updates
        if wanted is not NO_UPDATES and self._deadline is not None and not self.timed_out:
            if wanted.task_start and isinstance(update, TaskStarted):
                self.stop_timer()
            elif wanted.progress and isinstance(update, Progress | Artifact):
                assert self._seconds is not None
                self._deadline = monotonic() + self._seconds
                if self.timer is not None:
                    self.timer.cancel()
                    self.timer = None
                    self._start_timer()
        self.call.updates(update)


def says_nothing(error: HubError | A2aError) -> bool:
    """Whether an error says nothing about the task of which the agent was asked."""
    if isinstance(error, A2aError) and error.reason in UNHELPFUL:
        return True
    if isinstance(error, AgentHttpStatus | A2aErrorStatus):
        return error.status in UNHELPFUL_STATUSES
    return isinstance(error, Unreachable | TimedOut | LoginRequired)


def _build_message_id(call: Call, task_id: str) -> str:
    """Builds the id of a message. The step of a workflow that is executed again has the same id, so
    that an agent that knows the id need not do it twice."""
    if call.door == WORKFLOW and call.meta and not task_id and (key := call.meta.get(KEY_META)):
        words = f"{call.principal.key}\0{call.tool.name}\0{key}"
        return sha256(words.encode("utf-8", "replace")).hexdigest()[:32]
    return f"{getrandbits(128):032x}"  # a name, not a secret


def _read_message_id(message: Any) -> Any:
    return message.get("messageId") if isinstance(message, dict) else None


def _carry_origin(origin: MessageOrigin, request: dict[str, Any], metadata: dict[str, Any]) -> None:
    """Carries over what the client sent beside the parts of its own A2A message."""
    if isinstance(origin.metadata, Mapping):
        metadata.update(_strip_routing(origin.metadata))
    if origin.skill:
        metadata[SKILL] = {"skillId": origin.skill}
    if references := [remote_id for _, remote_id in origin.references if remote_id]:
        request["message"]["referenceTaskIds"] = references
    if origin.configuration:
        request["configuration"] = origin.configuration
    if own := _strip_routing(origin.request_metadata):
        request["metadata"] = own


def _strip_routing(metadata: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in metadata.items() if key not in ROUTED}


def _list_extensions(named: Iterable[str]) -> list[str]:
    """Lists the extensions that fit into a header, without the one that names a skill."""
    return [uri for uri in named if uri != SKILL and EXTENSION.fullmatch(uri)]
