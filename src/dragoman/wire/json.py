"""JSON with limits: the codec for everything that comes from outside.

Strict (no NaN, no lone surrogates, no trailing bytes), and bounded in depth and number of values,
since a small text can hold a large tree. The message of `Malformed` may be shown to the sender.
"""

from __future__ import annotations

import json
from typing import Any

import msgspec

MAX_BYTES = 10 * 1024 * 1024
MAX_DEPTH = 64
MAX_REPLY_DEPTH = 128
"""For responses of servers: one tool whose schema is too deep is left out alone."""
MAX_TOKENS = 200_000
"""Structural characters in a request: `{`, `[` and `,`."""
TOO_MANY_VALUES = f"the message has more than {MAX_TOKENS} values"
MAX_REPLY_TOKENS = 1_000_000
"""For responses of servers: a list of ten thousand tools is legitimate."""

_decoder = msgspec.json.Decoder()
encode = msgspec.json.Encoder().encode
"""Encodes any plain value as compact UTF-8 JSON."""


class Malformed(ValueError):
    """Invalid JSON, or JSON beyond the limits; the message says why."""


def count_tokens(text: bytes | bytearray) -> int:
    """Structural characters, also those in strings: an upper bound of the values."""
    return text.count(b"{") + text.count(b"[") + text.count(b",")


def decode(
    text: bytes | bytearray | memoryview,
    max_tokens: int = MAX_TOKENS,
    max_depth: int = MAX_DEPTH,
    max_bytes: int = MAX_BYTES,
) -> Any:
    data = text if type(text) is bytes else bytes(text)
    size = len(data)
    if size > max_bytes:
        raise Malformed(f"the message is larger than {max_bytes} bytes")
    # Each level takes two brackets, so most messages are too short for more levels than allowed.
    opened = data.count(b"{") + data.count(b"[") if size > 2 * max_depth else 0
    if size > max_tokens and opened + data.count(b",") > max_tokens:
        raise Malformed(f"the message has more than {max_tokens} values")
    try:
        value = _decoder.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise Malformed(f"not valid JSON: {error}") from None
    except RecursionError:
        raise Malformed(f"the message is nested deeper than {max_depth}") from None
    if opened > max_depth and is_deeper_than(value, max_depth):
        raise Malformed(f"the message is nested deeper than {max_depth}")
    return value


def decode_reply(text: bytes, max_bytes: int = MAX_BYTES) -> Any:
    """Decodes a server's response, with larger limits than a client's request."""
    return decode(text, MAX_REPLY_TOKENS, MAX_REPLY_DEPTH, max_bytes)


_CONTAINERS = (dict, list)


def is_deeper_than(value: Any, limit: int) -> bool:
    """Whether a plain value is nested deeper than that."""
    level = [value] if isinstance(value, _CONTAINERS) else []
    for _ in range(limit):
        inner: list[Any] = []
        for item in level:
            for member in item.values() if isinstance(item, dict) else item:
                if isinstance(member, _CONTAINERS):
                    inner.append(member)
        if not inner:
            return False
        level = inner
    return True


ENCODED_BYTES = 64 * 1024
"""Longer texts are searched for repeated members instead of being encoded again."""

_members = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode


def has_duplicate_names(
    text: bytes, value: Any, outer: tuple[bytes, ...], inner: tuple[bytes, ...]
) -> bool:
    """Whether the outermost object of `text` has one of the members `outer` twice, or its `params`
    one of `inner`; `value` was decoded from `text`, and the names are given quoted.

    Parsers disagree about which of the two counts, so neither does. Most texts are cleared at once:
    of a repeated member `value` has only one, so its encoding has fewer quotes than `text`, unless
    an escape hides some.
    """
    encoded = encode(value) if len(text) < ENCODED_BYTES else None
    if encoded == text:
        return False
    has_escapes = b"\\u" in text
    if encoded is not None and not has_escapes and encoded.count(b'"') == text.count(b'"'):
        return False
    if has_escapes or text[:1] != b"{":
        return _has_repeated_slowly(text)
    count = text.count
    for name in outer:
        if count(name) > 1 and _repeats(text, name):
            return True
    for name in inner:
        if count(name) > 1:
            params = bytes(_outermost(text).params)
            if params[:1] == b"{" and _repeats(params, name):
                return True
    return False


class _Outermost(msgspec.Struct):
    params: msgspec.Raw = msgspec.Raw(b"")


_outermost = msgspec.json.Decoder(_Outermost).decode


def _repeats(text: bytes, name: bytes) -> bool:
    """A member name occurs once as a member; any further time must be inside some value."""
    further = text.count(name) - 1
    for value in _members(text).values():
        further -= bytes(value).count(name)
    return further > 0


class _Twice(dict[str, Any]):
    """An object with a duplicate member."""


def _pairs(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    members = dict(pairs)
    return members if len(members) == len(pairs) else _Twice(members)


def _has_repeated_slowly(text: bytes) -> bool:
    """For texts with escapes, which may hide a name, and for batches."""
    try:
        message = json.loads(text, object_pairs_hook=_pairs)
    except ValueError:  # a number too long to convert; no message needs one
        return True
    outer = message if isinstance(message, list) else [message]
    return any(
        isinstance(item, _Twice)
        or (isinstance(item, dict) and isinstance(item.get("params"), _Twice))
        for item in outer
    )
