"""HTTP+JSON of 0.3 (`/v1/…`), which differs from its JSON-RPC: the SDKs use proto-JSON, with
`content` for a message's parts, `ROLE_USER`, `TASK_STATE_CANCELLED` with two L, and perhaps the
proto's own names. Requests in the other form are accepted too.
"""

from __future__ import annotations

from base64 import b64decode, b64encode
from collections.abc import Mapping
from typing import Any
from urllib.parse import quote

from dragoman.a2a.protocol import errors, validation
from dragoman.a2a.protocol.dialects import operations, v03_shapes
from dragoman.a2a.protocol.dialects.common_shapes import (
    WRAPPED,
    camelize,
    parse_push_config,
    render_push_config,
)
from dragoman.a2a.protocol.dialects.lenient_reader import parse_event, parse_result
from dragoman.a2a.protocol.dialects.operations import Op, RestRoutes
from dragoman.a2a.protocol.errors import A2aError, invalid
from dragoman.a2a.protocol.validation import CANCELED, UNSPECIFIED, normalize_base64, put

ROUTES = RestRoutes(
    (
        ("POST", "/v1/message:send", operations.SEND),
        ("POST", "/v1/message:stream", operations.STREAM),
        ("GET", "/v1/tasks", operations.LIST),
        ("GET", "/v1/card", operations.CARD),
        ("POST", "/v1/tasks/{id}:cancel", operations.CANCEL),
        ("GET", "/v1/tasks/{id}:subscribe", operations.SUBSCRIBE),  # the proto and the SDKs
        ("POST", "/v1/tasks/{id}:subscribe", operations.SUBSCRIBE),  # the text and the TCK
        ("GET", "/v1/tasks/{id}", operations.GET),
        ("POST", "/v1/tasks/{taskId}/pushNotificationConfigs", operations.PUSH_SET),
        ("GET", "/v1/tasks/{taskId}/pushNotificationConfigs", operations.PUSH_LIST),
        ("GET", "/v1/tasks/{taskId}/pushNotificationConfigs/{id}", operations.PUSH_GET),
        ("DELETE", "/v1/tasks/{taskId}/pushNotificationConfigs/{id}", operations.PUSH_DELETE),
    )
)

STATUS: Mapping[str, int] = {
    errors.TASK_NOT_CANCELABLE: 409,
    errors.PUSH_NOTIFICATION_NOT_SUPPORTED: 501,
    errors.UNSUPPORTED_OPERATION: 501,
    errors.CONTENT_TYPE_NOT_SUPPORTED: 415,
    errors.INVALID_AGENT_RESPONSE: 502,
    errors.EXTENDED_AGENT_CARD_NOT_CONFIGURED: 404,
}
"""Where servers of 0.3 use another status than 1.0.1's table."""
NAMES: Mapping[str, str] = {
    errors.PARSE_ERROR: "JSONParseError",
    errors.EXTENDED_AGENT_CARD_NOT_CONFIGURED: "AuthenticatedExtendedCardNotConfiguredError",
}


# --- from the client ------------------------------------------------------------------------------


def parse_rest_params(
    op: Op, path: Mapping[str, str], query: Mapping[str, str], body: Any
) -> dict[str, Any]:
    body = camelize(body)
    if op in (operations.SEND, operations.STREAM):
        if not isinstance(body, dict):
            raise invalid("message", "is required, and is an object")
        given = body.get("message", body.get("request"))
        message, settings = parse_message(given), body.get("configuration")
        if message is not given and isinstance(settings, dict) and "blocking" not in settings:
            # proto-JSON leaves out what is false, and the SDKs send true where they wait
            body = {**body, "configuration": {**settings, "blocking": False}}
        return validation.validate_send(v03_shapes.parse_send({**body, "message": message}))
    asked = camelize(dict(query))
    if op == operations.GET:
        length = asked.get("historyLength")
        if isinstance(length, str) and length.isdecimal() and len(length) < 11:
            length = int(length)
        return validation.validate_get(put({"id": path["id"]}, historyLength=length))
    if op in (operations.CANCEL, operations.SUBSCRIBE):
        return validation.validate_task_key({"id": path["id"]})
    if op == operations.PUSH_SET:
        return _parse_push_set(path["taskId"], body)
    if op == operations.PUSH_LIST:
        return validation.validate_push_list({"taskId": path["taskId"]})
    if op in (operations.PUSH_GET, operations.PUSH_DELETE):
        return validation.validate_push_key(dict(path))
    size = asked.get("pageSize")
    if isinstance(size, str) and size.isdecimal() and len(size) < 11:
        asked["pageSize"] = int(size) or None
    return validation.validate_list(asked) if op == operations.LIST else {}


def parse_message(message: Any) -> Any:
    """Converts a message from proto-JSON to the form of JSON-RPC, if it is not in it already."""
    if not isinstance(message, dict) or not isinstance(message.get("content"), list):
        return message
    found = {name: value for name, value in message.items() if name != "content"}
    found["parts"] = [_parse_part(part) for part in message["content"]]
    return found


def _parse_part(part: Any) -> Any:
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
        found["bytes"] = parse_file_bytes(raw) if "fileWithBytes" in file else raw
    return put({"kind": "file", "file": found}, metadata=metadata)


def parse_file_bytes(value: Any) -> Any:
    """The SDKs of 0.3 put a file's base64 into the proto as its bytes, so proto-JSON encodes it
    twice. A client that encodes once is understood too, unless its data could itself be base64."""
    once = normalize_base64(value) if isinstance(value, str) else None
    if once is None:
        return value
    try:
        inner = b64decode(once).decode("ascii")
    except UnicodeDecodeError:
        return once
    return inner if inner and len(inner) % 4 == 0 and normalize_base64(inner) == inner else once


def _parse_push_set(task: str, body: Any) -> dict[str, Any]:
    """Takes `{parent, configId, config{name, pushNotificationConfig{…}}}`, or an inner object."""
    holder = body if isinstance(body, dict) else {}
    named = holder.get("configId")
    if isinstance(holder.get("config"), dict):
        holder = holder["config"]
    if isinstance(holder.get("pushNotificationConfig"), dict):
        holder = holder["pushNotificationConfig"]
    config = parse_push_config(holder)
    if named and "id" not in config:
        config["id"] = named
    return {
        "taskId": validation.check_id({"taskId": task}, "taskId", "taskId"),
        **validation.validate_push_config(config),
    }


# --- to the client --------------------------------------------------------------------------------


def render_rest_result(op: Op, value: Any) -> Any:
    """Clients reject members that the proto does not have, so there are none."""
    if op == operations.SEND:
        if "task" in value:
            return {"task": render_task(value["task"])}
        return {"message": render_message(value["message"])}
    if op in (operations.GET, operations.CANCEL):
        return render_task(value)
    if op == operations.LIST:
        # Not in the proto; in the text, an array of tasks in the form of JSON-RPC.
        return [v03_shapes.render_task(task) for task in value.get("tasks", [])]
    if op in (operations.PUSH_SET, operations.PUSH_GET):
        return render_task_push_config(value)
    if op == operations.PUSH_LIST:
        return {"configs": [render_task_push_config(config) for config in value.get("configs", [])]}
    return {} if op == operations.PUSH_DELETE else value


def render_part(part: Mapping[str, Any]) -> dict[str, Any]:
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
            file["fileWithBytes"] = b64encode(part["raw"].encode()).decode()  # see parse_file_bytes
        else:
            file["fileWithUri"] = part.get("url", "")
        put(file, name=part.get("filename"), mimeType=part.get("mediaType"))
        out = {"file": file}
    return put(out, metadata=metadata)


_MESSAGE = ("messageId", "contextId", "taskId", "role", "metadata", "extensions")


def render_message(message: Mapping[str, Any]) -> dict[str, Any]:
    out = {name: message[name] for name in _MESSAGE if message.get(name)}
    out["content"] = [render_part(part) for part in message.get("parts", [])]
    return out


def render_status(status: Mapping[str, Any]) -> dict[str, Any]:
    state = status.get("state", UNSPECIFIED)
    out: dict[str, Any] = {"state": "TASK_STATE_CANCELLED" if state == CANCELED else state}
    if "message" in status:
        out["message"] = render_message(status["message"])
    return put(out, timestamp=status.get("timestamp"))


def render_artifact(artifact: Mapping[str, Any]) -> dict[str, Any]:
    return {**artifact, "parts": [render_part(part) for part in artifact.get("parts", [])]}


def render_task(task: Mapping[str, Any]) -> dict[str, Any]:
    out: dict[str, Any] = {
        "id": task["id"],
        "contextId": task.get("contextId", ""),
        "status": render_status(task.get("status", {})),
    }
    if "artifacts" in task:
        out["artifacts"] = [render_artifact(artifact) for artifact in task["artifacts"]]
    if "history" in task:
        out["history"] = [render_message(message) for message in task["history"]]
    return put(out, metadata=task.get("metadata"))


def render_rest_event(event: Mapping[str, Any], *, final: bool) -> dict[str, Any]:
    if "statusUpdate" in event:
        update = event["statusUpdate"]
        status = render_status(update["status"])
        return {"statusUpdate": {**update, "status": status, "final": final}}
    if "artifactUpdate" in event:
        update = event["artifactUpdate"]
        return {"artifactUpdate": {**update, "artifact": render_artifact(update["artifact"])}}
    if "task" in event:
        return {"task": render_task(event["task"])}
    return {"message": render_message(event["message"])}


def render_task_push_config(config: Mapping[str, Any]) -> dict[str, Any]:
    task, id = config.get("taskId", ""), config.get("id", "")
    return {
        "name": f"tasks/{task}/pushNotificationConfigs/{id}",
        "pushNotificationConfig": render_push_config(config),
    }


def render_rest_error(error: A2aError) -> tuple[int, dict[str, Any]]:
    """The text does not specify errors; servers send a `message`, and some the error's name, as
    `type` or as `error`, or its code."""
    words = error.reason.split("_")
    name = NAMES.get(error.reason) or "".join(map(str.capitalize, words)) + "Error"
    shown = {**v03_shapes.render_error(error), "error": name, "type": name}
    return STATUS.get(error.reason, error.codes.http), shown


# --- the hub as client ----------------------------------------------------------------------------


def build_rest_request(
    op: Op, request: Mapping[str, Any]
) -> tuple[str, str, dict[str, str], dict[str, Any] | None]:
    """Returns the HTTP method, the path below the agent's URL, the query and the body."""
    route = ROUTES.by_op[op]
    http, path = route.http, route.pattern
    for name in ("id", "taskId"):
        path = path.replace("{" + name + "}", quote(str(request.get(name, "")), safe=""))
    if op in (operations.SEND, operations.STREAM):
        return http, path, {}, _render_send(request)
    if op == operations.PUSH_SET:
        task = request.get("taskId", "")
        body = {
            "parent": f"tasks/{task}",
            "configId": request.get("id", ""),
            "config": render_task_push_config(request),
        }
        return http, path, {}, body
    if http == "POST":
        return http, path, {}, {}
    length = request.get("historyLength")
    return http, path, {} if length is None else {"historyLength": str(length)}, None


def parse_rest_result(op: Op, value: Any) -> Any:
    if op == operations.CARD:
        return parse_result(op, value)  # as it was signed
    return parse_result(op, _convert_proto_json(camelize(value)))


def parse_rest_event(value: Any) -> dict[str, Any]:
    return parse_event(_convert_proto_json(camelize(value)))


def _convert_proto_json(value: Any) -> Any:
    """Converts proto-JSON at any depth to the names and parts of JSON-RPC."""
    if isinstance(value, list):
        return [_convert_proto_json(each) for each in value]
    if not isinstance(value, dict):
        return value
    found = {
        name: held if name in ("metadata", "parts", "content") else _convert_proto_json(held)
        for name, held in value.items()
    }
    if isinstance(found.get("parts"), list):
        found["parts"] = [_parse_part(part) for part in found["parts"]]
    return parse_message(found)


def _render_send(request: Mapping[str, Any]) -> dict[str, Any]:
    plain = v03_shapes.render_send(request)
    configuration = plain["configuration"]
    push = configuration.pop("pushNotificationConfig", None)
    return {**plain, "message": render_message(request["message"])} | {
        "configuration": put(configuration, pushNotification=push)
    }
