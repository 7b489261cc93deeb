from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.skill_hub import ALICE, BOB, BOSS
from tests.web.events_fixture import run_events_server

from dragoman.core.errors import AuthorizationError, InvalidInput, NotFound
from dragoman.core.events import AgentChanged, PinHeld, PolicyChanged, PostVerb, PreVerb, UserEvent
from dragoman.core.principal import Principal
from dragoman.web import events


async def until(done: Callable[[], bool]) -> None:
    async with asyncio.timeout(60):
        while not done():
            await asyncio.sleep(0.005)


@pytest.mark.promise("R8")
async def test_listener_receives_events_of_its_own_calls(tmp_path: Path) -> None:
    async with run_events_server(tmp_path) as here:
        mine = await here.listen("alice")
        await here.skill_hub.call(who=BOB)
        await here.skill_hub.call(who=ALICE, branch="main", secret="hunter2")
        name, said = await mine.next()
        assert (name, said["phase"], said["verb"]) == ("pre-verb",) * 2 + ("vercel_ops.deploy",)
        assert said["context"]["caller"] == "key:alice"
        assert said["args"] == {
            "branch": {"type": "string", "size": 4},
            "secret": {"type": "string", "size": 7},
        }
        name, said = await mine.next()
        assert (name, said["outcome"]) == ("post-verb", "completed")


async def test_admin_receives_events_of_all_calls_and_the_hub(tmp_path: Path) -> None:
    async with run_events_server(tmp_path) as here:
        boss, mine = await here.listen("boss"), await here.listen("alice")
        bus = here.skill_hub.bus
        bus.emit(AgentChanged("Vercel Ops", "unreachable", "it does not answer"))
        bus.emit(PolicyChanged("abcd1234", ""))
        bus.emit(PinHeld("files", "files.read", "its description has changed"))
        await here.skill_hub.call(who=ALICE)
        assert await boss.names(3) == ["agent-changed", "policy-changed", "pin-held"]
        assert await boss.names(2) == ["pre-verb", "post-verb"]
        assert (await mine.next())[0] == "pre-verb"  # and of the others nothing


async def test_events_of_another_org_are_not_delivered(tmp_path: Path) -> None:
    async with run_events_server(tmp_path) as here:
        boss = await here.listen("boss")
        await here.skill_hub.call(who=Principal("key", "spy", org="other"))
        for org in ("other", "default"):
            here.skill_hub.bus.emit(UserEvent("agent", f"of {org}", {}, "t", org))
        await here.skill_hub.call("vercel_ops.logs", who=ALICE)
        assert (await boss.next())[1]["type"] == "of default"
        assert (await boss.next())[1]["verb"] == "vercel_ops.logs"


@pytest.mark.promise("R8")
async def test_events_of_unlisted_tools_are_not_delivered(tmp_path: Path) -> None:
    async with run_events_server(tmp_path) as here:
        mine, boss = await here.listen("alice"), await here.listen("boss")
        here.skill_hub.judge.hidden.add("vercel_ops.deploy")
        here.skill_hub.judge.denied.add("vercel_ops.logs")
        with pytest.raises(NotFound):
            await here.skill_hub.call(who=ALICE)
        with pytest.raises(AuthorizationError):
            await here.skill_hub.call("vercel_ops.logs", who=ALICE)
        seen = [await mine.next() for _ in range(3)]
        assert {said["verb"] for _, said in seen} == {"vercel_ops.logs"}
        assert [said["context"]["denied"] for _, said in seen] == [False, True, True]
        assert "no-deploys" not in json.dumps(seen)
        assert (await boss.next())[1]["verb"] == "vercel_ops.deploy"  # it may


async def test_event_of_an_unknown_tool_has_a_truncated_name(tmp_path: Path) -> None:
    async with run_events_server(tmp_path) as here:
        mine = await here.listen("alice")
        with pytest.raises(NotFound):
            await here.skill_hub.call("y" * 1_000_000, who=ALICE)
        said = [(await mine.next())[1] for _ in range(3)]
        assert {len(one["verb"]) for one in said} == {200}
        assert len(json.dumps(said)) < 10_000


@pytest.mark.promise("R8")
async def test_arguments_are_sent_only_to_admins_who_request_them(
    tmp_path: Path,
) -> None:
    async with run_events_server(tmp_path) as here:
        refused = await here.send("GET", "/api/events?args=1", who="alice")
        assert refused.status == 403
        assert "may not read arguments" in (await refused.json())["error"]["message"]
        whole, plain = await here.listen("boss", "?args=1"), await here.listen("boss")
        await here.skill_hub.call(who=ALICE, branch="main")
        assert (await whole.next())[1]["args"] == {"branch": "main"}
        assert (await plain.next())[1]["args"] == {"branch": {"type": "string", "size": 4}}
        await whole.next()
        await here.skill_hub.call(who=ALICE, much="x" * 100_000, odd=2**70)
        assert (await whole.next())[1]["args"]["much"] == {"type": "string", "size": 100_000}


async def test_principal_losing_admin_receives_only_its_own_events(tmp_path: Path) -> None:
    async with run_events_server(tmp_path) as here:
        boss = await here.listen("boss", "?args=1")
        here.skill_hub.judge.admins.clear()
        here.skill_hub.judge.version += 1
        await here.skill_hub.call(who=ALICE)
        await here.skill_hub.call(who=BOSS, branch="main")
        _, said = await boss.next()
        assert (said["context"]["caller"], said["args"]["branch"]["size"]) == ("key:boss", 4)


@pytest.mark.parametrize(
    ("query", "received"),
    [
        ("?phase=post-verb", ["post-verb", "post-verb", "post-verb"]),
        ("?phase=pre-verb,verb-error&verb=vercel_ops.*", ["pre-verb", "pre-verb"]),
        ("?verb=files.?ead", ["pre-verb", "post-verb"]),
        ("?agent=Vercel%20Ops&outcome=failed", ["post-verb"]),
        ("?agent=card-1&phase=pre-verb", ["pre-verb", "pre-verb"]),
        ("?outcome=completed", ["post-verb", "post-verb"]),
        ("?trace=nothing", []),
    ],
)
async def test_event_filters_select_matching_events(
    query: str, received: list[str], tmp_path: Path
) -> None:
    async with run_events_server(tmp_path) as here:
        told = await here.listen("boss", query)
        await here.skill_hub.call("files.read")
        await here.skill_hub.call()
        await here.skill_hub.call(fails=True)
        here.streams.close()
        assert [event.event for event in await told.answer.rest()] == received


async def test_event_stream_filters_by_trace(tmp_path: Path) -> None:
    async with run_events_server(tmp_path) as here:
        running = here.skill_hub.begin()
        await asyncio.wait_for(here.skill_hub.agent.running.wait(), 60)
        trace = here.skill_hub.agent.calls[0].trace.id
        told = await here.listen("boss", f"?trace={trace}")
        await here.skill_hub.call("files.read")
        here.skill_hub.agent.go.set()
        await running
        assert (await told.next())[1]["context"]["traceId"] == trace


@pytest.mark.parametrize(
    ("query", "said"),
    [
        ("?phase=past-verb", 'unknown phase "past-verb"; use pre-verb, post-verb'),
        ("?outcome=odd", "outcome must be completed or failed"),
        ("?args=yes", "args must be 0 or 1"),
        ("?vreb=x", 'unknown parameter "vreb"; use phase'),
        ("?verb=" + "*" * 501, "at most 500 characters"),
    ],
)
async def test_invalid_query_is_refused_with_a_reason(
    query: str, said: str, tmp_path: Path
) -> None:
    async with run_events_server(tmp_path) as here:
        status, found = await here.get(f"/api/events{query}")
        assert status == 400 and said in found["error"]["message"]
        assert len(here.streams) == 0


def test_wildcard_pattern_matches_in_linear_time() -> None:
    pattern = events.parse_filter({"verb": "*a" * 200 + "b"}).verb
    assert pattern is not None and pattern.match("a" * 200) is None
    with pytest.raises(InvalidInput):
        events.parse_filter({"verb": "*a" * 300})


async def test_invalid_method_and_event_id_are_refused(tmp_path: Path) -> None:
    async with run_events_server(tmp_path) as here:
        posted = await here.send("POST", "/api/events", {}, who="boss")
        assert (posted.status, posted.headers["allow"]) == (405, "GET")
        strange = await here.send("GET", "/api/events", who="boss", Last_Event_Id="x-1")
        assert strange.status == 400
        assert len(here.streams) == 0


async def test_reconnecting_listener_receives_missed_events_once(tmp_path: Path) -> None:
    async with run_events_server(tmp_path) as here:
        other = await here.listen("bob")  # so that it is listened all the while
        mine = await here.listen("alice")
        await here.skill_hub.call(who=ALICE)
        first, _ = await mine.next()
        assert first == "pre-verb"
        mine.answer.reset()
        await until(lambda: len(here.streams) == 1)
        await here.skill_hub.call("files.read", who=BOB)
        await here.skill_hub.call("vercel_ops.logs", who=ALICE)
        again = await here.listen("alice", Last_Event_Id=mine.last)
        seen = [await again.next() for _ in range(3)]
        assert [(name, said["verb"]) for name, said in seen] == [
            ("post-verb", "vercel_ops.deploy"),
            ("pre-verb", "vercel_ops.logs"),
            ("post-verb", "vercel_ops.logs"),
        ]
        assert int(again.last) > int(mine.last)
        assert await other.names(2) == ["pre-verb", "post-verb"]


async def test_evicted_events_are_reported_as_dropped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(events, "MAX_KEPT", 3)
    async with run_events_server(tmp_path) as here:
        mine = await here.listen("alice")
        await here.skill_hub.call(who=ALICE)
        await mine.next()
        for _ in range(3):
            await here.skill_hub.call(who=ALICE)
        again = await here.listen("alice", Last_Event_Id=mine.last)
        assert await again.next() == ("dropped", {"count": None})
        assert await again.names(3) == ["post-verb", "pre-verb", "post-verb"]
        old = await here.listen("alice", Last_Event_Id="5")  # of another run
        assert (await old.next())[0] == "dropped"


async def test_event_history_is_bounded_in_bytes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(events, "MAX_KEPT_BYTES", 20_000)
    async with run_events_server(tmp_path) as here:
        await here.listen("alice")
        names: dict[str, Any] = {f"argument {n}": n for n in range(60)}
        for _ in range(100):
            await here.skill_hub.call(who=ALICE, **names)
        assert 0 < here.streams._kept_bytes <= 20_000
        assert here.streams._kept_bytes == sum(len(data) for _, data in here.streams._kept)


@pytest.mark.promise("R8")
async def test_slow_listener_blocks_no_other_and_gets_its_drop_count(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(events, "MAX_WAITING", 8)
    async with run_events_server(tmp_path) as here:
        slow, quick = await here.listen("boss"), await here.listen("boss")
        slow.answer._reader._transport.pause_reading()
        (stream, _) = here.streams._streams
        names: dict[str, Any] = {f"{n} " + "n" * 150: n for n in range(60)}
        count = 0
        while not stream._dropped:
            await asyncio.wait_for(here.skill_hub.call(who=ALICE, **names), 60)
            assert await quick.names(2) == ["pre-verb", "post-verb"]
            count += 2
            assert count < 20_000
        for _ in range(10):
            await here.skill_hub.call(who=ALICE, **names)
            assert await quick.names(2) == ["pre-verb", "post-verb"]
        missed, count = stream._dropped, count + 20
        slow.answer._reader._transport.resume_reading()
        seen = 0
        while True:
            name, said = await slow.next()
            if name == "dropped":
                break
            seen += 1
        assert said == {"count": missed} and seen + missed == count


async def test_number_of_listeners_is_bounded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(events, "MAX_STREAMS", 6)
    async with run_events_server(tmp_path) as here:
        mine = [await here.listen("alice") for _ in range(4)]
        fifth = await here.send("GET", "/api/events", who="alice")
        assert (fifth.status, fifth.headers["retry-after"]) == (503, "1")
        assert "4 per principal" in (await fifth.json())["error"]["message"]
        for who in ("bob", "boss"):
            await here.listen(who)
        assert (await here.send("GET", "/api/events", who="carol")).status == 503
        mine[0].answer.reset()
        await until(lambda: len(here.streams) == 5)
        await here.listen("alice")


async def test_no_event_is_built_without_listeners(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(events, "LINGER_SECONDS", 0.05)
    async with run_events_server(tmp_path) as here:
        bus = here.skill_hub.bus
        watching = len(bus._subscriptions[PreVerb]), len(bus._subscriptions[PostVerb])
        await here.skill_hub.call(who=ALICE)
        assert not here.streams._kept and not bus.is_observed(AgentChanged)
        mine = await here.listen("alice")
        assert bus.is_observed(AgentChanged)
        mine.answer.reset()
        await until(lambda: len(here.streams) == 0)
        await here.skill_hub.call(who=ALICE)
        assert here.streams._kept  # for a moment: it may come back
        await until(lambda: not bus.is_observed(AgentChanged))
        assert (len(bus._subscriptions[PreVerb]), len(bus._subscriptions[PostVerb])) == watching
        assert not here.streams._kept


async def test_idle_event_stream_is_kept_alive_and_a_long_one_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(events, "KEEPALIVE_SECONDS", 0.02)
    monkeypatch.setattr(events, "STREAM_SECONDS", 0.2)
    async with run_events_server(tmp_path) as here:
        told = await here.listen("boss")
        async with asyncio.timeout(60):
            body = b""
            while b"keep-alive" not in body:
                body += await told.answer._reader.read(1024)
            while not body.endswith(b"0\r\n\r\n"):
                body += await told.answer._reader.read(1024)
        assert body.count(b": keep-alive") >= 2 and b"retry: 1000" in body
        assert len(here.streams) == 0


async def test_event_streams_end_cleanly_on_shutdown(
    tmp_path: Path,
) -> None:
    async with run_events_server(tmp_path) as here:
        told = [await here.listen(who) for who in ("alice", "bob")]
        await here.skill_hub.call(who=ALICE)
        here.streams.close()
        assert [len(await one.answer.rest()) for one in told] == [2, 0]
        assert all(one.answer.ended for one in told)
        late = await here.send("GET", "/api/events", who="boss")
        assert late.status == 503
        assert "shutting down" in (await late.json())["error"]["message"]


async def test_event_stream_needs_a_key(tmp_path: Path) -> None:
    async with run_events_server(tmp_path) as here:
        answer = await here.send("GET", "/api/events", Authorization="")
        assert answer.status == 401
        found: Any = await answer.json()
        assert "a key is needed" in found["error"]["message"]


@pytest.mark.promise("U7")
async def test_activity_is_one_event_for_many_calls_of_those_it_concerns(tmp_path: Path) -> None:
    async with run_events_server(tmp_path) as here:
        boss = await here.listen("boss", "?phase=server-changed,activity")
        alice = await here.listen("alice", "?phase=activity")
        for _ in range(20):
            await here.skill_hub.call("vercel_ops.logs", who=ALICE)
        await here.skill_hub.call("vercel_ops.logs", who=BOSS)
        assert await boss.next() == ("activity", {"calls": 21, "failed": 0})
        assert await alice.next() == ("activity", {"calls": 20, "failed": 0})
        # Nothing listens to single calls, so none is announced for these streams.
        whole = await here.listen("boss")
        await here.skill_hub.call("vercel_ops.logs", who=ALICE)
        assert await whole.names(2) == ["pre-verb", "post-verb"]
        assert (await boss.next())[0] == "activity"
