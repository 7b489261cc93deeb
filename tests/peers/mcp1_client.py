"""An MCP client made with the previous SDK (mcp 1.x); to be run with the python of .venv-mcp1.

The same arguments and the same output as sdk_client.py, without `--mode`: lists, calls, and prints
what it got as one JSON object.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
from contextlib import AsyncExitStack
from datetime import timedelta
from typing import Any

from mcp.client.sse import sse_client
from mcp.client.stdio import stdio_client
from mcp.client.streamable_http import streamablehttp_client

from mcp import ClientSession, McpError, StdioServerParameters, types


def plain(model: Any) -> Any:
    return model.model_dump(by_alias=True, mode="json", exclude_none=True)


def transport(options: argparse.Namespace) -> Any:
    pairs = (header.partition(":") for header in options.header)
    headers = {name: value.strip() for name, _, value in pairs}
    if options.http:
        return streamablehttp_client(options.http, headers=headers)
    if options.sse:
        return sse_client(options.sse, headers=headers)
    command, *rest = options.stdio
    environment = dict(entry.split("=", 1) for entry in options.env)
    return stdio_client(StdioServerParameters(command=command, args=rest, env=environment))


async def all_tools(session: ClientSession) -> list[Any]:
    tools, cursor = [], None
    while True:
        page = await session.list_tools(cursor)
        tools += [plain(tool) for tool in page.tools]
        cursor = page.nextCursor
        if cursor is None:
            return tools


def answers(options: argparse.Namespace) -> dict[str, Any]:
    """What answers the questions of servers."""

    async def elicit(context: Any, params: types.ElicitRequestParams) -> types.ElicitResult:
        return types.ElicitResult(action="accept", content={"name": options.answers})

    async def sample(context: Any, params: Any) -> types.CreateMessageResult:
        said = types.TextContent(type="text", text=options.answers)
        return types.CreateMessageResult(role="assistant", content=said, model="none")

    return {"elicitation_callback": elicit, "sampling_callback": sample} if options.answers else {}


async def call_as_task(
    session: ClientSession, options: argparse.Namespace, seen: dict[str, Any]
) -> None:
    tasks = session.experimental
    made = await tasks.call_tool_as_task(options.call, json.loads(options.arguments))
    id = made.task.taskId
    seen["listed"] = [task.taskId for task in (await tasks.list_tasks()).tasks]
    async for state in tasks.poll_task(id):
        if state.status == "input_required":  # the request for the result brings the question
            break
    seen["task"] = id
    seen["result"] = plain(await tasks.get_task_result(id, types.CallToolResult))


async def call(session: ClientSession, options: argparse.Namespace, seen: dict[str, Any]) -> None:
    async def on_progress(progress: float, total: float | None, message: str | None) -> None:
        seen["progress"].append([progress, total, message])

    try:
        result = await session.call_tool(
            options.call,
            json.loads(options.arguments),
            read_timeout_seconds=timedelta(seconds=options.timeout),
            progress_callback=on_progress,
            meta=json.loads(options.meta) if options.meta else None,
        )
        seen["result"] = plain(result)
    except McpError as error:
        seen["error"] = plain(error.error)


async def converse(options: argparse.Namespace) -> dict[str, Any]:
    seen: dict[str, Any] = {"progress": []}
    changed = asyncio.Event()

    async def on_message(message: Any) -> None:
        root = getattr(message, "root", None)
        if isinstance(root, types.ToolListChangedNotification):
            changed.set()

    async with AsyncExitStack() as stack:
        streams = await stack.enter_async_context(transport(options))
        session = await stack.enter_async_context(
            ClientSession(streams[0], streams[1], message_handler=on_message, **answers(options))
        )
        start = await session.initialize()
        seen["version"] = start.protocolVersion
        seen["server"] = plain(start.serverInfo)
        seen["capabilities"] = plain(start.capabilities)
        seen["tools"] = await all_tools(session)
        if options.as_task:
            await call_as_task(session, options, seen)
        elif options.call:
            await call(session, options, seen)
        if options.watch:
            await asyncio.wait_for(changed.wait(), 60)
            seen["tools_after"] = await all_tools(session)
    return seen


def main() -> None:
    parser = argparse.ArgumentParser()
    where = parser.add_mutually_exclusive_group(required=True)
    where.add_argument("--http", metavar="URL")
    where.add_argument("--sse", metavar="URL")
    where.add_argument("--stdio", nargs=argparse.REMAINDER)
    parser.add_argument("--header", action="append", default=[], metavar="NAME:VALUE")
    parser.add_argument("--env", action="append", default=[], metavar="NAME=VALUE")
    parser.add_argument("--call", metavar="TOOL")
    parser.add_argument("--arguments", default="{}", metavar="JSON")
    parser.add_argument("--meta", metavar="JSON")
    parser.add_argument("--timeout", type=float, default=30.0)
    parser.add_argument("--answers", metavar="TEXT", help="answer questions with this")
    parser.add_argument("--as-task", action="store_true", help="call as a task")
    parser.add_argument("--watch", action="store_true", help="wait for a list_changed at the end")
    options = parser.parse_args()
    try:
        seen = asyncio.run(converse(options))
    except Exception as error:
        while isinstance(error, ExceptionGroup):
            error = error.exceptions[0]
        seen = {"failed": f"{type(error).__name__}: {error}"}
    json.dump(seen, sys.stdout)
    sys.stdout.write("\n")
    sys.exit("failed" in seen)


if __name__ == "__main__":
    main()
