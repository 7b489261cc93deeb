"""Traces single calls through a running hub and counts how many modules each one crosses.

    make journeys                                # prints the table, fails if a journey is too long
    python -m bench.journeys --steps mcp-stdio   # prints every function that a journey enters

A journey is one warmed call, from its request to its response; what the hub does later for many
calls at once, such as committing the audit log, is not part of it. A profiler in the hub records
each Python function of `dragoman` that is entered or resumed on the event loop's thread. A *switch*
is two consecutive entries in different modules; a module is *entered* once for each run of
consecutive entries in it. Each call is traced several times and the shortest trace counts: timers
of the hub that happen to fire during a call are not part of it.
"""

from __future__ import annotations

import argparse
import contextlib
import http.client
import http.server
import itertools
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
SOURCE = ROOT / "src" / "dragoman"
WARM_UP, TRACES = 30, 12
START_SECONDS = 30.0
MOST_ENTRIES = 9
META: dict[str, Any] = {
    "io.modelcontextprotocol/protocolVersion": "2026-07-28",
    "io.modelcontextprotocol/clientCapabilities": {},
    "io.modelcontextprotocol/clientInfo": {"name": "journeys", "version": "1"},
}
CONFIG = """
[server]
host = "127.0.0.1"
port = 0

[mcp]
stdio_expose = ["*"]

[a2a]
enabled = true

[[agents]]
name = "greeter"
description = "Greets a person."
function = "greeters:greet"

[[a2a.external_agents]]
name = "remote"
url = "http://127.0.0.1:{port}"

[[mcp_servers]]
name = "hello"
transport = {{ type = "stdio", command = "{python}", args = ["{server}"] }}
"""
CARD = {
    "name": "remote",
    "description": "Repeats a text.",
    "version": "1",
    "capabilities": {},
    "defaultInputModes": ["text/plain"],
    "defaultOutputModes": ["text/plain"],
    "skills": [{"id": "echo", "name": "echo", "description": "Repeats a text.", "tags": []}],
}


# --- the hub that is traced ------------------------------------------------------------------


def run_traced_hub(output: str, arguments: list[str]) -> None:
    """Runs `dragoman` in this process; SIGUSR1 starts a trace, SIGUSR2 ends it and writes it."""
    prefix = f"{SOURCE}{os.sep}"
    entered: list[tuple[str, str]] = []

    def record(frame, event, argument):
        if event == "call" and (name := frame.f_code.co_filename).startswith(prefix):
            entered.append((name[len(prefix) : -3], frame.f_code.co_qualname))

    def start(*_):
        entered.clear()
        sys.setprofile(record)
        Path(f"{output}.on").touch()

    def end(*_):
        sys.setprofile(None)
        Path(f"{output}.new").write_text(json.dumps(entered), encoding="utf-8")
        os.replace(f"{output}.new", output)

    signal.signal(signal.SIGUSR1, start)
    signal.signal(signal.SIGUSR2, end)
    sys.argv = ["dragoman", *arguments]
    from dragoman.__main__ import main

    main()


# --- its counterparts ------------------------------------------------------------------------


class RemoteAgent(http.server.BaseHTTPRequestHandler):
    """An A2A 1.0 agent with one skill, which answers with a completed task."""

    protocol_version = "HTTP/1.1"

    server: http.server.HTTPServer

    def do_GET(self):
        url = f"http://127.0.0.1:{self.server.server_port}/a2a"
        interface = {"url": url, "protocolBinding": "JSONRPC", "protocolVersion": "1.0"}
        self._reply({**CARD, "supportedInterfaces": [interface]})

    def do_POST(self):
        request = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        if request["method"] != "SendMessage":
            error = {"code": -32001, "message": "task not found"}
            return self._reply({"jsonrpc": "2.0", "id": request["id"], "error": error})
        part = {"text": request["params"]["message"]["messageId"]}
        task = {
            "id": "t1",
            "contextId": "c1",
            "status": {"state": "TASK_STATE_COMPLETED"},
            "artifacts": [{"artifactId": "a1", "parts": [part]}],
        }
        return self._reply({"jsonrpc": "2.0", "id": request["id"], "result": {"task": task}})

    def _reply(self, answer):
        body = json.dumps(answer).encode()
        head = "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n"
        self.wfile.write(f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body)

    def log_message(self, *arguments):
        pass


class StdioClient:
    """`dragoman mcp`, as an IDE starts it."""

    def __init__(self, home: str) -> None:
        command = [sys.executable, "-m", "dragoman", "mcp"]
        environment = {**os.environ, "DRAGOMAN_HOME": home}
        self.process = subprocess.Popen(
            command, env=environment, text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        assert self.process.stdin is not None and self.process.stdout is not None
        self.stdin, self.stdout = self.process.stdin, self.process.stdout

    def request(self, method: str, params: dict) -> dict:
        asked = {"jsonrpc": "2.0", "id": 1, "method": method, "params": {**params, "_meta": META}}
        self.stdin.write(json.dumps(asked) + "\n")
        self.stdin.flush()
        answer: dict = json.loads(self.stdout.readline())
        return answer

    def close(self) -> None:
        self.stdin.close()
        self.process.wait(10)


class HttpClient:
    """One kept connection to the hub."""

    def __init__(self, port: int) -> None:
        self.connection = http.client.HTTPConnection("127.0.0.1", port, timeout=20)

    def post(self, path: str, method: str, params: dict, headers: dict[str, str]) -> dict:
        asked = {"jsonrpc": "2.0", "id": 1, "method": method, "params": params}
        head = {
            "Content-Type": "application/json",
            "Accept": "application/json, text/event-stream",
            **headers,
        }
        self.connection.request("POST", path, json.dumps(asked), head)
        answer: dict = json.loads(self.connection.getresponse().read())
        return answer


# --- the journeys ----------------------------------------------------------------------------


@dataclass(frozen=True)
class Journey:
    name: str
    title: str
    most_switches: int
    """Two thirds of the module switches before the packages were restructured."""
    call: Callable[[], dict]


def list_journeys(stdio: StdioClient, web: HttpClient) -> list[Journey]:
    skill = {"name": "remote.echo", "arguments": {"message": "hello"}}
    tool = {"name": "hello.greet", "arguments": {"name": "Ada"}, "_meta": META}
    headers = {"Mcp-Method": "tools/call", "Mcp-Name": "hello.greet"}
    headers["MCP-Protocol-Version"] = META["io.modelcontextprotocol/protocolVersion"]
    ids = itertools.count()

    def send_message() -> dict:
        message = {"messageId": f"m{next(ids)}", "role": "ROLE_USER", "parts": [{"text": "Ada"}]}
        version = {"A2A-Version": "1.0"}
        return web.post("/a2a/greeter", "SendMessage", {"message": message}, version)

    return [
        Journey(
            "mcp-stdio",
            "stdio client to the skill of a remote agent",
            156,
            lambda: stdio.request("tools/call", skill),
        ),
        Journey("a2a-http", "A2A SendMessage to a function agent", 156, send_message),
        Journey(
            "mcp-http",
            "POST /mcp to a stdio server",
            108,
            lambda: web.post("/mcp", "tools/call", tool, headers),
        ),
    ]


@dataclass(frozen=True)
class Trace:
    entered: list[list[str]]
    """Module and function, in the order in which they were entered or resumed."""

    @property
    def runs(self) -> list[str]:
        """The modules, with consecutive entries of one module joined."""
        return [module for module, _ in itertools.groupby(module for module, _ in self.entered)]

    @property
    def package_switches(self) -> int:
        return sum(1 for _ in itertools.groupby(one.split("/")[0] for one in self.runs)) - 1


def wait_until(is_done: Callable[[], bool], what: str, seconds: float = START_SECONDS) -> None:
    end = time.monotonic() + seconds
    while not is_done():
        if time.monotonic() > end:
            raise SystemExit(f"journeys: timed out waiting for {what}")
        time.sleep(0.005)


def trace_once(journey: Journey, hub: subprocess.Popen, output: Path) -> Trace:
    mark = Path(f"{output}.on")
    output.unlink(missing_ok=True)
    mark.unlink(missing_ok=True)
    hub.send_signal(signal.SIGUSR1)
    wait_until(mark.exists, "the profiler")
    answer = journey.call()
    hub.send_signal(signal.SIGUSR2)
    wait_until(output.exists, "the trace")
    check_answer(journey, answer)
    return Trace(json.loads(output.read_text(encoding="utf-8")))


def check_answer(journey: Journey, answer: dict) -> None:
    if "result" not in answer or answer["result"].get("isError"):
        raise SystemExit(f"journeys: {journey.title} was answered with {json.dumps(answer)[:300]}")


@contextlib.contextmanager
def running_hub(folder: Path) -> Iterator[tuple[subprocess.Popen, int]]:
    agent = http.server.ThreadingHTTPServer(("127.0.0.1", 0), RemoteAgent)
    threading.Thread(target=agent.serve_forever, daemon=True).start()
    server = ROOT / "examples" / "hello" / "hello_server.py"
    text = CONFIG.format(port=agent.server_port, python=sys.executable, server=server)
    (folder / "config.toml").write_text(text, encoding="utf-8")
    paths = [str(ROOT / "src"), str(ROOT / "examples" / "agents")]
    os.environ["PYTHONPATH"] = os.pathsep.join(paths)
    command = [sys.executable, __file__, "--hub", str(folder / "trace.json")]
    hub = subprocess.Popen([*command, "up", "--home", str(folder), "--quiet"])
    try:
        wait_until((folder / "daemon.json").exists, "the hub")
        url = json.loads((folder / "daemon.json").read_text(encoding="utf-8"))["url"]
        yield hub, int(url.rsplit(":", 1)[1].split("/")[0])
    finally:
        hub.terminate()
        hub.wait(15)
        agent.shutdown()


def warm_up(journey: Journey) -> None:
    """The first calls may come before the target is connected; later ones must succeed."""
    end = time.monotonic() + START_SECONDS
    while "result" not in journey.call() and time.monotonic() < end:
        time.sleep(0.1)
    for _ in range(WARM_UP):
        check_answer(journey, journey.call())


def describe(journey: Journey, trace: Trace) -> bool:
    """Prints one journey; returns whether it is short enough."""
    entries = Counter(trace.runs)
    switches, most = len(trace.runs) - 1, max(entries.values())
    print(f"{journey.name}: {journey.title}")
    print(
        f"  {len(trace.entered)} functions in {len(entries)} modules; {switches} module switches "
        f"(at most {journey.most_switches}), {trace.package_switches} package switches"
    )
    often = [f"{name} {times}" for name, times in entries.most_common(6) if times > 2]
    print(f"  most entered (at most {MOST_ENTRIES}): {', '.join(often)}")
    return switches <= journey.most_switches and most <= MOST_ENTRIES


def main() -> int:
    parser = argparse.ArgumentParser("python -m bench.journeys", description=__doc__)
    parser.add_argument("--steps", metavar="NAME", help="print every step of this journey")
    wanted = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="dgj", dir="/tmp") as name:
        folder = Path(name)
        with running_hub(folder) as (hub, port):
            stdio = StdioClient(name)
            fits = True
            for journey in list_journeys(stdio, HttpClient(port)):
                if wanted.steps and journey.name != wanted.steps:
                    continue
                warm_up(journey)
                traces = [trace_once(journey, hub, folder / "trace.json") for _ in range(TRACES)]
                shortest = min(traces, key=lambda one: len(one.entered))
                if wanted.steps:
                    for module, function in shortest.entered:
                        print(f"  {module:40} {function}")
                fits = describe(journey, shortest) and fits
            stdio.close()
    return 0 if fits else 1


if __name__ == "__main__":
    if sys.argv[1:2] == ["--hub"]:
        run_traced_hub(sys.argv[2], sys.argv[3:])
    else:
        sys.exit(main())
