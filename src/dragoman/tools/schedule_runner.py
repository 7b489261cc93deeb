"""Runs the schedules: waits for the next one, fires it, and records how it ended.

A run is recorded before it is fired, so that a crash cannot repeat it: one that a crash has
interrupted is shown as such. Runs that were missed while the hub was stopped are made up for by one
run. A run is not lost by troubles of the hub itself: where the answer of the store was lost, the
runner looks whether the run was stored, and a call that the hub cannot make now is tried again.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final

from dragoman.core.background import Background
from dragoman.core.backoff import Backoff
from dragoman.core.cluster import SINGLE_HUB, Leases
from dragoman.core.errors import (
    HubError,
    InvalidInput,
    LeaseExpired,
    StorageFailed,
    is_own_trouble,
    is_stopping,
)
from dragoman.core.local_agents import SCHEDULE
from dragoman.core.logs import STORAGE_OUTAGE
from dragoman.core.ports import Schedule, ScheduleStore
from dragoman.core.principal import Principal
from dragoman.core.redaction import shorten
from dragoman.core.schedule_times import Timing, count_missed, find_next
from dragoman.core.structs import replace

log = logging.getLogger(__name__)

RUNNING, INTERRUPTED, DONE = "running", "interrupted by a stop of the hub", "completed"
MAX_OUTCOME = 300
LEASE = "schedules"
NEVER: Final = datetime(9999, 1, 1, tzinfo=UTC).timestamp()
"""The next time of a schedule that runs once and has begun to."""

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
    trouble_seconds: float = 3_600.0
    """How long a run is tried again whose call the hub itself cannot make."""
    kept_seconds: float = 7 * 86_400.0
    """How long a schedule is shown that runs once, if its run was interrupted or never made."""


@dataclass(frozen=True, slots=True)
class RunEnd:
    outcome: str
    is_made: bool
    """Whether its call was made or refused, however it ended: not interrupted nor left undone."""
    put_back: Schedule | None = None
    """The schedule before the run began, for a run of which nothing has left: it is due again."""


@dataclass(frozen=True, slots=True)
class BegunRun:
    schedule: Schedule
    before: Schedule
    """As it was stored before this run began."""
    missed: int
    """How many earlier runs it has missed."""


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
        self._unsure: dict[str, BegunRun] = {}
        """Runs that the store has failed to record, or has recorded although its answer was lost,
        by the ids of their schedules."""
        self._unrecorded: dict[str, tuple[Schedule, RunEnd]] = {}
        """Runs that have ended while the store was away."""
        self._slots = asyncio.Semaphore(self._limits.at_once)

    def wake(self) -> None:
        """To be called after a change of the schedules."""
        self._woken.set()

    async def run(self) -> None:
        """Runs the schedules, without end."""
        while True:
            self._woken.clear()
            try:
                seconds = self.take_turn()
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

    def take_turn(self) -> float:
        """Does what is to be done now and returns how many seconds to wait. Raises
        `StorageFailed`; then the next turn does the rest."""
        self._record_ended()
        self._start_unsure()
        seconds = self.start_due() if self._take_lease() else self._limits.lease_seconds
        return min(seconds, self._limits.lease_seconds) if self._unrecorded else seconds

    def _take_lease(self) -> bool:
        """Whether this hub runs the schedules now. A hub that begins to do so finds runs that the
        one before has not finished."""
        was_owner, self._is_owner = self._is_owner, False
        if self._leases.holds(LEASE):
            if not was_owner:
                self._mark_interrupted()
            self._is_owner = True
        return self._is_owner

    def start_due(self) -> float:
        """Starts what is due and returns how many seconds to wait for the next one."""
        now = self._clock()
        wait = self._limits.longest_wait
        for schedule in self._store.load_all():
            if schedule.next_at > now:
                wait = min(wait, schedule.next_at - now)
                self._forget_old(schedule, now)
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
            changed = replace(schedule, next_at=following, outcome=shorten(reason, MAX_OUTCOME))
            self._store.save(changed, schedule)
            return following
        if schedule.once:
            following = NEVER
        before = schedule
        schedule = replace(schedule, next_at=following, missed=schedule.missed + missed)
        if schedule.id in self._running:
            self._store.save(replace(schedule, missed=schedule.missed + 1), before)
            log.warning('schedule "%s" was skipped: its last run still continues', schedule.id)
            return following
        unsure, begun_at = self._unsure.get(schedule.id), now
        if unsure is not None and unsure.before.runs == before.runs:
            begun_at = unsure.schedule.last_at  # whichever attempt is stored, it is the same run
        schedule = replace(schedule, last_at=begun_at, runs=schedule.runs + 1, outcome=RUNNING)
        run = BegunRun(schedule, before, missed)
        try:
            is_ours = self._store.save(schedule, before)
        except StorageFailed:
            self._unsure[schedule.id] = run
            raise
        if is_ours:  # else it was deleted, or another hub has begun this run
            self._begin(run)
        return following

    def _start_unsure(self) -> None:
        """Starts the runs that were recorded although the store has failed. No other hub starts
        them, since each found them begun. What was not recorded is still due, and may yet be
        recorded by a statement that the server has not finished."""
        if not self._unsure:
            return
        stored = {schedule.id: schedule for schedule in self._store.load_all()}
        for id, run in list(self._unsure.items()):
            schedule = stored.get(id)
            if schedule is not None and _identify(schedule) == _identify(run.schedule):
                self._begin(BegunRun(schedule, run.before, run.missed))
            elif schedule is None or schedule.runs >= run.schedule.runs:
                del self._unsure[id]  # deleted, or begun by another hub

    def _begin(self, run: BegunRun) -> None:
        """Begins a run that is recorded."""
        schedule = run.schedule
        self._unsure.pop(schedule.id, None)
        if run.missed:
            log.warning('schedule "%s" has missed %d runs', schedule.id, run.missed)
        self._running.add(schedule.id)
        self._background.spawn(self._run_one(run))

    async def _run_one(self, run: BegunRun) -> None:
        schedule = run.schedule
        end: RunEnd | None = RunEnd(INTERRUPTED, is_made=False)
        try:
            end = await self._send(run)
        except Exception as error:
            log.exception('the run of schedule "%s" failed', schedule.id)
            end = RunEnd(shorten(f"failed: {error!r}", MAX_OUTCOME), is_made=False)
        finally:
            self._running.discard(schedule.id)
            if end is not None:
                self._unrecorded[schedule.id] = schedule, end
                try:
                    self._record_ended()
                except StorageFailed as error:
                    STORAGE_OUTAGE.note(f"ends of schedules are recorded later: {error}")
                if self._unrecorded:
                    self.wake()

    async def _send(self, run: BegunRun) -> RunEnd | None:
        """Sends the message, and tries again while the hub itself cannot and nothing has left.
        Returns None if the schedule was deleted or has run again meanwhile."""
        schedule, message = run.schedule, run.schedule.message
        if run.missed:
            message = f"{message}\n\n[{run.missed} earlier runs of this schedule were missed.]"
        backoff = Backoff(first=0.5, longest=30.0)
        until = self._clock() + self._limits.trouble_seconds
        while True:
            may_have_left = False
            try:
                async with self._slots:
                    if backoff.failures and self._find_stored(schedule) is None:
                        log.warning(
                            'schedule "%s": its run is not made: it was deleted, or has run again',
                            schedule.id,
                        )
                        return None
                    may_have_left = True
                    await self._fire(schedule, message)
                return RunEnd(DONE, is_made=True)
            except asyncio.CancelledError:
                if may_have_left:
                    raise
                return RunEnd(INTERRUPTED, is_made=False, put_back=run.before)
            except HubError as error:
                is_trouble = is_own_trouble(error)
                if is_stopping(error):
                    before = run.before if is_trouble else None
                    return RunEnd(INTERRUPTED, is_made=False, put_back=before)
                if not is_trouble or self._clock() >= until:
                    outcome = shorten(f"failed: {error}", MAX_OUTCOME)
                    log.warning(
                        'schedule "%s" of agent "%s" %s', schedule.id, schedule.owner, outcome
                    )
                    return RunEnd(outcome, is_made=not is_trouble)
                text = f'schedule "{schedule.id}": its run begins later: {error}'
                if isinstance(error, StorageFailed | LeaseExpired):
                    STORAGE_OUTAGE.note(text)  # as other schedules wait, and other parts
                elif not backoff.failures:
                    log.warning("%s", text)
            try:
                await asyncio.sleep(backoff.next_delay())
            except asyncio.CancelledError:  # the hub stops
                return RunEnd(INTERRUPTED, is_made=False, put_back=run.before)

    def _record_ended(self) -> None:
        """Records how runs ended, unless the schedule was deleted or has run again meanwhile. One
        that runs once is over with its call."""
        for schedule, end in list(self._unrecorded.values()):
            stored, is_recorded = self._find_stored(schedule), True
            if stored is not None and stored.once and end.is_made:
                self._store.delete(stored.org, stored.owner, stored.id)
            elif stored is not None and (before := end.put_back) is not None:
                due = replace(
                    stored, next_at=before.next_at, last_at=before.last_at, runs=before.runs,
                    missed=before.missed, outcome=before.outcome,
                )  # fmt: skip
                is_recorded = self._store.save(due, stored)
            elif stored is not None:
                is_recorded = self._store.save(replace(stored, outcome=end.outcome), stored)
            if is_recorded:  # else another hub has changed it meanwhile: the next turn looks again
                del self._unrecorded[schedule.id]

    def _find_stored(self, schedule: Schedule) -> Schedule | None:
        """Finds the schedule of a run as it is stored, if this run is still its last."""
        stored = self._store.list_schedules(schedule.org, schedule.owner)
        return next((one for one in stored if _identify(one) == _identify(schedule)), None)

    def _forget_old(self, schedule: Schedule, now: float) -> None:
        """Deletes a schedule that runs once and did not end as it should, after a while."""
        is_begun = schedule.once and schedule.runs > 0 and schedule.id not in self._running
        if is_begun and schedule.last_at + self._limits.kept_seconds <= now:
            self._store.delete(schedule.org, schedule.owner, schedule.id)

    def _mark_interrupted(self) -> None:
        for schedule in self._store.load_all():
            if schedule.outcome == RUNNING and schedule.id not in self._running:
                self._store.save(replace(schedule, outcome=INTERRUPTED), schedule)


def _identify(schedule: Schedule) -> tuple[str, int, float]:
    """Identifies the last run of a schedule. Hubs that begin the same one differ in its time."""
    return schedule.id, schedule.runs, schedule.last_at
