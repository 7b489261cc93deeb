"""The events of the hub. The docstring of each is its documentation.

Created only if something observes them. `event_payloads` renders them for the outside.
"""

from __future__ import annotations

from collections.abc import Mapping
from time import time
from typing import Any
from uuid import uuid4

from dragoman.core.call import NOTHING, Call, LogMessage, Result
from dragoman.core.errors import HubError
from dragoman.core.structs import Struct, field


def _new_id() -> str:
    return str(uuid4())


class Event(Struct, frozen=True):
    """Something that happened, or is about to."""


class PreVerb(Event, frozen=True):
    """A call is about to be authorized and made. Gates may refuse it; observers may look."""

    call: Call
    at: float = field(default_factory=time)


class PostVerb(Event, frozen=True):
    """A call has ended: `outcome` is `completed` or `failed`, or `parked` if the target continues
    the work as a task, whose outcome is that of a later call. A refused or `cancelled` call counts
    as failed."""

    call: Call
    outcome: str
    duration_ms: float
    result: Result | None
    error: HubError | None
    cancelled: bool = False
    at: float = field(default_factory=time)


class VerbError(Event, frozen=True):
    """Follows the post-verb of a call that was refused or failed, with the error."""

    call: Call
    error: HubError
    at: float = field(default_factory=time)


class ToolCall(Event, frozen=True):
    """`EXEC:TOOL_CALL`: an agent or a server calls, with its own credential or on behalf of a
    running call. Follows the pre-verb."""

    call: Call
    id: str = field(default_factory=_new_id)
    at: float = field(default_factory=time)


class ToolResult(Event, frozen=True):
    """`EXEC:TOOL_RESULT`: the outcome of such a call; `call_id` is the id of its `ToolCall`."""

    call: Call
    call_id: str
    result: Result | None
    error: HubError | None
    cancelled: bool = False
    id: str = field(default_factory=_new_id)
    at: float = field(default_factory=time)


class CostReported(Event, frozen=True):
    """The target of a call has reported its usage: numbers by name, such as tokens."""

    call: Call
    usage: Mapping[str, Any]
    at: float = field(default_factory=time)


class ServerChanged(Event, frozen=True):
    """A server's state changed: `starting`, `connected`, `idle`, `needs_login`, `failed` or
    `stopped`, and why."""

    server: str
    state: str
    reason: str


class UserEvent(Event, frozen=True):
    """An agent has published an event with `event_publish`: its own type and data."""

    agent: str
    type: str
    data: Mapping[str, Any]
    trace: str
    org: str = "default"
    """Of the agent: administrators of other orgs do not get the event."""
    at: float = field(default_factory=time)


REMOVED = "removed"
"""The last state of an agent."""


class AgentChanged(Event, frozen=True):
    """A registered agent's state changed: `healthy`, `degraded`, `unreachable`, `unknown` or
    `removed`, and why."""

    agent: str
    state: str
    reason: str


class LoginNeeded(Event, frozen=True):
    """A call needs a login at a server or agent, and its caller was given a link: `holder` is for
    whom, `scopes` what will be asked for."""

    target: str
    holder: str
    scopes: str


class LoginChanged(Event, frozen=True):
    """The credential of `holder` at a server or agent has changed: `action` is `login`, `logout` or
    `expired`, when it can no longer be refreshed."""

    target: str
    holder: str
    action: str


class PolicyChanged(Event, frozen=True):
    """Another policy set is in force; `snapshot` is its short hash. With a `problem`, the old set
    stays because the new one is invalid."""

    snapshot: str
    problem: str


class ApprovalRequested(Event, frozen=True):
    """Something waits for an approval: `title` is the tool or the step, `requester` is the label of
    the principal that needs it."""

    id: str
    title: str
    requester: str
    reason: str
    org: str
    expires_at: float


class ApprovalDecided(Event, frozen=True):
    """An approval was decided: `state` is `approved`, `denied`, `expired` or `cancelled`."""

    id: str
    state: str
    decided_by: str
    org: str
    title: str = ""
    requester: str = ""


class RunChanged(Event, frozen=True):
    """The state of a workflow's run changed: `queued`, `running`, `waiting`, `needs_decision`,
    `completed`, `failed` or `cancelled`, and why."""

    run: str
    workflow: str
    state: str
    reason: str
    org: str
    owner: str
    """The label of the principal that started the run, which gets the event too."""


class StepChanged(Event, frozen=True):
    """The state of a step of a run changed, or it reports progress: `step` is its path."""

    run: str
    workflow: str
    step: str
    node: str
    state: str
    message: str
    org: str
    owner: str


class PinHeld(Event, frozen=True):
    """A definition of `target` is quarantined until it is approved, and why."""

    target: str
    name: str
    why: str


class PinAdded(Event, frozen=True):
    """`target` offers something that was not in its first list; it is passed on."""

    target: str
    name: str
    why: str


class ResourceUpdated(Event, frozen=True):
    """A subscribed resource has changed; `name` is its canonical name, `meta` what its server sent
    as `_meta` with the notification."""

    name: str
    meta: Mapping[str, Any] = NOTHING


class ListAnnounced(Event, frozen=True):
    """`target` has announced a change of its list of that kind, and the list was read again. It may
    be unchanged."""

    target: str
    kind: str


class ClientListChanged(Event, frozen=True):
    """What a target lists of that kind to one client alone may have changed; `owner` is the
    client's session, or stands for a principal without one."""

    owner: str
    kind: str


class RootsChanged(Event, frozen=True):
    """A client announces that its roots, the folders that it works in, have changed."""

    client: str


class ServerLogged(Event, frozen=True):
    """A server has written a log line that belongs to no call. `client` is the session whose own
    connection it came on, or None for the connection that all clients share."""

    server: str
    note: LogMessage
    client: str | None


class ElicitationCompleted(Event, frozen=True):
    """A server reports that the user has visited the URL of an elicitation, which it had sent to
    this client in an error (2025-11-25, URL elicitation required). `meta` is the `_meta` of that
    report."""

    client: str
    id: str
    meta: Mapping[str, Any] = NOTHING


class ClientGone(Event, frozen=True):
    """A client's session has ended; what was kept for it alone can be dropped."""

    client: str
