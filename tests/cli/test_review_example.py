"""The commands and output in the README of examples/review are exact."""

from __future__ import annotations

import re
import time
from pathlib import Path

import pytest
from tests.cli.terminal import WAIT_SECONDS, Terminal
from tests.cli.test_bridge_example import typed
from tests.cli.test_hello_example import typed_and_seen

REVIEW = Path(__file__).parent.parent.parent / "examples" / "review"


@pytest.mark.promise("R14", "U6")
def test_readme_commands_print_what_it_shows(terminal: Terminal) -> None:
    steps = typed_and_seen((REVIEW / "README.md").read_text(encoding="utf-8"))
    assert len(steps) > 12
    env = {**terminal.environment(), "DRAGOMAN_HOME": str(terminal.home)}
    for line, seen in steps:
        if line.startswith((". .venv", "export DRAGOMAN_HOME=")):
            continue
        pattern = re.escape(seen).replace("…", "(?s:.+)").replace(r"\ ", " +")
        until = time.monotonic() + WAIT_SECONDS
        shown = typed(line, env)
        # The steps of a run take some milliseconds, and people type more slowly than tests.
        while line.startswith("dragoman runs show") and not re.fullmatch(pattern, shown):
            assert time.monotonic() < until, (line, shown)
            shown = typed(line, env)
        assert re.fullmatch(pattern, shown), (line, shown)
