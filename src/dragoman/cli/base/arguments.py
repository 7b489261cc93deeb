"""Parses the arguments of a tool or prompt from key=value pairs, JSON, files and stdin."""

from __future__ import annotations

import base64
import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from dragoman.cli.base.errors import USAGE, fail, say

MAX_BYTES = 10 * 1024 * 1024
"""The hub's limit for a message."""

Pairs = list[tuple[str, str]]


def parse_arguments(
    arguments: tuple[str, ...], command: str = "dragoman call"
) -> dict[str, Any] | Pairs:
    """Returns one JSON object (inline, from `@FILE` or stdin), or the key=value pairs as typed."""
    if len(arguments) == 1 and (
        arguments[0] == "-" or arguments[0].lstrip()[:1] in ("{", "[") or arguments[0][:1] == "@"
    ):
        return _parse_object(arguments[0])
    pairs: dict[str, str] = {}
    for pair in arguments:
        key, equals, value = pair.partition("=")
        if not equals or not key:
            fail(
                f'invalid argument "{pair[:100]}": write key=value or one JSON object; see: '
                f"{command} --help",
                USAGE,
            )
        if key in pairs:
            fail(f'"{key}" is given twice; write a list as {key}=\'["a", "b"]\'', USAGE)
        pairs[key] = value
    return list(pairs.items())


def _parse_object(word: str) -> dict[str, Any]:
    text: str | bytes = word
    if word == "-" or word.startswith("@"):
        text = _read_file("-" if word == "-" else word[1:], "the arguments")
    try:
        value = json.loads(text)
    except (ValueError, RecursionError) as error:
        fail(f"the arguments are not valid JSON: {error or 'nested too deeply'}", USAGE)
    if not isinstance(value, dict):
        fail("the arguments must be one JSON object", USAGE)
    return value


def _read_file(name: str, what: str) -> bytes:
    if name == "-":
        if sys.stdin.isatty():
            say(f"reading {what} from the terminal; end with Ctrl-D")
        data = sys.stdin.buffer.read(MAX_BYTES + 1)
    else:
        try:
            with Path(name).expanduser().open("rb") as file:
                data = file.read(MAX_BYTES + 1)
        except OSError as error:
            fail(
                f'{what}: cannot read "{name}": {error.strerror}; write text that begins with @ '
                "as @@",
                USAGE,
            )
    if len(data) > MAX_BYTES:
        fail(f"{what}: too large, over {MAX_BYTES >> 20} MB", USAGE)
    return data


def parse_header(line: str, form: str = "NAME: VALUE") -> tuple[str, str]:
    """Splits the value of --header into name and value."""
    name, colon, value = line.partition(":")
    if not colon or not name.strip():
        fail(f"invalid --header \"{name[:60]}\": write '{form}'", USAGE)
    return name.strip(), value.strip()


def convert_pairs(pairs: Pairs, properties: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """Converts each value to the type that the schema declares."""
    return {key: _convert_value(key, text, properties.get(key, {})) for key, text in pairs}


def _convert_value(key: str, text: str, about: Mapping[str, Any]) -> Any:
    if text.startswith("@@"):
        text = text[1:]
    elif text.startswith("@") and len(text) > 1:
        data = _read_file(text[1:], key)
        if about.get("contentEncoding") == "base64" or about.get("format") == "byte":
            return base64.b64encode(data).decode()
        try:
            text = data.decode("utf-8-sig")
        except UnicodeDecodeError:
            fail(f'{key}: "{text[1:]}" is not valid UTF-8', USAGE)
    if about.get("type") == "string":
        return text
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return text
