"""The one way to have anything done."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from dragoman.core.bus import Bus
from dragoman.core.call import NOTHING, Call, Result, Updates, discard
from dragoman.core.catalog import Catalog
from dragoman.core.errors import HubError, WorkFailed
from dragoman.core.pipeline import Stage, compose
from dragoman.core.principal import Principal
from dragoman.core.tool import Nowhere, Tool, unknown
from dragoman.core.trace import Trace, new_trace
from dragoman.core.view import EVERYTHING, View


async def _run(call: Call) -> Result:
    """The end of the road. What a target raises that is no `HubError` is still its failure."""
    try:
        return await call.tool.target.run(call)
    except HubError:
        raise
    except Exception as error:
        raise WorkFailed(f'"{call.tool.name}" failed: {error!r}') from error


class Hub:
    def __init__(self, catalog: Catalog, bus: Bus, stages: Sequence[Stage]) -> None:
        self.catalog = catalog
        self.bus = bus
        self._road = compose(stages, _run)

    async def call(
        self,
        caller: Principal,
        name: str,
        arguments: Mapping[str, Any],
        *,
        door: str,
        view: View,
        trace: Trace | None = None,
        extra: Mapping[str, Any] = NOTHING,
        updates: Updates = discard,
    ) -> Result:
        """Faces, the command line and tests all come here; no target can be reached otherwise."""
        trace = trace or new_trace()
        call = Call(
            caller=caller,
            tool=self._find(name, view),
            asked_as=name,
            arguments=arguments,
            trace=trace,
            door=door,
            extra=extra,
            updates=updates,
        )
        try:
            return await self._road(call)
        except HubError as error:
            error.trace = trace.id
            raise

    def tools(self, caller: Principal, view: View) -> Sequence[Tool]:
        """What `caller` may see of `view`, in the order of the names."""
        if view is EVERYTHING:
            return self.catalog.tools()
        return [tool for tool in self.catalog.tools() if view.includes(tool)]

    def _find(self, name: str, view: View) -> Tool:
        tool = self.catalog.find(name)
        if view is EVERYTHING or isinstance(tool.target, Nowhere) or view.includes(tool):
            return tool
        return unknown(name)
