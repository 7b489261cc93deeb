"""SIGTERM while calls run and streams are open, and again while it shuts down."""

from __future__ import annotations

import signal
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import ExitStack
from pathlib import Path

from tests.live.conftest import RunningHub, _descendants
from tests.peers import wire
from tests.peers.process import HttpPeer, alive, read_log, server_entry

from faults.fixtures import echo_server
from faults.harness import Outcome, audit_records, running_hub, temporary_home, until, write_config

CALLS = 50
STREAMS = 10
MOST_SECONDS = 10.0


def end_under_load(rounds: int, seed: int, outcome: Outcome) -> None:
    """25 calls that would end in a second, 25 that never would, and open streams."""
    for _ in range(rounds):
        with temporary_home() as place, HttpPeer("faulty_http", "--log", place / "log") as peer:
            servers = [
                server_entry("soon", "http", f"{peer.url}/after/slow?seconds=1"),
                server_entry("never", "http", f"{peer.url}/after/hang-headers"),
            ]
            home = place / "h"
            write_config(home, [echo_server(), *servers])
            with running_hub(outcome, home) as hub, ThreadPoolExecutor(CALLS) as pool:
                hub.wait_connected("r", "soon", "never")
                _end(hub, pool, place / "log", outcome)
            outcomes = Counter(str(one["outcome"]) for one in audit_records(home))
            outcome.check(outcomes.total() == CALLS, f"the audit has {dict(outcomes)}")
            outcome.check(not outcomes["running"], f"calls without an outcome: {dict(outcomes)}")


def _count_calls(log: Path) -> int:
    bodies = [entry.get("body") for entry in read_log(log)]
    return sum(isinstance(body, dict) and body.get("method") == "tools/call" for body in bodies)


def _end(hub: RunningHub, pool: ThreadPoolExecutor, log: Path, outcome: Outcome) -> None:
    def call(number: int) -> str:
        tool = "soon.echo" if number % 2 else "never.echo"
        try:
            path = f"{hub.url}/api/tools/{tool}/call"
            return f"{tool} {wire.post(path, {'arguments': {}}, timeout=30).status}"
        except OSError as error:
            return f"{tool} {type(error).__name__}"

    with ExitStack() as streams:
        for _ in range(STREAMS):
            session = wire.Session(hub.mcp_url)
            streams.enter_context(wire.stream("GET", hub.mcp_url, None, session.headers, 20))
        running = [pool.submit(call, number) for number in range(CALLS)]
        all_run = until(lambda: _count_calls(log) == CALLS, 15)
        outcome.check(all_run, f"only {_count_calls(log)} calls run")
        children = _descendants(hub.pid)
        begun = time.monotonic()
        hub.process.send_signal(signal.SIGTERM)
        hub.process.send_signal(signal.SIGTERM)
        code = hub.process.wait(30)
        took = time.monotonic() - begun
        wait(running, 10)
    answers = Counter(one.result() for one in running)
    outcome.count("shutdowns")
    outcome.count("calls in flight", CALLS)
    outcome.figures["slowest, s"] = max(outcome.figures.get("slowest, s", 0.0), round(took, 1))
    outcome.figures["answers"] = ", ".join(f"{one}: {n}" for one, n in sorted(answers.items()))
    outcome.check(code == 0, f"it ended with {code}")
    outcome.check(took <= MOST_SECONDS, f"it took {took:.1f} s")
    outcome.check(not [pid for pid in children if alive(pid)], "children are left")
    half = CALLS // 2
    outcome.check(
        answers == {"soon.echo 200": half, "never.echo 502": half}, f"answers: {dict(answers)}"
    )
