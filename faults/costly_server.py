"""A stdio MCP server whose tool has a schema that is costly to explain; standard library only."""

from __future__ import annotations

import json
import sys
from typing import Any

PROPERTIES = [f"the-name-of-a-property-that-is-long-{number:03}" for number in range(60)]
WORDS = [f"word-{number}" for number in range(300)]
SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {
        **{name: {"type": "string"} for name in PROPERTIES},
        "any": {
            "type": "array",
            "items": {"anyOf": [{"type": "object", "required": [word]} for word in WORDS[:60]]},
        },
        "one": {
            "type": "array",
            "items": {"oneOf": [{"type": "string", "const": word} for word in WORDS[:60]]},
        },
        "enum": {"type": "array", "items": {"enum": WORDS}},
        "integers": {"type": "array", "items": {"type": "integer"}},
        "codes": {"type": "array", "items": {"type": "string", "pattern": "^([a-z]+)+[0-9]$"}},
        "map": {"type": "object", "additionalProperties": {"enum": WORDS}},
        "unique": {"type": "array", "uniqueItems": True},
    },
    "additionalProperties": False,
}
TOOLS = [
    {"name": "order", "description": "Has a costly schema", "inputSchema": SCHEMA},
    {"name": "open", "inputSchema": {**SCHEMA, "additionalProperties": {"type": "integer"}}},
]
PROMPTS = [{"name": "letter", "arguments": [{"name": "to", "required": True}]}]
RESOURCES = [{"name": "page", "uri": "page://one"}]


def answer(method: str, params: dict[str, Any]) -> dict[str, Any] | None:
    match method:
        case "initialize":
            capabilities: dict[str, Any] = {"tools": {}, "prompts": {}, "resources": {}}
            return {
                "protocolVersion": "2025-06-18",
                "capabilities": {**capabilities, "completions": {}},
                "serverInfo": {"name": "costly", "version": "1"},
            }
        case "tools/list":
            return {"tools": TOOLS}
        case "prompts/list":
            return {"prompts": PROMPTS}
        case "resources/list":
            return {"resources": RESOURCES}
        case "resources/templates/list":
            return {"resourceTemplates": [{"name": "pages", "uriTemplate": "page://{name}"}]}
        case "tools/call":
            return {"content": [{"type": "text", "text": "done"}]}
        case "prompts/get":
            return {"messages": [{"role": "user", "content": {"type": "text", "text": "done"}}]}
        case "resources/read":
            return {"contents": [{"uri": params["uri"][:100], "text": "done"}]}
        case "completion/complete":
            return {"completion": {"values": []}}
        case "ping":
            return {}
    return None


def main() -> None:
    for line in iter(sys.stdin.buffer.readline, b""):
        message = json.loads(line)
        if "id" not in message or "method" not in message:
            continue
        result = answer(message["method"], message.get("params") or {})
        error = {"code": -32601, "message": "no such method"}
        outcome = {"error": error} if result is None else {"result": result}
        print(json.dumps({"jsonrpc": "2.0", "id": message["id"], **outcome}), flush=True)


if __name__ == "__main__":
    main()
