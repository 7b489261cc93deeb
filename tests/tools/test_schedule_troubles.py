"""Schedules while the hub itself has troubles: no run is lost in silence or made twice."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest
from tests.table_outage import take_away
from tests.tools.test_schedules import NOON, Clock, Fired, build_schedule, find, settle

from dragoman.core.cluster import Leases
from dragoman.core.errors import (
    HubError,
    LeaseExpired,
    Overloaded,
    ShuttingDown,
    StorageFailed,
    WorkFailed,
)
from dragoman.core.logs import STORAGE_OUTAGE
from dragoman.core.ports import Schedule
from dragoman.core.structs import replace
from dragoman.stores.agent_schedules import DatabaseSchedules, ScheduleLimits
from dragoman.stores.database import DatabaseAway, DatabaseWriter, StorePlace
from dragoman.tools.schedule_runner import (
    DONE,
    INTERRUPTED,
    RUNNING,
    ScheduleRunner,
    SchedulingLimits,
)
from dragoman.tools.schedules import render_schedule

pytestmark = pytest.mark.promise("T2")

SECONDS = 60.0


class LosingWriter:
    """Commits, and loses the answer."""

    def __init__(self, writer: DatabaseWriter) -> None:
        self._writer = writer

    @contextmanager
    def transaction(self) -> Iterator[None]:
        with self._writer.transaction():
            yield
        raise DatabaseAway("the connection was closed")


@contextmanager
def lose_answers(store: DatabaseSchedules) -> Iterator[None]:
    writer = store._writer
    store._writer = LosingWriter(writer)
    try:
        yield
    finally:
        store._writer = writer


class Troubled:
    """Fails a few times with an error of the hub itself, then works."""

    def __init__(self, build: Callable[[], HubError], failures: int = 1) -> None:
        self._build = build
        self._failures = failures
        self.calls = 0
        self.made = 0
        self.called = asyncio.Event()
        self.done = asyncio.Event()

    async def __call__(self, schedule: Schedule, message: str) -> None:
        self.calls += 1
        self.called.set()
        if self.calls <= self._failures:
            raise self._build()
        self.made += 1
        self.done.set()


class Lease(Leases):
    """Is lost and taken again as a test says."""

    def __init__(self) -> None:
        self.is_held = True

    def holds(self, name: str) -> bool:
        return self.is_held

    def find_holder(self, name: str) -> str:
        return ""

    def find_token(self, name: str) -> int:
        return int(self.is_held)


async def wait_for(event: asyncio.Event) -> None:
    await asyncio.wait_for(event.wait(), SECONDS)
    await settle()


@pytest.mark.parametrize("once", [False, True])
async def test_run_that_was_stored_without_an_answer_is_made_once(
    store_place: StorePlace, once: bool
) -> None:
    clock, fired = Clock(), Fired()
    with closing(DatabaseSchedules(store_place)) as store:
        store.add(build_schedule("a", once=once))
        runner = ScheduleRunner(store, fired, SchedulingLimits(longest_wait=1_000), clock)
        runner.take_turn()
        await settle()
        assert fired.messages == ["go"]  # what follows is its second run, or that of another
        if once:
            store.add(build_schedule("a", once=True))
        clock.now += 2_400
        with lose_answers(store), pytest.raises(StorageFailed):
            runner.take_turn()
        await settle()
        assert fired.messages == ["go"] and find(store).outcome == RUNNING
        clock.now += 5
        runner.take_turn()
        runner.take_turn()
        await settle()
        missed = "" if once else "\n\n[3 earlier runs of this schedule were missed.]"
        assert fired.messages == ["go", f"go{missed}"]
        if once:
            assert store.load_all() == []
        else:
            assert (find(store).runs, find(store).outcome) == (2, DONE)
        runner.take_turn()
        await settle()
        assert len(fired.messages) == 2
        await runner.close()


async def test_run_that_was_stored_later_than_its_error_is_made_once(
    store_place: StorePlace,
) -> None:
    """The server ends the statement of a connection that was lost after the hub has tried again."""
    clock, fired = Clock(), Fired()
    late: list[tuple[Schedule, Schedule]] = []

    class LateSchedules(DatabaseSchedules):
        def save(self, schedule: Schedule, before: Schedule) -> bool:
            if not late:
                late.append((schedule, before))
                raise StorageFailed("the connection was closed")
            if len(late) == 1:
                late.append((schedule, before))
                assert super().save(*late[0])
            return super().save(schedule, before)

    with closing(LateSchedules(store_place)) as store:
        store.add(build_schedule("a"))
        runner = ScheduleRunner(store, fired, SchedulingLimits(), clock)
        with pytest.raises(StorageFailed):
            runner.take_turn()
        for _ in range(3):
            clock.now += 5
            runner.take_turn()
            await settle()
        assert fired.messages == ["go"]
        assert (find(store).runs, find(store).outcome) == (1, DONE)
        await runner.close()


async def test_run_that_another_hub_begins_after_an_error_is_made_once(
    store_place: StorePlace,
) -> None:
    clock, fired = Clock(), Fired()
    with closing(DatabaseSchedules(store_place)) as store:
        store.add(build_schedule("a"))
        first = ScheduleRunner(store, fired, SchedulingLimits(), clock)
        save = store.save

        def fail(schedule: Schedule, before: Schedule) -> bool:
            raise StorageFailed("it is away")

        store.save = fail  # type: ignore[method-assign]
        with pytest.raises(StorageFailed):
            first.take_turn()
        store.save = save  # type: ignore[method-assign]
        clock.now += 5
        fired.go.clear()
        second = ScheduleRunner(store, fired, SchedulingLimits(), clock)
        second.take_turn()
        await settle()
        clock.now += 5
        first._start_unsure()
        first.start_due()
        fired.go.set()
        await wait_for(fired.done)
        assert fired.messages == ["go"] and find(store).runs == 1
        await first.close()
        await second.close()


async def test_run_that_was_stored_without_an_answer_is_made_by_the_hub_that_has_lost_its_lease(
    store_place: StorePlace,
) -> None:
    """The hub that takes the lease cannot know that the other one still lives."""
    clock, fired, again, lease = Clock(), Fired(), Fired(), Lease()
    with closing(DatabaseSchedules(store_place)) as store:
        store.add(build_schedule("a"))
        first = ScheduleRunner(store, fired, SchedulingLimits(), clock, lease)
        with lose_answers(store), pytest.raises(StorageFailed):
            first.take_turn()
        lease.is_held = False
        second = ScheduleRunner(store, again, SchedulingLimits(), clock)
        second.take_turn()
        assert find(store).outcome == INTERRUPTED
        first.take_turn()
        second.take_turn()
        await wait_for(fired.done)
        assert fired.messages == ["go"] and not again.messages
        assert (find(store).runs, find(store).outcome) == (1, DONE)
        await first.close()
        await second.close()


@pytest.mark.parametrize("once", [False, True])
@pytest.mark.parametrize("kind", [StorageFailed, LeaseExpired, Overloaded])
async def test_call_that_the_hub_cannot_make_is_made_later(
    tmp_path: Path, kind: type[HubError], once: bool
) -> None:
    fired = Troubled(lambda: kind("not now"))
    with closing(DatabaseSchedules(tmp_path)) as store:
        store.add(build_schedule("a", once=once))
        runner = ScheduleRunner(store, fired, SchedulingLimits(), Clock())
        runner.take_turn()
        await wait_for(fired.called)
        assert find(store).outcome == RUNNING
        await wait_for(fired.done)
        assert (fired.calls, fired.made) == (2, 1)
        assert [one.outcome for one in store.load_all()] == ([] if once else [DONE])
        await runner.close()


@pytest.mark.parametrize("kind", [StorageFailed, LeaseExpired])
async def test_schedules_that_wait_for_the_store_are_one_line_in_the_log(
    tmp_path: Path, kind: type[HubError], caplog: pytest.LogCaptureFixture
) -> None:
    STORAGE_OUTAGE.clear()
    fired = Troubled(lambda: kind("the database is away"), failures=4)
    with closing(DatabaseSchedules(tmp_path)) as store:
        for id in "abcd":
            store.add(build_schedule(id))
        runner = ScheduleRunner(store, fired, SchedulingLimits(), Clock())
        runner.take_turn()
        async with asyncio.timeout(SECONDS):
            while fired.made < 4:
                await asyncio.sleep(0.01)
        await runner.close()
    said = [one for one in caplog.records if "the database is away" in one.getMessage()]
    assert len([one for one in said if one.levelno >= logging.WARNING]) == 1


@pytest.mark.parametrize("once", [False, True])
async def test_call_that_may_have_left_is_not_repeated(tmp_path: Path, once: bool) -> None:
    def build() -> HubError:
        error = StorageFailed("the answer cannot be stored")
        error.has_left = True
        return error

    fired = Troubled(build)
    with closing(DatabaseSchedules(tmp_path)) as store:
        store.add(build_schedule("a", once=once))
        runner = ScheduleRunner(store, fired, SchedulingLimits(), Clock())
        runner.take_turn()
        await wait_for(fired.called)
        assert not runner._running and fired.calls == 1
        outcomes = [one.outcome for one in store.load_all()]
        assert outcomes == ([] if once else ["failed: the answer cannot be stored"])
        await runner.close()


async def test_call_that_the_hub_cannot_make_for_long_fails_and_is_shown(
    tmp_path: Path,
) -> None:
    clock, limits = Clock(), SchedulingLimits(trouble_seconds=0.0)
    fired = Troubled(lambda: Overloaded("too many calls"), failures=2)
    with closing(DatabaseSchedules(tmp_path)) as store:
        store.add(build_schedule("a"))
        store.add(build_schedule("b", once=True))
        runner = ScheduleRunner(store, fired, limits, clock)
        runner.take_turn()
        await settle()
        assert [find(store, id).outcome for id in "ab"] == ["failed: too many calls"] * 2
        assert "nextRun" not in render_schedule(find(store, "b"))
        clock.now += 600
        runner.take_turn()
        await wait_for(fired.done)
        assert find(store, "a").outcome == DONE and fired.calls == 3  # "b" is not made again
        clock.now += limits.kept_seconds
        runner.take_turn()
        await settle()
        assert [one.id for one in store.load_all()] == ["a"]
        await runner.close()


async def test_run_of_a_deleted_schedule_is_not_tried_again(tmp_path: Path) -> None:
    fired = Troubled(lambda: Overloaded("too many calls"))
    with closing(DatabaseSchedules(tmp_path)) as store:
        store.add(build_schedule("a"))
        runner = ScheduleRunner(store, fired, SchedulingLimits(), Clock())
        runner.take_turn()
        await wait_for(fired.called)
        assert store.delete("default", "tester", "a")
        [task] = runner._background._tasks
        await asyncio.wait_for(task, SECONDS)
        assert fired.calls == 1
        await runner.close()


@pytest.mark.parametrize("is_killed", [False, True])
async def test_schedule_that_runs_once_is_shown_if_it_was_interrupted(
    tmp_path: Path, is_killed: bool
) -> None:
    clock, fired, again = Clock(), Fired(), Fired()
    fired.go.clear()
    with closing(DatabaseSchedules(tmp_path)) as store:
        store.add(build_schedule("a", once=True))
        runner = ScheduleRunner(store, fired, SchedulingLimits(), clock)
        runner.take_turn()
        await settle()
        if not is_killed:
            await runner.close()
        heir = ScheduleRunner(store, again, SchedulingLimits(), clock)
        for _ in range(3):  # also after the time of an interval
            heir.take_turn()
            await settle()
            clock.now += 600
        assert find(store).outcome == INTERRUPTED and not again.messages
        shown = render_schedule(find(store))
        assert shown["lastOutcome"] == INTERRUPTED and "nextRun" not in shown
        await runner.close()
        await heir.close()


@pytest.mark.parametrize("once", [False, True])
@pytest.mark.parametrize("kind", [ShuttingDown, Overloaded])
async def test_run_of_which_nothing_has_left_is_due_again_after_a_stop(
    tmp_path: Path, kind: type[HubError], once: bool
) -> None:
    """The hub that stops refuses the call, or it waits for its next attempt."""
    clock, fired, again = Clock(), Troubled(lambda: kind("not now")), Fired()
    with closing(DatabaseSchedules(tmp_path)) as store:
        schedule = build_schedule("a", once=once)
        store.add(schedule)
        runner = ScheduleRunner(store, fired, SchedulingLimits(), clock)
        runner.take_turn()
        await wait_for(fired.called)
        await runner.close()
        assert fired.calls == 1 and find(store) == schedule
        heir = ScheduleRunner(store, again, SchedulingLimits(), clock)
        heir.take_turn()
        await wait_for(again.done)
        assert again.messages == ["go"]
        await heir.close()


async def test_end_of_a_run_is_recorded_although_another_hub_changes_its_row(
    store_place: StorePlace,
) -> None:
    """The other hub takes the lease, and finds the run begun, between the reading and the writing
    of the row: a run of which nothing has left would stay interrupted."""
    clock = Clock()
    fire = Troubled(lambda: ShuttingDown("the hub stops"))

    class SharedSchedules(DatabaseSchedules):
        is_raced = False

        def save(self, schedule: Schedule, before: Schedule) -> bool:
            if before.outcome == RUNNING and not self.is_raced:
                self.is_raced = True
                assert super().save(replace(before, outcome=INTERRUPTED), before)
            return super().save(schedule, before)

    with closing(SharedSchedules(store_place)) as store:
        store.add(build_schedule("a", once=True))
        before = find(store)
        runner = ScheduleRunner(store, fire, clock=clock)
        runner.take_turn()
        await wait_for(fire.called)
        assert store.is_raced and fire.made == 0
        assert runner._woken.is_set()  # it looks again soon
        runner.take_turn()
        await wait_for(fire.done)
        assert before.runs == 0 and fire.made == 1 and store.load_all() == []
        await runner.close()


async def test_run_that_fails_unexpectedly_is_shown_as_failed(tmp_path: Path) -> None:
    async def fail(schedule: Schedule, message: str) -> None:
        raise ZeroDivisionError("a mistake")

    with closing(DatabaseSchedules(tmp_path)) as store:
        store.add(build_schedule("a"))
        runner = ScheduleRunner(store, fail, SchedulingLimits(), Clock())
        runner.take_turn()
        await settle()
        assert find(store).outcome.startswith("failed: ZeroDivisionError")
        await runner.close()


async def test_error_that_cannot_be_stored_ends_no_schedules(store_place: StorePlace) -> None:
    """Names of files may have lone surrogates, and errors of agents repeat them."""
    clock = Clock()
    fire = Troubled(lambda: WorkFailed("there is no file \udcff"))
    with closing(DatabaseSchedules(store_place)) as store:
        store.add(build_schedule("a"))
        runner = ScheduleRunner(store, fire, clock=clock)
        runner.take_turn()
        await wait_for(fire.called)
        assert find(store).outcome == "failed: there is no file ?"
        clock.now += 600
        runner.take_turn()
        await wait_for(fire.done)
        assert find(store).outcome == DONE
        await runner.close()


async def test_failing_writes_leave_one_unsure_run_of_each_schedule(
    store_place: StorePlace,
) -> None:
    clock, fired = Clock(), Fired()
    with closing(DatabaseSchedules(store_place)) as store:
        store.add(build_schedule("a"))
        runner = ScheduleRunner(store, fired, SchedulingLimits(), clock)
        save = store.save

        def fail(schedule: Schedule, before: Schedule) -> bool:
            raise StorageFailed("it cannot be written")

        store.save = fail  # type: ignore[method-assign]
        for _ in range(5):
            with pytest.raises(StorageFailed):
                runner.take_turn()
            clock.now += 5
        assert len(runner._unsure) == 1
        store.save = save  # type: ignore[method-assign]
        for _ in range(2):
            runner.take_turn()
            await settle()
        assert fired.messages == ["go"] and find(store).outcome == DONE and not runner._unsure
        await runner.close()


def test_schedules_that_ran_once_and_are_shown_do_not_count(store_place: StorePlace) -> None:
    limits = ScheduleLimits(of_agent=1, total=1)
    with closing(DatabaseSchedules(store_place, limits)) as store:
        for id in "ab":
            before = build_schedule(id, once=True)
            store.add(before)
            assert store.save(replace(before, runs=1, outcome=INTERRUPTED), before)
        store.add(build_schedule("c"))
        with pytest.raises(Overloaded):
            store.add(build_schedule("d"))


async def test_runs_that_wait_for_others_count_as_schedules(tmp_path: Path) -> None:
    """Else an agent could have any number of them, all of which are due again after a stop."""
    fired = Fired()
    fired.go.clear()
    with closing(DatabaseSchedules(tmp_path, ScheduleLimits(of_agent=2))) as store:
        runner = ScheduleRunner(store, fired, SchedulingLimits(at_once=1), Clock())
        for id in "ab":
            store.add(build_schedule(id, once=True))
            runner.take_turn()
        await settle()
        with pytest.raises(Overloaded):
            store.add(build_schedule("c", once=True))
        fired.go.set()
        await wait_for(fired.done)
        store.add(build_schedule("c", once=True))
        await runner.close()


@pytest.mark.parametrize("once", [False, True])
async def test_end_of_a_run_is_recorded_when_the_store_is_back(tmp_path: Path, once: bool) -> None:
    fired = Fired()
    fired.go.clear()
    with closing(DatabaseSchedules(tmp_path)) as store:
        store.add(build_schedule("a", once=once))
        runner = ScheduleRunner(store, fired, SchedulingLimits(), Clock())
        runner.take_turn()
        await settle()
        with take_away(tmp_path, "agents.db", "schedules"):
            fired.go.set()
            await wait_for(fired.done)
            with pytest.raises(StorageFailed):
                runner.take_turn()
        assert find(store).outcome == RUNNING
        runner.take_turn()
        assert [one.outcome for one in store.load_all()] == ([] if once else [DONE])
        assert fired.messages == ["go"]
        await runner.close()


async def test_hub_that_takes_the_lease_again_does_not_call_its_own_runs_interrupted(
    tmp_path: Path,
) -> None:
    fired, lease = Fired(), Lease()
    fired.go.clear()
    with closing(DatabaseSchedules(tmp_path)) as store:
        store.add(build_schedule("a"))
        store.add(build_schedule("b", outcome=RUNNING, runs=1, last_at=1.0, next_at=NOON + 9))
        lease.is_held = False
        runner = ScheduleRunner(store, fired, SchedulingLimits(), Clock(), lease)
        runner.take_turn()
        lease.is_held = True
        with lose_answers(store), pytest.raises(StorageFailed):
            runner.take_turn()
        runner.take_turn()
        await settle()
        assert find(store, "b").outcome == INTERRUPTED and find(store).outcome == RUNNING
        for lease.is_held in (False, True):
            runner.take_turn()
        assert find(store).outcome == RUNNING
        fired.go.set()
        await wait_for(fired.done)
        assert find(store).outcome == DONE
        await runner.close()
