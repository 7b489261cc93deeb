"""Sending a message to an agent and following the task it makes of it, until that is settled: by
its stream where it has one, by asking where not. Whoever leaves has the task cancelled; whose time
has run out has not.
"""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from time import monotonic
from typing import Any
from uuid import uuid4

from dragoman.a2a.client.client import RETURN_IMMEDIATELY, A2aClient
from dragoman.a2a.client.dialect_probe import ProbedAgent
from dragoman.a2a.client.endpoint import AgentHttpStatus
from dragoman.a2a.client.event_stream import EventStream
from dragoman.a2a.protocol.dialects.operations import AUTH_REQUIRED, SKILL, TASK_ID
from dragoman.a2a.protocol.errors import A2aError
from dragoman.a2a.remote.call_timeout import Patience
from dragoman.a2a.remote.remote_task import RemoteTask, is_words
from dragoman.core.call import Call, Updates
from dragoman.core.errors import BadReply, HubError, Overloaded, TimedOut, Unreachable
from dragoman.core.event_payloads import session_of
from dragoman.core.trace import MEMBERS, headers_of

log = logging.getLogger(__name__)

FIRST_POLL, LONGEST_POLL = 0.05, 5.0
MAX_FAILURES = 5
"""So often in a row it need not be there before its task is given up."""
PASSING = frozenset((429, 500, 502, 503, 504))
"""What a server says that may soon say something else."""
CANCEL_SECONDS = 5.0
CLOSE_SECONDS = 0.5
MAX_CANCELLING = 1_000
LOGIN_SECONDS = 5.0
"""How long a task may take to notice that somebody has logged in, before it is told."""
EXTENSION = re.compile(r"[A-Za-z][A-Za-z0-9+.-]{0,31}:[!-+\-.-~]{1,480}")
"""The name of an extension: an address without a comma, which stands between two in a header."""
LONGEST_LOGIN_POLL = 10.0
MAX_LOGINS = 256
"""Tasks of one agent that are looked at until somebody has logged in."""
ROUTED = frozenset(("agent", "skill", "skillId", SKILL, *MEMBERS))
"""What was said to this hub; another would be sent round by it, or put into another chain."""


class Work:
    """A call under way, and what goes with all that is sent for it."""

    __slots__ = ("_begun", "_extensions", "beside", "call", "patience", "probed", "seconds")

    def __init__(self, call: Call, probed: ProbedAgent, seconds: float | None = None) -> None:
        """`seconds` that it may take for its caller; None where the road alone says so."""
        self.call = call
        self.probed = probed
        self.seconds = seconds
        self.patience: Patience | None = None
        self._begun = monotonic()
        self.beside = call.trace.carried()
        self._extensions = ""
        if call.message is not None and (activated := call.message.extensions):
            declared = probed.card.get("capabilities", {}).get("extensions") or ()
            known = {one.get("uri") for one in declared}
            self._extensions = ",".join(uri for uri in _uris(activated) if uri in known)

    def hurry(self) -> None:
        """From here on it is timed: one request has its own time, what follows has not."""
        if self.seconds is not None and self.patience is None:
            left = self.seconds - (monotonic() - self._begun)
            self.patience = Patience(self.seconds, self.call, max(0.0, left))

    @property
    def more(self) -> dict[str, str]:
        """Headers: the trace, and the extensions that the caller has activated."""
        headers = headers_of(self.beside)
        if self._extensions and (name := self.probed.traits.extensions_header):
            headers[name] = self._extensions
        return headers

    @property
    def activates(self) -> bool:
        """Whether the caller has activated extensions."""
        return bool(self._extensions)

    def request(self, message: dict[str, Any]) -> dict[str, Any]:
        """The message with what the caller said beside it."""
        request: dict[str, Any] = {"message": message}
        origin = self.call.message
        if origin is not None and origin.configuration:
            request["configuration"] = origin.configuration
        if origin is not None and (kept := _without_routing(origin.request_metadata)):
            request["metadata"] = kept
        return request

    def address(self, message: dict[str, Any]) -> None:
        """Puts into it which skill it is for and what chain of calls it belongs to."""
        call = self.call
        origin = call.message
        metadata: dict[str, Any] = {}
        extensions: list[str] = []
        if origin is not None:
            if isinstance(origin.metadata, Mapping):
                metadata = _without_routing(origin.metadata)
            extensions = _uris(origin.message_extensions)
        if (skill := call.tool.bridged) is not None:
            named = {"skillId": skill.skill_id, "correlationId": session_of(call)}
            metadata[SKILL] = named
            extensions.append(SKILL)
        elif origin is not None and origin.skill:
            metadata[SKILL] = {"skillId": origin.skill}
        if extensions:
            message["extensions"] = extensions
        if origin is not None and (references := [far for _, far in origin.references if far]):
            message["referenceTaskIds"] = references
        if self._extensions and extensions:  # this header takes the place of the message's own
            activated = self._extensions.split(",")
            self._extensions = ",".join(dict.fromkeys([*activated, *extensions]))
        metadata.update(self.beside)
        message["metadata"] = metadata


def _without_routing(metadata: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in metadata.items() if key not in ROUTED}


def _uris(named: Iterable[str]) -> list[str]:
    """Extensions that can stand in a header, without the one that names a skill of this hub."""
    return [uri for uri in named if uri != SKILL and EXTENSION.fullmatch(uri)]


class TaskFollower:
    def __init__(self, name: str, client: A2aClient) -> None:
        self._name = name
        self._client = client
        self._cancelling: set[asyncio.Task[None]] = set()
        self._logins = 0

    async def close(self) -> None:
        if self._cancelling:
            await asyncio.wait(list(self._cancelling), timeout=CLOSE_SECONDS)
        for task in list(self._cancelling):
            task.cancel()
            await asyncio.wait([task])

    async def begun(self, work: Work, message: dict[str, Any]) -> RemoteTask:
        """What comes of a message, when that is settled."""
        probed, client, seconds = work.probed, self._client, work.seconds
        client_names_task = probed.traits.client_names_task
        id = message.get("taskId", "")
        if not probed.can_stream and not client_names_task and not id:
            # Not to wait in one request: the task could not be cancelled before it has a name.
            request = work.request(message)
            if len(request) == 1 and not work.activates:
                answer = await client.say(probed, message, work.beside, seconds)
            else:
                request["configuration"] = {
                    **request.get("configuration", {}),
                    **RETURN_IMMEDIATELY,
                }
                answer = await client.send_message(probed, request, work.more, seconds)
            words = is_words(answer)
            if not words:
                work.hurry()
            far = RemoteTask(self._name, _updates(work))
            if words:
                far.message = answer["message"]
                return far
            with self._held(far, work):
                far.apply_event(answer)
                await self._follow(far, work)
            return far
        work.hurry()
        request = work.request(message)
        guess = ""
        if client_names_task:
            guess = request[TASK_ID] = str(uuid4())
        far = RemoteTask(self._name, _updates(work), id=id, guess=guess)
        with self._held(far, work):
            if probed.can_stream:
                stream = await client.stream_message(probed, request, work.more, seconds)
                await self._stream(far, work, stream, answered=bool(id))
            else:
                request["configuration"] = {
                    **request.get("configuration", {}),
                    **RETURN_IMMEDIATELY,
                }
                far.apply_event(await client.send_message(probed, request, work.more, seconds))
            await self._follow(far, work)
        return far

    async def followed(self, work: Work, task: str, context: str) -> RemoteTask:
        """The task once it is settled after somebody has logged in elsewhere (7.6). Whoever leaves
        before that leaves the task as it is."""
        if self._logins >= MAX_LOGINS:
            raise Overloaded(f'{MAX_LOGINS} logins of agent "{self._name}" are waited for already')
        far = RemoteTask(self._name, _updates(work), id=task, context=context)
        far.state = AUTH_REQUIRED
        self._logins += 1
        try:
            await self._poll(far, work, LONGEST_LOGIN_POLL, lambda: far.state != AUTH_REQUIRED)
        finally:
            self._logins -= 1
        with self._held(far, work):
            await self._follow(far, work)
        return far

    async def gone_on(
        self, work: Work, task: str, context: str, seconds: float = LOGIN_SECONDS
    ) -> RemoteTask | None:
        """The task as it is settled, where it goes on by itself within `seconds` now that somebody
        has logged in elsewhere (7.6)."""
        work.hurry()
        far = RemoteTask(self._name, _updates(work), id=task, context=context)
        loop = asyncio.get_running_loop()
        until, pause = loop.time() + seconds, FIRST_POLL
        with self._held(far, work):
            while True:
                far.apply_snapshot(await self._client.get_task(work.probed, far.id, more=work.more))
                if far.state != AUTH_REQUIRED:
                    await self._follow(far, work)
                    return far
                if loop.time() >= until:
                    return None
                await asyncio.sleep(pause)
                pause = min(pause * 1.6, 1.0)

    async def _stream(
        self, far: RemoteTask, work: Work, stream: EventStream, answered: bool = False
    ) -> None:
        """`answered`: the task may first be shown as it was, still asking what was answered just
        now (the JavaScript SDK does); what comes after that counts, or that nothing does."""
        try:
            async for event in stream:
                far.apply_event(event)
                if far.id:
                    work.call.notes.remote_task = far.id
                as_it_was = answered and "task" in event and not far.is_over
                if far.is_settled and not as_it_was:
                    return
                answered = False
        except (Unreachable, TimedOut) as error:
            if not far.id:
                raise Unreachable(f"{error}; it may or may not have been done") from error
            log.info('the stream of agent "%s" broke: %s', self._name, error)
        finally:
            await stream.close()
        if not far.id and not far.is_over:
            raise BadReply(f'agent "{self._name}" ended its stream without an answer')

    async def _follow(self, far: RemoteTask, work: Work) -> None:
        """Until the task is settled: by its stream again where that broke, else by asking."""
        if far.id:
            work.call.notes.remote_task = far.id
        if not far.is_settled:
            await self._wait(far, work)
        if far.lacks_result:
            far.apply_snapshot(await self._client.get_task(work.probed, far.id, more=work.more))

    async def _wait(self, far: RemoteTask, work: Work) -> None:
        if not far.id:
            raise BadReply(f'agent "{self._name}" made a task without an id of a message')
        client, probed, more = self._client, work.probed, work.more
        if probed.can_stream:
            try:
                await self._stream(far, work, await client.subscribe(probed, far.id, more=more))
            except (A2aError, Unreachable, TimedOut, BadReply) as error:
                log.debug('agent "%s" does not go on with its stream: %s', self._name, error)
        await self._poll(far, work, LONGEST_POLL, lambda: far.is_settled)

    async def _poll(
        self, far: RemoteTask, work: Work, longest: float, is_over: Callable[[], bool]
    ) -> None:
        pause, failures = FIRST_POLL, 0
        while not is_over():
            await asyncio.sleep(pause)
            pause = min(pause * 1.6, longest)
            try:
                far.apply_snapshot(await self._client.get_task(work.probed, far.id, more=work.more))
                failures = 0
            except (Unreachable, TimedOut, AgentHttpStatus) as error:
                failures += 1
                passing = not isinstance(error, AgentHttpStatus) or error.status in PASSING
                if failures >= MAX_FAILURES or not passing:
                    raise

    # --- leaving ----------------------------------------------------------------------------------

    @contextmanager
    def _held(self, far: RemoteTask, work: Work) -> Iterator[None]:
        """Whoever leaves has the task cancelled, unless it is settled or only takes too long."""
        try:
            yield
        except Unreachable as error:
            if not error.sent and not far.has_events:
                raise
            self._leave(far, work)
            if error.sent:
                raise
            raise Unreachable(str(error)) from error  # the message itself has left
        except BaseException:
            self._leave(far, work)
            raise
        finally:
            if far.usage:
                work.call.notes.usage = far.usage

    def _leave(self, far: RemoteTask, work: Work) -> None:
        late = work.patience is not None and work.patience.over
        if far.id and not far.is_settled and not late:
            self.cancel(far.id, work)

    def cancel(self, id: str, work: Work) -> None:
        """Nobody waits for this: whoever leaves is gone."""
        if len(self._cancelling) >= MAX_CANCELLING:
            log.warning('a task of agent "%s" is not cancelled: too many are', self._name)
            return
        told = self._tell_cancel(id, work.probed, work.more)
        task = asyncio.get_running_loop().create_task(told)
        self._cancelling.add(task)
        task.add_done_callback(self._cancelling.discard)

    async def _tell_cancel(self, id: str, probed: ProbedAgent, more: Mapping[str, str]) -> None:
        try:
            async with asyncio.timeout(CANCEL_SECONDS):
                await self._client.cancel_task(probed, id, more)
        except (HubError, A2aError, TimeoutError) as error:
            log.info('a task of agent "%s" could not be cancelled: %s', self._name, error)


def _updates(work: Work) -> Updates:
    return work.call.updates if work.patience is None else work.patience.updates
