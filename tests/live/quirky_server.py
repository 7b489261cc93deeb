"""A stdio MCP server with one quirk per mode; standard library only.

Beside the mode it is a plain server of the handshake era with the tools `echo`, `pid`, `hang`
(which never answers) and `deafen` (after which it stops reading). Modes:

    keeper      a grandchild holds its pipes open         pings        asks for pings without end
    deaf        closes its stdin once it is listed        answers      responses without a request
    stubborn    ends neither at EOF nor at SIGTERM        pages        a list without end
    impostor    a huge answer that names another's id     two-cursors  cursors that go in a circle
    true-id     answers with `true` for an id             odd-tools    tools of every odd kind
    questions   asks the client things before it answers  regress      progress that goes backwards
    floats      ids come back as floats                   talkative    a megabyte of stderr
    deep        answers nested two hundred deep
"""

from __future__ import annotations

import functools
import json
import os
import signal
import subprocess
import sys
import threading
import time
from typing import Any

MODE = sys.argv[1]
LOG = sys.argv[2] if len(sys.argv) > 2 else os.devnull
"""A file for a line of JSON a message."""
LOCK = threading.Lock()
ASKED: dict[Any, threading.Event] = {}

ODD_TOOLS: list[Any] = [
    {"name": "fine", "inputSchema": {"type": "object"}},
    "no object",
    {"name": "", "inputSchema": {"type": "object"}},
    {"name": "x" * 257, "inputSchema": {"type": "object"}},
    {"name": "no schema"},
    {"name": "array schema", "inputSchema": {"type": "array"}},
    {"name": "bad schema", "inputSchema": {"type": "object", "properties": {"a": {"type": "x"}}}},
    {"name": "words", "inputSchema": {"type": "object"}, "description": 17},
    {"name": "fine", "inputSchema": {"type": "object"}, "description": "the second of that name"},
    {"name": "fi ne", "inputSchema": {"type": "object"}},
    {"name": "fi/ne", "inputSchema": {"type": "object"}},
    {"name": "été", "inputSchema": {"type": "object"}},
    {"name": "y" * 200, "inputSchema": {"type": "object"}},
    {"name": "away", "inputSchema": {"type": "object", "$ref": "http://127.0.0.1:9/schema"}},
]


def write(data: bytes) -> None:
    with LOCK:
        while data:
            data = data[os.write(1, data) :]


def send(**message: Any) -> None:
    write(json.dumps({"jsonrpc": "2.0", **message}).encode() + b"\n")


def text(words: str) -> dict[str, Any]:
    return {"content": [{"type": "text", "text": words}]}


def tools(params: dict[str, Any]) -> dict[str, Any]:
    plain = {"inputSchema": {"type": "object"}}
    if MODE == "odd-tools":
        return {"tools": ODD_TOOLS}
    if MODE == "pages":
        number = int(params.get("cursor", "0"))
        tool = {"name": f"t{number}", "description": "x" * 4_000_000, **plain}
        return {"tools": [tool], "nextCursor": str(number + 1)}
    if MODE == "two-cursors":
        here = params.get("cursor", "a")
        return {"tools": [{"name": here, **plain}], "nextCursor": "b" if here == "a" else "a"}
    return {"tools": [{"name": name, **plain} for name in ("echo", "pid", "hang", "deafen")]}


def ask(method: str) -> Any:
    """Asks the client, and waits for its answer."""
    number = f"q-{method}"
    ASKED[number] = threading.Event()
    send(id=number, method=method, params={})
    ASKED[number].wait(60)
    return ANSWERS.get(number)


ANSWERS: dict[Any, Any] = {}


def call(number: Any, params: dict[str, Any]) -> None:
    name, arguments = params.get("name"), params.get("arguments") or {}
    if name == "hang":
        return
    if name == "pid":
        send(id=number, result=text(str(os.getpid())))
    elif MODE == "impostor" and arguments.get("text") == "huge":
        inner = ",".join(f'{{"id": {n}}}' for n in range(1, 40))
        body = f'{{"jsonrpc":"2.0","result":{{"ids":[{inner}],"content":['
        write(body.encode() + b" " * (11 << 20) + b']},"id":%d}\n' % number)
    elif MODE == "deep":
        write(b'{"jsonrpc":"2.0","id":%d,"result":%s%s}\n' % (number, b"[" * 200, b"]" * 200))
    elif MODE == "true-id":
        send(id=True, result=text("true"))
    elif MODE == "floats":
        send(id=float(number), result=text(arguments.get("text", "")))
    elif MODE == "questions":
        said = {method: ask(method) for method in ("ping", "roots/list", "sampling/createMessage")}
        send(id=number, result=text(json.dumps(said)))
    elif MODE == "regress":
        token = (params.get("_meta") or {}).get("progressToken")
        for value in (1, 3, 2, 3, "4", True, 5):
            progress = {"progressToken": token, "progress": value}
            send(method="notifications/progress", params=progress)
        send(method="notifications/progress", params={"progressToken": "other", "progress": 9})
        send(id=number, result=text("done"))
    else:
        send(id=number, result=text(str(arguments.get("text", ""))))


def endless(**message: Any) -> None:
    def run() -> None:
        hundred = (json.dumps({"jsonrpc": "2.0", **message}) + "\n").encode() * 100
        while True:
            write(hundred)

    threading.Thread(target=run, daemon=True).start()


@functools.cache  # once, however often it is listed
def talk() -> None:
    """Only once it is listed: its own answers stand behind all that it says, and may come late."""
    if MODE == "pings":
        endless(id="p", method="ping")
    if MODE == "answers":
        endless(id=10**6, result={})


def main() -> None:
    if MODE == "keeper":
        subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    if MODE == "stubborn":
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    if MODE == "talkative":
        for number in range(16_384):
            os.write(2, b"line %09d %s\n" % (number, b"x" * 48))
        os.write(2, b"the last line\n")
    for line in iter(sys.stdin.buffer.readline, b""):
        message = json.loads(line)
        with open(LOG, "ab") as log:
            log.write(line)
        number, method, params = message.get("id"), message.get("method"), message.get("params", {})
        if method is None:
            ANSWERS[number] = {key: message[key] for key in ("result", "error") if key in message}
            if number in ASKED:
                ASKED[number].set()
        elif number is None:
            continue
        elif method == "initialize":
            info = {"name": "odd", "version": "0"}
            version = params["protocolVersion"]
            send(
                id=number,
                result={"protocolVersion": version, "capabilities": {}, "serverInfo": info},
            )
        elif method == "tools/list":
            send(id=number, result=tools(params))
            talk()
            if MODE == "deaf":
                os.close(0)
                time.sleep(600)
        elif method == "tools/call" and params["name"] == "deafen":
            os.close(0)
            send(id=number, result=text("what?"))
            time.sleep(600)
        elif method == "tools/call":
            threading.Thread(target=call, args=(number, params), daemon=True).start()
        else:
            send(id=number, error={"code": -32601, "message": "Method not found"})
    if MODE == "stubborn":
        time.sleep(600)


if __name__ == "__main__":
    main()
