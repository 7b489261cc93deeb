"""Builds workflows and their runs once the home has any: a folder of definitions, or earlier runs.

A hub without either loads none of what they need.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from dragoman.a2a.remote.registered_agents import RegisteredAgents
from dragoman.app.build_guards import Guards
from dragoman.app.build_triggers import LazyTriggers
from dragoman.app.config_watch import LiveConfig
from dragoman.core.access import WhyEnded
from dragoman.core.agent_tool import build_tool_name
from dragoman.core.backoff import add_jitter
from dragoman.core.errors import NotFound, Overloaded
from dragoman.core.heavy_work import HeavyWork
from dragoman.core.hub import Hub
from dragoman.core.ports import AuditLog
from dragoman.core.principal import Principal
from dragoman.core.secret_rules import Author
from dragoman.core.structs import replace
from dragoman.core.tool_identity import build_identity
from dragoman.core.triggers import WebhookReceiver
from dragoman.guards.validate import compile_schema
from dragoman.mcp.protocol.elicitation import add_task_support
from dragoman.stores.database import StorePlace

if TYPE_CHECKING:
    from dragoman.app.build_cluster import ClusterParts
    from dragoman.core.runs import RunStore
    from dragoman.workflows.exposure import WorkflowTools
    from dragoman.workflows.folder import WorkflowFolder
    from dragoman.workflows.model import Workflow
    from dragoman.workflows.service import RunService
    from dragoman.workflows.step_calls import AgentTool

log = logging.getLogger(__name__)

FOLDER, DATABASE = "workflows", "runs.db"


class WorkflowParts(NamedTuple):
    folder: WorkflowFolder
    service: RunService
    tools: WorkflowTools
    triggers: LazyTriggers


@dataclass(frozen=True, slots=True)
class StoredVersions:
    """Implements `workflows.runner.Definitions`. A database that others share does not say who
    wrote a definition: it is the owner's if it is equal to one that was a file here."""

    _folder: WorkflowFolder
    _is_shared: bool

    def parse(self, name: str, source: str) -> Workflow:
        from dragoman.workflows.authorship import is_marked
        from dragoman.workflows.loader import load_workflow

        workflow = load_workflow(source, name)
        author = Author.STORED
        if is_marked(source):
            author = Author.API
        elif not self._is_shared or self._folder.is_own(workflow.digest):
            author = Author.OWNER
        workflow = replace(workflow, author=author)
        self._folder.check_references(workflow)
        return workflow


@dataclass(frozen=True, slots=True)
class CalledAgents:
    """Implements `workflows.step_calls.StepAgents`."""

    _hub: Hub
    _registered: RegisteredAgents
    _offer_dispatch: Callable[[], None]

    def find_tool(self, agent: str, skill: str) -> AgentTool:
        from dragoman.workflows.step_calls import AgentTool

        try:
            registration = self._registered.find(agent).registration
        except NotFound:
            name = build_tool_name(agent)
            local = {one.name for one in self._hub.catalog.list_tools() if one.agent is not None}
            if name not in local:
                raise NotFound(f'there is no agent "{agent[:100]}"') from None
            return AgentTool(name, False, agent)
        if not skill:
            return AgentTool(build_tool_name(registration.entry.name), False, agent)
        return AgentTool(build_identity(registration.slug, skill), True, registration.entry.name)

    def prepare_dispatch(self) -> None:
        self._offer_dispatch()

    def explain_absence(self, agent: str) -> str:
        try:
            member = self._registered.find(agent)
        except NotFound:
            return ""
        if member.watch is None:
            return f'agent "{agent}" is not used: {member.refusal or "it is disabled"}'
        target = member.watch.agent
        return "" if target.probed is not None else f'agent "{agent}" is away: {target.reason}'


@dataclass(frozen=True, slots=True)
class LazyWorkflows:
    home: Path
    place: StorePlace
    live: LiveConfig
    guards: Guards
    registered: RegisteredAgents
    audit: AuditLog
    renew: Callable[[Principal], Principal]
    why_ended: WhyEnded
    offer_dispatch: Callable[[], None]
    cluster: ClusterParts | None = None
    """The hubs that share the runs; None for a single hub."""
    built: list[WorkflowParts] = field(default_factory=list)
    """The parts, once they are needed and open."""
    _lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    """Held while they are built, opened and closed."""
    _started: asyncio.Event = field(default_factory=asyncio.Event)
    """Set when the hub has loaded what there was at its start."""
    load_seconds: float = 3.0
    """How long a request waits for that."""
    checks: HeavyWork = field(default_factory=lambda: HeavyWork("check a definition"))

    @property
    def hub(self) -> Hub:
        return self.guards.hub

    @property
    def is_needed(self) -> bool:
        home = self.home
        has_runs = (
            (home / DATABASE).exists()
            if isinstance(self.place, Path)
            else "runs" in self.place.known or self.cluster is not None
        )
        return (home / FOLDER).is_dir() or has_runs

    async def wait_loaded(self) -> WorkflowParts | None:
        """Returns the parts, if the home has workflows or runs. Waits while the hub starts and has
        not loaded them: the workflow or run may exist. Raises `Overloaded` after a while."""
        if not self.built and not self._started.is_set() and self.is_needed:
            try:
                async with asyncio.timeout(self.load_seconds):
                    await self._started.wait()
            except TimeoutError:
                words = "the hub has not loaded its workflows yet; try again in a moment"
                raise Overloaded(words) from None
        return self.find()

    def find(self) -> WorkflowParts | None:
        """Returns the parts, if the home has workflows or runs."""
        return self.built[0] if self.built else None

    async def require(self) -> WorkflowParts:
        """Returns the parts, and builds them if there are none yet. Raises `ConfigError`; the next
        request tries again."""
        if self.built:
            return self.built[0]
        async with self._lock:
            if not self.built:
                parts = await self._build()
                try:
                    await self._open(parts)
                except BaseException:
                    parts.tools.offer([])
                    await self._close(parts)
                    raise
                self.built.append(parts)
            return self.built[0]

    async def start(self) -> None:
        if self.is_needed:
            await self.require()
        self._started.set()

    async def follow(self) -> None:
        """Loads workflows that are new; called again and again."""
        if not self.built and not (self.home / FOLDER).is_dir():
            return
        parts = await self.require()
        await parts.folder.follow()

    def end_principals(self, why_ended: WhyEnded) -> None:
        for parts in self.built:
            parts.service.end_principals(why_ended)

    def begin_stop(self) -> None:
        for parts in self.built:
            parts.tools.begin_stop()
            parts.service.begin_stop()

    async def find_webhooks(self) -> WebhookReceiver | None:
        """Returns what receives webhooks, if a workflow has one."""
        parts = await self.wait_loaded()
        triggers = parts.triggers.find() if parts is not None else None
        return triggers.webhooks if triggers is not None else None

    async def stop(self) -> None:
        self.checks.close()
        async with self._lock:
            for parts in self.built:
                await self._close(parts)

    @staticmethod
    async def _close(parts: WorkflowParts) -> None:
        await parts.triggers.close()
        await parts.tools.close()
        await parts.service.close()

    async def _open(self, parts: WorkflowParts) -> None:
        def offer() -> None:
            parts.tools.offer(parts.folder.list_workflows())

        parts.folder.observe(offer)
        await parts.folder.follow()
        await parts.service.open()
        parts.triggers.open()

    async def _build(self) -> WorkflowParts:
        from dragoman.stores.runs import SqliteRuns
        from dragoman.workflows.event_waits import EventWaits
        from dragoman.workflows.exposure import WorkflowTools
        from dragoman.workflows.folder import WorkflowFolder
        from dragoman.workflows.parked_tasks import ParkedTasks, PollLimits
        from dragoman.workflows.run_calls import RunCalls
        from dragoman.workflows.runner import RunLimits, Runner
        from dragoman.workflows.service import RetentionLimits, RunService
        from dragoman.workflows.task_cancellation import CancelLimits, TaskCanceller
        from dragoman.workflows.waits import StepWaits

        hub, settings = self.hub, self.live.config.workflows
        store = await self._open_store()
        secrets = self.live.secrets
        folder = WorkflowFolder(self.home / FOLDER, check=secrets.rules.check)
        features = add_task_support({"elicitation": {"form": {}, "url": {}}})
        calls = RunCalls(hub, self.renew, self.why_ended, features, settings.attached_secs)
        waits = StepWaits(
            self.guards.approvals.find_desk,
            lambda name, inputs, origin: service.build_child(name, inputs, origin),
            settings.max_depth,
        )
        runner = Runner(
            hub,
            store,
            StoredVersions(folder, not isinstance(store, SqliteRuns)),
            calls,
            waits,
            CalledAgents(hub, self.registered, self.offer_dispatch),
            self._find_variables,
            ParkedTasks(
                PollLimits(longest=settings.poll_secs, task_secs=settings.task_days * 86_400.0),
                add_jitter,
            ),
            TaskCanceller(calls, CancelLimits()),
            RunLimits(advancing=settings.concurrency, active=settings.max_active),
        )
        tools = WorkflowTools(hub, lambda: service, compile_schema)
        service = RunService(
            hub,
            store,
            folder,
            runner,
            waits,
            EventWaits(hub.bus, store, runner, time.time, hub.cluster),
            calls,
            self.guards.approvals.find_desk,
            self.audit,
            RetentionLimits(
                unfinished=settings.max_unfinished,
                keep_days=settings.keep_days,
                keep_runs=settings.keep_runs,
            ),
            tools.build_tool,
        )
        triggers = LazyTriggers(self.place, folder, service, hub.bus, secrets.resolve, hub.cluster)
        return WorkflowParts(folder, service, tools, triggers)

    def _find_variables(self, workflow: Workflow) -> Mapping[str, str]:
        """Reads the variables that a workflow declares, as far as they are set."""
        from dragoman.workflows.authorship import build_use

        secrets, use = self.live.secrets, build_use(workflow)
        names = [name for name in workflow.env if name in self.live.variables]
        return {name: secrets.resolve_local(f"env:{name}", use) for name in names}

    async def _open_store(self) -> RunStore:
        settings = self.live.config.workflows
        if isinstance(self.place, Path):
            from dragoman.stores.runs import SqliteRuns

            return SqliteRuns(self.place, durable=settings.durable)
        from dragoman.stores.runs_postgres import open_postgres_runs

        is_shared = self.cluster is not None
        return await open_postgres_runs(self.place.url, self.place.fence, is_shared=is_shared)
