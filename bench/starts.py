"""How long things take to start: `dragoman up` until healthy, `dragoman mcp` until it has listed
a hundred tools."""

import json
import os
import select
import time

from bench import rows
from bench.paths import HUB, PYTHON
from bench.plan import Plan, Records, attempt, say
from bench.processes import LOAD_CORE, Child, start
from bench.rows import Row, Running, up
from bench.tables import SETTLE_SECONDS
from bench.wire import CLIENT

RELAY = "`dragoman mcp` beside a running hub"
INTERPRETER = "`python -c pass` (the floor)"
RELAY_TOOLS = 100
REPLY_SECONDS = 10.0


def startup(plan: Plan) -> Records:
    found: Records = {}
    wanted = [row for row in (rows.HUB_HTTP, rows.SDK) if plan.wants(row)]
    for number in range(1, plan.starts + 1):
        for row in wanted:
            records = found.setdefault(row.name, [])
            attempt(f"start {number} of {plan.starts}: {row.name}", records, start_of, row)
    if plan.wants(rows.HUB_HTTP):
        found[RELAY], found[INTERPRETER] = [], []
        attempt(RELAY, [], relays, plan, found[RELAY], found[INTERPRETER])
    return found


def start_of(row: Row) -> dict:
    with up(row) as running:
        time.sleep(SETTLE_SECONDS)
        used = running.child.memory()
        record = {
            "healthy_seconds": running.healthy_seconds,
            "ready_seconds": running.ready_seconds,
            "rss_mb": used.rss,
            "pss_mb": used.pss,
        }
    healthy = record["healthy_seconds"]
    said = "" if healthy is None else f"healthy after {healthy:.2f} s, "
    say(f"start: {row.name}: {said}first call {record['ready_seconds']:.2f} s, {used.rss:.0f} MB")
    return record


def relays(plan: Plan, relay_records: list[dict], floor_records: list[dict]) -> dict:
    with up(rows.HUB_HTTP, tools=RELAY_TOOLS) as hub:
        for number in range(1, plan.relay_starts + 1):
            label = f"start {number} of {plan.relay_starts}: {RELAY}"
            attempt(label, relay_records, relay_start, hub)
            attempt(label, floor_records, interpreter_start)
            if len(relay_records) < number // 3:  # it does not work; do not wait for each
                break
    if relay_records:
        best = min(record["seconds"] for record in relay_records)
        floor = min(record["seconds"] for record in floor_records)
        say(f"start: {RELAY}: best {best * 1e3:.0f} ms; interpreter {floor * 1e3:.0f} ms")
    return {}


def interpreter_start() -> dict:
    child = start("interpreter", [PYTHON, "-c", "pass"], core=LOAD_CORE)
    try:
        child.process.wait(REPLY_SECONDS)
        return {"seconds": child.age()}
    finally:
        child.stop()


def relay_start(hub: Running) -> dict:
    home = {"DRAGOMAN_HOME": str(hub.context.home)}
    child = start("relay", [HUB, "mcp"], core=LOAD_CORE, environment=home, talk=True)
    try:
        ask(child, {"id": 1, "method": "initialize", "params": CLIENT})
        initialized = child.age()
        tell(child, {"method": "notifications/initialized"})
        tools = 0
        cursor: dict = {}
        while True:
            result = ask(child, {"id": 2, "method": "tools/list", "params": cursor})
            tools += len(result["tools"])
            if "nextCursor" not in result:
                break
            cursor = {"cursor": result["nextCursor"]}
        seconds = child.age()
        if tools < RELAY_TOOLS:
            raise RuntimeError(f"it listed {tools} of {RELAY_TOOLS} tools")
        return {"seconds": seconds, "initialize_seconds": initialized}
    finally:
        child.stop()


def tell(child: Child, message: dict) -> None:
    line = json.dumps({"jsonrpc": "2.0", **message}) + "\n"
    assert child.process.stdin is not None
    os.write(child.process.stdin.fileno(), line.encode())


def ask(child: Child, message: dict) -> dict:
    """Sends a request over stdio and waits, within a bound, for the answer with its id."""
    tell(child, message)
    assert child.process.stdout is not None
    output = child.process.stdout.fileno()
    buffer = b""
    deadline = time.perf_counter() + REPLY_SECONDS
    while (left := deadline - time.perf_counter()) > 0:
        if not select.select([output], [], [], left)[0]:
            break
        data = os.read(output, 1 << 20)
        if not data:
            child.process.wait(REPLY_SECONDS)
            raise RuntimeError(child.why_dead())
        *lines, buffer = (buffer + data).split(b"\n")
        for answer in map(json.loads, filter(None, lines)):
            if answer.get("id") == message["id"]:
                if "result" not in answer:
                    raise RuntimeError(f"{message['method']} got {json.dumps(answer)[:200]}")
                result: dict = answer["result"]
                return result
    raise RuntimeError(f"{message['method']} was not answered in {REPLY_SECONDS:.0f} s")
