"""A hub killed at any moment has lost nothing that it acted upon."""

from __future__ import annotations

import random
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from dragoman.stores.audit.chain import HEADS, AuditSeal, read_key
from dragoman.stores.audit.log import SqliteAuditLog
from dragoman.stores.audit.reader import AuditReader
from dragoman.stores.audit.verify import verify

WRITER = Path(__file__).with_name("audit_writer.py")
KILLS = Path(__file__).with_name("audit_kills.py")


def start(home: Path) -> subprocess.Popen[bytes]:
    return subprocess.Popen([sys.executable, WRITER, home], stdout=subprocess.PIPE)


def read_numbers(writer: subprocess.Popen[bytes], count: int) -> list[int]:
    assert writer.stdout is not None
    return [int(writer.stdout.readline()) for _ in range(count)]


def kill(writer: subprocess.Popen[bytes]) -> list[int]:
    """Kills it, and gives what it had printed by then; a line cut short was not printed."""
    writer.send_signal(signal.SIGKILL)
    assert writer.stdout is not None
    rest = writer.stdout.read()
    writer.stdout.close()
    writer.wait(60)
    return [int(line) for line in rest.split(b"\n")[:-1]]


def test_no_stored_intent_is_lost_when_the_hub_is_killed(
    tmp_path: Path,
) -> None:
    stored: set[int] = set()
    chance = random.Random()
    for _ in range(6):
        writer = start(tmp_path)
        timer = threading.Timer(20, writer.kill)
        timer.start()
        stored |= set(read_numbers(writer, chance.randint(1, 1500)))
        stored |= set(kill(writer))
        timer.cancel()
        reader = AuditReader(tmp_path)
        last = reader.find_last_seq()
        records = reader.list_records(10**9)
        reader.close()
        key = read_key(tmp_path)
        assert key is not None
        head = AuditSeal(key).read_tip(HEADS, (tmp_path / "audit.head").read_bytes())
        assert head is not None
        assert head.seq <= last
        verdict = verify(tmp_path)
        assert verdict.ok, verdict
        assert verdict.last_seq == last
        kept = {record.seq for record in records}
        assert {seq for seq in stored if seq >= verdict.first_seq} <= kept
        assert not [record for record in records if record.outcome in ("running", "break")]


@pytest.mark.parametrize(("kind", "calls", "moments"), [("calls", 4, 40), ("pages", 10, 20)])
def test_hub_killed_at_each_moment_leaves_no_break(
    tmp_path: Path, kind: str, calls: int, moments: int, caplog: pytest.LogCaptureFixture
) -> None:
    run = [sys.executable, str(KILLS), str(tmp_path), kind, str(calls)]
    done = subprocess.run(run, check=True, capture_output=True, timeout=60)
    lines = done.stdout.splitlines()
    assert len(lines) > moments
    for number, line in enumerate(lines, 1):
        home = tmp_path / str(number)
        audit = SqliteAuditLog(home)
        assert audit.tip.seq > max(map(int, line.split()), default=0), number
        audit.close()
        assert verify(home).problem is None, number
    assert not caplog.text


def test_audit_is_readable_and_verifiable_while_written(tmp_path: Path) -> None:
    writer = start(tmp_path)
    timer = threading.Timer(30, writer.kill)
    timer.start()
    read_numbers(writer, 100)
    reader = AuditReader(tmp_path)
    place = reader.find_last_seq()
    for _ in range(5):
        verdict = verify(tmp_path)
        assert verdict.ok, verdict
        while not (ended := reader.list_records_after(place, 10**6)):
            read_numbers(writer, 500)  # makes room, should the writer wait for that
        records = reader.list_records(50)
        assert len(records) == 50
        assert "unknown" not in {record.outcome for record in records}
        assert {record.outcome for record in ended} == {"completed"}
        place = ended[-1].last
    kill(writer)
    timer.cancel()
    reader.close()
