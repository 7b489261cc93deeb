"""One hub and many servers of every kind: what they offer and answer comes through, to everyone."""

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
from tests.live.lasting import (
    ERROR_KEY,
    kind_of,
    lasting_hub,
    modern_stream,
    reason_of,
    state_of,
    text_of,
    together,
    tools_of,
    until,
    words_of,
)
from tests.peers import wire
from tests.peers.process import (
    HttpPeer,
    processes_at_home,
    read_log,
    server_entry,
    wait_for_log,
)

from dragoman.mcp.client.child_process import CACHES, COMMON_VARIABLES

ALL = ("stdio-new", "stdio-old", "http-new", "http-old", "sse-old", "mcp1")
SDK = ("stdio-new", "stdio-old", "http-new", "http-old", "sse-old")
TIMEOUT = 1.0


@dataclass
class World:
    hub: RunningHub
    logs: Path
    modern: HttpPeer
    legacy: HttpPeer
    sse: HttpPeer
    connect_seconds: float

    def log(self, server: str) -> Path:
        return self.logs / f"{server}.log"


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    logs = tmp_path_factory.mktemp("logs")

    def log(server: str) -> tuple[str, Path]:
        return "--log", logs / f"{server}.log"

    with ExitStack() as stack:
        sdk = ("sdk_server", "--transport", "http", "--era")
        modern = stack.enter_context(HttpPeer(*sdk, "modern", *log("http-new")))
        legacy = stack.enter_context(HttpPeer(*sdk, "legacy", *log("http-old")))
        sse = stack.enter_context(HttpPeer("sdk_server", "--transport", "sse", *log("sse-old")))
        plain = stack.enter_context(HttpPeer("rude_http"))
        name = socket.gethostname()  # a name that leads to a loopback address
        servers = [
            server_entry("hangs", "rude_server", "hang"),
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
            server_entry("my-server", "rude_server", "ok", *log("my-server")),
            server_entry("slow-start", "rude_server", "slow-start", "--seconds", 4),
            server_entry("old-hang", "rude_server", "old-hang"),
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
        hub = stack.enter_context(lasting_hub(servers, config, env))
        hub.wait_connected(*ALL, "my-server")
        yield World(hub, logs, modern, legacy, sse, time.monotonic() - begun)


# --- starting


@pytest.mark.promise("B5")
def test_servers_connect_at_the_same_time_and_one_that_hangs_delays_nobody(world: World) -> None:
    assert world.connect_seconds < 45  # seven programs, and one of them would hang for 60 s
    hangs = state_of(world.hub, "hangs")
    assert (hangs["connected"], hangs["state"]) == (False, "starting")
    failed = state_of(world.hub, "no-such-program")
    assert failed["state"] in ("failed", "starting")
    until(lambda: "was not found on the PATH" in state_of(world.hub, "no-such-program")["reason"])


@pytest.mark.promise("B5")
def test_the_hub_serves_before_its_servers_are_connected(short_tmp: Path, hub: Any) -> None:
    running = hub([server_entry("late", "rude_server", "slow-start", "--seconds", 1.5)])
    assert state_of(running, "late")["state"] == "starting"
    assert running.api("/api/tools")["tools"] == []
    # The first list waits for those that are starting.
    names = [tool["name"] for tool in running.rpc("tools/list")["result"]["tools"]]
    assert names == ["mcp_late_echo", "mcp_late_pid", "mcp_late_slow"]


@pytest.mark.promise("B5")
def test_a_server_that_starts_late_or_never_answers_what_it_does_not_know_is_connected(
    world: World,
) -> None:
    world.hub.wait_connected("slow-start", "old-hang", timeout=15)
    assert text_of(world.hub.call("mcp_old_hang_echo", {"text": "old"})) == "old"
    assert state_of(world.hub, "old-hang")["protocol_version"] == "2024-11-05"
    assert text_of(world.hub.call("mcp_slow_start_echo", {"text": "late"})) == "late"


@pytest.mark.promise("B5")
def test_a_call_to_a_server_that_is_still_starting_waits_for_it(hub: Any) -> None:
    entry = server_entry("late", "rude_server", "slow-start", "--seconds", 1)
    running = hub([entry, server_entry("ok", "rude_server", "ok")])
    running.wait_connected("late")
    pid = int(text_of(running.call("late.pid")))
    os.kill(pid, 9)
    until(lambda: state_of(running, "late")["state"] == "starting")
    again = int(text_of(running.call("late.pid")))  # its tools stay listed meanwhile
    assert again != pid


@pytest.mark.promise("B5")
def test_the_number_of_tools_is_logged(world: World) -> None:
    total = world.hub.api("/api/status")["tools"]
    assert f"{total} tools in all" in world.hub.log()


@pytest.mark.promise("B5")
def test_every_page_of_a_list_is_read(world: World) -> None:
    # five a page; stdio-new has the same tools on one page
    assert state_of(world.hub, "stdio-old")["tools_count"] == 16
    lists = [e for e in read_log(world.log("stdio-old")) if e.get("method") == "tools/list"]
    assert len(lists) >= 4
    paged = [name.replace("old", "new") for name in tools_of(world.hub, "stdio-old")]
    assert paged == tools_of(world.hub, "stdio-new")


@pytest.mark.promise("B5")
def test_a_malformed_tool_is_left_out_alone_and_reported(world: World) -> None:
    problems = state_of(world.hub, "stdio-old")["problems"]
    assert problems == ["tool 17 is omitted: its name is not a string of 1 to 256 characters"]
    assert text_of(world.hub.call("stdio-old.echo", {"text": "still there"})) == "still there"


def test_each_server_is_spoken_to_in_the_newest_revision_it_knows(world: World) -> None:
    versions = {name: state_of(world.hub, name)["protocol_version"] for name in ALL}
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
def test_a_url_of_the_other_http_transport_is_used_as_what_it_is(
    world: World, server: str, era: str
) -> None:
    world.hub.wait_connected(server)
    assert state_of(world.hub, server)["era"] == era
    assert text_of(world.hub.call(f"{server}.echo", {"text": "hello"})) == "hello"


@pytest.mark.promise("B2")
def test_headers_are_sent_with_values_from_the_environment(world: World) -> None:
    for server, secret in (("http-new", "key s3cret"), ("sse-old", "s3cret")):
        text_of(world.hub.call(f"{server}.echo", {"text": "with headers"}))
        calls = [e for e in read_log(world.log(server)) if e.get("method") == "tools/call"]
        (called,) = [e for e in calls if e["params"].get("arguments") == {"text": "with headers"}]
        assert called["headers"]["x-secret"] == secret


@pytest.mark.promise("B2")
def test_a_header_that_needs_a_variable_that_is_not_set_is_a_reason_in_words(world: World) -> None:
    reason = reason_of(world.hub, "lacks")
    assert "needs the environment variable ABSENT, which is not set" in reason
    assert "put it into the env file in its home" in reason


def test_secrets_in_the_configuration_are_not_shown(world: World) -> None:
    shown = json.dumps(world.hub.api("/api/mcp/servers"))
    assert "s3cret" not in shown and "${SECRET}" not in shown
    assert "s3cret" not in world.hub.log()


@pytest.mark.promise("B11", "N1")
def test_a_name_that_leads_inside_is_refused_unless_it_was_allowed(world: World) -> None:
    assert socket.gethostbyname(socket.gethostname()).startswith("127.")
    reason = reason_of(world.hub, "inside")
    assert "resolves to 127.0.0.1, a loopback address; set allow_private = true" in reason
    world.hub.wait_connected("inside-allowed", "by-localhost", "http-old")
    assert text_of(world.hub.call("inside-allowed.echo", {"text": "in"})) == "in"
    assert text_of(world.hub.call("by-localhost.echo", {"text": "in"})) == "in"


# --- names


@pytest.mark.promise("B3")
def test_tools_are_called_by_the_seeds_name_or_by_their_canonical_one(world: World) -> None:
    for name in ("mcp_my_server_echo", "my-server.echo"):
        assert text_of(world.hub.call(name, {"text": name})) == name
    for name in ("mcp_my-server_echo", "MCP_MY_SERVER_ECHO", "my_server.echo", "echo", "my-server"):
        assert kind_of(world.hub.call(name, {"text": "x"})) == "NotFound"


@pytest.mark.promise("B3")
def test_every_spelling_of_a_name_leads_to_the_one_tool(world: World) -> None:
    listed = [tool["name"] for tool in world.hub.rpc("tools/list")["result"]["tools"]]
    for server in SDK:
        alias = f"mcp_{server.replace('-', '_')}_do_thing"
        assert alias in listed
        for name in (alias, f"{server}.do-thing", f"{server}.do_thing"):
            # the server's own name goes over the wire: this tool answers with it
            assert text_of(world.hub.call(name)) == "do-thing"
            assert world.hub.audit()[-1]["verb"] == f"{server}.do_thing"


@pytest.mark.promise("B4")
def test_descriptions_say_which_server_a_tool_is_of(world: World) -> None:
    tools = {tool["name"]: tool for tool in world.hub.rpc("tools/list")["result"]["tools"]}
    for server in SDK:
        seed = server.replace("-", "_")
        assert tools[f"mcp_{seed}_echo"]["description"] == f"[MCP:{server}] The tool echo"
    assert "description" not in tools["mcp_my_server_slow"], "the server says nothing of it"


def test_what_a_server_says_of_a_tool_comes_through(world: World) -> None:
    tools = {tool["name"]: tool for tool in world.hub.rpc("tools/list")["result"]["tools"]}
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
def test_results_come_through_whole(world: World, server: str, era: str) -> None:
    def call(tool: str, **arguments: Any) -> dict[str, Any]:
        answer = world.hub.call(f"{server}.{tool}", arguments, era=era)
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
def test_meta_travels_both_ways_and_what_belongs_to_one_hop_does_not(
    world: World, server: str
) -> None:
    mine = {"example.com/mine": {"a": [1, None]}, "baggage": "k=v"}
    parent = f"00-{'a' * 32}-{'b' * 16}-01"
    sent = {**mine, "traceparent": parent}
    result = modern_stream(world.hub, f"{server}.meta", {}, **sent)[-1]["result"]
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
def test_progress_reaches_the_client_that_asked_for_it(world: World, server: str) -> None:
    tool, arguments = f"{server}.progress", {"steps": 3}
    messages = modern_stream(world.hub, tool, arguments, progressToken="p")
    assert progress_in(messages, "p") == STEPS
    assert text_of(messages[-1]) == "3 steps"
    session = wire.Session(world.hub.mcp_url)
    params = {"name": tool, "arguments": arguments, "_meta": {"progressToken": 7}}
    messages = session.post(wire.request(9, "tools/call", params)).messages()
    assert progress_in(messages, 7) == STEPS
    quiet = session.post(wire.request(10, "tools/call", {"name": tool, "arguments": arguments}))
    assert progress_in(quiet.messages(), None) == []


@pytest.mark.promise("B12")
def test_progress_reaches_a_client_over_stdio(world: World) -> None:
    with world.hub.relay() as ide:
        ide.initialize()
        for server in ALL:
            ide.notifications.clear()
            params = {"name": f"{server}.progress", "arguments": {"steps": 3}}
            answer = ide.request("tools/call", {**params, "_meta": {"progressToken": server}})
            assert progress_in(ide.notifications, server) == STEPS
            assert text_of(answer) == "3 steps"


def test_an_error_of_the_servers_own_comes_through_as_it_put_it(world: World) -> None:
    # the hub knows the tool, the server has dropped it and says so
    session = wire.Session(world.legacy.url)
    assert text_of(session.request("tools/call", {"name": "toggle", "arguments": {}})) == "added"
    until(lambda: "mcp_http_old_toggled" in tools_of(world.hub, "http-old"))
    answer = world.hub.call("http-old.toggled")
    assert text_of(answer) == "toggled"
    text_of(session.request("tools/call", {"name": "toggle", "arguments": {}}))
    until(lambda: "mcp_http_old_toggled" not in tools_of(world.hub, "http-old"))


# --- changes


@pytest.mark.promise("B7")
@pytest.mark.parametrize("server", [*SDK, "streamable-as-sse", "sse-as-http"])
def test_a_change_of_the_tools_is_followed_and_passed_on(world: World, server: str) -> None:
    hub = world.hub
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
def test_a_server_that_takes_too_long_is_told_to_cancel_and_stays_connected(
    world: World, server: str, log: str
) -> None:
    world.hub.wait_connected(server)
    file = world.log(log)
    before = sum(e.get("event") == "cancelled" for e in read_log(file))
    restarts = state_of(world.hub, server)["restarts"]
    begun = time.monotonic()
    answer = world.hub.call(f"{server}.slow", {"seconds": 30})
    assert TIMEOUT - 0.1 < time.monotonic() - begun < TIMEOUT + 1
    assert kind_of(answer) == "TimedOut"
    assert f'did not answer "tools/call" within {TIMEOUT:g} s' in words_of(answer)
    wait_for_log(file, event="cancelled", count=before + 1)
    assert text_of(world.hub.call(f"{server}.echo", {"text": "alive"})) == "alive"
    assert state_of(world.hub, server)["restarts"] == restarts
    assert started_count(file) == 1
    if log != "http-new":  # there the closed connection says it
        wait_for_log(file, method="notifications/cancelled")


@pytest.mark.promise("B12")
@pytest.mark.parametrize("server", SDK)
def test_a_caller_who_leaves_cancels_the_work(world: World, server: str) -> None:
    file = world.log(server)
    before = sum(e.get("event") == "cancelled" for e in read_log(file))
    starts = sum(e.get("event") == "started" for e in read_log(file))
    with world.hub.relay() as ide:
        ide.initialize()
        params = {"name": f"{server}.slow", "arguments": {"seconds": 30}}
        ide.send(wire.request(77, "tools/call", params))
        wait_for_log(file, event="started", count=starts + 1)
        ide.notify("notifications/cancelled", {"requestId": 77})
        wait_for_log(file, event="cancelled", count=before + 1, timeout=3)
        assert text_of(
            ide.request("tools/call", {"name": f"{server}.echo", "arguments": {"text": "x"}})
        ) == "x"  # fmt: skip


@pytest.mark.promise("P3")
def test_no_tool_takes_longer_than_the_hubs_own_limit(world: World) -> None:
    begun = time.monotonic()
    answer = world.hub.call("stdio-new.slow", {"seconds": 30})  # its timeout_secs is 30
    assert 1.9 < time.monotonic() - begun < 15
    assert kind_of(answer) == "TimedOut"
    assert "took longer than 2 s and was cancelled; raise [limits] tool_timeout_secs" in (
        words_of(answer)
    )
    wait_for_log(world.log("stdio-new"), event="cancelled")


@pytest.mark.promise("B7")
@pytest.mark.parametrize("server", SDK)
def test_calls_to_one_server_run_at_the_same_time(world: World, server: str) -> None:
    count = 60
    begun = time.monotonic()
    answers = together(
        lambda number: world.hub.call(f"{server}.slow", {"seconds": 0.5 + number / 1e6}), count
    )
    assert time.monotonic() - begun < 15  # one after the other: 30 s
    assert [text_of(answer) for answer in answers] == [
        f"slept {0.5 + number / 1e6}" for number in range(count)
    ]


@pytest.mark.promise("B7")
def test_two_hundred_calls_to_one_stdio_server_overlap_and_none_is_mixed_up(world: World) -> None:
    count = 200
    with world.hub.relay() as ide:
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
def test_there_is_one_child_a_server_however_many_clients_there_are(world: World) -> None:
    before = sorted(processes_at_home(world.hub.home))

    def use(number: int) -> str:
        session = wire.Session(world.hub.mcp_url)
        params = {"name": "stdio-new.env", "arguments": {}}
        return str(session.request("tools/call", params)["result"]["structuredContent"]["pid"])

    assert len(set(together(use, 20))) == 1
    assert sorted(processes_at_home(world.hub.home)) == before
    initialized = [
        e for e in read_log(world.log("stdio-old")) if e.get("method") == "initialize"
    ]  # fmt: skip
    assert len(initialized) == 1
    assert initialized[0]["params"]["capabilities"] == {}


@pytest.mark.promise("B10", "N1")
def test_a_child_gets_the_path_the_named_variables_and_a_home_of_its_own(world: World) -> None:
    seen = world.hub.call("stdio-new.env")["result"]["structuredContent"]
    environment = seen["env"]
    folder = world.hub.home.resolve() / "servers" / "stdio-new"
    assert environment.pop("DRAGOMAN_CHILD")
    if "LC_CTYPE" not in os.environ:  # CPython's own, where there is no locale (PEP 538)
        environment.pop("LC_CTYPE", None)
    caches = world.hub.home.resolve() / "cache"
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
    }
    assert seen["cwd"] == str(folder / "home")
    for place in (folder / "home", folder / "tmp"):
        assert place.stat().st_mode & 0o777 == 0o700


# --- sizes


@pytest.mark.promise("P2")
@pytest.mark.parametrize("server", SDK)
def test_a_long_text_is_cut_with_a_marker_that_says_so(world: World, server: str) -> None:
    most = 10_000
    marker = "\n[cut: 1 of 10001 characters left out, by [limits] result_chars = 10000; "
    assert text_of(world.hub.call(f"{server}.big", {"chars": most})) == "x" * most
    cut = text_of(world.hub.call(f"{server}.big", {"chars": most + 1}))
    assert cut.startswith("x" * most + marker)
    emoji = "🦉" * (most + 1)
    cut = text_of(world.hub.call(f"{server}.echo", {"text": emoji}))
    assert cut.startswith("🦉" * most + marker)
    whole = "🦉" * most
    assert text_of(world.hub.call(f"{server}.echo", {"text": whole})) == whole


# --- arguments


@pytest.mark.parametrize("server", SDK)
def test_arguments_that_do_not_fit_never_leave_the_hub(world: World, server: str) -> None:
    calls = len([e for e in read_log(world.log(server)) if e.get("method") == "tools/call"])
    for arguments in ({}, {"text": [5]}, {"tex": "x"}):
        assert kind_of(world.hub.call(f"{server}.echo", arguments)) == "InvalidInput"
    after = len([e for e in read_log(world.log(server)) if e.get("method") == "tools/call"])
    assert after == calls


def test_an_error_result_names_its_kind_and_trace(world: World) -> None:
    result = world.hub.call("stdio-new.echo", {"text": [5]})["result"]
    told = result["_meta"][ERROR_KEY]
    record = next(r for r in world.hub.audit() if r.get("trace") == told["trace"])
    assert record["outcome"] == "invalid"
