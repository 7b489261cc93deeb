"""Tables for people, JSON for programs."""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Callable, Sequence
from typing import Any

import click

json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON, for programs.")
home_option = click.option(
    "--home",
    metavar="DIR",
    help="The hub's home; default $DRAGOMAN_HOME, else ~/.dragoman.",
)

Command = Callable[..., Any]


def print_json(value: Any) -> None:
    print(json.dumps(value, indent=2, ensure_ascii=False))


def table(headers: Sequence[str], rows: Sequence[Sequence[Any]]) -> None:
    """Columns as wide as they need, the last one cut at the edge of the terminal."""
    texts = [[_one_line(cell) for cell in row] for row in rows]
    widths = [max(map(len, column)) for column in zip(headers, *texts, strict=True)]
    room = shutil.get_terminal_size((100, 24)).columns if sys.stdout.isatty() else 10**6
    for number, row in enumerate([list(headers), *texts]):
        cells = [cell.ljust(width) for cell, width in zip(row[:-1], widths[:-1], strict=True)]
        line = "  ".join([*cells, row[-1]])
        line = line if len(line) <= room else line[: room - 1] + "…"
        print(click.style(line, bold=True) if number == 0 and sys.stdout.isatty() else line)


def _one_line(cell: Any) -> str:
    return " ".join(str("" if cell is None else cell).split())


class Waiting:
    """Says on a terminal what is being waited for; says nothing elsewhere."""

    def __init__(self) -> None:
        self._shown = ""

    def say(self, text: str) -> None:
        if text != self._shown and sys.stderr.isatty():
            print(f"\r\033[K{text}", end="", file=sys.stderr, flush=True)
            self._shown = text

    def done(self) -> None:
        if self._shown:
            print("\r\033[K", end="", file=sys.stderr, flush=True)
            self._shown = ""
