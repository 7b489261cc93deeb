"""The state of a task on a remote agent, built from its events and snapshots, and its result.

Pure and bounded: an agent that produces more than a result may hold is an error. A result is what a
program can use (the object, the text, or the whole artifact if it has several parts, these in the
agent's own dialect) and the same as content blocks for models.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping, Sequence
from typing import Any
from uuid import uuid4

from dragoman.a2a.client.event_stream import INTERRUPTED, TERMINAL
from dragoman.a2a.protocol.dialects import render_parts
from dragoman.a2a.protocol.dialects.operations import RESPONSE
from dragoman.a2a.protocol.parts import (
    block_from_part,
    find_structured_part,
    join_texts,
    part_from_block,
)
from dragoman.a2a.protocol.validation import AUTH_REQUIRED, COMPLETED, FAILED, REJECTED
from dragoman.core.call import (
    ABSENT,
    FORM,
    NOTHING,
    URL,
    Artifact,
    Call,
    Progress,
    Question,
    Result,
    StatusMessage,
    TaskStarted,
    Updates,
)
from dragoman.core.conversations import Conversation
from dragoman.core.errors import BadReply, Declined, HubError, InvalidInput, WorkFailed
from dragoman.wire.json import MAX_BYTES, encode

Parts = Sequence[Mapping[str, Any]]

MAX_ID = 1_024
MAX_TEXT = 4_000
MAX_ARTIFACTS = 1_000
ARTIFACT_BYTES = 32
"""What an artifact or a piece of one counts beside its content."""
MAX_SAID = MAX_METADATA = 64 * 1024
"""Bytes of a status message, and of any metadata."""
MAX_EXTENSIONS = 100
MAX_USAGE, MAX_USAGE_NAME = 32, 64
REPLY, AUTH = "reply", "auth"
"""The names of the questions that an agent may ask."""

_ADDRESS = re.compile(r"https?://[^\s<>\"'`]{1,2000}")
_TEXT_ONLY = {"text"}
_ARTIFACT = frozenset(("artifactId", "name", "description", "parts"))


class RemoteTask:
    """`agent` is the agent's name; `updates` receives progress and artifacts. `chosen_id` is the id
    that the client asked for, which the agent need not have used."""

    # Class attributes: most tasks are over after their first event and set few of them.
    state = ""
    message: Mapping[str, Any] | None = None
    """An answer without a task."""
    status_message: Mapping[str, Any] | None = None
    has_events = False
    is_over = False
    """Whether it has its answer or a terminal state."""
    is_settled = False
    """Whether there is nothing to wait for: it is over, or asks something."""
    lacks_result = False
    """Whether it completed without any result in its events; a snapshot may have one."""
    size = 0
    """Bytes of its artifacts."""
    usage: Mapping[str, float] = NOTHING
    _lasts = False
    _progress = 0
    _last_progress: tuple[Any, ...] = ()
    """Parts and metadata of the status that was last reported as progress."""
    _metadata: Mapping[str, Any] = NOTHING
    _update_metadata: Mapping[str, Any] = NOTHING
    """Of the update that brought the status."""

    def __init__(
        self, agent: str, updates: Updates, id: str = "", context: str = "", chosen_id: str = ""
    ) -> None:
        self.agent = agent
        self.id = id or chosen_id
        self.context = context
        self._has_id = bool(id)
        """Whether the agent has confirmed the id."""
        self._updates = updates
        self._artifacts: dict[str, _ArtifactParts] = {}

    @property
    def has_id(self) -> bool:
        """Whether the agent has confirmed the id."""
        return self._has_id

    # --- events -----------------------------------------------------------------------------------

    def apply_event(self, event: Mapping[str, Any]) -> None:
        """Applies a StreamResponse, or the answer to a message."""
        self.has_events = True
        if (task := event.get("task")) is not None:
            self.apply_snapshot(task)
        elif (message := event.get("message")) is not None:
            self._take_ids(message, "taskId")
            self.message = message
            self.is_over = self.is_settled = True
        elif (update := event.get("statusUpdate")) is not None:
            self._take_ids(update, "taskId")
            self._apply_status(update, _read_metadata(update))
        elif (update := event.get("artifactUpdate")) is not None:
            self._take_ids(update, "taskId")
            self._apply_artifact(update)

    def apply_snapshot(self, task: Mapping[str, Any]) -> None:
        """Applies the whole task as it is now."""
        self._take_ids(task, "id")
        artifacts = task.get("artifacts")
        if artifacts:
            self._artifacts, self.size = {}, 0
            for artifact in artifacts[: MAX_ARTIFACTS + 1]:
                self._add_artifact(artifact, append=False)
        if "metadata" in task:
            self._metadata = _read_metadata(task) or self._metadata
        self._apply_status(task)
        if self.is_over:
            self.lacks_result = False

    def _take_ids(self, holder: Mapping[str, Any], member: str) -> None:
        metadata = holder.get("metadata")
        if metadata and isinstance(metadata, dict):
            self.usage = parse_usage(metadata.get("usage")) or self.usage
        id, context = holder.get(member), holder.get("contextId")
        if isinstance(id, str) and 0 < len(id) <= MAX_ID:
            if not self._has_id:
                self.id, self._has_id = id, True
            elif id != self.id and member == "id":
                raise BadReply(f'agent "{self.agent}" answered with another task than requested')
        if isinstance(context, str) and 0 < len(context) <= MAX_ID:
            self.context = context

    def _apply_status(
        self, holder: Mapping[str, Any], update_metadata: Mapping[str, Any] = NOTHING
    ) -> None:
        status = holder.get("status") or NOTHING
        self.state = state = status.get("state") or self.state
        self.is_over = state in TERMINAL
        self.is_settled = self.is_over or state in INTERRUPTED
        self.status_message = message = status.get("message")
        self._update_metadata = update_metadata
        completed = state == COMPLETED
        self.lacks_result = completed and message is None and not self._artifacts
        if self.is_settled:
            return
        if not self._lasts:
            self._lasts = True
            self._updates(TaskStarted())
        shown = read_parts(message), update_metadata
        if any(shown) and shown != self._last_progress:
            self._last_progress = shown
            self._progress += 1
            text = text_from_parts(shown[0]) or None
            self._updates(
                Progress(progress=self._progress, message=text, status_message=self.build_said())
            )

    def _apply_artifact(self, update: Mapping[str, Any]) -> None:
        artifact = update.get("artifact")
        if not isinstance(artifact, dict):
            return
        append, last = update.get("append") is True, update.get("lastChunk") is True
        id = self._add_artifact(artifact, append)
        metadata = _read_metadata(update)
        self._updates(build_artifact(id, artifact, append=append, last=last, metadata=metadata))

    def _add_artifact(self, artifact: Mapping[str, Any], append: bool) -> str:
        id = artifact.get("artifactId")
        id = id if isinstance(id, str) and 0 < len(id) <= MAX_ID else str(uuid4())
        parts = read_parts(artifact)
        self.size += ARTIFACT_BYTES + _count_bytes(artifact, parts)
        if self.size > MAX_BYTES or len(self._artifacts) >= MAX_ARTIFACTS:
            raise BadReply(
                f'agent "{self.agent}" made more than {MAX_BYTES >> 20} MB or {MAX_ARTIFACTS} '
                "artifacts"
            )
        before = self._artifacts.get(id) if append else None
        if before is None:
            self._artifacts[id] = _ArtifactParts(artifact, parts)
        else:
            before.append(parts)
        return id

    # --- results ----------------------------------------------------------------------------------

    def list_artifacts(self) -> list[dict[str, Any]]:
        """Lists its artifacts, in the form of 1.0."""
        return [artifact.build() for artifact in self._artifacts.values()]

    def build_said(self) -> StatusMessage:
        """Builds its status message, with the metadata of its task."""
        parts = read_parts(self.status_message)
        if sum(map(_count_part, parts)) > MAX_SAID:
            parts = [{"text": text_from_parts(parts)}]
        return StatusMessage(
            content=list(map(block_from_part, parts)),
            extra=_read_extra(self.status_message) if self.status_message is not None else NOTHING,
            metadata=self._update_metadata,
            task=self.id,
            task_metadata=self._metadata,
        )

    def build_question(self, handle: str) -> Result:
        """Builds the question of a task that needs input. Raises for one that failed."""
        parts = read_parts(self.status_message)
        if self.is_over:
            raise self._build_failure(text_from_parts(parts))
        text = join_texts(parts)[:MAX_TEXT]
        login = self.state == AUTH_REQUIRED
        questions = {AUTH: self._build_login(text)} if login else {REPLY: self._build_form(text)}
        return Result(
            questions=questions,
            handle=handle,
            status_message=self.build_said(),
            settles_itself=login,
        )

    def _build_failure(self, text: str) -> HubError:
        why = f": {text}" if text else " without a reason"
        error: HubError
        if self.state == REJECTED:
            error = Declined(f'agent "{self.agent}" rejected the task{why}')
        elif self.state == FAILED:
            error = WorkFailed(f'agent "{self.agent}" failed{why}')
        else:
            error = WorkFailed(f'agent "{self.agent}" cancelled its task{why if text else ""}')
        error.status_message = self.build_said()
        return error

    def _build_form(self, text: str) -> Question:
        schemas = map(_find_schema, read_parts(self.status_message))
        schema = next((found for found in schemas if found), None) or {
            "type": "object",
            "properties": {REPLY: {"type": "string", "title": text[:200] or "Your answer"}},
            "required": [REPLY],
        }
        message = text or f'agent "{self.agent}" needs an answer to continue'
        return Question(FORM, {"message": message, "requestedSchema": schema})

    def _build_login(self, text: str) -> Question:
        """The address may be in a part of its own, in data, or in the text."""
        url = ""
        for part in read_parts(self.status_message):
            data = part.get("data")
            address = part.get("url") or (data.get("url") if isinstance(data, dict) else None)
            found = _ADDRESS.search(address if isinstance(address, str) else part.get("text", ""))
            url = url or (found[0].rstrip(".,;)") if found else "")
        if url:
            message = text or f'agent "{self.agent}" needs you to log in'
            return Question(URL, {"message": message, "url": url, "elicitationId": str(uuid4())})
        return self._build_form(text or f'agent "{self.agent}" needs credentials')


class _ArtifactParts:
    """An artifact that may arrive in pieces, perhaps one for each word."""

    __slots__ = ("_artifact", "_parts", "_texts")

    def __init__(self, artifact: Mapping[str, Any], parts: list[Mapping[str, Any]]) -> None:
        self._artifact = artifact
        self._parts = list(parts)
        self._texts: list[str] = []
        """The pieces of the last part, if it is a text that was continued."""

    def append(self, parts: Parts) -> None:
        for part in parts:
            if self._parts and part.keys() == _TEXT_ONLY == self._parts[-1].keys():
                self._texts = self._texts or [self._parts[-1]["text"]]
                self._texts.append(part["text"])
            else:
                self._join()
                self._parts.append(part)

    def build(self) -> dict[str, Any]:
        if self._texts:
            self._join()
        return {**self._artifact, "parts": self._parts}

    def _join(self) -> None:
        if self._texts:
            self._parts[-1] = {"text": "".join(self._texts)}
            self._texts = []


def result_from_task(task: RemoteTask, handle: str, dialect: str | None) -> Result:
    """Builds the result of a settled task; of one that needs input, its question with `handle`.
    `dialect` is that of a skill's agent, whose parts its structured content repeats; None for the
    tool that takes messages. Raises for a task that failed."""
    answer = task.message
    if answer is None and task.state != COMPLETED:
        return task.build_question(handle)
    artifacts = task.list_artifacts() if answer is None else []
    if dialect is not None and not any(map(read_parts, artifacts)):
        artifacts = []
    parts = read_parts(answer if answer is not None else task.status_message)
    said = task.build_said() if answer is None else None
    if answer is not None and dialect is None:
        said = StatusMessage(extra=_read_extra(answer))
    if not artifacts:
        return _result_from_message(task, parts, said, dialect)
    made = [build_artifact(one["artifactId"], one) for one in artifacts]
    blocks = [block for one in made for block in one.content]
    structured, size = _find_structured(blocks), -1
    if dialect is None:
        known = set(map(encode, blocks))
        last = map(block_from_part, parts)
        blocks += [block for block in last if encode(block) not in known]
    elif len(artifacts) > 1:
        structured = {"artifacts": [_repeat_artifact(one, dialect) for one in artifacts]}
    elif len(blocks) == 1:
        size = task.size
    else:
        parts = artifacts[0]["parts"]
        data = find_structured_part(parts)
        if data is not None and isinstance(data["data"], dict):
            structured = data["data"]
            blocks = [block_from_part(part) for part in parts if part is not data]
        else:
            structured = _repeat_artifact(artifacts[0], dialect)
    return Result(
        content=[_render_block(block, dialect) for block in blocks],
        structured=structured,
        artifacts=made,
        size=size,
        status_message=said,
    )


def _result_from_message(
    task: RemoteTask, parts: Parts, said: StatusMessage | None, dialect: str | None
) -> Result:
    """Builds the result of an answer without a task, or of the last status message: an earlier
    status message is not an answer."""
    direct = task.message is not None
    blocks: list[Mapping[str, Any]] = list(map(block_from_part, parts))
    content, artifacts, size = blocks, [], -1
    structured: Any = ABSENT
    for block in blocks:
        if block["type"] == "data":
            structured = _find_structured(blocks)
            content = [_render_block(each, dialect) for each in blocks]
            if direct:
                name = RESPONSE
                artifacts = [Artifact(id=name, name=name, content=blocks)]
            break
    if dialect is not None and not blocks:
        text = f'agent "{task.agent}" completed the task without a result'
        content = [{"type": "text", "text": text}]
    elif dialect is not None and len(blocks) > 1:
        structured = {"parts": render_parts(dialect, parts)}
    elif blocks and said is None:
        size = _count_part(parts[0])
    return Result(
        content=content,
        structured=structured,
        artifacts=artifacts,
        size=size,
        direct=direct,
        status_message=said,
    )


def _find_structured(blocks: Parts) -> Any:
    data = [block["data"] for block in blocks if block["type"] == "data"]
    return data[0] if len(data) == 1 and isinstance(data[0], dict) else ABSENT


def _repeat_artifact(artifact: Mapping[str, Any], dialect: str) -> dict[str, Any]:
    return {**artifact, "parts": render_parts(dialect, artifact["parts"])}


def _render_block(block: Mapping[str, Any], dialect: str | None) -> Mapping[str, Any]:
    """Renders data as text: compact for programs, with spaces for models."""
    if block["type"] != "data":
        return block
    data = block["data"]
    text = json.dumps(data, ensure_ascii=False) if dialect is None else encode(data).decode()
    return {"type": "text", "text": text}


def build_artifact(
    id: str,
    artifact: Mapping[str, Any],
    *,
    append: bool = False,
    last: bool = True,
    metadata: Mapping[str, Any] = NOTHING,
) -> Artifact:
    others = artifact.keys() - _ARTIFACT
    return Artifact(
        id=id,
        name=str(artifact.get("name") or "")[:MAX_ID],
        description=str(artifact.get("description") or "")[:MAX_TEXT],
        content=list(map(block_from_part, read_parts(artifact))),
        append=append,
        last=last,
        extra={key: artifact[key] for key in others} if others else NOTHING,
        metadata=metadata,
    )


# --- members --------------------------------------------------------------------------------------


def read_parts(holder: Mapping[str, Any] | None) -> list[Mapping[str, Any]]:
    """Reads the parts of a message or artifact, which the dialect's reader has checked."""
    parts = holder.get("parts") if holder is not None else None
    return parts if isinstance(parts, list) else []


def text_from_parts(parts: Parts) -> str:
    """Joins the texts among the parts; without any, their data as JSON."""
    text = join_texts(parts)
    if not text:
        text = "\n".join(encode(part["data"]).decode() for part in parts if "data" in part)
    return text[:MAX_TEXT]


def _count_bytes(artifact: Mapping[str, Any], parts: Parts) -> int:
    """Counts the bytes of an artifact without encoding its texts."""
    size = sum(map(_count_part, parts))
    if not artifact.keys() <= {"artifactId", "parts"}:
        size += len(encode({name: artifact[name] for name in artifact if name != "parts"}))
    return size


def _count_part(part: Mapping[str, Any]) -> int:
    text = part.get("text")
    if len(part) > 1 or not isinstance(text, str):
        return len(encode(part))
    return len(text) if text.isascii() else len(text.encode())


def _read_metadata(holder: Mapping[str, Any]) -> Mapping[str, Any]:
    metadata = holder.get("metadata")
    if not isinstance(metadata, dict) or not metadata or len(encode(metadata)) > MAX_METADATA:
        return NOTHING
    return metadata


def _read_extra(message: Mapping[str, Any]) -> Mapping[str, Any]:
    """Reads the members of a message that are passed on unchanged."""
    found: dict[str, Any] = {}
    if metadata := _read_metadata(message):
        found["metadata"] = metadata
    if isinstance(uris := message.get("extensions"), list) and len(uris) <= MAX_EXTENSIONS:
        found["extensions"] = uris
    return found


def _find_schema(part: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """Finds a form that comes with a question: `{"schema": …}`, as this hub sends it."""
    data = part.get("data")
    schema = data.get("schema") if isinstance(data, dict) else None
    if not isinstance(schema, dict) or schema.get("type") != "object":
        return None
    return schema if isinstance(schema.get("properties"), dict) else None


def parse_usage(value: Any) -> dict[str, float]:
    """Reads the numbers of a usage report."""
    if not isinstance(value, dict):
        return {}
    found = {}
    for name, number in value.items():
        if type(number) in (int, float) and math.isfinite(number) and len(name) <= MAX_USAGE_NAME:
            found[name] = number
        if len(found) >= MAX_USAGE:
            break
    return found


# --- answers to its questions ---------------------------------------------------------------------


def encode_handle(task: RemoteTask, conversation: str, place: str = "") -> str:
    """`conversation` is the id that the client knows it by, `place` the endpoint of the agent."""
    state = {"task": task.id, "context": task.context, "conversation": conversation}
    return json.dumps({**state, "place": place} if place else state)


def decode_place(handle: str | None) -> str:
    """The endpoint at which the agent made its task; empty if unknown."""
    try:
        return str(json.loads(handle or "").get("place", ""))
    except (ValueError, AttributeError):
        return ""


def decode_handle(call: Call) -> tuple[str, Conversation]:
    """Returns the task that asked, and its conversation."""
    try:
        state = json.loads(call.handle or "")
        conversation = Conversation(str(state.get("conversation", "")), str(state["context"]))
        return str(state["task"]), conversation
    except (ValueError, KeyError, TypeError, AttributeError):
        raise InvalidInput(
            f'the question of "{call.tool.name}" is not open any more; start the call again'
        ) from None


def parts_from_answer(content: Any) -> list[dict[str, Any]]:
    """Returns a text where text was asked for, data where a form was, or the given parts."""
    if isinstance(content, str):
        return [{"text": content}] if content else []
    if not isinstance(content, Mapping):
        return []
    blocks = content.get("parts")
    if isinstance(blocks, list) and blocks:
        return [part_from_block(block) for block in blocks]
    if content.keys() == {REPLY} and isinstance(content[REPLY], str):
        return [{"text": content[REPLY]}]
    return [{"data": dict(content), "mediaType": "application/json"}] if content else []
