"""Runs the schedules: waits for the next one, fires it, and records how it ended.

A run is recorded before it is fired, so that a crash cannot repeat it. Runs that were missed while
the hub was stopped are made up for by one run.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from dragoman.core.background import Background
from dragoman.core.cluster import SINGLE_HUB, Leases
from dragoman.core.errors import HubError, InvalidInput, StorageFailed
from dragoman.core.local_agents import SCHEDULE
from dragoman.core.logs import STORAGE_OUTAGE
from dragoman.core.ports import Schedule, ScheduleStore
from dragoman.core.principal import Principal
from dragoman.core.schedule_times import Timing, count_missed, find_next
from dragoman.core.structs import replace

log = logging.getLogger(__name__)

RUNNING, INTERRUPTED, DONE = "running", "interrupted by a stop of the hub", "completed"
MAX_OUTCOME = 300
LEASE = "schedules"

Fire = Callable[[Schedule, str], Awaitable[None]]
"""Sends a message to the agent of a schedule. Raises a `HubError`."""


@dataclass(frozen=True, slots=True)
class SchedulingLimits:
    at_once: int = 8
    longest_wait: float = 30.0
    """Seconds after which the clock is read again, which may have been set."""
    retry_seconds: float = 5.0
    """After a failure of the store."""
    lease_seconds: float = 1.0
    """How often a hub that does not run the schedules looks whether it should."""


def build_schedule_principal(org: str, owner: str) -> Principal:
    """The principal of the calls that the schedules of an agent make. It has no role."""
    return Principal(SCHEDULE, owner, org)


def build_schedule_client(id: str) -> str:
    """What takes the place of a session for the calls of one schedule."""
    return f"{SCHEDULE} {id}"


class ScheduleRunner:
    def __init__(
        self,
        store: ScheduleStore,
        fire: Fire,
        limits: SchedulingLimits | None = None,
        clock: Callable[[], float] = time.time,
        leases: Leases = SINGLE_HUB,
    ) -> None:
        """One hub runs the schedules, where there are several."""
        self._leases = leases
        self._is_owner = False
        self._store = store
        self._fire = fire
        self._limits = limits or SchedulingLimits()
        self._clock = clock
        self._woken = asyncio.Event()
        self._background = Background("schedules")
        self._running: set[str] = set()
        self._slots = asyncio.Semaphore(self._limits.at_once)

    def wake(self) -> None:
        """To be called after a change of the schedules."""
        self._woken.set()

    async def run(self) -> None:
        """Runs the schedules, without end."""
        while True:
            self._woken.clear()
            try:
                seconds = self.start_due() if self._take_lease() else self._limits.lease_seconds
            except StorageFailed as error:
                STORAGE_OUTAGE.note(f"schedules cannot run: {error}")
                seconds = self._limits.retry_seconds
            try:
                async with asyncio.timeout(seconds):
                    await self._woken.wait()
            except TimeoutError:
                continue

    async def close(self) -> None:
        """Ends running schedules; they are interrupted."""
        await self._background.close()

    def _take_lease(self) -> bool:
        """Whether this hub runs the schedules now. A hub that begins to do so finds runs that the
        one before has not finished."""
        was_owner, self._is_owner = self._is_owner, self._leases.holds(LEASE)
        if self._is_owner and not was_owner:
            self._mark_interrupted()
        return self._is_owner

    def start_due(self) -> float:
        """Starts what is due and returns how many seconds to wait for the next one."""
        now = self._clock()
        wait = self._limits.longest_wait
        for schedule in self._store.load_all():
            if schedule.next_at > now:
                wait = min(wait, schedule.next_at - now)
                continue
            following = self._start(schedule, now)
            wait = min(wait, max(0.0, following - now))
        return wait

    def _start(self, schedule: Schedule, now: float) -> float:
        """Starts one run; returns when the next one is due."""
        timing = Timing(schedule.spec, schedule.zone, schedule.once)
        try:
            missed = 0 if schedule.once else count_missed(timing, schedule.next_at, now)
            following = find_next(timing, now, schedule.next_at)
        except InvalidInput as error:  # the time zone is unknown to this machine
            following, reason = now + 86_400, str(error)
            changed = replace(schedule, next_at=following, outcome=reason[:MAX_OUTCOME])
            self._store.save(changed, schedule)
            return following
        before = schedule
        schedule = replace(schedule, next_at=following, missed=schedule.missed + missed)
        if schedule.id in self._running:
            self._store.save(replace(schedule, missed=schedule.missed + 1), before)
            log.warning('schedule "%s" was skipped: its last run still continues', schedule.id)
            return following
        schedule = replace(schedule, last_at=now, runs=schedule.runs + 1, outcome=RUNNING)
        if schedule.once:
            is_ours = self._store.delete(schedule.org, schedule.owner, schedule.id)
        else:
            is_ours = self._store.save(schedule, before)
        if not is_ours:  # it was deleted, or another hub has begun this run
            return following
        if missed:
            log.warning('schedule "%s" has missed %d runs', schedule.id, missed)
        self._running.add(schedule.id)
        self._background.spawn(self._run_one(schedule, missed))
        return following

    async def _run_one(self, schedule: Schedule, missed: int) -> None:
        outcome = INTERRUPTED
        message = schedule.message
        if missed:
            message = f"{message}\n\n[{missed} earlier runs of this schedule were missed.]"
        try:
            async with self._slots:
                await self._fire(schedule, message)
            outcome = DONE
        except HubError as error:
            outcome = f"failed: {error}"[:MAX_OUTCOME]
            log.warning('schedule "%s" of agent "%s" %s', schedule.id, schedule.owner, outcome)
        finally:
            self._running.discard(schedule.id)
            self._record(schedule, outcome)

    def _record(self, schedule: Schedule, outcome: str) -> None:
        """Records how a run ended, unless the schedule was deleted or has run again meanwhile."""
        try:
            for now in self._store.list_schedules(schedule.org, schedule.owner):
                if now.id == schedule.id and now.runs == schedule.runs:
                    self._store.save(replace(now, outcome=outcome), now)
        except StorageFailed as error:
            log.error("%s", error)

    def _mark_interrupted(self) -> None:
        try:
            for schedule in self._store.load_all():
                if schedule.outcome == RUNNING:
                    self._store.save(replace(schedule, outcome=INTERRUPTED), schedule)
        except StorageFailed as error:
            log.error("%s", error)
