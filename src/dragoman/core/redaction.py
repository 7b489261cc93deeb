"""Keeps argument values out of logs, events and the audit.

Validators and targets repeat what they were given; names come from clients.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any

from dragoman.core.call import Call
from dragoman.core.tool import COMPLETION, PROMPT, TOOL
from dragoman.core.urls import render_uri

MAX_NAME = 200
MAX_MESSAGE = 300
MAX_SEARCHED = 16_384
MAX_VALUES = 200
MAX_LISTED = 2_000
"""Values with those that are repeated, and the objects and lists around them."""
MAX_OUTLINED = 64
MAX_NUMBERS = 32
LARGEST = 2**53
TELLING = 12
"""Characters of a value that suffice to recognise it where it was cut."""


def shorten(text: str, most: int = MAX_NAME) -> str:
    """Shortens text from clients, and makes it storable."""
    if len(text) > most:
        text = text[: most - 1] + "…"
    return text if text.isascii() else text.encode("utf-8", "replace").decode()


def render_name(name: str, kind: str) -> str:
    """The name of a tool for logs, events and records. The address of a resource may hold a secret
    and is masked."""
    if kind in (TOOL, PROMPT) or (kind == COMPLETION and ":" not in name):
        return name
    return render_uri(name)


def list_secrets(call: Call) -> Any:
    """What the record of an error may not repeat: argument values, and names that are addresses."""
    if call.tool.kind in (TOOL, PROMPT):
        return call.arguments
    return [call.arguments, call.requested_name, call.tool.name, call.tool.remote_name]


def outline_arguments(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """The names of at most `MAX_OUTLINED` arguments, with the type and size of each."""
    found: dict[str, Any] = {}
    for name, value in arguments.items():
        if len(found) >= MAX_OUTLINED:
            found["…"] = {"type": "more", "size": len(arguments) - MAX_OUTLINED}
            break
        found[shorten(str(name))] = _render_size(value)
    return found


def _render_size(value: Any) -> dict[str, Any]:
    if isinstance(value, str):
        return {"type": "string", "size": len(value)}
    if isinstance(value, Mapping):
        return {"type": "object", "size": len(value)}
    if isinstance(value, list | tuple):
        return {"type": "array", "size": len(value)}
    if value is None or isinstance(value, bool):
        return {"type": "null" if value is None else "boolean"}
    return {"type": "number"}


def select_numbers(usage: Any) -> dict[str, int | float]:
    """Selects the numbers in what a target reports as usage, bounded in count and size."""
    if not isinstance(usage, Mapping):
        return {}
    found: dict[str, int | float] = {}
    for name, value in usage.items():
        if isinstance(value, bool) or not isinstance(value, int | float):
            continue
        if -LARGEST <= value <= LARGEST and len(found) < MAX_NUMBERS:
            found[shorten(str(name))] = value
    return found


def redact_message(message: str, arguments: Any) -> str:
    """Replaces argument values in `message` by dots, and shortens it."""
    if len(message) > MAX_SEARCHED:
        return f"(not kept: a message of {len(message)} characters)"
    values: set[str | int | float] = set()
    for number, value in enumerate(_list_values(arguments)):
        if len(values) >= MAX_VALUES or number >= MAX_LISTED:
            return "(not kept: too many arguments to look for in it)"
        if isinstance(value, str | int | float) and not isinstance(value, bool) and value != "":
            values.add(value)
    forms = {form for value in values for form in _list_spellings(value)}
    for form in sorted(forms, key=len, reverse=True):
        message = _remove(message, form)
    return shorten(message, MAX_MESSAGE)


def _list_values(value: Any) -> Iterator[Any]:
    """All values in the arguments, without recursion: clients choose the depth."""
    left = [value]
    while left:
        value = left.pop()
        if isinstance(value, Mapping):
            left += value.values()
        elif isinstance(value, list | tuple):
            left += value
        yield value


def _list_spellings(value: str | int | float) -> Iterator[str]:
    """How a value is likely to be written in a message."""
    if not isinstance(value, str):
        yield repr(value)
        return
    is_long = len(value) > MAX_SEARCHED
    value = value[:MAX_SEARCHED]  # no message has more of it
    yield value
    yield json.dumps(value)[1:-1]
    yield json.dumps(value, ensure_ascii=False)[1:-1]
    yield repr(value)[1:-1]
    if is_long and "'" in value:  # which quotes are escaped depends on all of it
        yield repr(value + '"')[1:-2]


def _remove(message: str, form: str) -> str:
    if form[:TELLING] not in message:
        return message  # the common case: a regular expression costs a hundred times more
    if len(form) < TELLING:
        return re.sub(rf"(?<!\w){re.escape(form)}(?!\w)", "…", message)
    pieces = []
    rest = message
    while (at := rest.find(form[:TELLING])) >= 0:
        pieces.append(rest[:at])
        rest = rest[at:]
        same = (n for n, (one, other) in enumerate(zip(rest, form, strict=False)) if one != other)
        rest = rest[next(same, min(len(rest), len(form))) :]
    return "…".join([*pieces, rest])
