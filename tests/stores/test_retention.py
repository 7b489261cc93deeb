"""Expired records are deleted and the deletion recorded; a clock jump expires nothing."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.cli.terminal import Terminal

from dragoman.app.build import build_app
from dragoman.config import Config, parse
from dragoman.core.errors import ConfigError
from dragoman.stores.audit.log import SqliteAuditLog
from dragoman.stores.audit.reader import AuditReader
from dragoman.stores.audit.verify import verify
from dragoman.stores.config import AuditSettings
from dragoman.stores.steady_clock import STEADY_SECONDS, SteadyClock

DAY = 86_400.0
real_time = time.time


@pytest.fixture
def shift(monkeypatch: pytest.MonkeyPatch) -> Callable[[float], None]:
    """Puts the clock forward or back by so many days."""
    return lambda days: monkeypatch.setattr("time.time", lambda: real_time() + days * DAY)


async def run_hub(home: Path) -> int:
    """As it starts and ends, with one call; how many entries it deleted."""
    app = build_app(home, Config(), "mcp")
    app.parts.stores.audit.conclude(
        app.parts.stores.audit.intend({"verb": "x"}), {"outcome": "completed"}
    )
    removed = await app.parts.store_watch.prune(AuditSettings())
    await app.stop()
    return removed


async def test_a_clock_far_ahead_at_a_start_deletes_nothing(
    tmp_path: Path, shift: Callable[[float], None], caplog: pytest.LogCaptureFixture
) -> None:
    await run_hub(tmp_path)
    shift(100)
    for _ in range(2):  # the second start finds records with the wrong time
        assert await run_hub(tmp_path) == 0
    assert "the clock has jumped" in caplog.text
    shift(0)
    assert await run_hub(tmp_path) == 0
    assert verify(tmp_path).ok and verify(tmp_path).first_seq == 1


async def test_expired_records_are_deleted_and_the_deletion_is_recorded(
    tmp_path: Path, shift: Callable[[float], None], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    shift(-100)
    await run_hub(tmp_path)
    last = verify(tmp_path).last_seq
    for days in (-0.9, -0.3):
        shift(days)
        assert await run_hub(tmp_path) == 0
    shift(0.2)  # the clock has gone on for a day
    assert await run_hub(tmp_path) == last
    assert verify(tmp_path).ok and f"{last} old entries" in caplog.text
    reader = AuditReader(tmp_path)
    (record,) = reader.list_records(10, verb="audit.prune")
    reader.close()
    told = {name: record.conclusion[name] for name in ("count", "first_seq", "last_seq")}
    assert told == {"count": last, "first_seq": 1, "last_seq": last}
    assert len(record.conclusion["head"]) == 64


@pytest.mark.parametrize(
    ("steps", "steady"),
    [
        ([0, 0.5, 0.9], True),
        ([0, 1.1], False),
        ([0, 1.1, 1.9], False),
        ([0, 1.1, 1.9, 2.2], True),
        ([0, 90, 0.1, 1.0], False),
        ([0, 90, 0.1, 1.0, 1.2], True),
    ],
)
def test_clock_is_trusted_after_advancing_for_a_day(
    shift: Callable[[float], None], steps: list[float], steady: bool
) -> None:
    clock = SteadyClock(0.0, 0.0)
    found = True
    for days in steps:
        shift(days * STEADY_SECONDS / DAY)
        found = clock.is_steady()
        clock = SteadyClock(clock.seen, clock.new_since)  # as after a restart
    assert found is steady


def test_retention_below_one_day_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"keep_days.*1"):
        parse("[audit]\nkeep_days = 0.000001\n")


def test_manual_prune_shrinks_the_file(short_tmp: Path) -> None:
    terminal = Terminal(short_tmp)
    terminal.configure()
    terminal.configure(config="[audit]\nmax_entries = 1000\n")
    audit = SqliteAuditLog(terminal.home)
    for _ in range(1000):
        audit.conclude(audit.intend({"verb": "y" * 1000}), {"outcome": "completed"})
    audit.close()
    size = (terminal.home / "audit.db").stat().st_size
    assert terminal.run("audit", "prune").code == 2  # no terminal to prompt on
    done = terminal.run("audit", "prune", "--yes")
    assert done.code == 0 and "entries deleted" in done.out
    assert (terminal.home / "audit.db").stat().st_size < size
    assert verify(terminal.home).ok
