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
from dragoman.cli.base.errors import NO_HUB, NOT_FOUND, TARGET_FAILED, USAGE, code_of, say, stop
from dragoman.cli.base.output import Waiting, clean
from dragoman.core.errors import HubError

CALL_SECONDS = 90_000.0
"""Longer than the longest time a tool may be given: the hub ends a call, not its caller."""
MAX_ANSWER = 64 * 1024 * 1024
ANSWER_SECONDS = 30.0
START_SECONDS = 60.0
RESTART_SECONDS = 60.0
SETTLE_SECONDS = 10.0
"""How long a command waits for servers of a running hub that are just being connected."""


class NoAnswer(Exception):
    """The hub did not answer; the message says why."""


class Problem(Exception):
    """What the hub answered with a status of 400 or more."""

    def __init__(self, status: int, answer: Any) -> None:
        error = answer.get("error", {}) if isinstance(answer, dict) else {}
        self.message = str(error.get("message") or f"the hub answered with status {status}")
        self.trace = str(error.get("trace") or "")
        kind = error.get("kind") or ("NotFound" if status == 404 else "")
        self.kind = str(kind)
        self.code = code_of(self.kind)
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


def ask(socket_path: str, method: str, path: str, body: Any, seconds: float) -> Any:
    """The hub's answer; raises `NoAnswer` or `Problem`."""
    connection = _UnixConnection(socket_path, seconds)
    try:
        data = None if body is None else json.dumps(body).encode()
        connection.request(method, path, data, {"Content-Type": "application/json"})
        response = connection.getresponse()
        status, answer = response.status, json.loads(response.read())
    except (OSError, http.client.HTTPException, ValueError) as error:
        raise NoAnswer(str(error) or type(error).__name__) from None
    finally:
        connection.close()
    if status >= 400:
        raise Problem(status, answer)
    return answer


def ask_following(
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
            status, answer = _follow_events(response, wire, until, follow)
    except TimeoutError:
        raise
    except (OSError, http.client.HTTPException, ValueError) as error:
        raise NoAnswer(str(error) or type(error).__name__) from None
    finally:
        connection.close()
    if status >= 400:
        raise Problem(status, answer)
    return answer


def _follow_events(
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
            raise NoAnswer("the answer broke off")
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
        self.place = place
        self.own = own
        """Whether the hub was started by this command, a moment ago."""
        self._socket = socket_path
        self._patience = START_SECONDS if own else SETTLE_SECONDS

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
        with self._explaining(hint):
            return self._try(method, path, body, seconds)

    def servers(self) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = self.get("/api/mcp/servers")["connected"]
        return found

    def server_log(self, name: str) -> Any:
        with self._explaining(lambda: nearest(name, (server["name"] for server in self.servers()))):
            return self._try("GET", f"/api/mcp/servers/{quote(name, safe='')}/logs", None)

    def restart_server(self, name: str) -> Any:
        path = f"/api/mcp/servers/{quote(name, safe='')}/restart"
        with self._explaining(lambda: nearest(name, (server["name"] for server in self.servers()))):
            return self._try("POST", path, {}, RESTART_SECONDS)

    def wait_server(self, name: str, seconds: float = START_SECONDS) -> dict[str, Any]:
        """The state of a server, once it is connected, or has failed, or has had its time."""
        waiting = Waiting()
        until = time.monotonic() + seconds
        try:
            while True:
                state = next((one for one in self.servers() if one["name"] == name), None)
                if state is None:
                    stop(f'the hub does not know server "{name}"; see: dragoman status', NOT_FOUND)
                if state["state"] != "starting" or time.monotonic() > until:
                    return state
                waiting.say(f"connecting to {name} …")
                time.sleep(0.05)
        finally:
            waiting.done()

    def tool(self, name: str) -> Any:
        self._wait(lambda: self._knows(name))
        with self._explaining(lambda: self._missing(name)):
            return self._try("GET", f"/api/tools/{quote(name, safe='')}", None)

    def known_tool(self, name: str) -> Any | None:
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
        waiting = Waiting()
        waiting.say(f"calling {name} …")

        def follow(told: Mapping[str, Any]) -> None:
            words = describe_progress(told)
            waiting.say(f"calling {name} … {words}")
            if progress is not None:
                progress(words)

        path = f"/api/tools/{quote(name, safe='')}/call"
        body = {"arguments": arguments, **more}
        try:
            if progress is None and not sys.stderr.isatty() and seconds is None:
                return ask(self._socket, "POST", path, body, CALL_SECONDS)
            return ask_following(self._socket, path, body, seconds or CALL_SECONDS, follow)
        except NoAnswer as error:
            stop(f"the hub did not answer: {error}; see: dragoman status", NO_HUB)
        except TimeoutError:
            words = f'"{name}" took longer than --timeout {seconds:g}; the call was cancelled'
            stop(words, TARGET_FAILED, kind="TimedOut")
        except Problem as problem:
            waiting.done()
            hints = {NOT_FOUND: lambda: self._missing(name), USAGE: hint}
            self._give_up(problem, hints.get(problem.code, lambda: "")())
        finally:
            waiting.done()

    def wait_settled(self, seconds: float = START_SECONDS, *, agents: bool = True) -> list[str]:
        """Until no server is being connected and no agent looked for any more, and not for ever:
        gives those that are."""
        return self._wait(lambda: False, seconds, agents)

    def held(self) -> list[dict[str, Any]]:
        """What waits for approval; nothing where this caller may not know."""
        try:
            found: list[dict[str, Any]] = self._try("GET", "/api/pins?state=held", None)["pins"]
        except Problem:
            return []
        return found

    # --- asking --------------------------------------------------------------------------------

    def _try(self, method: str, path: str, body: Any, seconds: float = ANSWER_SECONDS) -> Any:
        try:
            return ask(self._socket, method, path, body, seconds)
        except NoAnswer as error:
            stop(f"the hub did not answer: {error}; see: dragoman status", NO_HUB)

    def _ask(self, method: str, path: str, body: Any, seconds: float) -> Any:
        with self._explaining(lambda: ""):
            return self._try(method, path, body, seconds)

    @contextlib.contextmanager
    def _explaining(self, hint: Callable[[], str]) -> Iterator[None]:
        try:
            yield
        except Problem as problem:
            self._give_up(problem, hint() if problem.code == NOT_FOUND else "")

    def _give_up(self, problem: Problem, hint: str) -> NoReturn:
        if problem.kind == "NeedsInput":
            hint = "call it on a terminal, without --json, to be asked"
        more = f"; {hint}" if hint else ""
        trace = f" (trace {problem.trace[:8]})" if problem.trace else ""
        message = f"{problem.message}{more}{trace}"
        stop(message, problem.code, kind=problem.kind, trace=problem.trace)

    # --- what is not there ---------------------------------------------------------------------

    def _knows(self, name: str) -> bool:
        return self._look(name) is not None

    def _look(self, name: str) -> Any | None:
        try:
            return self._try("GET", f"/api/tools/{quote(name, safe='')}", None)
        except Problem:
            return None

    def _missing(self, name: str) -> str:
        """Why a tool is not there: its server or agent is not, or another name was meant."""
        for server in self.servers():
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
        near = nearest(name, [known for tool in tools for known in (tool["name"], tool["id"])])
        return near or (
            "see: dragoman tools" if tools else "see: dragoman servers, dragoman agents"
        )

    def _wait(
        self, enough: Callable[[], bool], seconds: float = START_SECONDS, agents: bool = True
    ) -> list[str]:
        waiting = Waiting()
        until = time.monotonic() + min(seconds, self._patience)
        starting = self._starting(agents)
        while starting and time.monotonic() < until and not enough():
            waiting.say(f"waiting for {', '.join(starting)} …")
            time.sleep(0.05)
            starting = self._starting(agents)
        waiting.done()
        return starting

    def _starting(self, agents: bool) -> list[str]:
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


def nearest(name: str, known: Iterable[str]) -> str:
    names = list(known)
    lowered = {each.lower(): each for each in names}
    near = difflib.get_close_matches(name.lower(), lowered, n=1, cutoff=0.5)
    near = near or [each for each in lowered if each.endswith((f"_{name.lower()}", f".{name}"))]
    return f'did you mean "{lowered[near[0]]}"?' if near else ""


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
def connected(given: str | None) -> Iterator[HubClient]:
    """A way to the hub that runs, or to one that runs as long as this."""
    place = place_of(given)
    daemon = running(place)
    if daemon is not None:
        yield HubClient(place, daemon.socket)
        return
    with _own(place) as client:
        yield client


@contextlib.contextmanager
def _own(place: str) -> Iterator[HubClient]:
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
        daemon = running(place)
        while daemon is None and thread.is_alive() and time.monotonic() < until:
            time.sleep(0.02)
            daemon = running(place)
        if daemon is None:
            _not_started(failed)
        yield HubClient(place, daemon.socket, own=True)
    finally:
        ended.set()
        thread.join(15)


def _not_started(failed: list[Exception]) -> NoReturn:
    problem = failed[0] if failed else None
    if isinstance(problem, HubError):
        stop(str(problem), code_of(problem.kind))
    why = str(problem or "it did not come up").rstrip(".")
    stop(f"no hub is running and none could be started: {why}", NO_HUB)
