"""Attacks on the time and the memory of the hub, and what an ordinary caller notices of each.

The attacker has a key of its own and is another process (`attackers.py`); `pressure.py` measures.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

from tests.live.conftest import RunningHub
from tests.peers.process import HttpPeer, server_entry

from faults.attackers import Process
from faults.clients import create_key
from faults.fixtures import echo_server
from faults.harness import Outcome, fresh_hub, raise_open_files, until
from faults.pressure import MIN_TURNS, SETTLE_SECONDS, WINDOW_SECONDS, OrdinaryCaller, Pressure

SENDERS = 20
HEAD_SECONDS, BODY_SECONDS, MARGIN = 10.0, 60.0, 20.0
BODY = 9_900_000
BOMB = 200 << 20


@dataclass
class Rig:
    hub: RunningHub
    attacker: Process
    sink: int
    """The port of the listener that discards."""
    greedy: dict[str, str]
    """The headers of the attacker's key."""
    caller: OrdinaryCaller

    @property
    def port(self) -> int:
        return urlsplit(self.hub.url).port or 0

    def press(
        self, turns: int, attack: str, elsewhere: dict[str, Any] | None = None, **how: Any
    ) -> Pressure:
        """Runs the turns; `elsewhere` is what the attacker does instead of attacking the hub, by
        default the same to the sink."""
        seconds = how.pop("seconds", WINDOW_SECONDS if turns >= MIN_TURNS else 2.0)
        how = {"attack": attack, "port": self.port, "headers": self.greedy, **how}
        other = elsewhere or {**how, "port": self.sink}

        def begin(at_hub: bool) -> None:
            self.attacker.begin(**(how if at_hub else other))

        pressure = Pressure(self.hub, self.caller, begin, self.attacker.end, seconds)
        pressure.run(turns)
        return pressure


@contextmanager
def prepared(outcome: Outcome, servers: Sequence[str] = (), config: str = "") -> Iterator[Rig]:
    with (
        fresh_hub(outcome, [echo_server(), *servers], config) as hub,
        Process() as attacker,
        Process("sink") as sink,
    ):
        greedy, modest = create_key(hub, "greedy"), create_key(hub, "modest", "--role", "owner")
        hub.headers.update(modest)
        names = [server.partition('name = "')[2].partition('"')[0] for server in servers]
        hub.wait_connected("r", *names)
        port = urlsplit(hub.url).port or 0
        rig = Rig(hub, attacker, sink.read()["port"], greedy, OrdinaryCaller(port, modest))
        try:
            yield rig
        finally:
            rig.caller.close()


def note(outcome: Outcome, pressure: Pressure, *allowed: str, what: str = "") -> None:
    """Adds the attacker's figures: each answer must have an allowed status, and a refusal that may
    be tried again must say when."""
    before = f"{what}: " if what else ""
    seen = pressure.seen
    statuses = {name: count for name, count in seen.items() if name.isdigit()}
    for status, count in statuses.items():
        outcome.figures[f"{before}attacker's {status}"] = count
    outcome.check(bool(statuses), f"{before}the attacker got no answer: {dict(seen)}")
    outcome.check(set(statuses) <= set(allowed), f"{before}the attacker got {statuses}")
    later = seen["429"] + seen["503"]
    outcome.check(
        seen["with retry-after"] == later,
        f"{before}{later - seen['with retry-after']} refusals without Retry-After",
    )


# --- the attacks


def slow_connections(connections: int, seed: int, outcome: Outcome) -> None:
    """Heads that come line by line, as many silent connections, and a quarter as many bodies that
    come byte by byte. Each is closed in its time and opened again."""
    raise_open_files(3 * connections + 500)
    is_whole = connections >= 1_000
    counts: dict[str, Any] = {
        "heads": connections,
        "silent": connections,
        "bodies": connections // 4,
    }
    with prepared(outcome) as rig:
        turns = MIN_TURNS if is_whole else 1
        pressure = rig.press(turns, "hold", seconds=HEAD_SECONDS + 2, **counts)
        if is_whole:  # until the bodies are closed, too
            rig.attacker.begin("hold", rig.port, headers=rig.greedy, **counts)
            rig.caller.measure(BODY_SECONDS + 5)
            pressure.note(rig.attacker.end())
        pressure.judge(outcome)
        for kind, seconds in (
            ("head", HEAD_SECONDS), ("silent", HEAD_SECONDS), ("body", BODY_SECONDS)
        ):  # fmt: skip
            outcome.count("connections", pressure.seen[kind])
            if kind == "body" and not is_whole:
                continue
            longest = pressure.seen[f"{kind} longest ms"] / 1000
            outcome.figures[f"{kind} closed after, s"] = f"{longest:.1f}"
            fits = 0 < longest < seconds + MARGIN
            outcome.check(fits, f"a connection ({kind}) was closed after {longest:.1f} s")


def many_values(turns: int, seed: int, outcome: Outcome) -> None:
    """Bodies of 9.9 MB of `{}`."""
    with prepared(outcome) as rig:
        pressure = rig.press(turns, "values", size=BODY, senders=SENDERS, per_second=20)
        pressure.judge(outcome)
        note(outcome, pressure, "400", "503")


def request_bombs(turns: int, seed: int, outcome: Outcome) -> None:
    """Bodies of 200 KB that inflate to 200 MB."""
    with prepared(outcome) as rig:
        pressure = rig.press(turns, "bombs", inflated=BOMB, senders=SENDERS, per_second=20)
        pressure.judge(outcome)
        note(outcome, pressure, "413", "503")


def _press_upstream(
    turns: int, outcome: Outcome, path: str, what: str, senders: int, per_second: float = 20
) -> None:
    """Calls a tool whose server answers by `path`; elsewhere the attacker reads what it sends."""
    patience = 3 if turns >= MIN_TURNS else 1
    with HttpPeer("faulty_http") as peer:
        os.setpriority(os.PRIO_PROCESS, peer.pid, 19)
        server = server_entry("far", "http", peer.url + path, timeout_secs=patience)
        with prepared(outcome, [server]) as rig:
            common: dict[str, Any] = {"senders": senders, "per_second": per_second}
            elsewhere = {"attack": "read", "port": peer.port, "path": path, "bytes": 10 << 20}
            elsewhere["seconds"] = patience
            pressure = rig.press(
                turns, "call", {**common, **elsewhere}, tool="far.echo", arguments={}, **common
            )
            pressure.judge(outcome, what)
            note(outcome, pressure, "502", "503", "504", what=what)


def response_bombs(turns: int, seed: int, outcome: Outcome) -> None:
    """A server whose answers of 200 KB inflate to 200 MB."""
    path = f"/after/gzip-bomb?megabytes={BOMB >> 20}"
    _press_upstream(turns, outcome, path, "", 10)


def drips(turns: int, seed: int, outcome: Outcome) -> None:
    """Servers whose answers never end: a stream of events, a body, a body to each of many calls."""
    _press_upstream(turns, outcome, "/after/flood-sse?rate=5e6", "events", 4)
    _press_upstream(turns, outcome, "/after/endless-body?rate=50e6", "body", 2)
    _press_upstream(turns, outcome, "/after/endless-body?rate=1e6", "many bodies", 100, 100)


# --- overload

CAPACITY = 20
"""Calls at once in the overload; one caller has half of them."""
SLOW_SECONDS = 0.1
TIMES = 5


def overload(turns: int, seed: int, outcome: Outcome) -> None:
    """One caller offers five times as many calls as it may have; then as many as it may."""
    with HttpPeer("faulty_http") as peer:
        os.setpriority(os.PRIO_PROCESS, peer.pid, 19)
        url = f"{peer.url}/after/slow?seconds={SLOW_SECONDS}"
        config = f"[limits]\ncalls_in_flight = {CAPACITY}\n"
        with prepared(outcome, [server_entry("far", "http", url)], config) as rig:
            share = CAPACITY // 2
            offered = TIMES * share / SLOW_SECONDS
            how: dict[str, Any] = {"tool": "far.echo", "arguments": {}}
            usual = {**how, "headers": rig.greedy, "senders": share, "per_second": 1000}
            peak = _serve_calls(rig, usual, 2.0 if turns >= MIN_TURNS else 0.5)
            pressure = rig.press(turns, "call", senders=5 * share, per_second=offered, **how)
            seconds = (pressure.seconds + SETTLE_SECONDS) * len(pressure.windows["hub"])
            pressure.judge(outcome)
            note(outcome, pressure, "200", "429", "503")
            goodput = pressure.seen["200"] / seconds
            # The last calls of the attack end some time after it, later on a busy machine.
            is_over = until(lambda: not _count_refused(_serve_calls(rig, usual, 0.2)))
            outcome.check(is_over, "calls are refused long after it")
            after = _serve_calls(rig, usual, 2.0 if turns >= MIN_TURNS else 0.5)
            figures = outcome.figures
            figures["calls served a second at most"] = round(peak["200"])
            figures["offered a second"] = round(offered)
            figures["served a second meanwhile"] = round(goodput)
            figures["served a second after it"] = round(after["200"])
            outcome.check(pressure.seen["503"] + pressure.seen["429"] > 0, "nothing was refused")
            outcome.check(not _count_refused(after), f"refused after it: {after}")
            if pressure.is_timed:
                outcome.check(goodput >= 0.8 * peak["200"], f"goodput {goodput:.0f} a second")
                outcome.check(after["200"] >= 0.8 * peak["200"], f"after it {after['200']:.0f}")


def _count_refused(seen: dict[str, float]) -> float:
    return seen["503"] + seen["429"]


def _serve_calls(rig: Rig, how: dict[str, Any], seconds: float) -> dict[str, float]:
    """What one caller gets in a second that has as many calls at work as it may have."""
    rig.attacker.begin("call", rig.port, **how)
    begun = time.monotonic()
    rig.caller.measure(seconds)
    seen = rig.attacker.end()
    took = time.monotonic() - begun
    return {status: seen.get(status, 0) / took for status in ("200", "429", "503")}
