"""Bounds on what one principal, server or disconnected client can occupy."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.mcp.upstream_hub import EVERYTHING_ASKED, Scripted, http, run_hub, until
from tests.peers.process import HttpPeer, processes_at_home, wait_until_gone

from dragoman.core.errors import Overloaded, WorkFailed
from dragoman.core.principal import Principal
from dragoman.core.tool import SUBSCRIPTION
from dragoman.mcp.client.notifications import UpstreamRequest
from dragoman.mcp.client.suspended_call import REFUSED
from dragoman.wire.json import encode

Peers = Callable[..., HttpPeer]
RESOURCES = {"resources": [{"name": "a", "uri": "x://a"}]}
MINE: dict[str, Any] = {"client": "c", "features": EVERYTHING_ASKED}


def watched(place: Path) -> Scripted:
    answers = {
        "resources/list": RESOURCES,
        "resources/templates/list": {"resourceTemplates": []},
        "resources/subscribe": {},
        "resources/unsubscribe": {},
        "tools/call": {"content": []},
    }
    abilities = {"tools": {}, "resources": {"subscribe": True}}
    return Scripted(place, "legacy", answers, capabilities=abilities)


def asking(peers: Peers, *args: object) -> Any:
    peer = peers("matrix_server", "--transport", "http", "--era", "legacy", *args)
    return http("m", peer.url, interactive=True)


def by(caller: str, client: str) -> dict[str, Any]:
    who = Principal("key", caller)
    return {"principal": who, "client": client, "features": EVERYTHING_ASKED}


def answered(result: Any) -> dict[str, Any]:
    said = {"action": "accept", "content": {"name": "Ada"}}
    return {"answers": dict.fromkeys(result.questions, said), "handle": result.handle}


# --- who follows no more


@pytest.mark.promise("B7", "B12")
async def test_unsubscribe_while_disconnected_is_applied(
    short_tmp: Path,
) -> None:
    server = watched(short_tmp)
    script = short_tmp / "script.json"
    async with run_hub(short_tmp) as world:
        upstream = await world.add(server.entry(interactive=True, idle_secs=0.5))
        await world.call("x://a", {"follow": True}, kind=SUBSCRIPTION, **MINE)
        assert len(server.sent("resources/subscribe")) == 1
        script.rename(short_tmp / "away")  # it cannot start again
        children = processes_at_home(short_tmp)
        for pid in children:
            os.kill(pid, signal.SIGKILL)
        await until(
            lambda: upstream.connection.session is None and upstream.connection.state == "failed"
        )

        await world.call("x://a", {"follow": False}, kind=SUBSCRIPTION, **MINE)

        assert len(upstream.subscriptions) == 0
        (short_tmp / "away").rename(script)
        await until(lambda: upstream.connection.session is not None)
        await world.call("s.t", **MINE)  # on a session of its own, which follows nothing either
        assert len(upstream.client_sessions) == 1
        await until(lambda: upstream.connection.state == "idle")
        assert len(server.sent("resources/subscribe")) == 1


@pytest.mark.promise("B12")
async def test_disconnect_before_the_subscription_response_unsubscribes(short_tmp: Path) -> None:
    server = watched(short_tmp)
    async with run_hub(short_tmp) as world:
        upstream = await world.add(server.entry(interactive=True))
        before = set(processes_at_home(short_tmp))
        await world.call("s.t", **MINE)
        (own,) = set(processes_at_home(short_tmp)) - before
        os.kill(own, signal.SIGSTOP)  # it will not answer
        try:
            work = world.call("x://a", {"follow": True}, kind=SUBSCRIPTION, **MINE)
            following = asyncio.ensure_future(work)
            await until(lambda: upstream.client_sessions._subscriptions)
            assert len(upstream.subscriptions) == 1

            following.cancel()

            with pytest.raises(asyncio.CancelledError):
                await following
            await until(
                lambda: not upstream.subscriptions and not upstream.client_sessions._subscriptions
            )
            await until(lambda: server.sent("resources/unsubscribe"))
        finally:
            os.kill(own, signal.SIGCONT)
    await asyncio.to_thread(wait_until_gone, [own])


# --- one caller


@pytest.mark.promise("B13")
async def test_principal_has_half_of_the_client_sessions(short_tmp: Path, http_peer: Peers) -> None:
    async with run_hub(short_tmp, max_sessions=4) as world:
        upstream = await world.add(asking(http_peer))
        await world.call("m.ask_form", {"key": "1"}, **by("ann", "a1"))
        await world.call("m.declared", **by("ann", "a2"))
        first = await world.call("m.ask_form", {"key": "3"}, **by("ann", ""))  # in its place
        assert len(upstream.client_sessions) == 2

        for client in ("a4", ""):
            with pytest.raises(Overloaded, match="your clients have 2 sessions"):
                await world.call("m.ask_form", {"key": "4"}, **by("ann", client))

        for client in ("b1", ""):
            asked = await world.call("m.ask_form", {"key": client}, **by("bob", client))
            assert asked.questions
        await world.call("m.ask_form", {"key": "3"}, **answered(first), **by("ann", ""))
        assert (await world.call("m.ask_form", {"key": "5"}, **by("ann", "a5"))).questions


@pytest.mark.promise("B13")
async def test_principal_has_half_of_the_suspended_calls(short_tmp: Path, http_peer: Peers) -> None:
    async with run_hub(short_tmp, max_suspended=4) as world:
        await world.add(asking(http_peer))
        first = await world.call("m.ask_form", {"key": "1"}, **by("ann", "a1"))
        await world.call("m.ask_form", {"key": "2"}, **by("ann", "a2"))

        with pytest.raises(Overloaded, match="2 of your calls"):
            await world.call("m.ask_form", {"key": "3"}, **by("ann", "a1"))

        assert (await world.call("m.ask_form", {"key": "4"}, **by("bob", "b"))).questions
        await world.call("m.ask_form", {"key": "1"}, **answered(first), **by("ann", "a1"))
        assert (await world.call("m.ask_form", {"key": "3"}, **by("ann", "a1"))).questions


# --- bytes


@pytest.mark.promise("B13")
async def test_open_questions_of_a_server_are_bounded_in_bytes(
    short_tmp: Path, http_peer: Peers
) -> None:
    async with run_hub(short_tmp, max_question_bytes=350) as world:
        await world.add(asking(http_peer))
        first = await world.call("m.ask_form", {"key": "1"}, **by("ann", "a"))
        (question,) = (first.questions or {}).values()
        assert 175 < len(encode(question.body)) <= 350

        with pytest.raises(WorkFailed, match="which was refused"):
            await world.call("m.ask_form", {"key": "2"}, **by("ann", "a"))

        await world.call("m.ask_form", {"key": "1"}, **answered(first), **by("ann", "a"))
        again = await world.call("m.ask_form", {"key": "3"}, **by("ann", "a"))
        with pytest.raises(WorkFailed, match="was cancelled"):
            await world.call("m.ask_form", {"key": "3"}, handle=again.handle, **by("ann", "a"))
        assert (await world.call("m.ask_form", {"key": "4"}, **by("ann", "b"))).questions


@pytest.mark.promise("B13")
async def test_abandoned_question_is_freed_with_its_call(
    short_tmp: Path,
) -> None:
    params = {"message": "x" * 1_000, "requestedSchema": {"type": "object", "properties": {}}}
    ask = {"id": 7, "method": "elicitation/create", "params": params}
    server = Scripted(short_tmp, "legacy", {"tools/call": {"first": [ask], "content": []}})
    async with run_hub(short_tmp, max_question_bytes=1_500) as world:
        await world.add(server.entry(interactive=True))

        for _ in range(3):
            assert (await world.call("s.t", **MINE)).questions is None

        await until(lambda: len([one for one in server.sent() if "error" in one]) == 3)
        refused = [one["error"]["code"] for one in server.sent() if "error" in one]
        assert refused == [REFUSED] * 3  # when it was over, and not for want of room


@pytest.mark.promise("B13")
async def test_refused_question_keeps_only_its_summary() -> None:
    sent: list[bytes] = []
    params = {"message": "m" * 5_000, "requestedSchema": {"x": "y" * 5_000}, "mode": "form"}
    asked = UpstreamRequest(1, "elicitation/create", params, sent.append)

    asked.refuse(-32601, "no")

    assert asked.params == {"message": "m" * 1_000, "mode": "form"}
    assert len(sent) == 1 and "requestedSchema" in params
