"""A stdio server of 2025-11-25 that works in its client's folders; the standard library only.

As servers of files do, it asks for the client's roots once the session has begun and whenever they
change. As some others do, it lists tools that ask only to clients that can be asked: `sample` and
`ask`. `count` counts the calls of this process, `grow` adds the tool `extra` to it, `allowed` says
which folders it works in. With `--late` it asks for the roots in the first call of `allowed`.
"""

from __future__ import annotations

import json
import sys
from typing import Any

roots: list[str] = []
tools = ["allowed", "count", "grow"]
declared: dict[str, Any] = {}
counted = 0
late = "--late" in sys.argv
waiting: list[Any] = []
"""The ids of calls that wait for the roots."""


def send(**message: Any) -> None:
    sys.stdout.write(json.dumps({"jsonrpc": "2.0", **message}) + "\n")
    sys.stdout.flush()


def call(name: str) -> str:
    global counted
    if name not in tools:
        return ""
    if name == "count":
        counted += 1
        return str(counted)
    if name == "grow":
        tools.append("extra")
        send(method="notifications/tools/list_changed")
    return " ".join(roots)


def answer(method: str, params: dict[str, Any]) -> dict[str, Any] | None:
    if method == "initialize":
        declared.update(params["capabilities"])
        tools.extend(
            name
            for feature, name in (("sampling", "sample"), ("elicitation", "ask"))
            if feature in declared
        )
        return {
            "protocolVersion": "2025-11-25",
            "capabilities": {"tools": {"listChanged": True}},
            "serverInfo": {"name": "workspace", "version": "1"},
        }
    if method == "tools/list":
        return {"tools": [{"name": name, "inputSchema": {"type": "object"}} for name in tools]}
    if method == "tools/call":
        text = call(params["name"])
        failed = params["name"] not in tools
        return {"content": [{"type": "text", "text": text}], "isError": failed}
    return {} if method == "ping" else None


def main() -> None:
    for line in sys.stdin:
        message = json.loads(line)
        method = message.get("method")
        if method in ("notifications/initialized", "notifications/roots/list_changed"):
            if "roots" in declared and not late:
                send(id="roots", method="roots/list")
        elif method is None and message.get("id") == "roots" and "result" in message:
            roots[:] = [root["uri"] for root in message["result"]["roots"]]
            while waiting:
                result = answer("tools/call", {"name": "allowed"})
                send(id=waiting.pop(), result=result)
        elif late and not roots and message.get("params", {}).get("name") == "allowed":
            waiting.append(message["id"])
            send(id="roots", method="roots/list")
        elif method is not None and "id" in message:
            result = answer(method, message.get("params") or {})
            if result is None:
                error = {"code": -32601, "message": "Method not found"}
                send(id=message["id"], error=error)
            else:
                send(id=message["id"], result=result)


if __name__ == "__main__":
    main()
