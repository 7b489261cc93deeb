"""The face on a stream, with a client that has stopped reading."""

from __future__ import annotations

import asyncio
import socket

import pytest

from dragoman.core.bus import Bus
from dragoman.core.call import Call, Progress, Result
from dragoman.core.catalog import Catalog
from dragoman.core.hub import Hub
from dragoman.core.principal import OWNER
from dragoman.core.tool import Tool
from dragoman.core.view import EVERYTHING
from dragoman.mcp.server import Face
from dragoman.mcp.stdio import UNREAD_BYTES, Connection
from dragoman.wire import rpc


class Talkative:
    name = "talkative"

    def __init__(self) -> None:
        self.said = asyncio.Event()

    async def run(self, call: Call) -> Result:
        for number in range(20_000):
            call.updates(Progress(progress=number, message="x" * 1000))
        self.said.set()
        return Result()


@pytest.mark.promise("N1")
async def test_a_client_that_does_not_read_is_not_told_more_and_more() -> None:
    loop = asyncio.get_running_loop()
    catalog = Catalog()
    target = Talkative()
    catalog.offer("talkative", [Tool(name="t.t", alias="t", remote_name="t", target=target)])
    settled = loop.create_future()
    settled.set_result(None)
    face = Face(Hub(catalog, Bus(), []))
    ours, theirs = socket.socketpair()
    with theirs:
        transport, connection = await loop.create_connection(
            lambda: Connection(face, OWNER, lambda: EVERYTHING, set(), settled), sock=ours
        )
        params = {"name": "t.t", "_meta": {"progressToken": 1}}
        connection.data_received(rpc.request(1, "tools/call", params) + b"\n")
        async with asyncio.timeout(5):
            await target.said.wait()
        assert UNREAD_BYTES / 2 < transport.get_write_buffer_size() < 2 * UNREAD_BYTES
        transport.abort()
        await asyncio.sleep(0)
