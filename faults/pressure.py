"""What an ordinary caller notices of an attack: its latencies in turns of three windows.

In the first there is no attack, in the second the same attacker attacks a listener that discards,
in the third it attacks the hub. The machine has few cores, and the attacker needs one: the second
window shows what that alone costs. The third must not be slower than both by more than a quarter.
A call counts from the moment at which it was due, so that a hub that answers late does not lower
the number of calls.
"""

from __future__ import annotations

import json
import socket
import statistics
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.live.conftest import RunningHub
from tests.peers import wire

from faults.harness import Outcome, cpu_seconds, resident_mb

GAP = 0.01
"""Seconds between the calls of the ordinary caller."""
TOOL_SECONDS = 0.005
"""How long its tool takes: no tool that is worth a call takes less."""
MOST_MORE = 1.25
RECOVERY_SECONDS = 10.0
WINDOW_SECONDS = 4.0
MIN_TURNS = 3
"""Fewer prove nothing about times: any program that runs beside them shows in a p99."""
MEMORY_MB = 256
SETTLE_SECONDS = 0.3
WAIT_SECONDS = 30.0
NAMES = {"quiet": "before", "sink": "of an attack elsewhere", "hub": "of the attack"}


class OrdinaryCaller:
    """Calls a tool over MCP on one connection, every `GAP` seconds."""

    def __init__(self, port: int, headers: dict[str, str]) -> None:
        params = wire.modern_params({"name": "r.slow", "arguments": {"seconds": TOOL_SECONDS}})
        body = json.dumps(wire.request(1, "tools/call", params)).encode()
        lines = ["POST /mcp HTTP/1.1", "Host: localhost", "Content-Type: application/json"]
        known = {**wire.modern_headers("tools/call", params), **headers, "Accept": wire.ACCEPT}
        lines += [f"{name}: {value}" for name, value in known.items()]
        lines += [f"Content-Length: {len(body)}", "", ""]
        self._request = "\r\n".join(lines).encode() + body
        self._port = port
        self._socket: socket.socket | None = None
        self.seen: Counter[str] = Counter()

    def call(self) -> None:
        try:
            if self._socket is None:
                self._socket = socket.create_connection(("127.0.0.1", self._port), WAIT_SECONDS)
                self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self._socket.sendall(self._request)
            data = b""
            while True:
                piece = self._socket.recv(65536)
                if not piece:
                    raise ConnectionError("closed")
                data += piece
                head, found, body = data.partition(b"\r\n\r\n")
                length = head.lower().partition(b"content-length: ")[2].partition(b"\r\n")[0]
                if found and len(body) >= int(length or 0):
                    break
            is_good = head[9:12] == b"200" and b'"error"' not in body
            self.seen["good" if is_good else head[9:12].decode()] += 1
        except OSError as error:
            self.seen[type(error).__name__] += 1
            self.close()

    def close(self) -> None:
        if self._socket is not None:
            self._socket.close()
            self._socket = None

    def measure(self, seconds: float) -> list[float]:
        """The latencies, in seconds, of the calls that were due in so many seconds."""
        took: list[float] = []
        due = time.monotonic()
        end = due + seconds
        while due < end:
            if (early := due - time.monotonic()) > 0:
                time.sleep(early)
            self.call()
            took.append(time.monotonic() - due)
            due += GAP
        return took


def percentile(values: list[float], part: float) -> float:
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(part * len(ordered)))]


@dataclass
class Window:
    p50: float
    p99: float
    cpu: float
    """Seconds of processor time that the hub took for a second."""


@dataclass
class Pressure:
    """The turns of one attack."""

    hub: RunningHub
    caller: OrdinaryCaller
    begin: Callable[[bool], None]
    """Begins the attack: on the hub if True, else on what discards."""
    end: Callable[[], dict[str, Any]]
    seconds: float = WINDOW_SECONDS
    """Of a window."""
    windows: dict[str, list[Window]] = field(default_factory=dict)
    seen: Counter[str] = field(default_factory=Counter)
    """What the attacker counted at the hub."""
    recovered: float = 0.0
    before_mb: float = 0.0
    peak_mb: float = 0.0

    @property
    def is_timed(self) -> bool:
        return "quiet" in self.windows

    def run(self, turns: int) -> None:
        """Fewer turns than `MIN_TURNS` are one window, in which the hub is attacked."""
        self.caller.measure(0.3)  # caches are filled
        self.before_mb = resident_mb(self.hub.pid)
        if turns < MIN_TURNS:
            self._attack("hub")
        else:
            for _ in range(turns):
                self._measure("quiet")
                self._attack("sink")
                self.caller.measure(SETTLE_SECONDS)
                self._attack("hub")
                self._recover()
        self.peak_mb = peak_resident_mb(self.hub.pid) - self.before_mb

    def _attack(self, kind: str) -> None:
        self.begin(kind == "hub")
        self.caller.measure(SETTLE_SECONDS)
        self._measure(kind)
        seen = self.end()
        if kind == "hub":
            self.note(seen)

    def note(self, seen: dict[str, Any]) -> None:
        """Adds what the attacker counted."""
        for name, count in seen.items():
            if name.endswith(" ms"):
                self.seen[name] = max(self.seen[name], count)
            else:
                self.seen[name] += count

    def _measure(self, kind: str) -> None:
        cpu, begun = cpu_seconds(self.hub.pid), time.monotonic()
        took = self.caller.measure(self.seconds)
        spent = (cpu_seconds(self.hub.pid) - cpu) / (time.monotonic() - begun)
        window = Window(percentile(took, 0.5), percentile(took, 0.99), spent)
        self.windows.setdefault(kind, []).append(window)

    def _recover(self) -> None:
        """Until a second of calls is as fast as the slowest window without an attack."""
        usual = MOST_MORE * max(window.p99 for window in self.windows["quiet"])
        begun = time.monotonic()
        took = self.caller.measure(0.2)
        while percentile(took[-100:], 0.99) > usual or len(took) < 100:
            if time.monotonic() - begun > 2 * RECOVERY_SECONDS:
                break
            took += self.caller.measure(0.2)
        # The second that proves it is not part of it.
        self.recovered = max(self.recovered, time.monotonic() - begun - 100 * GAP)

    def median(self, kind: str, name: str) -> float:
        values: list[float] = [getattr(window, name) for window in self.windows[kind]]
        return statistics.median(values)

    def ratio(self, over: str) -> float:
        """p99 while the hub is attacked, over that of another window of the same turn."""
        pairs = zip(self.windows["hub"], self.windows[over], strict=True)
        return statistics.median(hub.p99 / other.p99 for hub, other in pairs)

    def judge(self, outcome: Outcome, what: str = "", most_mb: float = MEMORY_MB) -> None:
        """Adds the figures, each with `what` before it."""
        figures, before = outcome.figures, f"{what}: " if what else ""
        figures[f"{before}most memory more, MB"] = round(self.peak_mb)
        what = what or "attack"
        bad = {name: count for name, count in self.caller.seen.items() if name != "good"}
        outcome.check(not bad, f"{what}: the ordinary caller saw {bad}")
        outcome.check(self.peak_mb < most_mb, f"{what}: {self.peak_mb:.0f} MB more")
        if self.is_timed:
            self._judge_times(outcome, what, before)

    def _judge_times(self, outcome: Outcome, what: str, before: str) -> None:
        figures = outcome.figures
        for kind, name in NAMES.items():
            p50, p99 = 1000 * self.median(kind, "p50"), 1000 * self.median(kind, "p99")
            figures[f"{before}p50 and p99 {name}, ms"] = f"{p50:.1f} and {p99:.1f}"
        ratios = self.ratio("quiet"), self.ratio("sink")
        figures[f"{before}p99 over that before and elsewhere"] = "{:.2f} and {:.2f}".format(*ratios)
        ratio = min(ratios)
        cpu = " and ".join(f"{100 * self.median(kind, 'cpu'):.0f}" for kind in ("quiet", "hub"))
        figures[f"{before}CPU of the hub before and meanwhile, %"] = cpu
        figures[f"{before}recovered after, s"] = f"{max(0.0, self.recovered):.1f}"
        outcome.check(ratio <= MOST_MORE, f"{what}: p99 is {ratio:.2f} times that without it")
        outcome.check(
            self.recovered <= RECOVERY_SECONDS, f"{what}: slow for {self.recovered:.1f} s after"
        )


def peak_resident_mb(pid: int) -> float:
    status = Path(f"/proc/{pid}/status").read_text(encoding="utf-8")
    return int(status.partition("VmHWM:")[2].split()[0]) / 1024
