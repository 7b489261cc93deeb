"""The tool that an agent is, be it the hub's own or another's: one that takes a message."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dragoman.core.tool import AgentFacts, Target, Tool, Validator

MESSAGE = "message"

SCHEMA: Mapping[str, Any] = {
    "type": "object",
    "properties": {MESSAGE: {"type": "string", "description": "What to say to the agent."}},
    "required": [MESSAGE],
}
"""A door that has more than text puts it beside the message, as `parts`: blocks of content."""


def agent_tool(target: Target, facts: AgentFacts, prefix: str, validate: Validator) -> Tool:
    """`prefix` is what stands before the names of agents in lists; `validate` is of `SCHEMA`."""
    alias = f"{prefix}{facts.name.replace('-', '_').replace(' ', '_')}"
    name = tool_name(facts.name)
    return Tool(
        name=name,
        alias=alias,
        other_names={"dotted": name, "safe": alias[:64]},
        remote_name=MESSAGE,
        description=facts.description,
        definition={"name": MESSAGE, "description": facts.description, "inputSchema": SCHEMA},
        validate=validate,
        agent=facts,
        target=target,
    )


def tool_name(agent: str) -> str:
    """The canonical name of an agent's tool."""
    return f"{agent}.{MESSAGE}"
