"""An MCP revision that differs in nothing is added by its name alone (CONTRIBUTING.md)."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_the_hub_serves_and_calls_one_more_revision() -> None:
    line = [sys.executable, "-m", "tests.mcp.next_revision"]
    done = subprocess.run(line, cwd=ROOT, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
