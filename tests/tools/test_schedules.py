"""Schedules: when they run, what a restart and a slow agent do to them, and their bounds."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path

import pytest
from tests.permissive_hub import PermitAll
from tests.tools.tool_rig import ToolRig, Use, read_object, text_result

from dragoman.app.build import renew_principal
from dragoman.core.call import Call, Result
from dragoman.core.errors import (
    AuthorizationError,
    ConfigError,
    InvalidInput,
    NotFound,
    Overloaded,
    WorkFailed,
)
from dragoman.core.local_agents import AgentSchedule
from dragoman.core.ports import Decision, Schedule
from dragoman.core.principal import OWNER, Principal
from dragoman.core.schedule_times import Timing, count_missed, find_next, parse_timing
from dragoman.core.structs import replace
from dragoman.core.tool import Tool
from dragoman.stores.agent_schedules import DatabaseSchedules, ScheduleLimits
from dragoman.stores.database import StorePlace
from dragoman.stores.keys import KeyStore
from dragoman.tools.agent_calls import ScheduledCalls
from dragoman.tools.manifest_schedules import check_schedules, move_schedules, sync_schedules
from dragoman.tools.schedule_runner import INTERRUPTED, RUNNING, ScheduleRunner, SchedulingLimits
from dragoman.web.access_watch import AccessWatch
from dragoman.web.auth import Authenticator

pytestmark = pytest.mark.promise("T2")

NOON = datetime(2026, 3, 2, 12, 0, tzinfo=UTC).timestamp()  # a Monday


@pytest.mark.parametrize(
    ("text", "zone", "after"),
    [
        ("every 10 minutes", "UTC", "2026-03-02T12:10:00+00:00"),
        ("5m", "UTC", "2026-03-02T12:05:00+00:00"),
        ("every hour", "UTC", "2026-03-02T13:00:00+00:00"),
        ("in 2 hours", "UTC", "2026-03-02T14:00:00+00:00"),
        ("every 1 week", "UTC", "2026-03-09T12:00:00+00:00"),
        ("0 9 * * 1-5", "UTC", "2026-03-03T09:00:00+00:00"),
        ("0 9 * * mon", "UTC", "2026-03-09T09:00:00+00:00"),
        ("@hourly", "UTC", "2026-03-02T13:00:00+00:00"),
        ("daily", "UTC", "2026-03-03T00:00:00+00:00"),
        ("daily at 9:30", "UTC", "2026-03-03T09:30:00+00:00"),
        ("every day at 3 pm", "UTC", "2026-03-02T15:00:00+00:00"),
        ("Friday at 12am", "UTC", "2026-03-06T00:00:00+00:00"),
        ("weekdays at 13:00", "Europe/Berlin", "2026-03-03T12:00:00+00:00"),
        ("daily at 9:30", "America/New_York", "2026-03-02T14:30:00+00:00"),
    ],
)
def test_time_of_the_next_run(text: str, zone: str, after: str) -> None:
    timing = parse_timing(text, zone, False)
    assert datetime.fromtimestamp(find_next(timing, NOON), UTC).isoformat() == after
    assert timing.once == text.startswith("in ")


def test_hour_that_the_clock_skips_is_made_up_for() -> None:
    timing = parse_timing("30 2 * * *", "Europe/Berlin", False)
    night = datetime(2026, 3, 28, 23, 30, tzinfo=UTC).timestamp()
    assert find_next(timing, night) - night < 3 * 3600


@pytest.mark.parametrize(
    ("text", "zone"),
    [
        ("sometimes", "UTC"),
        ("* * * *", "UTC"),
        ("* * * * * *", "UTC"),
        ("0 0 31 2 *", "UTC"),
        ("61 * * * *", "UTC"),
        ("every 5 seconds", "UTC"),
        ("every now and then", "UTC"),
        ("every 99999 weeks", "UTC"),
        ("daily at 25:00", "UTC"),
        ("daily", "Nowhere/City"),
        ("daily", "../UTC"),
    ],
)
def test_malformed_time_is_refused(text: str, zone: str) -> None:
    with pytest.raises(InvalidInput):
        parse_timing(text, zone, False)


def test_missed_runs_are_counted() -> None:
    assert count_missed(Timing("every 600", "UTC", False), NOON, NOON + 5) == 0
    assert count_missed(Timing("every 600", "UTC", False), NOON, NOON + 1_805) == 3
    assert count_missed(Timing("0 * * * *", "UTC", False), NOON, NOON + 86_400) == 24
    assert count_missed(Timing("* * * * *", "UTC", False), NOON, NOON + 10**8) == 1_000
    assert find_next(Timing("every 600", "UTC", False), NOON + 1_805, NOON) == NOON + 2_400


# --- the tools ------------------------------------------------------------------------------------


async def test_schedule_is_created_listed_and_deleted(rig: ToolRig) -> None:
    rig.add_agent(rig.build_profile("other", agents=()))
    made = read_object(
        await rig.use("schedule_create", description="check it", schedule="every 10 minutes")
    )
    listed = read_object(await rig.use("schedule_list"))["schedules"]
    assert [(one["id"], one["agent"], one["missed"]) for one in listed] == [
        (made["id"], "tester", 0)
    ]
    assert read_object(await rig.use("schedule_list", "other")) == {"schedules": []}
    with pytest.raises(InvalidInput, match="you have no schedule"):
        await rig.use("schedule_delete", "other", id=made["id"])
    await rig.use("schedule_delete", id=made["id"])
    assert read_object(await rig.use("schedule_list")) == {"schedules": []}
    with pytest.raises(NotFound, match="that you may know of"):
        await rig.use("schedule_create", "other", description="x", schedule="daily", agent="tester")
    with pytest.raises(InvalidInput):
        await rig.use("schedule_create", description="x", schedule="sometimes")


def build_schedule(id: str, **more: object) -> Schedule:
    values = {
        "id": id, "org": "default", "owner": "tester", "agent": "tester", "message": "go",
        "spec": "every 600", "zone": "UTC", "once": False, "created": NOON, "next_at": NOON,
    }  # fmt: skip
    return Schedule(**{**values, **more})  # type: ignore[arg-type]


def test_store_is_bounded_and_survives(tmp_path: Path) -> None:
    store = DatabaseSchedules(tmp_path, ScheduleLimits(of_agent=2, total=3))
    store.add(build_schedule("a"))
    store.add(build_schedule("b", once=True))
    with pytest.raises(Overloaded, match="you have 2"):
        store.add(build_schedule("c"))
    store.add(build_schedule("c", owner="x"))
    with pytest.raises(Overloaded, match="the hub has 3"):
        store.add(build_schedule("d", owner="y"))
    store.close()
    again = DatabaseSchedules(tmp_path)
    assert [one.once for one in again.list_schedules("default", "tester")] == [False, True]
    assert not again.delete("default", "x", "a") and again.delete("default", "tester", "a")
    assert not again.save(build_schedule("a"), build_schedule("a"))
    again.close()


# --- the runner -----------------------------------------------------------------------------------


def test_schedules_move_to_the_store_of_all_hubs_without_those_of_manifests(
    tmp_path: Path,
) -> None:
    (tmp_path / "own").mkdir()
    (tmp_path / "shared").mkdir()
    with (
        closing(DatabaseSchedules(tmp_path / "own")) as own,
        closing(DatabaseSchedules(tmp_path / "shared", ScheduleLimits(of_agent=2))) as shared,
    ):
        for id, source in (("a", ""), ("b", ""), ("c", ""), ("m", "manifest")):
            own.add(build_schedule(id, source=source))
        shared.add(build_schedule("a"))  # a move that a crash has interrupted
        move_schedules(own, shared)
        assert sorted(one.id for one in shared.load_all()) == ["a", "b"]
        assert [one.id for one in own.load_all()] == ["c"]  # there is no room for it


class Clock:
    now = NOON

    def __call__(self) -> float:
        return self.now


class Fired:
    """Records what is fired; a test may let a run wait or fail."""

    def __init__(self) -> None:
        self.messages: list[str] = []
        self.go = asyncio.Event()
        self.go.set()
        self.error: Exception | None = None
        self.done = asyncio.Event()

    async def __call__(self, schedule: Schedule, message: str) -> None:
        self.messages.append(message)
        await self.go.wait()
        self.done.set()
        if self.error is not None:
            raise self.error


@pytest.fixture
async def store(tmp_path: Path) -> AsyncIterator[DatabaseSchedules]:
    made = DatabaseSchedules(tmp_path)
    yield made
    made.close()


async def settle() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


def find(store: DatabaseSchedules, id: str = "a") -> Schedule:
    return next(one for one in store.load_all() if one.id == id)


async def test_due_schedule_runs_and_is_recorded(store: DatabaseSchedules) -> None:
    clock, fired = Clock(), Fired()
    runner = ScheduleRunner(store, fired, SchedulingLimits(longest_wait=1_000), clock)
    store.add(build_schedule("a", next_at=NOON + 10))
    assert runner.start_due() == 10 and not fired.messages
    clock.now += 10
    assert runner.start_due() == 600
    await settle()
    assert fired.messages == ["go"]
    run = find(store)
    assert (run.runs, run.outcome, run.missed, run.next_at) == (1, "completed", 0, NOON + 610)
    fired.error = WorkFailed("the model is away")
    clock.now += 600
    runner.start_due()
    await settle()
    assert find(store).outcome == "failed: the model is away"
    await runner.close()


async def test_missed_runs_are_made_up_for_once_and_reported(store: DatabaseSchedules) -> None:
    clock, fired = Clock(), Fired()
    store.add(build_schedule("a"))
    store.add(build_schedule("b", once=True, message="once"))
    clock.now += 1_900
    runner = ScheduleRunner(store, fired, SchedulingLimits(), clock)
    runner.start_due()
    await settle()
    assert sorted(fired.messages) == [
        "go\n\n[3 earlier runs of this schedule were missed.]",
        "once",
    ]
    assert find(store).missed == 3 and find(store).next_at == NOON + 2_400
    assert [one.id for one in store.load_all()] == ["a"]  # the other one is over
    await runner.close()


class StaleSchedules(DatabaseSchedules):
    """Those of a hub that has read them before another one has begun the runs."""

    def __init__(self, place: StorePlace) -> None:
        super().__init__(place)
        self.read = super().load_all()

    def load_all(self) -> list[Schedule]:
        return self.read


async def test_two_hubs_that_both_hold_the_lease_fire_once(store_place: StorePlace) -> None:
    clock, fired = Clock(), Fired()
    with closing(DatabaseSchedules(store_place)) as store:
        store.add(build_schedule("a"))
        store.add(build_schedule("b", once=True, message="once"))
        with closing(StaleSchedules(store_place)) as stale:
            clock.now += 10
            runners = [ScheduleRunner(one, fired, None, clock) for one in (store, stale)]
            for runner in runners:
                runner.start_due()
                await settle()
            assert sorted(fired.messages) == ["go", "once"]
            assert find(store).runs == 1
            for runner in runners:
                await runner.close()


async def test_run_is_skipped_while_the_last_one_continues(store: DatabaseSchedules) -> None:
    clock, fired = Clock(), Fired()
    fired.go.clear()
    store.add(build_schedule("a"))
    runner = ScheduleRunner(store, fired, SchedulingLimits(), clock)
    runner.start_due()
    await settle()
    clock.now += 600
    runner.start_due()
    await settle()
    assert len(fired.messages) == 1 and find(store).missed == 1 and find(store).runs == 1
    fired.go.set()
    await asyncio.wait_for(fired.done.wait(), 60)
    await settle()
    assert find(store).outcome == "completed"
    await runner.close()


async def test_interrupted_run_is_reported_and_not_repeated(store: DatabaseSchedules) -> None:
    clock, fired = Clock(), Fired()
    fired.go.clear()
    store.add(build_schedule("a"))
    runner = ScheduleRunner(store, fired, SchedulingLimits(), clock)
    runner.start_due()
    await settle()
    assert find(store).outcome == RUNNING  # a hub that is killed now leaves this
    again, woken = Fired(), ScheduleRunner(store, Fired(), SchedulingLimits(), clock)
    task = asyncio.ensure_future(woken.run())
    await settle()
    assert find(store).outcome == INTERRUPTED and not again.messages
    task.cancel()
    await runner.close()
    await woken.close()


async def test_runner_wakes_for_a_new_schedule(store: DatabaseSchedules) -> None:
    clock, fired = Clock(), Fired()
    runner = ScheduleRunner(store, fired, SchedulingLimits(longest_wait=1_000), clock)
    task = asyncio.ensure_future(runner.run())
    await settle()
    store.add(build_schedule("a"))
    runner.wake()
    await asyncio.wait_for(fired.done.wait(), 60)
    task.cancel()
    await runner.close()


async def test_schedules_of_manifests_follow_them(rig: ToolRig) -> None:
    store, clock, fired = rig.stores.schedules, Clock(), Fired()
    hourly = AgentSchedule(time="every hour", message="look")
    daily = AgentSchedule(time="daily at 9:00", message="sum up", zone="Europe/Berlin")
    profile = rig.build_profile("tester", schedules=(hourly, daily))
    assert sync_schedules(store, [profile], NOON)
    await rig.use("schedule_create", description="own", schedule="daily")
    clock.now += 3_600
    runner = ScheduleRunner(store, fired, SchedulingLimits(), clock)
    runner.start_due()
    await settle()
    assert fired.messages == ["look"]
    assert not sync_schedules(store, [profile], clock.now)  # what has not changed goes on
    found = read_object(await rig.use("schedule_list"))["schedules"]
    assert [(one["runs"], one.get("source")) for one in found if one["description"] == "look"] == [
        (1, "manifest")
    ]
    with pytest.raises(InvalidInput, match="is in your manifest"):
        await rig.use("schedule_delete", id=found[0]["id"])
    assert sync_schedules(store, [replace(profile, schedules=(daily,))], clock.now)
    assert {one.message for one in store.load_all()} == {"sum up", "own"}
    assert sync_schedules(store, [], clock.now)
    assert {one.message for one in store.load_all()} == {"own"}
    for wrong in ("sometimes", "in 20 minutes"):
        with pytest.raises(ConfigError, match='the field "schedule"'):
            check_schedules("tester", [AgentSchedule(time=wrong, message="x")])
    await runner.close()


class Policies(PermitAll):
    """Forbids a tool to all but one role."""

    def decide(self, call: Call) -> Decision:
        return Decision(self.can_see(call.principal, call.tool, ""), ("tests",), "test")

    def can_see(self, caller: Principal, tool: Tool, door: str) -> bool:
        return tool.alias != "memory_store" or caller.kind != "key" or "writer" in caller.roles


async def test_run_has_the_rights_of_its_creator_and_no_more(tmp_path: Path) -> None:
    keys = KeyStore(tmp_path)
    watch = AccessWatch(keys, Authenticator(None, lambda key: None, keys.has_keys))
    rig = ToolRig(tmp_path, authorizer=Policies(), why_ended=watch.explain_ended)
    todo = [("schedule_create", {"description": "x", "schedule": "daily"})]

    async def work(use: Use, message: str) -> Result:
        name, arguments = todo[0]
        return await use(name, **arguments)

    async def delegate(use: Use, message: str) -> Result:
        return await use("agent_send", agent_id="worker", message=message)

    rig.add_agent(rig.build_profile("worker"), work)
    rig.add_agent(rig.build_profile("front"), delegate)
    calls = ScheduledCalls(
        rig.hub, rig.directory, lambda principal: renew_principal(keys, principal)
    )

    async def create(name: str, roles: tuple[str, ...]) -> Schedule:
        keys.create(name, owner="o", expires_at=None, scopes=("call", "a"), roles=roles)
        who = Principal("key", name, roles=roles, scopes=("call", "a"))
        await rig.send("front", who=who)
        return next(
            one
            for one in rig.stores.schedules.load_all()
            if one.callers and one.callers[0].id == name
        )

    reader, writer = await create("reader", ()), await create("writer", ("writer",))
    assert [f"{one.kind}:{one.id}" for one in reader.callers] == ["key:reader", "agent:front"]
    assert writer.callers[0].build_principal().roles == ("writer",)
    listed = read_object(await rig.use("schedule_list", "worker"))["schedules"]
    assert [one["createdFor"] for one in listed] == ["key:reader", "key:writer"]

    todo[:] = [("memory_store", {"key": "a", "value": "b"})]
    await calls.fire(writer, "go")
    with pytest.raises(NotFound):  # as in a call of the key itself
        await calls.fire(reader, "go")
    todo[:] = [("system_time", {})]
    await calls.fire(reader, "go")
    keys.revoke("reader")
    with pytest.raises(AuthorizationError, match=r'"key:reader".*: the key was revoked'):
        await calls.fire(reader, "go")
    await rig.close()
    keys.close()


async def test_client_itself_cannot_create_a_schedule(tmp_path: Path) -> None:
    rig = ToolRig(tmp_path, 'clients = ["schedule_*"]')
    with pytest.raises(InvalidInput, match="only agents"):
        await rig.call(OWNER, "schedule_create", {"description": "x", "schedule": "daily"})
    await rig.close()


async def test_schedule_sends_a_message_in_a_chain_of_its_own(rig: ToolRig) -> None:
    heard: list[str] = []

    async def listen(use: Use, message: str) -> Result:
        heard.append(message)
        await use("system_time")
        return text_result("ok")

    rig.add_agent(rig.build_profile("worker"), listen)
    calls = ScheduledCalls(rig.hub, rig.directory)
    await calls.fire(build_schedule("a", owner="worker", agent="worker"), "do it")
    assert heard == ["do it"]
    with pytest.raises(NotFound, match='no agent "gone" any more'):
        await calls.fire(build_schedule("a", owner="gone"), "do it")
    rig.add_agent(rig.build_profile("narrow", agents=()))
    with pytest.raises(InvalidInput, match="was not granted"):
        await calls.fire(build_schedule("a", owner="narrow", agent="worker"), "do it")
