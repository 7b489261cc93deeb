"""Builds what observes the bus: plug-ins, the record of dispatches, the event stream, metrics."""

from __future__ import annotations

import logging
from dataclasses import dataclass

from dragoman.app.plugins import load_plugins
from dragoman.config import Config
from dragoman.core.bus import Bus
from dragoman.core.call_log import CallLog
from dragoman.core.hub import Hub
from dragoman.core.logs import OUTPUT
from dragoman.core.loop_watchdog import LoopWatchdog
from dragoman.stores.database import StorePlace
from dragoman.stores.dispatches import DispatchStore
from dragoman.web.app import Mounted
from dragoman.web.events import EventStreams
from dragoman.web.metrics import Metrics

EVENTS = "/api/events"


@dataclass(frozen=True, slots=True)
class Events:
    bus: Bus
    streams: EventStreams
    dispatches: DispatchStore
    metrics: Metrics
    calls: CallLog | None
    """A line per call; None if these are not logged."""
    watchdog: LoopWatchdog

    @property
    def mounts(self) -> dict[str, Mounted]:
        return {EVENTS: self.streams}

    async def close(self) -> None:
        """To be called when no call is running any more."""
        self.watchdog.stop()
        await self.bus.close()
        await self.dispatches.close()
        if self.calls is not None:
            self.calls.flush()


def build_events(place: StorePlace, config: Config, hub: Hub) -> Events:
    load_plugins(hub.bus, config.bus.plugins)
    streams = EventStreams(hub)
    # `up --quiet` does without a line per call, and so does a hub that a command runs for itself.
    logs_calls = logging.getLogger("dragoman.app").isEnabledFor(logging.INFO)
    calls = CallLog(hub.bus, OUTPUT.write, OUTPUT.format) if logs_calls else None
    watchdog = LoopWatchdog(config.server.slow_handler_ms / 1000)
    metrics = Metrics(hub.bus, watchdog.collect)
    # Last: it starts a thread that has to be ended.
    dispatches = DispatchStore(place, config.bridge.keep_dispatches)
    dispatches.observe(hub.bus)
    return Events(hub.bus, streams, dispatches, metrics, calls, watchdog)
