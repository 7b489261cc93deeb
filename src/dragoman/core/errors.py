"""What can go wrong with a call, and whether anything left the hub.

`Refused`: nothing left the hub. `TargetFailed`: something left and failed; it may or may not have
been done. The others stop a call before it is sent. The `RemoteA2A...` errors are those of a skill
of a remote agent.

Classes carry no wire codes: each server has a table of them, read with `find_row`. A message names
the request, what stopped it and what to do.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar, Final, TypeVar

if TYPE_CHECKING:
    from dragoman.core.call import StatusMessage

Row = TypeVar("Row")


class HubError(Exception):
    """Any failure that the hub itself reports."""

    kind: ClassVar[str] = "HubError"
    """Its public name, in answers, events, metrics and the audit. A class outside of this module
    has the kind of its parent."""
    trace: str | None = None
    """The trace of the call it stopped, set once by `Hub.call`."""
    has_left: bool = False
    """Whether the call it stopped had reached its target, set by `Hub.call`: something may have
    happened there."""
    status_message: StatusMessage | None = None
    """The target's own message, where it has more than text."""

    def __init_subclass__(cls, kind: str = "", **more: Any) -> None:
        super().__init_subclass__(**more)
        if kind or cls.__module__ == __name__:
            cls.kind = kind or cls.__name__


class Refused(HubError):
    """Nothing left the hub."""


class Denied(Refused):
    """A gate refused the call, or failed: gates fail closed."""


class AuthorizationError(Denied):
    """No policy permits the principal to do it, or one forbids it, or no decision was possible."""


class InsufficientScope(AuthorizationError):
    """The key or access token does not have the scope that this needs; `scope` names it. The
    policies were not asked."""

    def __init__(self, message: str, scope: str = "") -> None:
        super().__init__(message)
        self.scope = scope


class TooDeep(Refused):
    """The chain of calls is too deep, has taken too long or has made too many calls."""


class Looping(Refused):
    """The call came back to a target that its own chain of calls waits for."""


class Repeating(Refused):
    """The call repeats what its run has done before, and has brought nothing new."""


class Tainted(Refused):
    """A rule keeps data with a taint label from a tool: a secret from the network, for example."""


class Quarantined(Refused):
    """The tool has changed since it was approved, or was never approved."""


class RateLimited(Refused):
    """The principal, its org or its address has used its budget of tokens; `retry_after` is the
    number of seconds after which there is enough of it."""

    def __init__(self, message: str, retry_after: float = 1.0) -> None:
        super().__init__(message)
        self.retry_after = retry_after


class Overloaded(Refused, kind="Full"):
    """A limit is reached: too many calls, tasks, sessions or questions. Its kind is `Full`."""


class ShuttingDown(Refused, kind="Full"):
    """The hub is stopping. Its kind is `Full`."""


class NoCandidate(Refused):
    """No agent can take the work that was to be dispatched; the message says why each was excluded
    that the principal may know of."""


class ApprovalPending(Refused):
    """The call waits for the approval of a person: `id` names the request, which is open until
    `expires_at`. Once it is approved, the same call gets the result."""

    def __init__(self, message: str, id: str = "", expires_at: float = 0.0) -> None:
        super().__init__(message)
        self.id = id
        self.expires_at = expires_at


class ApprovalDenied(Denied):
    """A person has denied the call, or it was not approved in time."""


class ApprovalClosed(Refused):
    """The request for an approval cannot be decided or used any more: it was decided, has expired
    or was withdrawn."""


class NotFound(HubError):
    """It does not exist, or the principal may not know of it."""


class InvalidInput(HubError):
    """The input is invalid."""


class AmbiguousName(InvalidInput):
    """Several tools have that name; the message lists their full names."""


class StorageFailed(HubError):
    """A file of the hub's home cannot be read or written. A call that cannot be recorded is not
    made."""


class LeaseExpired(ShuttingDown, StorageFailed, kind="Full"):
    """The other hubs of the cluster may own, or do own, what this hub owned: it was paused or cut
    off for longer than a lease. Nothing left the hub; send it again, to any hub. Its kind is
    `Full`."""


class TargetFailed(HubError):
    """Something left the hub and failed there."""


class Unreachable(TargetFailed):
    """There is no connection to the target, or it was lost.

    `sent` is False only where it is certain that nothing left; then the call may be sent again.
    """

    def __init__(self, message: str, *, sent: bool = True) -> None:
        super().__init__(message)
        self.sent = sent


class RemoteA2ATransportError(Unreachable):
    """There is no connection to the agent of the skill, or it was lost, or its server answered
    with an HTTP error."""


class TimedOut(TargetFailed):
    """The target did not answer in time; the call was cancelled there."""


class RemoteA2ATimeoutError(TimedOut):
    """The agent of the skill did not answer in time. If it has made a task of the call, which keeps
    running, the message names the task."""


class BadReply(TargetFailed):
    """The target's answer is malformed or too large."""


class RemoteA2AInvalidResponseError(BadReply):
    """The answer of the agent of the skill is malformed or too large."""


class WorkFailed(TargetFailed):
    """The target answered with an error of its own, kept unchanged in `native`."""

    def __init__(self, message: str, native: dict[str, Any] | None = None) -> None:
        super().__init__(message)
        self.native = native


class TaskLost(WorkFailed):
    """The target does not know its task any more: it was restarted, or has deleted the task.
    Whether the work was done is unknown."""


class AnswerRefused(WorkFailed):
    """The model of an agent refused to answer; the message has its words."""


class AnswerFiltered(WorkFailed):
    """A content filter of the model's provider stopped the answer of an agent."""


class EmptyAnswer(WorkFailed):
    """The model of an agent answered with nothing, twice, or used its limit of tokens up before an
    answer."""


class RemoteA2ATaskFailedError(WorkFailed):
    """The agent of the skill reports that its task failed."""


class Declined(TargetFailed):
    """The target has read the request and will not do it; the message says why."""


class NeedsInput(TargetFailed):
    """The target asks something that this client cannot be asked; the message says what.

    `missing` are the features that the client would need, in the terms of its protocol.
    """

    def __init__(self, message: str, missing: dict[str, Any] | None = None) -> None:
        super().__init__(message)
        self.missing = missing or {}


class LoginRequired(TargetFailed):
    """The server or agent needs an OAuth login that the caller does not have: none was made, it has
    expired or was revoked, or its scopes do not suffice. The message says what to do; `url` is
    where to log in, empty where this hub can offer none."""

    def __init__(
        self, message: str, *, server: str = "", scopes: tuple[str, ...] = (), url: str = ""
    ) -> None:
        super().__init__(message)
        self.server = server
        self.scopes = scopes
        self.url = url


PASSING: Final = (
    Unreachable, TimedOut, LoginRequired, Quarantined, RateLimited, Overloaded, ShuttingDown,
    StorageFailed,
)  # fmt: skip
"""Errors of a call that asks for a task which say nothing about the task: it is asked again."""


OWN_TROUBLES: Final = (StorageFailed, Overloaded, ShuttingDown)
"""Errors that say nothing about the call: the hub itself cannot make it now."""


def is_own_trouble(error: BaseException) -> bool:
    """Whether the hub itself was not able to make a call, and nothing of it has left: the same call
    may succeed later. Work that was accepted is put back and does not fail; refusals that are
    decisions (of policies, budgets, people) are none."""
    return isinstance(error, OWN_TROUBLES) and not error.has_left


def is_stopping(error: BaseException) -> bool:
    """Whether the hub stops, so that it will not make the call later. One whose lease has expired
    is cut off or was paused, and joins again."""
    return isinstance(error, ShuttingDown) and not isinstance(error, LeaseExpired)


class ConfigError(HubError):
    """The configuration cannot be used; the message says what is wrong, where, and the fix."""

    taken_port: int | None = None
    """The port that another program listens on."""


def find_row(table: Mapping[type[HubError], Row], error: type[HubError]) -> Row:
    """Returns the row of an error's class, or that of its nearest ancestor that has one."""
    return next(table[kind] for kind in error.__mro__ if kind in table)


def list_leaves(root: type[HubError] = HubError) -> list[type[HubError]]:
    """Lists the errors that can be raised: the classes of this module that are not only groups."""
    groups = {HubError, Refused, TargetFailed}
    found = [] if root in groups else [root]
    for child in root.__subclasses__():
        if child.__module__ == __name__:
            found += list_leaves(child)
    return found
