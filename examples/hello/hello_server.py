"""An MCP server in one file, with the standard library only: three tools over stdin and stdout.

It speaks the revisions that begin with a handshake: a line of JSON in, a line of JSON out. Run by
a hub or an IDE; by hand, type {"jsonrpc":"2.0","id":1,"method":"tools/list"} and Enter.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from typing import Any

REVISIONS = ("2025-11-25", "2025-06-18", "2025-03-26", "2024-11-05")

Progress = Callable[[int, int], None]


def greet(name: str, *, progress: Progress) -> str:
    return f"Hello, {name}!"


def add(a: float, b: float, *, progress: Progress) -> str:
    return f"{a + b:g}"


def countdown(start: int = 3, *, progress: Progress) -> str:
    for done in range(start):
        progress(done, start)
        time.sleep(0.2)
    return "Lift-off!"


def schema(required: list[str], **properties: dict[str, Any]) -> dict[str, Any]:
    return {"type": "object", "properties": properties, "required": required}


NUMBER = {"type": "number"}
COUNT = {"type": "integer", "minimum": 1, "maximum": 100, "description": "Steps of 0.2 s"}
TOOLS: dict[str, tuple[Callable[..., str], str, dict[str, Any]]] = {
    "greet": (
        greet,
        "Greets somebody by name.",
        schema(["name"], name={"type": "string", "description": "Whom to greet"}),
    ),
    "add": (add, "Adds two numbers.", schema(["a", "b"], a=NUMBER, b=NUMBER)),
    "countdown": (countdown, "Counts down and tells how far it is.", schema([], start=COUNT)),
}


def send(**message: Any) -> None:
    print(json.dumps({"jsonrpc": "2.0", **message}), flush=True)


def initialize(params: dict[str, Any]) -> dict[str, Any]:
    asked = params.get("protocolVersion")
    return {
        "protocolVersion": asked if asked in REVISIONS else REVISIONS[0],
        "capabilities": {"tools": {}},
        "serverInfo": {"name": "hello", "version": "1.0"},
    }


def list_tools(params: dict[str, Any]) -> dict[str, Any]:
    return {
        "tools": [
            {"name": name, "description": about, "inputSchema": takes}
            for name, (_, about, takes) in TOOLS.items()
        ]
    }


def call_tool(params: dict[str, Any]) -> dict[str, Any]:
    token = (params.get("_meta") or {}).get("progressToken")

    def progress(done: int, total: int) -> None:
        if token is not None:  # only who asks for progress is told
            told = {"progressToken": token, "progress": done, "total": total}
            send(method="notifications/progress", params=told)

    tool = TOOLS[params["name"]][0]
    try:
        text, failed = tool(**params.get("arguments") or {}, progress=progress), False
    except Exception as error:  # for the model to read, not for the protocol
        text, failed = f"{type(error).__name__}: {error}", True
    return {"content": [{"type": "text", "text": text}], "isError": failed}


METHODS: dict[str, Callable[[dict[str, Any]], dict[str, Any]]] = {
    "initialize": initialize,
    "ping": lambda params: {},
    "tools/list": list_tools,
    "tools/call": call_tool,
}


def main() -> None:
    for line in sys.stdin:
        message = json.loads(line)
        if "id" not in message:
            continue  # a notification wants no answer
        method = METHODS.get(message.get("method", ""))
        if method is None:
            error = {"code": -32601, "message": f"Method not found: {message.get('method')}"}
            send(id=message["id"], error=error)
            continue
        try:
            send(id=message["id"], result=method(message.get("params") or {}))
        except KeyError as missing:
            error = {"code": -32602, "message": f"Invalid params: {missing}"}
            send(id=message["id"], error=error)


if __name__ == "__main__":
    main()
