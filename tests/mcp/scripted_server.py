"""A stdio server that answers as a script says; standard library only.

`python scripted_server.py SCRIPT LOG`: SCRIPT is a file of JSON with `era`, `capabilities` and
`answers`: a method to what it is answered with, or to a list of such, one after the other, the last
for ever. `{"error": ...}` is an error, `{"silent": true}` none at all, and `{"first": [...], ...}`
sends these messages before the rest; "$id" stands for the id of the request. `handshake` are
answers that hold once it was initialized. Each message it gets is a line of LOG.
"""

from __future__ import annotations

import json
import sys
from typing import Any


def send(message: Any) -> None:
    sys.stdout.write(json.dumps(message) + "\n")
    sys.stdout.flush()


def greeting(script: dict[str, Any], method: str) -> dict[str, Any] | None:
    capabilities = script.get("capabilities", {"tools": {}})
    if method == "initialize" and script["era"] == "legacy":
        version = script.get("revision", "2025-11-25")
        info = {"name": "scripted", "version": "1"}
        return {"protocolVersion": version, "capabilities": capabilities, "serverInfo": info}
    if method == "server/discover" and script["era"] == "modern":
        return {
            "resultType": "complete",
            "supportedVersions": ["2026-07-28"],
            "capabilities": capabilities,
            "ttlMs": 0,
            "cacheScope": "private",
        }
    return None


def answer(script: dict[str, Any], method: str, id: Any) -> None:
    if method == "initialize":
        script["answers"].update(script.get("handshake", {}))
    given = script["answers"].get(method)
    if isinstance(given, list):
        given = given.pop(0) if len(given) > 1 else given[0]
    if given is None:
        given = greeting(script, method) or {"error": {"code": -32601, "message": "no such method"}}
    if given.get("silent"):
        return
    given = json.loads(json.dumps(given).replace('"$id"', json.dumps(id)))
    for message in given.pop("first", []):
        send({"jsonrpc": "2.0", **message})
    outcome = given if "error" in given else {"result": given}
    send({"jsonrpc": "2.0", "id": id, **outcome})


def main() -> None:
    with open(sys.argv[1], encoding="utf-8") as file:
        script = json.load(file)
    with open(sys.argv[2], "a", encoding="utf-8") as log:
        for line in sys.stdin:
            message = json.loads(line)
            log.write(json.dumps(message) + "\n")
            log.flush()
            if "id" in message and "method" in message:
                answer(script, message["method"], message["id"])


if __name__ == "__main__":
    main()
