"""How commands talk to the hub: HTTP over its Unix socket; or a hub of their own, for as long as
they take, where none runs."""

from __future__ import annotations

import contextlib
import http.client
import json
import socket
import sys
import threading
import time
from collections.abc import Iterator
from typing import Any
from urllib.parse import quote

from dragoman import home
from dragoman.cli.errors import NO_HUB, code_of, stop
from dragoman.cli.output import Waiting
from dragoman.core.errors import ConfigError

CALL_SECONDS = 3_600
START_SECONDS = 60.0


class _UnixConnection(http.client.HTTPConnection):
    def __init__(self, path: str, timeout: float) -> None:
        super().__init__("localhost", timeout=timeout)
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(2)
        self.sock.connect(self._path)
        self.sock.settimeout(self.timeout)


class HubClient:
    def __init__(self, place: str, socket_path: str) -> None:
        self.place = place
        self._socket = socket_path

    def get(self, path: str) -> Any:
        return self._ask("GET", path, None)

    def call(self, tool: str, arguments: dict[str, Any]) -> Any:
        path = f"/api/tools/{quote(tool, safe='')}/call"
        return self._ask("POST", path, {"arguments": arguments})

    def _ask(self, method: str, path: str, body: Any) -> Any:
        connection = _UnixConnection(self._socket, CALL_SECONDS)
        try:
            data = None if body is None else json.dumps(body).encode()
            connection.request(method, path, data, {"Content-Type": "application/json"})
            response = connection.getresponse()
            status, answer = response.status, json.loads(response.read())
        except (OSError, http.client.HTTPException, ValueError) as error:
            stop(f"the hub did not answer: {error}; see: dragoman status", NO_HUB)
        finally:
            connection.close()
        if status >= 400:
            problem = answer.get("error", {})
            trace = problem.get("trace")
            shown = f"{problem.get('message')}" + (f" (trace {trace[:8]})" if trace else "")
            stop(shown, code_of(problem.get("kind", "")))
        return answer

    def wait_settled(self) -> None:
        """Until no server is starting any more, and not for ever."""
        waiting = Waiting()
        until = time.monotonic() + START_SECONDS
        while time.monotonic() < until:
            starting = self.get("/api/status")["servers"]["starting"]
            if not starting:
                break
            waiting.say(f"waiting for {', '.join(starting)} …")
            time.sleep(0.05)
        waiting.done()


def place_of(given: str | None) -> str:
    try:
        return home.home_path(given)
    except home.Unfit as error:
        stop(str(error))


def running(place: str) -> home.Daemon | None:
    """The hub that holds the home and answers."""
    found = home.connect(place)
    if found is None:
        return None
    found[0].close()
    return found[1]


@contextlib.contextmanager
def connected(given: str | None, *, settled: bool = True) -> Iterator[HubClient]:
    """A way to the hub; `settled` waits until its servers have been tried."""
    place = place_of(given)
    daemon = running(place)
    if daemon is not None:
        client = HubClient(place, daemon.socket)
        if settled:
            client.wait_settled()
        yield client
        return
    with _own(place) as client:
        if settled:
            client.wait_settled()
        yield client


@contextlib.contextmanager
def _own(place: str) -> Iterator[HubClient]:
    """A hub inside this process."""
    if sys.stderr.isatty():
        print("no hub is running, so this command starts one for itself", file=sys.stderr)
    from dragoman.assembly import host

    ended = threading.Event()
    failed: list[Exception] = []

    def run() -> None:
        try:
            host(place, ended)
        except Exception as error:
            failed.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    try:
        until = time.monotonic() + START_SECONDS
        daemon = running(place)
        while daemon is None and thread.is_alive() and time.monotonic() < until:
            time.sleep(0.02)
            daemon = running(place)
        if daemon is None:
            problem = failed[0] if failed else "it did not come up"
            kind = problem.kind if isinstance(problem, ConfigError) else ""
            stop(
                f"no hub is running and none could be started: {problem}",
                code_of(kind) if kind else NO_HUB,
            )
        yield HubClient(place, daemon.socket)
    finally:
        ended.set()
        thread.join(15)
