"""An SDK 2.x server over stdio that announces changes of notes without declaring resources: it has
one tool and serves `subscriptions/listen`.
"""

from __future__ import annotations

from typing import Any

import anyio
import mcp.types as t
from mcp.server.context import ServerRequestContext
from mcp.server.lowlevel import Server
from mcp.server.stdio import stdio_server
from mcp.server.subscriptions import InMemorySubscriptionBus, ListenHandler, ResourceUpdated

BUS = InMemorySubscriptionBus()


async def list_tools(
    ctx: ServerRequestContext[Any], params: t.PaginatedRequestParams | None
) -> t.ListToolsResult:
    return t.ListToolsResult(tools=[t.Tool(name="edit", input_schema={"type": "object"})])


async def call_tool(
    ctx: ServerRequestContext[Any], params: t.CallToolRequestParams
) -> t.CallToolResult:
    await BUS.publish(ResourceUpdated(uri="note://todo"))
    return t.CallToolResult(content=[t.TextContent(text="saved")])


async def main() -> None:
    server: Server[Any] = Server(
        "listen",
        on_list_tools=list_tools,
        on_call_tool=call_tool,
        on_subscriptions_listen=ListenHandler(BUS),
    )
    async with stdio_server() as (reading, writing):
        await server.run(reading, writing, server.create_initialization_options())


anyio.run(main)
