"""The MCP server on a byte stream: framings, cancellation, change notifications, exposed tools."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.live.conftest import RunningHub
from tests.live.module_hub import run_module_hub, text_of, until
from tests.live.unix_client import UnixClient
from tests.peers import wire
from tests.peers.process import read_log, server_entry, wait_for_log


@pytest.fixture(scope="module")
def log(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("log") / "s.log"


@pytest.fixture(scope="module")
def hub(log: Path) -> Iterator[RunningHub]:
    servers = [
        server_entry("s", "sdk_server", "--log", log),
        server_entry("r", "faulty_server", "ok"),
    ]
    with run_module_hub(servers, '[mcp]\nstdio_expose = ["*"]\n') as running:
        running.wait_connected("s", "r")
        yield running


@pytest.fixture
def client(hub: RunningHub) -> Iterator[UnixClient]:
    with UnixClient(hub.home) as made:
        yield made


# --- the documented conversation


def frame_with_length(text: str) -> bytes:
    body = text.encode()
    return b"Content-Length: %d\r\n\r\n" % len(body) + body


@pytest.mark.promise("F4", "F6")
def test_documented_stdio_conversation_is_reproduced(hub: RunningHub) -> None:
    hello = """{
"jsonrpc": "2.0",
"id": 1,
"method": "initialize",
"params": {
"protocolVersion": "2024-11-05",
"capabilities": {},
"clientInfo": { "name": "cursor", "version": "1.0" }
}
}"""
    call = """{
"jsonrpc": "2.0",
"id": 3,
"method": "tools/call",
"params": {
"name": "mcp_r_echo",
"arguments": {
"text": "Review this Python function for security issues..."
}
}
}"""
    with hub.relay() as ide:
        ide.write(frame_with_length('{"jsonrpc":"2.0","id":1,"method":"initialize","params":{}}'))
        first = ide.frame()
        assert first.framing == "content-length"
        assert first.message["id"] == 1
        assert first.message["result"]["protocolVersion"] == "2024-11-05"
    with hub.relay() as ide:
        ide.write(frame_with_length(hello))
        answer = ide.frame()
        assert answer.framing == "content-length"
        assert answer.message["jsonrpc"] == "2.0" and answer.message["id"] == 1
        result = answer.message["result"]
        assert result["protocolVersion"] == "2024-11-05"
        assert "tools" in result["capabilities"]
        assert set(result["serverInfo"]) == {"name", "version"}
        ide.write(frame_with_length('{"jsonrpc":"2.0","method":"notifications/initialized"}'))
        ide.write(frame_with_length('{"jsonrpc":"2.0","id":2,"method":"tools/list","params":{}}'))
        listed = ide.frame()
        assert (listed.framing, listed.message["id"]) == ("content-length", 2), "no answer before"
        tools = {tool["name"]: tool for tool in listed.message["result"]["tools"]}
        assert set(tools["r_echo"]) == {"name", "description", "inputSchema"}
        ide.write(frame_with_length(call))
        called = ide.frame()
        assert called.framing == "content-length"
        assert called.message == {
            "jsonrpc": "2.0",
            "id": 3,
            "result": {
                "content": [
                    {"type": "text", "text": "Review this Python function for security issues..."}
                ]
            },
        }
        ide.write(
            frame_with_length('{"jsonrpc":"2.0","id":4,"method":"openfang/unknown","params":{}}')
        )
        unknown = ide.frame().message
        assert (unknown["id"], unknown["error"]["code"]) == (4, -32601)


# --- framings


@pytest.mark.promise("F4")
def test_framings_may_be_mixed_and_responses_match(client: UnixClient) -> None:
    for number, framing in enumerate(["newline", "content-length", "content-length", "newline"]):
        client.send(wire.request(number, "ping"), framing)
        assert client.frame() == wire.Frame(framing, {"jsonrpc": "2.0", "id": number, "result": {}})
    slow = {"name": "mcp_s_slow", "arguments": {"seconds": 0.2}}
    client.send(wire.request("slow", "tools/call", slow), "content-length")
    client.send(wire.request("quick", "ping"), "newline")
    assert (client.frame().framing, client.frame().framing) == ("newline", "content-length")


@pytest.mark.promise("F4")
def test_messages_are_split_and_joined_across_reads(client: UnixClient) -> None:
    ping = json.dumps(wire.request(1, "ping")).encode()
    head = b"content-length: %d\r\nContent-Type: application/json\r\n\r\n" % len(ping)
    stream = b"\n\r\n" + ping + b"\r\n" + head + ping + head + ping + ping + b"\n"
    client.write(stream)
    assert [client.frame().framing for _ in range(4)] == [
        "newline",
        "content-length",
        "content-length",
        "newline",
    ]
    for byte in stream:
        client.write(bytes([byte]))
    assert [client.frame().message["id"] for _ in range(4)] == [1] * 4


# --- requests and notifications


@pytest.mark.promise("F6")
def test_notifications_are_never_and_requests_always_answered(client: UnixClient) -> None:
    for method in ("notifications/initialized", "notifications/cancelled", "no/such", "ping"):
        for params in ({}, {"requestId": 99}, {"requestId": None}, {"requestId": [1]}):
            client.notify(method, params)
    client.notify("tools/call", {"name": "mcp_r_echo"})
    client.send({"jsonrpc": "2.0", "id": 77, "result": {}})
    assert client.silent()
    for method in ("notifications/initialized", "notifications/cancelled", "no/such"):
        assert client.request(method, {})["error"]["code"] == -32601
    assert client.request("ping")["result"] == {}


@pytest.mark.promise("F6", "F7")
def test_tools_are_usable_before_the_handshake(client: UnixClient) -> None:
    assert client.request("tools/list")["result"]["tools"]
    assert text_of(client.call("r.echo", {"text": "hi"})) == "hi"


@pytest.mark.promise("F7")
def test_both_eras_share_one_connection(client: UnixClient) -> None:
    client.initialize("2024-11-05")
    old = client.request("tools/list")["result"]
    new = client.request("tools/list", wire.modern_params())["result"]
    assert "resultType" not in old and new["resultType"] == "complete"
    assert client.request("tools/list")["result"] == old


@pytest.mark.promise("F6")
def test_ids_of_every_type_are_returned_unchanged(client: UnixClient) -> None:
    for id in (0, -1, 2**53, 2**70, 1.5, "", "é", "1", "x" * 10_000):
        client.send(wire.request(id, "ping"))
        answer = client.read()
        assert answer == {"jsonrpc": "2.0", "id": id, "result": {}}
        assert type(answer["id"]) is type(id)


@pytest.mark.promise("F6")
def test_duplicate_running_id_is_refused(client: UnixClient) -> None:
    slow = {"name": "mcp_s_slow", "arguments": {"seconds": 0.3}}
    client.send(wire.request(1, "tools/call", slow))
    client.send(wire.request(1, "tools/call", slow))
    refused, answered = client.read(), client.read()
    assert refused["error"]["code"] == -32600 and "still running" in refused["error"]["message"]
    assert text_of(answered) == "slept 0.3"
    client.send(wire.request(1, "tools/call", slow))
    client.send(wire.request("1", "tools/call", slow))
    client.send(wire.request(1.0, "ping"))
    got = [client.read() for _ in range(3)]
    assert all("result" in answer for answer in got), got
    assert sorted(repr(answer["id"]) for answer in got) == ["'1'", "1", "1.0"]


@pytest.mark.promise("F6", "F7")
def test_batches_are_answered_in_2025_03_26_and_refused_elsewhere(hub: RunningHub) -> None:
    batch = [
        wire.request(1, "ping"),
        wire.notification("x"),
        wire.request(2, "tools/call", {"name": "mcp_r_echo", "arguments": {"text": "b"}}),
        7,
    ]
    for version in ("2024-11-05", "2025-03-26", "2025-06-18", "2025-11-25"):
        with UnixClient(hub.home) as client:
            client.initialize(version)
            client.send(batch)
            answer = client.read()
            if version == "2025-03-26":
                assert [one["id"] for one in answer] == [1, 2, None]
                assert text_of(answer[1]) == "b"
            else:
                assert answer["error"]["code"] == -32600 and answer["id"] is None
            assert client.request("ping")["result"] == {}


@pytest.mark.promise("F6", "F7", "B12")
def test_batch_members_count_individually(hub: RunningHub, client: UnixClient, log: Path) -> None:
    client.request("initialize", wire.initialize_params("2025-03-26"))
    steps = {"name": "s.progress", "arguments": {"steps": 1}, "_meta": {"progressToken": "p"}}
    client.send(
        [
            wire.notification("notifications/initialized"),
            wire.request("batched", "tools/call", steps),
        ]
    )
    told = client.read()
    assert told["method"] == "notifications/progress" and told["params"]["progressToken"] == "p"
    assert text_of(client.read()[0]) == "1 steps"
    started, stopped = (
        sum(e.get("event") == event for e in read_log(log)) for event in ("started", "cancelled")
    )
    slow = {"name": "s.slow", "arguments": {"seconds": 30}}
    client.send(wire.request("long", "tools/call", slow))
    wait_for_log(log, count=started + 1, event="started", name="slow")
    client.send([wire.notification("notifications/cancelled", {"requestId": "long"})])
    wait_for_log(log, count=stopped + 1, event="cancelled", name="slow")
    assert client.silent()


# --- cancelling, progress, changes


@pytest.mark.promise("B12", "F6")
def test_cancelled_request_is_unanswered_and_cancelled_upstream(
    client: UnixClient, hub: RunningHub, log: Path
) -> None:
    slow = {"name": "mcp_s_slow", "arguments": {"seconds": 30}}
    started, stopped = (
        sum(e.get("event") == event for e in read_log(log)) for event in ("started", "cancelled")
    )
    for number, modern in enumerate((False, True)):
        params = wire.modern_params(slow) if modern else slow
        client.send(wire.request("long", "tools/call", params))
        wait_for_log(log, count=started + number + 1, event="started", name="slow")
        client.notify("notifications/cancelled", {"requestId": "long", "reason": "enough"})
        wait_for_log(log, count=stopped + number + 1, event="cancelled", name="slow")
    assert client.silent()
    assert client.notifications == []
    outcomes = [r["outcome"] for r in hub.audit() if r["verb"] == "s.slow"]
    assert outcomes[-2:] == ["cancelled", "cancelled"]


@pytest.mark.promise("F6")
def test_request_cancelled_in_the_same_read_leaves_nothing(
    client: UnixClient,
) -> None:
    slow = wire.request(5, "tools/call", {"name": "mcp_s_slow", "arguments": {"seconds": 30}})
    cancel = wire.notification("notifications/cancelled", {"requestId": 5})
    for _ in range(3):
        client.write(b"".join(json.dumps(one).encode() + b"\n" for one in (slow, cancel)))
    assert client.silent()
    client.send(wire.request(5, "tools/call", {"name": "mcp_r_echo", "arguments": {"text": "5"}}))
    assert text_of(client.read()) == "5"


@pytest.mark.promise("B12", "F6")
def test_disconnect_cancels_running_requests(hub: RunningHub, log: Path) -> None:
    stopped = sum(e.get("event") == "cancelled" for e in read_log(log))
    with UnixClient(hub.home) as client:
        started = sum(e.get("event") == "started" for e in read_log(log))
        slow = {"name": "mcp_s_slow", "arguments": {"seconds": 30}}
        client.send(wire.request(1, "tools/call", slow))
        wait_for_log(log, count=started + 1, event="started", name="slow")
    wait_for_log(log, count=stopped + 1, event="cancelled", name="slow")


@pytest.mark.promise("B12", "F6")
def test_progress_precedes_the_response_only_if_requested(
    client: UnixClient,
) -> None:
    client.initialize()
    three = {"steps": 3}
    assert text_of(client.call("mcp_s_progress", three)) == "3 steps"
    assert client.notifications == []
    answer = client.call("mcp_s_progress", three, _meta={"progressToken": 7})
    assert text_of(answer) == "3 steps"
    told = [n["params"] for n in client.notifications]
    assert [(t["progressToken"], t["progress"], t["total"]) for t in told] == [
        (7, 1, 3),
        (7, 2, 3),
        (7, 3, 3),
    ]


@pytest.mark.promise("Q2", "B7", "F6")
def test_list_change_is_announced_only_to_initialized_clients(
    hub: RunningHub,
) -> None:
    with UnixClient(hub.home) as told, UnixClient(hub.home) as silent, UnixClient(hub.home) as new:
        told.initialize()
        silent.request("initialize", wire.initialize_params())
        new.request("tools/list", wire.modern_params())
        assert told.call("mcp_s_toggle")
        if not told.notifications:
            told.notifications.append(told.read())
        assert [n["method"] for n in told.notifications] == ["notifications/tools/list_changed"]
        assert "id" not in told.notifications[0]
        assert silent.silent() and new.silent()
        names = {tool["name"] for tool in told.request("tools/list")["result"]["tools"]}
        assert told.call("mcp_s_toggle")
        while len(told.notifications) < 2:
            told.notifications.append(told.read())
        after = {tool["name"] for tool in told.request("tools/list")["result"]["tools"]}
        assert names ^ after == {"mcp_s_toggled"}


# --- what is shown


@pytest.mark.promise("F3")
def test_stdio_exposes_nothing_by_default_and_matching_globs_otherwise(
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    servers = [
        server_entry("one", "faulty_server", "ok"),
        server_entry("two", "faulty_server", "ok"),
    ]

    def seen(client: UnixClient) -> list[str]:
        return sorted(one["name"] for one in client.request("tools/list")["result"]["tools"])

    with run_module_hub(servers) as hub:
        hub.wait_connected("one", "two")
        with UnixClient(hub.home) as client:
            client.initialize()
            assert seen(client) == []
            for name in ("mcp_one_echo", "one.echo"):
                refused = client.call(name, {"text": "x"})
                assert refused["error"]["code"] == -32602
                assert f'there is no tool "{name}"' in refused["error"]["message"]
            assert len(hub.rpc("tools/list")["result"]["tools"]) == 6, "HTTP shows them all"
            file = hub.home / "config.toml"
            written = file.read_text(encoding="utf-8")

            for globs, names in (
                (["two.*"], ["mcp_two_echo", "mcp_two_pid", "mcp_two_slow"]),
                (["mcp_one_[ep]*", "two.slow"], ["mcp_one_echo", "mcp_one_pid", "mcp_two_slow"]),
                (["nothing"], []),
            ):
                setting = f"[mcp]\nstdio_expose = {json.dumps(globs)}\n"
                file.write_text(setting + written, encoding="utf-8")

                def are_seen(names: list[str] = names) -> bool:
                    return seen(client) == names

                until(are_seen)
                for name in ("one.echo", "two.slow", "mcp_two_pid"):
                    answer = client.call(name, {"seconds": 0})
                    alias = "mcp_" + name.replace(".", "_") if "." in name else name
                    assert ("result" in answer) == (alias in names), (name, globs)
        outcomes = [(r["asked_as"], r["outcome"]) for r in hub.audit()]
        assert outcomes[:2] == [("mcp_one_echo", "not_found"), ("one.echo", "not_found")]
        assert len(outcomes) == 2 + 3 * 3


@pytest.mark.promise("O1")
def test_unix_socket_clients_are_the_owner_and_audited_once(
    hub: RunningHub, client: UnixClient
) -> None:
    assert client.greeting["pid"] == hub.pid
    before = len(hub.audit())
    begun = time.monotonic()
    for number in range(50):
        client.send(
            wire.request(
                number, "tools/call", {"name": "mcp_r_echo", "arguments": {"text": str(number)}}
            )
        )
    answers = {answer["id"]: text_of(answer) for answer in (client.read() for _ in range(50))}
    assert answers == {number: str(number) for number in range(50)}
    assert time.monotonic() - begun < 30
    records: list[dict[str, Any]] = hub.audit()[before:]
    assert [(r["door"], r["caller"], r["outcome"]) for r in records] == [
        ("mcp-stdio", "owner:owner", "completed")
    ] * 50
