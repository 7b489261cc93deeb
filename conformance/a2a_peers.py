"""Foreign A2A programs: their clients against a hub, and our client and a hub against their
servers.
"""

import contextlib
import json
import re
import time
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from conformance.a2a_bridge import as_tool
from conformance.a2a_hub import a2a_hub
from conformance.paths import HERE, HOMES, HUB, NODE, PYTHON_A2A, SDK02_PYTHON, SDK03_PYTHON
from conformance.peers import Result, slug
from conformance.processes import Command, free_port, reachable, run, started, wait_for

SECONDS = 120.0
ASKED = 6
FOUND_SECONDS = 10.0
"""The exit code of `dragoman a2a send` where the agent asks without a terminal to answer."""
UUID = re.compile(r"[0-9a-f-]{32,36}")


@dataclass(frozen=True)
class Counterpart:
    title: str
    client: Command
    server: Command
    slow: bool = True  # whether its server gives out a task before it is done


def python(program: Path, module: str, title: str) -> Counterpart:
    command: Command = [program, "-W", "ignore", "-m", f"conformance.{module}"]
    slow = module == "a2a_sdk03"  # the others answer a send at the end, whatever is asked
    return Counterpart(title, [*command, "client"], [*command, "server"], slow)


COUNTERPARTS = {
    "sdk03": python(SDK03_PYTHON, "a2a_sdk03", "a2a-sdk 0.3"),
    "sdk02": python(SDK02_PYTHON, "a2a_sdk02", "a2a-sdk 0.2"),
    "python-a2a": python(PYTHON_A2A, "a2a_python_a2a", "python-a2a"),
    "js": Counterpart(
        "@a2a-js/sdk",
        [NODE, HERE / "a2a_js_client.mjs"],
        [NODE, HERE / "a2a_js_server.mjs"],
    ),
}


def run_counterparts(only: str) -> list[Result]:
    chosen = {
        name: each for name, each in COUNTERPARTS.items() if re.search(only, f"{name} {each.title}")
    }
    found = clients(chosen)
    for name in chosen:
        found += server(name)
    return found


def clients(chosen: dict[str, Counterpart]) -> list[Result]:
    found = []
    try:
        with a2a_hub("peers", "merged") as hub:
            for name, each in chosen.items():
                found += lines(
                    f"{each.title} as client", f"a2a-client-{name}", each.client, hub.base
                )
    except RuntimeError as problem:
        found.append(Result("a hub for their clients", str(problem)))
    return found


def lines(title: str, label: str, command: Command, url: str) -> list[Result]:
    code, out, errors = run(label, [*command, url], SECONDS)
    found = []
    for line in out.splitlines():
        with contextlib.suppress(ValueError):
            said = json.loads(line)
            found.append(Result(f"{title}: {said['name']}", said["problem"]))
    if code or not found:
        last = errors.strip().splitlines()[-1:] or ["it said nothing"]
        found.append(Result(title, f"exit code {code}: {last[0][:300]}"))
    return found


@contextlib.contextmanager
def serving(name: str) -> Iterator[str]:
    port = free_port()
    command: Command = [*COUNTERPARTS[name].server, str(port)]
    with started(f"a2a-server-{name}", command) as process:
        wait_for(process, lambda: reachable(port))
        yield f"http://127.0.0.1:{port}"


def server(name: str) -> list[Result]:
    title = f"{COUNTERPARTS[name].title} as server"
    try:
        with serving(name) as url:
            return [*by_hand(title, name, url), *as_external(title, name, url)]
    except RuntimeError as problem:
        return [Result(title, str(problem))]


class Hand:
    """`dragoman a2a` at one server, without a hub."""

    def __init__(self, title: str, name: str, url: str) -> None:
        self.found: list[Result] = []
        self._title = title
        self._name = name
        self._url = url
        self._home = HOMES / f"a2a-hand-{name}"
        self._home.mkdir()

    def do(self, verb: str, *arguments: str, wanted: str, codes: tuple[int, ...] = (0,)) -> str:
        """What it printed; `wanted` must be in it."""
        shown = [one for one in arguments if not UUID.fullmatch(one)]
        label = f"{self._title}: dragoman a2a {' '.join([verb, *shown])}"
        command: Command = [HUB, "a2a", verb, self._url, *arguments, "--home", self._home]
        code, out, errors = run(f"{slug(self._name)}-{len(self.found)}", command, SECONDS)
        problem = None
        if code not in codes:
            problem = f"exit code {code}: {(errors or out).strip()[-300:]}"
        elif wanted not in out:
            problem = f"{wanted!r} is not in {out.strip()[:200]!r}"
        self.found.append(Result(label, problem))
        return out


def by_hand(title: str, name: str, url: str) -> list[Result]:
    hand = Hand(title, name, url)
    hand.do("discover", wanted="cho")
    hand.do("send", "hello", wanted="echo: hello")
    hand.do("send", "hello", "--stream", wanted="echo: hello")
    made = hand.do("send", "hello", "--json", wanted="TASK_STATE_COMPLETED")
    hand.do("task", task_id(made), wanted="echo: hello")
    asked = hand.do("send", "ask", "--json", wanted="TASK_STATE_INPUT_REQUIRED", codes=(0, ASKED))
    hand.do("send", "more", "--task", task_id(asked), wanted="echo: more")
    if COUNTERPARTS[name].slow:
        slow = hand.do("send", "slow", "--no-wait", "--json", wanted="TASK_STATE_")
        hand.do("cancel", task_id(slow), "--json", wanted="TASK_STATE_CANCELED")
    return hand.found


def task_id(printed: str) -> str:
    """Of the task in what was printed; an unknown id if it is not a task."""
    try:
        found = json.loads(printed)
        return str(found.get("task", found)["id"])
    except (ValueError, LookupError, AttributeError, TypeError):
        return "no-task"


def as_external(title: str, name: str, url: str) -> list[Result]:
    """Registered with a hub, and called through the hub's own A2A server, in 1.0."""
    label = f"{title}: an external agent of a hub"
    extra = (
        f"\n[[a2a.external_agents]]\nname = {json.dumps(name)}\nurl = {json.dumps(url)}\n"
        "allow_private = true\n"
    )
    try:
        with a2a_hub(f"external-{name}", "merged", extra=extra, grpc=False) as hub:
            body = {
                "jsonrpc": "2.0",
                "id": 1,
                "method": "SendMessage",
                "params": {
                    "message": {"messageId": "1", "role": "ROLE_USER", "parts": [{"text": "hello"}]}
                },
            }
            request = urllib.request.Request(
                f"{hub.url}/{name}",
                json.dumps(body).encode(),
                {"Content-Type": "application/json", "A2A-Version": "1.0"},
            )
            end = time.monotonic() + FOUND_SECONDS
            said = "UNAVAILABLE"
            while "UNAVAILABLE" in said and time.monotonic() < end:  # it is being looked for
                with urllib.request.urlopen(request, timeout=30) as answer:
                    said = answer.read().decode()
                time.sleep(0.05)
            good = "echo: hello" in said and "TASK_STATE_COMPLETED" in said
            found = [Result(label, None if good else f"came {said[:300]}")]
            return [*found, *as_tool(title, name, url, hub.base, COUNTERPARTS[name].slow)]
    except (RuntimeError, OSError) as problem:
        return [Result(label, f"{type(problem).__name__}: {problem}"[:300])]
