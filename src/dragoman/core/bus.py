"""Delivers events to observers and followers, and asks gates.

An observer is called synchronously, within the call, and must be fast; a follower has a queue and a
task of its own. A failing listener affects no other; one that keeps failing is removed. A gate
that fails or times out refuses the call.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass
from typing import Any, TypeVar

from dragoman.core.background import start_task
from dragoman.core.errors import Denied
from dragoman.core.events import Event, PreVerb, ToolCall, ToolResult

log = logging.getLogger(__name__)

E = TypeVar("E", bound=Event)
Observer = Callable[[Any], None]
Follow = Callable[[Any], Awaitable[None]]
Gate = Callable[[PreVerb], Awaitable[None]]
End = Callable[[], None]

GATE_SECONDS = 0.25
MAX_WAITING = 512
"""Queued events per follower; further ones are dropped."""
MAX_FAILURES = 100
"""Failures in a row after which an observer is removed."""
CLOSE_SECONDS, CANCEL_SECONDS = 1.0, 0.1

FAILURES = (Exception, asyncio.CancelledError, SystemExit)
"""What plug-in code may raise. Nothing cancels an observer, so CancelledError is its own."""


@dataclass(slots=True, eq=False)
class _Subscription:
    name: str
    kinds: tuple[type[Event], ...]
    deliver: Observer
    agents_only: bool = False
    failures: int = 0
    """In a row."""


class Follower:
    """Receives events from a queue, in a task of its own."""

    def __init__(self, name: str, follow: Follow, most: int) -> None:
        self.name = name
        self._follow = follow
        self._max_queued = most
        self._queue: deque[Event] = deque()
        self._task: asyncio.Task[None] | None = None
        self._failures = 0
        self._unsubscribe: End = lambda: None
        self.dropped = 0
        """Events dropped because the follower is too slow."""

    def join(self, bus: Bus, kinds: Iterable[type[Event]]) -> None:
        self._unsubscribe = bus.subscribe(_Subscription(self.name, tuple(kinds), self._enqueue))

    def _enqueue(self, event: Event) -> None:
        if len(self._queue) >= self._max_queued:
            self.dropped += 1
            if self.dropped.bit_count() == 1:  # 1, 2, 4, 8, ...
                log.warning("%s is too slow: %d events were dropped", self.name, self.dropped)
            return
        self._queue.append(event)
        if self._task is None:
            self._start()

    def _start(self) -> None:
        self._task = start_task(self._work())
        self._task.add_done_callback(self._on_done)

    def _on_done(self, task: asyncio.Task[None]) -> None:
        self._task = None
        if self._queue and not task.cancelled():  # an event arrived just as the queue was empty
            self._start()

    async def _work(self) -> None:
        while self._queue:
            event = self._queue.popleft()
            try:
                await self._follow(event)
                self._failures = 0
            except FAILURES as error:
                task = asyncio.current_task()
                if isinstance(error, asyncio.CancelledError) and task and task.cancelling():
                    raise  # the hub cancels the follower
                self._failures += 1
                log.exception("%s failed at %s", self.name, type(event).__name__)
                if self._failures >= MAX_FAILURES:
                    self._unsubscribe()
                    self._queue.clear()
                    log.error(
                        "%s failed %d times in a row and was removed", self.name, self._failures
                    )

    async def close(self) -> None:
        """Lets the follower finish its queue, for a moment."""
        self._unsubscribe()
        for seconds in (CLOSE_SECONDS, CANCEL_SECONDS):
            if self._task is not None:
                await asyncio.wait([self._task], timeout=seconds)
            self._queue.clear()
            if self._task is not None:
                self._task.cancel()


class Bus:
    def __init__(self, gate_seconds: float = GATE_SECONDS) -> None:
        self._gate_seconds = gate_seconds
        self._subscriptions: dict[type[Event], tuple[_Subscription, ...]] = {}
        self._followers: list[Follower] = []
        self._gates: list[tuple[str, Gate]] = []
        self.has_call_observers = False
        """Whether anything observes calls before they are made; otherwise no event is created."""
        self.has_agent_observers = False
        """The same for calls of agents alone, which have their own observers."""
        self.has_tool_observers = False
        """Whether anything observes `ToolCall` or `ToolResult`, which belong together."""
        self.has_gates = False

    def observe(
        self,
        kind: type[E],
        observer: Callable[[E], None],
        name: str = "an observer",
        *,
        agents_only: bool = False,
    ) -> End:
        """Calls `observer` with every event of that type; returns what unsubscribes it. One that
        needs the pre-verbs of agents alone says so with `agents_only`: it may get others too, but
        none are created for it."""
        if inspect.iscoroutinefunction(observer):
            raise TypeError(f"{name} is async and would never be awaited; use follow")
        return self.subscribe(_Subscription(name, (kind,), observer, agents_only))

    def follow(
        self, kinds: Iterable[type[Event]], name: str, follow: Follow, most: int = MAX_WAITING
    ) -> Follower:
        """Awaits `follow` with one event after the other; no call waits for it. Beyond `most`
        queued events, further ones are dropped and counted."""
        follower = Follower(name, follow, most)
        self._followers.append(follower)
        follower.join(self, kinds)
        return follower

    def subscribe(self, seat: _Subscription) -> End:
        for kind in seat.kinds:
            self._subscriptions[kind] = (*self._subscriptions.get(kind, ()), seat)
        self._refresh_flags()
        return lambda: self._unsubscribe(seat)

    def _unsubscribe(self, seat: _Subscription) -> None:
        for kind in seat.kinds:
            left = tuple(one for one in self._subscriptions.get(kind, ()) if one is not seat)
            if left:
                self._subscriptions[kind] = left
            else:
                self._subscriptions.pop(kind, None)
        self._refresh_flags()

    def _refresh_flags(self) -> None:
        kinds = self._subscriptions.keys()
        self.has_tool_observers = not kinds.isdisjoint((ToolCall, ToolResult))
        before = self._subscriptions.get(PreVerb, ())
        self.has_agent_observers = bool(before)
        has_observers = any(not one.agents_only for one in before)
        self.has_call_observers = has_observers or self.has_tool_observers or bool(self._gates)

    def gate(self, name: str, gate: Gate) -> None:
        """Adds a gate, which is asked before every call and refuses it by raising `Denied`."""
        self._gates.append((name, gate))
        self.has_gates = True
        self._refresh_flags()

    def is_observed(self, kind: type[Event]) -> bool:
        """Whether events of that type have an observer; otherwise none need be created."""
        return kind in self._subscriptions

    def emit(self, event: Event) -> None:
        for seat in self._subscriptions.get(type(event), ()):
            try:
                deliver = seat.deliver  # a local: Python is slow to call an attribute's value
                deliver(event)
                if seat.failures:
                    seat.failures = 0
            except FAILURES:
                self._note_failure(seat, event)

    def _note_failure(self, seat: _Subscription, event: Event) -> None:
        seat.failures += 1
        kind = type(event).__name__
        log.exception("%s of %s failed", seat.name, kind)
        if seat.failures >= MAX_FAILURES:
            self._unsubscribe(seat)
            log.error(
                "%s of %s failed %d times in a row and was removed", seat.name, kind, seat.failures
            )

    async def ask_gates(self, event: PreVerb) -> None:
        """Asks every gate; returns if all let the call pass."""
        for name, gate in self._gates:
            try:
                async with asyncio.timeout(self._gate_seconds) as limit:
                    await gate(event)
                if limit.expired():  # the gate swallowed its cancellation
                    raise TimeoutError
            except Denied:
                raise
            except (Exception, SystemExit) as error:
                log.exception("gate %s failed, the call is refused", name)
                verb = event.call.tool.name
                raise Denied(f'"{verb}" was refused: the gate "{name}" failed') from error

    async def close(self) -> None:
        """Stops the followers."""
        await asyncio.gather(*(follower.close() for follower in self._followers))
