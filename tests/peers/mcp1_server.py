"""An MCP server made with the previous SDK (mcp 1.x); to be run with the python of .venv-mcp1.

Over HTTP it says where it is in one line of JSON, on stdout or in the file `--ready`.
"""

from __future__ import annotations

import argparse
import json
import socket
import sys

import anyio
import uvicorn
from mcp.server.fastmcp import Context, FastMCP
from mcp.types import ToolAnnotations

server = FastMCP("mcp1-peer", log_level="ERROR")


@server.tool(annotations=ToolAnnotations(readOnlyHint=True), structured_output=False)
def echo(text: str) -> str:
    """The tool echo"""
    return text


@server.tool()
def add(a: float, b: float) -> dict[str, float]:
    """The tool add"""
    return {"sum": a + b}


@server.tool(structured_output=False)
async def slow(seconds: float) -> str:
    """The tool slow"""
    await anyio.sleep(seconds)
    return f"slept {seconds}"


@server.tool(structured_output=False)
async def progress(steps: int, ctx: Context) -> str:
    """The tool progress"""
    for step in range(1, steps + 1):
        await ctx.report_progress(step, steps, f"step {step}")
    return f"{steps} steps"


@server.tool(structured_output=False)
def fail() -> str:
    """The tool fail"""
    raise ValueError("it went wrong")


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--transport", choices=["stdio", "http", "sse"], default="stdio")
    parser.add_argument("--port", type=int, default=0)
    parser.add_argument("--ready", help="a file for the line that says where the server is")
    options = parser.parse_args()
    if options.transport == "stdio":
        server.run("stdio")
        return
    app = server.streamable_http_app() if options.transport == "http" else server.sse_app()
    listener = socket.socket()
    listener.bind(("127.0.0.1", options.port))
    listener.listen(128)
    port = listener.getsockname()[1]
    path = "/mcp" if options.transport == "http" else "/sse"
    ready = json.dumps({"port": port, "url": f"http://127.0.0.1:{port}{path}"}) + "\n"
    if options.ready:
        with open(options.ready, "w", encoding="utf-8") as file:
            file.write(ready)
    else:
        sys.stdout.write(ready)
        sys.stdout.flush()
    config = uvicorn.Config(app, log_level="error", timeout_graceful_shutdown=1)
    uvicorn.Server(config).run(sockets=[listener])


if __name__ == "__main__":
    main()
