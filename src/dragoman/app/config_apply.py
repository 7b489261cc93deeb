"""Applies a changed configuration to a running hub, and restarts servers on request."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass, field

from dragoman.app.build_catalogs import Catalogs
from dragoman.app.build_guards import Guards
from dragoman.app.config_watch import ConfigWatch, LiveConfig
from dragoman.app.store_watch import StoreWatch
from dragoman.config import Config, find_frozen_changes
from dragoman.core.background import Background
from dragoman.mcp.client.upstream_manager import UpstreamManager
from dragoman.mcp.server.tasks import ToolTaskRegistry

log = logging.getLogger(__name__)


@dataclass(eq=False, slots=True)
class ConfigApplier:
    """Implements `web.api_servers.ServerAdministration`."""

    _live: LiveConfig
    _variables: dict[str, str]
    """Updated in place: connections look up their secrets in it."""
    _watch: ConfigWatch
    _store_watch: StoreWatch
    _catalogs: Catalogs
    _guards: Guards
    _upstreams: UpstreamManager
    _tasks: ToolTaskRegistry
    _background: Background = field(default_factory=lambda: Background("the configuration"))

    async def follow(self) -> None:
        await self._watch.follow(self.apply)

    async def apply(self, config: Config, variables: Mapping[str, str]) -> None:
        self._variables.clear()
        self._variables.update(variables)
        old = self._live.replace(config)
        for path in find_frozen_changes(old, config):
            log.warning('"%s" has changed; that takes effect at the next start', path)
        self._guards.apply_limits(config.limits)
        self._tasks.set_ttl(2 * config.limits.task_timeout_secs)
        self._guards.policies.apply(old, config)
        self._store_watch.record_servers(config.mcp_servers)
        await self._upstreams.apply(config.mcp_servers)
        removed = {one.name for one in old.mcp_servers} - {one.name for one in config.mcp_servers}
        if removed:
            self._catalogs.reviews.release_names(*removed)
        for entry in config.mcp_servers:
            if any(entry.name == one.name and entry.pin != one.pin for one in old.mcp_servers):
                self._catalogs.reviews.review(entry.name)
        log.info("the configuration was reloaded: %d servers", len(config.mcp_servers))

    async def reload(self) -> str | None:
        """Applies the files as they are now; returns why they are not in force, if so."""
        await self._background.run_to_completion(self._watch.check_now(self.apply))
        return self._watch.problem

    async def restart_server(self, name: str) -> bool:
        return await self._background.run_to_completion(self._upstreams.restart(name))

    async def close(self, grace: float, timeout: float) -> None:
        """Finishes a change in progress."""
        await self._background.close(grace, timeout=timeout)
