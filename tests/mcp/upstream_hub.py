"""A hub with real MCP servers behind it and no server of its own: tests make the calls directly."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

from tests.peers.process import command
from tests.permissive_hub import build_permissive_hub, call_tool

from dragoman.core.bus import Bus
from dragoman.core.call import Result, Update, WantedUpdates
from dragoman.core.catalog import admit_all, build_catalogs
from dragoman.core.events import ClientGone, ResourceUpdated
from dragoman.core.name_claims import NameClaims
from dragoman.core.pipeline import Stage
from dragoman.core.principal import OWNER, Principal
from dragoman.core.question_handles import QuestionHandles
from dragoman.core.tool import TOOL
from dragoman.core.tool_filter import EVERYTHING
from dragoman.guards.questions import Questions
from dragoman.guards.timeout import Timeout
from dragoman.guards.validate import compile_schema
from dragoman.mcp.client.connector import Connector
from dragoman.mcp.client.limits import UpstreamLimits
from dragoman.mcp.client.server_start import Installations
from dragoman.mcp.client.upstream import Upstream
from dragoman.mcp.client.upstream_manager import UpstreamManager
from dragoman.mcp.config import (
    HttpTransport,
    ServerEntry,
    SseTransport,
    StdioTransport,
)
from dragoman.net.client import OutboundHttp

EVERYTHING_ASKED: dict[str, Any] = {
    "elicitation": {"form": {}, "url": {}},
    "sampling": {},
    "roots": {},
}


class UpstreamHub:
    def __init__(self, place: Path, limits: UpstreamLimits) -> None:
        self.bus = Bus()
        handles = QuestionHandles(b"k" * 32, limits.question_secs)
        catalogs = build_catalogs(admit_all, NameClaims())
        self.servers = UpstreamManager(self._make, catalogs, self.bus)
        stages: list[Stage] = [Questions(handles), Timeout(60)]
        self.hub = build_permissive_hub(catalogs, self.bus, stages, refresher=self.servers)
        self.net = OutboundHttp()
        self._connector = Connector(
            place,
            f"hub{os.getpid()}",
            os.environ,
            lambda url, private: self.net.open_configured(url, allow_private=private),
        )
        self._limits = limits
        self._installations = Installations(place)
        self.made: dict[str, Upstream] = {}
        self.updated: list[str] = []
        self.bus.observe(ResourceUpdated, lambda event: self.updated.append(event.name))

    def _make(self, entry: ServerEntry) -> Upstream:
        made = self.made[entry.name] = Upstream(
            entry,
            self._connector,
            self.hub.catalogs,
            self.bus,
            partial(compile_schema, check=entry.check_arguments),
            self._limits,
            installations=self._installations,
        )
        return made

    async def add(self, *entries: ServerEntry) -> Upstream:
        await self.servers.apply(entries)
        async with asyncio.timeout(60):
            await self.servers.wait_settled()
        upstream = self.made[entries[0].name]
        assert upstream.connection.session is not None, upstream.connection.reason
        return upstream

    async def call(
        self,
        name: str,
        arguments: Mapping[str, Any] | None = None,
        *,
        kind: str = TOOL,
        principal: Principal = OWNER,
        updates: Callable[[Update], None] | None = None,
        wanted_updates: WantedUpdates | None = None,
        **more: Any,
    ) -> Result:
        if updates is not None and wanted_updates is not None:
            more.update(updates=updates, wanted_updates=wanted_updates)
        async with asyncio.timeout(60):
            return await call_tool(
                self.hub,
                principal,
                name,
                arguments or {},
                kind=kind,
                door="test",
                view=EVERYTHING,
                **more,
            )

    def leave(self, client: str) -> None:
        self.bus.emit(ClientGone(client))


@asynccontextmanager
async def run_hub(place: Path, **limits: Any) -> AsyncIterator[UpstreamHub]:
    made = UpstreamHub(place, UpstreamLimits(**{"question_secs": 60.0, **limits}))
    try:
        yield made
    finally:
        await made.servers.stop()
        await made.net.close()


def stdio(name: str, program: str, *args: object, **keys: Any) -> ServerEntry:
    line = command(program, *args)
    how = StdioTransport(command=line[0], args=line[1:])
    return ServerEntry(name=name, transport=how, **keys)


def http(name: str, url: str, **keys: Any) -> ServerEntry:
    made = SseTransport if url.endswith("/sse") else HttpTransport
    return ServerEntry(name=name, transport=made(url=url), **keys)


async def until(true: Callable[[], object], seconds: float = 60.0) -> None:
    """Until that holds, within bounds."""
    async with asyncio.timeout(seconds):
        while not true():
            await asyncio.sleep(0.01)


class Scripted:
    """A scripted server and the requests it received."""

    def __init__(self, place: Path, era: str, answers: Mapping[str, Any], **more: Any) -> None:
        self._script = place / "script.json"
        self._log = place / "sent.jsonl"
        script = {"era": era, "answers": {"tools/list": TOOLS, **answers}, **more}
        self._script.write_text(json.dumps(script))

    def entry(self, name: str = "s", **keys: Any) -> ServerEntry:
        program = Path(__file__).with_name("scripted_server.py")
        args = [str(program), str(self._script), str(self._log)]
        how = StdioTransport(command=sys.executable, args=args)
        return ServerEntry(name=name, transport=how, **keys)

    def sent(self, method: str | None = None) -> list[Any]:
        text = self._log.read_text() if self._log.exists() else ""
        lines = [json.loads(line) for line in text.splitlines(keepends=True) if line[-1] == "\n"]
        return [one for one in lines if method is None or one.get("method") == method]


TOOLS = {"tools": [{"name": "t", "inputSchema": {"type": "object"}}]}
"""What a scripted server lists unless it says otherwise."""
