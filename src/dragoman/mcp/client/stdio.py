"""The stdio transport: a server as a child process, newline-delimited messages over its pipes."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

from dragoman.core.errors import Unreachable
from dragoman.core.read_pacing import Pace
from dragoman.mcp.client.jsonrpc_channel import JsonRpcChannel
from dragoman.mcp.client.message_limit import MessageLimit
from dragoman.mcp.client.notifications import NotificationSink
from dragoman.mcp.protocol.framing import Deframer, Frame, OversizedFrame, Unrecoverable
from dragoman.processes.child_process import (
    INSTALLER_SECONDS,
    ChildProcess,
    Confine,
    OutputRing,
)

DRAIN_BYTES = 64 * 1024 * 1024
"""A child that sends a single message longer than this is killed."""


class StdioWire(JsonRpcChannel):
    def __init__(
        self,
        server: str,
        sink: NotificationSink,
        stderr: OutputRing,
        limit: MessageLimit | None = None,
    ) -> None:
        super().__init__(server, sink, limit)
        self._pace = Pace()
        self._deframer = Deframer(self.limit.most, drain_limit=DRAIN_BYTES)
        self._stderr = stderr
        self._child: ChildProcess | None = None
        self.may_install = False
        """Whether it is a package runner whose program has not answered yet."""

    async def start(
        self, command: str, args: list[str], env: dict[str, str], cwd: str, confine: Confine
    ) -> None:
        self._child = await ChildProcess.start(
            command, args, env, cwd, self._receive_data, self._stderr, self.server, confine,
            self._find_grace(),
        )  # fmt: skip
        self._child.exited.add_done_callback(self._note_exit)

    @property
    def pid(self) -> int | None:
        return self._child.pid if self._child else None

    async def close(self) -> None:
        self.mark_lost("it was stopped")
        if self._child is not None:
            await self._child.terminate(after_signal=self._find_grace())

    def _find_grace(self) -> float | None:
        """The seconds after SIGTERM; None for the usual ones."""
        return INSTALLER_SECONDS if self.may_install else None

    def _send(self, message: bytes, meta: Mapping[str, Any]) -> None:
        if self._child is None:
            raise Unreachable(f'server "{self.server}" has not started', sent=False)
        try:
            self._child.write(message + b"\n")
        except Unreachable as error:
            if self._child.is_over:
                self._note_loss(str(error))
            raise Unreachable(f'server "{self.server}" was lost: {error}', sent=False) from None

    def _receive_data(self, data: bytes) -> None:
        before, spent = self.unsolicited, self.spent
        for frame in self._deframer.feed(data):
            if isinstance(frame, Frame):
                self.receive(frame.payload)
            elif isinstance(frame, OversizedFrame):
                self.reject_oversized(frame)
            elif isinstance(frame, Unrecoverable):
                self._note_loss(f"it sent a message of more than {DRAIN_BYTES} bytes")
                if self._child is not None:
                    self._child.kill()
                return
            else:
                self.report_invalid(frame.reason)
        if self.unsolicited != before and self._child is not None:
            pause = self._pace.pause(self.unsolicited - before, self.spent - spent)
            if pause:
                self._child.pause(pause)

    def _note_exit(self, exited: asyncio.Future[str]) -> None:
        self._note_loss(exited.result())

    def _note_loss(self, reason: str) -> None:
        self.mark_lost(reason, "; the server is being restarted")
