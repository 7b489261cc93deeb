"""An SDK server (mcp 2.x) over HTTP whose tool `grow` adds a tool without a notification.

As its SDK does, it says of its lists that they hold for no time (`ttlMs` 0). Where it is stands in
one line of JSON on stdout.
"""

from __future__ import annotations

import json
import socket
import sys

import uvicorn
from mcp.server.mcpserver import MCPServer

server = MCPServer("growing", log_level="ERROR")


@server.tool()
def grow(name: str) -> str:
    """Adds a tool."""
    server.add_tool(lambda: f"I am {name}", name=name, description=name)
    return "grown"


def main() -> None:
    listener = socket.socket()
    listener.bind(("127.0.0.1", 0))
    listener.listen(128)
    port = listener.getsockname()[1]
    sys.stdout.write(json.dumps({"port": port, "url": f"http://127.0.0.1:{port}/mcp"}) + "\n")
    sys.stdout.flush()
    app = server.streamable_http_app()
    config = uvicorn.Config(app, log_level="error", timeout_graceful_shutdown=1)
    uvicorn.Server(config).run(sockets=[listener])


if __name__ == "__main__":
    main()
