"""From a home and its configuration to a running hub. The only module that imports everyone.

Read it to see what the product is made of.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import logging
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from dragoman import __version__, home
from dragoman.a2a.client.client import A2aClient
from dragoman.a2a.protocol.errors import A2aError
from dragoman.app import process
from dragoman.app.build_agents import AgentSide, Authenticate, load_signing_key
from dragoman.app.build_events import BusSide, find_plugin
from dragoman.app.build_guards import GuardSide
from dragoman.app.build_stores import (
    ADMIN_DENIED,
    AUTH_FAILED,
    StoreSide,
    prune_offline,
    refuse_lost_config,
)
from dragoman.app.config_watch import (
    ConfigWatch,
    look_again_and_again,
    lookup_of,
    refuse_exposed,
)
from dragoman.app.policy_admin import policy_folder
from dragoman.config import Config, find_frozen_changes, load_with_source
from dragoman.config_layers import Given
from dragoman.core.background import Background, start_task
from dragoman.core.call_log import CallLog
from dragoman.core.errors import ConfigError, StorageFailed
from dragoman.core.events import REMOVED, AgentChanged
from dragoman.core.logs import OUTPUT, LogFile, start_logging
from dragoman.core.principal import Principal
from dragoman.core.startup import Startup
from dragoman.core.tool import Target
from dragoman.core.tool_filter import View
from dragoman.guards.config import Limits
from dragoman.guards.validate import compile_schema
from dragoman.mcp.client.child_process import kill_marked
from dragoman.mcp.client.connector import Connector
from dragoman.mcp.client.descendants import DESCENDANTS
from dragoman.mcp.client.upstream import Upstream
from dragoman.mcp.client.upstream_manager import UpstreamManager
from dragoman.mcp.config import ServerEntry
from dragoman.mcp.protocol.elicitation import TASKS_ONLY
from dragoman.mcp.protocol.tool_names import build_canonical_name
from dragoman.mcp.server.connected_clients import ConnectedClients
from dragoman.mcp.server.dispatcher import McpServer
from dragoman.mcp.server.legacy_sse import LegacySseTransport
from dragoman.mcp.server.socket_transport import SocketConnection
from dragoman.mcp.server.streamable_http import StreamableHttpTransport
from dragoman.mcp.server.tasks import build_task_registry
from dragoman.net.client import OutboundHttp
from dragoman.pins.review import HOLD, OFF, STRICT
from dragoman.stores.audit.reader import AuditReader, AuditRecord
from dragoman.stores.audit.verify import VerifyReport, verify
from dragoman.stores.backup import back_up, read_manifest, restore
from dragoman.stores.keys import KeyRecord, KeyStore
from dragoman.stores.sqlite import describe_remedy, find_damage
from dragoman.stores.store_inventory import FILES as STORE_FILES
from dragoman.stores.store_inventory import NAMES as STORE_NAMES
from dragoman.stores.store_inventory import (
    StoreLoss,
    accept_losses,
    describe_damage,
    find_obstacle,
    survey_stores,
)
from dragoman.web.access_watch import AccessWatch
from dragoman.web.api import Api
from dragoman.web.api_offers import PromptsAndResourcesApi
from dragoman.web.api_operations import OPERATIONS
from dragoman.web.api_servers import ServersApi
from dragoman.web.app import App, Mounted, OwnerApp, Under
from dragoman.web.auth import AllowedNames, Authenticator
from dragoman.web.http.body_budget import BodyBudget
from dragoman.web.http.listener import Listener
from dragoman.web.http.sockets import is_loopback, tcp_socket, unix_socket
from dragoman.web.metrics import Metrics
from dragoman.web.peer_process import PeerIdentifier

__all__ = [
    "STORE_FILES",
    "STORE_NAMES",
    "A2aClient",
    "A2aError",
    "AuditReader",
    "AuditRecord",
    "Instance",
    "KeyRecord",
    "KeyStore",
    "OutboundHttp",
    "StoreLoss",
    "VerifyReport",
    "accept_losses",
    "back_up",
    "describe_remedy",
    "find_damage",
    "find_obstacle",
    "find_plugin",
    "host",
    "load_signing_key",
    "policy_folder",
    "prune_offline",
    "read_manifest",
    "refuse_lost_config",
    "restore",
    "run",
    "survey_stores",
    "verify",
]

log = logging.getLogger(__name__)

SETTLE_SECONDS = 3.0
"""How long after the start the first list over stdio may wait for servers and agents that are just
being found."""
SWEEP_SECONDS = 1.0
"""How often the processes below the hub are looked at."""
DRAIN_SECONDS = 5.0
STOP_SECONDS = 3.5
LAST_SECONDS = 0.3


class Instance:
    """One hub on one home. Made inside a running loop, with the home held."""

    def __init__(self, place: Path, config: Config, mode: str, given: Sequence[Given] = ()) -> None:
        """`given` is the command line's part of `config`, which changes of the file leave alone."""
        self.place = place
        self.config = config
        self.mode = mode
        self.draining = False
        self.url: str | None = None
        self._begun = time.time()
        self._up_since = time.monotonic()
        """The same for measuring: the clock may be set."""
        self.watch = ConfigWatch(place, given)
        self._lookup = lookup_of(place)

        with contextlib.ExitStack() as undo:  # this process may try again
            self.stores = StoreSide(place, config)
            undo.callback(self.stores.close)
            self.keys, self.audit = self.stores.keys, self.stores.audit
            key = self.stores.witness.key
            self.guards = GuardSide(
                place,
                config,
                key,
                self.keys,
                self.audit,
                self._pin_of,
                self._holds_additions,
                self._namespaces,
            )
            undo.callback(self.guards.close)
            self.hub, self.bus = self.guards.hub, self.guards.bus
            self.catalog = self.hub.catalog
            registered = policy_folder.registered(place)
            self.catalog.claims.keep_only({*_configured(config), *registered})
            self.bus.observe(AgentChanged, self._agent_changed)
            self.net = OutboundHttp()
            self._make_mcp(key)
            self._make_agents(undo)
            undo.pop_all()
        self._auth = Authenticator(config.api_key, self._find_key, self.keys.has_keys)
        self._access = AccessWatch(self.keys, self._auth)
        self.metrics_ = Metrics(self.bus)
        # A line a call is information: `up --quiet` goes without, and so does a hub that a command
        # runs for itself.
        told = log.isEnabledFor(logging.INFO)
        self.calls = CallLog(self.bus, OUTPUT.write, OUTPUT.format) if told else None
        self._peers = PeerIdentifier(DESCENDANTS.find_server, DESCENDANTS.find_socket)
        self._stdio: set[SocketConnection] = set()
        self._stdio_view = View(tuple(config.mcp.stdio_expose), agents=True)
        self._bodies = BodyBudget(config.limits.body_megabytes * 1024 * 1024)
        self._listeners: list[Listener] = []
        self._mcp_server: asyncio.Server | None = None
        self._settled: asyncio.Future[None]
        self._loops = Background("the hub")
        """What runs until the hub stops."""
        self._background = Background("the hub")

    def _make_mcp(self, key: bytes) -> None:
        config, limits = self.config, self.config.limits
        mark = hashlib.sha256(str(self.place).encode()).hexdigest()[:16]
        kill_marked(mark)  # what a hub that was killed has left behind
        DESCENDANTS.kill_recorded(self.place / "children.json")
        self._connector = Connector(
            self.place,
            mark,
            self._lookup,
            lambda url, private: self.net.open_configured(url, allow_private=private),
        )
        self._clients = ConnectedClients()
        self.servers = UpstreamManager(self._upstream, self.hub.catalogs, self.bus)
        self.tasks = build_task_registry(
            limits.tasks, limits.tasks_each, ttl=2 * limits.task_timeout_secs
        )
        self.face = McpServer(
            self.hub,
            key,
            lambda client: self.config.mcp.find_style(client),
            limits.question_secs,
            self.tasks,
            config.mcp.task_after_secs,
            config.bridge.errors,
            config.bridge.list_aliases,
            lambda: (
                self.config.mcp.instructions_chars,
                self.config.mcp.instructions_total_chars,
            ),
            self._clients,
        )
        self.http_face = StreamableHttpTransport(self.face, key)
        self.sse_face = LegacySseTransport(self.face)

    def _make_agents(self, undo: contextlib.ExitStack) -> None:
        config, guards = self.config, self.guards
        self.agents = AgentSide(
            self.place,
            config,
            self.hub,
            self.net,
            self._lookup,
            self.audit,
            guards.pins,
            guards.policies.touch,
            self.stores.clock.is_steady,
            lambda: self.mode != "daemon" or self._auth.is_required,
            lambda name: self.listeners.dispatches.count_active(name),
        )
        undo.callback(self.agents.close_stores)
        self.stores.apply(config.mcp_servers)
        self.stores.enroll()
        self.listeners = BusSide(
            self.place, self.hub, config.bus.plugins, config.bridge.keep_dispatches
        )
        guards.join(self._target, self.agents.approved)

    def _namespaces(self) -> dict[str, str]:
        """The targets by what their canonical names begin with."""
        found = {
            build_canonical_name(name, "").rstrip("."): name for name in _configured(self.config)
        }
        agents = getattr(self, "agents", None)  # the hub's own offer their tools while it is made
        if agents is not None and agents.registry is not None:
            for member in agents.registry.agents:
                found |= {member.registration.slug: member.name, member.name: member.name}
        return found

    def _agent_changed(self, event: AgentChanged) -> None:
        if event.state == REMOVED:
            self.guards.release_names(event.agent)

    def _target(self, name: str) -> Target | None:
        return self.servers.find(name) or self.agents.find(name)

    def _pin_of(self, target: str) -> str:
        """How what it offers is held; of the hub's own agents whatever they say is believed."""
        if any(agent.name == target for agent in self.config.agents):
            return OFF
        for server in self.config.mcp_servers:
            if server.name == target:
                return server.pin
        return self.agents.pin_of(target) or STRICT

    def _holds_additions(self, target: str) -> bool:
        found = [one.additions for one in self.config.mcp_servers if one.name == target]
        own = found[0] if found else self.agents.additions_of(target)
        return (own or self.config.policy.additions) == HOLD

    def _upstream(self, entry: ServerEntry) -> Upstream:
        return Upstream(
            entry,
            self._connector,
            self.hub.offered,
            self.bus,
            partial(compile_schema, check=entry.check_arguments),
            self.config.limits.question_secs,
            asker=self._clients,
        )

    # --- from start to end ---------------------------------------------------------------------

    async def start(self) -> None:
        http_path, mcp_path = home.socket_paths(str(self.place))
        parts = [*self.guards.parts, *self.agents.parts, *self.listeners.parts]
        parts += [ServersApi(self.hub, self), PromptsAndResourcesApi(self.hub, TASKS_ONLY)]
        api = Api(self.hub, self, TASKS_ONLY, parts, OPERATIONS)
        mounts: dict[str, Mounted] = {
            "/mcp": self.http_face,
            "/mcp/": self.http_face,
            **self.sse_face.mounts,
            **self.listeners.mounts,
        }
        under = self.agents.under()
        authenticate = None
        if self.mode == "daemon":
            authenticate = self._listen_tcp(api, mounts, under)
        owner_app = OwnerApp(self._peers, mounts, api, under)
        self._listeners.append(Listener(owner_app, unix_socket(http_path), self._bodies))
        await self.agents.start(authenticate, self._access.explain_ended)
        startup = Startup(
            lambda name: self.servers.find_absent(name) or self.agents.find_absent(name)
        )
        self.hub.startup = startup
        self.hub.refresher = self.servers
        self.hub.visibility = self.servers
        for listener in self._listeners:
            await listener.start()
        loop = asyncio.get_running_loop()
        await self.servers.apply(self.config.mcp_servers)
        settled = asyncio.gather(self.servers.wait_settled(), self.agents.settled())
        self._settled = start_task(_within(SETTLE_SECONDS, settled))
        self._settled.add_done_callback(lambda _: startup.settle())
        self._mcp_server = await loop.create_unix_server(
            self._connection, sock=unix_socket(mcp_path), backlog=512
        )
        home.write_daemon(
            str(self.place),
            home.Daemon(
                pid=os.getpid(),
                url=self.url,
                socket=http_path,
                mcp_socket=mcp_path,
                version=__version__,
                started_at=home.now(),
                mode=self.mode,
            ),
        )
        self._access.parts = [
            *(self.http_face, self.sse_face, self.tasks, self.listeners.streams, self.agents),
            self.guards.kept,
            *self._listeners,
        ]
        # Each by itself: a server that takes long to stop delays no change of a policy.
        loops = (
            self.watch.follow(self._apply),
            look_again_and_again(self.guards.policies.look),
            look_again_and_again(self.stores.look),
            look_again_and_again(self.guards.retry_reviews),
            self.stores.keep_pruning(lambda: self.config.audit),
            self.stores.keep_checkpoints(),
            self._access.watch(),
            look_again_and_again(_sweep, SWEEP_SECONDS),
        )
        for each in loops:
            self._loops.spawn(each)

    def _connection(self) -> SocketConnection:
        return SocketConnection(
            self.face,
            self._peers.identify_unix,
            lambda: self._stdio_view,
            self._stdio,
            self._settled,
        )

    def _listen_tcp(self, api: Api, mounts: Mapping[str, Any], under: list[Under]) -> Authenticate:
        settings, auth = self.config.server, self._auth
        if not auth.is_required and not is_loopback(settings.host):
            raise ConfigError(
                f'[server] host = "{settings.host}" can be reached from outside, which needs a '
                "key: set api_key, or run: dragoman keys create NAME"
            )
        sock = tcp_socket(settings.host, settings.port)
        port = sock.getsockname()[1]
        # Everywhere is no name to call the hub by.
        host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(settings.host, settings.host)
        shown = f"[{host}]" if ":" in host else host
        self.url = f"http://{shown}:{port}"
        names = AllowedNames(
            settings.host, settings.public_url, settings.allowed_hosts, settings.allowed_origins
        )
        app = App(auth, names, mounts, api, under, self._note_failed, peers=self._peers)
        most = process.connection_limit(self.config.limits.connections)
        self._listeners.append(Listener(app, sock, self._bodies, most))
        self.agents.url = self.url

        def authenticate(metadata: Mapping[str, str], peer: str) -> Principal | None:
            found = auth.authenticate(
                {name.encode("latin-1"): text.encode("latin-1") for name, text in metadata.items()},
                lambda: self._peers.identify_grpc(peer, settings.host, self.agents.grpc_port or 0),
            )
            if found is None and "authorization" in metadata:
                self._note_failed("")
            return found

        return authenticate

    def _note_failed(self, address: str) -> None:
        self.stores.tally.add(AUTH_FAILED, address or "gRPC", "nobody", "http")

    def _find_key(self, key: str) -> Principal | None:
        record = self.keys.find(key)
        return policy_folder.principal_from_key(record) if record else None

    async def stop(self) -> None:
        """Lets what is under way finish, then ends it; in all well under ten seconds."""
        self.draining = True
        self._loops.cancel()
        self._access.close()
        if self._mcp_server is not None:
            self._mcp_server.close()
        for listener in self._listeners:
            listener.stop_accepting()
        self.face.close()
        self.agents.begin_stop()
        self.http_face.close()
        self.sse_face.close()
        self.listeners.begin_stop()
        drains = [listener.drain(DRAIN_SECONDS) for listener in self._listeners]
        drains += [_within(DRAIN_SECONDS, connection.drain()) for connection in self._stdio]
        drains.append(self._loops.close(timeout=DRAIN_SECONDS))
        drains.append(self._background.close(DRAIN_SECONDS, timeout=LAST_SECONDS))
        await asyncio.gather(*drains, return_exceptions=True)
        await _within(STOP_SECONDS, self.tasks.close())
        await _within(STOP_SECONDS, self.agents.stop())
        # What is still under way fails now, and whoever asked is told so.
        await _within(STOP_SECONDS, self.servers.stop())
        DESCENDANTS.kill_all()
        await _within(1, self.net.close())
        await asyncio.gather(*(listener.drain(LAST_SECONDS) for listener in self._listeners))
        for listener in self._listeners:
            listener.abort()
        await _within(LAST_SECONDS, self._concluded())
        await _within(STOP_SECONDS, self.listeners.stop())
        await _within(STOP_SECONDS, self.guards.close())
        if self.calls is not None:
            self.calls.flush()
        home.forget_daemon(str(self.place))
        for path in home.socket_paths(str(self.place)):
            with contextlib.suppress(OSError):
                os.unlink(path)
        self.stores.close()

    async def _concluded(self) -> None:
        while self.audit.has_running_calls:
            await asyncio.sleep(0.005)

    # --- the configuration, live -----------------------------------------------------------------

    async def _apply(self, config: Config, lookup: Mapping[str, str]) -> None:
        self._lookup.clear()
        self._lookup.update(lookup)
        old, self.config = self.config, config
        self._stdio_view = View(tuple(config.mcp.stdio_expose), agents=True)
        for path in find_frozen_changes(old, config):
            log.warning('"%s" has changed; that is used from the next start on', path)
        self._apply_limits(config.limits)
        self.guards.policies.apply(config)
        self.stores.apply(config.mcp_servers)
        await self.servers.apply(config.mcp_servers)
        gone = {one.name for one in old.mcp_servers} - {one.name for one in config.mcp_servers}
        if gone:
            self.guards.release_names(*gone)
        for entry in config.mcp_servers:
            if any(entry.name == one.name and entry.pin != one.pin for one in old.mcp_servers):
                self.guards.review_again(entry.name)
        log.info("the configuration was read again: %d servers", len(config.mcp_servers))

    async def reload(self) -> str | None:
        await self._background.run_to_completion(self.watch.look_now(self._apply))
        return self.watch.problem

    async def restart_server(self, name: str) -> bool:
        return await self._background.run_to_completion(self.servers.restart(name))

    def _apply_limits(self, limits: Limits) -> None:
        self.guards.apply_limits(limits)
        self.tasks.ttl = 2 * limits.task_timeout_secs

    def note_denied(self, principal: Principal | None, what: str) -> None:
        who = principal.label if principal is not None else "nobody"
        self.stores.tally.add(ADMIN_DENIED, what, who, "api")

    # --- what the API tells (web.api.Sources) ----------------------------------------------------

    def ready(self) -> str | None:
        return "the hub is going down" if self.draining else None

    def status(self) -> Mapping[str, Any]:
        return {
            "version": __version__,
            "pid": os.getpid(),
            "home": str(self.place),
            "mode": self.mode,
            "url": self.url,
            "started_at": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(self._begun)),
            "uptime_secs": round(time.monotonic() - self._up_since, 1),
            "servers": {
                "total": len(self.servers),
                "connected": self.servers.count("connected"),
                "starting": self.servers.starting,
            },
            "tools": len(self.catalog),
            "agents": self.agents.status(),
            "clients": {
                "http_sessions": len(self.http_face.sessions),
                "sse": len(self.sse_face),
                "stdio": len(self._stdio),
            },
            "config_problem": self.watch.problem,
            "policies": self.guards.policies.brief(),
            "store_problems": [
                *self.stores.problems(),
                *(
                    f'"{target}": {self.guards.describe_unreviewed(target)}'
                    for target in self.guards.pins.unreviewed
                ),
            ],
        }

    def server_log(self, name: str) -> str | None:
        return self.servers.read_log(name)

    def server_states(self) -> Mapping[str, Any]:
        states = self.servers.snapshot()
        for state in states["connected"]:
            if why := self.guards.describe_unreviewed(state["name"]):
                state["problems"] = [*state.get("problems", ()), why]
        return states

    def metrics(self) -> str:
        return self.metrics_.render(
            {
                "dragoman_tools": ("Tools in the catalog.", len(self.catalog)),
                "dragoman_servers": ("Servers configured and enabled.", len(self.servers)),
                "dragoman_servers_connected": (
                    "Servers connected.",
                    self.servers.count("connected"),
                ),
                "dragoman_a2a_tasks": ("A2A tasks kept.", self.agents.tasks),
                "dragoman_http_sessions": ("Sessions over HTTP.", len(self.http_face.sessions)),
                "dragoman_stdio_clients": ("Clients over stdio.", len(self._stdio)),
                "process_open_fds": (
                    "Files and sockets that the hub has open.",
                    process.count_files(),
                ),
                "dragoman_uptime_seconds": ("Since the start.", time.monotonic() - self._up_since),
            }
        )


# --- ways to run it -------------------------------------------------------------------------------


def run(
    place: Path,
    ready: Callable[[Instance], None],
    given: Sequence[Given] = (),
    log_file: str | None = None,
) -> None:
    """Holds the home and runs a hub until a signal ends it. Logs to `log_file`, else to stderr."""
    _run(place, "daemon", ready, None, given, log_file)


def host(place: str, stop: threading.Event) -> None:
    """The hub inside a `dragoman mcp`, until `stop` is set."""
    start_logging(logging.WARNING)
    _run(Path(place), "mcp", lambda _: None, stop)


def _run(
    place: Path,
    mode: str,
    ready: Callable[[Instance], None],
    stop: threading.Event | None,
    given: Sequence[Given] = (),
    log_file: str | None = None,
) -> None:
    home.prepare(str(place))
    with home.hold(str(place)):
        config, source = load_with_source(place / "config.toml", given)
        refuse_exposed(place, config)
        _start_logging(config, log_file)
        for warning in source.warnings:
            log.warning("%s", warning)
        process.protect()
        DESCENDANTS.adopts = True
        process.raise_file_limit()
        with asyncio.Runner(loop_factory=process.loop_factory()) as runner:
            runner.run(_serve(place, config, mode, ready, stop, given))


def _start_logging(config: Config, path: str | None) -> None:
    settings = config.log
    file = None
    if path is not None:
        file = LogFile(path, int(settings.megabytes * 1024 * 1024), settings.files)
    start_logging(logging.getLevelNamesMapping()[settings.level.upper()], settings.format, file)


async def _serve(
    place: Path,
    config: Config,
    mode: str,
    ready: Callable[[Instance], None],
    stop: threading.Event | None,
    given: Sequence[Given],
) -> None:
    loop = asyncio.get_running_loop()
    ended = asyncio.Event()
    if stop is not None:
        asked = stop

        def wait() -> None:
            asked.wait()
            with contextlib.suppress(RuntimeError):
                loop.call_soon_threadsafe(ended.set)

        threading.Thread(target=wait, daemon=True).start()
    else:
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            if signal.getsignal(number) is not signal.SIG_IGN:  # as nohup has it
                loop.add_signal_handler(number, ended.set)
    with _naming_damage(place):
        instance = Instance(place, config, mode, given)
    try:
        with _naming_damage(place):
            await instance.start()
            process.settle_garbage()
            process.keep_memory()
            ready(instance)
        await ended.wait()
    finally:
        await instance.stop()


@contextlib.contextmanager
def _naming_damage(place: Path) -> Iterator[None]:
    """Explains what to do where a store can be opened and not read."""
    try:
        yield
    except StorageFailed as error:
        raise ConfigError(describe_damage(place) or str(error)) from error


# --- small things -----------------------------------------------------------------------------


def _configured(config: Config) -> list[str]:
    """The names of all servers and agents in the configuration."""
    servers = [entry.name for entry in config.mcp_servers]
    agents = [entry.name for entry in config.agents]
    return [*servers, *agents, *(entry.name for entry in config.a2a.external_agents)]


async def _sweep() -> None:
    DESCENDANTS.sweep()


async def _within(seconds: float, work: Any) -> None:
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            await work
