"""Converts the answers of other agents, in any dialect or mixture of dialects, to 1.0's form.

Agents often speak another version than their card declares: naive timestamps, states in lower case
beside 1.0's names, discriminators of two kinds or none, a bare task where a wrapper belongs. So
answers are read by their members and not by the declared version; an unreadable answer is an error.
The result has only members of 1.0.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any
from uuid import uuid4

from dragoman.a2a.protocol.dialects.common_shapes import (
    STATES_OUT,
    parse_part,
    parse_push_config,
    parse_state,
)
from dragoman.a2a.protocol.dialects.operations import (
    CANCEL,
    CARD,
    GET,
    LIST,
    PUSH_DELETE,
    PUSH_LIST,
    RESPONSE,
    SEND,
    Op,
)
from dragoman.a2a.protocol.errors import INVALID_AGENT_RESPONSE, A2aError
from dragoman.a2a.protocol.validation import (
    AGENT,
    COMPLETED,
    CONTENT,
    MAX_ID,
    PART,
    USER,
    normalize_base64,
    put,
    seconds_from_timestamp,
)

_NAIVE = re.compile(r"\d{4}-\d\d-\d\d[Tt ]\d\d:\d\d:\d\d(?:\.\d{1,9})?")
_CONFIG = re.compile(r"tasks/([^/]+)/pushNotificationConfigs/([^/]*)")
_BARE_MESSAGE = frozenset(("messageId", "role", "parts", "kind"))
_PLAIN_MESSAGE = frozenset(("messageId", "role", "parts"))
_BARE_ARTIFACT = frozenset(("artifactId", "parts"))
_OF_A_TASK = frozenset(
    ("artifacts", "history", "messages", "contextId", "context_id", "sessionId", "message")
)


def pick(holder: Mapping[str, Any], *names: str) -> Any:
    """Returns the first of these members that is not None."""
    for name in names:
        value = holder.get(name)
        if value is not None:
            return value
    return None


def _read_text(holder: Mapping[str, Any], *names: str) -> str | None:
    value = pick(holder, *names)
    return value if isinstance(value, str) and value else None


def _read_id(holder: Mapping[str, Any], name: str, *others: str) -> str | None:
    value = holder.get(name)
    if value is None:
        value = pick(holder, *others)
    id = str(value) if isinstance(value, str | int) and not isinstance(value, bool) else ""
    return id if 0 < len(id) <= MAX_ID and id.isprintable() else None


def _read_object(holder: Mapping[str, Any], name: str) -> dict[str, Any] | None:
    value = holder.get(name)
    return value if isinstance(value, dict) and value else None


def _read_names(holder: Mapping[str, Any], *names: str) -> list[str] | None:
    value = pick(holder, *names)
    if not isinstance(value, list):
        return None
    return [each for each in value if isinstance(each, str)] or None


def parse_timestamp(value: Any) -> str | None:
    """A time without a zone is read as UTC."""
    if not isinstance(value, str):
        return None
    said = f"{value}Z" if _NAIVE.fullmatch(value) else value
    seconds = seconds_from_timestamp(said)
    if seconds is None:
        return None
    if said.endswith("Z") and said[10] == "T":
        return said
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="milliseconds")[:-6] + "Z"


# --- the objects ----------------------------------------------------------------------------------


def read_part(value: Any) -> dict[str, Any]:
    """Returns an unknown part as data, so that nothing is lost."""
    if isinstance(value, str):
        return {"text": value}
    if isinstance(value, dict) and len(value) == 1 and isinstance(value.get("text"), str):
        return {"text": value["text"]}  # the usual case
    found = parse_part(value)
    if found is None:
        return {"data": value}
    if "raw" in found:
        found["raw"] = normalize_base64(found["raw"]) if isinstance(found["raw"], str) else None
    kept = {
        name: held
        for name, held in found.items()
        if name in PART
        and (
            name == "data"
            or (isinstance(held, dict) if name == "metadata" else isinstance(held, str))
        )
    }
    contents = [name for name in CONTENT if name in kept]
    if not contents:
        return {"data": value}
    one = next((name for name in contents if kept[name] != ""), contents[0])
    for name in contents:
        if name != one:
            del kept[name]
    return kept


def read_parts(value: Any) -> list[dict[str, Any]]:
    if isinstance(value, list):
        return [read_part(each) for each in value]
    return [] if value is None else [read_part(value)]


def parse_role(value: Any) -> str:
    return USER if isinstance(value, str) and value.lower() in ("user", "role_user") else AGENT


def _is_plain(message: dict[str, Any]) -> bool:
    """Whether it is a message of 1.0 with texts only, which needs no conversion."""
    if message.keys() != _PLAIN_MESSAGE or message["role"] != AGENT:
        return False
    id, parts = message["messageId"], message["parts"]
    if not isinstance(id, str) or not 0 < len(id) <= MAX_ID or not id.isprintable():
        return False
    if not isinstance(parts, list):
        return False
    for part in parts:
        if type(part) is not dict or len(part) != 1 or type(part.get("text")) is not str:
            return False
    return True


def read_message(value: Any) -> dict[str, Any]:
    if isinstance(value, dict) and _is_plain(value):
        return value
    if not isinstance(value, dict):
        value = {"parts": value}
    elif not any(name in value for name in ("parts", "content", "role")):
        # python-a2a sends {"error": "..."} in place of a message
        value = {"parts": pick(value, "error", "text") or value}
    found: dict[str, Any] = {
        "messageId": _read_id(value, "messageId", "message_id") or str(uuid4()),
        "role": parse_role(value.get("role")),
        "parts": read_parts(pick(value, "parts", "content")),
    }
    if value.keys() <= _BARE_MESSAGE:
        return found
    return put(
        found,
        contextId=_read_id(value, "contextId", "context_id", "sessionId", "conversation_id"),
        taskId=_read_id(value, "taskId", "task_id"),
        metadata=_read_object(value, "metadata"),
        extensions=_read_names(value, "extensions"),
        referenceTaskIds=_read_names(value, "referenceTaskIds", "reference_task_ids"),
    )


def read_artifact(value: Any, position: int = 0) -> dict[str, Any]:
    if not isinstance(value, dict):
        value = {"parts": value}
    index = value.get("index")
    index = index if isinstance(index, int) else position
    found: dict[str, Any] = {
        "artifactId": _read_id(value, "artifactId", "artifact_id") or f"artifact-{index}",
        "parts": read_parts(pick(value, "parts", "content")),
    }
    if value.keys() <= _BARE_ARTIFACT:
        return found
    return put(
        found,
        name=_read_text(value, "name"),
        description=_read_text(value, "description"),
        metadata=_read_object(value, "metadata"),
        extensions=_read_names(value, "extensions"),
    )


def read_status(value: Any) -> dict[str, Any]:
    if not isinstance(value, dict):
        return {"state": parse_state(value)}
    state = value.get("state")
    is_known = isinstance(state, str) and state in STATES_OUT
    found: dict[str, Any] = {"state": state if is_known else parse_state(state)}
    if len(value) == 1:
        return found
    said = pick(value, "message", "update")
    if said:
        found["message"] = read_message(said)
    if (timestamp := parse_timestamp(value.get("timestamp"))) is not None:
        found["timestamp"] = timestamp
    return found


def read_task(value: Any) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise _build_error("a task")
    id = _read_id(value, "id", "taskId", "task_id")
    if id is None:
        raise _build_error("a task with an id")
    found: dict[str, Any] = {"id": id, "status": read_status(value.get("status"))}
    context = _read_id(value, "contextId", "context_id", "sessionId", "session_id")
    if context is not None:
        found["contextId"] = context
    bare = isinstance(value.get("status"), str)  # a bare task
    artifacts, history = value.get("artifacts"), value.get("messages" if bare else "history")
    if isinstance(artifacts, list) and artifacts:
        found["artifacts"] = [read_artifact(each, at) for at, each in enumerate(artifacts)]
    if isinstance(history, list) and history:
        found["history"] = [read_message(each) for each in history]
    if (metadata := _read_object(value, "metadata")) is not None:
        found["metadata"] = metadata
    return _move_reply_out_of_history(found) if bare else found


def _move_reply_out_of_history(found: dict[str, Any]) -> dict[str, Any]:
    """A bare task has its reply as the last of the messages, and nowhere else."""
    history = found.get("history", [])
    if not history or history[-1]["role"] != AGENT:
        return found
    reply = history.pop()
    if not history:
        del found["history"]
    if found["status"]["state"] == COMPLETED:
        said = {"artifactId": RESPONSE, "name": RESPONSE, "parts": reply["parts"]}
        found["artifacts"] = [*found.get("artifacts", []), said]
    else:
        found["status"]["message"] = reply
    return found


def _read_status_update(value: Mapping[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = {
        "taskId": _read_id(value, "taskId", "task_id", "id") or "",
        "contextId": _read_id(value, "contextId", "context_id", "sessionId") or "",
        "status": read_status(value.get("status")),
    }
    return {"statusUpdate": put(found, metadata=_read_object(value, "metadata"))}


def _read_artifact_update(value: Mapping[str, Any]) -> dict[str, Any]:
    given = value.get("artifact")
    given = given if isinstance(given, dict) else {}
    found: dict[str, Any] = {
        "taskId": _read_id(value, "taskId", "task_id", "id") or "",
        "contextId": _read_id(value, "contextId", "context_id", "sessionId") or "",
        "artifact": read_artifact(given),
    }
    # in 0.1 they are members of the artifact
    if pick(value, "append") is True or given.get("append") is True:
        found["append"] = True
    last = pick(value, "lastChunk", "last_chunk")
    if last is True or (last is None and pick(given, "lastChunk", "last_chunk") is True):
        found["lastChunk"] = True
    return {"artifactUpdate": put(found, metadata=_read_object(value, "metadata"))}


# --- answers --------------------------------------------------------------------------------------

_WRAPPERS = (
    ("task", "task"),
    ("statusUpdate", "statusUpdate"),
    ("status_update", "statusUpdate"),
    ("artifactUpdate", "artifactUpdate"),
    ("artifact_update", "artifactUpdate"),
)


def parse_event(value: Any) -> dict[str, Any]:
    """Reads a StreamResponse."""
    if not isinstance(value, dict):
        raise _build_error("an event")
    if len(value) == 1:  # the usual answers to a message
        if isinstance(value.get("message"), dict):
            return {"message": read_message(value["message"])}
        if isinstance(value.get("task"), dict):
            return {"task": read_task(value["task"])}
    for name, inner in _WRAPPERS:
        if isinstance(value.get(name), dict):
            return _read_kind(inner, value[name])
    kind = _KINDS.get(str(value.get("kind")))
    if kind is not None:
        return _read_kind(kind, value)
    if isinstance(value.get("artifact"), dict):
        return _read_kind("artifactUpdate", value)
    if "status" in value:
        # in 0.1 a status event is an id and a status, and so is a task without other members
        whole = "id" in value and "final" not in value and not _OF_A_TASK.isdisjoint(value)
        return _read_kind("task" if whole else "statusUpdate", value)
    if "role" in value or "parts" in value or "content" in value:
        return {"message": read_message(value)}
    if isinstance(value.get("message"), dict):
        return {"message": read_message(value["message"])}
    raise _build_error("a task, a message or an event of one")


_KINDS: Mapping[str, str] = {
    "task": "task",
    "message": "message",
    "status-update": "statusUpdate",
    "artifact-update": "artifactUpdate",
}


def _read_kind(kind: str, value: dict[str, Any]) -> dict[str, Any]:
    if kind == "task":
        return {"task": read_task(value)}
    if kind == "message":
        return {"message": read_message(value)}
    return _read_status_update(value) if kind == "statusUpdate" else _read_artifact_update(value)


def ends_stream(value: Any) -> bool:
    """Whether an event of 0.1 to 0.3 is marked as the last; some agents keep the connection open
    after it."""
    if not isinstance(value, dict):
        return False
    update = pick(value, "statusUpdate", "status_update")
    return (update if isinstance(update, dict) else value).get("final") is True


def parse_result(op: Op, value: Any) -> Any:
    if op == SEND:
        found = parse_event(value)
        if "statusUpdate" in found:
            return {"task": read_task(value)}
        if "artifactUpdate" in found:
            raise _build_error("a task or a message")
        return found
    if op in (GET, CANCEL):
        inner = value.get("task") if isinstance(value, dict) else None
        return read_task(inner if isinstance(inner, dict) else value)
    if op == LIST:
        return _read_task_list(value)
    if op == PUSH_DELETE:
        return {}
    if op == PUSH_LIST:
        configs = value.get("configs", []) if isinstance(value, dict) else value
        configs = configs if isinstance(configs, list) else []
        return {"configs": [read_push_config(each) for each in configs], "nextPageToken": ""}
    if op == CARD:
        if not isinstance(value, dict):
            raise _build_error("a card")
        return value
    return read_push_config(value)


def _read_task_list(value: Any) -> dict[str, Any]:
    page = value if isinstance(value, dict) else {"tasks": value}
    tasks = page.get("tasks")
    if tasks is not None and not isinstance(tasks, list):
        raise _build_error("a list of tasks")
    found = [read_task(each) for each in tasks or []]
    size, total = pick(page, "pageSize", "page_size"), pick(page, "totalSize", "total_size")
    return {
        "tasks": found,
        "nextPageToken": _read_text(page, "nextPageToken", "next_page_token") or "",
        "pageSize": size if isinstance(size, int) else len(found),
        "totalSize": total if isinstance(total, int) else len(found),
    }


def read_push_config(value: Any) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise _build_error("a push configuration")
    inner = pick(value, "pushNotificationConfig", "push_notification_config")
    nested = isinstance(inner, dict)
    found: dict[str, Any] = parse_push_config(inner if nested else value)
    task_id = _read_id(value, "taskId", "task_id") or (_read_id(value, "id") if nested else None)
    named = _CONFIG.fullmatch(str(value.get("name", "")))
    if named is not None:
        task_id = task_id or named[1]
        if named[2]:
            found.setdefault("id", named[2])
    return put(found, taskId=task_id)


def _build_error(wanted: str) -> A2aError:
    return A2aError(INVALID_AGENT_RESPONSE, f"the agent's answer is not {wanted}")
