"""Loads the built-in tools once a principal can use them: with the first agent that was granted
one or has a schedule, or for clients.

A hub without either loads none of what they need.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dragoman.core.hub import Hub
from dragoman.core.local_agents import AgentDirectory, AgentProfile, AgentProfiles
from dragoman.core.principal import Principal
from dragoman.core.secret_references import SecretResolver
from dragoman.net.client import OutboundHttp
from dragoman.stores.agents_db import DATABASE
from dragoman.stores.store_inventory import StoreInventory
from dragoman.tools.access import BuiltinAccess
from dragoman.tools.builtin_names import grants_builtin_tools
from dragoman.tools.config import ToolSettings

if TYPE_CHECKING:
    from dragoman.app.build_tools import ToolParts
    from dragoman.processes.command_runner import CommandRunner
    from dragoman.stores.agent_schedules import DatabaseSchedules
    from dragoman.stores.database import StorePlace
    from dragoman.tools.media import VisionModel

log = logging.getLogger(__name__)


def build_access(home: Path, settings: ToolSettings, profiles: AgentProfiles) -> BuiltinAccess:
    grants = settings.client_grants
    client = AgentProfile(
        name="client",
        workspace=home / grants.workspace,
        agents=tuple(grants.agents),
        shell=tuple(grants.shell),
        network=tuple(grants.network),
        memory_read=tuple(grants.memory_read),
        memory_write=tuple(grants.memory_write),
    )
    return BuiltinAccess(profiles.find, settings.clients, client)


def _needs(agent: AgentProfile) -> bool:
    return bool(agent.schedules) or grants_builtin_tools(agent.tools)


@dataclass(frozen=True, slots=True)
class LazyTools:
    home: Path
    place: StorePlace
    settings: ToolSettings
    hub: Hub
    net: OutboundHttp
    directory: AgentDirectory
    access: BuiltinAccess
    inventory: StoreInventory
    find_runner: Callable[[], CommandRunner]
    vision: VisionModel | None
    secrets: SecretResolver
    renew: Callable[[Principal], Principal] = lambda principal: principal
    """Takes from a principal what it does not have any more."""
    built: list[ToolParts] = field(default_factory=list)
    """The tools, once they are loaded."""
    synced: list[list[AgentProfile]] = field(default_factory=list)
    """At most one: the agents with schedules that the store has as their manifests say."""

    def check(self) -> None:
        """Loads and offers the tools if a principal can use them. Raises `ConfigError`."""
        if self.built or not (self.settings.clients or any(map(_needs, self._list_profiles()))):
            return
        from dragoman.app.build_tools import build_tools
        from dragoman.app.tool_ports import SandboxedShell

        megabytes = math.ceil(self.settings.workspace_megabytes)
        shell = SandboxedShell(self.find_runner(), self.settings.command_sandbox, megabytes)
        parts = build_tools(
            self.home,
            self.place,
            self.settings,
            self.hub,
            self.net,
            self.directory,
            self.access,
            shell,
            self.vision,
            self.secrets,
            self.renew,
        )
        self.built.append(parts)
        log.info("%d built-in tools are ready", len(parts.target.tools))

    async def follow(self) -> None:
        """Loads the tools with the first agent, keeps the schedules as the manifests say, and runs
        them; called again and again."""
        if not self.built:
            self.check()
            if self.built:
                self.inventory.register_stores()
        for parts in self.built:
            self._sync_schedules(parts)
            parts.start()

    def _list_profiles(self) -> list[AgentProfile]:
        return self.directory.list_profiles()

    def _sync_schedules(self, parts: ToolParts) -> None:
        now = [one for one in self._list_profiles() if one.schedules]
        if self.synced and self.synced[0] == now:
            return
        from dragoman.tools.manifest_schedules import sync_schedules

        if not self.synced:
            self._move_schedules(parts.stores.schedules)
        if sync_schedules(parts.stores.schedules, now, time.time()):
            parts.schedules.wake()
        self.synced[:] = [now]

    def _move_schedules(self, shared: DatabaseSchedules) -> None:
        """Moves what agents have created before schedules were in the database of all hubs."""
        if isinstance(self.place, Path) or not (self.home / DATABASE).exists():
            return
        from dragoman.stores.agent_schedules import DatabaseSchedules
        from dragoman.tools.manifest_schedules import move_schedules

        with closing(DatabaseSchedules(self.home)) as own:
            move_schedules(own, shared)

    def describe_schedules(self, agent: AgentProfile) -> list[dict[str, Any]]:
        """Describes all schedules of an agent; empty while the tools are not loaded."""
        if not self.built:
            return []
        from dragoman.tools.schedules import render_schedule

        found = self.built[0].stores.schedules.list_schedules(agent.org, agent.name)
        return [render_schedule(one) for one in found]

    async def stop(self) -> None:
        for parts in self.built:
            await parts.stop()
