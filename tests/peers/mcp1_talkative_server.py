"""A FastMCP server of mcp 1.x that asks, logs and changes its lists; for the python of .venv-mcp1.

As its SDK does, it declares that it never announces changes of its lists. Over HTTP it says where
it is in one line of JSON on stdout.
"""

from __future__ import annotations

import argparse
import json
import socket
import sys
from typing import Any

import anyio
import uvicorn
from mcp.server.fastmcp import Context, FastMCP
from mcp.shared.exceptions import McpError
from mcp.types import (
    CancelledNotification,
    CancelledNotificationParams,
    SamplingMessage,
    ServerNotification,
    TextContent,
)

FORM = {"type": "object", "properties": {"name": {"type": "string"}}}


async def ask(kind: str, ctx: Context) -> Any:
    session = ctx.session
    if kind == "elicitation":
        return await session.elicit_form("Who?", FORM, ctx.request_id)
    if kind == "sampling":
        content = TextContent(type="text", text="Which city?")
        messages = [SamplingMessage(role="user", content=content)]
        related = ctx.request_id
        return await session.create_message(messages, max_tokens=5, related_request_id=related)
    if kind == "ping":
        return await session.send_ping()
    return await session.list_roots()  # not on the stream of the call


def make(options: argparse.Namespace) -> FastMCP:
    server = FastMCP("talkative", log_level="ERROR", stateless_http=options.stateless)
    seen: list[str] = []

    @server.tool(structured_output=False)
    def echo(text: str) -> str:
        """The tool echo"""
        return text

    @server.tool(structured_output=False)
    async def ask_or_go_on(kind: str, ctx: Context) -> str:
        """Asks the client; where that refuses, goes on without an answer."""
        try:
            answer = await ask(kind, ctx)
        except McpError as error:
            return f"without an answer: {error.error.code} {error.error.message}"
        return f"with an answer: {answer.model_dump_json(exclude_none=True)}"

    @server.tool(structured_output=False)
    async def ask_and_leave(withdraw: bool, ctx: Context) -> str:
        """Asks the client and does not wait for the answer."""
        number = ctx.session._request_id
        with anyio.move_on_after(0.4):  # until the client has it
            await ask("elicitation", ctx)
        if withdraw:
            params = CancelledNotificationParams(requestId=number, reason="not needed")
            cancelled = CancelledNotification(params=params)
            await ctx.session.send_notification(ServerNotification(cancelled), ctx.request_id)
        return "went on"

    @server.tool(structured_output=False)
    async def send_away(ctx: Context) -> str:
        """Sends the user to an address, and sees itself that the user was there."""
        session, related = ctx.session, ctx.request_id
        async with anyio.create_task_group() as group:
            address = "https://example.com/login"
            group.start_soon(session.elicit_url, "Log in", address, "login-1", related)
            for _ in range(4):
                await anyio.sleep(0.05)
                await session.send_elicit_complete("login-1", related)
            group.cancel_scope.cancel()
        return "went on"

    @server.tool(structured_output=False)
    async def log(level: str, text: str, ctx: Context) -> str:
        """Writes a line to the log that belongs to no call."""
        await ctx.session.send_log_message(level, text, "talkative")  # type: ignore[arg-type]
        return "logged"

    @server.tool(structured_output=False)
    async def grow(name: str, announce: bool, ctx: Context) -> str:
        """Adds a tool and may say so; an existing one changes nothing."""
        if name not in seen:
            seen.append(name)
            server.add_tool(lambda: f"I am {name}", name=name, description=name)
        if announce:
            await ctx.session.send_tool_list_changed()
        return "grown"

    @server.tool(structured_output=False)
    def looked() -> str:
        """How often the tools were listed."""
        return str(lists[0])

    lists = [0]
    listed = server._mcp_server.request_handlers
    for request, handle in list(listed.items()):
        if request.__name__ == "ListToolsRequest":

            async def count(asked: Any, handle: Any = handle) -> Any:
                lists[0] += 1
                return await handle(asked)

            listed[request] = count
    for name in options.tool:
        server.add_tool(lambda: "extra", name=name, description=name)
    return server


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--transport", choices=["stdio", "http"], default="stdio")
    parser.add_argument("--port", type=int, default=0)
    parser.add_argument("--stateless", action="store_true")
    parser.add_argument("--tool", action="append", default=[], help="one more tool")
    options = parser.parse_args()
    server = make(options)
    if options.transport == "stdio":
        server.run("stdio")
        return
    listener = socket.socket()
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    listener.bind(("127.0.0.1", options.port))
    listener.listen(128)
    port = listener.getsockname()[1]
    sys.stdout.write(json.dumps({"port": port, "url": f"http://127.0.0.1:{port}/mcp"}) + "\n")
    sys.stdout.flush()
    app = server.streamable_http_app()
    config = uvicorn.Config(app, log_level="error", timeout_graceful_shutdown=1)
    uvicorn.Server(config).run(sockets=[listener])


if __name__ == "__main__":
    main()
