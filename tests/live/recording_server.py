"""A stdio MCP server that records every call that reaches it; standard library only.

`python recording_server.py FOLDER`: FOLDER/tools.json holds its tools, FOLDER/calls gets a line
with the name of the tool per call. `fail...` fails, `slow...` never answers, `hold...` answers once
FOLDER/release exists, `long...` returns the text in FOLDER/long, `token` returns the `_meta` that
it got, `look` announces that the list has changed, and all others return their name.
"""

from __future__ import annotations

import json
import sys
import threading
import time
from pathlib import Path
from typing import Any

FOLDER = Path(sys.argv[1])
WRITING = threading.Lock()


def send(message: dict[str, Any]) -> None:
    with WRITING:
        sys.stdout.write(json.dumps({"jsonrpc": "2.0", **message}) + "\n")
        sys.stdout.flush()


def answer_text(id: Any, text: str, failed: bool = False) -> None:
    content = [{"type": "text", "text": text}]
    send({"id": id, "result": {"content": content, "isError": failed}})


def hold(id: Any) -> None:
    while not (FOLDER / "release").exists():
        time.sleep(0.01)
    answer_text(id, "released")


def call(id: Any, params: dict[str, Any]) -> None:
    name = params["name"]
    with (FOLDER / "calls").open("a", encoding="utf-8") as file:
        file.write(f"{name}\n")
    if name == "look":
        send({"method": "notifications/tools/list_changed"})
    if name.startswith("hold"):
        threading.Thread(target=hold, args=(id,), daemon=True).start()
    elif name.startswith("long"):
        answer_text(id, (FOLDER / "long").read_text(encoding="utf-8"))
    elif name == "token":
        answer_text(id, json.dumps(params["_meta"]))
    elif not name.startswith("slow"):
        answer_text(id, f"arrived: {name}", failed=name.startswith("fail"))


def main() -> None:
    for line in sys.stdin:
        message = json.loads(line)
        method, id = message.get("method"), message.get("id")
        if id is None or method is None:
            continue
        if method == "tools/call":
            call(id, message["params"])
        elif method == "tools/list":
            tools = json.loads((FOLDER / "tools.json").read_text(encoding="utf-8"))
            send({"id": id, "result": {"tools": tools}})
        elif method == "initialize":
            result = {
                "protocolVersion": "2025-11-25",
                "capabilities": {"tools": {"listChanged": True}},
                "serverInfo": {"name": "recording", "version": "1"},
            }
            send({"id": id, "result": result})
        else:
            send({"id": id, "result": {}})


if __name__ == "__main__":
    main()
