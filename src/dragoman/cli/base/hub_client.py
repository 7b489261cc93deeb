"""Sends requests to the hub over its Unix socket, and runs a temporary hub if none is running."""

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
    fail,
    find_exit_code,
    say,
)
from dragoman.cli.base.output import StatusLine, clean
from dragoman.cli.base.token_costs import VIEWS_PATH
from dragoman.core.errors import HubError
from dragoman.core.tool_identity import fold_server_name

CALL_SECONDS = 90_000.0
"""Longer than the longest tool timeout: the hub ends a call, not the command."""
MAX_EVENT_BYTES = 64 * 1024 * 1024
ANSWER_SECONDS = 30.0
START_SECONDS = 60.0
FIRST_START_SECONDS = 660.0
"""How long a command waits for servers that a temporary hub starts: the first start of one may
download packages, and the hub ends one that does nothing."""
RESTART_SECONDS = 60.0
WAITING_SECONDS = 2.0
"""How long a command waits for what a hub says that may wait for its database."""
SAY_SECONDS = 3.0
"""After how long a command says what it waits for where it cannot show it meanwhile."""
MAX_NAMED = 5
STARTING = "starting"
CONNECT_SECONDS = 10.0
"""How long a command waits for servers that a running hub is still connecting to."""


Follow = Callable[[str, Any], None]
"""Takes the name of an event, `progress` or `artifact`, and its data."""


class HubUnavailable(Exception):
    """The hub did not answer; the message says why."""


class HubProblem(Exception):
    """The hub answered with a status of 400 or more."""

    def __init__(self, status: int, answer: Any) -> None:
        error = answer.get("error", {}) if isinstance(answer, dict) else {}
        self.message = str(error.get("message") or f"the hub answered with status {status}")
        self.trace = str(error.get("trace") or "")
        self.kind = str(error.get("kind") or ("NotFound" if status == 404 else ""))
        self.code = find_exit_code(self.kind)
        self.url = str(error.get("url") or "")
        """Where to log in, if a login is needed."""
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
    """Sends a request and returns the decoded response; raises `HubUnavailable` or `HubProblem`."""
    try:
        return request_stream(socket_path, method, path, body, seconds, None)
    except TimeoutError as error:
        raise HubUnavailable(str(error) or type(error).__name__) from None


def request_stream(
    socket_path: str, method: str, path: str, body: Any, seconds: float, follow: Follow | None
) -> Any:
    """Like `request_json`, but with `follow` accepts a stream, whose events it receives.

    Raises `TimeoutError` after `seconds` in all.
    """
    until = time.monotonic() + seconds
    connection = _UnixConnection(socket_path, seconds)
    headers = {"Content-Type": "application/json"}
    try:
        data = None if body is None else json.dumps(body).encode()
        accept = {"Accept": "text/event-stream"} if follow else {}
        connection.request(method, path, data, headers | accept)
        sock = connection.sock  # getresponse() may clear it
        response = connection.getresponse()
        if follow is None or response.headers.get_content_type() != "text/event-stream":
            sock.settimeout(max(until - time.monotonic(), 0.01))
            status, answer = response.status, json.loads(response.read())
        else:
            status, answer = _read_events(response, sock, until, follow)
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
    response: http.client.HTTPResponse, sock: socket.socket, until: float, follow: Follow
) -> tuple[int, Any]:
    """Reads events up to the result. The hub writes each as an event line and one data line."""
    name = ""
    while time.monotonic() < until:
        sock.settimeout(max(until - time.monotonic(), 0.01))
        line = response.readline(MAX_EVENT_BYTES)
        if not line:
            raise HubUnavailable("the connection was closed before the result arrived")
        field, _, text = line.rstrip(b"\n").partition(b": ")
        if field == b"event":
            name = text.decode()
        elif field == b"data" and name in ("result", "error"):
            return (200 if name == "result" else 500), json.loads(text)
        elif field == b"data":
            follow(name, json.loads(text))
    raise TimeoutError


class HubClient:
    """Calls the hub's API; a failed request ends the command with one line."""

    def __init__(self, home: str, socket_path: str, *, is_temporary: bool = False) -> None:
        self.home = home
        self.is_temporary = is_temporary
        """Whether this command started the hub."""
        self._socket = socket_path
        self._wait_seconds = FIRST_START_SECONDS if is_temporary else CONNECT_SECONDS

    def get(self, path: str) -> Any:
        return self.send("GET", path, None, ANSWER_SECONDS)

    def send(
        self,
        method: str,
        path: str,
        body: Any = None,
        seconds: float = 60.0,
        hint: Callable[[], str] = lambda: "",
    ) -> Any:
        """Sends a request; `hint` completes the message of a "not found" error."""
        try:
            return self._request(method, path, body, seconds)
        except HubProblem as problem:
            self._fail(problem, hint() if problem.code == NOT_FOUND else "")

    def list_servers(self) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = self.get("/api/mcp/servers")["connected"]
        return found

    def get_server_log(self, name: str) -> Any:
        path = f"/api/mcp/servers/{quote(name, safe='')}/logs"
        return self.send("GET", path, None, ANSWER_SECONDS, lambda: self._suggest_server(name))

    def restart_server(self, name: str) -> Any:
        path = f"/api/mcp/servers/{quote(name, safe='')}/restart"
        return self.send("POST", path, {}, RESTART_SECONDS, lambda: self._suggest_server(name))

    def wait_for_server(self, name: str, seconds: float = FIRST_START_SECONDS) -> dict[str, Any]:
        """Returns the state of a server once it is connected or failed, or after `seconds`."""
        status = StatusLine()
        until = time.monotonic() + seconds
        try:
            while True:
                state = next((one for one in self.list_servers() if one["name"] == name), None)
                if state is None:
                    fail(f'the hub has no server "{name}"; see: dragoman servers', NOT_FOUND)
                if state["state"] != STARTING or time.monotonic() > until:
                    return state
                doing = str(state.get("reason", ""))
                is_long = doing.startswith("it has been ") or doing.startswith("it waits ")
                status.show(f"connecting to {name} …" + (f" {doing}" if is_long else ""))
                time.sleep(0.05)
        finally:
            status.clear()

    def get_tool(self, name: str) -> Any:
        self._wait(lambda: self._is_answered(name))
        path = f"/api/tools/{quote(name, safe='')}"
        return self.send("GET", path, None, ANSWER_SECONDS, lambda: self._explain_missing(name))

    def find_tool(self, name: str) -> Any | None:
        """Returns the tool, or None. Unlike a call of an unknown tool, this is not audited."""
        self._wait(lambda: self._is_answered(name))
        return self._look_up(name)

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
        """Calls a tool.

        `progress` receives progress as text, in place of the status line; `hint` completes the
        message of an invalid-arguments error. `more` is sent along: the question kinds that can be
        answered (`can`), or `answers` with their `handle`.
        """
        self._wait(lambda: self._is_answered(name), is_said=True)
        hints = {NOT_FOUND: lambda: self._explain_missing(name), USAGE: hint}
        body = {"arguments": arguments, **more}
        return self._call_path(build_call_path(name), name, body, seconds, progress, hints)

    def dispatch(self, body: dict[str, Any], progress: Callable[[str], None] | None = None) -> Any:
        """Has work done by an agent that the hub chooses."""
        if self.is_temporary:  # agents that are not found yet are no candidates
            self.wait_until_connected()
        return self._call_path("/api/a2a/dispatch", "dispatch", body, None, progress, {})

    def _call_path(
        self,
        path: str,
        name: str,
        body: Mapping[str, Any],
        seconds: float | None,
        progress: Callable[[str], None] | None,
        hints: Mapping[int, Callable[[], str]],
    ) -> Any:
        status = StatusLine()
        status.show(f"calling {name} …")

        def follow(kind: str, event: Mapping[str, Any]) -> None:
            if kind != "progress":
                return
            text = describe_progress(event)
            status.show(f"calling {name} … {text}")
            if progress is not None:
                progress(text)

        try:
            if progress is None and not sys.stderr.isatty() and seconds is None:
                return request_json(self._socket, "POST", path, body, CALL_SECONDS)
            return request_stream(self._socket, "POST", path, body, seconds or CALL_SECONDS, follow)
        except HubUnavailable as error:
            _fail_unavailable(error)
        except TimeoutError:
            message = f'"{name}" timed out after {seconds:g} s (--timeout); the call was cancelled'
            fail(message, TARGET_FAILED, kind="TimedOut")
        except HubProblem as problem:
            status.clear()
            self._fail(problem, hints.get(problem.code, lambda: "")())
        finally:
            status.clear()

    def stream_call(self, name: str, body: Mapping[str, Any], follow: Follow) -> Any:
        """Calls a tool once, and passes its updates to `follow`. Raises `HubUnavailable` or
        `HubProblem`; unlike `call` it never ends the command."""
        path = build_call_path(name)
        return request_stream(self._socket, "POST", path, body, CALL_SECONDS, follow)

    def wait_until_connected(
        self,
        seconds: float = FIRST_START_SECONDS,
        *,
        agents: bool = True,
        only: str | None = None,
    ) -> list[str]:
        """Waits until the hub has tried all servers and agents, or server `only`, at most
        `seconds`; returns the names of those it is still connecting to."""

        def is_enough() -> bool:
            states = {one["name"]: one["state"] for one in self.list_servers()} if only else {}
            return bool(states.get(only, STARTING) != STARTING)

        return self._wait(is_enough, seconds, agents)

    def list_quarantined(self) -> list[dict[str, Any]]:
        """Lists the pins that wait for approval; empty if this user may not see them."""
        try:
            found: list[dict[str, Any]] = self._request("GET", "/api/pins?state=held", None)["pins"]
        except HubProblem:
            return []
        return found

    def get_views(self) -> dict[str, Any] | None:
        """Returns the costs of the views; None if this user may not see them."""
        try:
            found: dict[str, Any] = self._request("GET", VIEWS_PATH, None)
        except HubProblem:
            return None
        return found

    def _request(self, method: str, path: str, body: Any, seconds: float = ANSWER_SECONDS) -> Any:
        try:
            return request_json(self._socket, method, path, body, seconds)
        except HubUnavailable as error:
            _fail_unavailable(error)

    def _fail(self, problem: HubProblem, hint: str) -> NoReturn:
        if problem.kind == "NeedsInput":
            hint = "call it on a terminal, without --json, to answer its questions"
        if problem.url:
            hint = f"log in at {problem.url}"
        more = f"; {hint}" if hint else ""
        trace = f" (trace {problem.trace[:8]})" if problem.trace else ""
        message = f"{problem.message}{more}{trace}"
        fail(message, problem.code, kind=problem.kind, trace=problem.trace)

    def _suggest_server(self, name: str) -> str:
        return suggest(name, (server["name"] for server in self.list_servers()))

    def _look_up(self, name: str) -> Any | None:
        try:
            return self._request("GET", f"/api/tools/{quote(name, safe='')}", None)
        except HubProblem:
            return None

    def _is_answered(self, name: str) -> bool:
        """Whether no server that is still starting can have the tool that is not there yet."""
        return self._look_up(name) is not None or self._is_of_connected_server(name)

    def _is_of_connected_server(self, name: str) -> bool:
        """Whether the name begins like those of a connected server, and of none that starts."""
        try:
            found = self._request("GET", "/api/mcp/servers", None)
        except HubProblem:
            return False
        prefixes = {entry["name"]: entry.get("prefix") for entry in found["configured"]}
        folded = fold_server_name(name).removeprefix("mcp_")
        states = []
        for server in found["connected"]:
            prefix = prefixes.get(server["name"])
            spaces = {fold_server_name(one) for one in (server["name"], prefix) if one}
            heads = tuple(f"{space}{mark}" for space in spaces for mark in "._")
            if folded.startswith(heads) or (prefix == "" and server["state"] == STARTING):
                states.append(server["state"])
        return bool(states) and STARTING not in states

    def _explain_missing(self, name: str) -> str:
        """Says why a tool is missing: its server or agent is unavailable, or the name is wrong."""
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
        self,
        is_enough: Callable[[], bool],
        seconds: float = FIRST_START_SECONDS,
        agents: bool = True,
        *,
        is_said: bool = False,
    ) -> list[str]:
        """With `is_said`, a wait that takes long is said even where there is no terminal."""
        status, begun = StatusLine(), time.monotonic()
        until = time.monotonic() + min(seconds, self._wait_seconds)
        connecting = self._list_connecting(agents)
        while connecting and time.monotonic() < until and not is_enough():
            status.show(f"waiting for {', '.join(connecting)} …")
            if is_said and time.monotonic() - begun > SAY_SECONDS and not sys.stderr.isatty():
                is_said = False
                more = len(connecting) - MAX_NAMED
                names = ", ".join(connecting[:MAX_NAMED]) + (
                    f" and {more} more" if more > 0 else ""
                )
                say(f"waiting for {names}, which the hub is connecting to")
            time.sleep(0.05)
            connecting = self._list_connecting(agents)
        status.clear()
        return connecting

    def _list_connecting(self, agents: bool) -> list[str]:
        state = self.get("/api/status")
        if "servers" not in state:  # the policies do not permit this user to see them
            return []
        remote = state["agents"]["remote"] if agents else []
        unknown = [agent["name"] for agent in remote if agent["state"] == "unknown"]
        return [*state["servers"]["starting"], *unknown]


def build_call_path(tool: str) -> str:
    return f"/api/tools/{quote(tool, safe='')}/call"


def _fail_unavailable(error: HubUnavailable) -> NoReturn:
    fail(f"the hub did not answer: {error}; see: dragoman status", NO_HUB)


def describe_progress(event: Mapping[str, Any]) -> str:
    """Renders a progress event, for example `3 of 10, copying`."""
    done, total, message = event.get("progress"), event.get("total"), event.get("message")
    count = "" if done is None else f"{done:g}" if total is None else f"{done:g} of {total:g}"
    if count == "0" and message:
        count = ""  # it has not begun
    return ", ".join(filter(None, (count, clean(message or ""))))


def suggest(name: str, known: Iterable[str]) -> str:
    """Returns `did you mean "…"?` with the nearest known name, or an empty string."""
    lowered = {each.lower(): each for each in known}
    near = difflib.get_close_matches(name.lower(), lowered, n=1, cutoff=0.5)
    near = near or [each for each in lowered if each.endswith((f"_{name.lower()}", f".{name}"))]
    return f'did you mean "{lowered[near[0]]}"?' if near else ""


def resolve_home(given: str | None) -> str:
    try:
        return home.find_home(given)
    except home.HomeUnusable as error:
        fail(str(error))


def find_running_hub(place: str) -> home.DaemonRecord | None:
    """Returns the hub that holds the home and accepts connections, or None."""
    found = home.connect(place)
    if found is None:
        return None
    found[0].close()
    return found[1]


def find_waiting_hub(place: str) -> tuple[home.DaemonRecord, str] | None:
    """Finds a hub that waits for its database before it serves, and what it says."""
    daemon = home.read_daemon(place)
    if daemon is None or not home.is_locked(place):
        return None
    try:
        request_json(daemon.socket, "GET", "/readyz", None, WAITING_SECONDS)
    except HubProblem as problem:
        return daemon, problem.message
    except HubUnavailable:
        pass
    return None


def connect_running(place: str) -> HubClient | None:
    """Connects to the hub that runs on the home, if one does."""
    daemon = find_running_hub(place)
    return HubClient(place, daemon.socket) if daemon is not None else None


@contextlib.contextmanager
def connect_hub(given: str | None) -> Iterator[HubClient]:
    """Connects to the running hub, or runs a temporary one for the duration."""
    place = resolve_home(given)
    if (running := connect_running(place)) is not None:
        yield running
        return
    with _run_temporary_hub(place) as client:
        yield client


@contextlib.contextmanager
def _run_temporary_hub(place: str) -> Iterator[HubClient]:
    """Runs a hub in a thread of this process."""
    if sys.stderr.isatty():
        say("no hub is running; starting a temporary one (faster: dragoman up)")
    # The command reports failed servers itself.
    logging.basicConfig(level=logging.CRITICAL)
    from dragoman.app.run import host

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
        yield HubClient(place, daemon.socket, is_temporary=True)
    finally:
        ended.set()
        thread.join(15)


def _fail_to_start(failed: list[Exception]) -> NoReturn:
    problem = failed[0] if failed else None
    if isinstance(problem, HubError):
        fail(str(problem), find_exit_code(problem.kind))
    why = str(problem or "it did not start in time").rstrip(".")
    fail(f"no hub is running and none could be started: {why}", NO_HUB)
