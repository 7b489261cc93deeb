"""The limit on one message of a server. Structured content that repeats the content is not counted:
many servers send each result in both forms."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from dragoman.core.errors import BadReply
from dragoman.wire.json import MAX_BYTES, Malformed, decode_reply, encode

MEGABYTE = 1024 * 1024
LONG = 1_000
"""Characters of a text from which on it is searched for in the content."""


class MessageLimit:
    __slots__ = ("bytes", "most", "server")

    def __init__(self, server: str, megabytes: int = MAX_BYTES // MEGABYTE) -> None:
        self.server = server
        self.bytes = megabytes * MEGABYTE
        self.most = 2 * self.bytes
        """With such a repetition."""

    def allows(self, result: Any, size: int) -> bool:
        """Whether a result of that size is small enough. Only those above `bytes` are asked about.
        Nothing is raised: an error that is kept in a variable keeps the result by its traceback."""
        return size - count_repeated(result) <= self.bytes

    def build_error(self, method: str) -> BadReply:
        return BadReply(
            f'server "{self.server}" answered "{method}" with more than {self.bytes} bytes, which '
            "is too large for one message; request less data, or raise message_megabytes of the "
            "server"
        )


def count_repeated(result: Any) -> int:
    """Counts the bytes of structured content that the content has as well: of long texts such as
    images, or of all if the content is its JSON."""
    if not isinstance(result, dict):
        return 0
    content, structured = result.get("content"), result.get("structuredContent")
    if not isinstance(content, list) or structured is None:
        return 0
    texts = set(_find_long(content))
    repeated = sum(len(text.encode()) for text in _find_long(structured) if text in texts)
    if not repeated and any(_is_json_of(text, structured) for text in texts):
        return len(encode(structured))
    return repeated


def _is_json_of(text: str, structured: Any) -> bool:
    if not text[:100].lstrip().startswith(("{", "[")):
        return False
    try:
        value = decode_reply(text.encode(), max_bytes=2 * len(text.encode()))
    except Malformed:
        return False
    return bool(value == structured)


def _find_long(value: Any) -> Iterator[str]:
    left = [value]
    while left:
        one = left.pop()
        if isinstance(one, str):
            if len(one) >= LONG:
                yield one
        elif isinstance(one, dict):
            left += one.values()
        elif isinstance(one, list):
            left += one
