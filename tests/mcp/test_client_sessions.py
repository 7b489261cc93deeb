"""Server questions of both eras, up to the point where an MCP server would ask the client."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from tests.mcp.upstream_hub import (
    EVERYTHING_ASKED,
    Scripted,
    UpstreamHub,
    http,
    run_hub,
    stdio,
    until,
)
from tests.peers.process import HttpPeer, processes_at_home, read_log, wait_for_log

from dragoman.core.call import Progress, Result, WantedUpdates
from dragoman.core.errors import (
    BadReply,
    InvalidInput,
    NeedsInput,
    Overloaded,
    TimedOut,
    WorkFailed,
)
from dragoman.core.principal import Principal
from dragoman.core.tool import PROMPT, RESOURCE, SUBSCRIPTION

Peers = Callable[..., HttpPeer]
# The same over stdio, from clients of every revision: tests/live/test_matrix_questions.py.
WAYS = [("legacy", "http"), ("legacy", "sse"), ("modern", "http")]
ADA = {"action": "accept", "content": {"name": "Ada"}}
ANSWERS: Mapping[str, Any] = {
    "form": ADA,
    "url": {"action": "accept"},
    "sampling": {
        "role": "assistant",
        "content": {"type": "text", "text": "Paris"},
        "model": "m",
        "stopReason": "endTurn",
    },
    "roots": {"roots": [{"uri": "file:///x", "name": "x"}]},
}
FORMS: dict[str, Any] = {"elicitation": {}}


@pytest.fixture(scope="module")
def lasting_peers() -> Iterator[dict[tuple[Any, ...], HttpPeer]]:
    started: dict[tuple[Any, ...], HttpPeer] = {}
    yield started
    for peer in started.values():
        peer.close()


@pytest.fixture
def http_peer(lasting_peers: dict[tuple[Any, ...], HttpPeer]) -> Iterator[Peers]:
    """Starts a peer; one that writes no log for its test serves all that ask for the same."""
    own: list[HttpPeer] = []

    def start(*args: Any) -> HttpPeer:
        if "--log" in args:
            own.append(HttpPeer(*args))
            return own[-1]
        if args not in lasting_peers:
            lasting_peers[args] = HttpPeer(*args)
        return lasting_peers[args]

    yield start
    for peer in own:
        peer.close()


def entry(peers: Peers, transport: str, *args: object, era: str = "legacy", **keys: Any) -> Any:
    keys = {"interactive": True, **keys}
    if transport == "stdio":
        return stdio("m", "matrix_server", "--era", era, *args, **keys)
    peer = peers("matrix_server", "--transport", transport, "--era", era, *args)
    return http("m", peer.url, **keys)


def answers(result: Result) -> dict[str, Any]:
    assert result.questions is not None
    return {key: ANSWERS[question.kind] for key, question in result.questions.items()}


async def through(
    world: UpstreamHub, name: str, arguments: Mapping[str, Any], **more: Any
) -> tuple[Result, list[list[str]]]:
    """Runs a call with its continuations; returns the questions by round."""
    more = {"client": "c", "features": EVERYTHING_ASKED, **more}
    asked: list[list[str]] = []
    result = await world.call(name, arguments, **more)
    while result.questions is not None:
        assert len(asked) < 5
        asked.append(sorted(question.kind for question in result.questions.values()))
        result = await world.call(
            name, arguments, answers=answers(result), handle=result.handle, **more
        )
    return result, asked


@pytest.mark.promise("B12", "B13")
@pytest.mark.parametrize(("era", "transport"), WAYS)
async def test_every_server_request_reaches_the_client_and_back(
    era: str, transport: str, short_tmp: Path, http_peer: Peers
) -> None:
    async with run_hub(short_tmp) as world:
        await world.add(entry(http_peer, transport, era=era))

        for kind in ("form", "url", "sampling", "roots"):
            result, asked = await through(world, f"m.ask_{kind}", {"key": kind})
            assert asked == [[kind]]
            assert json.loads(result.content[0]["text"]) == ANSWERS[kind]
        both, asked = await through(world, "m.ask_rounds", {"key": "r"})
        assert (both.content[0]["text"], asked) == ("Ada and Ada", [["form"], ["form"]])
        several, asked = await through(world, "m.ask_several", {"key": "s"})
        assert [kind for each in asked for kind in each] == ["form", "roots"]
        assert json.loads(several.content[0]["text"])["who"] == ADA
        prompt, asked = await through(world, "m.asks", {"key": "p"}, kind=PROMPT)
        assert asked == [["form"]] and json.loads(prompt.content[0]["text"]) == ADA
        read, asked = await through(world, "matrix://asks", {}, kind=RESOURCE)
        assert asked == [["form"]]
        assert json.loads(read.content[0]["resource"]["text"]) == ADA
        needed, asked = await through(world, "m.need_url", {"key": "n"})
        assert asked == [["url"]] and needed.content[0]["text"]


@pytest.mark.promise("B12")
@pytest.mark.parametrize("transport", ["http"])
async def test_question_has_the_form_of_the_newest_revision(
    transport: str, short_tmp: Path, http_peer: Peers
) -> None:
    async with run_hub(short_tmp) as world:
        await world.add(entry(http_peer, transport))
        how: dict[str, Any] = {"client": "c", "features": EVERYTHING_ASKED}

        visit = await world.call("m.ask_url", {"key": "u"}, **how)
        assert visit.questions is not None
        (question,) = visit.questions.values()
        body = {key: value for key, value in question.body.items() if key != "_meta"}
        assert body == {
            "mode": "url",
            "message": "Please sign in.",
            "url": "https://example.com/sign-in?x=1",
        }
        needed = await world.call("m.need_url", {"key": "u"}, **how)
        assert needed.questions is not None
        assert [dict(one.body) for one in needed.questions.values()] == [body]
        form = await world.call("m.ask_form", {"key": "f"}, **how)
        assert form.questions is not None
        (asked,) = form.questions.values()
        size = asked.body["requestedSchema"]["properties"]["size"]
        assert size["oneOf"] == [{"const": "s", "title": "S"}]


@pytest.mark.promise("B13")
@pytest.mark.parametrize("transport", ["http", "sse"])
async def test_shared_session_declares_nothing_and_client_sessions_their_capabilities(
    transport: str, short_tmp: Path, http_peer: Peers
) -> None:
    async with run_hub(short_tmp) as world:
        upstream = await world.add(entry(http_peer, transport))

        async def declared(client: str, features: Mapping[str, Any]) -> Any:
            result = await world.call("m.declared", client=client, features=features)
            return json.loads(result.content[0]["text"])

        assert await declared("", {}) == {}
        assert await declared("", {"experimental": {"x": {}}}) == {}
        assert len(upstream.client_sessions) == 0
        everything = {**EVERYTHING_ASKED, "roots": {"listChanged": True}, "extensions": {"x": {}}}
        asked = {**EVERYTHING_ASKED, "roots": {"listChanged": True}}
        assert await declared("a", everything) == asked
        assert await declared("b", {"elicitation": {}}) == {"elicitation": {"form": {}}}
        tools: dict[str, Any] = {"sampling": {"tools": {}, "odd": {}}}
        assert await declared("d", tools) == {"sampling": {"tools": {}}}
        assert len(upstream.client_sessions) == 3
        assert await declared("", {}) == {}


@pytest.mark.promise("B13")
async def test_sessionless_clients_get_a_session_once_the_server_asks(
    short_tmp: Path, http_peer: Peers
) -> None:
    async with run_hub(short_tmp) as world:
        upstream = await world.add(entry(http_peer, "http", interactive=None))

        with pytest.raises(WorkFailed, match="known to ask, call it again"):
            await world.call("m.ask_form", {"key": "1"}, features=EVERYTHING_ASKED)
        result, asked = await through(world, "m.ask_form", {"key": "2"}, client="")

        assert asked == [["form"]] and json.loads(result.content[0]["text"]) == ADA
        assert len(upstream.client_sessions) == 1


@pytest.mark.promise("B12")
@pytest.mark.parametrize("transport", ["http", "sse"])
async def test_incapable_client_gets_the_question_text(
    transport: str, short_tmp: Path, http_peer: Peers
) -> None:
    async with run_hub(short_tmp) as world:
        await world.add(entry(http_peer, transport))

        features: dict[str, Any]
        for features in ({}, {"sampling": {}}):
            with pytest.raises(NeedsInput, match="What is your name") as raised:
                await world.call("m.ask_form", {"key": "k"}, client="c", features=features)
            assert raised.value.missing == {"elicitation": {"form": {}}}
        forms: dict[str, Any] = {"elicitation": {"form": {}}}
        with pytest.raises(WorkFailed) as failed:  # the server's own error, as it put it
            await world.call("m.need_url", {"key": "k"}, client="c", features=forms)
        assert failed.value.native is not None and failed.value.native["code"] == -32042


@pytest.mark.promise("B12")
async def test_modern_server_gets_its_state_back_unchanged(
    short_tmp: Path,
) -> None:
    ask = {"method": "elicitation/create", "params": {"message": "?", "requestedSchema": {}}}
    done = {"resultType": "complete", "content": []}
    server = Scripted(
        short_tmp,
        "modern",
        {
            "tools/call": [
                {
                    "resultType": "input_required",
                    "inputRequests": {"a": ask},
                    "requestState": "é\n",
                },
                {"resultType": "input_required", "inputRequests": {"a": ask}},
                {"resultType": "input_required", "requestState": ""},
                done,
                {"resultType": "input_required"},
                {"resultType": "input_required", "inputRequests": {"a": {"method": "x"}}},
                {"resultType": "input_required", "inputRequests": [], "requestState": "s"},
                done,
            ]
        },
    )
    async with run_hub(short_tmp) as world:
        await world.add(server.entry())
        how: dict[str, Any] = {"features": FORMS}

        first = await world.call("s.t", {"x": 1}, **how)
        second = await world.call("s.t", {"x": 1}, answers={"a": ADA}, handle=first.handle, **how)
        third = await world.call("s.t", {"x": 1}, answers={"a": ADA}, handle=second.handle, **how)
        assert third.questions == {}
        fourth = await world.call("s.t", {"x": 1}, answers={}, handle=third.handle, **how)
        assert fourth.questions is None
        for _ in range(3):
            with pytest.raises(BadReply):
                await world.call("s.t", **how)
        await world.call("s.t", answers={"b": ADA}, **how)  # without a handle: passed on as well

        sent = [
            {key: value for key, value in one["params"].items() if key not in ("_meta", "name")}
            for one in server.sent("tools/call")
        ]
        assert sent[:4] == [
            {"arguments": {"x": 1}},
            {"arguments": {"x": 1}, "inputResponses": {"a": ADA}, "requestState": "é\n"},
            {"arguments": {"x": 1}, "inputResponses": {"a": ADA}},
            {"arguments": {"x": 1}, "inputResponses": {}, "requestState": ""},
        ]
        assert sent[-1] == {"arguments": {}, "inputResponses": {"b": ADA}}
        ids = [one["id"] for one in server.sent("tools/call")]
        assert len(set(ids)) == len(ids)


@pytest.mark.promise("B13")
@pytest.mark.parametrize("transport", ["http"])
async def test_foreign_or_repeated_answer_never_reaches_the_server(
    transport: str, short_tmp: Path, http_peer: Peers
) -> None:
    log = short_tmp / "log"
    async with run_hub(short_tmp) as world:
        await world.add(entry(http_peer, transport, "--log", log))
        how: dict[str, Any] = {"features": EVERYTHING_ASKED}
        asking = await world.call("m.ask_form", {"key": "k"}, client="a", **how)
        reply = {"answers": answers(asking), "handle": asking.handle, **how}

        with pytest.raises(InvalidInput, match="start the call again"):
            await world.call("m.ask_form", {"key": "k"}, client="b", **reply)
        assert not [seen for seen in read_log(log) if seen.get("event") == "answered"]
        again = await world.call("m.ask_form", {"key": "k"}, client="a", **how)
        reply = {"answers": answers(again), "handle": again.handle, **how}
        await world.call("m.ask_form", {"key": "k"}, client="a", **reply)
        with pytest.raises(InvalidInput):
            await world.call("m.ask_form", {"key": "k"}, client="a", **reply)
        assert len([seen for seen in read_log(log) if seen.get("event") == "answered"]) == 1


@pytest.mark.promise("B13", "P3")
@pytest.mark.parametrize("transport", ["stdio", "http"])
async def test_unanswered_question_expires_and_the_server_is_notified(
    transport: str, short_tmp: Path, http_peer: Peers
) -> None:
    log = short_tmp / "log"
    async with run_hub(short_tmp, question_secs=0.3) as world:
        upstream = await world.add(entry(http_peer, transport, "--log", log))
        how: dict[str, Any] = {"client": "c", "features": EVERYTHING_ASKED}
        asking = await world.call("m.ask_form", {"key": "k"}, **how)

        await asyncio.to_thread(wait_for_log, log, event="lost", key="k")
        cancelled = "notifications/cancelled"
        await asyncio.to_thread(wait_for_log, log, event="message", method=cancelled)
        with pytest.raises(InvalidInput):
            await world.call(
                "m.ask_form", {"key": "k"}, answers=answers(asking), handle=asking.handle, **how
            )
        assert len(upstream.client_sessions) == 1  # the session itself is good for the next
        done, _ = await through(world, "m.declared", {})
        assert done.content


@pytest.mark.promise("P3")
@pytest.mark.parametrize("transport", ["http"])
async def test_call_timeout_pauses_while_a_question_is_open(
    transport: str, short_tmp: Path, http_peer: Peers
) -> None:
    async with run_hub(short_tmp) as world:
        upstream = await world.add(entry(http_peer, transport, timeout_secs=1.0))
        how: dict[str, Any] = {"client": "c", "features": EVERYTHING_ASKED}
        asking = await world.call("m.ask_form", {"key": "k"}, **how)
        late = asyncio.get_running_loop().create_future()
        asyncio.get_running_loop().call_later(1.2, late.set_result, None)
        await late

        done = await world.call(
            "m.ask_form", {"key": "k"}, answers=answers(asking), handle=asking.handle, **how
        )
        assert json.loads(done.content[0]["text"]) == ADA
        with pytest.raises(TimedOut, match="timed out and was cancelled"):
            await world.call("m.slow", {"seconds": 30}, **how)
        assert upstream.connection.session is not None


@pytest.mark.promise("B13")
@pytest.mark.parametrize("transport", ["stdio", "http"])
async def test_client_session_ends_with_the_clients_own(
    transport: str, short_tmp: Path, http_peer: Peers
) -> None:
    log = short_tmp / "log"
    async with run_hub(short_tmp) as world:
        upstream = await world.add(entry(http_peer, transport, "--log", log))
        how: dict[str, Any] = {"features": EVERYTHING_ASKED}
        asking = await world.call("m.ask_form", {"key": "k"}, client="a", **how)
        await world.call("m.declared", client="b", **how)
        assert len(upstream.client_sessions) == 2
        children = len(processes_at_home(short_tmp))
        assert children == (3 if transport == "stdio" else 0)

        world.leave("a")

        assert len(upstream.client_sessions) == 1
        if transport == "stdio":
            await until(lambda: len(processes_at_home(short_tmp)) == 2)
        else:
            await asyncio.to_thread(wait_for_log, log, event="lost", key="k")
        with pytest.raises(InvalidInput):
            await world.call(
                "m.ask_form",
                {"key": "k"},
                client="a",
                answers=answers(asking),
                handle=asking.handle,
                **how,
            )
        assert (await world.call("m.echo", {"text": "hi"}, client="b", **how)).content
        assert upstream.connection.session is not None


@pytest.mark.promise("B13")
async def test_failed_client_session_affects_no_other(short_tmp: Path) -> None:
    async with run_hub(short_tmp) as world:
        upstream = await world.add(stdio("m", "matrix_server", "--era", "legacy", interactive=True))
        how: dict[str, Any] = {"client": "a", "features": EVERYTHING_ASKED}
        await world.call("m.declared", **how)
        shared = upstream.connection.session

        with pytest.raises(Exception, match="was lost"):
            await world.call("m.crash", **how)

        assert upstream.connection.session is shared and upstream.connection.restarts == 0
        assert (await world.call("m.echo", {"text": "hi"})).content
        result, asked = await through(world, "m.ask_form", {"key": "again"}, client="a")
        assert asked == [["form"]] and result.content


@pytest.mark.promise("B13")
async def test_client_sessions_are_bounded_and_idle_ones_evicted(
    short_tmp: Path, http_peer: Peers
) -> None:
    async with run_hub(short_tmp, max_sessions=2) as world:
        upstream = await world.add(entry(http_peer, "http"))

        def by(client: str) -> dict[str, Any]:
            caller = Principal("key", client)
            return {"client": client, "principal": caller, "features": EVERYTHING_ASKED}

        asking = await world.call("m.ask_form", {"key": "a"}, **by("a"))
        await world.call("m.declared", **by("b"))

        await world.call("m.ask_form", {"key": "d"}, **by("d"))  # in the place of b's
        assert len(upstream.client_sessions) == 2
        with pytest.raises(Overloaded, match="2 client sessions"):
            await world.call("m.declared", **by("e"))
        assert (await world.call("m.echo", {"text": "hi"}, client="e")).content
        done = await world.call(
            "m.ask_form",
            {"key": "a"},
            answers=answers(asking),
            handle=asking.handle,
            **by("a"),
        )
        assert done.content


@pytest.mark.promise("B13")
async def test_idle_client_session_is_closed(short_tmp: Path, http_peer: Peers) -> None:
    async with run_hub(short_tmp, session_idle_secs=0.4) as world:
        upstream = await world.add(entry(http_peer, "stdio"))
        how: dict[str, Any] = {"features": EVERYTHING_ASKED}
        asking = await world.call("m.ask_form", {"key": "a"}, client="a", **how)
        await world.call("m.declared", client="b", **how)

        await until(lambda: len(upstream.client_sessions) == 1)
        await until(lambda: len(processes_at_home(short_tmp)) == 2)
        done = await world.call(  # which was parked all the while, and so not idle
            "m.ask_form",
            {"key": "a"},
            client="a",
            answers=answers(asking),
            handle=asking.handle,
            **how,
        )
        assert done.content
        await until(lambda: len(upstream.client_sessions) == 0)


@pytest.mark.promise("B13")
async def test_parked_calls_are_bounded(short_tmp: Path, http_peer: Peers) -> None:
    log = short_tmp / "log"
    async with run_hub(short_tmp, max_suspended_in_session=3) as world:
        await world.add(entry(http_peer, "http", "--log", log))
        how: dict[str, Any] = {"client": "a", "features": EVERYTHING_ASKED}
        for number in range(3):
            await world.call("m.ask_form", {"key": str(number)}, **how)

        with pytest.raises(Overloaded, match="questions"):
            await world.call("m.ask_form", {"key": "3"}, **how)

        await asyncio.to_thread(wait_for_log, log, event="lost", key="3")
        assert (await world.call("m.ask_form", {"key": "3"}, **{**how, "client": "b"})).questions


@pytest.mark.promise("B13")
@pytest.mark.parametrize("transport", ["stdio", "http"])
async def test_stateless_client_is_elicited_and_its_calls_stay_separate(
    transport: str, short_tmp: Path, http_peer: Peers
) -> None:
    async with run_hub(short_tmp) as world:
        upstream = await world.add(entry(http_peer, transport))
        how: dict[str, Any] = {"client": "", "features": EVERYTHING_ASKED}
        first = await world.call("m.ask_form", {"key": "1"}, **how)
        second = await world.call("m.ask_form", {"key": "2"}, **how)
        assert len(upstream.client_sessions) == 2

        for key, asking, name in (("2", second, "Two"), ("1", first, "One")):
            assert asking.questions is not None
            said = {"action": "accept", "content": {"name": name}}
            done = await world.call(
                "m.ask_form",
                {"key": key},
                answers=dict.fromkeys(asking.questions, said),
                handle=asking.handle,
                **how,
            )
            assert json.loads(done.content[0]["text"]) == said
        await world.call("m.declared", **how)
        assert len(upstream.client_sessions) == 2  # those that are free are used again


@pytest.mark.promise("B13")
async def test_http_question_belongs_to_the_call_of_its_stream(
    short_tmp: Path, http_peer: Peers
) -> None:
    async with run_hub(short_tmp) as world:
        await world.add(entry(http_peer, "http"))
        how: dict[str, Any] = {"client": "c", "features": EVERYTHING_ASKED}
        slow = asyncio.ensure_future(world.call("m.slow", {"seconds": 0.5}, **how))

        asked = await asyncio.gather(
            *(world.call("m.ask_form", {"key": str(number)}, **how) for number in range(5))
        )
        done = []
        for number, asking in enumerate(asked):
            assert asking.questions is not None
            said = {"action": "accept", "content": {"name": f"n{number}"}}
            result = await world.call(
                "m.ask_form",
                {"key": str(number)},
                answers=dict.fromkeys(asking.questions, said),
                handle=asking.handle,
                **how,
            )
            done.append(json.loads(result.content[0]["text"])["content"]["name"])
        assert done == [f"n{number}" for number in range(5)]
        assert (await slow).content[0]["text"] == "slept 0.5"


@pytest.mark.promise("B13")
async def test_disconnect_during_a_client_session_call_cancels_it(
    short_tmp: Path, http_peer: Peers
) -> None:
    log = short_tmp / "log"
    async with run_hub(short_tmp) as world:
        await world.add(entry(http_peer, "stdio", "--log", log))
        how: dict[str, Any] = {"client": "c", "features": EVERYTHING_ASKED}
        running = asyncio.ensure_future(world.call("m.slow", {"seconds": 30, "key": "k"}, **how))
        await asyncio.to_thread(wait_for_log, log, event="started", key="k")

        running.cancel()

        await asyncio.to_thread(wait_for_log, log, event="cancelled", key="k")
        seen: list[Any] = []
        await world.call(
            "m.progress",
            {"steps": 3},
            updates=seen.append,
            wanted_updates=WantedUpdates(progress=True),
            **how,
        )
        assert [update.progress for update in seen if isinstance(update, Progress)] == [1, 2, 3]


@pytest.mark.promise("B13")
async def test_question_without_a_running_call_is_refused(
    short_tmp: Path,
) -> None:
    ask = {"id": 1, "method": "roots/list"}
    server = Scripted(
        short_tmp,
        "legacy",
        {"tools/list": {"first": [ask], "tools": [], "nextCursor": None}},
    )
    async with run_hub(short_tmp) as world:
        await world.add(server.entry())

        await until(lambda: [one for one in server.sent() if "error" in one])
        (refused,) = [one for one in server.sent() if "error" in one]
        assert refused["error"]["code"] == -32601


@pytest.mark.promise("B13")
@pytest.mark.parametrize("era", ["legacy", "modern"])
async def test_call_continued_without_answers_is_cancelled(
    era: str, short_tmp: Path, http_peer: Peers
) -> None:
    log = short_tmp / "log"
    async with run_hub(short_tmp) as world:
        await world.add(entry(http_peer, "http", "--log", log, era=era))
        how: dict[str, Any] = {"client": "c", "features": EVERYTHING_ASKED}
        asking = await world.call("m.ask_form", {"key": "k"}, **how)

        with pytest.raises((WorkFailed, InvalidInput)):
            await world.call("m.ask_form", {"key": "k"}, handle=asking.handle, **how)

        if era == "legacy":
            await asyncio.to_thread(wait_for_log, log, event="lost", key="k")
        calls = [seen for seen in read_log(log) if seen.get("method") == "tools/call"]
        assert len(calls) == 1


@pytest.mark.promise("B13")
@pytest.mark.parametrize("client", ["c", ""])
@pytest.mark.parametrize("first", ["follow", "call"])
async def test_change_on_a_client_session_reaches_subscribers(
    client: str, first: str, short_tmp: Path, http_peer: Peers
) -> None:
    async with run_hub(short_tmp) as world:
        await world.add(entry(http_peer, "stdio"))
        how: dict[str, Any] = {"client": client, "features": EVERYTHING_ASKED}
        if first == "call":
            await world.call("m.declared", **how)
        await world.call("matrix://watched", {"follow": True}, kind=SUBSCRIPTION, **how)

        await world.call("m.change", {"what": "watched"}, **how)

        await until(lambda: world.updated == ["m.matrix://watched"])
        await world.call("matrix://watched", {"follow": False}, kind=SUBSCRIPTION, **how)
        await world.call("m.change", {"what": "watched"}, **how)
        await world.call("m.echo", {"text": "x"}, **how)  # what was said before is heard
        assert world.updated == ["m.matrix://watched"]
