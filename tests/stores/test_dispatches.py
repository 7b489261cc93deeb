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
from dragoman.stores import dispatches
from dragoman.stores.database import StorePlace
from dragoman.stores.dispatches import ALL, DATABASE, DispatchStore


@asynccontextmanager
async def kept(
    home: StorePlace, keep: int = 1_000
) -> AsyncIterator[tuple[SkillHub, DispatchStore]]:
    skill_hub, store = SkillHub(), DispatchStore(home, keep)
    store.observe(skill_hub.bus)
    try:
        yield skill_hub, store
    finally:
        skill_hub.agent.go.set()
        await store.close()


async def found(store: DispatchStore, limit: int = 50, **wanted: Any) -> list[dict[str, Any]]:
    wanted = {"org": "default", "caller": ALL, **wanted}
    rows, _ = await store.find(limit, None, **wanted)
    return rows


async def until(done: Callable[[], bool]) -> None:
    async with asyncio.timeout(60):
        while not done():
            await asyncio.sleep(0.005)


def written(home: Path) -> list[tuple[Any, ...]]:
    """What another process would read."""
    with closing(sqlite3.connect(home / DATABASE)) as db:
        return db.execute("SELECT status, verb FROM dispatches ORDER BY seq").fetchall()


@pytest.mark.promise("R12")
async def test_only_skill_calls_are_recorded_as_dispatches(store_place: StorePlace) -> None:
    async with kept(store_place) as (skill_hub, store):
        await skill_hub.call("files.read")
        await skill_hub.call("a2a_vercel_ops_deploy", who=Principal("key", "ci", behalf="carol"))
        (row,) = await found(store)
    trace = skill_hub.agent.calls[1].trace.id
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
        "workType": None,
        "decisionId": None,
        "errorCode": None,
        "costTokens": None,
        "usage": None,
    }


async def ended(skill_hub: SkillHub, error: HubError | None = None, **arguments: Any) -> None:
    skill_hub.agent.error = error
    await asyncio.gather(skill_hub.call(**arguments), return_exceptions=True)


@pytest.mark.promise("R12")
async def test_each_outcome_has_a_dispatch_status_and_code(tmp_path: Path) -> None:
    async with kept(tmp_path) as (skill_hub, store):
        await ended(skill_hub)
        await ended(skill_hub, fails=True)
        await ended(skill_hub, asks=True)
        await ended(skill_hub, RemoteA2ATimeoutError("30 s"))
        running = skill_hub.begin()
        await asyncio.wait_for(skill_hub.agent.running.wait(), 60)
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
        skill_hub.judge.denied.add("vercel_ops.deploy")
        with pytest.raises(AuthorizationError):
            await skill_hub.call()
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
async def test_token_usage_of_the_agent_is_stored(
    usage: dict[str, float], tokens: float | None, tmp_path: Path
) -> None:
    async with kept(tmp_path) as (skill_hub, store):
        await skill_hub.call(usage=usage)
        (row,) = await found(store)
    assert (row["usage"], row["costTokens"]) == (usage, tokens)


@pytest.mark.promise("R12")
async def test_running_dispatches_count_as_load_and_are_listed_as_running(
    tmp_path: Path,
) -> None:
    async with kept(tmp_path) as (skill_hub, store):
        running = [skill_hub.begin() for _ in range(3)]
        await asyncio.wait_for(skill_hub.agent.running.wait(), 60)
        assert (store.count_active("Vercel Ops"), store.count_active("another")) == (3, 0)
        rows = await found(store, status="running")
        assert [(row["completedAt"], row["latencyMs"]) for row in rows] == [(None, None)] * 3
        running[0].cancel()
        await asyncio.gather(running[0], return_exceptions=True)
        assert store.count_active("Vercel Ops") == 2
        skill_hub.agent.go.set()
        await asyncio.gather(*running[1:])
        assert store.count_active("Vercel Ops") == 0 and not store._active
        assert {row["status"] for row in await found(store)} == {"completed", "cancelled"}


async def test_dispatches_are_written_in_groups_without_blocking_calls(
    tmp_path: Path,
) -> None:
    async with kept(tmp_path) as (skill_hub, store):
        held, let_go = threading.Event(), threading.Event()

        def hold() -> None:
            held.set()
            assert let_go.wait(60)

        store._thread.submit(hold)  # as a disk does that takes its time
        assert held.wait(60)
        begun = perf_counter()
        for _ in range(300):
            await skill_hub.call()
        assert perf_counter() - begun < 30 and written(tmp_path) == []
        let_go.set()
        assert len(await found(store, limit=200)) == 200
        assert len(await found(store, limit=1_000)) == 300  # whether written or not
    assert len(written(tmp_path)) == 300
    assert store.groups <= 5


async def test_pages_neither_repeat_nor_miss_dispatches_during_writes(tmp_path: Path) -> None:
    async with kept(tmp_path) as (skill_hub, store):
        store_write = store._write
        for count in range(1, 40):
            await skill_hub.call()
            if count % 3 == 0 and store._writing is None:
                store_write()
            ids = [row["dispatchId"] for row in await found(store, limit=200)]
            assert len(ids) == len(set(ids)) == count


async def test_dispatches_survive_a_restart_and_the_oldest_are_pruned_first(
    store_place: StorePlace,
) -> None:
    async with kept(store_place, keep=100) as (skill_hub, store):
        for _ in range(130):
            await skill_hub.call()
        newest = (await found(store, limit=1))[0]["dispatchId"]
    async with kept(store_place, keep=100) as (skill_hub, store):
        rows = await found(store, limit=200)
        assert len(rows) == 100 and rows[0]["dispatchId"] == newest


@pytest.mark.promise("R12")
async def test_dispatch_pages_run_from_newest_to_oldest_during_inserts(
    store_place: StorePlace,
) -> None:
    async with kept(store_place) as (skill_hub, store):
        for _ in range(25):
            await skill_hub.call()
        store._write()
        running = skill_hub.begin()
        await asyncio.wait_for(skill_hub.agent.running.wait(), 60)
        seen: list[dict[str, Any]] = []
        cursor: str | None = None
        while True:
            rows, cursor = await store.find(10, cursor, org="default", caller=ALL)
            seen += rows
            await asyncio.gather(skill_hub.call("vercel_ops.logs"))
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


async def test_dispatch_filters_select_matching_rows(
    store_place: StorePlace, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dispatches, "WRITE_SECONDS", 600.0)  # the test writes itself
    async with kept(store_place) as (skill_hub, store):
        await skill_hub.call(who=ALICE)
        await skill_hub.call("vercel_ops.logs", who=BOB)
        await skill_hub.call(who=Principal("key", "alice", org="other"))
        await ended(skill_hub, fails=True)
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


async def test_unwritable_dispatch_store_refuses_no_call_and_is_retried(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("dragoman.stores.dispatches.MAX_UNWRITTEN", 10)
    monkeypatch.setattr("dragoman.stores.dispatches.AGAIN_SECONDS", 0.01)
    monkeypatch.setattr("dragoman.stores.dispatches.BUSY_SECONDS", 0.01)
    async with kept(tmp_path) as (skill_hub, store):
        with closing(sqlite3.connect(tmp_path / DATABASE)) as other, caplog.at_level(logging.ERROR):
            other.execute("BEGIN IMMEDIATE")
            for _ in range(15):
                await skill_hub.call()
            assert len(store._unwritten) == 10
            store._write()
            await until(lambda: store._failing)
            assert store.lost == 5
            assert len(await found(store)) in (0, 10)  # they are here, or just tried again
            other.execute("ROLLBACK")
        await until(lambda: len(written(tmp_path)) >= 10)
    assert caplog.text.count("dispatches cannot be written") == 1
    assert len(written(tmp_path)) == 10


async def test_closed_dispatch_store_has_flushed_and_rejects_queries(tmp_path: Path) -> None:
    async with kept(tmp_path) as (skill_hub, store):
        await skill_hub.call()
        await store.close()
        assert written(tmp_path) == [("completed", "vercel_ops.deploy")]
        with pytest.raises(ShuttingDown, match="shutting down"):
            await found(store)
        await skill_hub.call()  # a late one has no effect


def test_invalid_dispatch_database_is_reported_at_start(tmp_path: Path) -> None:
    (tmp_path / DATABASE).write_bytes(b"not a database" * 100)
    with pytest.raises(ConfigError, match="damaged"):
        DispatchStore(tmp_path, 100)
