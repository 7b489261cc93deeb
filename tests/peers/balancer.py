"""A plain TCP balancer without affinity. Standard library only: environments without the
development tools use it too."""

from __future__ import annotations

import asyncio
import contextlib
import re
import threading
from collections.abc import Sequence


class Balancer:
    """A TCP proxy in a thread: each new connection goes to the next hub, or to the one after it if
    that does not accept. With `each_request` it adds `Connection: close` to every request, so that
    no two requests share a connection. The first connection whose response has `cut` in it is
    broken there."""

    def __init__(
        self, ports: Sequence[int], *, each_request: bool = False, cut: bytes = b""
    ) -> None:
        self.ports = list(ports)
        self.each_request = each_request
        self.cut = cut
        """Empty once a connection was broken."""
        self.served: list[int] = []
        """The port that each connection went to."""
        self._next = 0
        self._open: set[asyncio.StreamWriter] = set()
        self._loop = asyncio.new_event_loop()
        self._ready = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()
        assert self._ready.wait(60)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def close(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(60)

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        server = self._loop.run_until_complete(asyncio.start_server(self._serve, "127.0.0.1", 0))
        self.port = server.sockets[0].getsockname()[1]
        self._ready.set()
        try:
            self._loop.run_forever()
        finally:
            server.close()
            self._loop.run_until_complete(self._end())
            self._loop.close()

    async def _end(self) -> None:
        tasks = asyncio.all_tasks() - {asyncio.current_task()}
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for one in self._open:
            one.transport.abort()
        await asyncio.sleep(0.01)

    async def _connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        ports, first = list(self.ports), self._next
        self._next += 1
        for number in range(first, first + len(ports)):
            port = ports[number % len(ports)]
            with contextlib.suppress(OSError):
                pair = await asyncio.open_connection("127.0.0.1", port)
                self.served.append(port)
                return pair
        raise OSError("no hub accepts")

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._open.add(writer)
        try:
            first = await self._read_head(reader) if self.each_request else b""
            near, far = await self._connect()
        except (OSError, asyncio.IncompleteReadError):
            writer.close()
            return
        self._open.add(far)
        far.write(first)
        up = asyncio.ensure_future(_copy(reader, far))
        down = asyncio.ensure_future(self._return(near, writer))
        try:
            await asyncio.wait([up, down], return_when=asyncio.FIRST_COMPLETED)
        finally:
            for end in (up, down):
                end.cancel()
            await asyncio.gather(up, down, return_exceptions=True)
            for one in (far, writer):
                self._open.discard(one)
                one.close()

    async def _return(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while self.cut and (data := await reader.read(64 * 1024)):
            writer.write(data)
            await writer.drain()
            if self.cut and self.cut in data:
                self.cut = b""
                writer.transport.abort()
                return
        await _copy(reader, writer)

    async def _read_head(self, reader: asyncio.StreamReader) -> bytes:
        head = await reader.readuntil(b"\r\n\r\n")
        head = re.sub(rb"(?im)^connection:.*\r\n", b"", head)
        return head[:-2] + b"connection: close\r\n\r\n"


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    try:
        while data := await reader.read(64 * 1024):
            writer.write(data)
            await writer.drain()
    except (OSError, asyncio.CancelledError):
        pass
