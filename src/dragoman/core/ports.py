"""Interfaces between packages; `app` connects their implementations."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Hashable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from dragoman.core.principal import Principal
from dragoman.core.scopes import ADMIN, ADMIN_RIGHTS
from dragoman.core.structs import Struct
from dragoman.core.tool import Validator

if TYPE_CHECKING:
    from dragoman.core.approvals import ApprovalRule
    from dragoman.core.call import AnswerError, Call, Question
    from dragoman.core.rate_limiter import RateBudget, RateRules
    from dragoman.core.tasks import Entry
    from dragoman.core.tool import Tool


class AuditLog(Protocol):
    """Stores the record of each call: the intent, then the outcome."""

    def intend(self, entry: Mapping[str, Any]) -> int:
        """Stores an intent and returns its number. Raises `StorageFailed`, or `ShuttingDown` once
        it is closed."""

    def hash_arguments(self, arguments: bytes) -> str:
        """Hashes with a key: equal hashes mean equal arguments, and reveal nothing else."""

    def conclude(self, intent: int, entry: Mapping[str, Any]) -> None:
        """Records the outcome of entry `intent`, with the next intent or soon after."""


class Decision(Struct, frozen=True):
    """The decision of the policies on one request."""

    allowed: bool
    policies: tuple[str, ...] = ()
    """The ids of the policies that decided; empty if no policy permits it."""
    snapshot: str = ""
    """The short hash of the policy set."""
    errors: tuple[str, ...] = ()
    """Why no decision was possible; then it is denied."""
    shadow: Decision | None = None
    """What the policies would have decided in shadow mode."""
    approval: ApprovalRule | None = None
    """Set if a call is allowed only with the approval of a person."""


A2A_DISCOVER, TASK_READ, TASK_CANCEL = "a2a_discover", "task_read", "task_cancel"
"""The actions beside calls and lists, with `approve` and `ADMIN_ACTIONS`."""
ADMIN_ACTIONS = frozenset((ADMIN, *ADMIN_RIGHTS))
"""The actions on the hub itself: the parts of its administration, and all of them as one."""


class Authorizer(Protocol):
    """Decides what principals may do. Never raises: what cannot be decided is denied."""

    @property
    def version(self) -> int:
        """Changes whenever a decision may have changed."""

    def reads_arguments(self, tool: Tool) -> bool:
        """Whether decisions on calls of `tool` may depend on argument values."""

    def decide(self, call: Call) -> Decision:
        """Whether the call is permitted: `mcp_call`, or `a2a_invoke` for a remote agent."""

    def can_list(self, principal: Principal, tool: Tool) -> bool:
        """Whether `list` is permitted, which alone does not make a tool listed."""

    def can_see(self, principal: Principal, tool: Tool, door: str) -> bool:
        """Whether it is listed: `list`, and a first call at that entry point, are permitted."""

    def group_of_principal(self, principal: Principal) -> Hashable:
        """A key that is equal for principals with the same decisions on all calls and lists."""

    def decide_action(
        self, principal: Principal, action: str, tool: Tool | None = None, *, owner: bool = False
    ) -> Decision:
        """Decides another action; without a tool, one of `ADMIN_ACTIONS` on the hub itself, or
        `approve` on the principal's org. A policy that permits or forbids `admin` does so with its
        parts. `owner`: whether a task, or a request for approval, is the principal's own."""


class RateLimiter(Protocol):
    """Keeps the budgets of principals, orgs and addresses. `core.rate_limiter` has the one for a
    single process, which never returns an awaitable; one that asks another process does."""

    rules: RateRules

    @property
    def is_shared(self) -> bool:
        """Whether the budgets are those of several hubs now."""

    def apply(self, rules: RateRules) -> None:
        """Applies new rules from now on; the tokens that were used stay used."""

    def charge(self, principal: Principal, operation: str, what: str) -> Awaitable[None] | None:
        """Charges the principal and its org with what the operation costs, or raises `RateLimited`
        and charges nothing. `what` names the operation in the message. An awaitable charges, or
        raises, when it is awaited."""

    def charge_address(self, address: str) -> float | Awaitable[float]:
        """Charges a request without a principal to the address it came from and returns 0.0, or
        returns after how many seconds it can be charged. An awaitable does so when it is awaited;
        it need not be."""

    def find_address_wait(self, address: str) -> float:
        """Like `charge_address`, but charges nothing and asks no other process."""

    def find_budgets(self, principal: Principal) -> list[RateBudget]:
        """Finds the budgets that the principal is charged to, as the last charge has left them."""

    def find_low_budget(self, principal: Principal) -> RateBudget | None:
        """Finds the tightest of them, if less than a quarter of one is left."""

    def list_lowest(self, most: int) -> list[RateBudget]:
        """Lists the budgets in use of which the smallest shares are left, the smallest first."""


class Viewer(NamedTuple):
    """The client that asks for a list, as far as that affects what targets list to it."""

    principal: Principal
    client: str
    door: str
    revision: str
    features: Mapping[str, Any]


Interfaces = frozenset[tuple[str, bytes]]
"""Canonical names of tools, each with the members of `_meta` that describe its user interface, as
JSON."""


class ListVisibility(Protocol):
    """What each target lists to each client."""

    def prepare(self, kind: str, viewer: Viewer) -> Awaitable[None] | None:
        """What to wait for, for a bounded time, before a list is returned; None if nothing."""

    def list_hidden(self, kind: str, viewer: Viewer) -> frozenset[str]:
        """Lists the canonical names that are hidden from `viewer`."""

    def list_client_only_names(self, kind: str) -> frozenset[str]:
        """Lists the canonical names that single clients alone have."""

    def list_interfaces(self, viewer: Viewer) -> Interfaces:
        """Lists the tools that have a user interface for `viewer` alone, or another one."""

    def begin_sessions(self, viewer: Viewer, may_use: Callable[[str], bool]) -> None:
        """Opens the sessions of a client, which is connected, with the targets that it may use and
        that ask something when a session begins."""

    def has_own_lists(self, kind: str, targets: Collection[str], viewer: Viewer) -> bool:
        """Whether each of these targets has a list of its own for `viewer`, whose changes are
        announced to that client by themselves."""


class ListRefresher(Protocol):
    """Reads the lists of targets again on demand, but not if they were read a moment ago."""

    def is_stale(self, kind: str) -> bool:
        """Whether a list of that kind must be read again before it is returned."""

    async def refresh(self, kind: str) -> None:
        """Reads those lists again, and waits for a bounded time."""

    async def refresh_for(self, name: str, kind: str) -> bool:
        """Reads the lists that may have an unknown name by now; False if there are none."""


class _TaskRow(Struct, frozen=True):
    key: int
    """0 for a task that is not stored yet."""
    id: str
    owner: Principal
    state: str
    created: float
    updated: float
    about: Any
    """A mapping; in a `TaskChange` anything that encodes to a JSON object."""


class StoredTask(_TaskRow, frozen=True):
    """A stored task, without its entries."""

    count: int
    """The number of its entries."""
    size: int
    """Their size in bytes."""


class TaskChange(_TaskRow, frozen=True):
    """What is new of a task."""

    entries: Sequence[Entry]
    """Those that are not stored yet."""


class StoredPush(Struct, frozen=True):
    """A webhook of a task, and its delivery state."""

    task: int
    """The task's key."""
    id: str
    config: Mapping[str, Any]
    cursor: int
    """The number of the last delivered entry."""
    attempts: int
    next_at: float
    dead: str
    """Why delivery has stopped; empty while it continues."""


class EndedTask(Struct, frozen=True):
    """A task of a hub that has ended."""

    key: int
    id: str
    stored: StoredTask | None
    """None if it cannot be read."""
    entries: Sequence[Entry] = ()
    """The log of an unfinished task."""


class TaskStore(Protocol):
    """Stores tasks. All methods block and may raise `StorageFailed`."""

    def load(self) -> list[StoredTask]:
        """Loads all of them, the oldest first."""

    def load_entries(self, key: int, after: int = 0, most: int | None = None) -> list[Entry]:
        """Loads the entries after number `after`, in order: at least one, about `most` bytes."""

    def check(self) -> None:
        """Raises `StorageFailed` if it is known that nothing can be stored now."""

    def save(self, changes: Sequence[TaskChange]) -> list[tuple[int, int]]:
        """Stores all or none, durably; returns the key and the growth in bytes of each."""

    def delete(self, key: int) -> None:
        """Deletes a task, its entries and its webhooks with the next `save`, or soon."""

    def load_pushes(self) -> list[StoredPush]: ...

    def save_push(self, push: StoredPush) -> None:
        """Stored when this returns."""

    def delete_push(self, task: int, id: str) -> None: ...

    # Where several hubs share the store; otherwise there are none.

    def find_hub(self, owner: Principal, id: str) -> str | None:
        """Finds the hub that owns a task; None if there is no such task."""

    def load_elsewhere(self, owner: Principal) -> list[StoredTask]:
        """Loads the tasks of a principal that other hubs own."""

    def load_ended(self, hub: str) -> list[EndedTask]:
        """Loads some of the tasks of a hub that has ended, those that changed first. None are
        returned when this hub has taken over all of them."""

    def take_over(self, hub: str, keys: Sequence[int], damaged: Sequence[int]) -> set[int]:
        """Takes over tasks of a hub that has ended, and sets the damaged ones aside. Returns those
        that this hub owns now: each task goes to one hub."""

    def find_left(self, hubs: Sequence[str]) -> set[str]:
        """Finds those of the hubs that still own tasks. Raises `StorageFailed`."""

    def claim_key(self, owner: Principal, key: str, id: str) -> str:
        """Claims an idempotency key for a task; returns the id of the task that has it, which may
        be an earlier one. A claim of a task that does not exist any more is taken over."""

    def rename_hub(self, hub: str) -> None:
        """This hub has another id from now on."""


class KeptEvent(Struct, frozen=True):
    """An event of a stream to a client, as it was sent."""

    number: int
    data: bytes
    is_last: bool


class KeptTask(Struct, frozen=True):
    """A task whose record keeps everything in memory, as it was stored last."""

    state: str
    created: float
    updated: float
    about: Mapping[str, Any]


class Handover(Protocol):
    """What a hub of a cluster leaves to its heir of clients whose state is in memory. It is stored
    a moment later, kept for a while, and bounded: any of it may be missing."""

    def keep_event(self, owner: str, stream: str, event: KeptEvent) -> None:
        """`owner` is the session that the stream belongs to."""

    async def load_events(self, owner: str, stream: str, after: int) -> list[KeptEvent]:
        """Loads the events after that number, in order. Raises `StorageFailed`."""

    def keep_task(self, change: TaskChange) -> None: ...

    def drop_task(self, id: str) -> None: ...

    async def wait_for_task(self, id: str) -> None:
        """Waits until what was kept of a task is stored, for a moment at most."""

    async def load_task(self, owner: Principal, id: str) -> KeptTask | None:
        """Raises `StorageFailed`."""


class Pin(Struct, frozen=True):
    """A definition that was seen, without its text."""

    target: str
    kind: str
    id: str
    """The target's own name, folded as in `core.tool_identity`; the address of a resource."""
    name: str
    """The canonical name."""
    mark: bytes = b""
    """Digest of the approved definition as last seen; empty if none is approved."""
    approved_at: float = 0.0
    approved_by: str = ""
    held_mark: bytes = b""
    """Digest of what is offered instead of the approved definition; empty if none is."""
    held_at: float = 0.0
    rejected_at: float = 0.0
    rejected_by: str = ""
    """Who rejected the quarantined definition; empty if none did."""
    size: int = 0
    """Size of the approved definition in bytes."""
    held_size: int = 0
    spelling: str = ""
    """The target's own name when it was approved."""
    scheme: int = 1
    """Which members of a definition were pinned when it was approved."""


class PinChange(Struct, frozen=True):
    pin: Pin
    approved: bytes | None = None
    """The approved definition; None: unchanged."""
    held: bytes | None = None


class PinDecision(Struct, frozen=True):
    """A decision of a person on a definition."""

    at: float
    by: str
    action: str
    """`approve`, `reject`, or `forget`, which concerns a whole target."""
    target: str
    kind: str
    id: str
    name: str
    digest: str


class PinStore(Protocol):
    """Stores pins. All methods block and may raise `StorageFailed`."""

    def load(self, target: str | None) -> list[Pin]:
        """Loads the pins of a target, or of all (None), by name."""

    def load_bodies(self, pin: Pin) -> tuple[bytes, bytes]:
        """Loads the approved and the quarantined definition; empty where there is none."""

    def save(
        self,
        changes: Sequence[PinChange],
        decisions: Sequence[PinDecision],
        listed: tuple[str, str] | None = None,
    ) -> None:
        """Stores all or none, durably, and drops definitions that no pin has any more. `listed` is
        a target that has given its first list of a kind."""

    def load_listed_kinds(self, target: str) -> set[str]:
        """The kinds of which the target has given a list."""

    def load_decisions(self, pin: Pin, most: int) -> list[PinDecision]:
        """Loads the newest decisions first."""

    def forget(self, target: str, decision: PinDecision) -> None:
        """Deletes all pins of a target."""


class ClientAsker(Protocol):
    """Asks clients questions that belong to no call of theirs."""

    def is_reachable(self, client: str) -> bool:
        """Whether the client of that session can be asked now."""

    async def ask_client(
        self, client: str, question: Question, seconds: float
    ) -> Mapping[str, Any] | AnswerError | None:
        """Returns the client's answer; None if there is none."""


class SchemaCompiler(Protocol):
    """Compiles a JSON Schema to a validator, and fetches nothing. Raises ValueError for an invalid
    one."""

    def __call__(self, schema: Mapping[str, Any]) -> Validator: ...


class MemoryEntry(Struct, frozen=True):
    """What an agent has stored under a key."""

    owner: str
    """The namespace: of one agent, or of all agents of an org."""
    key: str
    value: str
    at: float


class AgentMemory(Protocol):
    """Stores what agents remember. All methods block and may raise `StorageFailed`."""

    def store(self, owner: str, key: str, value: str) -> bool:
        """Creates or replaces an entry; returns whether it is new. Raises `Overloaded` if the
        namespace or the store is full."""

    def find(self, owner: str, key: str) -> MemoryEntry | None: ...

    def delete(self, owner: str, key: str) -> bool: ...

    def list_keys(self, owner: str, most: int) -> list[str]:
        """Lists the newest first."""

    def search(self, owners: Sequence[str], query: str, most: int) -> list[MemoryEntry]:
        """Searches keys and values for words; the best match first."""


class QueuedTask(Struct, frozen=True):
    """A piece of work in the queue of the agents."""

    id: str
    org: str
    title: str
    description: str
    posted_by: str
    assigned_to: str
    """The only agent that may claim it; empty for any."""
    state: str
    """`pending`, `in_progress` or `completed`."""
    claimed_by: str
    lease_until: float
    """After that, another agent may claim it."""
    result: str
    created: float
    updated: float


class TaskQueue(Protocol):
    """Stores the work that agents post for one another. All methods block and may raise
    `StorageFailed`."""

    def post(self, task: QueuedTask) -> None:
        """Raises `Overloaded` if the queue is full of unfinished tasks."""

    def claim(self, org: str, agent: str, id: str, seconds: float) -> QueuedTask | None:
        """Gives the oldest task that the agent may claim, or the one with that id, to the agent for
        so many seconds. Of several claims exactly one succeeds."""

    def complete(self, org: str, agent: str, id: str, result: str) -> QueuedTask:
        """Raises `NotFound`, or `InvalidInput` for a task that another agent has."""

    def list_tasks(self, org: str, agent: str, state: str, most: int) -> list[QueuedTask]:
        """Lists what the agent has posted or may claim, the newest first; `state` may be empty."""


class ScheduleCaller(Struct, frozen=True):
    """A principal for whom a schedule was created: the rights that it had then."""

    kind: str
    id: str
    org: str
    roles: tuple[str, ...]
    scopes: tuple[str, ...]
    behalf: str
    serves: str
    door: str
    """The entry point that it used."""

    def build_principal(self) -> Principal:
        return Principal(
            self.kind, self.id, self.org, self.roles, self.scopes, self.behalf, self.serves
        )


class Schedule(Struct, frozen=True):
    """A message that an agent gets again and again."""

    id: str
    org: str
    owner: str
    """The agent that created it."""
    agent: str
    """The agent that gets the message."""
    message: str
    spec: str
    """A cron expression, or an interval in seconds."""
    zone: str
    """The time zone of a cron expression."""
    once: bool
    """Whether it is removed after the call of its first run, the only one."""
    created: float
    next_at: float
    last_at: float = 0.0
    outcome: str = ""
    """How the last run ended; `running` while it runs."""
    runs: int = 0
    missed: int = 0
    """Runs that were due while the hub was stopped or the last one still ran."""
    source: str = ""
    """`manifest` for one of its agent's manifest; empty for one that the agent has created."""
    callers: tuple[ScheduleCaller, ...] = ()
    """For whom its agent has created it, the first in the chain of calls first. A run has the
    rights of its agent, and no more than each of them."""


class ScheduleStore(Protocol):
    """Stores schedules. All methods block and may raise `StorageFailed`."""

    def add(self, schedule: Schedule) -> None:
        """Raises `Overloaded` if the agent or the store has too many."""

    def list_schedules(self, org: str, owner: str) -> list[Schedule]:
        """Lists those of one agent, the oldest first."""

    def load_all(self) -> list[Schedule]: ...

    def save(self, schedule: Schedule, before: Schedule) -> bool:
        """Replaces one that is still as it was `before`; returns False if it was deleted, or
        another hub has changed it, meanwhile."""

    def delete(self, org: str, owner: str, id: str) -> bool:
        """Returns False if there is none any more."""


class CredentialId(NamedTuple):
    """Names a stored credential."""

    kind: str
    """`token` or `client`."""
    account: str
    """The server or agent that it is for."""
    holder: str
    """`shared`, or the key of a principal."""
    issuer: str
    resource: str


class CredentialStore(Protocol):
    """Stores credentials, encrypted. Raises `StorageFailed`."""

    def load(self, id: CredentialId) -> bytes | None:
        """Returns a credential; None if there is none, or if it cannot be decrypted."""

    def find(self, kind: str, account: str, holder: str) -> list[tuple[CredentialId, bytes | None]]:
        """Finds the credentials of a holder, the one that was saved last first."""

    def list(self, kind: str, account: str) -> list[CredentialId]:
        """Lists the credentials for a server or agent; an empty `account` means all."""

    def save(self, id: CredentialId, value: bytes) -> None:
        """Stores a credential; it is on the disk when this returns."""

    def delete(self, id: CredentialId) -> None: ...
