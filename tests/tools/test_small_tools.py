"""The time, images, events, and the A2A tools."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from tests.tools.small_http import HttpAsked, SmallHttp, serve_http
from tests.tools.tool_rig import ToolRig, read_object, read_text

from dragoman.core.call import Call
from dragoman.core.errors import HubError, InvalidInput, NotFound, WorkFailed
from dragoman.core.event_payloads import render_event
from dragoman.core.events import UserEvent
from dragoman.core.local_agents import AgentProfile
from dragoman.wire.json import decode, encode

pytestmark = pytest.mark.promise("T2")

PNG = b"\x89PNG\r\n\x1a\n" + bytes(20)


async def test_time_is_returned_in_a_zone(rig: ToolRig) -> None:
    utc = read_object(await rig.use("system_time"))
    assert utc["time"].endswith("+00:00") and utc["weekday"].endswith("day")
    tokyo = read_object(await rig.use("system_time", time_zone="Asia/Tokyo"))
    assert tokyo["time"].endswith("+09:00")
    for zone in ("Nowhere/City", "../../etc/passwd", "", "x" * 61):
        with pytest.raises(InvalidInput):
            await rig.use("system_time", time_zone=zone)


class SmallVision:
    async def describe_image(
        self, agent: AgentProfile, image: bytes, media_type: str, prompt: str, within: Call
    ) -> str | None:
        return f"{agent.name} {media_type} {len(image)} {prompt}" if prompt != "blind" else None


@pytest.fixture
async def seeing(tmp_path: Path) -> AsyncIterator[ToolRig]:
    made = ToolRig(tmp_path, vision=SmallVision())
    yield made
    await made.close()


@pytest.mark.parametrize(
    ("data", "kind"),
    [
        (PNG, "image/png"),
        (b"\xff\xd8\xff\xe0" + bytes(20), "image/jpeg"),
        (b"GIF89a" + bytes(20), "image/gif"),
        (b"RIFF1234WEBP" + bytes(20), "image/webp"),
    ],
)
async def test_image_is_described(seeing: ToolRig, data: bytes, kind: str) -> None:
    await seeing.use("file_list")
    seeing.workspace.mkdir(parents=True, exist_ok=True)
    (seeing.workspace / "image").write_bytes(data)
    found = await seeing.use("image_analyze", path="image", prompt="What?")
    assert read_text(found) == f"tester {kind} {len(data)} What?"
    with pytest.raises(WorkFailed, match="no model that can see"):
        await seeing.use("image_analyze", path="image", prompt="blind")


async def test_what_is_no_image_is_refused(rig: ToolRig) -> None:
    await rig.use("file_write", path="a.png", content="<svg/>")
    with pytest.raises(InvalidInput, match="is not a PNG"):
        await rig.use("image_analyze", path="a.png")
    with pytest.raises(InvalidInput):
        await rig.use("image_analyze", path="../a.png")
    (rig.workspace / "b.png").write_bytes(PNG)
    with pytest.raises(WorkFailed, match="no model that can see is available"):
        await rig.use("image_analyze", path="b.png")


async def test_event_is_published(rig: ToolRig) -> None:
    seen: list[UserEvent] = []
    rig.bus.observe(UserEvent, seen.append)
    await rig.use("event_publish", event_type="review.finished", payload={"files": 3})
    (event,) = seen
    name, said = render_event(event) or ("", {})
    assert name == "user" and said["type"] == "review.finished" and said["source"] == "tester"
    assert said["data"] == {"files": 3} and said["traceId"] == event.trace
    for arguments in (
        {"event_type": "a b"},
        {"event_type": "x", "payload": {"a": "x" * 20_000}},
        {"event_type": "x", "payload": []},
    ):
        with pytest.raises(InvalidInput):
            await rig.use("event_publish", **arguments)
    assert len(seen) == 1


# --- A2A ------------------------------------------------------------------------------------------


class SmallA2aAgent:
    """An agent of 1.0 over JSON-RPC whose task is done when it is polled."""

    def __init__(self) -> None:
        self.sent: list[Mapping[str, Any]] = []
        self.state = "TASK_STATE_COMPLETED"
        self.port = 0

    def answer(self, asked: HttpAsked) -> tuple[int, dict[str, str], bytes]:
        if asked.method == "GET":
            return 200, {"content-type": "application/json"}, encode(self.build_card(asked))
        request = decode(asked.body)
        result: dict[str, Any] = {}
        if request["method"] == "SendMessage":
            self.sent.append(request["params"]["message"])
            result = {"task": self.build_task("TASK_STATE_WORKING")}
        elif request["method"] == "GetTask":
            result = self.build_task(self.state)
        reply = {"jsonrpc": "2.0", "id": request["id"], "result": result}
        return 200, {"content-type": "application/json"}, encode(reply)

    def build_card(self, asked: HttpAsked) -> dict[str, Any]:
        url = f"http://{asked.headers['host']}/"
        return {
            "name": "Small",
            "description": "answers",
            "version": "1.0.0",
            "supportedInterfaces": [
                {"url": url, "protocolBinding": "JSONRPC", "protocolVersion": "1.0"}
            ],
            "capabilities": {},
            "defaultInputModes": ["text/plain"],
            "defaultOutputModes": ["text/plain"],
            "skills": [{"id": "do", "name": "Do", "description": "does", "tags": []}],
        }

    def build_task(self, state: str) -> dict[str, Any]:
        parts = [{"text": "the answer"}]
        task: dict[str, Any] = {"id": "t1", "contextId": "c1", "status": {"state": state}}
        if state == "TASK_STATE_COMPLETED":
            task["artifacts"] = [{"artifactId": "a", "parts": parts}]
        return task


@pytest.fixture
async def small() -> SmallA2aAgent:
    return SmallA2aAgent()


@pytest.fixture
async def peer(small: SmallA2aAgent) -> AsyncIterator[SmallHttp]:
    async with serve_http(small.answer) as served:
        yield served


@pytest.fixture
async def reaching(tmp_path: Path) -> AsyncIterator[ToolRig]:
    made = ToolRig(tmp_path, "allow_private = true")
    yield made
    await made.close()


async def test_agent_is_discovered_and_answers(
    reaching: ToolRig, peer: SmallHttp, small: SmallA2aAgent
) -> None:
    card = read_object(await reaching.use("a2a_discover", url=peer.url))
    assert card["name"] == "Small" and card["skills"][0]["id"] == "do"
    found = await reaching.use("a2a_send", agent_url=peer.url, message="hi", session_id="c1")
    assert "the answer" in read_text(found) and '"session_id": "c1"' in read_text(found)
    (sent,) = small.sent
    assert sent["parts"] == [{"text": "hi"}] and sent["contextId"] == "c1"
    small.state = "TASK_STATE_FAILED"
    failed = await reaching.use("a2a_send", agent_url=peer.url, message="hi")
    assert failed.failed and "ended as failed" in read_text(failed)
    small.state = "TASK_STATE_INPUT_REQUIRED"
    asks = await reaching.use("a2a_send", agent_url=peer.url, message="hi")
    assert "asks for more input" in read_text(asks)


async def test_a_card_and_a_redirect_lead_to_no_origin_that_was_not_granted(
    reaching: ToolRig, peer: SmallHttp, small: SmallA2aAgent
) -> None:
    """A grant of one port of a host is not one of the others, whatever card is read when."""
    async with serve_http(small.answer) as other:
        cards = [peer.url, other.url, other.url]  # the card changes after it was read once

        def answer(asked: HttpAsked) -> tuple[int, dict[str, str], bytes]:
            if asked.path == "/moved" or asked.path.startswith("/moved/"):
                return 307, {"location": f"{other.url}{asked.path}"}, b""
            if asked.method != "GET":
                return small.answer(asked)
            card = small.build_card(asked)
            card["supportedInterfaces"][0]["url"] = cards.pop(0) if len(cards) > 1 else cards[0]
            return 200, {"content-type": "application/json"}, encode(card)

        async with serve_http(answer) as first:
            granted = (f"127.0.0.1:{first.port}",)
            reaching.add_agent(reaching.build_profile("narrow", network=granted, agents=()))
            for _ in range(3):
                with pytest.raises(HubError, match="was not granted"):
                    await reaching.use("a2a_send", "narrow", agent_url=first.url, message="hi")
            await reaching.use("a2a_discover", "narrow", url=f"{first.url}/moved")
            with pytest.raises(HubError, match="was not granted"):
                await reaching.use(
                    "a2a_send", "narrow", agent_url=f"{first.url}/moved", message="hi"
                )
        assert not other.asked and not peer.asked and not small.sent


async def test_registered_agent_is_called_through_the_hub(reaching: ToolRig) -> None:
    reaching.add_agent(reaching.build_profile("partner"))
    found = await reaching.use("a2a_send", agent_name="partner", message="hi")
    assert read_text(found) == "heard: hi"


async def test_other_hosts_and_agents_are_refused(
    reaching: ToolRig, peer: SmallHttp, rig: ToolRig
) -> None:
    narrow = reaching.build_profile("narrow", network=("example.org",), agents=())
    reaching.add_agent(narrow)
    for tool, arguments in (
        ("a2a_discover", {"url": peer.url}),
        ("a2a_send", {"agent_url": peer.url, "message": "x"}),
        ("a2a_discover", {"url": "ftp://example.org"}),
    ):
        with pytest.raises(InvalidInput):
            await reaching.use(tool, "narrow", **arguments)
    with pytest.raises(NotFound):
        await reaching.use("a2a_send", "narrow", agent_name="tester", message="x")
    with pytest.raises(InvalidInput, match="either"):
        await reaching.use("a2a_send", message="x")
    with pytest.raises(HubError):
        await rig.use("a2a_discover", url=peer.url)  # private addresses are not allowed there
    assert not peer.asked
