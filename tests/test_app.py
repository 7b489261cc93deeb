"""The hub as a whole, in this process."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from dragoman import home
from dragoman.app.build import build_app
from dragoman.config import Config


async def test_uptime_does_not_follow_a_clock_that_is_set(
    short_tmp: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home.prepare(str(short_tmp))
    app = build_app(short_tmp, Config(), "mcp")
    try:
        with monkeypatch.context() as clock:
            clock.setattr(time, "time", lambda: 0.0)
            assert 0 <= app.status.status()["uptime_secs"] < 3_600
            assert "dragoman_uptime_seconds -" not in app.status.metrics()
    finally:
        await app.stop()
