"""The streamed answers of OpenAI's Responses API, from the answers that a test scripts."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any


def list_events(answer: dict[str, Any], model: str) -> Iterator[bytes]:
    made: dict[str, Any] = {"id": "resp_1", "object": "response", "model": model}
    yield _render("response.created", response={**made, "status": "in_progress"})
    text, output = answer.get("text", ""), []
    if text:
        for at in range(0, len(text), 5):
            yield _render("response.output_text.delta", output_index=0, delta=text[at : at + 5])
        content = [{"type": "output_text", "text": text, "annotations": []}]
        output.append({"type": "message", "role": "assistant", "content": content})
    for index, (name, given) in enumerate(answer.get("calls", ())):
        arguments = given if isinstance(given, str) else json.dumps(given)
        call = {"type": "function_call", "id": f"fc_{index}", "call_id": f"call_{index}"}
        begun = {**call, "name": name, "arguments": ""}
        yield _render("response.output_item.added", output_index=len(output), item=begun)
        for at in range(0, len(arguments), 7):
            yield _render(
                "response.function_call_arguments.delta",
                output_index=len(output),
                delta=arguments[at : at + 7],
            )
        output.append({**begun, "arguments": arguments})
    for index, item in enumerate(output):
        yield _render("response.output_item.done", output_index=index, item=item)
    usage = {"input_tokens": 11, "output_tokens": 7, "total_tokens": 18}
    ended = {**made, "status": "completed", "output": output, "usage": usage, "error": None}
    yield _render("response.completed", response=ended)


def _render(type: str, **members: Any) -> bytes:
    return f"event: {type}\ndata: {json.dumps({'type': type, **members})}\n\n".encode()
