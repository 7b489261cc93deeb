"""A server with OpenAI's chat completions and Responses API, and Anthropic's Messages API, whose
answers a test scripts; real HTTP, streamed.

Each request takes the next answer: text, tool calls in fragments, a fault, or what a function
makes of the request. `requests` has the requests.
"""

from __future__ import annotations

import json
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from tests.peers.anthropic_events import list_events as list_anthropic_events
from tests.peers.responses_events import list_events as list_response_events

Answer = dict[str, Any]


def say(text: str, **more: Any) -> Answer:
    return {"text": text, **more}


def use(*calls: tuple[str, Any], text: str = "", **more: Any) -> Answer:
    """Asks for tools; arguments that are text are sent as they are, however malformed."""
    return {"text": text, "calls": calls, **more}


class ScriptedModel:
    def __init__(self) -> None:
        self.answers: list[Answer | Callable[[dict[str, Any]], Answer]] = []
        self.rules: list[tuple[str, Answer]] = []
        """Answers by a text that the last message has; they come before `answers`."""
        self.requests: list[dict[str, Any]] = []
        self.headers: list[dict[str, str]] = []
        self.open = 0
        """Requests that are being answered."""
        self.broken = threading.Event()
        """Set when a client has gone before its answer was complete."""
        self.lock = threading.Lock()
        self.url = ""

    def take(self, body: dict[str, Any]) -> Answer:
        with self.lock:
            self.requests.append(body)
            last = json.dumps((body.get("messages") or body["input"])[-1])
            for text, answer in self.rules:
                if text in last:
                    return answer
            if not self.answers:
                return say("(the script is over)")
            scripted = self.answers.pop(0)
            return scripted(body) if callable(scripted) else scripted


def _list_events(answer: Answer, model: str) -> Iterator[bytes]:
    for event in _list_openai_events(answer, model):
        yield f"data: {json.dumps(event)}\n\n".encode()
    yield b"data: [DONE]\n\n"


def _list_openai_events(answer: Answer, model: str) -> Iterator[dict[str, Any]]:
    def build(delta: dict[str, Any], finish: str | None = None) -> dict[str, Any]:
        choice = {"index": 0, "delta": delta, "finish_reason": finish}
        return {"id": "c1", "object": "chat.completion.chunk", "model": model, "choices": [choice]}

    yield build({"role": "assistant", "content": ""})
    text = answer.get("text", "")
    for at in range(0, len(text), 5):
        yield build({"content": text[at : at + 5]})
    calls = answer.get("calls", ())
    for index, (name, _) in enumerate(calls):
        shown = {"index": index, "id": f"call_{index}_{time.monotonic_ns()}", "type": "function"}
        yield build({"tool_calls": [{**shown, "function": {"name": name, "arguments": ""}}]})
    pieces = [one if isinstance(one, str) else json.dumps(one) for _, one in calls]
    for at in range(0, max(map(len, pieces), default=0), 7):  # interleaved fragments
        for index, whole in enumerate(pieces):
            if piece := whole[at : at + 7]:
                function = {"index": index, "function": {"arguments": piece}}
                yield build({"tool_calls": [function]})
    yield build({}, answer.get("finish", "tool_calls" if calls else "stop"))
    usage = {"prompt_tokens": 11, "completion_tokens": 7, "total_tokens": 18}
    yield {"id": "c1", "model": model, "choices": [], "usage": answer.get("usage", usage)}


@contextmanager
def running_model(given: ScriptedModel | None = None) -> Iterator[ScriptedModel]:
    model = given or ScriptedModel()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        disable_nagle_algorithm = True

        def log_message(self, *args: Any) -> None:
            pass

        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["content-length"])))
            model.headers.append(dict(self.headers))
            answer = model.take(body)
            model.open += 1
            try:
                self._answer(answer, body)
            except (BrokenPipeError, ConnectionResetError):
                model.broken.set()
            finally:
                model.open -= 1

        def _answer(self, answer: Answer, body: dict[str, Any]) -> None:
            if "hang" in answer:
                self._wait_for_client()
                return
            if "status" in answer:
                return self._send(answer["status"], answer.get("body", {}), answer.get("headers"))
            if "whole" in answer:
                return self._send(200, answer["whole"])
            self.send_response(200)
            self.send_header("content-type", "text/event-stream")
            self.send_header("transfer-encoding", "chunked")
            self.end_headers()
            if "raw" in answer:
                if answer["raw"]:  # an empty chunk is the end, which follows
                    self._chunk(answer["raw"])
            else:
                by_path = {"messages": list_anthropic_events, "responses": list_response_events}
                build = by_path.get(self.path.rpartition("/")[2], _list_events)
                for count, event in enumerate(build(answer, body["model"]), 1):
                    self._chunk(event)
                    if "drop" in answer:
                        self.connection.shutdown(socket.SHUT_RDWR)
                        self.close_connection = True
                        return
                    if count == answer.get("stall"):  # after so many events
                        self._wait_for_client()
                        return
            self.wfile.write(b"0\r\n\r\n")

        def _wait_for_client(self) -> None:
            """Sends nothing until the client goes."""
            self.connection.settimeout(30)
            if not self.connection.recv(1):
                model.broken.set()
            self.close_connection = True

        def _chunk(self, data: bytes) -> None:
            self.wfile.write(f"{len(data):x}\r\n".encode() + data + b"\r\n")
            self.wfile.flush()

        def _send(self, status: int, body: Any, headers: dict[str, str] | None = None) -> None:
            data = body.encode() if isinstance(body, str) else json.dumps(body).encode()
            self.send_response(status)
            for name, value in {"content-type": "application/json", **(headers or {})}.items():
                self.send_header(name, value)
            self.send_header("content-length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

    class Server(ThreadingHTTPServer):
        request_queue_size = 256

        def handle_error(self, *args: Any) -> None:
            pass  # clients go at any time

    server = Server(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    model.url = f"http://127.0.0.1:{server.server_port}/v1"
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield model
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
