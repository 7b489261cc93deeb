"""HTTP+JSON of 0.3 (`/v1/…`), which is not the JSON of its JSON-RPC: the SDKs speak proto-JSON
here, with `content` for a message's parts, `ROLE_USER`, `TASK_STATE_CANCELLED` with two L, and
names that may be the proto's own. Requests in the other form are taken too.
"""

from __future__ import annotations

from base64 import b64decode, b64encode
from collections.abc import Mapping
from typing import Any
from urllib.parse import quote

from dragoman.a2a.protocol import validation
from dragoman.a2a.protocol.dialects import v03_shapes
from dragoman.a2a.protocol.dialects.common_shapes import (
    WRAPPED,
    camelled,
    config_in,
    config_out,
    put,
)
from dragoman.a2a.protocol.dialects.lenient_reader import event_in, result_in
from dragoman.a2a.protocol.dialects.operations import (
    CANCEL,
    CARD,
    GET,
    LIST,
    PUSH_DELETE,
    PUSH_GET,
    PUSH_LIST,
    PUSH_SET,
    SEND,
    STREAM,
    SUBSCRIBE,
    Op,
    Routes,
)
from dragoman.a2a.protocol.errors import (
    CONTENT_TYPE_NOT_SUPPORTED,
    EXTENDED_AGENT_CARD_NOT_CONFIGURED,
    INVALID_AGENT_RESPONSE,
    PARSE_ERROR,
    PUSH_NOTIFICATION_NOT_SUPPORTED,
    TASK_NOT_CANCELABLE,
    UNSUPPORTED_OPERATION,
    A2aError,
    invalid,
)
from dragoman.a2a.protocol.validation import CANCELED, UNSPECIFIED, base64_of

ROUTES = Routes(
    (
        ("POST", "/v1/message:send", SEND),
        ("POST", "/v1/message:stream", STREAM),
        ("GET", "/v1/tasks", LIST),
        ("GET", "/v1/card", CARD),
        ("POST", "/v1/tasks/{id}:cancel", CANCEL),
        ("GET", "/v1/tasks/{id}:subscribe", SUBSCRIBE),  # the proto and the SDKs,
        ("POST", "/v1/tasks/{id}:subscribe", SUBSCRIBE),  # the text and its kit
        ("GET", "/v1/tasks/{id}", GET),
        ("POST", "/v1/tasks/{taskId}/pushNotificationConfigs", PUSH_SET),
        ("GET", "/v1/tasks/{taskId}/pushNotificationConfigs", PUSH_LIST),
        ("GET", "/v1/tasks/{taskId}/pushNotificationConfigs/{id}", PUSH_GET),
        ("DELETE", "/v1/tasks/{taskId}/pushNotificationConfigs/{id}", PUSH_DELETE),
    )
)

STATUS: Mapping[str, int] = {
    TASK_NOT_CANCELABLE: 409,
    PUSH_NOTIFICATION_NOT_SUPPORTED: 501,
    UNSUPPORTED_OPERATION: 501,
    CONTENT_TYPE_NOT_SUPPORTED: 415,
    INVALID_AGENT_RESPONSE: 502,
    EXTENDED_AGENT_CARD_NOT_CONFIGURED: 404,
}
"""Where 0.3's servers have another status than 1.0.1's table."""
NAMES: Mapping[str, str] = {
    PARSE_ERROR: "JSONParseError",
    EXTENDED_AGENT_CARD_NOT_CONFIGURED: "AuthenticatedExtendedCardNotConfiguredError",
}


# --- from the client ------------------------------------------------------------------------------


def rest_params_in(
    op: Op, path: Mapping[str, str], query: Mapping[str, str], body: Any
) -> dict[str, Any]:
    body = camelled(body)
    if op in (SEND, STREAM):
        if not isinstance(body, dict):
            raise invalid("message", "is required, and is an object")
        given = body.get("message", body.get("request"))
        message, settings = message_in(given), body.get("configuration")
        if message is not given and isinstance(settings, dict) and "blocking" not in settings:
            # proto-JSON leaves out what is false, and the SDKs say it where they wait
            body = {**body, "configuration": {**settings, "blocking": False}}
        return validation.send_of(v03_shapes.send_in({**body, "message": message}))
    asked = camelled(dict(query))
    if op == GET:
        length = asked.get("historyLength")
        if isinstance(length, str) and length.isdecimal() and len(length) < 11:
            length = int(length)
        return validation.get_of(put({"id": path["id"]}, historyLength=length))
    if op in (CANCEL, SUBSCRIBE):
        return validation.task_of({"id": path["id"]})
    if op == PUSH_SET:
        return _push_set_in(path["taskId"], body)
    if op == PUSH_LIST:
        return validation.push_list_of({"taskId": path["taskId"]})
    if op in (PUSH_GET, PUSH_DELETE):
        return validation.push_of(dict(path))
    size = asked.get("pageSize")
    if isinstance(size, str) and size.isdecimal() and len(size) < 11:
        asked["pageSize"] = int(size) or None
    return validation.list_of(asked) if op == LIST else {}


def message_in(message: Any) -> Any:
    """proto-JSON's message in the form of 0.3's JSON-RPC; one that is in that form as it is."""
    if not isinstance(message, dict) or not isinstance(message.get("content"), list):
        return message
    found = {name: value for name, value in message.items() if name != "content"}
    found["parts"] = [_part_in(part) for part in message["content"]]
    return found


def _part_in(part: Any) -> Any:
    if not isinstance(part, dict) or "kind" in part:
        return part
    metadata = part.get("metadata") or None
    if isinstance(part.get("data"), dict):
        data = part["data"]
        inner = data["data"] if data.keys() == {"data"} else data
        return put({"kind": "data", "data": inner}, metadata=metadata)
    file = part.get("file")
    if not isinstance(file, dict):
        return part
    found = {name: file[name] for name in ("name", "mimeType") if file.get(name)}
    uri = file.get("fileWithUri") or file.get("uri")
    raw = file.get("fileWithBytes", file.get("bytes"))
    if uri and not raw:
        found["uri"] = uri
    elif raw is not None:
        found["bytes"] = bytes_in(raw) if "fileWithBytes" in file else raw
    return put({"kind": "file", "file": found}, metadata=metadata)


def bytes_in(value: Any) -> Any:
    """The SDKs of 0.3 put a file's base64 into the proto as its bytes, so that proto-JSON makes
    base64 of it a second time. A client that does it once is understood too, unless what it sends
    could be base64 itself."""
    once = base64_of(value) if isinstance(value, str) else None
    if once is None:
        return value
    try:
        inner = b64decode(once).decode("ascii")
    except UnicodeDecodeError:
        return once
    return inner if inner and len(inner) % 4 == 0 and base64_of(inner) == inner else once


def _push_set_in(task: str, body: Any) -> dict[str, Any]:
    """`{parent, configId, config{name, pushNotificationConfig{…}}}`, or the inner objects alone."""
    holder = body if isinstance(body, dict) else {}
    named = holder.get("configId")
    if isinstance(holder.get("config"), dict):
        holder = holder["config"]
    if isinstance(holder.get("pushNotificationConfig"), dict):
        holder = holder["pushNotificationConfig"]
    config = config_in(holder)
    if named and "id" not in config:
        config["id"] = named
    return {
        "taskId": validation.id_at({"taskId": task}, "taskId", "taskId"),
        **validation.config_of(config),
    }


# --- to the client --------------------------------------------------------------------------------


def rest_result_out(op: Op, value: Any) -> Any:
    """Clients refuse members that the proto has not, so there are none."""
    if op == SEND:
        if "task" in value:
            return {"task": task_out(value["task"])}
        return {"message": message_out(value["message"])}
    if op in (GET, CANCEL):
        return task_out(value)
    if op == LIST:
        # The proto has none; the text has an array of tasks as JSON-RPC shows them.
        return [v03_shapes.task_out(task) for task in value.get("tasks", [])]
    if op in (PUSH_SET, PUSH_GET):
        return push_config_out(value)
    if op == PUSH_LIST:
        return {"configs": [push_config_out(config) for config in value.get("configs", [])]}
    return {} if op == PUSH_DELETE else value


def part_out(part: Mapping[str, Any]) -> dict[str, Any]:
    metadata = part.get("metadata")
    if "text" in part:
        out: dict[str, Any] = {"text": part["text"]}
    elif "data" in part:
        data = part["data"]
        if not isinstance(data, dict):
            data, metadata = {"value": data}, {**(metadata or {}), WRAPPED: True}
        out = {"data": {"data": data}}
    else:
        file: dict[str, Any] = {}
        if "raw" in part:
            file["fileWithBytes"] = b64encode(part["raw"].encode()).decode()  # see bytes_in
        else:
            file["fileWithUri"] = part.get("url", "")
        put(file, name=part.get("filename"), mimeType=part.get("mediaType"))
        out = {"file": file}
    return put(out, metadata=metadata)


_MESSAGE = ("messageId", "contextId", "taskId", "role", "metadata", "extensions")


def message_out(message: Mapping[str, Any]) -> dict[str, Any]:
    out = {name: message[name] for name in _MESSAGE if message.get(name)}
    out["content"] = [part_out(part) for part in message.get("parts", [])]
    return out


def status_out(status: Mapping[str, Any]) -> dict[str, Any]:
    state = status.get("state", UNSPECIFIED)
    out: dict[str, Any] = {"state": "TASK_STATE_CANCELLED" if state == CANCELED else state}
    if "message" in status:
        out["message"] = message_out(status["message"])
    return put(out, timestamp=status.get("timestamp"))


def artifact_out(artifact: Mapping[str, Any]) -> dict[str, Any]:
    return {**artifact, "parts": [part_out(part) for part in artifact.get("parts", [])]}


def task_out(task: Mapping[str, Any]) -> dict[str, Any]:
    out: dict[str, Any] = {
        "id": task["id"],
        "contextId": task.get("contextId", ""),
        "status": status_out(task.get("status", {})),
    }
    if "artifacts" in task:
        out["artifacts"] = [artifact_out(artifact) for artifact in task["artifacts"]]
    if "history" in task:
        out["history"] = [message_out(message) for message in task["history"]]
    return put(out, metadata=task.get("metadata"))


def rest_event_out(event: Mapping[str, Any], *, final: bool) -> dict[str, Any]:
    if "statusUpdate" in event:
        update = event["statusUpdate"]
        status = status_out(update["status"])
        return {"statusUpdate": {**update, "status": status, "final": final}}
    if "artifactUpdate" in event:
        update = event["artifactUpdate"]
        return {"artifactUpdate": {**update, "artifact": artifact_out(update["artifact"])}}
    if "task" in event:
        return {"task": task_out(event["task"])}
    return {"message": message_out(event["message"])}


def push_config_out(config: Mapping[str, Any]) -> dict[str, Any]:
    task, id = config.get("taskId", ""), config.get("id", "")
    return {
        "name": f"tasks/{task}/pushNotificationConfigs/{id}",
        "pushNotificationConfig": config_out(config),
    }


def rest_error_out(error: A2aError) -> tuple[int, dict[str, Any]]:
    """The text does not say how an error looks; servers have a `message`, some the error's name, as
    `type` or as `error`, or its code."""
    words = error.reason.split("_")
    name = NAMES.get(error.reason) or "".join(map(str.capitalize, words)) + "Error"
    code = error.row.code
    return STATUS.get(error.reason, error.row.http), {
        "code": v03_shapes.CODES_DOWN.get(code, code),
        "error": name,
        "type": name,
        "message": error.message,
        "data": v03_shapes.error_data(error),
    }


# --- the hub as client ----------------------------------------------------------------------------

_REQUESTS: Mapping[Op, tuple[str, str]] = {
    route.op: (route.http, route.pattern) for route in reversed(ROUTES.table)
}


def rest_request_out(
    op: Op, request: Mapping[str, Any]
) -> tuple[str, str, dict[str, str], dict[str, Any] | None]:
    """The HTTP method, the path below the agent's URL, the query, the body."""
    http, pattern = _REQUESTS[op]
    path = pattern
    for name in ("id", "taskId"):
        path = path.replace("{" + name + "}", quote(str(request.get(name, "")), safe=""))
    if op in (SEND, STREAM):
        return http, path, {}, _send_out(request)
    if op == PUSH_SET:
        task = request.get("taskId", "")
        body = {
            "parent": f"tasks/{task}",
            "configId": request.get("id", ""),
            "config": push_config_out(request),
        }
        return http, path, {}, body
    if http == "POST":
        return http, path, {}, {}
    length = request.get("historyLength")
    return http, path, {} if length is None else {"historyLength": str(length)}, None


def rest_result_in(op: Op, value: Any) -> Any:
    return result_in(op, _plain(camelled(value)))


def rest_event_in(value: Any) -> dict[str, Any]:
    return event_in(_plain(camelled(value)))


def _plain(value: Any) -> Any:
    """The names and parts of proto-JSON, wherever they are, as JSON-RPC has them."""
    if isinstance(value, list):
        return [_plain(each) for each in value]
    if not isinstance(value, dict):
        return value
    found = {
        name: held if name in ("metadata", "parts", "content") else _plain(held)
        for name, held in value.items()
    }
    if isinstance(found.get("parts"), list):
        found["parts"] = [_part_in(part) for part in found["parts"]]
    return message_in(found)


def _send_out(request: Mapping[str, Any]) -> dict[str, Any]:
    plain = v03_shapes.send_out(request)
    configuration = plain["configuration"]
    push = configuration.pop("pushNotificationConfig", None)
    return {**plain, "message": message_out(request["message"])} | {
        "configuration": put(configuration, pushNotification=push)
    }
