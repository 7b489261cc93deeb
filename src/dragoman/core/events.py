"""What the hub announces. Each event's docstring is its documentation."""

from __future__ import annotations

from dragoman.core.call import Call, Result
from dragoman.core.errors import HubError
from dragoman.core.record import record


@record(frozen=True, slots=True)
class Event:
    """Something that happened, or is about to."""


@record(frozen=True, slots=True)
class PreVerb(Event):
    """A call is about to be judged and made. Gates hear this and may refuse; observers may look."""

    call: Call


@record(frozen=True, slots=True)
class PostVerb(Event):
    """A call has ended: `outcome` is `completed` or `failed`. A refusal counts as failed."""

    call: Call
    outcome: str
    duration_ms: float
    result: Result | None
    error: HubError | None


@record(frozen=True, slots=True)
class VerbError(Event):
    """Follows the post-verb of a call that was refused or went wrong, and says how."""

    call: Call
    error: HubError


@record(frozen=True, slots=True)
class ServerChanged(Event):
    """A server's state moved: `starting`, `connected`, `idle`, `failed` or `stopped`, and why."""

    server: str
    state: str
    reason: str


@record(frozen=True, slots=True)
class ResourceUpdated(Event):
    """A resource that somebody follows has changed; `name` is its canonical name."""

    name: str


@record(frozen=True, slots=True)
class ClientGone(Event):
    """A client's session has ended; what was kept for it alone can go."""

    client: str
