"""A task as A2A knows it: its log is what a client may hear of it, in the form of 1.0.

The log has the client's own messages too, which no stream repeats. What a task looks like now is
kept beside the log while it is under way, and made from the stored log when it is finished.
"""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import Callable, Coroutine, Mapping, Sequence
from functools import partial
from os import urandom
from time import gmtime, strftime, time
from typing import Any

from dragoman.a2a.protocol import validation
from dragoman.a2a.protocol.dialects import operations
from dragoman.a2a.protocol.parts import part_from_block, parts_from_result
from dragoman.a2a.server.form_answers import AUTH
from dragoman.core.call import (
    ABSENT,
    FOLLOW,
    NOTHING,
    URL,
    Artifact,
    LogMessage,
    Progress,
    Question,
    Result,
    StatusMessage,
    Update,
    Updates,
)
from dragoman.core.errors import Declined, HubError, InvalidInput, Refused, WorkFailed
from dragoman.core.ports import StoredTask
from dragoman.core.principal import Principal
from dragoman.core.stored_tasks import LoggedTask
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
    words_of,
)
from dragoman.core.trace import TraceContext
from dragoman.wire.json import encode

log = logging.getLogger(__name__)

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
"""The hub's word for a state, and the protocol's."""
OURS = {theirs: ours for ours, theirs in STATES.items()}

MAX_ENTRIES = 10_000
MAX_BYTES = 64 * 1024 * 1024
"""What one task may make, by rough count, and what it may hold when it is sent more."""
PART_BYTES = 200
"""What a part takes beside what is in it."""
MAX_WORDS = 20_000
MAX_SCHEMA = 32 * 1024
"""Bytes of a schema that goes with a question; of a larger one only the words do."""
MAX_MEMBERS = 1_000
"""Of the metadata that an agent may give its task."""

Event = Mapping[str, Any]
MakeCall = Callable[
    ["AgentTask", Updates, Mapping[str, Any] | None, str | None], Coroutine[Any, Any, Result]
]
"""Makes the call of a task, or the one that continues it: updates, answers, handle."""


class AgentTask(LoggedTask):
    __slots__ = (
        "_extra", "_following", "_made", "_metadata", "_pending", "_resumed", "agent", "arguments",
        "artifacts", "beside", "carried", "context", "continues", "far", "history", "metadata",
        "said", "said_at", "schema", "sends", "sent", "shown", "skill", "status", "tool", "turn",
        "version",
    )  # fmt: skip

    def __init__(
        self,
        owner: Principal,
        call: MakeCall,
        *,
        id: str,
        context: str,
        agent: str,
        tool: str,
        skill: str = "",
    ) -> None:
        super().__init__(owner, partial(call, self), id)
        self.state = SUBMITTED
        self.context = context
        self.agent = agent
        """Whose path or name it came by; the hub's own is empty."""
        self.tool = tool
        """What is called; empty until that is known."""
        self.skill = skill
        self.continues = False
        """Whether its target goes on with the next message, whichever hub brings it."""
        self.arguments: dict[str, Any] = {}
        self.schema: Any = None
        """Of the arguments, where they are those of a tool that its owner may see."""
        self.sent: dict[str, Any] = {}
        """The message that is being answered."""
        self.beside: Mapping[str, Any] = NOTHING
        """What the client said beside that message, for the call of the agent: see `Sending`."""
        self.said_at = 0
        """The number of the entry with that message."""
        self.turn = 0
        self.version = ""
        """The dialect it was made in."""
        self.sends: dict[str, str] = {}
        """The keys of a client that wants what it sends twice to be done once, each with a digest
        of what was sent with it."""
        self.metadata: Mapping[str, Any] = {}
        self.far = ""
        """The id that the agent behind the hub has given to its task."""
        self.carried: TraceContext | None = None
        """One for all the calls of a task."""
        self.said: dict[str, Any] = {}
        """What was answered so far to questions that are still open."""
        self.shown = False
        """Whether anybody has heard of it, so that it must stay what it is."""
        self.status: dict[str, Any] = {
            "state": validation.SUBMITTED,
            "timestamp": stamp(self.created),
        }
        self.history: list[Mapping[str, Any]] = []
        self.artifacts: dict[str, dict[str, Any]] = {}
        self._made = 0
        self._following: asyncio.Task[None] | None = None
        self._resumed = False
        """Whether the call under way answers a question of the target's."""
        self._pending: Sequence[Mapping[str, Any]] = ()
        """The parts of the next status."""
        self._extra: Mapping[str, Any] = NOTHING
        """The other members of the message of the next status."""
        self._metadata: Mapping[str, Any] = NOTHING
        """The metadata of the next status update."""

    # --- what is stored beside the log -----------------------------------------------------------

    def about(self) -> dict[str, Any]:
        about = {
            "context": self.context,
            "agent": self.agent,
            "tool": self.tool,
            "turn": self.turn,
            "version": self.version,
        }
        if self.carried is not None:
            about["trace"] = self.carried.id
        if self.skill:
            about["skill"] = self.skill
        if self.sends:
            about["sends"] = self.sends
        if self.metadata:
            about["metadata"] = self.metadata
        if self.far:
            about["far"] = self.far
        if not self.finished and self.state in WAITS:
            about["arguments"] = self.arguments
            if self.asked is not None and self.asked.handle and not self.continues:
                about["handle"] = True
        return about

    @classmethod
    def made_again(cls, stored: StoredTask, call: MakeCall) -> AgentTask:
        about = stored.about
        task = cls(
            stored.owner,
            call,
            id=stored.id,
            context=about["context"],
            agent=about["agent"],
            tool=about["tool"],
            skill=about.get("skill", ""),
        )
        task.state, task.created, task.updated = stored.state, stored.created, stored.updated
        task.arguments = about.get("arguments", {})
        task.turn, task.version = about["turn"], about["version"]
        task.sends = about.get("sends", {})
        task.carried = TraceContext(about["trace"], "", "") if "trace" in about else None
        task.metadata = about.get("metadata", {})
        task.far = about.get("far", "")
        task.shown = True
        task.status = {"state": STATES[stored.state], "timestamp": stamp(stored.updated)}
        return task

    def restore(self, entries: list[Entry]) -> None:
        super().restore(entries)
        self.history, self.artifacts, self.status = [], {}, dict(self.status)
        fold(entries, self.history, self.artifacts, self.status)

    def forget(self) -> None:
        super().forget()
        self.history, self.artifacts, self.arguments, self.sent = [], {}, {}, {}
        self.status = {key: self.status[key] for key in ("state", "timestamp")}
        self.result = None

    # --- as a client sees it -----------------------------------------------------------------

    def snapshot(
        self, history: int | None = None, artifacts: bool = True, at: int | None = None
    ) -> dict[str, Any]:
        """At most `history` messages, the latest; None for all there are. `at` is the number of
        the last entry that counts; None for now."""
        self.shown = True
        said, made, status = self.history, self.artifacts, self.status
        if at is not None or (self.count and not self.entries):
            said, made = [], {}
            status = {"state": validation.SUBMITTED, "timestamp": stamp(self.created)}
            fold(self.entries_after(0)[:at], said, made, status)
        task: dict[str, Any] = {"id": self.id, "contextId": self.context, "status": status}
        if artifacts and made:
            task["artifacts"] = list(made.values()) if self.finished else _copies(made)
        said = list(said) if history is None else said[-history:] if history else []
        if said:
            task["history"] = said
        if self.metadata:
            task["metadata"] = self.metadata
        return task

    def events_after(self, number: int, most: int | None = None) -> list[Entry]:
        """What a stream tells: all but the client's own messages. At least one where there is one,
        and what is read from the store no more than about `most` bytes."""
        while entries := self.entries_after(number, most):
            if found := [entry for entry in entries if "message" not in entry.event]:
                return found
            number = entries[-1].number
        return []

    @property
    def running(self) -> bool:
        running = self._running
        return (running is not None and not running.done()) or self._following is not None

    @property
    def accepted(self) -> Sequence[str]:
        """The media types that the client would like best; none where it did not say."""
        modes: Sequence[str] = self.beside.get("configuration", NOTHING).get(
            "acceptedOutputModes", ()
        )
        return modes

    @property
    def full(self) -> bool:
        """Whether it holds all that one task may."""
        return self.count >= MAX_ENTRIES or self.size >= MAX_BYTES

    # --- what happens to it ----------------------------------------------------------------------

    def say(self, message: dict[str, Any]) -> None:
        """A message of the client's."""
        self.turn += 1
        self.sent = message
        if "message" in self.status:  # what was asked stands before the answer
            self.history.append(self.status["message"])
            self.status = {key: self.status[key] for key in ("state", "timestamp")}
        self.history.append(message)
        entry = self.append({"message": message})
        if self.status["state"] in _WAITING:
            self.status = _taken_up(entry)
        self.said_at = self.count

    def begin(self) -> None:
        """The call is made, or made again with what was said since."""
        if self.state in WAITS:
            self._stop_following()
            self.questions, self.asked, self.said = {}, None, {}
        self.error = None
        self._move(WORKING, "")
        self.start()

    def answer(self, answers: Mapping[str, Any]) -> None:
        self._stop_following()
        super().answer(answers)

    def _stop(self, state: str, message: str, why: str = "") -> bool:
        self._stop_following()
        return super()._stop(state, message, why)

    def start(self, answers: Mapping[str, Any] | None = None, handle: str | None = None) -> None:
        self._resumed = handle is not None
        super().start(answers, handle)

    def ask(self, words: str) -> None:
        """Waits for the client without a question of the target's."""
        self._words(words)
        self._move(INPUT_REQUIRED, words)

    def ask_again(self, words: str) -> None:
        """What was said was not what was asked for."""
        self._words(words)
        self._log_status()
        self._tell()

    def first_message(self) -> Mapping[str, Any]:
        return self.history[0]

    def interrupt(self) -> None:
        """The hub ends, or has ended, while this was under way."""
        if self.finished:
            return
        error = WorkFailed("it was interrupted: the hub was stopped while it worked on this")
        self.error = error
        self._words(str(error))
        self._stop(FAILED, str(error))

    def cancel(self, why: str = "") -> bool:
        if why and not self.finished:
            self._words(f"it was cancelled: {why}")
        return super().cancel(why)

    def fail(self, error: HubError) -> bool:
        if not self.finished:
            self._words(str(error))
        return super().fail(error)

    def update_status(self, state: str, words: str = "") -> None:
        """Moves it, where that move is allowed; raises `InvalidInput` otherwise."""
        if words:
            self._words(words)
        self._move(state, words)

    def complete(self, result: Result) -> None:
        self._finish(result)

    def _finish(self, result: Result) -> None:
        try:
            self._conclude(result)
        except HubError as error:
            self._fail(error)

    def _conclude(self, result: Result) -> None:
        self.result = result
        if result.status_message is not None:
            self._heard(result.status_message)
        if result.failed:
            self._pending = parts_from_result(result)
            self._move(FAILED, "")
            return
        if result.direct and not self.shown:
            self._pending = parts_from_result(result)
        elif result.artifacts:
            for made in result.artifacts:
                if made.id not in self.artifacts:
                    self._make(made)
        elif result.direct:
            self._pending = parts_from_result(result)
        elif result.status_message is not None:
            pass  # what the agent said at its end is the status, and it has made nothing
        elif result.content or result.structured is not ABSENT:
            parts = parts_from_result(result, self.accepted)
            response = {
                "artifactId": operations.RESPONSE,
                "name": operations.RESPONSE,
                "parts": parts,
            }
            self._append_artifact(response, False, True)
        self._move(COMPLETED, "")

    def _wait(self, words: str) -> None:
        logs_in = any(
            question.kind == URL or name == AUTH for name, question in self.questions.items()
        )
        asked = self.asked
        if asked is not None and asked.status_message is not None:
            self._heard(asked.status_message)
        if not self._pending:
            self._pending = question_parts(self.questions, words)
        self._move(AUTH_REQUIRED if logs_in else INPUT_REQUIRED, words)
        if asked is not None and asked.settles_itself and not self.continues:
            self._follow(asked.handle)

    # --- questions that are settled elsewhere ----------------------------------------------------

    def _follow(self, handle: str | None) -> None:
        """Goes on by itself once the question is settled on the far side, as a login is. Whoever
        answers meanwhile is faster."""
        following = self._run_following(handle)
        self._following = asyncio.get_running_loop().create_task(following)

    def _stop_following(self) -> None:
        if self._following is not None:
            self._following.cancel()
            self._following = None

    async def _run_following(self, handle: str | None) -> None:
        assert self._work is not None
        try:
            result = await self._work(self._update_following, FOLLOW, handle)
        except asyncio.CancelledError:
            if self.state == WORKING and self._running is asyncio.current_task():
                self._move(CANCELLED, "it was stopped")
            raise
        except Exception as error:
            if self.state in WAITS:  # it waits for its client, as it does without this
                self._following = None
                log.info('task "%s" is not followed any more: %s', self.id, error)
            else:
                self._fail(error)
            return
        if self.finished:
            return
        self._take_up()
        if result.questions is not None:
            self._ask(result, result.questions)
        else:
            self._finish(result)

    def _update_following(self, update: Update) -> None:
        if self.state in WAITS:
            self._take_up()
        self._update(update)

    def _take_up(self) -> None:
        """The question is settled: what follows it is the call of the task now."""
        if self.state in WAITS:
            self._running, self._following = self._following, None
            self.questions, self.asked, self.said = {}, None, {}
            self._move(WORKING, "")

    def _fail(self, error: Exception) -> None:
        if self.finished:
            return
        if isinstance(error, InvalidInput) and not self._resumed and self.state == WORKING:
            self.error = error
            words = str(error)
            self._pending = argument_parts(words, self.schema, self.arguments)
            self._move(INPUT_REQUIRED, words)
            return
        if isinstance(error, HubError):
            self._words(str(error))
            if error.status_message is not None:
                self._heard(error.status_message)
            if isinstance(error, Refused | Declined):
                self.error = error
                self._move(REJECTED, str(error))
                return
        else:
            self._words("it crashed; see the hub's log")
        super()._fail(error)

    def _update(self, update: Update) -> None:
        if self.finished or isinstance(update, LogMessage):
            return
        if isinstance(update, Artifact):
            self._make(update)
        elif isinstance(update, Progress) and update.status_message is not None:
            self._made += (
                sum(map(_weight, map(part_from_block, update.status_message.content))) + PART_BYTES
            )
            if self.count >= MAX_ENTRIES or self._made > MAX_BYTES:
                return
            self._heard(update.status_message)
            self._log_status()
        else:
            words = words_of(update)
            self._made += len(words[:MAX_WORDS]) + PART_BYTES
            if not words or self.count >= MAX_ENTRIES or self._made > MAX_BYTES:
                return
            self._words(words)
            self._log_status()
        self._tell()

    def _make(self, made: Artifact) -> None:
        artifact: dict[str, Any] = {"artifactId": made.id}
        if made.name:
            artifact["name"] = made.name
        if made.description:
            artifact["description"] = made.description
        artifact.update(made.extra)
        artifact["parts"] = [part_from_block(block) for block in made.content]
        self._append_artifact(artifact, made.append, made.last, made.metadata)

    def _append_artifact(
        self,
        artifact: dict[str, Any],
        append: bool,
        last: bool,
        metadata: Mapping[str, Any] = NOTHING,
    ) -> None:
        self._made += sum(map(_weight, artifact["parts"]))
        if self.count >= MAX_ENTRIES or self._made > MAX_BYTES:
            raise WorkFailed("it has made more than one task can hold, and was stopped")
        update: dict[str, Any] = {
            "taskId": self.id,
            "contextId": self.context,
            "artifact": artifact,
        }
        if append:
            update["append"] = True
        if last:
            update["lastChunk"] = True
        if metadata:
            update["metadata"] = metadata
        self.append({"artifactUpdate": update})
        _add(self.artifacts, artifact, append)

    # --- the status ------------------------------------------------------------------------------

    def _heard(self, said: StatusMessage) -> None:
        """The next status is what the agent behind the hub has said."""
        if said.content:
            self._pending = [part_from_block(block) for block in said.content]
        self._extra, self._metadata = said.extra, said.metadata
        self.far = said.task or self.far
        known = {**self.metadata, **said.task_metadata, **said.metadata}
        if len(known) <= MAX_MEMBERS:
            self.metadata = known

    def _words(self, words: str) -> None:
        self._pending = [{"text": words[:MAX_WORDS]}]

    def _moved(self) -> None:
        self._log_status()

    def _log_status(self) -> None:
        now = time()
        if "message" in self.status:
            self.history.append(self.status["message"])
        status: dict[str, Any] = {"state": STATES[self.state], "timestamp": stamp(now)}
        if self._pending:
            status["message"] = {
                "messageId": new_id(),
                "contextId": self.context,
                "taskId": self.id,
                "role": validation.AGENT,
                "parts": list(self._pending),
                **self._extra,
            }
            self._pending = ()
        self.status = status
        update: dict[str, Any] = {"taskId": self.id, "contextId": self.context, "status": status}
        if self._metadata:
            update["metadata"] = self._metadata
        self._extra = self._metadata = NOTHING
        self.append({"statusUpdate": update})


_drawn = ""


def new_id() -> str:
    """A UUID of version 4. Chance is drawn for many at once: each time is a system call."""
    global _drawn
    if not _drawn:
        _drawn = urandom(512).hex()
    hex, _drawn = _drawn[:32], _drawn[32:]
    return f"{hex[:8]}-{hex[8:12]}-4{hex[13:16]}-a{hex[17:20]}-{hex[20:]}"


_second, _millisecond = (0, ""), (0, "")


def stamp(at: float) -> str:
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


def fold(
    entries: Sequence[Entry],
    history: list[Mapping[str, Any]],
    artifacts: dict[str, dict[str, Any]],
    status: dict[str, Any],
) -> None:
    """What a task looks like after all that."""
    for entry in entries:
        event = entry.event
        if "message" in event:
            if "message" in status:
                history.append(status.pop("message"))
            history.append(event["message"])
            if status["state"] in _WAITING:
                status.clear()
                status.update(_taken_up(entry))
        elif "statusUpdate" in event:
            if "message" in status:
                history.append(status["message"])
            status.clear()
            status.update(event["statusUpdate"]["status"])
        else:
            update = event["artifactUpdate"]
            _add(artifacts, update["artifact"], update.get("append", False))


_WAITING = frozenset(STATES[state] for state in WAITS)


def _taken_up(entry: Entry) -> dict[str, Any]:
    """The status of a task whose question was just answered. A stream that begins here must not
    show it as still asking: clients stop at that state, or put the question again."""
    return {"state": validation.WORKING, "timestamp": stamp(entry.at)}


def _weight(part: Mapping[str, Any]) -> int:
    said = part.get("text") or part.get("raw") or part.get("url")
    return PART_BYTES + (len(said) if isinstance(said, str) else len(repr(part.get("data"))))


def _add(artifacts: dict[str, dict[str, Any]], artifact: dict[str, Any], append: bool) -> None:
    id = artifact["artifactId"]
    before = artifacts.get(id)
    if before is None or not append:  # a copy, since that is what was logged, and this may grow
        artifacts[id] = {**artifact, "parts": list(artifact["parts"])}
    else:
        before["parts"] += artifact["parts"]


def _copies(artifacts: Mapping[str, Mapping[str, Any]]) -> list[dict[str, Any]]:
    return [{**made, "parts": list(made["parts"])} for made in artifacts.values()]


def argument_parts(words: str, schema: Any, arguments: Mapping[str, Any]) -> list[dict[str, Any]]:
    """What is wrong with the arguments of a tool, all that are missing, and the form of them."""
    required = schema.get("required") if isinstance(schema, Mapping) else None
    names = required if isinstance(required, list) else []
    missing = [f'"{name}"' for name in names if isinstance(name, str) and name not in arguments]
    if len(missing) > 1:
        words = f"{words[:MAX_WORDS]}. This is missing: {', '.join(missing)}."
    parts: list[dict[str, Any]] = [{"text": words[:MAX_WORDS]}]
    if isinstance(schema, Mapping) and len(encode(schema)) <= MAX_SCHEMA:
        form = {"question": "arguments", "schema": schema}
        parts.append({"data": form, "mediaType": "application/json"})
    return parts


def question_parts(questions: Mapping[str, Question], words: str) -> list[dict[str, Any]]:
    """A question as a message: for people its words, for programs the form to fill in."""
    parts: list[dict[str, Any]] = [{"text": words[:MAX_WORDS] or "more is needed to go on"}]
    for name, question in questions.items():
        schema = question.body.get("requestedSchema")
        url = question.body.get("url")
        if isinstance(schema, Mapping) and set(schema.get("properties", ())) - {"reply"}:
            asked = {"question": name, "schema": schema}
            parts.append({"data": asked, "mediaType": "application/json"})
        elif isinstance(url, str) and re.match(r"https?://", url):
            parts.append({"data": {"question": name, "url": url}, "mediaType": "application/json"})
    return parts
