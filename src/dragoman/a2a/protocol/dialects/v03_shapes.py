"""The objects of 0.2 and 0.3 in both directions: with a `kind`, in lower case, parts with a `file`.
What is parsed here is validated afterwards, in 1.0's form.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dragoman.a2a.protocol import validation
from dragoman.a2a.protocol.dialects.common_shapes import (
    ROLES_IN,
    ROLES_OUT,
    STATES_OUT,
    parse_part,
    parse_push_config,
    render_part,
    render_push_config,
)
from dragoman.a2a.protocol.dialects.operations import PUSH_DELETE, PUSH_LIST, SKILL, Op
from dragoman.a2a.protocol.errors import A2aError, invalid
from dragoman.a2a.protocol.validation import UNSPECIFIED, put

CODES_DOWN: Mapping[int, int] = {-32008: -32603, -32009: -32603}
"""Codes that 1.0 added, and their replacements."""


def parse_send(params: Mapping[str, Any]) -> dict[str, Any]:
    request: dict[str, Any] = {"message": parse_message(params.get("message"))}
    configuration = params.get("configuration")
    if configuration is not None:
        request["configuration"] = parse_configuration(configuration)
    return put(request, metadata=params.get("metadata"))


def parse_message(message: Any) -> Any:
    """Passes invalid values on, for the validation to reject. Rejects a part of an unknown kind,
    which has no form in 1.0."""
    if not isinstance(message, dict):
        return message
    role = message.get("role")
    found = {
        **message,
        "role": ROLES_IN.get(role, role) if isinstance(role, str) else role,
        "parts": parse_parts(message.get("parts")),
    }
    skill = message.get("skill")
    if isinstance(skill, dict) and isinstance(skill.get("skillId"), str):
        # clients of Rensei name the skill here; 1.0 has no member for it
        metadata = message.get("metadata")
        found["metadata"] = {**(metadata or {}), "skillId": skill["skillId"]}
    return found


def parse_parts(parts: Any) -> Any:
    if not isinstance(parts, list) or len(parts) > validation.MAX_PARTS:
        return parts
    found = []
    for index, part in enumerate(parts):
        understood = parse_part(part)
        if understood is None:
            raise invalid(f"message.parts[{index}]", "must be a part of kind text, file or data")
        found.append(understood)
    return found


def parse_configuration(given: Any) -> Any:
    if not isinstance(given, dict):
        return given
    found: dict[str, Any] = {}
    put(
        found,
        acceptedOutputModes=given.get("acceptedOutputModes"),
        historyLength=given.get("historyLength"),
        taskPushNotificationConfig=parse_push_config(
            given.get("pushNotificationConfig", given.get("pushNotification"))
        ),
    )
    blocking = validation.check_flag(given, "blocking", "configuration.blocking")
    if blocking is False:  # missing: wait, as in 1.0
        found["returnImmediately"] = True
    return found


def parse_push_set(params: Mapping[str, Any]) -> dict[str, Any]:
    task = validation.check_id(params, "taskId", "taskId")
    config = params.get("pushNotificationConfig")
    if not isinstance(config, dict):
        raise invalid("pushNotificationConfig", "is required, and is an object")
    return {
        "taskId": task,
        **validation.validate_push_config(parse_push_config(config), "pushNotificationConfig."),
    }


def parse_push_key(op: Op, params: Mapping[str, Any]) -> dict[str, Any]:
    """`id` is the task's; that of the configuration is optional where one is read."""
    request = {"taskId": validation.check_id(params, "id", "id")}
    if op == PUSH_LIST:
        return request
    name = "pushNotificationConfigId"
    config = validation.check_optional_id(params, name, name)
    if config is not None:
        request["id"] = config
    elif op == PUSH_DELETE:
        raise invalid(name, "is required")
    return request


# --- to the client --------------------------------------------------------------------------------


def render_part_03(part: Mapping[str, Any]) -> dict[str, Any]:
    return render_part(part, "kind")


def render_message(message: Mapping[str, Any]) -> dict[str, Any]:
    out: dict[str, Any] = {
        "kind": "message",
        "messageId": message.get("messageId", ""),
        "role": ROLES_OUT.get(message.get("role", ""), "agent"),
        "parts": [render_part_03(part) for part in message.get("parts", [])],
    }
    for name in ("contextId", "taskId", "metadata", "extensions", "referenceTaskIds"):
        if message.get(name):
            out[name] = message[name]
    return out


def render_status(status: Mapping[str, Any]) -> dict[str, Any]:
    out: dict[str, Any] = {"state": STATES_OUT[status.get("state", UNSPECIFIED)]}
    if "message" in status:
        out["message"] = render_message(status["message"])
    return put(out, timestamp=status.get("timestamp"))


def render_artifact(artifact: Mapping[str, Any]) -> dict[str, Any]:
    return {**artifact, "parts": [render_part_03(part) for part in artifact.get("parts", [])]}


def render_task(task: Mapping[str, Any]) -> dict[str, Any]:
    out: dict[str, Any] = {
        "kind": "task",
        "id": task["id"],
        "contextId": task.get("contextId", ""),
        "status": render_status(task.get("status", {})),
    }
    if "artifacts" in task:
        out["artifacts"] = [render_artifact(artifact) for artifact in task["artifacts"]]
    if "history" in task:
        out["history"] = [render_message(message) for message in task["history"]]
    return put(out, metadata=task.get("metadata"))


def render_task_push_config(config: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "taskId": config.get("taskId", ""),
        "pushNotificationConfig": render_push_config(config),
    }


def render_error(error: A2aError, codes_down: Mapping[int, int] = CODES_DOWN) -> dict[str, Any]:
    code = error.codes.code
    message, data = error.message, render_error_data(error)
    return {"code": codes_down.get(code, code), "message": message, "data": data}


def render_error_data(error: A2aError) -> dict[str, Any]:
    """The dialect leaves the data to the server; the reason tells what a replaced code does not."""
    data: dict[str, Any] = {"reason": error.reason}
    if error.metadata:
        data["metadata"] = error.metadata
    if error.violations:
        data["fieldViolations"] = [
            {"field": field, "description": description} for field, description in error.violations
        ]
    return data


def render_send(request: Mapping[str, Any]) -> dict[str, Any]:
    out: dict[str, Any] = {"message": render_message(request["message"])}
    configuration = request.get("configuration") or {}
    said: dict[str, Any] = {"blocking": not configuration.get("returnImmediately", False)}
    for name in ("acceptedOutputModes", "historyLength"):
        if name in configuration:
            said[name] = configuration[name]
    if configuration.get("taskPushNotificationConfig"):
        said["pushNotificationConfig"] = render_push_config(
            configuration["taskPushNotificationConfig"]
        )
    out["configuration"] = said
    return put(out, metadata=request.get("metadata"))


def find_skill_call(message: Mapping[str, Any]) -> tuple[str, str] | None:
    """Returns the id of the skill that a message calls, and the correlation id; None if none."""
    metadata = message.get("metadata")
    named = metadata.get(SKILL) if isinstance(metadata, dict) else None
    if not isinstance(named, dict) or "correlationId" not in named:
        return None
    return named["skillId"], named["correlationId"]


def render_skill_call(params: dict[str, Any]) -> dict[str, Any]:
    """Names the skill by members of 0.3's message, where 1.0 uses the extension."""
    called = find_skill_call(params["message"])
    if called is None:
        return params
    skill, session = called
    message = dict(params["message"])
    metadata = {key: value for key, value in message.pop("metadata").items() if key != SKILL}
    extensions = [uri for uri in message.pop("extensions", ()) if uri != SKILL]
    if metadata:
        message["metadata"] = metadata
    if extensions:
        message["extensions"] = extensions
    named = {"message": {"skill": {"skillId": skill}, **message}}
    return {**params, **named, "correlationId": session, "taskId": session}
