"""The example stories of the SDKs: each client asserts what its own server does, with the hub
between the two. A story that passes directly has to pass through the hub, or is named below."""

import contextlib
import json
import re
import shutil
import subprocess
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from conformance.lists import Comparison
from conformance.official import SOURCES, is_there, read_git
from conformance.paths import EXAMPLES, NODE, PYTHON
from conformance.processes import Command, free_port, reachable, run, started, wait_for
from conformance.targets import child, hub, remote

SECONDS = 60.0
PYTHON_SDK, TYPESCRIPT_SDK = "Python", "TypeScript"
STORIES = EXAMPLES / "stories"
TYPESCRIPT_STORIES = SOURCES / "examples"
OWN_AUTHORIZATION = "authorization is the hub's own"
LEFT_OUT = {
    "bearer_auth": OWN_AUTHORIZATION,
    "oauth": OWN_AUTHORIZATION,
    "oauth_client_credentials": OWN_AUTHORIZATION,
    "identity_assertion": OWN_AUTHORIZATION,
    "serve_one": "runs inside one process",
    "bearer-auth": OWN_AUTHORIZATION,
    "bearer-auth-web": OWN_AUTHORIZATION,
    "oauth-client-credentials": OWN_AUTHORIZATION,
    "scoped-tools": OWN_AUTHORIZATION,
    "sse-polling": "its store needs a native module",
    "cli-client": "has no server of its own",
}


@dataclass(frozen=True)
class Intended:
    """A difference that is a decision."""

    legs: str  # a regular expression over the name of a leg
    problem: str  # one over what goes wrong there: anything else is not intended
    reason: str


INTENDED = (
    Intended(
        r"^Python: (dual_era|reconnect), |^TypeScript: gateway, ",
        r"assert info\.name ==|check\.deepEqual\(bootstrap\.getServerVersion\(\)",
        "`serverInfo` is the hub's: a client is connected to the hub, whatever is behind it.",
    ),
    Intended(
        r"^Python: (apps|extensions), ",
        r"assert client\.server_capabilities\.extensions ==",
        "The hub has the extension for tasks, which it declares beside those of the servers.",
    ),
    Intended(
        r"^TypeScript: extension-capabilities, ",
        r"check\.ok\('com\.example/feature-flags' in extensions\)",
        "A server that offers a client nothing is not shown to it, nor are its extensions.",
    ),
    Intended(
        r"^(Python: custom_methods|TypeScript: custom-methods), ",
        r'unknown method \\?"acme/search\\?"',
        "Methods that no specification names are not carried: no policy could judge them.",
    ),
    Intended(
        r"^Python: mrtr, ",
        r'assert e\.message == "Invalid or expired requestState"',
        "The hub seals the state and refuses a forged one itself, in its own words.",
    ),
    Intended(
        r"^TypeScript: caching, ",
        r"check\.equal\(tools\.ttlMs, 30_000\)",
        "The hub keeps lists fresh and tells of changes; no client is told that it may keep one.",
    ),
    Intended(
        r"^TypeScript: (parallel-calls|streaming), .*, modern$",
        r"a\.notifications\.length >= 3|check\.ok\(logCount >= 4",
        "The server logs to a client that has not asked for it, which 2026-07-28 forbids.",
    ),
    Intended(
        r"^TypeScript: parallel-calls, server over stdio, legacy$",
        r"a\.notifications\.length >= 3",
        "Two clients share one child, and over stdio a line of its log does not say whose call it "
        "belongs to.",
    ),
)
"""What differs through the hub by decision 62."""


@dataclass(frozen=True)
class Leg:
    sdk: str
    story: str
    server: str
    transport: str
    eras: tuple[str, ...]
    path: str

    @property
    def name(self) -> str:
        return f"{self.sdk}: {self.story}, {self.server} over {self.transport}"

    @property
    def folder(self) -> Path:
        return EXAMPLES if self.sdk == PYTHON_SDK else TYPESCRIPT_STORIES / self.story

    def command(self, role: str) -> Command:
        if self.sdk == PYTHON_SDK:
            return [PYTHON, "-m", f"stories.{self.story}.{role}"]
        return [NODE, "--import", "tsx", self.folder / f"{role}.ts"]


def list_typescript_legs() -> Iterator[Leg]:
    unpack_examples()
    for package in sorted(TYPESCRIPT_STORIES.glob("*/package.json")):
        folder, settings = package.parent, json.loads(package.read_text(encoding="utf-8"))
        own: dict[str, Any] = settings.get("example", {})
        is_story = (folder / "client.ts").exists() and (folder / "server.ts").exists()
        if not is_story or folder.name in LEFT_OUT or "excluded" in own:
            continue
        era = own.get("era", "dual")
        eras = ("modern", "legacy") if era == "dual" else (era,)
        for transport in own.get("transports", ["http", "stdio"]):
            path = own.get("path", "/mcp")
            yield Leg(TYPESCRIPT_SDK, folder.name, "server", transport, eras, path)


def unpack_examples() -> None:
    """Every story imports what they share as a package."""
    shutil.rmtree(TYPESCRIPT_STORIES, ignore_errors=True)
    SOURCES.mkdir(parents=True, exist_ok=True)
    packed = read_git("typescript", "archive", "HEAD", "examples")
    subprocess.run(["tar", "x", "-C", SOURCES], input=packed, check=True)
    link = TYPESCRIPT_STORIES / "node_modules" / "@mcp-examples" / "shared"
    link.parent.mkdir(parents=True)
    link.symlink_to(TYPESCRIPT_STORIES / "shared")


def list_python_legs() -> Iterator[Leg]:
    manifest = tomllib.loads((STORIES / "manifest.toml").read_text(encoding="utf-8"))
    for story, own in manifest["story"].items():
        if story in LEFT_OUT:
            continue
        settings: dict[str, Any] = manifest["defaults"] | own
        eras = ("modern", "legacy") if settings["era"] == "dual" else (settings["era"],)
        for server in ("server", "server_lowlevel"):
            if not (STORIES / story / f"{server}.py").exists():
                continue
            yield Leg(PYTHON_SDK, story, server, "http", eras, settings["mcp_path"])
            if settings["server_export"] == "factory" and not settings["needs_http"]:
                yield Leg(PYTHON_SDK, story, server, "stdio", eras, settings["mcp_path"])


@contextlib.contextmanager
def serve(leg: Leg, label: str) -> Iterator[tuple[str, str | None]]:
    """The transport by which a hub reaches the story's server; its URL where it has one."""
    command = leg.command(leg.server)
    if leg.transport == "stdio":
        yield child(command, leg.folder), None
        return
    port = free_port()
    if leg.sdk == TYPESCRIPT_SDK or leg.path == "/mcp":
        command.append("--http")
    command += ["--port", str(port)]
    with started(f"story-{label}", command, {"PYTHONPATH": str(EXAMPLES)}) as process:
        wait_for(process, lambda: reachable(port))
        url = f"http://127.0.0.1:{port}{leg.path}"
        yield remote(url), url


def run_client(leg: Leg, label: str, url: str, era: str) -> str | None:
    """Runs the story's client at a URL; what went wrong, or None."""
    command: Command = [*leg.command("client"), "--http", url]
    if era == "legacy":
        command.append("--legacy")
    extra = {"PYTHONPATH": str(EXAMPLES)}
    code, out, errors = run(f"story-{label}-{era}", command, SECONDS, extra)
    if not code:
        return None
    lines = [line.strip(" |+-") for line in errors.splitlines()]
    said = [line for line in lines if re.match(r"[\w.]*(Error|Exception)\b", line)]
    problem = f"exit code {code}: {(said or lines or [out])[-1][:300]}"
    where = find_line(leg, errors)
    return f"{problem}, at `{where}`" if where else problem


def find_line(leg: Leg, errors: str) -> str:
    """The line of the client at which it failed."""
    if leg.sdk == PYTHON_SDK:
        file, pattern = STORIES / leg.story / "client.py", r'/client\.py", line (\d+)'
    else:
        file, pattern = leg.folder / "client.ts", r"/client\.ts:(\d+)"
    found = re.findall(re.escape(leg.story) + pattern, errors)
    if not found:
        return ""
    number = int(found[-1 if leg.sdk == PYTHON_SDK else 0])  # the innermost one
    return file.read_text(encoding="utf-8").splitlines()[number - 1].strip()[:200]


def reason_for(name: str, problem: str) -> str | None:
    for one in INTENDED:
        if re.search(one.legs, name) and re.search(one.problem, problem):
            return one.reason
    return None


def list_legs() -> list[Leg]:
    typescript = list(list_typescript_legs()) if is_there("typescript") else []
    return [*list_python_legs(), *typescript]


def run_leg(leg: Leg, eras: tuple[str, ...], attempt: str) -> Iterator[Comparison]:
    """One server and one hub for all these eras."""
    label = f"{re.sub(r'[^a-z0-9]+', '-', leg.name.lower())}-{attempt}"
    with contextlib.ExitStack() as stack:
        try:
            transport, _ = stack.enter_context(serve(leg, label))
            url, _ = stack.enter_context(hub(f"story-{label}", transport))
        except RuntimeError as problem:
            for era in eras:
                yield Comparison(f"{leg.name}, {era}", str(problem))
            return
        for era in eras:
            name, found = f"{leg.name}, {era}", run_client(leg, label, url, era)
            yield Comparison(name, found, reason_for(name, found) if found else None)


def run_stories(only: str) -> list[Comparison]:
    found: list[Comparison] = []
    for leg in list_legs():
        if not re.search(only, leg.name):
            continue
        for era, compared in zip(leg.eras, run_leg(leg, leg.eras, "first"), strict=True):
            if compared.problem and not compared.reason and len(leg.eras) > 1:
                # A story may count what its server has seen: it gets one of its own.
                (compared,) = run_leg(leg, (era,), f"again-{era}")
            found.append(compared)
            print(f"  {compared.name}: {compared.problem or 'passes'}"[:200], flush=True)
    return found
