"""What the packages need of one another, joined in `app`."""

from __future__ import annotations

from collections.abc import Awaitable, Hashable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from dragoman.core.fast_dataclass import record
from dragoman.core.principal import Principal
from dragoman.core.tool import Validator

if TYPE_CHECKING:
    from dragoman.core.call import AnswerError, Call, Question
    from dragoman.core.tasks import Entry
    from dragoman.core.tool import Tool


class AuditLog(Protocol):
    """Where the record of each call is kept: the intent, then what came of it."""

    def intend(self, entry: Mapping[str, Any]) -> int:
        """Writes what is about to be done; it is stored when this returns, with the entry's number.
        Raises `StorageFailed` when it cannot be, `ShuttingDown` once it is closed."""

    def hash_arguments(self, arguments: bytes) -> str:
        """Tells whether two calls had the same arguments, and nobody without the key which."""

    def conclude(self, intent: int, entry: Mapping[str, Any]) -> None:
        """Writes what came of entry `intent`, with the next intent or soon after."""


@record(frozen=True, slots=True)
class Decision:
    """What the policies say to one request."""

    allowed: bool
    policies: tuple[str, ...] = ()
    """The ids of those that decided; none where nothing permits it."""
    snapshot: str = ""
    """Which set of policies it was, in short."""
    errors: tuple[str, ...] = ()
    """Why it could not be decided; then it is not allowed."""
    shadow: Decision | None = None
    """What the policies would have said where they are not in force yet."""


A2A_DISCOVER, TASK_READ, TASK_CANCEL, ADMIN = "a2a_discover", "task_read", "task_cancel", "admin"
"""What is judged beside calls and lists."""


class Authorizer(Protocol):
    """Judges who may do what. Never raises: what cannot be decided is denied."""

    @property
    def version(self) -> int:
        """Moves whenever a decision may have become another."""

    def reads_arguments(self, tool: Tool) -> bool:
        """Whether decisions on calls of `tool` may depend on the values of arguments."""

    def decide(self, call: Call) -> Decision:
        """Whether the call may be made: `mcp_call`, or `a2a_invoke` for an agent of others."""

    def can_list(self, caller: Principal, tool: Tool) -> bool:
        """Whether `list` is permitted, which alone does not make it listed."""

    def can_see(self, caller: Principal, tool: Tool, door: str) -> bool:
        """Whether it is listed: `list` and the call, as a first one by that door, are permitted."""

    def group_of_principal(self, caller: Principal) -> Hashable:
        """The same for all callers to whom all decisions on calls and lists are the same."""

    def decide_action(
        self, caller: Principal, action: str, tool: Tool | None = None, *, owner: bool = False
    ) -> Decision:
        """Of the other actions; without a tool, on the hub as a whole. `owner`: whether a task is
        the caller's own."""


class Viewer(NamedTuple):
    """Who asks for a list, as far as it decides what targets list to it."""

    principal: Principal
    client: str
    door: str
    revision: str
    features: Mapping[str, Any]


class ListVisibility(Protocol):
    """Which part of what targets offer each client is listed."""

    def prepare(self, kind: str, viewer: Viewer) -> Awaitable[None] | None:
        """What to wait for, for a bounded time, before that list is given to somebody; None where
        all is known."""

    def list_hidden(self, kind: str, viewer: Viewer) -> frozenset[str]:
        """Canonical names that are not listed to `viewer`."""

    def list_client_only_names(self, kind: str) -> frozenset[str]:
        """Canonical names that are there for single clients alone."""


class ListRefresher(Protocol):
    """Reads again what targets offer, for callers who ask. Never often: what was read a moment ago
    is not read again, whoever asks."""

    def is_stale(self, kind: str) -> bool:
        """Whether a list of that kind is to be read again before it is given to somebody."""

    async def refresh(self, kind: str) -> None:
        """Reads those lists again, and waits for that for a bounded time."""

    async def refresh_for(self, name: str, kind: str) -> bool:
        """The same for the lists that an unknown name may be in by now; False where there are
        none to be read."""


@record(frozen=True, slots=True)
class StoredTask:
    """A task as it is stored, without its entries."""

    key: int
    id: str
    owner: Principal
    state: str
    created: float
    updated: float
    about: Mapping[str, Any]
    count: int
    """How many entries it has."""
    size: int
    """Bytes that these take."""


@record(frozen=True, slots=True)
class TaskChange:
    """What is new of a task."""

    key: int
    """0 for one that is not stored yet."""
    id: str
    owner: Principal
    state: str
    created: float
    updated: float
    about: Any
    """Anything that encodes to a JSON object."""
    entries: Sequence[Entry]
    """Those that are not stored yet."""


@record(frozen=True, slots=True)
class StoredPush:
    """An address that is told of a task, and how far that has come."""

    task: int
    """The task's key."""
    id: str
    config: Mapping[str, Any]
    cursor: int
    """The number of the last entry that was delivered."""
    attempts: int
    next_at: float
    dead: str
    """Why nothing is sent there any more; empty while it is."""


class TaskStore(Protocol):
    """Where tasks are when the hub is not. All its methods block and may raise `StorageFailed`."""

    def load(self) -> list[StoredTask]:
        """All of them, the oldest first."""

    def load_entries(self, key: int, after: int = 0, most: int | None = None) -> list[Entry]:
        """Those behind number `after`, in order; at least the next one, and no more than about
        `most` bytes of them."""

    def save(self, changes: Sequence[TaskChange]) -> list[tuple[int, int]]:
        """All or none, and kept when this returns: the key of each, and the bytes it has grown."""

    def delete(self, key: int) -> None:
        """The task, its entries and who was told of it; with the next `save`, or soon."""

    def load_pushes(self) -> list[StoredPush]: ...

    def save_push(self, push: StoredPush) -> None:
        """Kept when this returns."""

    def delete_push(self, task: int, id: str) -> None: ...


@record(frozen=True, slots=True)
class Pin:
    """What is kept of a definition that was seen, without what it said."""

    target: str
    kind: str
    id: str
    """What its target calls it, folded as in `core.identity`; of a resource its address."""
    name: str
    """What it is called here."""
    mark: bytes = b""
    """Of the form in which the approved one was seen last; empty where none is."""
    approved_at: float = 0.0
    approved_by: str = ""
    held_mark: bytes = b""
    """Of what is offered instead of the approved one; empty where that is offered."""
    held_at: float = 0.0
    rejected_at: float = 0.0
    rejected_by: str = ""
    """Who has said no to what is held; empty where nobody has."""
    size: int = 0
    """Bytes that the approved one takes."""
    held_size: int = 0
    spelling: str = ""
    """What its target called it when it was approved."""
    scheme: int = 1
    """Which members of a definition were pinned when it was approved."""


@record(frozen=True, slots=True)
class PinChange:
    pin: Pin
    approved: bytes | None = None
    """What the approved one says; None: as it was."""
    held: bytes | None = None


@record(frozen=True, slots=True)
class PinDecision:
    """What somebody has said about a definition."""

    at: float
    by: str
    action: str
    """`approve`, `reject`, or `forget`, which is of all of a target."""
    target: str
    kind: str
    id: str
    name: str
    digest: str


class PinStore(Protocol):
    """Where pins are kept. All its methods work at once and may raise `StorageFailed`."""

    def load(self, target: str | None) -> list[Pin]:
        """Those of a target; None: of all, in the order of their names."""

    def load_bodies(self, pin: Pin) -> tuple[bytes, bytes]:
        """What the approved one says and what the held one does; empty where there is none."""

    def save(
        self,
        changes: Sequence[PinChange],
        decisions: Sequence[PinDecision],
        listed: tuple[str, str] | None = None,
    ) -> None:
        """All or none, and kept when this returns. What a pin holds no longer is dropped.
        `listed` is a target that has given its first list of a kind."""

    def load_listed_kinds(self, target: str) -> set[str]:
        """The kinds of which it has given a list."""

    def load_decisions(self, pin: Pin, most: int) -> list[PinDecision]:
        """The newest first."""

    def forget(self, target: str, decision: PinDecision) -> None:
        """All pins of a target."""


class ClientAsker(Protocol):
    """Asks clients questions that belong to no call of theirs."""

    def is_reachable(self, client: str) -> bool:
        """Whether the client of that session can be asked something now."""

    async def ask_client(
        self, client: str, question: Question, seconds: float
    ) -> Mapping[str, Any] | AnswerError | None:
        """What the client answers; None if it does not."""


class SchemaCompiler(Protocol):
    """Makes a validator of a JSON Schema and fetches nothing; ValueError for a bad schema."""

    def __call__(self, schema: Mapping[str, Any]) -> Validator: ...
