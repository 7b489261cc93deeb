"""The matrix client over stdio, Streamable HTTP and HTTP+SSE."""

from __future__ import annotations

import http.client
import json
import socket
import threading
from collections.abc import Callable, Mapping
from typing import Any
from urllib.parse import urljoin, urlsplit

from tests.live.conftest import RunningHub
from tests.live.matrix_client import SECONDS, Client, everything
from tests.peers import wire

QUIET_SECONDS = 60.0
"""How long a stream may say nothing, not even a comment."""


class OverStdio(Client):
    """`dragoman mcp`, as an IDE starts it."""

    def __init__(self, hub: RunningHub, revision: str, features: Mapping[str, Any]) -> None:
        super().__init__(revision, features)
        self._child = hub.relay()
        self._over = False
        self._start(self._read)
        self._shake_hands()

    def _send(self, message: dict[str, Any]) -> None:
        self._child.send(message)

    def _read(self) -> None:
        while not self._over:
            try:
                self._take(self._child.read(0.5), "session")
            except TimeoutError:
                continue
            except EOFError:
                return

    def close(self) -> None:
        self._child.close()
        self._over = True
        super().close()


class _Exchange:
    """One HTTP request, whose answer is read as it comes; another thread may break it off."""

    def __init__(self, method: str, url: str, body: Any, headers: Mapping[str, str]) -> None:
        parts = urlsplit(url)
        assert parts.hostname is not None
        self._connection = http.client.HTTPConnection(
            parts.hostname, parts.port, timeout=QUIET_SECONDS
        )
        path = parts.path + (f"?{parts.query}" if parts.query else "")
        data = None if body is None else json.dumps(body).encode()
        try:
            self._connection.request(method, path, data, dict(headers))
        except BaseException:
            self._connection.close()
            raise
        self._socket: socket.socket = self._connection.sock

    def open(self) -> wire.Stream:
        self._response = self._connection.getresponse()
        return wire.Stream(self._response)

    def read(self) -> bytes:
        return self._response.read()

    def break_off(self) -> None:
        try:
            self._socket.shutdown(socket.SHUT_RDWR)
        except OSError:
            pass  # over already

    def close(self) -> None:
        if hasattr(self, "_response"):
            self._response.close()
        self._connection.close()


class OverHttp(Client):
    """Streamable HTTP; a session of the handshake era keeps a GET stream open."""

    def __init__(
        self,
        hub: RunningHub,
        revision: str,
        features: Mapping[str, Any],
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(revision, features)
        self._url = hub.mcp_url
        self._headers = dict(hub.headers if headers is None else headers)
        self._open: dict[Any, _Exchange] = {}
        self._shake_hands()
        if not self.modern:
            ready = threading.Event()
            self._start(self._listen, ready)
            assert ready.wait(SECONDS), "there is no stream of the session"

    def _send(self, message: dict[str, Any]) -> None:
        headers = {"Content-Type": "application/json", "Accept": wire.ACCEPT, **self._headers}
        method = message.get("method")
        if self.modern and method is not None:
            headers |= wire.modern_headers(method, message.get("params"), self.revision)
        elif self.revision >= "2025-06-18" and method != "initialize":
            headers["Mcp-Protocol-Version"] = self.revision
        if method is not None and "id" in message:
            exchange = _Exchange("POST", self._url, message, headers)
            self._open[message["id"]] = exchange
            self._start(self._receive, message["id"], exchange)
        else:
            answer = wire.post(self._url, message, headers)
            assert answer.status == 202, (answer.status, answer.body)

    def _receive(self, number: Any, exchange: _Exchange) -> None:
        try:
            stream = exchange.open()
            if session := stream.headers.get("mcp-session-id"):
                self._headers["Mcp-Session-Id"] = session
            if stream.headers.get("content-type", "").startswith("text/event-stream"):
                while True:
                    self._take(stream.next_json(), number)
            body = exchange.read()
            if not body:
                raise EOFError(f"status {stream.status} and nothing else")
            self._take(json.loads(body), number)
        except (OSError, EOFError, ValueError, http.client.HTTPException) as problem:
            self._failed(number, problem)
        finally:
            self._open.pop(number, None)
            exchange.close()

    def _listen(self, ready: threading.Event) -> None:
        headers = {"Accept": "text/event-stream", **self._headers}
        exchange = _Exchange("GET", self._url, None, headers)
        self._open["session"] = exchange
        try:
            stream = exchange.open()
            if stream.status == 200:
                ready.set()
            while stream.status == 200:
                self._take(stream.next_json(), "session")
        except (OSError, EOFError, ValueError, http.client.HTTPException):
            pass  # it was closed
        finally:
            exchange.close()

    def cancel(self, number: int) -> None:
        if self.modern:
            self.hang_up(number)
        else:
            super().cancel(number)

    def hang_up(self, number: Any) -> None:
        """Breaks off the exchange: that cancels in the modern era, and only there."""
        self._open[number].break_off()

    def close(self) -> None:
        if not self.modern:
            wire.http_request("DELETE", self._url, headers=self._headers)
        for exchange in list(self._open.values()):
            exchange.break_off()
        super().close()


class OverSse(Client):
    """HTTP+SSE: one stream for all that comes, and an address to post to."""

    def __init__(self, hub: RunningHub, revision: str, features: Mapping[str, Any]) -> None:
        super().__init__(revision, features)
        self._headers = dict(hub.headers)
        self._endpoint = ""
        ready = threading.Event()
        headers = {"Accept": "text/event-stream", **self._headers}
        self._exchange = _Exchange("GET", f"{hub.url}/sse", None, headers)
        self._start(self._read, f"{hub.url}/sse", ready)
        assert ready.wait(SECONDS), "no endpoint came"
        self._shake_hands()

    def _read(self, url: str, ready: threading.Event) -> None:
        try:
            stream = self._exchange.open()
            first = stream.next()
            assert first.name == "endpoint", first
            self._endpoint = urljoin(url, first.data)
            ready.set()
            while True:
                self._take(stream.next_json(), "session")
        except (OSError, EOFError, ValueError, AssertionError, http.client.HTTPException):
            pass  # it was closed
        finally:
            self._exchange.close()

    def _send(self, message: dict[str, Any]) -> None:
        answer = wire.post(self._endpoint, message, self._headers)
        assert answer.status == 202, (answer.status, answer.body)

    def close(self) -> None:
        self._exchange.break_off()
        super().close()


def connect(
    hub: RunningHub, revision: str, transport: str, features: Mapping[str, Any] | None = None
) -> Client:
    """`transport` is `http`, `sse` or `stdio`; the default declares all that the revision has."""
    kinds: dict[str, Callable[[RunningHub, str, Mapping[str, Any]], Client]] = {
        "http": OverHttp,
        "sse": OverSse,
        "stdio": OverStdio,
    }
    return kinds[transport](hub, revision, everything(revision) if features is None else features)
