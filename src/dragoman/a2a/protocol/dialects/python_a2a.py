"""What clients of python-a2a send besides 0.1, and the answers that they need.

They post JSON-RPC to a path for each method (`{url}/tasks/send`, `/tasks/get`, `/tasks/cancel`), a
bare task to `/tasks/stream`, a bare message to `{url}` itself or `/stream`, a whole conversation to
`{url}`. Traps of that client:

- it reads an error with HTTP status 200 as a new, empty task: errors need a status of 400 or above;
- it ignores a task without a text in an artifact, and sends the request again elsewhere;
- it takes the unknown state `working` for completed: its own word is `waiting`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final
from uuid import uuid4

from dragoman.a2a.protocol.dialects import v01
from dragoman.a2a.protocol.dialects.operations import CANCEL, GET, SEND, STREAM, Op
from dragoman.a2a.protocol.errors import A2aError, invalid
from dragoman.a2a.protocol.validation import AGENT, WORKING

TASK: Final = "task"
MESSAGE: Final = "message"
CONVERSATION: Final = "conversation"
"""The forms of a bare body, and of its answer."""

PATHS: Mapping[str, Op] = {
    "/tasks/send": SEND,
    "/tasks/stream": STREAM,
    "/stream": STREAM,
    "/tasks/get": GET,
    "/tasks/cancel": CANCEL,
}
"""All by POST, below the URL given to the client; it tries them below `/a2a` there too."""


def is_python_a2a(params: Any) -> bool:
    """Whether python-a2a sent these parameters of `tasks/send`: its whole task, and a message with
    one content."""
    if not isinstance(params, dict):
        return False
    message = params.get("message")
    return "status" in params or (isinstance(message, dict) and "content" in message)


def find_form(body: Any) -> str | None:
    """Returns the form of a body without `jsonrpc`; None if it is not python-a2a's."""
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
    """Converts a bare body to 1.0's request."""
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
    """Takes the ids out of the metadata, where its Google format has them."""
    metadata = body.get("metadata")
    if not isinstance(metadata, dict):
        return dict(body)
    ids = {name: metadata[name] for name in ("message_id", "conversation_id") if name in metadata}
    return {**ids, **body}


# --- answers --------------------------------------------------------------------------------------


def render_task(task: Mapping[str, Any]) -> dict[str, Any]:
    """Renders 0.1's task with the reply where this client reads it: the first text of the last
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
    """Like `v01.render_result`, for JSON-RPC."""
    if op == SEND:
        return render_task(value["task"] if "task" in value else v01.task_from_message(value))
    return render_task(value) if op in (GET, CANCEL) else v01.render_result(op, value)


def render_rest_answer(form: str | None, body: Mapping[str, Any], value: Mapping[str, Any]) -> Any:
    """Renders 1.0's response as the answer to a bare body."""
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
    """Renders the reply as one message, in the format of the request."""
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
    """For `/tasks/stream`: returns the name of the server-sent event and its data, the current
    task."""
    return ("complete" if final else "update"), render_task(task)


def render_chunk(event: Mapping[str, Any], *, final: bool) -> dict[str, Any] | None:
    """For `/stream`: returns the text that an event adds to the reply; None if there is none."""
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
    """Returns the HTTP status and the JSON-RPC error object."""
    return error.codes.http, v01.render_error(error)
