"""Streams of the client: ends, interruptions, limits."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import pairwise
from typing import Any

import pytest
from tests.a2a.scripted_agent import Request, build_text_message, card_10, scripted_agent, task_10

from dragoman.a2a.client.client import A2aClient
from dragoman.a2a.client.event_stream import TURN, read_state
from dragoman.core.errors import BadReply, TimedOut, Unreachable
from dragoman.net.client import OutboundHttp

SAID = {"message": build_text_message("hello")}
STREAMING: dict[str, Any] = {"capabilities": {"streaming": True}}


def status(state: str, **more: Any) -> dict[str, Any]:
    said = {"state": f"TASK_STATE_{state}"}
    return {"statusUpdate": {"taskId": "t1", "contextId": "c1", "status": said, **more}}


def streaming(
    work: Callable[[Request], Any], *bindings: str, **more: Any
) -> Callable[[Request], Any]:
    def handle(request: Request) -> Any:
        if "/.well-known/" in request.path:
            url = f"http://{request.headers['host']}"
            return request.reply(200, card_10(url, *bindings, **{**STREAMING, **more}))
        if request.rpc in ("GetTask", "tasks/get", "tasks/pushNotificationConfig/get"):
            return request.fail(-32001)
        return work(request)

    return handle


async def test_stream_ends_with_its_task_on_an_open_connection() -> None:
    async def work(request: Request) -> None:
        request.stream()
        await request.event({"task": task_10("WORKING")}, "1")
        await request.event(status("COMPLETED"), "2")
        await request.writer.drain()
        await asyncio.Event().wait()

    async with scripted_agent(streaming(work)) as agent:
        client = A2aClient(OutboundHttp().open_configured(agent.url, allow_private=False))
        async with asyncio.timeout(60):
            stream = await client.stream_message(agent.url, SAID)
            events = [event async for event in stream]
    assert [next(iter(event)) for event in events] == ["task", "statusUpdate"]
    assert stream.last_id == "2"


async def test_older_stream_ends_at_the_final_flag() -> None:
    async def work(request: Request) -> None:
        request.stream()
        said = {"kind": "status-update", "taskId": "t1", "contextId": "c1", "final": True}
        await request.event({**said, "status": {"state": "input-required"}})
        await asyncio.Event().wait()

    async with scripted_agent(streaming(work, "JSONRPC:0.3")) as agent:
        client = A2aClient(OutboundHttp().open_configured(agent.url, allow_private=False))
        async with asyncio.timeout(60):
            events = [event async for event in await client.stream_message(agent.url, SAID)]
    assert [read_state(event["statusUpdate"]) for event in events] == ["TASK_STATE_INPUT_REQUIRED"]


async def test_subscription_sends_its_last_event_id() -> None:
    async def work(request: Request) -> None:
        request.stream()
        if request.headers.get("last-event-id") == "7":
            await request.event(status("COMPLETED"), "8")
        else:
            await request.event({"task": task_10("WORKING")}, "7")

    async with scripted_agent(streaming(work)) as agent:
        client = A2aClient(OutboundHttp().open_configured(agent.url, allow_private=False))
        stream = await client.subscribe(agent.url, "t1")
        assert len([event async for event in stream]) == 1
        again = await client.subscribe(agent.url, "t1", stream.last_id)
        assert [next(iter(event)) for event in [each async for each in again]] == ["statusUpdate"]


async def test_broken_stream_is_reported() -> None:
    async def work(request: Request) -> None:
        data = json.dumps({"jsonrpc": "2.0", "id": 1, "result": {"task": task_10("WORKING")}})
        body = f"data: {data}\n\n".encode()
        head = "HTTP/1.1 200 -\r\ncontent-type: text/event-stream\r\ncontent-length: 9999\r\n\r\n"
        request.writer.write(head.encode() + body)
        await request.writer.drain()

    async with scripted_agent(streaming(work)) as agent:
        client = A2aClient(OutboundHttp().open_configured(agent.url, allow_private=False))
        stream = await client.stream_message(agent.url, SAID)
        assert "task" in await anext(stream)
        with pytest.raises(Unreachable):
            await anext(stream)
    assert len(agent.sent("SendStreamingMessage")) == 1


@pytest.mark.parametrize("data", [b"data: nonsense\n\n", b"data: 1\n\n", b'data: {"result":1}\n\n'])
async def test_malformed_event_is_a_bad_reply(data: bytes) -> None:
    async def work(request: Request) -> None:
        request.stream()
        request.writer.write(data)

    async with scripted_agent(streaming(work)) as agent:
        client = A2aClient(OutboundHttp().open_configured(agent.url, allow_private=False))
        with pytest.raises(BadReply):
            async for _ in await client.stream_message(agent.url, SAID):
                pass


async def test_event_size_is_limited_to_ten_megabytes() -> None:
    async def work(request: Request) -> None:
        request.stream()
        request.writer.write(b"data: ")
        for _ in range(11):
            request.writer.write(b"x" * 1024 * 1024)
            await request.writer.drain()

    async with scripted_agent(streaming(work)) as agent:
        client = A2aClient(OutboundHttp().open_configured(agent.url, allow_private=False))
        with pytest.raises(BadReply, match="sent too much"):
            async for _ in await client.stream_message(agent.url, SAID):
                pass


async def test_single_response_and_stream_are_interchangeable() -> None:
    async def work(request: Request) -> None:
        if request.rpc == "SendStreamingMessage":
            request.result({"task": task_10()})
        else:
            request.stream()
            await request.event({"task": task_10("WORKING")})
            await asyncio.Event().wait()

    async with scripted_agent(streaming(work)) as agent:
        client = A2aClient(OutboundHttp().open_configured(agent.url, allow_private=False))
        async with asyncio.timeout(60):
            events = [event async for event in await client.stream_message(agent.url, SAID)]
            answer = await client.send_message(agent.url, SAID)
    assert read_state(events[0]["task"]) == "TASK_STATE_COMPLETED"
    assert read_state(answer["task"]) == "TASK_STATE_WORKING"


async def test_agent_falsely_declaring_streaming_gets_a_plain_message() -> None:
    def work(request: Request) -> None:
        if request.rpc == "SendMessage":
            request.result({"task": task_10()})
        else:
            request.fail(-32601, "Method not found")

    async with scripted_agent(streaming(work)) as agent:
        client = A2aClient(OutboundHttp().open_configured(agent.url, allow_private=False))
        events = [event async for event in await client.stream_message(agent.url, SAID)]
        (finding,) = (await client.find_agent(agent.url)).findings
    assert "its card says that it streams" in finding and len(events) == 1


async def test_error_inside_a_stream_is_not_a_refusal() -> None:
    """It may have begun: nothing is sent again."""

    async def work(request: Request) -> None:
        request.stream()
        error = {"jsonrpc": "2.0", "id": 1, "error": {"code": -32601, "message": "what?"}}
        request.writer.write(f"data: {json.dumps(error)}\n\n".encode())

    async with scripted_agent(streaming(work)) as agent:
        client = A2aClient(OutboundHttp().open_configured(agent.url, allow_private=False))
        with pytest.raises(BadReply, match="what"):
            async for _ in await client.stream_message(agent.url, SAID):
                pass
    assert len([each for each in agent.requests if b"hello" in each.body]) == 1


FLOOD = 3_000
AT_ONCE = 100


@contextmanager
def flooding_agent() -> Iterator[str]:
    """In a thread of its own, so that it is as fast as its socket lets it."""

    class Served(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            url = f"http://{self.headers['host']}"
            self._reply(json.dumps(card_10(url, **STREAMING)).encode())

        def do_POST(self) -> None:
            asked = json.loads(self.rfile.read(int(self.headers["content-length"])))
            head = {"jsonrpc": "2.0", "id": asked["id"]}
            if asked["method"] == "GetTask":
                error = {"code": -32001, "message": "Task not found"}
                self._reply(json.dumps({**head, "error": error}).encode())
                return
            self.send_response(200)
            self.send_header("content-type", "text/event-stream")
            self.send_header("connection", "close")
            self.end_headers()
            event = f"data: {json.dumps({**head, 'result': status('WORKING')})}\n\n".encode()
            with suppress(OSError):
                self.wfile.write(event * FLOOD)
            self.close_connection = True

        def _reply(self, data: bytes) -> None:
            self.send_response(200)
            self.send_header("content-type", "application/json")
            self.send_header("content-length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def log_message(self, format: str, *args: Any) -> None:
            """Drops log output."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Served)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join(60)


async def test_flooding_stream_is_paced_without_blocking_others() -> None:
    """The neighbour has a turn after a few events; all streams of an agent have one pace."""
    heard, turns = 0, [0]
    with flooding_agent() as url:
        outlet = OutboundHttp().open_configured(url, allow_private=False)
        eager = A2aClient(outlet, events_per_second=10 * FLOOD)

        async def hear(client: A2aClient) -> None:
            nonlocal heard
            with suppress(BadReply, Unreachable):  # it ends without an answer
                async for _ in await client.stream_message(url, SAID):
                    heard += 1

        async def neighbour() -> None:
            while True:
                await asyncio.sleep(0)
                turns.append(heard)

        beside = asyncio.create_task(neighbour())
        async with asyncio.timeout(60):
            await hear(eager)
        beside.cancel()
        assert heard == FLOOD
        most = max(after - before for before, after in pairwise(turns))
        assert most <= TURN

        patient = A2aClient(outlet, events_per_second=AT_ONCE)
        await patient.find_probed(url)
        heard, begun = 0, asyncio.get_running_loop().time()
        streams = [asyncio.create_task(hear(patient)) for _ in range(4)]
        async with asyncio.timeout(60):
            while heard < AT_ONCE:
                await asyncio.sleep(0)
        for _ in range(500):
            await asyncio.sleep(0)
        took = asyncio.get_running_loop().time() - begun
        assert heard <= AT_ONCE * (1 + took) + len(streams) * TURN
        for stream in streams:
            stream.cancel()
        await asyncio.gather(*streams, return_exceptions=True)


async def test_stream_of_comments_does_not_answer_a_request() -> None:
    async def work(request: Request) -> None:
        request.stream()
        with suppress(ConnectionError):
            while True:
                request.writer.write(b": still here\n\n")
                await request.writer.drain()
                await asyncio.sleep(0.01)

    async with scripted_agent(streaming(work, capabilities={})) as agent:
        outlet = OutboundHttp().open_configured(agent.url, allow_private=False)
        client = A2aClient(outlet, timeout=0.2)
        async with asyncio.timeout(60):
            with pytest.raises(TimedOut, match="timed out: its stream had no event in time"):
                await client.send_message(agent.url, SAID)
            with pytest.raises(TimedOut, match="timed out: its stream had no event in time"):
                await client.send_message(await client.find_probed(agent.url), SAID, timeout=0.1)
