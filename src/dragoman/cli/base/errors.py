"""One table: the exit code of each error.

0 done · 1 the tool or the command failed, or a file of the home · 2 invalid input · 3 no hub, or
another one in the way · 4 refused · 5 not found · 6 something left the hub and failed there ·
7 configuration · 8 a file that must be edited by hand · 130 interrupted
"""

from __future__ import annotations

import sys
from typing import Any, NoReturn

import click

from dragoman.cli.base.output import clean, must_print_json, print_json
from dragoman.core.errors import (
    ConfigError,
    HubError,
    InvalidInput,
    NotFound,
    Refused,
    StorageFailed,
    TargetFailed,
    find_row,
    list_leaves,
)

FAILED, USAGE, NO_HUB, NOT_FOUND, TARGET_FAILED = 1, 2, 3, 5, 6
INTERRUPTED = 130

TABLE: dict[type[HubError], int] = {
    Refused: 4,
    NotFound: 5,
    InvalidInput: 2,
    StorageFailed: FAILED,
    TargetFailed: 6,
    ConfigError: 7,
}
_CODES = {leaf.kind: find_row(TABLE, leaf) for leaf in list_leaves()}


class CommandFailed(click.ClickException):
    """What was asked, what stopped it, what to do; exit code 1."""


class UnreadableFile(Exception):
    """One sentence: what is wrong with the file, and where."""


def exit_code_for(kind: str) -> int:
    return _CODES.get(kind, FAILED)


def say(message: str) -> None:
    """One line on stderr, whatever the message is made of."""
    print(f"dragoman: {clean(message)}", file=sys.stderr)


def fail(message: str, code: int = FAILED, *, kind: str = "", trace: str = "") -> NoReturn:
    """One sentence on stderr, under --json an object with the error on stdout, and the end."""
    if must_print_json():
        print_json(build_error(message, code, kind, trace))
    say(message)
    raise SystemExit(code)


def build_error(message: str, code: int, kind: str = "", trace: str = "") -> dict[str, Any]:
    """What a program reads; `code` is the exit code."""
    error: dict[str, Any] = {"message": " ".join(message.split()), "code": code}
    error |= {name: value for name, value in (("kind", kind), ("trace", trace)) if value}
    return {"error": error}


def fail_with(error: HubError) -> NoReturn:
    fail(str(error), exit_code_for(error.kind), kind=error.kind, trace=error.trace or "")
