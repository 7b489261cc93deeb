"""Builds a hub with given stages whose policies permit everything, for tests of one part."""

from __future__ import annotations

from collections.abc import Hashable, Sequence

from dragoman.core.bus import Bus
from dragoman.core.call import Call
from dragoman.core.call_chains import Chains
from dragoman.core.catalog import Catalog
from dragoman.core.hub import Hub
from dragoman.core.pipeline import Stage
from dragoman.core.ports import Decision
from dragoman.core.principal import Principal
from dragoman.core.tool import Tool


class PermitAll:
    version = 0

    def decide(self, call: Call) -> Decision:
        return Decision(True, ("permit-all",), "test")

    def reads_arguments(self, tool: Tool) -> bool:
        return False

    def lists(self, caller: Principal, tool: Tool) -> bool:
        return True

    def sees(self, caller: Principal, tool: Tool, door: str) -> bool:
        return True

    def group(self, caller: Principal) -> Hashable:
        return None

    def may(
        self, caller: Principal, action: str, tool: Tool | None = None, *, owner: bool = False
    ) -> Decision:
        return Decision(True, ("permit-all",), "test")


def build_permissive_hub(catalog: Catalog, bus: Bus, stages: Sequence[Stage]) -> Hub:
    return Hub(catalog, bus, stages, Chains(bytes(32)), PermitAll())
