"""Builds the agents: local ones, the registry of external ones, and the A2A server."""

from __future__ import annotations

import asyncio
import logging
import sys
from collections.abc import Awaitable, Callable, Iterator, Mapping, MutableMapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from dragoman.a2a.config import HUB, ExternalAgent
from dragoman.a2a.protocol.skill_tools import slug_from_name
from dragoman.a2a.remote.credentials import (
    AgentCredentials,
    CredentialClients,
    CredentialHttpClient,
)
from dragoman.a2a.remote.health_watch import ReviewCard
from dragoman.a2a.remote.registered_agents import RegisteredAgents
from dragoman.a2a.remote.registration import CONFIG
from dragoman.a2a.remote.registry import AgentStore, Registry
from dragoman.a2a.remote.remote_agent import RemoteAgent
from dragoman.a2a.server.ai_catalog import CATALOG_PATHS, AiCatalog
from dragoman.a2a.server.card_service import CardService
from dragoman.a2a.server.http import CARD_PATHS, A2aHttpTransport, answer_disabled
from dragoman.a2a.server.operations import A2aServer
from dragoman.a2a.server.push_delivery import PushNotifier
from dragoman.a2a.server.routing import MessageRouter
from dragoman.a2a.server.task import A2aTaskRegistry
from dragoman.agents.config import AgentEntry
from dragoman.agents.function import FunctionAgent
from dragoman.agents.manifest_agents import LocalAgent, ManifestAgents
from dragoman.agents.metering import Metering
from dragoman.app.build_guards import Guards
from dragoman.app.config_watch import LiveConfig
from dragoman.app.run_state import RunState
from dragoman.app.targets import Targets
from dragoman.config import RESERVED, Config
from dragoman.core.access import WhyEnded
from dragoman.core.agent_tool import SCHEMA
from dragoman.core.catalog import Catalog
from dragoman.core.cluster import FrameSink, OwnerRequests
from dragoman.core.conversations import ContextStore
from dragoman.core.errors import ConfigError
from dragoman.core.hub import Hub
from dragoman.core.local_agents import AgentProfile, AgentProfiles
from dragoman.core.principal import Principal
from dragoman.core.secret_rules import Author
from dragoman.core.task_registry import TaskLimits, TaskRegistry
from dragoman.core.tool import Validator
from dragoman.core.urls import render_full_origin
from dragoman.core.usage import Budget, UsageStore
from dragoman.guards.validate import compile_schema
from dragoman.mcp.config import parse_headers
from dragoman.net.client import OutboundHttp
from dragoman.net.dialing import resolve_apart
from dragoman.stores.conversations import DatabaseConversations
from dragoman.stores.steady_clock import SteadyClock
from dragoman.stores.tasks import DatabaseTaskStore, MemoryTaskStore
from dragoman.web.app import PathMount
from dragoman.wire.http import HolderClients, HttpClient

if TYPE_CHECKING:
    from dragoman.a2a.server.grpc_server import A2aGrpcServer
    from dragoman.agents.manifest import LoadedManifest
    from dragoman.agents.model_agent import AgentHub, UsageMeter
    from dragoman.agents.skills.skill_book import SkillBook
    from dragoman.processes.command_runner import CommandRunner

log = logging.getLogger(__name__)

WORKSPACE = "workspace"
"""The folder of an agent's files, in its own."""
DOOR = "agent"
"""The entry point of calls that an agent makes."""

MEGABYTE = 1024 * 1024
RESOLVERS = 4
"""Threads that look up the host names of webhooks."""
GRPC_STOP_SECONDS = 0.5
Authenticate = Callable[[Mapping[str, str], str, int], Awaitable[Principal | None]]


class AgentStores(Protocol):
    """The stores that agents need; `build_stores.Stores` has them."""

    @property
    def registry(self) -> AgentStore: ...
    @property
    def tasks(self) -> DatabaseTaskStore | MemoryTaskStore: ...
    @property
    def clock(self) -> SteadyClock: ...
    @property
    def conversations(self) -> ContextStore | None: ...


@dataclass(frozen=True, slots=True)
class LocalAgents:
    by_name: Mapping[str, LocalAgent]
    failures: Mapping[str, str]
    """Why agents of the configuration, or with a manifest, could not be loaded."""


def load_function_agents(
    home: Path,
    config: Config,
    catalog: Catalog,
    agents: MutableMapping[str, LocalAgent],
    failures: MutableMapping[str, str],
    conversations: ContextStore,
) -> None:
    """Loads the function agents of the configuration into `agents`, and offers each as a tool.
    `failures` gets the reasons why some could not be loaded."""
    if config.agents:
        _find_modules_in(home)
    validate = compile_schema(SCHEMA)
    for entry in config.agents:
        try:
            prefix = config.mcp.agent_prefix
            agent = FunctionAgent(entry, prefix, validate, store=conversations)
            catalog.offer(agent.name, [agent.tool])
        except ConfigError as error:
            failures[entry.name] = str(error)
            log.error("%s; the hub runs without it", error)
        else:
            agents[agent.name] = agent


def _find_modules_in(home: Path) -> None:
    if str(home) not in sys.path:
        sys.path.append(str(home))  # last: the home's modules must not replace others


def _build_program(
    home: Path,
    loaded: LoadedManifest,
    org: str,
    prefix: str,
    validate: Validator,
    build_runner: Callable[[], CommandRunner],
    store: ContextStore | None,
) -> LocalAgent:
    """Builds an agent that is a program or a Python function."""
    manifest = loaded.manifest
    if manifest.function:
        _find_modules_in(home)
        entry = AgentEntry(
            name=manifest.name,
            description=manifest.description,
            function=manifest.function,
            version=manifest.version,
            skills=manifest.a2a.skills,
            input_modes=manifest.list_input_modes(),
            output_modes=manifest.a2a.output_modes,
        )
        return FunctionAgent(entry, prefix, validate, org, store)
    from dragoman.agents.command import CommandAgent
    from dragoman.agents.model_agent import AgentSkills, build_facts
    from dragoman.processes.command_runner import CommandSpec

    settings, workspace = manifest.command, str(loaded.folder / WORKSPACE)
    spec = CommandSpec(
        name=manifest.name,
        command=settings.argv,
        cwd=workspace,
        env=settings.env,
        sandbox=settings.sandbox,
        readable=[str(loaded.folder)],
        writable=[workspace],
        grants_named_paths=True,
        seconds=settings.timeout_secs,
    )
    facts = build_facts(manifest, AgentSkills(manifest, list))
    return CommandAgent(facts, spec, build_runner(), prefix, validate, org, store)


def build_meter(live: LiveConfig, usage: UsageStore, profiles: AgentProfiles) -> Metering:
    def find_budget() -> Budget:
        own = live.config.limits.budget
        return Budget(tokens=own.tokens_per_day, cost=own.cost_per_day)

    return Metering(usage, profiles, lambda: live.config.prices, find_budget)


def build_manifest_agents(
    home: Path,
    live: LiveConfig,
    guards: Guards,
    net: OutboundHttp,
    agents: MutableMapping[str, LocalAgent],
    profiles: AgentProfiles,
    targets: Targets,
    tools: AgentHub,
    meter: UsageMeter,
    build_runner: Callable[[], CommandRunner],
    skills: SkillBook,
    conversations: DatabaseConversations,
) -> ManifestAgents:
    """Loads the agents with a manifest."""
    validate = compile_schema(SCHEMA)

    def prefix() -> str:
        return live.config.mcp.agent_prefix

    def open_http(url: str, allow_private: bool) -> HttpClient:
        return net.open_configured(url, allow_private=allow_private)

    def build(loaded: LoadedManifest, profile: AgentProfile) -> LocalAgent:
        from dragoman.agents.model_agent import ModelAgent
        from dragoman.agents.model_factory import ModelKeys, build_models

        manifest = loaded.manifest
        if profile.schedules:
            from dragoman.tools.manifest_schedules import check_schedules

            check_schedules(manifest.name, profile.schedules)
        store = None if profile.parent else conversations
        if manifest.command.argv or manifest.function:
            return _build_program(
                home, loaded, profile.org, prefix(), validate, build_runner, store
            )
        models = build_models(manifest, open_http, ModelKeys(live.variables, live.secrets))
        return ModelAgent(
            manifest, profile, models, tools, meter, skills, prefix(), validate,
            store,
        )  # fmt: skip

    def find_objection(name: str) -> str | None:
        if name in RESERVED:
            return "it is reserved"
        return "a server or agent has it" if targets.find(name) is not None else None

    made = ManifestAgents(home, guards.hub.catalog, agents, profiles, build, find_objection)
    made.check()
    return made


# --- the A2A server ------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class A2aParts:
    server: A2aServer
    http: A2aHttpTransport
    catalog: AiCatalog
    push: PushNotifier
    webhooks: OutboundHttp

    def start(self, why_ended: WhyEnded) -> None:
        self.server.load()
        self.server.end_principals(why_ended)  # before anything is sent to their webhooks

    async def stop(self) -> None:
        await self.server.tasks.close()
        await self.push.close()
        await self.webhooks.close()


def _build_signer(home: Path, config: Config) -> Callable[[Mapping[str, Any]], Any] | None:
    if config.a2a.signing_key is None:
        return None
    from dragoman.a2a.cards import signing  # needs an extra

    key = signing.load_private_key(home / config.a2a.signing_key)
    return lambda card: signing.sign_card(card, key)


def build_a2a_mounts(config: Config, a2a: A2aParts | None) -> list[PathMount]:
    """The paths of A2A; if it is not served, they say so."""
    prefixes = [config.a2a.listen_path, *CARD_PATHS]
    is_open = {*CARD_PATHS, *CATALOG_PATHS}.__contains__
    if a2a is None:
        paths = [*prefixes, *CATALOG_PATHS]
        return [PathMount(path, answer_disabled, is_open) for path in paths]
    http = a2a.http
    mounts = [PathMount(prefix, http, http.is_card, http.is_rpc) for prefix in prefixes]
    return mounts + [PathMount(path, a2a.catalog, is_open) for path in CATALOG_PATHS]


# --- all of them ---------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Agents:
    local: LocalAgents
    registry: Registry
    a2a: A2aParts | None
    grpc: list[A2aGrpcServer] = field(default_factory=list)
    """The gRPC server, once it is started."""

    @property
    def failures(self) -> dict[str, str]:
        """Why agents of the configuration are not used."""
        return {**self.local.failures, **self.registry.failures}

    async def start(
        self,
        config: Config,
        state: RunState,
        authenticate: Authenticate | None,
        why_ended: WhyEnded,
        owners: OwnerRequests | None,
    ) -> None:
        """`authenticate` finds the principal of a gRPC call; None if the hub serves no TCP.
        `owners` are the other hubs of a cluster."""
        if self.a2a is not None:
            self.a2a.start(why_ended)
        await self.registry.start()
        port = config.a2a.grpc_port
        if self.a2a is not None and port is not None and authenticate is not None:
            from dragoman.a2a.server.grpc_server import A2aGrpcServer  # needs an extra

            server = A2aGrpcServer(
                self.a2a.server,
                authenticate,
                config.server.host,
                port,
                base=state.base,
                require_version=config.a2a.require_version,
                owners=owners,
                agent_ports=config.a2a.grpc_ports,
            )
            port = await server.start()
            state.set_grpc_ports(port, server.agent_ports)
            self.grpc.append(server)

    async def serve_grpc(self, principal: Principal, body: bytes, sink: FrameSink) -> None:
        """Serves a gRPC call that another hub has sent here."""
        for grpc in self.grpc:
            await grpc.serve_forwarded(principal, body, sink)

    def end_principals(self, why_ended: WhyEnded) -> None:
        for grpc in self.grpc:
            grpc.end_principals(why_ended)
        if self.a2a is not None:
            self.a2a.server.end_principals(why_ended)

    async def take_over(self, hub: str) -> None:
        """Takes over the tasks of another hub that has ended. Raises `StorageFailed`."""
        if self.a2a is not None:
            await self.a2a.server.take_over(hub)

    def find_left(self, hubs: Sequence[str]) -> set[str]:
        """Finds those of the hubs, which have ended, that still own tasks."""
        return self.a2a.server.find_left(hubs) if self.a2a is not None else set()

    def abandon(self, hub: str) -> None:
        """Other hubs own the tasks of this one, which has the id `hub` from now on."""
        if self.a2a is not None:
            self.a2a.server.abandon(hub)

    def begin_stop(self, *, is_early: bool = False) -> None:
        """Ends open streams; if it is early, those of tasks that are not running."""
        if self.a2a is not None:
            self.a2a.server.close(is_early=is_early)

    async def wait_idle(self) -> None:
        """Waits until no task is running."""
        while self.a2a is not None and any(task.running for task in self.a2a.server.tasks):
            await asyncio.sleep(0.02)

    async def stop(self) -> None:
        for grpc in self.grpc:
            await grpc.stop(GRPC_STOP_SECONDS)
        if self.a2a is not None:
            await self.a2a.stop()
        await self.registry.stop()
        for agent in self.local.by_name.values():
            agent.end()
            agent.close()

    def count_tasks(self) -> int:
        return len(self.a2a.server.tasks) if self.a2a is not None else 0


@dataclass(frozen=True, slots=True)
class AgentsBuilder:
    home: Path
    live: LiveConfig
    state: RunState
    stores: AgentStores
    hub: Hub
    net: OutboundHttp
    local: LocalAgents
    profiles: AgentProfiles
    """Of the agents with a manifest."""
    registered: RegisteredAgents
    review_card: ReviewCard
    touch_policies: Callable[[], None]
    """Called when the facts about an agent change."""
    open_account: Callable[[ExternalAgent], HolderClients | None]
    """Returns what sends the credentials of logins to an agent; None if it has others."""
    read_delay: Callable[[], float]
    """Returns by how many seconds the event loop has been late so far."""

    def build(self) -> Agents:
        registry = self._build_registry()

        def find_unavailability(name: str) -> str | None:
            """Does not say where the hub looked for an agent: clients read it."""
            if name in self.local.failures or name in registry.failures:
                return "it could not be loaded"
            if name in self.registered.list_refused():
                return "the hub does not use it; its operator knows why"
            return "it has not been found yet" if name in self.registered.list_names() else None

        return Agents(self.local, registry, self._build_a2a(find_unavailability))

    def _list_agents(self) -> list[str]:
        """Lists the names of all agents that may be the default one, the first one first: those of
        the configuration, those with a manifest, and the external ones. Not those that agents have
        started."""
        config, profiles = self.live.config, self.profiles.list_all()
        external = [entry.name for entry in config.a2a.external_agents]
        return [
            *(entry.name for entry in config.agents),
            *(one.name for one in profiles if not one.parent),
            *external,
            *sorted(set(self.registered.list_names()).difference(external)),
        ]

    def _build_registry(self) -> Registry:
        """External agents are tools even if the hub does not serve A2A."""
        config, catalog, home = self.live.config, self.hub.catalog, self.home
        rules, check_message = self.live.secrets.rules, compile_schema(SCHEMA)
        rules.open_bindings(self.stores.registry)

        def build_remote(entry: ExternalAgent, source: str) -> RemoteAgent:
            credentials = AgentCredentials(
                entry.name,
                entry.token,
                dict(parse_headers(entry.headers)),
                self.live.secrets,
                author=Author.OWNER if source == CONFIG else Author.API,
                origin=render_full_origin(entry.url),
            )
            if source == CONFIG:
                credentials.check_local()  # reports what is missing at the start

            def reach(url: str, private: bool) -> HttpClient:
                client = self.net.open_configured(url, allow_private=private)
                return CredentialHttpClient(client, credentials) if credentials.headers else client

            clients = self.open_account(entry)
            if clients is not None and credentials.headers:
                clients = CredentialClients(clients, credentials)
            return RemoteAgent(
                entry,
                reach,
                catalog,
                compile_schema,
                headers=credentials.headers,
                signatures=config.a2a.signatures,
                prefix=config.mcp.agent_prefix,
                place=home,
                timeout=config.bridge.timeout_secs,
                store=self.stores.conversations,
                clients=clients,
                check_message=check_message,
            )

        def list_others() -> Iterator[tuple[str, str]]:
            """Lists every other name that tools begin with, connected or not."""
            for server in self.live.config.mcp_servers:
                yield "server", server.name
                if server.prefix:
                    yield "server", server.prefix
            for agent in config.agents:
                yield "agent", agent.name
            names = set(self.registered.list_names())
            for tool in catalog.list_targets():
                if tool.target.name not in names:
                    yield "agent" if tool.agent is not None else "server", tool.target.name

        registry = Registry(
            self.registered,
            self.stores.registry,
            build_remote,
            self.hub.bus,
            others=list_others,
            reserved=("mcp_", "a2a_", "skill_", f"{slug_from_name(config.mcp.agent_prefix)}_"),
            review_card=self.review_card,
            facts_changed=self.touch_policies,
            every=config.bridge.probe_secs,
            most=config.bridge.max_agents,
            read_delay=self.read_delay,
            references=rules,
            cluster=self.hub.cluster,
        )
        registry.load(config.a2a.external_agents if config.a2a.enabled else ())
        return registry

    def _build_a2a(self, find_unavailability: Callable[[str], str | None]) -> A2aParts | None:
        """Returns None if the hub does not serve A2A."""
        config, settings, state = self.live.config, self.live.config.a2a, self.state
        if not settings.enabled:
            return None
        sign = _build_signer(self.home, config)
        limits = TaskLimits(
            max(settings.max_tasks_all, settings.max_tasks),
            settings.max_tasks,
            stored_bytes=settings.max_megabytes * MEGABYTE,
            idle_seconds=settings.idle_secs,
        )
        tasks: A2aTaskRegistry = TaskRegistry(
            self.stores.tasks, limits, self.stores.clock.is_steady
        )
        router = MessageRouter(
            self.hub, settings.default_agent, self._list_agents, find_unavailability
        )
        known = {HUB, *self._list_agents()}
        if (chosen := settings.default_agent) and chosen not in known:
            log.warning('[a2a] default_agent: there is no agent "%s" yet', chosen)
        for name in settings.grpc_ports.keys() - known:
            log.warning('[a2a] grpc_ports: there is no agent "%s" yet', name)
        cards = CardService(router, settings, sign, state.is_secured, state.find_grpc_port)
        webhooks = OutboundHttp(resolve_apart(RESOLVERS))
        private = settings.push_private
        push = PushNotifier(
            tasks,
            self.stores.tasks,
            webhooks.open_public(allow_private=private),
            settings,
            check=lambda url: webhooks.find_objection(url, allow_private=private),
            cluster=self.hub.cluster,
        )
        server = A2aServer(self.hub, tasks, router, cards, push, settings.stream_secs)
        return A2aParts(
            server,
            A2aHttpTransport(server, settings, state.find_base),
            AiCatalog(router, settings, state.find_base, state.is_secured),
            push,
            webhooks,
        )
