"""A stdio MCP server whose schema has a text made of a set, in another order in each process with
another hash seed; standard library only.
"""

from __future__ import annotations

import json
import os
import sys
from typing import Any

FIELDS = {"summary", "status", "assignee", "reporter", "labels", "priority", "created", "updated"}


def answer(method: str) -> dict[str, Any] | None:
    if method == "initialize":
        return {
            "protocolVersion": "2025-11-25",
            "capabilities": {"tools": {}},
            "serverInfo": {"name": "sets", "version": "1"},
        }
    if method == "tools/list":
        fields = {"type": "string", "default": ",".join(FIELDS)}
        schema = {"type": "object", "properties": {"fields": fields}}
        return {"tools": [{"name": "search", "description": "Searches.", "inputSchema": schema}]}
    if method == "tools/call":
        text = os.environ.get("PYTHONHASHSEED", "none")
        return {"content": [{"type": "text", "text": text}]}
    return {} if method == "ping" else None


for line in sys.stdin:
    message = json.loads(line)
    if "id" not in message:
        continue
    result = answer(message["method"])
    reply: dict[str, Any] = {"jsonrpc": "2.0", "id": message["id"]}
    if result is None:
        reply["error"] = {"code": -32601, "message": "not found"}
    else:
        reply["result"] = result
    print(json.dumps(reply), flush=True)
