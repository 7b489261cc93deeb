"""Workflows as tools: `workflow.NAME` starts a run, reports its steps as progress, passes its
questions on, and returns its output. A cancelled call cancels the run. A call of another run leaves
the run to itself after a while, and asks for it later."""

from __future__ import annotations

import asyncio
import json
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Iterable
from contextlib import nullcontext
from hashlib import sha256

from dragoman.core.background import STOPPING, Background
from dragoman.core.backoff import Backoff
from dragoman.core.call import Call, Progress, Question, Result, TaskNamed, TaskStarted
from dragoman.core.call_chains import RunningCall
from dragoman.core.cluster import OwnedElsewhere
from dragoman.core.errors import (
    HubError,
    InvalidInput,
    NotFound,
    Overloaded,
    StorageFailed,
    TaskLost,
    Unreachable,
    WorkFailed,
)
from dragoman.core.hub import Hub
from dragoman.core.local_agents import SCHEDULE
from dragoman.core.logs import STORAGE_OUTAGE
from dragoman.core.ports import SchemaCompiler
from dragoman.core.question_handles import can_answer
from dragoman.core.runs import (
    CANCELLED,
    COMPLETED,
    DOOR,
    ENDED,
    KEY_META,
    RUNNING,
    SKIPPED,
    STEP_KEY,
    WAITING,
    Run,
    RunPrincipal,
    StepRecord,
    record_principal,
)
from dragoman.core.taint import NO_ORIGINS, LabelOrigin, Origins
from dragoman.core.tool import TargetFacts, TargetTraits, Tool
from dragoman.core.tool_identity import WORKFLOW, build_identity, build_portable_names
from dragoman.workflows.inputs import build_input_schema
from dragoman.workflows.model import Workflow
from dragoman.workflows.service import RunService, RunStart

log = logging.getLogger(__name__)

META = "dragoman.hub/run"
"""Key in the `_meta` of a result: the id of the run."""
LOOK_SECONDS = 60.0
"""A call that follows a run reads after so long without a change how the run stands."""
MAX_UPDATES = 1_000
"""Changes of a run that wait to be reported."""


class WorkflowTools:
    """The target of the tools. It holds nothing while a run waits: chains may return to it."""

    name = WORKFLOW
    traits = TargetTraits(
        facts=TargetFacts(type="Server", transport="hub"),
        may_last=True,
        is_published=False,
        is_reentrant=True,
        finds_tasks=True,
    )

    def __init__(
        self, hub: Hub, find_service: Callable[[], RunService], compile: SchemaCompiler
    ) -> None:
        self._hub = hub
        self._find_service = find_service
        self._compile = compile
        self._workflows: dict[str, Workflow] = {}
        self._background = Background("cancelled workflow tools")
        self._is_closing = False

    def offer(self, workflows: Iterable[Workflow]) -> None:
        """Offers those that are exposed, in place of the earlier ones."""
        exposed = [one for one in workflows if one.expose]
        tools = [self.build_tool(one) for one in exposed]
        self._workflows = {tool.name: one for tool, one in zip(tools, exposed, strict=True)}
        self._hub.catalog.offer(WORKFLOW, {tool.name: tool for tool in tools}.values())

    def build_tool(self, workflow: Workflow) -> Tool:
        name = build_identity(WORKFLOW, workflow.name)
        listed = f"{WORKFLOW}.{workflow.name}"
        safe = name.replace(".", "_")
        text = workflow.description or f'Runs the workflow "{workflow.name}".'
        schema = build_input_schema(workflow)
        return Tool(
            name=name,
            alias=listed,
            other_names={"dotted": name, "safe": safe, **build_portable_names(listed, safe, name)},
            remote_name=workflow.name,
            description=text,
            definition={
                "name": workflow.name,
                "description": text,
                "inputSchema": schema,
                "annotations": {"openWorldHint": False},  # each step is judged by itself
            },
            validate=self._compile(schema),
            target=self,
        )

    def begin_stop(self) -> None:
        """The calls that end from now on were not cancelled by their clients."""
        self._is_closing = True

    async def close(self) -> None:
        await self._background.close(grace=1.0)

    # --- calls -----------------------------------------------------------------------------------

    async def run(self, call: Call) -> Result:
        service = self._find_service()
        call.updates(TaskStarted())
        if call.handle is None:
            run = await self._start(service, call)  # also where `FIND` looks for it
            if call.task is not None:
                handle = _build_handle(run.id)
                call.updates(TaskNamed(handle=handle, id=run.id, place="a run of this hub"))
        else:
            id, path = _read_handle(call.handle)
            if call.sends_nothing:
                return await self._ask_about(service, call, id)
            run = await _change_here(service.answer(call.principal, id, path, call.answers or {}))
        try:
            ended = await self._follow(service, call, run)
        except asyncio.CancelledError as error:
            if not self._is_closing and error.args[:1] != (STOPPING,):
                self._background.spawn(self._cancel(service, call, run.id))
            raise
        return ended if isinstance(ended, Result) else self._build_outcome(call, ended)

    async def _follow(self, service: RunService, call: Call, run: Run) -> Run | Result:
        """Follows a run, that of a nested call even if there is no room for more runs."""
        is_nested = any(verb.startswith(f"{WORKFLOW}.") for verb in call.trace.chain)
        with service.follow(run.id) if is_nested else nullcontext():
            limit = call.task.attached_secs if call.task is not None else None
            try:
                async with asyncio.timeout(limit) as attached:
                    return await _RunFollower(call).follow(service, run)
            except TimeoutError:
                if not attached.expired():
                    raise
        return Result(unfinished=True, handle=_build_handle(run.id))

    async def _ask_about(self, service: RunService, call: Call, id: str) -> Result:
        """Asks how a run stands, or cancels it."""
        try:
            if call.cancels:
                await _change_here(service.cancel(call.principal, id))
                return Result()
            run = await service.find(call.principal, id)
        except NotFound as error:
            raise TaskLost(str(error)) from None
        except InvalidInput:  # it has ended already
            return Result()
        if run.state in ENDED:
            return self._build_outcome(call, run)
        asked = await _RunFollower(call).look(service, run)
        return asked or Result(unfinished=True, handle=_build_handle(id))

    def _build_outcome(self, call: Call, ended: Run) -> Result:
        running = self._hub.chains.find_running(call.trace)
        if running is not None and ended.labels:
            running.chain.add_labels(ended.labels)
        return _build_result(ended)

    async def _start(self, service: RunService, call: Call) -> Run:
        workflow = self._workflows.get(call.tool.name)
        if workflow is None:  # removed since the call began
            raise InvalidInput(f'"{call.tool.name}" is not offered any more')
        running = self._hub.chains.find_running(call.trace)
        request = RunStart(
            principal=call.principal,
            door=call.door,
            inputs=call.arguments,
            trigger=_build_trigger(call),
            callers=_list_callers(call),
            trace=call.trace.id,
            chain=call.trace.chain,
            labels=_find_labels(call, running),
            id=_choose_id(call),
        )
        try:
            return await service.start_permitted(workflow, request)
        except (StorageFailed, Overloaded) as error:
            if call.attempt and not (call.task is not None and isinstance(error, Overloaded)):
                # Nothing has begun, and the next attempt finds what may be stored. Only steps do
                # not wait for room, which the runs that they belong to take.
                call.notes.has_left = False
            raise

    async def _cancel(self, service: RunService, call: Call, id: str) -> None:
        try:
            await service.cancel(call.principal, id)
        except (HubError, OwnedElsewhere) as error:  # it has ended, or another hub took it over
            log.debug("a run was not cancelled with its call: %s", error)


async def _change_here(change: Awaitable[Run]) -> Run:
    """Awaits the change of a run for a call. A call that has begun is not forwarded any more."""
    try:
        return await change
    except OwnedElsewhere:
        raise Unreachable("another hub works on this run now; try again", sent=False) from None


class _RunFollower:
    """Follows one run for one call."""

    def __init__(self, call: Call) -> None:
        self._call = call
        self._changes: deque[tuple[Run, StepRecord | None]] = deque(maxlen=MAX_UPDATES)
        self._woken = asyncio.Event()
        self._done = 0

    def _note(self, run: Run, record: StepRecord | None) -> None:
        self._changes.append((run, record))
        self._woken.set()

    async def follow(self, service: RunService, run: Run) -> Run | Result:
        """Returns the ended run, or the questions of one of its steps."""
        stop = service.watch(run.id, self._note)
        try:
            if (found := await self._look_until_read(service, run)) is not None:
                return found
            while True:
                while self._changes:
                    found = self._take(*self._changes.popleft())
                    if found is not None:
                        return found
                self._woken.clear()
                try:
                    async with asyncio.timeout(LOOK_SECONDS):
                        await self._woken.wait()
                except TimeoutError:  # another hub may have ended or deleted it meanwhile
                    if (found := await self._look_until_read(service, run)) is not None:
                        return found
        finally:
            stop()

    async def _look_until_read(self, service: RunService, run: Run) -> Run | Result | None:
        """Finds how it stands now. A run that has begun goes on while the store cannot be read."""
        pauses = Backoff(first=0.1, longest=2.0)
        while True:
            try:
                now = await service.find(self._call.principal, run.id)
                return now if now.state in ENDED else await self.look(service, run)
            except StorageFailed as error:
                STORAGE_OUTAGE.note(f"calls cannot follow their workflow runs: {error}")
            await asyncio.sleep(pauses.next_delay())

    async def look(self, service: RunService, run: Run) -> Result | None:
        """Returns the questions of one of its steps, if one asks now."""
        for record in await service.load_steps(run.id):
            if (asked := self._find_questions(run, record)) is not None:
                return asked
        return None

    def _take(self, run: Run, record: StepRecord | None) -> Run | Result | None:
        if record is None:
            return run if run.state in ENDED else None
        self._report(record)
        return self._find_questions(run, record)

    def _report(self, record: StepRecord) -> None:
        if record.state == RUNNING:
            said = record.message or f"{record.path} has begun"
        else:
            self._done += record.state in (COMPLETED, SKIPPED)
            said = f"{record.path}: {record.state}"
            if record.state == WAITING and record.message:
                said = f"{said}: {record.message}"
        self._call.updates(Progress(progress=float(self._done), message=said))

    def _find_questions(self, run: Run, record: StepRecord) -> Result | None:
        """The questions of a step, if the client can answer them. Others may be answered by the
        API and the command line."""
        asked = record.detail.get("questions")
        if record.state != WAITING or not asked:
            return None
        questions = {
            name: Question(one["kind"], {key: one[key] for key in one if key != "kind"})
            for name, one in asked.items()
        }
        if not all(can_answer(one.kind, self._call.features) for one in questions.values()):
            return None
        return Result(questions=questions, handle=json.dumps([run.id, record.path]))


def _build_result(run: Run) -> Result:
    meta = {"_meta": {META: run.id}}
    if run.state != COMPLETED:
        why = f": {run.problem}" if run.problem else ""
        ended = "was cancelled" if run.state == CANCELLED else run.state
        raise WorkFailed(f'run "{run.id}" of workflow "{run.workflow}" {ended}{why}')
    output = run.output if isinstance(run.output, dict) else {"output": run.output}
    text = json.dumps(run.output, ensure_ascii=False)
    return Result(content=[{"type": "text", "text": text}], structured=output, extra=meta)


def _choose_id(call: Call) -> str:
    """The id of a run whose start may be repeated: the next attempt finds it."""
    if call.task is not None or not call.attempt:
        return call.attempt
    words = f"{call.principal.key}\0{call.tool.name}\0{call.attempt}"
    return sha256(words.encode("utf-8", "replace")).hexdigest()[:32]


def _build_trigger(call: Call) -> dict[str, str]:
    trigger = {"kind": "tool", "door": call.door}
    key = call.meta.get(KEY_META) if call.meta and call.door == DOOR else None
    return {**trigger, STEP_KEY: str(key)} if key else trigger


def _build_handle(id: str) -> str:
    return json.dumps([id, ""])


def _read_handle(handle: str) -> tuple[str, str]:
    try:
        id, path = json.loads(handle)
        return str(id), str(path)
    except (ValueError, TypeError):  # it was sealed, so another version has made it
        raise InvalidInput("the question has expired; start the call again") from None


def _list_callers(call: Call) -> tuple[RunPrincipal, ...]:
    """Lists those for whom the principal works, the first in the chain first."""
    found: list[RunPrincipal] = []
    above = call.trace.parent
    while above is not None:
        who = above.principal
        if who is not None and who != call.principal and who.kind != SCHEDULE:
            one = record_principal(who, above.door)
            if one not in found:
                found.append(one)
        above = above.parent
    return tuple(reversed(found))


def _find_labels(call: Call, running: RunningCall | None) -> Origins:
    """The taint labels of the arguments: those of the chain that has made them."""
    if running is None:
        return NO_ORIGINS
    above = running.parent
    labels = above.enforced_labels if above is not None else running.chain.labels
    known, other = running.chain.origins or {}, LabelOrigin(call.tool.name, call.trace.id)
    return {name: known.get(name, other) for name in labels}
