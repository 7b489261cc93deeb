"""Approvals: something waits until a person decides. A request is decided once, or expires.

`guards.approval` parks calls that a policy permits only with an approval; a workflow waits at a
step of its own. The store keeps requests across restarts; `ApprovalDecided` on the bus announces
decisions.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

from dragoman.core.call import NOTHING, MessageOrigin
from dragoman.core.errors import AuthorizationError
from dragoman.core.principal import Principal
from dragoman.core.structs import Struct
from dragoman.core.taint import NO_ORIGINS, Origins

PENDING, APPROVED, DENIED, EXPIRED, CANCELLED = STATES = (
    "pending", "approved", "denied", "expired", "cancelled",
)  # fmt: skip
CALL, STEP = "call", "step"
RUNNING, COMPLETED, FAILED, INTERRUPTED = OUTCOMES = (
    "running", "completed", "failed", "interrupted",
)  # fmt: skip


class ApprovalRule(Struct, frozen=True):
    """The approval that a call needs."""

    reason: str
    approvers: tuple[str, ...] = ()
    """As in `ApprovalRequest`."""
    seconds: float = 0.0
    """How long the request is open; 0: as configured."""


class ApprovalRequest(Struct, frozen=True, kw_only=True):
    """What a person is asked to decide."""

    id: str
    """Chosen by the requester, so that requesting again finds the same request."""
    kind: str
    """CALL: a call that a policy parked. STEP: an approval step of a workflow."""
    title: str
    """The canonical name of the tool, or the title of the step."""
    reason: str
    """Why it needs an approval: from the policy's annotation or the step."""
    requester: Principal
    arguments: Mapping[str, Any] = NOTHING
    """What would be done, decoded: the arguments of the call, or the details of the step."""
    expires_at: float
    """After that it counts as denied."""
    trace: str = ""
    run: str = ""
    """The run of a workflow that waits for it; empty for others."""
    step: str = ""
    approvers: tuple[str, ...] = ()
    """Roles, or labels of principals, one of which the decider must have, besides the permission of
    the policies; empty: the policies alone decide."""


class Approval(Struct, frozen=True, kw_only=True):
    """A request and its state."""

    request: ApprovalRequest
    state: str
    """One of `STATES`."""
    requested_at: float
    decided_at: float = 0.0
    decided_by: str = ""
    """The label of the principal."""
    comment: str = ""
    outcome: str = ""
    """CALL, after approval: `running`, `completed`, `failed`, or `interrupted` if the hub stopped
    while it ran."""
    problem: str = ""
    """Why it failed."""


class ParkedCall(Struct, frozen=True, kw_only=True):
    """What the hub needs beside the request to make a call later, without its client."""

    name: str
    kind: str
    door: str
    callers: tuple[tuple[Principal, str], ...] = ()
    """For whom an agent calls, each with its entry point, the first in the chain first."""
    chain: tuple[str, ...] = ()
    """The tools whose calls led to it."""
    origins: Origins = NO_ORIGINS
    """The taint labels that it carries."""
    session: str | None = None
    message: MessageOrigin | None = None
    meta: Mapping[str, Any] | None = None


class StoredApproval(Struct, frozen=True, kw_only=True):
    """A stored request, and what is known of its call."""

    approval: Approval
    match: str = ""
    """A digest of who calls what with which arguments: the same call has the same."""
    parked: ParkedCall | None = None
    """None if the requester makes the call itself, or for a step."""
    ended_at: float = 0.0
    """When the call ended."""
    delivered_at: float = 0.0
    """When the requester got its result, or was to get it: the hub may have ended before it did. 0:
    not yet."""
    number: int = 0
    """Its place in the store."""

    @property
    def request(self) -> ApprovalRequest:
        return self.approval.request

    @property
    def state(self) -> str:
        return self.approval.state

    @property
    def outcome(self) -> str:
        return self.approval.outcome


class ApprovalStore(Protocol):
    """Keeps requests durably. All methods block and may raise `StorageFailed`."""

    def add(self, stored: StoredApproval, most: int, most_each: int) -> None:
        """Raises `Overloaded` if so many requests are pending, in all or of one requester."""

    def find(self, id: str) -> StoredApproval | None: ...

    def find_latest(self, match: str) -> StoredApproval | None:
        """Finds the newest request of the same call."""

    def list_approvals(
        self, org: str, state: str, before: int | None, most: int, now: float
    ) -> list[StoredApproval]:
        """Lists the newest first; `state` may be empty."""

    def decide(self, id: str, state: str, by: str, comment: str, now: float) -> bool:
        """Decides a pending request that has not expired; False if it is not pending any more."""

    def expire(self, now: float) -> list[StoredApproval]:
        """Marks pending requests past their time as expired, and returns them."""

    def begin(self, id: str) -> bool:
        """Marks an approved call as running, which is possible once. If it raises, whether that is
        stored is unknown: the next `begin` of this hub finds out."""

    def finish(
        self,
        id: str,
        outcome: str,
        problem: str,
        reply: bytes,
        now: float,
        delivered_at: float = 0.0,
    ) -> None:
        """Stores how a call has ended that this hub has begun, and what its requester gets; also if
        another hub has marked it as interrupted meanwhile."""

    def put_back(self, id: str) -> None:
        """A call that this hub has begun has not left the hub: it may begin again."""

    def deliver(self, id: str, now: float) -> bytes | None:
        """Returns what the requester gets, once; None after that."""

    def load_reply(self, id: str) -> bytes: ...

    def list_ready(self) -> list[StoredApproval]:
        """Lists approved calls that have not begun and that the hub makes."""

    def interrupt(self, now: float, hub: str | None = None) -> int:
        """Marks the calls that ran when the hub stopped, or another `hub` that shares the store;
        returns their number."""

    def prune(self, keep: int, replies_before: float) -> None:
        """Deletes closed requests but the newest `keep`, and replies of calls that ended before
        that time."""


class Approvals(Protocol):
    """Requests approvals and knows their state. Methods may raise `StorageFailed`."""

    def request(self, request: ApprovalRequest) -> Approval:
        """Stores the request durably and announces it. A request whose id exists already is not
        stored again: its present state is returned."""

    def find(self, id: str) -> Approval | None:
        """Returns the present state; a request past its time is EXPIRED."""

    def withdraw(self, id: str) -> None:
        """Cancels a pending request: nothing waits for it any more."""


def join_rules(one: ApprovalRule | None, other: ApprovalRule) -> ApprovalRule:
    """Returns the rule that satisfies both: for an agent and for each of its callers."""
    if one is None or one == other:
        return other
    approvers = one.approvers or other.approvers
    if one.approvers and other.approvers:
        approvers = tuple(each for each in one.approvers if each in other.approvers)
        if not approvers:
            raise AuthorizationError(
                "it was refused: the policies name different approvers for the agent and for those "
                "for whom it calls"
            )
    times = [each for each in (one.seconds, other.seconds) if each]
    reasons = dict.fromkeys((one.reason, other.reason))
    return ApprovalRule("; ".join(reasons), approvers, min(times, default=0.0))


def can_satisfy(approvers: tuple[str, ...], principal: Principal) -> bool:
    """Whether the principal is one of the approvers: `role:lead` or `lead` for a role, otherwise
    the label of a principal."""
    if not approvers:
        return True
    roles = {each.removeprefix("role:") for each in approvers if is_role(each)}
    return principal.label in approvers or not roles.isdisjoint(principal.roles)


def is_role(approver: str) -> bool:
    return approver.startswith("role:") or ":" not in approver
