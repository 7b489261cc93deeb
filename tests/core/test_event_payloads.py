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


def listening(road: SkillHub) -> list[dict[str, Any]]:
    heard: list[dict[str, Any]] = []
    kinds: tuple[type[PreVerb | PostVerb | VerbError], ...] = (PreVerb, PostVerb, VerbError)
    for kind in kinds:
        road.bus.observe(kind, lambda event: heard.append(render_verb_event(event)))
    return heard


@pytest.mark.promise("R8")
async def test_a_call_of_a_skill_is_told_with_the_fields_of_the_hook_bus_in_their_order() -> None:
    road = SkillHub()
    heard = listening(road)
    arguments: dict[str, Any] = {"projectId": "proj_abc", "branch": "main"}
    await road.call("a2a_vercel_ops_deploy", **arguments)
    before, after = heard
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
async def test_a_skill_that_fails_is_told_as_failed_and_then_as_an_error_with_its_code(
    error: HubError, code: int
) -> None:
    road = SkillHub()
    heard = listening(road)
    road.agent.error = error
    with pytest.raises(type(error)):
        await road.call()
    assert [one["phase"] for one in heard] == ["pre-verb", "post-verb", "verb-error"]
    assert heard[1]["outcome"] == "failed"
    assert list(heard[2]) == [*FIELDS, "error"]
    assert heard[2]["error"] == {"code": code, "message": str(error)}
    assert [one["context"]["denied"] for one in heard] == [False, False, False]


@pytest.mark.promise("R8")
async def test_a_denied_call_is_told_as_denied_and_never_reaches_the_agent() -> None:
    road = SkillHub()
    heard = listening(road)
    road.judge.denied.add("vercel_ops.deploy")
    with pytest.raises(AuthorizationError):
        await road.call()
    assert [one["phase"] for one in heard] == ["pre-verb", "post-verb", "verb-error"]
    assert [one["context"]["denied"] for one in heard] == [False, True, True]
    assert (heard[1]["outcome"], heard[2]["error"]["code"]) == ("failed", -32003)
    assert road.agent.calls == []


async def test_a_denial_that_the_caller_reads_as_not_found_is_told_as_a_denial() -> None:
    road = SkillHub()
    heard = listening(road)
    road.judge.hidden.add("vercel_ops.deploy")
    with pytest.raises(NotFound):
        await road.call()
    assert [one["context"]["denied"] for one in heard] == [False, True, True]
    assert heard[2]["error"]["code"] == -32601


async def test_a_gate_that_refuses_denies() -> None:
    road = SkillHub()
    heard = listening(road)

    async def refuses(event: PreVerb) -> None:
        raise Denied("not on Fridays")

    road.bus.gate("calendar", refuses)
    with pytest.raises(Denied):
        await road.call()
    assert [one["context"]["denied"] for one in heard] == [False, True, True]
    assert heard[2]["error"] == {"code": -32003, "message": "not on Fridays"}


async def test_a_call_of_something_else_has_no_agent_and_its_trace_for_a_session() -> None:
    road = SkillHub()
    heard = listening(road)
    await road.call("files.read", path="/x")
    for one in heard:
        assert one["verb"] == "files.read"
        assert {one[name] for name in ("legacyAlias", "agentCardId", "agentUrl", "skillId")} == {
            None
        }
        assert one["sessionId"] == one["context"]["traceId"]


def test_every_error_has_a_code_of_its_own_table() -> None:
    assert set(CODES) <= {*list_leaves(), HubError}
    assert {find_code(error("x")) for error in list_leaves()} == set(CODES.values())


async def test_what_leaves_says_nothing_that_an_argument_said() -> None:
    road = SkillHub()
    said: list[tuple[dict[str, Any], Call]] = []
    for kind in EVENT_NAMES:

        def keep(event: Any) -> None:
            found = render_event(event)
            assert found is not None
            said.append((found[1], event.call))

        road.bus.observe(kind, keep)
    secret = "hunter2-correct-horse"
    road.agent.error = Unreachable(f"no host {secret} here")
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
        await road.call(who=agent, **arguments)
    with pytest.raises(NotFound):
        await road.call("x" * 10_000_000, who=agent, **unnamed)
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


def test_what_concerns_the_hub_alone_is_told_too_and_the_rest_is_not() -> None:
    found = render_event(ServerChanged("files", "failed", "r" * 5000))
    assert found is not None and found[0] == "server-changed"
    assert found[1]["server"] == "files" and len(found[1]["reason"]) == 1000
    assert render_event(Event()) is None


# --- calls of agents --------------------------------------------------------------------------


def agents(road: SkillHub) -> list[dict[str, Any]]:
    heard: list[dict[str, Any]] = []
    kinds: tuple[type[ToolCall | ToolResult], ...] = (ToolCall, ToolResult)
    for kind in kinds:
        road.bus.observe(kind, lambda event: heard.append(render_exec_event(event)))
    return heard


@pytest.mark.promise("Q5")
async def test_a_call_by_an_agent_is_an_exec_tool_call_and_its_result() -> None:
    road = SkillHub()
    heard = agents(road)
    await road.call(who=Principal("key", "qa", serves="qa-bot"), branch="main")
    asked, answered = heard
    trace = road.agent.calls[0].trace.id
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
    call = road.agent.calls[0]
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
async def test_a_call_for_another_that_is_under_way_is_one_too_and_a_persons_is_not() -> None:
    road = SkillHub()
    heard = agents(road)
    outer = road.begin("files.read")
    await asyncio.wait_for(road.agent.running.wait(), 5)
    assert heard == []
    above = road.agent.calls[0].trace
    headers = {name.encode(): value.encode() for name, value in above.build_headers().items()}
    other = road.agent.plain("search.find")
    road.catalog.offer("search", [other])
    object.__setattr__(other, "target", type(road.agent)("search"))
    await road.call("search.find", carried=parse_trace(headers))
    assert [one["type"] for one in heard] == ["EXEC:TOOL_CALL", "EXEC:TOOL_RESULT"]
    assert {one["traceId"] for one in heard} == {above.id}
    assert heard[0]["source"] == ALICE.label
    road.agent.go.set()
    await outer
    assert len(heard) == 2


@pytest.mark.parametrize(
    ("error", "failure"),
    [
        (Unreachable("gone"), {"code": -32202, "message": "gone", "source": "Vercel Ops"}),
        (Overloaded("no room"), {"code": -32214, "message": "no room", "source": "hub"}),
    ],
)
async def test_a_result_that_is_none_says_why_and_whose_fault_it_was(
    error: HubError, failure: dict[str, Any]
) -> None:
    road = SkillHub()
    heard = agents(road)
    road.agent.error = error
    with pytest.raises(type(error)):
        await road.call(who=Principal("key", "qa", serves="qa-bot"))
    assert heard[1]["payload"]["success"] is False
    assert heard[1]["payload"]["error"] == failure


async def test_a_tool_that_says_it_failed_and_a_caller_who_leaves_are_results_too() -> None:
    road = SkillHub()
    heard = agents(road)
    agent = Principal("key", "qa", serves="qa-bot")
    await road.call(who=agent, fails=True)
    assert heard[1]["payload"]["error"] == {
        "code": -32204,
        "message": '"vercel_ops.deploy" reported a failure',
        "source": "Vercel Ops",
    }
    running = road.begin(who=agent)
    await asyncio.wait_for(road.agent.running.wait(), 5)
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    assert heard[3]["payload"]["error"]["code"] == -32800


@pytest.mark.promise("R8")
async def test_what_a_remote_says_it_used_is_announced_as_numbers_alone() -> None:
    road = SkillHub()
    heard: list[CostReported] = []
    road.bus.observe(CostReported, heard.append)
    usage = {"totalTokens": 1200, "cost": 0.5, "model": "secret", "huge": 2**80, "on": True}
    await road.call(usage=usage)
    await road.call()
    assert [one.usage for one in heard] == [{"totalTokens": 1200, "cost": 0.5}]
    found = render_event(heard[0])
    assert found is not None and found[0] == "cost"
    assert found[1]["verb"] == "vercel_ops.deploy"
