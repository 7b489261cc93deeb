"""The target of all built-in tools: offers them, and dispatches a call to its function."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import Any

from dragoman.core.call import Call, Result
from dragoman.core.errors import NotFound
from dragoman.core.ports import SchemaCompiler
from dragoman.core.tool import EVERY_ORG, TargetFacts, TargetTraits, Tool
from dragoman.core.tool_identity import BUILTIN, build_portable_names
from dragoman.tools.tool_spec import BoundTool, FindProfile, ToolFamily, ToolUse


class BuiltinTools:
    """Calls to agents leave it through ports, on behalf of the agent that uses the tool."""

    name = BUILTIN
    traits = TargetTraits(
        facts=TargetFacts(type="Server", org=EVERY_ORG, transport=BUILTIN),
        may_last=True,  # an agent that was sent a message has the time of a task
        is_published=False,
        is_reentrant=True,
    )

    def __init__(
        self, families: Iterable[ToolFamily], find_profile: FindProfile, compile: SchemaCompiler
    ) -> None:
        """`find_profile` finds the agent that a principal is, or what a client was granted."""
        self._find_profile = find_profile
        bound = [tool for family in families for tool in family.bind_tools()]
        self._bound: Mapping[str, BoundTool] = MappingProxyType(
            {tool.spec.name: tool for tool in bound}
        )
        self.tools = tuple(self._build_tool(tool, compile) for tool in bound)

    async def run(self, call: Call) -> Result:
        agent = self._find_profile(call.principal)
        if agent is None:
            raise NotFound(f'there is no tool "{call.requested_name[:200]}"')
        return await self._bound[call.tool.remote_name].run(ToolUse(call, agent))

    def _build_tool(self, bound: BoundTool, compile: SchemaCompiler) -> Tool:
        spec = bound.spec
        definition: dict[str, Any] = spec.build_definition()
        name = f"{BUILTIN}.{spec.name}"

        def list_written(call: Call) -> Iterable[str]:
            agent = self._find_profile(call.principal)
            return bound.list_written(ToolUse(call, agent)) if agent is not None else ()

        return Tool(
            name=name,
            alias=spec.name,
            other_names={
                "dotted": spec.name,
                "safe": spec.name,
                **build_portable_names(spec.name, spec.name, name),
            },
            fallback_names=spec.fallback_names,
            remote_name=spec.name,
            description=spec.description,
            definition=definition,
            validate=compile(definition["inputSchema"]),
            sources=spec.sources,
            sinks=spec.sinks,
            list_written=list_written,
            destructive=spec.destructive,
            target=self,
        )
