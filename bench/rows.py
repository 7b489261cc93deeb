"""The rows: what is started for each, how it is spoken to, and what it is compared with.

Knows how to bring a row up and down; knows nothing of what is then measured.
"""

import contextlib
import shutil
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path

from bench.identity import create_key, render_issuer, sign_token, store_login
from bench.paths import (
    BENCH_PYTHON,
    FASTMCP_PYTHON,
    HOMES,
    HUB,
    MCP_PROXY,
    PEERS,
    UPSTREAM,
)
from bench.policy_texts import render_policies
from bench.processes import LOAD_CORE, TARGET_CORE, Child, free_port, start, wait_until
from bench.wire import ECHO, LEGACY, Dialect, Endpoint, get_status

Command = list[str | Path]


@dataclass(frozen=True)
class RowContext:
    """What a row may build on: its port, and the far end."""

    port: int
    upstream_port: int
    home: Path
    tools: int = 10  # of each server
    servers: int = 1

    def urls(self) -> list[str]:
        base = f"http://127.0.0.1:{self.upstream_port}"
        if self.servers == 1:
            return [f"{base}/mcp"]
        return [f"{base}/u{i}/mcp" for i in range(self.servers)]

    def stdio(self) -> Command:
        return [UPSTREAM, "--stdio", "--tools", str(self.tools)]


@dataclass(frozen=True)
class Row:
    name: str
    command: Callable[[RowContext], Command] | None = None  # None: the far end itself
    dialect: Dialect = ECHO
    stdio: bool = False  # the far end is a child of the target, its CPU and memory counted in
    environment: dict[str, str] = field(default_factory=dict)
    ready: str | None = None  # a path that answers 200 when the process calls itself healthy
    register: Callable[[RowContext], Dialect] | None = None  # the far end, once it runs


@dataclass(frozen=True)
class Running:
    child: Child
    endpoint: Endpoint
    context: RowContext
    healthy_seconds: float | None  # from exec to the row's own health answer
    ready_seconds: float  # from exec to the first call answered by the far end


def peer(
    script: str, *arguments: str, python: Path = BENCH_PYTHON
) -> Callable[[RowContext], Command]:
    def command(context: RowContext) -> Command:
        filled = {"{up}": str(context.upstream_port), "{url}": context.urls()[0]}
        rest = [filled.get(argument, argument) for argument in arguments]
        return [python, PEERS / script, str(context.port), *rest]

    return command


def raw_stdio(context: RowContext) -> Command:
    return [BENCH_PYTHON, PEERS / "raw_stdio_proxy.py", str(context.port), *context.stdio()]


def sdk_stdio(context: RowContext) -> Command:
    return [BENCH_PYTHON, PEERS / "sdk_gateway.py", str(context.port), "stdio", *context.stdio()]


def mcp_proxy(context: RowContext) -> Command:
    where: Command = ["--host", "127.0.0.1", "--port", str(context.port)]
    return [MCP_PROXY, *where, "--log-level", "ERROR", "--", *context.stdio()]


NO_RATE_LIMIT = """
[limits.rate]
per_minute = 1_000_000_000
burst = 1_000_000_000
owner_per_minute = 1_000_000_000
owner_burst = 1_000_000_000
org_per_minute = 1_000_000_000
org_burst = 1_000_000_000
"""
"""Rates that a load generator does not reach; every call is charged as always."""
POLICIES = 10


def write_home(home: Path, config: str) -> None:
    """Writes the files of a hub that is measured: all of them have the same policies."""
    (home / "config.toml").write_text(config + NO_RATE_LIMIT, encoding="utf-8")
    (home / "policies").mkdir()
    (home / "policies" / "own.cedar").write_text(render_policies(POLICIES), encoding="utf-8")


def server_table(number: int, transport: str, more: str = "") -> str:
    table = f'\n[[mcp_servers]]\nname = "up{number}"\n{more}'
    return f"{table}[mcp_servers.transport]\n{transport}\n"


def write_hub_config(context: RowContext, transports: list[str], more: str = "") -> None:
    text = f'[server]\nhost = "127.0.0.1"\nport = {context.port}\n{more}'
    text += '\n[mcp]\nstdio_expose = ["*"]\n'
    text += "".join(server_table(i, transport) for i, transport in enumerate(transports))
    write_home(context.home, text)


def hub_over_http(context: RowContext) -> Command:
    write_hub_config(context, [f'type = "http"\nurl = "{url}"' for url in context.urls()])
    return [HUB, "up", "--home", context.home]


def hub_with_header(context: RowContext) -> Command:
    """The far end gets a token that is in the configuration."""
    header = f'headers = {{ Authorization = "Bearer {"t" * 400}" }}'
    write_hub_config(context, [f'type = "http"\nurl = "{url}"\n{header}' for url in context.urls()])
    return [HUB, "up", "--home", context.home]


def hub_with_tokens(context: RowContext) -> Command:
    """Callers have tokens of an issuer, and the far end gets the token of each user's login."""
    (url,) = context.urls()
    own = 'credentials = "user"\n'
    tables = server_table(0, f'type = "http"\nurl = "{url}"', own)
    write_hub_config(context, [], f'{render_issuer()}\n[oauth]\ncredential_key = "file"\n{tables}')
    store_login(context.home, url)
    return [HUB, "up", "--home", context.home]


def with_key(context: RowContext) -> Dialect:
    return replace(IN_HUB, authorization=f"Bearer {create_key(context.home)}")


def with_token(context: RowContext) -> Dialect:
    return replace(IN_HUB, authorization=f"Bearer {sign_token()}")


def hub_over_stdio(context: RowContext) -> Command:
    program, *arguments = context.stdio()
    listed = ", ".join(f'"{argument}"' for argument in arguments)
    write_hub_config(context, [f'type = "stdio"\ncommand = "{program}"\nargs = [{listed}]'])
    return [HUB, "up", "--home", context.home]


FASTMCP_QUIET = {"FASTMCP_LOG_LEVEL": "ERROR", "FASTMCP_CHECK_FOR_UPDATES": "off"}
IN_HUB = Dialect(tool="mcp_up0_echo")
SESSION_2025 = Dialect(LEGACY, session=True)

DIRECT = Row("direct upstream, no gateway")
RAW = Row("raw uvloop proxy (the limit)", peer("raw_proxy.py", "{up}"))
HUB_HTTP = Row("Dragoman", hub_over_http, IN_HUB, ready="/healthz")
HUB_2025 = Row(
    "Dragoman, 2025-11-25 client with session",
    hub_over_http,
    replace(SESSION_2025, tool="mcp_up0_echo"),
    ready="/healthz",
)
HUB_KEY = Row(
    "Dragoman, with a key and a fixed header", hub_with_header, ready="/healthz", register=with_key
)
HUB_JWT = Row(
    "Dragoman, with an access token (JWT) and a user's login",
    hub_with_tokens,
    ready="/healthz",
    register=with_token,
)
ASGI_POOL = Row("plain ASGI server + keep-alive pool", peer("asgi_proxy.py", "{up}", "pool"))
ASGI_AIOHTTP = Row("plain ASGI server + aiohttp client", peer("asgi_proxy.py", "{up}", "aiohttp"))
SDK = Row("SDK-made gateway", peer("sdk_gateway.py", "http", "{url}"))
# FastMCP is about twice as fast for 2025 clients as for 2026 ones, so it is asked in that way.
FASTMCP_KEPT = Row(
    "FastMCP proxy, persistent client, 2025-11-25",
    peer("fastmcp_proxy.py", "kept", "{url}", python=FASTMCP_PYTHON),
    Dialect(LEGACY),
    environment=FASTMCP_QUIET,
)
FASTMCP_FRESH = Row(
    "FastMCP proxy, default, 2025-11-25",
    peer("fastmcp_proxy.py", "fresh", "{url}", python=FASTMCP_PYTHON),
    Dialect(LEGACY),
    environment=FASTMCP_QUIET,
)
RAW_STDIO = Row("raw stdio proxy (the limit)", raw_stdio, stdio=True)
HUB_STDIO = Row("Dragoman over stdio", hub_over_stdio, IN_HUB, stdio=True, ready="/healthz")
SDK_STDIO = Row("SDK-made gateway over stdio", sdk_stdio, stdio=True)
MCP_PROXY_STDIO = Row(
    "mcp-proxy over stdio, 2025-11-25 with session", mcp_proxy, SESSION_2025, stdio=True
)

OVER_HTTP = [
    DIRECT,
    RAW,
    ASGI_POOL,
    ASGI_AIOHTTP,
    HUB_HTTP,
    HUB_2025,
    HUB_KEY,
    HUB_JWT,
    SDK,
    FASTMCP_KEPT,
    FASTMCP_FRESH,
]
OVER_STDIO = [RAW_STDIO, HUB_STDIO, SDK_STDIO, MCP_PROXY_STDIO]


def limit_of(row: Row) -> Row:
    return RAW_STDIO if row.stdio else RAW


def sdk_of(row: Row) -> Row:
    return SDK_STDIO if row.stdio else SDK


@contextlib.contextmanager
def run_upstream(port: int, tools: int, core: int | None) -> Iterator[Child]:
    command: Command = [UPSTREAM, "--port", str(port), "--tools", str(tools)]
    child = start("far end", command, core=core)
    try:
        wait_until(lambda: get_status(port, "/mcp") == 405, child, 10)
        yield child
    finally:
        child.stop()


@contextlib.contextmanager
def up(row: Row, *, tools: int = 10, servers: int = 1) -> Iterator[Running]:
    """A fresh far end and a fresh target, ready to be called; both ended afterwards."""
    home = Path(tempfile.mkdtemp(dir=HOMES))
    context = RowContext(free_port(), free_port(), home, tools, servers)
    with contextlib.ExitStack() as stack:
        stack.callback(shutil.rmtree, home, ignore_errors=True)
        if row.command is None:
            child = stack.enter_context(run_upstream(context.upstream_port, tools, TARGET_CORE))
            yield Running(child, Endpoint(context.upstream_port, row.dialect), context, None, 0.0)
            return
        if not row.stdio:
            stack.enter_context(run_upstream(context.upstream_port, tools, LOAD_CORE))
        command, environment = row.command(context), row.environment
        child = start(row.name, command, core=TARGET_CORE, environment=environment, folder=home)
        stack.callback(child.stop)
        healthy = None
        if ready := row.ready:
            wait_until(lambda: get_status(context.port, ready) == 200, child)
            healthy = child.age()
        endpoint = Endpoint(context.port, row.register(context) if row.register else row.dialect)
        wait_until(endpoint.probe, child)
        yield Running(child, endpoint, context, healthy, child.age())
