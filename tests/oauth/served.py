"""Runs ASGI applications on real sockets in the loop of a test, and scripts a browser."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from urllib.parse import parse_qsl, urlsplit

import httpx
import uvicorn
import uvicorn.server
from starlette.types import ASGIApp


def bind() -> tuple[socket.socket, str]:
    """A socket that listens, and its URL: an application knows its own address before it runs."""
    listener = socket.create_server(("127.0.0.1", 0))
    return listener, f"http://127.0.0.1:{listener.getsockname()[1]}"


@asynccontextmanager
async def serve(app: ASGIApp, listener: socket.socket) -> AsyncIterator[None]:
    """Uvicorn's HTTP without its loop, which looks every 100 ms whether it should end."""
    config = uvicorn.Config(app, log_level="error", lifespan="off")
    config.load()
    state = uvicorn.server.ServerState()

    def build() -> asyncio.Protocol:
        made = config.http_protocol_class(config=config, server_state=state, app_state={})  # type: ignore[call-arg]
        assert isinstance(made, asyncio.Protocol)
        return made

    server = await asyncio.get_running_loop().create_server(build, sock=listener)
    try:
        yield
    finally:
        server.close()
        for connection in list(state.connections):
            connection.shutdown()


class Browser:
    """Follows redirects by hand, presses one button, and stops at the hub's redirect URI."""

    def __init__(self, redirect_uri: str, press: str = "approve") -> None:
        self.redirect_uri = redirect_uri
        self.press = press
        self.visited: list[str] = []
        self.mark = ""
        """What follows the redirect URI in the path with which the browser came back."""

    async def log_in(self, url: str) -> dict[str, str]:
        """Returns the query with which the browser comes back."""
        async with httpx.AsyncClient(timeout=60) as client:
            reply = await client.get(url)
            for _ in range(10):
                self.visited.append(str(reply.url))
                if reply.status_code == 200 and "<form" in reply.text:
                    reply = await client.post(str(reply.url), data={"decision": self.press})
                    continue
                assert reply.status_code in (302, 303, 307), (reply.status_code, reply.text)
                to = reply.headers["location"]
                if to.startswith(self.redirect_uri):
                    self.mark = urlsplit(to.removeprefix(self.redirect_uri)).path.strip("/")
                    return dict(parse_qsl(urlsplit(to).query, keep_blank_values=True))
                reply = await client.get(httpx.URL(str(reply.url)).join(to))
        raise AssertionError("the browser was sent around in circles")
