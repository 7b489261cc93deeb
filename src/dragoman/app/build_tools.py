"""Builds the built-in tools: their stores, their target, and the runner of the schedules."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import ExitStack, closing
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from dragoman.app.tool_ports import A2aPeers, GuardedWeb, SearchEngine
from dragoman.core.background import Background
from dragoman.core.hub import Hub
from dragoman.core.local_agents import AgentDirectory
from dragoman.core.principal import Principal
from dragoman.core.secret_references import SecretResolver
from dragoman.core.secret_rules import Author, SecretUse
from dragoman.guards.validate import compile_schema
from dragoman.net.client import OutboundHttp
from dragoman.stores.agent_memory import DatabaseMemory, MemoryLimits
from dragoman.stores.agent_queue import DatabaseQueue
from dragoman.stores.agent_schedules import DatabaseSchedules, ScheduleLimits
from dragoman.stores.database import StorePlace
from dragoman.tools.a2a import A2aTools
from dragoman.tools.access import BuiltinAccess
from dragoman.tools.agent_calls import NestedCalls, ScheduledCalls
from dragoman.tools.agents import AgentTools
from dragoman.tools.builtin_target import BuiltinTools
from dragoman.tools.config import ToolSettings
from dragoman.tools.events import EventTools
from dragoman.tools.files import FileTools, WorkspaceFiles
from dragoman.tools.media import MediaTools, VisionModel
from dragoman.tools.memory import MemoryTools, MemoryValueLimits
from dragoman.tools.patch import PatchTools
from dragoman.tools.schedule_runner import ScheduleRunner
from dragoman.tools.schedules import ScheduleTools
from dragoman.tools.shell import ShellLimits, ShellRunner, ShellTools
from dragoman.tools.tasks import TaskTextLimits, TaskTools
from dragoman.tools.threads import ToolThreads
from dragoman.tools.time import TimeTools
from dragoman.tools.web import WebLimits, WebTools
from dragoman.tools.workspace import WorkspaceLimits
from dragoman.wire.http import HttpClient
from dragoman.wire.secret_headers import SecretHeadersClient, build_placeholder

MEGABYTE = 1024 * 1024
SEARCH_USE = SecretUse(Author.OWNER, "web_search")


@dataclass(frozen=True, slots=True)
class ToolStores:
    """What the built-in tools keep."""

    memory: DatabaseMemory
    queue: DatabaseQueue
    schedules: DatabaseSchedules

    def close(self) -> None:
        for store in (self.memory, self.queue, self.schedules):
            store.close()


def open_tool_stores(home: Path, place: StorePlace, settings: ToolSettings) -> ToolStores:
    memory = MemoryLimits(keys=settings.memory_keys, size=int(settings.memory_megabytes * MEGABYTE))
    with ExitStack() as undo:
        stores = ToolStores(
            undo.enter_context(closing(DatabaseMemory(home, memory))),
            undo.enter_context(closing(DatabaseQueue(home))),
            undo.enter_context(
                closing(DatabaseSchedules(place, ScheduleLimits(of_agent=settings.schedules)))
            ),
        )
        undo.pop_all()
    return stores


@dataclass(frozen=True, slots=True)
class ToolParts:
    target: BuiltinTools
    stores: ToolStores
    schedules: ScheduleRunner
    threads: ToolThreads
    _loops: Background = field(default_factory=lambda: Background("built-in tools"))

    def start(self) -> None:
        """Starts the schedules, once."""
        if not len(self._loops):
            self._loops.spawn(self.schedules.run())

    async def stop(self) -> None:
        await self._loops.close()
        await self.schedules.close()
        self.threads.close()
        self.stores.close()


def build_tools(
    home: Path,
    place: StorePlace,
    settings: ToolSettings,
    hub: Hub,
    net: OutboundHttp,
    directory: AgentDirectory,
    access: BuiltinAccess,
    shell: ShellRunner | None,
    vision: VisionModel | None,
    secrets: SecretResolver,
    renew: Callable[[Principal], Principal] = lambda principal: principal,
) -> ToolParts:
    """Builds the tools and offers them to the hub's catalog. `shell` runs commands; without it
    there is no `shell_exec`. `vision` sees images; without it `image_analyze` says so.
    `renew` takes from a principal what it does not have any more."""
    stores = open_tool_stores(home, place, settings)
    threads, calls = ToolThreads(), NestedCalls(hub)
    public = net.open_public(allow_private=settings.allow_private)
    files = WorkspaceFiles(_build_workspace_limits(settings), threads)
    web_limits = WebLimits(
        seconds=settings.fetch_secs, body_bytes=int(settings.fetch_megabytes * MEGABYTE)
    )
    commands = ShellLimits(
        seconds=min(30.0, settings.command_secs),
        most_seconds=settings.command_secs,
        output_bytes=int(settings.command_kilobytes * 1024),
    )
    fire = ScheduledCalls(hub, directory, renew).fire
    schedules = ScheduleRunner(stores.schedules, fire, leases=hub.cluster)
    target = BuiltinTools(
        [
            FileTools(files),
            PatchTools(files),
            WebTools(
                GuardedWeb(public), threads, web_limits, _build_search(settings, net, secrets)
            ),
            ShellTools(files, shell, commands),
            AgentTools(directory, calls),
            MemoryTools(stores.memory, MemoryValueLimits()),
            TaskTools(stores.queue, TaskTextLimits(lease_seconds=settings.lease_secs)),
            EventTools(hub.bus.emit),
            ScheduleTools(stores.schedules, schedules.wake),
            MediaTools(files, vision),
            TimeTools(time.time),
            A2aTools(A2aPeers(public), calls),
        ],
        access.find_profile,
        compile_schema,
    )
    hub.catalog.offer(target.name, target.tools)
    return ToolParts(target, stores, schedules, threads)


def _build_search(
    settings: ToolSettings, net: OutboundHttp, secrets: SecretResolver
) -> SearchEngine | None:
    url, given = settings.search_url, settings.search_headers
    if url is None:
        return None
    http: HttpClient = net.open_configured(url, allow_private=False)
    placeholders = {name: build_placeholder() for name in given}
    if given:
        templates = {placeholders[name]: value for name, value in given.items()}
        expand = partial(secrets.expand_to_send, use=SEARCH_USE)
        http = SecretHeadersClient(http, templates, expand, secrets.forget_embedded)
    return SearchEngine(url, http, placeholders)


def _build_workspace_limits(settings: ToolSettings) -> WorkspaceLimits:
    return WorkspaceLimits(
        total_bytes=int(settings.workspace_megabytes * MEGABYTE),
        files=settings.workspace_files,
        file_bytes=int(settings.file_megabytes * MEGABYTE),
    )
