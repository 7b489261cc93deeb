"""The MCP server over HTTP+SSE on a real socket."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from typing import Any

import pytest
from tests.web.mcp_http_fixture import (
    BOB,
    Answer,
    HubRig,
    call,
    modern,
    notification,
    request,
    run_mcp_rig,
)

from dragoman.mcp.server import legacy_sse
from dragoman.web.http import http1

pytestmark = pytest.mark.promise("G2")


class Client:
    """One that came by `GET /sse`."""

    def __init__(self, here: HubRig, stream: Answer, where: str, who: str) -> None:
        self.here = here
        self.stream = stream
        self.where = where
        self.who = who

    @classmethod
    async def of(cls, here: HubRig, who: str = "alice") -> Client:
        stream = await here.send("GET", "/sse", who=who, Accept="text/event-stream")
        assert (stream.status, stream.streams) == (200, True)
        first = await stream.event()
        assert first.event == "endpoint"
        return cls(here, stream, first.data.decode(), who)

    async def say(self, message: Any, who: str | None = None) -> Answer:
        return await self.here.send("POST", self.where, message, who=who or self.who)

    async def ask(self, message: Any) -> Any:
        assert (await self.say(message)).status == 202
        return await self.stream.message()

    async def initialize(self, version: str = "2024-11-05", **capabilities: Any) -> Any:
        params = {"protocolVersion": version, "capabilities": capabilities}
        answer = await self.ask(request(0, "initialize", **params))
        assert (await self.say(notification("notifications/initialized"))).status == 202
        return answer["result"]


async def until(found: Callable[[], bool]) -> None:
    for _ in range(1000):
        if found():
            return
        await asyncio.sleep(0.005)
    raise TimeoutError


@pytest.mark.promise("F6", "F7")
@pytest.mark.parametrize("version", ["2024-11-05", "2025-03-26", "2025-06-18", "2025-11-25"])
async def test_handshake_client_of_any_revision_lists_and_calls(version: str) -> None:
    async with run_mcp_rig() as here:
        client = await Client.of(here)
        assert client.where.startswith("/messages/?session_id=")
        assert (await client.initialize(version))["protocolVersion"] == version
        listed = await client.ask(request(1, "tools/list"))
        assert [tool["name"] for tool in listed["result"]["tools"]] == [
            "mcp_work_do",
            "mcp_work_mirrored",
            "mcp_work_spoilt",
        ]
        progress = await client.ask(call("c", steps=[1]))
        assert progress["method"] == "notifications/progress"
        answer = await client.stream.message()
        assert (answer["id"], answer["result"]["content"][0]["text"]) == ("c", "done")
        assert (here.work.calls[-1].door, bool(here.work.calls[-1].client)) == ("mcp-sse", True)
        assert (await client.ask(request(2, "no/such")))["error"]["code"] == -32601
        assert (await client.ask(request(3, "ping")))["result"] == {}


@pytest.mark.promise("F7")
async def test_newest_revision_is_refused_over_sse_in_a_readable_way() -> None:
    async with run_mcp_rig() as here:
        client = await Client.of(here)
        answer = await client.ask(modern(request("d", "server/discover"))["message"])
        assert (answer["id"], answer["error"]["code"]) == ("d", -32601)
        answer = await client.ask(modern(call("c"))["message"])
        assert answer["error"]["code"] == -32601 and here.work.calls == []
        assert (await client.initialize("2026-07-28"))["protocolVersion"] == "2025-11-25"
        batch = [modern(call("c"))["message"]]
        assert (await client.ask(batch))["error"]["code"] == -32600


@pytest.mark.promise("O1")
async def test_sse_session_is_bound_to_its_key() -> None:
    async with run_mcp_rig() as here:
        client, other = await Client.of(here), await Client.of(here, BOB)
        ping = request(1, "ping")
        stolen = await client.say(ping, who=BOB)
        assert stolen.status == 404 and "GET /sse" in (await stolen.json())["error"]["message"]
        assert (await other.ask(ping))["result"] == {}
        assert (await client.ask(ping))["result"] == {}
        id = client.where.rpartition("=")[2]
        assert len(id) == 32 and id not in (other.where, "")
        for query in (
            "",
            "?",
            "?session_id=",
            f"?session_id={id}x",
            f"?x={id}",
            "?session_id=%C3%A9",
        ):
            assert (await here.send("POST", f"/messages/{query}", ping)).status == 404, query
        twice = f"/messages/?session_id={id}&session_id={id}"
        assert (await here.send("POST", twice, ping)).status == 404
        assert (await here.send("POST", f"/messages?session_id={id}", ping)).status == 202
        assert here.work.calls == []


async def test_invalid_message_is_refused_with_a_reason() -> None:
    async with run_mcp_rig() as here:
        client = await Client.of(here)
        for body, status in ((b"{", 400), (b'{"id":1,"id":2}', 400), (b"\xff", 400)):
            refused = await here.send("POST", client.where, body)
            assert refused.status == status and (await refused.json())["error"]["message"]
        plain = await here.send("POST", client.where, b"{}", Content_Type="text/plain")
        assert plain.status == 415
        flawed = await client.ask({"id": 1, "method": "ping"})
        assert flawed["error"]["code"] == -32600
        assert (await here.send("GET", "/messages/")).headers["allow"] == "POST"
        assert (await here.send("POST", "/sse", b"{}")).headers["allow"] == "GET"
        assert (await here.send("GET", "/sse", Accept="text/html")).status == 406


@pytest.mark.promise("N1", "O1")
async def test_sse_checks_host_origin_and_key() -> None:
    async with run_mcp_rig() as here:
        client = await Client.of(here)
        for method, path, body in (("GET", "/sse", None), ("POST", client.where, b"{}")):
            assert (await here.send(method, path, body, Host="evil.example")).status == 421
            assert (await here.send(method, path, body, Origin="http://evil.example")).status == 403
            assert (await here.send(method, path, body, Authorization="")).status == 401
        assert len(here.sse) == 1


@pytest.mark.promise("B12")
async def test_elicitations_and_notifications_are_sent_on_the_sse_stream() -> None:
    async with run_mcp_rig() as here:
        client = await Client.of(here)
        await client.initialize("2025-06-18", elicitation={})
        asked = await client.ask(call("c", asks=True))
        assert asked["method"] == "elicitation/create"
        answer = {"action": "accept", "content": {"name": "Ada"}}
        said = await client.ask({"jsonrpc": "2.0", "id": asked["id"], "result": answer})
        assert json.loads(said["result"]["content"][0]["text"]) == answer
        await until(lambda: bool(here.mcp_server.subscriptions._joined))
        here.mcp_server.hub.catalog.withdraw("work")
        told = await client.stream.message()
        assert told["method"] == "notifications/tools/list_changed"


async def test_client_receives_no_notification_before_initialized() -> None:
    async with run_mcp_rig() as here:
        client = await Client.of(here)
        await client.ask(request(0, "initialize", protocolVersion="2024-11-05"))
        assert not here.mcp_server.subscriptions._joined
        await client.say(notification("notifications/initialized"))
        await until(lambda: bool(here.mcp_server.subscriptions._joined))


@pytest.mark.promise("B12")
async def test_call_is_cancelled_by_notification_and_by_disconnect() -> None:
    async with run_mcp_rig() as here:
        client = await Client.of(here)
        await client.initialize()
        assert (await client.say(call("c", waits=True))).status == 202
        await asyncio.wait_for(here.work.running.wait(), 60)
        again = await client.ask(call("c"))
        assert "still running" in again["error"]["message"]
        assert (
            await client.say(notification("notifications/cancelled", requestId="c"))
        ).status == (202)
        await asyncio.wait_for(here.work.cancelled.wait(), 60)
        here.work.cancelled.clear()
        here.work.running.clear()
        assert (await client.say(call("c", waits=True))).status == 202, "the id is free again"
        await asyncio.wait_for(here.work.running.wait(), 60)
        client.stream.reset()
        await asyncio.wait_for(here.work.cancelled.wait(), 60)
        await until(lambda: len(here.sse) == 0)
        assert not here.mcp_server.subscriptions._joined
        assert (await client.say(request(1, "ping"))).status == 404


@pytest.mark.promise("F6")
async def test_batches_are_of_one_revision() -> None:
    async with run_mcp_rig() as here:
        for version in ("2024-11-05", "2025-03-26"):
            client = await Client.of(here)
            await client.initialize(version)
            batch = [request(1, "ping"), notification("x"), call(2)]
            answer = await client.ask(batch)
            if version == "2025-03-26":
                assert [one["id"] for one in answer] == [1, 2]
            else:
                assert answer["error"]["code"] == -32600


@pytest.mark.promise("N1")
async def test_sse_clients_and_their_running_requests_are_bounded(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(legacy_sse, "MAX_CLIENTS", 2)
    monkeypatch.setattr(legacy_sse, "MAX_RUNNING", 3)
    async with run_mcp_rig() as here:
        client, _ = await Client.of(here), await Client.of(here)
        full = await here.send("GET", "/sse")
        assert full.status == 503 and b"too many" in await full.body()
        for id in range(3):
            assert (await client.say(call(id, waits=True))).status == 202
        refused = await client.say(call(3))
        assert refused.status == 503 and (await refused.json())["id"] == 3
        here.work.go.set()
        seen = [await client.stream.message() for _ in range(6)]
        assert sorted(one["id"] for one in seen if "id" in one) == [0, 1, 2]
        assert (await client.ask(call(3)))["id"] == 3


@pytest.mark.promise("N1")
async def test_client_that_does_not_read_is_paused_and_notified_later(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(http1, "UNREAD_BYTES", 10_000)
    async with run_mcp_rig() as here:
        client = await Client.of(here)
        await client.initialize()
        (inside,) = here.sse._clients.values()
        big = b'{"jsonrpc":"2.0","method":"notifications/x","params":"%b"}' % (b"x" * 10_000)
        told = 0
        while inside.request.reads and told < 10_000:
            inside.notify(big)
            told += 1
        assert told < 10_000
        refused = await client.say(request(1, "ping"))
        assert refused.status == 503 and b"does not read" in await refused.body()
        inside.notify(b'{"jsonrpc":"2.0","method":"notifications/last"}')
        for _ in range(told):
            assert (await client.stream.message())["method"] == "notifications/x"
        inside.send_keepalive()
        assert (await client.stream.message())["method"] == "notifications/last"
        assert (await client.ask(request(1, "ping")))["result"] == {}


async def test_shutdown_answers_running_requests_and_ends_streams() -> None:
    async with run_mcp_rig() as here:
        idle, busy = await Client.of(here), await Client.of(here)
        await busy.say(call("c", waits=True))
        await asyncio.wait_for(here.work.running.wait(), 60)
        here.sse.close()
        assert await idle.stream.rest() == [] and idle.stream.ended
        assert (await here.send("GET", "/sse")).status == 503
        here.work.go.set()
        events = await busy.stream.rest()
        assert json.loads(events[-1].data)["id"] == "c" and busy.stream.ended
        await until(lambda: len(here.sse) == 0)
