"""A server that speaks the protocol of Redis and answers as the test says."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

Command = list[bytes]


class WrongRedis:
    """`answer` returns the bytes of a reply to a command, or None for the proper one."""

    def __init__(self) -> None:
        self.url = ""
        self.answer: Callable[[Command], bytes | None] = lambda command: None
        self.connections = 0

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        try:
            while command := await self._read(reader):
                reply = self.answer(command)
                writer.write(build_proper_reply(command) if reply is None else reply)
        except (OSError, asyncio.IncompleteReadError):
            pass
        finally:
            writer.close()

    async def _read(self, reader: asyncio.StreamReader) -> Command | None:
        if not (head := await reader.readline()):
            return None
        command = []
        for _ in range(int(head[1:])):
            length = int((await reader.readline())[1:])
            command.append((await reader.readexactly(length + 2))[:-2])
        return command


def is_charge(command: Command) -> bool:
    return command[0] in (b"EVALSHA", b"EVAL") and not is_count(command)


def is_count(command: Command) -> bool:
    return command[0] in (b"EVALSHA", b"EVAL") and command[3].endswith(b":hubs")


def build_proper_reply(command: Command) -> bytes:
    if is_count(command):
        return b"*1\r\n:1\r\n"
    if is_charge(command):
        return build_numbers(command, b":0\r\n")
    if command[0] == b"SUBSCRIBE":
        name = command[1]
        return b"*3\r\n$9\r\nsubscribe\r\n$%d\r\n%s\r\n:1\r\n" % (len(name), name)
    if command[0] == b"PUBLISH":
        return b":1\r\n"
    return b"+PONG\r\n" if command[0] == b"PING" else b"+OK\r\n"


def build_numbers(command: Command, number: bytes) -> bytes:
    """Builds a reply to a charge: twice as many values as keys."""
    count = 2 * int(command[2])
    return b"*%d\r\n" % count + number * count


@asynccontextmanager
async def run_wrong_redis() -> AsyncIterator[WrongRedis]:
    redis = WrongRedis()
    server = await asyncio.start_server(redis.serve, "127.0.0.1", 0)
    redis.url = f"redis://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    try:
        yield redis
    finally:
        server.close()
