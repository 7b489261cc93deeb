"""A model that follows a script: the same answer to the same message, without a network or a key.

For demonstrations and tests. A step applies to a message, or to the result of a tool; the first one
that fits answers, or calls tools.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from fnmatch import fnmatchcase
from typing import Annotated, Any

from msgspec import Meta, Struct

from dragoman.agents.models.chat import (
    SHOWN,
    Message,
    ModelReply,
    ModelUsage,
    OfferedTool,
    TakeText,
    ToolRequest,
)
from dragoman.core.errors import WorkFailed
from dragoman.wire.json import encode

_PLACE = re.compile(r"\{(message|result|match)\}")


class ScriptCall(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    tool: Annotated[str, Meta(min_length=1, description="The tool, under a name that it has.")]
    arguments: Annotated[
        dict[str, Any], Meta(description="Its arguments; {message} stands for the message.")
    ] = {}


class ScriptStep(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    when: Annotated[
        str, Meta(description="A regular expression that the message has; default: any message.")
    ] = ""
    after: Annotated[
        str, Meta(description="The tool whose result it answers, with * for anything.")
    ] = ""
    say: Annotated[
        str,
        Meta(
            description="The answer. {message} stands for the message, {match} for what `when` has "
            "found in it, {result} for the result of the tool."
        ),
    ] = ""
    call: Annotated[list[ScriptCall], Meta(description="The tools to call.")] = []


class ScriptModel:
    """Implements `ChatModel`."""

    name = "script"

    def __init__(self, steps: Sequence[ScriptStep]) -> None:
        """Raises `ValueError` for an invalid expression in `when`."""
        self._steps = [(step, _compile(step.when)) for step in steps]

    async def complete(
        self,
        messages: Sequence[Message],
        tools: Sequence[OfferedTool],
        on_text: TakeText,
        schema: Mapping[str, Any] | None = None,
    ) -> ModelReply:
        users = (one for one in reversed(messages) if one.get("role") == "user")
        said = next((one for one in users if SHOWN not in one), None)
        message = _read_text(said) if said is not None else ""
        last = messages[-1] if messages else {}
        is_result = last.get("role") == "tool"
        called = _find_called(messages) if is_result else ""
        result = _read_text(last) if is_result else ""
        for step, pattern in self._steps:
            if bool(step.after) is not is_result or not _fits(step.after, called):
                continue
            found = pattern.search(message)
            if found is None:
                continue
            values = {"message": message, "result": result, "match": _find_match(found)}
            return _build_reply(step, values, tools, on_text)
        if is_result:  # no step for it: the result is the answer
            result = result or "(the result is empty)"
            on_text(result)
            return ModelReply(result, usage=_count(message, result), model=self.name)
        raise WorkFailed(f"the script has no step for the message {message[:100]!r}")


def _build_reply(
    step: ScriptStep, values: Mapping[str, str], tools: Sequence[OfferedTool], on_text: TakeText
) -> ModelReply:
    text = _fill(step.say, values)
    if text:
        on_text(text)
    requests = [
        ToolRequest(
            f"call_{number}",
            _find_offered(one.tool, tools),
            encode(_fill(one.arguments, values)).decode(),
        )
        for number, one in enumerate(step.call)
    ]
    return ModelReply(text, requests, _count(values["message"], text), "script")


def _compile(text: str) -> re.Pattern[str]:
    try:
        return re.compile(text, re.IGNORECASE)
    except re.error as error:
        raise ValueError(f'"when" is not a regular expression: {text!r}: {error}') from None


def _fits(pattern: str, called: str) -> bool:
    return not pattern or fnmatchcase(called, pattern) or fnmatchcase(called, f"*{pattern}")


def _find_offered(name: str, tools: Sequence[OfferedTool]) -> str:
    """Finds the name under which the tool is offered: its own, or with a prefix."""
    plain = re.sub(r"[^A-Za-z0-9_-]", "_", name)
    names = [one.name for one in tools]
    return next((one for one in names if one in (name, plain)), "") or next(
        (one for one in names if one.endswith(f"_{plain}")), name
    )


def _find_called(messages: Sequence[Message]) -> str:
    wanted = messages[-1].get("tool_call_id")
    for message in reversed(messages):
        for request in message.get("tool_calls") or ():
            if request["id"] == wanted:
                return str(request["function"]["name"])
    return ""


def _find_match(found: re.Match[str]) -> str:
    return found[1] if found.re.groups and found[1] is not None else found[0]


def _fill(value: Any, values: Mapping[str, str]) -> Any:
    if isinstance(value, str):
        return _PLACE.sub(lambda found: values[found[1]], value)
    if isinstance(value, dict):
        return {name: _fill(one, values) for name, one in value.items()}
    if isinstance(value, list):
        return [_fill(one, values) for one in value]
    return value


def _read_text(message: Message) -> str:
    content = message.get("content")
    if isinstance(content, list):
        return " ".join(str(one.get("text", "")) for one in content if isinstance(one, dict))
    return str(content or "")


def _count(asked: str, said: str) -> ModelUsage:
    return ModelUsage(len(asked) // 4 + 1, len(said) // 4 + 1)
