"""The model of the client that calls, by MCP sampling: the IDE thinks, and no key is needed.

Tools are offered in the instructions, because few clients sample with tools. A question to the
client suspends the run; the next call brings the answer.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from dragoman.agents.models.chat import (
    CUT,
    ClientNeeded,
    Message,
    ModelReply,
    ModelUsage,
    OfferedTool,
    TakeText,
)
from dragoman.agents.models.constrained import describe_tools, flatten_message, parse_reply
from dragoman.core.call import SAMPLING, Question
from dragoman.core.errors import WorkFailed


class ClientModel:
    """Implements `ChatModel`."""

    def __init__(self, max_tokens: int | None, temperature: float | None) -> None:
        self.name = "client"
        self._max_tokens = max_tokens or 4_096
        self._temperature = temperature

    async def complete(
        self,
        messages: Sequence[Message],
        tools: Sequence[OfferedTool],
        take_text: TakeText,
        schema: Mapping[str, Any] | None = None,
    ) -> ModelReply:
        instructions = [str(one["content"]) for one in messages if one.get("role") == "system"]
        if tools:
            instructions.append(describe_tools(tools))
        body: dict[str, Any] = {
            "messages": [
                _render(flatten_message(one)) for one in messages if one.get("role") != "system"
            ],
            "maxTokens": self._max_tokens,
        }
        if instructions:
            body["systemPrompt"] = "\n\n".join(instructions)
        if self._temperature is not None:
            body["temperature"] = self._temperature
        raise ClientNeeded(Question(SAMPLING, body))

    def read_answer(self, answer: Any, take_text: TakeText) -> ModelReply:
        """Reads the client's answer to the question of `complete`."""
        content = answer.get("content") if isinstance(answer, Mapping) else None
        blocks = content if isinstance(content, list) else [content]
        texts = [one["text"] for one in blocks if isinstance(one, Mapping) and "text" in one]
        if not texts:
            raise WorkFailed("the client's model has not answered with text")
        model = str(answer.get("model") or self.name)[:200]
        text = "\n".join(map(str, texts))
        ending = CUT if answer.get("stopReason") == "maxTokens" else ""
        return parse_reply(ModelReply(text, (), ModelUsage(), model, ending), take_text)


def _render(message: Message) -> dict[str, Any]:
    content = message.get("content")
    blocks = content if isinstance(content, list) else [{"type": "text", "text": content or ""}]
    role = "assistant" if message.get("role") == "assistant" else "user"
    text = "\n".join(str(one.get("text", "")) for one in blocks if isinstance(one, Mapping))
    return {"role": role, "content": {"type": "text", "text": text}}
