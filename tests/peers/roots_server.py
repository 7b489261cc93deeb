"""A stdio server made with the SDK that works in its client's folders, as the filesystem server.

It asks for the roots once the session has begun, and looks at them for a while after the answer:
until then `allowed` knows none of them.
"""

from __future__ import annotations

import asyncio
from typing import Any

import anyio
import mcp.types as t
from mcp.server.context import ServerRequestContext
from mcp.server.lowlevel.server import Server
from mcp.server.stdio import stdio_server

FOLDERS: list[str] = []
TASKS: set[asyncio.Task[None]] = set()
LOOK_SECONDS = 0.03


async def learn_roots(session: Any) -> None:
    found = [str(root.uri) for root in (await session.list_roots()).roots]
    await asyncio.sleep(LOOK_SECONDS)
    FOLDERS[:] = found


async def watch(ctx: Any, call_next: Any) -> Any:
    result = await call_next(ctx)
    if ctx.method == "notifications/initialized":
        TASKS.add(asyncio.create_task(learn_roots(ctx.session)))
    return result


async def on_list(ctx: ServerRequestContext[Any, Any], params: Any) -> Any:
    return t.ListToolsResult(tools=[t.Tool(name="allowed", input_schema={"type": "object"})])


async def on_call(ctx: ServerRequestContext[Any, Any], params: Any) -> Any:
    text = " ".join(FOLDERS) or "none"
    return t.CallToolResult(content=[t.TextContent(type="text", text=text)])


async def main() -> None:
    server: Server[Any] = Server("folders", on_list_tools=on_list, on_call_tool=on_call)
    server.middleware.append(watch)
    async with stdio_server() as (read, write):
        await server.run(read, write, server.create_initialization_options())


if __name__ == "__main__":
    anyio.run(main)
