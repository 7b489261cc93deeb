"""What changes while a hub runs: where it listens, who is connected, whether it is stopping."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping

from dragoman.mcp.server.socket_transport import SocketConnection
from dragoman.wire.http import HttpRequest

MAX_BASES = 64


class RunState:
    def __init__(
        self, mode: str, public_url: str | None, requires_key: Callable[[], bool] = lambda: True
    ) -> None:
        """`mode` is `daemon`, or `mcp` for a hub inside `dragoman mcp`."""
        self.mode = mode
        self._requires_key = requires_key
        self._public_url = public_url.rstrip("/") if public_url else None
        self.url: str | None = None
        """The hub's address over TCP, once it listens."""
        self.grpc_port: int | None = None
        self.grpc_ports: Mapping[str, int] = {}
        """Those at which one agent answers, by its name."""
        self.is_draining = False
        self.stdio: set[SocketConnection] = set()
        self.started_at = time.time()
        self._started = time.monotonic()
        self._bases: dict[bytes, str] = {}
        """The addresses under which clients reach the hub, by their Host header."""

    def set_url(self, url: str) -> None:
        self.url = url

    def set_grpc_ports(self, port: int, agent_ports: Mapping[str, int]) -> None:
        self.grpc_port, self.grpc_ports = port, agent_ports

    def find_grpc_port(self, agent: str) -> int | None:
        """The port of that agent alone, or that of all if the name is empty."""
        return self.grpc_ports.get(agent) if agent else self.grpc_port

    def drain(self) -> None:
        self.is_draining = True

    def is_secured(self) -> bool:
        """Whether clients over TCP need a key."""
        return self.mode != "daemon" or self._requires_key()

    def measure_uptime(self) -> float:
        """Not by the wall clock, which may be set."""
        return time.monotonic() - self._started

    @property
    def base(self) -> str:
        """The address that cards name where the client's own is unknown."""
        return self._public_url or self.url or "http://localhost"

    def find_base(self, request: HttpRequest) -> str:
        """Returns the address by which the client of `request` reaches the hub."""
        host = request.fields.get(b"host")
        if self._public_url or host is None or self.url is None:
            return self.base
        base = self._bases.get(host)
        if base is None:
            base = f"http://{host.decode('latin-1')}"
            if len(self._bases) < MAX_BASES:
                self._bases[host] = base
        return base
