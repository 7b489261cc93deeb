"""The files of a home that its operator writes: `env`, and the configuration, which is followed
while the hub runs."""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path

from dragoman.config import Config, load_with_source, read_env
from dragoman.config_layers import Given
from dragoman.core.errors import ConfigError
from dragoman.core.file_modes import find_exposures, find_exposures_in

log = logging.getLogger(__name__)

WATCH_SECONDS = 0.2
"""How often the files are looked at."""


def lookup_of(place: Path) -> dict[str, str]:
    """The environment, and the home's `env` file for what is not in it."""
    try:
        data = (place / "env").read_bytes()
    except FileNotFoundError:
        data = None
    except OSError as error:
        raise ConfigError(f"{place / 'env'} cannot be read: {error.strerror}") from None
    return {**read_env(data), **os.environ}


def refuse_exposed(place: Path, config: Config) -> None:
    """Raises where others may write what the hub goes by, or read its secrets."""
    exposures = [
        *find_exposures(place, config_is_secret=config.api_key is not None),
        *find_exposures_in(place / config.policy.folder),
    ]
    exposed = [str(one) for one in exposures if one.reachable]
    if exposed:
        raise ConfigError("; ".join(exposed[:3]))


Stamp = tuple[int, int, int, int]
Apply = Callable[[Config, Mapping[str, str]], Awaitable[None]]


class ConfigWatch:
    def __init__(self, place: Path, given: Sequence[Given] = ()) -> None:
        """Made before the files are read: what changes meanwhile is seen too. `given` is what the
        command line said, which the files do not change."""
        self._given = given
        self.problem: str | None = None
        """Why what stands in the files now is not used."""
        self._place = place
        self._seen = self._before = _stamps(place)
        self._applying = asyncio.Lock()

    async def follow(self, apply: Apply) -> None:
        """Hands every new configuration to `apply`."""
        await look_again_and_again(lambda: self._look(apply))

    async def look_now(self, apply: Apply) -> None:
        """Applies what has changed without waiting for the files to stay as they are: the one who
        asks for this has finished writing."""
        async with self._applying:
            now = _stamps(self._place)
            if now != self._seen:
                await self._read(now, apply)

    async def _look(self, apply: Apply) -> None:
        async with self._applying:
            now = _stamps(self._place)
            settled, self._before = now == self._before, now
            if now != self._seen and settled:  # or somebody is just writing it
                await self._read(now, apply)

    async def _read(self, now: list[Stamp | None], apply: Apply) -> None:
        self._seen = now
        file = self._place / "config.toml"
        if not file.exists():
            self.problem = f"{file} is gone; what it said last is still used"
            log.error("%s", self.problem)
            return
        if _is_blank(file):
            # The disk was full, or an editor has only begun to save.
            self.problem = (
                f"{file} is empty; what it said last is still used. To run without any settings, "
                "write a comment into it"
            )
            log.error("%s", self.problem)
            return
        try:
            config, source = load_with_source(file, self._given)
            lookup = lookup_of(self._place)
            refuse_exposed(self._place, config)
        except ConfigError as error:
            self.problem = str(error)
            log.error("the new configuration is not used: %s", error)
            return
        except Exception as error:
            self.problem = repr(error)
            log.exception("the new configuration could not be read")
            return
        self.problem = None
        for warning in source.warnings:
            log.warning("%s", warning)
        await apply(config, lookup)


async def look_again_and_again(
    look: Callable[[], Awaitable[object]], seconds: float = WATCH_SECONDS
) -> None:
    """Looks every few seconds, whatever an earlier look came to."""
    while True:
        await asyncio.sleep(seconds)
        try:
            await look()
        except Exception:  # or no further change would be seen
            log.exception("what has changed in the home could not be taken up in full")


def _is_blank(file: Path) -> bool:
    try:
        with file.open("rb") as opened:
            return not opened.read(1024 * 1024).strip(b" \t\r\n\0")
    except OSError:
        return False  # to read it again says why


def _stamps(place: Path) -> list[Stamp | None]:
    """Something that differs when the configuration or the env file was changed."""
    return [_stamp(place / name) for name in ("config.toml", "env")]


def _stamp(file: Path) -> Stamp | None:
    try:
        found = file.stat()
    except OSError:
        return None
    return found.st_mtime_ns, found.st_size, found.st_ino, found.st_mode
