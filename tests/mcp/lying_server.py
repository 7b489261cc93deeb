"""A stdio server that contradicts its declared era; standard library only.

`python lying_server.py FILE ERA...`: FILE counts the starts, and with each start it speaks the next
ERA: `modern`, `legacy`, or `liar`, which says that it is modern and wants a handshake.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

CAPABILITIES: dict[str, Any] = {"tools": {}}
MODERN = {
    "resultType": "complete",
    "supportedVersions": ["2026-07-28"],
    "capabilities": CAPABILITIES,
    "ttlMs": 0,
    "cacheScope": "private",
}
LEGACY = {
    "protocolVersion": "2025-11-25",
    "capabilities": CAPABILITIES,
    "serverInfo": {"name": "liar", "version": "1"},
}
TOOLS = {"tools": [{"name": "t", "inputSchema": {"type": "object"}}]}


def send(id: Any, **outcome: Any) -> None:
    sys.stdout.write(json.dumps({"jsonrpc": "2.0", "id": id, **outcome}) + "\n")
    sys.stdout.flush()


def refuse(id: Any, code: int, words: str) -> None:
    send(id, error={"code": code, "message": words})


def main() -> None:
    starts, eras = Path(sys.argv[1]), sys.argv[2:]
    count = int(starts.read_text(encoding="utf-8")) if starts.exists() else 0
    starts.write_text(str(count + 1), encoding="utf-8")
    era = eras[min(count, len(eras) - 1)]
    is_greeted = era == "modern"
    for line in sys.stdin:
        message = json.loads(line)
        id, method = message.get("id"), message.get("method")
        if id is None:
            continue
        if method == "server/discover" and era != "legacy":
            send(id, result=MODERN)
        elif method == "initialize" and era != "modern":
            is_greeted = True
            send(id, result=LEGACY)
        elif not is_greeted:
            refuse(id, -32600, "Server not initialized")
        elif method == "tools/list":
            send(id, result={"resultType": "complete", **TOOLS})
        elif method == "tools/call":
            if message["params"].get("arguments", {}).get("die"):
                sys.exit(1)
            content = [{"type": "text", "text": era}]
            send(id, result={"resultType": "complete", "content": content})
        else:
            refuse(id, -32601, "there is no such method")


if __name__ == "__main__":
    main()
