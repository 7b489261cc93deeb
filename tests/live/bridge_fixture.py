"""A hub with two external agents (1.0 by the official SDK, 0.3 handwritten), and the official MCP
SDK as the client of their skills.
"""

from __future__ import annotations

import asyncio
import json
import shutil
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from uuid import uuid4

import httpx2
import mcp.types as t
from mcp.client.streamable_http import streamable_http_client
from tests.live.conftest import DRAGOMAN, RunningHub
from tests.peers.forked import run_forked
from tests.peers.process import HttpPeer, read_log, toml

from mcp import Client, StdioServerParameters

SECONDS = 30.0
VERSIONS = {"legacy": "2025-11-25", "2026-07-28": "2026-07-28"}
EXPOSE = '[mcp]\nstdio_expose = ["*"]\n'


def external(name: str, url: str, **keys: Any) -> str:
    """`[[a2a.external_agents]]`."""
    entry = {"name": name, "url": url, **keys}
    lines = [f"{key} = {toml(value)}" for key, value in entry.items()]
    return "\n".join(["[[a2a.external_agents]]", *lines, ""])


@dataclass(frozen=True)
class Agents:
    """`new` speaks 1.0, `old` speaks 0.3; each has the skills echo and ask."""

    urls: Mapping[str, str]
    folder: Path

    def config(self) -> str:
        return "[a2a]\nenabled = true\n" + "".join(external(*one) for one in self.urls.items())

    def log(self, name: str) -> list[dict[str, Any]]:
        return read_log(self.folder / name)

    def tasks(self, name: str) -> set[str]:
        return {one["task"] for one in self.log(name) if "task" in one}

    def since(self, name: str, before: int, event: str) -> list[dict[str, Any]]:
        return [one for one in self.log(name)[before:] if one["event"] == event]


@contextmanager
def two_agents() -> Iterator[Agents]:
    folder = Path(tempfile.mkdtemp(prefix="dgb", dir="/tmp"))
    try:
        with (
            HttpPeer("a2a_skill_agent", "--declare", "JSONRPC:1.0", "--log", folder / "new") as new,
            HttpPeer("a2a_v03_agent", "--log", folder / "old") as old,
        ):
            yield Agents({"new": new.url, "old": old.url}, folder)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def audit_of(home: Path) -> list[dict[str, Any]]:
    """Its records, whether a hub runs there or not."""
    line = [*DRAGOMAN, "audit", "tail", "--json", "-n", "1000", "--home", str(home)]
    done = run_forked(line, 20, text=True)
    assert done.returncode == 0, done.stderr
    return [json.loads(one) for one in done.stdout.splitlines()]


def tool_names(hub: RunningHub) -> set[str]:
    return {tool["name"] for tool in hub.rpc("tools/list")["result"]["tools"]}


# --- the client


@dataclass
class User:
    """An IDE user: the questions and the progress received."""

    client: Client
    asked: list[str] = field(default_factory=list)
    told: list[str] = field(default_factory=list)
    trace: str = field(default_factory=lambda: uuid4().hex)
    """All that he does is one trace, until he begins another."""

    traces: bool = True
    """Or the hub begins them."""

    def begin(self) -> str:
        self.asked.clear()
        self.told.clear()
        self.trace = uuid4().hex
        return self.trace

    @property
    def meta(self) -> Any:
        return {"traceparent": f"00-{self.trace}-{'12' * 8}-01"} if self.traces else None

    async def names(self) -> set[str]:
        found: set[str] = set()
        cursor = None
        while True:
            page = await self.client.list_tools(cursor=cursor)
            found |= {tool.name for tool in page.tools}
            cursor = page.next_cursor
            if cursor is None:
                return found

    async def call(self, tool: str, text: str) -> str:
        """The one text of the answer."""
        result = await self.client.call_tool(
            tool,
            {"text": text},
            read_timeout_seconds=SECONDS,
            progress_callback=self._progress,
            meta=self.meta,
        )
        assert not result.is_error, result
        (block,) = result.content
        assert isinstance(block, t.TextContent)
        return block.text

    async def _progress(self, progress: float, total: float | None, message: str | None) -> None:
        self.told.append(message or "")


@asynccontextmanager
async def using(where: Any, mode: str) -> AsyncIterator[User]:
    """A client of that era which answers every question with "blue"."""

    async def answer(context: Any, params: Any) -> t.ElicitResult:
        user.asked.append(params.message)
        (name,) = params.requested_schema["properties"]
        return t.ElicitResult(action="accept", content={name: "blue"})

    async with asyncio.timeout(60):
        client = Client(where, mode=mode, elicitation_callback=answer, cache=None)
        async with client:
            assert client.protocol_version == VERSIONS[mode]
            user = User(client)
            yield user


@asynccontextmanager
async def over_http(url: str, mode: str, headers: Mapping[str, str]) -> AsyncIterator[User]:
    async with httpx2.AsyncClient(headers=dict(headers), timeout=60) as http:
        streams = streamable_http_client(url, http_client=http, max_sse_event_size=None)
        async with using(streams, mode) as user:
            yield user


def over_stdio(home: Path) -> StdioServerParameters:
    """`dragoman mcp`, as an IDE starts it: beside a hub, or as one."""
    line = ["-m", "dragoman", "mcp", "--home", str(home)]
    return StdioServerParameters(command=sys.executable, args=line)


async def eventually(found: Callable[[], Any], seconds: float = SECONDS) -> Any:
    """What `found` gives once that is anything; it may be a coroutine function."""
    end = time.monotonic() + seconds
    while True:
        value = found()
        if asyncio.iscoroutine(value):
            value = await value
        if value:
            return value
        if time.monotonic() > end:
            raise TimeoutError(f"not so within {seconds} s: {value!r}")
        await asyncio.sleep(0.02)
