"""The log messages of one server that belong to no call.

Each is kept for `dragoman servers logs` and announced on the bus, up to a rate. Which clients
receive it is decided in `mcp.server.subscriptions`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from time import monotonic
from typing import Any

from dragoman.core.bus import Bus
from dragoman.core.call import LogMessage
from dragoman.core.events import ServerLogged
from dragoman.mcp.client.notifications import log_message_from_params, render_log_message
from dragoman.processes.child_process import OutputRing
from dragoman.wire.json import encode

PER_SECOND = 20.0
BURST = 100.0
"""Messages that are announced; the rest is only kept."""
MAX_ANNOUNCED = 64 * 1024
"""Characters or bytes of a message that is announced whole."""


class ServerLogs:
    def __init__(
        self, server: str, ring: OutputRing, bus: Bus, clock: Callable[[], float] = monotonic
    ) -> None:
        self._server = server
        self._ring = ring
        self._bus = bus
        self._clock = clock
        self._left = BURST
        self._counted_at = clock()

    def write(self, params: Mapping[str, Any], client: str | None) -> None:
        """Takes a `notifications/message`. `client` owns the session it came on: "" for a client
        without an MCP session, None for a shared session."""
        message = log_message_from_params(params)
        if message is None:
            return
        line = render_log_message(message)
        self._ring.write(line.encode("utf-8", "replace") + b"\n")
        if client != "" and self._may_announce():
            data = message.data
            if len(data if isinstance(data, str) else encode(data)) > MAX_ANNOUNCED:
                message = LogMessage(
                    level=message.level, data=f"{line} [cut]", logger=message.logger
                )
            self._bus.emit(ServerLogged(self._server, message, client))

    def _may_announce(self) -> bool:
        now = self._clock()
        self._left = min(BURST, self._left + (now - self._counted_at) * PER_SECOND)
        self._counted_at = now
        if self._left < 1:
            return False
        self._left -= 1
        return True
