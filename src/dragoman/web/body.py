"""Reading a request's body, within limits."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, MutableMapping
from typing import Any

from dragoman.wire.json import MAX_BYTES

Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]

DRAIN_BYTES = 4 * MAX_BYTES
"""A body over the limit but under this is read to its end, so that its sender reads our answer."""
BODY_SECONDS = 60.0


class TooLarge(Exception):
    """A body over the limit."""


class Gone(Exception):
    """The client went away, or was too slow."""


async def read_body(fields: Mapping[bytes, bytes], receive: Receive) -> bytes:
    length = fields.get(b"content-length", b"")
    if length.isdigit() and int(length) > DRAIN_BYTES:
        raise TooLarge
    message = await receive()
    if message["type"] == "http.request" and not message.get("more_body"):
        body: bytes = message.get("body", b"")
        if len(body) > MAX_BYTES:
            raise TooLarge
        return body
    try:
        async with asyncio.timeout(BODY_SECONDS):
            return await _read_on(message, receive)
    except TimeoutError:
        raise Gone from None


async def _read_on(message: MutableMapping[str, Any], receive: Receive) -> bytes:
    chunks: list[bytes] = []
    size = 0
    while True:
        if message["type"] == "http.disconnect":
            raise Gone
        chunk = message.get("body", b"")
        size += len(chunk)
        if size > MAX_BYTES:
            chunks.clear()
        else:
            chunks.append(chunk)
        if size > DRAIN_BYTES or (size > MAX_BYTES and not message.get("more_body")):
            raise TooLarge
        if not message.get("more_body"):
            return b"".join(chunks)
        message = await receive()
