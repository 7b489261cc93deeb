"""A hub without logins loads none of what they need."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from dragoman import home

HUB = """
import asyncio, sys
from pathlib import Path
from dragoman.app.build import build_app
from dragoman.config import load

async def main():
    place = Path(sys.argv[1])
    app = build_app(place, load(place / "config.toml"), "daemon")
    await app.start()
    await app.parts.upstreams.wait_settled()
    print(*sys.modules)
    await app.stop()

asyncio.run(main())
"""
CONFIG = """
[server]
port = 0
[[mcp_servers]]
name = "away"
transport = { type = "http", url = "http://127.0.0.1:9/mcp" }
"""


def test_hub_without_logins_loads_no_cryptography(short_tmp: Path) -> None:
    home.prepare(str(short_tmp))
    (short_tmp / "config.toml").write_text(CONFIG, encoding="utf-8")
    command = [sys.executable, "-c", HUB, str(short_tmp)]
    run = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    loaded = set(run.stdout.split())
    assert "dragoman.oauth.logins.desk" in loaded
    heavy = ("cryptography", "jwt", "dragoman.oauth.client")
    assert not [name for name in loaded if name.startswith(heavy)]
    assert not (short_tmp / "credentials.db").exists()
