"""The peers against one another, so that failures elsewhere are the hub's."""

from __future__ import annotations

import json
import os
import time
import tomllib
from pathlib import Path
from typing import Any

import pytest
from tests.peers import wire
from tests.peers.process import (
    HttpPeer,
    alive,
    command,
    plain_command,
    run_client,
    server_entry,
    wait_for_log,
    wait_until_gone,
)
from tests.peers.sdk_client import conversation

ADD = ("--call", "add", "--arguments", '{"a": 1, "b": 2}')
SUM = {"sum": 3}
TOGGLE = ("--call", "toggle", "--watch")

# What an SDK client of each mode gets from an SDK server of each era.
ERAS: dict[str, dict[str, str | None]] = {
    "both": {"auto": "2026-07-28", "legacy": "2025-11-25", "2026-07-28": "2026-07-28"},
    "legacy": {"auto": "2025-11-25", "legacy": "2025-11-25", "2026-07-28": None},
    "modern": {"auto": "2026-07-28", "legacy": None, "2026-07-28": "2026-07-28"},
}


def saw_the_change(got: dict[str, Any]) -> bool:
    before, after = ({tool["name"] for tool in got[key]} for key in ("tools", "tools_after"))
    return before ^ after == {"toggled"}


def test_sdk_client_and_server_agree_over_http(
    tmp_path: Path,
) -> None:
    era = "both"  # each of the two: over stdio
    log = tmp_path / "log"
    slow = ("--call", "slow", "--arguments", '{"seconds": 60}', "--timeout", 0.3)
    with HttpPeer("sdk_server", "--transport", "http", "--era", era, "--log", log) as peer:
        for spoken, (mode, version) in enumerate(ERAS[era].items(), 1):
            got = conversation("--mode", mode, *TOGGLE, "--http", peer.url)
            assert got["version"] == version
            assert saw_the_change(got)
            conversation("--mode", mode, *slow, "--header", "X-Who: me", "--http", peer.url)
            wait_for_log(log, count=spoken, event="cancelled", name="slow")
        assert wait_for_log(log, method="tools/call")["headers"].get("x-who") is None
        assert wait_for_log(log, method="tools/call", count=2)["headers"]["x-who"] == "me"


@pytest.mark.parametrize(
    ("era", "mode"),
    [("legacy", "auto"), ("modern", "auto"), ("modern", "legacy")],
)
def test_sdk_client_and_server_agree_over_stdio(era: str, mode: str) -> None:
    line = command("sdk_server", "--era", era)
    got = conversation("--mode", mode, *TOGGLE, "--stdio", *line)
    if ERAS[era][mode] is None:
        assert "failed" in got
        return
    assert got["version"] == ERAS[era][mode]
    assert saw_the_change(got)


def test_sdk_server_over_sse_uses_the_handshake() -> None:
    with HttpPeer("sdk_server", "--transport", "sse") as peer:
        got = conversation(*TOGGLE, "--sse", peer.url)
        assert got["version"] == "2025-11-25"
        assert saw_the_change(got)
        assert "failed" in conversation("--mode", "2026-07-28", *ADD, "--sse", peer.url)


def test_sdk_client_runs_as_a_program() -> None:
    got = run_client("sdk_client", *ADD, "--stdio", *command("sdk_server"))
    assert got["result"]["structuredContent"] == {"sum": 3}
    assert "failed" in run_client("sdk_client", "--http", "http://127.0.0.1:1/mcp")


@pytest.mark.parametrize("version", [wire.LEGACY, wire.MODERN])
def test_sdk_server_returns_every_content_kind_and_logs_requests(
    version: str, tmp_path: Path
) -> None:
    log = tmp_path / "log"
    with wire.Stdio(plain_command("sdk_server", "--tools", 3, "--log", log)) as peer:
        modern = version == wire.MODERN
        if not modern:
            peer.initialize()

        def call(name: str, meta: object = None, **arguments: object) -> dict[str, Any]:
            params = {"name": name, "arguments": arguments, "_meta": meta or {}}
            answer = peer.request("tools/call", wire.modern_params(params) if modern else params)
            return dict(answer["result"])

        assert call("echo", text="hi")["content"] == [{"type": "text", "text": "hi"}]
        assert call("fail")["isError"] is True
        kinds = {name: call(name)["content"][0]["type"] for name in ("image", "audio", "link")}
        assert kinds == {"image": "image", "audio": "audio", "link": "resource_link"}
        assert call("resource")["content"][0]["resource"]["text"] == "embedded"
        assert len(call("big", chars=70_000)["content"][0]["text"]) == 70_000
        assert call("do-thing")["content"][0]["text"] == "do-thing"
        assert call("dummy_00002")["content"][0]["text"] == "dummy_00002"
        seen = call("env")["structuredContent"]
        assert seen["pid"] == peer.pid and seen["cwd"] == os.getcwd()
        both = call("meta", meta={"example.com/x": 1, "progressToken": "p"})
        assert both["structuredContent"]["example.com/x"] == 1
        assert both["_meta"]["example.com/result"] == [1, 2]
        assert both["content"][0]["_meta"] == {"example.com/block": "b"}
        call("progress", meta={"progressToken": "p"}, steps=3)
        assert [n["params"]["progress"] for n in peer.notifications] == [1, 2, 3]
        slow = {"name": "slow", "arguments": {"seconds": 60}}
        peer.send(wire.request("s", "tools/call", wire.modern_params(slow) if modern else slow))
        wait_for_log(log, event="started", name="slow")
        peer.notify("notifications/cancelled", {"requestId": "s"})
        wait_for_log(log, event="cancelled", name="slow")


def test_sdk_server_pages_its_list_and_can_corrupt_it() -> None:
    args = ("--tools", 10, "--page-size", 7, "--malformed")
    with wire.Stdio(command("sdk_server", *args)) as peer:
        peer.initialize()
        pages, cursor = [], None
        while True:
            page = peer.request("tools/list", {"cursor": cursor} if cursor else {})["result"]
            pages.append(page["tools"])
            cursor = page.get("nextCursor")
            if cursor is None:
                break
    assert [len(page) for page in pages] == [7, 7, 7, 6]
    assert pages[-1][-1]["name"] == 17


def test_sdk_server_crashes_on_request() -> None:
    with wire.Stdio(command("sdk_server")) as peer:
        peer.initialize()
        with pytest.raises(EOFError):
            peer.request("tools/call", {"name": "crash", "arguments": {}})
        assert peer.wait() == 3


def test_sdk_server_drops_sessions_on_request_and_when_idle() -> None:
    with HttpPeer("sdk_server", "--transport", "http") as peer:
        session = wire.Session(peer.url)
        assert session.request("ping") == {"jsonrpc": "2.0", "id": 1, "result": {}}
        assert wire.http_request("POST", peer.url.replace("/mcp", "/forget")).status == 200
        assert session.post(wire.request(2, "ping")).status == 404
        assert wire.Session(peer.url).request("ping")["result"] == {}
    with HttpPeer("sdk_server", "--transport", "http", "--session-ttl", 0.1) as peer:
        session = wire.Session(peer.url)
        for pause in (0.2, 0.4, 0.8, 1.6, 3.2):  # ever longer, for asking keeps a session alive
            time.sleep(pause)
            if (answer := session.post(wire.request(1, "ping"))).status != 200:
                break
        assert answer.status == 404


def test_previous_sdk_talks_to_itself_and_the_current_one() -> None:
    server = ("--stdio", *command("mcp1_server"))
    assert run_client("mcp1_client", *ADD, *server)["result"]["structuredContent"] == SUM
    got = run_client("mcp1_client", *TOGGLE, "--stdio", *command("sdk_server"))
    assert got["version"] == "2025-11-25"
    assert saw_the_change(got)
    for transport in ("http", "sse"):
        with HttpPeer("mcp1_server", "--transport", transport) as peer:
            got = conversation(*ADD, f"--{transport}", peer.url)
            assert got["result"]["structuredContent"] == SUM


# --- the rude ones


def faulty(mode: str, *args: object) -> wire.Stdio:
    return wire.Stdio(command("faulty_server", mode, *args))


ECHO = {"name": "echo", "arguments": {"text": "hi"}}
HI = {"content": [{"type": "text", "text": "hi"}]}


@pytest.mark.parametrize("mode", ["ok", "old", "old-hang", "garbage", "prints-banner"])
def test_faulty_server_answers_late(mode: str) -> None:
    with faulty(mode) as peer:
        version = "2024-11-05" if mode.startswith("old") else "2025-11-25"
        assert peer.initialize()["protocolVersion"] == version
        assert len(peer.request("tools/list")["result"]["tools"]) == 3
        assert peer.request("tools/call", ECHO)["result"] == HI
        nonsense = [one for one in peer.notifications if isinstance(one, bytes)]
        assert bool(nonsense) == (mode in ("garbage", "prints-banner"))
        if mode == "old":
            assert peer.request("server/discover")["error"]["code"] == -32601
        if mode == "old-hang":
            peer.send(wire.request("d", "server/discover"))
            assert peer.silent(0.3)
            assert peer.request("ping")["result"] == {}


def test_faulty_server_hangs_at_start_or_call() -> None:
    with faulty("hang") as peer:
        peer.send(wire.request(1, "initialize", wire.initialize_params()))
        assert peer.silent(0.5)
    with faulty("hang-on-call") as peer:
        peer.initialize()
        peer.send(wire.request("c", "tools/call", ECHO))
        assert peer.silent(0.3)
        assert peer.request("ping")["result"] == {}


def test_faulty_server_exits_or_closes_stdout() -> None:
    with faulty("nothing") as peer:
        assert peer.wait() == 0
    with faulty("exit-at-call") as peer:
        peer.initialize()
        with pytest.raises(EOFError):
            peer.request("tools/call", ECHO)
        assert peer.wait() == 4
    with faulty("closes-stdout") as peer:
        peer.initialize()
        with pytest.raises(EOFError):
            peer.request("tools/call", ECHO)
        assert alive(peer.pid)


def test_faulty_server_answers_wrongly_or_too_much() -> None:
    with faulty("wrong-id") as peer:
        peer.initialize()
        peer.send(wire.request("c", "tools/call", ECHO))
        assert peer.read()["id"] == "not c"
    with faulty("two-answers") as peer:
        peer.initialize()
        peer.send(wire.request("c", "tools/call", ECHO))
        assert [peer.read()["id"], peer.read()["id"]] == ["c", "c"]
    with faulty("bigline", "--megabytes", 12) as peer:
        peer.initialize()
        answer = peer.request("tools/call", ECHO)
        assert len(answer["result"]["content"][0]["text"]) == 12 << 20


def test_faulty_server_floods_or_starts_slowly(tmp_path: Path) -> None:
    with faulty("flood", "--seconds", 0.5, "--log", tmp_path / "log") as peer:
        peer.initialize()
        assert peer.request("tools/call", ECHO)["result"] == HI
        wait_for_log(tmp_path / "log", event="flooded")
        assert peer.request("ping")["result"] == {}
        assert len(peer.notifications) > 1000
    with faulty("stderr-flood", "--megabytes", 2) as peer:
        peer.initialize()
        assert peer.request("tools/call", ECHO)["result"] == HI
    assert len(peer.stderr) == 2 << 20  # at the end: its reader may lag behind
    with faulty("slow-start", "--seconds", 0.5) as peer:
        peer.send(wire.request(1, "initialize", wire.initialize_params()))
        assert peer.silent(0.2)
        assert peer.read()["id"] == 1


def test_faulty_server_leaves_grandchildren(tmp_path: Path) -> None:
    pids = tmp_path / "pids"
    with faulty("fork", "--pids", pids) as peer:
        peer.initialize()
        while len(pids.read_text().split() if pids.exists() else ()) < 2:
            assert peer.request("ping")["result"] == {}
        found = [int(pid) for pid in pids.read_text().split()]
        assert sorted(os.getsid(pid) == os.getsid(peer.pid) for pid in found) == [False, True]
    assert all(alive(pid) for pid in found)
    for pid in found:
        os.kill(pid, 9)
    wait_until_gone(found)


# What a client sees of each mode of the rude HTTP server: a status and a body, or an error.
HTTP_MODES: dict[str, object] = {
    "ok": (200, HI),
    "204": (204, b""),
    "401": (401, b"who?\n"),
    "html-500": (500, b"<html>"),
    "html-200": (200, b"<html>"),
    "gzip": (200, b"\x1f\x8b"),
    "redirect?to=http://127.0.0.1:1/": (307, b""),
    "redirect?status=302&to=/ok": (302, b""),
    "redirect-loop": (307, b""),
    "big?megabytes=3": (200, 3 << 20),
    "drip?seconds=0.001": (200, HI),
    "hang-headers": "TimeoutError",
    "hang-body": "TimeoutError",
    "hang-mid": "TimeoutError",
    "reset": "ConnectionResetError",
    "reset-mid": "ConnectionResetError",
    "close": "RemoteDisconnected",
    "not-http": "BadStatusLine",
    "bad-chunks": "IncompleteRead",
}


def test_faulty_http_server_modes_behave_as_named(tmp_path: Path) -> None:
    with HttpPeer("faulty_http", "--log", tmp_path / "log") as peer:
        for mode, wanted in HTTP_MODES.items():
            session = wire.Session(f"{peer.url}/after/{mode}")
            assert session.request("tools/list")["result"]["tools"][0]["name"] == "echo"
            try:
                answer = session.post(wire.request("c", "tools/call", ECHO), timeout=0.5)
            except Exception as error:
                assert type(error).__name__ == wanted, mode
                continue
            assert isinstance(wanted, tuple), mode
            assert answer.status == wanted[0], mode
            if isinstance(wanted[1], int):
                assert len(answer.body) == wanted[1], mode
            elif isinstance(wanted[1], bytes):
                assert answer.body.startswith(wanted[1]), mode
            else:
                assert answer.json()["result"] == wanted[1], mode
        wait_for_log(tmp_path / "log", event="gone", path="/after/hang-headers")


def test_faulty_http_server_streams_endlessly_and_drops_sessions_once() -> None:
    with HttpPeer("faulty_http") as peer:
        session = wire.Session(f"{peer.url}/after/endless-sse")
        call = wire.request("c", "tools/call", ECHO)
        with wire.stream("POST", session.url, call, session.headers) as stream:
            assert stream.headers["content-type"] == "text/event-stream"
            assert {stream.next_json()["method"] for _ in range(20)} == {"notifications/message"}
        session = wire.Session(f"{peer.url}/after/404-session")
        assert session.post(call).status == 404
        assert wire.get(f"{peer.url}/nothing").status == 404


def test_the_raw_client_reads_both_framings_and_events() -> None:
    code = r"""
import sys
body = b'{"jsonrpc": "2.0", "id": 1, "result": {}}'
sys.stdout.buffer.write(b"Content-Length: %d\r\nContent-Type: x\r\n\r\n" % len(body) + body)
sys.stdout.buffer.write(body + b"\nwhat\n")
sys.stdout.buffer.flush()
sys.stdout.buffer.write(sys.stdin.buffer.read())
"""
    with wire.Stdio([command("faulty_server")[0], "-c", code]) as peer:
        result = {"jsonrpc": "2.0", "id": 1, "result": {}}
        assert peer.frame() == wire.Frame("content-length", result)
        assert peer.frame() == wire.Frame("newline", result)
        assert peer.frame() == wire.Frame("newline", b"what\n")
        peer.send({"a": 1}, framing="content-length")
        peer.send({"b": 2})
        peer.close_stdin()
        assert peer.frame() == wire.Frame("content-length", {"a": 1})
        assert peer.frame() == wire.Frame("newline", {"b": 2})
        with pytest.raises(EOFError):
            peer.frame()
    lines = b": hi\r\nevent: a\r\nid: 7\r\ndata: 1\r\ndata: 2\r\n\r\nevent: b\n\ndata:3\n\n"
    assert list(wire.events(iter(lines.splitlines(keepends=True)))) == [
        wire.Event("a", "1\n2", "7"),
        wire.Event("message", "3", "7"),
    ]


def test_peer_entry_is_valid_toml() -> None:
    entry = server_entry("a b", "sdk_server", "--tools", 2, env=["X"], timeout_secs=0.5)
    web = server_entry("w", "http", "http://127.0.0.1:1/mcp", transport={"headers": {"X-A": "é"}})
    first, second = tomllib.loads(entry + web)["mcp_servers"]
    line = command("sdk_server", "--tools", 2)
    transport = {"type": "stdio", "command": line[0], "args": line[1:]}
    assert first == {"name": "a b", "env": ["X"], "timeout_secs": 0.5, "transport": transport}
    assert second["transport"]["headers"] == {"X-A": "é"}
    assert json.dumps(second["transport"]["url"]) == '"http://127.0.0.1:1/mcp"'
