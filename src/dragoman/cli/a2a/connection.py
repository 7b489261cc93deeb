"""Connects an `a2a` command to an agent: of the hub, over its Unix socket, or any agent by URL."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar
from urllib.parse import quote, urlsplit

from dragoman.cli.base.arguments import parse_header
from dragoman.cli.base.errors import NO_HUB, NOT_FOUND, USAGE, fail
from dragoman.cli.base.hub_client import (
    HubClient,
    HubProblem,
    HubUnavailable,
    connect_hub,
    find_running_hub,
    request_json,
    suggest,
)
from dragoman.core.errors import BadReply, ConfigError
from dragoman.wire.http import NO_HEADERS, HttpClient, HttpReply

if TYPE_CHECKING:
    from dragoman.a2a.client.client import A2aClient

SECONDS = 30.0
FIND_SECONDS = 10.0
"""How long to wait for a configured agent that the hub has not reached yet."""
LOCAL_URL = "http://localhost"

CODES = {
    "TASK_NOT_FOUND": NOT_FOUND,
    "METHOD_NOT_FOUND": USAGE,
    "UNSUPPORTED_OPERATION": USAGE,
    "INVALID_PARAMS": USAGE,
    "CONTENT_TYPE_NOT_SUPPORTED": USAGE,
    "TASK_NOT_CANCELABLE": 1,
    "UNAUTHENTICATED": 4,
    "PERMISSION_DENIED": 4,
    "RESOURCE_EXHAUSTED": 4,
}
"""The exit code of each A2A error reason; 6 for the others."""

T = TypeVar("T")
Work = Callable[["AgentConnection"], Awaitable[T]]


class AgentConnection(NamedTuple):
    client: A2aClient
    url: str
    target: str
    """As typed; empty for the hub itself."""


class ConnectionOptions(NamedTuple):
    home: str | None
    headers: tuple[str, ...]
    allow_private: bool
    timeout: float = SECONDS
    extensions: tuple[str, ...] = ()


def run_with_agent(target: str, options: ConnectionOptions, work: Work[T]) -> T:
    """Connects to the agent and runs `work`; a failure ends the command with one line."""
    from dragoman.a2a.protocol.errors import A2aError

    try:
        if "://" in target:
            return asyncio.run(_run_with_url(target, options, work))
        if ":" in target or "/" in target:
            fail(f'invalid agent name "{target}"; for a URL write http://{target}', USAGE)
        if options.headers:
            fail("--header needs an agent given by URL", USAGE)
        with connect_hub(options.home) as hub:
            return asyncio.run(_run_with_hub(target, options, hub, work))
    except A2aError as error:
        fail(error.message, CODES.get(error.reason, 6))


async def _run_with_url(target: str, options: ConnectionOptions, work: Work[T]) -> T:
    from dragoman.a2a.client.client import A2aClient
    from dragoman.net.client import OutboundHttp

    net = OutboundHttp()
    try:
        http = net.open_configured(target, allow_private=options.allow_private)
    except ConfigError as error:  # the argument is wrong, not a file
        fail(str(error), USAGE)
    try:
        headers, extensions = dict(map(parse_header, options.headers)), options.extensions
        client = A2aClient(http, headers, options.timeout, registered=target, extensions=extensions)
        try:
            return await work(AgentConnection(client, target, target))
        finally:
            await client.close()
    finally:
        await net.close()


async def _run_with_hub(
    target: str, options: ConnectionOptions, hub: HubClient, work: Work[T]
) -> T:
    from dragoman.a2a.client.client import A2aClient
    from dragoman.net.client import OutboundHttp

    settings = _load_settings(hub)
    path = settings.listen_path.rstrip("/")
    daemon = find_running_hub(hub.home)
    if daemon is None:
        fail("the hub did not answer; see: dragoman status", NO_HUB)
    origin = daemon.url or LOCAL_URL
    net = OutboundHttp(socket_path=daemon.socket)
    http = HubHttpClient(net.open_configured(origin, allow_private=True), origin)
    # The URL of the card itself, so that a missing card is not looked for at the origin.
    url = f"{origin}{path}/{quote(target, safe='')}/.well-known/agent-card.json"
    client = A2aClient(http, {}, options.timeout, extensions=options.extensions)
    is_configured = any(one.name == target and one.enabled for one in settings.external_agents)
    until = time.monotonic() + (FIND_SECONDS if is_configured else 0)
    try:
        if not target:
            url = await _adopt_common_url(client, origin, path)
            return await work(AgentConnection(client, url, target))
        while True:
            try:
                await client.discover(url)
                break
            except BadReply:
                if time.monotonic() < until:
                    await asyncio.sleep(0.1)
                    continue
                names = list_hub_agents(daemon.socket, path)
                hint = suggest(target, names) or f"known: {', '.join(names[:20]) or 'none'}"
                fail(f'the hub has no agent "{target}"; {hint}', NOT_FOUND)
        return await work(AgentConnection(client, url, target))
    finally:
        await client.close()
        await net.close()


async def _adopt_common_url(client: A2aClient, origin: str, path: str) -> str:
    """Returns the URL at which the hub has the tasks of all its agents. No card names it: that of
    the default agent is adopted with this address."""
    from dragoman.core.structs import replace

    url = f"{origin}{path}"
    found = await client.discover(f"{origin}/.well-known/agent-card.json")
    interface = {"url": url, "protocolBinding": "JSONRPC", "protocolVersion": "1.0"}
    card = {**found.card, "supportedInterfaces": [interface]}
    client.adopt_card(url, replace(found, asked=url, url=url, raw=card, card=card))
    return url


def _load_settings(hub: HubClient) -> Any:
    from dragoman.config import load

    settings = load(Path(hub.home) / "config.toml").a2a
    if not settings.enabled:
        fail("A2A is off: set enabled = true below [a2a] in config.toml", 7)
    return settings


def list_hub_agents(socket_path: str, path: str) -> list[str]:
    try:
        listed = request_json(socket_path, "GET", f"{path}/agents", None, SECONDS)["agents"]
        return [str(agent["name"]) for agent in listed]
    except (HubUnavailable, HubProblem, KeyError, TypeError):
        return []


class HubHttpClient:
    """Implements `wire.http.HttpClient` over the hub's socket. Cards may name the hub's public URL,
    so every request goes to `origin`, the hub's own address."""

    def __init__(self, http: HttpClient, origin: str) -> None:
        self._http = http
        self._origin = origin

    async def request(
        self,
        method: str,
        url: str,
        headers: Mapping[str, str],
        body: bytes = b"",
        *,
        timeout: float,
        extra_headers: Mapping[str, str] = NO_HEADERS,
    ) -> HttpReply:
        parts = urlsplit(url)
        own = f"{self._origin}{parts.path}" + (f"?{parts.query}" if parts.query else "")
        return await self._http.request(
            method, own, headers, body, timeout=timeout, extra_headers=extra_headers
        )
