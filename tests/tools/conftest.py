"""A hub with the built-in tools for each test."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from tests.tools.tool_rig import ToolRig


@pytest.fixture
async def rig(tmp_path: Path) -> AsyncIterator[ToolRig]:
    made = ToolRig(tmp_path)
    yield made
    await made.close()
