"""The A2A client against official SDK agents, in every dialect and binding they serve."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest
from tests.a2a.scripted_agent import build_text_message
from tests.peers.process import HttpPeer

from dragoman.a2a.client.client import A2aClient
from dragoman.a2a.client.event_stream import read_state
from dragoman.a2a.protocol.errors import (
    METHOD_NOT_FOUND,
    TASK_NOT_CANCELABLE,
    TASK_NOT_FOUND,
    UNSUPPORTED_OPERATION,
    A2aError,
)
from dragoman.net.client import OutboundHttp

Peers = Callable[..., HttpPeer]

BINDINGS = ["JSONRPC:1.0", "HTTP+JSON:1.0", "JSONRPC:0.3", "HTTP+JSON:0.3"]


ClientOf = Callable[[str], A2aClient]


@pytest.fixture
async def client_of() -> AsyncIterator[ClientOf]:
    net = OutboundHttp()
    yield lambda url: A2aClient(net.open_configured(url, allow_private=False))
    await net.close()


def texts_of_events(text: str) -> dict[str, Any]:
    return {"message": build_text_message(text)}


def texts(artifacts: Any) -> list[str]:
    return [part["text"] for artifact in artifacts for part in artifact["parts"]]


@pytest.mark.promise("L1")
@pytest.mark.parametrize("binding", BINDINGS)
async def test_every_operation_works_in_the_dialect_that_the_card_declares(
    binding: str, http_peer: Peers, client_of: ClientOf
) -> None:
    url = http_peer("a2a_sdk_agent", "--declare", binding).url
    client = client_of(url)
    peer = await client.find_probed(url)
    assert (
        peer.endpoint is not None and f"{peer.endpoint.binding}:{peer.endpoint.version}" == binding
    )
    assert peer.findings == [] and len(peer.card["skills"]) == 2

    answer = await client.send_message(url, texts_of_events("say hello"))
    assert texts(answer["task"]["artifacts"]) == ["echo: hello"]
    assert (await client.get_task(url, answer["task"]["id"])) == answer["task"]
    direct = await client.send_message(url, texts_of_events("direct hi there"))
    assert direct["message"]["parts"] == [{"text": "hi there"}]

    stream = await client.stream_message(url, texts_of_events("slow work"))
    events = [event async for event in stream]
    assert "task" in events[0]
    words = [
        event["statusUpdate"]["status"]["message"]["parts"][0]["text"]
        for event in events[1:]
        if "message" in event.get("statusUpdate", {}).get("status", {})
    ]
    assert words == ["step 0", "step 1", "step 2", "all steps done"]
    assert read_state(events[-1]["statusUpdate"]) == "TASK_STATE_COMPLETED"

    made = (await client.send_message(url, texts_of_events("file x")))["task"]["artifacts"][0][
        "parts"
    ]
    assert made[0]["raw"] == "AAE=" and made[0]["mediaType"] == "application/x-thing"

    asked = (await client.send_message(url, texts_of_events("ask me")))["task"]
    assert read_state(asked) == "TASK_STATE_INPUT_REQUIRED"
    reply = build_text_message("blue", context=asked["contextId"], task=asked["id"])
    done = (await client.send_message(url, {"message": reply}))["task"]
    assert texts(done["artifacts"]) == ["you said: blue"]


@pytest.mark.promise("L1")
@pytest.mark.parametrize("binding", BINDINGS)
async def test_task_is_subscribed_and_cancelled_and_errors_keep_their_reason(
    binding: str, http_peer: Peers, client_of: ClientOf
) -> None:
    url = http_peer("a2a_sdk_agent", "--declare", binding).url
    client = client_of(url)
    request = {**texts_of_events("hang on"), "configuration": {"returnImmediately": True}}
    task = (await client.send_message(url, request))["task"]
    async with asyncio.timeout(60):
        stream = await client.subscribe(url, task["id"])
        first = await anext(stream)
        assert first["task"]["id"] == task["id"]
        cancelled = await client.cancel_task(url, task["id"])
        assert read_state(cancelled) == "TASK_STATE_CANCELED"
        async for event in stream:
            last = event
        assert read_state(last["statusUpdate"]) == "TASK_STATE_CANCELED"
    with pytest.raises(A2aError) as again:
        await client.cancel_task(url, task["id"])
    assert again.value.reason == TASK_NOT_CANCELABLE
    with pytest.raises(A2aError) as unknown:
        await client.get_task(url, "no-such-task")
    assert unknown.value.reason == TASK_NOT_FOUND
    if binding.endswith("1.0"):
        listed = await client.list_tasks(url, {"pageSize": 10})
        assert [each["id"] for each in listed["tasks"]] == [task["id"]]
    else:
        with pytest.raises(A2aError) as refused:
            await client.list_tasks(url, {})
        assert refused.value.reason in (UNSUPPORTED_OPERATION, METHOD_NOT_FOUND)


@pytest.mark.promise("L1")
async def test_message_is_sent_and_its_task_fetched(http_peer: Peers, client_of: ClientOf) -> None:
    url = http_peer("a2a_sdk_agent").url
    client = client_of(url)
    found = await client.discover(url)
    assert found.card["name"] == "SDK agent" and found.url.endswith("/.well-known/agent-card.json")
    message = build_text_message("say hello", context="session-1")
    task = (await client.send_message(url, {"message": message}))["task"]
    assert task["contextId"] == "session-1" and texts(task["artifacts"]) == ["echo: hello"]
    assert await client.get_task(url, task["id"]) == task
    assert client.timeout == 30.0


async def test_agent_without_streaming_returns_one_response(
    http_peer: Peers, client_of: ClientOf
) -> None:
    url = http_peer("a2a_sdk_agent", "--no-streaming").url
    client = client_of(url)
    events = [
        event async for event in await client.stream_message(url, texts_of_events("say hello"))
    ]
    assert [list(event) for event in events] == [["task"]]
    assert texts(events[0]["task"]["artifacts"]) == ["echo: hello"]
