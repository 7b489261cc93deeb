"""The wall clock jumps, forwards and back, while the hub runs and between two starts."""

from __future__ import annotations

import tempfile
import threading
import time
from pathlib import Path

from tests.peers.process import server_entry

from faults.disk import Writes, write_home
from faults.harness import (
    Outcome,
    audit_records,
    running_hub,
    temporary_home,
    verify_audit,
)
from faults.peers import call_over_api
from faults.shim import Shim

HOUR, DAY = 3_600, 86_400
JUMPS = (HOUR, -HOUR, -DAY, 20 * HOUR, 25 * HOUR, 100 * DAY, 0)
TIMEOUT = 1


def jump(most: int, seed: int, outcome: Outcome) -> None:
    with temporary_home() as home, tempfile.TemporaryDirectory() as folder:
        log = Path(folder) / "calls.jsonl"
        write_home(
            home, log, server_entry("h", "faulty_server", "hang-on-call", timeout_secs=TIMEOUT)
        )
        shim = Shim(Path(folder), home)
        with running_hub(outcome, home, env=shim.env) as hub:
            hub.wait_connected("r", "h")
            writes = Writes(hub, log)
            for ahead in JUMPS[:most]:
                jump_once(writes, shim, ahead, outcome)
            writes.check(outcome, "after the jumps")
            outcome.figures.update(writes.seen)
        before = len(audit_records(home))
        shim.set_clock(100 * DAY)
        with running_hub(outcome, home, env=shim.env) as hub:
            hub.wait_connected("r")
            writes.hub = hub
            outcome.check(writes.call() == 200, "no call after a start in the future")
            writes.check(outcome, "after a start 100 days ahead")
        after = len(audit_records(home))
        outcome.check(
            after > before, f"a start 100 days ahead: {before} audit records, then {after}"
        )
        verify_audit(outcome, home, "after a start 100 days ahead")
        shim.set_clock(0)


def jump_once(writes: Writes, shim: Shim, ahead: int, outcome: Outcome) -> None:
    """A running call keeps its own timeout, and everything works afterwards."""
    when = f"clock {ahead:+} s"
    answers: list[tuple[int, float]] = []
    hanging = threading.Thread(
        target=lambda: answers.append(call_over_api(writes.hub, "h.echo", 60))
    )
    hanging.start()
    time.sleep(0.3)
    shim.set_clock(ahead)
    hanging.join(90)
    status, took = answers[0]
    fits = status == 504 and TIMEOUT - 0.5 < took < TIMEOUT + 20
    outcome.check(fits, f"{when}: a call over the jump ended with {status} after {took:.1f} s")
    outcome.check(writes.call() == 200, f"{when}: a call is refused")
    outcome.check(writes.send(), f"{when}: a task is refused")
    verify_audit(outcome, writes.hub.home, when)
    outcome.count("jumps")
