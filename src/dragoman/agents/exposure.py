"""What an agent's own MCP endpoint offers: the tools that its manifest exposes.

A call of an exposed tool is a call to the agent, which then calls its own tool, in its workspace
and with its grants. Nothing is exposed that the manifest does not name, and private tools never.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Any

from dragoman.core.call import Call, Result
from dragoman.core.hub import CallOptions
from dragoman.core.local_agents import (
    AgentProfile,
    build_agent_principal,
    fold_tool_pattern,
)
from dragoman.core.principal import Principal
from dragoman.core.tool import TargetFacts, TargetTraits, Tool
from dragoman.core.tool_filter import EVERYTHING
from dragoman.core.tool_identity import build_identity
from dragoman.core.trace import Trace

if TYPE_CHECKING:
    from dragoman.agents.manifest import McpExposure

CallWithin = Callable[
    [Trace, Principal, str, Mapping[str, Any], CallOptions], Awaitable[tuple[Tool, Result]]
]
"""Calls a tool on behalf of a running call: `Hub.call_within`."""


def list_exposed(
    profile: AgentProfile, exposure: McpExposure, granted: Iterable[Tool], call_within: CallWithin
) -> list[Tool]:
    """Lists the exposed tools, of those that the agent was granted."""
    target = ExposedTools(profile, call_within)
    found: dict[str, Tool] = {}
    for tool in granted:
        name = _find_exposed_name(tool, exposure)
        if not name:
            continue
        canonical = build_identity(profile.name, name)
        if canonical in found:
            continue
        target.own_names[canonical] = tool.name
        found[canonical] = Tool(
            name=canonical,
            alias=name,
            other_names={"dotted": tool.name, "own": tool.alias},
            remote_name=tool.remote_name,
            description=tool.description,
            definition={**tool.definition, "name": name},
            validate=tool.validate,
            sources=tool.sources,
            sinks=tool.sinks,
            destructive=tool.destructive,
            target=target,
        )
    return list(found.values())


def _find_exposed_name(tool: Tool, exposure: McpExposure) -> str:
    """The name under which a tool is exposed: as the manifest writes it, or the tool's own if that
    is a pattern. Empty if it is not exposed, or private."""
    names = (tool.name, tool.alias, tool.other_names.get("spelled", tool.name))
    if _find_match(names, exposure.private_tools) is not None:
        return ""
    pattern = _find_match(names, exposure.expose_tools)
    if pattern is None:
        return ""
    return tool.alias if any(one in pattern for one in "*?[") else pattern


def _find_match(names: Sequence[str], patterns: Sequence[str]) -> str | None:
    for pattern in patterns:
        folded = fold_tool_pattern(pattern)
        if any(fnmatchcase(name, folded) or fnmatchcase(name, pattern) for name in names):
            return pattern
    return None


class ExposedTools:
    """The target of an agent's exposed tools."""

    traits = TargetTraits(facts=TargetFacts(type="Agent"))

    def __init__(self, profile: AgentProfile, call_within: CallWithin) -> None:
        self.name = profile.name
        self.own_names: dict[str, str] = {}
        """The agent's own tool behind each exposed one."""
        self._principal = build_agent_principal(profile)
        self._call_within = call_within

    async def run(self, call: Call) -> Result:
        options = CallOptions(
            "agent",
            EVERYTHING,
            updates=call.updates,
            wanted_updates=call.wanted_updates,
            client=call.client,
            revision=call.revision,
            features=call.features,
            answers=call.answers,
            handle=call.handle or None,
        )
        own = self.own_names[call.tool.name]
        _, result = await self._call_within(
            call.trace, self._principal, own, call.arguments, options
        )
        return result
