"""The one way to have anything done."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from dragoman.core.bus import Bus
from dragoman.core.call import NO_UPDATES, NOTHING, Call, Result, Updates, Wanted, discard
from dragoman.core.catalog import Catalog
from dragoman.core.errors import HubError, NotFound, WorkFailed
from dragoman.core.pipeline import Stage, compose
from dragoman.core.principal import Principal
from dragoman.core.templates import Owners
from dragoman.core.tool import (
    COMPLETION,
    PROMPT,
    RESOURCE,
    SUBSCRIPTION,
    TEMPLATE,
    TOOL,
    Nowhere,
    Tool,
    anything,
)
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
        """Of tools."""
        self.catalogs: Mapping[str, Catalog] = {
            TOOL: catalog,
            PROMPT: Catalog(PROMPT),
            RESOURCE: Catalog(RESOURCE),
            TEMPLATE: Catalog(TEMPLATE),
        }
        self.bus = bus
        self._owners_at = (-1, -1), Owners((), ())
        """Whose the addresses of resources are, at these versions of the catalogs."""
        self._road = compose(stages, _run)

    async def call(
        self,
        caller: Principal,
        name: str,
        arguments: Mapping[str, Any],
        *,
        door: str,
        view: View,
        kind: str = TOOL,
        trace: Trace | None = None,
        extra: Mapping[str, Any] = NOTHING,
        updates: Updates = discard,
        wanted: Wanted = NO_UPDATES,
        client: str = "",
        features: Mapping[str, Any] = NOTHING,
        answers: Mapping[str, Any] | None = None,
        handle: str | None = None,
    ) -> Result:
        """Faces, the command line and tests all come here; no target can be reached otherwise."""
        trace = trace or new_trace()
        call = Call(
            caller=caller,
            tool=self.find(name, view, kind),
            asked_as=name,
            arguments=arguments,
            trace=trace,
            door=door,
            extra=extra,
            updates=updates,
            wanted=wanted,
            client=client,
            features=features,
            answers=answers,
            handle=handle,
        )
        try:
            return await self._road(call)
        except HubError as error:
            error.trace = trace.id
            raise

    def tools(self, caller: Principal, view: View, kind: str = TOOL) -> Sequence[Tool]:
        """What `caller` may see of `view`, in the order of the names."""
        catalog = self.catalogs[kind]
        if view is EVERYTHING:
            return catalog.tools()
        return [tool for tool in catalog.tools() if view.includes(tool)]

    def find(self, name: str, view: View, kind: str = TOOL) -> Tool:
        """What a call of `kind` by that name leads to; a tool nowhere if to nothing."""
        if kind == TOOL:  # as most are
            catalog = self.catalog
            return catalog.find(name) if view is EVERYTHING else catalog.find_within(name, view)
        tool = self._other(name, view, kind)
        return tool if tool.kind == kind else replace(tool, kind=kind, validate=anything)

    def _in(self, kind: str, name: str, view: View) -> Tool:
        catalog = self.catalogs[kind]
        return catalog.find(name) if view is EVERYTHING else catalog.find_within(name, view)

    def _other(self, name: str, view: View, kind: str) -> Tool:
        if kind == COMPLETION:
            tool = self._in(PROMPT, name, view)
            return self._in(TEMPLATE, name, view) if isinstance(tool.target, Nowhere) else tool
        if kind not in (RESOURCE, SUBSCRIPTION):
            return self._in(kind, name, view)
        tool = self._in(RESOURCE, name, view)
        if isinstance(tool.target, Nowhere) and isinstance(tool.target.error, NotFound):
            unlisted = self._unlisted(name)
            if unlisted is not None and (view is EVERYTHING or view.includes(unlisted)):
                return unlisted
        return tool

    def _unlisted(self, uri: str) -> Tool | None:
        """A resource need not be listed to be read: a template may have led to it."""
        owner = self._owners().of(uri)
        if owner is None:
            return None
        prefix = f"{owner.target.name}."
        remote = uri.removeprefix(prefix) if owner.name.startswith(prefix) else uri
        return Tool(
            name=f"{prefix}{remote}",
            alias=uri,
            remote_name=remote,
            kind=RESOURCE,
            target=owner.target,
        )

    def _owners(self) -> Owners:
        templates, resources = self.catalogs[TEMPLATE], self.catalogs[RESOURCE]
        version = templates.version, resources.version
        if self._owners_at[0] != version:
            self._owners_at = version, Owners(templates.tools(), resources.targets())
        return self._owners_at[1]
