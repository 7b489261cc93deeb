"""A server made with SDK 2.x: it speaks both eras and asks by requests.

    python dual_server.py                       over stdio
    python dual_server.py --http                over Streamable HTTP; prints {"port": …, "url": …}

Such a request exists in the handshake era alone. `count` counts the calls of one session, and
`grow` adds a tool to the process it runs in.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import socket
from typing import Any
from weakref import WeakKeyDictionary

import uvicorn
from mcp.server.mcpserver import Context, MCPServer
from pydantic import BaseModel

server = MCPServer("dual")
COUNTS: WeakKeyDictionary[Any, int] = WeakKeyDictionary()


class Name(BaseModel):
    name: str


@server.tool()
async def ask(ctx: Context) -> str:
    answer = await ctx.elicit("Who are you?", Name)
    return f"{answer.action} {answer.data.name if answer.action == 'accept' else ''}".strip()


@server.tool()
async def spoken(ctx: Context) -> str:
    """The revision that this request is of, and the process that has it."""
    return f"{ctx.request_context.protocol_version} {os.getpid()}"


@server.tool()
async def count(ctx: Context) -> int:
    session = ctx.session._connection
    COUNTS[session] = COUNTS.get(session, 0) + 1
    return COUNTS[session]


def extra() -> str:
    return "grown"


@server.tool()
async def grow(ctx: Context) -> str:
    server.add_tool(extra, name="extra")
    await ctx.session.send_tool_list_changed()
    return "more"


async def serve_http() -> None:
    listener = socket.create_server(("127.0.0.1", 0))
    port = listener.getsockname()[1]
    print(json.dumps({"port": port, "url": f"http://127.0.0.1:{port}/mcp"}), flush=True)
    config = uvicorn.Config(server.streamable_http_app(), log_level="error")
    await uvicorn.Server(config).serve(sockets=[listener])


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--http", action="store_true")
    if parser.parse_args().http:
        asyncio.run(serve_http())
    else:
        server.run("stdio")
