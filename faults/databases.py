"""Databases that are locked by another program, damaged, missing, or deleted while the hub runs.

A hub without one of its stores must not be a hub that lets everybody in: it refuses to start and
names the file, or what the store protected stays closed.
"""

from __future__ import annotations

import json
import os
import shutil
import sqlite3
import threading
import time
from collections import Counter
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

from tests.live.conftest import RunningHub
from tests.peers import wire

from faults.agents import Agents, serving_agents
from faults.fixtures import EVERYTHING, echo_server, write_agents
from faults.harness import (
    Outcome,
    run_command,
    running_hub,
    start_fails,
    temporary_home,
    until,
    write_config,
)

STORES = ("hub.db", "pins.db", "audit.db", "tasks.db", "registry.db", "dispatches.db")
LOCK_SECONDS = 1.0
SLOW_SECONDS = 10.0
V10 = {"A2A-Version": "1.0"}


class Home:
    """A home with a key, a registered agent whose changed skill is held, and some tasks."""

    def __init__(self, path: Path, key: str) -> None:
        self.path = path
        self.headers = {"Authorization": f"Bearer {key}"}

    def post(self, hub: RunningHub, path: str, body: Any, **more: str) -> wire.Answer:
        return wire.post(hub.url + path, body, {**self.headers, **more}, timeout=30)

    def call(self, hub: RunningHub, tool: str = "r.echo") -> int:
        return self.post(hub, f"/api/tools/{tool}/call", {"arguments": {"text": "x"}}).status

    def send(self, hub: RunningHub) -> str:
        """The id of a new task; nothing where it was refused."""
        message = {"messageId": "m", "role": "ROLE_USER", "parts": [{"text": "x"}]}
        body = wire.request(1, "SendMessage", {"message": message})
        answer = self.post(hub, "/a2a/quick", body, **V10).json()
        return str(answer["result"]["task"]["id"]) if "result" in answer else ""

    def has_task(self, hub: RunningHub, id: str) -> bool:
        body = wire.request(1, "GetTask", {"id": id})
        return "result" in self.post(hub, "/a2a", body, **V10).json()

    def register(self, hub: RunningHub, agents: Agents, name: str) -> int:
        body = {"url": f"{agents.url}/good/{name}", "name": name}
        return self.post(hub, "/api/a2a/agents", body).status

    def is_closed(self, hub: RunningHub) -> str:
        """What is open that must not be; nothing where all is well."""
        if (status := wire.get(hub.url + "/api/tools").status) not in (401, 503):
            return f"without a key: {status}"
        if self.call(hub, "changing.do") == 200:
            return "a changed skill that was held is offered"
        return ""

    def copy(self, path: Path) -> Home:
        shutil.copytree(self.path, path, ignore=shutil.ignore_patterns("run", "servers"))
        made = Home(path, "")
        made.headers = self.headers
        return made


def build_home(path: Path, agents: Agents, outcome: Outcome) -> Home:
    entries = write_agents(path, "quick")
    write_config(path, [echo_server()], EVERYTHING + entries)
    made = run_command(path, "keys", "create", "k", "--role", "owner", "--json")
    home = Home(path, json.loads(made.stdout)["key"])
    with running_hub(outcome, path) as hub:
        hub.headers.update(home.headers)
        hub.wait_connected("r")
        outcome.check(home.register(hub, agents, "changing") in (200, 201), "no agent registered")
        outcome.check(home.call(hub, "changing.do") == 200, "a skill does not work")
        agents.description = "Does something else."
        home.post(hub, "/api/a2a/agents/changing/refetch", {})
        held = until(lambda: home.call(hub, "changing.do") != 200)
        outcome.check(held, "a changed skill was not held")
        for _ in range(10):
            outcome.check(home.call(hub) == 200 and bool(home.send(hub)), "the hub does not work")
    return home


# --- damaged and missing at the start


def truncate(file: Path) -> None:
    file.write_bytes(b"")


def cut(file: Path) -> None:
    os.truncate(file, file.stat().st_size // 2)


def spoil_header(file: Path) -> None:
    with file.open("r+b") as opened:
        opened.write(b"\xa5" * 64)


def spoil_middle(file: Path) -> None:
    size = file.stat().st_size
    with file.open("r+b") as opened:
        for at in range(4096, size, 4096):
            opened.seek(at)
            opened.write(b"\xa5" * min(1000, size - at))


def replace_with_directory(file: Path) -> None:
    file.unlink()
    file.mkdir()


DAMAGES: dict[str, Callable[[Path], None]] = {
    "missing": Path.unlink,
    "of 0 bytes": truncate,
    "damaged in the middle": spoil_middle,
    "cut in half": cut,
    "with a damaged header": spoil_header,
    "a directory": replace_with_directory,
}


def damage_stores(most: int, seed: int, outcome: Outcome) -> None:
    """Starts the hub on a home of which one store is damaged; at most so many cases."""
    cases = [(store, kind) for kind in DAMAGES for store in STORES]
    with temporary_home() as place, serving_agents() as agents:
        template = build_home(place / "t", agents, outcome)
        for number, (store, kind) in enumerate(cases[:most]):
            home = template.copy(place / f"c{number}")
            for extra in ("-wal", "-shm"):
                (home.path / f"{store}{extra}").unlink(missing_ok=True)
            DAMAGES[kind](home.path / store)
            judge_start(home, store, f"{store} {kind}", outcome)
            shutil.rmtree(home.path)


def judge_start(home: Home, store: str, case: str, outcome: Outcome) -> None:
    failed = start_fails(home.path)
    if failed is not None:
        outcome.count("starts refused")
        said = failed.stderr[-600:]
        outcome.check(failed.returncode not in (0, 999), f"{case}: the start hangs or ends with 0")
        outcome.check(store in said, f"{case}: the message does not name it: {said}")
        outcome.check("Traceback" not in said, f"{case}: {said}")
        return
    outcome.count("starts")
    with running_hub(outcome, home.path, ends_well=False) as hub:
        hub.headers.update(home.headers)
        problem = until(lambda: home.is_closed(hub), 0.5)
        outcome.check(not problem, f"{case}: the hub started, {problem}")
        outcome.check(store == "dispatches.db", f"{case}: the hub started without it")


# --- locked, deleted and replaced while the hub runs


def lock_stores(most: int, seed: int, outcome: Outcome) -> None:
    """Another program holds one store after the other; everybody else goes on."""
    with temporary_home() as place, serving_agents() as agents:
        home = build_home(place / "h", agents, outcome)
        with running_hub(outcome, home.path) as hub:
            hub.headers.update(home.headers)
            hub.wait_connected("r")
            for store in STORES[:most]:
                lock_store(hub, home, agents, store, outcome)


def lock_store(hub: RunningHub, home: Home, agents: Agents, store: str, outcome: Outcome) -> None:
    seen: Counter[str] = Counter()
    slowest = 0.0
    over = threading.Event()

    def read() -> None:
        nonlocal slowest
        while not over.is_set():
            for path in ("/healthz", "/api/tools"):
                begun = time.monotonic()
                status = wire.get(hub.url + path, home.headers, timeout=30).status
                slowest = max(slowest, time.monotonic() - begun)
                outcome.check(status == 200, f"{store} locked: {path} answers {status}")
                seen["reads"] += 1

    reader = threading.Thread(target=read, daemon=True)
    sent: list[str] = []
    with closing(sqlite3.connect(home.path / store, isolation_level=None, timeout=10)) as other:
        other.execute("BEGIN EXCLUSIVE")
        reader.start()
        end = time.monotonic() + LOCK_SECONDS
        number = 0
        while time.monotonic() < end:
            number += 1
            status = home.call(hub)
            seen[f"call {status}"] += 1
            outcome.check(status in (200, 503), f"{store} locked: a call answers {status}")
            if task := home.send(hub):
                sent.append(task)
            status = home.register(hub, agents, f"n{number}")
            outcome.check(status != 500, f"{store} locked: registering answers {status}")
        other.execute("ROLLBACK")
    over.set()
    reader.join(30)
    outcome.count("reads meanwhile", seen["reads"])
    outcome.figures["slowest read, s"] = max(
        round(slowest, 2), outcome.figures.get("slowest read, s", 0)
    )
    outcome.check(slowest < SLOW_SECONDS, f"{store} locked: a read took {slowest:.1f} s")
    healed = until(lambda: home.call(hub) == 200 and bool(home.send(hub)), 20)
    outcome.check(healed, f"{store}: the hub does not heal after the lock")
    lost = [id for id in sent if not home.has_task(hub, id)]
    outcome.check(not lost, f"{store} locked: tasks were acknowledged and are gone: {lost[:3]}")


def delete_stores(most: int, seed: int, outcome: Outcome) -> None:
    """Each store is deleted or replaced while the hub runs; it then acknowledges no write."""
    cases = [(s, how) for how in ("deleted", "replaced") for s in STORES if s != "dispatches.db"]
    with temporary_home() as place, serving_agents() as agents:
        template = build_home(place / "t", agents, outcome)
        for number, (store, how) in enumerate(cases[:most]):
            home = template.copy(place / f"c{number}")
            case = f"{store} {how}"
            with running_hub(outcome, home.path, ends_well=False) as hub:
                hub.headers.update(home.headers)
                hub.wait_connected("r")
                for extra in ("", "-wal", "-shm"):
                    (home.path / f"{store}{extra}").unlink(missing_ok=True)
                if how == "replaced":
                    shutil.copy(template.path / store, home.path / store)
                time.sleep(1.2)  # the hub looks at its files once a second
                sent = [task for task in (home.send(hub) for _ in range(3)) if task]
                registered = home.register(hub, agents, "late") in (200, 201)
                calls = [home.call(hub) for _ in range(3)]
                problem = home.is_closed(hub)
                outcome.check(not problem, f"{case}: {problem}")
                outcome.check(500 not in calls, f"{case}: calls answer {calls}")
                if store == "tasks.db":
                    outcome.check(not sent, f"{case}: tasks were acknowledged")
                if store == "registry.db":
                    outcome.check(not registered, f"{case}: an agent was acknowledged")
                if store == "audit.db":
                    outcome.check(200 not in calls, f"{case}: calls were made: {calls}")
            outcome.count("stores lost")
            if how == "deleted":
                judge_start(home, store, f"{case}, next start", outcome)
            shutil.rmtree(home.path)
