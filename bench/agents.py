"""A2A: an echo agent, on the hub and on the official SDK.

Knows how both are started and spoken to, and what is measured; 1.0 over JSON-RPC.
"""

import contextlib
import http.client
import json
import shutil
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from bench.load import measure, measure_calls
from bench.paths import BENCH_PYTHON, HOMES, HUB, PEERS, PYTHON
from bench.plan import Plan, Records, attempt, microseconds, say
from bench.processes import TARGET_CORE, Child, free_port, start, wait_until
from bench.rows import write_home
from bench.wire import CALLED, REQUEST_ID

CONNECTIONS = (1, 16)
EVENTS = 10  # of a task that is streamed
LENGTHS = (10, 100)  # events of the tasks whose statements are counted
HEADERS = {"Content-Type": "application/json", "A2A-Version": "1.0"}

Command = list[str | Path]


@dataclass(frozen=True)
class Endpoint:
    """An agent on loopback; what a load needs of it."""

    port: int
    method: str = "SendMessage"
    text: str = f"ping-{REQUEST_ID}"

    def message(self, text: str) -> dict:
        return {"messageId": text, "role": "ROLE_USER", "parts": [{"text": text}]}

    def ask(self, method: str, params: dict) -> str:
        """The body of the answer, whole."""
        asked = {"jsonrpc": "2.0", "id": 1, "method": method, "params": params}
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
        try:
            connection.request("POST", "/a2a", json.dumps(asked), HEADERS)
            return connection.getresponse().read().decode()
        finally:
            connection.close()

    def send(self, text: str) -> dict:
        answer = self.ask("SendMessage", {"message": self.message(text)})
        if f"E:{text}" not in answer:
            raise RuntimeError(f"a message was answered with {answer[:200]}")
        task: dict = json.loads(answer)["result"]["task"]
        return task

    def stream(self, text: str) -> int:
        """The number of events that were heard."""
        answer = self.ask("SendStreamingMessage", {"message": self.message(text)})
        return sum(line.startswith("data:") for line in answer.splitlines())

    def template(self, params: dict) -> bytes:
        asked = {"jsonrpc": "2.0", "id": "id", "method": self.method, "params": params}
        text = json.dumps(asked, separators=(",", ":"))
        body = text.replace('"id":"id"', f'"id":{REQUEST_ID}', 1).encode()
        headers = HEADERS | {"Host": f"127.0.0.1:{self.port}", "Content-Length": str(len(body))}
        lines = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
        return f"POST /a2a HTTP/1.1\r\n{lines}\r\n".encode() + body

    def call_templates(self, connections: int) -> list[bytes]:
        return [self.template({"message": self.message(self.text)})]


@dataclass(frozen=True)
class AgentRow:
    name: str
    command: Callable[[int, Path, Path | None], Command]  # port, home, file for counts
    sdk: str  # the row it is compared with


def hub(store: str) -> Callable[[int, Path, Path | None], Command]:
    def command(port: int, home: Path, counts: Path | None) -> Command:
        shutil.copy(PEERS / "hub_agent.py", home)
        text = f'[server]\nhost = "127.0.0.1"\nport = {port}\n'
        text += f'\n[a2a]\nenabled = true\nstore = "{store}"\n'
        text += '\n[[agents]]\nname = "echo"\nfunction = "hub_agent:echo"\n'
        write_home(home, text)
        begin: Command = [HUB] if counts is None else [PYTHON, PEERS / "counted_hub.py", counts]
        return [*begin, "up", "--home", home]

    return command


def sdk(store: str, loop: str = "asyncio") -> Callable[[int, Path, Path | None], Command]:
    def command(port: int, home: Path, counts: Path | None) -> Command:
        rest: Command = [home / "tasks.db"] if store == "sqlite" else []
        counted: Command = [counts] if counts else []
        return [BENCH_PYTHON, PEERS / "sdk_agent.py", loop, str(port), *rest, *counted]

    return command


SDK_MEMORY = AgentRow("a2a-sdk, tasks in memory", sdk("memory"), "a2a-sdk, tasks in memory")
SDK_SQLITE = AgentRow("a2a-sdk, tasks on SQLite", sdk("sqlite"), "a2a-sdk, tasks on SQLite")
SDK_UVLOOP = AgentRow(
    "a2a-sdk on uvloop, tasks in memory", sdk("memory", "uvloop"), SDK_MEMORY.name
)
HUB_MEMORY = AgentRow("Dragoman, tasks in memory", hub("memory"), SDK_MEMORY.name)
HUB_SQLITE = AgentRow("Dragoman, tasks on SQLite", hub("sqlite"), SDK_SQLITE.name)
ROWS = [HUB_MEMORY, SDK_MEMORY, SDK_UVLOOP, HUB_SQLITE, SDK_SQLITE]


@contextlib.contextmanager
def up(row: AgentRow, counts: Path | None = None) -> Iterator[tuple[Child, Endpoint]]:
    """A fresh process with the agent, ready to be asked; ended afterwards."""
    home = Path(tempfile.mkdtemp(dir=HOMES))
    endpoint = Endpoint(free_port())
    try:
        child = start(row.name, row.command(endpoint.port, home, counts), core=TARGET_CORE)
        try:
            wait_until(lambda: bool(endpoint.send("probe")), child)
            yield child, endpoint
        finally:
            child.stop()
    finally:
        shutil.rmtree(home, ignore_errors=True)


def agents(plan: Plan) -> Records:
    wanted = [row for row in ROWS if plan.wants(row)]
    found: Records = {row.name: [] for row in wanted}
    for number in range(1, plan.rounds + 1):
        for row in wanted:
            label = f"agents, round {number} of {plan.rounds}: {row.name}"
            attempt(label, found[row.name], agent_round, plan, row, number, label)
    return found


def agent_round(plan: Plan, row: AgentRow, number: int, label: str) -> dict:
    seconds = plan.seconds / 2
    load = {}
    with up(row) as (child, endpoint):
        for connections in CONNECTIONS:
            load[str(connections)] = measure_calls(child, endpoint, connections, seconds)
        text = f"ping-{REQUEST_ID} in {EVENTS}"
        streaming = Endpoint(endpoint.port, "SendStreamingMessage", text)
        load["stream"] = measure_calls(child, streaming, CONNECTIONS[-1], seconds)
        load["get"] = measure_gets(child, endpoint, load["1"])
    record = {"round": number, "load": load}
    if number == 1 and "SQLite" in row.name:
        record["statements"] = count_statements(row)
    said = ", ".join(f"{what} {microseconds(one['cpu_us'])} CPU" for what, one in load.items())
    say(f"{label}: {said}, bad {sum(one['bad'] for one in load.values())}")
    return record


def measure_gets(child: Child, endpoint: Endpoint, pilot: dict) -> dict:
    """The task of one message, again and again."""
    task = endpoint.send("kept")
    getting = Endpoint(endpoint.port, "GetTask")
    checks = {"expected": f"{CALLED[:2]}kept", "with_id": False}
    count = int(min(max(pilot["n"], 200), 20_000))
    templates = [getting.template({"id": task["id"]})]
    return measure(child, endpoint.port, templates, CONNECTIONS[-1], count, **checks)


def count_statements(row: AgentRow) -> dict[str, dict]:
    """What a streamed task executes, by the number of its events."""
    found = {}
    counts = HOMES / "counts"
    counts.unlink(missing_ok=True)
    with up(row, counts) as (_, endpoint):
        for length in LENGTHS:
            before = json.loads(counts.read_text(encoding="utf-8"))
            heard = endpoint.stream(f"ping in {length}")
            if heard != length:
                raise RuntimeError(f"{heard} events were heard instead of {length}")
            after = json.loads(counts.read_text(encoding="utf-8"))
            found[str(length)] = {key: after[key] - before[key] for key in after}
    return found


def most_statements(records: list[dict]) -> float | None:
    """For an event, in whichever task had the most."""
    counted = [record["statements"] for record in records if "statements" in record]
    each = [one[str(length)]["statements"] / length for one in counted for length in LENGTHS]
    return max(each, default=None)
