"""An agent of others as a target: found in the background, offered as a tool, sent messages.

Its tasks are followed, by their stream where it has one and by asking where not; what it says
meanwhile are updates of the call, what it asks is a question of the call. Whoever leaves has its
task cancelled. Knows no dialect.
"""

from __future__ import annotations

import asyncio
import logging
import random
import re
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from uuid import uuid4

from dragoman.a2a.client import A2aClient, user_message
from dragoman.a2a.config import ExternalAgent
from dragoman.a2a.dialects.ops import AUTH_REQUIRED, TASK_ID, V01
from dragoman.a2a.discovery import Trust, origin_of, shown
from dragoman.a2a.errors import A2aError
from dragoman.a2a.far import AUTH, REPLY, FarTask, answer_parts, from_handle, handle_of
from dragoman.a2a.hearing import EventStream
from dragoman.a2a.probing import Peer
from dragoman.a2a.signing import load_public
from dragoman.a2a.translate import part_from_block
from dragoman.a2a.ways import HttpStatus
from dragoman.core.agents import SCHEMA, agent_tool
from dragoman.core.call import Call, Result
from dragoman.core.catalog import Catalog
from dragoman.core.errors import (
    BadReply,
    ConfigError,
    HubError,
    TimedOut,
    Unreachable,
    WorkFailed,
)
from dragoman.core.ports import HttpClient, SchemaCompiler
from dragoman.core.principal import Principal
from dragoman.core.questions import unanswerable
from dragoman.core.tool import AgentFacts

log = logging.getLogger(__name__)

FIRST_PAUSE, LONGEST_PAUSE = 1.0, 60.0
"""Between two attempts to find it."""
REFRESH_SECONDS = 300.0
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
MAX_CONTEXTS = 10_000
SKILL = "urn:dragoman:a2a:skill:v1"
ROUTED = ("agent", "skill", "skillId", SKILL)

Reach = Callable[[str, bool], HttpClient]
"""The way out for one configured url, and whether it may lead to private addresses."""


class RemoteAgent:
    gives_up = True
    """A continuing call without any answers ends what waits for them."""
    may_last = True

    def __init__(
        self,
        entry: ExternalAgent,
        reach: Reach,
        catalog: Catalog,
        compile_schema: SchemaCompiler,
        *,
        headers: Mapping[str, str],
        signatures: str,
        prefix: str = "dragoman_agent_",
        place: Path = Path(),
    ) -> None:
        """`headers` are the entry's with their values put in; `signatures` holds where the entry
        says nothing of its own; `place` is where the files of its keys are."""
        self.entry = entry
        self.name = entry.name
        self.state = "starting"
        self.reason = ""
        self.peer: Peer | None = None
        self._offered: Peer | None = None
        trust = _trust(entry, signatures, place)
        self._client = A2aClient(
            reach(entry.url, entry.allow_private),
            headers,
            entry.timeout_secs,
            registered=entry.url,
            trust=trust,
        )
        self._catalog = catalog
        self._validate = compile_schema(SCHEMA)
        self._prefix = prefix
        self._finding: asyncio.Task[None] | None = None
        self._tried = asyncio.Event()
        self._cancelling: set[asyncio.Task[None]] = set()
        self._contexts: OrderedDict[tuple[Principal, str], str] = OrderedDict()
        """The agent's own name for each conversation of a caller."""

    # --- what the hub sees ------------------------------------------------------------------------

    def start(self) -> None:
        self._finding = asyncio.get_running_loop().create_task(self._find())

    async def stop(self) -> None:
        self._catalog.withdraw(self.name)
        self.state, self.reason = "stopped", "it was stopped"
        self._tried.set()
        if self._finding is not None:
            self._finding.cancel()
            await asyncio.wait([self._finding])
        if self._cancelling:
            await asyncio.wait(list(self._cancelling), timeout=CLOSE_SECONDS)
        for task in list(self._cancelling):
            task.cancel()
            await asyncio.wait([task])

    async def tried(self) -> None:
        """Until the first attempt to find it has come to something."""
        await self._tried.wait()

    def snapshot(self) -> dict[str, Any]:
        peer = self.peer
        return {
            "name": self.name,
            "url": shown(self.entry.url),
            "state": self.state,
            "reason": self.reason,
            "dialect": str(peer.way) if peer and peer.way else None,
            "skills": len(peer.card["skills"]) if peer else 0,
            "findings": list(peer.findings) if peer else [],
        }

    async def run(self, call: Call) -> Result:
        try:
            peer = await self._client.settled(self.entry.url)
            self.peer = peer
            if call.handle is not None:
                return await self._continued(call, peer)
            message = self._message(call)
            return await self._done(call, peer, message)
        except A2aError as error:
            raise WorkFailed(f'agent "{self.name}" answered: {error.message}') from error

    # --- finding it -------------------------------------------------------------------------------

    async def _find(self) -> None:
        failures = 0
        while True:
            try:
                peer = await self._client.settled(self.entry.url)
                self._offer(peer)
            except (HubError, A2aError) as error:
                failures += 1
                self._failed(str(error))
            except Exception as error:  # or nobody would look for it any more
                log.exception('agent "%s" could not be looked for', self.name)
                failures += 1
                self._failed(repr(error))
            else:
                failures = 0
            self._tried.set()
            pause = min(LONGEST_PAUSE, FIRST_PAUSE * 2 ** min(failures - 1, 10))
            await asyncio.sleep(pause * random.uniform(0.8, 1.2) if failures else REFRESH_SECONDS)

    def _failed(self, reason: str) -> None:
        if self.peer is not None:
            self.reason = reason  # it was there, and may be again: a call will tell
            return
        if (self.state, self.reason) != ("failed", reason):
            log.warning(
                'agent "%s" at %s was not found: %s; it is looked for again',
                self.name,
                shown(self.entry.url),
                _line(reason),
            )
        self.state, self.reason = "failed", reason

    def _offer(self, peer: Peer) -> None:
        if self._offered is not peer:
            facts = _facts(self.name, peer.card)
            self._catalog.offer(self.name, [agent_tool(self, facts, self._prefix, self._validate)])
            self._offered = peer
            log.info(
                'agent "%s" at %s is "%s": %d skills, %s',
                self.name,
                shown(self.entry.url),
                _line(peer.card["name"]),
                len(facts.skills),
                peer.way,
            )
            for finding in peer.findings:
                log.warning('agent "%s": %s', self.name, _line(finding))
        self.peer, self.state, self.reason = peer, "connected", ""

    # --- a message and what comes of it -----------------------------------------------------------

    def _message(self, call: Call) -> dict[str, Any]:
        text, blocks = call.arguments.get("message"), call.arguments.get("parts")
        parts = [part_from_block(block) for block in blocks or ()]
        if not parts:
            parts = [{"text": str(text or "")}]
        conversation = call.extra.get("context")
        context = self._contexts.get((call.caller, conversation)) if conversation else None
        message = user_message(parts, context=context)
        metadata = call.extra.get("metadata")
        metadata = dict(metadata) if isinstance(metadata, Mapping) else {}
        for routed in ROUTED:  # was said to this hub; another would be sent round by it
            metadata.pop(routed, None)
        if skill := call.extra.get("skill"):
            metadata[SKILL] = {"skillId": skill}
        if metadata:
            message["metadata"] = metadata
        return message

    async def _done(self, call: Call, peer: Peer, message: dict[str, Any]) -> Result:
        """Sends the message and follows what the agent makes of it."""
        known = message.get("taskId", "")
        request: dict[str, Any] = {"message": message, TASK_ID: str(uuid4())}
        named = peer.way is not None and peer.way.version == V01  # there the client names it
        guess = request[TASK_ID] if named else ""
        far = FarTask(self.name, call.updates, id=known, guess=guess)
        with self._held(far):
            if peer.streams:
                await self._stream(far, await self._client.stream(self.entry.url, request))
            else:
                # Not to wait in one request: the task could not be cancelled before it has a name.
                request["configuration"] = {"returnImmediately": True}
                far.hear(await self._client.send(self.entry.url, request))
            return await self._result(far, call, peer)

    async def _result(self, far: FarTask, call: Call, peer: Peer) -> Result:
        await self._follow(far, peer)
        if far.bare:
            far.see(await self._client.get(self.entry.url, far.id))
        self._remember(call, far)
        result = far.result(handle_of(far))
        if result.questions and (problem := unanswerable(result.questions, call)):
            self._cancel(far.id)
            raise problem
        return result

    def _remember(self, call: Call, far: FarTask) -> None:
        conversation = call.extra.get("context")
        if not isinstance(conversation, str) or not conversation or not far.context:
            return
        key = (call.caller, conversation)
        self._contexts[key] = far.context
        self._contexts.move_to_end(key)
        if len(self._contexts) > MAX_CONTEXTS:
            self._contexts.popitem(last=False)

    # --- following a task -------------------------------------------------------------------------

    async def _stream(self, far: FarTask, stream: EventStream) -> None:
        try:
            async for event in stream:
                far.hear(event)
                if far.settled:
                    return
        except (Unreachable, TimedOut) as error:
            if not far.id:
                raise Unreachable(f"{error}; it may or may not have been done") from error
            log.info('the stream of agent "%s" broke: %s', self.name, error)
        finally:
            await stream.close()
        if not far.id and not far.over:
            raise BadReply(f'agent "{self.name}" ended its stream without an answer')

    async def _follow(self, far: FarTask, peer: Peer) -> None:
        """Until the task is settled: by its stream again where that broke, else by asking."""
        if far.settled:
            return
        if not far.id:
            raise BadReply(f'agent "{self.name}" made a task without an id of a message')
        if peer.streams:
            try:
                await self._stream(far, await self._client.subscribe(self.entry.url, far.id))
            except (A2aError, Unreachable, TimedOut, BadReply) as error:
                log.debug('agent "%s" does not go on with its stream: %s', self.name, error)
        pause, failures = FIRST_POLL, 0
        while not far.settled:
            await asyncio.sleep(pause)
            pause = min(pause * 1.6, LONGEST_POLL)
            try:
                far.see(await self._client.get(self.entry.url, far.id))
                failures = 0
            except (Unreachable, TimedOut, HttpStatus) as error:
                failures += 1
                passing = not isinstance(error, HttpStatus) or error.status in PASSING
                if failures >= MAX_FAILURES or not passing:
                    raise

    @contextmanager
    def _held(self, far: FarTask) -> Iterator[None]:
        """Whoever leaves has the task cancelled, unless it is settled."""
        try:
            yield
        except Unreachable as error:
            if not error.sent and not far.heard:
                raise
            if far.id and not far.settled:
                self._cancel(far.id)
            raise Unreachable(str(error)) from error  # the message itself has left
        except BaseException:
            if far.id and not far.settled:
                self._cancel(far.id)
            raise

    def _cancel(self, id: str) -> None:
        """Nobody waits for this: whoever leaves is gone."""
        if len(self._cancelling) >= MAX_CANCELLING:
            log.warning('a task of agent "%s" is not cancelled: too many are', self.name)
            return
        task = asyncio.get_running_loop().create_task(self._tell_cancel(id))
        self._cancelling.add(task)
        task.add_done_callback(self._cancelling.discard)

    async def _tell_cancel(self, id: str) -> None:
        try:
            async with asyncio.timeout(CANCEL_SECONDS):
                await self._client.cancel(self.entry.url, id)
        except (HubError, A2aError, TimeoutError) as error:
            log.info('a task of agent "%s" could not be cancelled: %s', self.name, error)

    # --- answers to its questions -----------------------------------------------------------------

    async def _continued(self, call: Call, peer: Peer) -> Result:
        task, context = from_handle(call)
        answers = call.answers or {}
        name = AUTH if AUTH in answers else REPLY
        answer = answers.get(name)
        if not isinstance(answer, Mapping) or answer.get("action", "accept") != "accept":
            self._cancel(task)
            raise WorkFailed(
                f'the task of agent "{self.name}" was given up: its question was not answered'
            )
        parts = answer_parts(answer.get("content"))
        if parts:
            return await self._done(call, peer, user_message(parts, context=context, task=task))
        far = FarTask(self.name, call.updates, id=task, context=context)
        with self._held(far):
            if await self._goes_on(far):
                return await self._result(far, call, peer)
        words = [{"text": "It is done; please go on."}]
        return await self._done(call, peer, user_message(words, context=context, task=task))

    async def _goes_on(self, far: FarTask) -> bool:
        """Whether the task goes on by itself now that somebody has logged in elsewhere (7.6)."""
        until, pause = asyncio.get_running_loop().time() + LOGIN_SECONDS, FIRST_POLL
        while True:
            far.see(await self._client.get(self.entry.url, far.id))
            if far.state != AUTH_REQUIRED:
                return True
            if asyncio.get_running_loop().time() >= until:
                return False
            await asyncio.sleep(pause)
            pause = min(pause * 1.6, 1.0)


# --- from an entry and a card ---------------------------------------------------------------------


def _trust(entry: ExternalAgent, signatures: str, place: Path) -> Trust:
    origin = origin_of(entry.url)
    if origin is None:
        raise ConfigError(
            f'agent "{entry.name}" is at "{shown(entry.url)}", which is no http:// or https:// '
            "address"
        )
    keys = [load_public(place / path) for path in entry.keys]
    return Trust(entry.signatures or signatures, {origin: keys} if keys else None)


def _facts(name: str, card: Mapping[str, Any]) -> AgentFacts:
    return AgentFacts(
        name=name,
        description=card.get("description") or f'The agent "{card.get("name")}".',
        version=card.get("version") or "1.0.0",
        skills=card.get("skills") or (),
        input_modes=card.get("defaultInputModes") or ("text/plain",),
        output_modes=card.get("defaultOutputModes") or ("text/plain",),
    )


def _line(text: str) -> str:
    """For the log: what others say on one line, and nothing that a terminal would obey."""
    return re.sub(r"[\x00-\x1f\x7f-\x9f]", "?", " ".join(text.split()))
