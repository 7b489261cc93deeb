"""Agents that offer gRPC and nothing else, made with the official SDK: registered at a running hub,
called by MCP clients, and spoken to from the command line."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.live.bridge_fixture import external
from tests.live.conftest import RunningHub
from tests.live.module_hub import run_module_hub, text_of, until
from tests.peers import wire
from tests.peers.process import HttpPeer, read_log

TOKEN = "s3cret-of-the-new-one"


@pytest.fixture(scope="module")
def rig() -> Iterator[tuple[RunningHub, HttpPeer, Path]]:
    folder = Path(tempfile.mkdtemp(prefix="dgg", dir="/tmp"))
    try:
        with (
            HttpPeer("a2a_grpc_agent", "--token", TOKEN, "--log", folder / "new") as new,
            HttpPeer("a2a_grpc_agent", "--version", "0.3") as old,
        ):
            config = (
                "[a2a]\nenabled = true\n"
                + external("new", new.url, allow_private=True, token="env:GRPC_TOKEN")
                + external("old", old.url, allow_private=True)
                + external("near", new.url)
            )
            with run_module_hub([], config, {"GRPC_TOKEN": TOKEN}) as hub:
                until(lambda: {"new.echo", "old.echo"} <= names(hub))
                yield hub, old, folder / "new"
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def names(hub: RunningHub) -> set[str]:
    return {tool["name"] for tool in hub.rpc("tools/list")["result"]["tools"]}


def said(session: wire.Session, agent: str, message: str) -> Any:
    params = {"name": f"dragoman_agent_{agent}", "arguments": {"message": message}}
    return session.request("tools/call", params)


@pytest.mark.parametrize("agent", ["new", "old"])
def test_grpc_agent_answers_messages_and_skills(
    rig: tuple[RunningHub, HttpPeer, Path], agent: str
) -> None:
    hub, _, _ = rig
    session = wire.Session(hub.mcp_url, headers=hub.headers)
    assert text_of(said(session, agent, "say hello")) == "echo: hello"
    assert text_of(said(session, agent, "direct hi")) == "hi"
    assert text_of(said(session, agent, "chunks")) == "one two"
    assert said(session, agent, "data")["result"]["structuredContent"] == {"answer": 42}
    assert [text_of(said(session, agent, "turn")) for _ in range(2)] == [
        "echo: turn 1",
        "echo: turn 2",
    ]
    failed = said(session, agent, "fail")["result"]
    assert failed["isError"] and "the disk is full" in failed["content"][0]["text"]
    assert text_of(hub.call(f"{agent}.echo", {"text": "hello"})) == "echo: hello"
    row = hub.api(f"/api/a2a/agents/{agent}")
    version = "1.0" if agent == "new" else "0.3"
    assert row["health"] == "healthy" and f"A2A {version} over GRPC" in row["dialect"], row


def test_grpc_call_carries_credentials_version_extension_and_trace(
    rig: tuple[RunningHub, HttpPeer, Path],
) -> None:
    hub, _, log = rig
    hub.call("new.echo", {"text": "hello"})
    call = [one for one in read_log(log) if one.get("method", "").endswith("StreamingMessage")][-1]
    assert call["authorization"] == f"Bearer {TOKEN}" and call["a2a-version"] == "1.0"
    assert call["a2a-extensions"] == "urn:dragoman:a2a:skill:v1"
    assert hub.audit()[-1]["trace"] in call["traceparent"]


def test_local_port_needs_operator_permission(
    rig: tuple[RunningHub, HttpPeer, Path],
) -> None:
    hub, _, _ = rig
    near = until(lambda: (row := hub.api("/api/a2a/agents/near"))["health"] != "unknown" and row)
    assert near["health"] == "unreachable" and "allow_private = true" in near["reason"]


def test_lost_grpc_agent_is_unreachable_and_the_cli_speaks_grpc(
    rig: tuple[RunningHub, HttpPeer, Path],
) -> None:
    hub, old, _ = rig
    sent = hub.command("a2a", "send", old.url, "--allow-private", "say hello")
    assert (sent.returncode, sent.stdout) == (0, "echo: hello\n"), sent.stderr
    asked = hub.command("a2a", "send", old.url, "--allow-private", "ask")
    assert asked.returncode == 6 and "which colour?" in asked.stderr
    task = asked.stderr.partition("--task ")[2].split()[0]
    done = hub.command("a2a", "send", old.url, "--allow-private", "--task", task, "blue")
    assert done.stdout == "you said: blue\n", done.stderr
    old.kill()
    session = wire.Session(hub.mcp_url, headers=hub.headers)
    gone = said(session, "old", "say hello")["result"]
    assert gone["isError"] and "could not be sent" in gone["content"][0]["text"]
