"""A hub that has just started: responses for servers and agents that are not connected yet."""

from __future__ import annotations

import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from tests.live.conftest import RunningHub
from tests.live.module_hub import error_kind, error_text, text_of
from tests.peers import wire
from tests.peers.process import HERE, server_entry

LATE = """\
import pathlib, sys, time
while not pathlib.Path(sys.argv[1]).exists():
    time.sleep(0.01)
sys.argv = sys.argv[2:]
exec(compile(pathlib.Path(sys.argv[0]).read_text(), sys.argv[0], "exec"))
"""


def test_calls_and_lists_wait_for_servers_that_are_starting(
    hub: Callable[..., RunningHub], short_tmp: Path
) -> None:
    gate = short_tmp / "gate"
    late = [sys.executable, "-c", LATE, gate, HERE / "leaky_server.py"]
    agent = '[a2a]\nenabled = true\n[[a2a.external_agents]]\nname = "away"\nurl = "http://127.0.0.1:1"\n'
    running = hub(
        servers=[server_entry("late", "stdio", *late), server_entry("broken", "stdio", "false")],
        config=agent,
    )
    with ThreadPoolExecutor(4) as pool:
        called = pool.submit(running.call, "mcp_late_t", {})
        asked = pool.submit(running.post, "/api/tools/late.t/call", {"arguments": {}})
        listed = pool.submit(running.rpc, "tools/list", {})
        for _ in range(5):  # so that they are most likely there before the server is
            running.api("/api/status")
        gate.write_text("")
        assert text_of(called.result(20)) == "done"
        assert asked.result(20)["failed"] is False
        assert "mcp_late_t" in [one["name"] for one in listed.result(20)["result"]["tools"]]
    assert running.get("/readyz").status == 200
    broken = running.call("mcp_broken_anything", {})
    assert error_kind(broken) == "Unreachable"
    assert 'server "broken" is not connected' in error_text(broken)
    answer = running.post("/api/tools/broken.anything/call", {"arguments": {}})["error"]
    assert answer["kind"] == "Unreachable" and "try again" in answer["message"]
    for name in ("away.skill", "a2a_away_skill"):
        assert running.post(f"/api/tools/{name}/call", {"arguments": {}})["error"]["kind"] == (
            "Unreachable"
        )
    for name in ("brokenish.x", "late.nothing", "nobody.x"):
        assert running.post(f"/api/tools/{name}/call", {"arguments": {}})["error"]["kind"] == (
            "NotFound"
        )


def test_principal_that_may_not_list_learns_nothing(
    hub: Callable[..., RunningHub],
) -> None:
    config = "api_key = 'a-key-that-is-long-enough'\n"
    running = hub(servers=[server_entry("broken", "stdio", "false")], config=config)
    made = running.command("keys", "create", "guest")
    guest = {"Authorization": f"Bearer {made.stdout.strip()}"}
    who = 'principal == Hub::User::"key:guest"'
    policy = f'@id("no-guest") forbid ({who}, action, resource);'
    answer = wire.post(
        f"{running.url}/api/policies", {"name": "mine", "text": policy}, running.headers
    )
    assert answer.status == 200, answer.body

    def kind(headers: dict[str, str]) -> str:
        url = f"{running.url}/api/tools/broken.x/call"
        return str(wire.post(url, {"arguments": {}}, headers).json()["error"]["kind"])

    assert kind(guest) == "NotFound"
    assert kind(running.headers) == "Unreachable"
