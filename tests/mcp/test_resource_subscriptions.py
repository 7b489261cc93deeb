"""Resource subscriptions: requested from servers of both eras, and renewed."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx2
import pytest
from tests.mcp.upstream_hub import Scripted, UpstreamHub, http, run_hub, stdio, until
from tests.peers.process import HttpPeer, read_log

from dragoman.core.errors import BadReply, InvalidInput, NotFound, Overloaded, Unreachable
from dragoman.core.tool import RESOURCE, SUBSCRIPTION
from dragoman.mcp.client.resource_subscriptions import ResourceSubscriptions
from dragoman.mcp.protocol.elicitation import TASKS_ONLY

Peers = Callable[..., HttpPeer]
WAYS = [
    ("legacy", "stdio"),
    ("modern", "stdio"),
    ("legacy", "http"),
    ("modern", "http"),
    ("legacy", "sse"),
]
WATCHED, NAME = "matrix://watched", "m.matrix://watched"


def entry(peers: Peers, era: str, transport: str, *args: object) -> Any:
    if transport == "stdio":
        return stdio("m", "matrix_server", "--era", era, *args)
    peer = peers("matrix_server", "--transport", transport, "--era", era, *args)
    return http("m", peer.url)


async def follow(world: UpstreamHub, client: str, uri: str = WATCHED, yes: bool = True) -> None:
    await world.call(uri, {"follow": yes}, kind=SUBSCRIPTION, client=client)


async def told(world: UpstreamHub) -> None:
    """The resource changes, and it is heard of."""
    world.updated.clear()
    await world.call("m.change", {"what": "watched"})
    await until(lambda: NAME in world.updated)


def sent(log: Path, method: str) -> list[Any]:
    return [seen["params"] for seen in read_log(log) if seen.get("method") == method]


@pytest.mark.promise("B12")
@pytest.mark.parametrize(("era", "transport"), WAYS)
async def test_update_is_delivered_while_anyone_is_subscribed(
    era: str, transport: str, short_tmp: Path, http_peer: Peers
) -> None:
    log = short_tmp / "log"
    async with run_hub(short_tmp) as world:
        upstream = await world.add(entry(http_peer, era, transport, "--log", log))
        await follow(world, "a")
        await follow(world, "a")
        await follow(world, "a", yes=False)  # as often as it was followed, and not more
        await told(world)
        await follow(world, "b", NAME)
        await follow(world, "a", yes=False)
        await told(world)
        await follow(world, "nobody", yes=False)
        await told(world)

        world.leave("b")

        assert len(upstream.subscriptions) == 0
        if era == "legacy":
            await until(lambda: sent(log, "resources/unsubscribe"))
            assert [one["uri"] for one in sent(log, "resources/subscribe")] == [WATCHED]
            assert len(sent(log, "resources/unsubscribe")) == 1
        else:

            def unions() -> list[Any]:
                listens = sent(log, "subscriptions/listen")
                return [one["notifications"].get("resourceSubscriptions") for one in listens]

            await until(lambda: unions()[-1] is None)
            assert unions() == [None, [WATCHED], None]
        world.updated.clear()
        await world.call("m.change", {"what": "watched"})
        await world.call("m.change", {"what": "prompts"})
        await until(lambda: len(world.hub.catalogs["prompt"]) == 4)  # what was said before is heard
        assert world.updated == []


@pytest.mark.promise("B7", "B12")
@pytest.mark.parametrize("era", ["legacy", "modern"])
async def test_subscription_is_renewed_after_a_crash(
    era: str, short_tmp: Path, http_peer: Peers
) -> None:
    async with run_hub(short_tmp) as world:
        upstream = await world.add(entry(http_peer, era, "stdio"))
        await follow(world, "a")

        with pytest.raises(Unreachable):
            await world.call("m.crash")
        world.updated.clear()
        await until(
            lambda: upstream.connection.restarts == 1 and upstream.connection.session is not None
        )
        await until(lambda: world.updated == [NAME])  # it may have changed meanwhile

        await told(world)


@pytest.mark.promise("B7", "B12")
async def test_subscription_is_renewed_in_a_new_session(short_tmp: Path, http_peer: Peers) -> None:
    log = short_tmp / "log"
    peer = http_peer("matrix_server", "--transport", "http", "--era", "legacy", "--log", log)
    async with run_hub(short_tmp) as world:
        await world.add(http("m", peer.url))
        await follow(world, "a")

        async with httpx2.AsyncClient() as client:
            await client.post(peer.url.replace("/mcp", "/forget"))
        await world.call("m.echo", {"text": "hi"})

        await until(lambda: len(sent(log, "resources/subscribe")) == 2)
        await until(lambda: NAME in world.updated)


@pytest.mark.promise("B12")
async def test_new_listen_stream_opens_before_the_old_one_ends(short_tmp: Path) -> None:
    log = short_tmp / "log"
    async with run_hub(short_tmp) as world:
        await world.add(stdio("m", "matrix_server", "--era", "modern", "--log", log))
        await follow(world, "a")
        await asyncio.gather(*(follow(world, "a", f"matrix://item/{n}/x") for n in range(4)))

        def order() -> list[str]:
            wanted = ("subscriptions/listen", "notifications/cancelled")
            return [seen["method"] for seen in read_log(log) if seen.get("method") in wanted]

        await until(lambda: order().count("notifications/cancelled") >= 3)
        assert order()[:3] == [
            "subscriptions/listen",
            "subscriptions/listen",
            "notifications/cancelled",
        ]
        unions = [one["notifications"] for one in sent(log, "subscriptions/listen")]
        assert len(unions[-1]["resourceSubscriptions"]) == 5
        # Those who came at the same time share one: they waited for one another.
        assert len(unions) <= 4
        assert all(union["toolsListChanged"] is True for union in unions)
        await told(world)


@pytest.mark.promise("B12")
async def test_subscriptions_are_bounded_and_a_refusal_leaves_no_trace(
    short_tmp: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dragoman.mcp.client.resource_subscriptions.MAX_URIS", 2)
    no = {"error": {"code": -32602, "message": "no such resource"}}
    listed = {"resources": [{"name": str(n), "uri": f"x://{n}"} for n in range(4)]}
    server = Scripted(
        short_tmp,
        "legacy",
        {"resources/list": listed, "resources/subscribe": [{}, no, {}]},
        capabilities={"tools": {}, "resources": {"subscribe": True}},
    )
    async with run_hub(short_tmp) as world:
        upstream = await world.add(server.entry())
        await follow(world, "a", "x://0")
        with pytest.raises(Exception, match="no such resource"):
            await follow(world, "a", "x://1")
        assert upstream.subscriptions.uris == {"x://0"}
        await follow(world, "a", "x://2")

        with pytest.raises(Overloaded, match="2 resources"):
            await follow(world, "a", "x://3")
        await follow(world, "b", "x://0")

        assert [one["params"]["uri"] for one in server.sent("resources/subscribe")] == [
            "x://0",
            "x://1",
            "x://2",
        ]


@pytest.mark.promise("B12")
async def test_server_without_subscriptions_gets_none(short_tmp: Path) -> None:
    server = Scripted(
        short_tmp,
        "legacy",
        {"resources/list": {"resources": [{"name": "a", "uri": "x://a"}]}},
        capabilities={"tools": {}, "resources": {"listChanged": True}},
    )
    async with run_hub(short_tmp) as world:
        await world.add(server.entry())

        with pytest.raises(InvalidInput, match="does not announce changes"):
            await follow(world, "a", "x://a")
        assert server.sent("resources/subscribe") == []


@pytest.mark.promise("B12")
async def test_modern_server_granting_no_subscription_is_named(short_tmp: Path) -> None:
    granted = {
        "method": "notifications/subscriptions/acknowledged",
        "params": {"_meta": {"io.modelcontextprotocol/subscriptionId": "$id"}, "notifications": {}},
    }
    server = Scripted(
        short_tmp,
        "modern",
        {
            "resources/list": {"resources": [{"name": "a", "uri": "x://a"}]},
            "resources/templates/list": {"resourceTemplates": []},
            "subscriptions/listen": [
                {"first": [granted], "resultType": "complete"},
                {"error": {"code": -32601, "message": "no listen"}},
            ],
        },
        capabilities={"tools": {}, "resources": {"subscribe": True}},
    )
    async with run_hub(short_tmp) as world:
        upstream = await world.add(server.entry())

        with pytest.raises(InvalidInput, match="does not announce changes of"):
            await follow(world, "a", "x://a")
        with pytest.raises(BadReply, match="did not acknowledge the resource subscription"):
            await follow(world, "a", "x://a")
        assert len(upstream.subscriptions) == 0


async def test_update_below_a_subscribed_uri_is_delivered(short_tmp: Path) -> None:
    received: list[str] = []
    followed = ResourceSubscriptions("s", lambda uri, meta: received.append(uri), 1)
    followed._clients = {"file:///a/b": {"c": 1}, "x://y": {"c": 1}}

    for uri in ("file:///a/b", "file:///a/b/c/d", "file:///a/bc", "file:///a", "x://y/", 7, ""):
        followed.notify_updated(uri)

    assert received == ["file:///a/b", "file:///a/b", "x://y"]


@pytest.mark.promise("B12")
async def test_server_without_resources_gets_a_subscription_request(
    short_tmp: Path,
) -> None:
    """It says what it honours when the stream begins, as it does to clients of its own."""
    async with run_hub(short_tmp) as world:
        await world.add(stdio("n", "listen_server"))
        await follow(world, "a", "note://todo")
        await world.call("n.edit")
        await until(lambda: "n.note://todo" in world.updated)

        with pytest.raises(NotFound):  # only to follow: it serves no reads
            await world.call("note://todo", kind=RESOURCE)
        await world.add(stdio("m", "matrix_server", "--era", "modern"))
        await follow(world, "b", "n.note://todo")  # by an address that names its server


@pytest.mark.promise("B12", "B13")
async def test_handshake_client_gets_updates_of_a_dual_era_server(
    short_tmp: Path,
) -> None:
    older: Any = {"client": "a", "revision": "2025-11-25", "features": TASKS_ONLY}
    async with run_hub(short_tmp) as world:
        upstream = await world.add(stdio("m", "matrix_server", "--era", "both"))
        assert upstream.connection.version == "2026-07-28"
        for place in (WATCHED, NAME):
            # Before the session of that era is open, and after it was lost.
            await world.call(place, {"follow": True}, kind=SUBSCRIPTION, **older)
            world.updated.clear()
            await world.call("m.change", {"what": "watched"}, **older)
            await until(lambda: NAME in world.updated)
            assert upstream.connection.session is not None and upstream.connection.restarts == 0
            with pytest.raises(Unreachable):
                await world.call("m.crash", **older)
            await until(lambda: upstream.connection.handshake_session is None)
        assert upstream.connection.restarts == 0 and upstream.connection.session is not None
