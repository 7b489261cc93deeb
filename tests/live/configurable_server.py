"""A stdio MCP server whose definitions come from a file; standard library only.

`python configurable_server.py FILE`: FILE holds `tools`, `prompts`, `resources` and
`resourceTemplates` as JSON, and may hold `instructions`, `serverInfo`, more `capabilities`,
`results` and JSON-RPC `errors` of tools by name, lines that it writes to `stderr` at the start, and
what a read `reads` before the address. `apps` are tools that clients with MCP Apps are listed
beside the others, or instead of those of the same names. The tool `look` is always listed and
announces that all lists have changed; `leave` ends the server; `capabilities` returns those of the
client. Every other call returns the name that arrived.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

FILE = Path(sys.argv[1])
APPS = "io.modelcontextprotocol/ui"
CLIENT: dict[str, Any] = {}
"""The capabilities of the client."""
LOOK = {"name": "look", "inputSchema": {"type": "object"}}
LISTS = {
    "tools/list": "tools",
    "prompts/list": "prompts",
    "resources/list": "resources",
    "resources/templates/list": "resourceTemplates",
}


def read_member(member: str, default: Any) -> Any:
    return json.loads(FILE.read_text(encoding="utf-8")).get(member, default)


def answer(method: str, params: dict[str, Any]) -> dict[str, Any] | None:
    if method == "initialize":
        CLIENT.update(params.get("capabilities", {}))
        changes = {"listChanged": True}
        able = {"tools": changes, "prompts": changes, "resources": changes}
        result = {
            "protocolVersion": "2025-11-25",
            "capabilities": {**able, **read_member("capabilities", {})},
            "serverInfo": read_member("serverInfo", {"name": "told", "version": "1"}),
        }
        text = read_member("instructions", None)
        return result if text is None else {**result, "instructions": text}
    if method in LISTS:
        offered = read_member(LISTS[method], [])
        if method == "tools/list" and APPS in CLIENT.get("extensions", {}):
            apps = {one["name"]: one for one in read_member("apps", [])}
            offered = [apps.pop(one["name"], one) for one in offered] + [*apps.values()]
        return {LISTS[method]: [LOOK, *offered] if method == "tools/list" else offered}
    if method == "tools/call":
        if params["name"] == "look":
            for what in ("tools", "prompts", "resources"):
                send({"method": f"notifications/{what}/list_changed"})
        if params["name"] == "leave":
            sys.exit()
        if params["name"] == "capabilities":
            return {"content": [{"type": "text", "text": json.dumps(CLIENT)}]}
        if (result := read_member("results", {}).get(params["name"])) is not None:
            return dict(result)
        return {"content": [{"type": "text", "text": f"arrived: {params['name']}"}]}
    if method == "resources/read":
        text = f"{read_member('reads', 'contents of')} {params['uri']}"
        return {"contents": [{"uri": params["uri"], "text": text}]}
    if method == "prompts/get":
        return {"messages": [{"role": "user", "content": {"type": "text", "text": "a prompt"}}]}
    return {} if method == "ping" else None


def send(message: dict[str, Any]) -> None:
    sys.stdout.write(json.dumps({"jsonrpc": "2.0", **message}) + "\n")
    sys.stdout.flush()


def respond(message: dict[str, Any]) -> dict[str, Any]:
    params = message.get("params") or {}
    errors = read_member("errors", {}) if message["method"] == "tools/call" else {}
    if (error := errors.get(params.get("name"))) is not None:
        return {"error": error}
    result = answer(message["method"], params)
    if result is None:
        return {"error": {"code": -32601, "message": "no such method"}}
    return {"result": result}


def main() -> None:
    for line in read_member("stderr", []):
        print(line, file=sys.stderr)
    for line in sys.stdin:
        message = json.loads(line)
        if "id" in message and "method" in message:
            send({"id": message["id"], **respond(message)})


if __name__ == "__main__":
    main()
