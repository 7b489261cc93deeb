"""Builds a hub with given stages whose policies permit everything, for tests of one part."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from typing import Any

from dragoman.core.bus import Bus
from dragoman.core.call import Call, Result
from dragoman.core.call_chains import CallChains
from dragoman.core.catalog import Catalog, admit_all, build_catalogs
from dragoman.core.hub import CallOptions, Hub
from dragoman.core.pipeline import Stage
from dragoman.core.ports import Decision
from dragoman.core.principal import Principal
from dragoman.core.tool import TOOL, Tool
from dragoman.core.tool_filter import EVERYTHING, View


class PermitAll:
    version = 0

    def decide(self, call: Call) -> Decision:
        return Decision(True, ("permit-all",), "test")

    def reads_arguments(self, tool: Tool) -> bool:
        return False

    def can_list(self, caller: Principal, tool: Tool) -> bool:
        return True

    def can_see(self, caller: Principal, tool: Tool, door: str) -> bool:
        return True

    def group_of_principal(self, caller: Principal) -> Hashable:
        return None

    def decide_action(
        self, caller: Principal, action: str, tool: Tool | None = None, *, owner: bool = False
    ) -> Decision:
        return Decision(True, ("permit-all",), "test")


def complete_catalogs(tools: Catalog) -> dict[str, Catalog]:
    """Catalogs of every kind around one of tools, for a hub; they review nothing."""
    return {**build_catalogs(admit_all, tools.claims), TOOL: tools}


def build_permissive_hub(
    tools: Catalog | Mapping[str, Catalog], bus: Bus, stages: Sequence[Stage], **parts: Any
) -> Hub:
    """`tools` is a catalog of tools, or one of every kind; `parts` are optional ones of `Hub`."""
    catalogs = complete_catalogs(tools) if isinstance(tools, Catalog) else tools
    return Hub(catalogs, bus, stages, CallChains(bytes(32)), PermitAll(), **parts)


async def call_tool(
    hub: Hub,
    caller: Principal,
    name: str,
    arguments: Mapping[str, Any],
    *,
    door: str = "test",
    view: View = EVERYTHING,
    **options: Any,
) -> Result:
    """The result of one call; `options` are those of `CallOptions`."""
    how = CallOptions(door=door, view=view, **options)
    _, result = await hub.call(caller, name, arguments, how)
    return result
