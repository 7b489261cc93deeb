"""The agent tools: who is known, what is carried, and that chains of agents end."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from tests.tools.tool_rig import ToolRig, Use, read_object, read_text, text_result

from dragoman.core.call import FORM, Question, Result
from dragoman.core.errors import InvalidInput, Looping, NotFound
from dragoman.core.principal import OWNER, Principal

pytestmark = pytest.mark.promise("T2")


async def test_message_is_sent_and_answered(rig: ToolRig) -> None:
    rig.add_agent(rig.build_profile("helper", description="helps", tags=("aid",)))
    answer = await rig.use("agent_send", agent_id="helper", message="hello")
    assert read_text(answer) == "heard: hello"


async def test_only_granted_agents_are_known(rig: ToolRig) -> None:
    rig.add_agent(rig.build_profile("narrow", agents=("help*",)))
    rig.add_agent(rig.build_profile("helper", description="writes tests", tags=("quality",)))
    rig.add_agent(rig.build_profile("other"))
    listed = read_object(await rig.use("agent_list", "narrow"))
    assert [one["name"] for one in listed["agents"]] == ["helper"]
    for name in ("other", "narrow", "missing"):
        for tool, more in (("agent_send", {"message": "x"}), ("agent_kill", {})):
            with pytest.raises(NotFound, match=f'there is no agent "{name}" that you may know'):
                await rig.use(tool, "narrow", agent_id=name, **more)
    for query, found in (("TESTS", ["helper"]), ("quality writes", ["helper"]), ("other", [])):
        rows = read_object(await rig.use("agent_find", "narrow", query=query))["agents"]
        assert [one["name"] for one in rows] == found


async def test_agent_is_spawned_with_narrower_grants_and_ended(rig: ToolRig) -> None:
    rig.add_agent(rig.build_profile("parent", agents=(), tools=("file_*", "agent_*")))
    made = await rig.use(
        "agent_spawn", "parent", name="child", system_prompt="Be brief.", tools=["file_*"]
    )
    assert read_object(made) == {"agent": "child", "tools": ["file_*"]}
    assert read_text(await rig.use("agent_send", "parent", agent_id="child", message="x"))
    with pytest.raises(InvalidInput, match="was not granted shell_exec"):
        await rig.use("agent_spawn", "parent", name="wide", tools=["shell_exec"])
    text = 'name = "second"\n[capabilities]\ntools = ["file_*"]\n'
    assert read_object(await rig.use("agent_spawn", "parent", manifest_toml=text))
    await rig.use("agent_kill", "parent", agent_id="child")
    with pytest.raises(NotFound):
        await rig.use("agent_send", "parent", agent_id="child", message="x")
    with pytest.raises(NotFound, match="there is no tool"):
        await rig.use("agent_spawn", "second", name="third")
    rig.add_agent(rig.build_profile("childless", can_spawn=False))
    with pytest.raises(InvalidInput, match="not granted to spawn"):
        await rig.use("agent_spawn", "childless", name="third")


@pytest.mark.parametrize(
    "arguments",
    [{}, {"manifest_toml": "= ="}, {"manifest_toml": 'name = "x"', "name": "x"}],
)
async def test_malformed_spawn_is_refused(rig: ToolRig, arguments: dict[str, str]) -> None:
    with pytest.raises(InvalidInput):
        await rig.use("agent_spawn", **arguments)


async def test_agent_with_a_manifest_is_not_ended(rig: ToolRig) -> None:
    rig.add_agent(rig.build_profile("helper"))
    with pytest.raises(InvalidInput, match="was not spawned"):
        await rig.use("agent_kill", agent_id="helper")


def add_relay(rig: ToolRig, name: str, to: str) -> None:
    async def relay(use: Use, message: str) -> Result:
        await use("system_time")  # agents may use built-in tools at every step
        return await use("agent_send", agent_id=to, message=message)

    rig.add_agent(rig.build_profile(name), relay)


async def test_circle_of_agents_is_found(rig: ToolRig) -> None:
    for name, to in (("a", "b"), ("b", "c"), ("c", "a")):
        add_relay(rig, name, to)
    async with asyncio.timeout(60):
        with pytest.raises(Looping, match='"a" is already at work'):
            await rig.send("a")


async def test_built_in_tool_is_no_circle(rig: ToolRig) -> None:
    """Several agents of a chain use built-in tools, and so may the first one's client."""
    add_relay(rig, "a", "b")
    add_relay(rig, "b", "tester")
    assert read_text(await rig.send("a", "hello")) == "heard: hello"
    client = ToolRig(
        rig.home / "clients", 'clients = ["agent_send"]\n[client_grants]\nagents = ["*"]'
    )
    try:
        add_relay(client, "a", "tester")
        answer = await client.call(OWNER, "agent_send", {"agent_id": "a", "message": "hi"})
        assert read_text(answer) == "heard: hi"
    finally:
        await client.close()


async def test_question_of_an_agent_comes_through(rig: ToolRig) -> None:
    asked = Result(questions={"name": Question(FORM, {"message": "Who?"})}, handle="h")

    async def ask(use: Use, message: str) -> Result:
        return asked

    rig.add_agent(rig.build_profile("curious"), ask)
    principal = Principal("agent", "tester", serves="tester")
    arguments = {"agent_id": "curious", "message": "x"}
    features: dict[str, Any] = {"elicitation": {"form": {}}}
    result = await rig.call(principal, "agent_send", arguments, features=features)
    assert result.questions is not None and list(result.questions) == ["name"]

    async def greet(use: Use, message: str) -> Result:
        return text_result("thanks")

    rig.add_agent(rig.build_profile("curious"), greet)
    answers = {"name": {"action": "accept", "content": {"value": "Ada"}}}
    done = await rig.call(
        principal, "agent_send", arguments, features=features, answers=answers, handle=result.handle
    )
    assert read_text(done) == "thanks"


async def test_cancelled_message_ends_the_other_agent(rig: ToolRig) -> None:
    begun, ended = asyncio.Event(), asyncio.Event()

    async def hang(use: Use, message: str) -> Result:
        begun.set()
        try:
            await asyncio.Event().wait()
        finally:
            ended.set()
        raise AssertionError

    rig.add_agent(rig.build_profile("slow"), hang)
    task = asyncio.ensure_future(rig.use("agent_send", agent_id="slow", message="x"))
    await asyncio.wait_for(begun.wait(), 60)
    task.cancel()
    await asyncio.wait_for(ended.wait(), 60)
