"""The log: its JSON form, and failures that repeat."""

from __future__ import annotations

import json
import logging
import sys

from dragoman.core.logs import JsonFormatter, RepeatedFailure, render_time


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
