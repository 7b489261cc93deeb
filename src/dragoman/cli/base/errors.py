"""Exit codes and how a command fails.

0 done · 1 the tool, the command or a file of the home failed · 2 invalid usage or arguments ·
3 no hub, or another hub holds the home · 4 refused · 5 not found · 6 a server or agent failed ·
7 invalid configuration · 8 a file must be edited by hand · 130 interrupted
"""

from __future__ import annotations

import sys
from typing import Any, NoReturn

import click

from dragoman.cli.base.output import clean, must_print_json, print_json_line
from dragoman.core import errors

FAILED, USAGE, NO_HUB, NOT_FOUND, TARGET_FAILED = 1, 2, 3, 5, 6
INTERRUPTED = 130

TABLE: dict[type[errors.HubError], int] = {
    errors.Refused: 4,
    errors.NotFound: 5,
    errors.InvalidInput: 2,
    errors.StorageFailed: FAILED,
    errors.TargetFailed: 6,
    errors.LoginRequired: 4,
    errors.ConfigError: 7,
}
_CODES = {leaf.kind: errors.find_row(TABLE, leaf) for leaf in errors.list_leaves()}


class CommandFailed(click.ClickException):
    """A command failed with exit code 1."""


class UnreadableFile(Exception):
    """A file cannot be read or edited; the message says what is wrong and where."""


def find_exit_code(kind: str) -> int:
    return _CODES.get(kind, FAILED)


def say(message: str) -> None:
    """Prints one line on stderr, with control characters escaped."""
    print(f"dragoman: {clean(message)}", file=sys.stderr)


def fail(message: str, code: int = FAILED, *, kind: str = "", trace: str = "") -> NoReturn:
    """Ends the command: one line on stderr and, with --json, an error object on one of stdout."""
    if must_print_json():
        print_json_line(build_error(message, code, kind, trace))
    say(message)
    raise SystemExit(code)


def build_error(message: str, code: int, kind: str = "", trace: str = "") -> dict[str, Any]:
    """Builds the error object that --json prints; `code` is the exit code."""
    error: dict[str, Any] = {"message": " ".join(message.split()), "code": code}
    error |= {name: value for name, value in (("kind", kind), ("trace", trace)) if value}
    return {"error": error}


def fail_with(error: errors.HubError) -> NoReturn:
    fail(str(error), find_exit_code(error.kind), kind=error.kind, trace=error.trace or "")
