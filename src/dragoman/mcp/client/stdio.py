"""A server as a child process: newline-delimited messages over its pipes."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

from dragoman.core.errors import Unreachable
from dragoman.core.read_pacing import Pace
from dragoman.mcp.client.child_process import ChildProcess, OutputRing
from dragoman.mcp.client.jsonrpc_channel import JsonRpcChannel
from dragoman.mcp.client.notifications import NotificationSink, RequestListener
from dragoman.mcp.protocol.framing import Deframer, Frame, OversizedFrame, Unrecoverable
from dragoman.wire.json import MAX_BYTES

DRAIN_BYTES = 64 * 1024 * 1024
"""A single message longer than this ends the child that sends it."""


class StdioWire:
    def __init__(self, server: str, heard: NotificationSink, stderr: OutputRing) -> None:
        self.server = server
        self.lost: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self._duplex = JsonRpcChannel(server, self._send, heard)
        self._pace = Pace()
        self._deframer = Deframer(MAX_BYTES, drain_limit=DRAIN_BYTES)
        self._stderr = stderr
        self._child: ChildProcess | None = None

    async def start(self, command: str, args: list[str], env: dict[str, str], cwd: str) -> None:
        self._child = await ChildProcess.start(
            command, args, env, cwd, self._received, self._stderr, self.server
        )
        self._child.exited.add_done_callback(self._exited)

    @property
    def pid(self) -> int | None:
        return self._child.pid if self._child else None

    async def request(
        self,
        method: str,
        params: dict[str, Any],
        timeout: float,
        listener: RequestListener | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> tuple[Any, int]:
        return await self._duplex.request(method, params, timeout, listener)

    async def notify(self, method: str, params: dict[str, Any] | None = None) -> None:
        self._duplex.notify(method, params)

    def set_session_listener(self, listener: RequestListener) -> None:
        self._duplex.session_listener = listener

    async def close(self) -> None:
        self._lose("it was stopped", "")
        if self._child is not None:
            await self._child.terminate()

    def _send(self, message: bytes, meta: Mapping[str, Any]) -> None:
        if self._child is None:
            raise Unreachable(f'server "{self.server}" has not started', sent=False)
        try:
            self._child.write(message + b"\n")
        except Unreachable as error:
            if self._child.is_over:
                self._lose(str(error))
            raise Unreachable(f'server "{self.server}" is gone: {error}', sent=False) from None

    def _received(self, data: bytes) -> None:
        before, spent = self._duplex.unsolicited, self._duplex.spent
        for frame in self._deframer.feed(data):
            if isinstance(frame, Unrecoverable):
                self._lose(f"it sent a message of more than {DRAIN_BYTES} bytes")
                if self._child is not None:
                    self._child.kill()
                return
            if isinstance(frame, Frame):
                self._duplex.receive(frame.payload)
            elif isinstance(frame, OversizedFrame):
                self._duplex.reject_oversized(frame, MAX_BYTES)
            else:
                self._duplex.report_invalid(frame.reason)
        pause = self._pace.pause(self._duplex.unsolicited - before, self._duplex.spent - spent)
        if pause and self._child is not None:
            self._child.pause(pause)

    def _exited(self, exited: asyncio.Future[str]) -> None:
        self._lose(exited.result())

    def _lose(self, reason: str, more: str = "; it is being started again") -> None:
        if self.lost.done():
            return
        self.lost.set_result(reason)
        words = f'server "{self.server}" is gone: {reason}. It may or may not have done what was'
        self._duplex.fail_pending(lambda: Unreachable(f"{words} asked{more}"))
