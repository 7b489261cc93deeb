"""The calls of the steps that act: which tool, with which arguments, and what its result is to the
steps after it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, NamedTuple, Protocol

from dragoman.core.agent_tool import DATA, MESSAGE
from dragoman.core.call import ABSENT, Result
from dragoman.core.errors import (
    HubError,
    InvalidInput,
    NoCandidate,
    NotFound,
    Overloaded,
    StorageFailed,
    TargetFailed,
    Unreachable,
)
from dragoman.core.tool import TRUSTED, Nowhere, Tool
from dragoman.workflows.model import DISPATCH, INVOKE

DISPATCH_TOOL, DISPATCH_META = "dragoman.dispatch", "dragoman.hub/dispatch"
_TRANSIENT = (Overloaded, NoCandidate, NotFound, StorageFailed)
"""Nothing has left the hub, and the next attempt may succeed."""
MAX_PARSED = 256 * 1024
"""Characters of a text that is read as JSON."""


class AgentTool(NamedTuple):
    tool: str
    """The canonical name."""
    is_skill: bool
    """Whether it takes the arguments of a skill; otherwise a message."""
    agent: str


class StepAgents(Protocol):
    def find_tool(self, agent: str, skill: str) -> AgentTool:
        """Finds the tool of an agent, given by name or id, or of one of its skills. Raises
        `NotFound`."""

    def prepare_dispatch(self) -> None:
        """Offers the tool that dispatches work, unless it is offered already."""

    def explain_absence(self, agent: str) -> str:
        """Why a registered agent cannot be called now; empty if it can be, or is not registered."""


class StepCall(NamedTuple):
    tool: str
    arguments: dict[str, Any]
    agent: str = ""


def build_call(node: str, config: Mapping[str, Any], agents: StepAgents) -> StepCall:
    """Builds the call of a step from its rendered settings. Raises `InvalidInput` or `NotFound`."""
    if node == INVOKE:
        return _build_invocation(config, agents)
    if node == DISPATCH:
        agents.prepare_dispatch()
        return StepCall(DISPATCH_TOOL, _omit_nulls(config))
    name = config.get("tool")
    if not isinstance(name, str) or not name:
        raise InvalidInput('"tool" must be the name of a tool')
    return StepCall(name, _read_arguments(config))


def _build_invocation(config: Mapping[str, Any], agents: StepAgents) -> StepCall:
    agent = config.get("agentCardId", config.get("agent"))
    if not isinstance(agent, str) or not agent:
        raise InvalidInput('"agentCardId" must be the name or id of an agent')
    skill = config.get("skillId") or ""
    found = agents.find_tool(agent, str(skill))
    arguments = _read_arguments(config)
    message = config.get("message")
    if found.is_skill:
        return StepCall(found.tool, arguments, found.agent)
    if message is None:
        message = arguments.pop(MESSAGE, None) or (f'Skill "{skill}"' if skill else "")
    if not isinstance(message, str):
        message = json.dumps(message, ensure_ascii=False)
    sent: dict[str, Any] = {MESSAGE: message}
    if arguments:
        sent[DATA] = arguments
    return StepCall(found.tool, sent, found.agent)


def _omit_nulls(config: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in config.items() if value is not None}


def _read_arguments(config: Mapping[str, Any]) -> dict[str, Any]:
    arguments = config.get("args", config.get("arguments"))
    if arguments is None:
        return {}
    if not isinstance(arguments, Mapping):
        raise InvalidInput('"args" must be an object')
    return dict(arguments)


def can_repeat(tool: Tool) -> bool:
    """Whether a tool may be called again with the same arguments: it reads only, or declares
    itself idempotent, and the operator trusts what it declares."""
    hints = tool.definition.get("annotations")
    if isinstance(tool.target, Nowhere) or not isinstance(hints, Mapping):
        return False
    said = hints.get("readOnlyHint") is True or hints.get("idempotentHint") is True
    return said and tool.target.traits.facts.trust >= TRUSTED


def may_retry(error: HubError, repeatable: bool) -> bool:
    """Whether a step may be tried again: nothing has left the hub, or it is repeatable."""
    if isinstance(error, Unreachable) and not error.sent:
        return True
    if isinstance(error, TargetFailed):
        return repeatable
    return isinstance(error, _TRANSIENT) and (repeatable or not _may_have_acted(error))


def _may_have_acted(error: HubError) -> bool:
    """Whether the target has failed at a store of the hub, perhaps after a part of its work."""
    return isinstance(error, StorageFailed) and error.has_left


def output_from_result(result: Result) -> dict[str, Any]:
    """What later steps may use: `text`, the `data` that came as such or as JSON in the text, other
    `content`, the `ending` of a result that is not whole, and of a dispatch the `agent` and the
    `decisionId`."""
    texts: list[str] = []
    data: list[Any] = [] if result.structured is ABSENT else [result.structured]
    others: list[Any] = []
    for block in result.content:
        kind = block.get("type") if isinstance(block, Mapping) else None
        if kind == "text":
            texts.append(str(block.get("text", "")))
        elif kind == "data" and result.structured is ABSENT:
            data.append(block.get("data"))
        elif kind != "data":
            others.append(block)
    text = "\n".join(texts)
    if not data and (parsed := _parse_json(text)) is not None:
        data.append(parsed)
    output: dict[str, Any] = {"text": text}
    if data:
        output["data"] = data[0] if len(data) == 1 else data
    if others:
        output["content"] = others
    if result.ending:
        output["ending"] = result.ending
    meta = result.extra.get("_meta")
    about = meta.get(DISPATCH_META) if isinstance(meta, Mapping) else None
    if isinstance(about, Mapping):
        output |= {name: about[name] for name in ("agent", "decisionId") if name in about}
    return output


def _parse_json(text: str) -> Any:
    start = text.lstrip()[:1]
    if start not in ("{", "[") or len(text) > MAX_PARSED:
        return None
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None


def describe_failure(result: Result) -> str:
    """The text of a result that reports a failure."""
    texts = (block.get("text") for block in result.content if isinstance(block, Mapping))
    return next((text for text in texts if isinstance(text, str) and text), "it reports a failure")
