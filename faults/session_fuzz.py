"""Fuzzes sessions that answer on a stream of their own: the socket of stdio, and HTTP+SSE.

A batch of messages goes into each session. Two pings end it: the second one is answered once the
requests before the first one are.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from dataclasses import replace

from tests.peers import wire

from faults.bytes_fuzz import ANSWER_SECONDS
from faults.harness import Outcome
from faults.message_fuzz import INTERNAL, Connection, judge
from faults.message_seeds import DOORS, Seed
from faults.mutations import build_case

BATCH = 100
AT_ONCE = 4
LAST = (b"one", b"two")


def build_ping(name: bytes) -> bytes:
    return b'{"jsonrpc":"2.0","id":"%s","method":"ping"}' % name


async def read_until(reader: asyncio.StreamReader, mark: bytes, came: bytearray) -> None:
    while mark not in came:
        chunk = await reader.read(65536)
        if not chunk:
            raise ConnectionResetError("the hub closed the stream")
        came += chunk


async def send_lines(path: str, batch: Sequence[int], seed: int, came: bytearray) -> None:
    """To the socket that `dragoman mcp` uses, in both framings."""
    reader, writer = await asyncio.open_unix_connection(path, limit=2**24)
    try:
        await reader.readline()
        for number in batch:
            case = build_case("stdio", DOORS["stdio"], seed, number)
            line = (case.body or b"").replace(b"\n", b" ")
            framed = b"Content-Length: %d\r\n\r\n%s" % (len(line), line)
            writer.write(framed if number % 3 == 0 else line + b"\n")
        for name in LAST:
            writer.write(b"\n" + build_ping(name) + b"\n")
            await read_until(reader, b'"%s"' % name, came)
    finally:
        writer.transport.abort()


async def send_posts(port: int, batch: Sequence[int], seed: int, came: bytearray) -> None:
    """To `/messages/`, while the stream of `/sse` is read."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=2**24)
    connection = Connection(port)
    reading = None
    try:
        writer.write(b"GET /sse HTTP/1.1\r\nHost: localhost\r\nAccept: text/event-stream\r\n\r\n")
        begun = bytearray()
        await read_until(reader, b"\n\n", begun)  # the head has CRLF
        place = begun.partition(b"data: ")[2].split()[0].decode()
        hello = wire.request("hello", "initialize", wire.initialize_params())
        await connection.exchange(Seed(place, json.dumps(hello).encode()), {})
        reading = asyncio.create_task(read_until(reader, b'"%s"' % LAST[-1], came))
        for number in batch:
            case = build_case("HTTP+SSE", DOORS["HTTP+SSE"], seed, number)
            status, body = await connection.exchange(
                replace(case, path=case.path.replace("PLACE", place.lstrip("/"))), {}
            )
            if problem := judge(status, body):
                came += f" -32603 in case {number}: {problem}".encode()
        for name in LAST:
            await connection.exchange(Seed(place, build_ping(name)), {})
        await reading
    finally:
        if reading is not None:
            reading.cancel()
        connection.close()
        writer.transport.abort()


async def fuzz_sessions(
    door: str, place: str | int, numbers: Sequence[int], seed: int, outcome: Outcome
) -> None:
    """`place` is the path of the socket, or the port."""
    batches = iter([numbers[at : at + BATCH] for at in range(0, len(numbers), BATCH)])

    async def work() -> None:
        for batch in batches:
            if len(outcome.failures) > 10:
                break
            cases = f"{door} --seed {seed} --case {batch[0]}-{batch[-1]}"
            came = bytearray()
            try:
                async with asyncio.timeout(ANSWER_SECONDS):
                    if isinstance(place, str):
                        await send_lines(place, batch, seed, came)
                    else:
                        await send_posts(place, batch, seed, came)
            except TimeoutError:
                outcome.fail(f"{cases}: no answer to a ping")
            except (asyncio.IncompleteReadError, OSError) as error:
                outcome.fail(f"{cases}: {error!r}")
            outcome.count("messages", len(batch))
            outcome.count("accepted", came.count(b'"result"'))
            if found := INTERNAL.search(came):
                at = found.start()
                outcome.fail(f"{cases}: {bytes(came[max(0, at - 300) : at + 300])!r}")

    await asyncio.gather(*(work() for _ in range(AT_ONCE)))
