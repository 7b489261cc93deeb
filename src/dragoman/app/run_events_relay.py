"""Shows the events of runs at every hub of a cluster: a client may watch a run at another hub than
the one that works on it.

Only event streams get them. Triggers and steps that wait for an event follow the events of their
own hub, so that each is taken once.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dragoman.core.bus import Bus
from dragoman.core.cluster import ClusterBus
from dragoman.core.events import RunChanged, StepChanged
from dragoman.web.events import EventStreams

KINDS: Mapping[str, type[RunChanged] | type[StepChanged]] = {
    "run.changed": RunChanged,
    "step.changed": StepChanged,
}


def relay_run_events(bus: Bus, hubs: ClusterBus, streams: EventStreams) -> None:
    for name, kind in KINDS.items():
        _relay(bus, hubs, streams, name, kind)


def _relay(
    bus: Bus,
    hubs: ClusterBus,
    streams: EventStreams,
    name: str,
    kind: type[RunChanged] | type[StepChanged],
) -> None:
    def send(event: RunChanged | StepChanged) -> None:
        hubs.publish(name, {one: getattr(event, one) for one in kind.__struct_fields__})

    def receive(hub: str, data: Mapping[str, Any]) -> None:
        members: dict[str, Any] = {one: data.get(one) for one in kind.__struct_fields__}
        if all(isinstance(one, str) for one in members.values()):
            streams.show(kind(**members))

    bus.observe(kind, send, "the other hubs")
    hubs.subscribe(name, receive)
