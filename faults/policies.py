"""The policy files change under calls: thousands of policies, broken files, empty ones, none.

A broken file changes nothing. No call is permitted without a policy that permits it, and no call
that every set permits is refused.
"""

from __future__ import annotations

import random
import statistics
import threading
import time
from pathlib import Path
from typing import Any

from tests.live.conftest import RunningHub
from tests.peers import wire

from faults.fixtures import echo_server
from faults.harness import Background, Outcome, fresh_hub, until

BASE = """
@id("owner") permit (principal in Hub::Role::"owner", action, resource);
@id("echo") permit (principal, action in [Hub::Action::"any_call", Hub::Action::"list"],
  resource == Hub::Tool::"r.echo");
"""
BROKEN = (
    "permit (principal, action", '@id("a") permit (principal, action, resource) when { 1 + };',
    '@id("x") permit (principal, action == Hub::Action::"no_such", resource);', "\0\xff",
    '@id("echo") permit (principal, action, resource);',
)  # fmt: skip
FILES = 50
RELOAD_SECONDS = 60.0


class Callers:
    """Calls a permitted and an unpermitted tool, again and again, on a thread each."""

    def __init__(self, hub: RunningHub, key: str) -> None:
        self._hub = hub
        self._headers = {"Authorization": f"Bearer {key}"}
        self.seconds: list[float] = []
        self.refused: list[str] = []
        self.permitted: list[str] = []
        self.denied = 0
        self.judges = threading.Event()
        """Whether the policies in force permit the first tool."""
        self.judges.set()

    def call(self, tool: str) -> wire.Answer:
        body = {"arguments": {"text": "x"}}
        return wire.post(f"{self._hub.url}/api/tools/{tool}/call", body, self._headers, 30)

    def call_permitted(self) -> None:
        begun = time.monotonic()
        answer = self.call("r.echo")
        if self.judges.is_set():
            self.seconds.append(time.monotonic() - begun)
            if answer.status != 200:
                self.refused.append(f"{answer.status} {answer.body[:200]!r}")

    def call_unpermitted(self) -> None:
        answer = self.call("r.pid")
        if answer.status in (403, 404):
            self.denied += 1
        else:
            self.permitted.append(f"{answer.status} {answer.body[:200]!r}")


def write_many(folder: Path, count: int, mark: int) -> None:
    """Policies about tools that do not exist, which every decision has to pass by."""
    for number in range(FILES):
        lines = [
            f'@id("p{mark}-{number}-{each}") permit (principal, action, '
            f'resource == Hub::Tool::"no.tool{number}x{each}");'
            for each in range(count // FILES)
        ]
        (folder / f"many{number}.cedar").write_text("\n".join(lines), encoding="utf-8")


def wait_for_set(hub: RunningHub, outcome: Outcome, what: str) -> str:
    """The hash of the set in the folder, once it is in force: a part of the files may be first."""
    checked: dict[str, Any] = {}

    def is_checked() -> bool:  # a busy hub may refuse at first
        checked.update(hub.post("/api/policies/validate", {}))
        return "snapshot" in checked

    until(is_checked, RELOAD_SECONDS)
    wanted = str(checked["snapshot"])

    def is_in_force() -> bool:
        return bool(hub.api("/api/policies")["snapshot"] == wanted)

    found = until(is_in_force, RELOAD_SECONDS)
    outcome.check(found, f"{what} was not applied within {RELOAD_SECONDS:.0f} s")
    return wanted


def wait_for_problem(hub: RunningHub, file: str, outcome: Outcome, snapshot: str) -> None:
    def found() -> bool:
        return file in str(hub.api("/api/policies")["problem"])

    outcome.check(until(found, RELOAD_SECONDS), f"no problem of {file} was reported")
    kept = hub.api("/api/policies")["snapshot"] == snapshot
    outcome.check(kept, "a broken file changed the set in force")


def change_policies(size: int, seed: int, outcome: Outcome) -> None:
    """`size` is the number of policies; the hub takes 5,000."""
    chance = random.Random(seed)
    config = 'api_key = "the-key-of-the-owner"\n'
    with fresh_hub(outcome, [echo_server()], config) as hub:
        hub.wait_connected("r")
        folder = hub.home / "policies"
        folder.mkdir(mode=0o700, exist_ok=True)
        key = hub.command("keys", "create", "ann").stdout.strip()
        (folder / "base.cedar").write_text(BASE, encoding="utf-8")
        wait_for_set(hub, outcome, "the first file")
        callers = Callers(hub, key)
        until(lambda: callers.call("r.echo").status == 200)
        with Background(callers.call_permitted, 0.002), Background(callers.call_unpermitted, 0.002):
            until(lambda: len(callers.seconds) >= 200, 30)
            usual = statistics.median(callers.seconds)
            begun = time.monotonic()
            write_many(folder, size, 0)
            snapshot = wait_for_set(hub, outcome, f"a set of {size} policies")
            outcome.figures["policies"] = size
            outcome.figures["in force after, s"] = round(time.monotonic() - begun, 1)
            for number, text in enumerate(chance.sample(BROKEN, max(1, min(size // 500, 5)))):
                (folder / "broken.cedar").write_text(text, encoding="latin-1")
                wait_for_problem(hub, "broken.cedar", outcome, snapshot)
                (folder / "broken.cedar").write_text("", encoding="utf-8")  # an empty one is good
                until(lambda: not hub.api("/api/policies")["problem"], RELOAD_SECONDS)
                write_many(folder, min(size, 500), number + 1)
                snapshot = wait_for_set(hub, outcome, "a changed set")
                outcome.count("broken files")
            callers.judges.clear()
            for file in folder.glob("*.cedar"):
                file.unlink()
            gone = until(lambda: callers.call("r.echo").status in (403, 404), RELOAD_SECONDS)
            outcome.check(gone, "without policies a call is permitted")
            (folder / "base.cedar").write_text(BASE, encoding="utf-8")
            back = until(lambda: callers.call("r.echo").status == 200, RELOAD_SECONDS)
            outcome.check(back, "the policies are not applied again")
        figures = sorted(callers.seconds)
        outcome.figures["permitted calls"] = len(figures)
        outcome.figures["denied calls"] = callers.denied
        outcome.figures["median before, ms"] = round(1000 * usual, 1)
        outcome.figures["median, ms"] = round(1000 * statistics.median(figures), 1)
        outcome.figures["99th percentile, ms"] = round(1000 * figures[len(figures) * 99 // 100], 1)
        outcome.check(not callers.refused, f"permitted calls were refused: {callers.refused[:3]}")
        outcome.check(not callers.permitted, f"permitted by no policy: {callers.permitted[:3]}")
        outcome.check(callers.denied > 0, "the unpermitted tool was not called")
