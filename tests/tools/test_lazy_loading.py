"""A hub without agents loads none of what the built-in tools need."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

CODE = """
import asyncio, sys
from pathlib import Path
from dragoman.app.build import build_app
from dragoman.config import load

async def run(home):
    app = build_app(home, load(home / "config.toml"), "mcp")
    await app.stop()
    wanted = ("dragoman.tools.", "cronsim", "html_to_markdown", "dragoman.stores.agent_")
    print(sorted(name for name in sys.modules if name.startswith(wanted)))

asyncio.run(run(Path(sys.argv[1])))
"""


@pytest.mark.promise("T2")
@pytest.mark.parametrize("opened", [False, True])
def test_tools_are_loaded_only_where_a_principal_can_use_them(tmp_path: Path, opened: bool) -> None:
    tmp_path.chmod(0o700)
    config = '[tools]\nclients = ["system_time"]\n' if opened else "# nothing\n"
    (tmp_path / "config.toml").write_text(config, encoding="utf-8")
    done = subprocess.run(
        [sys.executable, "-c", CODE, str(tmp_path)], capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stderr
    loaded = set(eval(done.stdout.splitlines()[-1]))
    names = ("access", "builtin_names", "config", "tool_spec")
    light = {f"dragoman.tools.{name}" for name in names}
    assert (loaded == light) is not opened, loaded
    assert (tmp_path / "agents.db").exists() is opened
    assert "html_to_markdown" not in loaded
