from __future__ import annotations

import asyncio
import logging
import sqlite3
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, closing
from pathlib import Path
from time import perf_counter
from typing import Any

import pytest
from tests.skill_hub import ALICE, BOB, SkillHub

from dragoman.core.errors import (
    AuthorizationError,
    ConfigError,
    HubError,
    InvalidInput,
    RemoteA2ATimeoutError,
    ShuttingDown,
)
from dragoman.core.principal import Principal
from dragoman.stores.dispatches import ALL, DATABASE, DispatchStore


@asynccontextmanager
async def kept(home: Path, keep: int = 1_000) -> AsyncIterator[tuple[SkillHub, DispatchStore]]:
    road, store = SkillHub(), DispatchStore(home, keep)
    store.observe(road.bus)
    try:
        yield road, store
    finally:
        road.agent.go.set()
        await store.close()


async def found(store: DispatchStore, limit: int = 50, **wanted: Any) -> list[dict[str, Any]]:
    wanted = {"org": "default", "caller": ALL, **wanted}
    rows, _ = await store.find(limit, None, **wanted)
    return rows


async def until(done: Callable[[], bool]) -> None:
    async with asyncio.timeout(10):
        while not done():
            await asyncio.sleep(0.005)


def written(home: Path) -> list[tuple[Any, ...]]:
    """What another process would read."""
    with closing(sqlite3.connect(home / DATABASE)) as db:
        return db.execute("SELECT status, verb FROM dispatches ORDER BY seq").fetchall()


@pytest.mark.promise("R12")
async def test_a_call_of_a_skill_is_a_dispatch_and_other_calls_are_none(tmp_path: Path) -> None:
    async with kept(tmp_path) as (road, store):
        await road.call("files.read")
        await road.call("a2a_vercel_ops_deploy", who=Principal("key", "ci", behalf="carol"))
        (row,) = await found(store)
    trace = road.agent.calls[1].trace.id
    assert 0 <= row.pop("latencyMs") < 5_000
    assert len(row.pop("dispatchId")) == 32
    assert row.pop("startedAt") <= row.pop("completedAt")
    assert row == {
        "agentId": "card-1",
        "agentName": "Vercel Ops",
        "skillId": "deploy",
        "verb": "vercel_ops.deploy",
        "askedAs": "a2a_vercel_ops_deploy",
        "taskId": "task-7",
        "traceId": trace,
        "sessionId": f"a2a-card-1-deploy-{trace}",
        "caller": "key:ci",
        "onBehalfOf": "carol",
        "status": "completed",
        "kind": "explicit",
        "errorCode": None,
        "costTokens": None,
        "usage": None,
    }


async def ended(road: SkillHub, error: HubError | None = None, **arguments: Any) -> None:
    road.agent.error = error
    await asyncio.gather(road.call(**arguments), return_exceptions=True)


@pytest.mark.promise("R12")
async def test_each_way_to_end_has_a_status_and_a_code(tmp_path: Path) -> None:
    async with kept(tmp_path) as (road, store):
        await ended(road)
        await ended(road, fails=True)
        await ended(road, asks=True)
        await ended(road, RemoteA2ATimeoutError("30 s"))
        running = road.begin()
        await asyncio.wait_for(road.agent.running.wait(), 5)
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
        road.judge.denied.add("vercel_ops.deploy")
        with pytest.raises(AuthorizationError):
            await road.call()
        rows = (await found(store))[::-1]
    assert [(row["status"], row["errorCode"]) for row in rows] == [
        ("completed", None),
        ("failed", -32204),
        ("asked", None),
        ("failed", -32201),
        ("cancelled", -32800),
        ("denied", -32003),
    ]
    assert rows[-1]["taskId"] is None  # nothing has left


@pytest.mark.parametrize(
    ("usage", "tokens"),
    [
        ({"totalTokens": 30}, 30),
        ({"input_tokens": 10, "output_tokens": 5, "cost": 0.1}, 15),
        ({"promptTokens": 7}, 7),
        ({"cost": 0.1}, None),
    ],
)
async def test_what_the_agent_used_is_kept_with_its_tokens(
    usage: dict[str, float], tokens: float | None, tmp_path: Path
) -> None:
    async with kept(tmp_path) as (road, store):
        await road.call(usage=usage)
        (row,) = await found(store)
    assert (row["usage"], row["costTokens"]) == (usage, tokens)


@pytest.mark.promise("R12")
async def test_what_is_under_way_is_the_load_of_its_agent_and_listed_as_running(
    tmp_path: Path,
) -> None:
    async with kept(tmp_path) as (road, store):
        running = [road.begin() for _ in range(3)]
        await asyncio.wait_for(road.agent.running.wait(), 5)
        assert (store.count_active("Vercel Ops"), store.count_active("another")) == (3, 0)
        rows = await found(store, status="running")
        assert [(row["completedAt"], row["latencyMs"]) for row in rows] == [(None, None)] * 3
        running[0].cancel()
        await asyncio.gather(running[0], return_exceptions=True)
        assert store.count_active("Vercel Ops") == 2
        road.agent.go.set()
        await asyncio.gather(*running[1:])
        assert store.count_active("Vercel Ops") == 0 and not store._active
        assert {row["status"] for row in await found(store)} == {"completed", "cancelled"}


async def test_calls_are_written_in_groups_by_a_thread_and_none_waits_for_it(
    tmp_path: Path,
) -> None:
    async with kept(tmp_path) as (road, store):
        held, let_go = threading.Event(), threading.Event()

        def hold() -> None:
            held.set()
            assert let_go.wait(10)

        store._thread.submit(hold)  # as a disk does that takes its time
        assert held.wait(5)
        begun = perf_counter()
        for _ in range(300):
            await road.call()
        assert perf_counter() - begun < 5 and written(tmp_path) == []
        let_go.set()
        assert len(await found(store, limit=200)) == 200
        assert len(await found(store, limit=1_000)) == 300  # whether written or not
    assert len(written(tmp_path)) == 300
    assert store.groups <= 5


async def test_no_dispatch_is_seen_twice_or_missed_while_groups_are_written(tmp_path: Path) -> None:
    async with kept(tmp_path) as (road, store):
        store_write = store._write
        for count in range(1, 40):
            await road.call()
            if count % 3 == 0 and store._writing is None:
                store_write()
            ids = [row["dispatchId"] for row in await found(store, limit=200)]
            assert len(ids) == len(set(ids)) == count


async def test_dispatches_are_there_after_a_restart_and_the_oldest_go_first(tmp_path: Path) -> None:
    async with kept(tmp_path, keep=100) as (road, store):
        for _ in range(130):
            await road.call()
        newest = (await found(store, limit=1))[0]["dispatchId"]
    async with kept(tmp_path, keep=100) as (road, store):
        rows = await found(store, limit=200)
        assert len(rows) == 100 and rows[0]["dispatchId"] == newest


@pytest.mark.promise("R12")
async def test_pages_go_from_the_newest_to_the_oldest_while_more_come(tmp_path: Path) -> None:
    async with kept(tmp_path) as (road, store):
        for _ in range(25):
            await road.call()
        store._write()
        running = road.begin()
        await asyncio.wait_for(road.agent.running.wait(), 5)
        seen: list[dict[str, Any]] = []
        cursor: str | None = None
        while True:
            rows, cursor = await store.find(10, cursor, org="default", caller=ALL)
            seen += rows
            await asyncio.gather(road.call("vercel_ops.logs"))
            if cursor is None:
                break
        assert len(seen) == 26 and seen[0]["status"] == "running"
        assert {row["skillId"] for row in seen} == {"deploy"}
        times = [row["startedAt"] for row in seen]
        assert times == sorted(times, reverse=True)
        with pytest.raises(InvalidInput, match="no such cursor"):
            await store.find(10, "%%%", org="default", caller=ALL)
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)


async def test_each_filter_leaves_what_it_names(tmp_path: Path) -> None:
    async with kept(tmp_path) as (road, store):
        await road.call(who=ALICE)
        await road.call("vercel_ops.logs", who=BOB)
        await road.call(who=Principal("key", "alice", org="other"))
        await ended(road, fails=True)
        all_of_them = await found(store)
        assert len(all_of_them) == 3
        session = all_of_them[1]["sessionId"]
        last = store._unwritten[-1].started
        for unwritten in (True, False):
            if not unwritten:
                store._write()
            assert len(await found(store, caller="key:bob")) == 1
            assert len(await found(store, org="other")) == 1
            assert len(await found(store, agent="Vercel Ops")) == 3
            assert await found(store, agent="Vercel") == []
            assert len(await found(store, agent_id="card-1", status="failed")) == 1
            assert len(await found(store, session=session)) == 1
            assert await found(store, kind="routed") == []
            assert len(await found(store, since=last)) == 1
            assert len(await found(store, until=last)) == 2


async def test_a_database_that_cannot_be_written_refuses_no_call_and_is_tried_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("dragoman.stores.dispatches.MAX_UNWRITTEN", 10)
    monkeypatch.setattr("dragoman.stores.dispatches.AGAIN_SECONDS", 0.01)
    monkeypatch.setattr("dragoman.stores.dispatches.BUSY_SECONDS", 0.01)
    async with kept(tmp_path) as (road, store):
        with closing(sqlite3.connect(tmp_path / DATABASE)) as other, caplog.at_level(logging.ERROR):
            other.execute("BEGIN IMMEDIATE")
            for _ in range(15):
                await road.call()
            assert len(store._unwritten) == 10
            store._write()
            await until(lambda: store._failing)
            assert store.lost == 5
            assert len(await found(store)) in (0, 10)  # they are here, or just tried again
            other.execute("ROLLBACK")
        await until(lambda: len(written(tmp_path)) >= 10)
    assert caplog.text.count("dispatches cannot be written") == 1
    assert len(written(tmp_path)) == 10


async def test_a_store_that_is_closed_has_written_all_and_answers_no_more(tmp_path: Path) -> None:
    async with kept(tmp_path) as (road, store):
        await road.call()
        await store.close()
        assert written(tmp_path) == [("completed", "vercel_ops.deploy")]
        with pytest.raises(ShuttingDown, match="shutting down"):
            await found(store)
        await road.call()  # a late one hurts nobody


def test_a_file_that_is_no_database_is_said_at_the_start(tmp_path: Path) -> None:
    (tmp_path / DATABASE).write_bytes(b"not a database" * 100)
    with pytest.raises(ConfigError, match="damaged"):
        DispatchStore(tmp_path, 100)
