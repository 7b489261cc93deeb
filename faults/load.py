"""Ordinary use: a steady load whose every answer is checked, and one with clients and settings that
come and go.
"""

from __future__ import annotations

import asyncio
import json
import statistics
import time
from collections import Counter
from typing import Any
from urllib.parse import urlsplit

from tests.live.conftest import RunningHub, _descendants
from tests.live.test_leaks import legacy, many, modern, stdio
from tests.peers import wire
from tests.peers.process import HttpPeer, server_entry

from faults.clients import create_key
from faults.fixtures import echo_server
from faults.harness import (
    Outcome,
    cpu_seconds,
    fresh_hub,
    open_files,
    resident_mb,
    running_hub,
    temporary_home,
    until,
    write_config,
)
from faults.pressure import TOOL_SECONDS, percentile

CALLERS = 50
PER_SECOND = 300
LISTED = {"mcp_far_echo", "mcp_r_echo"}
MOST_P50, MOST_P99 = 0.005, 0.05
"""Seconds that the hub may add."""
MOST_MB_A_MINUTE = 1.0
LONG_SECONDS = 60
"""From this duration on, times and the growth of memory are judged."""


class LoadCaller:
    """One of the callers, with a connection and a key of its own."""

    def __init__(self, port: int, headers: dict[str, str], number: int) -> None:
        self._port, self._headers, self._number = port, headers, number
        self._sent = 0
        self.wrong: Counter[str] = Counter()
        self.lists: list[float] = []
        self.calls: list[float] = []

    def _build(self, method: str, params: dict[str, Any]) -> bytes:
        sent = wire.modern_params(params)
        body = json.dumps(wire.request(self._sent, method, sent)).encode()
        lines = ["POST /mcp HTTP/1.1", "Host: localhost", "Content-Type: application/json"]
        known = {**wire.modern_headers(method, sent), **self._headers, "Accept": wire.ACCEPT}
        lines += [f"{name}: {value}" for name, value in known.items()]
        lines += [f"Content-Length: {len(body)}", "", ""]
        return "\r\n".join(lines).encode() + body

    async def run(self, seconds: float, gap: float) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", self._port, limit=1 << 20)
        loop = asyncio.get_running_loop()
        due = loop.time() + gap * self._number / CALLERS
        end = loop.time() + seconds
        try:
            while due < end:
                await asyncio.sleep(due - loop.time())
                await self._send(reader, writer, due)
                due += gap
        except (OSError, asyncio.IncompleteReadError) as error:
            self.wrong[type(error).__name__] += 1
        finally:
            writer.close()

    async def _send(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, due: float
    ) -> None:
        self._sent += 1
        is_call = (self._sent + self._number) % 5 == 0
        text = f"{self._number}-{self._sent}"
        method, params = "tools/list", {}
        if is_call:
            method = "tools/call"
            params = {"name": "far.echo", "arguments": {"text": text}}
        writer.write(self._build(method, params))
        async with asyncio.timeout(30):
            head = (await reader.readuntil(b"\r\n\r\n")).lower()
            length = int(head.partition(b"content-length: ")[2].partition(b"\r\n")[0])
            answer = json.loads(await reader.readexactly(length))
        took = asyncio.get_running_loop().time() - due
        (self.calls if is_call else self.lists).append(took)
        result = answer.get("result", {}) if answer.get("id") == self._sent else {}
        if is_call:
            is_right = result.get("content") == [{"type": "text", "text": text}]
        else:
            is_right = {tool["name"] for tool in result.get("tools", ())} >= LISTED
        if not is_right:
            self.wrong[method] += 1


async def _sample_memory(hub: RunningHub, found: list[tuple[float, float]]) -> None:
    begun = time.monotonic()
    while True:
        found.append((time.monotonic() - begun, resident_mb(hub.pid)))
        await asyncio.sleep(0.5)


def steady_load(seconds: int, seed: int, outcome: Outcome) -> None:
    """50 callers with a key each send 300 requests a second, one of five a call of 5 ms."""
    with HttpPeer("faulty_http") as peer:
        far = server_entry("far", "http", f"{peer.url}/after/slow?seconds={TOOL_SECONDS}")
        with fresh_hub(outcome, [echo_server(), far]) as hub:
            keys = [create_key(hub, f"caller{number}") for number in range(2)]
            hub.headers.update(create_key(hub, "owner", "--role", "owner"))
            hub.wait_connected("r", "far")
            port = urlsplit(hub.url).port or 0
            callers = [LoadCaller(port, keys[n % len(keys)], n) for n in range(CALLERS)]
            memory: list[tuple[float, float]] = []

            async def run() -> None:
                sampling = asyncio.create_task(_sample_memory(hub, memory))
                async with asyncio.timeout(seconds + 60):
                    gap = CALLERS / PER_SECOND
                    await asyncio.gather(*(caller.run(seconds, gap) for caller in callers))
                sampling.cancel()

            cpu, begun = cpu_seconds(hub.pid), time.monotonic()
            asyncio.run(run())
            outcome.figures["CPU of the hub, %"] = round(
                100 * (cpu_seconds(hub.pid) - cpu) / (time.monotonic() - begun)
            )
            _judge_load(callers, memory, seconds, outcome)


def _judge_load(
    callers: list[LoadCaller], memory: list[tuple[float, float]], seconds: int, outcome: Outcome
) -> None:
    lists = [took for caller in callers for took in caller.lists]
    calls = [took - TOOL_SECONDS for caller in callers for took in caller.calls]
    wrong = sum((caller.wrong for caller in callers), Counter[str]())
    outcome.figures["requests"] = len(lists) + len(calls)
    outcome.figures["wrong or failed"] = wrong.total()
    outcome.check(not wrong, f"wrong or failed: {dict(wrong)}")
    expected = 0.95 * seconds * PER_SECOND
    outcome.check(len(lists) + len(calls) >= expected, "the load was not reached")
    for name, values in (("list", lists), ("call beyond its tool", calls)):
        p50, p99 = percentile(values, 0.5), percentile(values, 0.99)
        outcome.figures[f"p50 and p99 of a {name}, ms"] = f"{1000 * p50:.1f} and {1000 * p99:.1f}"
        if seconds >= LONG_SECONDS:
            outcome.check(p50 <= MOST_P50, f"p50 of a {name} is {1000 * p50:.1f} ms")
            outcome.check(p99 <= MOST_P99, f"p99 of a {name} is {1000 * p99:.1f} ms")
    later = [one for one in memory if one[0] > seconds / 2]
    slope = 60 * statistics.linear_regression(*zip(*later, strict=True)).slope
    outcome.figures["memory, MB"] = round(memory[-1][1])
    outcome.figures["growth in the second half, MB a minute"] = f"{slope:.2f}"
    if seconds >= LONG_SECONDS:
        outcome.check(slope < MOST_MB_A_MINUTE, f"memory grows by {slope:.1f} MB a minute")


# --- coming and going

RELOADS = 2
"""In each round."""
WARM_PART = 3
"""Memory is compared with that after the first of so many parts of the rounds."""


def soak(rounds: int, seed: int, outcome: Outcome) -> None:
    """Clients of every transport connect, call and leave, politely or not, while config.toml is
    edited; then all is as before."""
    with temporary_home() as home:
        config = '[mcp]\nstdio_expose = ["*"]\n'
        file = write_config(home, [echo_server()], config)
        plain = file.read_text(encoding="utf-8")
        with running_hub(outcome, home) as hub:
            hub.wait_connected("r")
            fresh = open_files(hub), len(_descendants(hub.pid))
            warm, warm_round = 0.0, max(1, rounds // WARM_PART)
            for number in range(rounds):
                for _ in range(RELOADS):
                    file.write_text(plain + echo_server("extra"), encoding="utf-8")
                    hub.wait_connected("extra")
                    made = many(hub, {legacy: 10, modern: 10, stdio: 5})
                    outcome.count("calls", made.total())
                    outcome.count("clients", 25)
                    file.write_text(plain, encoding="utf-8")
                    gone = until(lambda: "extra" not in _names(hub), 30)
                    outcome.check(gone, "a removed server is still there")
                    outcome.count("edits", 2)
                if number + 1 == warm_round:
                    warm = resident_mb(hub.pid)
            back = until(
                lambda: open_files(hub) <= fresh[0] + 2 and len(_descendants(hub.pid)) <= fresh[1],
                20,
            )
            now = open_files(hub), len(_descendants(hub.pid))
            outcome.check(back, f"descriptors and children: {now}, {fresh} before")
            end = resident_mb(hub.pid)
            outcome.figures["descriptors before and after"] = f"{fresh[0]} and {now[0]}"
            outcome.figures["children before and after"] = f"{fresh[1]} and {now[1]}"
            outcome.figures["memory after a third and at the end, MB"] = f"{warm:.0f} and {end:.0f}"
            if rounds >= 3 * WARM_PART:
                outcome.check(end <= 1.1 * warm, f"{end:.0f} MB, after a third {warm:.0f} MB")
            clients = hub.api("/api/status")["clients"]
            outcome.check(clients["stdio"] == 0, f"clients at the end: {clients}")


def _names(hub: RunningHub) -> set[str]:
    return {one["name"] for one in hub.api("/api/mcp/servers")["connected"]}
