"""The store of workflow runs: the same on SQLite and on PostgreSQL."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import psycopg
import pytest

from dragoman.core.errors import ConfigError, InvalidInput, LeaseExpired
from dragoman.core.runs import (
    COMPLETED,
    QUEUED,
    RUNNING,
    WAITING,
    Run,
    RunFilter,
    RunOrigin,
    RunPrincipal,
    RunStore,
    RunTaken,
    StepRecord,
)
from dragoman.core.structs import replace
from dragoman.core.taint import LabelOrigin
from dragoman.stores.cluster import SCHEMA
from dragoman.stores.fence import Fence
from dragoman.stores.runs import SqliteRuns
from dragoman.stores.runs_postgres import open_postgres_runs

pytestmark = [pytest.mark.promise("R14"), pytest.mark.anyio]


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


def build(id: str, at: float = 1.0, **more: Any) -> Run:
    starter = RunPrincipal("key", more.pop("by", "ann"), "default", ("dev",), door="api")
    origin = RunOrigin(starter=starter, trigger={"kind": "manual"}, trace="t", chain=("a.b",))
    inputs = {"text": "a\0b \U0001f600 é", "list": [1, None, {"x": 1.5}]}
    values = {"workflow": "w", "digest": f"d{at}", "inputs": inputs, **more}
    return Run(id=id, origin=origin, created_at=at, **values)


def step(path: str, state: str = COMPLETED, **more: Any) -> StepRecord:
    return StepRecord(path=path, step=path, node="tool.call", state=state, **more)


@asynccontextmanager
async def open_store(kind: str, home: Path, url: str) -> AsyncIterator[RunStore]:
    store: RunStore = SqliteRuns(home)
    if kind == "postgres":
        await store.aclose()
        store = await open_postgres_runs(url, Fence(), is_shared=False)
    try:
        yield store
    finally:
        await store.aclose()


@pytest.mark.parametrize("kind", ["sqlite", "postgres"])
async def test_runs_are_stored_found_and_pruned(
    kind: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    url = request.getfixturevalue("postgres_url") if kind == "postgres" else ""
    async with open_store(kind, tmp_path, url) as store:
        first = build("r1")
        await store.add(first, "source 1")
        await store.add(replace(first, workflow="changed"), "source 1")
        assert await store.find("r1") == first
        assert await store.find("r9") is None
        assert await store.find_source("d1.0") == "source 1"
        assert await store.list_due(0.0, 10) == ["r1"]
        await store.add(build("r0"), "source 1")
        for _ in range(2):
            await store.drop(build("r0"))
            assert await store.find("r0") is None
        await store.add(build("r0", state=RUNNING), "source 1")
        await store.drop(build("r0"))
        assert await store.find("r0") is not None  # it has begun
        await store.save(build("r0", state=COMPLETED, ended_at=1.0))
        assert await store.prune(2.0, 0) == 1

        labels = {"secret": LabelOrigin("t.x", "trace", "why")}
        second = build("r2", 2.0, by="bob")
        waits = step("w", WAITING, awaited="approval A1", started_at=2.0, wake_at=9.0)
        saved = replace(first, state=WAITING, wake_at=9.0, labels=labels, problem="p\0q")
        await store.save(
            saved, [waits, step("a", output={"n": 1}, started_at=1.0)], [(second, "s 2")]
        )
        found = await store.find("r1")
        assert found == replace(saved, problem="pq")
        assert [one.path for one in await store.load_steps("r1")] == ["a", "w"]
        assert (await store.load_steps("r1"))[1] == waits
        assert await store.find_source("d2.0") == "s 2"
        assert await store.list_awaiting("approval A1", 5) == [("r1", "w", "approval A1")]
        assert await store.list_awaiting("approval ", 5) == [("r1", "w", "approval A1")]
        assert await store.list_awaiting("approval ", 5, ("r1", "w")) == []
        assert await store.list_awaiting("event ", 5) == []
        assert await store.find_next_wake() == 9.0
        assert await store.list_due(8.0, 10) == ["r2"]
        assert await store.list_due(9.0, 10) == ["r2", "r1"]  # queued and woken ones in turns
        await store.save(saved, [replace(waits, state=COMPLETED)])
        assert await store.list_awaiting("approval ", 5) == []

        await store.save(replace(second, state=RUNNING))
        assert await store.requeue_running() == 1
        listed, cursor = await store.list_runs(RunFilter(org="default"), 1, "")
        assert [one.id for one in listed] == ["r2"] and listed[0].state == QUEUED
        listed, cursor = await store.list_runs(RunFilter(org="default"), 1, cursor)
        assert [one.id for one in listed] == ["r1"] and not cursor
        for wanted, ids in (
            (RunFilter(owner="key:bob"), ["r2"]),
            (RunFilter(workflow="other"), []),
            (RunFilter(states=(WAITING, COMPLETED)), ["r1"]),
            (RunFilter(org="elsewhere"), []),
        ):
            assert [one.id for one in (await store.list_runs(wanted, 9, ""))[0]] == ids
        with pytest.raises(InvalidInput):
            await store.list_runs(RunFilter(), 1, "x' OR 1")

        counts = {("default", "key:ann"): 1, ("default", "key:bob"): 1}
        assert await store.count_unfinished() == counts
        for number in range(5):
            run = build(f"e{number}", 10.0 + number, state=COMPLETED, ended_at=10.0 + number)
            await store.add(run, "old")
        assert await store.prune(11.0, 100) == 1
        assert await store.prune(0.0, 2) == 2
        kept = [one.id for one in (await store.list_runs(RunFilter(), 9, ""))[0]]
        assert kept == ["e4", "e3", "r2", "r1"]
        assert await store.find_source("d10.0") is None and await store.find_source("d1.0")
    async with open_store(kind, tmp_path, url) as store:
        assert await store.count_unfinished() == counts


async def test_hubs_that_share_a_store_work_on_their_own_runs(postgres_url: str) -> None:
    marks = {"a": "aaaaaaaa", "b": "bbbbbbbb"}
    fences = {name: Fence() for name in marks}
    for name, mark in marks.items():
        fences[name].mark = mark
    a = await open_postgres_runs(postgres_url, fences["a"], is_shared=True)
    b = await open_postgres_runs(postgres_url, fences["b"], is_shared=True)
    with psycopg.connect(postgres_url, autocommit=True) as db:
        db.execute(SCHEMA.encode())
        for mark in (*marks.values(), "cccccccc"):
            db.execute(
                "INSERT INTO dragoman.hubs (id, node, version, address, state) "
                "VALUES (%s, 'n', '1', 'x', 'ready')",
                (mark,),
            )

        def end(hub: str) -> None:
            db.execute("UPDATE dragoman.hubs SET state = 'dead', heir = 'h' WHERE id = %s", (hub,))

        first, second = build("r1"), build("r2", 2.0)
        await a.add(first, "s")
        await b.add(replace(first, workflow="again"), "s")
        await b.drop(first)
        assert await b.find("r1") == first  # it was started once
        assert await a.list_due(0.0, 9) == ["r1"] and not await b.list_due(0.0, 9)
        with pytest.raises(RunTaken) as raised:
            await b.claim("r1")
        assert raised.value.hub == marks["a"]
        with pytest.raises(RunTaken):
            await b.save(replace(first, state=COMPLETED), [step("x")])
        assert await b.load_steps("r1") == []  # nothing was stored
        assert await b.claim("r9") is None

        # One that waits belongs to the hub that wakes it first.
        waits = replace(first, state=WAITING, wake_at=5.0)
        await a.save(waits, [], [(second, "s")])
        assert await b.find_next_wake() == 0.0
        await a.release("r1")
        assert await b.find_next_wake() == 5.0 and await b.list_due(5.0, 9) == ["r1"]
        claims = await asyncio.gather(a.claim("r1"), b.claim("r1"), return_exceptions=True)
        assert sorted(type(one).__name__ for one in claims) == ["Run", "RunTaken"]
        for store in (a, b):
            await store.release("r1")

        # The runs of a hub that has ended go to another one, and it cannot write any more.
        running = replace(second, state=RUNNING)
        await a.save(running, [step("x", RUNNING)])
        assert await b.rescue() == 0
        end(marks["a"])
        assert await b.rescue() == 1 and await b.rescue() == 0
        assert await b.list_due(0.0, 9) == ["r2"]
        with pytest.raises(LeaseExpired):
            await a.save(replace(running, state=COMPLETED))
        with pytest.raises(LeaseExpired):
            await a.drop(second, {marks["a"], ""})
        claimed = await b.claim("r2")
        assert claimed is not None and claimed.state == QUEUED
        for write in (a.add(build("r3"), "s"), a.claim("r2"), a.rescue()):
            with pytest.raises(LeaseExpired):
                await write
        fences["a"].mark = "cccccccc"  # it has joined again
        with pytest.raises(RunTaken):
            await a.save(replace(running, state=COMPLETED))
        await a.drop(second, {marks["a"], ""})
        await b.save(running)  # the run stayed

        # A run that was refused before is deleted, wherever its row is by now.
        for hub in (marks["a"], ""):
            await b.add(build("r4"), "s")
            db.execute("UPDATE dragoman.runs SET hub = %s WHERE id = 'r4'", (hub,))
            await a.drop(build("r4"))
            assert await a.find("r4") is not None  # it is not this hub's
            await a.drop(build("r4"), {marks["a"], ""})
            assert await a.find("r4") is None
    await a.aclose()
    await b.aclose()


async def test_a_run_that_is_still_being_added_is_dropped(postgres_url: str) -> None:
    store = await open_postgres_runs(postgres_url, Fence(), is_shared=False)
    with psycopg.connect(postgres_url) as db, psycopg.connect(postgres_url) as watcher:
        watcher.autocommit = True
        names = (
            "id, workflow, digest, org, owner, parent, created_at, origin, inputs, state, "
            "ended_at, wake_at, problem, output, labels, hub"
        )
        await store.add(build("r1"), "s")
        copied = f"INSERT INTO dragoman.runs ({names}) SELECT 'r2', {names[4:]} FROM dragoman.runs"
        db.execute(copied.encode())
        dropping = asyncio.ensure_future(store.drop(build("r2")))
        waiting = b"SELECT count(*) FROM pg_locks WHERE NOT granted"
        async with asyncio.timeout(20):
            while not (watcher.execute(waiting).fetchone() or (0,))[0] and not dropping.done():
                await asyncio.sleep(0.01)
        db.commit()
        await dropping
    assert await store.find("r2") is None and await store.find("r1") is not None
    await store.aclose()


async def test_a_database_that_cannot_be_reached_is_one_sentence() -> None:
    with pytest.raises(ConfigError, match="cannot be used") as raised:
        await open_postgres_runs("postgresql://u:secret@127.0.0.1:9/x", Fence(), is_shared=False)
    assert "secret" not in str(raised.value)
