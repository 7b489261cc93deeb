"""What other agents answer, in whatever dialect or mixture of dialects, in 1.0's form.

Cards say one version and wires another: naive timestamps, states in lower case beside 1.0's names,
discriminators of two kinds or none, a bare task where a wrapper belongs. All of it is read here, by
what is there and not by what was announced; what cannot be read as an answer at all is refused.
What comes out has the members of 1.0 and no others.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any
from uuid import uuid4

from dragoman.a2a.protocol.dialects.common_shapes import config_in, part_in, put, state_in
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
    base64_of,
    instant,
)

_NAIVE = re.compile(r"\d{4}-\d\d-\d\d[Tt ]\d\d:\d\d:\d\d(?:\.\d{1,9})?")
_CONFIG = re.compile(r"tasks/([^/]+)/pushNotificationConfigs/([^/]*)")
_BARE_MESSAGE = frozenset(("messageId", "role", "parts", "kind"))
_OF_A_TASK = frozenset(
    ("artifacts", "history", "messages", "contextId", "context_id", "sessionId", "message")
)


def pick(holder: Mapping[str, Any], *names: str) -> Any:
    """The first of those members that is there."""
    for name in names:
        value = holder.get(name)
        if value is not None:
            return value
    return None


def _text(holder: Mapping[str, Any], *names: str) -> str | None:
    value = pick(holder, *names)
    return value if isinstance(value, str) and value else None


def _id(holder: Mapping[str, Any], *names: str) -> str | None:
    value = pick(holder, *names)
    id = str(value) if isinstance(value, str | int) and not isinstance(value, bool) else ""
    return id if 0 < len(id) <= MAX_ID and id.isprintable() else None


def _object(holder: Mapping[str, Any], name: str) -> dict[str, Any] | None:
    value = holder.get(name)
    return value if isinstance(value, dict) and value else None


def _names(holder: Mapping[str, Any], *names: str) -> list[str] | None:
    value = pick(holder, *names)
    if not isinstance(value, list):
        return None
    return [each for each in value if isinstance(each, str)] or None


def timestamp_in(value: Any) -> str | None:
    """A time without a zone is taken for UTC's."""
    if not isinstance(value, str):
        return None
    said = f"{value}Z" if _NAIVE.fullmatch(value) else value
    seconds = instant(said)
    if seconds is None:
        return None
    if said.endswith("Z") and said[10] == "T":
        return said
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="milliseconds")[:-6] + "Z"


# --- the objects ----------------------------------------------------------------------------------


def part(value: Any) -> dict[str, Any]:
    """What is no part that we know goes on as data, so that nothing is lost."""
    if isinstance(value, str):
        return {"text": value}
    if isinstance(value, dict) and len(value) == 1 and isinstance(value.get("text"), str):
        return {"text": value["text"]}  # as most are
    found = part_in(value)
    if found is None:
        return {"data": value}
    if "raw" in found:
        found["raw"] = base64_of(found["raw"]) if isinstance(found["raw"], str) else None
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


def parts(value: Any) -> list[dict[str, Any]]:
    if isinstance(value, list):
        return [part(each) for each in value]
    return [] if value is None else [part(value)]


def role_in(value: Any) -> str:
    return USER if isinstance(value, str) and value.lower() in ("user", "role_user") else AGENT


def message(value: Any) -> dict[str, Any]:
    if not isinstance(value, dict):
        value = {"parts": value}
    elif not any(name in value for name in ("parts", "content", "role")):
        # python-a2a says {"error": "..."} where a message belongs
        value = {"parts": pick(value, "error", "text") or value}
    found: dict[str, Any] = {
        "messageId": _id(value, "messageId", "message_id") or str(uuid4()),
        "role": role_in(value.get("role")),
        "parts": parts(pick(value, "parts", "content")),
    }
    if value.keys() <= _BARE_MESSAGE:
        return found
    return put(
        found,
        contextId=_id(value, "contextId", "context_id", "sessionId", "conversation_id"),
        taskId=_id(value, "taskId", "task_id"),
        metadata=_object(value, "metadata"),
        extensions=_names(value, "extensions"),
        referenceTaskIds=_names(value, "referenceTaskIds", "reference_task_ids"),
    )


def artifact(value: Any, position: int = 0) -> dict[str, Any]:
    if not isinstance(value, dict):
        value = {"parts": value}
    index = value.get("index")
    index = index if isinstance(index, int) else position
    found: dict[str, Any] = {
        "artifactId": _id(value, "artifactId", "artifact_id") or f"artifact-{index}",
        "parts": parts(pick(value, "parts", "content")),
    }
    return put(
        found,
        name=_text(value, "name"),
        description=_text(value, "description"),
        metadata=_object(value, "metadata"),
        extensions=_names(value, "extensions"),
    )


def status(value: Any) -> dict[str, Any]:
    if not isinstance(value, dict):
        return {"state": state_in(value)}
    found: dict[str, Any] = {"state": state_in(value.get("state"))}
    said = pick(value, "message", "update")
    if said:
        found["message"] = message(said)
    return put(found, timestamp=timestamp_in(value.get("timestamp")))


def task(value: Any) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise _no_answer("a task")
    id = _id(value, "id", "taskId", "task_id")
    if id is None:
        raise _no_answer("a task with an id")
    found: dict[str, Any] = {"id": id, "status": status(value.get("status"))}
    put(found, contextId=_id(value, "contextId", "context_id", "sessionId", "session_id"))
    bare = isinstance(value.get("status"), str)  # the seed's
    artifacts, history = value.get("artifacts"), value.get("messages" if bare else "history")
    if isinstance(artifacts, list) and artifacts:
        found["artifacts"] = [artifact(each, at) for at, each in enumerate(artifacts)]
    if isinstance(history, list) and history:
        found["history"] = [message(each) for each in history]
    put(found, metadata=_object(value, "metadata"))
    return _reply_out_of_history(found) if bare else found


def _reply_out_of_history(found: dict[str, Any]) -> dict[str, Any]:
    """The seed's task has its reply as the last of the messages, and nowhere else."""
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


def _status_update(value: Mapping[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = {
        "taskId": _id(value, "taskId", "task_id", "id") or "",
        "contextId": _id(value, "contextId", "context_id", "sessionId") or "",
        "status": status(value.get("status")),
    }
    return {"statusUpdate": put(found, metadata=_object(value, "metadata"))}


def _artifact_update(value: Mapping[str, Any]) -> dict[str, Any]:
    given = value.get("artifact")
    given = given if isinstance(given, dict) else {}
    found: dict[str, Any] = {
        "taskId": _id(value, "taskId", "task_id", "id") or "",
        "contextId": _id(value, "contextId", "context_id", "sessionId") or "",
        "artifact": artifact(given),
    }
    # 0.1 has them in the artifact
    if pick(value, "append") is True or given.get("append") is True:
        found["append"] = True
    last = pick(value, "lastChunk", "last_chunk")
    if last is True or (last is None and pick(given, "lastChunk", "last_chunk") is True):
        found["lastChunk"] = True
    return {"artifactUpdate": put(found, metadata=_object(value, "metadata"))}


# --- answers --------------------------------------------------------------------------------------

_WRAPPERS = (
    ("task", "task"),
    ("statusUpdate", "statusUpdate"),
    ("status_update", "statusUpdate"),
    ("artifactUpdate", "artifactUpdate"),
    ("artifact_update", "artifactUpdate"),
)


def event_in(value: Any) -> dict[str, Any]:
    """A StreamResponse."""
    if not isinstance(value, dict):
        raise _no_answer("an event")
    if len(value) == 1 and isinstance(value.get("message"), dict):
        return {"message": message(value["message"])}
    for name, inner in _WRAPPERS:
        if isinstance(value.get(name), dict):
            return _of_kind(inner, value[name])
    kind = _KINDS.get(str(value.get("kind")))
    if kind is not None:
        return _of_kind(kind, value)
    if isinstance(value.get("artifact"), dict):
        return _of_kind("artifactUpdate", value)
    if "status" in value:
        # 0.1's status event is an id and a status, as is a task that has nothing else
        whole = "id" in value and "final" not in value and not _OF_A_TASK.isdisjoint(value)
        return _of_kind("task" if whole else "statusUpdate", value)
    if "role" in value or "parts" in value or "content" in value:
        return {"message": message(value)}
    if isinstance(value.get("message"), dict):
        return {"message": message(value["message"])}
    raise _no_answer("a task, a message or an event of one")


_KINDS: Mapping[str, str] = {
    "task": "task",
    "message": "message",
    "status-update": "statusUpdate",
    "artifact-update": "artifactUpdate",
}


def _of_kind(kind: str, value: dict[str, Any]) -> dict[str, Any]:
    if kind == "task":
        return {"task": task(value)}
    if kind == "message":
        return {"message": message(value)}
    return _status_update(value) if kind == "statusUpdate" else _artifact_update(value)


def ends_stream(value: Any) -> bool:
    """Whether an event of 0.1 to 0.3 says that it is the last, after which some keep the
    connection open."""
    if not isinstance(value, dict):
        return False
    update = pick(value, "statusUpdate", "status_update")
    return (update if isinstance(update, dict) else value).get("final") is True


def result_in(op: Op, value: Any) -> Any:
    if op == SEND:
        found = event_in(value)
        if "statusUpdate" in found:
            return {"task": task(value)}
        if "artifactUpdate" in found:
            raise _no_answer("a task or a message")
        return found
    if op in (GET, CANCEL):
        inner = value.get("task") if isinstance(value, dict) else None
        return task(inner if isinstance(inner, dict) else value)
    if op == LIST:
        return _tasks(value)
    if op == PUSH_DELETE:
        return {}
    if op == PUSH_LIST:
        configs = value.get("configs", []) if isinstance(value, dict) else value
        configs = configs if isinstance(configs, list) else []
        return {"configs": [push_config(each) for each in configs], "nextPageToken": ""}
    if op == CARD:
        if not isinstance(value, dict):
            raise _no_answer("a card")
        return value
    return push_config(value)


def _tasks(value: Any) -> dict[str, Any]:
    page = value if isinstance(value, dict) else {"tasks": value}
    tasks = page.get("tasks")
    if tasks is not None and not isinstance(tasks, list):
        raise _no_answer("a list of tasks")
    found = [task(each) for each in tasks or []]
    size, total = pick(page, "pageSize", "page_size"), pick(page, "totalSize", "total_size")
    return {
        "tasks": found,
        "nextPageToken": _text(page, "nextPageToken", "next_page_token") or "",
        "pageSize": size if isinstance(size, int) else len(found),
        "totalSize": total if isinstance(total, int) else len(found),
    }


def push_config(value: Any) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise _no_answer("a push configuration")
    inner = pick(value, "pushNotificationConfig", "push_notification_config")
    nested = isinstance(inner, dict)
    found: dict[str, Any] = config_in(inner if nested else value)
    task_id = _id(value, "taskId", "task_id") or (_id(value, "id") if nested else None)
    named = _CONFIG.fullmatch(str(value.get("name", "")))
    if named is not None:
        task_id = task_id or named[1]
        if named[2]:
            found.setdefault("id", named[2])
    return put(found, taskId=task_id)


def _no_answer(wanted: str) -> A2aError:
    return A2aError(
        INVALID_AGENT_RESPONSE, f"the agent answered with something that is not {wanted}"
    )
