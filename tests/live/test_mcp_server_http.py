"""The MCP server over HTTP: sessions, streams, statuses, headers; raw requests to the real hub."""

from __future__ import annotations

import json
import socket
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from tests.live.conftest import RunningHub
from tests.live.module_hub import run_module_hub, text_of, until
from tests.peers import wire
from tests.peers.process import read_log, server_entry, wait_for_log

KEYS = {"alice": "", "bob": ""}
"""Filled in when the hub is up."""


@pytest.fixture(scope="module")
def log(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("log") / "s.log"


@pytest.fixture(scope="module")
def hub(log: Path) -> Iterator[RunningHub]:
    with run_module_hub(
        [server_entry("s", "sdk_server", "--log", log)], 'api_key = "the owner of this hub"\n'
    ) as running:
        for name in KEYS:
            done = running.command("keys", "create", name, "--json")
            assert done.returncode == 0, done.stderr
            KEYS[name] = json.loads(done.stdout)["key"]
        running.wait_connected("s")
        yield running


def key(name: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {KEYS[name]}"}


def post(hub: RunningHub, message: Any, **headers: str) -> wire.Answer:
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return wire.post(hub.mcp_url, message, {**hub.headers, **named})


LIST = wire.request(1, "tools/list")
INITIALIZE = wire.request(1, "initialize", wire.initialize_params())


# --- sessions


@pytest.mark.promise("G2")
def test_session_is_created_at_initialize_and_ended_by_delete(hub: RunningHub) -> None:
    session = wire.Session(hub.mcp_url, headers=hub.headers)
    assert session.headers["Mcp-Session-Id"].isalnum()
    assert session.request("tools/list")["result"]["tools"]
    assert session.post(wire.notification("notifications/x")).status == 202
    assert wire.http_request("DELETE", hub.mcp_url, None, session.headers).status == 200
    for _ in range(2):
        answer = session.post(LIST)
        assert answer.status == 404
        assert answer.json()["id"] == 1 and "initialize" in answer.json()["error"]["message"]
        assert wire.http_request("DELETE", hub.mcp_url, None, session.headers).status == 404
        assert wire.get(hub.mcp_url, {**session.headers, "Accept": "*/*"}).status == 404


@pytest.mark.promise("G2")
@pytest.mark.parametrize(
    ("message", "status", "minted"),
    [
        (INITIALIZE, 200, True),
        (wire.request("x", "initialize", {}), 200, True),
        (wire.request(1, "initialize"), 200, True),
        (wire.notification("initialize", {}), 202, False),
        ({"id": 1, "method": "initialize", "params": {}}, 400, False),
        ({**INITIALIZE, "params": []}, 400, False),
        ({**INITIALIZE, "id": None}, 400, False),
        ([INITIALIZE], 200, False),  # no session begins in a batch
        (LIST, 200, False),
    ],
)
def test_only_a_valid_initialize_creates_a_session(
    hub: RunningHub, message: Any, status: int, minted: bool
) -> None:
    answer = post(hub, message)
    assert answer.status == status, answer.body
    assert ("mcp-session-id" in answer.headers) == minted
    assert bool(answer.body) == (status != 202)


@pytest.mark.promise("G2", "O1")
def test_session_is_bound_to_its_key(hub: RunningHub) -> None:
    session = wire.Session(hub.mcp_url, headers=key("alice"))
    stolen = {**session.headers, **key("bob")}
    assert wire.post(hub.mcp_url, LIST, stolen).status == 404
    assert wire.get(hub.mcp_url, {**stolen, "Accept": "text/event-stream"}).status == 404
    assert wire.http_request("DELETE", hub.mcp_url, None, stolen).status == 404
    assert wire.post(hub.mcp_url, LIST, {**session.headers, **hub.headers}).status == 404
    assert "result" in session.request("tools/list")
    id = session.headers["Mcp-Session-Id"]
    for forged in (id[:-1] + ("0" if id[-1] != "0" else "1"), "3" + id[1:] + "0", "x", "\xb2" * 65):
        changed = {**session.headers, "Mcp-Session-Id": forged}
        assert wire.post(hub.mcp_url, LIST, changed).status == 404, forged


@pytest.mark.promise("G2", "B7")
def test_session_survives_a_restart(another_hub: Callable[..., RunningHub]) -> None:
    first = another_hub()
    port = first.url.rpartition(":")[2]
    session = wire.Session(first.mcp_url, "2025-06-18")
    assert first.stop() == 0
    second = another_hub(home=first.home, args=["--port", port])
    assert session.request("tools/list")["result"] == {"tools": []}
    assert session.post([LIST]).status == 400, "it is still of its revision, which has no batches"
    assert second.api("/api/status")["clients"]["http_sessions"] == 1


@pytest.fixture
def another_hub(short_tmp: Path) -> Iterator[Callable[..., RunningHub]]:
    started: list[RunningHub] = []

    def start(home: Path | None = None, args: list[str] | None = None) -> RunningHub:
        place = home or short_tmp / "h"
        if home is None:
            place.mkdir(mode=0o700)
            (place / "config.toml").write_text("[server]\nport = 0\n", encoding="utf-8")
        started.append(RunningHub(place, args or [], {}))
        return started[-1]

    yield start
    problems = [problem for one in started for problem in one.finish()]
    assert not problems, "\n".join(problems)


# --- the stream


@pytest.mark.promise("Q2", "G2", "B7")
def test_stream_announces_a_changed_list_once(hub: RunningHub) -> None:
    session = wire.Session(hub.mcp_url, headers=hub.headers)
    with (
        wire.stream("GET", hub.mcp_url, headers=session.headers) as first,
        wire.stream("GET", hub.mcp_url, headers=session.headers) as second,
    ):
        assert first.status == second.status == 200
        assert first.headers["content-type"] == "text/event-stream"
        assert text_of(hub.call("mcp_s_toggle")) in {"added", "removed"}
        assert first.next_json()["method"] == "notifications/tools/list_changed"
        assert wire.http_request("DELETE", hub.mcp_url, None, session.headers).status == 200
        for stream in (first, second):  # ended cleanly, and the second received nothing
            with pytest.raises(EOFError):
                stream.next_json()


@pytest.mark.promise("N1")
def test_streams_per_session_are_bounded_and_freed_on_close(hub: RunningHub) -> None:
    session = wire.Session(hub.mcp_url, headers=hub.headers)
    headers = {**session.headers, "Accept": "text/event-stream"}
    opened = [raw_stream(hub, headers) for _ in range(4)]
    assert wire.get(hub.mcp_url, headers).status == 409
    opened.pop().close()

    def room() -> bool:
        probe = raw_stream(hub, headers)
        first = probe.recv(64)
        probe.close()
        return b" 200 " in first

    until(room)
    for one in opened:
        one.close()


def raw_stream(hub: RunningHub, headers: dict[str, str]) -> socket.socket:
    port = int(hub.url.rpartition(":")[2])
    raw = socket.create_connection(("127.0.0.1", port), timeout=60)
    lines = ["GET /mcp HTTP/1.1", "Host: localhost", *(f"{k}: {v}" for k, v in headers.items())]
    raw.sendall("\r\n".join([*lines, "", ""]).encode())
    return raw


# --- methods, types, statuses


@pytest.mark.promise("G2")
def test_unsupported_methods_and_media_types_are_refused(hub: RunningHub) -> None:
    session = wire.Session(hub.mcp_url, headers=hub.headers)

    def ask(method: str, body: bytes | None = None, **headers: str) -> int:
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        sent = {**hub.headers, **named}
        return wire.http_request(method, hub.mcp_url, body, sent).status

    assert ask("GET") == ask("GET", Accept="text/event-stream") == 405
    assert ask("DELETE") == ask("PUT", b"{}") == ask("PATCH") == ask("OPTIONS") == 405
    sessions: dict[str, Any] = {"Mcp_Session_Id": session.headers["Mcp-Session-Id"]}
    assert ask("GET", Accept="application/json", **sessions) == 406
    assert ask("GET", **sessions) == 406
    modern: dict[str, Any] = {"Mcp_Protocol_Version": wire.MODERN}
    assert ask("GET", Accept="text/event-stream", **sessions, **modern) == 405
    assert ask("DELETE", **sessions, **modern) == 405
    body = json.dumps(LIST).encode()
    assert ask("POST", body) == ask("POST", body, Content_Type="text/plain") == 415
    assert ask("POST", body, Content_Type="application/json", Accept="text/html") == 406
    assert ask("POST", body, Content_Type="Application/JSON; charset=utf-8") == 200
    assert ask("POST", body, Content_Type="application/json", Accept="*/*") == 200
    assert wire.get(hub.mcp_url, hub.headers).headers["allow"] == "POST"


@pytest.mark.promise("F6", "G2")
@pytest.mark.parametrize(
    "message",
    [
        wire.notification("notifications/initialized"),
        wire.notification("notifications/cancelled", {"requestId": 1}),
        wire.notification("no/such"),
        wire.notification("tools/list"),
        {"jsonrpc": "2.0", "id": 1, "result": {}},
        {"jsonrpc": "2.0", "id": 1, "error": {"code": 1, "message": "m"}},
    ],
)
@pytest.mark.parametrize("version", [None, "2025-03-26", wire.MODERN])
def test_notifications_get_202(hub: RunningHub, message: Any, version: str | None) -> None:
    answer = post(hub, message, **({"Mcp_Protocol_Version": version} if version else {}))
    assert (answer.status, answer.body) == (202, b"")


# --- JSON or a stream

ECHO = {"name": "mcp_s_echo", "arguments": {"text": "x"}}
PROGRESS = {"name": "mcp_s_progress", "arguments": {"steps": 2}, "_meta": {"progressToken": "p"}}


@pytest.mark.promise("G2")
@pytest.mark.parametrize("era", ["modern", "legacy"])
def test_response_is_json_where_possible_and_a_stream_where_needed(
    hub: RunningHub, era: str
) -> None:
    def ask(method: str, params: dict[str, Any], accept: str) -> wire.Answer:
        if era == "modern":
            accepting = {**hub.headers, "Accept": accept}
            return wire.modern_request(hub.mcp_url, method, params, accepting)
        return post(hub, wire.request(1, method, params), Accept=accept)

    both = "application/json, text/event-stream"
    for accept, kind in (
        (both, "application/json"),
        ("application/json", "application/json"),
        ("*/*", "application/json"),
        ("text/event-stream", "text/event-stream"),
    ):
        for method, params in (("tools/call", ECHO), ("tools/list", {})):
            answer = ask(method, params, accept)
            assert answer.headers["content-type"] == kind, (method, accept)
            assert "result" in answer.rpc()
    streamed = ask("tools/call", PROGRESS, both)
    assert streamed.headers["content-type"] == "text/event-stream"
    assert [m.get("method") for m in streamed.messages()] == [
        *["notifications/progress"] * 2,
        None,
    ]
    plain = ask("tools/call", PROGRESS, "application/json")
    assert plain.headers["content-type"] == "application/json"
    assert text_of(plain.rpc()) == "2 steps"


@pytest.mark.promise("G2")
def test_initialize_may_be_answered_in_a_stream(hub: RunningHub) -> None:
    answer = post(hub, INITIALIZE, Accept="text/event-stream")
    assert answer.headers["content-type"] == "text/event-stream"
    assert answer.headers["mcp-session-id"]
    assert answer.rpc()["result"]["protocolVersion"] == wire.LEGACY


@pytest.mark.promise("B12")
def test_progress_arrives_during_the_call(hub: RunningHub) -> None:
    params = {**PROGRESS, "arguments": {"steps": 2, "pause": 0.5}}
    sent = {**hub.headers, **wire.modern_headers("tools/call", params)}
    message = wire.request(1, "tools/call", wire.modern_params(params))
    with wire.stream("POST", hub.mcp_url, message, sent) as stream:
        first = stream.next_json()
        came = time.monotonic()
        assert first["params"] == {
            "progressToken": "p",
            "progress": 1,
            "total": 2,
            "message": "step 1",
        }
        while "result" not in stream.next_json():
            pass
        assert time.monotonic() - came > 0.3  # kept back, both would come together


# --- going away


@pytest.mark.promise("G2", "B12")
def test_modern_disconnect_cancels_upstream_and_legacy_does_not(hub: RunningHub, log: Path) -> None:
    slow = {"name": "mcp_s_slow", "arguments": {"seconds": 3}}
    port = int(hub.url.rpartition(":")[2])

    def hang_up(message: dict[str, Any], headers: dict[str, str], count: int) -> None:
        body = json.dumps(message).encode()
        sent = {**hub.headers, **headers, "Content-Type": "application/json"}
        lines = ["POST /mcp HTTP/1.1", "Host: localhost", f"Content-Length: {len(body)}"]
        lines += [f"{name}: {value}" for name, value in sent.items()]
        with socket.create_connection(("127.0.0.1", port)) as raw:
            raw.sendall("\r\n".join([*lines, "", ""]).encode() + body)
            wait_for_log(log, count=count, event="started", name="slow")

    begun = sum(e.get("event") == "started" for e in read_log(log))
    hang_up(wire.request(1, "tools/call", slow), {}, begun + 1)
    params = wire.modern_params(slow)
    headers = wire.modern_headers("tools/call", slow)
    hang_up(wire.request(2, "tools/call", params), headers, begun + 2)
    wait_for_log(log, event="cancelled", name="slow")
    wait_for_log(log, event="finished", name="slow")
    assert sum(e.get("event") == "cancelled" for e in read_log(log)) == 1
    outcomes = [r["outcome"] for r in hub.audit() if r["verb"] == "s.slow"]
    assert sorted(outcomes) == ["cancelled", "completed"]


@pytest.mark.promise("B12", "F6")
def test_legacy_client_cancels_by_notification(hub: RunningHub, log: Path) -> None:
    started, stopped = (
        sum(e.get("event") == event for e in read_log(log)) for event in ("started", "cancelled")
    )
    session = wire.Session(hub.mcp_url, headers=hub.headers)
    other = wire.Session(hub.mcp_url, headers=hub.headers)
    slow = {"name": "mcp_s_slow", "arguments": {"seconds": 30}}
    with ThreadPoolExecutor(2) as pool:
        for number, more in enumerate(({}, {"_meta": {"progressToken": 1}})):
            asked = wire.request("long", "tools/call", {**slow, **more})
            waiting = pool.submit(session.post, asked, 20)
            wait_for_log(log, count=started + number + 1, event="started", name="slow")
            wrong = wire.notification("notifications/cancelled", {"requestId": "another"})
            cancel = wire.notification("notifications/cancelled", {"requestId": "long"})
            assert session.post(wrong).status == other.post(cancel).status == 202
            assert not waiting.done()
            assert session.post(cancel).status == 202
            wait_for_log(log, count=stopped + number + 1, event="cancelled", name="slow")
            assert waiting.result(5).rpc()["error"]["code"] == -32800
    assert session.request("tools/list")["result"]["tools"]
    outcomes = [r["outcome"] for r in hub.audit() if r["verb"] == "s.slow"]
    assert outcomes[-2:] == ["cancelled", "cancelled"]


# --- lists


@pytest.mark.promise("G1")
def test_list_bytes_are_shared_until_the_catalog_changes(hub: RunningHub) -> None:
    def bodies() -> set[bytes]:
        with ThreadPoolExecutor(4) as pool:
            return set(pool.map(lambda _: post(hub, LIST).body, range(8)))

    (before,) = bodies()
    names = [tool["name"] for tool in json.loads(before)["result"]["tools"]]
    offered = hub.api("/api/tools")["tools"]
    assert [tool["id"] for tool in offered] == sorted(tool["id"] for tool in offered)
    assert sorted(names) == sorted(tool["name"] for tool in offered)
    hub.call("mcp_s_toggle")
    until(lambda: post(hub, LIST).body != before)
    hub.call("mcp_s_toggle")
    until(lambda: post(hub, LIST).body == before)
    refused = post(hub, wire.request(1, "tools/list", {"cursor": "none of ours"}))
    assert refused.json()["error"]["code"] == -32602


@pytest.mark.promise("G1")
def test_every_http_call_is_audited_once(hub: RunningHub) -> None:
    """Last in this file: it counts what the tests before it did."""
    assert {record["door"] for record in hub.audit()} - {"files"} == {"mcp-http"}
    before = len(hub.audit())
    for name, arguments in (("mcp_s_echo", {"text": "x"}), ("mcp_s_echo", {}), ("no.such", {})):
        hub.call(name, arguments)
        post(hub, wire.request(1, "tools/call", {"name": name, "arguments": arguments}))
    records = hub.audit()[before:]
    outcomes = [(r["asked_as"], r["outcome"]) for r in records]
    assert sorted(outcomes) == sorted(
        [
            *[("mcp_s_echo", "completed")] * 2,
            *[("mcp_s_echo", "invalid")] * 2,
            *[("no.such", "not_found")] * 2,
        ]
    )
    assert {r["caller"] for r in records} == {"key:api_key"}
