"""The log: its JSON form, and failures that repeat."""

from __future__ import annotations

import json
import logging
import sys

import pytest

from dragoman.core.logs import JsonFormatter, Outage, RepeatedFailure, render_time


def test_json_log_record_is_one_line_with_fixed_fields() -> None:
    try:
        raise ValueError("x\ny")
    except ValueError:
        failed = sys.exc_info()
    record = logging.LogRecord(
        "dragoman.x", logging.ERROR, "", 1, "a %s", ("\x1b\n\u202e",), failed
    )
    record.trace = "4f2a"
    record.created = 1_767_225_600.5
    line = JsonFormatter().format(record)
    assert "\n" not in line and line.isascii() and line.isprintable()
    found = json.loads(line)
    assert list(found) == ["time", "level", "logger", "message", "trace", "exception"]
    assert found["time"] == "2026-01-01T00:00:00.500Z" and found["level"] == "error"
    assert found["message"] == "a \x1b\n\u202e" and found["exception"].endswith("ValueError: x\ny")


def test_log_time_has_milliseconds() -> None:
    assert render_time(0.0019) == "1970-01-01T00:00:00.001Z"


def test_repeated_failure_is_logged_at_growing_intervals_with_a_count() -> None:
    now = 0.0
    failure = RepeatedFailure(lambda: now)
    told = []
    for now in range(0, 4 * 3600, 10):
        if (text := failure.note(f"port 80 refused, try {now}")) is not None:
            told.append((now, text))
    assert [at for at, _ in told] == [0, 60, 300, 1260, 5100]
    assert told[0][1] == "port 80 refused, try 0"
    assert "try 60 (unchanged, 7 times since 2" in told[1][1]
    assert failure.note("another") == "another"
    assert failure.note("another") is None
    failure.clear()
    assert failure.note("another") == "another"


def test_an_outage_is_one_line_when_it_begins_and_one_when_it_has_ended(
    caplog: pytest.LogCaptureFixture,
) -> None:
    now = 0.0
    outage = Outage("the stores are available", lambda: now)
    with caplog.at_level(logging.INFO):
        for now in (0.0, 0.2, 1.0, 3.9):
            outage.note(f"store {now} cannot be read")
            outage.check_end()
        now = 8.8
        outage.check_end()
        assert len(caplog.records) == 1
        now = 9.0
        outage.check_end()
        outage.check_end()
        now = 70.0
        outage.note("the next one")
        now = 140.0
        outage.note("the one after it")  # nothing has checked meanwhile
    assert [(record.levelname, record.getMessage()) for record in caplog.records] == [
        ("ERROR", "store 0.0 cannot be read"),
        ("WARNING", "the stores are available again; 4 failures in 3.9 s"),
        ("ERROR", "the next one"),
        ("WARNING", "the stores are available again; 1 failures in 0.0 s"),
        ("ERROR", "the one after it"),
    ]


def test_a_store_that_comes_and_goes_is_one_outage(caplog: pytest.LogCaptureFixture) -> None:
    now = 0.0
    outage = Outage("the stores are available", lambda: now)
    with caplog.at_level(logging.INFO):
        for now in (0.0, 7.0, 14.0, 30.0, 80.0):
            outage.check_end()
            outage.note(f"store {now} cannot be read")
        now = 139.0
        outage.check_end()
        assert len(caplog.records) == 3
        now = 140.0
        outage.check_end()
    assert [record.getMessage() for record in caplog.records] == [
        "store 0.0 cannot be read",
        "the stores are available again; 1 failures in 0.0 s",
        "store 7.0 cannot be read",
        "the stores are available again; 4 failures in 73.0 s",
    ]
