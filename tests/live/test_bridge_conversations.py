"""Conversations with agents from MCP clients: within a session, by id, with files and data. One hub
beside agents of the official SDK: `both` takes text and JSON and reads text, `plain` takes text and
refuses everything else; `own` is a function of the hub's."""

from __future__ import annotations

import base64
import json
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from tests.live.bridge_fixture import eventually, external, over_http
from tests.live.conftest import RunningHub
from tests.live.module_hub import run_module_hub, text_of, until
from tests.peers import wire
from tests.peers.process import HttpPeer, read_log, server_entry

A2A = "[a2a]\nenabled = true\n"
KEY = "k-0123456789abcdef"
CONTEXT = "dragoman.hub/context"
PNG = base64.b64encode(b"\x89PNG\r\n").decode()
OWN = """
[[agents]]
name = "own"
function = "tests.peers.agents_module:mirror"
input_modes = ["text/plain", "application/json", "image/*"]
"""


@pytest.fixture(scope="module")
def rig() -> Iterator[tuple[RunningHub, Path]]:
    folder = Path(tempfile.mkdtemp(prefix="dgc", dir="/tmp"))
    try:
        with (
            HttpPeer("a2a_sdk_agent", "--declare", "JSONRPC:1.0", "--log", folder / "both") as both,
            HttpPeer("a2a_skill_agent", "--text-only", "--declare", "JSONRPC:1.0") as plain,
        ):
            agents = external("both", both.url) + external("plain", plain.url)
            config = f'api_key = "{KEY}"\n[a2a]\nenabled = true\n{OWN}{agents}'
            with run_module_hub([server_entry("files", "sdk_server")], config) as hub:
                hub.wait_connected("files")
                until(lambda: {"both.echo", "plain.echo"} <= names(hub))
                yield hub, folder / "both"
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def names(hub: RunningHub) -> set[str]:
    return {tool["name"] for tool in hub.rpc("tools/list")["result"]["tools"]}


def call(
    where: Any, tool: str, arguments: Mapping[str, Any], meta: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """The result of a call in a session, or in one request of the modern revision."""
    params: dict[str, Any] = {"name": tool, "arguments": dict(arguments)}
    if meta:
        params["_meta"] = dict(meta)
    answer = (where.rpc if isinstance(where, RunningHub) else where.request)("tools/call", params)
    assert "result" in answer, answer
    return dict(answer["result"])


def said(result: Mapping[str, Any]) -> str:
    assert not result.get("isError"), result
    return str(result["content"][0]["text"])


def context_of(result: Mapping[str, Any]) -> str:
    return str(result["_meta"][CONTEXT])


def test_conversation_continues_only_within_its_session(
    rig: tuple[RunningHub, Path],
) -> None:
    hub, log = rig
    session, other = (wire.Session(hub.mcp_url, headers=hub.headers) for _ in range(2))
    first = call(session, "dragoman_agent_both", {"message": "turn"})
    assert said(first) == "echo: turn 1" and len(first["content"]) == 1
    assert said(call(session, "both.echo", {"text": "turn"})) == "echo: turn 2"
    assert said(call(other, "dragoman_agent_both", {"message": "turn"})) == "echo: turn 1"
    new = call(session, "dragoman_agent_both", {"message": "turn", "context": "new"})
    assert said(new) == "echo: turn 1" and context_of(new) != context_of(first)
    assert said(call(session, "dragoman_agent_both", {"message": "turn"})) == "echo: turn 2"
    named = {"message": "turn", "context": context_of(first)}
    again = call(session, "dragoman_agent_both", named)
    assert said(again) == "echo: turn 3" and context_of(again) == context_of(first)
    known = {one["context"] for one in read_log(log) if "context" in one}
    assert context_of(first) not in known, "the agent's own id stays in the hub"


def test_modern_requests_continue_a_conversation_by_id(
    rig: tuple[RunningHub, Path],
) -> None:
    hub, _ = rig
    first = call(hub, "dragoman_agent_both", {"message": "turn"})
    id = context_of(first)
    answer, note = first["content"]
    assert answer["text"] == "echo: turn 1" and id in note["text"]
    assert note["annotations"] == {"audience": ["assistant"]}
    assert said(call(hub, "dragoman_agent_both", {"message": "turn"})) == "echo: turn 1"
    second = call(hub, "dragoman_agent_both", {"message": "turn", "context": id})
    assert said(second) == "echo: turn 2"
    third = call(hub, "both.echo", {"text": "turn"}, {CONTEXT: id})
    assert said(third) == "echo: turn 3" and len(third["content"]) == 1
    assert said(call(hub, "both.echo", {"text": "turn", "context": id})) == "echo: turn 4"
    # An argument of the skill's own that happens to be called so.
    received = call(hub, "both.echo", {"text": "x", "context": "some word"})
    assert said(received) == 'echo: word"}', "it was sent as JSON, whole"


def test_a_conversation_belongs_to_its_principal_and_to_its_agent(
    rig: tuple[RunningHub, Path],
) -> None:
    hub, _ = rig
    id = context_of(call(hub, "dragoman_agent_both", {"message": "turn"}))
    with hub.relay() as owner:
        owner.initialize()
        stolen = call(owner, "dragoman_agent_both", {"message": "turn", "context": id})
        assert stolen["isError"] and "unknown conversation" in stolen["content"][0]["text"]
        assert said(call(owner, "dragoman_agent_both", {"message": "turn"})) == "echo: turn 1"
        assert said(call(owner, "dragoman_agent_both", {"message": "turn"})) == "echo: turn 2"
    elsewhere = call(hub, "dragoman_agent_plain", {"message": "turn", "context": id})
    assert elsewhere["isError"] and '"new"' in elsewhere["content"][0]["text"]
    assert said(call(hub, "dragoman_agent_both", {"message": "turn", "context": id})) == (
        "echo: turn 2"
    )


def test_files_and_data_reach_the_agent_with_the_message(rig: tuple[RunningHub, Path]) -> None:
    hub, _ = rig
    sent = {
        "message": "parts",
        "data": {"n": 1},
        "files": [
            {"name": "a.png", "mediaType": "image/png", "data": PNG},
            {"name": "b.pdf", "mediaType": "application/pdf", "data": "AAEC"},
            {"url": "https://files.example/c.csv", "mediaType": "text/csv"},
        ],
    }
    received = call(hub, "dragoman_agent_both", sent)["structuredContent"]["parts"]
    assert received == [
        {"text": "parts"},
        {"data": {"n": 1.0}, "mediaType": "application/json"},
        {"raw": PNG, "filename": "a.png", "mediaType": "image/png"},
        {"raw": "AAEC", "filename": "b.pdf", "mediaType": "application/pdf"},
        {"url": "https://files.example/c.csv", "mediaType": "text/csv"},
    ]
    schema = next(
        tool["inputSchema"]
        for tool in hub.rpc("tools/list")["result"]["tools"]
        if tool["name"] == "dragoman_agent_both"
    )
    assert {"message", "context", "data", "files"} == set(schema["properties"])
    for bad, why in (
        ({"data": "no base64!"}, "not base64"),
        ({"url": "file:///etc/passwd"}, "not an http:// or https://"),
        ({"name": "x"}, "either"),
        ({"data": "A" * ((7 << 20) * 4 // 3 + 8)}, "7 MB"),
    ):
        refused = call(hub, "dragoman_agent_both", {"message": "parts", "files": [bad]})
        assert refused["isError"] and why in refused["content"][0]["text"], bad


def test_hub_agent_has_conversations_and_files(
    rig: tuple[RunningHub, Path],
) -> None:
    hub, _ = rig
    session = wire.Session(hub.mcp_url, headers=hub.headers)
    image = {"name": "a.png", "mediaType": "image/png", "data": PNG}
    first = call(session, "dragoman_agent_own", {"message": "hi", "files": [image]})
    received = first["structuredContent"]
    assert received["context"] == context_of(first)
    assert [part["type"] for part in received["parts"]] == ["text", "image"]
    second = call(session, "dragoman_agent_own", {"message": "hi"})
    assert second["structuredContent"]["context"] == received["context"]
    modern = call(hub, "dragoman_agent_own", {"message": "hi", "context": received["context"]})
    assert modern["structuredContent"]["context"] == received["context"]
    pdf = {"mediaType": "application/pdf", "data": "AAEC"}
    refused = call(session, "dragoman_agent_own", {"message": "hi", "files": [pdf]})
    assert refused["isError"] and "does not accept" in refused["content"][0]["text"]


def test_skill_input_follows_the_agents_modes(rig: tuple[RunningHub, Path]) -> None:
    hub, _ = rig
    assert text_of(hub.call("plain.echo", {"text": "hello"})) == "echo: hello"
    assert text_of(hub.call("both.echo", {"text": "hello"})) == "echo: hello"


@pytest.mark.parametrize("mode", ["legacy", "2026-07-28"])
async def test_artifact_chunks_are_progress(rig: tuple[RunningHub, Path], mode: str) -> None:
    hub, _ = rig
    async with over_http(hub.mcp_url, mode, hub.headers) as user:
        assert await user.call("both.echo", "chunks") == "one two"
        await eventually(lambda: len(user.told) >= 2)
        assert user.told[-2:] == ["one ", "two"]
        user.told.clear()
        assert await user.call("both.echo", "say whole") == "echo: whole"
        assert "echo: whole" not in user.told, "what comes whole is the result"


def test_structured_result_is_unchanged_through_two_hubs(
    rig: tuple[RunningHub, Path],
) -> None:
    hub, _ = rig
    near = hub.call("files.add", {"a": 1, "b": 2})["result"]
    with run_module_hub([], A2A, {"DRAGOMAN_AGENT_X": KEY}) as behind:
        body = {"url": f"{hub.url}/a2a/dragoman", "name": "first", "token": "env:DRAGOMAN_AGENT_X"}
        assert not behind.post("/api/a2a/agents", body).get("error")
        far = behind.call("first.files.add", {"a": 1, "b": 2})["result"]
    assert far["structuredContent"] == near["structuredContent"] == {"sum": 3}
    assert far["content"] == near["content"]


def test_cli_continues_a_conversation(rig: tuple[RunningHub, Path]) -> None:
    hub, _ = rig
    first = hub.command("call", "dragoman_agent_both", "message=turn")
    assert first.stdout == "echo: turn 1\n", first.stderr
    (hint,) = [line for line in first.stderr.splitlines() if "context=" in line]
    given = hint.split()[-1]
    second = hub.command("call", "dragoman_agent_both", "message=turn", given, "--json")
    result = json.loads(second.stdout)
    assert result["content"][0]["text"] == "echo: turn 2"
    assert result["extra"]["_meta"][CONTEXT] == given.removeprefix("context=")


def test_cli_prints_the_exact_image_size(
    rig: tuple[RunningHub, Path],
) -> None:
    hub, _ = rig
    (block,) = hub.call("files.image", {})["result"]["content"]
    size = len(base64.b64decode(block["data"]))
    assert block["data"].endswith("="), "or its length could not be wrong"
    shown = hub.command("call", "files.image").stdout
    assert shown == f"[image, image/png, {size} bytes; --json has it]\n"
