"""The hub as a whole, in this process."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from dragoman import home
from dragoman.app.app import Instance
from dragoman.config import Config


async def test_uptime_does_not_follow_a_clock_that_is_set(
    short_tmp: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home.prepare(str(short_tmp))
    instance = Instance(short_tmp, Config(), "mcp")
    try:
        with monkeypatch.context() as clock:
            clock.setattr(time, "time", lambda: 0.0)
            assert 0 <= instance.status()["uptime_secs"] < 3_600
            assert "dragoman_uptime_seconds -" not in instance.metrics()
    finally:
        await instance.stop()
