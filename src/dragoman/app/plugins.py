"""Plug-ins on the event bus: entry points of the group `dragoman.bus` that `[bus] plugins` names.

A plug-in is a function that is given the bus and observes, follows or gates events there. One that
cannot be used stops the hub at its start: it may be a gate that the operator relies on.
"""

from __future__ import annotations

import logging
from collections.abc import Coroutine, Sequence
from typing import TYPE_CHECKING

from dragoman.core.bus import Bus
from dragoman.core.errors import ConfigError

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

log = logging.getLogger(__name__)

GROUP = "dragoman.bus"


def load_plugins(bus: Bus, names: Sequence[str]) -> None:
    for name in dict.fromkeys(names):
        entry = find_plugin(name)
        try:
            returned = entry.load()(bus)
            if isinstance(returned, Coroutine):
                returned.close()
                raise TypeError("a plug-in must not be async: it would join the bus too late")
        except Exception as error:
            raise ConfigError(
                f'[bus] plugins: "{name}" ({entry.value}) failed to load: {error!r}; fix it, or '
                "remove it from the list"
            ) from error
        log.info("loaded the plug-in %s (%s)", name, entry.value)


def find_plugin(name: str) -> EntryPoint:
    """Finds the entry point of that name; raises `ConfigError` for none or several."""
    from importlib.metadata import entry_points  # slow to import

    entries = entry_points(group=GROUP)
    found = {entry.value: entry for entry in entries if entry.name == name}
    if len(found) == 1:
        return next(iter(found.values()))
    if found:
        raise ConfigError(
            f'[bus] plugins: "{name}" names several entry points in the group {GROUP}: '
            f"{', '.join(sorted(found))}; uninstall all but one of the packages"
        )
    known = sorted({entry.name for entry in entries})
    hint = f"there are {', '.join(known)}" if known else "there is none"
    raise ConfigError(
        f'[bus] plugins: no installed package has an entry point "{name}" in the group {GROUP}; '
        f"{hint}"
    )
