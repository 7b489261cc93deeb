"""How commands talk to the hub: HTTP over its Unix socket; or a hub of their own, for as long as
they take, where none runs."""

from __future__ import annotations

import contextlib
import difflib
import http.client
import json
import logging
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, NoReturn
from urllib.parse import quote

from dragoman import home
from dragoman.cli.base.errors import (
    NO_HUB,
    NOT_FOUND,
    TARGET_FAILED,
    USAGE,
    exit_code_for,
    fail,
    say,
)
from dragoman.cli.base.output import StatusLine, clean
from dragoman.core.errors import HubError

CALL_SECONDS = 90_000.0
"""Longer than the longest time a tool may be given: the hub ends a call, not its caller."""
MAX_ANSWER = 64 * 1024 * 1024
ANSWER_SECONDS = 30.0
START_SECONDS = 60.0
RESTART_SECONDS = 60.0
SETTLE_SECONDS = 10.0
"""How long a command waits for servers of a running hub that are just being connected."""


class HubUnavailable(Exception):
    """The hub did not answer; the message says why."""


class HubProblem(Exception):
    """What the hub answered with a status of 400 or more."""

    def __init__(self, status: int, answer: Any) -> None:
        error = answer.get("error", {}) if isinstance(answer, dict) else {}
        self.message = str(error.get("message") or f"the hub answered with status {status}")
        self.trace = str(error.get("trace") or "")
        kind = error.get("kind") or ("NotFound" if status == 404 else "")
        self.kind = str(kind)
        self.code = exit_code_for(self.kind)
        super().__init__(self.message)


class _UnixConnection(http.client.HTTPConnection):
    def __init__(self, path: str, timeout: float) -> None:
        super().__init__("localhost", timeout=timeout)
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(2)
        self.sock.connect(self._path)
        self.sock.settimeout(self.timeout)


def request_json(socket_path: str, method: str, path: str, body: Any, seconds: float) -> Any:
    """The hub's answer; raises `NoAnswer` or `Problem`."""
    connection = _UnixConnection(socket_path, seconds)
    try:
        data = None if body is None else json.dumps(body).encode()
        connection.request(method, path, data, {"Content-Type": "application/json"})
        response = connection.getresponse()
        status, answer = response.status, json.loads(response.read())
    except (OSError, http.client.HTTPException, ValueError) as error:
        raise HubUnavailable(str(error) or type(error).__name__) from None
    finally:
        connection.close()
    if status >= 400:
        raise HubProblem(status, answer)
    return answer


def request_stream(
    socket_path: str, path: str, body: Any, seconds: float, follow: Callable[[Any], None]
) -> Any:
    """The hub's answer to a POST; `follow` is told of the progress until then.

    Raises `TimeoutError` after so many seconds in all, else as `ask` does.
    """
    until = time.monotonic() + seconds
    connection = _UnixConnection(socket_path, seconds)
    try:
        connection.connect()
        wire = connection.sock
        headers = {"Content-Type": "application/json", "Accept": "text/event-stream"}
        connection.request("POST", path, json.dumps(body).encode(), headers)
        response = connection.getresponse()
        if response.headers.get_content_type() != "text/event-stream":
            wire.settimeout(max(until - time.monotonic(), 0.01))
            status, answer = response.status, json.loads(response.read())
        else:
            status, answer = _read_events(response, wire, until, follow)
    except TimeoutError:
        raise
    except (OSError, http.client.HTTPException, ValueError) as error:
        raise HubUnavailable(str(error) or type(error).__name__) from None
    finally:
        connection.close()
    if status >= 400:
        raise HubProblem(status, answer)
    return answer


def _read_events(
    response: http.client.HTTPResponse,
    wire: socket.socket,
    until: float,
    follow: Callable[[Any], None],
) -> tuple[int, Any]:
    """The hub writes an event as two lines, its name and its data, and an empty one."""
    name = ""
    while time.monotonic() < until:
        wire.settimeout(max(until - time.monotonic(), 0.01))
        line = response.readline(MAX_ANSWER)
        if not line:
            raise HubUnavailable("the answer broke off")
        field, _, text = line.rstrip(b"\n").partition(b": ")
        if field == b"event":
            name = text.decode()
        elif field == b"data" and name in ("result", "error"):
            return (200 if name == "result" else 500), json.loads(text)
        elif field == b"data":
            follow(json.loads(text))
    raise TimeoutError


class HubClient:
    """Asks the hub, and ends the command with one sentence where that fails."""

    def __init__(self, place: str, socket_path: str, *, own: bool = False) -> None:
        self.home = place
        self.is_temporary = own
        """Whether the hub was started by this command, a moment ago."""
        self._socket = socket_path
        self._wait_seconds = START_SECONDS if own else SETTLE_SECONDS

    def get(self, path: str) -> Any:
        return self._ask("GET", path, None, ANSWER_SECONDS)

    def send(
        self,
        method: str,
        path: str,
        body: Any = None,
        seconds: float = 60.0,
        hint: Callable[[], str] = lambda: "",
    ) -> Any:
        """`hint` says more where what is asked for is not found."""
        with self._report_problems(hint):
            return self._request(method, path, body, seconds)

    def list_servers(self) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = self.get("/api/mcp/servers")["connected"]
        return found

    def get_server_log(self, name: str) -> Any:
        with self._report_problems(
            lambda: suggest(name, (server["name"] for server in self.list_servers()))
        ):
            return self._request("GET", f"/api/mcp/servers/{quote(name, safe='')}/logs", None)

    def restart_server(self, name: str) -> Any:
        path = f"/api/mcp/servers/{quote(name, safe='')}/restart"
        with self._report_problems(
            lambda: suggest(name, (server["name"] for server in self.list_servers()))
        ):
            return self._request("POST", path, {}, RESTART_SECONDS)

    def wait_for_server(self, name: str, seconds: float = START_SECONDS) -> dict[str, Any]:
        """The state of a server, once it is connected, or has failed, or has had its time."""
        waiting = StatusLine()
        until = time.monotonic() + seconds
        try:
            while True:
                state = next((one for one in self.list_servers() if one["name"] == name), None)
                if state is None:
                    fail(f'the hub does not know server "{name}"; see: dragoman status', NOT_FOUND)
                if state["state"] != "starting" or time.monotonic() > until:
                    return state
                waiting.show(f"connecting to {name} …")
                time.sleep(0.05)
        finally:
            waiting.clear()

    def get_tool(self, name: str) -> Any:
        self._wait(lambda: self._knows(name))
        with self._report_problems(lambda: self._explain_missing(name)):
            return self._request("GET", f"/api/tools/{quote(name, safe='')}", None)

    def find_tool(self, name: str) -> Any | None:
        """The tool, or None where there is no such: to call that is recorded, to ask is not."""
        self._wait(lambda: self._knows(name))
        return self._look(name)

    def call(
        self,
        name: str,
        arguments: dict[str, Any],
        *,
        seconds: float | None = None,
        progress: Callable[[str], None] | None = None,
        hint: Callable[[], str] = lambda: "",
        **more: Any,
    ) -> Any:
        """`progress` is told how far it is, in words, instead of the line on a terminal; `hint`
        says what may be wrong with the arguments. `more`: what can be asked here (`can`), or
        `answers` and their `handle`."""
        self._wait(lambda: self._knows(name))
        waiting = StatusLine()
        waiting.show(f"calling {name} …")

        def follow(told: Mapping[str, Any]) -> None:
            words = describe_progress(told)
            waiting.show(f"calling {name} … {words}")
            if progress is not None:
                progress(words)

        path = f"/api/tools/{quote(name, safe='')}/call"
        body = {"arguments": arguments, **more}
        try:
            if progress is None and not sys.stderr.isatty() and seconds is None:
                return request_json(self._socket, "POST", path, body, CALL_SECONDS)
            return request_stream(self._socket, path, body, seconds or CALL_SECONDS, follow)
        except HubUnavailable as error:
            fail(f"the hub did not answer: {error}; see: dragoman status", NO_HUB)
        except TimeoutError:
            words = f'"{name}" took longer than --timeout {seconds:g}; the call was cancelled'
            fail(words, TARGET_FAILED, kind="TimedOut")
        except HubProblem as problem:
            waiting.clear()
            hints = {NOT_FOUND: lambda: self._explain_missing(name), USAGE: hint}
            self._fail(problem, hints.get(problem.code, lambda: "")())
        finally:
            waiting.clear()

    def wait_until_connected(
        self, seconds: float = START_SECONDS, *, agents: bool = True
    ) -> list[str]:
        """Until no server is being connected and no agent looked for any more, and not for ever:
        gives those that are."""
        return self._wait(lambda: False, seconds, agents)

    def list_quarantined(self) -> list[dict[str, Any]]:
        """What waits for approval; nothing where this caller may not know."""
        try:
            found: list[dict[str, Any]] = self._request("GET", "/api/pins?state=held", None)["pins"]
        except HubProblem:
            return []
        return found

    # --- asking --------------------------------------------------------------------------------

    def _request(self, method: str, path: str, body: Any, seconds: float = ANSWER_SECONDS) -> Any:
        try:
            return request_json(self._socket, method, path, body, seconds)
        except HubUnavailable as error:
            fail(f"the hub did not answer: {error}; see: dragoman status", NO_HUB)

    def _ask(self, method: str, path: str, body: Any, seconds: float) -> Any:
        with self._report_problems(lambda: ""):
            return self._request(method, path, body, seconds)

    @contextlib.contextmanager
    def _report_problems(self, hint: Callable[[], str]) -> Iterator[None]:
        try:
            yield
        except HubProblem as problem:
            self._fail(problem, hint() if problem.code == NOT_FOUND else "")

    def _fail(self, problem: HubProblem, hint: str) -> NoReturn:
        if problem.kind == "NeedsInput":
            hint = "call it on a terminal, without --json, to be asked"
        more = f"; {hint}" if hint else ""
        trace = f" (trace {problem.trace[:8]})" if problem.trace else ""
        message = f"{problem.message}{more}{trace}"
        fail(message, problem.code, kind=problem.kind, trace=problem.trace)

    # --- what is not there ---------------------------------------------------------------------

    def _knows(self, name: str) -> bool:
        return self._look(name) is not None

    def _look(self, name: str) -> Any | None:
        try:
            return self._request("GET", f"/api/tools/{quote(name, safe='')}", None)
        except HubProblem:
            return None

    def _explain_missing(self, name: str) -> str:
        """Why a tool is not there: its server or agent is not, or another name was meant."""
        for server in self.list_servers():
            slug = server["name"].lower().replace("-", "_").replace(" ", "_")
            theirs = name.startswith((f"mcp_{slug}_", f"{server['name']}."))
            if theirs and not server["connected"] and not server["tools_count"]:
                return f'server "{server["name"]}" is not connected: {server.get("reason", "")}'
        for agent in self.get("/api/a2a/agents")["agents"]:
            theirs = name.startswith((f"{agent['slug']}.", f"a2a_{agent['slug']}_"))
            if theirs and not agent["tools"]:
                state = agent["health"] if agent["enabled"] else "off"
                why = f": {agent['reason']}" if agent["reason"] else ""
                return f'agent "{agent["name"]}" is {state}{why}'
        tools = self.get("/api/tools")["tools"]
        near = suggest(name, [known for tool in tools for known in (tool["name"], tool["id"])])
        return near or (
            "see: dragoman tools" if tools else "see: dragoman servers, dragoman agents"
        )

    def _wait(
        self, enough: Callable[[], bool], seconds: float = START_SECONDS, agents: bool = True
    ) -> list[str]:
        waiting = StatusLine()
        until = time.monotonic() + min(seconds, self._wait_seconds)
        starting = self._list_connecting(agents)
        while starting and time.monotonic() < until and not enough():
            waiting.show(f"waiting for {', '.join(starting)} …")
            time.sleep(0.05)
            starting = self._list_connecting(agents)
        waiting.clear()
        return starting

    def _list_connecting(self, agents: bool) -> list[str]:
        state = self.get("/api/status")
        if "servers" not in state:  # the policies let nobody here know
            return []
        far = state["agents"]["remote"] if agents else []
        sought = [agent["name"] for agent in far if agent["state"] == "unknown"]
        return [*state["servers"]["starting"], *sought]


def describe_progress(told: Mapping[str, Any]) -> str:
    """`3 of 10, copying`, as far as it is known."""
    done, total, message = told.get("progress"), told.get("total"), told.get("message")
    count = "" if done is None else f"{done:g}" if total is None else f"{done:g} of {total:g}"
    return ", ".join(filter(None, (count, clean(message or ""))))


def suggest(name: str, known: Iterable[str]) -> str:
    names = list(known)
    lowered = {each.lower(): each for each in names}
    near = difflib.get_close_matches(name.lower(), lowered, n=1, cutoff=0.5)
    near = near or [each for each in lowered if each.endswith((f"_{name.lower()}", f".{name}"))]
    return f'did you mean "{lowered[near[0]]}"?' if near else ""


def resolve_home(given: str | None) -> str:
    try:
        return home.home_path(given)
    except home.Unfit as error:
        fail(str(error))


def find_running_hub(place: str) -> home.Daemon | None:
    """The hub that holds the home and answers."""
    found = home.connect(place)
    if found is None:
        return None
    found[0].close()
    return found[1]


@contextlib.contextmanager
def connect_hub(given: str | None) -> Iterator[HubClient]:
    """A way to the hub that runs, or to one that runs as long as this."""
    place = resolve_home(given)
    daemon = find_running_hub(place)
    if daemon is not None:
        yield HubClient(place, daemon.socket)
        return
    with _run_temporary_hub(place) as client:
        yield client


@contextlib.contextmanager
def _run_temporary_hub(place: str) -> Iterator[HubClient]:
    """A hub inside this process."""
    if sys.stderr.isatty():
        say("no hub is running, so this command starts one for itself; faster: dragoman up")
    # What goes wrong with a server is said by the command, and in the words of `servers`.
    logging.basicConfig(level=logging.CRITICAL)
    from dragoman.app.app import host

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
        daemon = find_running_hub(place)
        while daemon is None and thread.is_alive() and time.monotonic() < until:
            time.sleep(0.02)
            daemon = find_running_hub(place)
        if daemon is None:
            _fail_to_start(failed)
        yield HubClient(place, daemon.socket, own=True)
    finally:
        ended.set()
        thread.join(15)


def _fail_to_start(failed: list[Exception]) -> NoReturn:
    problem = failed[0] if failed else None
    if isinstance(problem, HubError):
        fail(str(problem), exit_code_for(problem.kind))
    why = str(problem or "it did not come up").rstrip(".")
    fail(f"no hub is running and none could be started: {why}", NO_HUB)
