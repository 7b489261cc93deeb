"""Our client and our server, in every dialect and binding that both speak."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.a2a.scripted_agent import build_text_message
from tests.cli.terminal import Terminal

from dragoman.a2a.client.client import A2aClient
from dragoman.a2a.client.endpoint import HTTP_JSON, JSONRPC, TASKS_SEND, Endpoint
from dragoman.a2a.client.event_stream import read_state
from dragoman.a2a.protocol.dialects.operations import V01, V03, V10
from dragoman.a2a.protocol.errors import TASK_NOT_CANCELABLE, TASK_NOT_FOUND, A2aError
from dragoman.net.client import OutboundHttp

CONFIG = """
[a2a]
enabled = true
[[agents]]
name = "echo"
function = "hub_test_agent:answer"
"""
AGENT = """
import asyncio
from dragoman.agent import Ask, Request

async def answer(request: Request):
    word, _, rest = request.text.partition(" ")
    if word == "ask" and request.turn == 1:
        return Ask("which colour?")
    if word == "hang":
        await asyncio.sleep(60)
    request.say("thinking")
    request.artifact("made", name="thing")
    return request.text
"""
WAYS = [
    (JSONRPC, V10),
    (HTTP_JSON, V10),
    (JSONRPC, V03),
    (HTTP_JSON, V03),
    (JSONRPC, V01),
    (TASKS_SEND, V01),
]


ClientOf = Callable[[str], A2aClient]


@pytest.fixture
async def client_of() -> AsyncIterator[ClientOf]:
    net = OutboundHttp()
    yield lambda url: A2aClient(net.open_configured(url, allow_private=False))
    await net.close()


@pytest.fixture(scope="module")
def hub(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    place: Path = tmp_path_factory.mktemp("h")
    terminal = Terminal(place)
    terminal.configure(config=CONFIG)
    (terminal.home / "hub_test_agent.py").write_text(AGENT, encoding="utf-8")
    yield str(terminal.up()["url"])
    terminal.close()


def texts(task: Any) -> list[str]:
    return [
        part["text"]
        for artifact in task.get("artifacts", [])
        for part in artifact["parts"]
        if "text" in part
    ]


@pytest.mark.promise("L1", "J2", "J3")
@pytest.mark.parametrize(("binding", "version"), WAYS)
async def test_client_and_server_round_trip_is_lossless(
    hub: str, binding: str, version: str, client_of: ClientOf
) -> None:
    url = f"{hub}/a2a/echo"
    client = client_of(url)
    peer = await client.find_agent(url)
    peer.use_endpoint(Endpoint(binding, version, f"{hub}/a2a" if binding == TASKS_SEND else url))

    done = (await client.send_message(url, {"message": build_text_message("hello")}))["task"]
    assert read_state(done) == "TASK_STATE_COMPLETED" and "hello" in texts(done)
    kept = await client.get_task(url, done["id"])
    assert texts(kept) == texts(done) and kept["contextId"] == done["contextId"]

    events = [
        e async for e in await client.stream_message(url, {"message": build_text_message("again")})
    ]
    last = events[-1].get("statusUpdate") or events[-1]["task"]
    assert read_state(last) == "TASK_STATE_COMPLETED"
    if binding != TASKS_SEND:
        made = [e["artifactUpdate"]["artifact"]["parts"] for e in events if "artifactUpdate" in e]
        assert made == [[{"text": "made"}], [{"text": "again"}]]

    asked = (await client.send_message(url, {"message": build_text_message("ask")}))["task"]
    assert read_state(asked) == "TASK_STATE_INPUT_REQUIRED"
    reply = build_text_message("blue", context=asked["contextId"], task=asked["id"])
    answered = (await client.send_message(url, {"message": reply}))["task"]
    assert answered["id"] == asked["id"] and "blue" in texts(answered)

    waits = (await client.send_message(url, {"message": build_text_message("ask")}))["task"]
    assert read_state(await client.cancel_task(url, waits["id"])) == "TASK_STATE_CANCELED"
    for id, reason in ((waits["id"], TASK_NOT_CANCELABLE), ("nothing", TASK_NOT_FOUND)):
        with pytest.raises(A2aError) as refused:
            await client.cancel_task(url, id)
        if binding != TASKS_SEND:
            assert refused.value.reason == reason


@pytest.mark.promise("L1")
async def test_hub_is_discovered_by_its_card(hub: str, client_of: ClientOf) -> None:
    client = client_of(hub)
    for url in (hub, f"{hub}/a2a/echo", f"{hub}/a2a/echo/", f"{hub}/.well-known/agent.json"):
        peer = await client.find_probed(url)
        assert (
            peer.endpoint is not None
            and peer.endpoint.version == V10
            and peer.endpoint.binding == JSONRPC
        )
        assert peer.findings == []
    peer = await client.find_probed(f"{hub}/a2a")  # no card is below it, but the default agent's
    assert any("at the origin" in finding for finding in peer.findings)


async def test_hub_stream_is_resumed_where_it_stopped(hub: str, client_of: ClientOf) -> None:
    url = f"{hub}/a2a/echo"
    client = client_of(url)
    stream = await client.stream_message(url, {"message": build_text_message("hang")})
    first = await anext(stream)
    assert stream.last_id is not None
    id, last = first["task"]["id"], stream.last_id
    await stream.close()
    again = await client.subscribe(url, id, last)
    await client.cancel_task(url, id)
    states = [read_state(event.get("statusUpdate") or event["task"]) async for event in again]
    assert states[-1] == "TASK_STATE_CANCELED"
