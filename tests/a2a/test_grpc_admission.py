"""The gRPC port admits a call by its key before it receives the message, and receives messages
within bounds."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any

import grpc
import pytest
from a2a.types import a2a_pb2 as pb
from a2a.types.a2a_pb2_grpc import A2AServiceStub
from tests.a2a.http2_frames import connect_http2
from tests.a2a.test_a2a_grpc import CannedServer

from dragoman.a2a.server import grpc_server
from dragoman.a2a.server.grpc_server import A2aGrpcServer
from dragoman.core.principal import Principal

BOUND = 60.0
PATH = "/lf.a2a.v1.A2AService/SendMessage"
SIZE = 10_000_000
BUFFERED = 1_000_000
"""Far more than gRPC buffers of a message that is not read, and far less than a message."""
KEY = {"authorization": "Bearer one"}


def authenticate(metadata: Mapping[str, str], peer: str, port: int) -> Principal | None:
    name = metadata.get("authorization", "").removeprefix("Bearer ")
    return Principal("key", name) if name in ("one", "two") else None


@asynccontextmanager
async def run_server(max_reading: int = grpc_server.MAX_READING_ALL) -> AsyncIterator[int]:
    canned: Any = CannedServer()
    server = A2aGrpcServer(
        canned, authenticate, "127.0.0.1", 0, base="http://hub", require_version=False,
        max_reading=max_reading,
    )  # fmt: skip
    port = await server.start()
    try:
        yield port
    finally:
        await server.stop(0)


@pytest.mark.promise("J3")
@pytest.mark.parametrize("metadata", [{}, {"authorization": "Bearer wrong"}])
async def test_message_of_a_call_without_a_key_is_not_received(metadata: dict[str, str]) -> None:
    async with run_server() as port, connect_http2(port) as connection, asyncio.timeout(BOUND):
        for stream in (1, 3, 5):
            connection.open(stream, PATH, metadata)
            await connection.send_unfinished(stream, SIZE)
            await connection.wait_end(stream)
            assert connection.sent[stream] < BUFFERED


@pytest.mark.promise("J3")
async def test_message_that_does_not_arrive_ends_its_call(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(grpc_server, "MESSAGE_SECONDS", 0.5)
    async with run_server() as port, connect_http2(port) as connection, asyncio.timeout(BOUND):
        connection.open(1, PATH, KEY)
        await connection.send_unfinished(1, 1_000)
        assert b"did not arrive" in await connection.wait_end(1)


@pytest.mark.promise("J3")
async def test_unfinished_messages_of_a_caller_are_bounded_and_delay_no_other_caller() -> None:
    async with (
        run_server() as port,
        connect_http2(port) as connection,
        connect_http2(port) as second,
        grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel,
        asyncio.timeout(BOUND),
    ):
        streams = range(1, 2 * grpc_server.MAX_READING, 2)
        for stream in streams:
            connection.open(stream, PATH, KEY)
            await connection.send_unfinished(stream, 2 * BUFFERED)  # all of it is received
        second.open(1, PATH, KEY)
        waiting = asyncio.create_task(second.send_unfinished(1, SIZE))

        stub = A2AServiceStub(channel)
        for _ in range(20):
            request = pb.GetTaskRequest(id="t")
            answer = await stub.GetTask(request, metadata=(("authorization", "Bearer two"),))
            assert answer.id == "t1"
        assert second.sent[1] < BUFFERED
        waiting.cancel()
        await asyncio.wait([waiting])


@pytest.mark.promise("J3")
async def test_unfinished_messages_of_all_callers_are_bounded() -> None:
    """Beside one message of each caller, which waits for no other caller."""
    two = {"authorization": "Bearer two"}
    async with (
        run_server(max_reading=1) as port,
        connect_http2(port) as connection,
        connect_http2(port) as second,
        asyncio.timeout(BOUND),
    ):
        for stream in (1, 3):
            connection.open(stream, PATH, KEY)
            await connection.send_unfinished(stream, 2 * BUFFERED)  # all of it is received
        second.open(1, PATH, two)
        await second.send_unfinished(1, 2 * BUFFERED)
        second.open(3, PATH, two)
        waiting = asyncio.create_task(second.send_unfinished(3, 2 * BUFFERED))
        with pytest.raises(TimeoutError):  # it would be received at once
            await asyncio.wait_for(asyncio.shield(waiting), 1)
        assert second.sent[3] < BUFFERED
        connection.reset(3)
        await waiting


@pytest.mark.promise("J3")
async def test_message_that_sends_nothing_is_small() -> None:
    """A stream keeps the message of its request."""
    async with (
        run_server() as port,
        grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel,
        asyncio.timeout(BOUND),
    ):
        call = channel.unary_stream(PATH.replace("SendMessage", "SubscribeToTask"))
        unknown = bytes((0x72, 0x80, 0x80, 0x08)) + b"x" * 131_072  # field 14
        with pytest.raises(grpc.aio.AioRpcError, match="larger than 65536 bytes"):
            async for _ in call(
                pb.SubscribeToTaskRequest(id="t").SerializeToString() + unknown,
                metadata=(("authorization", "Bearer two"),),
            ):
                pass
