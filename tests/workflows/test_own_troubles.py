"""Troubles of the hub itself during a run: what has not left is put back, and made once the hub is
able to make it; decisions still fail the run."""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path
from typing import Any

import pytest
from tests.table_outage import take_away
from tests.workflows.run_rig import RunRig, ask, call, node, run_rig

from dragoman.core.call import Call
from dragoman.core.errors import StorageFailed
from dragoman.core.logs import STORAGE_OUTAGE
from dragoman.core.principal import OWNER, Principal
from dragoman.core.runs import COMPLETED, FAILED, PENDING, WAITING, Run
from dragoman.stores.config import StoreSettings

pytestmark = [pytest.mark.promise("R14"), pytest.mark.anyio]

BOB = Principal("key", "bob", roles=("owner",))


@pytest.fixture(params=["sqlite", "postgres"])
def store_url(request: pytest.FixtureRequest) -> str | None:
    if request.param == "sqlite":
        return None
    url: str = request.getfixturevalue("postgres_url")
    return url


async def until_put_back(rig: RunRig, run: Run, path: str, problem: str) -> None:
    """Waits until the hub was not able to do a step twice."""
    async with asyncio.timeout(60):
        while True:
            record = (await rig.steps(run)).get(path)
            if record is not None and record.detail.get("troubles", 0) >= 2:
                break
            assert (await rig.service.find(OWNER, run.id)).state != FAILED
            await asyncio.sleep(0.02)
    assert record.state == PENDING and record.attempt == 0 and problem in record.problem


async def until_asked(rig: RunRig, run: Run, path: str) -> str:
    """Waits until a step waits for its approval, and returns the id of the request."""
    async with asyncio.timeout(60):
        while (record := (await rig.steps(run)).get(path)) is None or not record.approval:
            await asyncio.sleep(0.02)
    return record.approval


async def test_keys_that_cannot_be_checked_fail_no_step(short_tmp: Path) -> None:
    async with run_rig(short_tmp) as rig:
        keys = rig.app.parts.stores.keys
        keys.create("bob", owner="Bob", expires_at=None, scopes=["call"])
        gate = asyncio.Event()

        async def wait(one: Call) -> str:
            await gate.wait()
            return "done"

        rig.add("slow", wait)
        rig.add("after", lambda one: "done")
        await rig.define("two", call("slow"), call("after", "slow"))
        run = await rig.start("two", BOB)
        await asyncio.wait_for(rig.stub.arrived.wait(), 60)
        with take_away(short_tmp, "hub.db", "keys"):
            gate.set()
            await until_put_back(rig, run, "after", "keys cannot be checked")
        run = await rig.until(run.id)
        assert (run.state, rig.stub.count("after")) == (COMPLETED, 1), run.problem
        steps = await rig.steps(run)
        assert [steps[path].attempt for path in ("slow", "after")] == [1, 1]
        # A decision is none of the hub's troubles.
        gate.clear()
        rig.stub.arrived.clear()
        run = await rig.start("two", BOB)
        await asyncio.wait_for(rig.stub.arrived.wait(), 60)
        keys.revoke("bob")
        gate.set()
        assert (await rig.until(run.id)).state == FAILED


async def test_an_answer_is_kept_while_the_hub_cannot_pass_it_on(short_tmp: Path) -> None:
    async with run_rig(short_tmp) as rig:
        keys = rig.app.parts.stores.keys
        keys.create("bob", owner="Bob", expires_at=None, scopes=["call"])
        rig.add("choose", lambda one: one.answers["choice"] if one.answers else ask())
        await rig.define("one", call("choose"))
        run = await rig.start("one", BOB)
        await rig.until(run.id, WAITING)
        await rig.until_idle()
        with take_away(short_tmp, "hub.db", "keys"):
            await rig.service.answer(BOB, run.id, "choose", {"choice": "this"})
            await until_put_back(rig, run, "choose", "keys cannot be checked")
        run = await rig.until(run.id)
        assert run.state == COMPLETED and run.output["choose"]["text"] == "this"
        assert rig.stub.count("choose") == 2  # it was asked once, and answered once


async def test_requests_for_approval_wait_for_their_store(
    short_tmp: Path, store_url: str | None
) -> None:
    policies = """
@id("owner") permit (principal in Hub::Role::"owner", action, resource);
@id("pay") @approval("it costs money")
forbid (principal, action in Hub::Action::"any_call", resource == Hub::Tool::"stub.pay")
unless { context.approved };
"""
    settings = StoreSettings(url=store_url)
    async with run_rig(short_tmp, policies=policies, store=settings) as rig:
        desk = rig.app.parts.guards.approvals.find_desk()
        rig.add("pay", lambda one: "paid")
        await rig.define("careful", node("ask", "approval", title="Go?"), call("pay", "ask"))
        with take_away(store_url or short_tmp, "approvals.db", "approvals"):
            run = await rig.start("careful")
            await until_put_back(rig, run, "ask", "approvals")
        for path in ("ask", "pay"):
            desk.decide(await until_asked(rig, run, path), True, OWNER)
        run = await rig.until(run.id)
        assert (run.state, rig.stub.count("pay")) == (COMPLETED, 1), run.problem
        assert (await rig.steps(run))["pay"].attempt == 1


async def test_what_a_target_could_not_store_is_no_trouble_of_the_hub(short_tmp: Path) -> None:
    def fail(one: Call) -> str:
        raise StorageFailed("my own file cannot be written")

    async with run_rig(short_tmp) as rig:
        rig.add("write", fail)
        await rig.define("one", call("write", retry={"attempts": 3, "backoff": 0.01}))
        run = await rig.run("one")
        # Whether a part of it was done is unknown, and it may not be repeated.
        assert (run.state, rig.stub.count("write")) == (FAILED, 1)


async def test_decisions_of_before_the_start_are_read_once_the_store_can_be_read(
    short_tmp: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with run_rig(short_tmp) as rig:
        rig.add("act", lambda one: "done")
        await rig.define("inner", call("act"))
        store = rig.service._store
        find, asked = store.list_awaiting, list[str]()

        async def fail(awaited: str, limit: int, after: tuple[str, str] = ("", "")) -> Any:
            asked.append(awaited)
            if len(asked) < 3:
                raise StorageFailed("the database is away")
            return await find(awaited, limit, after)

        store.list_awaiting = fail  # type: ignore[method-assign, assignment]
        rig.service._background.spawn(rig.service._catch_up())
        async with asyncio.timeout(60):
            while len(set(asked)) < 3:  # events, approvals and runs
                await asyncio.sleep(0.01)
    assert not [one for one in caplog.records if one.exc_info]


async def test_an_outage_of_the_store_is_logged_once_for_all_runs(
    short_tmp: Path, caplog: pytest.LogCaptureFixture
) -> None:
    STORAGE_OUTAGE.clear()
    async with run_rig(short_tmp) as rig:
        rig.add("choose", lambda one: one.answers["choice"] if one.answers else ask())
        await rig.define("one", call("choose"))
        runs = [await rig.start("one") for _ in range(4)]
        for run in runs:
            await rig.until(run.id, WAITING)
        await rig.until_idle()
        caplog.clear()
        seen = list[str]()
        with take_away(short_tmp, "runs.db", "runs"), caplog.at_level(logging.DEBUG):
            for run in runs:  # as a decision of another hub, for which no caller waits
                rig.service._runner.deliver(run.id, lambda active: seen.append(active.run.id))
            async with asyncio.timeout(60):
                while sum("is continued later" in one.message for one in caplog.records) < 8:
                    await asyncio.sleep(0.01)
        async with asyncio.timeout(60):
            while set(seen) != {run.id for run in runs}:
                await asyncio.sleep(0.01)
        complaints = [one for one in caplog.records if one.levelno >= logging.ERROR]
        assert len(complaints) == 1, complaints


async def test_runs_of_a_hub_that_has_ended_are_one_warning(
    short_tmp: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with run_rig(short_tmp) as rig:
        rig.add("act", lambda one: "done")
        await rig.define("one", call("act"))
        store, found = rig.service._store, [3, 0, 2]

        async def rescue() -> int:
            return found.pop(0)

        store.rescue = rescue  # type: ignore[method-assign]
        with caplog.at_level(logging.INFO):
            for _ in range(3):
                await rig.service._runner.follow_others()
    told = [one for one in caplog.records if "of other hubs are continued" in one.message]
    assert [one.levelname for one in told] == ["WARNING", "INFO"]
