"""`_meta` of what a server starts reaches the client, but for the members of one hop."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.live.conftest import RunningHub
from tests.live.module_hub import run_module_hub, text_of
from tests.peers import wire
from tests.peers.process import server_entry

SERVER = Path(__file__).with_name("meta_server.py")
NOTE = {"x.test/note": {"a": [1, None]}}
ABLE: dict[str, Any] = {"roots": {}, "elicitation": {"form": {}, "url": {}}, "sampling": {}}
ANSWERS: dict[str, Any] = {
    "roots/list": {"roots": []},
    "elicitation/create": {"action": "accept", "content": {}},
    "sampling/createMessage": {
        "role": "assistant", "model": "m", "content": {"type": "text", "text": "it"},
    },
}  # fmt: skip


@pytest.fixture(scope="module")
def hub() -> Iterator[RunningHub]:
    entry = server_entry("meta", "stdio", sys.executable, SERVER)
    with run_module_hub([entry], '[mcp]\nstdio_expose = ["*"]\n') as running:
        running.wait_connected("meta")
        yield running


@pytest.fixture
def client(hub: RunningHub) -> Iterator[wire.Stdio]:
    with hub.relay() as relay:
        relay.send(wire.request(0, "initialize", wire.initialize_params("2025-11-25", ABLE)))
        assert relay.read()["id"] == 0
        relay.notify("notifications/initialized")
        yield relay


def request(client: wire.Stdio, method: str, **params: Any) -> tuple[Any, dict[str, Any]]:
    """The response, and the params of what came before it by method; questions are answered."""
    client.send(wire.request(1, method, params))
    came: dict[str, Any] = {}
    while True:
        message = client.read()
        if "method" not in message:
            assert message["id"] == 1
            return message, came
        assert message["method"] not in came, "each comes once"
        came[message["method"]] = message["params"]
        if "id" in message:
            result = ANSWERS[message["method"]]
            client.send({"jsonrpc": "2.0", "id": message["id"], "result": result})


def call(client: wire.Stdio, name: str, **meta: Any) -> tuple[Any, dict[str, Any]]:
    return request(client, "tools/call", name=f"meta.{name}", arguments={}, _meta=meta)


def test_meta_of_questions_progress_and_logs_reaches_the_client(client: wire.Stdio) -> None:
    answer, came = call(client, "ask", progressToken="t")
    assert json.loads(text_of(answer)) == list(ANSWERS.values())
    methods = (*ANSWERS, "notifications/progress", "notifications/message")
    assert {method: came[method].get("_meta") for method in methods} == dict.fromkeys(methods, NOTE)


@pytest.mark.parametrize("name", ["visit", "visit_early"])
def test_meta_of_a_completed_visit_reaches_the_client(client: wire.Stdio, name: str) -> None:
    answer, came = call(client, name)
    text_of(answer)
    method = "notifications/elicitation/complete"
    assert came[method]["elicitationId"] == came["elicitation/create"]["elicitationId"]
    assert came["elicitation/create"]["_meta"] == came[method]["_meta"] == NOTE


def test_meta_of_a_changed_resource_reaches_subscribers(
    hub: RunningHub, client: wire.Stdio
) -> None:
    answer, _ = request(client, "resources/subscribe", uri="meta://it")
    assert "result" in answer
    _, came = call(client, "change")
    while "notifications/resources/updated" not in came:
        message = client.read()
        came[message["method"]] = message["params"]
    assert came["notifications/resources/updated"] == {"uri": "meta://it", "_meta": NOTE}


def test_reference_of_a_completion_keeps_its_title(client: wire.Stdio) -> None:
    ref = {"type": "ref/prompt", "name": "meta.it", "title": "The title"}
    argument = {"name": "a", "value": ""}
    answer, _ = request(client, "completion/complete", ref=ref, argument=argument)
    (value,) = answer["result"]["completion"]["values"]
    assert json.loads(value) == {"type": "ref/prompt", "name": "it", "title": "The title"}
