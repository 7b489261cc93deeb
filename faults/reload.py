"""Live reload: the configuration is edited again and again while servers start and calls run.

Good files are applied, broken ones change nothing, servers that stay are never touched, and the hub
still follows the file at the end.
"""

from __future__ import annotations

import os
import random
import time
from collections.abc import Callable
from pathlib import Path

from tests.live.conftest import RunningHub
from tests.live.module_hub import BackgroundCaller
from tests.peers.process import processes_at_home, server_entry

from faults.fixtures import echo_server
from faults.harness import Outcome, open_files, running_hub, temporary_home, until, write_config
from faults.peers import call_over_api

NAMES = [f"t{number}" for number in range(10)]
APPLY_SECONDS = 40.0


def build_server(name: str, chance: random.Random) -> str:
    kind = chance.random()
    timeout = chance.choice([5, 6, 7])
    if kind < 0.4:  # stopped and started again and again by the calls
        return server_entry(name, "faulty_server", "ok", timeout_secs=timeout, idle_secs=0.3)
    if kind < 0.65:
        return server_entry(name, "faulty_server", "ok", timeout_secs=timeout)
    if kind < 0.8:
        return server_entry(
            name, "faulty_server", "slow-start", "--seconds", 0.5, timeout_secs=timeout
        )
    if kind < 0.9:
        return server_entry(name, "faulty_server", "nothing", timeout_secs=timeout)
    return server_entry(name, "faulty_server", "hang", timeout_secs=timeout)


def spoil(text: str, chance: random.Random) -> bytes:
    """A file that is never a valid one."""
    return chance.choice(
        [
            text.encode() + b"\n[[mcp_servers]\nname=",
            text.encode() + b"\n[[mcp_servers]]\nname = 17\n",
            text.encode() + b"\n[nonsense]\na = 1\n",
            text.encode() + b"\n# \xff\xfe\n",
            text.encode() + b"\0\0",
            text.encode() + b"\n[server]\nport = 1\n",
            text.encode() + echo_server("stays").encode(),
        ]
    )


def names_of(hub: RunningHub) -> set[str]:
    return {one["name"] for one in hub.api("/api/mcp/servers")["connected"]}


def edit_configuration(edits: int, seed: int, outcome: Outcome) -> None:
    chance = random.Random(seed)
    with temporary_home() as home:
        current = {name: build_server(name, chance) for name in NAMES[:4]}
        file = write_config(home, [echo_server("stays"), *current.values()])
        with running_hub(outcome, home) as hub:
            hub.wait_connected("stays")
            base = file.read_text(encoding="utf-8").partition("[[mcp_servers]]")[0]

            def build_text() -> str:
                return "\n".join([base, echo_server("stays"), *current.values()])

            with BackgroundCaller(hub, "stays.echo") as neighbour:
                for number in range(edits):
                    edit(hub, file, current, build_text, chance, outcome)
                    if number % 20 == 19:  # the last file may be a broken one
                        file.write_text(build_text(), encoding="utf-8")
                        wait_applied(hub, current, outcome, f"edit {number}")
                outcome.figures["calls of a server that stays"] = neighbour.good
                outcome.check(not neighbour.bad, f"a server that stays: {neighbour.bad[:2]}")
            current.clear()
            file.write_text(build_text(), encoding="utf-8")
            wait_applied(hub, current, outcome, "the last edit")
            left = until(lambda: len(processes_at_home(home)) == 1, 20)
            outcome.check(left, f"processes that nobody needs: {processes_at_home(home)}")
            current["new"] = server_entry("new", "faulty_server", "ok")
            file.write_text(build_text(), encoding="utf-8")
            hub.wait_connected("new", timeout=APPLY_SECONDS)
            outcome.figures["descriptors at the end"] = open_files(hub)


def edit(
    hub: RunningHub,
    file: Path,
    current: dict[str, str],
    build_text: Callable[[], str],
    chance: random.Random,
    outcome: Outcome,
) -> None:
    if chance.random() < 0.25:
        file.write_bytes(spoil(build_text(), chance))
        outcome.count("broken files")
    else:
        for _ in range(chance.randint(1, 4)):
            name = chance.choice(NAMES)
            if name in current and chance.random() < 0.5:
                del current[name]
            else:
                current[name] = build_server(name, chance)
        new = file.with_name("config.new")
        new.write_text(build_text(), encoding="utf-8")
        new.chmod(0o600)
        os.replace(new, file)
        outcome.count("good files")
    for _ in range(3):  # servers that rest are started by calls
        status, _ = call_over_api(hub, f"{chance.choice(NAMES)}.echo", 20)
        outcome.check(status not in (0, 500), f"a call while the file changes: {status}")
    time.sleep(chance.choice([0.02, 0.1, 0.3]))


def wait_applied(hub: RunningHub, current: dict[str, str], outcome: Outcome, when: str) -> None:
    applied = until(lambda: names_of(hub) == {"stays", *current}, APPLY_SECONDS)
    outcome.check(applied, f"{when} is not applied: {sorted(names_of(hub))}, not {sorted(current)}")
