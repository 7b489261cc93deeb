"""A stdio MCP server that runs the code it is sent and gives the value of `found`, or the name of
the error; standard library only. Offers a prompt and a resource too."""

from __future__ import annotations

import json
import sys
import traceback
from typing import Any

OFFERS = {
    "tools/list": {"tools": [{"name": "run", "inputSchema": {"type": "object"}}]},
    "prompts/list": {"prompts": [{"name": "greet"}]},
    "resources/list": {"resources": [{"uri": "probe://one", "name": "one"}]},
    "resources/templates/list": {"resourceTemplates": []},
}
INITIALIZED = {
    "protocolVersion": "2025-06-18",
    "capabilities": {"tools": {}, "prompts": {}, "resources": {}},
    "serverInfo": {"name": "probe", "version": "1"},
}


def run(code: str) -> Any:
    names: dict[str, Any] = {}
    try:
        exec(code, names)
    except BaseException as error:  # the probes expect errors of every kind
        traceback.print_exc()
        return type(error).__name__
    return names["found"]


def answer(message: dict[str, Any]) -> dict[str, Any]:
    if message["method"] == "initialize":
        return {"result": INITIALIZED}
    if message["method"] in OFFERS:
        return {"result": OFFERS[message["method"]]}
    if message["method"] == "tools/call":
        said = run(message["params"]["arguments"]["code"])
        return {"result": {"content": [{"type": "text", "text": json.dumps(said)}]}}
    return {"error": {"code": -32601, "message": "no such method"}}


if __name__ == "__main__":
    for line in iter(sys.stdin.buffer.readline, b""):
        request = json.loads(line)
        if "id" in request:
            reply = {"jsonrpc": "2.0", "id": request["id"], **answer(request)}
            print(json.dumps(reply), flush=True)
