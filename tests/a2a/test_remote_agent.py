"""External agents as targets, listed and called like tools."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, cast

import pytest
from tests.a2a.scripted_agent import Request, card_10, scripted_agent, task_10
from tests.peers.process import HttpPeer, read_log, wait_for_log
from tests.permissive_hub import build_permissive_hub, call_tool

from dragoman.a2a.config import ExternalAgent
from dragoman.a2a.remote.remote_agent import RemoteAgent
from dragoman.core.bus import Bus
from dragoman.core.call import (
    Artifact,
    MessageOrigin,
    Progress,
    Result,
    TaskStarted,
    Update,
    WantedUpdates,
)
from dragoman.core.catalog import Catalog, admit_all
from dragoman.core.errors import (
    BadReply,
    ConfigError,
    Declined,
    NeedsInput,
    TimedOut,
    Unreachable,
    WorkFailed,
)
from dragoman.core.hub import Hub
from dragoman.core.principal import OWNER
from dragoman.core.tool_filter import EVERYTHING
from dragoman.core.trace import MEMBERS
from dragoman.guards.timeout import Timeout
from dragoman.guards.validate import compile_schema
from dragoman.net.client import OutboundHttp

Peers = Callable[..., HttpPeer]

Sdk = tuple[str, Path]
"""Where an agent of the official SDK is, and where it writes down what happens to it."""


@pytest.fixture(scope="module")
def sdk(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Sdk]:
    log = tmp_path_factory.mktemp("sdk") / "log"
    with HttpPeer("a2a_sdk_agent", "--log", log) as peer:
        yield peer.url, log


def executed(log: Path) -> list[dict[str, Any]]:
    return [entry for entry in read_log(log) if entry["event"] == "execute"]


async def until_cancelled(log: Path) -> None:
    """Until the task that was begun last is."""
    task = executed(log)[-1]["task"]
    await asyncio.to_thread(wait_for_log, log, event="cancel", task=task)


FEATURES: dict[str, Any] = {"elicitation": {"form": {}, "url": {}}}


@asynccontextmanager
async def remote(url: str, seconds: float = 30.0, **entry: Any) -> AsyncIterator[Remote]:
    net = OutboundHttp()
    hub = build_permissive_hub(
        Catalog(review=admit_all), Bus(), [Timeout(seconds, seconds, seconds)]
    )
    agent = RemoteAgent(
        ExternalAgent(name="far-away", url=url, **entry),
        lambda url, private: net.open_configured(url, allow_private=private),
        hub.catalog,
        compile_schema,
        headers={},
        signatures="ignore",
    )
    try:
        async with asyncio.timeout(60):
            agent.offer(await agent.client.find_probed(url), "card-1")
            yield Remote(hub, agent)
    finally:
        await agent.stop()
        await net.close()


class Remote:
    def __init__(self, hub: Hub, agent: RemoteAgent) -> None:
        self.hub = hub
        self.agent = agent
        self.updates: list[Update] = []

    async def call(self, text: str, **more: Any) -> Result:
        more = {"features": FEATURES, **more}
        arguments = more.pop("arguments", {"message": text})
        return await call_tool(
            self.hub,
            OWNER,
            "far-away.message",
            arguments,
            door="test",
            view=EVERYTHING,
            updates=self.updates.append,
            wanted_updates=WantedUpdates(progress=True, task_start=True),
            **more,
        )


def text_of(result: Result) -> str:
    return "\n".join(block["text"] for block in result.content)


# --- what it offers -------------------------------------------------------------------------------


async def test_agent_is_listed_as_a_tool_and_one_tool_per_skill(sdk: Sdk) -> None:
    async with remote(sdk[0]) as far:
        tools = far.hub.catalog.list_tools()
        spoken = far.agent.probed.endpoint if far.agent.probed is not None else None
        assert "A2A 1.0 over JSONRPC" in str(spoken) and far.agent.reason == ""
        names = ["far-away.message", "far_away.ask", "far_away.echo"]
        assert sorted(tool.name for tool in tools) == names
        tool = far.hub.catalog.find("dragoman_agent_far_away")
        assert tool is far.hub.catalog.find("far-away.message")
        far.agent.withdraw("it is away")
        assert not far.hub.catalog.list_tools()
        assert (far.agent.probed, far.agent.reason) == (None, "it is away")
    assert tool.agent is not None and tool.agent.description == "Does what the first word says."
    assert tool.description.startswith("Does what the first word says. Takes a message")
    assert 'Its skills are also tools, named "far_away.…"' in tool.description
    assert [skill["id"] for skill in tool.agent.skills] == ["echo", "ask"]
    assert tool.definition["inputSchema"]["required"] == ["message"]


def test_invalid_agent_url_is_reported_at_start() -> None:
    entry = ExternalAgent(name="x", url="ftp://example.com")
    with pytest.raises(ConfigError, match=r'invalid address "ftp:[^"]*" of agent "x"'):
        RemoteAgent(
            entry,
            cast(Any, lambda *_: None),
            Catalog(review=admit_all),
            compile_schema,
            headers={},
            signatures="ignore",
        )


# --- a message and what comes of it ---------------------------------------------------------------


@pytest.mark.parametrize("binding", ["JSONRPC:1.0", "HTTP+JSON:0.3"])
@pytest.mark.parametrize("streams", [True, False])
async def test_call_sends_a_message_and_returns_its_task_result(
    binding: str, streams: bool, http_peer: Peers
) -> None:
    more = [] if streams else ["--no-streaming"]
    async with remote(http_peer("a2a_sdk_agent", "--declare", binding, *more).url) as far:
        assert text_of(await far.call("say hello")) == "echo: hello"
        direct = await far.call("direct hi there")
        assert direct.direct and text_of(direct) == "hi there"

        data = await far.call("data")
        assert data.structured == {"answer": 42} and '"answer"' in text_of(data)
        (made,) = data.artifacts
        assert made.name == "numbers" and made.content[0]["data"] == {"answer": 42}
        file = await far.call("file")
        assert file.artifacts[0].content[0]["resource"]["blob"] == "AAE="
        chunks = await far.call("chunks")
        assert text_of(chunks) == "one two" if streams else "one \ntwo"
        assert [made.id for made in chunks.artifacts] == ["a1"]

        far.updates.clear()
        assert text_of(await far.call("slow")) == "all steps done"
        told = [update.message for update in far.updates if isinstance(update, Progress)]
        steps = [f"step {n}" for n in range(3)]
        assert told == steps if streams else told and set(told) <= set(steps)
        assert (await far.call("silent")).content == []


async def test_artifacts_are_streamed_while_produced(sdk: Sdk) -> None:
    async with remote(sdk[0]) as far:
        await far.call("chunks")
    pieces = [update for update in far.updates if isinstance(update, Artifact)]
    assert [(p.id, p.content[0]["text"], p.append, p.last) for p in pieces] == [
        ("a1", "one ", False, False),
        ("a1", "two", True, True),
    ]


async def test_agent_failure_and_rejection_carry_the_reason(sdk: Sdk) -> None:
    async with remote(sdk[0]) as far:
        with pytest.raises(WorkFailed, match='agent "far-away" failed: the disk is full'):
            await far.call("fail")
        with pytest.raises(Declined, match='agent "far-away" rejected the task: not with me'):
            await far.call("reject")


async def test_all_parts_of_a_message_reach_the_agent() -> None:
    async def handle(request: Request) -> None:
        if "/.well-known/" in request.path:
            request.reply(200, card_10(f"http://{request.headers['host']}"))
        elif request.rpc == "GetTask":
            request.fail(-32001)
        else:
            request.result({"message": {"role": "ROLE_AGENT", "messageId": "m", "parts": []}})

    blocks = [
        {"type": "text", "text": "look"},
        {"type": "data", "data": {"a": 1}},
        {"type": "image", "data": "AAE=", "mimeType": "image/png"},
    ]
    async with scripted_agent(handle) as server, remote(server.url) as far:
        message = MessageOrigin(skill="paint", metadata={"k": "v"})
        await far.call("", arguments={"message": "look", "parts": blocks}, message=message)
    sent = server.sent("SendMessage")[0].params["message"]
    assert [set(part) - {"mediaType"} for part in sent["parts"]] == [{"text"}, {"data"}, {"raw"}]
    assert sent["role"] == "ROLE_USER" and "taskId" not in sent and "contextId" not in sent
    metadata = {key: value for key, value in sent["metadata"].items() if key not in MEMBERS}
    assert metadata == {"k": "v", "urn:dragoman:a2a:skill:v1": {"skillId": "paint"}}


async def test_conversation_of_a_principal_is_one_agent_context(
    sdk: Sdk,
) -> None:
    url, log = sdk
    before = len(executed(log))
    async with remote(url) as far:
        for conversation in ("one", "two", "one"):
            await far.call("say x", message=MessageOrigin(context=conversation))
        await far.call("say x")
    contexts = [entry["context"] for entry in executed(log)[before:]]
    first, second, third, fourth = contexts
    assert first == third and len({first, second, fourth}) == 3


# --- questions ------------------------------------------------------------------------------------


async def test_agent_question_becomes_input_required_and_its_answer_continues_the_task(
    sdk: Sdk,
) -> None:
    async with remote(sdk[0]) as far:
        asked = await far.call("ask")
        assert asked.questions is not None and asked.handle is not None
        question = asked.questions["reply"]
        assert question.kind == "form" and question.body["message"] == "which colour?"
        assert list(question.body["requestedSchema"]["properties"]) == ["reply"]
        answers = {"reply": {"action": "accept", "content": {"reply": "blue"}}}
        done = await far.call("ask", handle=asked.handle, answers=answers)
        assert text_of(done) == "you said: blue"


@pytest.mark.parametrize("answers", [None, {}, {"reply": {"action": "decline"}}])
async def test_unanswered_question_cancels_the_task(answers: Any, sdk: Sdk) -> None:
    url, log = sdk
    async with remote(url) as far:
        asked = await far.call("ask")
        with pytest.raises(WorkFailed, match="was not answered"):
            await far.call("ask", handle=asked.handle, answers=answers)
        await until_cancelled(log)


async def test_client_without_elicitation_gets_the_question_and_the_task_is_cancelled(
    sdk: Sdk,
) -> None:
    url, log = sdk
    async with remote(url) as far:
        with pytest.raises(NeedsInput, match="which colour"):
            await far.call("ask", features={})
        await until_cancelled(log)


async def test_auth_required_names_the_url() -> None:
    logged_in = False
    waiting = task_10("AUTH_REQUIRED")
    words = "log in at https://login.example/x, please"
    waiting["status"]["message"] = {"role": "ROLE_AGENT", "parts": [{"text": words}]}

    def handle(request: Request) -> None:
        if "/.well-known/" in request.path:
            request.reply(200, card_10(f"http://{request.headers['host']}"))
        elif request.rpc == "SendMessage":
            request.result({"task": waiting})
        elif request.params["id"] == "t1":
            made = [{"artifactId": "a", "parts": [{"text": "done"}]}]
            request.result(task_10(artifacts=made) if logged_in else waiting)
        else:
            request.fail(-32001)

    async with scripted_agent(handle) as server, remote(server.url) as far:
        asked = await far.call("x")
        assert asked.questions is not None
        question = asked.questions["auth"]
        assert question.kind == "url" and question.body["url"] == "https://login.example/x"
        logged_in = True
        answers = {"auth": {"action": "accept"}}
        done = await far.call("x", handle=asked.handle, answers=answers)
        assert text_of(done) == "done"
    assert len(server.sent("SendMessage")) == 1, "it went on by itself"


# --- ends -----------------------------------------------------------------------------------------


async def test_unresumable_stream_falls_back_to_polling() -> None:
    async def handle(request: Request) -> None:
        if "/.well-known/" in request.path:
            card = card_10(f"http://{request.headers['host']}", capabilities={"streaming": True})
            request.reply(200, card)
        elif request.rpc == "SendStreamingMessage":
            request.stream()
            await request.event({"task": task_10("WORKING")}, "1")
        elif request.rpc == "GetTask" and request.params["id"] == "t1":
            request.result(task_10(artifacts=[{"artifactId": "a", "parts": [{"text": "made"}]}]))
        else:
            request.fail(-32001 if request.rpc == "GetTask" else -32004)

    async with scripted_agent(handle) as server, remote(server.url) as far:
        assert text_of(await far.call("hello")) == "made"
    assert len(server.sent("SubscribeToTask")) == 1


@pytest.mark.parametrize("streams", [True, False])
async def test_cancelled_call_cancels_the_task(
    streams: bool, http_peer: Peers, tmp_path: Path
) -> None:
    log = tmp_path / "log"
    more = [] if streams else ["--no-streaming"]
    async with remote(http_peer("a2a_sdk_agent", "--log", log, *more).url) as far:
        call = asyncio.get_running_loop().create_task(far.call("hang"))
        while not any(isinstance(update, Progress | TaskStarted) for update in far.updates):
            await asyncio.sleep(0.01)
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
        await until_cancelled(log)


async def test_timed_out_call_cancels_the_task(
    sdk: Sdk,
) -> None:
    url, log = sdk
    async with remote(url, seconds=0.5) as far:
        with pytest.raises(TimedOut):
            await far.call("hang")
        await until_cancelled(log)


async def test_broken_stream_is_resumed_without_sending_twice() -> None:
    async def handle(request: Request) -> None:
        if "/.well-known/" in request.path:
            card = card_10(f"http://{request.headers['host']}", capabilities={"streaming": True})
            request.reply(200, card)
        elif request.rpc == "SendStreamingMessage":
            request.stream()
            await request.event({"task": task_10("WORKING")}, "1")
        elif request.rpc == "SubscribeToTask":
            request.stream()
            await request.event({"task": task_10("WORKING")})
            artifact = {"artifactId": "a", "parts": [{"text": "made"}]}
            await request.event({"artifactUpdate": {"taskId": "t1", "artifact": artifact}})
            done = {"taskId": "t1", "status": {"state": "TASK_STATE_COMPLETED"}}
            await request.event({"statusUpdate": done})
        else:
            request.fail(-32001)

    async with scripted_agent(handle) as server, remote(server.url) as far:
        assert text_of(await far.call("hello")) == "made"
    assert len([each for each in server.requests if b"hello" in each.body]) == 1


async def test_task_without_streaming_is_polled_until_it_ends() -> None:
    asked = 0

    def handle(request: Request) -> None:
        nonlocal asked
        if "/.well-known/" in request.path:
            request.reply(200, card_10(f"http://{request.headers['host']}"))
        elif request.rpc == "SendMessage":
            request.result({"task": task_10("SUBMITTED")})
        elif request.params["id"] != "t1":
            request.fail(-32001)
        else:
            asked += 1
            made = [{"artifactId": "a", "parts": [{"text": "at last"}]}]
            request.result(task_10("WORKING") if asked < 3 else task_10(artifacts=made))

    async with scripted_agent(handle) as server, remote(server.url) as far:
        assert text_of(await far.call("hello")) == "at last"
    assert server.sent("SendMessage")[0].params["configuration"] == {"returnImmediately": True}
    assert any(isinstance(update, TaskStarted) for update in far.updates)


async def test_missing_stream_data_is_fetched_at_its_end() -> None:
    async def handle(request: Request) -> None:
        if "/.well-known/" in request.path:
            card = card_10(f"http://{request.headers['host']}", capabilities={"streaming": True})
            request.reply(200, card)
        elif request.rpc == "SendStreamingMessage":
            request.stream()
            done = {"taskId": "t1", "status": {"state": "TASK_STATE_COMPLETED"}}
            await request.event({"statusUpdate": done})
        elif request.params["id"] == "t1":
            made = [{"artifactId": "a", "parts": [{"text": "made"}]}]
            request.result(task_10(artifacts=made))
        else:
            request.fail(-32001)

    async with scripted_agent(handle) as server, remote(server.url) as far:
        assert text_of(await far.call("hello")) == "made"


async def test_temporarily_busy_agent_is_retried() -> None:
    asked = 0

    def handle(request: Request) -> None:
        nonlocal asked
        if "/.well-known/" in request.path:
            request.reply(200, card_10(f"http://{request.headers['host']}"))
        elif request.rpc == "SendMessage":
            request.result({"task": task_10("WORKING")})
        elif request.params["id"] != "t1":
            request.fail(-32001)
        else:
            asked += 1
            made = [{"artifactId": "a", "parts": [{"text": "made"}]}]
            if asked < 3:
                request.reply(503, b"busy")
            else:
                request.result(task_10(artifacts=made))

    async with scripted_agent(handle) as server, remote(server.url) as far:
        assert text_of(await far.call("hello")) == "made"


async def test_agent_choosing_another_task_id_is_followed() -> None:
    """In 0.1 the client names a task; not everybody keeps to it."""

    def handle(request: Request) -> None:
        if request.path == "/.well-known/agent.json":
            url = f"http://{request.headers['host']}/rpc"
            request.reply(200, {"name": "Old", "version": "1", "url": url, "skills": []})
        elif request.method == "GET":
            request.reply(404)
        elif request.rpc == "tasks/send":
            request.result({"id": "mine", "status": {"state": "working"}})
        elif request.rpc == "tasks/get" and request.params["id"] == "mine":
            made = [{"parts": [{"type": "text", "text": "made"}]}]
            request.result({"id": "mine", "status": {"state": "completed"}, "artifacts": made})
        else:
            request.fail(-32001 if request.rpc == "tasks/get" else -32601)

    async with scripted_agent(handle) as server, remote(server.url) as far:
        assert text_of(await far.call("hello")) == "made"
    assert server.sent("tasks/send")[0].params["id"] != "mine"


async def test_oversized_agent_output_cancels_the_task() -> None:
    async def handle(request: Request) -> None:
        if "/.well-known/" in request.path:
            card = card_10(f"http://{request.headers['host']}", capabilities={"streaming": True})
            request.reply(200, card)
        elif request.rpc == "SendStreamingMessage":
            request.stream()
            await request.event({"task": task_10("WORKING")})
            for _ in range(12):
                part = {"text": "x" * 1_000_000}
                artifact = {"artifactId": "a", "parts": [part]}
                update = {"taskId": "t1", "artifact": artifact, "append": True}
                await request.event({"artifactUpdate": update})
        else:
            request.fail(-32001)

    async with scripted_agent(handle) as server, remote(server.url) as far:
        with pytest.raises(BadReply, match="made more than 10 MB"):
            await far.call("hello")
        while not server.sent("CancelTask"):
            await asyncio.sleep(0.01)


async def test_unreachable_agent_is_reported_by_name(http_peer: Peers) -> None:
    peer = http_peer("a2a_sdk_agent")
    async with remote(peer.url) as far:
        assert text_of(await far.call("say x")) == "echo: x"
        peer.kill()
        with pytest.raises(Unreachable):
            await far.call("say y")
