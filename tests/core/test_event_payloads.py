from __future__ import annotations

import asyncio
import json
import re
from typing import Any

import pytest
from tests.skill_hub import ALICE, SkillHub

from dragoman.core.call import Call
from dragoman.core.errors import (
    AuthorizationError,
    Denied,
    HubError,
    NotFound,
    Overloaded,
    RemoteA2AInvalidResponseError,
    RemoteA2ATaskFailedError,
    RemoteA2ATimeoutError,
    RemoteA2ATransportError,
    Unreachable,
    list_leaves,
)
from dragoman.core.event_payloads import (
    CODES,
    EVENT_NAMES,
    find_code,
    redact_event,
    render_event,
    render_exec_event,
    render_verb_event,
    session_id_from_trace,
)
from dragoman.core.events import (
    CostReported,
    Event,
    PostVerb,
    PreVerb,
    ServerChanged,
    ToolCall,
    ToolResult,
    VerbError,
)
from dragoman.core.principal import Principal
from dragoman.core.trace import parse_trace

FIELDS = [
    "phase",
    "verb",
    "legacyAlias",
    "orgId",
    "agentCardId",
    "agentUrl",
    "skillId",
    "sessionId",
    "args",
    "emittedAt",
    "context",
]


def record_events(skill_hub: SkillHub) -> list[dict[str, Any]]:
    received: list[dict[str, Any]] = []
    kinds: tuple[type[PreVerb | PostVerb | VerbError], ...] = (PreVerb, PostVerb, VerbError)
    for kind in kinds:
        skill_hub.bus.observe(kind, lambda event: received.append(render_verb_event(event)))
    return received


@pytest.mark.promise("R8")
async def test_skill_call_event_has_the_documented_fields() -> None:
    skill_hub = SkillHub()
    received = record_events(skill_hub)
    arguments: dict[str, Any] = {"projectId": "proj_abc", "branch": "main"}
    await skill_hub.call("a2a_vercel_ops_deploy", **arguments)
    before, after = received
    assert list(before) == FIELDS
    assert list(after) == [*FIELDS, "durationMs", "outcome"]
    trace = before["context"]["traceId"]
    said = {name: before[name] for name in FIELDS[:9]}
    assert said == {
        "phase": "pre-verb",
        "verb": "vercel_ops.deploy",
        "legacyAlias": "a2a_vercel_ops_deploy",
        "orgId": "default",
        "agentCardId": "card-1",
        "agentUrl": "https://agents.example.com/vercel-ops",
        "skillId": "deploy",
        "sessionId": f"a2a-card-1-deploy-{trace}",
        "args": arguments,
    }
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z", before["emittedAt"])
    assert before["context"] == {
        "denied": False,
        "caller": "key:alice",
        "onBehalfOf": None,
        "askedAs": "a2a_vercel_ops_deploy",
        "door": "test",
        "traceId": trace,
        "depth": 0,
    }
    assert (after["phase"], after["outcome"]) == ("post-verb", "completed")
    assert after["durationMs"] >= 0
    assert json.loads(json.dumps(after))["args"] == arguments


@pytest.mark.promise("R8")
@pytest.mark.parametrize(
    ("error", "code"),
    [
        (RemoteA2ATimeoutError("30 s"), -32201),
        (RemoteA2ATransportError("gone"), -32202),
        (RemoteA2AInvalidResponseError("odd"), -32203),
        (RemoteA2ATaskFailedError("it failed"), -32204),
    ],
)
async def test_failed_skill_emits_failed_and_error_events(error: HubError, code: int) -> None:
    skill_hub = SkillHub()
    received = record_events(skill_hub)
    skill_hub.agent.error = error
    with pytest.raises(type(error)):
        await skill_hub.call()
    assert [one["phase"] for one in received] == ["pre-verb", "post-verb", "verb-error"]
    assert received[1]["outcome"] == "failed"
    assert list(received[2]) == [*FIELDS, "error"]
    assert received[2]["error"] == {"code": code, "message": str(error)}
    assert [one["context"]["denied"] for one in received] == [False, False, False]


@pytest.mark.promise("R8")
async def test_denied_call_emits_denied_and_is_not_sent() -> None:
    skill_hub = SkillHub()
    received = record_events(skill_hub)
    skill_hub.judge.denied.add("vercel_ops.deploy")
    with pytest.raises(AuthorizationError):
        await skill_hub.call()
    assert [one["phase"] for one in received] == ["pre-verb", "post-verb", "verb-error"]
    assert [one["context"]["denied"] for one in received] == [False, True, True]
    assert (received[1]["outcome"], received[2]["error"]["code"]) == ("failed", -32003)
    assert skill_hub.agent.calls == []


async def test_denial_shown_as_not_found_emits_denied() -> None:
    skill_hub = SkillHub()
    received = record_events(skill_hub)
    skill_hub.judge.hidden.add("vercel_ops.deploy")
    with pytest.raises(NotFound):
        await skill_hub.call()
    assert [one["context"]["denied"] for one in received] == [False, True, True]
    assert received[2]["error"]["code"] == -32601


async def test_refusing_gate_denies() -> None:
    skill_hub = SkillHub()
    received = record_events(skill_hub)

    async def refuses(event: PreVerb) -> None:
        raise Denied("not on Fridays")

    skill_hub.bus.gate("calendar", refuses)
    with pytest.raises(Denied):
        await skill_hub.call()
    assert [one["context"]["denied"] for one in received] == [False, True, True]
    assert received[2]["error"] == {"code": -32003, "message": "not on Fridays"}


async def test_other_call_event_has_no_agent_and_the_trace_as_session() -> None:
    skill_hub = SkillHub()
    received = record_events(skill_hub)
    await skill_hub.call("files.read", path="/x")
    for one in received:
        assert one["verb"] == "files.read"
        assert {one[name] for name in ("legacyAlias", "agentCardId", "agentUrl", "skillId")} == {
            None
        }
        assert one["sessionId"] == one["context"]["traceId"]


def test_every_error_has_an_event_code() -> None:
    assert set(CODES) <= {*list_leaves(), HubError}
    assert {find_code(error("x")) for error in list_leaves()} == set(CODES.values())


async def test_outgoing_events_contain_no_argument_values() -> None:
    skill_hub = SkillHub()
    said: list[tuple[dict[str, Any], Call]] = []
    for kind in EVENT_NAMES:

        def keep(event: Any) -> None:
            found = render_event(event)
            assert found is not None
            said.append((found[1], event.call))

        skill_hub.bus.observe(kind, keep)
    secret = "hunter2-correct-horse"
    skill_hub.agent.error = Unreachable(f"no host {secret} here")
    agent = Principal("key", "qa", serves="qa-bot")
    arguments: dict[str, Any] = {
        "password": secret,
        "list": [secret],
        "deep": {"a": secret},
        "n": 5,
        "b": None,
    }
    unnamed: dict[str, Any] = {"\ud800": True}
    with pytest.raises(Unreachable):
        await skill_hub.call(who=agent, **arguments)
    with pytest.raises(NotFound):
        await skill_hub.call("x" * 10_000_000, who=agent, **unnamed)
    assert [one.get("phase", one.get("type")) for one, _ in said[:5]] == [
        "pre-verb",
        "EXEC:TOOL_CALL",
        "post-verb",
        "verb-error",
        "EXEC:TOOL_RESULT",
    ]
    left = [redact_event(one, call) for one, call in said]
    text = json.dumps(left, ensure_ascii=False)
    assert secret not in text and "no host … here" in text and len(text) < 20_000
    assert left[0]["args"] == {
        "password": {"type": "string", "size": 21},
        "list": {"type": "array", "size": 1},
        "deep": {"type": "object", "size": 1},
        "n": {"type": "number"},
        "b": {"type": "null"},
    }
    assert left[1]["payload"]["arguments"] == left[0]["args"]
    assert said[0][0]["args"] is said[0][1].arguments  # within the process they are not copied
    assert json.loads(json.dumps(left[5]["args"])) == {"?": {"type": "boolean"}}


def test_hub_events_are_emitted_and_internal_ones_are_not() -> None:
    found = render_event(ServerChanged("files", "failed", "r" * 5000))
    assert found is not None and found[0] == "server-changed"
    assert found[1]["server"] == "files" and len(found[1]["reason"]) == 1000
    assert render_event(Event()) is None


# --- calls of agents --------------------------------------------------------------------------


def agents(skill_hub: SkillHub) -> list[dict[str, Any]]:
    received: list[dict[str, Any]] = []
    kinds: tuple[type[ToolCall | ToolResult], ...] = (ToolCall, ToolResult)
    for kind in kinds:
        skill_hub.bus.observe(kind, lambda event: received.append(render_exec_event(event)))
    return received


@pytest.mark.promise("Q5")
async def test_agent_call_emits_exec_tool_call_and_result() -> None:
    skill_hub = SkillHub()
    received = agents(skill_hub)
    await skill_hub.call(who=Principal("key", "qa", serves="qa-bot"), branch="main")
    asked, answered = received
    trace = skill_hub.agent.calls[0].trace.id
    assert list(asked) == [
        "id",
        "timestamp",
        "traceId",
        "source",
        "sessionId",
        "type",
        "payload",
    ]
    assert (asked["type"], asked["source"]) == ("EXEC:TOOL_CALL", "qa-bot")
    assert asked["payload"] == {
        "toolCallId": asked["id"],
        "tool": "vercel_ops.deploy",
        "arguments": {"branch": "main"},
    }
    call = skill_hub.agent.calls[0]
    session = session_id_from_trace(call.tool, call.trace)
    assert (asked["traceId"], asked["sessionId"]) == (trace, session)
    assert isinstance(asked["timestamp"], int) and asked["timestamp"] > 1_700_000_000_000
    assert (answered["type"], answered["source"]) == ("EXEC:TOOL_RESULT", "Vercel Ops")
    assert answered["payload"] == {
        "toolCallId": asked["id"],
        "tool": "vercel_ops.deploy",
        "success": True,
    }
    assert answered["id"] != asked["id"] and answered["traceId"] == trace


@pytest.mark.promise("Q5")
async def test_nested_call_emits_exec_events_and_a_user_call_does_not() -> None:
    skill_hub = SkillHub()
    received = agents(skill_hub)
    outer = skill_hub.begin("files.read")
    await asyncio.wait_for(skill_hub.agent.running.wait(), 60)
    assert received == []
    above = skill_hub.agent.calls[0].trace
    headers = {name.encode(): value.encode() for name, value in above.build_headers().items()}
    other = skill_hub.agent.plain("search.find")
    skill_hub.catalog.offer("search", [other])
    object.__setattr__(other, "target", type(skill_hub.agent)("search"))
    await skill_hub.call("search.find", carried=parse_trace(headers))
    assert [one["type"] for one in received] == ["EXEC:TOOL_CALL", "EXEC:TOOL_RESULT"]
    assert {one["traceId"] for one in received} == {above.id}
    assert received[0]["source"] == ALICE.label
    skill_hub.agent.go.set()
    await outer
    assert len(received) == 2


@pytest.mark.parametrize(
    ("error", "failure"),
    [
        (Unreachable("gone"), {"code": -32202, "message": "gone", "source": "Vercel Ops"}),
        (Overloaded("no room"), {"code": -32214, "message": "no room", "source": "hub"}),
    ],
)
async def test_failed_result_event_has_reason_and_origin(
    error: HubError, failure: dict[str, Any]
) -> None:
    skill_hub = SkillHub()
    received = agents(skill_hub)
    skill_hub.agent.error = error
    with pytest.raises(type(error)):
        await skill_hub.call(who=Principal("key", "qa", serves="qa-bot"))
    assert received[1]["payload"]["success"] is False
    assert received[1]["payload"]["error"] == failure


async def test_tool_error_and_cancellation_are_result_events() -> None:
    skill_hub = SkillHub()
    received = agents(skill_hub)
    agent = Principal("key", "qa", serves="qa-bot")
    await skill_hub.call(who=agent, fails=True)
    assert received[1]["payload"]["error"] == {
        "code": -32204,
        "message": '"vercel_ops.deploy" reported a failure',
        "source": "Vercel Ops",
    }
    running = skill_hub.begin(who=agent)
    await asyncio.wait_for(skill_hub.agent.running.wait(), 60)
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    assert received[3]["payload"]["error"]["code"] == -32800


@pytest.mark.promise("R8")
async def test_remote_usage_is_emitted_as_numbers() -> None:
    skill_hub = SkillHub()
    received: list[CostReported] = []
    skill_hub.bus.observe(CostReported, received.append)
    usage = {"totalTokens": 1200, "cost": 0.5, "model": "secret", "huge": 2**80, "on": True}
    await skill_hub.call(usage=usage)
    await skill_hub.call()
    assert [one.usage for one in received] == [{"totalTokens": 1200, "cost": 0.5}]
    found = render_event(received[0])
    assert found is not None and found[0] == "cost"
    assert found[1]["verb"] == "vercel_ops.deploy"
