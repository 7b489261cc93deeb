"""HTTP servers with unusual behaviour, played by a thread of the test."""

from __future__ import annotations

import http.server
import json
import queue
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import contextmanager
from typing import Any

import pytest
from tests.live.conftest import RunningHub
from tests.live.module_hub import (
    error_kind,
    error_text,
    run_concurrently,
    text_of,
    until,
    wait_failure_reason,
)
from tests.peers.process import server_entry

Start = Callable[..., RunningHub]

TOOLS = {"tools": [{"name": "one", "inputSchema": {"type": "object"}}]}


def result_of(method: str) -> Any:
    info = {"name": "odd", "version": "0"}
    return {
        "initialize": {
            "protocolVersion": "2024-11-05", "capabilities": {"tools": {}}, "serverInfo": info,
        },
        "tools/list": TOOLS,
        "tools/call": {"content": [{"type": "text", "text": "1"}]},
    }.get(method)  # fmt: skip


def answer_to(message: Mapping[str, Any]) -> bytes:
    answer = {"jsonrpc": "2.0", "id": message.get("id"), "result": result_of(message["method"])}
    return json.dumps(answer).encode()


class QuirkyHandler(http.server.BaseHTTPRequestHandler):
    def message(self) -> dict[str, Any]:
        return dict(json.loads(self.rfile.read(int(self.headers["content-length"]))))

    def reply(self, status: int, body: bytes = b"", **headers: str) -> None:
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        for name, value in headers.items():
            self.send_header(name.replace("_", "-"), value)
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *args: object) -> None:
        pass


@contextmanager
def run_server(handler: type[QuirkyHandler], over: threading.Event) -> Iterator[str]:
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:
            over.set()
            server.shutdown()
            thread.join(60)


@pytest.mark.promise("B2")
def test_post_only_server_is_used(
    hub: Start,
) -> None:
    over = threading.Event()

    class PlainPost(QuirkyHandler):  # a GET is answered with 501
        def do_POST(self) -> None:
            message = self.message()
            if message["method"] == "server/discover":
                over.wait(60)
            elif "id" in message:
                self.reply(200, answer_to(message))
            else:
                self.reply(202)

    with run_server(PlainPost, over) as url:
        running = hub(
            [server_entry(kind, kind, f"{url}/mcp", timeout_secs=2) for kind in ("sse", "http")]
        )
        running.wait_connected("sse", "http", timeout=60)
        assert text_of(running.call("sse.one")) == text_of(running.call("http.one")) == "1"


@pytest.mark.promise("B7")
def test_calls_run_concurrently_over_slow_posts(hub: Start) -> None:
    over = threading.Event()
    events: queue.Queue[bytes] = queue.Queue()
    methods: list[str] = []
    all_there = threading.Barrier(20, timeout=60)  # one after the other, none would get through

    class SlowPosts(QuirkyHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.send_header("Content-Type", "text/event-stream")
            self.end_headers()
            self.wfile.write(b"event: endpoint\ndata: /messages\n\n")
            while not over.is_set():
                try:
                    event = events.get(timeout=0.1)
                except queue.Empty:
                    continue
                self.wfile.write(b"data: " + event + b"\n\n")

        def do_POST(self) -> None:
            message = self.message()
            methods.append(message["method"])
            if message["method"] == "tools/call":
                all_there.wait()
            if "id" in message:
                events.put(answer_to(message))
            self.reply(202)

    with run_server(SlowPosts, over) as url:
        running = hub([server_entry("slow", "sse", f"{url}/sse")])
        running.wait_connected("slow")
        answers = run_concurrently(lambda _: running.call("slow.one"), 20)
        assert [text_of(answer) for answer in answers] == ["1"] * 20
        assert methods[:3] == ["initialize", "notifications/initialized", "tools/list"]


@pytest.mark.promise("B7")
def test_server_temporarily_refusing_sessions_is_used_again(hub: Start) -> None:
    over = threading.Event()
    sessions: set[str] = set()
    ill = threading.Event()

    class Forgetful(QuirkyHandler):
        def do_GET(self) -> None:
            self.reply(405)

        def do_POST(self) -> None:
            message = self.message()
            if ill.is_set():
                self.reply(500 if message["method"] == "initialize" else 404)
            elif message["method"] == "initialize":
                name = f"s{len(sessions)}"
                sessions.add(name)
                self.reply(200, answer_to(message), Mcp_Session_Id=name)
            elif self.headers.get("mcp-session-id") not in sessions:
                self.reply(400, b"no session")
            elif "id" in message:
                self.reply(200, answer_to(message))
            else:
                self.reply(202)

        def do_DELETE(self) -> None:
            self.reply(200)

    with run_server(Forgetful, over) as url:
        running = hub([server_entry("s", "http", f"{url}/mcp")])
        running.wait_connected("s")
        assert text_of(running.call("s.one")) == "1"
        ill.set()
        answers = run_concurrently(lambda _: running.call("s.one"), 5)
        assert {error_kind(answer) for answer in answers} == {"Unreachable"}
        assert any("HTTP 500" in error_text(answer) for answer in answers)
        assert "HTTP 500" in wait_failure_reason(running, "s")
        ill.clear()
        until(lambda: "isError" not in running.call("s.one")["result"], 60)
        assert len(sessions) == 2


@pytest.mark.promise("B7")
def test_expired_session_is_reopened_once_for_many_calls(
    hub: Start,
) -> None:
    over = threading.Event()
    opened: list[str] = []
    known: set[str] = set()
    at = {name: threading.Event() for name in ("A", "B", "second greeting")}
    go = {name: threading.Event() for name in at}

    class Renewing(QuirkyHandler):
        def do_GET(self) -> None:
            self.reply(405)

        def do_DELETE(self) -> None:
            self.reply(200)

        def do_POST(self) -> None:
            message = self.message()
            who = ((message.get("params") or {}).get("arguments") or {}).get("who")
            session = self.headers.get("mcp-session-id")
            if message["method"] == "initialize":
                if opened:
                    at["second greeting"].set()
                    go["second greeting"].wait(60)
                opened.append(f"s{len(opened)}")
                known.add(opened[-1])
                self.reply(200, answer_to(message), Mcp_Session_Id=opened[-1])
                return
            if who in go and session == "s0":
                at[who].set()
                go[who].wait(60)
            if session not in known:
                self.reply(400 if session is None else 404)
            elif "id" in message:
                self.reply(200, answer_to(message))
            else:
                self.reply(202)

    with run_server(Renewing, over) as url, ThreadPoolExecutor(4) as pool:
        running = hub([server_entry("s", "http", f"{url}/mcp")])
        running.wait_connected("s")

        def call(who: str) -> Any:
            return pool.submit(running.call, "s.one", {"who": who})

        first, last = call("A"), call("B")
        assert at["A"].wait(60) and at["B"].wait(60)
        known.clear()
        second = call("C")
        assert at["second greeting"].wait(60)
        go["A"].set()  # gets "session not found" while the new session is being opened
        during = call("D")  # and one that comes meanwhile waits for it
        assert not wait([first, second, during], timeout=0.3).done
        go["second greeting"].set()
        assert [text_of(one.result(5)) for one in (first, second, during)] == ["1"] * 3
        go["B"].set()  # gets it long after
        assert text_of(last.result(5)) == "1"
        assert opened == ["s0", "s1"]


class NoChangeStream(QuirkyHandler):
    """Keeps sessions and says that its tools change, but has no stream to say so on: 404, which is
    what a web framework answers for a method that was not routed."""

    opened: list[str]
    calls: list[str]

    def do_GET(self) -> None:
        self.reply(404, b"Cannot GET /mcp")

    def do_DELETE(self) -> None:
        self.reply(404)

    def do_POST(self) -> None:
        message = self.message()
        if message["method"] == "initialize":
            self.opened.append(f"s{len(self.opened)}")
            result = {**result_of("initialize"), "capabilities": {"tools": {"listChanged": True}}}
            answer = json.dumps({"jsonrpc": "2.0", "id": message["id"], "result": result})
            self.reply(200, answer.encode(), Mcp_Session_Id=self.opened[-1])
        elif message["method"] == "server/discover":
            self.reply(400, b"no session")
        elif "id" not in message:
            self.reply(202)
        else:
            self.answer(message)

    def answer(self, message: Mapping[str, Any]) -> None:
        self.reply(200, answer_to(message))


@pytest.mark.promise("B7")
def test_missing_change_stream_is_not_an_expired_session(
    hub: Start,
) -> None:
    class NoStream(NoChangeStream):
        opened: list[str] = []

    with run_server(NoStream, threading.Event()) as url:
        running = hub([server_entry("s", "http", f"{url}/mcp")])
        running.wait_connected("s")
        assert text_of(running.call("s.one")) == "1"
        time.sleep(1)  # nothing to wait for: nothing must happen
        assert NoStream.opened == ["s0"]


@pytest.mark.promise("B7")
def test_session_forgetting_server_is_not_reopened_in_a_loop(
    hub: Start,
) -> None:
    class Amnesic(NoChangeStream):
        opened: list[str] = []

        def answer(self, message: Mapping[str, Any]) -> None:
            if message["method"] == "tools/list":
                self.reply(200, answer_to(message))
            else:
                self.reply(404)

    with run_server(Amnesic, threading.Event()) as url:
        running = hub([server_entry("s", "http", f"{url}/mcp")])
        running.wait_connected("s")
        time.sleep(1.5)
        assert 1 <= len(Amnesic.opened) < 6


@pytest.mark.promise("B7")
def test_error_mentioning_a_session_does_not_repeat_the_call(hub: Start) -> None:
    class Particular(NoChangeStream):
        opened: list[str] = []
        calls: list[str] = []

        def answer(self, message: Mapping[str, Any]) -> None:
            if message["method"] != "tools/call":
                self.reply(200, answer_to(message))
                return
            self.calls.append("one")
            error = {"code": -32602, "message": "your shopping session is full"}
            body = {"jsonrpc": "2.0", "id": message["id"], "error": error}
            self.reply(400, json.dumps(body).encode())

    with run_server(Particular, threading.Event()) as url:
        running = hub([server_entry("s", "http", f"{url}/mcp")])
        running.wait_connected("s")
        assert "shopping session" in json.dumps(running.call("s.one"))
        assert Particular.calls == ["one"] and Particular.opened == ["s0"]
