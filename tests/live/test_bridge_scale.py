"""A hundred agents with ten skills each, ten of which hang: the others are discovered meanwhile, by
configuration and by the API, while clients are connected.
"""

from __future__ import annotations

import json
import subprocess
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from tests.live.bridge_fixture import EXPOSE, external
from tests.live.conftest import DRAGOMAN, RunningHub
from tests.live.module_hub import run_concurrently, until
from tests.live.recording_agents import RecordingAgent, run_agents
from tests.peers import wire

pytestmark = pytest.mark.promise("R9", "R10", "B5", "Q2")

AGENTS, SKILLS, HANGING = 100, 10, 10
TIMEOUT = 50.0  # of one that hangs; longer than the test waits for anything
CHANGED = "notifications/tools/list_changed"
AT = "/api/a2a/agents"


@contextmanager
def run_hundred_agents() -> Iterator[list[RecordingAgent]]:
    """Every tenth of them hangs."""
    skills = [f"skill-{number}" for number in range(SKILLS)]
    members = [
        RecordingAgent(f"Agent {number}", *skills, hangs=number % (AGENTS // HANGING) == 5)
        for number in range(AGENTS)
    ]
    with run_agents(*members):
        yield members


def expected(members: list[RecordingAgent]) -> set[str]:
    there = [number for number, member in enumerate(members) if not member.hangs]
    return {f"agent_{number}.skill-{skill}" for number in there for skill in range(SKILLS)}


def close_hanging(members: list[RecordingAgent]) -> None:
    """Those that hang close their connections."""
    for member in members:
        member.gone = member.hangs


def skills(request: Callable[[str, Any], Any]) -> set[str]:
    """All that is listed, page by page."""
    found: set[str] = set()
    cursor: dict[str, Any] = {}
    while True:
        page = request("tools/list", cursor)["result"]
        found |= {tool["name"] for tool in page["tools"] if ".skill-" in tool["name"]}
        if "nextCursor" not in page:
            return found
        cursor = {"cursor": page["nextCursor"]}


def until_listed(
    next_notification: Callable[[], Any], request: Callable[[str, Any], Any], count: int
) -> int:
    """Lists on each change notification until `count` is reached; counts notifications."""
    times = 0
    while True:
        if next_notification().get("method") != CHANGED:
            continue
        times += 1
        if len(skills(request)) == count:
            return times


def test_hundred_configured_agents_are_discovered_while_ten_hang(short_tmp: Path) -> None:
    home = short_tmp / "h"
    home.mkdir(mode=0o700)

    def states() -> Counter[str]:
        line = [*DRAGOMAN, "agents", "list", "--json", "--home", str(home)]
        done = subprocess.run(line, capture_output=True, text=True, timeout=60, check=True)
        return Counter(one["health"] for one in json.loads(done.stdout)["agents"])

    with run_hundred_agents() as members:
        entries = [external(one.name, one.url, timeout_secs=TIMEOUT) for one in members]
        config = EXPOSE + "[a2a]\nenabled = true\n" + "".join(entries)
        (home / "config.toml").write_text(config, encoding="utf-8")
        (home / "config.toml").chmod(0o600)
        with wire.Stdio([*DRAGOMAN, "mcp", "--home", home]) as ide:
            ide.initialize()

            def next_notification() -> (
                Any
            ):  # notifications received while waiting for a list are queued
                return ide.notifications.pop(0) if ide.notifications else ide.read(20)

            until_listed(next_notification, ide.request, 90 * SKILLS)  # while the others still hang
            assert skills(ide.request) == expected(members)
            close_hanging(members)
            until(lambda: states() == {"healthy": 90, "unreachable": 10}, 60)
            ide.close_stdin()
            assert ide.wait(60) == 0


def test_hundred_agents_register_concurrently_while_ten_hang(
    hub: Callable[..., RunningHub],
) -> None:
    running = hub(config="[a2a]\nenabled = true\n")
    session = wire.Session(running.mcp_url, headers=running.headers)
    answers: list[wire.Answer] = []

    def register(member: RecordingAgent) -> wire.Answer:
        body = {"url": member.url, "timeout_secs": TIMEOUT}
        return wire.post(running.url + AT, body, running.headers, timeout=60)

    with (
        run_hundred_agents() as members,
        wire.stream(
            "GET", running.mcp_url, headers=session.headers, timeout=60
        ) as next_notification,
    ):

        def either(number: int) -> None:
            if number < AGENTS:
                answers.append(register(members[number]))
            else:
                until_listed(next_notification.next_json, session.request, 90 * SKILLS)
                assert all(answer.status == 200 for answer in answers), "the others still hang"
                close_hanging(members)

        run_concurrently(either, AGENTS + 1)
        assert Counter(answer.status for answer in answers) == {200: 90, 400: 10}
        assert skills(session.request) == expected(members)
        listed = running.api(AT)["agents"]
        assert Counter(one["health"] for one in listed) == {"healthy": 90}
        called = running.call("agent_7.skill-3", {"x": 1})
        assert called["result"]["content"][0]["text"] == "done" and len(members[7].sent) == 1
