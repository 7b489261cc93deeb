"""Hubs, leases and messages in PostgreSQL."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import psycopg
import pytest

from dragoman.core.cluster import OwnedElsewhere, find_mark, make_id
from dragoman.core.errors import LeaseExpired, StorageFailed
from dragoman.stores import cluster
from dragoman.stores.cluster import _JOIN, _LIST, READY, PostgresCluster

LEASE = 1.0


async def until(found: Callable[[], Any], seconds: float = 60.0) -> None:
    async with asyncio.timeout(seconds):
        while not found():
            await asyncio.sleep(0.02)


@asynccontextmanager
async def run_hub(url: str, node: str, lease: float = LEASE) -> AsyncIterator[PostgresCluster]:
    hub = PostgresCluster(url, node, "1", lease)
    await hub.start(f"{node}:1")
    await hub.set_state(READY)
    try:
        yield hub
    finally:
        await hub.stop()


def is_owner(hub: PostgresCluster, mark: str) -> bool:
    try:
        hub.check(mark)
    except OwnedElsewhere:
        return False
    return True


async def test_a_lease_has_one_holder_and_passes_on_with_a_larger_token(postgres_url: str) -> None:
    async with run_hub(postgres_url, "a", 30) as first, run_hub(postgres_url, "b", 30) as second:
        await until(lambda: first.holds("work"))
        assert not second.holds("work")
        token = first.find_token("work")
        await until(lambda: second.find_holder("work") == first.mark)
        await first.stop()
        await until(lambda: second.holds("work"))
        assert second.find_token("work") >= token
        assert not is_owner(second, "00000000")
        await until(lambda: is_owner(second, first.mark))  # it has stopped: the other is its heir


async def test_a_hub_that_was_declared_dead_joins_again_as_another(postgres_url: str) -> None:
    taken: list[str] = []
    renamed: list[str] = []
    # With a long lease: a busy machine must not declare any of them dead.
    async with run_hub(postgres_url, "a", 30) as first, run_hub(postgres_url, "b", 30) as second:

        async def take(id: str) -> None:
            taken.append(id)

        async def rename(id: str) -> None:
            renamed.append(id)

        second.on_inherit.append(take)
        first.on_lost.append(rename)
        id, old = make_id(first), first.mark
        run, failing = first._run, [_LIST, _JOIN]  # once each, while it joins again

        async def fail_once(statement: str, values: Any) -> Any:
            assert first.mark == old or first.mark in {row[0] for row in await run(_LIST, ())}
            is_next = failing[-1:] == [statement] and (statement == _JOIN or first.mark != old)
            if is_next:
                raise StorageFailed(f"{failing.pop()} failed")
            return await run(statement, values)

        first._run = fail_once  # type: ignore[method-assign]
        assert find_mark(id) == old
        await until(lambda: old in second.hubs)
        with pytest.raises(OwnedElsewhere):
            second.check(find_mark(id))
        found = await second.find_owner(old)
        assert found is not None and found.address == "a:1"
        async with await psycopg.AsyncConnection.connect(postgres_url, autocommit=True) as admin:
            await admin.execute(  # as if it had not been heard of, by the one that can judge
                "UPDATE dragoman.hubs SET state = 'stopped' WHERE id = %s", (old,)
            )

        def is_renamed() -> bool:
            for hub in (first, second):
                hub._wake.set()
            return taken == [old] and renamed == [first.mark]

        await until(lambda: is_renamed() and not failing)
        assert first.mark != old
        await until(lambda: is_renamed() and is_owner(second, old) and not is_owner(first, old))
        assert await second.find_owner(old) is None


async def test_messages_reach_the_other_hubs_and_not_their_sender(postgres_url: str) -> None:
    async with run_hub(postgres_url, "a") as first, run_hub(postgres_url, "b") as second:
        heard: list[tuple[str, Any]] = []
        own: list[Any] = []
        second.subscribe("news", lambda sender, data: heard.append((sender, data)))
        first.subscribe("news", lambda sender, data: own.append(data))

        def is_heard() -> bool:
            first.publish("news", {"words": "hello"})
            return (first.mark, {"words": "hello"}) in heard

        await until(is_heard)
        first.publish("news", {"words": "x" * 10_000})  # too large: dropped
        assert not own


async def test_many_who_ask_for_the_table_of_hubs_share_a_reading(postgres_url: str) -> None:
    async with run_hub(postgres_url, "a", 30) as hub:
        run, read, gate = hub._run, list[str](), asyncio.Event()

        async def note(statement: str, values: Any) -> Any:
            if statement == _LIST:
                read.append(statement)
                await gate.wait()
            return await run(statement, values)

        hub._run = note  # type: ignore[method-assign]
        async with asyncio.timeout(60):
            first = asyncio.ensure_future(hub.refresh())
            await until(lambda: read)
            rest = [asyncio.ensure_future(hub.refresh()) for _ in range(50)]
            cancelled = asyncio.ensure_future(hub.refresh())
            await asyncio.sleep(0)
            cancelled.cancel()
            gate.set()
            await asyncio.gather(first, *rest)
        assert len(read) <= 3  # a beat of the hub may have one of its own

        async def fail(statement: str, values: Any) -> Any:
            raise StorageFailed("the database is away")

        hub._run = fail  # type: ignore[method-assign]
        found = await asyncio.gather(*(hub.refresh() for _ in range(5)), return_exceptions=True)
        assert [type(one) for one in found] == [StorageFailed] * 5
        hub._run = run  # type: ignore[method-assign]


async def test_a_lease_that_is_not_renewed_is_lost_although_the_hub_is_alive(
    postgres_url: str,
) -> None:
    async with (
        run_hub(postgres_url, "a") as first,
        await psycopg.AsyncConnection.connect(postgres_url) as admin,
    ):
        await until(lambda: first.holds("work"))
        # Its own row can be renewed, the leases cannot.
        await admin.execute("LOCK TABLE dragoman.leases IN EXCLUSIVE MODE")
        await until(lambda: first.is_connected and not first.holds("work"))
        await admin.rollback()
        await until(lambda: first.holds("work"))


async def test_a_failed_takeover_does_not_end_the_renewals(postgres_url: str) -> None:
    async with run_hub(postgres_url, "a") as first, run_hub(postgres_url, "b") as second:

        async def fail(id: str) -> None:
            raise ValueError("a defect")

        second.on_inherit.append(fail)
        await first.stop()
        await until(lambda: is_owner(second, first.mark))
        renewed = second._renewed
        await until(lambda: second._renewed > renewed + LEASE)


async def test_an_heir_that_dies_in_a_takeover_leaves_all_to_its_own_heir(
    postgres_url: str,
) -> None:
    taken: list[str] = []
    async with (
        run_hub(postgres_url, "a", 30) as first,
        run_hub(postgres_url, "b", 30) as second,
    ):

        async def never_end(id: str) -> None:
            taken.append(id)
            await asyncio.Event().wait()

        second.on_inherit.append(never_end)
        await first.stop()
        await until(lambda: taken == [first.mark])
        assert not is_owner(second, first.mark)  # it serves nothing that it has not taken over
        async with run_hub(postgres_url, "c", 30) as third:
            owner = await third.find_owner(first.mark)
            assert owner is not None and owner.is_ended and not owner.is_settled

            async def take(id: str) -> None:
                taken.append(id)

            third.on_inherit.append(take)
            await second.stop()
            await until(lambda: is_owner(third, first.mark) and is_owner(third, second.mark))
            assert sorted(taken[1:]) == sorted([first.mark, second.mark])
            await third.stop()
            async with run_hub(postgres_url, "d", 30) as fourth:  # which has nothing left to do
                fourth.on_inherit.append(take)
                marks = (first.mark, second.mark, third.mark)
                await until(lambda: all(is_owner(fourth, mark) for mark in marks))
                assert taken[3:] == [third.mark]


async def test_a_long_takeover_does_not_cost_the_heir_its_own_lease(postgres_url: str) -> None:
    async with run_hub(postgres_url, "a") as first, run_hub(postgres_url, "b") as second:
        may_end = asyncio.Event()
        attempts: list[str] = []

        async def take(id: str) -> None:
            attempts.append(id)
            if len(attempts) == 1:
                raise StorageFailed("for the moment")
            await may_end.wait()

        second.on_inherit.append(take)
        await first.stop()
        await until(lambda: len(attempts) == 2)
        renewed = second._renewed
        await until(lambda: second._renewed > renewed + 2 * LEASE and second.is_connected)
        assert not is_owner(second, first.mark)
        may_end.set()
        await until(lambda: is_owner(second, first.mark))
        assert attempts == [first.mark] * 2


async def test_a_hub_that_was_declared_dead_becomes_no_heir(postgres_url: str) -> None:
    """It may have been paused in the middle of a renewal."""
    async with (
        run_hub(postgres_url, "a", 30) as first,
        run_hub(postgres_url, "b", 30) as second,
        await psycopg.AsyncConnection.connect(postgres_url, autocommit=True) as admin,
    ):
        stop = "UPDATE dragoman.hubs SET state = 'stopped', heir = %s WHERE id = %s"
        async with second._lock, first._lock:
            await admin.execute(stop, ("00000000", second.mark))
            await admin.execute(stop, (None, first.mark))
            with pytest.raises(LeaseExpired):
                await second._become_heir(first.hubs[first.mark])


async def test_leases_expire_while_the_machine_sleeps(
    postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert getattr(time, "CLOCK_BOOTTIME", cluster._CLOCK) == cluster._CLOCK
    async with run_hub(postgres_url, "a", 30) as hub:
        hub.holds("work")
        await until(lambda: hub.holds("work") and hub.is_connected)
        now = cluster._read_clock() + 31
        monkeypatch.setattr(cluster, "_read_clock", lambda: now)  # as it wakes up
        assert not hub.holds("work") and not hub.is_connected


class SteppedClock:
    """The clock of the hubs in this process, which a test sets forward."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._ahead, read = 0.0, cluster._read_clock
        monkeypatch.setattr(cluster, "_read_clock", lambda: read() + self._ahead)

    async def pass_time(self, hub: PostgresCluster, seconds: float) -> None:
        """Lets time pass for a hub that goes on to renew its row."""
        for _ in range(round(seconds / 10)):
            self._ahead += 10
            await hub.refresh()


async def execute(url: str, statement: str, *values: Any) -> list[Any]:
    async with await psycopg.AsyncConnection.connect(url, autocommit=True) as admin:
        cursor = await admin.execute(statement.encode(), values)
        return await cursor.fetchall() if cursor.description else []


ADD_HUB = (
    "INSERT INTO dragoman.hubs (id, node, version, address, state) "
    "VALUES (%s, 'b', '1', 'b:1', 'ready')"
)
STEP = "UPDATE dragoman.hubs SET seen_at = seen_at + make_interval(secs => %s) WHERE id = %s"
FIND_HEIR = "SELECT state, heir FROM dragoman.hubs WHERE id = %s"


@pytest.mark.parametrize("seconds", [-3600, 3600])
async def test_a_step_of_the_clock_of_the_database_kills_no_hub(
    postgres_url: str, monkeypatch: pytest.MonkeyPatch, seconds: int
) -> None:
    clock = SteppedClock(monkeypatch)
    async with run_hub(postgres_url, "a", 30) as hub:
        await clock.pass_time(hub, 60)  # long enough to judge others
        await execute(postgres_url, ADD_HUB, "0000000b")
        await hub.refresh()
        # What a row looks like after the clock was set: it was renewed long ago, or will be.
        await execute(postgres_url, STEP, seconds, "0000000b")
        await hub.refresh()
        assert await execute(postgres_url, FIND_HEIR, "0000000b") == [("ready", None)]


async def test_a_hub_is_dead_when_its_row_was_seen_unchanged_for_a_lease(
    postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = SteppedClock(monkeypatch)
    async with run_hub(postgres_url, "a", 30) as hub:
        await clock.pass_time(hub, 60)
        for id in ("0000000b", "0000000c"):
            await execute(postgres_url, ADD_HUB, id)
        for _ in range(4):  # one of them renews, as a hub of the version before does
            await clock.pass_time(hub, 20)
            await execute(postgres_url, STEP, 0.001, "0000000b")
            await hub.refresh()
        assert await execute(postgres_url, FIND_HEIR, "0000000b") == [("ready", None)]
        assert await execute(postgres_url, FIND_HEIR, "0000000c") == [("dead", hub.mark)]
        # A sign of life after the last look at its row keeps it alive.
        seen = hub.hubs["0000000b"]
        await execute(postgres_url, STEP, 0.001, "0000000b")
        async with hub._lock:
            assert not await hub._become_heir(seen)


async def test_a_lease_is_not_lost_by_a_step_of_the_clock(postgres_url: str) -> None:
    async with run_hub(postgres_url, "a", 30) as first, run_hub(postgres_url, "b", 30) as second:
        first.holds("work")
        await until(lambda: first.holds("work"))
        assert not second.holds("work")
        await execute(postgres_url, "UPDATE dragoman.leases SET until = until - interval '1 hour'")
        await second.refresh()
        assert not second.holds("work") and second.find_holder("work") == first.mark
        token = first.find_token("work")
        await first.set_state("draining")  # others get it at once
        assert not first.holds("work")
        await second.refresh()
        assert second.find_token("work") == token + 1


async def test_a_hub_that_was_declared_dead_writes_nothing(postgres_url: str) -> None:
    async with run_hub(postgres_url, "a", 30) as first, run_hub(postgres_url, "b", 30) as second:
        await second.refresh()
        record, old = second.hubs[first.mark], first.mark
        async with first._lock, second._lock:  # before it notices
            await execute(
                postgres_url, "UPDATE dragoman.hubs SET state = 'dead' WHERE id = %s", first.mark
            )
            connection = await first._lane.connect()
            with pytest.raises(LeaseExpired):
                async with first.fence.transact(connection):
                    raise AssertionError("a transaction was begun")
            assert connection.info.transaction_status == psycopg.pq.TransactionStatus.IDLE
            assert await second._become_heir(record)
        await first.refresh()
        assert first.mark != old
        async with first.fence.transact(connection):  # as another hub
            await connection.execute("SELECT 1")
        await connection.close()


async def test_a_declaration_of_death_waits_for_transactions_and_a_renewal_does_not(
    postgres_url: str,
) -> None:
    async with run_hub(postgres_url, "a", 30) as first, run_hub(postgres_url, "b", 30) as second:
        connection = await first._lane.connect()
        async with first.fence.transact(connection):
            await first.refresh()
            async with first._lock, second._lock:
                second._take(await second._run(_LIST, ()))
                with pytest.raises(StorageFailed, match="lock timeout"):
                    await second._become_heir(second.hubs[first.mark])
        async with first._lock, second._lock:
            second._take(await second._run(_LIST, ()))
            assert await second._become_heir(second.hubs[first.mark])
        await connection.close()


async def test_what_appears_after_a_takeover_is_taken_over_too(postgres_url: str) -> None:
    async with run_hub(postgres_url, "a", 30) as first, run_hub(postgres_url, "b", 30) as second:
        taken: list[str] = []
        left: set[str] = set()

        async def take(id: str) -> None:
            taken.append(id)
            left.discard(id)

        second.on_inherit.append(take)
        second.find_left.append(lambda ids: left.intersection(ids))
        await first.stop()
        await until(lambda: is_owner(second, first.mark))
        for _ in range(2):
            await second.refresh()
        assert taken == [first.mark]
        left.add(first.mark)
        async with asyncio.timeout(60):
            while left:  # a second later
                await second.refresh()
                await asyncio.sleep(0.02)
        assert taken == [first.mark] * 2
