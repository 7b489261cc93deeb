"""An MCP server made with the official SDK (mcp 2.x, low-level): stdio, Streamable HTTP, HTTP+SSE.

Run as a script or as `python -m tests.peers.sdk_server`. Over HTTP it says where it is in one line
of JSON, on stdout or in the file `--ready`. What it saw goes to `--log`, one JSON object a line:
every message (`event` "message", with method, params, version and headers), and what became of the
calls to `slow` (`event` "started", "finished", "cancelled", with the `key` it was called with).

`matrix_server` adds to it what else a server can have.
"""

# ruff: noqa: E402
from __future__ import annotations

import gc

gc.disable()  # the imports make a great many objects, of which none is garbage

import argparse
import base64
import json
import os
import socket
import sys
import weakref
from collections.abc import Awaitable, Callable
from typing import Any

import anyio
import mcp.types as t
import uvicorn
from mcp.server.context import ServerRequestContext
from mcp.server.lowlevel.server import NotificationOptions, Server
from mcp.server.runner import _serve_modern_stream, serve_loop
from mcp.server.sse import SseServerTransport
from mcp.server.stdio import stdio_server
from mcp.server.subscriptions import InMemorySubscriptionBus, ListenHandler, ToolsListChanged
from mcp.shared.exceptions import MCPError
from mcp_types.version import HANDSHAKE_PROTOCOL_VERSIONS, MODERN_PROTOCOL_VERSIONS
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Mount, Route

gc.freeze()
gc.enable()

Context = ServerRequestContext[Any, Any]
Arguments = dict[str, Any]

PNG = base64.b64encode(bytes.fromhex("89504e470d0a1a0a")).decode()
WAV = base64.b64encode(b"RIFF\x24\x00\x00\x00WAVEfmt ").decode()

OPTIONS = argparse.Namespace()
BUS = InMemorySubscriptionBus()
SESSIONS: weakref.WeakSet[Any] = weakref.WeakSet()  # of the handshake era, for change notifications


def note(**entry: Any) -> None:
    if OPTIONS.log:
        with open(OPTIONS.log, "a", encoding="utf-8") as file:
            file.write(json.dumps(entry) + "\n")


# --- the tools


def text(words: str, **more: Any) -> dict[str, Any]:
    return {"content": [{"type": "text", "text": words}], **more}


async def echo(ctx: Context, a: Arguments) -> dict[str, Any]:
    return text(a["text"])


async def add(ctx: Context, a: Arguments) -> dict[str, Any]:
    total = {"sum": a["a"] + a["b"]}
    return text(json.dumps(total), structuredContent=total)


async def slow(ctx: Context, a: Arguments) -> dict[str, Any]:
    which = {"name": "slow", "key": a.get("key")}
    note(event="started", **which)
    try:
        await anyio.sleep(a["seconds"])
    except anyio.get_cancelled_exc_class():
        note(event="cancelled", **which)
        raise
    note(event="finished", **which)
    return text(f"slept {a['seconds']}")


async def fail(ctx: Context, a: Arguments) -> dict[str, Any]:
    return text("it went wrong", isError=True)


async def crash(ctx: Context, a: Arguments) -> dict[str, Any]:
    os._exit(3)


async def image(ctx: Context, a: Arguments) -> dict[str, Any]:
    return {"content": [{"type": "image", "data": PNG, "mimeType": "image/png"}]}


async def audio(ctx: Context, a: Arguments) -> dict[str, Any]:
    return {"content": [{"type": "audio", "data": WAV, "mimeType": "audio/wav"}]}


async def link(ctx: Context, a: Arguments) -> dict[str, Any]:
    block = {"type": "resource_link", "uri": "test://linked", "name": "linked", "title": "Linked"}
    return {"content": [block]}


async def resource(ctx: Context, a: Arguments) -> dict[str, Any]:
    inner = {"uri": "test://embedded", "mimeType": "text/plain", "text": "embedded"}
    return {"content": [{"type": "resource", "resource": inner}]}


async def meta(ctx: Context, a: Arguments) -> dict[str, Any]:
    """What `_meta` came, as the structured content; and `_meta` on the block and on the result."""
    came = dict((ctx.params or {}).get("_meta") or {})
    block = {"type": "text", "text": json.dumps(came), "_meta": {"example.com/block": "b"}}
    return {"content": [block], "structuredContent": came, "_meta": {"example.com/result": [1, 2]}}


async def progress(ctx: Context, a: Arguments) -> dict[str, Any]:
    for step in range(1, a["steps"] + 1):
        await ctx.session.report_progress(step, a["steps"], f"step {step}")
        await anyio.sleep(a.get("pause", 0))
    return text(f"{a['steps']} steps")


async def big(ctx: Context, a: Arguments) -> dict[str, Any]:
    return text("x" * a["chars"])


async def env(ctx: Context, a: Arguments) -> dict[str, Any]:
    seen = {"env": dict(os.environ), "cwd": os.getcwd(), "pid": os.getpid(), "args": sys.argv}
    return text(json.dumps(seen), structuredContent=seen)


async def named(ctx: Context, a: Arguments) -> dict[str, Any]:
    return text((ctx.params or {})["name"])


async def toggle(ctx: Context, a: Arguments) -> dict[str, Any]:
    if TOOLS.pop("toggled", None) is None:
        TOOLS["toggled"] = {"name": "toggled", "inputSchema": {"type": "object"}}
    there = "toggled" in TOOLS
    await BUS.publish(ToolsListChanged())
    for session in list(SESSIONS):
        await session.send_tool_list_changed()
    return text("added" if there else "removed")


def taking(required: bool = True, **properties: str) -> dict[str, Any]:
    schema: dict[str, Any] = {"type": "object", "properties": {}}
    for name, kind in properties.items():
        schema["properties"][name] = {"type": kind}
    if properties and required:
        schema["required"] = list(properties)
    return schema


CODE: dict[str, Callable[[Context, Arguments], Awaitable[dict[str, Any]]]] = {
    "echo": echo,
    "add": add,
    "slow": slow,
    "fail": fail,
    "crash": crash,
    "image": image,
    "audio": audio,
    "link": link,
    "resource": resource,
    "meta": meta,
    "progress": progress,
    "big": big,
    "env": env,
    "toggle": toggle,
}
TOOLS: dict[str, dict[str, Any]] = {
    name: {"name": name, "description": f"The tool {name}", "inputSchema": schema}
    for name, schema in {
        "echo": {**taking(text="string"), "additionalProperties": False},
        "add": taking(a="number", b="number"),
        "slow": taking(seconds="number"),
        "fail": taking(),
        "crash": taking(),
        "image": taking(),
        "audio": taking(),
        "link": taking(),
        "resource": taking(),
        "meta": taking(),
        "progress": taking(steps="integer"),
        "big": taking(chars="integer"),
        "env": taking(),
        "toggle": taking(),
        "do-thing": taking(),
        "do_more": taking(),
    }.items()
}
TOOLS["echo"] |= {
    "title": "Echo",
    "annotations": {"readOnlyHint": True},
    "_meta": {"example.com/tool": "t"},
}
TOOLS["add"]["outputSchema"] = taking(sum="number")


# --- the server


# The results are plain, so that the SDK's models add nothing; it takes them as well.
async def on_list(ctx: Context, params: t.PaginatedRequestParams | None) -> Any:
    tools = [TOOLS[name] for name in sorted(TOOLS)]
    size = OPTIONS.page_size or len(tools)
    start = int((params.cursor if params else None) or 0)
    page: dict[str, Any] = {"tools": tools[start : start + size]}
    if start + size < len(tools):
        page["nextCursor"] = str(start + size)
    if ctx.protocol_version in MODERN_PROTOCOL_VERSIONS:
        page |= {"resultType": "complete", "ttlMs": 0, "cacheScope": "private"}
    return page


async def on_call(ctx: Context, params: t.CallToolRequestParams) -> Any:
    if params.name not in TOOLS:
        raise MCPError(t.INVALID_PARAMS, f"Unknown tool: {params.name}")
    result = await CODE.get(params.name, named)(ctx, params.arguments or {})
    if ctx.protocol_version in MODERN_PROTOCOL_VERSIONS:
        result.setdefault("resultType", "complete")
    return result


async def watch(ctx: Context, call_next: Any) -> Any:
    """Notes every message, remembers handshake sessions, spoils the list where that was asked."""
    headers = dict(ctx.request.headers) if ctx.request is not None else None
    note(
        event="message",
        method=ctx.method,
        params=dict(ctx.params) if ctx.params is not None else None,
        version=ctx.protocol_version,
        headers=headers,
    )
    result = await call_next(ctx)
    if ctx.method == "notifications/initialized":
        SESSIONS.add(ctx.session._connection)  # the SDK has no public way to push out of a call
    if ctx.method == "tools/list" and OPTIONS.malformed and "nextCursor" not in result:
        return {**result, "tools": [*result["tools"], {"name": 17, "inputSchema": "none"}]}
    return result


class PeerServer(Server[Any]):
    # Over HTTP the SDK calls this without arguments: the only way to declare `listChanged` there.
    def create_initialization_options(self, *_: Any, **more: Any) -> Any:
        return super().create_initialization_options(NotificationOptions(True, True, True))


def server() -> PeerServer:
    made = PeerServer(
        "sdk-peer",
        version="2",
        on_list_tools=on_list,
        on_call_tool=on_call,
        on_subscriptions_listen=ListenHandler(BUS),
        get_tool_input_schema=lambda name: TOOLS[name]["inputSchema"] if name in TOOLS else None,
    )
    made.middleware.append(watch)
    return made


async def serve(made: PeerServer, era: str, read: Any, write: Any) -> None:
    """One connection, in one era or in both; closes `write` at its end, as `Server.run` does."""
    if era == "both":
        await made.run(read, write, made.create_initialization_options())
        return
    async with made.lifespan(made) as state, write:
        if era == "legacy":
            await serve_loop(made, read, write, lifespan_state=state)
        else:
            await _serve_modern_stream(
                made, read, write, lifespan_state=state, raise_exceptions=False
            )


async def run_stdio(made: PeerServer) -> None:
    async with stdio_server() as (read, write):
        await serve(made, OPTIONS.era, read, write)


def one_era(app: Any, era: str) -> Any:
    """Before the SDK's own era routing, which goes by the header alone."""

    async def shim(scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] != "http" or scope["path"] != "/mcp" or era == "both":
            await app(scope, receive, send)
            return
        version = Request(scope).headers.get("mcp-protocol-version")
        if era == "legacy" and version not in HANDSHAKE_PROTOCOL_VERSIONS:
            # A server of that age does not know the newer version and never gets to look at it:
            # without a session it refuses everything but `initialize`.
            rest = [pair for pair in scope["headers"] if pair[0] != b"mcp-protocol-version"]
            scope = {**scope, "headers": rest}
        if era == "modern" and (version is None or version in HANDSHAKE_PROTOCOL_VERSIONS):
            await refuse_handshake(scope, receive, send)
            return
        await app(scope, receive, send)

    return shim


async def refuse_handshake(scope: Any, receive: Any, send: Any) -> None:
    request = Request(scope, receive)
    if request.method != "POST":
        await Response(status_code=405)(scope, receive, send)
        return
    body = json.loads(await request.body() or b"{}")
    error = {
        "code": -32022,
        "message": "Unsupported protocol version",
        "data": {
            "supported": list(MODERN_PROTOCOL_VERSIONS),
            "requested": str((body.get("params") or {}).get("protocolVersion", "")),
        },
    }
    answer = {"jsonrpc": "2.0", "id": body.get("id"), "error": error}
    await JSONResponse(answer, status_code=400)(scope, receive, send)


def http_app(made: PeerServer) -> Any:
    async def forget(request: Request) -> Response:
        """Every session is unknown from now on, as after a restart."""
        manager = made.session_manager
        for session_id, transport in list(manager._server_instances.items()):
            await manager._discard_session(session_id, transport)
        return Response("forgotten\n")

    app = made.streamable_http_app(
        json_response=OPTIONS.json_response,
        session_idle_timeout=OPTIONS.session_ttl,
        max_request_body_size=64 << 20,
        custom_starlette_routes=[Route("/forget", forget, methods=["POST"])],
    )
    return one_era(app, OPTIONS.era)


def sse_app(made: PeerServer) -> Any:
    transport = SseServerTransport("/messages/")

    async def connect(request: Request) -> Response:
        streams = transport.connect_sse(request.scope, request.receive, request._send)
        async with streams as (read, write):
            await serve(made, "legacy", read, write)  # HTTP+SSE is of the handshake era
        return Response()

    return Starlette(
        routes=[
            Route("/sse", connect, methods=["GET"]),
            Mount("/messages/", app=transport.handle_post_message),
        ]
    )


def run_http(app: Any, path: str) -> None:
    listener = socket.socket()
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    listener.bind(("127.0.0.1", OPTIONS.port))
    listener.listen(128)
    port = listener.getsockname()[1]
    ready = json.dumps({"port": port, "url": f"http://127.0.0.1:{port}{path}"}) + "\n"
    if OPTIONS.ready:
        with open(OPTIONS.ready, "w", encoding="utf-8") as file:
            file.write(ready)
    else:
        sys.stdout.write(ready)
        sys.stdout.flush()
    config = uvicorn.Config(app, log_level="error", timeout_graceful_shutdown=1)
    uvicorn.Server(config).run(sockets=[listener])


def arguments() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser()
    parser.add_argument("--transport", choices=["stdio", "http", "sse"], default="stdio")
    parser.add_argument("--port", type=int, default=0)
    parser.add_argument("--ready", help="a file for the line that says where the server is")
    parser.add_argument("--era", choices=["both", "legacy", "modern"], default="both")
    parser.add_argument("--log", help="a file for what the server saw")
    parser.add_argument("--tools", type=int, default=0, help="how many dummy tools there are more")
    parser.add_argument("--page-size", type=int, default=0)
    parser.add_argument("--session-ttl", type=float, default=1800.0)
    parser.add_argument("--json-response", action="store_true", help="JSON rather than SSE")
    parser.add_argument("--malformed", action="store_true", help="one tool of the list is nonsense")
    return parser


def run(made: PeerServer) -> None:
    for number in range(OPTIONS.tools):
        name = f"dummy_{number:05}"
        TOOLS[name] = {"name": name, "description": "A dummy", "inputSchema": taking()}
    note(event="start", pid=os.getpid())
    if OPTIONS.transport == "stdio":
        anyio.run(run_stdio, made)
    elif OPTIONS.transport == "http":
        run_http(http_app(made), "/mcp")
    else:
        run_http(sse_app(made), "/sse")


def main() -> None:
    arguments().parse_args(namespace=OPTIONS)
    run(server())


if __name__ == "__main__":
    main()
