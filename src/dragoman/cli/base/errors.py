"""One table: the exit code of each error.

0 done · 1 the tool, or the command, failed · 2 what was asked does not fit · 3 no hub, or another
one in the way · 4 refused · 5 not found · 6 something left the hub and went wrong there ·
7 configuration · 8 a file that must be edited by hand · 130 interrupted
"""

from __future__ import annotations

import sys
from typing import Any, NoReturn

import click

from dragoman.cli.base.output import clean, must_print_json, print_json
from dragoman.core.errors import (
    AmbiguousName,
    AuthorizationError,
    BadReply,
    ConfigError,
    Declined,
    Denied,
    Full,
    HubError,
    InvalidInput,
    Looping,
    NeedsInput,
    NotFound,
    Quarantined,
    RemoteA2AInvalidResponseError,
    RemoteA2ATaskFailedError,
    RemoteA2ATimeoutError,
    RemoteA2ATransportError,
    TimedOut,
    TooDeep,
    Unreachable,
    WorkFailed,
)

FAILED, USAGE, NO_HUB, NOT_FOUND, TARGET_FAILED = 1, 2, 3, 5, 6
INTERRUPTED = 130

TABLE: dict[type[HubError], int] = {
    Denied: 4,
    AuthorizationError: 4,
    TooDeep: 4,
    Looping: 4,
    Quarantined: 4,
    Full: 4,
    NotFound: 5,
    AmbiguousName: 2,
    InvalidInput: 2,
    Unreachable: 6,
    TimedOut: 6,
    BadReply: 6,
    WorkFailed: 6,
    RemoteA2ATransportError: 6,
    RemoteA2ATimeoutError: 6,
    RemoteA2AInvalidResponseError: 6,
    RemoteA2ATaskFailedError: 6,
    NeedsInput: 6,
    Declined: 6,
    ConfigError: 7,
}


class CommandFailed(click.ClickException):
    """What was asked, what stopped it, what to do; exit code 1."""


class UnreadableFile(Exception):
    """One sentence: what is wrong with the file, and where."""


def exit_code_for(kind: str) -> int:
    return next((code for error, code in TABLE.items() if error.__name__ == kind), FAILED)


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
