"""An MCP client made with the official SDK (mcp 2.x): lists, calls, prints one JSON object.

    sdk_client.py --http URL | --sse URL | --stdio COMMAND ARG...   (the last takes all that follow)

Printed: `version`, `server`, `capabilities`, `instructions`, `tools`, after `--call` `result` or
`error`, and `progress`, and with `--watch` the tools as they are after a list_changed has come
(`tools_after`).
Where there was no conversation at all: `failed`, and the exit code is 1.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
from contextlib import AsyncExitStack
from typing import Any

import httpx2
import mcp.types as t
from mcp.client.sse import sse_client
from mcp.client.streamable_http import streamable_http_client
from mcp.shared.exceptions import MCPError

from mcp import Client, StdioServerParameters


def plain(model: Any) -> Any:
    return model.model_dump(by_alias=True, mode="json", exclude_none=True) if model else None


async def target(stack: AsyncExitStack, options: argparse.Namespace) -> Any:
    pairs = (header.partition(":") for header in options.header)
    headers = {name: value.strip() for name, _, value in pairs}
    if options.http:
        http = await stack.enter_async_context(httpx2.AsyncClient(headers=headers, timeout=60))
        return streamable_http_client(options.http, http_client=http, max_sse_event_size=None)
    if options.sse:
        return sse_client(options.sse, headers=headers)
    command, *rest = options.stdio
    environment = dict(entry.split("=", 1) for entry in options.env)
    return StdioServerParameters(command=command, args=rest, env=environment)


async def all_tools(client: Client) -> list[Any]:
    tools, cursor = [], None
    while True:
        page = await client.list_tools(cursor=cursor)
        tools += [plain(tool) for tool in page.tools]
        cursor = page.next_cursor
        if cursor is None:
            return tools


def answers(options: argparse.Namespace) -> dict[str, Any]:
    """What answers the questions of servers."""

    async def elicit(context: Any, params: t.ElicitRequestParams) -> t.ElicitResult:
        return t.ElicitResult(action="accept", content={"name": options.answers})

    async def sample(context: Any, params: Any) -> t.CreateMessageResult:
        said = t.TextContent(type="text", text=options.answers)
        return t.CreateMessageResult(role="assistant", content=said, model="none")

    return {"elicitation_callback": elicit, "sampling_callback": sample} if options.answers else {}


async def call(client: Client, options: argparse.Namespace, seen: dict[str, Any]) -> None:
    async def on_progress(progress: float, total: float | None, message: str | None) -> None:
        seen["progress"].append([progress, total, message])

    try:
        result = await client.call_tool(
            options.call,
            json.loads(options.arguments),
            read_timeout_seconds=options.timeout,
            progress_callback=on_progress,
            meta=json.loads(options.meta) if options.meta else None,
        )
        seen["result"] = plain(result)
    except MCPError as error:
        seen["error"] = plain(error.error)


async def converse(options: argparse.Namespace) -> dict[str, Any]:
    seen: dict[str, Any] = {"progress": []}
    changed = asyncio.Event()

    async def on_message(message: Any) -> None:
        if isinstance(message, t.ToolListChangedNotification):
            changed.set()

    async with AsyncExitStack() as stack:
        client = await stack.enter_async_context(
            Client(
                await target(stack, options),
                mode=options.mode,
                message_handler=on_message,
                cache=None,
                **answers(options),
            )
        )
        seen["version"] = client.protocol_version
        seen["server"] = plain(client.server_info)
        seen["capabilities"] = plain(client.server_capabilities)
        seen["instructions"] = client.instructions
        seen["tools"] = await all_tools(client)
        subscription: Any = None
        if options.watch and client.protocol_version >= "2026":
            subscription = await stack.enter_async_context(client.listen(tools_list_changed=True))
        if options.call:
            await call(client, options, seen)
        if options.watch:
            await asyncio.wait_for(anext(subscription) if subscription else changed.wait(), 60)
            seen["tools_after"] = await all_tools(client)
    return seen


def conversation(*args: object) -> dict[str, Any]:
    """What would be printed for these arguments."""
    options = parse([str(arg) for arg in args])
    try:
        return asyncio.run(converse(options))
    except Exception as error:
        while isinstance(error, ExceptionGroup):
            error = error.exceptions[0]
        return {"failed": f"{type(error).__name__}: {error}"}


def parse(args: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    where = parser.add_mutually_exclusive_group(required=True)
    where.add_argument("--http", metavar="URL")
    where.add_argument("--sse", metavar="URL")
    where.add_argument("--stdio", nargs=argparse.REMAINDER)
    parser.add_argument("--mode", default="auto", help="auto, legacy or 2026-07-28")
    parser.add_argument("--header", action="append", default=[], metavar="NAME:VALUE")
    parser.add_argument("--env", action="append", default=[], metavar="NAME=VALUE")
    parser.add_argument("--call", metavar="TOOL")
    parser.add_argument("--arguments", default="{}", metavar="JSON")
    parser.add_argument("--meta", metavar="JSON")
    parser.add_argument("--timeout", type=float, default=30.0)
    parser.add_argument("--answers", metavar="TEXT", help="answer questions with this")
    parser.add_argument("--watch", action="store_true", help="wait for a list_changed at the end")
    return parser.parse_args(args)


def main() -> None:
    seen = conversation(*sys.argv[1:])
    json.dump(seen, sys.stdout)
    sys.stdout.write("\n")
    sys.exit("failed" in seen)


if __name__ == "__main__":
    main()
