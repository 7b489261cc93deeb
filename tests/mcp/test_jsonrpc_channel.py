"""Requests and responses over one channel, with the server played by the test."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Mapping
from typing import Any

import pytest

from dragoman.core.call import Progress
from dragoman.core.errors import BadReply, TimedOut, Unreachable, WorkFailed
from dragoman.core.read_pacing import PER_SECOND, Pace
from dragoman.mcp.client.jsonrpc_channel import JsonRpcChannel
from dragoman.mcp.client.notifications import RequestListener
from dragoman.mcp.protocol.framing import OversizedFrame


class ScriptedChannel(JsonRpcChannel):
    """A channel to a server that the test plays."""

    def __init__(self) -> None:
        super().__init__("s", lambda method, params: self.received.append((method, params)))
        self.sent: list[Any] = []
        self.received: list[Any] = []
        self.gone = False

    def _send(self, message: bytes, meta: Mapping[str, Any]) -> None:
        if self.gone:
            raise Unreachable("gone", sent=False)
        self.sent.append(json.loads(message))

    def ask(
        self, method: str = "tools/call", timeout: float = 60, **more: Any
    ) -> asyncio.Task[Any]:
        request = self.request(method, {"name": "x"}, timeout, **more)
        return asyncio.create_task(request)

    def say(self, **message: Any) -> None:
        self.receive(json.dumps({"jsonrpc": "2.0", **message}).encode())


async def test_responses_match_requests_in_any_order() -> None:
    channel = ScriptedChannel()
    tasks = [channel.ask() for _ in range(3)]
    await asyncio.sleep(0)
    assert [message["id"] for message in channel.sent] == [1, 2, 3]
    for number in (2, 3, 1):
        channel.say(id=number, result={"n": number})
    assert [(await task)[0] for task in tasks] == [{"n": 1}, {"n": 2}, {"n": 3}]


async def test_response_size_is_reported() -> None:
    channel = ScriptedChannel()
    task = channel.ask()
    await asyncio.sleep(0)
    data = b'{"jsonrpc":"2.0","id":1,"result":{}}'
    channel.receive(data)
    assert await task == ({}, len(data))


async def test_first_response_wins_and_unknown_ones_are_counted() -> None:
    channel = ScriptedChannel()
    task = channel.ask()
    await asyncio.sleep(0)
    channel.say(id=99, result="nobody's")
    for odd in (True, 1.0, "1", None, [1], {"a": 1}):
        channel.say(id=odd, result="odd")
    channel.say(id=1, result="first")
    channel.say(id=1, result="second")
    assert (await task)[0] == "first"
    assert channel.unsolicited == 8


@pytest.mark.parametrize(
    ("message", "kind", "words"),
    [
        (
            {"error": {"code": -1, "message": "no"}},
            WorkFailed,
            'answered "tools/call" with error -1: no',
        ),
        ({"error": "no"}, WorkFailed, "error -32603: no"),
        ({}, BadReply, "neither result nor error"),
    ],
)
async def test_error_reaches_its_requester(
    message: dict[str, Any], kind: type[Exception], words: str
) -> None:
    channel = ScriptedChannel()
    task = channel.ask()
    await asyncio.sleep(0)
    channel.say(id=1, **message)
    with pytest.raises(kind, match=words):
        await task


async def test_batch_is_split() -> None:
    channel = ScriptedChannel()
    tasks = [channel.ask(), channel.ask()]
    await asyncio.sleep(0)
    channel.receive(b'[{"id":2,"result":"b"},7,{"method":"n"},{"id":1,"result":"a"}]')
    assert [(await task)[0] for task in tasks] == ["a", "b"]
    assert channel.received == [("n", {})]


@pytest.mark.promise("B8")
async def test_timeout_is_a_typed_error_and_cancels_at_the_server() -> None:
    channel = ScriptedChannel()
    with pytest.raises(
        TimedOut, match=r'did not answer "tools/call" within 0\.02 s: .* was cancelled'
    ):
        await channel.ask(timeout=0.02)
    assert channel.sent[-1] == {
        "jsonrpc": "2.0",
        "method": "notifications/cancelled",
        "params": {"requestId": 1, "reason": "no response within 0.02 s"},
    }
    channel.say(id=1, result="late")  # and has no effect
    task = channel.ask()
    await asyncio.sleep(0)
    channel.say(id=2, result="next")
    assert (await task)[0] == "next"


@pytest.mark.promise("B8")
@pytest.mark.parametrize("method", ["initialize", "server/discover"])
async def test_initialize_is_never_cancelled(method: str) -> None:
    channel = ScriptedChannel()
    with pytest.raises(TimedOut):
        await channel.ask(method, timeout=0.02)
    assert [message["method"] for message in channel.sent] == [method]


@pytest.mark.promise("B12")
async def test_cancelled_caller_cancels_the_request() -> None:
    channel = ScriptedChannel()
    task = channel.ask()
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert channel.sent[-1]["params"] == {
        "requestId": 1,
        "reason": "the caller cancelled the request",
    }


@pytest.mark.promise("B12")
async def test_progress_reaches_its_requester_and_only_increases() -> None:
    channel = ScriptedChannel()
    seen: list[Any] = []
    task, other = channel.ask(listener=RequestListener(seen.append, progress=True)), channel.ask()
    await asyncio.sleep(0)
    first, second = channel.sent
    assert first["params"] == {"name": "x", "_meta": {"progressToken": 1}}
    assert "_meta" not in second["params"]
    for told in (
        {"progressToken": 1, "progress": 1, "total": 3, "message": "one"},
        {"progressToken": 1, "progress": 1},
        {"progressToken": 1, "progress": 0.5},
        {"progressToken": 1, "progress": "2"},
        {"progressToken": True, "progress": 5},
        {"progressToken": 2, "progress": 6},
        {"progressToken": 9, "progress": 7},
        {"progressToken": 1, "progress": 2.5, "total": "x", "message": 5},
    ):
        channel.say(method="notifications/progress", params=told)
    channel.say(id=1, result={})
    channel.say(method="notifications/progress", params={"progressToken": 1, "progress": 9})
    channel.say(id=2, result={})
    await asyncio.gather(task, other)
    assert seen == [Progress(progress=1, total=3, message="one"), Progress(progress=2.5)]
    assert channel.received == []


async def test_closed_channel_fails_each_waiter_with_its_own_error() -> None:
    channel = ScriptedChannel()
    tasks = [channel.ask(), channel.ask()]
    await asyncio.sleep(0)
    channel.mark_lost("it is over", "; wait")
    errors = await asyncio.gather(*tasks, return_exceptions=True)
    assert channel.lost.result() == "it is over"
    text = 'server "s" was lost: it is over. The request may or may not have been executed; wait'
    assert [str(error) for error in errors] == [text] * 2
    assert all(isinstance(error, Unreachable) and error.sent for error in errors)
    assert errors[0] is not errors[1]


async def test_unsendable_request_fails_at_once_and_leaves_nothing() -> None:
    channel = ScriptedChannel()
    channel.gone = True
    with pytest.raises(Unreachable, match="gone") as raised:
        await channel.ask()
    assert raised.value.sent is False
    assert not channel._pending


@pytest.mark.promise("B13")
async def test_server_request_is_answered_by_declared_capabilities() -> None:
    channel = ScriptedChannel()
    channel.say(id="a", method="ping")
    channel.say(id=7, method="sampling/createMessage", params={})
    channel.say(id=None, method="x" * 1000)
    ping, sampling, odd = channel.sent
    assert ping == {"jsonrpc": "2.0", "id": "a", "result": {}}
    assert (sampling["id"], sampling["error"]["code"]) == (7, -32601)
    assert odd["id"] is None and len(json.dumps(odd)) < 300
    channel.gone = True
    channel.say(id=8, method="ping")  # no one to answer: ignored


@pytest.mark.parametrize(
    "data", [b"not json", b"", b"7", b"null", b'"x"', b"\xff\xfe", b"[" * 100_000, b"{}" + b" {}"]
)
async def test_invalid_messages_are_ignored(data: bytes, caplog: pytest.LogCaptureFixture) -> None:
    channel = ScriptedChannel()
    task = channel.ask()
    await asyncio.sleep(0)
    with caplog.at_level(logging.WARNING):
        for _ in range(100):
            channel.receive(data)
    channel.say(id=1, result="still")
    assert (await task)[0] == "still"
    assert caplog.text.count("sent an invalid message") == 5  # and not a hundred
    assert channel.unsolicited == 100


async def test_unreadable_response_fails_its_requester() -> None:
    channel = ScriptedChannel()
    task, other = channel.ask(), channel.ask()
    await asyncio.sleep(0)
    channel.receive(b'{"jsonrpc":"2.0","id":1,"result":' + b"[" * 200 + b"]" * 200 + b"}")
    with pytest.raises(BadReply, match=r'answered "tools/call" with an invalid message: .*nested'):
        await task
    assert not other.done()
    channel.say(id=2, result={})
    await other


def too_large(prefix: bytes, suffix: bytes) -> OversizedFrame:
    return OversizedFrame(prefix, "line", 1_000, suffix)


async def test_oversized_response_fails_only_its_requester() -> None:
    channel = ScriptedChannel()
    task, other = channel.ask(), channel.ask()
    await asyncio.sleep(0)
    channel.limit.bytes = 100
    channel.reject_oversized(
        too_large(b'{"jsonrpc":"2.0","result":{"id":2,"x":[{"id": 1}],"text":"', b'"id":2}]}')
    )
    await asyncio.sleep(0)
    assert not task.done() and not other.done()
    channel.reject_oversized(too_large(b'{"id": 2, "result": {"id": 1, "te', b'"id":1}}'))
    with pytest.raises(BadReply, match='answered "tools/call" with more than 100 bytes'):
        await other
    assert not task.done()
    last = b'"}]},"jsonrpc":"2.0","id":1}'
    channel.reject_oversized(too_large(b'{"result":{"content":[{"text":"id', last))
    with pytest.raises(BadReply, match="too large for one message"):
        await task


async def test_flooding_server_is_read_more_slowly() -> None:
    pace = Pace()
    assert pace.pause(0) == 0
    assert pace.pause(PER_SECOND) == 0
    first = pace.pause(100)
    assert 0 < first < 0.5
    assert first < pace.pause(1_000) <= 1
    assert pace.pause(1_000_000) == 1


async def test_burst_accounting_decays() -> None:
    pace = Pace()
    assert pace.pause(PER_SECOND) == 0
    await asyncio.sleep(0.1)
    assert pace.pause(PER_SECOND // 20) == 0
