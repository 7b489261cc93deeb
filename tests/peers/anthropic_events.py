"""The streamed answers of Anthropic's Messages API, from the answers that a test scripts."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any


def list_events(answer: dict[str, Any], model: str) -> Iterator[bytes]:
    usage = {"input_tokens": 11, "output_tokens": 1}
    begun: dict[str, Any] = {
        "id": "msg_1", "type": "message", "role": "assistant", "model": model, "content": [],
        "stop_reason": None, "stop_sequence": None, "usage": usage,
    }  # fmt: skip
    yield _render("message_start", message=begun)
    yield _render("ping")
    index = 0
    if text := answer.get("text", ""):
        yield _render("content_block_start", index=0, content_block={"type": "text", "text": ""})
        for at in range(0, len(text), 5):
            yield _render_delta(0, type="text_delta", text=text[at : at + 5])
        yield _render("content_block_stop", index=0)
        index = 1
    calls = answer.get("calls", ())
    for place, (name, arguments) in enumerate(calls, index):
        block = {"type": "tool_use", "id": f"toolu_{place}", "name": name, "input": {}}
        yield _render("content_block_start", index=place, content_block=block)
        whole = arguments if isinstance(arguments, str) else json.dumps(arguments)
        yield _render_delta(place, type="input_json_delta", partial_json="")
        for at in range(0, len(whole), 7):
            yield _render_delta(place, type="input_json_delta", partial_json=whole[at : at + 7])
        yield _render("content_block_stop", index=place)
    reason = answer.get("finish", "tool_use" if calls else "end_turn")
    yield _render(
        "message_delta",
        delta={"stop_reason": reason, "stop_sequence": None},
        usage={"output_tokens": 7},
    )
    yield _render("message_stop")


def _render_delta(place: int, **delta: str) -> bytes:
    return _render("content_block_delta", index=place, delta=delta)


def _render(kind: str, **members: Any) -> bytes:
    return f"event: {kind}\ndata: {json.dumps({'type': kind, **members})}\n\n".encode()
