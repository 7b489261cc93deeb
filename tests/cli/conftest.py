"""The `terminal` fixture: a user at the command line."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.cli.terminal import Terminal


@pytest.fixture
def terminal(short_tmp: Path) -> Iterator[Terminal]:
    made = Terminal(short_tmp)
    yield made
    made.close()
