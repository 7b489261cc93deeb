"""What clients of python-a2a send beside 0.1, and what they need to hear.

They post JSON-RPC to a path for each method (`{url}/tasks/send`, `/tasks/get`, `/tasks/cancel`), a
bare task to `/tasks/stream`, a bare message to `{url}` itself or `/stream`, a whole conversation to
`{url}`. Traps, all of their client:

- an error with HTTP status 200 is read as a new, empty task: errors need a status of 400 or above;
- a task without an artifact that has a text is no answer to it: the same is sent again elsewhere;
- it does not know `working`, and takes a task in it for a completed one: its word is `waiting`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final
from uuid import uuid4

from dragoman.a2a.protocol.dialects import v01
from dragoman.a2a.protocol.dialects.operations import CANCEL, GET, SEND, STREAM, TASK_ID, Op
from dragoman.a2a.protocol.errors import A2aError, invalid
from dragoman.a2a.protocol.validation import AGENT, WORKING

TASK: Final = "task"
MESSAGE: Final = "message"
CONVERSATION: Final = "conversation"
"""What a bare body is, and so its answer."""

PATHS: Mapping[str, Op] = {
    "/tasks/send": SEND,
    "/tasks/stream": STREAM,
    "/stream": STREAM,
    "/tasks/get": GET,
    "/tasks/cancel": CANCEL,
}
"""All posted to, below the URL that the client was given; it tries them below `/a2a` of it too."""


def is_python_a2a(params: Any) -> bool:
    """Whether the parameters of `tasks/send` are python-a2a's: it sends its whole task, and a
    message with one content."""
    if not isinstance(params, dict):
        return False
    message = params.get("message")
    return "status" in params or (isinstance(message, dict) and "content" in message)


def find_form(body: Any) -> str | None:
    """What a body without `jsonrpc` is; None for what is not python-a2a's."""
    if not isinstance(body, dict) or "jsonrpc" in body:
        return None
    if isinstance(body.get("messages"), list):
        return CONVERSATION
    if isinstance(body.get("message"), dict):
        return TASK
    if "role" in body and ("content" in body or "parts" in body):
        return MESSAGE
    return None


def parse_params(op: Op, body: Mapping[str, Any]) -> dict[str, Any]:
    """1.0's request from a bare body."""
    if op not in (SEND, STREAM):
        return v01.parse_params(op, body)
    form = find_form(body)
    if form == MESSAGE:
        return v01.parse_params(op, {"message": _move_ids(body)})
    if form == CONVERSATION:
        said = body["messages"]
        if not said or not isinstance(said[-1], dict):
            raise invalid("messages", "must have at least one message")
        session = body.get("conversation_id")
        return v01.parse_params(op, {"message": _move_ids(said[-1]), "sessionId": session})
    return v01.parse_params(op, body)


def _move_ids(body: Mapping[str, Any]) -> dict[str, Any]:
    """In what it calls Google's format the ids are in the metadata."""
    metadata = body.get("metadata")
    if not isinstance(metadata, dict):
        return dict(body)
    ids = {name: metadata[name] for name in ("message_id", "conversation_id") if name in metadata}
    return {**ids, **body}


# --- answers --------------------------------------------------------------------------------------


def render_task(task: Mapping[str, Any]) -> dict[str, Any]:
    """0.1's task, with the reply where this client looks for it: the first text of the last
    artifact."""
    out = v01.render_task(task)
    if task.get("status", {}).get("state") == WORKING:
        out["status"] = {**out["status"], "state": "waiting"}
    artifacts = out.get("artifacts", [])
    if not any(part.get("type") == "text" for each in artifacts for part in each["parts"]):
        text = {"type": "text", "text": _find_status_text(task)}
        artifacts = [*artifacts, {"parts": [text], "index": len(artifacts)}]
    return {**out, "artifacts": artifacts}


def _find_status_text(task: Mapping[str, Any]) -> str:
    status = task.get("status", {})
    said = status.get("message", {}).get("parts", [])
    texts = [part["text"] for part in said if "text" in part]
    return "\n".join(texts)


def render_result(op: Op, value: Any) -> Any:
    """For JSON-RPC, as `v01.render_result`."""
    if op == SEND:
        return render_task(value["task"] if "task" in value else v01.task_from_message(value))
    return render_task(value) if op in (GET, CANCEL) else v01.render_result(op, value)


def render_rest_answer(form: str | None, body: Mapping[str, Any], value: Mapping[str, Any]) -> Any:
    """The answer to a bare body, from 1.0's response to the request that was made of it."""
    task = value["task"] if "task" in value else v01.task_from_message(value)
    if form == MESSAGE:
        return render_message(task, body)
    if form == CONVERSATION:
        said = [each for each in body["messages"] if isinstance(each, dict)]
        reply = render_message(task, said[-1])
        conversation = body.get("conversation_id") or task.get("contextId", "")
        return {"conversation_id": conversation, "messages": [*said, reply]}
    return render_task(task)


def render_message(task: Mapping[str, Any], asked: Mapping[str, Any]) -> dict[str, Any]:
    """The reply as one message, in the format that it was asked in."""
    parts = [part for each in render_task(task)["artifacts"][-1:] for part in each["parts"]]
    ids = {"message_id": str(uuid4())}
    for name, value in (
        ("parent_message_id", asked.get("message_id")),
        ("conversation_id", asked.get("conversation_id")),
    ):
        if isinstance(value, str):
            ids[name] = value
    if "parts" in asked:
        return {"role": "agent", "parts": parts, "metadata": ids}
    text = "\n".join(part["text"] for part in parts if part.get("type") == "text")
    return {"content": {"type": "text", "text": text}, "role": "agent", **ids}


def render_event(task: Mapping[str, Any], *, final: bool) -> tuple[str, dict[str, Any]]:
    """For `/tasks/stream`, after each event: the name of the server-sent event and its data, which
    is the task as it is now."""
    return ("complete" if final else "update"), render_task(task)


def render_chunk(event: Mapping[str, Any], *, final: bool) -> dict[str, Any] | None:
    """For `/stream`: what an event adds to the text of the reply; None where that is nothing."""
    parts: list[Any] = []
    if "artifactUpdate" in event:
        parts = event["artifactUpdate"]["artifact"].get("parts", [])
    elif "message" in event:
        parts = event["message"].get("parts", [])
    elif "statusUpdate" in event and final:
        message = event["statusUpdate"]["status"].get("message", {})
        parts = message.get("parts", []) if message.get("role") == AGENT else []
    text = "\n".join(part["text"] for part in parts if "text" in part)
    return {"content": text, "append": True, "lastChunk": final} if text else None


def render_error(error: A2aError) -> tuple[int, dict[str, Any]]:
    """The HTTP status and JSON-RPC's error object; to a bare body the object goes as `error`."""
    return error.codes.http, v01.render_error(error)


__all__ = [
    "CONVERSATION",
    "MESSAGE",
    "PATHS",
    "TASK",
    "TASK_ID",
    "find_form",
    "is_python_a2a",
    "parse_params",
    "render_chunk",
    "render_error",
    "render_event",
    "render_message",
    "render_rest_answer",
    "render_result",
    "render_task",
]
