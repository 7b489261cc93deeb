"""`agent_send`, `agent_spawn`, `agent_list`, `agent_kill`, `agent_find`: the other agents.

An agent knows of those that it was granted, and of those that it has spawned.
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterable, Mapping
from typing import Any, Protocol

from dragoman.core.agent_tool import MESSAGE, build_tool_name
from dragoman.core.call import Call, Result
from dragoman.core.conversations import CONTEXT
from dragoman.core.errors import InvalidInput, NotFound
from dragoman.core.local_agents import AgentDirectory, AgentProfile, matches_any
from dragoman.core.taint import AGENT
from dragoman.tools.tool_spec import (
    BoundTool,
    ToolSpec,
    ToolUse,
    build_json_result,
    build_text_result,
)

MAX_MANIFEST = 64_000
MAX_FOUND = 100

_AGENT = {"type": "string", "minLength": 1, "maxLength": 200, "description": "The agent's name."}
_TEXTS = {"type": "array", "maxItems": 100, "items": {"type": "string", "maxLength": 500}}

AGENT_SEND = ToolSpec(
    name="agent_send",
    title="Send a message to an agent",
    description="Sends a message to another agent and returns its answer. The agent does not see "
    "your conversation: say everything that it needs.",
    properties={
        "agent_id": _AGENT,
        "message": {"type": "string", "minLength": 1, "description": "What to say to the agent."},
        "context": {
            "type": "string",
            "maxLength": 200,
            "description": "The id of an earlier conversation to continue, from its result.",
        },
    },
    required=("agent_id", "message"),
    open_world=False,
    sinks=frozenset({AGENT}),
)
AGENT_SPAWN = ToolSpec(
    name="agent_spawn",
    title="Spawn an agent",
    description="Starts a new agent that works for you. It can be granted only what you were "
    'granted yourself. Describe it by "name", "description", "system_prompt" and "tools", or by a '
    "whole manifest in TOML. Send it messages with agent_send, and end it with agent_kill.",
    properties={
        "name": {"type": "string", "maxLength": 64, "description": 'Such as "test-runner".'},
        "description": {"type": "string", "maxLength": 4_096},
        "system_prompt": {"type": "string", "maxLength": MAX_MANIFEST},
        "tools": {**_TEXTS, "description": "The tools that it may call; globs are allowed."},
        "agents": {**_TEXTS, "description": "The agents that it may send messages to."},
        "shell": {**_TEXTS, "description": 'The commands that it may run: "git diff *".'},
        "network": {**_TEXTS, "description": "The hosts that it may fetch from."},
        "manifest_toml": {
            "type": "string",
            "maxLength": MAX_MANIFEST,
            "description": "The manifest of the agent, instead of the others.",
        },
    },
    sinks=frozenset({AGENT}),
)
AGENT_LIST = ToolSpec(
    name="agent_list",
    title="List agents",
    description="Lists the agents that you may send messages to, with what they do.",
    read_only=True,
)
AGENT_KILL = ToolSpec(
    name="agent_kill",
    title="End an agent",
    description="Ends an agent that was spawned, and everything that it is doing.",
    properties={"agent_id": _AGENT},
    required=("agent_id",),
    destructive=True,
    idempotent=True,
)
AGENT_FIND = ToolSpec(
    name="agent_find",
    title="Find agents",
    description="Finds agents by a word in their name, tags, tools or description.",
    properties={"query": {"type": "string", "minLength": 1, "maxLength": 200}},
    required=("query",),
    read_only=True,
)


class AgentCalls(Protocol):
    """Calls agents on behalf of a running call."""

    async def call(self, within: Call, name: str, arguments: Mapping[str, Any]) -> Result: ...


class AgentTools:
    def __init__(self, directory: AgentDirectory, calls: AgentCalls) -> None:
        self._directory = directory
        self._calls = calls

    def bind_tools(self) -> Iterable[BoundTool]:
        yield BoundTool(AGENT_SEND, self._send)
        yield BoundTool(AGENT_SPAWN, self._spawn)
        yield BoundTool(AGENT_LIST, self._list)
        yield BoundTool(AGENT_KILL, self._kill)
        yield BoundTool(AGENT_FIND, self._find)

    async def _send(self, use: ToolUse) -> Result:
        name = use.arguments["agent_id"]
        if not self._is_known(use.agent, name):
            raise _build_unknown(name)
        arguments = {MESSAGE: use.arguments["message"]}
        if context := use.arguments.get("context"):
            arguments[CONTEXT] = context
        return await self._calls.call(use.call, build_tool_name(name), arguments)

    async def _spawn(self, use: ToolUse) -> Result:
        if not use.agent.can_spawn:
            raise InvalidInput("you were not granted to spawn agents")
        profile = await self._directory.spawn(use.agent, _build_manifest(use.arguments))
        return build_json_result({"agent": profile.name, "tools": list(profile.tools)})

    async def _list(self, use: ToolUse) -> Result:
        return _render_agents(self._list_known(use.agent))

    async def _kill(self, use: ToolUse) -> Result:
        name = use.arguments["agent_id"]
        if not self._is_known(use.agent, name):
            raise _build_unknown(name)
        await self._directory.kill(name, use.agent)
        return build_text_result(f'ended agent "{name}"')

    async def _find(self, use: ToolUse) -> Result:
        words = use.arguments["query"].lower().split()
        found = [one for one in self._list_known(use.agent) if _describes(one, words)]
        return _render_agents(found)

    def _list_known(self, agent: AgentProfile) -> list[AgentProfile]:
        found = [one for one in self._directory.list_profiles() if self._may_know(agent, one)]
        return sorted(found, key=lambda one: one.name)

    def _is_known(self, agent: AgentProfile, name: str) -> bool:
        """External agents are no local ones, and are granted by name."""
        if name != agent.name and matches_any(name, agent.agents):
            return True
        return any(one.name == name for one in self._list_known(agent))

    @staticmethod
    def _may_know(agent: AgentProfile, other: AgentProfile) -> bool:
        if other.name == agent.name or other.org != agent.org:
            return False
        return other.parent == agent.name or matches_any(other.name, agent.agents)


def _describes(agent: AgentProfile, words: list[str]) -> bool:
    text = " ".join((agent.name, agent.description, *agent.tags, *agent.tools)).lower()
    return all(word in text for word in words)


def _render_agents(found: list[AgentProfile]) -> Result:
    rows = [
        {"name": one.name, "description": one.description, "tags": list(one.tags)}
        for one in found[:MAX_FOUND]
    ]
    return build_json_result({"agents": rows, "total": len(found)})


def _build_unknown(name: str) -> NotFound:
    return NotFound(f'there is no agent "{name[:100]}" that you may know of; see agent_list')


def _build_manifest(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Builds the manifest from its text, or from the single arguments."""
    text = arguments.get("manifest_toml")
    if text is not None:
        if len(arguments) > 1:
            raise InvalidInput('pass "manifest_toml" or the other arguments, not both')
        try:
            return tomllib.loads(text)
        except (tomllib.TOMLDecodeError, RecursionError) as error:
            raise InvalidInput(f"the manifest is not valid TOML: {error}") from None
    if "name" not in arguments:
        raise InvalidInput('the agent needs a "name", or a "manifest_toml"')
    manifest: dict[str, Any] = {
        name: arguments[name] for name in ("name", "description") if name in arguments
    }
    if "system_prompt" in arguments:
        manifest["model"] = {"system_prompt": arguments["system_prompt"]}
    grants = {"tools": "tools", "agents": "agent_message", "shell": "shell", "network": "network"}
    capabilities = {
        capability: arguments[name] for name, capability in grants.items() if name in arguments
    }
    return {**manifest, "capabilities": capabilities}
