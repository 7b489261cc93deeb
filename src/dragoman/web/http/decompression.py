"""Decompresses request bodies (`Content-Encoding: gzip` or `deflate`).

Inflates in small steps, so that other requests are not delayed. The result counts like a body that
was sent uncompressed: it has the same limit, and its budget is reserved before it is created.
"""

from __future__ import annotations

import asyncio
import zlib
from collections.abc import Callable

CODINGS = frozenset((b"gzip", b"x-gzip", b"deflate"))
STEP_BYTES = 64 * 1024
"""Bytes inflated in one step; takes less than a millisecond."""
FREE_BYTES = 1024 * 1024
MAX_RATIO = 100
"""Beyond the first megabyte a body that grows by more than this is an attack: JSON shrinks to a
fifth or a twentieth."""


class BodyTooLarge(Exception):
    """The body is too large."""


class BodyBudgetFull(Exception):
    """The budget for bodies has no room now."""


class CorruptBody(Exception):
    """The body is not valid in its coding."""


async def inflate(
    data: bytes,
    coding: bytes,
    most: int,
    small: int,
    take_room: Callable[[], bool],
    pace: Callable[[int], float],
) -> bytes:
    """`take_room` reserves `most` bytes; called once, if the result is larger than `small`.
    `pace` gives the seconds to pause after so many bytes."""
    machine = _machine(data, coding)
    most = min(most, max(FREE_BYTES, MAX_RATIO * len(data)))
    found: list[bytes] = []  # to enlarge one buffer of megabytes would copy it
    size = 0
    taken = False
    place, left = 0, b""
    while not machine.eof:
        # The input of a step is bounded too: empty blocks would be read all at once.
        part = left or data[place : place + STEP_BYTES]
        place += 0 if left else len(part)
        try:
            piece = machine.decompress(part, STEP_BYTES)
        except zlib.error:
            raise CorruptBody from None
        left = machine.unconsumed_tail
        if not piece and not part and not machine.eof:
            raise CorruptBody  # it ends too early
        found.append(piece)
        size += len(piece)
        if size > most:
            raise BodyTooLarge
        if size > small and not taken:
            if not take_room():
                raise BodyBudgetFull
            taken = True
        await asyncio.sleep(pace(len(part) + len(piece)))
    if machine.unused_data or place < len(data):
        raise CorruptBody
    return b"".join(found)


def _machine(data: bytes, coding: bytes) -> zlib._Decompress:
    if coding != b"deflate":
        return zlib.decompressobj(wbits=31)
    # RFC 9110, 8.4.1.2: the zlib format; some send the bare one.
    wrapped = len(data) > 1 and data[0] & 0x0F == 8 and (data[0] << 8 | data[1]) % 31 == 0
    return zlib.decompressobj(wbits=15 if wrapped else -15)
