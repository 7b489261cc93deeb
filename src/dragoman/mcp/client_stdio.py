"""A server as a child process: newline-delimited messages over its pipes."""

from __future__ import annotations

import asyncio
from typing import Any

from dragoman.core.call import Updates, discard
from dragoman.core.errors import Unreachable
from dragoman.mcp.duplex import Duplex, Heard
from dragoman.mcp.framing import Deframer, Frame, Hopeless, TooLarge
from dragoman.mcp.spawn import Child, Ring
from dragoman.wire.json import MAX_BYTES

DRAIN_BYTES = 64 * 1024 * 1024
"""A single message longer than this ends the child that sends it."""
UNASKED_PER_SECOND = 2_000
"""Messages that answer nothing; a child that sends more is read more slowly."""


class StdioWire:
    def __init__(self, server: str, heard: Heard, stderr: Ring) -> None:
        self.server = server
        self.lost: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self._loop = asyncio.get_running_loop()
        self._duplex = Duplex(server, self._send, self._hear(heard))
        self._deframer = Deframer(MAX_BYTES, drain_limit=DRAIN_BYTES)
        self._stderr = stderr
        self._child: Child | None = None
        self._unasked = 0.0
        self._counted_at = self._loop.time()

    async def start(self, command: str, args: list[str], env: dict[str, str], cwd: str) -> None:
        self._child = await Child.start(command, args, env, cwd, self._received, self._stderr)
        self._child.exited.add_done_callback(lambda exited: self._lose(exited.result()))

    @property
    def pid(self) -> int | None:
        return self._child.pid if self._child else None

    async def request(
        self,
        method: str,
        params: dict[str, Any],
        timeout: float,
        updates: Updates = discard,
    ) -> tuple[Any, int]:
        return await self._duplex.request(method, params, timeout, updates)

    async def notify(self, method: str, params: dict[str, Any] | None = None) -> None:
        self._duplex.notify(method, params)

    async def close(self) -> None:
        if self._child is not None:
            await self._child.end()
        self._lose("it was stopped")

    def _send(self, message: bytes) -> None:
        if self._child is None:
            raise Unreachable(f'server "{self.server}" has not started', sent=False)
        try:
            self._child.write(message + b"\n")
        except Unreachable as error:
            raise Unreachable(f'server "{self.server}" is gone: {error}', sent=False) from None

    def _received(self, data: bytes) -> None:
        before = self._duplex.complaints
        for frame in self._deframer.feed(data):
            if isinstance(frame, Hopeless):
                self._lose(f"it sent a message of more than {DRAIN_BYTES} bytes")
                if self._child is not None:
                    self._child.kill()
                return
            if isinstance(frame, Frame):
                self._duplex.receive(frame.payload)
            elif isinstance(frame, TooLarge):
                self._duplex.oversized(frame.prefix, MAX_BYTES)
            else:
                self._duplex.complain(frame.reason)
        self._count(self._duplex.complaints - before)

    def _hear(self, heard: Heard) -> Heard:
        def hear(method: str, params: Any) -> None:
            self._count(1)
            heard(method, params)

        return hear

    def _count(self, unasked: int) -> None:
        """Slows down a child that talks without being asked, so that nobody else is."""
        if not unasked:
            return
        now = self._loop.time()
        self._unasked = max(0.0, self._unasked - (now - self._counted_at) * UNASKED_PER_SECOND)
        self._counted_at = now
        self._unasked += unasked
        if self._unasked > UNASKED_PER_SECOND and self._child is not None:
            self._child.pause(min(1.0, self._unasked / UNASKED_PER_SECOND - 1.0 + 0.05))

    def _lose(self, reason: str) -> None:
        if not self.lost.done():
            self.lost.set_result(reason)
            self._duplex.fail(
                Unreachable(
                    f'server "{self.server}" is gone: {reason}. It may or may not have done what '
                    "was asked; it is being started again"
                )
            )
