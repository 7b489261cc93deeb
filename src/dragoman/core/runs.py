"""Runs of workflows as they are stored, and the port of their store.

A run is a journal: one row for the run, and one for each execution of a step. What is in the
journal has happened; everything else about a run is computed from it and from the workflow.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any, Final, Protocol

from dragoman.core.call import NOTHING
from dragoman.core.principal import Principal
from dragoman.core.structs import Struct
from dragoman.core.taint import NO_ORIGINS, LabelOrigin
from dragoman.core.tool_identity import KEY_META as KEY_META
from dragoman.core.tool_identity import WORKFLOW

DOOR: Final = WORKFLOW
"""The entry point of the calls that runs make."""

QUEUED, RUNNING, WAITING, NEEDS_DECISION, COMPLETED, FAILED, CANCELLED = RUN_STATES = (
    "queued", "running", "waiting", "needs_decision", "completed", "failed", "cancelled",
)  # fmt: skip
ENDED: Final = frozenset({COMPLETED, FAILED, CANCELLED})
PENDING, SKIPPED = "pending", "skipped"
"""States of steps, besides those of runs; no step is queued."""

DECIDED: Final = "Decided"
"""The `kind` of a record whose state a person has decided."""
RETRY, SKIP, FAIL = DECISIONS = ("retry", "skip", "fail")
"""What can be decided about a step of which it is unknown whether it was executed."""

EVENT, APPROVAL, CHILD, ANSWER, TASK = "event", "approval", "child", "answer", "task"
"""What a step waits for, as the first word of `StepRecord.awaited`. `task`: its work continues as a
task elsewhere."""


def build_awaited(kind: str, name: str) -> str:
    return f"{kind} {name}"


class RunPrincipal(Struct, frozen=True):
    """A principal for whom a run was started, with the rights that it had then."""

    kind: str
    id: str
    org: str
    roles: tuple[str, ...] = ()
    scopes: tuple[str, ...] = ()
    behalf: str = ""
    serves: str = ""
    credential: str = ""
    view: str = ""
    door: str = ""
    """The entry point that it used."""

    def build_principal(self) -> Principal:
        return Principal(
            self.kind, self.id, self.org, self.roles, self.scopes, self.behalf, self.serves,
            self.credential, self.view,
        )  # fmt: skip


def record_principal(principal: Principal, door: str) -> RunPrincipal:
    return RunPrincipal(
        principal.kind, principal.id, principal.org, principal.roles, principal.scopes,
        principal.behalf, principal.serves, principal.credential, principal.view, door,
    )  # fmt: skip


STEP_KEY: Final = "key"
"""In the trigger of a run that a step of another run has started as a tool: the step's key."""


class RunOrigin(Struct, frozen=True, kw_only=True):
    """What is known of a run from its start, and never changes."""

    starter: RunPrincipal
    callers: tuple[RunPrincipal, ...] = ()
    """Those for whom the starter acted, the first in the chain of calls first."""
    trigger: Mapping[str, Any] = NOTHING
    """How it was started: `kind`, and what the kind adds."""
    agents: Mapping[str, str] = NOTHING
    """Agents for the references of the workflow."""
    trace: str = ""
    """One trace for all calls of the run."""
    chain: tuple[str, ...] = ()
    """The tools whose calls led to the run, the first one first."""
    parent: str = ""
    """The run that started it with `workflow.run`."""
    parent_path: str = ""
    depth: int = 0
    """How many runs are above it."""


class Run(Struct, frozen=True, kw_only=True):
    id: str
    workflow: str
    digest: str
    """Of the definition that the run finishes on."""
    origin: RunOrigin
    inputs: Any = NOTHING
    created_at: float
    state: str = QUEUED
    """One of `RUN_STATES`."""
    ended_at: float = 0.0
    wake_at: float = 0.0
    """When something is due in a run that waits; 0: nothing is due by itself."""
    problem: str = ""
    output: Any = None
    labels: Mapping[str, LabelOrigin] = NO_ORIGINS
    """The taint labels of what its steps have returned."""

    @property
    def org(self) -> str:
        return self.origin.starter.org

    @property
    def owner(self) -> str:
        """The label of the principal that started it."""
        return f"{self.origin.starter.kind}:{self.origin.starter.id}"


class StepRecord(Struct, frozen=True, kw_only=True):
    """An execution of a step. A step that has not begun has no record."""

    path: str
    """The id of the step; inside a `foreach` behind that of the iteration: `loop[3].check`."""
    step: str
    node: str
    state: str
    attempt: int = 0
    key: str = ""
    """The idempotency key of its calls."""
    started_at: float = 0.0
    ended_at: float = 0.0
    wake_at: float = 0.0
    """When something is due: the next attempt, the end of a wait."""
    awaited: str = ""
    """What it waits for, besides the time: see `build_awaited`."""
    can_repeat: bool = False
    """Whether it may be executed again if it is unknown whether it was executed."""
    can_find: bool = False
    """Whether its target can find the task of an interrupted call."""
    problem: str = ""
    kind: str = ""
    """The kind of the error that `problem` describes."""
    message: str = ""
    """The last progress message."""
    tool: str = ""
    agent: str = ""
    approval: str = ""
    child: str = ""
    detail: Mapping[str, Any] = NOTHING
    """What continues it: a question with its handle and arguments, the task that does its work, the
    items of a loop."""
    output: Any = None


def is_parked(record: StepRecord) -> bool:
    """Whether the work of a step continues as a task elsewhere."""
    return record.state == WAITING and record.awaited.startswith(TASK)


class RunFilter(Struct, frozen=True, kw_only=True):
    """Which runs to list; an empty member matches all."""

    org: str = ""
    owner: str = ""
    workflow: str = ""
    states: tuple[str, ...] = ()
    parent: str = ""


class RunTaken(Exception):
    """Another hub works on the run, or has taken it over: nothing was stored."""

    def __init__(self, hub: str) -> None:
        super().__init__(hub)
        self.hub = hub
        """The id of that hub; empty if it is not known."""


class RunStore(Protocol):
    """Stores runs. Every method may raise `StorageFailed`; what a method has stored survives the
    end of the process. Where several hubs share a store, each works on its own runs: those that it
    has added or claimed."""

    @property
    def is_shared(self) -> bool:
        """Whether other hubs use it, too."""

    @property
    def hub(self) -> str:
        """The id of this hub in the runs that it works on; empty where no others use the store. It
        has another id after other hubs have declared it dead."""

    async def claim(self, id: str) -> Run | None:
        """Finds a run in order to change it: other hubs leave it alone until it is released, or
        this hub has ended. Raises `RunTaken`."""

    async def adopt(self, id: str) -> bool:
        """Takes a run over that another hub has stored and not begun: that hub may have refused
        its start, and delete it. False if it has begun, or is this hub's own."""

    async def release(self, id: str) -> None:
        """Lets any hub continue a run that only waits, or has ended."""

    async def rescue(self) -> int:
        """Releases the runs of hubs that have ended, and puts those that were running back into
        the queue; returns how many."""

    async def add(self, run: Run, source: str) -> None:
        """Stores a new run with the source of its definition. A run whose id exists stays."""

    async def drop(self, run: Run, hubs: Collection[str] = ()) -> None:
        """Deletes a run that a failed `add` may have stored. A run that has begun stays, as does
        one of another hub, except for those of `hubs`; an empty id there means a run that no hub
        works on. Waits for an `add` that a server is still executing."""

    async def save(
        self,
        run: Run,
        steps: Collection[StepRecord] = (),
        children: Sequence[tuple[Run, str]] = (),
        is_synced: bool = False,
    ) -> None:
        """Stores what changes of a run, and the records, at once with new runs, each with the
        source of its definition. With `is_synced`, that and all before it is on the disk when this
        returns, unless the settings say otherwise. Raises `RunTaken` if the run is not this hub's
        any more."""

    async def find_source(self, digest: str) -> str | None: ...

    async def find(self, id: str) -> Run | None: ...

    async def load_steps(self, id: str) -> list[StepRecord]:
        """In the order in which they began."""

    async def list_runs(self, wanted: RunFilter, limit: int, cursor: str) -> tuple[list[Run], str]:
        """Lists runs, the newest first, without inputs and outputs; the cursor continues the list,
        empty at its end. Raises `InvalidInput` for an invalid cursor."""

    async def count_unfinished(self) -> dict[tuple[str, str], int]:
        """Counts the runs that have not ended, by org and owner."""

    async def list_due(self, now: float, most: int) -> list[str]:
        """Lists the ids of runs that are queued, the oldest first, and of those whose time has
        come, in turns: neither keeps the others waiting."""

    async def find_next_wake(self) -> float:
        """When the next waiting run is due; 0: none is."""

    async def list_awaiting(
        self, awaited: str, most: int, after: tuple[str, str] = ("", "")
    ) -> list[tuple[str, str, str]]:
        """Lists the steps of unfinished runs that wait for this, or for something that begins with
        it if it ends with a space: run, path and what is awaited, in the order of run and path, the
        first one after `after`."""

    async def requeue_running(self) -> int:
        """Queues the runs that were advanced when the hub stopped; returns their number."""

    async def prune(self, before: float, keep: int) -> int:
        """Deletes runs that ended before that time, and the oldest ended ones beyond `keep`, with
        sources that no run has; returns how many runs were deleted. Bounded; call it again if it
        deleted some."""

    async def aclose(self) -> None: ...
