"""External agents of a running hub: registration, loss, return, storage, notifications."""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.live.conftest import RunningHub
from tests.live.module_hub import until
from tests.peers import wire
from tests.peers.process import HttpPeer

pytestmark = pytest.mark.promise("R10")

CONFIG = "[bridge]\nprobe_secs = 0.1\n[a2a]\nenabled = true\n"
AGENTS = "/api/a2a/agents"
CHANGED = "notifications/tools/list_changed"


def tools(session: wire.Session) -> set[str]:
    return {tool["name"] for tool in session.request("tools/list")["result"]["tools"]}


def change(hub: RunningHub, method: str, path: str, body: Any = None) -> Any:
    answer = wire.http_request(
        method,
        f"{hub.url}{AGENTS}{path}",
        b"" if body is None else json.dumps(body).encode(),
        {"Content-Type": "application/json", **hub.headers},
    )
    assert answer.status == 200, answer.body
    return answer.json()


@pytest.mark.promise("R9", "Q2")
def test_clients_are_notified_when_an_agent_appears_or_disappears(
    hub: Callable[..., RunningHub],
) -> None:
    running = hub(config=CONFIG)
    session = wire.Session(running.mcp_url, headers=running.headers)
    with (
        HttpPeer("a2a_sdk_agent") as agent,
        wire.stream("GET", running.mcp_url, headers=session.headers) as told,
    ):
        row = change(running, "POST", "", {"url": agent.url, "name": "SDK", "timeout_secs": 1})
        assert row["health"] == "healthy" and row["tools"][1:] == ["sdk.echo", "sdk.ask"]
        assert told.next_json()["method"] == CHANGED
        assert {"sdk.echo", "sdk.ask"} <= tools(session)

        os.kill(agent.pid, signal.SIGSTOP)
        try:
            assert told.next_json()["method"] == CHANGED
            gone = running.api(f"{AGENTS}/sdk")
            assert gone["health"] == "unreachable" and gone["tools"] == []
            assert "did not answer within 1 s" in gone["reason"]
            assert "sdk.echo" not in tools(session)
        finally:
            os.kill(agent.pid, signal.SIGCONT)
        assert told.next_json()["method"] == CHANGED
        assert "sdk.echo" in tools(session)
        until(lambda: running.api(f"{AGENTS}/sdk")["health"] == "healthy", 60)

        change(running, "DELETE", "/sdk")
        assert told.next_json()["method"] == CHANGED
        assert "sdk.echo" not in tools(session)


def test_registered_agents_and_trust_survive_a_crash(
    hub: Callable[..., RunningHub],
) -> None:
    with HttpPeer("a2a_sdk_agent", "--declare", "JSONRPC:0.3") as agent:
        first = hub(config=CONFIG)
        row = change(first, "POST", "", {"url": agent.url, "name": "old"})
        change(first, "PATCH", f"/{row['id']}", {"trustLevel": "trusted"})
        first.kill()
        again = hub(home=first.home)
        until(lambda: again.api(f"{AGENTS}/old")["health"] == "healthy", 60)
        found = again.api(f"{AGENTS}/old")
        assert (found["id"], found["trustLevel"]) == (row["id"], "trusted")
        assert found["dialect"].startswith("A2A 0.3") and "old.echo" in found["tools"]
        assert found["createdAt"] == row["createdAt"]


@pytest.mark.promise("M2")
def test_unreachable_configured_agents_delay_neither_start_nor_stop(
    hub: Callable[..., RunningHub], short_tmp: Path
) -> None:
    with HttpPeer("a2a_sdk_agent") as agent, HttpPeer("a2a_sdk_agent") as silent:
        os.kill(silent.pid, signal.SIGSTOP)
        try:
            entries = [("there", agent.url), ("silent", silent.url), ("away", "http://127.0.0.1:9")]
            lines = [
                f'[[a2a.external_agents]]\nname = "{name}"\nurl = "{url}"\n'
                for name, url in entries
            ]
            begun = time.monotonic()
            running = hub(config="[a2a]\nenabled = true\n" + "".join(lines))
            assert time.monotonic() - begun < 30
            until(lambda: f'agent "there" at {agent.url} is ' in running.log(), 60)
            assert "2 skills" in running.log()
            until(lambda: 'agent "away" at http://127.0.0.1:9 is unreachable' in running.log(), 60)
            states = {one["name"]: one["health"] for one in running.api(AGENTS)["agents"]}
            assert states == {"there": "healthy", "silent": "unknown", "away": "unreachable"}
            begun = time.monotonic()
            assert running.stop() == 0 and time.monotonic() - begun < 30
        finally:
            os.kill(silent.pid, signal.SIGCONT)


def test_agent_catalog_is_public(
    hub: Callable[..., RunningHub],
) -> None:
    key = "api_key = 'a-key-that-is-long-enough'\n"
    with HttpPeer("a2a_sdk_agent") as agent:
        running = hub(config=key + CONFIG)
        change(running, "POST", "", {"url": agent.url, "name": "SDK", "public": True})
        assert wire.get(f"{running.url}{AGENTS}").status == 401
        for path in ("/.well-known/ai-catalog.json", "/.well-known/ard.json"):
            answer = wire.get(running.url + path)
            assert answer.status == 200
            assert answer.headers["content-type"] == "application/ai-catalog+json"
            entries = answer.json()["entries"]
            assert [entry["displayName"] for entry in entries] == ["dragoman", "SDK"]
            for entry in entries:
                card = wire.get(entry["url"])
                assert card.status == 200 and card.json()["name"] == entry["displayName"]
            assert agent.url.encode() not in answer.body
        assert wire.post(running.url + path, {}).status == 405
