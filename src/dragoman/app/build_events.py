"""Those who hear of events, joined: plug-ins, the record of dispatches, and the live stream. Part
of `assembly`, which starts it.

A plug-in is an entry point of the group `dragoman.bus` that `[bus] plugins` names: a function that
is given the bus and observes, follows or gates there. One that is named and cannot be used stops
the hub at its start: it may be the gate that somebody relies on.
"""

from __future__ import annotations

import logging
from collections.abc import Coroutine, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from dragoman.core.bus import Bus
from dragoman.core.errors import ConfigError
from dragoman.core.hub import Hub
from dragoman.stores.dispatches import DispatchStore
from dragoman.web.api import ApiPart
from dragoman.web.api_dispatches import DispatchesApi
from dragoman.web.app import Mounted
from dragoman.web.events import EventStreams

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

log = logging.getLogger(__name__)

GROUP = "dragoman.bus"
EVENTS = "/api/events"


class BusSide:
    def __init__(self, place: Path, hub: Hub, plugins: Sequence[str], keep_dispatches: int) -> None:
        join_plugins(hub.bus, plugins)
        self._hub = hub
        self.streams = EventStreams(hub)
        self.dispatches = DispatchStore(place, keep_dispatches)  # last: it is to be closed
        self.dispatches.observe(hub.bus)

    @property
    def mounts(self) -> Mapping[str, Mounted]:
        return {EVENTS: self.streams}

    @property
    def parts(self) -> list[ApiPart]:
        return [DispatchesApi(self._hub, self.dispatches)]

    def begin_stop(self) -> None:
        self.streams.close()

    async def stop(self) -> None:
        """When no call is under way any more."""
        await self._hub.bus.close()
        await self.dispatches.close()


def join_plugins(bus: Bus, names: Sequence[str]) -> None:
    if not names:
        return
    for name in dict.fromkeys(names):
        entry = find_plugin(name)
        try:
            _join(bus, entry)
        except Exception as error:
            raise ConfigError(
                f'[bus] plugins: "{name}" ({entry.value}) cannot be used: {error!r}; mend it, or '
                "take it out"
            ) from error
        log.info("the bus has the plug-in %s (%s)", name, entry.value)


def find_plugin(name: str) -> EntryPoint:
    """The one entry point of that name; raises `ConfigError` for none or several."""
    from importlib.metadata import entry_points  # takes longer to load than the rest of this

    there = entry_points(group=GROUP)
    found = {entry.value: entry for entry in there if entry.name == name}
    if len(found) != 1:
        raise ConfigError(_not_one(name, sorted(found), sorted({one.name for one in there})))
    return next(iter(found.values()))


def _join(bus: Bus, entry: EntryPoint) -> None:
    returned = entry.load()(bus)
    if isinstance(returned, Coroutine):
        returned.close()
        raise TypeError("it is async, and so would join too late")


def _not_one(name: str, found: list[str], there: list[str]) -> str:
    if found:
        return (
            f'[bus] plugins: "{name}" names several entry points in the group {GROUP}: '
            f"{', '.join(found)}; take all but one of the packages out"
        )
    known = f"there are {', '.join(there)}" if there else "there is none"
    return (
        f'[bus] plugins: no package installed beside the hub has an entry point "{name}" in the '
        f"group {GROUP}; {known}"
    )
