"""A task on the far side, as far as it was heard of: from events and snapshots to one result.

Pure. Bounded: an agent that makes more than a result may hold is a bad one.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any
from uuid import uuid4

from dragoman.a2a.client.event_stream import INTERRUPTED, TERMINAL, read_state
from dragoman.a2a.protocol.dialects import operations
from dragoman.a2a.protocol.parts import block_from_part, join_texts, part_from_block
from dragoman.core.call import (
    ABSENT,
    FORM,
    NOTHING,
    URL,
    Artifact,
    Call,
    Lasting,
    Progress,
    Question,
    Result,
    Said,
    Updates,
)
from dragoman.core.conversations import Conversation
from dragoman.core.errors import BadReply, Declined, HubError, InvalidInput, WorkFailed
from dragoman.wire.json import MAX_BYTES, encode

MAX_ID = 1_024
MAX_WORDS = 4_000
MAX_ARTIFACTS = 1_000
MAX_SAID = MAX_METADATA = 64 * 1024
"""Bytes of one message beside what the agent makes, and of the metadata of anything."""
MAX_EXTENSIONS = 100
MAX_USAGE, MAX_USAGE_NAME = 32, 64
REPLY, AUTH = "reply", "auth"
"""What the questions are called that an agent may have."""

_ADDRESS = re.compile(r"https?://[^\s<>\"'`]{1,2000}")


_WORDS = frozenset(("messageId", "role", "parts"))


def is_words(answer: Mapping[str, Any]) -> bool:
    """Whether it is some words and nothing else: no task, no conversation, no word of its cost."""
    message = answer.get("message")
    return isinstance(message, dict) and message.keys() <= _WORDS


class RemoteTask:
    """`updates` is told what is new; `name` is the agent's, for messages. A `guess` is the id that
    it was asked to have, which it need not have taken."""

    def __init__(
        self, name: str, updates: Updates, id: str = "", context: str = "", guess: str = ""
    ) -> None:
        self.id = id or guess
        self.context = context
        self.has_events = False
        """Whether the agent has said anything of it yet."""
        self._sure = bool(id)
        self.state = ""
        self.message: Mapping[str, Any] | None = None
        """An answer of words, instead of a task."""
        self._name = name
        self._updates = updates
        self._said: Mapping[str, Any] | None = None
        """The message of the status."""
        self._artifacts: dict[str, _Made] = {}
        self._told = 0
        self._last: tuple[Any, ...] = ()
        """The parts and metadata of the status that was told last."""
        self._metadata: Mapping[str, Any] = NOTHING
        """Of the task."""
        self._update_metadata: Mapping[str, Any] = NOTHING
        """Of the update that brought the status."""
        self._size = 0
        self._lasts = False
        self._whole = False
        """Whether all of it was seen at its end, and not only that it ended."""
        self.usage: dict[str, float] = {}
        """What it says that it took."""

    @property
    def is_over(self) -> bool:
        return self.message is not None or self.state in TERMINAL

    @property
    def is_settled(self) -> bool:
        """Whether there is nothing to wait for: it is over, or asks something."""
        return self.is_over or self.state in INTERRUPTED

    @property
    def lacks_result(self) -> bool:
        """Whether it was done without a word of what came of it, which it may have told others."""
        told = self._whole or self._artifacts or self._said is not None
        return self.state == operations.COMPLETED and not told

    # --- hearing -------------------------------------------------------------------------------

    def apply_event(self, event: Mapping[str, Any]) -> None:
        """A StreamResponse, or the answer to a message."""
        self.has_events = True
        if isinstance(task := event.get("task"), dict):
            self.apply_snapshot(task)
        elif isinstance(message := event.get("message"), dict):
            self._belong(message)
            self.message = message
        elif isinstance(update := event.get("statusUpdate"), dict):
            self._belong(update)
            self._status(update, _metadata_of(update))
        elif isinstance(update := event.get("artifactUpdate"), dict):
            self._belong(update)
            self._made(update)

    def apply_snapshot(self, task: Mapping[str, Any]) -> None:
        """The whole task as it is now."""
        self._belong(task, "id")
        artifacts = task.get("artifacts")
        if isinstance(artifacts, list) and artifacts:
            self._artifacts, self._size = {}, 0
            for artifact in artifacts[: MAX_ARTIFACTS + 1]:
                if isinstance(artifact, dict):
                    self._put(artifact, append=False)
        self._metadata = _metadata_of(task) or self._metadata
        self._status(task)
        self._whole = self.is_over

    def _belong(self, said: Mapping[str, Any], member: str = "taskId") -> None:
        if (metadata := said.get("metadata")) and isinstance(metadata, dict):
            self.usage = parse_usage(metadata.get("usage")) or self.usage
        id, context = said.get(member), said.get("contextId")
        if isinstance(id, str) and 0 < len(id) <= MAX_ID:
            if self._sure and id != self.id and member != "taskId":
                raise BadReply(f'agent "{self._name}" answered with another task than was asked of')
            self.id = self.id if self._sure else id
            self._sure = True
        if isinstance(context, str) and 0 < len(context) <= MAX_ID:
            self.context = context

    def _status(
        self, said: Mapping[str, Any], update_metadata: Mapping[str, Any] = NOTHING
    ) -> None:
        self.state = read_state(said) or self.state
        if not self._lasts and not self.is_settled:
            self._lasts = True
            self._updates(Lasting())
        status = said.get("status")
        message = status.get("message") if isinstance(status, dict) else None
        self._said = message if isinstance(message, dict) else None
        self._update_metadata = update_metadata
        told = read_parts(self._said), update_metadata
        if any(told) and told != self._last and not self.is_settled:
            self._last = told
            self._told += 1
            self._updates(
                Progress(
                    progress=self._told, message=text_from_parts(told[0]) or None, said=self.said()
                )
            )

    def _made(self, update: Mapping[str, Any]) -> None:
        artifact = update.get("artifact")
        if not isinstance(artifact, dict):
            return
        append, last = update.get("append") is True, update.get("lastChunk") is True
        made = self._put(artifact, append)
        self._updates(
            build_artifact(made, artifact, append=append, last=last, metadata=_metadata_of(update))
        )

    def _put(self, artifact: Mapping[str, Any], append: bool) -> str:
        id = artifact.get("artifactId")
        id = id if isinstance(id, str) and 0 < len(id) <= MAX_ID else str(uuid4())
        self._size += len(encode(artifact))
        if self._size > MAX_BYTES or len(self._artifacts) >= MAX_ARTIFACTS:
            raise BadReply(
                f'agent "{self._name}" made more than {MAX_BYTES >> 20} MB or {MAX_ARTIFACTS} '
                "artifacts"
            )
        before = self._artifacts.get(id) if append else None
        if before is None:
            self._artifacts[id] = _Made(artifact)
        else:
            before.add(read_parts(artifact))
        return id

    # --- what came of it -----------------------------------------------------------------------

    def result(self, handle: str) -> Result:
        """Of a task that is settled; `handle` is for one that asks. Raises for one that failed."""
        if self.message is not None:
            parts = read_parts(self.message)
            return replace(_told(parts), direct=True, said=Said(extra=_beside(self.message)))
        if self.state == operations.COMPLETED:
            return self._completed()
        if self.state in TERMINAL:
            raise self._failure(text_from_parts(read_parts(self._said)))
        words = join_texts(read_parts(self._said))[:MAX_WORDS]
        if self.state == operations.AUTH_REQUIRED:
            asked = Result(questions={AUTH: self._login(words)}, handle=handle)
            return replace(asked, said=self.said(), settles_itself=True)
        return Result(questions={REPLY: self._question(words)}, handle=handle, said=self.said())

    def _failure(self, words: str) -> HubError:
        why = f": {words}" if words else ", and no reason is given"
        error: HubError
        if self.state == operations.REJECTED:
            error = Declined(f'agent "{self._name}" will not do it{why}')
        elif self.state == operations.FAILED:
            error = WorkFailed(f'agent "{self._name}" failed{why}')
        else:
            why = why if words else ""
            error = WorkFailed(f'agent "{self._name}" has cancelled its task{why}')
        error.said = self.said()
        return error

    def said(self) -> Said:
        """The message of its status, and what is known of its task."""
        parts = read_parts(self._said)
        if sum(map(_size_of, parts)) > MAX_SAID:
            parts = [{"text": text_from_parts(parts)}]
        return Said(
            content=[block_from_part(part) for part in parts],
            extra=_beside(self._said) if self._said is not None else NOTHING,
            metadata=self._update_metadata,
            task=self.id,
            task_metadata=self._metadata,
        )

    def made(self) -> list[dict[str, Any]]:
        """Its artifacts, in the words of 1.0."""
        return [made.whole() for made in self._artifacts.values()]

    @property
    def last_words(self) -> list[Mapping[str, Any]]:
        """The parts of what it said at its end. What it said before is no answer: a task that was
        completed without a word has none."""
        return read_parts(self._said)

    @property
    def size(self) -> int:
        """Bytes of what it has made."""
        return self._size

    def _completed(self) -> Result:
        if not self._artifacts:
            return replace(_told(self.last_words), artifacts=(), said=self.said())
        artifacts = [build_artifact(id, made.whole()) for id, made in self._artifacts.items()]
        blocks = [block for artifact in artifacts for block in artifact.content]
        known = set(map(encode, blocks))
        last = [block_from_part(part) for part in read_parts(self._said)]
        last = [block for block in last if encode(block) not in known]
        return Result(
            content=[_shown(block) for block in [*blocks, *last]],
            structured=_structured(blocks),
            artifacts=artifacts,
            said=self.said(),
        )

    def _question(self, words: str) -> Question:
        schema = next((found for found in map(_schema_in, read_parts(self._said)) if found), None)
        schema = schema or {
            "type": "object",
            "properties": {REPLY: {"type": "string", "title": words[:200] or "Your answer"}},
            "required": [REPLY],
        }
        message = words or f'agent "{self._name}" needs an answer to go on'
        return Question(FORM, {"message": message, "requestedSchema": schema})

    def _login(self, words: str) -> Question:
        """The address may stand in a part of its own, in some data, or in the words."""
        url = ""
        for part in read_parts(self._said):
            data = part.get("data")
            said = part.get("url") or (data.get("url") if isinstance(data, dict) else None)
            found = _ADDRESS.search(said if isinstance(said, str) else part.get("text", ""))
            url = url or (found[0].rstrip(".,;)") if found else "")
        if url:
            message = words or f'agent "{self._name}" wants you to log in'
            return Question(URL, {"message": message, "url": url, "elicitationId": str(uuid4())})
        return self._question(words or f'agent "{self._name}" wants credentials')


def _schema_in(part: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """A form that goes with a question: `{"schema": …}`, as hubs of this kind send it."""
    data = part.get("data")
    schema = data.get("schema") if isinstance(data, dict) else None
    if not isinstance(schema, dict) or schema.get("type") != "object":
        return None
    return schema if isinstance(schema.get("properties"), dict) else None


def text_from_parts(parts: Sequence[Mapping[str, Any]]) -> str:
    """The texts among the parts, else their data as JSON."""
    words = join_texts(parts)
    if not words:
        data = [part["data"] for part in parts if "data" in part]
        words = "\n".join(encode(one).decode() for one in data)
    return words[:MAX_WORDS]


def _metadata_of(of: Mapping[str, Any]) -> Mapping[str, Any]:
    metadata = of.get("metadata")
    if not isinstance(metadata, dict) or not metadata or len(encode(metadata)) > MAX_METADATA:
        return NOTHING
    return metadata


def _beside(message: Mapping[str, Any]) -> Mapping[str, Any]:
    """What a message has that is passed on as it is."""
    found: dict[str, Any] = {}
    if metadata := _metadata_of(message):
        found["metadata"] = metadata
    if isinstance(uris := message.get("extensions"), list) and len(uris) <= MAX_EXTENSIONS:
        found["extensions"] = uris
    return found


def _size_of(part: Mapping[str, Any]) -> int:
    text = part.get("text")
    return len(text) if isinstance(text, str) and len(part) == 1 else len(encode(part))


def parse_usage(value: Any) -> dict[str, float]:
    """The numbers of a report of what something took; nothing of what is none."""
    if not isinstance(value, dict):
        return {}
    found = {}
    for name, number in value.items():
        if type(number) in (int, float) and math.isfinite(number) and len(name) <= MAX_USAGE_NAME:
            found[name] = number
        if len(found) >= MAX_USAGE:
            break
    return found


def read_parts(of: Mapping[str, Any] | None) -> list[Mapping[str, Any]]:
    parts = of.get("parts") if of is not None else None
    return [part for part in parts if isinstance(part, dict)] if isinstance(parts, list) else []


class _Made:
    """An artifact that may come in pieces, of which there may be as many as there are words."""

    def __init__(self, artifact: Mapping[str, Any]) -> None:
        self._first = artifact
        self._made = read_parts(artifact)
        self._texts: list[str] = []
        """The last part, where it is a text that went on."""

    def add(self, parts: Iterable[Mapping[str, Any]]) -> None:
        """Text that comes in pieces is one text."""
        for part in parts:
            if self._made and set(part) == {"text"} == set(self._made[-1]):
                self._texts = self._texts or [self._made[-1]["text"]]
                self._texts.append(part["text"])
            else:
                self._join()
                self._made.append(part)

    def whole(self) -> dict[str, Any]:
        self._join()
        return {**self._first, "parts": self._made}

    def _join(self) -> None:
        if self._texts:
            self._made[-1] = {"text": "".join(self._texts)}
            self._texts = []


def build_artifact(
    id: str,
    made: Mapping[str, Any],
    *,
    append: bool = False,
    last: bool = True,
    metadata: Mapping[str, Any] = NOTHING,
) -> Artifact:
    known = ("artifactId", "name", "description", "parts")
    return Artifact(
        id=id,
        name=str(made.get("name") or "")[:MAX_ID],
        description=str(made.get("description") or "")[:MAX_WORDS],
        content=[block_from_part(part) for part in read_parts(made)],
        append=append,
        last=last,
        extra={key: value for key, value in made.items() if key not in known},
        metadata=metadata,
    )


def _told(parts: Sequence[Mapping[str, Any]]) -> Result:
    blocks = [block_from_part(part) for part in parts]
    data = any(block.get("type") == "data" for block in blocks)
    made = (
        [Artifact(id=operations.RESPONSE, name=operations.RESPONSE, content=blocks)] if data else []
    )
    return Result(
        content=[_shown(block) for block in blocks],
        structured=_structured(blocks),
        artifacts=made,
    )


def _structured(blocks: Sequence[Mapping[str, Any]]) -> Any:
    data = [block["data"] for block in blocks if block.get("type") == "data"]
    return data[0] if len(data) == 1 and isinstance(data[0], dict) else ABSENT


def _shown(block: Mapping[str, Any]) -> Mapping[str, Any]:
    if block.get("type") != "data":
        return block
    return {"type": "text", "text": json.dumps(block["data"], ensure_ascii=False)}


# --- the answers to what it asks ------------------------------------------------------------------


def encode_handle(far: RemoteTask, conversation: str = "") -> str:
    """`conversation` is what the caller knows it by."""
    return json.dumps({"task": far.id, "context": far.context, "conversation": conversation})


def decode_handle(call: Call) -> tuple[str, Conversation]:
    """The task that asked, and the conversation it belongs to."""
    try:
        state = json.loads(call.handle or "")
        conversation = Conversation(str(state.get("conversation", "")), str(state["context"]))
        return str(state["task"]), conversation
    except (ValueError, KeyError, TypeError, AttributeError):
        raise InvalidInput(
            f'the question of "{call.tool.name}" is not open any more; begin the call again'
        ) from None


def parts_from_answer(content: Any) -> list[dict[str, Any]]:
    """Text where text was asked for, data where a form was; and what came with it."""
    if isinstance(content, str):
        return [{"text": content}] if content else []
    if not isinstance(content, Mapping):
        return []
    blocks = content.get("parts")
    more = [part_from_block(block) for block in blocks] if isinstance(blocks, list) else []
    said = {key: value for key, value in content.items() if key != "parts" or not more}
    if more:
        return more
    if set(said) == {REPLY} and isinstance(said[REPLY], str):
        return [{"text": said[REPLY]}]
    return [{"data": said, "mediaType": "application/json"}] if said else []
