"""0.1: `tasks/send` with an id that the client chooses, `sessionId`, parts that say their `type`;
and the seed's bare task.

The methods to read, cancel and follow a task are those of 0.3 too: there the dialect that the task
was made in decides. What python-a2a's clients send beside this is in `python_a2a`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final
from uuid import uuid4
from zlib import crc32

from dragoman.a2a.protocol import validation
from dragoman.a2a.protocol.dialects.common_shapes import (
    ROLES_IN,
    ROLES_OUT,
    STATES_OUT,
    config_in,
    config_out,
    part_out,
    put,
)
from dragoman.a2a.protocol.dialects.error_reader import error_in, rest_error_in
from dragoman.a2a.protocol.dialects.lenient_reader import event_in, result_in
from dragoman.a2a.protocol.dialects.operations import (
    CANCEL,
    GET,
    LIST,
    PUSH_GET,
    PUSH_SET,
    RESPONSE,
    SEND,
    STREAM,
    SUBSCRIBE,
    TASK_ID,
    V01,
    Op,
)
from dragoman.a2a.protocol.dialects.traits import DialectTraits
from dragoman.a2a.protocol.dialects.v03_shapes import error_data, parts_in
from dragoman.a2a.protocol.errors import A2aError, invalid
from dragoman.a2a.protocol.validation import (
    AGENT,
    AUTH_REQUIRED,
    COMPLETED,
    REJECTED,
    UNSPECIFIED,
)

__all__ = [
    "METHODS",
    "TRAITS",
    "VERSION",
    "bare_task",
    "error_in",
    "error_out",
    "event_in",
    "event_out",
    "params_in",
    "params_out",
    "push_out",
    "rest_error_in",
    "rest_request_out",
    "result_in",
    "result_out",
]

VERSION: Final = V01
TRAITS: Final = DialectTraits(
    client_names_task=True,
    shares_methods=True,
    sends_version=False,
    extensions_header="",
    has_rest=False,
    has_grpc=False,
    has_legacy_routes=True,
)

METHODS: Mapping[str, Op] = {
    "tasks/send": SEND,
    "tasks/sendSubscribe": STREAM,
    "tasks/get": GET,
    "tasks/cancel": CANCEL,
    "tasks/resubscribe": SUBSCRIBE,
    "tasks/pushNotification/set": PUSH_SET,
    "tasks/pushNotification/get": PUSH_GET,
    "tasks/stream": STREAM,  # python-a2a's
}
METHOD_OF: Mapping[Op, str] = {op: method for method, op in reversed(list(METHODS.items()))}

STATES_DOWN: Mapping[str, str] = {
    **STATES_OUT,
    REJECTED: "failed",
    AUTH_REQUIRED: "input-required",
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
"""It knows -32001 to -32004."""


# --- from the client ------------------------------------------------------------------------------


def params_in(op: Op, params: Any) -> dict[str, Any]:
    if not isinstance(params, dict):
        raise A2aError("INVALID_PARAMS", "the parameters must be an object")
    if op in (SEND, STREAM):
        return send_in(params)
    if op == GET:
        return validation.get_of(params)
    if op == CANCEL:
        return validation.cancel_of(params)
    if op == SUBSCRIBE:
        return validation.task_of(params)
    request = {"taskId": validation.id_at(params, "id", "id")}
    if op == PUSH_SET:
        config = params.get("pushNotificationConfig")
        if not isinstance(config, dict):
            raise invalid("pushNotificationConfig", "is required, and is an object")
        request |= validation.config_of(config_in(config), "pushNotificationConfig.")
    return request


def send_in(params: Mapping[str, Any]) -> dict[str, Any]:
    configuration = put(
        {},
        historyLength=params.get("historyLength"),
        taskPushNotificationConfig=config_in(params.get("pushNotification")),
    )
    given = params.get("message")
    message = message_in(given, params.get("sessionId"))
    request: dict[str, Any] = {"message": message}
    if configuration:
        request["configuration"] = configuration
    found = validation.send_of(put(request, metadata=params.get("metadata")))
    # The specification wants one, the seed's clients send none.
    task = validation.optional_id(params, "id", "id")
    return found if task is None else {**found, TASK_ID: task}


def message_in(message: Any, session: Any) -> Any:
    if not isinstance(message, dict):
        return message
    role = message.get("role")
    parts = message.get("parts")
    content = message.get("content")
    if parts is None and content is not None:  # python-a2a's have one content
        parts = content if isinstance(content, list) else [content]
    found: dict[str, Any] = {
        "messageId": message.get("messageId") or message.get("message_id") or str(uuid4()),
        "role": ROLES_IN.get(role, role) if isinstance(role, str) else role,
        "parts": parts_in(parts),
    }
    return put(
        found,
        # a conversation of python-a2a's outlives its sessions, which are new with every task
        contextId=message.get("conversation_id") or session,
        metadata=message.get("metadata") or None,
    )


# --- to the client --------------------------------------------------------------------------------


def result_out(op: Op, value: Any) -> Any:
    if op == SEND:
        return task_out(value["task"] if "task" in value else task_of_message(value))
    if op in (GET, CANCEL):
        return task_out(value)
    if op == LIST:
        return [task_out(task) for task in value.get("tasks", [])]
    if op in (PUSH_SET, PUSH_GET):
        config = config_out(value)
        config.pop("id", None)
        return {"id": value.get("taskId", ""), "pushNotificationConfig": config}
    return value


def task_of_message(value: Mapping[str, Any]) -> dict[str, Any]:
    """Every answer is a task here; that of an agent that only says something is completed with it.
    It has the id that the client chose, where the answer brings it."""
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


def part_01(part: Mapping[str, Any]) -> dict[str, Any]:
    return part_out(part, "type")


def message_out(message: Mapping[str, Any]) -> dict[str, Any]:
    out: dict[str, Any] = {
        "role": ROLES_OUT.get(message.get("role", ""), "agent"),
        "parts": [part_01(part) for part in message.get("parts", [])],
    }
    return put(out, metadata=message.get("metadata"))


def status_out(status: Mapping[str, Any]) -> dict[str, Any]:
    out: dict[str, Any] = {"state": STATES_DOWN[status.get("state", UNSPECIFIED)]}
    if "message" in status:
        out["message"] = message_out(status["message"])
    return put(out, timestamp=status.get("timestamp"))


def artifact_out(artifact: Mapping[str, Any]) -> dict[str, Any]:
    out: dict[str, Any] = {
        "parts": [part_01(part) for part in artifact.get("parts", [])],
        "index": index_of(artifact.get("artifactId", "")),
    }
    for name in ("name", "description", "metadata"):
        if artifact.get(name):
            out[name] = artifact[name]
    return out


def index_of(id: str) -> int:
    """The number that stands for an artifact's id: clients add a chunk to the artifact that has the
    same. The reply, which is nearly always the only one, has 0."""
    if id == RESPONSE:
        return 0
    tail = id.removeprefix("artifact-")
    if tail.isdecimal() and tail.isascii() and len(tail) < 4:
        return int(tail)
    return 1000 + crc32(id.encode()) % 1_000_000


def task_out(task: Mapping[str, Any]) -> dict[str, Any]:
    out: dict[str, Any] = {"id": task["id"], "status": status_out(task.get("status", {}))}
    if task.get("contextId"):
        out["sessionId"] = task["contextId"]
    if "artifacts" in task:
        out["artifacts"] = [artifact_out(artifact) for artifact in task["artifacts"]]
    if "history" in task:
        out["history"] = [message_out(message) for message in task["history"]]
    put(out, metadata=task.get("metadata"))
    out["messages"] = bare_messages(task)
    return out


def event_out(event: Mapping[str, Any], *, final: bool) -> dict[str, Any]:
    if "artifactUpdate" in event:
        update = event["artifactUpdate"]
        artifact = artifact_out(update["artifact"])
        artifact["append"] = bool(update.get("append"))
        artifact["lastChunk"] = bool(update.get("lastChunk"))
        return put({"id": update["taskId"], "artifact": artifact}, metadata=update.get("metadata"))
    if "statusUpdate" in event:
        update = event["statusUpdate"]
        id, status = update["taskId"], status_out(update["status"])
    elif "task" in event:
        update = event["task"]
        id, status = update["id"], status_out(update.get("status", {}))
    else:
        update = task_of_message(event)
        id, status = update["id"], {"state": "completed", "message": message_out(event["message"])}
    return put({"id": id, "status": status, "final": final}, metadata=update.get("metadata"))


def push_out(event: Mapping[str, Any], task: Mapping[str, Any]) -> dict[str, Any]:
    return task_out(task)


def error_out(error: A2aError) -> dict[str, Any]:
    code = error.row.code
    return {
        "code": CODES_DOWN.get(code, code),
        "message": error.message,
        "data": error_data(error),
    }


# --- the seed's bare task -------------------------------------------------------------------------


def bare_task(task: Mapping[str, Any]) -> dict[str, Any]:
    """A status that is a word, all that was said in `messages`, the artifacts beside it."""
    state = task.get("status", {}).get("state", UNSPECIFIED)
    out: dict[str, Any] = {
        "id": task["id"],
        "sessionId": task.get("contextId") or None,
        "status": BARE_STATES[state],
        "messages": bare_messages(task),
        "artifacts": [
            {
                "name": artifact.get("name") or artifact.get("artifactId", ""),
                "parts": [bare_part(part) for part in artifact.get("parts", [])],
            }
            for artifact in task.get("artifacts", [])
            if not _is_reply(artifact)
        ],
    }
    return out


def bare_messages(task: Mapping[str, Any]) -> list[dict[str, Any]]:
    said = list(task.get("history", []))
    message = task.get("status", {}).get("message")
    if message is not None:
        said.append(message)
    said += [
        {"role": AGENT, "parts": artifact.get("parts", [])}
        for artifact in task.get("artifacts", [])
        if _is_reply(artifact)
    ]
    return [
        {
            "role": ROLES_OUT.get(each.get("role", ""), "agent"),
            "parts": [bare_part(part) for part in each.get("parts", [])],
        }
        for each in said
    ]


def _is_reply(artifact: Mapping[str, Any]) -> bool:
    return bool(artifact.get("name") == RESPONSE)


def bare_part(part: Mapping[str, Any]) -> dict[str, Any]:
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


def params_out(op: Op, request: Mapping[str, Any]) -> tuple[str, Any]:
    if op not in METHOD_OF:
        raise A2aError("UNSUPPORTED_OPERATION", f"agents of A2A {VERSION} have no {op}")
    return METHOD_OF[op], _params_out(op, request)


def _params_out(op: Op, request: Mapping[str, Any]) -> dict[str, Any]:
    if op == PUSH_SET:
        config = config_out(request)
        config.pop("id", None)
        return {"id": request.get("taskId", ""), "pushNotificationConfig": config}
    if op == PUSH_GET:
        return {"id": request.get("taskId", "")}
    if op not in (SEND, STREAM):
        return put({"id": request.get("id", "")}, historyLength=request.get("historyLength"))
    message, configuration = request["message"], request.get("configuration") or {}
    out: dict[str, Any] = {
        "id": message.get("taskId") or request.get(TASK_ID) or str(uuid4()),
        "message": message_out(message),
    }
    push = configuration.get("taskPushNotificationConfig")
    return put(
        out,
        sessionId=message.get("contextId"),
        historyLength=configuration.get("historyLength"),
        pushNotification=config_out(push) if push else None,
        metadata=request.get("metadata"),
    )


def rest_request_out(
    op: Op, request: Mapping[str, Any]
) -> tuple[str, str, dict[str, str], dict[str, Any] | None]:
    raise A2aError("UNSUPPORTED_OPERATION", f"agents of A2A {VERSION} have no HTTP+JSON")
