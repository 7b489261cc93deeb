"""Requests and log lines of a server to its client, through the hub."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from typing import Any

import pytest
from tests.live.conftest import RunningHub
from tests.live.matrix_client import Client, Refuses
from tests.live.matrix_transports import connect
from tests.live.module_hub import run_module_hub, text_of, until
from tests.peers.process import HttpPeer, server_entry

PEER = "mcp1_talkative_server"


@pytest.fixture(scope="module")
def hub() -> Iterator[RunningHub]:
    with ExitStack() as stack:
        peer = stack.enter_context(HttpPeer(PEER, "--transport", "http"))
        entries = [
            server_entry("web", "http", peer.url, interactive=True),
            server_entry("child", PEER, interactive=True),
            server_entry("shared", "http", peer.url),
        ]
        running = stack.enter_context(run_module_hub(entries))
        running.wait_connected("web", "child", "shared")
        yield running


def ignore_question(method: str, params: Mapping[str, Any]) -> None:
    """A person who does not answer."""


@pytest.mark.promise("B12")
@pytest.mark.parametrize("server", ["web", "child"])
@pytest.mark.parametrize("withdraw", [True, False], ids=["withdrawn", "answered"])
def test_question_withdrawn_by_the_server_is_cancelled(
    hub: RunningHub, server: str, withdraw: bool
) -> None:
    with connect(hub, "2025-11-25", "http") as client:
        client.answering = ignore_question
        assert text_of(client.call(f"{server}.ask_and_leave", {"withdraw": withdraw})) == "went on"
        client.wait_notification("notifications/cancelled")
        assert [one.method for one in client.asked] == ["elicitation/create"]
        assert text_of(client.call(f"{server}.echo", {"text": "next"})) == "next"


@pytest.mark.promise("B12")
@pytest.mark.parametrize("server", ["web", "child"])
def test_client_is_notified_when_a_url_elicitation_completes(hub: RunningHub, server: str) -> None:
    """Some clients answer only then."""
    with connect(hub, "2025-11-25", "http") as client:
        client.answering = ignore_question
        assert text_of(client.call(f"{server}.send_away", {})) == "went on"
        (asked,) = client.asked
        id = asked.params["elicitationId"]
        client.wait_notification("notifications/elicitation/complete", elicitationId=id)
        assert len(client.said("notifications/elicitation/complete")) == 1


@pytest.mark.promise("B12")
def test_task_with_a_withdrawn_question_continues(hub: RunningHub) -> None:
    with connect(hub, "2025-11-25", "http") as client:
        client.answering = ignore_question
        called = {"name": "web.ask_and_leave", "arguments": {"withdraw": True}, "task": {}}
        made = client.request("tools/call", called)["result"]["task"]
        assert text_of(client.request("tasks/result", {"taskId": made["taskId"]})) == "went on"


@pytest.mark.promise("B12")
@pytest.mark.parametrize("server", ["web", "child"])
@pytest.mark.parametrize("kind", ["elicitation", "sampling", "roots"])
def test_client_refusal_reaches_the_server(hub: RunningHub, server: str, kind: str) -> None:
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


@pytest.mark.promise("B12")
def test_request_on_the_session_stream_is_answered(hub: RunningHub) -> None:
    """`roots` and `ping` are sent there by mcp 1.x, although it declares nothing that needs it."""
    with connect(hub, "2025-11-25", "http") as client:
        pinged = client.call("shared.ask_or_go_on", {"kind": "ping"})
        assert text_of(pinged) == "with an answer: {}"

        def answered() -> bool:  # the first question may be how the hub learns that it asks
            told = client.call("shared.ask_or_go_on", {"kind": "roots"})
            return text_of(told).startswith("with an answer: ")

        until(answered)


@pytest.mark.promise("B12")
def test_unattributed_log_lines_reach_clients_that_requested_logs(
    hub: RunningHub,
) -> None:
    def say(client: Client, level: str, text: str) -> None:
        arguments = {"level": level, "text": text}
        assert text_of(client.call("shared.log", arguments)) == "logged"

    plain: dict[str, Any] = {}
    with (
        connect(hub, "2025-11-25", "http", plain) as client,
        connect(hub, "2025-11-25", "http", plain) as other,
    ):
        client.request("logging/setLevel", {"level": "warning"})
        say(client, "info", "of no interest")
        say(client, "error", "of interest")
        received = client.wait_notification("notifications/message", data="of interest")
        assert received.params["level"] == "error" and received.params["logger"] == "talkative"
        grown = {"name": "logged", "announce": True}
        client.call("shared.grow", grown)  # what comes after that came before to both
        for one in (client, other):
            one.wait_notification("notifications/tools/list_changed")
        assert len(client.said("notifications/message")) == 1
        assert not other.said("notifications/message")


@pytest.mark.promise("B12")
@pytest.mark.parametrize("server", ["web", "child"])
def test_log_lines_of_a_client_session_reach_that_client(hub: RunningHub, server: str) -> None:
    with (
        connect(hub, "2025-11-25", "http") as client,
        connect(hub, "2025-11-25", "http") as other,
    ):
        other.request("logging/setLevel", {"level": "debug"})
        client.call(f"{server}.log", {"level": "info", "text": "mine"})
        client.wait_notification("notifications/message", data="mine")
        assert not other.said("notifications/message")
