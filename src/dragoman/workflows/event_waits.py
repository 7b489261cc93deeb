"""Ends the waits of steps for events of the hub. Only events that a step waits for are observed."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Final, NamedTuple

from dragoman.core.background import Background
from dragoman.core.bus import Bus
from dragoman.core.call import Call
from dragoman.core.cluster import SINGLE_HUB, ClusterBus
from dragoman.core.errors import StorageFailed
from dragoman.core.event_payloads import EVENT_NAMES, redact_event, render_event
from dragoman.core.events import Event, UserEvent
from dragoman.core.logs import STORAGE_OUTAGE
from dragoman.core.runs import EVENT, WAITING, Run, RunStore, StepRecord, build_awaited
from dragoman.core.taint import EXTERNAL_NETWORK, UNTRUSTED_AGENT, LabelOrigin, Origins
from dragoman.workflows.active_run import ActiveRun
from dragoman.workflows.runner import Runner
from dragoman.workflows.waits import StepWaits

PAGE: Final = 500
MAX_QUEUED: Final = 1_000
"""Events that wait to be matched; more are dropped."""
AWAITED: Final = "awaited"
"""Messages to other hubs about events that a step has begun to wait for."""
_KINDS = {name: kind for kind, name in EVENT_NAMES.items()}


def list_event_labels(event: Event) -> tuple[str, ...]:
    """The taint labels of what an event says: names and texts in it come from clients, servers and
    agents."""
    more = (UNTRUSTED_AGENT,) if isinstance(event, UserEvent) else ()
    return EXTERNAL_NETWORK, *more


def build_event_labels(workflow: str, name: str, labels: tuple[str, ...]) -> Origins:
    why = f'an event "{name}"'
    return {label: LabelOrigin(f"workflow.{workflow}", "", why) for label in labels}


class _Received(NamedTuple):
    """An event that runs may wait for."""

    payload: Mapping[str, Any]
    org: str
    """Empty: it concerns all."""
    labels: tuple[str, ...]


class EventWaits:
    def __init__(
        self,
        bus: Bus,
        store: RunStore,
        runner: Runner,
        clock: Callable[[], float],
        cluster: ClusterBus = SINGLE_HUB,
    ) -> None:
        """`cluster` tells the other hubs what is awaited, since an event happens at one of them."""
        self._bus = bus
        self._cluster = cluster
        self._end_news = cluster.subscribe(AWAITED, self._note_wait_elsewhere)
        self._store = store
        self._runner = runner
        self._clock = clock
        self._ends: dict[str, Callable[[], None]] = {}
        """What ends the observation of each event that is awaited."""
        self._background = Background("the events that workflow runs wait for")
        runner.on_wait = self._note_wait

    async def open(self) -> None:
        """Observes what runs of an earlier hub wait for."""
        after = ("", "")
        while page := await self._store.list_awaiting(build_awaited(EVENT, ""), PAGE, after):
            for _, _, awaited in page:
                self._observe(awaited.partition(" ")[2])
            after = page[-1][:2]

    def close(self) -> None:
        self._end_news()
        for end in self._ends.values():
            end()
        self._ends.clear()
        self._background.cancel()

    def _note_wait(self, run: Run, record: StepRecord) -> None:
        kind, _, name = record.awaited.partition(" ")
        if kind == EVENT and record.state == WAITING:
            self._observe(name)
            self._cluster.publish(AWAITED, {"event": name})

    def _note_wait_elsewhere(self, hub: str, data: Mapping[str, Any]) -> None:
        if isinstance(name := data.get("event"), str):
            self._observe(name)

    def _observe(self, name: str) -> None:
        kind = _KINDS.get(name)
        if kind is not None and name not in self._ends:
            self._ends[name] = self._bus.observe(
                kind, partial(self._take, name), "the runs that wait for it"
            )

    def _take(self, name: str, event: Event) -> None:
        rendered = render_event(event)
        if rendered is None or len(self._background) >= MAX_QUEUED:
            return
        call: Call | None = getattr(event, "call", None)
        org = call.principal.org if call is not None else getattr(event, "org", "")
        payload = redact_event(rendered[1], call)
        labels = list_event_labels(event)
        self._background.spawn(self._match(name, _Received(payload, org, labels)))

    async def _match(self, name: str, received: _Received) -> None:
        awaited, after, found = build_awaited(EVENT, name), ("", ""), False
        try:
            while page := await self._store.list_awaiting(awaited, PAGE, after):
                found = True
                for run, path, _ in page:
                    self._runner.deliver(run, partial(self._end_wait, name, path, received))
                after = page[-1][:2]
            if not found and (end := self._ends.pop(name, None)) is not None:
                end()
                if await self._store.list_awaiting(awaited, 1):  # it began to wait meanwhile
                    self._observe(name)
        except StorageFailed as error:
            STORAGE_OUTAGE.note(f"an event cannot be matched with workflow runs: {error}")
            self._observe(name)

    def _end_wait(self, name: str, path: str, received: _Received, active: ActiveRun) -> None:
        payload, org, labels = received
        is_seen = not org or org == active.run.org
        if is_seen and StepWaits.take_event(active, path, payload, self._clock()):
            active.add_labels(build_event_labels(active.run.workflow, name, labels))
