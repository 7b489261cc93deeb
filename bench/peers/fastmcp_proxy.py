"""FastMCP's own proxy. `fresh` is its default, a new client session for each request; `kept`
hands it a client that is already connected.

usage: fastmcp_proxy.py PORT fresh|kept URL
"""

import contextlib
import sys

import uvicorn
from fastmcp import Client
from fastmcp.server import create_proxy

try:
    from uvloop import run
except ImportError:  # FastMCP does not bring it
    from asyncio import run

PORT, MODE, URL = int(sys.argv[1]), sys.argv[2], sys.argv[3]


async def main() -> None:
    async with contextlib.AsyncExitStack() as stack:
        target = URL
        if MODE == "kept":
            target = await stack.enter_async_context(Client(URL))
        app = create_proxy(target).http_app(path="/mcp", json_response=True, stateless_http=True)
        config = uvicorn.Config(
            app, host="127.0.0.1", port=PORT, access_log=False, log_level="error"
        )
        await uvicorn.Server(config).serve()


run(main())
