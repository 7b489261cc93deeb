"""Skill calls on the wire, in every dialect, against a recording agent."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

import pytest
from tests.a2a.bridged_skill import ARGS, DEPLOY, bridged, card_03, card_of_10
from tests.a2a.scripted_agent import Request

from dragoman.a2a.protocol.dialects.operations import SKILL
from dragoman.core.call import MessageOrigin
from dragoman.core.errors import ConfigError, InvalidInput, NotFound, RemoteA2ATaskFailedError
from dragoman.core.tool import DEFAULT_TRAITS, Tool
from dragoman.core.trace import MEMBERS


def done_03(request: Request) -> None:
    part = {"kind": "data", "data": {"url": "https://x.example"}}
    artifact = {"artifactId": "a", "parts": [part]}
    status = {"state": "completed"}
    request.result(
        {"kind": "task", "id": "t1", "contextId": "c", "status": status, "artifacts": [artifact]}
    )


def done_10(request: Request) -> None:
    artifact = {"artifactId": "a", "parts": [{"data": {"url": "https://x.example"}}]}
    status = {"state": "TASK_STATE_COMPLETED"}
    request.result({"task": {"id": "t1", "status": status, "artifacts": [artifact]}})


@pytest.mark.promise("R3")
async def test_skill_only_wire_sends_the_documented_body() -> None:
    before = int(time.time() * 1000)
    headers = {"Authorization": "Bearer secret"}
    async with bridged(done_03, headers=headers, wire="skill-only") as ground:
        result = await ground.call()
        trace = ground.calls[0].trace.id
    assert result.structured == {"url": "https://x.example"}
    (sent,) = ground.sent
    session = f"a2a-agent-1-deploy-{trace}"
    body = json.loads(sent.body)
    assert before <= body["id"] <= time.time() * 1000
    assert json.dumps(body) == json.dumps(
        {
            "jsonrpc": "2.0",
            "id": body["id"],
            "method": "message/send",
            "params": {
                "message": {
                    "skill": {"skillId": "deploy"},
                    "parts": [{"kind": "data", "data": ARGS}],
                },
                "correlationId": session,
                "taskId": session,
            },
        }
    )
    assert sent.method == "POST" and sent.path == "/rpc"
    assert sent.headers["content-type"] == "application/json"
    assert sent.headers["authorization"] == "Bearer secret"
    assert trace in sent.headers["traceparent"]
    rest = [request.rpc for request in ground.server.requests if request.rpc]
    assert rest == ["message/send"], "it is asked nothing else"


@pytest.mark.promise("R3")
async def test_agent_0_3_gets_the_documented_body_and_required_members() -> None:
    async with bridged(done_03, headers={"Authorization": "Bearer secret"}) as ground:
        await ground.call()
        trace = ground.calls[0].trace
    (sent,) = ground.sent
    session = f"a2a-agent-1-deploy-{trace.id}"
    assert isinstance(sent.json["id"], int) and sent.rpc == "message/send"
    params = sent.params
    message = params["message"]
    assert params["correlationId"] == params["taskId"] == session
    assert message["skill"] == {"skillId": "deploy"}
    assert message["parts"] == [{"kind": "data", "data": ARGS}]
    assert (message["kind"], message["role"]) == ("message", "user") and message["messageId"]
    assert set(message) == {"skill", "kind", "messageId", "role", "parts", "metadata"}
    assert set(message["metadata"]) <= set(MEMBERS)
    assert sent.headers["authorization"] == "Bearer secret"


@pytest.mark.promise("R3")
async def test_agent_1_0_gets_the_skill_by_extension() -> None:
    async with bridged(done_10, card_of_10) as ground:
        await ground.call()
        trace = ground.calls[0].trace
    (sent,) = ground.sent
    message = sent.params["message"]
    assert set(sent.params) == {"message", "configuration"}
    session = f"a2a-agent-1-deploy-{trace.id}"
    assert message["metadata"][SKILL] == {"skillId": "deploy", "correlationId": session}
    assert message["extensions"] == [SKILL] == [sent.headers["a2a-extensions"]]
    assert message["parts"] == [{"data": ARGS, "mediaType": "application/json"}]
    assert "taskId" not in message, "1.0 wants no task that there is not"


async def test_agent_1_0_over_http_json_gets_the_skill_by_extension() -> None:
    def answer(request: Request) -> None:
        artifact = {"artifactId": "a", "parts": [{"text": "made"}]}
        status = {"state": "TASK_STATE_COMPLETED"}
        request.reply(200, {"task": {"id": "t1", "status": status, "artifacts": [artifact]}})

    def handle(request: Request) -> None:
        if request.path.endswith("message:send"):
            answer(request)
        elif "/.well-known/" in request.path:
            interface = {
                "url": f"http://{request.headers['host']}/rest",
                "protocolBinding": "HTTP+JSON",
                "protocolVersion": "1.0",
            }
            request.reply(200, card_of_10("", supportedInterfaces=[interface]))
        else:
            details = [{"reason": "TASK_NOT_FOUND", "domain": "a2a-protocol.org"}]
            error = {"code": 404, "status": "NOT_FOUND", "message": "no", "details": details}
            request.reply(404, {"error": error})

    async with bridged(handle, None) as ground:
        assert (await ground.call()).content == [{"type": "text", "text": "made"}]
    (sent,) = [r for r in ground.server.requests if r.path.endswith("message:send")]
    assert sent.json["message"]["metadata"][SKILL]["skillId"] == "deploy"
    assert sent.headers["a2a-extensions"] == SKILL


@pytest.mark.promise("Q6")
async def test_sent_message_carries_only_its_own_trace() -> None:
    forged = dict.fromkeys(MEMBERS, "forged")
    metadata = {**forged, "own": 1, "skillId": "other", SKILL: {"skillId": "other"}}
    async with bridged(done_10, card_of_10) as ground:
        await ground.call(message=MessageOrigin(metadata=metadata))
        trace = ground.calls[0].trace
    (sent,) = ground.sent
    metadata = sent.params["message"]["metadata"]
    assert metadata["own"] == 1 and "skillId" not in metadata
    assert metadata[SKILL]["skillId"] == "deploy" and "forged" not in json.dumps(metadata)
    assert metadata["X-OpenStarry-Trace-ID"] == trace.id
    assert metadata["traceparent"] == f"00-{trace.id}-{trace.span}-01"
    assert sent.headers["x-openstarry-trace-id"] == trace.id
    assert sent.headers["traceparent"] == metadata["traceparent"]
    assert sent.headers["x-dragoman-chain"] == metadata["dragoman.hub/chain"]


@pytest.mark.promise("R2")
@pytest.mark.parametrize("arguments", [{}, {"projectId": 1}])
async def test_invalid_skill_arguments_are_not_sent(arguments: Any) -> None:
    async with bridged(done_03) as ground:
        with pytest.raises(InvalidInput, match=r'arguments for "vercel_ops\.deploy"'):
            await ground.call(arguments)
    assert not ground.sent


@pytest.mark.promise("R1")
@pytest.mark.parametrize("name", ["a2a_vercel_ops_deploy", "vercel_ops_deploy"])
async def test_alias_call_is_recorded_by_canonical_name(name: str) -> None:
    async with bridged(done_03) as ground:
        await ground.call(name=name)
        with pytest.raises(NotFound):
            await ground.call(name=f"{name}x")
    assert (
        ground.calls[0].tool.name == "vercel_ops.deploy" and ground.calls[0].requested_name == name
    )
    assert len(ground.sent) == 1


@pytest.mark.parametrize(
    ("modes", "arguments", "text"),
    [
        (["text/plain"], {"question": "how?"}, "how?"),
        (["text/plain"], {"a": 1, "b": "x"}, '{"a":1,"b":"x"}'),
        (["text/plain"], {}, ""),
        (["text/plain", "application/json"], {"question": "how?"}, "how?"),
        (["text/plain", "application/json"], {}, None),
        (["application/json"], {"question": "how?"}, None),
    ],
)
async def test_agent_gets_parts_in_its_input_modes(
    modes: list[str], arguments: dict[str, Any], text: str | None
) -> None:
    def card(url: str) -> dict[str, Any]:
        skill = {"id": "deploy", "name": "Deploy", "description": "d", "tags": []}
        return card_of_10(url, skills=[skill], defaultInputModes=modes)

    async with bridged(done_10, card) as ground:
        await ground.call(arguments)
    data = [{"data": arguments, "mediaType": "application/json"}]
    sent = ground.sent[0].params["message"]["parts"]
    assert sent == (data if "application/json" in modes else []) + (
        [] if text is None else [{"text": text}]
    )


async def test_calls_use_the_url_of_the_listed_card() -> None:
    """A card that has changed since has not been looked at by anybody."""
    moved = False

    def card(url: str) -> dict[str, Any]:
        return card_03(url.replace("/rpc", "/elsewhere") if moved else url)

    async with bridged(done_03, card) as ground:
        moved = True
        client = ground.agent.client
        found = await client.refetch_card(ground.server.url)
        peer = await client.find_probed(client.adopt_card(ground.server.url, found))
        await ground.call()
        assert ground.sent[0].path == "/rpc"
        ground.agent.offer(peer, "agent-1")
        await ground.call()
        assert ground.sent[1].path == "/elsewhere"


async def test_claimed_tool_name_is_not_listed_and_both_owners_are_named() -> None:
    async with bridged(done_03, lambda url: card_03(url, skills=[DEPLOY, {"id": "x"}])) as ground:
        peer = await ground.agent.client.find_probed(ground.server.url)
        ground.agent.withdraw("to come again")

        class Server:
            name = "vercel-mcp"
            traits = DEFAULT_TRAITS

            async def run(self, call: Any) -> Any:
                raise NotImplementedError

        taken = Tool(name="vercel_ops.deploy", alias="d", remote_name="d", target=Server())
        ground.hub.catalog.offer("vercel-mcp", [taken])
        with pytest.raises(ConfigError) as told:
            ground.agent.offer(peer, "agent-1")
        assert 'agent "Vercel Ops"' in str(told.value)
        assert '"vercel_ops.deploy" is a tool of "vercel-mcp" already' in str(told.value)
        assert ground.hub.catalog.find("vercel_ops.deploy") is taken
        assert ground.hub.catalog.find("vercel_ops.x").target is ground.agent


async def test_forgotten_conversation_is_restarted_by_the_next_call() -> None:
    known = {"far-1"}

    def answer(request: Request) -> None:
        context = request.params["message"].get("contextId", "far-2")
        if "contextId" in request.params["message"] and context not in known:
            request.fail(-32602, "there is no such context")
            return
        artifact = {"artifactId": "a", "parts": [{"text": context}]}
        status = {"state": "TASK_STATE_COMPLETED"}
        named = context if "contextId" in request.params["message"] else min(known)
        task = {"id": "t1", "contextId": named, "status": status, "artifacts": [artifact]}
        request.result({"task": task})

    async with bridged(answer, card_of_10) as ground:
        for _ in range(2):
            await ground.call(session="s")
        known = {"far-2"}  # it was restarted
        with pytest.raises(RemoteA2ATaskFailedError, match="no such context"):
            await ground.call(session="s")
        for _ in range(2):
            await ground.call(session="s")
    sent = [request.params["message"].get("contextId") for request in ground.sent]
    assert sent == [None, "far-1", "far-1", None, "far-2"], "and nothing was sent twice"


def answer_10(request: Request) -> None:
    said = {"messageId": "m", "role": "ROLE_AGENT", "parts": [{"text": "done"}]}
    request.result({"message": said})


@contextmanager
def entered_functions() -> Iterator[list[str]]:
    """The functions of the JSON codec and of the A2A client that are entered meanwhile."""
    entered: list[str] = []

    def record(frame: FrameType, event: str, argument: Any) -> None:
        file = frame.f_code.co_filename
        if event == "call" and ("/a2a/client/" in file or file.endswith("/wire/json.py")):
            entered.append(frame.f_code.co_qualname)

    sys.setprofile(record)
    try:
        yield entered
    finally:
        sys.setprofile(None)


@pytest.mark.parametrize("answer", [done_10, answer_10])
async def test_response_is_decoded_once_with_and_without_credentials(
    answer: Any,
) -> None:
    found = []
    for headers in ({}, {"Authorization": "Bearer secret"}):
        async with bridged(answer, card_of_10, headers=headers) as ground:
            await ground.call()  # so that everything is cached
            with entered_functions() as entered:
                await ground.call()
        assert ground.sent[1].headers.get("authorization") == headers.get("Authorization")
        assert entered.count("decode") == 1
        found.append(entered)
    assert found[0] == found[1]


async def test_extensions_header_names_those_of_the_message() -> None:
    """And not those of the first message that had some."""
    named: tuple[list[str], ...] = (["https://one.example"], ["https://two.example"], [])
    async with bridged(done_10, card_of_10) as ground:
        for extensions in named:
            await ground.call(message=MessageOrigin(message_extensions=extensions))
    for sent, extensions in zip(ground.sent, named, strict=True):
        assert sent.params["message"]["extensions"] == [*extensions, SKILL]
        assert sent.headers["a2a-extensions"].split(",") == [*extensions, SKILL]
