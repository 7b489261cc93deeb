"""A stdio MCP server of the standard library that offers something of every kind.

Its tool `count` tells its progress; `hold` answers when the file that it is given exists.
"""

from __future__ import annotations

import base64
import json
import os
import sys
import threading
import time
from typing import Any

PIXEL = bytes(range(256))
TREE = {
    "type": "object",
    "properties": {
        "entities": {
            "type": "array",
            "description": "What to add.",
            "items": {"$ref": "#/$defs/Entity"},
        },
        "mode": {"enum": ["fast", "slow"], "default": "fast", "description": "How to do it."},
        "at": {"anyOf": [{"type": "string"}, {"type": "null"}]},
    },
    "required": ["entities"],
    "$defs": {
        "Entity": {
            "type": "object",
            "properties": {
                "name": {"type": "string", "description": "What it is called."},
                "tags": {"type": "array", "items": {"type": "string"}},
                "parts": {"type": "array", "items": {"$ref": "#/$defs/Entity"}},
            },
            "required": ["name"],
        }
    },
}
TEXT = {"type": "object", "properties": {"text": {"type": "string"}}, "required": ["text"]}
TOOLS = [
    {"name": "graph", "description": "Adds entities to the graph.", "inputSchema": TREE},
    {"name": "echo", "description": "Says it again.", "inputSchema": TEXT},
    {"name": "args", "inputSchema": {"type": "object"}},
    {"name": "count", "description": "Counts to three.", "inputSchema": {"type": "object"}},
    {"name": "hold", "inputSchema": {"type": "object"}},
]
PROMPTS = [
    {
        "name": "greeting",
        "description": "A greeting.",
        "arguments": [
            {"name": "whom", "required": True, "description": "Whom to greet"},
            {"name": "tone"},
        ],
    }
]
RESOURCES = [
    {"uri": "note://today", "name": "today", "mimeType": "text/plain", "description": "A note."},
    {"uri": "note://pixel", "name": "pixel", "mimeType": "image/png"},
    {"uri": "note://pixel;reboot", "name": "a command"},
]
TEMPLATES = [{"uriTemplate": "note://{day}", "name": "a day"}]


def send(**message: Any) -> None:
    sys.stdout.write(json.dumps({"jsonrpc": "2.0", **message}) + "\n")
    sys.stdout.flush()


def call(number: Any, params: dict[str, Any]) -> None:
    name, arguments = params["name"], params.get("arguments") or {}
    words = json.dumps(arguments)
    if name == "echo":
        words = arguments["text"]
    elif name == "count":
        token = (params.get("_meta") or {}).get("progressToken")
        for step in (1, 2, 3):
            told = {"progressToken": token, "progress": step, "total": 3, "message": "step"}
            if token is not None:
                send(method="notifications/progress", params=told)
        words = "told" if token is not None else "not asked"
    elif name == "hold":
        while not os.path.exists(arguments["file"]):
            time.sleep(0.02)
    send(id=number, result={"content": [{"type": "text", "text": words}]})


def read(uri: str) -> dict[str, Any]:
    if uri == "note://pixel":
        blob = base64.b64encode(PIXEL).decode()
        return {"contents": [{"uri": uri, "mimeType": "image/png", "blob": blob}]}
    return {"contents": [{"uri": uri, "mimeType": "text/plain", "text": f"read {uri}"}]}


def get(params: dict[str, Any]) -> dict[str, Any]:
    given = params.get("arguments") or {}
    text = f"Greet {given.get('whom')} {given.get('tone', 'kindly')}."
    return {"messages": [{"role": "assistant", "content": {"type": "text", "text": text}}]}


def answer(method: str, params: dict[str, Any]) -> dict[str, Any] | None:
    simple: dict[str, dict[str, Any]] = {
        "ping": {},
        "tools/list": {"tools": TOOLS},
        "prompts/list": {"prompts": PROMPTS},
        "resources/list": {"resources": RESOURCES},
        "resources/templates/list": {"resourceTemplates": TEMPLATES},
        "initialize": {
            "protocolVersion": "2025-11-25",
            "capabilities": {"tools": {}, "prompts": {}, "resources": {}},
            "serverInfo": {"name": "offering", "version": "1"},
        },
    }
    if method == "prompts/get":
        return get(params)
    return read(params["uri"]) if method == "resources/read" else simple.get(method)


def main() -> None:
    print("offering says hello", file=sys.stderr)
    for line in sys.stdin:
        message = json.loads(line)
        number, params = message.get("id"), message.get("params") or {}
        if message.get("method") == "tools/call":
            threading.Thread(target=call, args=(number, params), daemon=True).start()
        elif number is not None:
            result = answer(message.get("method", ""), params)
            if result is None:
                send(id=number, error={"code": -32601, "message": "Method not found"})
            else:
                send(id=number, result=result)


if __name__ == "__main__":
    main()
