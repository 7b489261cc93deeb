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
import sys
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from dragoman import __version__, guards, home, process
from dragoman.a2a.client import A2aClient
from dragoman.a2a.errors import A2aError
from dragoman.agent_side import AgentSide, Authenticate
from dragoman.config import Config, load, read_env, with_port
from dragoman.core.bus import Bus
from dragoman.core.calllog import CallLog
from dragoman.core.catalog import Catalog
from dragoman.core.errors import ConfigError, HubError
from dragoman.core.hub import Hub
from dragoman.core.principal import OWNER, Principal
from dragoman.core.questions import Handles
from dragoman.core.tasks import Tasks
from dragoman.core.view import View
from dragoman.guards.validate import compile_schema
from dragoman.mcp.config import ServerEntry
from dragoman.mcp.connect import Connector
from dragoman.mcp.http import HttpFace
from dragoman.mcp.questions import WAITS
from dragoman.mcp.server import Face
from dragoman.mcp.servers import Servers
from dragoman.mcp.spawn import kill_marked
from dragoman.mcp.sse import SseFace
from dragoman.mcp.stdio import Connection
from dragoman.mcp.upstream import Upstream
from dragoman.net.client import Client
from dragoman.stores.audit import SqliteAudit
from dragoman.stores.keys import KeyRecord, KeyStore
from dragoman.stores.records import AuditReader, Record
from dragoman.stores.verify import Verdict, verify
from dragoman.web.api import Api
from dragoman.web.app import App, Mounted, OwnerApp, Under
from dragoman.web.auth import Authenticator, Names
from dragoman.web.listener import Listener
from dragoman.web.metrics import Metrics
from dragoman.web.sockets import is_loopback, tcp_socket, unix_socket

__all__ = [
    "LOG_FORMAT",
    "A2aClient",
    "A2aError",
    "AuditReader",
    "Client",
    "Instance",
    "KeyRecord",
    "KeyStore",
    "Record",
    "Verdict",
    "host",
    "run",
    "verify",
]

log = logging.getLogger(__name__)

WATCH_SECONDS = 0.2
"""How often the configuration file is looked at."""
PRUNE_SECONDS = 3600
SETTLE_SECONDS = 3.0
"""How long after the start the first list over stdio may wait for servers that are starting."""
DRAIN_SECONDS = 5.0
STOP_SECONDS = 3.5
LAST_SECONDS = 0.3


class Instance:
    """One hub on one home. Made inside a running loop, with the home held."""

    def __init__(self, place: Path, config: Config, mode: str) -> None:
        self.place = place
        self.config = config
        self.mode = mode
        self.config_problem: str | None = None
        self.draining = False
        self.url: str | None = None
        self._begun = time.time()
        self._seen = _stamps(place)  # before the first watch: what changes meanwhile is seen too
        self._lookup = _lookup(place)

        key = _key(place)
        self.keys = KeyStore(place)
        # After all that may fail: nobody would close it, and this process may try again.
        self.audit = SqliteAudit(place, durable=config.audit.durable)
        self.bus = Bus()
        self.catalog = Catalog()
        # Not the home's key: which handles were used is forgotten at the end, and so must they be.
        handles = Handles(os.urandom(32), config.limits.question_secs)
        stages = guards.standard(self.audit, self.bus, config.limits, handles)
        self.hub = Hub(self.catalog, self.bus, stages)
        self.metrics_ = Metrics(self.bus)
        # A line a call is information: `up --quiet` goes without, and so does a hub that a command
        # runs for itself.
        told = log.isEnabledFor(logging.INFO)
        self.calls = CallLog(self.bus, sys.stderr.write) if told else None

        self.net = Client()
        mark = hashlib.sha256(str(place).encode()).hexdigest()[:16]
        kill_marked(mark)  # what a hub that was killed has left behind
        self._connector = Connector(
            place,
            mark,
            self._lookup,
            lambda url, private: self.net.reaching(url, allow_private=private),
        )
        self.servers = Servers(self._upstream, self.hub.catalogs, self.bus)

        limits = config.limits
        self.tasks = Tasks(
            most=limits.tasks, most_each=limits.tasks_each, ttl=2 * limits.task_timeout_secs
        )
        self.face = Face(
            self.hub,
            key,
            lambda client: self.config.mcp.style_for(client),
            limits.question_secs,
            self.tasks,
            config.mcp.task_after_secs,
        )
        self.http_face = HttpFace(self.face, key)
        self.sse_face = SseFace(self.face)
        try:
            self.agents = AgentSide(place, config, self.hub, self.net, self._lookup)
        except BaseException:
            self.audit.close()
            self.keys.close()
            raise
        self._stdio: set[Connection] = set()
        self._stdio_view = View(tuple(config.mcp.stdio_expose), agents=True)
        self._listeners: list[Listener] = []
        self._mcp_server: asyncio.Server | None = None
        self._settled: asyncio.Future[None]
        self._tasks: list[asyncio.Task[None]] = []

    def _upstream(self, entry: ServerEntry) -> Upstream:
        return Upstream(
            entry,
            self._connector,
            self.hub.catalogs,
            self.bus,
            compile_schema,
            self.config.limits.question_secs,
        )

    # --- from start to end ---------------------------------------------------------------------

    async def start(self) -> None:
        http_path, mcp_path = home.socket_paths(str(self.place))
        api = Api(self.hub, self, WAITS)
        mounts: dict[str, Mounted] = {"/mcp": self.http_face, **self.sse_face.mounts}
        under = self.agents.under()
        authenticate = None
        if self.mode == "daemon":
            authenticate = self._listen_tcp(api, mounts, under)
        owner_app = OwnerApp(OWNER, mounts, api, under)
        self._listeners.append(Listener(owner_app, unix_socket(http_path)))
        await self.agents.start(authenticate)
        for listener in self._listeners:
            await listener.start()
        loop = asyncio.get_running_loop()
        await self.servers.apply(self.config.mcp_servers)
        self._settled = loop.create_task(_within(SETTLE_SECONDS, self.servers.settled()))
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
        self._tasks = [loop.create_task(self._watch()), loop.create_task(self._prune())]

    def _connection(self) -> Connection:
        return Connection(self.face, OWNER, lambda: self._stdio_view, self._stdio, self._settled)

    def _listen_tcp(self, api: Api, mounts: Mapping[str, Any], under: list[Under]) -> Authenticate:
        settings = self.config.server
        auth = Authenticator(self.config.api_key, self._find_key, self.keys.any)
        if not auth.required and not is_loopback(settings.host):
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
        names = Names(
            settings.host, settings.public_url, settings.allowed_hosts, settings.allowed_origins
        )
        self._listeners.append(Listener(App(auth, names, mounts, api, under), sock))
        self.agents.url = self.url
        self.agents.secure(lambda: auth.required)
        return lambda metadata: auth.principal(
            {name.encode("latin-1"): value.encode("latin-1") for name, value in metadata.items()}
        )

    def _find_key(self, key: str) -> Principal | None:
        record = self.keys.find(key)
        return Principal("key", record.name, record.org) if record else None

    async def stop(self) -> None:
        """Lets what is under way finish, then ends it; in all well under ten seconds."""
        self.draining = True
        for task in self._tasks:
            task.cancel()
        if self._mcp_server is not None:
            self._mcp_server.close()
        for listener in self._listeners:
            listener.stop_accepting()
        self.face.close()
        self.agents.begin_stop()
        self.http_face.close()
        self.sse_face.close()
        drains = [listener.drain(DRAIN_SECONDS) for listener in self._listeners]
        drains += [_within(DRAIN_SECONDS, connection.drain()) for connection in self._stdio]
        await asyncio.gather(*drains, return_exceptions=True)
        await _within(STOP_SECONDS, self.tasks.close())
        await _within(STOP_SECONDS, self.agents.stop())
        # What is still under way fails now, and whoever asked is told so.
        await _within(STOP_SECONDS, self.servers.stop())
        await _within(1, self.net.close())
        await asyncio.gather(*(listener.drain(LAST_SECONDS) for listener in self._listeners))
        for listener in self._listeners:
            listener.abort()
        await _within(LAST_SECONDS, self._concluded())
        if self.calls is not None:
            self.calls.flush()
        home.forget_daemon(str(self.place))
        for path in home.socket_paths(str(self.place)):
            with contextlib.suppress(OSError):
                os.unlink(path)
        self.audit.close()
        self.keys.close()

    async def _concluded(self) -> None:
        while self.audit.unfinished:
            await asyncio.sleep(0.005)

    # --- the configuration, live -----------------------------------------------------------------

    async def _watch(self) -> None:
        file = self.place / "config.toml"
        seen = before = self._seen
        while True:
            await asyncio.sleep(WATCH_SECONDS)
            now = _stamps(self.place)
            settled, before = now == before, now
            if now == seen or not settled:
                continue  # or somebody is just writing it
            seen = now
            if not file.exists():
                self.config_problem = f"{file} is gone; what it said last is still used"
                log.error("%s", self.config_problem)
                continue
            try:
                config, lookup = load(file), _lookup(self.place)
            except ConfigError as error:
                self.config_problem = str(error)
                log.error("the new configuration is not used: %s", error)
                continue
            except Exception as error:  # or no further change would be seen
                self.config_problem = repr(error)
                log.exception("the new configuration could not be read")
                continue
            self.config_problem = None
            try:
                await self._apply(config, lookup)
            except Exception:
                log.exception("the new configuration could not be applied in full")

    async def _apply(self, config: Config, lookup: Mapping[str, str]) -> None:
        self._lookup.clear()
        self._lookup.update(lookup)
        old, self.config = self.config, config
        self._stdio_view = View(tuple(config.mcp.stdio_expose), agents=True)
        for part in ("api_key", "server", "limits", "audit", "a2a", "agents"):
            if getattr(old, part) != getattr(config, part):
                log.warning('"%s" has changed; that is used from the next start on', part)
        await self.servers.apply(config.mcp_servers)
        log.info("the configuration was read again: %d servers", len(config.mcp_servers))

    async def _prune(self) -> None:
        while True:
            settings = self.config.audit
            try:
                await self.audit.prune(settings.keep_days * 86_400, settings.max_entries)
            except HubError as error:
                log.warning("old records could not be deleted: %s", error)
            await asyncio.sleep(PRUNE_SECONDS)

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
            "uptime_secs": round(time.time() - self._begun, 1),
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
            "config_problem": self.config_problem,
        }

    def server_log(self, name: str) -> str | None:
        return self.servers.log(name)

    def server_states(self) -> Mapping[str, Any]:
        return self.servers.snapshot()

    def metrics(self) -> str:
        return self.metrics_.text(
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
                "dragoman_uptime_seconds": ("Since the start.", time.time() - self._begun),
            }
        )


# --- ways to run it -------------------------------------------------------------------------------


def run(place: Path, ready: Callable[[Instance], None], port: int | None) -> None:
    """Holds the home and runs a hub until a signal ends it; `port` None is the configuration's."""
    _run(place, "daemon", ready, None, port)


def host(place: str, stop: threading.Event) -> None:
    """The hub inside a `dragoman mcp`, until `stop` is set."""
    logging.basicConfig(stream=sys.stderr, level=logging.WARNING, format=LOG_FORMAT)
    _run(Path(place), "mcp", lambda _: None, stop, None)


LOG_FORMAT = "%(asctime)s %(levelname)s %(message)s"


def _run(
    place: Path,
    mode: str,
    ready: Callable[[Instance], None],
    stop: threading.Event | None,
    port: int | None,
) -> None:
    home.prepare(str(place))
    with home.hold(str(place)):
        config = load(place / "config.toml")
        if port is not None:
            config = with_port(config, port)
        process.raise_file_limit()
        with asyncio.Runner(loop_factory=process.loop_factory()) as runner:
            runner.run(_serve(place, config, mode, ready, stop))


async def _serve(
    place: Path,
    config: Config,
    mode: str,
    ready: Callable[[Instance], None],
    stop: threading.Event | None,
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
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, ended.set)
    instance = Instance(place, config, mode)
    try:
        await instance.start()
        process.settle_garbage()
        ready(instance)
        await ended.wait()
    finally:
        await instance.stop()


# --- small things -----------------------------------------------------------------------------


async def _within(seconds: float, work: Any) -> None:
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            await work


def _lookup(place: Path) -> dict[str, str]:
    """The environment, and the home's `env` file for what is not in it."""
    try:
        data = (place / "env").read_bytes()
    except FileNotFoundError:
        data = None
    except OSError as error:
        raise ConfigError(f"{place / 'env'} cannot be read: {error.strerror}") from None
    return {**read_env(data), **os.environ}


def _key(place: Path) -> bytes:
    """The home's own secret, made at the first start."""
    file = place / "hub.key"
    try:
        key = file.read_bytes()
    except FileNotFoundError:
        key = os.urandom(32)
        fd = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(fd, "wb") as out:
            out.write(key)
    if len(key) != 32:
        raise ConfigError(f"{file} is damaged; delete it, and clients begin new sessions")
    return key


def _stamps(place: Path) -> list[object]:
    """Something that differs when the configuration or the env file was changed."""
    return [_stamp(place / name) for name in ("config.toml", "env")]


def _stamp(file: Path) -> tuple[int, int, int] | None:
    try:
        found = file.stat()
    except OSError:
        return None
    return found.st_mtime_ns, found.st_size, found.st_ino
