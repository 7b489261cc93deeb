"""What open consoles cost the hub: their event streams, idle and beside calls."""

import contextlib
import socket
import time
from urllib.parse import urlencode

from bench import rows
from bench.load import measure_calls
from bench.plan import Plan, Records, attempt, say
from bench.rows import Running, up
from bench.streams import build_head, wait_begun
from bench.tables import SETTLE_SECONDS
from dragoman.core.event_payloads import EVENT_NAMES

CONSOLES = 50
IDLE_SECONDS = 10.0
CONNECTIONS = 16
FREQUENT = ("pre-verb", "post-verb", "verb-error", "EXEC:TOOL_CALL", "EXEC:TOOL_RESULT", "cost")
"""Events for each call or step, which most screens do not ask for; as in `live.js`."""
NONE = "no console"
OPEN = f"{CONSOLES} consoles"
HOME = f"{CONSOLES} consoles with the call map"


def console(plan: Plan) -> Records:
    """The kinds change places within a round, so that drift touches all alike."""
    found: Records = {NONE: [], OPEN: [], HOME: []}
    if plan.wants(rows.HUB_HTTP):
        for number in range(1, plan.rounds + 1):
            attempt(f"console, round {number}", [], measure_round, plan, number, found)
    return found


def measure_round(plan: Plan, number: int, found: Records) -> dict:
    with up(rows.HUB_HTTP) as running:
        measure_calls(running.child, running.endpoint, CONNECTIONS, plan.seconds)  # warm
        for kind in (NONE, OPEN, HOME):
            with contextlib.ExitStack() as stack:
                if kind != NONE:
                    _open_consoles(stack, running, is_home=kind == HOME)
                time.sleep(SETTLE_SECONDS)
                before = running.child.cpu_seconds()
                time.sleep(IDLE_SECONDS)
                idle = (running.child.cpu_seconds() - before) / IDLE_SECONDS
                load = measure_calls(running.child, running.endpoint, CONNECTIONS, plan.seconds)
            record = {"round": number, "idle_share": idle, "call": load}
            found[kind].append(record)
            say(
                f"console, round {number}, {kind}: idle {idle:.2%} of a core, "
                f"{load['per_second']:,.0f} calls/s, {load['cpu_us']:.0f} us, bad {load['bad']}"
            )
    return {}


def _open_consoles(stack: contextlib.ExitStack, running: Running, *, is_home: bool) -> None:
    names = [name for name in EVENT_NAMES.values() if name not in FREQUENT]
    names.append("post-verb" if is_home else "activity")
    path = f"/api/events?{urlencode({'phase': ','.join(names)})}"
    headers = {"Host": f"127.0.0.1:{running.context.port}", "Accept": "text/event-stream"}
    for _ in range(CONSOLES):
        sock = socket.create_connection(("127.0.0.1", running.context.port), 10)
        stack.callback(sock.close)
        sock.sendall(build_head("GET", headers, path))
        wait_begun(sock)
