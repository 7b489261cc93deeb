"""What a record says beside the call itself: for whom, of whom, and what was decided."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from tests.skill_hub import ALICE, SkillHub

from dragoman.core.call import Call, Result
from dragoman.core.errors import AuthorizationError, NotFound, RemoteA2ATaskFailedError
from dragoman.core.ports import Decision
from dragoman.core.principal import Principal
from dragoman.core.trace import parse_trace
from dragoman.guards.audit import Audit
from dragoman.stores.audit.log import SqliteAuditLog
from dragoman.stores.audit.reader import AuditReader, AuditRecord


class Recorded(SkillHub):
    """The road, and what is recorded of it."""

    def __init__(self, home: Path) -> None:
        self.home = home
        self.log = SqliteAuditLog(home)
        super().__init__(before=[Audit(self.log)])

    def records(self) -> list[AuditRecord]:
        """Oldest first."""
        self.log.close()
        reader = AuditReader(self.home)
        found = reader.list_records(100)
        reader.close()
        return found[::-1]


@pytest.mark.promise("R12")
async def test_a_record_of_a_skill_names_caller_agent_both_names_and_the_decision(
    tmp_path: Path,
) -> None:
    road = Recorded(tmp_path)
    who = Principal("key", "ci", behalf="carol")
    await road.call("a2a_vercel_ops_deploy", who=who, usage={"totalTokens": 12})
    (record,) = road.records()
    intent, end = record.intent, record.conclusion
    assert intent["verb"] == "vercel_ops.deploy"
    assert intent["asked_as"] == "a2a_vercel_ops_deploy"
    assert (intent["caller"], intent["on_behalf_of"]) == ("key:ci", "carol")
    assert (intent["target"], intent["agent"]) == ("Vercel Ops", "card-1")
    assert (end["decision"], end["policies"], end["policy_set"]) == ("permit", ["team"], "abcd1234")
    assert (end["far_task"], end["usage"]) == ("task-7", {"totalTokens": 12})
    assert record.outcome == "completed" and end["duration_ms"] > 0


@pytest.mark.promise("R12", "R7")
@pytest.mark.parametrize(
    ("where", "raised"), [("denied", AuthorizationError), ("hidden", NotFound)]
)
async def test_a_denial_is_recorded_with_the_policies_that_decided_whatever_the_caller_is_told(
    where: str, raised: type[Exception], tmp_path: Path
) -> None:
    road = Recorded(tmp_path)
    getattr(road.judge, where).add("vercel_ops.deploy")
    with pytest.raises(raised) as refused:
        await road.call()
    assert "no-deploys" not in str(refused.value)
    (record,) = road.records()
    assert (record.conclusion["decision"], record.conclusion["policies"]) == (
        "deny",
        ["no-deploys"],
    )
    assert road.agent.calls == []


async def test_a_failure_keeps_what_was_noted_before_it(tmp_path: Path) -> None:
    road = Recorded(tmp_path)
    road.agent.error = RemoteA2ATaskFailedError("it failed")
    with pytest.raises(RemoteA2ATaskFailedError):
        await road.call()
    (record,) = road.records()
    assert record.outcome == "target_failed"
    assert (record.conclusion["far_task"], record.conclusion["decision"]) == ("task-7", "permit")


@pytest.mark.promise("R12")
async def test_a_call_for_another_is_recorded_with_who_began_it_the_chain_and_its_labels(
    tmp_path: Path,
) -> None:
    road = Recorded(tmp_path)
    outer = road.begin("files.read")
    await asyncio.wait_for(road.agent.running.wait(), 5)
    above = road.agent.calls[0].trace
    headers = {name.encode(): value.encode() for name, value in above.build_headers().items()}
    next(road.chains._running[above.span].list_waiting()).chain.labels = frozenset({"web", "mail"})
    helper = type(road.agent)("search")
    road.catalog.offer("search", [helper.plain("search.find")])
    agent = Principal("key", "qa", behalf="nobody", serves="Vercel Ops")
    await road.call("search.find", who=agent, carried=parse_trace(headers))
    road.agent.go.set()
    await outer
    first, second = road.records()
    assert not first.intent.keys() & {"on_behalf_of", "chain", "labels", "agent"}
    assert second.intent["on_behalf_of"] == ALICE.label
    assert second.intent["chain"] == ["files.read"]
    assert second.intent["labels"] == ["mail", "web"]
    assert second.intent["trace"] == first.intent["trace"]


async def test_what_others_chose_to_say_is_bounded_in_the_record(tmp_path: Path) -> None:
    log = SqliteAuditLog(tmp_path)

    async def run(call: Call) -> Result:
        policies = tuple(f"{n}-" + "p" * 10_000 for n in range(5_000))
        shadow = Decision(False, ("q" * 10_000,) * 100)
        call.notes.decision = Decision(True, policies, "abcd1234", shadow=shadow)
        call.notes.remote_task = "\ud800" + "t" * 1_000_000
        call.notes.usage = {f"u{n}": n for n in range(10_000)} | {"deep": {"a": 1}}
        return Result()

    road = SkillHub()
    call = Call(
        principal=ALICE,
        tool=road.agent.skill(),
        requested_name="x",
        arguments={},
        trace=road.chains.start_trace(ALICE, "v", "t", None),
        door="test",
    )
    await Audit(log)(run, call)
    log.close()
    reader = AuditReader(tmp_path)
    (record,) = reader.list_records(10)
    reader.close()
    end: dict[str, Any] = dict(record.conclusion)
    assert record.outcome == "completed" and "anything" not in end
    assert len(end["policies"]) == 33 and end["policies"][-1] == "… and 4968 more"
    assert all(len(name) <= 200 for name in end["policies"])
    assert len(end["usage"]) == 32 and len(end["far_task"]) == 200
    assert len(str(end)) < 20_000
