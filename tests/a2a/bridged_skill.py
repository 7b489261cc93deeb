"""A scripted agent with skills, and a hub that lists them as tools."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Any

from tests.a2a.scripted_agent import Request, ScriptedAgent, card_10, scripted_agent
from tests.permissive_hub import build_permissive_hub, call_tool

from dragoman.a2a.config import ExternalAgent
from dragoman.a2a.remote.remote_agent import RemoteAgent
from dragoman.core.bus import Bus
from dragoman.core.call import Call, Result, Update
from dragoman.core.catalog import Catalog, admit_all
from dragoman.core.hub import Hub
from dragoman.core.pipeline import Next
from dragoman.core.principal import OWNER
from dragoman.core.tool_filter import EVERYTHING
from dragoman.guards.timeout import Timeout
from dragoman.guards.validate import Validate, compile_schema
from dragoman.net.client import OutboundHttp

DEPLOY = {
    "id": "deploy",
    "name": "Deploy",
    "description": "Puts a branch into production",
    "tags": [],
    "inputSchema": {
        "type": "object",
        "properties": {"projectId": {"type": "string"}, "branch": {"type": "string"}},
        "required": ["projectId"],
    },
}
ARGS = {"projectId": "proj_abc", "branch": "main"}
FEATURES: dict[str, Any] = {"elicitation": {"form": {}, "url": {}}}


def card_03(url: str, **more: Any) -> dict[str, Any]:
    return {
        "protocolVersion": "0.3.0",
        "name": "Vercel Ops",
        "description": "Operates",
        "version": "1",
        "url": url,
        "preferredTransport": "JSONRPC",
        "capabilities": {},
        "defaultInputModes": ["application/json"],
        "defaultOutputModes": ["application/json"],
        "skills": [DEPLOY],
        **more,
    }


def card_of_10(url: str, **more: Any) -> dict[str, Any]:
    modes = {"defaultInputModes": ["application/json"]}
    return card_10(url, **{"skills": [DEPLOY], **modes, **more})


Answer = Callable[[Request], Awaitable[None] | None]
SENDS = ("SendMessage", "SendStreamingMessage", "message/send", "message/stream")


def serve_card(answer: Answer, card: Callable[[str], Mapping[str, Any]] | None) -> Answer:
    """Shows its card, has no task that it is asked for in vain, and leaves the rest to `answer`;
    without a card, everything."""
    if card is None:
        return answer

    def handle(request: Request) -> Awaitable[None] | None:
        if "/.well-known/" in request.path:
            request.reply(200, card(f"http://{request.headers['host']}/rpc"))
            return None
        known = request.rpc in SENDS or (request.params or {}).get("id") == "t1"
        if known:
            return answer(request)
        request.fail(-32001)
        return None

    return handle


class BridgedAgent:
    def __init__(self, hub: Hub, agent: RemoteAgent, server: ScriptedAgent) -> None:
        self.hub = hub
        self.agent = agent
        self.server = server
        self.updates: list[Update] = []
        self.calls: list[Call] = []

    async def call(
        self, arguments: Mapping[str, Any] = ARGS, name: str = "vercel_ops.deploy", **more: Any
    ) -> Result:
        more = {"features": FEATURES, **more}
        return await call_tool(
            self.hub,
            OWNER,
            name,
            arguments,
            door="test",
            view=EVERYTHING,
            updates=self.updates.append,
            **more,
        )

    @property
    def sent(self) -> list[Request]:
        return [request for request in self.server.requests if request.rpc in SENDS]


@asynccontextmanager
async def bridged(
    answer: Answer,
    card: Callable[[str], Mapping[str, Any]] | None = card_03,
    *,
    headers: Mapping[str, str] | None = None,
    limits: tuple[float, float, float] = (60.0, 60.0, 60.0),
    timeout: float | None = None,
    **entry: Any,
) -> AsyncIterator[BridgedAgent]:
    net = OutboundHttp()
    calls: list[Call] = []

    async def noted(next: Next, call: Call) -> Result:
        calls.append(call)
        return await next(call)

    hub = build_permissive_hub(
        Catalog(review=admit_all), Bus(), [noted, Validate(), Timeout(*limits)]
    )
    async with scripted_agent(serve_card(answer, card)) as server:
        agent = RemoteAgent(
            ExternalAgent(**{"name": "Vercel Ops", "url": server.url, **entry}),
            lambda url, private: net.open_configured(url, allow_private=private),
            hub.catalog,
            compile_schema,
            headers=headers or {},
            signatures="ignore",
            timeout=timeout,
        )
        ground = BridgedAgent(hub, agent, server)
        ground.calls = calls
        try:
            async with asyncio.timeout(60):
                agent.offer(await agent.client.find_probed(server.url), "agent-1")
                yield ground
        finally:
            await agent.stop()
            await net.close()
