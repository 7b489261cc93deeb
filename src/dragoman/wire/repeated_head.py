"""The head of an HTTP message that a peer repeats on a connection, so that it is parsed once.

Of most heads only the length of the body differs. Such a head is recognised by its bytes: a parser
has accepted them before, and would take them to mean the same again. Knows no header but that one.
"""

from __future__ import annotations

from typing import NamedTuple

MAX_HEAD = 4096
"""Longer heads are not remembered."""
MAX_BODY = 8 * 1024
"""A longer body goes through the parser, with its limits."""
_LENGTH = b"\r\ncontent-length: "
_END = b"\r\n\r\n"


class RepeatedHead(NamedTuple):
    before: bytes
    """The head up to the digits of its Content-Length."""
    after: bytes
    """The rest of it, with the empty line."""

    def find_body(self, data: bytes) -> tuple[bytes, bytes] | None:
        """Returns the Content-Length and the body if `data` is this head with exactly one body;
        otherwise None."""
        before, after = self
        if not data.startswith(before):
            return None
        length, found, body = data[len(before) :].partition(after)
        is_whole = found and length == b"%d" % len(body) and len(body) <= MAX_BODY
        return (length, body) if is_whole else None


def learn_head(data: bytes, length: bytes) -> RepeatedHead | None:
    """Remembers the head at the start of `data`, which a parser has accepted; `length` is its
    Content-Length. None for a head that does not have it in its usual form."""
    end = data.find(_END, 0, MAX_HEAD)
    start = data.lower().find(_LENGTH, 0, max(end, 0)) + len(_LENGTH)
    if start < len(_LENGTH) or not data.startswith(length + b"\r\n", start):
        return None
    return RepeatedHead(data[:start], data[start + len(length) : end + len(_END)])
