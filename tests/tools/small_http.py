"""A small HTTP server for tests of the web tools."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import NamedTuple


class HttpAsked(NamedTuple):
    method: str
    path: str
    headers: dict[str, str]
    body: bytes


Answer = Callable[[HttpAsked], tuple[int, dict[str, str], bytes]]


class SmallHttp:
    def __init__(self, answer: Answer) -> None:
        self._answer = answer
        self.asked: list[HttpAsked] = []
        self.port = 0

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while head := await reader.readuntil(b"\r\n\r\n"):
                first, *lines = head.decode("latin-1").strip().split("\r\n")
                method, path, _ = first.split(" ")
                headers = {
                    name.lower(): value.strip()
                    for name, _, value in (line.partition(":") for line in lines)
                }
                body = await reader.readexactly(int(headers.get("content-length", 0)))
                asked = HttpAsked(method, path, headers, body)
                self.asked.append(asked)
                status, more, data = self._answer(asked)
                if status == 0:  # hangs
                    await asyncio.sleep(60)
                shown = "".join(f"{name}: {value}\r\n" for name, value in more.items())
                size = f"content-length: {len(data)}\r\n"
                writer.write(f"HTTP/1.1 {status} X\r\n{shown}{size}\r\n".encode("latin-1") + data)
                await writer.drain()
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()


@asynccontextmanager
async def serve_http(answer: Answer) -> AsyncIterator[SmallHttp]:
    served = SmallHttp(answer)
    server = await asyncio.start_server(served.serve, "127.0.0.1", 0)
    served.port = server.sockets[0].getsockname()[1]
    try:
        yield served
    finally:
        server.close()
