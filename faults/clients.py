"""Clients that overload the hub or never finish: floods, endless bodies."""

from __future__ import annotations

import asyncio
import json
import time
from collections import Counter
from urllib.parse import urlsplit

from tests.live.conftest import RunningHub
from tests.peers import wire

from faults.fixtures import echo_server
from faults.harness import (
    Background,
    Outcome,
    fresh_hub,
    resident_mb,
    run_command,
)

FLOOD = 40
BODY = 9_900_000
MEMORY_MB = 512


class Regular:
    """An ordinary caller on a thread: who opens a connection for each call, and counts."""

    def __init__(self, hub: RunningHub, headers: dict[str, str]) -> None:
        self._hub, self._headers = hub, headers
        self.seen: Counter[str] = Counter()
        self.took: list[float] = []

    def step(self) -> None:
        begun = time.monotonic()
        try:
            answer = wire.post(
                self._hub.url + "/api/tools/r.echo/call",
                {"arguments": {"text": "x"}},
                self._headers,
                timeout=30,
            )
            self.seen[str(answer.status)] += 1
        except OSError as error:
            self.seen[type(error).__name__] += 1
        self.took.append(time.monotonic() - begun)


def create_key(hub: RunningHub, name: str, *more: str) -> dict[str, str]:
    done = run_command(hub.home, "keys", "create", name, "--json", *more)
    return {"Authorization": f"Bearer {json.loads(done.stdout)['key']}"}


# --- overload


def flood_with_calls(seconds: int, seed: int, outcome: Outcome) -> None:
    """One caller keeps far more calls going than the hub takes; another calls now and then."""
    config = "[limits]\ncalls_in_flight = 20\n"
    with fresh_hub(outcome, [echo_server(), echo_server("s")], config) as hub:
        greedy, modest = create_key(hub, "greedy"), create_key(hub, "modest", "--role", "owner")
        hub.headers.update(modest)
        hub.wait_connected("r", "s")
        regular = Regular(hub, modest)
        with Background(regular.step, 0.02):
            seen = asyncio.run(_flood(urlsplit(hub.url).port or 0, greedy, seconds))
        outcome.figures.update({f"flood {status}": count for status, count in seen.items()})
        served = regular.seen["200"]
        outcome.figures["calls of the other caller"] = sum(regular.seen.values())
        outcome.figures["of them served"] = served
        outcome.check(set(seen) <= {200, 429, 503}, f"the flood was answered {dict(seen)}")
        outcome.check(
            served == sum(regular.seen.values()) > 0, f"the other caller saw {dict(regular.seen)}"
        )


async def _flood(port: int, headers: dict[str, str], seconds: float) -> Counter[int]:
    seen: Counter[int] = Counter()
    body = b'{"arguments":{"seconds":0.2}}'
    lines = ["POST /api/tools/s.slow/call HTTP/1.1", "Host: localhost"]
    lines += [f"{name}: {value}" for name, value in headers.items()]
    lines += ["Content-Type: application/json", f"Content-Length: {len(body)}", "", ""]
    request = "\r\n".join(lines).encode() + body
    end = time.monotonic() + seconds

    async def call_again_and_again() -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        try:
            while time.monotonic() < end:
                writer.write(request)
                head = (await reader.readuntil(b"\r\n\r\n")).decode().lower()
                size = int(head.partition("content-length: ")[2].partition("\r\n")[0])
                await reader.readexactly(size)
                seen[int(head[9:12])] += 1
        except (OSError, asyncio.IncompleteReadError):
            seen[0] += 1
        finally:
            writer.transport.abort()

    async with asyncio.timeout(seconds + 60):
        await asyncio.gather(*(call_again_and_again() for _ in range(FLOOD)))
    return seen


# --- bodies that do not end


def unfinished_bodies(connections: int, seed: int, outcome: Outcome) -> None:
    """One caller sends large bodies without their last byte; the memory they take is bounded."""
    with fresh_hub(outcome, [echo_server()]) as hub:
        greedy, modest = create_key(hub, "greedy"), create_key(hub, "modest", "--role", "owner")
        hub.headers.update(modest)
        hub.wait_connected("r")
        before = resident_mb(hub.pid)
        peak = 0.0

        def sample() -> None:
            nonlocal peak
            peak = max(peak, resident_mb(hub.pid) - before)

        regular = Regular(hub, modest)
        with Background(sample, 0.05), Background(regular.step, 0.05):
            asyncio.run(_send_bodies(urlsplit(hub.url).port or 0, greedy, connections, outcome))
        outcome.figures["most memory more, MB"] = round(peak)
        outcome.figures["calls meanwhile"] = sum(regular.seen.values())
        outcome.check(peak < MEMORY_MB, f"{peak:.0f} MB more for {connections} unfinished bodies")
        outcome.check(
            regular.seen["200"] == sum(regular.seen.values()) > 0,
            f"an ordinary caller saw {dict(regular.seen)}",
        )


async def _send_bodies(
    port: int, headers: dict[str, str], connections: int, outcome: Outcome
) -> None:
    lines = ["POST /api/tools/r.echo/call HTTP/1.1", "Host: localhost"]
    lines += [f"{name}: {value}" for name, value in headers.items()]
    lines += ["Content-Type: application/json", f"Content-Length: {BODY}", "", ""]
    head = "\r\n".join(lines).encode()
    piece = b"a" * 99_000

    async def send() -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        try:
            async with asyncio.timeout(8):
                writer.write(head)
                for _ in range(BODY // len(piece)):
                    writer.write(piece)
                    await writer.drain()
                outcome.count("bodies taken")
                await reader.read(1000)
        except (OSError, TimeoutError):
            pass  # refused, or read no further
        finally:
            writer.transport.abort()
        outcome.count("bodies sent")

    room = asyncio.Semaphore(150)

    async def one() -> None:
        async with room:
            await send()

    await asyncio.gather(*(one() for _ in range(connections)))
