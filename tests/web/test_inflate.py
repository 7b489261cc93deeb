"""Compressed bodies are inflated in steps of bounded input and output."""

from __future__ import annotations

import asyncio
import os
import zlib

import pytest

from dragoman.web.http.decompression import STEP_BYTES, CorruptBody, inflate


async def inflate_counting(data: bytes) -> tuple[bytes, int]:
    """What comes out, and how often others had their turn."""
    turns = 0

    async def count() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    counting = asyncio.create_task(count())
    try:
        return await inflate(
            data, b"deflate", 10 << 20, 1 << 14, lambda: True, lambda size: 0
        ), turns
    finally:
        counting.cancel()


async def test_empty_deflate_blocks_are_read_in_bounded_steps() -> None:
    machine = zlib.compressobj(wbits=-15)
    empty = b"\x00\x00\x00\xff\xff" * (STEP_BYTES)  # stored blocks of no bytes
    body = empty + machine.compress(b"{}") + machine.flush()
    found, turns = await inflate_counting(body)
    assert found == b"{}" and turns >= 5


@pytest.mark.parametrize("size", [0, 1, STEP_BYTES - 1, STEP_BYTES, STEP_BYTES * 3 + 1])
async def test_inflated_body_is_complete_at_any_size(size: int) -> None:
    for plain in (os.urandom(size), b"a" * size):
        whole = zlib.compress(plain)
        assert (await inflate_counting(whole))[0] == plain
        for broken in (whole[:-1], whole + b"x", whole + b"x" * STEP_BYTES):
            with pytest.raises(CorruptBody):
                await inflate_counting(broken)


async def test_inflating_pauses_for_what_it_read_and_made() -> None:
    counted: list[int] = []

    def pace(size: int) -> float:
        counted.append(size)
        return 0.0

    plain = bytes(STEP_BYTES * 8)
    packed = zlib.compress(plain)
    assert await inflate(packed, b"deflate", 10 << 20, 1 << 14, lambda: True, pace) == plain
    assert sum(counted) >= len(plain) + len(packed) and max(counted) <= 2 * STEP_BYTES
