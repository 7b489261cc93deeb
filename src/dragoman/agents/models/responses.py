"""Models behind OpenAI's Responses API: the conversation goes as items, the answer comes as them.

The hub sends the whole conversation each time and has nothing stored by the provider.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from dragoman.agents.models.chat import Message, ModelUsage, OfferedTool, TakeText, find_carried
from dragoman.agents.models.openai import (
    ChatAnswer,
    OpenAiModel,
    list_objects,
    mend_arguments,
    read_count,
)
from dragoman.agents.models.traits import drop_members
from dragoman.core.errors import BadReply
from dragoman.wire.json import decode_reply

ENCRYPTED_REASONING = "reasoning.encrypted_content"
"""What is included in answers, so that a model need not think anew after each tool call."""


class ResponsesModel(OpenAiModel):
    """Implements `ChatModel`."""

    path = "/responses"

    def _open_answer(self, on_text: TakeText, secrets: tuple[str, ...]) -> ChatAnswer:
        return ResponsesAnswer(self.name, on_text, secrets, self.origin)

    def _build_request(
        self,
        messages: Sequence[Message],
        tools: Sequence[OfferedTool],
        schema: Mapping[str, Any] | None,
    ) -> dict[str, Any]:
        settings = self.settings
        body: dict[str, Any] = {
            "store": False,
            "include": [ENCRYPTED_REASONING],
            **settings.extra,
            "model": settings.model,
            "input": [item for message in messages for item in self._list_items(message)],
            "stream": True,
        }
        if settings.temperature is not None:
            body["temperature"] = settings.temperature
        if settings.max_tokens is not None:
            body["max_output_tokens"] = settings.max_tokens
        if tools:
            body["tools"] = [
                {
                    "type": "function",
                    "name": one.name,
                    "description": one.description,
                    "parameters": one.schema,
                    "strict": False,
                }
                for one in tools
            ]
        if schema is not None:
            body["text"] = {"format": {"type": "json_schema", "name": "answer", "schema": schema}}
        return drop_members(body, settings.omit)

    def _list_items(self, message: Message) -> list[dict[str, Any]]:
        items = find_carried(message, self.origin).get("items")
        restored = _restore_items(items, message) if isinstance(items, list) else None
        return build_items(message) if restored is None else restored


def _restore_items(
    items: Sequence[Mapping[str, Any]], message: Message
) -> list[dict[str, Any]] | None:
    """Returns the items as the server sent them, with the ids that the hub gave the tool calls;
    None if the message has other calls."""
    ids = [one["id"] for one in message.get("tool_calls") or ()]
    calls = [one for one in items if one.get("type") == "function_call"]
    if len(calls) != len(ids):
        return None
    left = iter(ids)
    return [
        {**one, "call_id": next(left), "arguments": mend_arguments(one)}
        if one.get("type") == "function_call"
        else {**one}
        for one in items
    ]


def build_items(message: Message) -> list[dict[str, Any]]:
    """Lists the items of a message in the form of chat completions."""
    role, content = message.get("role"), message.get("content")
    if role == "tool":
        id = message.get("tool_call_id")
        return [{"type": "function_call_output", "call_id": id, "output": content or ""}]
    items: list[dict[str, Any]] = []
    if content:
        parts = content if isinstance(content, str) else [_build_part(one) for one in content]
        items.append({"role": role, "content": parts})
    for call in message.get("tool_calls") or ():
        function = {**call["function"], "arguments": mend_arguments(call["function"])}
        items.append({"type": "function_call", "call_id": call["id"], **function})
    return items


def _build_part(part: Mapping[str, Any]) -> dict[str, Any]:
    if part.get("type") == "image_url":
        return {"type": "input_image", "image_url": part["image_url"]["url"]}
    return {"type": "input_text", "text": part.get("text", "")}


class ResponsesAnswer(ChatAnswer):
    """Takes the text while it is written, and everything else from the items when they are done."""

    _is_written = False
    """Whether text has come in pieces."""

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        self._items: list[dict[str, Any]] = []

    def take_event(self, data: bytes) -> None:
        if data.strip() == b"[DONE]":
            return  # some servers end the stream as chat completions do
        event = decode_reply(data)
        if not isinstance(event, dict):
            raise ValueError("an event is not an object")
        kind = event.get("type")
        if kind == "response.output_text.delta":
            self._is_written = True
            self._take_delta({"content": event.get("delta")})
        elif kind == "response.refusal.delta":
            self._is_written = True
            self._take_delta({"refusal": event.get("delta")})
        elif kind == "response.output_item.done" and isinstance(event.get("item"), dict):
            self._take_item(event["item"])
        elif kind == "error":
            raise self._build_error(event.get("error") or event)
        elif kind in ("response.completed", "response.incomplete", "response.failed"):
            self._take_end(event.get("response"))

    def take_whole(self, body: Any) -> None:
        if not isinstance(body, dict) or not isinstance(body.get("output"), list):
            raise ValueError("the answer has no output")
        for item in list_objects(body["output"]):
            self._take_item(item)
        self._take_end(body)

    def _take_item(self, item: dict[str, Any]) -> None:
        self._items.append(item)
        if item.get("type") == "function_call":
            self._take_piece(len(self._requests), {"id": item.get("call_id"), "function": item})
        elif item.get("type") == "message" and not self._is_written:
            for part in list_objects(item.get("content")):
                self._take_delta({"content": part.get("text"), "refusal": part.get("refusal")})

    def _build_carried(self, extras: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
        """The items, if they have more than the hub can rebuild. Reasoning that is not encrypted is
        known to its server only if that stores it, which it is asked not to."""
        items = [
            one for one in self._items
            if one.get("type") != "reasoning" or one.get("encrypted_content")
        ]  # fmt: skip
        return {"items": items} if any(map(_has_more, items)) else {}

    def _take_end(self, response: Any) -> None:
        if not isinstance(response, dict):
            raise ValueError("the end of the answer is not an object")
        if (error := response.get("error")) is not None:
            raise self._build_error(error)
        if response.get("status") == "failed":
            raise BadReply("it failed, and gave no reason")
        if isinstance(model := response.get("model"), str) and model:
            self._model = model
        if isinstance(usage := response.get("usage"), dict):
            read, written = usage.get("input_tokens"), usage.get("output_tokens")
            self._usage = ModelUsage(read_count(read), read_count(written))
        self._finish = "stop"
        if response.get("status") == "incomplete":
            details = response.get("incomplete_details")
            reason = details.get("reason") if isinstance(details, dict) else ""
            self._finish = "content_filter" if reason == "content_filter" else "length"
        self.is_done = True


def _has_more(item: Mapping[str, Any]) -> bool:
    return item.get("type") not in ("message", "function_call") or "phase" in item
