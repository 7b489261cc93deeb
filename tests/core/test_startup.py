"""What a call of a tool whose target was never connected does."""

from __future__ import annotations

import pytest
from tests.permissive_hub import build_permissive_hub, call_tool

from dragoman.core.bus import Bus
from dragoman.core.call import Call, Result
from dragoman.core.catalog import Catalog, admit_all
from dragoman.core.errors import Unreachable
from dragoman.core.principal import OWNER
from dragoman.core.startup import Startup
from dragoman.core.tool import TargetFacts, TargetTraits, Tool
from dragoman.core.tool_filter import EVERYTHING


class LateTarget:
    """A target that offers its tool once it was tried."""

    name = "late"
    traits = TargetTraits(facts=TargetFacts(type="Server", transport="stdio", pinned=False))

    def __init__(self, catalog: Catalog, fails: bool) -> None:
        self._catalog = catalog
        self._fails = fails
        self.tries = 0

    async def try_now(self) -> None:
        self.tries += 1
        if self._fails:
            raise Unreachable("it is still not there", sent=False)
        tool = Tool(name="late.add", alias="mcp_late_add", remote_name="add", target=self)
        self._catalog.offer("late", [tool])

    async def run(self, call: Call) -> Result:
        return Result(content=[{"type": "text", "text": "done"}])


@pytest.mark.parametrize("fails", [False, True])
async def test_unconnected_target_is_tried_when_called(fails: bool) -> None:
    catalog = Catalog(review=admit_all)
    late = LateTarget(catalog, fails)
    startup = Startup(lambda name: (late, "not connected") if name.startswith("late.") else None)
    startup.settle()
    hub = build_permissive_hub(catalog, Bus(), [], startup=startup)
    if fails:
        with pytest.raises(Unreachable, match="not connected; nothing was sent"):
            await call_tool(hub, OWNER, "late.add", {}, door="api", view=EVERYTHING)
    else:
        result = await call_tool(hub, OWNER, "late.add", {}, door="api", view=EVERYTHING)
        assert result.content[0]["text"] == "done"
    assert late.tries == 1
