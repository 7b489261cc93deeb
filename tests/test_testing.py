"""`dragoman.testing`: the documented example, and its options."""

from __future__ import annotations

import json
from typing import Any

import pytest

from dragoman.core.errors import (
    AuthorizationError,
    InvalidInput,
    RemoteA2ATimeoutError,
    RemoteA2ATransportError,
)
from dragoman.testing import Fetched, build_a2a_skill_tool, create_in_memory_verb_bus

ROW = {"id": "agent-1", "orgId": "org-1", "agentUrl": "https://example.com"}
CARD = {"name": "Code Reviewer", "description": "Reviews", "version": "1"}
SKILL = {"id": "review", "name": "Review"}
RESULT = {
    "jsonrpc": "2.0",
    "id": 1,
    "result": {
        "kind": "task",
        "id": "t",
        "status": {"state": "completed"},
        "artifacts": [{"artifactId": "a", "parts": [{"kind": "data", "data": {"approved": True}}]}],
    },
}
FIELDS = [
    "verb",
    "legacyAlias",
    "orgId",
    "agentCardId",
    "agentUrl",
    "skillId",
    "sessionId",
    "args",
    "emittedAt",
]


@pytest.mark.promise("R15", "R8")
async def test_the_documented_example_works_as_written() -> None:
    bus = create_in_memory_verb_bus()
    last_event: dict[str, Any] = {}
    bus.subscribe(last_event.update)

    async def fetcher() -> dict[str, Any]:
        return {"status": 200, "bodyText": json.dumps(RESULT)}

    tool = build_a2a_skill_tool(
        agent_row={"id": "agent-1", "orgId": "org-1", "agentUrl": "https://example.com"},
        card=CARD,
        skill=SKILL,
        verb_bus=bus,
        fetcher=fetcher,
    )
    result = await tool.handler({"prUrl": "https://github.com/..."})

    assert result == {"approved": True}
    assert (tool.name, tool.alias) == ("code_reviewer.review", "a2a_code_reviewer_review")
    assert tool.description == "Invokes the review skill on remote A2A agent Code Reviewer"
    assert tool.input_schema == {"type": "object", "additionalProperties": True}
    assert [event["phase"] for event in bus.events] == ["pre-verb", "post-verb"]
    for event in bus.events:
        assert [name for name in event if name in FIELDS] == FIELDS
        assert event["verb"] == "code_reviewer.review" and event["orgId"] == "org-1"
        assert event["legacyAlias"] == "a2a_code_reviewer_review"
        assert (event["agentCardId"], event["skillId"]) == ("agent-1", "review")
        assert event["agentUrl"] == "https://example.com"
        assert event["args"] == {"prUrl": "https://github.com/..."}
        assert event["sessionId"].startswith("a2a-agent-1-review-")
    assert last_event["outcome"] == "completed" and last_event["durationMs"] > 0


@pytest.mark.promise("R15")
async def test_in_process_hub_sends_and_fails_like_a_real_hub() -> None:
    sent: list[Fetched] = []
    answers: list[Any] = [{"status": 200, "body_text": json.dumps(RESULT)}]

    async def fetcher(request: Fetched) -> Any:
        sent.append(request)
        if isinstance(answers[-1], OSError):
            raise answers[-1]
        return answers[-1]

    bus = create_in_memory_verb_bus()
    schema = {"type": "object", "required": ["prUrl"]}
    tool = build_a2a_skill_tool(
        agent_row={"id": "agent-1", "org_id": "org-1", "agent_url": "https://example.com"},
        card=CARD,
        skill={**SKILL, "inputSchema": schema},
        verb_bus=bus,
        fetcher=fetcher,
        wire="skill-only",
    )
    with pytest.warns(DeprecationWarning, match='"seed" is now called "skill-only"'):
        build_a2a_skill_tool(
            agent_row={"id": "agent-1", "org_id": "org-1", "agent_url": "https://example.com"},
            card=CARD,
            skill=SKILL,
            fetcher=fetcher,
            wire="seed",
        )
    with pytest.raises(InvalidInput):
        await tool.handler({})
    assert not sent and tool.input_schema == schema
    await tool.call({"prUrl": "x"}, tool.alias)
    body = json.loads(sent[0].body)
    assert sent[0].url == "https://example.com" and body["method"] == "message/send"
    assert body["params"]["message"]["skill"] == {"skillId": "review"}
    assert body["params"]["taskId"] == bus.events[-1]["sessionId"]
    for answer, kind, code in (
        ({"status": 502, "bodyText": ""}, RemoteA2ATransportError, -32202),
        (ConnectionError("no network"), RemoteA2ATransportError, -32202),
        (TimeoutError("slow"), RemoteA2ATimeoutError, -32201),
    ):
        answers.append(answer)
        with pytest.raises(kind):
            await tool.handler({"prUrl": "x"})
        assert [event["phase"] for event in bus.events[-3:]] == [
            "pre-verb",
            "post-verb",
            "verb-error",
        ]
        assert bus.events[-1]["error"]["code"] == code
        assert bus.events[-2]["outcome"] == "failed"


@pytest.mark.promise("R15", "R7")
async def test_forbid_policy_keeps_the_call_off_the_wire() -> None:
    sent: list[Fetched] = []

    async def fetcher(request: Fetched) -> Any:
        sent.append(request)
        return {"status": 200, "bodyText": json.dumps(RESULT)}

    bus = create_in_memory_verb_bus()
    policy = (
        '@id("list") permit (principal, action == Hub::Action::"list", resource) '
        "when { principal.org == resource.org };"
    )
    tool = build_a2a_skill_tool(
        agent_row=ROW, card=CARD, skill=SKILL, verb_bus=bus, fetcher=fetcher, policies=policy
    )
    with pytest.raises(AuthorizationError, match="no policy permits"):
        await tool.handler({})
    assert not sent
    assert [event["phase"] for event in bus.events] == ["pre-verb", "post-verb", "verb-error"]
    assert bus.events[-1]["error"]["code"] == -32003 and bus.events[-1]["context"]["denied"]


async def test_fetcher_with_a_default_is_called_without_the_request() -> None:
    async def answer(status: int = 200, *, text: str = json.dumps(RESULT)) -> Any:
        return {"status": status, "bodyText": text}

    async def answer_request(request: Fetched | None = None) -> Any:
        assert request is not None and request.method == "POST"
        return await answer()

    async def answer_any(*requests: Fetched) -> Any:
        return await answer_request(*requests)

    for fetcher in (answer, answer_request, answer_any):
        tool = build_a2a_skill_tool(agent_row=ROW, card=CARD, skill=SKILL, fetcher=fetcher)
        assert await tool.handler({}) == {"approved": True}


async def test_texts_become_strings_and_files_become_blocks() -> None:
    parts: list[Any] = [{"kind": "text", "text": "fine"}]

    async def fetcher() -> Any:
        message = {"kind": "message", "messageId": "m", "role": "agent", "parts": parts}
        text = json.dumps({"jsonrpc": "2.0", "id": 1, "result": message})
        return {"status": 200, "bodyText": text}

    tool = build_a2a_skill_tool(agent_row=ROW, card=CARD, skill=SKILL, fetcher=fetcher)
    assert await tool.handler({}) == "fine"
    parts[:] = [{"kind": "file", "file": {"uri": "https://x.example/a", "name": "a"}}]
    blocks = await tool.handler({})
    assert blocks[0]["type"] == "resource_link"
