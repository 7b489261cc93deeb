"""Secrets that are kept for a time: read once, read again after that, or after a refusal."""

from __future__ import annotations

import asyncio

import pytest

from dragoman.core.cached_secrets import FAILED_SECONDS, CachedSecrets
from dragoman.core.errors import ConfigError


class Source:
    def __init__(self) -> None:
        self.reads = 0
        self.now = 0.0
        self.fails = False
        self.gate = asyncio.Event()
        self.gate.set()
        self.cached = CachedSecrets(self.read, lambda: 60.0, lambda: self.now)

    async def read(self, name: str, owner: str) -> str:
        self.reads += 1
        await self.gate.wait()
        if self.fails:
            raise ConfigError(f"{owner} cannot have it")
        return f"{name}-{self.reads}"


async def test_a_secret_is_read_once_until_it_expires_or_is_forgotten() -> None:
    source = Source()
    assert [await source.cached.read("a", "o") for _ in range(3)] == ["a-1"] * 3
    source.now = 61.0
    assert await source.cached.read("a", "o") == "a-2"
    assert source.cached.forget("a") and not source.cached.forget("a")
    assert await source.cached.read("a", "o") == "a-3"


async def test_callers_at_the_same_time_share_one_read() -> None:
    source = Source()
    source.gate.clear()
    waiting = [asyncio.ensure_future(source.cached.read("a", "o")) for _ in range(20)]
    await asyncio.sleep(0)
    waiting[0].cancel()
    source.gate.set()
    found = await asyncio.gather(*waiting, return_exceptions=True)
    assert found[1:] == ["a-1"] * 19 and isinstance(found[0], asyncio.CancelledError)


async def test_a_failure_is_kept_for_a_moment() -> None:
    source = Source()
    source.fails = True
    for owner in ("o", "o", "p", "o"):
        with pytest.raises(ConfigError, match=f"{owner} cannot have it"):
            await source.cached.read("a", owner)
    assert source.reads == 2  # a program that fails is not started for each request
    source.fails = False
    source.now = FAILED_SECONDS
    assert await source.cached.read("a", "o") == "a-3"
