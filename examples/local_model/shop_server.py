"""An MCP server with one tool over stdin and stdout: how many of an article a shop has."""

from __future__ import annotations

import json
import sys
from typing import Any

STOCK = {"mug": 17, "teapot": 4, "spoon": 230}
TOOL = {
    "name": "count_stock",
    "description": "Tells how many of an article are in stock now.",
    "inputSchema": {
        "type": "object",
        "properties": {
            "article": {"enum": sorted(STOCK), "description": "The article, in the singular"}
        },
        "required": ["article"],
        "additionalProperties": False,
    },
}


def answer(method: str, params: dict[str, Any]) -> dict[str, Any] | None:
    if method == "initialize":
        return {
            "protocolVersion": params["protocolVersion"],
            "capabilities": {"tools": {}},
            "serverInfo": {"name": "shop", "version": "1.0"},
        }
    if method == "tools/list":
        return {"tools": [TOOL]}
    if method == "tools/call":
        article = params["arguments"]["article"]
        return {"content": [{"type": "text", "text": f"{STOCK[article]} of {article} in stock"}]}
    return {} if method == "ping" else None


def main() -> None:
    for line in sys.stdin:
        message = json.loads(line)
        if "id" not in message:
            continue
        result = answer(message["method"], message.get("params") or {})
        unknown = {"error": {"code": -32601, "message": "Method not found"}}
        outcome = unknown if result is None else {"result": result}
        print(json.dumps({"jsonrpc": "2.0", "id": message["id"], **outcome}), flush=True)


if __name__ == "__main__":
    main()
