"""An A2A task: its log is what clients may see of it, in the form of 1.0.

The log has the client's own messages too, which no stream repeats. `TaskView` reduces the log to
what the task looks like: in memory while the task runs, built from the stored log later.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from os import urandom
from time import gmtime, strftime, time
from typing import Any, TypeAlias

from dragoman.a2a.protocol import validation
from dragoman.a2a.protocol.dialects import operations
from dragoman.a2a.protocol.parts import part_from_block, parts_from_result
from dragoman.a2a.server.form_answers import AUTH
from dragoman.core.call import (
    ABSENT,
    NOTHING,
    URL,
    Artifact,
    LogMessage,
    Progress,
    Question,
    Result,
    StatusMessage,
    TaskNamed,
    Update,
)
from dragoman.core.errors import (
    Declined,
    HubError,
    InvalidInput,
    Refused,
    StorageFailed,
    WorkFailed,
)
from dragoman.core.logins import render_problem
from dragoman.core.task_registry import TaskRegistry
from dragoman.core.tasks import (
    AUTH_REQUIRED,
    CANCELLED,
    COMPLETED,
    FAILED,
    INPUT_REQUIRED,
    REJECTED,
    SUBMITTED,
    WAITS,
    WORKING,
    Entry,
    Task,
    TaskRecord,
    render_update,
)
from dragoman.core.trace import TraceContext
from dragoman.wire.json import encode

STATES: Mapping[str, str] = {
    SUBMITTED: validation.SUBMITTED,
    WORKING: validation.WORKING,
    INPUT_REQUIRED: validation.INPUT_REQUIRED,
    AUTH_REQUIRED: validation.AUTH_REQUIRED,
    COMPLETED: validation.COMPLETED,
    FAILED: validation.FAILED,
    CANCELLED: validation.CANCELED,
    REJECTED: validation.REJECTED,
}
"""The hub's name of a state, and the protocol's."""
CORE_STATES = {theirs: ours for ours, theirs in STATES.items()}

MAX_ENTRIES = 10_000
MAX_BYTES = 64 * 1024 * 1024
"""What one task may produce, roughly counted, and what it may hold when it is sent more."""
PART_BYTES = 200
"""What a part takes beside its content."""
MAX_WORDS = 20_000
MAX_SCHEMA = 32 * 1024
"""Bytes of a schema that goes with a question; a larger one is left out."""
MAX_MEMBERS = 1_000
"""Of the metadata that an agent may give its task."""

Event = Mapping[str, Any]

NO_EXTRA: Mapping[str, Any] = {"request_metadata": NOTHING, "configuration": NOTHING}
"""What came with a message that came alone: members of `MessageOrigin`."""


@dataclass(slots=True)
class A2aTaskHeader:
    """What is stored of a task beside its log. The names are those in the database."""

    context: str
    agent: str
    """Whose path or name the message came by; empty for the hub itself."""
    tool: str
    """The tool that is called; empty until it is known."""
    version: str
    """The dialect the task was created in."""
    turn: int = 0
    """The number of messages so far."""
    skill: str = ""
    trace: str = ""
    sends: dict[str, str] = field(default_factory=dict)
    """The idempotency keys of its messages, each with a digest of the message."""
    metadata: dict[str, Any] = field(default_factory=dict)
    far: str = ""
    """The id that the agent behind the hub has given to its task."""
    arguments: dict[str, Any] = field(default_factory=dict)
    """While the task waits for its client."""
    handle: bool = False
    """Whether a question is open whose handle only the hub that sealed it can open."""

    @classmethod
    def from_stored(cls, about: Mapping[str, Any]) -> A2aTaskHeader:
        """Raises `TypeError` where something is missing."""
        return cls(**{name: about[name] for name in cls.__slots__ if name in about})


class TaskView:
    """What a task looks like after the entries that were applied."""

    __slots__ = ("artifacts", "history", "status")

    def __init__(self, created: float, entries: Iterable[Entry] = ()) -> None:
        self.status: Mapping[str, Any] = {
            "state": validation.SUBMITTED,
            "timestamp": format_time(created),
        }
        self.history: list[Mapping[str, Any]] = []
        self.artifacts: dict[str, dict[str, Any]] = {}
        for entry in entries:
            self.apply(entry)

    def apply(self, entry: Entry) -> None:
        """Nothing that was logged is changed: it may not be stored yet."""
        event, status = entry.event, self.status
        if (update := event.get("statusUpdate")) is not None:
            if "message" in status:
                self.history.append(status["message"])
            self.status = update["status"]
        elif (update := event.get("artifactUpdate")) is not None:
            artifact = update["artifact"]
            id = artifact["artifactId"]
            known = self.artifacts.get(id)
            if known is None or not update.get("append", False):
                self.artifacts[id] = {**artifact, "parts": list(artifact["parts"])}
            else:
                known["parts"] += artifact["parts"]
        else:
            if "message" in status:  # the question precedes the answer
                self.history.append(status["message"])
            self.history.append(event["message"])
            if status["state"] in _WAITING:
                # A stream that begins here must not show the task as still asking: clients stop at
                # that state, or put the question again.
                self.status = {"state": validation.WORKING, "timestamp": format_time(entry.at)}
            elif "message" in status:
                self.status = {"state": status["state"], "timestamp": status["timestamp"]}


class A2aTaskRecord(TaskRecord):
    __slots__ = (
        "_message_extra", "_produced", "_status_metadata", "_status_parts", "arguments",
        "context_extra", "continues", "created", "id", "message", "message_number", "schema",
        "shown", "trace_context", "view",
    )  # fmt: skip
    header: A2aTaskHeader

    def __init__(self, id: str, header: A2aTaskHeader, created: float) -> None:
        # Not by `super`: this is on the path of every message.
        self.header = header
        self.entries: list[Entry] = []
        self.count = 0
        self.id = id
        self.created = created
        self.view: TaskView | None = None
        """None for a finished task whose log is in the store."""
        self.trace_context: TraceContext | None = None
        """The trace; one for all the calls of a task."""
        self.continues = False
        """Whether the target continues with the next message, whichever hub brings it."""
        self.arguments: dict[str, Any] = {}
        self.schema: Any = None
        """Of the arguments, where they are those of a tool that the owner may see."""
        self.message: Mapping[str, Any] = {}
        """The message that is being answered."""
        self.message_number = 0
        """The number of the entry with that message."""
        self.context_extra = NO_EXTRA
        """What came with that message, for the agent that is called."""
        self.shown = False
        """Whether a client has seen the task, so that its answer cannot be a mere message."""
        self._produced = 0
        """Bytes, roughly."""
        self._status_parts: Sequence[Mapping[str, Any]] = ()
        self._message_extra: Mapping[str, Any] = NOTHING
        self._status_metadata: Mapping[str, Any] = NOTHING
        """For the next status: the parts and other members of its message, and its metadata."""

    # --- the log ---------------------------------------------------------------------------------

    def _log(self, event: Event, now: float) -> None:
        self.count += 1
        entry = Entry(self.count, now, event)
        self.entries.append(entry)
        if self.view is None:
            self.view = TaskView(self.created)
        self.view.apply(entry)

    def restore(self, entries: list[Entry]) -> None:
        self.entries = entries
        self.view = TaskView(self.created, entries)

    def release(self) -> None:
        self.entries, self.view = [], None
        self.arguments, self.message = {}, {}

    def add_message(self, message: Mapping[str, Any], extra: Mapping[str, Any] = NO_EXTRA) -> None:
        """Logs a message of the client's, which the next call answers. `extra` came with it."""
        header = self.header
        header.turn += 1
        message = {**message, "taskId": self.id, "contextId": header.context}
        self.message, self.context_extra = message, extra
        self._log({"message": message}, time())
        self.message_number = self.count

    @property
    def full(self) -> bool:
        """Whether no more may be logged."""
        return self.count >= MAX_ENTRIES or self._produced > MAX_BYTES

    # --- what happens to the call ----------------------------------------------------------------

    def log_state(self, state: str, words: str) -> None:
        if words:
            self._status_parts = [{"text": words[:MAX_WORDS]}]
        self._log_status(state)

    def take_update(self, task: Task[Any], update: Update) -> bool:
        if task.finished or isinstance(update, LogMessage | TaskNamed):
            return False
        if isinstance(update, Artifact):
            self._log_artifact_update(update)
            return True
        said = update.status_message if isinstance(update, Progress) else None
        words = "" if said is not None else render_update(update)
        if said is not None:
            self._produced += sum(map(_weigh, map(part_from_block, said.content))) + PART_BYTES
        else:
            self._produced += len(words[:MAX_WORDS]) + PART_BYTES
        if self.full or (said is None and not words):
            return False
        if said is not None:
            self._take_said(said)
        self.log_state(task.state, words)
        return True

    def take_result(self, task: Task[Any], result: Result) -> str:
        if result.status_message is not None:
            self._take_said(result.status_message)
        if result.failed:
            self._status_parts = parts_from_result(result)
            self._log_status(FAILED)
            return FAILED
        if result.direct and (not self.shown or not result.artifacts):
            self._status_parts = parts_from_result(result)
        elif result.artifacts:
            known = self.view.artifacts if self.view is not None else {}
            for made in result.artifacts:
                if made.id not in known:
                    self._log_artifact_update(made)
        elif result.status_message is None and (result.content or result.structured is not ABSENT):
            # Where the agent said something at its end, that is the status, and it made nothing.
            configuration = self.context_extra["configuration"]
            parts = parts_from_result(result, configuration.get("acceptedOutputModes", ()))
            name = operations.RESPONSE
            response = {"artifactId": name, "name": name, "parts": parts}
            self._log_artifact(response, {"lastChunk": True})
        self._log_status(COMPLETED)
        return COMPLETED

    def take_error(self, task: Task[Any], error: BaseException) -> str:
        if isinstance(error, InvalidInput) and not task.resumed and task.state == WORKING:
            self._status_parts = render_argument_form(str(error), self.schema, self.arguments)
            self._log_status(INPUT_REQUIRED)
            return INPUT_REQUIRED
        words = "it crashed; see the hub's log"
        if isinstance(error, HubError):
            words = render_problem(error)
        self._status_parts = [{"text": words[:MAX_WORDS]}]
        if isinstance(error, HubError) and error.status_message is not None:
            self._take_said(error.status_message)
        state = REJECTED if isinstance(error, Refused | StorageFailed | Declined) else FAILED
        self._log_status(state)
        return state

    def take_questions(self, task: Task[Any], words: str) -> str:
        asked = task.asked
        if asked is not None and asked.status_message is not None:
            self._take_said(asked.status_message)
        if not self._status_parts:
            self._status_parts = render_questions(task.questions, words)
        logs_in = any(one.kind == URL or name == AUTH for name, one in task.questions.items())
        state = AUTH_REQUIRED if logs_in else INPUT_REQUIRED
        self._log_status(state)
        self.header.handle = asked is not None and bool(asked.handle) and not self.continues
        return state

    def is_promised(self, task: Task[Any]) -> bool:
        return self.shown or bool(self.header.sends)

    def can_follow(self, asked: Result) -> bool:
        return not self.continues

    def _take_said(self, said: StatusMessage) -> None:
        """The next status is what the agent behind the hub has said."""
        header = self.header
        if said.content:
            self._status_parts = [part_from_block(block) for block in said.content]
        self._message_extra, self._status_metadata = said.extra, said.metadata
        header.far = said.task or header.far
        known = {**header.metadata, **said.task_metadata, **said.metadata}
        if len(known) <= MAX_MEMBERS:
            header.metadata = known

    def _log_status(self, state: str) -> None:
        now, header = time(), self.header
        status: dict[str, Any] = {"state": STATES[state], "timestamp": format_time(now)}
        if self._status_parts:
            status["message"] = {
                "messageId": new_id(),
                "contextId": header.context,
                "taskId": self.id,
                "role": validation.AGENT,
                "parts": list(self._status_parts),
                **self._message_extra,
            }
            self._status_parts = ()
        update: dict[str, Any] = {"taskId": self.id, "contextId": header.context, "status": status}
        if self._status_metadata:
            update["metadata"] = self._status_metadata
        self._message_extra = self._status_metadata = NOTHING
        if state in WAITS:
            header.arguments = self.arguments
        elif header.arguments or header.handle:
            header.arguments, header.handle = {}, False
        self._log({"statusUpdate": update}, now)

    def _log_artifact_update(self, made: Artifact) -> None:
        artifact: dict[str, Any] = {"artifactId": made.id}
        if made.name:
            artifact["name"] = made.name
        if made.description:
            artifact["description"] = made.description
        artifact.update(made.extra)
        artifact["parts"] = [part_from_block(block) for block in made.content]
        members: dict[str, Any] = {}
        if made.append:
            members["append"] = True
        if made.last:
            members["lastChunk"] = True
        if made.metadata:
            members["metadata"] = made.metadata
        self._log_artifact(artifact, members)

    def _log_artifact(self, artifact: dict[str, Any], members: Mapping[str, Any]) -> None:
        """`members` are the others of the update."""
        self._produced += sum(map(_weigh, artifact["parts"]))
        if self.full:
            raise WorkFailed("it has made more than one task can hold, and was stopped")
        ids = {"taskId": self.id, "contextId": self.header.context}
        self._log({"artifactUpdate": {**ids, "artifact": artifact, **members}}, time())


A2aTask: TypeAlias = Task[A2aTaskRecord]
A2aTaskRegistry: TypeAlias = TaskRegistry[A2aTaskRecord]


def render_task(
    task: A2aTask, history: int | None = None, artifacts: bool = True, at: int | None = None
) -> dict[str, Any]:
    """At most `history` messages, the latest; None for all. `at` is the number of the last entry
    that counts; None for now."""
    record = task.record
    record.shown = True
    view = record.view
    if at is not None or view is None:
        view = TaskView(record.created, task.entries_after(0)[:at])
    shown: dict[str, Any] = {
        "id": task.id,
        "contextId": record.header.context,
        "status": view.status,
    }
    if artifacts and view.artifacts:
        made = list(view.artifacts.values())
        if not task.finished:  # later parts are appended in place
            made = [{**one, "parts": list(one["parts"])} for one in made]
        shown["artifacts"] = made
    messages = list(view.history) if history is None else view.history[-history:] if history else []
    if messages:
        shown["history"] = messages
    if record.header.metadata:
        shown["metadata"] = record.header.metadata
    return shown


def read_events(task: A2aTask, after: int, most: int | None = None) -> list[Entry]:
    """The entries for a stream: all but the client's own messages. At least one if there is one,
    and no more than about `most` bytes of what is read from the store."""
    while entries := task.entries_after(after, most):
        if found := [entry for entry in entries if "message" not in entry.event]:
            return found
        after = entries[-1].number
    return []


_WAITING = frozenset(STATES[state] for state in WAITS)
_drawn = ""


def new_id(mark: str = "") -> str:
    """A UUID of version 4, which begins with the mark of the hub that owns it where there are
    several. Chance is drawn for many at once: each time is a system call."""
    global _drawn
    if not _drawn:
        _drawn = urandom(512).hex()
    hex, _drawn = _drawn[:32], _drawn[32:]
    return f"{mark or hex[:8]}-{hex[8:12]}-4{hex[13:16]}-a{hex[17:20]}-{hex[20:]}"


_second, _millisecond = (0, ""), (0, "")


def format_time(at: float) -> str:
    """RFC 3339, to the millisecond. The text is kept for all that happens in the same one."""
    global _second, _millisecond
    now = int(at * 1000)
    kept, text = _millisecond
    if kept != now:
        whole = now // 1000
        kept, second = _second
        if kept != whole:
            second = strftime("%Y-%m-%dT%H:%M:%S", gmtime(whole))
            _second = whole, second
        text = f"{second}.{now % 1000:03d}Z"
        _millisecond = now, text
    return text


def _weigh(part: Mapping[str, Any]) -> int:
    said = part.get("text") or part.get("raw") or part.get("url")
    return PART_BYTES + (len(said) if isinstance(said, str) else len(repr(part.get("data"))))


def render_argument_form(
    words: str, schema: Any, arguments: Mapping[str, Any]
) -> list[dict[str, Any]]:
    """What is wrong with the arguments of a tool, all that are missing, and the form of them."""
    required = schema.get("required") if isinstance(schema, Mapping) else None
    names = required if isinstance(required, list) else []
    missing = [f'"{name}"' for name in names if isinstance(name, str) and name not in arguments]
    if len(missing) > 1:
        words = f"{words[:MAX_WORDS]}. This is missing: {', '.join(missing)}."
    if not isinstance(schema, Mapping) or len(encode(schema)) > MAX_SCHEMA:
        return [{"text": words[:MAX_WORDS]}]
    form = {"question": "arguments", "schema": schema}
    return [{"text": words[:MAX_WORDS]}, {"data": form, "mediaType": "application/json"}]


def render_questions(questions: Mapping[str, Question], words: str) -> list[dict[str, Any]]:
    """A question as the parts of a message: its words for people, its form for programs."""
    parts: list[dict[str, Any]] = [{"text": words[:MAX_WORDS] or "more input is needed"}]
    for name, question in questions.items():
        schema = question.body.get("requestedSchema")
        url = question.body.get("url")
        properties = schema.get("properties") if isinstance(schema, Mapping) else None
        if isinstance(properties, Mapping) and properties.keys() - {"reply"}:
            asked = {"question": name, "schema": schema}
            parts.append({"data": asked, "mediaType": "application/json"})
        elif isinstance(url, str) and re.match(r"https?://", url):
            parts.append({"data": {"question": name, "url": url}, "mediaType": "application/json"})
    return parts
