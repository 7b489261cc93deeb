"""A faulty stdio MCP server, one fault per mode; standard library only.

Where the mode says nothing else it is a plain server of the handshake era (2025-11-25) with the
tools `echo`, `slow` and `pid`. Every line it reads goes to `--log`.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

OPTIONS = argparse.Namespace()
LOCK = threading.Lock()

TOOLS = [
    {
        "name": "echo",
        "description": "The tool echo",
        "inputSchema": {"type": "object", "properties": {"text": {"type": "string"}}},
    },
    {"name": "slow", "inputSchema": {"type": "object"}},
    {"name": "pid", "inputSchema": {"type": "object"}},
]


def write(data: bytes) -> None:
    with LOCK:
        while data:
            data = data[os.write(1, data) :]


def send(**message: Any) -> None:
    write(json.dumps({"jsonrpc": "2.0", **message}).encode() + b"\n")


def note(**entry: Any) -> None:
    if OPTIONS.log:
        with open(OPTIONS.log, "a", encoding="utf-8") as file:
            file.write(json.dumps(entry) + "\n")


def text(words: str) -> dict[str, Any]:
    return {"content": [{"type": "text", "text": words}]}


def version(params: dict[str, Any]) -> str:
    if OPTIONS.mode in ("old", "old-hang"):
        return "2024-11-05"
    known = ("2024-11-05", "2025-03-26", "2025-06-18", "2025-11-25")
    asked = params.get("protocolVersion")
    return asked if asked in known else "2025-11-25"


def answer(number: Any, method: str, params: dict[str, Any]) -> None:
    """What a well-behaved server of the handshake era says."""
    if method == "initialize":
        result: dict[str, Any] = {
            "protocolVersion": version(params),
            "capabilities": {"tools": {}},
            "serverInfo": {"name": "rude-peer", "version": "0"},
        }
        send(id=number, result=result)
    elif method == "ping":
        send(id=number, result={})
    elif method == "tools/list":
        send(id=number, result={"tools": TOOLS})
    elif method == "tools/call":
        call(number, params)
    elif OPTIONS.mode != "old-hang":
        send(id=number, error={"code": -32601, "message": f"Method not found: {method}"})


def call(number: Any, params: dict[str, Any]) -> None:
    if params.get("name") == "slow":
        time.sleep(float((params.get("arguments") or {}).get("seconds", 1)))
        send(id=number, result=text("slept"))
    elif params.get("name") == "pid":
        send(id=number, result=text(str(os.getpid())))
    else:
        send(id=number, result=text(str((params.get("arguments") or {}).get("text", ""))))


# --- the modes: what they do at the start, and what they do at a call


def flood() -> None:
    def run() -> None:
        line = {"jsonrpc": "2.0", "method": "notifications/message"}
        line["params"] = {"level": "info", "data": "flood"}  # type: ignore[assignment]
        hundred = (json.dumps(line) + "\n").encode() * 100
        end = time.monotonic() + OPTIONS.seconds
        while time.monotonic() < end:
            write(hundred)
            time.sleep(0.01)
        note(event="flooded")

    threading.Thread(target=run, daemon=True).start()


def stderr_flood() -> None:
    line = b"x" * 1023 + b"\n"
    for _ in range(int(OPTIONS.megabytes * 1024)):
        os.write(2, line)
    note(event="flooded")


def fork() -> None:
    """A grandchild, and one that has left the session; each writes its pid and sleeps."""
    code = "import os, sys, time; print(os.getpid(), file=open(sys.argv[1], 'a')); time.sleep(600)"
    command = [sys.executable, "-c", code, OPTIONS.pids]
    for own_session in (False, True):
        subprocess.Popen(
            command,
            start_new_session=own_session,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )


def hang() -> None:
    while sys.stdin.buffer.readline():
        pass


def garbage() -> None:
    write(b'not json\n\n{"jsonrpc": \n[]\n7\nnull\n{}\n')
    write(bytes(range(256)).replace(b"\n", b"") + b"\n\xff\xfe\xfa\n")
    write(b'{"jsonrpc":"2.0","id":"\xff","result":{}}\n')


def banner() -> None:
    write(b"rude-peer 0 listening on stdio\n> ready\n")


AT_START: dict[str, Callable[[], None]] = {
    "nothing": lambda: os._exit(0),
    "hang": hang,
    "stderr-flood": stderr_flood,
    "fork": fork,
    "slow-start": lambda: time.sleep(OPTIONS.seconds),
    "prints-banner": banner,
    "garbage": garbage,
}


def close_stdout(number: Any, params: dict[str, Any]) -> None:
    os.close(1)
    hang()


def two_answers(number: Any, params: dict[str, Any]) -> None:
    send(id=number, result=text("first"))
    send(id=number, result=text("second"))


AT_CALL: dict[str, Callable[[Any, dict[str, Any]], None]] = {
    "hang-on-call": lambda number, params: None,
    "bigline": lambda number, params: send(
        id=number, result=text("x" * int(OPTIONS.megabytes * (1 << 20)))
    ),
    "exit-at-call": lambda number, params: os._exit(4),
    "wrong-id": lambda number, params: send(id=f"not {number}", result=text("wrong")),
    "two-answers": two_answers,
    "closes-stdout": close_stdout,
}
MODES = sorted({"ok", "flood", "old", "old-hang", *AT_START, *AT_CALL})


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("mode", choices=MODES)
    parser.add_argument("--log", help="a file for what it reads")
    parser.add_argument("--pids", help="fork: a file for the pids of the grandchildren")
    parser.add_argument("--seconds", type=float, default=1.0, help="flood, slow-start")
    parser.add_argument("--megabytes", type=float, default=1.0, help="bigline, stderr-flood")
    parser.parse_args(namespace=OPTIONS)
    note(event="start", pid=os.getpid())
    AT_START.get(OPTIONS.mode, lambda: None)()
    for line in sys.stdin.buffer:
        message = json.loads(line)
        note(event="message", **message)
        if "method" not in message or "id" not in message:
            if message.get("method") == "notifications/initialized" and OPTIONS.mode == "flood":
                flood()
            continue
        if OPTIONS.mode == "garbage":
            garbage()
        params = message.get("params") or {}
        if message["method"] == "tools/call" and OPTIONS.mode in AT_CALL:
            AT_CALL[OPTIONS.mode](message["id"], params)
        else:
            answer(message["id"], message["method"], params)


if __name__ == "__main__":
    main()
