"""Starts workflows by schedule: cron expressions and intervals, which survive restarts.

The state of a schedule is saved after its run was started, and the run has an id that follows from
the time at which it was due: a crash between the two repeats the start, which changes nothing.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Iterator
from hashlib import sha256
from typing import Any, NamedTuple

from dragoman.core.cluster import SINGLE_HUB, Leases
from dragoman.core.errors import HubError, InvalidInput, StorageFailed
from dragoman.core.logs import STORAGE_OUTAGE, render_time
from dragoman.core.schedule_times import Timing, find_next, parse_timing
from dragoman.core.structs import Struct, replace
from dragoman.core.triggers import ScheduleState, TriggerStore
from dragoman.workflows.model import ALL, SCHEDULE, SKIP, Trigger, Workflow
from dragoman.workflows.triggers import Occurrence, TriggeredRuns, WorkflowSet

log = logging.getLogger(__name__)

MAX_OUTCOME = 300
LEASE = "workflow schedules"


class OccurrenceLimits(Struct, frozen=True, kw_only=True):
    late: float = 90.0
    """Seconds after which an occurrence counts as missed."""
    caught_up: int = 100
    """Missed occurrences that `catchUp: all` starts; the newest."""
    counted: int = 10_000
    """Missed occurrences that are counted."""
    longest_wait: float = 30.0
    """Seconds after which the clock is read again, which may have been set."""
    retry: float = 5.0
    """Seconds after a failure of a store."""
    lease: float = 1.0
    """Seconds after which a hub that does not start the runs looks whether it should."""


class _Scheduled(NamedTuple):
    workflow: str
    trigger: Trigger
    timing: Timing


class WorkflowSchedules:
    def __init__(
        self,
        workflows: WorkflowSet,
        runs: TriggeredRuns,
        store: TriggerStore,
        limits: OccurrenceLimits | None = None,
        clock: Callable[[], float] = time.time,
        leases: Leases = SINGLE_HUB,
    ) -> None:
        """One hub starts the runs, where there are several."""
        self._leases = leases
        self._is_owner = False
        self._workflows = workflows
        self._runs = runs
        self._store = store
        self._limits = limits or OccurrenceLimits()
        self._clock = clock
        self._woken = asyncio.Event()
        self._scheduled: dict[str, _Scheduled] = {}
        self._states: dict[str, ScheduleState] = {}

    def refresh(self, unreadable: frozenset[str] = frozenset()) -> None:
        """Applies a change of the workflows: adds new schedules, and forgets those that are gone.
        `unreadable` are the names of workflows whose files cannot be used, whose schedules stay."""
        self._scheduled = dict(self._list_scheduled())
        try:
            self._states = {one.id: one for one in self._store.load_schedules()}
            gone = [
                id
                for id, one in self._states.items()
                if id not in self._scheduled and one.workflow not in unreadable
            ]
            self._store.delete_schedules(gone)
            for id in gone:
                del self._states[id]
            for id, one in self._scheduled.items():
                if id not in self._states:
                    next_at = find_next(one.timing, self._clock())
                    self._save(ScheduleState(id=id, workflow=one.workflow, next_at=next_at))
        except StorageFailed as error:
            STORAGE_OUTAGE.note(f"the schedules of workflows cannot be kept: {error}")
        self._woken.set()

    def find_state(self, workflow: str, trigger: Trigger) -> ScheduleState | None:
        return self._states.get(build_schedule_id(workflow, trigger))

    async def run(self) -> None:
        """Starts what is due, without end."""
        while True:
            self._woken.clear()
            try:
                seconds = self._limits.lease
                if self._take_lease():
                    seconds = await self.start_due()
            except StorageFailed as error:
                STORAGE_OUTAGE.note(f"schedules of workflows cannot run: {error}")
                seconds = self._limits.retry
            try:
                async with asyncio.timeout(seconds):
                    await self._woken.wait()
            except TimeoutError:
                continue

    def _take_lease(self) -> bool:
        """Whether this hub starts the runs now. A hub that begins to do so reads what the one
        before has stored."""
        was_owner, self._is_owner = self._is_owner, self._leases.holds(LEASE)
        if self._is_owner and not was_owner:
            self._states.update({one.id: one for one in self._store.load_schedules()})
        return self._is_owner

    async def start_due(self) -> float:
        """Starts what is due and returns how many seconds to wait for the next one. Raises
        `StorageFailed`: what was not started is due still."""
        now, wait = self._clock(), self._limits.longest_wait
        for id, one in list(self._scheduled.items()):
            state = self._states.get(id)
            workflow = self._workflows.get(one.workflow)
            if state is None or workflow is None:
                continue
            if state.next_at <= now:
                state = await self._start(one, workflow, state, now)
            wait = min(wait, max(0.0, state.next_at - now))
        return wait

    async def _start(
        self, one: _Scheduled, workflow: Workflow, state: ScheduleState, now: float
    ) -> ScheduleState:
        try:
            due, following = self._list_due(one.timing, state.next_at, now)
        except InvalidInput as error:  # the time zone is unknown to this machine
            later = replace(state, next_at=now + 86_400, outcome=str(error)[:MAX_OUTCOME])
            return self._save(later)
        late = [at for at in due if at < now - self._limits.late]
        started = self._select(one.trigger.catch_up, due, late)
        skipped = len(due) - len(started)
        if late:
            log.warning(
                'workflow "%s" has missed %d runs of its schedule "%s", the first at %s; it starts '
                "%d now (catchUp: %s)",
                workflow.name, len(late), one.trigger.schedule, render_time(late[0]), len(started),
                one.trigger.catch_up,
            )  # fmt: skip
        outcome = ""
        for at in started:
            outcome = await self._start_one(one.trigger, workflow, at, len(late)) or outcome
        return self._save(
            replace(
                state,
                next_at=following,
                last_at=due[-1],
                missed=state.missed + skipped,
                outcome=outcome[:MAX_OUTCOME],
            )
        )

    def _list_due(self, timing: Timing, first: float, now: float) -> tuple[list[float], float]:
        """Lists the times up to now, and the next one. After a long time these are the newest."""
        due, following = self._walk(timing, first, now)
        if following <= now:
            start = now - (due[-1] - due[0])
            due, following = self._walk(timing, find_next(timing, start, first), now)
        return due, find_next(timing, now, due[-1]) if following <= now else following

    def _walk(self, timing: Timing, first: float, now: float) -> tuple[list[float], float]:
        due = [first]
        following = find_next(timing, first, first)
        while following <= now and len(due) < self._limits.counted:
            due.append(following)
            following = find_next(timing, following, following)
        return due, following

    def _select(self, catch_up: str, due: list[float], late: list[float]) -> list[float]:
        """Selects the occurrences that start a run."""
        on_time = due[len(late) :]
        if catch_up == ALL:
            return [*late[-self._limits.caught_up :], *on_time]
        if catch_up == SKIP or on_time:
            return on_time[-1:]
        return late[-1:]

    async def _start_one(self, trigger: Trigger, workflow: Workflow, at: float, missed: int) -> str:
        """Starts the run of one occurrence; returns why that failed."""
        about: dict[str, Any] = {
            "kind": SCHEDULE, "schedule": trigger.schedule, "at": render_time(at),
        }  # fmt: skip
        if missed:
            about["missed"] = missed
        key = f"{build_schedule_id(workflow.name, trigger)} {at:.3f}"
        try:
            await self._runs.start(
                workflow, Occurrence(key=key, inputs=trigger.inputs, trigger=about)
            )
        except StorageFailed:
            raise
        except HubError as error:
            log.warning('workflow "%s" was not started by its schedule: %s', workflow.name, error)
            return str(error)
        return ""

    def _save(self, state: ScheduleState) -> ScheduleState:
        self._store.save_schedule(state)
        self._states[state.id] = state
        return state

    def _list_scheduled(self) -> Iterator[tuple[str, _Scheduled]]:
        for workflow in self._workflows.list_workflows():
            for trigger in workflow.triggers:
                if trigger.kind == SCHEDULE:
                    timing = parse_timing(trigger.schedule, trigger.zone, False)
                    id = build_schedule_id(workflow.name, trigger)
                    yield id, _Scheduled(workflow.name, trigger, timing)


def build_schedule_id(workflow: str, trigger: Trigger) -> str:
    """The same for a schedule whose time has not changed."""
    parts = "\0".join([workflow, trigger.schedule, trigger.zone])
    return sha256(parts.encode("utf-8", "replace")).hexdigest()[:24]
