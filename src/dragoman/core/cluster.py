"""Several hubs that work as one: who owns what, leases, and messages between hubs.

Only ports, and what a single hub uses in their place. Each hub has an id that is random at every
start. Ids of what lives in one process (a session, a running task, an open question) begin with the
id of the hub that owns it: its `mark`. A hub that dies, or stops, has an heir: the hub that owns
from then on what was its own.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Coroutine, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from secrets import token_hex
from typing import Any, Protocol

from dragoman.core.principal import Principal

MARK_CHARS = 8
"""Hexadecimal digits of a hub's id."""

OF_ANOTHER_HUB = "it belongs to another hub of the cluster, and is not reached by this connection"
"""For connections whose requests are not forwarded."""

End = Callable[[], None]
Receive = Callable[[str, Mapping[str, Any]], None]
"""Gets the id of the hub that sent the message, and the message."""


class OwnedElsewhere(BaseException):
    """The request concerns something that another hub owns. Raised before anything was sent or
    executed, and caught in one place, `web/forwarding.py`, which forwards the request. Not an
    `Exception`: the boundaries on the way answer those."""

    def __init__(self, mark: str) -> None:
        super().__init__(mark)
        self.mark = mark
        """The hub that the id names; its heir may be the owner now."""
        self.is_charged = False
        """Whether the request was charged here to the rate limit of its principal."""


class Prepayment:
    """A request that another hub has charged to the rate limit of its principal already. It is
    used up by the first charge, so that work that the request begins is charged as ever."""

    __slots__ = ("is_left",)

    def __init__(self) -> None:
        self.is_left = True


_prepayment: ContextVar[Prepayment | None] = ContextVar("prepayment", default=None)


@contextmanager
def prepay() -> Iterator[None]:
    """Has the request that is answered meanwhile not charged again."""
    paid = Prepayment()
    token = _prepayment.set(paid)
    try:
        yield
    finally:
        paid.is_left = False
        _prepayment.reset(token)


def take_prepayment() -> bool:
    """Whether the request that is being answered was charged at another hub; once."""
    paid = _prepayment.get()
    if paid is None or not paid.is_left:
        return False
    paid.is_left = False
    return True


class Ownership(Protocol):
    """What this hub owns."""

    @property
    def mark(self) -> str:
        """The beginning of the ids that this hub makes; empty for a single hub."""

    def check(self, mark: str) -> None:
        """Raises `OwnedElsewhere` if `mark`, from an id that a client sent, names another hub. To
        be called where a request comes in, before it has any effect."""

    def check_lease(self) -> None:
        """Raises `LeaseExpired` if other hubs may own what this one owned: it was paused or cut off
        for too long. To be called before an effect leaves the hub."""


class Leases(Protocol):
    """What only one hub at a time may do."""

    def holds(self, name: str) -> bool:
        """Whether this hub holds the lease now; asks for it from the first call on. False as soon
        as the lease could not be renewed in time, which is before another hub can get it."""

    def find_holder(self, name: str) -> str:
        """The id of the hub that holds the lease, as far as is known; empty if none does."""

    def find_token(self, name: str) -> int:
        """A number that is larger for each later holder of the lease; 0 while it is not held. A
        store can refuse the writes of an earlier holder with it."""


class ClusterBus(Protocol):
    """Sends small messages to the other hubs. Any of them may be lost: a receiver that needs to
    know reads the stores from time to time."""

    def publish(self, kind: str, data: Mapping[str, Any]) -> None:
        """Sends soon, to all other hubs; drops the message if it is larger than some kilobytes or
        too many are waiting."""

    def subscribe(self, kind: str, receive: Receive) -> End:
        """Calls `receive` with the messages of a kind that other hubs send; returns what ends
        that."""


class ClusterMember(Ownership, Leases, ClusterBus, Protocol):
    """This hub among the others."""


class FrameSink(Protocol):
    """The response to a request of another hub: a sequence of frames."""

    def send(self, frame: bytes) -> bool:
        """Sends a frame at once; False if the other hub does not read."""

    async def write(self, frame: bytes) -> None:
        """Sends a frame; waits while the other hub does not read."""


ServeFrames = Callable[[Principal, bytes, FrameSink], Coroutine[Any, Any, None]]
"""Serves a request that a part of another hub has sent for a principal. Cancelled when the other
hub needs no response any more."""


class OwnerRequests(Protocol):
    """Requests of a part of this hub to the same part of other hubs: for connections whose requests
    cannot be forwarded as they are."""

    async def open(
        self, mark: str, part: str, principal: Principal, body: bytes, *, is_charged: bool
    ) -> AsyncIterator[bytes] | None:
        """Sends a request to the owner of what `mark` names; returns the frames of the response, to
        be closed by the caller, or None if this hub is the owner by now. Raises `HubError`, and so
        do the frames."""

    async def ask_others(self, part: str, principal: Principal, body: bytes) -> list[list[bytes]]:
        """Sends a request to all other hubs, and returns the frames of each that has responded
        within a few seconds."""

    async def find_owner(self, mark: str) -> str:
        """The id of the hub that owns what `mark` names; empty if it is this one. Raises
        `StorageFailed`."""


class SingleHub:
    """The only hub: it owns everything, holds every lease, and has none to talk to."""

    mark = ""

    def check(self, mark: str) -> None: ...

    def check_lease(self) -> None: ...

    def holds(self, name: str) -> bool:
        return True

    def find_holder(self, name: str) -> str:
        return ""

    def find_token(self, name: str) -> int:
        return 1

    def publish(self, kind: str, data: Mapping[str, Any]) -> None: ...

    def subscribe(self, kind: str, receive: Receive) -> End:
        return lambda: None


SINGLE_HUB = SingleHub()


def make_id(owner: Ownership, size: int = 32) -> str:
    """A random id of that many hexadecimal digits, which begins with the mark of its owner."""
    return owner.mark + token_hex((size - len(owner.mark)) // 2)


def find_mark(id: str) -> str:
    """The mark in an id that `make_id` has made, or that a client has made up."""
    return id[:MARK_CHARS]
