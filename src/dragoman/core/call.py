"""A call and its result, independent of the entry point.

Knows no protocol: content is plain JSON objects with a `type` (text, image, audio, resource,
resource_link, data, ...); what a target adds to it travels unchanged in `extra`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final

from dragoman.core import structs
from dragoman.core.principal import Principal
from dragoman.core.structs import Struct
from dragoman.core.trace import NO_LABELS, Trace

if TYPE_CHECKING:
    from dragoman.core.approvals import ApprovalRule
    from dragoman.core.ports import Decision
    from dragoman.core.tool import Tool


class _Absent:
    """No value, where None is a value."""

    __slots__ = ()

    def __repr__(self) -> str:
        return "ABSENT"

    def __bool__(self) -> bool:
        return False


ABSENT: Final = _Absent()

NOTHING: Mapping[str, Any] = MappingProxyType({})
caller: ContextVar[Principal | None] = ContextVar("caller", default=None)
"""Who makes the call that runs in this task, for budgets that callers share; None for the hub."""


def empty_mapping() -> Mapping[str, Any]:
    return NOTHING


@dataclass(frozen=True, slots=True, kw_only=True)
class StatusMessage:
    """A message of the target about its progress, its question or its end, for servers that show
    such messages; other servers show the same as text or content."""

    content: Sequence[Any] = ()
    """Blocks; empty for a status without a message."""
    extra: Mapping[str, Any] = field(default_factory=empty_mapping)
    """Other members of the message: `metadata`, `extensions`."""
    metadata: Mapping[str, Any] = field(default_factory=empty_mapping)
    """Metadata of the update that brought the message."""
    task: str = ""
    """The target's own task id."""
    task_metadata: Mapping[str, Any] = field(default_factory=empty_mapping)


@dataclass(frozen=True, slots=True)
class ToolStep:
    """A tool call that an agent makes while it works on a message."""

    agent: str
    tool: str
    """The canonical name."""
    outcome: str = ""
    """`completed`, `failed`, `refused` or `asked`; empty while it runs."""
    duration_ms: float = 0.0
    problem: str = ""
    """Why it failed or was refused."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """The progress of a running call."""

    progress: float
    total: float | None = None
    message: str | None = None
    status_message: StatusMessage | None = None
    """The full message whose text is `message`."""
    step: ToolStep | None = None
    """The tool call of an agent that `message` describes."""
    meta: Mapping[str, Any] = field(default_factory=empty_mapping)
    """The `_meta` of the MCP notification."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LogMessage:
    """A log line that a target writes while it works."""

    level: str
    """One of `LEVELS`."""
    data: Any
    logger: str | None = None
    meta: Mapping[str, Any] = field(default_factory=empty_mapping)
    """The `_meta` of the MCP notification."""


LEVELS = ("debug", "info", "notice", "warning", "error", "critical", "alert", "emergency")
"""Severities, the lowest first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskStarted:
    """The target has made a task of the call, which may run for long."""

    message: str | None = None
    is_timed: bool = False
    """Whether the task is another call of the hub, which has a limit of its own: that of this call
    is longer, so that the error names what took too long."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Artifact:
    """An artifact, or a piece of one, that the target has made before it is done."""

    id: str
    """Shared by all pieces of one artifact."""
    content: Sequence[Any]
    name: str = ""
    description: str = ""
    append: bool = False
    """Whether it is appended to the artifact of this id, or replaces it."""
    last: bool = True
    extra: Mapping[str, Any] = field(default_factory=empty_mapping)
    metadata: Mapping[str, Any] = field(default_factory=empty_mapping)
    """Metadata of the update that brought this piece, not of the artifact."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskNamed:
    """The target has given its task an id. Only for calls with `Call.task`: whatever happens to the
    call, another one with `handle` continues the task."""

    handle: str
    """The target's own state; sealed by the `Questions` stage."""
    id: str
    """The target's id of the task, for people."""
    agent: str = ""
    """The agent that works on it; empty for other targets."""
    place: str = ""
    """Where it was made, for people: protocol, version and address."""


Update = Progress | LogMessage | TaskStarted | Artifact | TaskNamed
Updates = Callable[[Update], None]


def discard_update(update: Update) -> None:
    """Ignores updates that the client did not ask for."""


@dataclass(frozen=True, slots=True)
class WantedUpdates:
    """The updates that the client asked for; a target need not make others."""

    progress: bool = False
    log_level: str | None = None
    """The lowest severity of log messages; None for none."""
    task_start: bool = False
    tool_steps: bool = False
    """Whether to report the end of each tool call of an agent, besides its beginning."""


NO_UPDATES: Final = WantedUpdates()

FORM, URL, SAMPLING, ROOTS = "form", "url", "sampling", "roots"


@dataclass(frozen=True, slots=True)
class Question:
    """What a target needs before it can continue: a completed form, a visit to a URL, an answer of
    the client's model, or the client's roots."""

    kind: str
    """FORM, URL, SAMPLING or ROOTS."""
    body: Mapping[str, Any]
    """The `params` of the request in MCP's newest revision."""
    withdrawn: asyncio.Future[None] | None = field(default=None, compare=False, repr=False)
    """For a question that its server waits for: done when the server withdraws it. Such a server
    can also be answered with an `AnswerError`."""
    completed: asyncio.Future[Any] | None = field(default=None, compare=False, repr=False)
    """For such a URL question: done when the server reports that the user has finished there; a
    client may wait for that before it answers."""

    @property
    def text(self) -> str:
        """The question as text."""
        if self.kind == ROOTS:
            return "the folders that you work in"
        if self.kind == SAMPLING:
            return "an answer of your model"
        message, url = str(self.body.get("message", ""))[:500], str(self.body.get("url", ""))
        return message if url in message else f"{message} {url}"[:1000].strip()


FOLLOW: Final[Mapping[str, Any]] = MappingProxyType({})
"""The answers of a continued call that answers nothing: it waits until the question is resolved
elsewhere, and its handle stays valid. Compared by identity, so that no client can send it."""


BEGIN, POLL, FIND, CANCEL = "begin", "poll", "find", "cancel"


class TaskHandling(Struct, frozen=True, kw_only=True):
    """How a caller with a journal of its own, such as a run of a workflow, has a target work that
    takes long: the call ends while the target's task continues, and later calls ask for it."""

    action: str = BEGIN
    """BEGIN makes the call. POLL asks how the task in the handle stands, CANCEL ends it, and FIND
    looks for the task of an earlier attempt whose handle is unknown: these send no arguments, and
    the guards that judge what is sent let them pass. CANCEL is for those too who may not make the
    call any more."""
    attached_secs: float = 0.0
    """How long BEGIN and FIND follow a task before they leave it to itself."""


@dataclass(frozen=True, slots=True)
class AnswerError:
    """An error with which a client answered a question, for the server that waits for it."""

    code: int
    message: str
    data: Any = None


class MessageOrigin(Struct, frozen=True, kw_only=True):
    """An A2A message, with what came beside its parts."""

    context: str = ""
    """The client's id of the conversation."""
    task: str = ""
    id: str = ""
    skill: str = ""
    turn: int = 1
    """1 for the message that began the task."""
    metadata: Mapping[str, Any] = NOTHING
    request_metadata: Mapping[str, Any] = NOTHING
    configuration: Mapping[str, Any] = NOTHING
    """What an agent can use of it: `acceptedOutputModes`, `historyLength`."""
    extensions: Sequence[str] = ()
    """The extensions that the client has activated."""
    message_extensions: Sequence[str] = ()
    """The extensions that the message uses."""
    references: Sequence[tuple[str, str]] = ()
    """The tasks it refers to: the id here and the remote agent's, empty where it has none."""


class RoutedBy(Struct, frozen=True):
    """The decision by which the hub has chosen the agent of a call."""

    decision: str
    work_type: str
    agent_id: str = ""
    """The registration of an external agent."""


class Notes(Struct, eq=False):
    """What stages and the target of one call report for the audit and for events."""

    decision: Decision | None = None
    """What the policies said."""
    has_left: bool = False
    """Whether the target was asked to run the call. A target that only calls another one sets it
    to what became of that call."""
    usage: Mapping[str, Any] | None = None
    """What the remote agent says that the work cost."""
    remote_task: str | None = None
    """The id that the remote agent has given to the task of this call."""
    repeats: str | None = None
    """What the loop guard has found: the result carries it as a warning."""
    approval: ApprovalRule | None = None
    """Set if the call needs the approval of a person."""
    approval_id: str = ""
    """The request for that approval."""
    is_repeated: bool = False
    """Whether the result is that of an earlier call: this one was not made."""
    labels: frozenset[str] = NO_LABELS
    """The taint labels of the data that the call may carry."""
    flows: Sequence[dict[str, str]] = ()
    """The taint rules that these labels meet."""
    conversation: str = ""
    """The id that the target has given to the conversation of the call."""
    flush: Callable[[], Awaitable[None]] | None = None
    """Has the conversation of the call written. The hub waits for it at the end of the call, when
    the taint labels are stored, since the next message may reach another hub. It never fails."""
    sources: Mapping[str, str] | None = None
    """The taint labels of the result, each with the reason."""
    read_keys: Sequence[str] = ()
    """The keys of the stored data that the result has (see `core.label_keys`), from a target whose
    tools have `list_written`."""


class Call(Struct, frozen=True):
    principal: Principal
    tool: Tool
    requested_name: str
    """The name used by the client, possibly an alias; `tool.name` is the canonical one."""
    arguments: Mapping[str, Any]
    trace: Trace
    door: str
    """The entry point: `mcp-http`, `mcp-sse`, `mcp-stdio`, `a2a`, `api`."""
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
    """The client's session, for state that belongs to it alone; empty for a client without one."""
    revision: str = ""
    """The client's protocol revision, for targets that speak several; empty where there is none."""
    features: Mapping[str, Any] = NOTHING
    """What the client can be asked, in the shape of MCP capabilities; empty unless declared."""
    answers: Mapping[str, Any] | None = None
    """On a continued call: the answers to the questions of the previous one, by question name."""
    handle: str | None = None
    """On a continued call: the handle that came with the questions, sealed; after the `Questions`
    stage, the target's own state."""
    notes: Notes = structs.field(default_factory=Notes)
    """What stages and the target report for the audit and for events; they write into it."""
    routed: RoutedBy | None = None
    """Set if the hub has chosen the agent; None if the caller named it."""
    approval: str | None = None
    """None: a call that needs an approval waits for it, and the hub makes it once it is approved,
    even if its caller has gone. Otherwise the caller makes it itself: this is the id of the
    request, which the caller chooses. While it is not decided, `ApprovalPending` is raised at once;
    after the approval, one call with this id, tool and arguments passes, and no second one. Servers
    never take it from clients."""
    is_approved: bool = False
    """Whether a person has approved this call; the `ApprovalGuard` sets it."""
    task: TaskHandling | None = None
    """Set by callers that do not wait for long tasks; None: the call lasts until its outcome.
    Servers never take it from clients."""
    attempt: str = ""
    """Names the attempt of a caller that makes the same call again if the hub itself could not make
    it, perhaps at another hub, or looks for what it has started; empty for other callers. A target
    may derive the ids from it that it chooses. Servers never take it from clients."""

    @property
    def sends_nothing(self) -> bool:
        """Whether it only asks for a task, or ends it."""
        return self.task is not None and self.task.action != BEGIN

    @property
    def polls(self) -> bool:
        return self.task is not None and self.task.action == POLL

    @property
    def cancels(self) -> bool:
        return self.task is not None and self.task.action == CANCEL


class Result(Struct, frozen=True, kw_only=True):
    content: Sequence[Any] = ()
    structured: Any = ABSENT
    failed: bool = False
    """The tool ran and reports that it failed; the content says why."""
    ending: str = ""
    """How a result ends that is not whole: `cut` at a limit. The content says so too."""
    extra: Mapping[str, Any] = structs.field(default_factory=dict)
    size: int = -1
    """Size in bytes on the wire, where known: small results need not be measured."""
    artifacts: Sequence[Artifact] = ()
    """The named pieces of the result, where the target has such; `content` has everything."""
    direct: bool = False
    """Whether this is a direct reply, not the outcome of a task."""
    questions: Mapping[str, Question] | None = None
    """Set if there is no result yet: the questions to answer in a call that continues this one."""
    handle: str | None = None
    """With questions, or unfinished: what the continuing call must bring back unchanged."""
    unfinished: bool = False
    """Whether there is no result yet, and a task of the target that continues by itself. Only for
    calls with `Call.task`."""
    settles_itself: bool = False
    """With questions: whether they may be resolved elsewhere, for which `FOLLOW` waits."""
    status_message: StatusMessage | None = None
    """The target's message with its end or its question, beside its content."""
