"""A ledger of effects outside of the hubs: an MCP server that is a process of its own, an agent and
a model write a line to one file before they answer. Standard library only: the server and the agent
start quickly, and nothing of the hub counts its own effects.
"""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

VARIABLE = "FAULTS_LEDGER"
"""Names the file."""
_SCHEMA = {
    "type": "object",
    "properties": {"key": {"type": "string"}, "seconds": {"type": "number"}},
    "required": ["key"],
}
TOOLS = [
    {"name": name, "description": "Has one effect.", "inputSchema": _SCHEMA}
    for name in ("pay", "guarded")
]
REVISION = "2025-06-18"


def note(file: str | Path, event: str, key: str) -> None:
    """Appends a line, which is whole even if several processes write."""
    line = json.dumps({"at": time.time(), "event": event, "key": key}) + "\n"
    descriptor = os.open(file, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    try:
        os.write(descriptor, line.encode())
    finally:
        os.close(descriptor)


def read_effects(file: Path) -> list[tuple[float, str]]:
    """The time and the key of each effect, in order."""
    lines = file.read_text("utf-8").splitlines() if file.exists() else []
    found = [json.loads(line) for line in lines]
    return [(one["at"], one["key"]) for one in found if one["event"] == "begun"]


def count_effects(file: Path) -> Counter[str]:
    return Counter(key for _, key in read_effects(file))


async def work(message: str) -> str:
    """An agent of a hub: the message is JSON with a key, and the seconds that the work takes."""
    order = json.loads(message)
    note(os.environ[VARIABLE], "begun", order["key"])
    await asyncio.sleep(order.get("seconds", 0.0))
    note(os.environ[VARIABLE], "ended", order["key"])
    return f"done {order['key']}"


# --- the MCP server


class _Server:
    def __init__(self, file: str) -> None:
        self._file = file

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while True:
                await self._answer_next(reader, writer)
        except (asyncio.IncompleteReadError, OSError, ValueError):
            pass
        finally:
            writer.close()

    async def _answer_next(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
        fields = {name.lower(): value for name, _, value in (one.partition(":") for one in head)}
        body = await reader.readexactly(int(fields.get("content-length", "0")))
        if not head[0].startswith("POST "):
            writer.write(b"HTTP/1.1 405 Not offered\r\ncontent-length: 0\r\n\r\n")
            return await writer.drain()
        reply = await self._handle(json.loads(body))
        if reply is None:
            writer.write(b"HTTP/1.1 202 Accepted\r\ncontent-length: 0\r\n\r\n")
        else:
            data = json.dumps(reply).encode()
            kind = (
                b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n"
            )
            writer.write(kind % len(data) + data)
        await writer.drain()

    async def _handle(self, message: dict[str, Any]) -> dict[str, Any] | None:
        if "id" not in message:
            return None
        answer: dict[str, Any] = {"jsonrpc": "2.0", "id": message["id"]}
        match message.get("method"):
            case "initialize":
                about = {"name": "ledger", "version": "1"}
                tools: dict[str, Any] = {"tools": {}}
                answer["result"] = {
                    "protocolVersion": REVISION,
                    "capabilities": tools,
                    "serverInfo": about,
                }
            case "tools/list":
                answer["result"] = {"tools": TOOLS}
            case "tools/call":
                answer["result"] = await self._pay(message["params"]["arguments"])
            case "ping":
                answer["result"] = {}
            case method:
                answer["error"] = {"code": -32601, "message": f"there is no method {method}"}
        return answer

    async def _pay(self, arguments: dict[str, Any]) -> dict[str, Any]:
        note(self._file, "begun", arguments["key"])
        await asyncio.sleep(arguments.get("seconds", 0.0))
        note(self._file, "ended", arguments["key"])
        return {"content": [{"type": "text", "text": f"paid {arguments['key']}"}]}


async def _serve(file: str) -> None:
    server = await asyncio.start_server(_Server(file).serve, "127.0.0.1", 0, backlog=1_000)
    print(server.sockets[0].getsockname()[1], flush=True)
    await server.serve_forever()


@contextmanager
def run_ledger(file: Path) -> Iterator[str]:
    """Runs the server as a process of its own; gives its address."""
    line = [sys.executable, str(Path(__file__).resolve()), str(file)]
    process = subprocess.Popen(line, stdout=subprocess.PIPE, text=True, start_new_session=True)
    try:
        assert process.stdout is not None
        yield f"http://127.0.0.1:{int(process.stdout.readline())}/mcp"
    finally:
        process.kill()
        process.wait(10)
        if process.stdout is not None:
            process.stdout.close()


if __name__ == "__main__":
    asyncio.run(_serve(sys.argv[1]))
