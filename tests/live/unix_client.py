"""A client of the hub's Unix socket, like the relay but without its process."""

from __future__ import annotations

import json
import re
import socket
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Self

from tests.peers import wire


class UnixClient:
    """Speaks to the hub of `home` in either framing; use it with `with`."""

    def __init__(self, home: Path, timeout: float = 60.0) -> None:
        record = json.loads((home / "daemon.json").read_bytes())
        self.socket = socket.socket(socket.AF_UNIX)
        self.socket.settimeout(timeout)
        self.socket.connect(record["mcp_socket"])
        self._file = self.socket.makefile("rb")
        self.greeting = json.loads(self._file.readline())
        self.notifications: list[Any] = []
        """What came while an answer was waited for."""
        self._next = 0

    def write(self, data: bytes) -> None:
        self.socket.sendall(data)

    def send(self, message: Any, framing: str = "newline") -> None:
        body = json.dumps(message).encode()
        head = b"" if framing == "newline" else b"Content-Length: %d\r\n\r\n" % len(body)
        self.write(head + body + (b"\n" if framing == "newline" else b""))

    def frame(self) -> wire.Frame:
        """EOFError at the end, TimeoutError when nothing comes."""
        line = self._file.readline()
        if not line:
            raise EOFError("the hub has closed the connection")
        if found := re.match(rb"content-length:\s*(\d+)\s*$", line, re.IGNORECASE):
            while self._file.readline().strip():
                pass
            return wire.Frame("content-length", json.loads(self._file.read(int(found[1]))))
        return wire.Frame("newline", json.loads(line))

    def read(self) -> Any:
        return self.frame().message

    def answer_to(self, number: Any) -> Any:
        while True:
            message = self.read()
            if isinstance(message, dict) and message.get("id") == number:
                return message
            self.notifications.append(message)

    def request(self, method: str, params: Mapping[str, Any] | None = None) -> Any:
        self._next += 1
        self.send(wire.request(self._next, method, params))
        return self.answer_to(self._next)

    def notify(self, method: str, params: Mapping[str, Any] | None = None) -> None:
        self.send(wire.notification(method, params))

    def initialize(self, version: str = wire.LEGACY) -> Any:
        answer = self.request("initialize", wire.initialize_params(version))
        self.notify("notifications/initialized")
        return answer["result"]

    def call(self, tool: str, arguments: Mapping[str, Any] | None = None, **more: Any) -> Any:
        params = {"name": tool, "arguments": dict(arguments or {}), **more}
        return self.request("tools/call", params)

    def silent(self) -> bool:
        """Whether nothing came before the answer to a request that is made now."""
        before = len(self.notifications)
        self.send(wire.request("still there", "ping"))
        self.answer_to("still there")
        return len(self.notifications) == before

    def close(self) -> None:
        self._file.close()
        self.socket.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
