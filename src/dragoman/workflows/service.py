"""What the rest of the hub knows of runs: start, answer, cancel, retry, decide, list, watch.

A run belongs to the principal that started it: only that principal and administrators of its org
see and change it.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from random import getrandbits
from secrets import token_hex
from types import MappingProxyType
from typing import Any, Protocol
from weakref import WeakValueDictionary

from dragoman.core.access import WhyEnded, require_scope
from dragoman.core.admin_audit import record_done
from dragoman.core.approvals import PENDING, Approvals
from dragoman.core.background import Background
from dragoman.core.backoff import Backoff
from dragoman.core.call import NOTHING, Call
from dragoman.core.errors import (
    AuthorizationError,
    HubError,
    InvalidInput,
    NotFound,
    Overloaded,
    StorageFailed,
)
from dragoman.core.events import ApprovalDecided
from dragoman.core.hub import Hub
from dragoman.core.logs import STORAGE_OUTAGE
from dragoman.core.ports import AuditLog
from dragoman.core.principal import WORKFLOW, Principal
from dragoman.core.runs import (
    APPROVAL,
    CHILD,
    ENDED,
    FAILED,
    QUEUED,
    RUNNING,
    Run,
    RunFilter,
    RunOrigin,
    RunPrincipal,
    RunStore,
    StepRecord,
    build_awaited,
    record_principal,
)
from dragoman.core.scopes import CALL, WORKFLOWS
from dragoman.core.structs import Struct, replace
from dragoman.core.taint import NO_ORIGINS, Origins
from dragoman.core.tool import Tool
from dragoman.core.trace import Trace
from dragoman.workflows.active_run import ActiveRun, check_size
from dragoman.workflows.authorship import find_writer
from dragoman.workflows.event_waits import EventWaits
from dragoman.workflows.inputs import resolve_inputs
from dragoman.workflows.model import MANUAL, Workflow
from dragoman.workflows.run_calls import RunCalls
from dragoman.workflows.runner import Runner, Watcher, WithheldRun
from dragoman.workflows.waits import StepWaits

log = logging.getLogger(__name__)

PAGE = 500
"""Waiting steps that are checked at once after a start."""
DAY = 86_400.0
PRUNE_SECONDS = 600.0
SHARED_SECONDS = 1.0
"""How often what other hubs have done is read."""
EVENT_TURNS, AWAITED_TURNS = 3, 30
"""After so many of these turns, what runs wait for is read, too."""
RETRY_SECONDS = 1.0
"""After a failure of the store."""
ADD_SECONDS = 1.0
"""For so long a new run that cannot be stored is tried again."""
CLOSE_SECONDS = 2.0
"""For so long a hub that stops tries to delete runs whose start it has refused."""


class WorkflowSource(Protocol):
    def find(self, name: str) -> Workflow:
        """Returns the version that is in force. Raises `NotFound` or `InvalidInput`."""


class RetentionLimits(Struct, frozen=True, kw_only=True):
    unfinished: int
    """Runs that are not finished; more are refused."""
    keep_days: float
    keep_runs: int
    """Finished runs."""


class RunStart(Struct, frozen=True, kw_only=True):
    """A request to run a workflow."""

    principal: Principal
    door: str
    inputs: Mapping[str, Any] = NOTHING
    agents: Mapping[str, str] = NOTHING
    """Agents for the references of the workflow."""
    trigger: Mapping[str, Any] = MappingProxyType({"kind": MANUAL})
    callers: tuple[RunPrincipal, ...] = ()
    trace: str = ""
    chain: tuple[str, ...] = ()
    labels: Origins = NO_ORIGINS
    """The taint labels of the inputs."""
    id: str = ""
    """For a start that may be repeated: a run whose id exists is not started again."""
    is_occurrence: bool = False
    """Whether it is due even if this request fails, as that of a trigger is: what may be stored of
    it then is executed. Any other run is executed only if its starter has got its id."""


class RunService:
    """The runs of workflows."""

    def __init__(
        self,
        hub: Hub,
        store: RunStore,
        workflows: WorkflowSource,
        runner: Runner,
        waits: StepWaits,
        events: EventWaits,
        calls: RunCalls,
        find_approvals: Callable[[], Approvals],
        audit: AuditLog,
        retention: RetentionLimits,
        build_tool: Callable[[Workflow], Tool],
        clock: Callable[[], float] = time.time,
    ) -> None:
        """`build_tool` builds the tool of a workflow, on which policies decide."""
        self._hub = hub
        self._store = store
        self._workflows = workflows
        self._runner = runner
        self._waits = waits
        self._events = events
        self._calls = calls
        self._find_approvals = find_approvals
        self._audit = audit
        self._retention = retention
        self._build_tool = build_tool
        self._clock = clock
        self._starting: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()
        """Locks of the ids that are being started; one that is not used any more is gone."""
        self._doubtful: dict[str, Run] = {}
        """Occurrences that are counted, and of which it is unknown whether they are stored."""
        self._counting: asyncio.Task[None] | None = None
        self._dropping: asyncio.Task[None] | None = None
        self._background = Background("the watches of workflow runs")

    async def open(self) -> None:
        """Continues unfinished runs, and follows what others wait for."""
        self._hub.bus.observe(ApprovalDecided, self._note_decision, "the runs that wait for it")
        await self._runner.open()
        self._background.spawn(self._catch_up())
        self._background.spawn(self._keep_pruning())
        if self._store.is_shared:
            self._background.spawn(self._follow_others())

    def begin_stop(self) -> None:
        """Lets no more steps begin: the hub is stopping."""
        self._runner.begin_stop()

    async def close(self) -> None:
        self._events.close()
        await self._background.close()
        with contextlib.suppress(StorageFailed, TimeoutError):
            async with asyncio.timeout(CLOSE_SECONDS):  # the next start would execute them
                for one in [one for one in self._runner.withheld.values() if one.is_refused]:
                    await self._drop(one)
        await self._runner.close()
        await self._store.aclose()

    def end_principals(self, why_ended: WhyEnded) -> None:
        """Implements `ServesPrincipals`, for the runs in memory; others find out when they wake."""
        for run in self._runner.list_active():
            if why := self._calls.explain_ended(run):
                self._runner.deliver(run.id, _build_end(why, self._clock()))

    # --- starting --------------------------------------------------------------------------------

    async def start(self, name: str, request: RunStart) -> Run:
        """Starts a run of the workflow of that name; returns once that is stored."""
        workflow = self._workflows.find(name)
        self._check_permitted(workflow, request)
        return await self.start_permitted(workflow, request)

    async def start_permitted(self, workflow: Workflow, request: RunStart) -> Run:
        """Starts a run that the policies have permitted already."""
        origin = RunOrigin(
            starter=record_principal(request.principal, request.door),
            callers=request.callers,
            trigger=request.trigger,
            agents=request.agents,
            trace=request.trace or f"{getrandbits(128):032x}",
            chain=request.chain,
        )
        origin = self._add_author(workflow, origin, request.inputs)
        run = self._build_run(workflow, request.inputs, origin)
        run = replace(run, labels=request.labels, id=request.id or run.id)
        # A client that disconnects now has started it, or has not.
        return await self._background.run_to_completion(self._add(run, workflow, request))

    async def _add(self, run: Run, workflow: Workflow, request: RunStart) -> Run:
        if not request.id:
            return await self._add_new(run, workflow, request)
        async with self._find_lock(run.id):  # of two starts with one id, one finds the other
            is_refused = run.id in self._runner.withheld
            found = None if is_refused else await self._store.find(run.id)
            if found is None:
                return await self._add_new(run, workflow, request)
            if found.state == QUEUED and await self._store.adopt(found.id):
                self._runner.begin(found, is_untouched=False)
            return found

    def _find_lock(self, id: str) -> asyncio.Lock:
        return self._starting.setdefault(id, asyncio.Lock())

    async def _add_new(self, run: Run, workflow: Workflow, request: RunStart) -> Run:
        withheld = self._runner.withheld.get(run.id)
        is_new = withheld is None  # else its first start was refused
        if withheld is None:
            if self._doubtful.pop(run.id, None) is None:
                self._runner.count(run, 1)  # before it can end
            withheld = WithheldRun(
                run=replace(run, inputs=NOTHING), hubs=set(), is_promised=bool(request.id)
            )
            self._runner.withheld[run.id] = withheld
        try:
            is_first = await self._store_new(run, workflow.source, withheld.hubs)
        except BaseException:
            if request.is_occurrence:
                self._release(withheld.run)
            else:
                self._refuse(withheld)
            raise
        del self._runner.withheld[run.id]
        self._runner.begin(run, is_untouched=is_first and is_new)
        return run

    async def _store_new(self, run: Run, source: str, hubs: set[str]) -> bool:
        """Stores a run, and returns whether the first attempt succeeded. An answer may be lost on
        its way from a server that has stored the run: the next attempt has the same id. Adds the
        ids of this hub that the attempts had to `hubs`."""
        loop, pauses = asyncio.get_running_loop(), Backoff(first=0.1, longest=0.4)
        until = loop.time() + ADD_SECONDS
        while True:
            hubs.add(self._store.hub)
            try:
                await self._store.add(run, source)
                return not pauses.failures
            except StorageFailed:
                if loop.time() >= until:
                    raise
            await asyncio.sleep(pauses.next_delay())

    def _release(self, run: Run) -> None:
        """Lets an occurrence whose start has failed be executed if the store has it. Where the
        counts are not read again, it counts as unfinished until that is known. `run` has no
        inputs."""
        del self._runner.withheld[run.id]
        if self._store.is_shared:
            self._runner.count(run, -1)
            return
        self._doubtful[run.id] = run
        if self._counting is None or self._counting.done():
            self._counting = self._background.spawn(self._count_doubtful())

    async def _count_doubtful(self) -> None:
        while self._doubtful:
            await asyncio.sleep(RETRY_SECONDS)
            try:
                for id, run in list(self._doubtful.items()):
                    is_stored = await self._store.find(id) is not None
                    # It may have been started again meanwhile.
                    if self._doubtful.pop(id, None) is not None and not is_stored:
                        self._runner.count(run, -1)
            except StorageFailed as error:
                STORAGE_OUTAGE.note(f"workflow runs cannot be counted: {error}")

    def _refuse(self, withheld: WithheldRun) -> None:
        """Keeps a run whose start has failed from being executed. It counts as unfinished until the
        store is known not to have it, which also limits how many there are."""
        withheld.is_refused = True
        if self._dropping is None or self._dropping.done():
            self._dropping = self._background.spawn(self._drop_refused())

    async def _drop_refused(self) -> None:
        withheld = self._runner.withheld
        while refused := [one for one in withheld.values() if one.is_refused]:
            await asyncio.sleep(RETRY_SECONDS)
            try:
                for one in refused:
                    await self._drop(one)
            except StorageFailed as error:
                STORAGE_OUTAGE.note(f"refused workflow runs cannot be deleted: {error}")

    async def _drop(self, withheld: WithheldRun) -> None:
        """Deletes a run whose start was refused. One that a hub which counted as dead has left in
        the queue is deleted too, unless its starter may have found it there."""
        run = withheld.run
        async with self._find_lock(run.id):  # it may be started again
            if run.id in self._runner.withheld:
                await self._store.drop(run, () if withheld.is_promised else withheld.hubs | {""})
                del self._runner.withheld[run.id]
                self._runner.count(run, -1)

    def build_child(
        self, name: str, inputs: Mapping[str, Any], origin: RunOrigin
    ) -> tuple[Run, str]:
        """Implements `waits.BuildChild`. The step of the parent needs the permission that any
        start needs: the starter, and those for whom it acts, with the rights that they have now."""
        workflow = self._workflows.find(name)
        origin = self._add_author(workflow, origin, inputs)
        for principal, door in self._calls.list_principals(origin):
            self._check_permitted(workflow, RunStart(principal=principal, door=door, inputs=inputs))
        run = self._build_run(workflow, inputs, origin)
        self._runner.count(run, 1)  # at once: a loop starts many before the first is stored
        return run, workflow.source

    def _build_run(self, workflow: Workflow, inputs: Mapping[str, Any], origin: RunOrigin) -> Run:
        self._check_room(origin.starter)
        values = resolve_inputs(workflow, inputs)
        check_size(values, "the inputs")
        missing = [name for name in workflow.missing_agents if name not in origin.agents]
        if missing:
            raise InvalidInput(
                f'the workflow "{workflow.name}" needs an agent for the reference "{missing[0]}": '
                f'give it as {{"agents": {{"{missing[0]}": NAME}}}}, or with --agent '
                f"{missing[0]}=NAME"
            )
        known = {*workflow.agents, *workflow.missing_agents}
        if unknown := origin.agents.keys() - known:
            raise InvalidInput(
                f'the workflow "{workflow.name}" has no agent reference "{min(unknown)[:80]}"'
            )
        self._runner.compile(workflow)
        return Run(
            id=token_hex(6),
            workflow=workflow.name,
            digest=workflow.digest,
            origin=origin,
            inputs=values,
            created_at=self._clock(),
        )

    def _add_author(
        self, workflow: Workflow, origin: RunOrigin, inputs: Mapping[str, Any]
    ) -> RunOrigin:
        """A run that a trigger has started acts for the author of its definition, besides: what the
        API may write must not call what its writer may not. Raises `AuthorizationError`."""
        if all(one.kind != WORKFLOW for one in (origin.starter, *origin.callers)):
            return origin
        writer = find_writer(workflow)
        if writer is None:
            return origin
        if writer not in origin.callers:
            origin = replace(origin, callers=(*origin.callers, writer))
        what = f'the start of the workflow "{workflow.name}"'
        require_scope(writer.build_principal(), CALL, what)  # renewed, a user has it at any rate
        principal = self._calls.build_principal(writer)
        require_scope(principal, CALL, what)
        self._check_permitted(
            workflow, RunStart(principal=principal, door=writer.door, inputs=inputs)
        )
        return origin

    def _check_room(self, starter: RunPrincipal) -> None:
        """Raises `Overloaded` if too many runs are unfinished; one principal may have half of
        them."""
        unfinished, most = self._runner.unfinished, self._retention.unfinished
        own = unfinished[starter.org, f"{starter.kind}:{starter.id}"]
        if unfinished.total() >= most or own >= (most + 1) // 2:
            raise Overloaded(
                f"{unfinished.total()} runs are unfinished, {own} of them of "
                f'"{starter.kind}:{starter.id}", which is the limit ([workflows] max_unfinished); '
                "wait for some of them, or cancel them"
            )

    def _check_permitted(self, workflow: Workflow, request: RunStart) -> None:
        """Raises unless the policies permit the principal to call the workflow as a tool."""
        tool, principal = self._build_tool(workflow), request.principal
        call = Call(principal, tool, tool.name, request.inputs, Trace("0" * 32), request.door)
        authorizer = self._hub.authorizer
        is_known = authorizer.can_see(principal, tool, request.door)  # by grants and views, too
        decision = authorizer.decide(call)
        if not is_known or not decision.allowed:
            if not authorizer.can_list(principal, tool):
                raise NotFound(f'there is no workflow "{workflow.name}"')
            raise AuthorizationError(
                f'"{tool.name}" was refused: no policy permits "{principal.label}" to call it. '
                "See: dragoman docs policies"
            )
        if decision.approval is not None:  # only a call of the tool can wait for it
            raise AuthorizationError(
                f'"{tool.name}" was refused: it needs an approval ({decision.approval.reason}). '
                "Expose the workflow and call it as a tool: such a call waits for the approval"
            )

    # --- what people do with a run ---------------------------------------------------------------

    async def cancel(self, principal: Principal, id: str) -> Run:
        now, why = self._clock(), f"{principal.label} has cancelled it"
        return await self._change(
            principal, id, "run.cancel", lambda active: active.cancel(now, why)
        )

    async def retry(self, principal: Principal, id: str) -> Run:
        now = self._clock()
        return await self._change(principal, id, "run.retry", lambda active: active.retry(now))

    async def resume(self, principal: Principal, id: str, path: str, decision: str) -> Run:
        now, by = self._clock(), principal.label
        return await self._change(
            principal, id, "run.resume", lambda active: active.decide(path, decision, by, now)
        )

    async def answer(
        self, principal: Principal, id: str, path: str, answers: Mapping[str, Any]
    ) -> Run:
        return await self._change(
            principal, id, "run.answer", lambda active: active.answer(path, answers)
        )

    async def _change(
        self, principal: Principal, id: str, verb: str, action: Callable[[ActiveRun], None]
    ) -> Run:
        await self.find(principal, id)
        run = await self._runner.change(id, action)
        record_done(self._audit, verb, id, principal.label, "api", {}, org=principal.org)
        return run

    # --- reading ---------------------------------------------------------------------------------

    async def find(self, principal: Principal, id: str) -> Run:
        """Finds a run that the principal may see. Raises `NotFound`."""
        run = await self._store.find(id)
        if run is None or id in self._runner.withheld or not self.may_see(principal, run):
            raise NotFound(f'there is no run "{id[:64]}"')
        return run

    def may_see(self, principal: Principal, run: Run) -> bool:
        if run.org != principal.org:
            return False
        return run.owner == principal.label or self._is_admin(principal)

    async def load_steps(self, id: str) -> list[StepRecord]:
        """Loads the executions of steps, with the last messages of those that run."""
        return [
            replace(one, message=self._runner.find_message(id, one.path) or one.message)
            if one.state == RUNNING
            else one
            for one in await self._store.load_steps(id)
        ]

    async def find_workflow(self, run: Run) -> Workflow | None:
        """The version that the run is of; None if it cannot be read any more."""
        source = await self._store.find_source(run.digest)
        try:
            return self._runner.find_workflow(run, source)
        except HubError:
            return None

    async def list_runs(
        self,
        principal: Principal,
        workflow: str = "",
        states: tuple[str, ...] = (),
        limit: int = 50,
        cursor: str = "",
    ) -> tuple[list[Run], str]:
        """Lists the principal's runs, and for administrators all of their org."""
        owner = "" if self._is_admin(principal) else principal.label
        wanted = RunFilter(org=principal.org, owner=owner, workflow=workflow, states=states)
        runs, cursor = await self._store.list_runs(wanted, limit, cursor)
        return [run for run in runs if run.id not in self._runner.withheld], cursor

    def watch(self, id: str, watcher: Watcher) -> Callable[[], None]:
        return self._runner.watch(id, watcher)

    def follow(self, id: str) -> AbstractContextManager[None]:
        """Lets a run advance for which a call of another run waits, whatever room there is."""
        return self._runner.follow(id)

    def _is_admin(self, principal: Principal) -> bool:
        return self._hub.authorizer.decide_action(principal, WORKFLOWS).allowed

    # --- what others decide ----------------------------------------------------------------------

    def _note_decision(self, event: ApprovalDecided) -> None:
        self._background.spawn(self._take_decision(build_awaited(APPROVAL, event.id)))

    async def _take_decision(self, awaited: str) -> None:
        while True:
            try:
                found = await self._store.list_awaiting(awaited, PAGE)
                break
            except StorageFailed as error:
                STORAGE_OUTAGE.note(f"a decision cannot be passed to its run: {error}")
                await asyncio.sleep(RETRY_SECONDS)
        for run, path, _ in found:
            self._check_step(run, path)

    def _check_step(self, run: str, path: str) -> None:
        def check(active: ActiveRun) -> None:
            record = active.steps.get(path)
            if record is not None:
                self._waits.check(active, record, self._clock())

        self._runner.deliver(run, check)

    async def _catch_up(self) -> None:
        """Takes up what runs have waited for while the hub was stopped, as soon as the store can
        be read: no other hub does it for a hub that is alone."""
        while True:
            try:
                await self._events.open()
                await self._check_awaited()
                return
            except StorageFailed as error:
                STORAGE_OUTAGE.note(f"it is not known yet what runs have waited for: {error}")
                await asyncio.sleep(RETRY_SECONDS)

    async def _check_awaited(self) -> None:
        """Finds what has been decided, and which runs have ended, while the hub was stopped."""
        for kind, check in ((APPROVAL, self._check_approval), (CHILD, self._check_child)):
            after = ("", "")
            while page := await self._store.list_awaiting(build_awaited(kind, ""), PAGE, after):
                for run, path, awaited in page:
                    await check(run, path, awaited.partition(" ")[2])
                    await asyncio.sleep(0)
                after = page[-1][:2]

    async def _check_approval(self, run: str, path: str, id: str) -> None:
        approval = self._find_approvals().find(id)
        if approval is None or approval.state != PENDING:
            self._check_step(run, path)

    async def _check_child(self, run: str, path: str, id: str) -> None:
        child = await self._store.find(id)
        if child is not None and child.state in ENDED:
            now = self._clock()
            self._runner.deliver(
                run, lambda active: self._waits.take_child(active, path, child, now)
            )

    async def _follow_others(self) -> None:
        """Takes part in the work of the hubs that share the store, without end. What waits for an
        event or a decision is known to all of them: it may come to any."""
        turn = 0
        while True:
            await asyncio.sleep(SHARED_SECONDS)
            turn += 1
            try:
                rescued = await self._runner.follow_others()
                if turn % EVENT_TURNS == 0:
                    await self._events.open()
                if rescued or turn % AWAITED_TURNS == 0:
                    await self._check_awaited()
            except StorageFailed as error:
                STORAGE_OUTAGE.note(f"the runs of other hubs cannot be followed: {error}")

    async def _keep_pruning(self) -> None:
        """Deletes old runs, without end."""
        keep = self._retention
        while True:
            with contextlib.suppress(StorageFailed):
                before = self._clock() - keep.keep_days * DAY
                while await self._store.prune(before, keep.keep_runs):
                    await asyncio.sleep(0.05)
            await asyncio.sleep(PRUNE_SECONDS)


def _build_end(why: str, now: float) -> Callable[[ActiveRun], None]:
    def end(active: ActiveRun) -> None:
        if not active.is_ended:
            active.cancel(now, f"it was refused: {why}", FAILED)

    return end
