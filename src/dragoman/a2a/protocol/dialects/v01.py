"""0.1: `tasks/send` with an id that the client chooses, `sessionId`, parts with a `type`; and the
bare task of the first hubs.

The methods to read, cancel and follow a task are also those of 0.3: the dialect that created the
task decides. `python_a2a` has what clients of python-a2a send besides.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final
from uuid import uuid4
from zlib import crc32

from dragoman.a2a.protocol import validation
from dragoman.a2a.protocol.dialects import error_reader, lenient_reader, operations, v03_shapes
from dragoman.a2a.protocol.dialects.common_shapes import (
    ROLES_IN,
    ROLES_OUT,
    STATES_OUT,
    parse_push_config,
    render_part,
    render_push_config,
)
from dragoman.a2a.protocol.dialects.operations import RESPONSE, TASK_ID, Op
from dragoman.a2a.protocol.dialects.traits import DialectTraits
from dragoman.a2a.protocol.dialects.v03_shapes import parse_parts
from dragoman.a2a.protocol.errors import A2aError, invalid
from dragoman.a2a.protocol.validation import COMPLETED, UNSPECIFIED, put

VERSION: Final = operations.V01
TRAITS: Final = DialectTraits(
    client_names_task=True,
    shares_methods=True,
    sends_version=False,
    extensions_header="",
    has_rest=False,
    has_grpc=False,
    has_legacy_routes=True,
)
parse_result = lenient_reader.parse_result
parse_event = lenient_reader.parse_event
parse_error = error_reader.parse_error
parse_rest_error = error_reader.parse_rest_error

METHODS: Mapping[str, Op] = {
    "tasks/send": operations.SEND,
    "tasks/sendSubscribe": operations.STREAM,
    "tasks/get": operations.GET,
    "tasks/cancel": operations.CANCEL,
    "tasks/resubscribe": operations.SUBSCRIBE,
    "tasks/pushNotification/set": operations.PUSH_SET,
    "tasks/pushNotification/get": operations.PUSH_GET,
    "tasks/stream": operations.STREAM,  # python-a2a's
}
METHOD_OF: Mapping[Op, str] = {op: method for method, op in reversed(list(METHODS.items()))}

STATES_DOWN: Mapping[str, str] = {
    **STATES_OUT,
    validation.REJECTED: "failed",
    validation.AUTH_REQUIRED: "input-required",
}
BARE_STATES: Mapping[str, str] = {
    **STATES_DOWN,
    **{state: "cancelled" for state, said in STATES_DOWN.items() if said == "canceled"},
}
CODES_DOWN: Mapping[int, int] = {
    -32005: -32602,
    -32006: -32603,
    -32007: -32603,
    -32008: -32603,
    -32009: -32603,
}
"""It has -32001 to -32004."""


# --- from the client ------------------------------------------------------------------------------


def parse_params(op: Op, params: Any) -> dict[str, Any]:
    if not isinstance(params, dict):
        raise A2aError("INVALID_PARAMS", "the parameters must be an object")
    if op in (operations.SEND, operations.STREAM):
        return parse_send(params)
    if op == operations.GET:
        return validation.validate_get(params)
    if op == operations.CANCEL:
        return validation.validate_cancel(params)
    if op == operations.SUBSCRIBE:
        return validation.validate_task_key(params)
    request = {"taskId": validation.check_id(params, "id", "id")}
    if op == operations.PUSH_SET:
        config = params.get("pushNotificationConfig")
        if not isinstance(config, dict):
            raise invalid("pushNotificationConfig", "is required, and is an object")
        request |= validation.validate_push_config(
            parse_push_config(config), "pushNotificationConfig."
        )
    return request


def parse_send(params: Mapping[str, Any]) -> dict[str, Any]:
    configuration = put(
        {},
        historyLength=params.get("historyLength"),
        taskPushNotificationConfig=parse_push_config(params.get("pushNotification")),
    )
    given = params.get("message")
    message = parse_message(given, params.get("sessionId"))
    request: dict[str, Any] = {"message": message}
    if configuration:
        request["configuration"] = configuration
    found = validation.validate_send(put(request, metadata=params.get("metadata")))
    # Required by the specification, but clients of bare tasks send none.
    task = validation.check_optional_id(params, "id", "id")
    return found if task is None else {**found, TASK_ID: task}


def parse_message(message: Any, session: Any) -> Any:
    if not isinstance(message, dict):
        return message
    role = message.get("role")
    parts = message.get("parts")
    content = message.get("content")
    if parts is None and content is not None:  # python-a2a sends one content
        parts = content if isinstance(content, list) else [content]
    found: dict[str, Any] = {
        "messageId": message.get("messageId") or message.get("message_id") or str(uuid4()),
        "role": ROLES_IN.get(role, role) if isinstance(role, str) else role,
        "parts": parse_parts(parts),
    }
    return put(
        found,
        # python-a2a creates a session per task; its conversations outlive them
        contextId=message.get("conversation_id") or session,
        metadata=message.get("metadata") or None,
    )


# --- to the client --------------------------------------------------------------------------------


def render_result(op: Op, value: Any) -> Any:
    if op == operations.SEND:
        return render_task(value["task"] if "task" in value else task_from_message(value))
    if op in (operations.GET, operations.CANCEL):
        return render_task(value)
    if op == operations.LIST:
        return [render_task(task) for task in value.get("tasks", [])]
    if op in (operations.PUSH_SET, operations.PUSH_GET):
        config = render_push_config(value)
        config.pop("id", None)
        return {"id": value.get("taskId", ""), "pushNotificationConfig": config}
    return value


def task_from_message(value: Mapping[str, Any]) -> dict[str, Any]:
    """Converts a message to a completed task, because every answer is a task in 0.1. It has the id
    that the client chose, if the answer carries it."""
    message = value["message"]
    id = value.get(TASK_ID) or message.get("taskId") or message.get("messageId", "")
    return {
        "id": id,
        "contextId": message.get("contextId", ""),
        "status": {"state": COMPLETED},
        "artifacts": [
            {"artifactId": RESPONSE, "name": RESPONSE, "parts": message.get("parts", [])}
        ],
    }


def render_part_01(part: Mapping[str, Any]) -> dict[str, Any]:
    return render_part(part, "type")


def render_message(message: Mapping[str, Any]) -> dict[str, Any]:
    out: dict[str, Any] = {
        "role": ROLES_OUT.get(message.get("role", ""), "agent"),
        "parts": [render_part_01(part) for part in message.get("parts", [])],
    }
    return put(out, metadata=message.get("metadata"))


def render_status(status: Mapping[str, Any]) -> dict[str, Any]:
    out: dict[str, Any] = {"state": STATES_DOWN[status.get("state", UNSPECIFIED)]}
    if "message" in status:
        out["message"] = render_message(status["message"])
    return put(out, timestamp=status.get("timestamp"))


def render_artifact(artifact: Mapping[str, Any]) -> dict[str, Any]:
    out: dict[str, Any] = {
        "parts": [render_part_01(part) for part in artifact.get("parts", [])],
        "index": index_from_id(artifact.get("artifactId", "")),
    }
    for name in ("name", "description", "metadata"):
        if artifact.get(name):
            out[name] = artifact[name]
    return out


def index_from_id(id: str) -> int:
    """Returns the number for an artifact's id: clients append a chunk to the artifact with the same
    number. The reply, usually the only artifact, has 0."""
    if id == RESPONSE:
        return 0
    tail = id.removeprefix("artifact-")
    if tail.isdecimal() and tail.isascii() and len(tail) < 4:
        return int(tail)
    return 1000 + crc32(id.encode()) % 1_000_000


def render_task(task: Mapping[str, Any]) -> dict[str, Any]:
    out: dict[str, Any] = {"id": task["id"], "status": render_status(task.get("status", {}))}
    if task.get("contextId"):
        out["sessionId"] = task["contextId"]
    if "artifacts" in task:
        out["artifacts"] = [render_artifact(artifact) for artifact in task["artifacts"]]
    if "history" in task:
        out["history"] = [render_message(message) for message in task["history"]]
    put(out, metadata=task.get("metadata"))
    out["messages"] = render_bare_messages(task)
    return out


def render_event(event: Mapping[str, Any], *, final: bool) -> dict[str, Any]:
    if "artifactUpdate" in event:
        update = event["artifactUpdate"]
        artifact = render_artifact(update["artifact"])
        artifact["append"] = bool(update.get("append"))
        artifact["lastChunk"] = bool(update.get("lastChunk"))
        return put({"id": update["taskId"], "artifact": artifact}, metadata=update.get("metadata"))
    if "statusUpdate" in event:
        update = event["statusUpdate"]
        id, status = update["taskId"], render_status(update["status"])
    elif "task" in event:
        update = event["task"]
        id, status = update["id"], render_status(update.get("status", {}))
    else:
        update = task_from_message(event)
        id, status = (
            update["id"],
            {"state": "completed", "message": render_message(event["message"])},
        )
    return put({"id": id, "status": status, "final": final}, metadata=update.get("metadata"))


def render_push(event: Mapping[str, Any], task: Mapping[str, Any]) -> dict[str, Any]:
    return render_task(task)


def render_error(error: A2aError) -> dict[str, Any]:
    return v03_shapes.render_error(error, CODES_DOWN)


# --- the bare task of the first hubs --------------------------------------------------------------


def render_bare_task(task: Mapping[str, Any]) -> dict[str, Any]:
    """Renders a task with its state as `status`, all messages in `messages`, and its artifacts."""
    state = task.get("status", {}).get("state", UNSPECIFIED)
    out: dict[str, Any] = {
        "id": task["id"],
        "sessionId": task.get("contextId") or None,
        "status": BARE_STATES[state],
        "messages": render_bare_messages(task),
        "artifacts": [
            {
                "name": artifact.get("name") or artifact.get("artifactId", ""),
                "parts": [render_bare_part(part) for part in artifact.get("parts", [])],
            }
            for artifact in task.get("artifacts", [])
            if not _is_reply_artifact(artifact)
        ],
    }
    return out


def render_bare_messages(task: Mapping[str, Any]) -> list[dict[str, Any]]:
    said = list(task.get("history", []))
    message = task.get("status", {}).get("message")
    if message is not None:
        said.append(message)
    said += [
        {"role": validation.AGENT, "parts": artifact.get("parts", [])}
        for artifact in task.get("artifacts", [])
        if _is_reply_artifact(artifact)
    ]
    return [
        {
            "role": ROLES_OUT.get(each.get("role", ""), "agent"),
            "parts": [render_bare_part(part) for part in each.get("parts", [])],
        }
        for each in said
    ]


def _is_reply_artifact(artifact: Mapping[str, Any]) -> bool:
    return bool(artifact.get("name") == RESPONSE)


def render_bare_part(part: Mapping[str, Any]) -> dict[str, Any]:
    if "text" in part:
        return {"type": "text", "text": part["text"]}
    if "data" in part:
        media = part.get("mediaType") or "application/json"
        return {"type": "data", "mime_type": media, "data": part["data"]}
    out = {
        "type": "file",
        "name": part.get("filename") or "",
        "mime_type": part.get("mediaType") or "application/octet-stream",
    }
    return out | ({"data": part["raw"]} if "raw" in part else {"uri": part.get("url", "")})


# --- the hub as client ----------------------------------------------------------------------------


def build_request(op: Op, request: Mapping[str, Any]) -> tuple[str, Any]:
    if op not in METHOD_OF:
        raise A2aError("UNSUPPORTED_OPERATION", f"A2A {VERSION} has no operation {op}")
    return METHOD_OF[op], _build_params(op, request)


def _build_params(op: Op, request: Mapping[str, Any]) -> dict[str, Any]:
    if op == operations.PUSH_SET:
        config = render_push_config(request)
        config.pop("id", None)
        return {"id": request.get("taskId", ""), "pushNotificationConfig": config}
    if op == operations.PUSH_GET:
        return {"id": request.get("taskId", "")}
    if op not in (operations.SEND, operations.STREAM):
        return put({"id": request.get("id", "")}, historyLength=request.get("historyLength"))
    message, configuration = request["message"], request.get("configuration") or {}
    out: dict[str, Any] = {
        "id": message.get("taskId") or request.get(TASK_ID) or str(uuid4()),
        "message": render_message(message),
    }
    push = configuration.get("taskPushNotificationConfig")
    return put(
        out,
        sessionId=message.get("contextId"),
        historyLength=configuration.get("historyLength"),
        pushNotification=render_push_config(push) if push else None,
        metadata=request.get("metadata"),
    )


def build_rest_request(
    op: Op, request: Mapping[str, Any]
) -> tuple[str, str, dict[str, str], dict[str, Any] | None]:
    raise A2aError("UNSUPPORTED_OPERATION", f"A2A {VERSION} has no HTTP+JSON binding")
