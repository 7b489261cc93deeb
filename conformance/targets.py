"""Targets of the suites: the fixture itself, or a hub in front of it, in several forms."""

import contextlib
import json
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from conformance.hubs import count_hubs, run_hubs
from conformance.official import OFFICIAL, run_official
from conformance.paths import HOMES, PYTHON, ROOT
from conformance.processes import Command, started

FIXTURE: Command = [PYTHON, "-m", "conformance.fixture"]
TASKS: Command = [PYTHON, "-m", "conformance.fixture.tasks"]
SERVER = "fixture"
OWN = "own"


@dataclass(frozen=True)
class SuiteTarget:
    title: str
    transport: str = "http"  # of the fixture
    era: str = "both"
    through_hub: bool = True
    prefixed: bool = False
    fixture: str = OWN  # or one of `official.OFFICIAL`


DIRECT = "direct"
TARGETS = {
    DIRECT: SuiteTarget("the fixture itself", through_hub=False),
    "hub": SuiteTarget("through the hub, fixture over HTTP"),
    "prefixed": SuiteTarget("through the hub, names prefixed, fixture over HTTP", prefixed=True),
    "stdio": SuiteTarget("through the hub, fixture over stdio", "stdio"),
    "legacy": SuiteTarget("through the hub, handshake-only fixture over HTTP", "http", "legacy"),
    "legacy-stdio": SuiteTarget(
        "through the hub, handshake-only fixture over stdio", "stdio", "legacy"
    ),
    "sse": SuiteTarget("through the hub, fixture over HTTP+SSE", "sse", "legacy"),
    **{
        name: SuiteTarget(one.title, through_hub=False, fixture=name)
        for name, one in OFFICIAL.items()
    },
    **{
        f"{name}-hub": SuiteTarget(f"{one.title} through the hub", fixture=name)
        for name, one in OFFICIAL.items()
    },
}


def remote(url: str, kind: str = "http") -> str:
    return f'type = "{kind}"\nurl = "{url}"\nallow_private = true\n'


def child(command: Command, folder: Path = ROOT) -> str:
    program, *arguments = (str(part) for part in command)
    return (
        f'type = "stdio"\ncommand = "{program}"\nargs = {json.dumps(arguments)}\ncwd = "{folder}"\n'
    )


@contextlib.contextmanager
def hub(
    name: str, transport: str, *, prefix: str | None = "", settings: str = "", key: str = ""
) -> Iterator[tuple[str, Path]]:
    """A hub with one server, connected, or several: where they listen, and the home of the first.
    It has the settings of a first run, but for the port and for the names of the server, which the
    suite knows.
    `settings` are added, and `key` is their api_key."""
    home = HOMES / name
    home.mkdir()
    shown = "" if prefix is None else f"prefix = {json.dumps(prefix)}\n"
    if count_hubs() > 1 and 'type = "stdio"' in transport:
        shown += 'placement = "one"\n'  # the fixture has state that all clients share
    (home / "config.toml").write_text(
        f'{settings}[server]\nport = 0\n\n[mcp]\nstdio_expose = ["*"]\n\n'
        f'[[mcp_servers]]\nname = "{SERVER}"\n{shown}\n'
        f"[mcp_servers.transport]\n{transport}",
        encoding="utf-8",
    )
    with run_hubs(name, home, key) as hubs:

        def connected(base: str) -> str:
            headers = {"authorization": f"Bearer {key}"} if key else {}
            asked = urllib.request.Request(f"{base}/api/mcp/servers", headers=headers)
            with urllib.request.urlopen(asked, timeout=5) as answer:
                servers = json.load(answer)
            for server in servers["connected"]:
                if server["name"] == SERVER and server["connected"]:
                    return base
            raise ValueError(json.dumps(servers["connected"])[:500])

        hubs.wait_each(connected)
        yield f"{hubs.base}/mcp", home


@contextlib.contextmanager
def fixture(name: str, command: Command) -> Iterator[str]:
    with started(f"fixture-{name}", command) as process:
        yield process.first_line()


@contextlib.contextmanager
def renamed(name: str, url: str) -> Iterator[str]:
    """A proxy in front of the prefixed hub, where the suite finds the names it knows."""
    command: Command = [PYTHON, "-m", "conformance.renaming_proxy", url, f"mcp_{SERVER}_"]
    with started(f"renaming-{name}", command) as process:
        yield process.first_line()


@contextlib.contextmanager
def standing(name: str, command: Command = FIXTURE) -> Iterator[str]:
    """The target's URL, while everything behind it runs."""
    target = TARGETS[name]
    label = f"{name}-tasks" if command == TASKS else name
    full = command if command == TASKS else [*command, target.transport, "--era", target.era]
    with contextlib.ExitStack() as stack:
        if target.transport == "stdio":
            transport = child(full)
        else:
            if target.fixture == OWN:
                url = stack.enter_context(fixture(label, full))
            else:
                url = stack.enter_context(run_official(target.fixture, label))
            transport = remote(url, "sse" if target.transport == "sse" else "http")
        if not target.through_hub:
            yield url
            return
        prefix = None if target.prefixed else ""
        url, _ = stack.enter_context(hub(label, transport, prefix=prefix))
        yield stack.enter_context(renamed(label, url)) if target.prefixed else url
