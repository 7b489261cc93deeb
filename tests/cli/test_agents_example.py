"""The commands and output in the README of examples/agents are exact."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import pytest
from tests.cli.terminal import Terminal
from tests.cli.test_hello_example import build_pattern, typed_and_seen

ROOT = Path(__file__).parent.parent.parent
AGENTS = ROOT / "examples" / "agents"


@pytest.mark.promise("F3")
def test_readme_commands_print_what_it_shows(terminal: Terminal) -> None:
    steps = typed_and_seen((AGENTS / "README.md").read_text(encoding="utf-8"))
    assert len(steps) > 8
    terminal.env["DRAGOMAN_HOME"] = str(terminal.home)
    for line, seen in steps:
        if line.startswith("mkdir "):
            terminal.home.mkdir(exist_ok=True)
            for name in ("config.toml", "greeters.py"):
                shutil.copy(AGENTS / name, terminal.home / name)
        if not line.startswith("dragoman "):
            assert line.startswith((". .venv", "export DRAGOMAN_HOME=", "mkdir ")), line
            continue
        done = terminal.run(*line.split()[1:], cwd=ROOT)
        pattern = build_pattern(seen)
        assert re.fullmatch(pattern, done.out + done.err, re.DOTALL), (line, done)
    assert terminal.run("status").code == 3
