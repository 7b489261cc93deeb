"""Processes started by a server are never the owner, stay within the hub's reach, and
end with it.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.live.conftest import RunningHub
from tests.live.module_hub import run_module_hub, text_of, until
from tests.peers import wire
from tests.peers.process import alive, server_entry, wait_until_gone

INTRUDER = Path(__file__).with_name("intruder_server.py")
ENTRY = server_entry("intruder", "stdio", sys.executable, INTRUDER)
OTHER = server_entry("other", "faulty_server", "ok")
APPROVE = {"method": "POST", "path": "/api/pins/approve", "body": {"all": True}}
ANOTHER_USER = """
import encodings.idna, http.client, os
os.setgroups([]); os.setgid(12346); os.setuid(12346)
connection = http.client.HTTPConnection({where!r}, timeout=60)
connection.request("GET", {path!r}, headers={headers!r})
answer = connection.getresponse()
print(answer.status, answer.read().decode())
"""


@pytest.fixture(scope="module")
def hub() -> Iterator[RunningHub]:
    config = "[a2a]\nenabled = true\n"
    with run_module_hub([ENTRY, OTHER], config) as running:
        running.wait_connected("intruder", "other")
        until(lambda: "other.echo" in str(running.api("/api/tools")))
        yield running


def ask(hub: RunningHub, to: str, **what: Any) -> tuple[int, str]:
    answer = json.loads(text_of(hub.call("intruder.ask", {"to": to, **what})))
    return answer["status"], answer["body"]


@pytest.mark.promise("G1")
@pytest.mark.parametrize("away", [False, True], ids=["its own process", "one that has left it"])
@pytest.mark.parametrize("over", ["tcp", "unix"])
def test_server_process_is_not_the_owner(hub: RunningHub, over: str, away: bool) -> None:
    to = hub.url if over == "tcp" else str(hub.home / "run" / "http.sock")
    assert wire.post(f"{hub.url}/api/pins/approve", {"all": True}).status == 200  # the owner's
    status, body = ask(hub, to, **APPROVE, away=away)
    assert status == 403 and "admin" in body
    path, arguments = "/api/tools/other.echo/call", {"arguments": {"text": over}}
    status, body = ask(hub, to, method="POST", path=path, body=arguments, away=away)
    assert status in (403, 404), body  # no policy grants it a call
    if not away:  # otherwise it is below the hub, and its server is unknown
        *_, made = [one for one in hub.audit() if one.get("verb") == "other.echo"]
        assert made["caller"] == "server:intruder"


def test_server_process_cannot_read_hub_secrets(hub: RunningHub) -> None:
    seen = json.loads(text_of(hub.call("intruder.look")))
    assert seen["dumpable"] == 1  # as every program
    if os.geteuid() != 0:  # root sees all
        assert seen["environ"] == -1


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
def test_other_user_is_not_the_owner_without_keys(hub: RunningHub) -> None:
    def request(path: str, headers: dict[str, str] | None = None) -> str:
        code = ANOTHER_USER.format(
            where=hub.url.removeprefix("http://"), path=path, headers=headers or {}
        )
        return subprocess.run(
            [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True
        ).stdout

    for headers in ({}, {"Authorization": "Bearer wrong"}, {"Authorization": "Basic eA=="}):
        said = request("/api/pins", headers)
        assert said.startswith("401 ") and "dragoman keys create" in said
    assert request("/healthz").startswith("200 ")
    card = request("/.well-known/agent-card.json")
    assert "other.echo" not in card


@pytest.mark.promise("B9")
def test_descendants_of_a_server_end_with_it_and_with_the_hub(
    short_tmp: Path,
) -> None:
    """Though it has left the server's session, cleared its environment and lost its parent."""
    home = short_tmp / "h"
    home.mkdir(mode=0o700)
    config = "[server]\nport = 0\n"
    (home / "config.toml").write_text(f"{config}{ENTRY}", encoding="utf-8")
    running = RunningHub(home, [], {})
    try:
        running.wait_connected("intruder")
        escaped = int(text_of(running.call("intruder.escape")))
        record = home / "children.json"
        until(lambda: record.exists() and str(escaped) in record.read_text(encoding="utf-8"))
        running.kill()
        assert alive(escaped)
        running.finish()
        running = RunningHub(home, [], {})  # the next start ends what was left
        wait_until_gone([escaped], 5)

        running.wait_connected("intruder")
        (home / "servers" / "intruder" / "home" / "escaped").unlink()
        escaped = int(text_of(running.call("intruder.escape")))
        (home / "config.toml").write_text(f"{config}{OTHER}", encoding="utf-8")
        wait_until_gone([escaped], 10)  # its server was removed
        running.wait_connected("other")

        (home / "servers" / "intruder" / "home" / "escaped").unlink()
        (home / "config.toml").write_text(f"{config}{ENTRY}", encoding="utf-8")
        running.wait_connected("intruder")
        escaped = int(text_of(running.call("intruder.escape")))
        assert running.stop() == 0
        assert not alive(escaped)
        assert not record.exists()
    finally:
        assert running.finish() == []
