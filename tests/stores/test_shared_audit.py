"""The audit logs of several hubs in PostgreSQL: copied, read and verified."""

from __future__ import annotations

import asyncio
import shutil
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from tests.peers.postgres_server import create_database, run_peer

from dragoman.core.audit_queries import RecordQuery
from dragoman.core.errors import InvalidInput, StorageFailed
from dragoman.stores.audit.copy_home import copy_audit, has_audit
from dragoman.stores.audit.log import SqliteAuditLog
from dragoman.stores.audit.queries import list_traces, search_records, summarize_calls
from dragoman.stores.audit.shared_keys import ChainKeys
from dragoman.stores.audit.shared_prune import prune_shared
from dragoman.stores.audit.shared_reader import SharedRecords
from dragoman.stores.audit.shared_tables import open_tables
from dragoman.stores.audit.shared_verify import SharedReport, list_heads, verify_shared
from dragoman.stores.audit.shipper import AuditShipper, ShipperLimits
from dragoman.stores.audit.verify import verify
from dragoman.stores.postgres_connections import connect, connect_async

SECRET = b"0123456789abcdef0123456789abcdef"
LIMITS = ShipperLimits(look_seconds=0.02, anchor_seconds=0.2)


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture
def url(postgres_url: str) -> str:
    open_tables(postgres_url)
    return postgres_url


class WritingHub:
    """An audit log with its shipper."""

    def __init__(self, home: Path, url: str, secret: bytes | None, limits: ShipperLimits) -> None:
        home.mkdir(exist_ok=True)
        self.home, self.url = home, url
        self.audit = SqliteAuditLog(home)
        keys = ChainKeys(secret)
        self.shipper = AuditShipper(self.audit, home, url, keys, home.name, limits)
        self.task = asyncio.create_task(self.shipper.run())

    def call(self, number: int = 0, **more: Any) -> int:
        entry = {
            "verb": "git.log", "target": "git", "caller": "key:anna", "org": "default",
            "trace": f"{number:032x}", "depth": 0, **more,
        }  # fmt: skip
        return self.audit.intend(entry)

    def end(self, seq: int, **more: Any) -> None:
        self.audit.conclude(seq, {"outcome": "completed", "duration_ms": 5.0, **more})

    async def wait(self, seconds: float = 60.0) -> None:
        """Waits until the database has everything."""
        self.audit.flush()
        async with asyncio.timeout(seconds):
            while self.shipper.find_lag()[0]:
                await asyncio.sleep(0.01)

    async def stop(self) -> None:
        self.task.cancel()
        await asyncio.wait({self.task})
        self.audit.flush()
        await self.shipper.close()
        self.audit.close()


@asynccontextmanager
async def run_hub(
    home: Path, url: str, secret: bytes | None = SECRET, limits: ShipperLimits = LIMITS
) -> AsyncIterator[WritingHub]:
    hub = WritingHub(home, url, secret, limits)
    try:
        yield hub
    finally:
        await hub.stop()


def prove(url: str, home: Path | None = None, secret: bytes | None = SECRET) -> SharedReport:
    return verify_shared(url, [home] if home else [], ChainKeys(secret))


def change(url: str, *statements: str) -> None:
    with connect(url) as db:
        for statement in statements:
            assert db.execute(statement.encode()).rowcount, statement


@pytest.mark.anyio
async def test_entries_of_several_hubs_are_copied_read_and_verified(
    tmp_path: Path, url: str
) -> None:
    records = SharedRecords(url, tmp_path / "a")
    async with run_hub(tmp_path / "a", url) as a, run_hub(tmp_path / "b", url) as b:
        for n in range(30):
            hub = (a, b)[n % 2]
            seq = hub.call(n, caller="key:bert" if n == 7 else "key:anna")
            if n != 8:
                told = {"outcome": "refused", "decision": "deny", "message": 'no "p"'}
                hub.end(seq, **(told if n == 7 else {"decision": "permit"}))
        late = b.call(99, verb="slow.tool")
        await a.wait()
        await b.wait()
        b.end(late, shadow={"decision": "deny"}, decision="permit")  # in another batch
        await b.wait()
        fresh = a.call(98)  # which is not copied yet

        def find(**wanted: Any) -> list[int]:
            rows, more = search_records(records, RecordQuery(**wanted), None, 100)
            assert more is None
            return [int(row["trace"], 16) for row in rows if "trace" in row]

        assert find(org="default") == [98, 99, *range(29, -1, -1)]
        for wanted in (
            {"caller": "key:bert"}, {"outcome": "refused"}, {"decision": "deny"},
            {"text": "BERT"}, {"text": 'no "P'}, {"trace": f"{7:032x}"},
        ):  # fmt: skip
            assert find(**wanted) == [7], wanted
        assert find(decision="shadow") == find(verb="slow.tool") == [99]
        assert find(outcome="running") == [98, 8]
        assert find(agent="git", verb="slow.tool") == [99]
        assert find(trace="%") == find(until=1.0) == find(text="nosuch") == find(agent="x") == []
        seen, before = [], None
        while True:
            rows, before = search_records(records, RecordQuery(org="default"), before, 7)
            seen += [int(row["trace"], 16) for row in rows]
            if before is None:
                break
        assert seen == find(org="default")
        assert {row["hub"] for row in rows} <= {"a", "b"}
        traces, more = list_traces(records, RecordQuery(org="default"), None, 10)
        assert len(traces) == 10 and more is not None
        assert len(list_traces(records, RecordQuery(org="default"), more, 50)[0]) == 22
        edges = summarize_calls(records, RecordQuery(org="default"), 60)["edges"]
        assert sum(edge["calls"] for edge in edges) == 32
        with pytest.raises(InvalidInput):
            search_records(records, RecordQuery(), 1 << 200, 5)
        follow = records.find_positions()
        a.end(fresh)
        await a.wait()
        ended, _ = records.list_ended_after(follow)
        assert 98 in [int(one.intent.get("trace", "0"), 16) for one in ended]
    report = prove(url)
    assert report.ok and len(report.chains) == 2, report
    assert {one.node for one in report.chains} == {"a", "b"}
    assert prove(url, tmp_path / "a").ok
    assert verify(tmp_path / "a").ok and verify(tmp_path / "b").ok
    # After the hubs have ended, nothing runs.
    rows, _ = search_records(records, RecordQuery(outcome="unknown"), None, 5)
    assert [int(row["trace"], 16) for row in rows] == [8]
    wrong = prove(url, secret=b"x" * 32)
    assert not wrong.ok and "another secret" in str(wrong.problem)
    records.close()


TAMPERING: dict[str, tuple[str, tuple[str, ...]]] = {
    "deleted": ("missing", ("DELETE FROM audit_entries WHERE chain = 1 AND seq = 9",)),
    "truncated": ("missing from the end", (
        "DELETE FROM audit_entries WHERE chain = 1 AND seq >= 9",)),
    "all rows": ("missing from the end", ("DELETE FROM audit_entries WHERE chain = 1",)),
    "changed": ("not match its seal", (
        "UPDATE audit_entries SET body = '{\"verb\":\"x\"}' WHERE chain = 1 AND seq = 6",)),
    "moved": ("not match its seal", (
        "UPDATE audit_entries SET at = at + 1 WHERE chain = 1 AND seq = 6",)),
    "hidden from searches": ("columns", (
        "UPDATE audit_entries SET caller = 'key:x' WHERE chain = 1 AND seq = 6",)),
    "hidden outcome": ("columns", (
        "UPDATE audit_entries SET outcome = NULL, ended = NULL WHERE chain = 1 AND seq = 6",)),
    "head": ("the head was changed", (
        "DELETE FROM audit_entries WHERE chain = 1 AND seq > 9",
        "UPDATE audit_chains SET head = set_byte(head, 40, get_byte(head, 40) # 1) "
        "WHERE chain = 1")),
    "begun later": ("anchor", (
        "DELETE FROM audit_entries WHERE chain = 1 AND seq <= 9",
        "UPDATE audit_chains SET anchor_seq = 9, anchor_mac = (SELECT mac FROM audit_entries "
        "WHERE chain = 1 AND seq = 10) WHERE chain = 1")),
    "key": ("another secret", (
        "UPDATE audit_chains SET sealed_key = "
        "set_byte(sealed_key, 20, get_byte(sealed_key, 20) # 1) WHERE chain = 1",)),
    "exchanged": ("another secret", (
        "UPDATE audit_chains SET id = id || 'x' WHERE chain = 1",)),
    "missing chain": ("the chain is missing", (
        "DELETE FROM audit_entries WHERE chain = 1", "DELETE FROM audit_chains WHERE chain = 1")),
}  # fmt: skip


@pytest.fixture(scope="module")
def written(postgres_server: str, tmp_path_factory: pytest.TempPathFactory) -> str:
    """The name of a database with the chains of two hubs, as a template."""
    url = create_database(postgres_server)
    open_tables(url)
    asyncio.run(_write_two(url, tmp_path_factory.mktemp("homes")))
    return url.rpartition("/")[2]


async def _write_two(url: str, home: Path) -> None:
    async with run_hub(home / "a", url) as a:
        for n in range(10):
            a.end(a.call(n))
        await a.wait()
        async with run_hub(home / "b", url) as b:
            await b.wait()
            async with asyncio.timeout(60):
                while not b.shipper._anchored:
                    await asyncio.sleep(0.01)
            await b.wait()


@pytest.mark.parametrize("how", TAMPERING)
def test_every_manipulation_of_the_copy_is_detected(
    postgres_server: str, written: str, how: str
) -> None:
    url = create_database(postgres_server, like=written)
    assert prove(url).ok
    expected, statements = TAMPERING[how]
    change(url, *statements)
    report = prove(url)
    assert not report.ok and expected in str(report.problem), report
    assert any(one.problem is None for one in report.chains)  # the other chain is fine


@pytest.mark.anyio
async def test_an_old_copy_of_a_chain_is_detected_by_the_other_hub(
    tmp_path: Path, url: str
) -> None:
    async with run_hub(tmp_path / "a", url) as a, run_hub(tmp_path / "b", url) as b:
        a.end(a.call(1))
        await a.wait()
        with connect(url) as db:
            head = db.execute("SELECT head_seq, head FROM audit_chains WHERE node = 'a'").fetchone()
            assert head is not None
        a.end(a.call(2))
        await a.wait()
        async with asyncio.timeout(60):
            while b.shipper._anchored.get(a.shipper.chain, (0, ""))[0] <= head[0]:
                await asyncio.sleep(0.01)
    with connect(url) as db:
        db.execute("UPDATE audit_chains SET head_seq = 0, anchor_seq = 9 WHERE node = 'a'")
        async with await connect_async(url) as other:  # neither hides the chain
            assert a.shipper.chain in dict(await list_heads(other))
        db.execute("UPDATE audit_chains SET anchor_seq = 0 WHERE node = 'a'")
        at = "(SELECT chain FROM audit_chains WHERE node = 'a')"
        db.execute(f"DELETE FROM audit_entries WHERE seq > %s AND chain = {at}", (head[0],))
        db.execute("UPDATE audit_chains SET head_seq = %s, head = %s WHERE node = 'a'", head)
    report = prove(url)
    assert "an old copy of the chain was restored" in str(report.problem)
    assert "is not in the database" not in str(report.problem)


@pytest.mark.anyio
async def test_a_home_restored_from_a_backup_continues_as_a_new_chain(
    tmp_path: Path, url: str
) -> None:
    home = tmp_path / "a"
    async with run_hub(home, url) as a:
        for n in range(5):
            a.end(a.call(n))
        await a.wait()
    shutil.copytree(home, tmp_path / "backup")
    async with run_hub(home, url) as a:
        for n in range(5, 10):
            a.end(a.call(n))
        await a.wait()
    shutil.rmtree(home)
    (tmp_path / "backup").rename(home)
    async with run_hub(home, url) as a:
        a.end(a.call(20))
        await a.wait()
        await asyncio.sleep(0)
    report = prove(url, home)
    assert report.ok and len(report.chains) == 2, report
    records = SharedRecords(url, home)
    rows, _ = search_records(records, RecordQuery(org="default"), None, 100)
    assert [int(row["trace"], 16) for row in rows] == [20, *range(9, -1, -1)]
    assert search_records(records, RecordQuery(verb="audit.continue"), None, 9)[0]
    records.close()


@pytest.mark.anyio
async def test_pruning_waits_for_the_copy(tmp_path: Path, url: str) -> None:
    dead = "postgresql://test@127.0.0.1:9/none"
    hub = WritingHub(tmp_path / "a", dead, SECRET, LIMITS)
    for n in range(10):
        hub.end(hub.call(n))
    hub.audit.flush()
    assert await hub.audit.prune(3600, 4) == 0
    assert hub.shipper.find_lag()[0] == 21
    await hub.stop()
    async with run_hub(tmp_path / "a", url) as hub:
        await hub.wait()
        assert await hub.audit.prune(3600, 4) > 10
        hub.end(hub.call(11))
        await hub.wait()
    assert prove(url, tmp_path / "a").ok


@pytest.mark.anyio
async def test_copying_survives_a_paused_and_a_restarted_database(tmp_path: Path) -> None:
    with run_peer() as peer:
        open_tables(peer.url)
        records = SharedRecords(peer.url, tmp_path / "a")
        async with run_hub(tmp_path / "a", peer.url) as hub:

            async def call_while_away(away: Callable[[], None], back: Callable[[], None]) -> None:
                for n in range(50):
                    hub.end(hub.call(n))
                await hub.wait()
                away()
                try:
                    for n in range(50):
                        hub.end(hub.call(n))
                    began = time.monotonic()
                    with pytest.raises(StorageFailed):
                        await asyncio.to_thread(search_records, records, RecordQuery(), None, 5)
                    assert time.monotonic() - began < 30
                    async with asyncio.timeout(60):
                        while not hub.shipper._failed:
                            await asyncio.sleep(0.05)
                finally:
                    back()
                await hub.wait(60.0)

            await call_while_away(peer.pause, peer.resume)
            await call_while_away(peer.stop, peer.start)
        assert len(search_records(records, RecordQuery(), None, 100)[0]) == 100
        records.close()
        report = prove(peer.url, tmp_path / "a")
        assert report.ok and report.entries == 401, report


@pytest.mark.anyio
async def test_pruning_the_database_keeps_every_chain_verifiable(tmp_path: Path, url: str) -> None:
    async with run_hub(tmp_path / "a", url) as a:
        for n in range(40):
            a.end(a.call(n))
        await a.wait()
    async with run_hub(tmp_path / "b", url) as b:
        for n in range(40):
            b.end(b.call(n))
        await b.wait()
        keys, home = ChainKeys(SECRET), tmp_path / "b"
        assert not prune_shared(url, home, keys, 3600, 1000)
        # Hub a is gone; b prunes its chain, the older one, first.
        removed = prune_shared(url, home, keys, 3600, 100)
        assert sum(removed.values()) > 60 and removed.keys() == {a.shipper.chain}
        assert prove(url).ok
        assert sum(prune_shared(url, home, keys, 0.0, 1000).values()) >= 95
        b.end(b.call(77))
        await b.wait()
        assert not prune_shared(url, home, ChainKeys(b"other" * 8), 3600, 0).get(a.shipper.chain)
    report = prove(url, home)
    assert report.ok and report.entries < 10, report


@pytest.mark.anyio
async def test_a_home_is_copied_and_continues_there(tmp_path: Path, url: str) -> None:
    home = tmp_path / "a"
    home.mkdir()
    audit = SqliteAuditLog(home)
    for n in range(3_000):
        seq = audit.intend({"verb": f"files.read{n}", "caller": "key:ci", "trace": f"{n:032x}"})
        audit.conclude(seq, {"outcome": "completed"})
    await audit.prune(3600, 4_000)
    audit.close()
    assert not has_audit(url)
    copied = await asyncio.to_thread(copy_audit, home, url, ChainKeys(SECRET), "a")
    assert copied.entries == verify(home).entries
    again = await asyncio.to_thread(copy_audit, home, url, ChainKeys(SECRET), "a")
    assert again.entries == copied.entries + 1  # it was opened once more
    async with run_hub(home, url) as hub:
        hub.end(hub.call(1))
        await hub.wait()
    assert prove(url, home).ok and has_audit(url)


def test_a_killed_hub_leaves_neither_a_gap_nor_a_double(tmp_path: Path, url: str) -> None:
    home = tmp_path / "a"
    home.mkdir()
    arguments = [sys.executable, "-m", "tests.stores.audit_writer", str(home), url]
    stored = 0

    def find_head() -> int:
        with connect(url) as db:
            row = db.execute("SELECT max(head_seq) FROM audit_chains").fetchone()
            return row[0] or 0 if row else 0

    for _ in range(3):
        head, until = find_head(), time.monotonic() + 60
        with subprocess.Popen(arguments, stdout=subprocess.PIPE, text=True) as writer:
            assert writer.stdout is not None
            while find_head() < head + 500 and time.monotonic() < until:
                stored = [int(writer.stdout.readline()) for _ in range(100)][-1]
            writer.kill()
        assert find_head() >= head + 500 and prove(url, home).ok

    async def finish() -> None:
        async with run_hub(home, url) as hub:
            await hub.wait()

    asyncio.run(finish())
    report = prove(url, home)
    assert report.ok and report.last_seq > stored, report
