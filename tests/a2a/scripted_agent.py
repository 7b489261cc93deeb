"""An agent scripted by a test: raw HTTP, each request passed to a function of the test."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any
from uuid import uuid4

WELL_KNOWN = "/.well-known/agent-card.json"
OLD_PLACE = "/.well-known/agent.json"


class Request:
    def __init__(
        self,
        method: str,
        path: str,
        headers: dict[str, str],
        body: bytes,
        writer: asyncio.StreamWriter,
    ) -> None:
        self.method = method
        self.path = path
        self.headers = headers
        self.body = body
        self.json: Any = json.loads(body) if body else None
        self.writer = writer

    @property
    def rpc(self) -> str:
        """The JSON-RPC method."""
        return str(self.json.get("method", "")) if isinstance(self.json, dict) else ""

    @property
    def params(self) -> Any:
        return self.json.get("params")

    def reply(self, status: int, value: Any = None, **headers: str) -> None:
        body = value if isinstance(value, bytes) else json.dumps(value).encode()
        self._head(status, {"content-type": "application/json", **headers}, len(body))
        self.writer.write(body)

    def result(self, value: Any) -> None:
        self.reply(200, {"jsonrpc": "2.0", "id": self.json["id"], "result": value})

    def fail(self, code: int, message: str = "no", status: int = 200) -> None:
        error = {"code": code, "message": message}
        self.reply(status, {"jsonrpc": "2.0", "id": self.json["id"], "error": error})

    def stream(self) -> None:
        self._head(200, {"content-type": "text/event-stream"}, None)

    async def event(self, value: Any, id: str = "") -> None:
        """Of a JSON-RPC stream."""
        data = json.dumps({"jsonrpc": "2.0", "id": self.json["id"], "result": value})
        self.writer.write(f"{f'id: {id}' if id else ': -'}\ndata: {data}\n\n".encode())
        await self.writer.drain()

    def _head(self, status: int, headers: dict[str, str], length: int | None) -> None:
        lines = [f"HTTP/1.1 {status} -", "connection: close"]
        lines += [f"{name.replace('_', '-')}: {value}" for name, value in headers.items()]
        lines += [f"content-length: {length}"] if length is not None else []
        self.writer.write("\r\n".join([*lines, "", ""]).encode())


Handle = Callable[[Request], Awaitable[None] | None]


class ScriptedAgent:
    def __init__(self) -> None:
        self.requests: list[Request] = []
        self.url = ""

    def sent(self, rpc: str) -> list[Request]:
        return [request for request in self.requests if request.rpc == rpc]

    def at(self, path: str) -> list[Request]:
        return [request for request in self.requests if request.path == path]


@asynccontextmanager
async def scripted_agent(handle: Handle) -> AsyncIterator[ScriptedAgent]:
    made = ScriptedAgent()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            head = (await reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
            pairs = (line.partition(":") for line in head[1:] if line)
            headers = {name.lower(): value.strip() for name, _, value in pairs}
            body = await reader.readexactly(int(headers.get("content-length", "0")))
            method, path = head[0].split()[:2]
            request = Request(method, path, headers, body, writer)
            made.requests.append(request)
            work = handle(request)
            if work is not None:
                await work
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    made.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    try:
        yield made
    finally:
        server.close()
        await server.wait_closed()


def card_10(url: str, *bindings: str, **more: Any) -> dict[str, Any]:
    """A card of 1.0; a binding is written "JSONRPC:1.0", and all are at `url`."""
    return {
        "name": "Odd",
        "description": "odd",
        "version": "1",
        "supportedInterfaces": [
            {
                "url": url,
                "protocolBinding": each.partition(":")[0],
                "protocolVersion": each.partition(":")[2],
            }
            for each in bindings or ("JSONRPC:1.0",)
        ],
        "capabilities": {},
        "defaultInputModes": ["text/plain"],
        "defaultOutputModes": ["text/plain"],
        "skills": [],
        **more,
    }


def task_10(state: str = "COMPLETED", id: str = "t1", **more: Any) -> dict[str, Any]:
    return {
        "id": id,
        "contextId": "c1",
        "status": {"state": f"TASK_STATE_{state}", "timestamp": "2026-01-01T00:00:00Z"},
        **more,
    }


def build_text_message(
    text: str, *, context: str | None = None, task: str | None = None
) -> dict[str, Any]:
    """Builds a message of the user, in the form of 1.0."""
    message: dict[str, Any] = {
        "messageId": uuid4().hex,
        "role": "ROLE_USER",
        "parts": [{"text": text}],
    }
    if context:
        message["contextId"] = context
    if task:
        message["taskId"] = task
    return message
