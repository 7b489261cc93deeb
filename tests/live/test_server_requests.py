"""What a server says to its client of itself, through the hub: requests, and lines of its log."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from typing import Any

import pytest
from tests.live.conftest import RunningHub
from tests.live.lasting import lasting_hub, text_of, until
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
            server_entry("shared", "http", peer.url),
        ]
        running = stack.enter_context(lasting_hub(entries))
        running.wait_connected("web", "child", "shared")
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
@pytest.mark.parametrize("server", ["web", "child"])
def test_a_client_hears_that_its_user_was_at_the_address(hub: RunningHub, server: str) -> None:
    """Some clients answer only then."""
    with connect(hub, "2025-11-25", "http") as client:
        client.answering = never
        assert text_of(client.call(f"{server}.send_away", {})) == "went on"
        (asked,) = client.asked
        id = asked.params["elicitationId"]
        client.until_heard("notifications/elicitation/complete", elicitationId=id)
        assert len(client.said("notifications/elicitation/complete")) == 1


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


@pytest.mark.promise("B12")
def test_what_a_server_asks_on_the_stream_of_its_session_is_answered(hub: RunningHub) -> None:
    """`roots` and `ping` are sent there by mcp 1.x, although it declares nothing that needs it."""
    with connect(hub, "2025-11-25", "http") as client:
        pinged = client.call("shared.ask_or_go_on", {"kind": "ping"})
        assert text_of(pinged) == "with an answer: {}"

        def answered() -> bool:  # the first question may be how the hub learns that it asks
            told = client.call("shared.ask_or_go_on", {"kind": "roots"})
            return text_of(told).startswith("with an answer: ")

        until(answered)


@pytest.mark.promise("B12")
def test_lines_of_a_log_that_belong_to_no_call_reach_clients_that_asked_for_them(
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
        heard = client.until_heard("notifications/message", data="of interest")
        assert heard.params["level"] == "error" and heard.params["logger"] == "talkative"
        grown = {"name": "logged", "announce": True}
        client.call("shared.grow", grown)  # what comes after that came before to both
        for one in (client, other):
            one.until_heard("notifications/tools/list_changed")
        assert len(client.said("notifications/message")) == 1
        assert not other.said("notifications/message")


@pytest.mark.promise("B12")
@pytest.mark.parametrize("server", ["web", "child"])
def test_lines_of_a_log_on_a_connection_of_its_own_are_that_clients(
    hub: RunningHub, server: str
) -> None:
    with (
        connect(hub, "2025-11-25", "http") as client,
        connect(hub, "2025-11-25", "http") as other,
    ):
        other.request("logging/setLevel", {"level": "debug"})
        client.call(f"{server}.log", {"level": "info", "text": "mine"})
        client.until_heard("notifications/message", data="mine")
        assert not other.said("notifications/message")
