"""A Streamable HTTP server whose responses a test writes: it gets each request."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any


class Request:
    def __init__(
        self, method: str, headers: dict[str, str], body: bytes, writer: asyncio.StreamWriter
    ) -> None:
        self.method = method
        self.headers = headers
        self.message: Any = json.loads(body) if body else None
        self._writer = writer

    @property
    def asked(self) -> str:
        """The method of the message; of an answer to ours, nothing."""
        return str(self.message.get("method", "")) if self.message else ""

    def reply(self, status: int, value: Any = None, **headers: str) -> None:
        body = b"" if value is None else json.dumps(value).encode()
        self._head(status, {"content-type": "application/json", **headers}, len(body))
        self._writer.write(body)

    def result(self, value: Any, **headers: str) -> None:
        self.reply(200, {"jsonrpc": "2.0", "id": self.message["id"], "result": value}, **headers)

    def fail(self, code: int, status: int = 400, data: Any = None) -> None:
        error = {"code": code, "message": "no", "data": data}
        self.reply(status, {"jsonrpc": "2.0", "id": self.message["id"], "error": error})

    def stream(self) -> None:
        self._head(200, {"content-type": "text/event-stream"}, None)

    def event(self, value: Any, id: str = "", retry: int | None = None) -> None:
        lines = [f"id: {id}"] if id else []
        lines += [f"retry: {retry}"] if retry is not None else []
        data = "" if value is None else json.dumps({"jsonrpc": "2.0", **value})
        self._writer.write("\n".join([*lines, f"data: {data}", "", ""]).encode())

    def _head(self, status: int, headers: dict[str, str], length: int | None) -> None:
        lines = [f"HTTP/1.1 {status} -", "connection: close"]
        lines += [f"{name.replace('_', '-')}: {value}" for name, value in headers.items()]
        lines += [f"content-length: {length}"] if length is not None else []
        self._writer.write("\r\n".join([*lines, "", ""]).encode())


Handle = Callable[[Request], Awaitable[None] | None]


class Mini:
    def __init__(self) -> None:
        self.requests: list[Request] = []
        self.url = ""

    def sent(self, method: str) -> list[Request]:
        return [request for request in self.requests if request.asked == method]


@asynccontextmanager
async def serve_stub(handle: Handle) -> AsyncIterator[Mini]:
    made = Mini()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            head = (await reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
            pairs = (line.partition(":") for line in head[1:] if line)
            headers = {name.lower(): value.strip() for name, _, value in pairs}
            body = await reader.readexactly(int(headers.get("content-length", "0")))
            request = Request(head[0].split()[0], headers, body, writer)
            made.requests.append(request)
            work = handle(request)
            if work is not None:
                await work
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    made.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/mcp"
    try:
        yield made
    finally:
        server.close()
        await server.wait_closed()


def legacy(request: Request, revision: str = "2025-11-25", **capabilities: Any) -> bool:
    """Answers what belongs to the handshake; whether it did."""
    tools = [{"name": "t", "inputSchema": {"type": "object"}}]
    if request.asked == "initialize":
        info = {"name": "serve_stub", "version": "1"}
        found = {"tools": {}, **capabilities}
        result = {"protocolVersion": revision, "capabilities": found, "serverInfo": info}
        request.result(result, mcp_session_id="s1")
    elif request.asked == "server/discover":
        request.fail(-32600)
    elif request.asked.startswith("notifications/"):
        request.reply(202)
    elif request.asked == "tools/list":
        request.result({"tools": tools})
    elif request.method == "DELETE":
        request.reply(200)
    else:
        return False
    return True


def modern(
    request: Request, tools: list[Any], version: str = "2026-07-28", **capabilities: Any
) -> bool:
    whole = {"resultType": "complete", "ttlMs": 0, "cacheScope": "private"}
    if request.asked == "server/discover":
        found = {"tools": {}, **capabilities}
        request.result({**whole, "supportedVersions": [version], "capabilities": found})
    elif request.asked == "tools/list":
        request.result({**whole, "tools": tools})
    else:
        return False
    return True
