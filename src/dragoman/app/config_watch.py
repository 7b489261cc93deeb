"""The configuration in force, and the watch on the files it comes from."""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path

from dragoman.app.build_secrets import build_secrets
from dragoman.config import Config, holds_secrets, load_variables, load_with_source
from dragoman.config_layers import Override
from dragoman.core.call import NOTHING
from dragoman.core.errors import ConfigError, StorageFailed
from dragoman.core.file_modes import find_exposures, find_exposures_in
from dragoman.core.logs import STORAGE_OUTAGE, RepeatedFailure
from dragoman.core.tool_filter import View
from dragoman.core.views import ViewRule, Views

log = logging.getLogger(__name__)

WATCH_SECONDS = 0.2
"""How often files are checked for changes."""

Stamp = tuple[int, int, int, int]
Apply = Callable[[Config, Mapping[str, str]], Awaitable[None]]


class LiveConfig:
    """The configuration in force. Parts that follow changes read it at each use."""

    def __init__(
        self, config: Config, variables: Mapping[str, str] = NOTHING, home: Path = Path()
    ) -> None:
        self.config = config
        self.variables = dict(variables)
        """Updated in place: connections look up their secrets in it."""
        self.secrets = build_secrets(home, self.variables, lambda: self.config)
        self.views = Views()
        self.views.apply(*build_view_rules(config))
        self.stdio_view = View(tuple(config.mcp.stdio_expose), agents=True)
        """What clients over stdio are listed; computed once, because every request needs it."""

    def find_tool_limit(self, client: str) -> int:
        """Returns how many tools the client of that name takes."""
        return self.config.mcp.find_tool_limit(client)

    def find_style(self, client: str) -> str:
        """The style of tool names for the client of that name."""
        return self.config.mcp.find_style(client)

    def replace(self, config: Config, variables: Mapping[str, str]) -> Config:
        """Puts `config` in force and returns the previous one."""
        self.variables.clear()
        self.variables.update(variables)
        previous, self.config = self.config, config
        self.stdio_view = View(tuple(config.mcp.stdio_expose), agents=True)
        return previous


def build_view_rules(
    config: Config,
) -> tuple[list[ViewRule], dict[str, frozenset[str]], dict[str, str]]:
    """The views of the configuration, the tags of servers and external agents, and the views of
    single clients: the arguments of `Views.apply`."""
    rules = [
        ViewRule(
            name=one.name,
            description=one.description,
            include=tuple(one.include),
            exclude=tuple(one.exclude),
            servers=tuple(one.servers),
            agents=tuple(one.agents),
            tags=tuple(one.tags),
            rename=one.rename,
            describe=one.describe,
            description_chars=one.description_chars,
            token_budget=one.token_budget,
            search=one.search,
        )
        for one in config.views
    ]
    tags = {one.name: frozenset(one.tags) for one in config.mcp_servers if one.tags}
    tags |= {one.name: frozenset(one.tags) for one in config.a2a.external_agents if one.tags}
    return rules, tags, config.mcp.views_for


class ConfigWatch:
    def __init__(self, home: Path, given: Sequence[Override] = ()) -> None:
        """To be built before the files are read, so that no change is missed. `given` are the
        settings of the command line, which take precedence over the files."""
        self._given = given
        self.problem: str | None = None
        """Why the current files are not in force."""
        self._home = home
        self._seen = self._before = _read_stamps(home)
        self._applying = asyncio.Lock()

    async def follow(self, apply: Apply) -> None:
        """Passes every new configuration to `apply`."""
        await poll(lambda: self._check(apply))

    async def check_now(self, apply: Apply) -> None:
        """Applies a change without waiting until the files are stable: the caller knows that they
        are complete."""
        async with self._applying:
            now = _read_stamps(self._home)
            if now != self._seen:
                await self._read(now, apply)

    async def _check(self, apply: Apply) -> None:
        async with self._applying:
            now = _read_stamps(self._home)
            is_stable, self._before = now == self._before, now
            if now != self._seen and is_stable:  # else an editor may still be writing
                await self._read(now, apply)

    async def _read(self, now: list[Stamp | None], apply: Apply) -> None:
        self._seen = now
        file = self._home / "config.toml"
        if (loss := _describe_loss(file)) is not None:
            self.problem = loss
            log.error("%s", loss)
            return
        try:
            config, source = load_with_source(file, self._given)
            variables = load_variables(self._home)
            refuse_exposed(self._home, config)
        except ConfigError as error:
            self.problem = str(error)
            log.error("the new configuration is not used: %s", error)
            return
        except Exception as error:
            self.problem = repr(error)
            log.exception("the new configuration could not be read")
            return
        for warning in source.warnings:
            log.warning("%s", warning)
        self.problem = None
        await apply(config, variables)


def refuse_exposed(home: Path, config: Config) -> None:
    """Raises `ConfigError` if other users can write the hub's files or read its secrets."""
    exposures = [
        *find_exposures(home, config_is_secret=holds_secrets(config)),
        *find_exposures_in(home / config.policy.folder),
    ]
    exposed = [str(one) for one in exposures if one.reachable]
    if exposed:
        raise ConfigError("; ".join(exposed[:3]))


async def poll(check: Callable[[], Awaitable[object]], seconds: float = WATCH_SECONDS) -> None:
    """Calls `check` every few seconds, even after it has failed."""
    failure = RepeatedFailure()
    while True:
        await asyncio.sleep(seconds)
        try:
            await check()
            failure.clear()
        except StorageFailed as error:
            STORAGE_OUTAGE.note(f"what the hub follows is not up to date: {error}")
        except Exception as error:  # or no further change would be seen
            if (
                text := failure.note(f"a change could not be applied in full: {error!r}")
            ) is not None:
                log.exception("%s", text)


def _describe_loss(file: Path) -> str | None:
    """Says that the file is missing, or empty: the disk was full, or an editor has only begun to
    save."""
    try:
        with file.open("rb") as opened:
            if opened.read(1024 * 1024).strip(b" \t\r\n\0"):
                return None
    except FileNotFoundError:
        return f"{file} is missing; the last configuration stays in force"
    except OSError:
        return None  # reading it again reports the error
    return (
        f"{file} is empty; the last configuration stays in force. To run without any "
        "settings, write a comment into it"
    )


def _read_stamps(home: Path) -> list[Stamp | None]:
    """Returns values that change when the configuration or the env file does."""
    return [_read_stamp(os.path.join(home, name)) for name in ("config.toml", "env")]


def _read_stamp(file: str) -> Stamp | None:
    try:
        found = os.stat(file)
    except OSError:
        return None
    return found.st_mtime_ns, found.st_size, found.st_ino, found.st_mode
