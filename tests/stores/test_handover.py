"""What a hub leaves to its heir: written in batches, bounded, and read by any hub."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import psycopg
import pytest

from dragoman.core.errors import StorageFailed
from dragoman.core.ports import KeptEvent, TaskChange
from dragoman.core.principal import Principal
from dragoman.stores import handover
from dragoman.stores.fence import Fence
from dragoman.stores.handover import PostgresHandover

ALICE, BOB = Principal("key", "alice\0", "acme"), Principal("key", "bob")


@asynccontextmanager
async def run(url: str) -> AsyncIterator[PostgresHandover]:
    async with await psycopg.AsyncConnection.connect(url, autocommit=True) as admin:
        await admin.execute(b"CREATE SCHEMA IF NOT EXISTS dragoman; " + handover.SCHEMA.encode())
    made = PostgresHandover(url, Fence())
    made.start()
    try:
        yield made
    finally:
        await made.close()


async def until(found: Callable[[], Awaitable[Any]]) -> Any:
    async with asyncio.timeout(60):
        while not (got := await found()):
            await asyncio.sleep(0.01)
    return got


def event(number: int, data: bytes = b"data: x\n\n", *, is_last: bool = False) -> KeptEvent:
    return KeptEvent(number, data, is_last)


def change(id: str, state: str, owner: Principal = ALICE, **about: Any) -> TaskChange:
    return TaskChange(0, id, owner, state, 1.0, 2.0, about, ())


async def test_another_hub_reads_what_was_left(postgres_url: str) -> None:
    async with run(postgres_url) as one, run(postgres_url) as two:
        for number in range(1, 2_501):
            one.keep_event("session", "p1", event(number))
        one.keep_event("session", "p1", event(2_501, is_last=True))
        one.keep_event("session", "p2", event(1))
        await until(lambda: two.load_events("session", "p2", 0))
        found = await two.load_events("session", "p1", 2_499)
        assert found == [event(2_500), event(2_501, is_last=True)]
        assert len(await two.load_events("session", "p1", 0)) == handover.MAX_LOADED
        assert await two.load_events("other", "p1", 0) == []
        one.keep_task(change("t", "working", tool="x"))
        one.keep_task(change("t", "completed", tool="x", result={"content": ["a"]}))
        kept = await until(lambda: two.load_task(ALICE, "t"))
        assert (kept.state, kept.about["result"]) == ("completed", {"content": ["a"]})
        assert await two.load_task(BOB, "t") is None
        one.drop_task("t")

        async def is_gone() -> bool:
            return await two.load_task(ALICE, "t") is None

        await until(is_gone)
        assert one.dropped == 0


async def test_limits_and_ends(postgres_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(handover, "MAX_QUEUED", 10_000)
    monkeypatch.setattr(handover, "MAX_KEPT", 60_000)
    monkeypatch.setattr(handover, "MAX_ROW", 3_000)
    async with run(postgres_url) as one, run(postgres_url) as two:
        one.keep_event("s", "p1", event(1, b"x" * 3_001))  # too large
        for number in range(2, 9):
            one.keep_event("s", "p1", event(number, b"x" * 2_000))
        assert one.dropped == 4  # four fit into the queue
        one.keep_task(change("t", "completed", tool="x", result={"content": "x" * 5_000}))
        found = await until(lambda: two.load_events("s", "p1", 0))
        assert [each.number for each in found] == [2, 3, 4, 5]
        kept = await until(lambda: two.load_task(ALICE, "t"))
        assert kept.about == {"tool": "x", "result": None}
        for number in range(100, 200):  # the total is limited, too
            one.keep_event("s", "p2", event(number, b"x" * 1_000))
            while one._queued:
                await asyncio.sleep(0.001)
        kept_now = len(await two.load_events("s", "p2", 0))
        assert 30 < kept_now < 45 and one.dropped == 4 + 100 - kept_now
        for owner in (ALICE, BOB):  # its heir answers for the tasks of a hub that stops
            two.keep_task(change(f"of {owner.id!r}", "working", owner, tool="x"))
        closing = asyncio.ensure_future(two.close())
        await asyncio.sleep(0)
        two.drop_task("of 'bob'")
        await closing
        assert await one.load_task(BOB, "of 'bob'") is not None


async def test_an_outage_loses_nothing_and_bad_rows_block_nothing(
    postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(handover, "RETRY_SECONDS", 0.01)
    async with run(postgres_url) as one:
        execute, failures = one._writer.write, [2]

        async def fail(*arguments: Any) -> Any:
            if failures[0]:
                failures[0] -= 1
                raise StorageFailed("away")
            return await execute(*arguments)

        monkeypatch.setattr(one._writer, "write", fail)
        one.keep_event("s", "p1", event(1))
        one.keep_task(change("t", "working", tool="x"))
        assert await until(lambda: one.load_events("s", "p1", 0)) == [event(1)]
        await until(lambda: one.load_task(ALICE, "t"))
        assert failures == [0] and one._queued == 0
        one.keep_event("s\0", "p1", event(2))  # cannot be stored
        while one._queued:
            await asyncio.sleep(0.001)
        one.keep_event("s", "p1", event(3))
        assert await until(lambda: one.load_events("s", "p1", 1)) == [event(3)]


async def test_a_database_that_does_not_answer_holds_up_nothing_for_long(
    postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(handover, "LOAD_SECONDS", 0.2)
    monkeypatch.setattr(handover, "WAIT_SECONDS", 0.2)
    monkeypatch.setattr(handover, "CLOSE_SECONDS", 0.1)
    async with run(postgres_url) as one:

        async def hang(*_: Any) -> Any:
            await asyncio.Event().wait()

        for lane in (one._reader, one._writer):
            monkeypatch.setattr(lane, "run", hang)
        one.keep_task(change("t", "working", tool="x"))
        async with asyncio.timeout(60):
            loads = [one.load_events("s", "p1", 0) for _ in range(5)]
            found = await asyncio.gather(*loads, return_exceptions=True)
            assert {type(each) for each in found} == {StorageFailed}
            await one.wait_for_task("t")


async def test_old_rows_are_deleted(postgres_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(handover, "PRUNE_SECONDS", 0.05)
    async with run(postgres_url) as one:
        one.keep_event("s", "p1", event(1))
        one.keep_task(change("t", "working", tool="x"))
        await until(lambda: one.load_task(ALICE, "t"))
        async with await psycopg.AsyncConnection.connect(postgres_url, autocommit=True) as admin:
            for table in ("events", "tasks"):
                await admin.execute(
                    f"UPDATE dragoman.handover_{table} SET at = now() - interval '1 day'".encode()
                )

        async def is_gone() -> bool:
            left = await one.load_events("s", "p1", 0)
            return not left and await one.load_task(ALICE, "t") is None

        await until(is_gone)
