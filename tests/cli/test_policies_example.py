"""The commands and output in the README of examples/policies are exact."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

from tests.cli.terminal import Terminal
from tests.cli.test_hello_example import typed_and_seen

ROOT = Path(__file__).parent.parent.parent
POLICIES = ROOT / "examples" / "policies"


def test_readme_commands_print_what_it_shows(terminal: Terminal) -> None:
    steps = typed_and_seen((POLICIES / "README.md").read_text(encoding="utf-8"))
    assert len(steps) > 6
    terminal.env["DRAGOMAN_HOME"] = str(terminal.home)
    for line, seen in steps:
        if line.startswith("mkdir "):
            terminal.home.mkdir(mode=0o700)
            shutil.copytree(POLICIES / "first", terminal.home / "policies")
        if not line.startswith("dragoman "):
            assert line.startswith((". .venv", "export DRAGOMAN_HOME=", "mkdir ")), line
            continue
        done = terminal.run(*line.split()[1:], cwd=ROOT)
        pattern = re.escape(seen).replace("…", ".*")
        assert re.fullmatch(pattern, done.out + done.err, re.DOTALL), (line, done)
