"""Advances runs: plans, journals what it is about to do, does it, and journals the outcome.

A run is in memory while its calls run; one that only waits, also for a task of a remote agent, is a
row in the store. Everything that changes a run passes through its driver, one after the other.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
import time
from collections import Counter, OrderedDict, deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import Protocol

from dragoman.core.background import STOPPING, Background
from dragoman.core.bus import Bus
from dragoman.core.call import BEGIN, FIND, POLL, Progress, TaskNamed, Update
from dragoman.core.cluster import OwnedElsewhere
from dragoman.core.errors import (
    ApprovalPending,
    HubError,
    InvalidInput,
    NotFound,
    ShuttingDown,
    StorageFailed,
    Unreachable,
    WorkFailed,
)
from dragoman.core.events import RunChanged, StepChanged
from dragoman.core.hub import Hub
from dragoman.core.logs import STORAGE_OUTAGE
from dragoman.core.runs import (
    CANCELLED,
    COMPLETED,
    ENDED,
    FAILED,
    NEEDS_DECISION,
    QUEUED,
    RUNNING,
    STEP_KEY,
    WAITING,
    Run,
    RunStore,
    RunTaken,
    StepRecord,
)
from dragoman.core.secret_rules import Author
from dragoman.core.structs import Struct, replace
from dragoman.core.taint import NO_ORIGINS
from dragoman.core.tool_filter import EVERYTHING
from dragoman.workflows.active_run import (
    PARKED,
    TAKE_UP,
    ActiveRun,
    add_leak,
    build_attempt,
    check_size,
    clip,
    drop_leak,
    find_run_of_key,
)
from dragoman.workflows.compiled import CompiledWorkflow
from dragoman.workflows.machine import ReadyStep
from dragoman.workflows.model import ACTING, Workflow
from dragoman.workflows.parked_tasks import ParkedTasks, is_polled
from dragoman.workflows.run_calls import NO_RESULT, CallOutcome, RunCall, RunCalls
from dragoman.workflows.step_calls import DISPATCH_TOOL, StepAgents, build_call, can_repeat
from dragoman.workflows.task_cancellation import TaskCanceller
from dragoman.workflows.waits import StepWaits

log = logging.getLogger(__name__)

MAX_COMPILED = 100
"""Versions of workflows whose templates are kept parsed."""
RESCUE_SECONDS = 30.0
"""For so long, runs of other hubs that are continued count to one episode in the log."""
STARTING_SECS = 60.0
"""For so long after the start, agents that are not found yet are expected soon."""


class RunLimits(Struct, frozen=True, kw_only=True):
    advancing: int = 8
    """Runs that are advanced at once; one whose calls take long does not count."""
    active: int = 256
    """Runs in memory: those that are advanced, and those whose calls take long."""
    long_call_secs: float = 1.0
    longest_wait: float = 30.0
    """Seconds after which the clock is read again, which may have been set."""
    retry_secs: float = 1.0
    """After a failure of the store."""
    stop_secs: float = 3.0
    """How long running calls may take to end when the hub stops."""
    save_secs: float = 0.4
    """How long their outcomes may take to be stored then."""


class Definitions(Protocol):
    def parse(self, name: str, source: str) -> Workflow:
        """Loads the version of a workflow that a run began with. Raises `InvalidInput`."""


FindVariables = Callable[[Workflow], Mapping[str, str]]
"""Reads the variables that a workflow declares, as far as they are set. Raises `ConfigError` for
one that its author may not use."""
Action = Callable[[ActiveRun], None]
"""Changes a run. Raises a `HubError` if that is not possible."""
Watcher = Callable[[Run, StepRecord | None], None]
"""Gets the run after each change, with the step if one has changed."""


class WithheldRun(Struct, kw_only=True):
    """A run that may be stored, but whose start has not succeeded."""

    run: Run
    """Without its inputs."""
    hubs: set[str]
    """The ids that this hub had when it tried to store the run."""
    is_promised: bool
    """Whether its starter has chosen the id: once this hub counts as dead, another one may have
    told the starter that the run exists."""
    is_refused: bool = False
    """Whether the start has failed."""


class _Driver:
    """What advances one run, while it is in memory."""

    def __init__(self, id: str) -> None:
        self.id = id
        self.active: ActiveRun | None = None
        self.inbox: deque[tuple[Action, asyncio.Future[Run] | None]] = deque()
        self.applied: list[asyncio.Future[Run]] = []
        """Futures of actions that are not stored yet."""
        self.outcomes: deque[tuple[str, RunCall, CallOutcome | HubError]] = deque()
        self.calls: dict[str, asyncio.Task[None]] = {}
        self.woken = asyncio.Event()
        self.due = 0.0
        """When something in the run is due besides what is done now; 0: nothing is."""
        self.is_busy = True
        self.is_retried = False
        """Whether the store failed: another driver takes over."""


class Runner:
    def __init__(
        self,
        hub: Hub,
        store: RunStore,
        definitions: Definitions,
        calls: RunCalls,
        waits: StepWaits,
        agents: StepAgents,
        find_variables: FindVariables,
        tasks: ParkedTasks,
        canceller: TaskCanceller,
        limits: RunLimits,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._hub = hub
        self._bus: Bus = hub.bus
        self._store = store
        self._definitions = definitions
        self._calls = calls
        self._waits = waits
        self._agents = agents
        self._find_variables = find_variables
        self._tasks = tasks
        self._canceller = canceller
        self._limits = limits
        self._clock = clock
        self._drivers: dict[str, _Driver] = {}
        self._busy = 0
        self._background = Background("workflow runs")
        self._call_tasks = Background("calls of workflow runs")
        self._followed: dict[str, asyncio.TimerHandle | None] = {}
        """Runs for which a call of another run waits, with the timers that wake them."""
        self._compiled: OrderedDict[str, CompiledWorkflow] = OrderedDict()
        self._watchers: dict[str, list[Watcher]] = {}
        self._rescued_at = -math.inf
        """When runs of other hubs were last continued, by the clock of the loop."""
        self._shown: dict[str, tuple[Run, dict[str, StepRecord]]] = {}
        """The runs of other hubs that are watched, as their watchers know them."""
        self._is_filling = self._fills_again = self._is_closing = False
        self._next_wake = self._opened_at = 0.0
        self._clock_woken = asyncio.Event()
        self._turns = asyncio.Lock()
        self.unfinished: Counter[tuple[str, str]] = Counter()
        """Runs that have not ended, by org and owner."""
        self.withheld: dict[str, WithheldRun] = {}
        """They stay in the queue."""
        self.on_wait: Callable[[Run, StepRecord], None] = lambda run, record: None
        """Called with each step that waits, once that is stored."""

    # --- start and stop --------------------------------------------------------------------------

    async def open(self) -> None:
        """Continues the runs that a hub has left unfinished."""
        self._opened_at = self._clock()
        self.unfinished.update(await self._store.count_unfinished())
        if count := await self._store.requeue_running():
            log.info("%d workflow runs were interrupted by the stop of the hub", count)
        self._background.spawn(self._watch_clock())
        self.fill()

    def begin_stop(self) -> None:
        """Lets no more steps begin."""
        self._is_closing = True

    async def close(self) -> None:
        """Lets running calls end, for a moment; the runs continue with the next start."""
        self.begin_stop()
        await self._wait_for_drivers(self._limits.stop_secs)
        await self._call_tasks.close(reason=STOPPING)
        await self._wait_for_drivers(self._limits.save_secs)
        await self._background.close()
        await self._canceller.close()

    async def _wait_for_drivers(self, seconds: float) -> None:
        """Waits until the drivers have stored how their calls ended: a step whose end is not stored
        counts as interrupted."""
        for driver in self._drivers.values():
            driver.woken.set()
        loop = asyncio.get_running_loop()
        until = loop.time() + seconds
        while self._drivers and loop.time() < until:
            await asyncio.sleep(0.01)

    @property
    def active_count(self) -> int:
        return len(self._drivers)

    def compile(self, workflow: Workflow) -> CompiledWorkflow:
        """Parses the templates of a version once."""
        key = workflow.digest
        known = self._compiled.get(key)
        # A version of a database is the owner's once it is in a file of the owner.
        is_raised = known is not None and known.workflow.author is not workflow.author
        if known is None or not key or (is_raised and workflow.author is Author.OWNER):
            known = self._compiled[key] = CompiledWorkflow(workflow)
            if len(self._compiled) > MAX_COMPILED:
                self._compiled.popitem(last=False)
        self._compiled.move_to_end(key)
        return known

    def find_workflow(self, run: Run, source: str | None) -> Workflow:
        """The version of its workflow that a run is of. Raises `InvalidInput`."""
        known = self._compiled.get(run.digest)
        if known is None:
            found = self._definitions.parse(run.workflow, source or "")
            if found.digest != run.digest:  # the database may be written by others
                raise InvalidInput(f'the stored definition of run "{run.id}" was changed')
            known = self.compile(found)
        return known.workflow

    # --- entry points ----------------------------------------------------------------------------

    def begin(self, run: Run, is_untouched: bool) -> None:
        """Advances a run that was just stored: at once if there is room, or if it is the only one
        of its owner, which need not wait for the many of another. One that may have been stored
        earlier is not untouched: it may have been advanced since, and is read again."""
        if is_untouched:
            self.announce(run)
        if run.id in self._drivers:
            return  # it was taken from the queue meanwhile
        has_room = (
            self._busy < self._limits.advancing or self._is_alone(run) or run.id in self._followed
        )
        if has_room and not self._is_closing:
            active = None
            with contextlib.suppress(HubError):  # the driver reports it
                if is_untouched and run.digest in self._compiled:
                    active = self._build_active(run, None, {})
            self._open_driver(run.id, active)
        else:
            self.fill()

    def _is_alone(self, run: Run) -> bool:
        if len(self._drivers) >= self._limits.active:
            return False
        return self.unfinished[run.org, run.owner] == 1

    def count(self, run: Run, more: int) -> None:
        """Counts a run that is about to be stored, or has ended."""
        key = run.org, run.owner
        self.unfinished[key] += more
        if self.unfinished[key] <= 0:
            del self.unfinished[key]

    async def change(self, id: str, action: Action) -> Run:
        """Applies an action to a run, and returns the run once that is stored. Raises a
        `HubError`."""
        done: asyncio.Future[Run] = asyncio.get_running_loop().create_future()
        self.deliver(id, action, done)
        return await done

    def deliver(self, id: str, action: Action, done: asyncio.Future[Run] | None = None) -> None:
        driver = self._drivers.get(id) or self._open_driver(id)
        driver.inbox.append((action, done))
        driver.woken.set()

    def watch(self, id: str, watcher: Watcher) -> Callable[[], None]:
        """Calls the watcher after each change of a run; returns what ends that."""
        self._watchers.setdefault(id, []).append(watcher)

        def end() -> None:
            left = [one for one in self._watchers.get(id, ()) if one is not watcher]
            if left:
                self._watchers[id] = left
            else:
                self._watchers.pop(id, None)

        return end

    def find_message(self, id: str, path: str) -> str:
        """The last message of a step that is executed now, which is not stored yet."""
        driver = self._drivers.get(id)
        record = driver.active.steps.get(path) if driver is not None and driver.active else None
        return record.message if record is not None else ""

    async def follow_others(self) -> int:
        """Continues the runs of hubs that have ended, and tells those who watch a run what another
        hub has done with it. Called again and again where hubs share the store. Returns how many
        runs are continued."""
        if count := await self._store.rescue():
            # What a hub that has ended had begun to write is found in the seconds after its end.
            now = asyncio.get_running_loop().time()
            level = logging.WARNING if now - self._rescued_at > RESCUE_SECONDS else logging.INFO
            self._rescued_at = now
            log.log(level, "%d workflow runs of other hubs are continued", count)
        for id in self._shown.keys() - self._watchers.keys():
            del self._shown[id]
        for id in [id for id in self._watchers if id not in self._drivers]:
            await self._show_changes(id)
        self.unfinished = Counter(await self._store.count_unfinished())
        for withheld in self.withheld.values():  # the store may not have them
            self.count(withheld.run, 1)
        self.fill()
        return count

    async def _show_changes(self, id: str) -> None:
        run = await self._store.find(id)
        if run is None:
            return
        steps = {one.path: one for one in await self._store.load_steps(id)}
        known = self._shown.get(id)
        self._shown[id] = run, steps
        if known is not None and known == (run, steps):
            return
        for watcher in self._watchers.get(id, ()):
            for path, record in steps.items():
                if known is not None and known[1].get(path) != record:
                    watcher(run, record)
            watcher(run, None)

    @contextmanager
    def follow(self, id: str) -> Iterator[None]:
        """While a call of another run waits for this run, it needs no room: the other one has a
        place already, and both would wait for each other if there were no more."""
        self._followed[id] = None
        self._wake_followed(id)
        try:
            yield
        finally:
            timer = self._followed.pop(id)
            if timer is not None:
                timer.cancel()

    def poll_soon(self, key: str) -> None:
        """Wakes the step whose calls have this key: its task has ended."""
        self.deliver(find_run_of_key(key), partial(_wake_step, key=key, now=self._clock()))

    def list_active(self) -> list[Run]:
        return [one.active.run for one in self._drivers.values() if one.active is not None]

    # --- the queue -------------------------------------------------------------------------------

    def fill(self) -> None:
        """Takes runs from the queue, as many as there is room for."""
        self._fills_again = True
        if not self._is_filling and not self._is_closing:
            self._is_filling = True
            self._background.spawn(self._fill())

    async def _fill(self) -> None:
        try:
            while self._fills_again and not self._is_closing:
                self._fills_again = False
                limits, count = self._limits, len(self._drivers)
                room = min(limits.advancing - self._busy, limits.active - count)
                if room <= 0:
                    return  # called again when one ends
                most = room + count + len(self.withheld)
                due = await self._store.list_due(self._clock(), most)
                drivers, withheld = self._drivers, self.withheld
                new = [id for id in due if id not in drivers and id not in withheld][:room]
                for id in new:
                    self._open_driver(id)
                self._fills_again = self._fills_again or bool(new)
        except StorageFailed as error:
            STORAGE_OUTAGE.note(f"workflow runs cannot be read: {error}")
        finally:
            self._is_filling = False

    async def _watch_clock(self) -> None:
        """Wakes runs whose time has come, without end."""
        while True:
            self._clock_woken.clear()
            try:
                self._next_wake = await self._store.find_next_wake()
            except StorageFailed as error:
                STORAGE_OUTAGE.note(f"workflow runs cannot be read: {error}")
                self._next_wake = self._clock() + self._limits.retry_secs
            wait = self._limits.longest_wait
            if self._next_wake:
                wait = min(wait, max(0.0, self._next_wake - self._clock()))
            if wait <= 0.0:
                self.fill()
                wait = 0.1  # they may have to wait for room
            try:
                async with asyncio.timeout(wait):
                    await self._clock_woken.wait()
            except TimeoutError:
                self.fill()

    def _note_wake(self, run: Run) -> None:
        at = run.wake_at
        if at and (not self._next_wake or at < self._next_wake):
            self._clock_woken.set()
        if at and run.id in self._followed:
            self._set_timer(run.id, at - self._clock())

    def _set_timer(self, id: str, seconds: float) -> None:
        if (timer := self._followed[id]) is not None:
            timer.cancel()
        loop = asyncio.get_running_loop()
        self._followed[id] = loop.call_later(max(0.0, seconds), self._wake_followed, id)

    def _wake_followed(self, id: str) -> None:
        if id not in self._drivers and not self._is_closing:
            self._open_driver(id)

    # --- drivers ---------------------------------------------------------------------------------

    def _open_driver(self, id: str, active: ActiveRun | None = None) -> _Driver:
        assert id not in self._drivers, "a run has one driver"
        driver = self._drivers[id] = _Driver(id)
        driver.active = active
        self._busy += 1
        self._background.spawn(self._drive(driver))
        return driver

    def _set_busy(self, driver: _Driver, is_busy: bool) -> None:
        if driver.is_busy is not is_busy:
            driver.is_busy = is_busy
            self._busy += 1 if is_busy else -1

    async def _drive(self, driver: _Driver) -> None:
        try:
            while True:
                await self._take_turn()
                if (active := driver.active) is None:  # one after the other, when many are woken
                    active = driver.active = await self._load(driver.id)
                driver.woken.clear()
                self._take_inbox(driver, active)
                self._take_outcomes(driver, active)
                self._advance(driver, active)
                await self._save(driver, active)
                self._start_calls(driver, active)
                if driver.inbox or driver.outcomes:
                    continue
                if active.is_ended or not driver.calls:
                    await self._store.release(driver.id)
                    break
                await self._wait(driver)
        except RunTaken as taken:
            self._refuse_taken(driver, taken)
            if driver.inbox:  # decisions, which are tried again
                self._set_busy(driver, False)
                await asyncio.sleep(self._limits.retry_secs)
        except StorageFailed as error:
            driver.is_retried = True
            self._refuse(driver, error)
            await asyncio.sleep(self._limits.retry_secs)
        except HubError as error:
            self._refuse(driver, error)
            await self._fail(driver, error)
        except asyncio.CancelledError:
            self._refuse(driver, ShuttingDown("the hub is stopping"))
            raise
        except Exception as error:
            log.exception('run "%s" cannot be advanced', driver.id)
            problem = WorkFailed(f'run "{driver.id}" cannot be advanced: {error!r}')
            self._refuse(driver, problem)
            await self._fail(driver, problem)
        finally:
            for task in driver.calls.values():
                task.cancel()
            self._set_busy(driver, False)
            del self._drivers[driver.id]
            self._reopen(driver)
            self.fill()

    def _refuse_taken(self, driver: _Driver, taken: RunTaken) -> None:
        """Lets the hub that works on the run answer those who wait for it."""
        error: BaseException = StorageFailed("the run was taken over by another hub; try again")
        if taken.hub:
            error = OwnedElsewhere(taken.hub)
        self._refuse_waiting(driver, error)

    def _reopen(self, driver: _Driver) -> None:
        """Continues with what has come since the driver failed, or what the store failed for."""
        if (driver.inbox or driver.is_retried) and not self._is_closing:
            self._open_driver(driver.id).inbox.extend(driver.inbox)

    async def _take_turn(self) -> None:
        """Lets one run advance, or one call begin, in every other turn of the event loop: between
        two of them, the calls of others make progress."""
        await self._turns.acquire()
        loop = asyncio.get_running_loop()
        loop.call_soon(loop.call_soon, self._turns.release)

    async def _load(self, id: str) -> ActiveRun:
        run = await self._store.claim(id)
        if run is None:
            raise NotFound(f'there is no run "{id[:64]}"')
        source = None
        if run.digest not in self._compiled:
            source = await self._store.find_source(run.digest)
        steps = {one.path: one for one in await self._store.load_steps(id)}
        active = self._build_active(run, source, steps)
        active.recover(self._clock())
        return active

    def _build_active(
        self, run: Run, source: str | None, steps: Mapping[str, StepRecord]
    ) -> ActiveRun:
        compiled = self.compile(self.find_workflow(run, source))
        workflow = compiled.workflow
        variables = self._find_variables(workflow) if workflow.env else {}
        return ActiveRun(run, compiled, steps, variables)

    def _refuse(self, driver: _Driver, error: HubError) -> None:
        """Tells those who wait for the driver that it has failed. What no caller waits for, such as
        a decision, is kept for the next driver if there will be one."""
        waiting = self._refuse_waiting(driver, error)
        if not driver.is_retried:
            driver.inbox.clear()
        if waiting or self._is_closing:
            return
        if isinstance(error, StorageFailed):
            STORAGE_OUTAGE.note(f'run "{driver.id}" is continued later: {error}')
        else:
            log.error("%s", error)

    def _refuse_waiting(self, driver: _Driver, error: BaseException) -> int:
        """Answers the callers that wait for the driver with the error, and returns how many they
        were."""
        waiting = [*driver.applied, *(done for _, done in driver.inbox if done is not None)]
        driver.applied.clear()
        driver.inbox = deque(one for one in driver.inbox if one[1] is None)
        for done in waiting:
            if not done.done():
                done.set_exception(error)
        return len(waiting)

    async def _fail(self, driver: _Driver, error: HubError) -> None:
        """Ends a run that cannot be advanced: its definition cannot be read any more."""
        id = driver.id
        try:
            run = await self._store.claim(id)
            if run is None or run.state in ENDED:
                return
            run = replace(run, state=FAILED, problem=clip(str(error)), ended_at=self._clock())
            await self._store.save(run)
            await self._store.release(id)
        except RunTaken:
            return
        except StorageFailed as problem:
            STORAGE_OUTAGE.note(f'run "{id}" cannot be stored: {problem}')
            driver.is_retried = True
            await asyncio.sleep(self._limits.retry_secs)
        else:
            self.count(run, -1)
            self.announce(run)
            self._tell_parent(run)

    async def _wait(self, driver: _Driver) -> None:
        """Waits for the end of a call, an action, or the time of something else in the run."""
        loop = asyncio.get_running_loop()
        timer = None
        if driver.due:
            timer = loop.call_later(max(0.0, driver.due - self._clock()), driver.woken.set)
        long_call = loop.call_later(self._limits.long_call_secs, self._release_slot, driver)
        try:
            await driver.woken.wait()
        finally:
            long_call.cancel()
            if timer is not None:
                timer.cancel()
            self._set_busy(driver, True)

    def _release_slot(self, driver: _Driver) -> None:
        self._set_busy(driver, False)
        self.fill()

    # --- advancing -------------------------------------------------------------------------------

    def _take_inbox(self, driver: _Driver, active: ActiveRun) -> None:
        while driver.inbox:
            action, done = driver.inbox.popleft()
            try:
                action(active)
            except HubError as error:
                if done is not None and not done.done():
                    done.set_exception(error)
            else:
                if done is not None:
                    driver.applied.append(done)

    def _take_outcomes(self, driver: _Driver, active: ActiveRun) -> None:
        now = self._clock()
        while driver.outcomes:
            path, call, outcome = driver.outcomes.popleft()
            record = active.steps[path]
            if isinstance(outcome, CallOutcome):  # an error is a text of its target, too
                active.add_labels(drop_leak(active.run, call, outcome.labels))
            else:
                outcome = CallOutcome(NO_RESULT, NO_ORIGINS, error=outcome)
            if call.action == POLL:
                self._tasks.take_poll(active, path, call, self._judge(record, outcome), now)
            elif record.state != RUNNING:
                continue  # the run was cancelled meanwhile
            elif outcome.error is not None:
                self._take_error(active, path, call, outcome.error, now)
            elif outcome.result.unfinished:
                self._tasks.park(active, path, call, outcome.result, now)
            else:
                active.take_result(path, call, outcome.result, outcome.agent, now)
                self._tasks.watch_question(active, path, outcome.result, now)

    def _take_error(
        self, active: ActiveRun, path: str, call: RunCall, error: HubError, now: float
    ) -> None:
        record = active.steps[path]
        if call.action == FIND:
            absence = self._agents.explain_absence(record.agent)
            self._tasks.take_find_error(active, path, error, bool(absence), now)
        elif isinstance(error, ApprovalPending):
            active.park(path, call, error)
        else:
            active.take_error(path, error, now, call)

    def _judge(self, record: StepRecord, outcome: CallOutcome) -> CallOutcome:
        """An agent that has become unavailable since its task was polled is not removed."""
        if not isinstance(outcome.error, NotFound):
            return outcome
        absence = self._agents.explain_absence(record.agent)
        return outcome._replace(error=Unreachable(absence)) if absence else outcome

    def _advance(self, driver: _Driver, active: ActiveRun) -> None:
        if active.is_ended:
            return
        now = self._clock()
        seconds, deadline = active.compiled.workflow.timeout_secs, active.deadline
        if 0 < deadline <= now:
            active.cancel(now, f"the run took longer than {seconds:g} s", FAILED)
            return
        for record in list(active.steps.values()):
            if record.state == WAITING and 0 < record.wake_at <= now:
                if is_polled(record):
                    self._poll(driver, active, record, now)
                else:
                    self._waits.check(active, record, now)
        while True:
            plan = active.plan(now)
            if not plan.ready or self._is_closing:
                break
            for one in plan.ready:
                self._begin_step(active, one, now)
        if plan.state in (COMPLETED, FAILED):
            active.conclude(plan, now)
            return
        state = QUEUED if self._is_closing and plan.state == RUNNING else plan.state
        due = [at for at in (plan.wake_at, deadline) if at]
        driver.due = min(due, default=0.0)
        # What is polled now is due still: a hub that stops meanwhile must find it so.
        due += [one.wake_at for one in active.steps.values() if is_polled(one) and one.wake_at]
        active.run = replace(active.run, state=state, wake_at=min(due, default=0.0))

    def _poll(self, driver: _Driver, active: ActiveRun, record: StepRecord, now: float) -> None:
        """Prepares to ask for the task of a step; its record stays as it is meanwhile."""
        if record.path in driver.calls or self._is_closing:
            return
        if record.tool == DISPATCH_TOOL:
            self._agents.prepare_dispatch()
        call = self._tasks.build_poll(active, record, now)
        if call is None:
            return
        if absence := self._agents.explain_absence(record.agent):
            is_new = now - self._opened_at < STARTING_SECS
            self._tasks.postpone(active, record, now, absence, is_new)
        else:
            active.prepared[record.path] = call

    def _begin_step(self, active: ActiveRun, ready: ReadyStep, now: float) -> None:
        step, path, old = ready.step.step, ready.path, ready.record
        if old is not None and PARKED in old.detail:
            active.put(replace(old, attempt=old.attempt + 1))
            active.make_parked(path)
            return
        is_lost = old is not None and TAKE_UP in old.detail
        record = StepRecord(
            path=path,
            step=step.id,
            node=step.node,
            state=RUNNING,
            attempt=(old.attempt if old is not None else 0) + (not is_lost),
            key=old.key if old is not None and old.key else active.build_key(path),
            started_at=old.started_at if old is not None and old.started_at else now,
            detail={} if old is None else old.detail,
        )
        active.put(record)
        try:
            config = ready.step.render(ready.scope)
            check_size(config, f'the settings of step "{path}"')
            if step.node not in ACTING:
                self._waits.begin(active, record, config, now)
                return
            call = build_call(step.node, config, self._agents)
        except HubError as error:
            active.take_error(path, error, now)
            return
        tool = self._hub.find(call.tool, EVERYTHING)
        repeats = step.repeatable or can_repeat(tool)
        finds = is_lost or tool.target.traits.finds_tasks
        agent = call.agent or (tool.bridged.agent if tool.bridged is not None else "")
        agent = agent or (old.agent if old is not None else "")
        record = replace(record, tool=call.tool, agent=agent, can_repeat=repeats)
        active.put(replace(record, can_find=finds))
        attempt = build_attempt(record)
        active.prepared[path] = RunCall(
            tool=call.tool,
            arguments=call.arguments,
            leaks=active.find_leak(ready.step, call.arguments),
            key=record.key,
            timeout=step.timeout_secs,
            approval=attempt,
            action=FIND if is_lost else BEGIN,
            attempt=attempt,
        )

    # --- storing ---------------------------------------------------------------------------------

    async def _save(self, driver: _Driver, active: ActiveRun) -> None:
        """Stores what has changed; no call is made before that. Tries until it succeeds: what has
        happened must not happen again."""
        children, is_first = active.children, True
        if active.changed or children or active.run.state != active.stored_state or driver.applied:
            (records, quiet), active.children = active.take_changes(), []
            changed = {path: active.hide(one) for path, one in records.items()}
            is_synced = any(not changed[path].can_repeat for path in self._list_sent(active))
            while True:
                try:
                    await self._store.save(active.run, changed.values(), children, is_synced)
                    break
                except StorageFailed as error:
                    is_first = False  # all of it may be stored: the children are in the queue then
                    STORAGE_OUTAGE.note(f'run "{driver.id}" cannot be stored: {error}')
                    self._refuse_waiting(driver, error)
                    await asyncio.sleep(self._limits.retry_secs)
            self._announce_changes(active, changed, quiet)
        for done in driver.applied:
            if not done.done():
                done.set_result(active.run)
        driver.applied.clear()
        if active.run.state in (WAITING, NEEDS_DECISION):
            self._note_wake(active.run)
        abandoned, active.abandoned = active.abandoned, []
        for record in abandoned:
            self._canceller.cancel(active.run, record)
        for child, _ in children:
            self.begin(child, is_untouched=is_first)

    def _list_sent(self, active: ActiveRun) -> list[str]:
        """Lists the steps that are about to send something."""
        return [path for path, call in active.prepared.items() if call.action == BEGIN]

    def _announce_changes(
        self, active: ActiveRun, changed: Mapping[str, StepRecord], quiet: set[str]
    ) -> None:
        run = active.run
        for path, record in changed.items():
            if path in quiet:
                continue
            self.announce(run, record)
            if record.state in (CANCELLED, FAILED):
                self._release_awaited(record)
            elif record.state == WAITING:
                self.on_wait(run, record)
        if run.state == active.stored_state:
            return
        was_ended, active.stored_state = active.stored_state in ENDED, run.state
        if was_ended is not active.is_ended:
            self.count(run, 1 if was_ended else -1)
        self.announce(run)
        if active.is_ended:
            self._tell_parent(run)

    def _tell_parent(self, run: Run) -> None:
        if key := run.origin.trigger.get(STEP_KEY):
            self.poll_soon(key)
        if run.origin.parent:
            path = run.origin.parent_path
            end = partial(self._waits.take_child, path=path, child=run, now=self._clock())
            self.deliver(run.origin.parent, end)

    def _release_awaited(self, record: StepRecord) -> None:
        """Nothing waits any more for what a step has started."""
        try:
            self._waits.withdraw(record)
        except StorageFailed as error:
            STORAGE_OUTAGE.note(f"an approval cannot be withdrawn: {error}")
        except HubError as error:
            log.error("an approval cannot be withdrawn: %s", error)
        if record.child:
            self.deliver(record.child, partial(_cancel_if_open, now=self._clock()))

    def announce(self, run: Run, record: StepRecord | None = None) -> None:
        for watcher in self._watchers.get(run.id, ()):
            watcher(run, record)
        if record is None:
            if self._bus.is_observed(RunChanged):
                self._bus.emit(
                    RunChanged(run.id, run.workflow, run.state, run.problem, run.org, run.owner)
                )
        elif self._bus.is_observed(StepChanged):
            said = record.problem or record.message
            self._bus.emit(
                StepChanged(
                    run.id, run.workflow, record.path, record.node, record.state, said,
                    run.org, run.owner,
                )
            )  # fmt: skip

    # --- calls -----------------------------------------------------------------------------------

    def _start_calls(self, driver: _Driver, active: ActiveRun) -> None:
        if active.is_ended:
            for task in driver.calls.values():
                task.cancel()
        prepared, active.prepared = active.prepared, {}
        now = self._clock()
        for path, call in prepared.items():
            until = self._tasks.find_end(call.timeout, now)
            timed = replace(call, begun=now, until=until)
            driver.calls[path] = self._call_tasks.spawn(self._call(driver, active, path, timed))

    async def _call(self, driver: _Driver, active: ActiveRun, path: str, call: RunCall) -> None:
        try:
            await self._take_turn()
            run, report = active.run, partial(self._report, driver, active, path, call)
            labels = add_leak(run, call)
            outcome: CallOutcome | HubError = await self._calls.make(
                run, labels, call, report, active.secrets
            )
        except HubError as error:
            outcome = error.with_traceback(None)
        except Exception as error:
            log.exception('step "%s" of run "%s" failed', path, driver.id)
            outcome = WorkFailed(f'"{call.tool}" failed: {error!r}')
        finally:
            # A retry may have begun another call while this one was being cancelled.
            if is_last := driver.calls.get(path) is asyncio.current_task():
                del driver.calls[path]
            driver.woken.set()
        if is_last:
            driver.outcomes.append((path, call, outcome))

    def _report(
        self, driver: _Driver, active: ActiveRun, path: str, call: RunCall, update: Update
    ) -> None:
        """Announces progress, which is stored with the next change of the step; what continues a
        task is stored at once."""
        record = active.steps[path]
        if isinstance(update, TaskNamed):
            driver.inbox.append((partial(self._note_name, path, call, update), None))
            driver.woken.set()
        elif isinstance(update, Progress) and update.message and not _is_over(record):
            message = clip(active.secrets.mask(update.message))
            if message != record.message:
                record = replace(record, message=message)
                active.steps[path] = record
                self.announce(active.run, record)

    def _note_name(self, path: str, call: RunCall, named: TaskNamed, active: ActiveRun) -> None:
        if active.steps[path].state == RUNNING:
            self._tasks.note_name(active, path, call, named)


def _is_over(record: StepRecord) -> bool:
    return record.state not in (RUNNING, WAITING)


def _wake_step(active: ActiveRun, key: str, now: float) -> None:
    for record in list(active.steps.values()):
        if record.key == key and is_polled(record):
            active.put_quietly(replace(record, wake_at=now))


def _cancel_if_open(active: ActiveRun, now: float) -> None:
    if not active.is_ended:
        active.cancel(now, "the run that started it does not wait for it any more")
