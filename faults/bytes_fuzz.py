"""Fuzzes the HTTP listener with bytes: the requests of tests/peers/http_seeds.py, and mutations.

Each case has a connection of its own, sends, says that it has no more, and must be answered or
closed in time. A case is a pure function of the seed and its number.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Sequence
from urllib.parse import urlsplit

from tests.live.conftest import RunningHub
from tests.peers import http_seeds

from faults.harness import Outcome

ANSWER_SECONDS = 20.0
HEALTH_SECONDS = 20.0
AT_ONCE = 32

TOKENS = (
    b"\r\n", b"\n", b"\r", b"\r\n\r\n", b" ", b"\t", b"\0", b":", b"\xff\xfe", b"HTTP/1.1",
    b"HTTP/1.0", b"HTTP/2.0", b"HTTP/9.9", b"CONNECT ", b"Connection: Upgrade\r\nUpgrade: h2c\r\n",
    b"Transfer-Encoding: chunked\r\n", b"Content-Length: 0\r\n", b"Content-Length: -1\r\n",
    b"Content-Length: 18446744073709551616\r\n", b"Host: a\r\nHost: b\r\n", b"0\r\n\r\n",
    b"ffffffffffffffff\r\n", b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", b"\x16\x03\x01\x02\x00\x01",
    b"X: " + b"y" * 70_000 + b"\r\n", b"Cookie: " + b"a=b; " * 400 + b"\r\n",
)  # fmt: skip


def mutate(data: bytes, chance: random.Random) -> bytes:
    """Applies one to six small changes."""
    made = bytearray(data)
    for _ in range(chance.randint(1, 6)):
        at = chance.randrange(len(made) + 1)
        kind = chance.randrange(6)
        if kind == 0 and at < len(made):
            made[at] = chance.randrange(256)
        elif kind == 1:
            del made[at : at + chance.randint(1, 8)]
        elif kind == 2:
            made[at:at] = chance.choice(TOKENS)
        elif kind == 3:
            made[at:at] = made[max(0, at - chance.randint(1, 60)) : at]
        elif kind == 4:
            made[at:at] = bytes(chance.randrange(256) for _ in range(chance.randint(1, 12)))
        else:
            made += chance.choice(http_seeds.ALL)
    return bytes(made[: chance.randrange(len(made) + 1)] if chance.random() < 0.1 else made)


def build_case(seed: int, number: int) -> bytes:
    """The bytes of one case; the first cases are the seeds as they stand."""
    if number < len(http_seeds.ALL):
        return http_seeds.ALL[number]
    chance = random.Random(f"{seed}:{number}")
    return mutate(chance.choice(http_seeds.ALL), chance)


async def send_case(port: int, data: bytes) -> tuple[bytes, str]:
    """The beginning of the answer, and what is wrong with how the hub takes these bytes."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    answer = b""
    try:
        async with asyncio.timeout(ANSWER_SECONDS):
            try:
                writer.write(data)
                writer.write_eof()
                while chunk := await reader.read(65536):
                    answer = (answer + chunk)[:16384]
            except OSError:
                pass  # it was reset: closed too
    except TimeoutError:
        return answer, f"neither answered nor closed within {ANSWER_SECONDS:.0f} s"
    finally:
        writer.transport.abort()
    return answer, f"answered {answer[:300]!r}" if b"HTTP/1.1 500" in answer else ""


async def is_healthy(port: int) -> bool:
    """Whether /healthz answers in time."""
    try:
        async with asyncio.timeout(HEALTH_SECONDS):
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            try:
                writer.write(
                    b"GET /healthz HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"
                )
                return (await reader.read(64)).startswith(b"HTTP/1.1 200")
            finally:
                writer.transport.abort()
    except (TimeoutError, OSError):
        return False


async def fuzz(port: int, numbers: Sequence[int], seed: int, outcome: Outcome) -> None:
    """Sends the cases, some at a time; stops at once where the hub stops answering."""
    left = iter(numbers)
    under_way: set[int] = set()
    over = asyncio.Event()

    async def work() -> None:
        for number in left:
            if over.is_set():
                return
            under_way.add(number)
            try:
                answer, problem = await send_case(port, build_case(seed, number))
                outcome.count("answered", bool(answer))
                outcome.count("of them 200", answer.startswith(b"HTTP/1.1 200"))
            except OSError as error:
                problem = f"no connection: {error!r}"
                over.set()
            under_way.discard(number)
            outcome.count("cases")
            if problem:
                outcome.fail(f"--seed {seed} --case {number}: {problem}")

    async def watch() -> None:
        while not over.is_set():
            suspects = sorted(under_way)
            if not await is_healthy(port):
                outcome.fail(f"/healthz stopped answering; --seed {seed} --case one of {suspects}")
                over.set()
            outcome.count("health checks")
            await asyncio.sleep(0.1)

    watching = asyncio.create_task(watch())
    await asyncio.gather(*(work() for _ in range(AT_ONCE)))
    over.set()
    await watching


def fuzz_bytes(
    hub: RunningHub, cases: int, seed: int, outcome: Outcome, only: int | None = None
) -> None:
    numbers = range(cases) if only is None else [only]
    asyncio.run(fuzz(urlsplit(hub.url).port or 0, numbers, seed, outcome))
    if only is None:  # a fuzzer whose connections are only closed shows nothing
        share = outcome.figures.get("answered", 0) / max(1, outcome.figures.get("cases", 0))
        outcome.check(share > 0.5, f"{share:.1%} of the cases were answered")
    if outcome.failures and not asyncio.run(is_healthy(urlsplit(hub.url).port or 0)):
        hub.kill()  # it would not end by itself
