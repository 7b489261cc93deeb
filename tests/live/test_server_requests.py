"""Requests of a server to its client, through the hub: withdrawn ones, and refusals of clients."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from typing import Any

import pytest
from tests.live.conftest import RunningHub
from tests.live.lasting import lasting_hub, text_of
from tests.live.matrix_client import Client, Refuses
from tests.live.matrix_transports import connect
from tests.peers.process import HttpPeer, server_entry

PEER = "mcp1_talkative_server"


@pytest.fixture(scope="module")
def hub() -> Iterator[RunningHub]:
    with ExitStack() as stack:
        peer = stack.enter_context(HttpPeer(PEER, "--transport", "http"))
        entries = [
            server_entry("web", "http", peer.url, interactive=True),
            server_entry("child", PEER, interactive=True),
        ]
        running = stack.enter_context(lasting_hub(entries))
        running.wait_connected("web", "child")
        yield running


def never(method: str, params: Mapping[str, Any]) -> None:
    """A person who does not answer."""


@pytest.mark.promise("B12")
@pytest.mark.parametrize("server", ["web", "child"])
@pytest.mark.parametrize("withdraw", [True, False], ids=["withdrawn", "answered"])
def test_a_question_that_the_server_needs_no_more_is_cancelled_and_the_result_comes_at_once(
    hub: RunningHub, server: str, withdraw: bool
) -> None:
    with connect(hub, "2025-11-25", "http") as client:
        client.answering = never
        assert text_of(client.call(f"{server}.ask_and_leave", {"withdraw": withdraw})) == "went on"
        client.until_heard("notifications/cancelled")
        assert [one.method for one in client.asked] == ["elicitation/create"]
        assert text_of(client.call(f"{server}.echo", {"text": "next"})) == "next"


@pytest.mark.promise("B12")
def test_a_task_whose_question_is_withdrawn_goes_on(hub: RunningHub) -> None:
    with connect(hub, "2025-11-25", "http") as client:
        client.answering = never
        called = {"name": "web.ask_and_leave", "arguments": {"withdraw": True}, "task": {}}
        made = client.request("tools/call", called)["result"]["task"]
        assert text_of(client.request("tasks/result", {"taskId": made["taskId"]})) == "went on"


@pytest.mark.promise("B12")
@pytest.mark.parametrize("server", ["web", "child"])
@pytest.mark.parametrize("kind", ["elicitation", "sampling", "roots"])
def test_the_server_is_told_that_its_client_refuses_and_goes_on(
    hub: RunningHub, server: str, kind: str
) -> None:
    def refuse(method: str, params: Mapping[str, Any]) -> dict[str, Any]:
        raise Refuses(-1, "User rejected it")

    with connect(hub, "2025-11-25", "http") as client:
        assert_refused(client, f"{server}.ask_or_go_on", kind, refuse)
        assert text_of(client.call(f"{server}.echo", {"text": "next"})) == "next"


def assert_refused(client: Client, tool: str, kind: str, refuse: Any) -> None:
    well, client.answering = client.answering, refuse
    refused = client.call(tool, {"kind": kind})
    assert text_of(refused) == "without an answer: -1 User rejected it"
    client.answering = well
    assert text_of(client.call(tool, {"kind": kind})).startswith("with an answer: ")
