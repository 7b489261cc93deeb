"""What can go wrong with a call, and whose fault it was.

    HubError
    ├─ Refused         nothing left the hub; it may be tried again when the reason is gone
    │  ├─ Denied         a gate said no
    │  │  └─ AuthorizationError  no policy permits it, or one forbids it
    │  ├─ TooDeep        a chain of calls is too deep, too long or has made too many
    │  ├─ Looping        a call came back to what its own chain is waiting for
    │  ├─ Quarantined    its definition is not the one that was approved
    │  └─ Full           too much is under way, or the hub is going down
    ├─ NotFound        no such tool, server or key
    ├─ InvalidInput    the arguments do not fit
    │  └─ AmbiguousName  the name stands for several tools
    ├─ TargetFailed    something left, and went wrong there; it may or may not have happened
    │  ├─ Unreachable    no connection, or it was lost
    │  │  └─ RemoteA2ATransportError        the same of an agent's skill
    │  ├─ TimedOut       no answer in time
    │  │  └─ RemoteA2ATimeoutError          the same of an agent's skill
    │  ├─ BadReply       an answer that is none, or too large
    │  │  └─ RemoteA2AInvalidResponseError  the same of an agent's skill
    │  ├─ WorkFailed     the far side answered with an error of its own
    │  │  └─ RemoteA2ATaskFailedError       the same of an agent's skill
    │  ├─ Declined       the far side would not do it
    │  └─ NeedsInput     the far side asks what this caller cannot be asked
    └─ ConfigError     the configuration cannot be used

Classes carry no wire codes: each face has one table. A message says what was asked, what stopped it
and what to do.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dragoman.core.call import Said


class HubError(Exception):
    """Anything the hub itself says went wrong."""

    trace: str | None = None
    """The trace of the call it stopped, set once by `Hub.call`."""
    said: Said | None = None
    """What the target said of it, where that is more than words."""

    @property
    def kind(self) -> str:
        return type(self).__name__


class Refused(HubError):
    """Nothing left the hub."""


class Denied(Refused):
    """A gate said no, or failed: gates fail closed."""


class AuthorizationError(Denied):
    """No policy permits the caller to do it, or one forbids it; or that could not be decided."""


class TooDeep(Refused):
    """The chain of calls it belongs to is too deep, goes on for too long or has made too many."""


class Looping(Refused):
    """It came back to a target which its own chain of calls is waiting for."""


class Quarantined(Refused):
    """What it calls has changed since it was approved, or was never approved."""


class Full(Refused):
    """Too much is under way, or the hub is going down."""


class NotFound(HubError):
    """There is no such thing, or the caller may not know of it."""


class InvalidInput(HubError):
    """What was given does not fit what was asked."""


class AmbiguousName(InvalidInput):
    """The name stands for several tools; the message lists their full names."""


class TargetFailed(HubError):
    """Something left the hub and went wrong on the far side."""


class Unreachable(TargetFailed):
    """There is no connection to the target, or it was lost.

    `sent` is False only where it is certain that nothing left; then the call may be sent again.
    """

    def __init__(self, message: str, *, sent: bool = True) -> None:
        super().__init__(message)
        self.sent = sent


class RemoteA2ATransportError(Unreachable):
    """There is no connection to the agent whose skill was called, or it was lost; or whatever is
    there answered with an HTTP status that says no."""


class TimedOut(TargetFailed):
    """The target did not answer in time; it was told to stop."""


class RemoteA2ATimeoutError(TimedOut):
    """The agent whose skill was called did not answer in time. Where it has made a task of the
    call, which goes on, the message names it."""


class BadReply(TargetFailed):
    """The target answered with something that is no answer, or is too large."""


class RemoteA2AInvalidResponseError(BadReply):
    """The agent whose skill was called answered with something that is no answer."""


class WorkFailed(TargetFailed):
    """The target answered with an error of its own, kept in `native` as the far side put it."""

    def __init__(self, message: str, native: dict[str, Any] | None = None) -> None:
        super().__init__(message)
        self.native = native


class RemoteA2ATaskFailedError(WorkFailed):
    """The agent whose skill was called says that its task has failed."""


class Declined(TargetFailed):
    """The target has looked at what was asked and will not do it; the message says why."""


class NeedsInput(TargetFailed):
    """The target asks something that this caller cannot be asked; the message says what.

    `missing` are the features that the caller would need, as its protocol says them.
    """

    def __init__(self, message: str, missing: dict[str, Any] | None = None) -> None:
        super().__init__(message)
        self.missing = missing or {}


class ConfigError(HubError):
    """The configuration cannot be used; the message says what, where and how to fix it."""

    taken_port: int | None = None
    """The port that another program listens on."""


def leaves(root: type[HubError] = HubError) -> list[type[HubError]]:
    """Every error that can be raised: the classes below `root` that are not only groups."""
    groups = {HubError, Refused, TargetFailed}
    found = [] if root in groups else [root]
    for child in root.__subclasses__():
        if "kind" not in vars(child):  # else it goes by the name of another, which is here
            found += leaves(child)
    return found
