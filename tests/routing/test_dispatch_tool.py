"""`dragoman.dispatch` through every guard of a whole hub."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.routing.routing_rig import (
    ALICE,
    BOB,
    StubAgent,
    find_agent,
    run_rig,
    text_result,
)

from dragoman.core.call import FORM, Call, Question, Result
from dragoman.core.errors import (
    HubError,
    InvalidInput,
    NoCandidate,
    NotFound,
    TimedOut,
    Unreachable,
    WorkFailed,
)
from dragoman.core.hub import CallOptions
from dragoman.core.local_agents import AgentProfile, build_agent_principal
from dragoman.core.taint import LabelOrigin
from dragoman.core.tool import Nowhere
from dragoman.core.tool_filter import EVERYTHING
from dragoman.guards.config import Limits

POLICIES = """
@id("everybody")
permit (principal, action in [Hub::Action::"any_call", Hub::Action::"list"], resource)
when { principal.org == resource.org };
@id("hidden")
forbid (principal, action in [Hub::Action::"any_call", Hub::Action::"list"], resource)
when { resource.name == "secret.message" && principal != Hub::User::"key:bob" };
@id("closed")
forbid (principal, action == Hub::Action::"mcp_call", resource)
when { resource.name == "closed.message" };
"""


def fail_with(error: HubError) -> Any:
    def answer(call: Call) -> Result:
        raise error

    return answer


@pytest.mark.promise("R13", "R12")
async def test_dispatch_calls_the_chosen_agent_and_is_recorded_as_routed(short_tmp: Path) -> None:
    async with run_rig(short_tmp) as rig:
        tester, cook = StubAgent("tester"), StubAgent("cook", tags=("food",))
        rig.add(tester, cook)
        result = await rig.dispatch("test the login page", args={"page": "/login"})
        assert result.content[0]["text"] == "tester" and find_agent(result) == "tester"
        (call,) = tester.calls
        assert call.arguments == {"message": "test the login page", "data": {"page": "/login"}}
        assert call.principal == ALICE and call.trace.chain == ("dragoman.dispatch",)
        assert call.notes.labels == {"user_input"}  # as if the client had called the agent itself
        (row,) = await rig.list_dispatches(kind="routed")
        decision = rig.explain(result, ALICE.label)
        expected = {
            "kind": "routed",
            "agentName": "tester",
            "agentId": None,
            "skillId": None,
            "verb": "tester.message",
            "workType": "qa",
            "decisionId": decision["decisionId"],
            "status": "completed",
        }
        assert {name: row[name] for name in expected} == expected
        assert await rig.list_dispatches(decision=row["decisionId"]) == [row]
        assert await rig.list_dispatches(kind="explicit") == []
        assert [one["agent"] for one in decision["candidates"]] == ["tester", "cook"]
        assert decision["chosen"] == "tester" and decision["mode"] == "only candidate"
        assert decision["attempts"] == [
            {"agent": "tester", "tool": "tester.message", "outcome": "completed", "error": None}
        ]
        chosen, excluded = decision["candidates"]
        assert chosen["factors"]["health"] == chosen["factors"]["load"] == 1.0
        assert 0 < chosen["score"] <= chosen["sample"] < 1
        assert excluded["reasons"] == ['no skill of it is for the work type "qa"']
        assert "test the login page" not in str(decision)  # the text of the work is not stored
        # Others learn nothing of it; an administrator does.
        assert rig.explain(result, BOB.label) is None and rig.explain(result) == decision


@pytest.mark.promise("R13")
async def test_dry_run_shows_the_choice_and_calls_and_stores_nothing(short_tmp: Path) -> None:
    async with run_rig(short_tmp) as rig:
        agents = [StubAgent("one"), StubAgent("two")]
        rig.add(*agents)
        result = await rig.dispatch(dryRun=True)
        said = result.structured
        assert said["dryRun"] is True and said["chosen"] in ("one", "two")
        assert {one["agent"] for one in said["candidates"]} == {"one", "two"}
        assert not agents[0].calls and not agents[1].calls
        assert await rig.list_dispatches() == [] and "decisionId" not in said


@pytest.mark.promise("R13")
async def test_same_seed_makes_the_same_choices_in_two_hubs(
    short_tmp: Path,
) -> None:
    chosen: list[list[str]] = []
    for home in (short_tmp / "a", short_tmp / "b"):
        async with run_rig(home) as rig:
            rig.add(*(StubAgent(name) for name in "abcd"))
            chosen.append([find_agent(await rig.dispatch(f"test {n}")) for n in range(12)])
    assert chosen[0] == chosen[1] and len(set(chosen[0])) > 1


@pytest.mark.promise("R13")
async def test_error_without_a_candidate_names_no_agent_that_is_hidden(short_tmp: Path) -> None:
    async with run_rig(short_tmp, POLICIES) as rig:
        secret, closed = StubAgent("secret"), StubAgent("closed")
        rig.add(secret, closed, StubAgent("cook", tags=("food",)))
        with pytest.raises(NoCandidate) as raised:
            await rig.dispatch()
        message = str(raised.value)
        assert "secret" not in message
        assert '"closed": no policy or grant permits this caller to call it' in message
        assert '"cook": no skill of it is for the work type "qa"' in message
        id = message.rpartition(" ")[2]
        named = {one["agent"] for one in rig.explain(id, ALICE.label)["candidates"]}
        assert named == {"closed", "cook"}
        whole = {one["agent"] for one in rig.explain(id)["candidates"]}
        assert whole == {"secret", "closed", "cook"}
        assert rig.explain(id)["chosen"] is None
        dry = (await rig.dispatch(dryRun=True)).structured
        assert "secret" not in str(dry)
        assert find_agent(await rig.dispatch(who=BOB)) == "secret"  # whom the policy permits it
        assert not closed.calls and len(secret.calls) == 1


@pytest.mark.promise("R13")
async def test_agent_dispatches_within_its_grants_and_never_to_itself(short_tmp: Path) -> None:
    async with run_rig(short_tmp) as rig:
        profile = AgentProfile(
            name="boss",
            workspace=short_tmp,
            tools=("dragoman.dispatch",),
            agents=("granted", "boss"),
        )
        rig.app.parts.guards.granted.profiles.add(profile)
        principal = build_agent_principal(profile)
        said: list[Any] = []

        async def delegate(call: Call) -> Result:
            options = CallOptions(door="agent", view=EVERYTHING)
            work = {"description": "test it", "workType": "qa"}
            _, result = await rig.hub.call_within(
                call.trace, principal, "dragoman.dispatch", work, options
            )
            said.append(result)
            return text_result("delegated")

        granted = StubAgent("granted")
        rig.add(StubAgent("boss", answer=delegate), granted, StubAgent("other"))
        options = CallOptions(door="api", view=EVERYTHING)
        await rig.hub.call(ALICE, "boss.message", {"message": "do it"}, options)
        assert find_agent(said[0]) == "granted"
        (call,) = granted.calls
        assert call.principal == principal
        assert call.trace.chain == ("boss.message",)  # from agent to agent
        assert call.trace.labels == {"user_input"}
        reasons = {one["agent"]: one["reasons"] for one in rig.explain(said[0])["candidates"]}
        assert reasons["other"] == ["no policy or grant permits this caller to call it"]
        assert reasons["boss"] == ["no policy or grant permits this caller to call it"]
        # An agent that was not granted the tool does not know of it.
        rig.app.parts.guards.granted.profiles.add(
            AgentProfile(name="boss", workspace=short_tmp, tools=("*.nothing",), servers=("*",))
        )
        with pytest.raises(NotFound, match="no tool"):
            await rig.hub.call(ALICE, "boss.message", {"message": "do it"}, options)


async def test_agent_at_work_in_the_chain_is_no_candidate(short_tmp: Path) -> None:
    async with run_rig(short_tmp) as rig:
        errors: list[str] = []

        async def dispatch_again(call: Call) -> Result:
            options = CallOptions(door="api", view=EVERYTHING)
            work = {"description": "again", "workType": "qa"}
            try:
                await rig.hub.call_within(call.trace, ALICE, "dragoman.dispatch", work, options)
            except NoCandidate as error:
                errors.append(str(error))
            return text_result("done")

        rig.add(StubAgent("echo", answer=dispatch_again))
        await rig.dispatch()
        assert '"echo": "echo" is already at work in this chain' in errors[0]


@pytest.mark.promise("R13")
async def test_next_agent_is_tried_once_if_nothing_has_left(short_tmp: Path) -> None:
    async with run_rig(short_tmp) as rig:
        away = fail_with(Unreachable("refused", sent=False))
        agents = [StubAgent(name, answer=away) for name in ("a", "b", "c")]
        rig.add(*agents)
        with pytest.raises(Unreachable):
            await rig.dispatch("first")
        assert sum(len(agent.calls) for agent in agents) == 2
        (row, other) = await rig.list_dispatches()
        assert row["decisionId"] == other["decisionId"] and row["status"] == "failed"
        attempts = rig.explain(row["decisionId"])["attempts"]
        assert [(one["outcome"], one["error"]) for one in attempts] == [
            ("failed", "Unreachable")
        ] * 2
        for agent in agents:
            agent.answer = None
        first = next(agent for agent in agents if agent.calls)
        first.answer = away
        results = [find_agent(await rig.dispatch(f"test {n}")) for n in range(6)]
        assert first.name not in results


@pytest.mark.promise("R13")
async def test_work_that_may_have_left_is_not_sent_again(short_tmp: Path) -> None:
    async with run_rig(short_tmp) as rig:
        lost = fail_with(Unreachable("connection lost", sent=True))
        agents = [StubAgent(name, answer=lost) for name in ("a", "b")]
        rig.add(*agents)
        with pytest.raises(Unreachable, match="connection lost"):
            await rig.dispatch()
        for agent in agents:
            agent.answer = fail_with(WorkFailed("broken"))
        with pytest.raises(WorkFailed):
            await rig.dispatch("another")
        assert sum(len(agent.calls) for agent in agents) == 2


@pytest.mark.promise("R13")
async def test_overloaded_agent_is_not_chosen_and_failures_count(short_tmp: Path) -> None:
    async with run_rig(short_tmp, soft_cap=2, hard_cap=3) as rig:
        go = asyncio.Event()

        async def wait(call: Call) -> Result:
            await go.wait()
            return text_result("late")

        busy = StubAgent("busy", answer=wait)
        rig.add(busy)
        running = [asyncio.ensure_future(rig.dispatch(f"test {n}")) for n in range(3)]
        async with asyncio.timeout(60):
            while len(busy.calls) < 3:
                busy.arrived.clear()
                await busy.arrived.wait()
        with pytest.raises(NoCandidate, match="3 calls to it are running"):
            await rig.dispatch("one more")
        idle = StubAgent("idle", answer=lambda call: text_result("no", failed=True))
        rig.add(idle)
        assert find_agent(await rig.dispatch("and another")) == "idle"
        go.set()
        await asyncio.gather(*running)
        candidates = (await rig.dispatch(dryRun=True)).structured["candidates"]
        found = {one["agent"]: (one["successes"], one["failures"]) for one in candidates}
        assert found["busy"][0] > 2.9 and found["busy"][1] == 0
        assert found["idle"] == (0.0, pytest.approx(0.97, abs=0.03))


@pytest.mark.promise("R13")
async def test_answer_that_is_cut_is_no_success(short_tmp: Path) -> None:
    async with run_rig(short_tmp) as rig:
        rig.add(StubAgent("terse", answer=lambda call: text_result("half", ending="cut")))
        assert (await rig.dispatch("write it")).ending == "cut"
        (candidate,) = (await rig.dispatch(dryRun=True)).structured["candidates"]
        assert candidate["successes"] == 0 and candidate["failures"] > 0.9


@pytest.mark.promise("R13")
async def test_cost_constraint_excludes_agents_by_what_they_have_reported(short_tmp: Path) -> None:
    async with run_rig(short_tmp) as rig:

        def report(call: Call) -> Result:
            call.notes.usage = {"totalTokens": 900, "cost": 0.2}
            return text_result("done")

        rig.add(StubAgent("dear", answer=report))
        await rig.dispatch("first", maxTokens=10)  # nothing is known of it yet
        with pytest.raises(NoCandidate, match="it uses 900 tokens on average, more than 800"):
            await rig.dispatch("second", maxTokens=800)
        with pytest.raises(NoCandidate, match=r"it costs \$0.2 on average, more than \$0.1"):
            await rig.dispatch("third", maxCost=0.1)
        await rig.dispatch("fourth", maxTokens=1_000, maxCost=1)
        assert not rig.app.parts.routing.offered[0]._reported


async def test_question_of_the_chosen_agent_is_answered_there(short_tmp: Path) -> None:
    async with run_rig(short_tmp) as rig:

        def ask(call: Call) -> Result:
            if call.handle is None:
                schema = {"type": "object", "properties": {"colour": {"type": "string"}}}
                body = {"message": "Which?", "requestedSchema": schema}
                return Result(questions={"q": Question(FORM, body)}, handle="state")
            assert call.handle == "state" and call.answers is not None
            return text_result(call.answers["q"]["content"]["colour"])

        agents = [StubAgent(name, answer=ask) for name in ("a", "b")]
        rig.add(*agents)
        features: dict[str, Any] = {"elicitation": {"form": {}}}
        asked = await rig.dispatch(options={"features": features})
        assert asked.questions is not None and asked.questions["q"].body["message"] == "Which?"
        chosen = find_agent(asked)
        answers = {"q": {"action": "accept", "content": {"colour": "blue"}}}
        again = {"features": features, "answers": answers, "handle": asked.handle}
        result = await rig.dispatch(options=again)
        assert result.content[0]["text"] == "blue" and find_agent(result) == chosen
        outcomes = [one["outcome"] for one in rig.explain(asked)["attempts"]]
        assert outcomes == ["asked", "completed"]
        assert [len(agent.calls) for agent in agents if agent.name != chosen] == [0]
        with pytest.raises(InvalidInput, match="already been answered"):
            await rig.dispatch(options=again)
        with pytest.raises(InvalidInput, match="invalid question handle"):
            await rig.dispatch(who=BOB, options=again)


@pytest.mark.promise("R13")
async def test_outcomes_and_decisions_survive_a_restart(short_tmp: Path) -> None:
    async with run_rig(short_tmp) as rig:
        rig.add(StubAgent("a"))
        result = await rig.dispatch()
        before = rig.explain(result)
    async with run_rig(short_tmp) as rig:
        rig.add(StubAgent("a"))
        assert rig.explain(result) == before
        (candidate,) = (await rig.dispatch(dryRun=True)).structured["candidates"]
        assert candidate["observations"] == 1 and candidate["successes"] > 0.99


async def test_tool_is_offered_from_the_second_agent_on(short_tmp: Path) -> None:
    async with run_rig(short_tmp) as rig:
        for name, is_offered in (("a", False), ("b", True)):
            rig.offer(StubAgent(name))
            await rig.app.parts.routing.follow()
            found = rig.hub.catalog.find("dragoman.dispatch").target
            assert isinstance(found, Nowhere) is not is_offered
        assert not (short_tmp / "routing.db").exists()
        rig.hub.catalog.withdraw("a")
        rig.hub.catalog.withdraw("b")
        with pytest.raises(NoCandidate, match="you may call no agent"):
            await rig.dispatch()


INVALID: dict[str, dict[str, Any]] = {
    "a line break": {"workType": "a\nb"},
    "a long work type": {"workType": "x" * 65},
    "many skills": {"requiredSkills": ["s"] * 21},
    "no cost": {"maxCost": 0},
    "an unknown member": {"details": "x"},
}


async def test_invalid_work_is_refused_before_a_decision(short_tmp: Path) -> None:
    async with run_rig(short_tmp) as rig:
        agent = StubAgent("a")
        rig.add(agent)
        for arguments in INVALID.values():
            with pytest.raises(InvalidInput, match=min(arguments)):
                await rig.dispatch(**arguments)
        assert not agent.calls


async def test_required_skill_that_no_agent_has_is_named(short_tmp: Path) -> None:
    async with run_rig(short_tmp) as rig:
        rig.add(StubAgent("a", skill="test"))
        assert find_agent(await rig.dispatch(requiredSkills=["Test"])) == "a"
        with pytest.raises(NoCandidate, match='"a": it has no skill "deploy"'):
            await rig.dispatch("again", requiredSkills=["test", "deploy"])


async def test_arguments_that_the_agent_does_not_accept_are_not_stored(short_tmp: Path) -> None:
    async with run_rig(short_tmp) as rig:
        agent = StubAgent("a")
        agent.tool = replace(agent.tool, validate=lambda arguments: f"{arguments} is wrong")
        rig.add(agent)
        assert rig.explain("0" * 32) is None and not (short_tmp / "routing.db").exists()
        with pytest.raises(NoCandidate, match="does not accept these arguments") as raised:
            await rig.dispatch("hush")
        assert "hush" not in str(raised.value)


async def test_hanging_agent_fails_by_its_own_time_limit(short_tmp: Path) -> None:
    limits = Limits(tool_timeout_secs=0.05, progress_timeout_secs=0.05, task_timeout_secs=0.2)
    async with run_rig(short_tmp) as rig:
        rig.app.parts.guards.apply_limits(limits)

        async def hang(call: Call) -> Result:
            await asyncio.sleep(60)
            raise AssertionError

        rig.add(StubAgent("slow", answer=hang))
        with pytest.raises(TimedOut, match=r'"slow\.message" took longer'):
            await rig.dispatch()
        (candidate,) = (await rig.dispatch(dryRun=True)).structured["candidates"]
        assert (candidate["successes"], candidate["failures"] > 0.9) == (0.0, True)


async def test_cancelled_dispatch_cancels_the_agent_and_counts_for_nothing(short_tmp: Path) -> None:
    async with run_rig(short_tmp) as rig:
        ended = asyncio.Event()

        async def hang(call: Call) -> Result:
            try:
                await asyncio.sleep(60)
            finally:
                ended.set()
            raise AssertionError

        agent = StubAgent("slow", answer=hang)
        rig.add(agent)
        running = asyncio.ensure_future(rig.dispatch())
        await asyncio.wait_for(agent.arrived.wait(), 60)
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
        await asyncio.wait_for(ended.wait(), 60)
        (row,) = await rig.list_dispatches()
        assert row["status"] == "cancelled"
        assert rig.explain(row["decisionId"])["attempts"][0]["outcome"] == "cancelled"
        (candidate,) = (await rig.dispatch(dryRun=True)).structured["candidates"]
        assert candidate["observations"] == 0


async def test_tainted_data_reaches_no_agent_that_a_rule_protects(short_tmp: Path) -> None:
    async with run_rig(short_tmp) as rig:
        inside, outside = StubAgent("inside"), StubAgent("outside")
        outside.tool = replace(outside.tool, sinks=frozenset({"net"}))

        async def leak(call: Call) -> Result:
            running = rig.hub.chains.find_running(call.trace)
            assert running is not None
            running.chain.add_labels({"secret": LabelOrigin("vault.read", call.trace.id, "a key")})
            options = CallOptions(door="api", view=EVERYTHING)
            work = {"description": "send it", "workType": "qa"}
            _, result = await rig.hub.call_within(
                call.trace, ALICE, "dragoman.dispatch", work, options
            )
            return text_result(find_agent(result))

        rig.add(inside, outside, StubAgent("reader", tags=("reading",), answer=leak))
        for number in range(5):
            result = await rig.dispatch(f"read {number}", workType="reading")
            assert result.content[0]["text"] == "inside"
        rows = await rig.list_dispatches(agent="inside")
        reasons = {
            one["agent"]: one["reasons"] for one in rig.explain(rows[0]["decisionId"])["candidates"]
        }
        assert reasons["outside"] == ["the taint rule secret -> net forbids it"]
