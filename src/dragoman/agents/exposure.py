"""What an agent's own MCP endpoint offers: the tools and files that its manifest exposes.

A call of an exposed tool is a call to the agent, which then calls its own tool, in its workspace
and with its grants. Nothing is exposed that the manifest does not name, and private tools never.
"""

from __future__ import annotations

import mimetypes
from base64 import b64encode
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from dragoman.core.call import Call, Result
from dragoman.core.hub import CallOptions
from dragoman.core.label_keys import build_stored_key
from dragoman.core.local_agents import (
    AgentProfile,
    build_agent_principal,
    fold_tool_pattern,
)
from dragoman.core.principal import Principal
from dragoman.core.tool import RESOURCE, TargetFacts, TargetTraits, Tool
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
            origin=tool,
            target=target,
        )
    return list(found.values())


def list_exposed_files(
    profile: AgentProfile, paths: Iterable[str], read_file: ReadFile
) -> list[Tool]:
    """Builds a resource for each of these files of the agent's workspace."""
    target = ExposedFiles(profile, read_file)
    found = []
    for path in paths:
        uri = f"workspace://{quote(profile.name)}/{quote(path)}"
        target.paths[uri] = path
        media = mimetypes.guess_type(path)[0] or "text/plain"
        found.append(
            Tool(
                name=f"{profile.name}.{uri}",
                alias=uri,
                kind=RESOURCE,
                remote_name=uri,
                definition={"uri": uri, "name": path, "mimeType": media},
                target=target,
            )
        )
    return found


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


ReadFile = Callable[[str], Awaitable[bytes]]
"""Reads a file of the workspace by its path; raises a `HubError`."""


class ExposedFiles:
    """The target of an agent's exposed files."""

    traits = TargetTraits(facts=TargetFacts(type="Agent"), has_resources=True)

    def __init__(self, profile: AgentProfile, read_file: ReadFile) -> None:
        self.name = profile.name
        self.paths: dict[str, str] = {}
        """The file behind each address."""
        self._workspace = profile.workspace
        self._read_file = read_file

    async def run(self, call: Call) -> Result:
        uri = call.tool.remote_name
        path = self.paths[uri]
        data = await self._read_file(path)
        call.notes.read_keys = [build_stored_key(self.name, str(self._workspace / path))]
        item = {"uri": uri, "mimeType": call.tool.definition["mimeType"]}
        try:
            item["text"] = data.decode("utf-8")
        except UnicodeDecodeError:
            item["blob"] = b64encode(data).decode()
        return Result(content=[{"type": "resource", "resource": item}])


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
