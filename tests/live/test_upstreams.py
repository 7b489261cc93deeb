"""One hub and servers of every kind: definitions and results reach every client."""

from __future__ import annotations

import json
import os
import socket
import time
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from tests.live.conftest import RunningHub
from tests.live.module_hub import (
    ERROR_KEY,
    error_kind,
    error_text,
    modern_stream,
    run_concurrently,
    run_module_hub,
    state_of,
    text_of,
    tools_of,
    until,
    wait_failure_reason,
)
from tests.peers import wire
from tests.peers.process import (
    HttpPeer,
    processes_at_home,
    read_log,
    server_entry,
    wait_for_log,
)

from dragoman.processes.child_process import CACHES, COMMON_VARIABLES

ALL = ("stdio-new", "stdio-old", "http-new", "http-old", "sse-old", "mcp1")
SDK = ("stdio-new", "stdio-old", "http-new", "http-old", "sse-old")
TIMEOUT = 1.6


@dataclass
class HubRig:
    hub: RunningHub
    logs: Path
    modern: HttpPeer
    legacy: HttpPeer
    sse: HttpPeer
    connect_seconds: float

    def log(self, server: str) -> Path:
        return self.logs / f"{server}.log"


@pytest.fixture(scope="module")
def rig(tmp_path_factory: pytest.TempPathFactory) -> Iterator[HubRig]:
    logs = tmp_path_factory.mktemp("logs")

    def log(server: str) -> tuple[str, Path]:
        return "--log", logs / f"{server}.log"

    with ExitStack() as stack:
        sdk = ("sdk_server", "--transport", "http", "--era")
        modern = stack.enter_context(HttpPeer(*sdk, "modern", *log("http-new")))
        legacy = stack.enter_context(HttpPeer(*sdk, "legacy", *log("http-old")))
        sse = stack.enter_context(HttpPeer("sdk_server", "--transport", "sse", *log("sse-old")))
        plain = stack.enter_context(HttpPeer("faulty_http"))
        name = socket.gethostname()  # a name that leads to a loopback address
        servers = [
            server_entry("hangs", "faulty_server", "hang"),
            server_entry("stdio-new", "sdk_server", *log("stdio-new"), env=["NAMED", "UNSET"]),
            server_entry(
                "stdio-old", "sdk_server", "--era", "legacy", "--page-size", 5, "--malformed",
                *log("stdio-old"), timeout_secs=TIMEOUT,
            ),
            server_entry(
                "http-new", "http", modern.url,
                transport={"headers": {"X-Secret": "key ${SECRET}"}},
            ),
            server_entry("http-old", "http", legacy.url),
            server_entry("sse-old", "sse", sse.url, transport={"headers": ["X-Secret: ${SECRET}"]}),
            server_entry("mcp1", "mcp1_server"),
            server_entry("streamable-as-sse", "sse", legacy.url, timeout_secs=TIMEOUT),
            server_entry("modern-as-sse", "sse", modern.url, timeout_secs=TIMEOUT),
            server_entry("sse-as-http", "http", sse.url, timeout_secs=TIMEOUT),
            server_entry("my-server", "faulty_server", "ok", *log("my-server")),
            server_entry("slow-start", "faulty_server", "slow-start", "--seconds", 4),
            server_entry("old-hang", "faulty_server", "old-hang"),
            server_entry("no-such-program", "stdio", "no-such-program-anywhere"),
            server_entry("lacks", "http", legacy.url, transport={"headers": {"X-A": "${ABSENT}"}}),
            server_entry("inside", "http", f"http://{name}:{plain.port}/ok"),
            server_entry(
                "inside-allowed", "http", f"http://{name}:{plain.port}/ok",
                transport={"allow_private": True},
            ),
            server_entry("by-localhost", "http", f"http://localhost:{plain.port}/ok"),
        ]  # fmt: skip
        env = {"SECRET": "s3cret", "NAMED": "named value", "UNNAMED": "not for children"}
        limits = "[limits]\ntool_timeout_secs = 2\nresult_chars = 10000\n"
        config = f'{limits}[mcp]\nstdio_expose = ["*"]\n'
        begun = time.monotonic()
        hub = stack.enter_context(run_module_hub(servers, config, env))
        hub.wait_connected(*ALL, "my-server")
        yield HubRig(hub, logs, modern, legacy, sse, time.monotonic() - begun)


# --- starting


@pytest.mark.promise("B5")
def test_servers_connect_concurrently_and_a_hanging_one_delays_none(rig: HubRig) -> None:
    assert rig.connect_seconds < 55  # seven programs, and one of them would hang for 60 s
    hangs = state_of(rig.hub, "hangs")
    assert (hangs["connected"], hangs["state"]) == (False, "starting")
    failed = state_of(rig.hub, "no-such-program")
    assert failed["state"] in ("failed", "starting")
    until(lambda: "was not found on the PATH" in state_of(rig.hub, "no-such-program")["reason"])


@pytest.mark.promise("B5")
def test_the_hub_serves_before_its_servers_are_connected(short_tmp: Path, hub: Any) -> None:
    running = hub([server_entry("late", "faulty_server", "slow-start", "--seconds", 1.5)])
    assert state_of(running, "late")["state"] == "starting"
    assert running.api("/api/tools")["tools"] == []
    # The first list waits for those that are starting.
    names = [tool["name"] for tool in running.rpc("tools/list")["result"]["tools"]]
    assert sorted(names) == ["mcp_late_echo", "mcp_late_pid", "mcp_late_slow"]


@pytest.mark.promise("B5")
def test_late_and_incomplete_servers_are_connected(
    rig: HubRig,
) -> None:
    rig.hub.wait_connected("slow-start", "old-hang", timeout=60)
    assert text_of(rig.hub.call("mcp_old_hang_echo", {"text": "old"})) == "old"
    assert state_of(rig.hub, "old-hang")["protocol_version"] == "2024-11-05"
    assert text_of(rig.hub.call("mcp_slow_start_echo", {"text": "late"})) == "late"


@pytest.mark.promise("B5")
def test_call_waits_for_a_starting_server(hub: Any) -> None:
    entry = server_entry("late", "faulty_server", "slow-start", "--seconds", 1)
    running = hub([entry, server_entry("ok", "faulty_server", "ok")])
    running.wait_connected("late")
    pid = int(text_of(running.call("late.pid")))
    os.kill(pid, 9)
    until(lambda: state_of(running, "late")["state"] == "starting")
    again = int(text_of(running.call("late.pid")))  # its tools stay listed meanwhile
    assert again != pid


@pytest.mark.promise("B5")
def test_the_number_of_tools_is_logged(rig: HubRig) -> None:
    total = rig.hub.api("/api/status")["tools"]
    assert f"{total} tools in all" in rig.hub.log()


@pytest.mark.promise("B5")
def test_every_page_of_a_list_is_read(rig: HubRig) -> None:
    # five a page; stdio-new has the same tools on one page
    assert state_of(rig.hub, "stdio-old")["tools_count"] == 16
    lists = [e for e in read_log(rig.log("stdio-old")) if e.get("method") == "tools/list"]
    assert len(lists) >= 4
    paged = [name.replace("old", "new") for name in tools_of(rig.hub, "stdio-old")]
    assert paged == tools_of(rig.hub, "stdio-new")


@pytest.mark.promise("B5")
def test_malformed_tool_is_omitted_alone_and_reported(rig: HubRig) -> None:
    problems = state_of(rig.hub, "stdio-old")["problems"]
    assert problems == ["tool 17 is omitted: its name is not a string of 1 to 256 characters"]
    assert text_of(rig.hub.call("stdio-old.echo", {"text": "still there"})) == "still there"


def test_each_server_gets_its_newest_revision(rig: HubRig) -> None:
    versions = {name: state_of(rig.hub, name)["protocol_version"] for name in ALL}
    assert versions == {
        "stdio-new": "2026-07-28",
        "http-new": "2026-07-28",
        "stdio-old": "2025-11-25",
        "http-old": "2025-11-25",
        "sse-old": "2025-11-25",
        "mcp1": "2025-11-25",
    }


@pytest.mark.promise("B2")
@pytest.mark.parametrize(
    ("server", "era"),
    [("streamable-as-sse", "legacy"), ("modern-as-sse", "modern"), ("sse-as-http", "legacy")],
)
def test_url_of_the_other_http_transport_is_detected(rig: HubRig, server: str, era: str) -> None:
    rig.hub.wait_connected(server)
    assert state_of(rig.hub, server)["era"] == era
    assert text_of(rig.hub.call(f"{server}.echo", {"text": "hello"})) == "hello"


@pytest.mark.promise("B2")
def test_headers_expand_environment_variables(rig: HubRig) -> None:
    for server, secret in (("http-new", "key s3cret"), ("sse-old", "s3cret")):
        text_of(rig.hub.call(f"{server}.echo", {"text": "with headers"}))
        calls = [e for e in read_log(rig.log(server)) if e.get("method") == "tools/call"]
        (called,) = [e for e in calls if e["params"].get("arguments") == {"text": "with headers"}]
        assert called["headers"]["x-secret"] == secret


@pytest.mark.promise("B2")
def test_missing_header_variable_is_the_reported_reason(rig: HubRig) -> None:
    reason = wait_failure_reason(rig.hub, "lacks")
    assert "needs the environment variable ABSENT, which is not set" in reason
    assert "put it into the env file in its home" in reason


def test_configured_secrets_are_never_shown(rig: HubRig) -> None:
    shown = json.dumps(rig.hub.api("/api/mcp/servers"))
    assert "s3cret" not in shown and "${SECRET}" not in shown
    assert "s3cret" not in rig.hub.log()


@pytest.mark.promise("B11", "N1")
def test_name_resolving_to_a_private_address_is_refused_unless_allowed(rig: HubRig) -> None:
    assert socket.gethostbyname(socket.gethostname()).startswith("127.")
    reason = wait_failure_reason(rig.hub, "inside")
    assert "resolves to 127.0.0.1, a loopback address; set allow_private = true" in reason
    rig.hub.wait_connected("inside-allowed", "by-localhost", "http-old")
    assert text_of(rig.hub.call("inside-allowed.echo", {"text": "in"})) == "in"
    assert text_of(rig.hub.call("by-localhost.echo", {"text": "in"})) == "in"


# --- names


@pytest.mark.promise("B3")
def test_tools_are_called_by_legacy_and_canonical_names(rig: HubRig) -> None:
    for name in ("mcp_my_server_echo", "my-server.echo"):
        assert text_of(rig.hub.call(name, {"text": name})) == name
    for name in ("mcp_my-server_echo", "MCP_MY_SERVER_ECHO", "my_server.echo", "echo", "my-server"):
        assert error_kind(rig.hub.call(name, {"text": "x"})) == "NotFound"


@pytest.mark.promise("B3")
def test_every_spelling_of_a_name_finds_the_tool(rig: HubRig) -> None:
    listed = [tool["name"] for tool in rig.hub.rpc("tools/list")["result"]["tools"]]
    for server in SDK:
        alias = f"mcp_{server.replace('-', '_')}_do_thing"
        assert alias in listed
        for name in (alias, f"{server}.do-thing", f"{server}.do_thing"):
            # the server's own name goes over the wire: this tool answers with it
            assert text_of(rig.hub.call(name)) == "do-thing"
            assert rig.hub.audit()[-1]["verb"] == f"{server}.do_thing"


@pytest.mark.promise("B4")
def test_descriptions_name_the_server(rig: HubRig) -> None:
    tools = {tool["name"]: tool for tool in rig.hub.rpc("tools/list")["result"]["tools"]}
    for server in SDK:
        seed = server.replace("-", "_")
        assert tools[f"mcp_{seed}_echo"]["description"] == f"[MCP:{server}] The tool echo"
    assert "description" not in tools["mcp_my_server_slow"], "the server says nothing of it"


def test_tool_definition_fields_pass_through(rig: HubRig) -> None:
    tools = {tool["name"]: tool for tool in rig.hub.rpc("tools/list")["result"]["tools"]}
    for server in SDK:
        echo = tools[f"mcp_{server.replace('-', '_')}_echo"]
        assert echo["title"] == "Echo"
        assert echo["annotations"] == {"readOnlyHint": True}
        assert echo["_meta"] == {"example.com/tool": "t"}
        assert echo["inputSchema"]["additionalProperties"] is False
        add = tools[f"mcp_{server.replace('-', '_')}_add"]
        assert add["outputSchema"]["properties"] == {"sum": {"type": "number"}}


# --- results


@pytest.mark.promise("B12")
@pytest.mark.parametrize("era", ["modern", "legacy"])
@pytest.mark.parametrize("server", SDK)
def test_results_pass_completely(rig: HubRig, server: str, era: str) -> None:
    def call(tool: str, **arguments: Any) -> dict[str, Any]:
        answer = rig.hub.call(f"{server}.{tool}", arguments, era=era)
        result = dict(answer["result"])
        assert result.pop("resultType", None) == ("complete" if era == "modern" else None)
        if era == "modern":
            assert result["_meta"].pop("io.modelcontextprotocol/serverInfo")["name"] == "dragoman"
            if not result["_meta"]:
                del result["_meta"]
        return result

    total = {"sum": 5}
    assert call("add", a=2, b=3) == {
        "content": [{"type": "text", "text": json.dumps(total)}],
        "structuredContent": total,
    }
    assert call("fail") == {
        "content": [{"type": "text", "text": "it went wrong"}],
        "isError": True,
    }
    (image,) = call("image")["content"]
    assert (image["type"], image["mimeType"], image["data"]) == (
        "image", "image/png", "iVBORw0KGgo=",
    )  # fmt: skip
    (audio,) = call("audio")["content"]
    assert (audio["type"], audio["mimeType"]) == ("audio", "audio/wav")
    assert call("link")["content"] == [
        {"type": "resource_link", "uri": "test://linked", "name": "linked", "title": "Linked"}
    ]
    inner = {"uri": "test://embedded", "mimeType": "text/plain", "text": "embedded"}
    assert call("resource")["content"] == [{"type": "resource", "resource": inner}]


@pytest.mark.promise("B12")
@pytest.mark.parametrize("server", SDK)
def test_meta_passes_both_ways_except_hop_specific_members(rig: HubRig, server: str) -> None:
    mine = {"example.com/mine": {"a": [1, None]}, "baggage": "k=v"}
    parent = f"00-{'a' * 32}-{'b' * 16}-01"
    sent = {**mine, "traceparent": parent}
    result = modern_stream(rig.hub, f"{server}.meta", {}, **sent)[-1]["result"]
    arrived = result["structuredContent"]
    assert {key: arrived.get(key) for key in mine} == mine
    # Of the trace the id goes on, the span is the hub's own.
    assert arrived["traceparent"].startswith(parent[:36]) and arrived["traceparent"] != parent
    assert "progressToken" not in arrived
    sent_by = arrived.get("io.modelcontextprotocol/clientInfo", {"name": "dragoman"})
    assert sent_by["name"] == "dragoman"  # and not the caller's
    assert result["_meta"]["example.com/result"] == [1, 2]
    assert result["content"][0]["_meta"] == {"example.com/block": "b"}


STEPS = [[1, 3, "step 1"], [2, 3, "step 2"], [3, 3, "step 3"]]


def progress_in(messages: list[Any], token: Any) -> list[Any]:
    told = [m["params"] for m in messages if m.get("method") == "notifications/progress"]
    assert all(params["progressToken"] == token for params in told)
    return [[params["progress"], params["total"], params["message"]] for params in told]


@pytest.mark.promise("B12")
@pytest.mark.parametrize("server", ALL)
def test_progress_reaches_the_requesting_client(rig: HubRig, server: str) -> None:
    tool, arguments = f"{server}.progress", {"steps": 3}
    messages = modern_stream(rig.hub, tool, arguments, progressToken="p")
    assert progress_in(messages, "p") == STEPS
    assert text_of(messages[-1]) == "3 steps"
    session = wire.Session(rig.hub.mcp_url)
    params = {"name": tool, "arguments": arguments, "_meta": {"progressToken": 7}}
    messages = session.post(wire.request(9, "tools/call", params)).messages()
    assert progress_in(messages, 7) == STEPS
    quiet = session.post(wire.request(10, "tools/call", {"name": tool, "arguments": arguments}))
    assert progress_in(quiet.messages(), None) == []


@pytest.mark.promise("B12")
def test_progress_reaches_a_client_over_stdio(rig: HubRig) -> None:
    with rig.hub.relay() as ide:
        ide.initialize()
        for server in ALL:
            ide.notifications.clear()
            params = {"name": f"{server}.progress", "arguments": {"steps": 3}}
            answer = ide.request("tools/call", {**params, "_meta": {"progressToken": server}})
            assert progress_in(ide.notifications, server) == STEPS
            assert text_of(answer) == "3 steps"


def test_server_error_message_is_passed_unchanged(rig: HubRig) -> None:
    # the hub knows the tool, the server has dropped it and says so
    session = wire.Session(rig.legacy.url)
    assert text_of(session.request("tools/call", {"name": "toggle", "arguments": {}})) == "added"
    until(lambda: "mcp_http_old_toggled" in tools_of(rig.hub, "http-old"))
    answer = rig.hub.call("http-old.toggled")
    assert text_of(answer) == "toggled"
    text_of(session.request("tools/call", {"name": "toggle", "arguments": {}}))
    until(lambda: "mcp_http_old_toggled" not in tools_of(rig.hub, "http-old"))


# --- changes


@pytest.mark.promise("B7")
@pytest.mark.parametrize("server", [*SDK, "streamable-as-sse", "sse-as-http"])
def test_changed_tools_are_reread_and_announced(rig: HubRig, server: str) -> None:
    hub = rig.hub
    hub.wait_connected(server)
    name = f"mcp_{server.replace('-', '_')}_toggled"
    session = wire.Session(hub.mcp_url)
    with wire.stream("GET", hub.mcp_url, headers=session.headers) as stream:
        for said in ("added", "removed"):
            assert text_of(hub.call(f"{server}.toggle")) == said
            assert stream.next_json()["method"] == "notifications/tools/list_changed"

            def is_current(said: str = said) -> bool:
                return (name in tools_of(hub, server)) is (said == "added")

            until(is_current)
            assert (name in [t["name"] for t in hub.rpc("tools/list")["result"]["tools"]]) is (
                said == "added"
            )
    # the same server may be there under several names: all of them know
    until(lambda: not any("toggled" in name for one in ALL for name in tools_of(hub, one)))


# --- time


def started_count(log: Path) -> int:
    return sum(entry.get("event") == "start" for entry in read_log(log))


@pytest.mark.promise("B8", "N1")
@pytest.mark.parametrize(
    ("server", "log"),
    [
        ("stdio-old", "stdio-old"),
        ("streamable-as-sse", "http-old"),
        ("modern-as-sse", "http-new"),
        ("sse-as-http", "sse-old"),
    ],
)
def test_timeout_cancels_at_the_server_and_keeps_the_connection(
    rig: HubRig, server: str, log: str
) -> None:
    rig.hub.wait_connected(server)
    file = rig.log(log)
    before = sum(e.get("event") == "cancelled" for e in read_log(file))
    restarts = state_of(rig.hub, server)["restarts"]
    begun = time.monotonic()
    answer = rig.hub.call(f"{server}.slow", {"seconds": 30})
    assert TIMEOUT - 0.1 < time.monotonic() - begun < TIMEOUT + 20
    assert error_kind(answer) == "TimedOut"
    assert f'did not answer "tools/call" within {TIMEOUT:g} s' in error_text(answer)
    wait_for_log(file, event="cancelled", count=before + 1)
    assert text_of(rig.hub.call(f"{server}.echo", {"text": "alive"})) == "alive"
    assert state_of(rig.hub, server)["restarts"] == restarts
    assert started_count(file) == 1
    if log != "http-new":  # there the closed connection says it
        wait_for_log(file, method="notifications/cancelled")


@pytest.mark.promise("B12")
@pytest.mark.parametrize("server", SDK)
def test_disconnect_cancels_the_upstream_call(rig: HubRig, server: str) -> None:
    file = rig.log(server)
    before = sum(e.get("event") == "cancelled" for e in read_log(file))
    starts = sum(e.get("event") == "started" for e in read_log(file))
    with rig.hub.relay() as ide:
        ide.initialize()
        params = {"name": f"{server}.slow", "arguments": {"seconds": 30}}
        ide.send(wire.request(77, "tools/call", params))
        wait_for_log(file, event="started", count=starts + 1)
        ide.notify("notifications/cancelled", {"requestId": 77})
        wait_for_log(file, event="cancelled", count=before + 1, timeout=60)
        assert text_of(
            ide.request("tools/call", {"name": f"{server}.echo", "arguments": {"text": "x"}})
        ) == "x"  # fmt: skip


@pytest.mark.promise("P3")
def test_tool_timeout_of_the_hub_applies(rig: HubRig) -> None:
    begun = time.monotonic()
    answer = rig.hub.call("stdio-new.slow", {"seconds": 30})  # its timeout_secs is 30
    assert 1.9 < time.monotonic() - begun < 25
    assert error_kind(answer) == "TimedOut"
    assert "took longer than 2 s and was cancelled; raise [limits] tool_timeout_secs" in (
        error_text(answer)
    )
    wait_for_log(rig.log("stdio-new"), event="cancelled")


@pytest.mark.promise("B7")
@pytest.mark.parametrize("server", SDK)
def test_calls_to_one_server_run_concurrently(rig: HubRig, server: str) -> None:
    count = 60
    begun = time.monotonic()
    answers = run_concurrently(
        lambda number: rig.hub.call(f"{server}.slow", {"seconds": 0.5 + number / 1e6}), count
    )
    assert time.monotonic() - begun < 25  # one after the other: 30 s
    assert [text_of(answer) for answer in answers] == [
        f"slept {0.5 + number / 1e6}" for number in range(count)
    ]


@pytest.mark.promise("B7")
def test_two_hundred_concurrent_stdio_calls_are_not_mixed_up(rig: HubRig) -> None:
    count = 200
    with rig.hub.relay() as ide:
        ide.initialize()
        begun = time.monotonic()
        for number in range(count):
            arguments = {"seconds": 0.5 + number / 1e6}
            params = {"name": "stdio-new.slow", "arguments": arguments}
            ide.send(wire.request(f"n{number}", "tools/call", params))
        answers: dict[str, str] = {}
        while len(answers) < count:
            message = ide.read(10)
            answers[message["id"]] = text_of(message)
        assert time.monotonic() - begun < 40  # one after the other: 100 s
    assert answers == {f"n{n}": f"slept {0.5 + n / 1e6}" for n in range(count)}


# --- children


@pytest.mark.promise("B13")
def test_server_has_one_child_for_all_clients(rig: HubRig) -> None:
    before = sorted(processes_at_home(rig.hub.home))

    def use(number: int) -> str:
        session = wire.Session(rig.hub.mcp_url)
        params = {"name": "stdio-new.env", "arguments": {}}
        return str(session.request("tools/call", params)["result"]["structuredContent"]["pid"])

    assert len(set(run_concurrently(use, 20))) == 1
    assert sorted(processes_at_home(rig.hub.home)) == before
    initialized = [
        e for e in read_log(rig.log("stdio-old")) if e.get("method") == "initialize"
    ]  # fmt: skip
    assert len(initialized) == 1
    assert initialized[0]["params"]["capabilities"] == {}


@pytest.mark.promise("B10", "N1")
def test_child_environment_has_path_named_variables_and_own_home(rig: HubRig) -> None:
    seen = rig.hub.call("stdio-new.env")["result"]["structuredContent"]
    environment = seen["env"]
    folder = rig.hub.home.resolve() / "servers" / "stdio-new"
    assert environment.pop("DRAGOMAN_CHILD")
    if "LC_CTYPE" not in os.environ:  # CPython's own, where there is no locale (PEP 538)
        environment.pop("LC_CTYPE", None)
    caches = rig.hub.home.resolve() / "cache"
    shared = {name: str(caches / below) for name, below in CACHES.items()}
    always = {name: os.environ[name] for name in os.environ.keys() & COMMON_VARIABLES}
    always |= {name: os.environ[name] for name in os.environ if name.startswith("LC_")}
    assert environment == {
        **always,
        **shared,
        "PATH": os.environ["PATH"],
        "NAMED": "named value",
        "HOME": str(folder / "home"),
        "TMPDIR": str(folder / "tmp"),
        "PYTHONHASHSEED": "0",
    }
    assert seen["cwd"] == str(folder / "home")
    for place in (folder / "home", folder / "tmp"):
        assert place.stat().st_mode & 0o777 == 0o700


# --- sizes


@pytest.mark.promise("P2")
@pytest.mark.parametrize("server", SDK)
def test_long_text_is_truncated_with_a_marker(rig: HubRig, server: str) -> None:
    most = 10_000
    marker = "\n[cut: 1 of 10001 characters left out, by [limits] result_chars = 10000; "
    assert text_of(rig.hub.call(f"{server}.big", {"chars": most})) == "x" * most
    cut = text_of(rig.hub.call(f"{server}.big", {"chars": most + 1}))
    assert cut.startswith("x" * most + marker)
    emoji = "🦉" * (most + 1)
    cut = text_of(rig.hub.call(f"{server}.echo", {"text": emoji}))
    assert cut.startswith("🦉" * most + marker)
    whole = "🦉" * most
    assert text_of(rig.hub.call(f"{server}.echo", {"text": whole})) == whole


# --- arguments


@pytest.mark.parametrize("server", SDK)
def test_invalid_arguments_are_not_sent_upstream(rig: HubRig, server: str) -> None:
    calls = len([e for e in read_log(rig.log(server)) if e.get("method") == "tools/call"])
    for arguments in ({}, {"text": [5]}, {"tex": "x"}):
        assert error_kind(rig.hub.call(f"{server}.echo", arguments)) == "InvalidInput"
    after = len([e for e in read_log(rig.log(server)) if e.get("method") == "tools/call"])
    assert after == calls


def test_an_error_result_names_its_kind_and_trace(rig: HubRig) -> None:
    result = rig.hub.call("stdio-new.echo", {"text": [5]})["result"]
    told = result["_meta"][ERROR_KEY]
    record = next(r for r in rig.hub.audit() if r.get("trace") == told["trace"])
    assert record["outcome"] == "invalid"
