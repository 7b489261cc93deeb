"""TCP proxies whose links are closed, hang or are slow, at any moment."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress

PASS, CUT, HANG, DELAY = "pass", "cut", "hang", "delay"
DELAY_SECONDS = 0.7
"""Of each piece of data, in both directions: longer than the hub waits for a statement."""


class Link:
    """A proxy before one port. `cut` resets what is open and refuses what comes; `hang` keeps all
    connections and passes nothing on; `delay` passes each piece on later."""

    def __init__(self, target: int) -> None:
        self.target = target
        self.port = 0
        self.mode = PASS
        self._open: set[asyncio.StreamWriter] = set()

    async def start(self) -> None:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.port = self._server.sockets[0].getsockname()[1]

    def stop(self) -> None:
        self._server.close()
        for writer in list(self._open):
            writer.transport.abort()

    def set(self, mode: str) -> None:
        """On the loop of the proxies."""
        self.mode = mode
        if mode == CUT:
            for writer in list(self._open):
                writer.transport.abort()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._open.add(writer)
        far: asyncio.StreamWriter | None = None
        try:
            await self._wait()
            near, far = await asyncio.open_connection("127.0.0.1", self.target)
            self._open.add(far)
            await asyncio.gather(self._copy(reader, far), self._copy(near, writer))
        except OSError:
            pass
        finally:
            for one in filter(None, (writer, far)):
                self._open.discard(one)
                one.transport.abort()

    async def _wait(self) -> None:
        while self.mode == HANG:
            await asyncio.sleep(0.02)
        if self.mode == CUT:
            raise OSError("cut")

    async def _copy(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while data := await reader.read(65_536):
                await self._wait()
                if self.mode == DELAY:
                    await asyncio.sleep(DELAY_SECONDS)
                writer.write(data)
                await writer.drain()
        finally:
            with suppress(OSError):
                writer.close()


class Links:
    """The event loop of proxies, on a thread of its own."""

    def __init__(self) -> None:
        self.loop = asyncio.new_event_loop()
        self._links: list[Link] = []
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        self.loop.set_exception_handler(lambda _, context: None)  # peers leave at any time
        self.loop.run_forever()
        self.loop.run_until_complete(self._end())
        self.loop.close()

    async def _end(self) -> None:
        for link in self._links:
            link.stop()
        tasks = asyncio.all_tasks() - {asyncio.current_task()}
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await asyncio.sleep(0.01)  # what was aborted is closed in the next round

    def start(self, link: Link) -> Link:
        asyncio.run_coroutine_threadsafe(link.start(), self.loop).result(10)
        self._links.append(link)
        return link

    def add(self, target: int) -> Link:
        return self.start(Link(target))

    def set(self, link: Link, mode: str) -> None:
        self.loop.call_soon_threadsafe(link.set, mode)

    def close(self) -> None:
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join(10)


@contextmanager
def run_links() -> Iterator[Links]:
    links = Links()
    try:
        yield links
    finally:
        links.close()
