"""What a terminal obeys, escaped; and records of the log that stay one line."""

from __future__ import annotations

import json
import logging
import sys

from dragoman.core.logs import LineFormatter
from dragoman.core.safe_text import escape_controls, escape_json, escape_line

ODD = "a\x1b[2J\x07\x7f\x9b\x85\r\u034f\u200b\u202e\u2028\ufeff\U000e0041\ud800é中\u3000\tb\nc"
ESCAPED = (
    "a\\x1b[2J\\x07\\x7f\\x9b\\x85\\r\\u034f\\u200b\\u202e\\u2028\\ufeff\\U000e0041\\ud800é中\u3000"
)


def test_terminal_control_characters_are_escaped() -> None:
    assert escape_controls(ODD) == f"{ESCAPED}\tb\nc"
    assert escape_line(ODD) == f"{ESCAPED}\\tb\\nc"
    assert escape_line("plain") == "plain"


def test_escaped_json_keeps_its_value() -> None:
    text = escape_json(json.dumps({ODD: [ODD]}, ensure_ascii=False, indent=2))
    assert json.loads(text) == {ODD: [ODD]}
    assert escape_controls(text) == text
    assert "é中" in text


def test_log_record_is_one_line_with_an_indented_traceback() -> None:
    formatter = LineFormatter()
    try:
        raise ValueError("x\n2026-01-01 00:00:00,000 INFO forged\x1b[2J")
    except ValueError:
        failed = sys.exc_info()
    forged = "name\n2026-01-01 00:00:00,000 INFO forged"
    record = logging.LogRecord("dragoman", logging.ERROR, __file__, 1, "a %s", (forged,), failed)
    first, *rest = formatter.format(record).split("\n")
    assert first.endswith("ERROR a name\\n2026-01-01 00:00:00,000 INFO forged")
    assert all(line.startswith("  ") for line in rest)
    assert rest[0] == "  Traceback (most recent call last):"
    assert rest[-1] == "  2026-01-01 00:00:00,000 INFO forged\\x1b[2J"
