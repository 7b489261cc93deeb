"""One request to have something done, whatever brought it in, and what came of it.

Knows no protocol: content is plain JSON objects with a `type` (text, image, audio, resource,
resource_link, data, …), and what a target says beside it travels in `extra`, unchanged.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final

from dragoman.core.fast_dataclass import record
from dragoman.core.principal import Principal
from dragoman.core.trace import Trace

if TYPE_CHECKING:
    from dragoman.core.ports import Decision
    from dragoman.core.tool import Tool


class _Absent:
    """No value at all, where None is one."""

    __slots__ = ()

    def __repr__(self) -> str:
        return "ABSENT"

    def __bool__(self) -> bool:
        return False


ABSENT: Final = _Absent()

NOTHING: Mapping[str, Any] = MappingProxyType({})


def empty_mapping() -> Mapping[str, Any]:
    return NOTHING


@dataclass(frozen=True, slots=True, kw_only=True)
class StatusMessage:
    """A message of the target's beside what it makes: with its progress, its question, its end.
    For a face that shows such messages; every other face has the same in words or content."""

    content: Sequence[Any] = ()
    """Blocks; none for a status without a message."""
    extra: Mapping[str, Any] = field(default_factory=empty_mapping)
    """What else the message has: `metadata`, `extensions`."""
    metadata: Mapping[str, Any] = field(default_factory=empty_mapping)
    """Of the update that brought the message."""
    task: str = ""
    """The id that the far side has given to its task."""
    task_metadata: Mapping[str, Any] = field(default_factory=empty_mapping)


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """How far a running call has come."""

    progress: float
    total: float | None = None
    message: str | None = None
    status_message: StatusMessage | None = None
    """The whole of what `message` has in words."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LogMessage:
    """Something a target said of its work while it worked: a line of its log."""

    level: str
    """One of `LEVELS`."""
    data: Any
    logger: str | None = None


LEVELS = ("debug", "info", "notice", "warning", "error", "critical", "alert", "emergency")
"""How grave a note is, the least grave first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskStarted:
    """The far side has made a task of the call: it goes on, perhaps for long."""

    message: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Artifact:
    """Something the target has made, whole or a part of it, before it is done."""

    id: str
    """The same for all parts of one."""
    content: Sequence[Any]
    name: str = ""
    description: str = ""
    append: bool = False
    """Whether it goes behind what there is under this id, or replaces it."""
    last: bool = True
    extra: Mapping[str, Any] = field(default_factory=empty_mapping)
    metadata: Mapping[str, Any] = field(default_factory=empty_mapping)
    """Of the update that brought this piece, and not of the artifact."""


Update = Progress | LogMessage | TaskStarted | Artifact
Updates = Callable[[Update], None]


def discard_update(update: Update) -> None:
    """Where updates go that nobody asked for."""


@dataclass(frozen=True, slots=True)
class WantedUpdates:
    """Which updates the caller asked for; a target need not make others."""

    progress: bool = False
    log_level: str | None = None
    """The least grave level of notes; None for no notes."""
    task_start: bool = False


NO_UPDATES: Final = WantedUpdates()

FORM, URL, SAMPLING, ROOTS = "form", "url", "sampling", "roots"


@dataclass(frozen=True, slots=True)
class Question:
    """What a target needs to know before it can go on: a form to fill in, an address to visit, an
    answer of the caller's model, or the caller's folders."""

    kind: str
    """FORM, URL, SAMPLING or ROOTS."""
    body: Mapping[str, Any]
    """What the asker said, in the words of MCP's newest revision: the `params` of its request."""
    withdrawn: asyncio.Future[None] | None = field(default=None, compare=False, repr=False)
    """Only for a question whose asker waits for the answer. Done as soon as the asker does not want
    the answer any more. Such an asker can also be answered with a `Refusal`."""
    completed: asyncio.Future[None] | None = field(default=None, compare=False, repr=False)
    """Only for an address of such an asker. Done when the asker says that the user has done there
    what was to be done; a client may wait for that before it answers."""

    @property
    def text(self) -> str:
        """What is asked, for people."""
        if self.kind == ROOTS:
            return "the folders that you work in"
        if self.kind == SAMPLING:
            return "an answer of your model"
        message, url = str(self.body.get("message", ""))[:500], str(self.body.get("url", ""))
        return message if url in message else f"{message} {url}"[:1000].strip()


FOLLOW: Final[Mapping[str, Any]] = MappingProxyType({})
"""The answers of a continuing call that answers nothing: it waits until the question is settled
elsewhere, and its handle stays good for an answer. Known by identity, so no client can send it."""


@dataclass(frozen=True, slots=True)
class AnswerError:
    """The error that a client answered a question with, for the asker that waits for it."""

    code: int
    message: str
    data: Any = None


@record(frozen=True, slots=True, kw_only=True)
class MessageOrigin:
    """An A2A message, with what came beside its parts."""

    context: str = ""
    """The client's id of the conversation."""
    task: str = ""
    id: str = ""
    skill: str = ""
    turn: int = 1
    """1 for the message that began the task."""
    metadata: Mapping[str, Any] = field(default_factory=empty_mapping)
    request_metadata: Mapping[str, Any] = field(default_factory=empty_mapping)
    configuration: Mapping[str, Any] = field(default_factory=empty_mapping)
    """What an agent can use of it: `acceptedOutputModes`, `historyLength`."""
    extensions: Sequence[str] = ()
    """The extensions that the client has activated."""
    message_extensions: Sequence[str] = ()
    """The extensions that the message uses."""
    references: Sequence[tuple[str, str]] = ()
    """The tasks it refers to: the id here and the remote agent's, empty where it has none."""


class Notes:
    """What stages and the target of one call report for the audit and for events."""

    # Class attributes and no `__init__`: most calls set one of them or none.
    decision: Decision | None = None
    """What the policies said."""
    usage: Mapping[str, Any] | None = None
    """What the remote agent says that the work cost."""
    remote_task: str | None = None
    """The id that the remote agent has given to the task of this call."""


@record(frozen=True, slots=True)
class Call:
    principal: Principal
    tool: Tool
    requested_name: str
    """The name it was asked by, perhaps an alias; `tool.name` is the verb."""
    arguments: Mapping[str, Any]
    trace: Trace
    door: str
    """The face that brought it: `mcp-http`, `mcp-sse`, `mcp-stdio`, `api`."""
    meta: Mapping[str, Any] | None = None
    """The `_meta` of an MCP request, unchanged, for targets that can carry it on."""
    session: str | None = None
    """The MCP session in which a conversation continues by itself; empty for an MCP client that has
    none, None for other protocols."""
    message: MessageOrigin | None = None
    """The A2A message that the call was made from; None for other protocols."""
    updates: Updates = discard_update
    wanted_updates: WantedUpdates = NO_UPDATES
    client: str = ""
    """The client's session, for what belongs to it alone; empty for one that keeps none."""
    revision: str = ""
    """The revision of the protocol that the client speaks, for targets that speak several; empty
    where there is none."""
    features: Mapping[str, Any] = field(default_factory=empty_mapping)
    """What this caller can be asked, as its protocol says it; nothing, unless it said so."""
    answers: Mapping[str, Any] | None = None
    """On a continued call, to the questions of the one before, by their names there."""
    handle: str | None = None
    """What came with those questions: sealed, and behind the stage that opens it, the target's."""
    notes: Notes = field(default_factory=Notes)
    """What stages and the target report for the record; they write into it."""


@record(frozen=True, slots=True, kw_only=True)
class Result:
    content: Sequence[Any] = ()
    structured: Any = ABSENT
    failed: bool = False
    """The tool ran and says that it failed; the content says why."""
    extra: Mapping[str, Any] = field(default_factory=dict)
    size: int = -1
    """Bytes it took on the wire it came by, where known: lets small results pass unweighed."""
    artifacts: Sequence[Artifact] = ()
    """What was made, where the target says it in pieces that have names; `content` has it all."""
    direct: bool = False
    """Whether this is a word of answer, and not the outcome of some work."""
    questions: Mapping[str, Question] | None = None
    """There is no result yet: these are to be answered first, in a call that continues this one."""
    handle: str | None = None
    """With questions: what the continuing call brings back, as it is."""
    settles_itself: bool = False
    """With questions: they may be settled elsewhere, which a call with `FOLLOW` waits for."""
    status_message: StatusMessage | None = None
    """What the target said with its end or its question, where it says so beside what it made."""
