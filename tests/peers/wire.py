"""Raw clients for tests: JSON-RPC over a child's pipes, in both framings, and over HTTP.

Every wait has a bound. Nothing here knows what a right answer is.
"""

from __future__ import annotations

import http.client
import json
import os
import queue
import re
import subprocess
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any
from urllib.parse import urlsplit

from tests.peers.forked import ForkedProcess

MODERN = "2026-07-28"
LEGACY = "2025-11-25"
ACCEPT = "application/json, text/event-stream"


def modern_params(params: Mapping[str, Any] | None = None, version: str = MODERN) -> dict[str, Any]:
    """`params` with the `_meta` that a modern revision wants on every request."""
    meta = {
        "io.modelcontextprotocol/protocolVersion": version,
        "io.modelcontextprotocol/clientCapabilities": {},
        "io.modelcontextprotocol/clientInfo": {"name": "wire", "version": "0"},
    }
    params = dict(params or {})
    return {**params, "_meta": {**meta, **params.get("_meta", {})}}


def modern_headers(
    method: str, params: Mapping[str, Any] | None = None, version: str = MODERN
) -> dict[str, str]:
    headers = {"Mcp-Protocol-Version": version, "Mcp-Method": method}
    member = "taskId" if method.startswith("tasks/") else "uri"
    name = (params or {}).get("name" if method in ("tools/call", "prompts/get") else member)
    return {**headers, "Mcp-Name": str(name)} if name is not None else headers


def initialize_params(
    version: str = LEGACY, capabilities: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    client = {"name": "wire", "version": "0"}
    able = dict(capabilities or {})
    return {"protocolVersion": version, "capabilities": able, "clientInfo": client}


def request(number: Any, method: str, params: Mapping[str, Any] | None = None) -> dict[str, Any]:
    message: dict[str, Any] = {"jsonrpc": "2.0", "id": number, "method": method}
    return message if params is None else {**message, "params": dict(params)}


def notification(method: str, params: Mapping[str, Any] | None = None) -> dict[str, Any]:
    message: dict[str, Any] = {"jsonrpc": "2.0", "method": method}
    return message if params is None else {**message, "params": dict(params)}


# --- stdio


@dataclass(frozen=True)
class Frame:
    framing: str
    """`newline` or `content-length`: how it came."""
    message: Any
    """Decoded; where it was no JSON, the bytes."""


class Stdio:
    """A child process that speaks JSON-RPC on its pipes; use it with `with`.

    `framing` is how messages are sent; what comes back is recognised one by one.
    """

    def __init__(
        self,
        command: Sequence[str | Path],
        *,
        framing: str = "newline",
        env: Mapping[str, str] | None = None,
        cwd: str | Path | None = None,
    ) -> None:
        self.framing = framing
        self.notifications: list[Any] = []
        """What came while an answer was waited for."""
        self._next = 0
        self._frames: queue.Queue[Frame | None] = queue.Queue()
        self._stderr: list[bytes] = []
        line = [str(part) for part in command]
        start = ForkedProcess if line[1:3] == ["-m", "dragoman"] else subprocess.Popen
        self.process = start(
            line,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env={**os.environ, **(env or {})},
            cwd=cwd,
        )
        self._threads = [
            threading.Thread(target=self._read, args=(self.process.stdout,), daemon=True),
            threading.Thread(target=self._read_stderr, args=(self.process.stderr,), daemon=True),
        ]
        for thread in self._threads:
            thread.start()

    @property
    def pid(self) -> int:
        return self.process.pid

    @property
    def stderr(self) -> str:
        return b"".join(self._stderr).decode("utf-8", "replace")

    def _read(self, pipe: IO[bytes]) -> None:
        while line := pipe.readline():
            if found := re.match(rb"content-length:\s*(\d+)\s*$", line, re.IGNORECASE):
                while pipe.readline().strip():
                    pass
                framing, data = "content-length", pipe.read(int(found[1]))
            else:
                framing, data = "newline", line
            try:
                self._frames.put(Frame(framing, json.loads(data)))
            except ValueError:
                self._frames.put(Frame(framing, data))
        self._frames.put(None)

    def _read_stderr(self, pipe: IO[bytes]) -> None:
        while chunk := pipe.read1(65536):  # type: ignore[attr-defined]
            self._stderr.append(chunk)

    def write(self, data: bytes) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(data)
        self.process.stdin.flush()

    def send(self, message: Any, framing: str | None = None) -> None:
        body = json.dumps(message).encode()
        if (framing or self.framing) == "newline":
            self.write(body + b"\n")
        else:
            self.write(b"Content-Length: %d\r\n\r\n" % len(body) + body)

    def frame(self, timeout: float = 60.0) -> Frame:
        """The next thing that comes. EOFError at the end, TimeoutError when nothing comes."""
        try:
            found = self._frames.get(timeout=timeout)
        except queue.Empty:
            raise TimeoutError(f"nothing came in {timeout} s; stderr: {self.stderr}") from None
        if found is None:
            self._frames.put(None)
            raise EOFError(f"the child has closed its stdout; stderr: {self.stderr}")
        return found

    def read(self, timeout: float = 60.0) -> Any:
        return self.frame(timeout).message

    def silent(self, seconds: float) -> bool:
        """Whether nothing at all comes for so long."""
        frames = self._frames
        with frames.not_empty:
            return not frames.not_empty.wait_for(lambda: bool(frames.queue), seconds)

    def request(
        self, method: str, params: Mapping[str, Any] | None = None, timeout: float = 60.0
    ) -> Any:
        """The whole answer to one request; what comes before it goes to `notifications`."""
        self._next += 1
        self.send(request(self._next, method, params))
        while True:
            message = self.read(timeout)
            if isinstance(message, dict) and message.get("id") == self._next:
                return message
            self.notifications.append(message)

    def notify(self, method: str, params: Mapping[str, Any] | None = None) -> None:
        self.send(notification(method, params))

    def initialize(self, version: str = LEGACY) -> Any:
        """The handshake; gives its result."""
        answer = self.request("initialize", initialize_params(version))
        self.notify("notifications/initialized")
        return answer["result"]

    def close_stdin(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.close()

    def wait(self, timeout: float = 60.0) -> int:
        return self.process.wait(timeout)

    def close(self) -> None:
        """Closes its stdin; kills it where that does not end it in time."""
        assert self.process.stdin and self.process.stdout and self.process.stderr
        try:
            self.process.stdin.close()
        except BrokenPipeError:
            pass
        try:
            self.process.wait(60)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait(60)
        for thread in self._threads:
            thread.join(60)
        self.process.stdout.close()
        self.process.stderr.close()

    def __enter__(self) -> Stdio:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


# --- HTTP


@dataclass(frozen=True)
class Event:
    name: str
    data: str
    id: str

    def json(self) -> Any:
        return json.loads(self.data)


def events(lines: Iterator[bytes]) -> Iterator[Event]:
    name, number = "message", ""
    data: list[str] = []
    for raw in lines:
        line = raw.decode().rstrip("\r\n")
        if not line:
            if data:
                yield Event(name, "\n".join(data), number)
            name, data = "message", []
            continue
        field, _, value = line.partition(":")
        value = value.removeprefix(" ")
        if field == "event":
            name = value
        elif field == "data":
            data.append(value)
        elif field == "id":
            number = value


@dataclass(frozen=True)
class Answer:
    status: int
    headers: Mapping[str, str]
    """Lower-case names."""
    body: bytes

    def json(self) -> Any:
        return json.loads(self.body)

    def events(self) -> list[Event]:
        return list(events(iter(self.body.splitlines(keepends=True))))

    def messages(self) -> list[Any]:
        """The JSON-RPC messages in it, be it JSON or an event stream."""
        if self.headers.get("content-type", "").startswith("text/event-stream"):
            return [event.json() for event in self.events() if event.data]
        return [self.json()] if self.body else []

    def rpc(self) -> Any:
        """The one message that is an answer."""
        (answer,) = [m for m in self.messages() if "method" not in m]
        return answer


class Stream:
    """The answer to a request while it comes."""

    def __init__(self, response: http.client.HTTPResponse) -> None:
        self.status = response.status
        self.headers = {name.lower(): value for name, value in response.getheaders()}
        self._events = events(iter(response.readline, b""))

    def next(self) -> Event:
        """EOFError at the end of the stream, TimeoutError when nothing came in time."""
        for event in self._events:
            return event
        raise EOFError("the stream has ended")

    def next_json(self) -> Any:
        """The next that says something: the first event of a stream may have an id alone."""
        event = self.next()
        while not event.data:
            event = self.next()
        return event.json()


@contextmanager
def _exchange(
    method: str, url: str, body: bytes | None, headers: Mapping[str, str], timeout: float
) -> Iterator[http.client.HTTPResponse]:
    parts = urlsplit(url)
    assert parts.hostname is not None
    connection = http.client.HTTPConnection(parts.hostname, parts.port, timeout=timeout)
    try:
        path = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
        connection.request(method, path, body, dict(headers))
        response = connection.getresponse()
        try:
            yield response
        finally:
            response.close()
    finally:
        connection.close()


def http_request(
    method: str,
    url: str,
    body: bytes | None = None,
    headers: Mapping[str, str] | None = None,
    timeout: float = 60.0,
) -> Answer:
    with _exchange(method, url, body, headers or {}, timeout) as response:
        got = {name.lower(): value for name, value in response.getheaders()}
        return Answer(response.status, got, response.read())


def get(url: str, headers: Mapping[str, str] | None = None, timeout: float = 60.0) -> Answer:
    return http_request("GET", url, None, headers, timeout)


def post(
    url: str, message: Any, headers: Mapping[str, str] | None = None, timeout: float = 60.0
) -> Answer:
    """`message` as JSON, or as it is where it is bytes. An event stream is read to its end."""
    body = message if isinstance(message, bytes) else json.dumps(message).encode()
    common = {"Content-Type": "application/json", "Accept": ACCEPT}
    return http_request("POST", url, body, {**common, **(headers or {})}, timeout)


@contextmanager
def stream(
    method: str,
    url: str,
    message: Any = None,
    headers: Mapping[str, str] | None = None,
    timeout: float = 60.0,
) -> Iterator[Stream]:
    """The events of an answer as they come; `timeout` bounds the wait for each piece."""
    body = None if message is None else json.dumps(message).encode()
    common = {"Accept": ACCEPT if body else "text/event-stream"}
    if body:
        common["Content-Type"] = "application/json"
    with _exchange(method, url, body, {**common, **(headers or {})}, timeout) as response:
        yield Stream(response)


class Session:
    """A Streamable HTTP session of the handshake era."""

    def __init__(
        self,
        url: str,
        version: str = LEGACY,
        headers: Mapping[str, str] | None = None,
        capabilities: Mapping[str, Any] | None = None,
    ) -> None:
        self.url = url
        self.headers = dict(headers or {})
        self._next = 0
        params = initialize_params(version, capabilities)
        answer = post(url, request(0, "initialize", params), self.headers)
        self.result = answer.rpc()["result"]
        self.headers["Mcp-Protocol-Version"] = self.result["protocolVersion"]
        if "mcp-session-id" in answer.headers:
            self.headers["Mcp-Session-Id"] = answer.headers["mcp-session-id"]
        post(url, notification("notifications/initialized"), self.headers)

    def post(self, message: Any, timeout: float = 60.0) -> Answer:
        return post(self.url, message, self.headers, timeout)

    def request(
        self, method: str, params: Mapping[str, Any] | None = None, timeout: float = 60.0
    ) -> Any:
        self._next += 1
        return self.post(request(self._next, method, params), timeout).rpc()


def modern_request(
    url: str,
    method: str,
    params: Mapping[str, Any] | None = None,
    headers: Mapping[str, str] | None = None,
    timeout: float = 60.0,
    version: str = MODERN,
) -> Answer:
    """One request of a modern revision, complete in itself."""
    message = request(1, method, modern_params(params, version))
    sent = {**modern_headers(method, params, version), **(headers or {})}
    return post(url, message, sent, timeout)
