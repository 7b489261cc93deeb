"""What starts workflows by itself: the ports between triggers, their store and the listener."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple, Protocol

from dragoman.core.structs import Struct

MAX_BODY = 1024 * 1024
"""Of a webhook."""


class ScheduleState(Struct, frozen=True, kw_only=True):
    """A schedule of a workflow, and how far it is."""

    id: str
    """The same as long as name, time and zone are."""
    workflow: str
    next_at: float
    last_at: float = 0.0
    """When it was last due; 0: never."""
    missed: int = 0
    """Occurrences that started no run of their own, in all."""
    outcome: str = ""
    """Why the last occurrence could not start a run; empty if it did."""


class TriggerStore(Protocol):
    """Keeps what must not be lost with the process. All methods may raise `StorageFailed`."""

    def load_schedules(self) -> list[ScheduleState]: ...

    def save_schedule(self, state: ScheduleState) -> None: ...

    def delete_schedules(self, ids: Iterable[str]) -> None: ...

    def has_delivery(self, id: str) -> bool: ...

    def add_delivery(self, id: str, at: float) -> None:
        """Remembers a delivery of a webhook; the oldest are forgotten beyond a bound."""

    def close(self) -> None: ...


class Delivery(NamedTuple):
    """What a webhook has caused."""

    run: str
    """The id of the run; empty if the delivery is none to start one for."""
    is_new: bool


class WebhookReceiver(Protocol):
    async def receive(
        self, name: str, headers: Mapping[bytes, bytes], body: bytes
    ) -> Delivery | None:
        """Starts the workflow of that name. None if there is no such webhook or the signature is
        invalid. Raises a `HubError`."""
