"""Prints tables for people and JSON for programs, and escapes terminal control characters."""

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
from click.decorators import FC

from dragoman.core.safe_text import escape_controls, escape_json, escape_line


def _inherit_value(ctx: click.Context, option: click.Parameter, value: Any) -> Any:
    """Inherits an option that stands before the command, as in `dragoman --home X tools`."""
    if value == "":
        raise click.BadParameter("the value is empty")  # --home "$UNSET" must not mean the default
    name = str(option.name)
    outer = ctx.parent
    while not value and outer is not None:
        value = outer.params.get(name)
        outer = outer.parent
    return value or option.get_default(ctx)


_AS_JSON, _PRINTED = "dragoman.as_json", "dragoman.printed_json"


def _read_json_flag(ctx: click.Context, option: click.Parameter, value: Any) -> Any:
    ctx.meta[_AS_JSON] = value = _inherit_value(ctx, option, value)
    return value


json_option = click.option(
    "--json", "as_json", is_flag=True, callback=_read_json_flag, help="Print JSON for programs."
)
home_option = click.option(
    "--home",
    metavar="DIR",
    callback=_inherit_value,
    help="Home of the hub [default: $DRAGOMAN_HOME or ~/.dragoman].",
)


def common_options(command: FC) -> FC:
    """Adds --home and --json."""
    return home_option(json_option(command))


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
    """Returns the name of the user who runs this command."""
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # a container whose user has no name
        return f"user {os.getuid()}"


def render_json(value: Any, indent: int | None = 2) -> str:
    return escape_json(json.dumps(value, indent=indent, ensure_ascii=False))


def print_json(value: Any) -> None:
    _mark_printed()
    print(render_json(value))


def print_result(value: Any, text: str, as_json: bool) -> None:
    """Prints the value for programs, or the text for people."""
    if as_json:
        print_json(value)
    else:
        print(text)


def print_json_line(value: Any) -> None:
    """Prints one of several objects on a line of its own and flushes it."""
    _mark_printed()
    print(render_json(value, None), flush=True)


def _mark_printed() -> None:
    if context := click.get_current_context(silent=True):
        context.meta[_PRINTED] = True


def must_print_json() -> bool:
    """Whether the current command has --json and has printed no JSON yet."""
    context = click.get_current_context(silent=True)
    meta = context.meta if context else {}
    return bool(meta.get(_AS_JSON)) and not meta.get(_PRINTED)


def get_terminal_width() -> int:
    """Returns the columns of the terminal; a file or pipe has unlimited width."""
    return shutil.get_terminal_size((100, 24)).columns if sys.stdout.isatty() else 10**6


def render_output(text: str, out: TextIO) -> str:
    """Escapes the answer of a tool or agent for a terminal; files and pipes get it unchanged."""
    return escape_controls(text) if out.isatty() else text


def clean(text: object) -> str:
    """Renders text on one line, with terminal controls and bidirectional marks escaped: names and
    reasons come from servers and agents."""
    return escape_line(" ".join(str(text).split()))


def style(text: str, out: TextIO | None = None, **style: Any) -> str:
    """Adds colour or bold on a terminal, unless NO_COLOR is set (https://no-color.org)."""
    out = out or sys.stdout
    return click.style(text, **style) if out.isatty() and not os.environ.get("NO_COLOR") else text


def print_table(
    headers: Sequence[str], rows: Sequence[Sequence[Any]], *, whole: bool = False
) -> None:
    """Prints columns as wide as their cells. The last column is cut at the terminal's edge, or
    wrapped if `whole`; on a narrow terminal it is printed below the others."""
    texts = [[clean("" if cell is None else cell) for cell in row] for row in rows]
    widths = [max(map(len, column)) for column in zip(headers, *texts, strict=True)]
    room = get_terminal_width()
    left = sum(widths[:-1]) + 2 * (len(widths) - 1)
    if room - left < LEAST_ROOM < widths[-1]:
        return _print_narrow(headers, texts, widths[:-1], room)
    for number, row in enumerate([list(headers), *texts]):
        cells = [cell.ljust(width) for cell, width in zip(row[:-1], widths[:-1], strict=True)]
        wrapped = textwrap.wrap(row[-1], max(room - left, 20)) if whole else [row[-1]]
        first, *rest = wrapped or [""]
        line = "  ".join([*cells, first]).rstrip()
        line = line if len(line) <= room else line[: room - 1] + "…"
        print(style(line, bold=True) if number == 0 else line)
        for more in rest:
            print(" " * left + more)


def _print_narrow(
    headers: Sequence[str], rows: list[list[str]], widths: list[int], room: int
) -> None:
    for number, row in enumerate([list(headers), *rows]):
        cells = [cell.ljust(width) for cell, width in zip(row[:-1], widths, strict=True)]
        for line in textwrap.wrap("  ".join(cells).rstrip(), max(room, 20)) or [""]:
            print(style(line, bold=True) if number == 0 else line)
        for more in textwrap.wrap(row[-1], max(room - 4, 20)) if number else ():
            print(f"    {more}")


LEAST_ROOM = 30
"""Width below which the last column is printed under the others."""


class StatusLine:
    """A transient line on the terminal that says what the command waits for."""

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
