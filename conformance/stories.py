"""The Python SDK's example stories: each client asserts what its own server does, with the hub
between the two. A story that passes directly has to pass through the hub, or is named below."""

import contextlib
import re
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from conformance.grounds import child, hub, remote
from conformance.lists import Comparison
from conformance.places import EXAMPLES, PYTHON
from conformance.processes import Command, free_port, reachable, run, started, wait_for

SECONDS = 60.0
STORIES = EXAMPLES / "stories"
LEFT_OUT = {
    "bearer_auth": "authorization is the hub's own",
    "oauth": "authorization is the hub's own",
    "oauth_client_credentials": "authorization is the hub's own",
    "identity_assertion": "authorization is the hub's own",
    "serve_one": "runs inside one process",
}
INTENDED = {
    "pagination": "The hub merges the pages of a server; its own pages are larger.",
    "reconnect": "serverInfo is the hub's.",
    "dual_era": "serverInfo is the hub's.",
    "custom_methods": "Methods that no specification names are not carried.",
}
"""Stories that do not pass through the hub, and why that is so by decision."""


@dataclass(frozen=True)
class Leg:
    story: str
    server: str
    transport: str
    eras: tuple[str, ...]
    path: str

    @property
    def name(self) -> str:
        return f"{self.story}, {self.server} over {self.transport}"


def list_legs() -> Iterator[Leg]:
    manifest = tomllib.loads((STORIES / "manifest.toml").read_text(encoding="utf-8"))
    for story, own in manifest["story"].items():
        if story in LEFT_OUT:
            continue
        settings: dict[str, Any] = manifest["defaults"] | own
        eras = ("modern", "legacy") if settings["era"] == "dual" else (settings["era"],)
        for server in ("server", "server_lowlevel"):
            if not (STORIES / story / f"{server}.py").exists():
                continue
            yield Leg(story, server, "http", eras, settings["mcp_path"])
            if settings["server_export"] == "factory" and not settings["needs_http"]:
                yield Leg(story, server, "stdio", eras, settings["mcp_path"])


@contextlib.contextmanager
def serve(leg: Leg, label: str) -> Iterator[tuple[str, str | None]]:
    """The transport by which a hub reaches the story's server; its URL where it has one."""
    module = f"stories.{leg.story}.{leg.server}"
    if leg.transport == "stdio":
        yield child([PYTHON, "-m", module], EXAMPLES), None
        return
    port = free_port()
    command: Command = [PYTHON, "-m", module, "--port", str(port)]
    if leg.path == "/mcp":
        command.insert(3, "--http")
    with started(f"story-{label}", command, {"PYTHONPATH": str(EXAMPLES)}) as process:
        wait_for(process, lambda: reachable(port))
        url = f"http://127.0.0.1:{port}{leg.path}"
        yield remote(url), url


def tell(leg: Leg, label: str, url: str, era: str) -> str | None:
    """Runs the story's client at a URL; what went wrong, or None."""
    command: Command = [PYTHON, "-m", f"stories.{leg.story}.client", "--http", url]
    if era == "legacy":
        command.append("--legacy")
    extra = {"PYTHONPATH": str(EXAMPLES)}
    code, out, errors = run(f"story-{label}-{era}", command, SECONDS, extra)
    if not code:
        return None
    lines = [line.strip(" |+-") for line in errors.splitlines()]
    said = [line for line in lines if re.match(r"[\w.]*(Error|Exception|assert)\b", line)]
    return f"exit code {code}: {(said or lines or [out])[-1][:300]}"


def tell_through_hub(leg: Leg, eras: tuple[str, ...], attempt: int) -> Iterator[Comparison]:
    """One server and one hub for all these eras."""
    label = f"{re.sub(r'[^a-z0-9]+', '-', leg.name.lower())}-{attempt}"
    with contextlib.ExitStack() as stack:
        try:
            transport, _ = stack.enter_context(serve(leg, label))
            url, _ = stack.enter_context(hub(f"story-{label}", transport))
        except RuntimeError as problem:
            for era in eras:
                yield Comparison(f"{leg.name}, {era}", str(problem), INTENDED.get(leg.story))
            return
        for era in eras:
            problem_through = tell(leg, label, url, era)
            reason = INTENDED.get(leg.story) if problem_through else None
            yield Comparison(f"{leg.name}, {era}", problem_through, reason)


def run_stories(only: str) -> list[Comparison]:
    found: list[Comparison] = []
    for leg in list_legs():
        if not re.search(only, leg.name):
            continue
        for era, told in zip(leg.eras, tell_through_hub(leg, leg.eras, 1), strict=True):
            if told.problem and not told.reason and len(leg.eras) > 1:
                # A story may count what its server has seen: it gets one of its own.
                (told,) = tell_through_hub(leg, (era,), 2)
            found.append(told)
    return found
