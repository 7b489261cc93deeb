"""Tables for people, JSON for programs, and nothing that a terminal would obey."""

from __future__ import annotations

import getpass
import json
import os
import shutil
import sys
import textwrap
from collections.abc import Mapping, Sequence
from typing import Any, TextIO

import click

from dragoman.core.safe_text import escape_controls, escape_json, escape_line


def _inherit_value(ctx: click.Context, option: click.Parameter, value: Any) -> Any:
    """`dragoman --home X tools show NAME` means the same as `dragoman tools show NAME --home X`."""
    if value == "":
        raise click.BadParameter("it is empty")  # --home "$UNSET" must not mean the default
    name = str(option.name)
    outer = ctx.parent
    while not value and outer is not None:
        value = outer.params.get(name)
        outer = outer.parent
    return value or option.get_default(ctx)


_PRINTED = "dragoman.printed_json"

json_option = click.option(
    "--json", "as_json", is_flag=True, callback=_inherit_value, help="Print JSON, for programs."
)
home_option = click.option(
    "--home",
    metavar="DIR",
    callback=_inherit_value,
    help="The hub's home; default $DRAGOMAN_HOME, else ~/.dragoman.",
)


class RenamingChoice(click.Choice[str]):
    """A choice that still accepts the former names of its values, with a warning on stderr."""

    def __init__(self, choices: Sequence[str], renamed: Mapping[str, str]) -> None:
        super().__init__(choices)
        self._renamed = renamed

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        if (new := self._renamed.get(value)) is not None:
            click.echo(f'"{value}" is now called "{new}"; the old name still works', err=True)
            value = new
        return super().convert(value, param, ctx)


def find_user_name() -> str:
    """Who runs this command."""
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # a container whose user has no name
        return f"user {os.getuid()}"


def render_json(value: Any, indent: int | None = 2) -> str:
    return escape_json(json.dumps(value, indent=indent, ensure_ascii=False))


def print_json(value: Any) -> None:
    _mark_printed()
    print(render_json(value))


def print_json_line(value: Any) -> None:
    """One of several objects, at once."""
    _mark_printed()
    print(render_json(value, None), flush=True)


def _mark_printed() -> None:
    if context := click.get_current_context(silent=True):
        context.meta[_PRINTED] = True


def must_print_json() -> bool:
    """Whether the command under way was asked for JSON and has printed none yet."""
    context = click.get_current_context(silent=True)
    if context is None or context.meta.get(_PRINTED):
        return False
    while context is not None:
        if context.params.get("as_json"):
            return True
        context = context.parent
    return False


def get_terminal_width() -> int:
    """Columns of the terminal; what is no terminal has room for everything."""
    return shutil.get_terminal_size((100, 24)).columns if sys.stdout.isatty() else 10**6


def render_output(text: str, out: TextIO) -> str:
    """What a tool or an agent answered: into a file or a pipe it goes as it is."""
    return escape_controls(text) if out.isatty() else text


def clean(text: object) -> str:
    """On one line, with what a terminal obeys or what turns the direction of writing written out:
    names and reasons come from other people."""
    return escape_line(" ".join(str(text).split()))


def style(text: str, out: TextIO | None = None, **style: Any) -> str:
    """In colour or bold on a terminal that was not asked to go without (https://no-color.org)."""
    out = out or sys.stdout
    return click.style(text, **style) if out.isatty() and not os.environ.get("NO_COLOR") else text


def print_table(
    headers: Sequence[str], rows: Sequence[Sequence[Any]], *, whole: bool = False
) -> None:
    """Columns as wide as they need; the last one is cut at the edge of the terminal, or, where it
    must be read `whole`, goes on below. Where the terminal has no room for it, it stands below."""
    texts = [[clean("" if cell is None else cell) for cell in row] for row in rows]
    widths = [max(map(len, column)) for column in zip(headers, *texts, strict=True)]
    room = get_terminal_width()
    left = sum(widths[:-1]) + 2 * (len(widths) - 1)
    if room - left < LEAST_ROOM < widths[-1]:
        _print_narrow(headers, texts, widths[:-1], room)
        return
    for number, row in enumerate([list(headers), *texts]):
        cells = [cell.ljust(width) for cell, width in zip(row[:-1], widths[:-1], strict=True)]
        first, *rest = _wrap_cell(row[-1], room - left, whole)
        line = "  ".join([*cells, first]).rstrip()
        line = line if len(line) <= room else line[: room - 1] + "…"
        print(style(line, bold=True) if number == 0 else line)
        for more in rest:
            print(" " * left + more)


def _print_narrow(
    headers: Sequence[str], rows: list[list[str]], widths: list[int], room: int
) -> None:
    """The last column below the others, indented."""
    for number, row in enumerate([list(headers), *rows]):
        cells = [cell.ljust(width) for cell, width in zip(row[:-1], widths, strict=True)]
        for line in textwrap.wrap("  ".join(cells).rstrip(), max(room, 20)) or [""]:
            print(style(line, bold=True) if number == 0 else line)
        for more in textwrap.wrap(row[-1], max(room - 4, 20)) if number else ():
            print(f"    {more}")


def _wrap_cell(text: str, room: int, whole: bool) -> list[str]:
    return (textwrap.wrap(text, max(room, 20)) if whole else [text]) or [""]


LEAST_ROOM = 30
"""Columns that the last column of a table needs beside the others."""


class StatusLine:
    """Says on a terminal what is being waited for; says nothing elsewhere."""

    def __init__(self) -> None:
        self._shown = ""

    def show(self, text: str) -> None:
        if text != self._shown and sys.stderr.isatty():
            print(f"\r\033[K{clean(text)}", end="", file=sys.stderr, flush=True)
            self._shown = text

    def clear(self) -> None:
        if self._shown:
            print("\r\033[K", end="", file=sys.stderr, flush=True)
            self._shown = ""
