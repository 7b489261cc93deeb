"""Applies a changed configuration to a running hub, and restarts servers on request."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass, field

from dragoman.app.config_watch import ConfigWatch, build_view_rules
from dragoman.app.hub_parts import HubParts
from dragoman.app.secret_variables import withhold_secrets
from dragoman.config import Config, find_frozen_changes
from dragoman.core.background import Background

log = logging.getLogger(__name__)


@dataclass(eq=False, slots=True)
class ConfigApplier:
    """Implements `web.api_servers.ServerAdministration`."""

    _parts: HubParts
    _watch: ConfigWatch
    _background: Background = field(default_factory=lambda: Background("the configuration"))

    async def follow(self) -> None:
        await self._watch.follow(self.apply)

    async def apply(self, config: Config, variables: Mapping[str, str]) -> None:
        parts = self._parts
        before = dict(parts.live.variables)
        old = parts.live.replace(config, variables)
        changed = {
            name for name in {*before, *variables} if before.get(name) != variables.get(name)
        }
        parts.manifests.reconsider(changed)
        for path in find_frozen_changes(old, config):
            log.warning('"%s" has changed; that takes effect at the next start', path)
        withhold_secrets(config, parts.skills.table.list_variables())
        parts.auth.apply(config.auth)
        parts.guards.apply_limits(config.limits)
        parts.guards.apply_taint(config.taint)
        parts.mcp.tasks.set_ttl(2 * config.limits.task_timeout_secs)
        parts.guards.policies.apply(old, config)
        if parts.live.views.apply(*build_view_rules(config)):
            parts.guards.policies.touch()  # lists and their caches follow the views
        parts.store_watch.record_servers(config.mcp_servers)
        await parts.upstreams.apply(config.mcp_servers)
        removed = {one.name for one in old.mcp_servers} - {one.name for one in config.mcp_servers}
        for name in removed:
            parts.logins.desk.remove_account(name)
        if removed:
            parts.catalogs.reviews.release_names(*removed)
        for entry in config.mcp_servers:
            if any(entry.name == one.name and entry.pin != one.pin for one in old.mcp_servers):
                parts.catalogs.reviews.review(entry.name)
        log.info("the configuration was reloaded: %d servers", len(config.mcp_servers))

    async def reload(self) -> str | None:
        """Applies the files as they are now; returns why they are not in force, if so."""
        await self._background.run_to_completion(self._watch.check_now(self.apply))
        return self._watch.problem

    async def restart_server(self, name: str) -> bool:
        return await self._background.run_to_completion(self._parts.upstreams.restart(name))

    async def close(self, grace: float, timeout: float) -> None:
        """Finishes a change in progress."""
        await self._background.close(grace, timeout=timeout)
