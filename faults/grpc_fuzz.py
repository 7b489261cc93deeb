"""Fuzzes A2A over gRPC: messages of both services, changed in structure and in bytes.

A call must end in time, and not with INTERNAL or UNKNOWN.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Sequence
from typing import Any

import grpc
import grpc.aio

from dragoman.a2a.protocol.grpc.messages import InvalidMessage
from dragoman.a2a.protocol.grpc.services import SERVICES_BY_VERSION
from faults.bytes_fuzz import ANSWER_SECONDS
from faults.harness import Outcome
from faults.message_fuzz import STREAM_SECONDS
from faults.message_seeds import GRPC
from faults.mutations import mutate

AT_ONCE = 16
BAD = (grpc.StatusCode.INTERNAL, grpc.StatusCode.UNKNOWN)
METADATA = [
    ("a2a-version", "1.0"), ("a2a-version", "0.3"), ("a2a-version", "x"),
    ("a2a-extensions", "https://a/b,,"), ("a2a-extensions", "x" * 2000), ("idempotency-key", "k"),
    ("idempotency-key", "k" * 400), ("traceparent", "00-0-0-0"), ("authorization", "Bearer x"),
    ("last-event-id", "9" * 40),
]  # fmt: skip


def build_call(seed: int, number: int) -> tuple[str, bool, bytes, list[tuple[str, str]]]:
    """The path of the method, whether it answers with a stream, the message, the metadata."""
    chance = random.Random(f"gRPC:{seed}:{number}")
    version, op, plain = chance.choice(GRPC)
    service = SERVICES_BY_VERSION[version]
    method = service.methods[op]
    try:
        data = bytearray(service.types.encode(method.request_type, mutate(plain, chance)))
    except (InvalidMessage, SystemError):  # the latter for half of a surrogate pair
        data = bytearray(service.types.encode(method.request_type, plain))
    kind = chance.random()
    if kind < 0.2 and data:
        for _ in range(chance.randint(1, 4)):
            data[chance.randrange(len(data))] = chance.randrange(256)
    elif kind < 0.25:
        del data[chance.randrange(len(data) + 1) :]
    elif kind < 0.3:
        data += chance.randbytes(chance.randint(1, 60))
    metadata = [("a2a-version", version)] if chance.random() < 0.8 else []
    if chance.random() < 0.3:
        metadata.append(chance.choice(METADATA))
    streams = op in ("SendStreamingMessage", "SubscribeToTask")
    return f"/{service.name}/{method.name}", streams, bytes(data), metadata


async def read_some(call: Any) -> None:
    """The events of a stream, which may go on."""
    try:
        async with asyncio.timeout(STREAM_SECONDS):
            async for _ in call:
                pass
    except TimeoutError:
        call.cancel()


async def fuzz_grpc(port: int, numbers: Sequence[int], seed: int, outcome: Outcome) -> None:
    left = iter(numbers)

    async def work(channel: grpc.aio.Channel) -> None:
        for number in left:
            if len(outcome.failures) > 10:
                break
            path, streams, data, metadata = build_call(seed, number)
            problem = ""
            try:
                if streams:
                    begun = channel.unary_stream(path)(
                        data, timeout=ANSWER_SECONDS, metadata=metadata
                    )
                    await read_some(begun)
                else:
                    await channel.unary_unary(path)(data, timeout=ANSWER_SECONDS, metadata=metadata)
                outcome.count("accepted")
            except grpc.aio.AioRpcError as error:
                if error.code() in BAD or error.code() == grpc.StatusCode.DEADLINE_EXCEEDED:
                    problem = f"{error.code()}: {str(error.details())[:300]}"
            outcome.count("messages")
            if problem:
                outcome.fail(f"gRPC --seed {seed} --case {number}: {problem}: {path} {data!r}")

    async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
        await asyncio.gather(*(work(channel) for _ in range(AT_ONCE)))
