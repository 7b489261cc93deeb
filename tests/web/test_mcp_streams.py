"""Streamed responses: earlier notifications, broken connections, resumption."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from typing import Any

import pytest
from tests.web.mcp_http_fixture import BOB, Answer, call, modern, notification, request, run_mcp_rig

from dragoman.mcp.protocol.elicitation import TASKS_ONLY
from dragoman.mcp.server import http_sessions, replay_streams, streamable_http
from dragoman.wire.sse import ServerEvent

RESUMABLE = ["2025-03-26", "2025-06-18", "2025-11-25"]


def texts(events: list[ServerEvent]) -> list[Any]:
    """Of each event what it says: a step, or the text of the answer."""
    said = []
    for event in events:
        if event.data:
            message = json.loads(event.data)
            params = message.get("params", {})
            said.append(params.get("progress") or message["result"]["content"][0]["text"])
    return said


async def until(found: Callable[[], bool]) -> None:
    for _ in range(1000):
        if found():
            return
        await asyncio.sleep(0.005)
    raise TimeoutError


# --- what is said before the answer


@pytest.mark.promise("B12", "G2")
@pytest.mark.parametrize("version", RESUMABLE)
async def test_broken_stream_is_resumed_where_it_broke(version: str) -> None:
    async with run_mcp_rig() as here:
        session = await here.session(version)
        first = await here.send("POST", message=call(steps=[1, 2], waits=True), **session)
        assert first.streams
        events = [await first.event() for _ in range(2 + (version == "2025-11-25"))]
        assert texts(events) == [1, 2]
        first.reset()
        await asyncio.sleep(0)
        here.work.go.set()
        last = next(event for event in events if event.data).id  # the second was lost on the way
        again = await here.send("GET", **session, Last_Event_ID=last or "")
        assert (again.status, again.streams) == (200, True)
        rest = await again.rest()
        assert texts(rest) == [2, 99, "done"] and again.ended
        ids = [event.id for event in [*events, *rest]]
        assert len(set(ids)) == len(ids) - 1, "the one that came twice has the same id"
        whole = await here.send("GET", **session, Last_Event_ID=rest[-1].id or "")
        assert await whole.rest() == [], "there is nothing after the answer"
        assert not here.work.cancelled.is_set() and len(here.work.calls) == 1


@pytest.mark.promise("G2")
async def test_stream_can_be_resumed_repeatedly_while_the_call_runs() -> None:
    async with run_mcp_rig() as here:
        session = await here.session()
        first = await here.send("POST", message=call(steps=[1], waits=True), **session)
        primed, said = await first.event(), await first.event()
        assert primed.data == b"" and primed.id and first.retry == replay_streams.RETRY_MS
        second = await here.send("GET", **session, Last_Event_ID=primed.id)
        assert texts([await second.event()]) == [1]
        assert await first.rest() == [] and first.ended, "it goes on over one connection"
        second.reset()
        third = await here.send("GET", **session, Last_Event_ID=said.id or "")
        here.work.go.set()
        assert texts(await third.rest()) == [99, "done"] and third.ended


@pytest.mark.promise("G2")
@pytest.mark.parametrize("version", ["2024-11-05", *RESUMABLE])
async def test_priming_event_is_sent_only_in_2025_11_25(version: str) -> None:
    async with run_mcp_rig() as here:
        session = await here.session(version)
        answer = await here.send("POST", message=call(steps=[1]), **session)
        events = await answer.rest()
        assert texts(events) == [1, "done"]
        assert (b"" in [event.data for event in events]) == (version == "2025-11-25")
        assert all(bool(event.id) == (version != "2024-11-05") for event in events)
        assert (answer.retry is not None) == (version == "2025-11-25")
        stream = await here.send("GET", **session)
        here.http.sessions._open[session["Mcp_Session_Id"]].notify(b"7")
        first = await stream.event()
        assert first.data == (b"" if version == "2025-11-25" else b"7")
        stream.close()


@pytest.mark.promise("G2")
async def test_event_ids_are_sent_only_to_legacy_sessions() -> None:
    async with run_mcp_rig() as here:
        for sent in (modern(call(steps=[1])), {"message": call(steps=[1])}):
            events = await (await here.send("POST", **sent)).rest()
            assert texts(events) == [1, "done"]
            assert [event.id for event in events] == [None, None]


@pytest.mark.promise("G2")
async def test_long_call_is_primed_so_that_its_response_can_be_replayed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(replay_streams, "WATCH_AFTER", 0.01)
    async with run_mcp_rig() as here:
        session = await here.session()
        message = {**call(waits=True)}
        del message["params"]["_meta"]
        first = await here.send("POST", message=message, **session)
        primed = await first.event()
        assert (primed.data, first.streams) == (b"", True)
        first.reset()
        here.work.go.set()
        await until(lambda: here.http.sessions._store.bytes > 0)
        again = await here.send("GET", **session, Last_Event_ID=primed.id or "")
        assert texts(await again.rest()) == ["done"]


async def test_quick_call_is_plain_json_and_not_buffered() -> None:
    async with run_mcp_rig() as here:
        session = await here.session()
        answer = await here.send("POST", message=call(), **session)
        assert (await answer.json())["result"]["content"][0]["text"] == "done"
        found = here.http.sessions._open[session["Mcp_Session_Id"]]
        assert found.replay.streams == {} and found.running == {}
        assert here.http.keepalive._timer is None


# --- whose it is


@pytest.mark.promise("G2", "O1")
async def test_event_id_is_valid_only_in_its_session() -> None:
    async with run_mcp_rig() as here:
        session = await here.session()
        first = await here.send("POST", message=call(steps=[1, 2], text="a secret"), **session)
        id = (await first.event()).id or ""
        other, foreign = await here.session(), await here.session(who=BOB)
        for headers, who in ((other, "alice"), (foreign, BOB)):
            refused = await here.send("GET", **headers, who=who, Last_Event_ID=id)
            assert refused.status == 400 and b"send the request again" in await refused.body()
        stolen = await here.send("GET", **session, who=BOB, Last_Event_ID=id)
        assert stolen.status == 404
        no_such = await here.send("GET", **session, Last_Event_ID="p" + "0" * 16 + "-1")
        assert no_such.status == 400
        for odd in ("x", "-", id.replace("-", ""), id + "x", id + "9" * 30, id.partition("-")[0]):
            assert (await here.send("GET", **session, Last_Event_ID=odd)).status == 400, odd
        assert texts(await (await here.send("GET", **session, Last_Event_ID=id)).rest())[-1] == (
            "a secret"
        )


@pytest.mark.promise("G2")
async def test_notifications_are_replayed_only_on_their_own_stream() -> None:
    async with run_mcp_rig() as here:
        session = await here.session()
        peer = here.http.sessions._open[session["Mcp_Session_Id"]]
        first = await here.send("GET", **session)
        primed = await first.event()
        await until(lambda: bool(peer.streams))
        peer.notify(b"1")
        seen = await first.event()
        assert seen.data == b"1"
        peer.notify(b"2")  # and this is lost
        first.reset()
        await until(lambda: not peer.streams)
        peer.notify(b"3")  # while no stream is open
        second = await here.send("GET", **session, Last_Event_ID=seen.id or "")
        assert [(await second.event()).data for _ in range(2)] == [b"2", b"3"]
        third = await here.send("GET", **session)
        assert (await third.event()).data == b"", "a stream of its own"
        peer.notify(b"4")
        assert (await second.event()).data == b"4"
        unknown = await here.send("GET", **session, Last_Event_ID="g" + "0" * 16 + "-3")
        assert (await unknown.event()).data == b"", "of before a restart: a new stream"
        back = await here.send("GET", **session, Last_Event_ID=primed.id or "")
        assert [(await back.event()).data for _ in range(4)] == [b"1", b"2", b"3", b"4"]
        assert await second.rest() == [] and second.ended
        for one in (third, unknown, back):
            one.close()


async def test_stream_moved_to_another_connection_is_kept_alive() -> None:
    async with run_mcp_rig() as here:
        session = await here.session()
        peer = here.http.sessions._open[session["Mcp_Session_Id"]]
        first = await here.send("GET", **session)
        primed = (await first.event()).id or ""
        second = await here.send("GET", **session, Last_Event_ID=primed)
        assert await first.rest() == []
        await until(lambda: len(peer.streams) == 1)
        peer.notify(b"1")
        assert (await second.event()).id == primed.replace("-0", "-1")
        second.reset()
        third = await here.send("GET", **session, Last_Event_ID=primed)
        assert (await third.event()).data == b"1"


# --- bounds


@pytest.mark.promise("N1")
async def test_replay_buffer_is_bounded_in_count_size_and_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with run_mcp_rig() as here:
        session = await here.session("2025-06-18")
        store = here.http.sessions._store
        monkeypatch.setattr(replay_streams, "MAX_EVENTS", 5)
        answer = await here.send("POST", message=call(steps=list(range(1, 20))), **session)
        first = (await answer.event()).id or ""
        await answer.rest()
        again = await here.send("GET", **session, Last_Event_ID=first)
        assert texts(await again.rest()) == [16, 17, 18, 19, "done"]

        monkeypatch.setattr(replay_streams, "MAX_BYTES", 3_000)
        answer = await here.send("POST", message=call(2, steps=[1], text="x" * 2_000), **session)
        event = (await answer.event()).id or ""
        await answer.rest()
        assert (await here.send("GET", **session, Last_Event_ID=first)).status == 400
        again = await here.send("GET", **session, Last_Event_ID=event)
        assert [len(text) for text in texts(await again.rest())] == [2_000]
        assert store.bytes <= 3_000

        other = await here.session("2025-06-18")
        monkeypatch.setattr(replay_streams, "MAX_BYTES_IN_ALL", 4_000)
        answer = await here.send("POST", message=call(3, steps=[1], text="y" * 2_000), **other)
        theirs = (await answer.event()).id or ""
        await answer.rest()
        assert store.bytes <= 4_000
        assert (await here.send("GET", **session, Last_Event_ID=event)).status == 400
        assert (await here.send("GET", **other, Last_Event_ID=theirs)).status == 200

        monkeypatch.setattr(replay_streams, "KEEP_SECONDS", -1.0)
        assert (await here.send("GET", **other, Last_Event_ID=theirs)).status == 400
        assert store.bytes == 0


@pytest.mark.promise("N1")
async def test_ended_session_leaves_nothing_in_the_replay_buffer(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(replay_streams, "MAX_STREAMS", 3)
    async with run_mcp_rig() as here:
        session = await here.session()
        waiting = await here.send("POST", message=call(0, steps=[1], waits=True), **session)
        for id in range(1, 8):
            await (await here.send("POST", message=call(id, steps=[1]), **session)).rest()
        store = here.http.sessions._store
        peer = here.http.sessions._open[session["Mcp_Session_Id"]]
        assert 0 < len(peer.replay.streams) <= 3 and store.bytes == peer.replay.bytes > 0
        assert (await here.send("DELETE", **session)).status == 200
        await asyncio.wait_for(here.work.cancelled.wait(), 60)
        assert json.loads((await waiting.rest())[-1].data)["error"]["code"] == -32800
        assert store.bytes == 0 and not store._buffers


@pytest.mark.promise("N1")
async def test_running_requests_of_a_session_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(streamable_http, "MAX_RUNNING", 2)
    async with run_mcp_rig() as here:
        session = await here.session()
        held = [
            await here.send("POST", message=call(id, steps=[1], waits=True), **session)
            for id in range(2)
        ]
        refused = await here.send("POST", message=call(9), **session)
        assert "running" in (await refused.json())["error"]["message"]
        ping = await here.send("POST", message=request(8, "ping"), **session)
        assert (await ping.json())["result"] == {}, "a session at its limit can be kept alive"
        here.work.go.set()
        for one in held:
            assert texts(await one.rest())[-1] == "done"
        assert (await (await here.send("POST", message=call(9), **session)).json())["result"]


@pytest.mark.promise("N1")
async def test_slow_reader_loses_notifications_but_not_the_response(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with run_mcp_rig() as here:
        steps = list(range(1, 3_001))
        answer = await here.send("POST", **modern(call(steps=steps, padding="x" * 5_000)))
        said = texts(await answer.rest())
        assert said[-1] == "done" and answer.ended
        assert said[:-1] == sorted(said[:-1]) and 0 < len(said) < len(steps)


# --- questions


@pytest.mark.promise("B12", "G2")
@pytest.mark.parametrize("version", ["2025-06-18", "2025-11-25"])
async def test_elicitation_is_sent_on_the_stream_of_its_call_and_answered_by_post(
    version: str,
) -> None:
    async with run_mcp_rig() as here:
        session = await here.session(version, elicitation={})
        asking = await here.send("POST", message=call("c", asks=True), **session)
        asked = await asking.message()
        assert (asked["method"], asked["params"]["message"]) == ("elicitation/create", "your name?")
        other = await here.session(version, elicitation={})
        reply = {"jsonrpc": "2.0", "id": asked["id"], "result": {"action": "accept", "content": {}}}
        assert (await here.send("POST", message=reply, **other)).status == 202
        stolen = await here.send("POST", message=reply, who=BOB, **session)
        assert stolen.status == 404
        wrong = {**reply, "id": "another"}
        assert (await here.send("POST", message=wrong, **session)).status == 202
        reply["result"] = {"action": "accept", "content": {"name": "Ada"}}
        accepted = await here.send("POST", message=reply, **session)
        assert (accepted.status, await accepted.body()) == (202, b"")
        said = json.loads(texts(await asking.rest())[0])
        assert said == {"action": "accept", "content": {"name": "Ada"}}


@pytest.mark.promise("B12", "G2")
async def test_elicitation_waits_for_a_client_whose_stream_broke() -> None:
    async with run_mcp_rig() as here:
        session = await here.session(elicitation={})
        asking = await here.send("POST", message=call("c", asks=True), **session)
        primed = await asking.event()
        asking.reset()
        again = await here.send("GET", **session, Last_Event_ID=primed.id or "")
        asked = await again.message()
        reply = {"jsonrpc": "2.0", "id": asked["id"], "result": {"action": "decline"}}
        assert (await here.send("POST", message=reply, **session)).status == 202
        assert json.loads(texts(await again.rest())[0]) == {"action": "decline"}
        assert here.work.calls[-1].answers == {"q": {"action": "decline"}}


@pytest.mark.promise("B12")
async def test_client_without_stream_or_session_is_not_elicited() -> None:
    async with run_mcp_rig() as here:
        session = await here.session(elicitation={})
        plain = await here.send(
            "POST", message=call(asks=True), Accept="application/json", **session
        )
        assert not plain.streams
        await plain.body()
        assert here.work.calls[-1].features == TASKS_ONLY
        without = await here.send("POST", message=call(asks=True))
        assert not without.streams
        await without.body()
        assert here.work.calls[-1].features == TASKS_ONLY and here.work.calls[-1].client == ""
        asking = await here.send("POST", message=call(asks=True), **session)
        await asking.message()
        made = here.work.calls[-1]
        assert made.features == {"elicitation": {}, **TASKS_ONLY}
        assert made.client and made.client not in ("", session["Mcp_Session_Id"])
        asking.close()


# --- cancelling


@pytest.mark.promise("B12", "G2")
@pytest.mark.parametrize("streamed", [True, False])
async def test_disconnect_cancels_only_from_revision_2026(
    streamed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(replay_streams, "WATCH_AFTER", 0.01)
    async with run_mcp_rig() as here:
        steps: dict[str, Any] = {"steps": [1]} if streamed else {}
        message = call(waits=True, **steps)
        accept = "application/json, text/event-stream" if streamed else "application/json"
        session = await here.session()

        async def hang_up(sent: dict[str, Any]) -> None:
            asking = asyncio.create_task(here.send("POST", Accept=accept, **sent))
            await asyncio.wait_for(here.work.running.wait(), 60)
            here.answers[-1].reset()
            await asyncio.gather(asking, return_exceptions=True)
            here.work.running.clear()

        await hang_up({"message": message, **session})
        await hang_up({"message": message})
        await until(lambda: here.listener.connections == 0)
        assert not here.work.cancelled.is_set()
        await hang_up(modern(message))
        await asyncio.wait_for(here.work.cancelled.wait(), 60)


@pytest.mark.promise("B12", "G2")
async def test_every_long_request_of_a_session_can_be_cancelled() -> None:
    async with run_mcp_rig() as here:
        session = await here.session(elicitation={})
        asking = await here.send("POST", message=call("c", asks=True), **session)
        asked = await asking.message()
        cancel = notification("notifications/cancelled", requestId="c")
        assert (await here.send("POST", message=cancel, **session)).status == 202
        told, answer = [json.loads(event.data) for event in await asking.rest()]
        assert told["method"] == "notifications/cancelled"
        assert told["params"]["requestId"] == asked["id"], "nobody waits for the answer"
        assert answer["error"]["code"] == -32800


# --- listening


@pytest.mark.promise("Q2", "G2")
async def test_modern_subscription_lasts_until_either_end_closes() -> None:
    async with run_mcp_rig() as here:
        wants = request("l", "subscriptions/listen", notifications={"toolsListChanged": True})
        stays, leaves = [await here.send("POST", **modern(wants)) for _ in range(2)]
        for one in (stays, leaves):
            assert (await one.message())["method"] == "notifications/subscriptions/acknowledged"
        leaves.reset()
        await until(lambda: len(here.mcp_server.subscriptions._streams) == 1)
        here.mcp_server.hub.catalog.withdraw("work")
        assert (await stays.message())["method"] == "notifications/tools/list_changed"
        here.mcp_server.subscriptions.close()
        (last,) = await stays.rest()
        assert json.loads(last.data)["id"] == "l" and stays.ended
        assert not here.http.keepalive._timer or not any(here.http.keepalive._slots)


@pytest.mark.promise("G2")
async def test_idle_streams_of_all_kinds_are_kept_alive_by_one_timer(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(replay_streams, "KEEPALIVE_SECONDS", 0.1)
    async with run_mcp_rig() as here:
        wants = request("l", "subscriptions/listen", notifications={"toolsListChanged": True})
        session = await here.session()
        opened: list[Answer] = [
            await here.send("POST", **modern(wants)),
            await here.send("GET", **session),
            await here.send("GET", "/sse"),
        ]
        for one in opened:
            async with asyncio.timeout(60):
                for _ in range(3):
                    await one._reader.readuntil(b": keep-alive\n\n")
            one.close()
        slots = (*here.http.keepalive._slots, *here.sse._keepalive._slots)
        await until(lambda: not any(slots))
        await until(lambda: here.http.keepalive._timer is None)


async def test_changes_without_an_open_stream_are_sent_on_the_next(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with run_mcp_rig() as here:
        session = await here.session()
        here.mcp_server.hub.catalog.withdraw("work")
        peer = here.http.sessions._open[session["Mcp_Session_Id"]]
        await until(lambda: bool(peer.unsent))
        stream = await here.send("GET", **session)
        assert (await stream.message())["method"] == "notifications/tools/list_changed"
        monkeypatch.setattr(http_sessions, "UNSENT_SECONDS", -1)
        stream.close()
