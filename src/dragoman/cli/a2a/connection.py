"""Whom an `a2a` command talks to: an agent of the hub, over its Unix socket, or any by its URL."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar
from urllib.parse import quote, urlsplit

from dragoman.cli.base.errors import NO_HUB, NOT_FOUND, USAGE, fail, fail_with
from dragoman.cli.base.hub_client import HubClient, connect_hub, find_running_hub, suggest
from dragoman.core.errors import BadReply, ConfigError, HubError, TimedOut, Unreachable
from dragoman.core.ports import NO_HEADERS, Reply

if TYPE_CHECKING:
    from dragoman.app.app import A2aClient

MAX_HEAD = 64 * 1024
CHUNK = 64 * 1024
SECONDS = 30.0
FIND_SECONDS = 10.0
"""How long an agent that a hub has just begun to look for is waited for."""
HERE = "http://localhost"

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
"""The exit code of each reason that A2A has for an error; 6 for the others."""

T = TypeVar("T")


class AgentConnection(NamedTuple):
    client: A2aClient
    url: str
    target: str
    """As it was typed; empty for the hub itself."""


class ConnectionOptions(NamedTuple):
    home: str | None
    headers: tuple[str, ...]
    allow_private: bool
    timeout: float = SECONDS
    extensions: tuple[str, ...] = ()


def run_with_agent(
    target: str, options: ConnectionOptions, work: Callable[[AgentConnection], Awaitable[T]]
) -> T:
    """Does `work` with the agent, and ends the command with one sentence where that fails."""
    from dragoman.app.app import A2aError

    try:
        if "://" in target:
            return asyncio.run(_run_with_url(target, options, work))
        if ":" in target or "/" in target:
            fail(f'"{target}" is no name of an agent; for a URL write http://{target}', USAGE)
        if options.headers:
            fail("--header is for agents that are named by their URL", USAGE)
        with connect_hub(options.home) as hub:
            return asyncio.run(_run_with_hub(target, options, hub, work))
    except A2aError as error:
        fail(error.message, CODES.get(error.reason, 6))
    except HubError as error:
        fail_with(error)


async def _run_with_url(
    target: str, options: ConnectionOptions, work: Callable[[AgentConnection], Awaitable[T]]
) -> T:
    from dragoman.app.app import A2aClient, OutboundHttp

    net = OutboundHttp()
    try:
        http = net.open_configured(target, allow_private=options.allow_private)
    except ConfigError as error:  # here it is no file that is wrong
        fail(str(error), USAGE)
    try:
        client = A2aClient(
            http,
            _parse_headers(options.headers),
            options.timeout,
            registered=target,
            extensions=options.extensions,
        )
        try:
            return await work(AgentConnection(client, target, target))
        finally:
            await client.close()
    finally:
        await net.close()


def _parse_headers(lines: tuple[str, ...]) -> dict[str, str]:
    headers = {}
    for line in lines:
        name, colon, value = line.partition(":")
        if not colon or not name.strip():
            fail(f'--header "{name[:40]}" is not of the form "Name: value"', USAGE)
        headers[name.strip()] = value.strip()
    return headers


# --- the hub --------------------------------------------------------------------------------------


async def _run_with_hub(
    target: str,
    options: ConnectionOptions,
    hub: HubClient,
    work: Callable[[AgentConnection], Awaitable[T]],
) -> T:
    from dragoman.app.app import A2aClient

    settings = _load_settings(hub)
    path = settings.listen_path.rstrip("/")
    daemon = find_running_hub(hub.home)
    if daemon is None:
        fail("the hub did not answer; see: dragoman status", NO_HUB)
    here = daemon.url or HERE
    http = SocketHttp(daemon.socket, urlsplit(here).netloc)
    # By its card's own address: what is not there is not looked for at the origin.
    name = f"/{quote(target, safe='')}" if target else ""
    url = f"{here}{path}{name}/.well-known/agent-card.json"
    client = A2aClient(http, {}, options.timeout, extensions=options.extensions)
    awaited = any(one.name == target and one.enabled for one in settings.external_agents)
    until = time.monotonic() + (FIND_SECONDS if awaited else 0)
    while True:
        try:
            await client.discover(url)
            break
        except BadReply:
            if time.monotonic() < until:
                await asyncio.sleep(0.1)
                continue
            if not target:
                raise
            names = await list_hub_agents(http, path)
            near = suggest(target, names)
            hint = near or (f"there are: {', '.join(names[:20])}" if names else "it has none")
            fail(f'there is no agent "{target}" at this hub; {hint}', NOT_FOUND)
    return await work(AgentConnection(client, url, target))


def _load_settings(hub: HubClient) -> Any:
    from dragoman.config import load

    try:
        settings = load(Path(hub.home) / "config.toml").a2a
    except HubError as error:
        fail_with(error)
    if not settings.enabled:
        fail("this hub does not speak A2A; set enabled = true in [a2a] of its config.toml", 7)
    return settings


async def list_hub_agents(http: SocketHttp, path: str) -> list[str]:
    try:
        reply = await http.request("GET", f"{HERE}{path}/agents", {}, timeout=SECONDS)
        listed = json.loads(await reply.body.read(10 * CHUNK * 16)).get("agents", [])
    except (HubError, ValueError, AttributeError):
        return []
    return [str(agent.get("name")) for agent in listed if isinstance(agent, dict)]


class SocketHttp:
    """Implements `ports.HttpClient`: whatever the host, it is the hub behind this socket. One
    connection a request; the hub's answers have a length or come in chunks."""

    def __init__(self, path: str, host: str = "localhost") -> None:
        """`host` is the hub's own name: addresses in its cards begin with it."""
        self._path = path
        self._host = host

    async def request(
        self,
        method: str,
        url: str,
        headers: Mapping[str, str],
        body: bytes = b"",
        *,
        timeout: float,
        extra_headers: Mapping[str, str] = NO_HEADERS,
    ) -> Reply:
        parts = urlsplit(url)
        target = parts.path + (f"?{parts.query}" if parts.query else "")
        lines = [f"{method} {target} HTTP/1.1", f"host: {self._host}", "connection: close"]
        lines += [f"{name}: {value}" for name, value in {**headers, **extra_headers}.items()]
        lines += [f"content-length: {len(body)}", "", ""]
        try:
            async with asyncio.timeout(timeout):
                reader, writer = await asyncio.open_unix_connection(self._path, limit=MAX_HEAD)
                writer.write("\r\n".join(lines).encode("latin-1") + body)
                head = await reader.readuntil(b"\r\n\r\n")
        except TimeoutError:
            raise TimedOut(f"the hub did not answer within {timeout:g} s") from None
        except (OSError, asyncio.IncompleteReadError, asyncio.LimitOverrunError) as error:
            raise Unreachable(f"the hub did not answer: {error}") from None
        status, fields = _head(head)
        return Reply(status, fields, _Body(reader, writer, fields))


def _head(head: bytes) -> tuple[int, dict[str, str]]:
    first, *lines = head.decode("latin-1").split("\r\n")
    fields = {}
    for line in lines:
        name, _, value = line.partition(":")
        fields[name.strip().lower()] = value.strip()
    try:
        return int(first.split(" ")[1]), fields
    except (IndexError, ValueError):
        raise BadReply("the hub answered with what is no HTTP") from None


class _Body:
    def __init__(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, fields: Mapping[str, str]
    ) -> None:
        self._reader = reader
        self._writer = writer
        self._chunked = "chunked" in fields.get("transfer-encoding", "").lower()
        self._length = int(fields.get("content-length") or 0)

    async def read(self, limit: int) -> bytes:
        data = b""
        async for chunk in self.chunks():
            data += chunk
            if len(data) > limit:
                raise BadReply(f"the hub answered with more than {limit} bytes")
        return data

    async def chunks(self) -> AsyncIterator[bytes]:
        try:
            while self._chunked:
                size = int((await self._reader.readline()).strip() or b"0", 16)
                if size == 0:
                    return
                chunk = await self._reader.readexactly(size + 2)
                yield chunk[:-2]
            while self._length > 0:
                chunk = await self._reader.read(min(self._length, CHUNK))
                if not chunk:
                    raise Unreachable("the hub broke its answer off")
                self._length -= len(chunk)
                yield chunk
        except (OSError, asyncio.IncompleteReadError, ValueError) as error:
            raise Unreachable(f"the connection to the hub was lost: {error}") from None
        finally:
            self.close()

    def close(self) -> None:
        self._writer.close()
