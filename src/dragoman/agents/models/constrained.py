"""Tool calls by a JSON schema, for small models that have no tool calling of their own.

The instructions describe the tools, and the answer must match one of two forms: a tool with its
arguments, or the final text.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from dragoman.agents.models.chat import (
    ChatModel,
    Message,
    ModelReply,
    OfferedTool,
    TakeText,
    ToolRequest,
)
from dragoman.wire.json import decode_reply, encode

FINAL = "final"


class ConstrainedModel:
    """Implements `ChatModel` with a model that can answer in JSON."""

    def __init__(self, model: ChatModel) -> None:
        self._model = model
        self.name = model.name

    async def complete(
        self,
        messages: Sequence[Message],
        tools: Sequence[OfferedTool],
        on_text: TakeText,
        schema: Mapping[str, Any] | None = None,
    ) -> ModelReply:
        if not tools:
            return await self._model.complete(messages, (), on_text, schema)
        told = [
            {"role": "system", "content": describe_tools(tools)},
            *map(flatten_message, messages),
        ]
        reply = await self._model.complete(told, (), lambda text: None, _build_schema(tools))
        return parse_reply(reply, on_text)


def describe_tools(tools: Sequence[OfferedTool]) -> str:
    lines = [f"- {one.name}: {one.description}" for one in tools]
    return (
        'To use a tool, answer {"tool": NAME, "args": {…}}. When you know the answer, give it as '
        f'{{"{FINAL}": TEXT}}. The tools:\n' + "\n".join(lines)
    )


def _build_schema(tools: Sequence[OfferedTool]) -> dict[str, Any]:
    forms: list[dict[str, Any]] = [
        {
            "type": "object",
            "properties": {"tool": {"const": one.name}, "args": dict(one.schema)},
            "required": ["tool", "args"],
            "additionalProperties": False,
        }
        for one in tools
    ]
    final = {
        "type": "object",
        "properties": {FINAL: {"type": "string"}},
        "required": [FINAL],
        "additionalProperties": False,
    }
    return {"anyOf": [*forms, final]}


def flatten_message(message: Message) -> Message:
    """Renders tool calls and their results as text: the model knows no others."""
    if message.get("role") == "tool":
        return {"role": "user", "content": f"Result of the tool: {message.get('content')}"}
    requests = message.get("tool_calls")
    if not requests:
        return {"role": message.get("role"), "content": message.get("content") or ""}
    function = requests[0]["function"]
    text = f'{{"tool": "{function["name"]}", "args": {function["arguments"] or "{}"}}}'
    return {"role": "assistant", "content": text}


def parse_reply(reply: ModelReply, on_text: TakeText) -> ModelReply:
    try:
        answer = decode_reply(reply.text.strip().encode())
    except ValueError:
        answer = None
    if isinstance(answer, dict) and isinstance(answer.get("tool"), str):
        arguments = encode(answer.get("args") or {}).decode()
        request = ToolRequest("call_0", answer["tool"], arguments)
        return ModelReply("", [request], reply.usage, reply.model)
    text = reply.text
    if isinstance(answer, dict) and isinstance(answer.get(FINAL), str):
        text = answer[FINAL]
    on_text(text)
    return ModelReply(text, (), reply.usage, reply.model, reply.ending)
