"""HTTP servers with ways of their own, played here in a thread of the test."""

from __future__ import annotations

import http.server
import json
import queue
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import pytest
from tests.live.conftest import RunningHub
from tests.live.lasting import kind_of, state_of, text_of, together, until, words_of
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


class Odd(http.server.BaseHTTPRequestHandler):
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
def serving(handler: type[Odd], over: threading.Event) -> Iterator[str]:
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:
            over.set()
            server.shutdown()
            thread.join(5)


@pytest.mark.promise("B2")
def test_a_server_that_only_takes_posts_and_hangs_on_what_it_does_not_know_is_used(
    hub: Start,
) -> None:
    over = threading.Event()

    class PlainPost(Odd):  # a GET is answered with 501
        def do_POST(self) -> None:
            message = self.message()
            if message["method"] == "server/discover":
                over.wait(10)
            elif "id" in message:
                self.reply(200, answer_to(message))
            else:
                self.reply(202)

    with serving(PlainPost, over) as url:
        running = hub(
            [server_entry(kind, kind, f"{url}/mcp", timeout_secs=2) for kind in ("sse", "http")]
        )
        running.wait_connected("sse", "http", timeout=8)
        assert text_of(running.call("sse.one")) == text_of(running.call("http.one")) == "1"


@pytest.mark.promise("B7")
def test_calls_run_at_the_same_time_over_a_stream_whose_posts_take_their_time(hub: Start) -> None:
    over = threading.Event()
    events: queue.Queue[bytes] = queue.Queue()
    methods: list[str] = []

    class SlowPosts(Odd):
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
                time.sleep(0.3)
            if "id" in message:
                events.put(answer_to(message))
            self.reply(202)

    with serving(SlowPosts, over) as url:
        running = hub([server_entry("slow", "sse", f"{url}/sse")])
        running.wait_connected("slow")
        begun = time.monotonic()
        answers = together(lambda _: running.call("slow.one"), 20)
        assert time.monotonic() - begun < 3  # one after the other: 6 s
        assert [text_of(answer) for answer in answers] == ["1"] * 20
        assert methods[:3] == ["initialize", "notifications/initialized", "tools/list"]


@pytest.mark.promise("B7")
def test_a_server_that_opens_no_session_for_a_while_is_used_again_when_it_does(hub: Start) -> None:
    over = threading.Event()
    sessions: set[str] = set()
    ill = threading.Event()

    class Forgetful(Odd):
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

    with serving(Forgetful, over) as url:
        running = hub([server_entry("s", "http", f"{url}/mcp")])
        running.wait_connected("s")
        assert text_of(running.call("s.one")) == "1"
        ill.set()
        answers = together(lambda _: running.call("s.one"), 5)
        assert {kind_of(answer) for answer in answers} == {"Unreachable"}
        assert any("HTTP 500" in words_of(answer) for answer in answers)
        assert "HTTP 500" in until(lambda: state_of(running, "s").get("reason"))
        ill.clear()
        until(lambda: "isError" not in running.call("s.one")["result"], 4)
        assert len(sessions) == 2
