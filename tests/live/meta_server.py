"""A stdio MCP server that puts `_meta` into everything that it starts; standard library only.

The tool `ask` sends progress, a log message and one request of each kind, and returns the answers;
`visit` asks for a visit to a URL and reports after the answer that it is done, `visit_early` before
it; `change` announces a change of the resource `meta://it`. A completion returns its reference.
"""

from __future__ import annotations

import json
import sys
from typing import Any

META = {
    "io.modelcontextprotocol/related-task": {"taskId": "of this hop"},
    "x.test/note": {"a": [1, None]},
}
FORM = {"message": "Which?", "requestedSchema": {"type": "object", "properties": {}}}
SAMPLING = {
    "messages": [{"role": "user", "content": {"type": "text", "text": "Say it."}}],
    "maxTokens": 5,
}
URL = {"mode": "url", "url": "https://x.test/", "message": "Go.", "elicitationId": "e-1"}
CAPABILITIES = {
    "tools": {}, "prompts": {}, "completions": {}, "logging": {}, "resources": {"subscribe": True},
}  # fmt: skip
LISTS: dict[str, dict[str, Any]] = {
    "tools/list": {
        "tools": [
            {"name": name, "inputSchema": {"type": "object"}}
            for name in ("ask", "visit", "visit_early", "change")
        ]
    },
    "prompts/list": {"prompts": [{"name": "it", "arguments": [{"name": "a"}]}]},
    "resources/list": {"resources": [{"uri": "meta://it", "name": "it"}]},
    "resources/templates/list": {"resourceTemplates": []},
}


def send(message: dict[str, Any]) -> None:
    sys.stdout.write(json.dumps({"jsonrpc": "2.0", **message}) + "\n")
    sys.stdout.flush()


def notify(method: str, **params: Any) -> None:
    send({"method": f"notifications/{method}", "params": {**params, "_meta": META}})


def ask(method: str, params: dict[str, Any], is_complete: bool = False) -> Any:
    send({"id": method, "method": method, "params": {**params, "_meta": META}})
    if is_complete:
        notify("elicitation/complete", elicitationId=params["elicitationId"])
    for line in sys.stdin:
        message = json.loads(line)
        if message.get("id") == method and "method" not in message:
            return message.get("result") or message.get("error")
    sys.exit()


def call(name: str, meta: dict[str, Any]) -> Any:
    if name == "ask":
        notify("progress", progressToken=meta.get("progressToken"), progress=1)
        notify("message", level="error", data="it")
        roots = ask("roots/list", {})
        return [roots, ask("elicitation/create", FORM), ask("sampling/createMessage", SAMPLING)]
    if name == "visit":
        ask("elicitation/create", URL)
        return notify("elicitation/complete", elicitationId="e-1")
    if name == "visit_early":
        return ask("elicitation/create", URL, is_complete=True)
    return notify("resources/updated", uri="meta://it")


def answer(method: str, params: dict[str, Any]) -> dict[str, Any]:
    if method == "initialize":
        info = {"name": "meta", "version": "1"}
        return {
            "protocolVersion": "2025-11-25", "capabilities": CAPABILITIES, "serverInfo": info,
        }  # fmt: skip
    if method == "tools/call":
        text = json.dumps(call(params["name"], params.get("_meta", {})))
        return {"content": [{"type": "text", "text": text}]}
    if method == "completion/complete":
        return {"completion": {"values": [json.dumps(params["ref"])]}}
    return LISTS.get(method, {})


def main() -> None:
    for line in sys.stdin:
        message = json.loads(line)
        if "id" not in message or "method" not in message:
            continue
        if message["method"] == "server/discover":
            send({"id": message["id"], "error": {"code": -32601, "message": "unknown"}})
            continue
        result = answer(message["method"], message.get("params") or {})
        send({"id": message["id"], "result": result})


if __name__ == "__main__":
    main()
