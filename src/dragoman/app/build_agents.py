"""The half of the hub that has to do with agents, joined: those of the configuration, those of
others, their tasks, and the doors by which A2A comes in. Part of `assembly`, which starts it.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from dragoman.a2a.config import ExternalAgent
from dragoman.a2a.protocol.skill_tools import slug_from_name
from dragoman.a2a.remote.credentials import (
    TOKENS,
    AgentCredentials,
    CredentialHttpClient,
    ReferenceRules,
)
from dragoman.a2a.remote.health_watch import CardPins
from dragoman.a2a.remote.registered_agents import RegisteredAgents
from dragoman.a2a.remote.registration import CONFIG
from dragoman.a2a.remote.registry import Registry
from dragoman.a2a.remote.registry_view import RegistryView
from dragoman.a2a.remote.remote_agent import RemoteAgent
from dragoman.a2a.server import ai_catalog
from dragoman.a2a.server.ai_catalog import AiCatalog
from dragoman.a2a.server.card_service import CardService
from dragoman.a2a.server.http import CARD_PATHS, A2aHttpTransport, answer_disabled
from dragoman.a2a.server.operations import A2aServer
from dragoman.a2a.server.push_delivery import PushNotifier
from dragoman.a2a.server.routing import MessageRouter
from dragoman.a2a.server.task import A2aTaskRegistry
from dragoman.agents.function import FunctionAgent
from dragoman.config import Config
from dragoman.core.access import WhyEnded
from dragoman.core.agent_tool import SCHEMA
from dragoman.core.errors import ConfigError
from dragoman.core.hub import Hub
from dragoman.core.ports import AuditLog
from dragoman.core.principal import Principal
from dragoman.core.task_registry import TaskLimits, TaskRegistry
from dragoman.core.tool import Target
from dragoman.guards.validate import compile_schema
from dragoman.mcp.config import parse_headers
from dragoman.net.client import OutboundHttp
from dragoman.net.dialing import resolve_apart
from dragoman.stores.registry import RegistryStore
from dragoman.stores.tasks import MemoryTaskStore, SqliteTaskStore
from dragoman.web.api import ApiPart
from dragoman.web.api_agents import AgentsApi
from dragoman.web.app import Under
from dragoman.wire.http import HttpClient, HttpRequest

log = logging.getLogger(__name__)

MEGABYTE = 1024 * 1024
MAX_BASES = 64
RESOLVERS = 4
"""Threads that look up the names of webhooks."""
Authenticate = Callable[[Mapping[str, str], str], Principal | None]


class AgentSide:
    def __init__(
        self,
        place: Path,
        config: Config,
        hub: Hub,
        net: OutboundHttp,
        lookup: Mapping[str, str],
        audit: AuditLog,
        pins: CardPins,
        changed: Callable[[], None],
        clock_is_steady: Callable[[], bool],
        is_secured: Callable[[], bool],
        count_active: Callable[[str], int],
    ) -> None:
        """`pins` hold the cards of agents; `changed` is called when policies know something else
        of one."""
        self._place = place
        self._config = config
        self._hub = hub
        self._net = net
        self._webhooks = OutboundHttp(resolve_apart(RESOLVERS))
        self._lookup = lookup
        self._audit = audit
        self._pins = pins
        self._facts_changed = changed
        self._clock_is_steady = clock_is_steady
        self._is_secured = is_secured
        self._count_active = count_active
        self.local: list[FunctionAgent] = []
        self.registry: Registry | None = None
        """The agents of others."""
        self.listed: RegistryView | None = None
        self._rows: RegistryStore | None = None
        self.failures: dict[str, str] = {}
        """The agents of the configuration that cannot be used, and why."""
        self._store: SqliteTaskStore | MemoryTaskStore | None = None
        self.face: A2aServer | None = None
        self.http: A2aHttpTransport | None = None
        self._catalog: AiCatalog | None = None
        self.grpc_port: int | None = None
        self._grpc: Any = None
        self._push: PushNotifier | None = None
        self.url: str | None = None
        """Where the hub is reached by TCP, once that is known."""
        self._bases: dict[bytes, str] = {}
        """The addresses that clients call the hub by."""
        self._load_agents(place)
        if config.a2a.enabled:
            self._open(place)
        try:
            self._register(place)
        except BaseException:
            self.close_stores()
            raise

    def _load_agents(self, place: Path) -> None:
        if self._config.agents and str(place) not in sys.path:
            sys.path.append(str(place))  # last: nothing in it stands for anything else
        validate = compile_schema(SCHEMA)
        for entry in self._config.agents:
            try:
                agent = FunctionAgent(entry, self._config.mcp.agent_prefix, validate)
                self._hub.catalog.offer(agent.name, [agent.tool])
            except ConfigError as error:
                self._without(entry.name, error)
            else:
                self.local.append(agent)

    def _open(self, place: Path) -> None:
        settings, hub = self._config.a2a, self._hub
        sign = self._signer(place)  # before what would have to be closed
        store: SqliteTaskStore | MemoryTaskStore = MemoryTaskStore()
        if settings.store == "sqlite":
            store = SqliteTaskStore(place, durable=self._config.audit.durable)
        self._store = store
        limits = TaskLimits(
            max(settings.max_tasks_all, settings.max_tasks),
            settings.max_tasks,
            stored_bytes=settings.max_megabytes * MEGABYTE,
            idle_seconds=settings.idle_secs,
        )
        tasks: A2aTaskRegistry = TaskRegistry(store, limits, self._clock_is_steady)
        order = [entry.name for entry in self._config.agents]
        targets = MessageRouter(hub, settings.default_agent, order, self._away)
        cards = CardService(targets, settings, sign, self._is_secured, lambda: self.grpc_port)
        private = settings.push_private
        self._push = PushNotifier(
            tasks,
            store,
            self._webhooks.open_public(allow_private=private),
            settings,
            check=lambda url: self._webhooks.find_objection(url, allow_private=private),
        )
        self.face = A2aServer(hub, tasks, targets, cards, self._push, settings.stream_secs)
        self.http = A2aHttpTransport(self.face, settings, self._base_of)
        self._catalog = AiCatalog(targets, settings, self._base_of, self._is_secured)

    def _register(self, place: Path) -> None:
        """Agents of others are tools whether or not A2A is served here."""
        self._rows = rows = RegistryStore(place)
        registry = Registry(
            RegisteredAgents(),
            rows,
            self._remote,
            self._hub.bus,
            others=self._others,
            reserved=("mcp_", "a2a_", f"{slug_from_name(self._config.mcp.agent_prefix)}_"),
            pins=self._pins,
            changed=self._facts_changed,
            every=self._config.bridge.probe_secs,
            references=ReferenceRules(self._config.bridge.credential_env, place),
        )
        settings = self._config.a2a
        registry.load(settings.external_agents if settings.enabled else ())
        self.failures.update(registry.failures)
        self.registry = registry
        self.listed = RegistryView(registry, rows, self._hub.catalog, self._count_active)

    def _signer(self, place: Path) -> Callable[[Mapping[str, Any]], dict[str, Any]] | None:
        path = self._config.a2a.signing_key
        if path is None:
            return None
        from dragoman.a2a.cards import signing

        key = load_signing_key(place / path)
        return lambda card: signing.sign_card(card, key)

    def _without(self, name: str, error: ConfigError) -> None:
        self.failures[name] = str(error)
        log.error("%s; the hub runs without it", error)

    def _remote(self, entry: ExternalAgent, source: str) -> RemoteAgent:
        credentials = AgentCredentials(
            entry.name,
            entry.token,
            dict(parse_headers(entry.headers)),
            self._lookup,
            self._place,
            files_below=Path("/") if source == CONFIG else self._place.resolve() / TOKENS,
        )
        if source == CONFIG:
            credentials.resolve()  # what is missing is told at the start

        def reach(url: str, private: bool) -> HttpClient:
            way = self._net.open_configured(url, allow_private=private)
            return CredentialHttpClient(way, credentials) if credentials.headers else way

        return RemoteAgent(
            entry,
            reach,
            self._hub.catalog,
            compile_schema,
            headers=credentials.headers,
            signatures=self._config.a2a.signatures,
            prefix=self._config.mcp.agent_prefix,
            place=self._place,
            timeout=self._config.bridge.timeout_secs,
        )

    def _others(self) -> Iterator[tuple[str, str]]:
        """All else that tools are called by, whether it is there or not."""
        for server in self._config.mcp_servers:
            yield "server", server.name
            if server.prefix:
                yield "server", server.prefix
        for agent in self._config.agents:
            yield "agent", agent.name
        registered = set(self.registry.agents.list_names()) if self.registry is not None else set()
        for tool in self._hub.catalog.list_targets():
            if tool.target.name not in registered:
                yield "agent" if tool.agent is not None else "server", tool.target.name

    @property
    def parts(self) -> list[ApiPart]:
        """Of the API."""
        return [AgentsApi(self._hub, self.listed, self._audit)]

    def find(self, name: str) -> Target | None:
        """The agent of that name, whether it is there or not."""
        for agent in self.local:
            if agent.name == name:
                return agent
        return self.registry.agents.find_target(name) if self.registry is not None else None

    def approved(self, name: str) -> None:
        """After it was decided what to do with what its pins hold."""
        if self.registry is not None:
            self.registry.agents.recheck(name)

    def pin_of(self, name: str) -> str | None:
        """How what a registered agent offers is held; None for another."""
        return self.registry.agents.find_pin_mode(name) if self.registry is not None else None

    def additions_of(self, name: str) -> str | None:
        """Whether what a registered agent adds is shown or held; None where it does not say."""
        return self.registry.agents.find_additions_mode(name) if self.registry is not None else None

    def _away(self, name: str) -> str | None:
        """To callers it is not told where the hub looked for it."""
        if name in self.failures:
            return "it could not be loaded"
        if self.registry is not None and name in self.registry.agents.list_refused():
            return "the hub does not use it; its operator knows why"
        if self.registry is not None and name in self.registry.agents.list_names():
            return "it is being looked for"
        return None

    # --- the doors -------------------------------------------------------------------------------

    def under(self) -> list[Under]:
        """What serves the paths of A2A; where it is not enabled, what says so."""
        prefixes = [self._config.a2a.listen_path, *CARD_PATHS]
        public = {*CARD_PATHS, *ai_catalog.CATALOG_PATHS}
        if self.http is None or self._catalog is None:
            prefixes += ai_catalog.CATALOG_PATHS
            return [
                Under(prefix, answer_disabled, lambda path: path in public) for prefix in prefixes
            ]
        found = [
            Under(prefix, self.http, self.http.is_card, self.http.is_rpc) for prefix in prefixes
        ]
        catalogs = ai_catalog.CATALOG_PATHS
        return found + [
            Under(path, self._catalog, lambda path: path in public) for path in catalogs
        ]

    def _base_of(self, request: HttpRequest) -> str:
        if self._config.server.public_url:
            return self._config.server.public_url.rstrip("/")
        host = request.fields.get(b"host")
        if host is None or self.url is None:
            return self.url or "http://localhost"
        base = self._bases.get(host)
        if base is None:
            base = f"http://{host.decode('latin-1')}"
            if len(self._bases) < MAX_BASES:
                self._bases[host] = base
        return base

    async def start(self, authenticate: Authenticate | None, why_ended: WhyEnded) -> None:
        """`authenticate` tells who calls over gRPC; None where nothing is served over TCP."""
        if self.face is not None:
            self.face.load()
            self.face.end_principals(why_ended)  # before a webhook of theirs is sent to
        if self.registry is not None:
            self.registry.start()
        if self.face is None:
            return
        port = self._config.a2a.grpc_port
        if port is not None and authenticate is not None:
            from dragoman.a2a.server.grpc_server import A2aGrpcServer

            host = self._config.server.host
            grpc = A2aGrpcServer(
                self.face,
                authenticate,
                host,
                port,
                base=(self._config.server.public_url or self.url or "http://localhost").rstrip("/"),
                require_version=self._config.a2a.require_version,
            )
            self.grpc_port = await grpc.start()
            self._grpc = grpc

    async def settled(self) -> None:
        """Until each agent of others has been found once, or has failed once."""
        if self.registry is not None:
            await self.registry.wait_until_checked()

    def find_absent(self, name: str) -> tuple[Target, str] | None:
        return self.registry.agents.find_absent(name) if self.registry is not None else None

    def end_principals(self, why_ended: WhyEnded) -> None:
        if self._grpc is not None:
            self._grpc.end_principals(why_ended)
        if self.face is not None:
            self.face.end_principals(why_ended)

    def begin_stop(self) -> None:
        """Ends what would otherwise go on."""
        if self.face is not None:
            self.face.close()

    async def stop(self) -> None:
        if self._grpc is not None:
            await self._grpc.stop(0.5)
        if self.face is not None:
            await self.face.tasks.close()
        if self._push is not None:
            await self._push.close()
        await self._webhooks.close()
        if self.registry is not None:
            await self.registry.stop()
        for local in self.local:
            local.close()
        self.close_stores()

    def close_stores(self) -> None:
        if self._store is not None:
            self._store.close()
            self._store = None
        if self._rows is not None:
            self._rows.close()
            self._rows = None

    # --- what is told of it ----------------------------------------------------------------------

    @property
    def tasks(self) -> int:
        return len(self.face.tasks) if self.face is not None else 0

    def status(self) -> dict[str, Any]:
        return {
            "local": [agent.name for agent in self.local],
            "remote": self.listed.list_status() if self.listed is not None else [],
            "failed": self.failures,
            "a2a": self._config.a2a.enabled,
            "grpc_port": self.grpc_port,
            "tasks": self.tasks,
        }


def load_signing_key(path: Path) -> Any:
    """Raises `ConfigError` for a key that cannot be used."""
    from dragoman.a2a.cards import signing  # needs an extra

    return signing.load_private_key(path)
