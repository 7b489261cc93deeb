"""`logs`: prints and follows the hub's log file, in text or JSON format."""

from __future__ import annotations

import json
import os
import re
import time
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from heapq import merge
from operator import itemgetter
from pathlib import Path
from typing import Any

import click

from dragoman import home as homes
from dragoman.cli.base.errors import NOT_FOUND, fail
from dragoman.cli.base.hub_client import find_running_hub, resolve_home
from dragoman.cli.base.output import common_options, print_json_line, style
from dragoman.cli.completion import complete_targets
from dragoman.core.safe_text import escape_controls

LEVELS = ("debug", "info", "warning", "error", "critical")
LOOK_SECONDS = 0.2
_COLOURS = {"warning": "yellow", "error": "red", "critical": "red"}
_LINE = re.compile(
    r"(?P<time>\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d[.,]\d{3}Z?) "
    r"(?:(?P<level>DEBUG|INFO|WARNING|ERROR|CRITICAL) )?(?P<message>.*)"
)
_ROTATED = re.compile(r"hub\.log\.(\d+)")


@dataclass(slots=True)
class LogRecord:
    """A log line with its continuation lines, such as a traceback."""

    text: str
    fields: dict[str, Any]
    more: list[str] = field(default_factory=list)

    @property
    def level(self) -> str:
        return str(self.fields.get("level") or "info").lower()

    def mentions(self, server: str) -> bool:
        message = f" {self.fields.get('message', self.text)}"
        named = f'"{server}"' in message or f" {server}." in message
        return named or self.fields.get("server") == server


def parse_line(line: str) -> LogRecord | None:
    """Parses the first line of a record; returns None for a continuation line."""
    if line.startswith("{"):
        try:
            fields = json.loads(line)
        except (ValueError, RecursionError):
            fields = None
        if isinstance(fields, dict):
            return LogRecord(line, fields)
    if match := _LINE.fullmatch(line):
        found = {name: text for name, text in match.groupdict().items() if text is not None}
        return LogRecord(line, {**found, "level": found.get("level", "info").lower()})
    if line.startswith((" ", "\t")) or not line:
        return None
    return LogRecord(line, {"level": "info", "message": line})


@click.command()
@click.option("-n", "--lines", metavar="N", default=50, show_default=True,
              type=click.IntRange(0, 1_000_000), help="Number of records.")  # fmt: skip
@click.option("-f", "--follow", is_flag=True, help="Follow the log as it grows.")
@click.option("--server", metavar="NAME", shell_complete=complete_targets,
              help="Only records about this server or agent.")  # fmt: skip
@click.option("--level", type=click.Choice(LEVELS), default="debug", show_default=True,
              help="Lowest level to print.")  # fmt: skip
@common_options
def logs(
    lines: int, follow: bool, server: str | None, level: str, home: str | None, as_json: bool
) -> None:
    """Show the newest records of the hub's log (hub.log in its home), oldest first.

    \b
    dragoman logs
    dragoman logs -f --level warning
    dragoman logs --server files -n 200
    dragoman logs --json | jq .message

    `dragoman up --detach` writes this file; a hub in a terminal or a systemd service logs to stderr
    instead. With [server] workers it shows the logs of all of them, each with its number. --json
    prints one object per line. For the stderr of a stdio server see `dragoman
    servers logs NAME`, for calls `dragoman audit tail`.
    """
    place = Path(resolve_home(home))
    file = place / "hub.log"
    if not file.exists() and not follow:
        why = (
            "the running hub was not started with --detach and logs to its own stderr"
            if find_running_hub(str(place))
            else "dragoman up --detach writes it"
        )
        fail(f"{file} does not exist: {why}", NOT_FOUND)

    def wanted(record: LogRecord) -> bool:
        grave = record.level not in LEVELS or LEVELS.index(record.level) >= LEVELS.index(level)
        return grave and (server is None or record.mentions(server))

    files = {"": file, **_find_worker_logs(place)}
    begins = {name: one.stat().st_size if one.exists() else 0 for name, one in files.items()}
    found = [list(_time_records(name, one, lines, wanted)) for name, one in files.items()]
    newest = deque(merge(*found, key=itemgetter(0)), maxlen=lines)
    for _, name, record in newest:
        _print(record, as_json, name)
    if follow:
        followed = [(name, _follow(one, begins[name])) for name, one in files.items()]
        while True:
            fresh = [(name, one) for name, records in followed for one in next(records)]
            for name, record in fresh:
                if wanted(record):
                    _print(record, as_json, name)
            if not fresh:
                time.sleep(LOOK_SECONDS)


def _find_worker_logs(home: Path) -> dict[str, Path]:
    """Finds the logs of the processes of `[server] workers`, by their names."""
    found = (home / homes.WORKERS).glob("*/hub.log")
    return {f"worker {file.parent.name}": file for file in sorted(found)}


def _time_records(
    name: str, file: Path, count: int, wanted: Any
) -> Iterator[tuple[str, str, LogRecord]]:
    """Yields records with their time; one without a time has that of the record before."""
    at = ""
    for record in read_newest(file, count, wanted):
        at = max(at, str(record.fields.get("time") or ""))
        yield at, name, record


def read_newest(file: Path, count: int, wanted: Any) -> list[LogRecord]:
    """Reads the last `count` wanted records, also from rotated files."""
    found: deque[LogRecord] = deque(maxlen=count)
    if not count:
        return []
    for each in [file, *_list_rotated(file)]:
        earlier: deque[LogRecord] = deque(maxlen=count - len(found))
        earlier.extend(record for record in _read_records(each) if wanted(record))
        found.extendleft(reversed(earlier))
        if len(found) >= count:
            break
    return list(found)


def _list_rotated(file: Path) -> list[Path]:
    """Lists the rotated log files, newest first."""
    numbered = [(_ROTATED.fullmatch(path.name), path) for path in file.parent.glob("hub.log.*")]
    return [path for match, path in sorted((int(m[1]), p) for m, p in numbered if m)]


def _read_records(file: Path) -> Iterator[LogRecord]:
    try:
        opened = file.open(encoding="utf-8", errors="replace")
    except FileNotFoundError:  # rotated meanwhile
        return
    with opened:
        yield from _group_lines(line.rstrip("\n") for line in opened)


def _group_lines(lines: Iterator[str]) -> Iterator[LogRecord]:
    current: LogRecord | None = None
    for line in lines:
        record = parse_line(line)
        if record is None and current is not None:
            current.more.append(line)
            continue
        if current is not None:
            yield current
        current = record
    if current is not None:
        yield current


def _follow(file: Path, begin: int) -> Iterator[list[LogRecord]]:
    """Yields the records that were appended since the last time, also after the file was
    rotated."""
    rest = b""
    opened = None
    while True:
        try:
            if opened is None:
                opened = file.open("rb")
                opened.seek(begin)
            data = opened.read()
            if not data and _is_replaced(file, opened.fileno()):
                opened.close()
                opened, begin = None, 0
                continue
        except FileNotFoundError:
            data = b""
        *whole, rest = (rest + data).split(b"\n")
        yield list(_group_lines(line.decode("utf-8", "replace") for line in whole))


def _is_replaced(file: Path, descriptor: int) -> bool:
    try:
        now = file.stat()
    except FileNotFoundError:
        return False
    then = os.fstat(descriptor)
    return (now.st_ino, now.st_dev) != (then.st_ino, then.st_dev) or now.st_size < then.st_size


def _print(record: LogRecord, as_json: bool, process: str) -> None:
    """`process` names the worker whose record it is; empty for a hub without workers."""
    if as_json:
        more = {"more": "\n".join(record.more)} if record.more else {}
        more |= {"process": process} if process else {}
        return print_json_line({**record.fields, **more})
    text = record.text
    if text.startswith("{"):
        known = record.fields
        text = f"{known.get('time', '')} {record.level.upper()} {known.get('message', '')}"
        text += "".join(f"\n  {line}" for line in str(known.get("exception", "")).splitlines())
    text = f"{text.strip()} ({process})" if process else text.strip()
    whole = escape_controls("\n".join([text, *record.more]))
    colour = _COLOURS.get(record.level)
    print(style(whole, fg=colour) if colour else whole, flush=True)
