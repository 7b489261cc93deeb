"""Fields of audit records beyond the call: principal, agent, decision."""

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
async def test_skill_record_has_principal_agent_names_and_decision(
    tmp_path: Path,
) -> None:
    skill_hub = Recorded(tmp_path)
    who = Principal("key", "ci", behalf="carol")
    await skill_hub.call("a2a_vercel_ops_deploy", who=who, usage={"totalTokens": 12})
    (record,) = skill_hub.records()
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
async def test_denial_is_recorded_with_its_policies(
    where: str, raised: type[Exception], tmp_path: Path
) -> None:
    skill_hub = Recorded(tmp_path)
    getattr(skill_hub.judge, where).add("vercel_ops.deploy")
    with pytest.raises(raised) as refused:
        await skill_hub.call()
    assert "no-deploys" not in str(refused.value)
    (record,) = skill_hub.records()
    assert (record.conclusion["decision"], record.conclusion["policies"]) == (
        "deny",
        ["no-deploys"],
    )
    assert skill_hub.agent.calls == []


async def test_failure_keeps_earlier_notes(tmp_path: Path) -> None:
    skill_hub = Recorded(tmp_path)
    skill_hub.agent.error = RemoteA2ATaskFailedError("it failed")
    with pytest.raises(RemoteA2ATaskFailedError):
        await skill_hub.call()
    (record,) = skill_hub.records()
    assert record.outcome == "target_failed"
    assert (record.conclusion["far_task"], record.conclusion["decision"]) == ("task-7", "permit")


@pytest.mark.promise("R12")
async def test_nested_call_is_recorded_with_origin_chain_and_labels(
    tmp_path: Path,
) -> None:
    skill_hub = Recorded(tmp_path)
    outer = skill_hub.begin("files.read")
    await asyncio.wait_for(skill_hub.agent.running.wait(), 60)
    above = skill_hub.agent.calls[0].trace
    headers = {name.encode(): value.encode() for name, value in above.build_headers().items()}
    next(skill_hub.chains._running[above.span].list_waiting()).chain.labels = frozenset(
        {"web", "mail"}
    )
    helper = type(skill_hub.agent)("search")
    skill_hub.catalog.offer("search", [helper.plain("search.find")])
    agent = Principal("key", "qa", behalf="nobody", serves="Vercel Ops")
    await skill_hub.call("search.find", who=agent, carried=parse_trace(headers))
    skill_hub.agent.go.set()
    await outer
    first, second = skill_hub.records()
    assert not first.intent.keys() & {"on_behalf_of", "chain", "labels", "agent"}
    assert second.intent["on_behalf_of"] == ALICE.label
    assert second.intent["chain"] == ["files.read"]
    assert second.intent["labels"] == ["mail", "web"]
    assert second.intent["trace"] == first.intent["trace"]


async def test_external_text_is_bounded_in_the_record(tmp_path: Path) -> None:
    log = SqliteAuditLog(tmp_path)

    async def run(call: Call) -> Result:
        policies = tuple(f"{n}-" + "p" * 10_000 for n in range(5_000))
        shadow = Decision(False, ("q" * 10_000,) * 100)
        call.notes.decision = Decision(True, policies, "abcd1234", shadow=shadow)
        call.notes.remote_task = "\ud800" + "t" * 1_000_000
        call.notes.usage = {f"u{n}": n for n in range(10_000)} | {"deep": {"a": 1}}
        return Result()

    skill_hub = SkillHub()
    call = Call(
        principal=ALICE,
        tool=skill_hub.agent.skill(),
        requested_name="x",
        arguments={},
        trace=skill_hub.chains.start_trace(ALICE, "v", "t", None),
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
