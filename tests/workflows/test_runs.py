"""Runs in a whole hub: their steps are calls of the hub, and they survive its end."""

from __future__ import annotations

import asyncio
import dataclasses
import time
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
from tests.workflows.run_rig import RunRig, StubTools, ask, call, node, run_rig

from dragoman.app.workflows_view import WorkflowsView
from dragoman.core.call import Call
from dragoman.core.cluster import End, Receive
from dragoman.core.errors import AuthorizationError, InvalidInput, NotFound, Overloaded, Unreachable
from dragoman.core.events import UserEvent
from dragoman.core.principal import OWNER, Principal
from dragoman.core.runs import (
    CANCELLED,
    COMPLETED,
    FAILED,
    KEY_META,
    NEEDS_DECISION,
    SKIPPED,
    WAITING,
)
from dragoman.core.taint import EXTERNAL_NETWORK, UNTRUSTED_AGENT
from dragoman.workflows.event_waits import EventWaits

pytestmark = [pytest.mark.promise("R14"), pytest.mark.anyio]
BOB = Principal("key", "bob")


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


async def test_outputs_flow_through_steps_loops_and_children(short_tmp: Path) -> None:
    async with run_rig(short_tmp) as rig:
        rig.add("find", lambda one: {"files": ["a", "b"], "count": 2})
        rig.add("check", lambda one: f"checked {one.arguments['file']}")
        await rig.define("inner", call("check", arguments={"file": "{{ $trigger.file }}"}))
        loop = [node("each", "workflow.run", workflow="inner", inputs={"file": "{{ $item }}"})]
        await rig.define(
            "outer",
            call("find", arguments={"where": "{{ $trigger.where }}"}),
            node("loop", "foreach", items="{{ nodes.find.files }}", steps=loop),
            node(
                "end",
                "transform",
                value="{{ nodes.loop.items[1].check.text }} of {{ nodes.find.count }}",
            ),
            output={"said": "{{ nodes.end }}"},
            inputs={"where": "string"},
        )
        run = await rig.run("outer", where="here")
        assert (run.state, run.output, run.problem) == (COMPLETED, {"said": "checked b of 2"}, "")
        first = rig.stub.calls[0]
        assert (first.arguments, first.door, first.principal) == (
            {"where": "here"},
            "workflow",
            OWNER,
        )
        assert {one.trace.id for one in rig.stub.calls} == {run.origin.trace}
        children, _ = await rig.service.list_runs(OWNER, workflow="inner")
        assert [one.origin.parent for one in children] == [run.id] * 2
        with pytest.raises(InvalidInput, match='needs the input "where"'):
            await rig.start("outer")
        with pytest.raises(NotFound):
            await rig.start("other")


async def test_steps_branch_on_the_kind_of_an_error(short_tmp: Path) -> None:
    def fail(one: Call) -> str:
        if one.arguments["how"] == "away":
            raise Unreachable("it is away", sent=False)
        raise InvalidInput("no such file")

    async with run_rig(short_tmp) as rig:
        rig.add("work", fail)
        rig.add("wait", lambda one: "waited")
        rig.add("mend", lambda one: "mended")
        await rig.define(
            "branch",
            call("work", arguments={"how": "{{ $trigger.how }}"}, onError="continue"),
            call("wait", when='{{ nodes.work.errorKind == "Unreachable" }}'),
            call("mend", when='{{ nodes.work.errorKind == "InvalidInput" }}'),
            inputs={"how": "string"},
        )
        for how, chosen in (("away", "wait"), ("wrong", "mend")):
            before = len(rig.stub.calls)
            run = await rig.run("branch", how=how)
            assert run.state == COMPLETED, run.problem
            assert [one.tool.remote_name for one in rig.stub.calls[before:]] == ["work", chosen]


async def test_steps_act_with_the_rights_of_who_started_them(short_tmp: Path) -> None:
    policies = """
    @id("owner") permit (principal in Hub::Role::"owner", action, resource);
    @id("others")
    permit (principal, action in [Hub::Action::"any_call", Hub::Action::"list"], resource)
    unless { resource == Hub::Tool::"stub.secret" || resource == Hub::Tool::"workflow.hidden" };
    """
    async with run_rig(short_tmp, policies=policies) as rig:
        rig.add("open", lambda one: "done")
        rig.add("secret", lambda one: "done")
        keys = rig.app.parts.stores.keys
        keys.create("bob", owner="Bob", expires_at=None, scopes=["call"])
        await rig.define("mixed", call("open"), call("secret", "open"))
        await rig.define("hidden", call("open"))
        run = await rig.start("mixed", BOB)
        run = await rig.until(run.id)
        assert run.state == FAILED and rig.stub.count("secret") == 0
        assert "secret" in run.problem
        assert (await rig.run("mixed")).state == COMPLETED
        with pytest.raises((AuthorizationError, NotFound)):
            await rig.start("hidden", BOB)
        # A run is visible to who started it, and to administrators.
        mine, _ = await rig.service.list_runs(BOB)
        assert [one.id for one in mine] == [run.id]
        other = await rig.start("mixed")
        with pytest.raises(NotFound):
            await rig.service.find(BOB, other.id)
        with pytest.raises(NotFound):
            await rig.service.cancel(BOB, other.id)
        assert len((await rig.service.list_runs(OWNER))[0]) == 3
        await rig.until(other.id)


async def test_retries_only_what_has_not_left_or_may_be_repeated(short_tmp: Path) -> None:
    def fail_first(kind: Callable[[], Exception]) -> Callable[[Call], Any]:
        seen: list[int] = []

        def answer(one: Call) -> str:
            seen.append(1)
            if len(seen) == 1:
                raise kind()
            return "at last"

        return answer

    retry = {"attempts": 3, "backoff": 0.01}
    async with run_rig(short_tmp) as rig:
        rig.add("unsent", fail_first(lambda: Unreachable("no", sent=False)))
        rig.add("sent", fail_first(lambda: Unreachable("no")))
        rig.add("repeated", fail_first(lambda: Unreachable("no")))
        rig.add("idempotent", fail_first(lambda: Unreachable("no")), idempotentHint=True)
        rig.add("full", fail_first(lambda: Overloaded("no")))
        for name in ("unsent", "sent", "idempotent", "full"):
            await rig.define(name, call(name, retry=retry))
        await rig.define("repeated", call("repeated", retry=retry, repeatable=True))
        for name in ("unsent", "repeated", "idempotent", "full"):
            run = await rig.run(name)
            assert (run.state, rig.stub.count(name)) == (COMPLETED, 2), (name, run.problem)
            assert (await rig.steps(run))[name].attempt == 2
        keys = [one.meta[KEY_META] for one in rig.stub.calls if one.meta is not None]
        assert len(keys) == 8 and len(set(keys)) == 4  # one key for the attempts of a step
        run = await rig.run("sent")
        assert (run.state, rig.stub.count("sent")) == (FAILED, 1)
        # A person may have a failed step tried again, with another key; others are not repeated.
        await rig.define("both", call("full"), call("sent", "full", onError="fail"))
        rig.stub.tools["sent"] = fail_first(lambda: Unreachable("no"))
        run = await rig.run("both")
        assert run.state == FAILED
        before = rig.stub.count("full")
        await rig.service.retry(OWNER, run.id)
        run = await rig.until(run.id)
        assert (run.state, rig.stub.count("full")) == (COMPLETED, before)
        assert rig.stub.calls[-1].meta[KEY_META].endswith(":2")  # type: ignore[index]
        with pytest.raises(InvalidInput, match="has not failed"):
            await rig.service.retry(OWNER, run.id)


async def test_cancel_reaches_the_calls_the_waits_and_the_children(short_tmp: Path) -> None:
    async with run_rig(short_tmp) as rig:
        ended = asyncio.Event()

        async def wait_long(one: Call) -> None:
            try:
                await asyncio.sleep(60)
            finally:
                ended.set()

        rig.add("slow", wait_long)
        await rig.define("inner", call("slow"))
        await rig.define(
            "outer",
            node("child", "workflow.run", workflow="inner"),
            node("ask", "approval", title="Go?"),
            call("after", "child", tool="slow"),
        )
        run = await rig.start("outer")
        await asyncio.wait_for(rig.stub.arrived.wait(), 60)
        await rig.until(run.id, WAITING)
        approval = (await rig.steps(run))["ask"].approval
        run = await rig.service.cancel(OWNER, run.id)
        assert run.state == CANCELLED
        await asyncio.wait_for(ended.wait(), 60)
        steps = await rig.steps(run)
        assert {one.state for one in steps.values()} == {CANCELLED}
        child = await rig.until(steps["child"].child)
        assert child.state == CANCELLED
        desk = rig.app.parts.guards.approvals.find_desk()
        found = desk.find(approval)
        assert found is not None and found.state == "cancelled"
        with pytest.raises(InvalidInput, match="has ended already"):
            await rig.service.cancel(OWNER, run.id)


async def test_waits_hold_nothing_and_end_by_time_event_and_approval(short_tmp: Path) -> None:
    async with run_rig(short_tmp) as rig:
        await rig.define(
            "waits",
            node("time", "wait", seconds=0.2),
            node("event", "wait", event="user", match={"type": "ready"}),
            node("ask", "approval", title="Go?", details={"what": "{{ $trigger.what }}"}),
            node("end", "transform", "time", "event", "ask",
                 value="{{ nodes.event.data.n }} by {{ nodes.ask.by }}"),
        )  # fmt: skip
        await rig.define("denied", node("ask", "approval"), call("never", "ask"))
        run = await rig.start("waits", what="it")
        no = await rig.start("denied")
        await rig.until(run.id, WAITING)
        await rig.until(no.id, WAITING)
        await rig.until_idle()
        rig.bus.emit(UserEvent("a", "other", {"n": 1}, ""))
        rig.bus.emit(UserEvent("a", "ready", {"n": 2}, "", org="elsewhere"))
        rig.bus.emit(UserEvent("a", "ready", {"n": 3}, ""))
        desk = rig.app.parts.guards.approvals.find_desk()
        request = desk.find((await rig.steps(run))["ask"].approval)
        assert request is not None and request.request.arguments == {"what": "it"}
        desk.decide(request.request.id, True, OWNER)
        desk.decide((await rig.steps(no))["ask"].approval, False, OWNER, "not today")
        run, no = await rig.until(run.id), await rig.until(no.id)
        assert (run.state, run.output) == (COMPLETED, {"end": "3 by owner:owner"})
        assert {EXTERNAL_NETWORK, UNTRUSTED_AGENT} <= run.labels.keys()  # the event said it
        assert no.state == FAILED and "denied by owner:owner: not today" in no.problem


async def test_a_call_that_a_policy_parks_is_made_once_after_the_approval(
    short_tmp: Path,
) -> None:
    policies = """
    @id("owner") permit (principal in Hub::Role::"owner", action, resource)
    unless { resource == Hub::Tool::"stub.deploy" && action != Hub::Action::"approve"
             && action != Hub::Action::"list" };
    @id("deploy") @approval("it goes to production")
    permit (principal, action in Hub::Action::"any_call", resource == Hub::Tool::"stub.deploy");
    """
    stub = StubTools()
    stub.add("deploy", lambda one: f"deployed {one.arguments['to']}")
    async with run_rig(short_tmp, stub, policies) as rig:
        await rig.define("deploys", call("deploy", arguments={"to": "it"}))
        yes, no = await rig.start("deploys"), await rig.start("deploys")
        for run in (yes, no):
            await rig.until(run.id, WAITING)
        desk = rig.app.parts.guards.approvals.find_desk()
        denied = (await rig.steps(no))["deploy"].approval
        desk.decide(denied, False, OWNER)
        assert "denied" in (await rig.until(no.id)).problem
        assert rig.stub.calls == []
    async with run_rig(short_tmp, stub, policies) as rig:
        step = (await rig.steps(yes))["deploy"]
        assert "production" in step.message
        rig.app.parts.guards.approvals.find_desk().decide(step.approval, True, OWNER)
        run = await rig.until(yes.id)
        assert (run.state, run.problem) == (COMPLETED, "")
        assert (await rig.steps(run))["deploy"].output == {"text": "deployed it"}
    assert stub.count("deploy") == 1


async def test_questions_are_answered_later_also_after_a_restart(short_tmp: Path) -> None:
    stub = StubTools()

    def answer(one: Call) -> Any:
        if one.answers is None:
            return ask("Which branch?")
        return f"{one.answers['choice']['content']['name']} with {one.handle}"

    stub.add("ask", answer)
    async with run_rig(short_tmp, stub) as rig:
        await rig.define("asks", call("ask", arguments={"a": 1}), output="{{ nodes.ask.text }}")
        first, second = await rig.start("asks"), await rig.start("asks")
        for run in (first, second):
            await rig.until(run.id, WAITING)
        step = (await rig.steps(first))["ask"]
        assert step.message == "Which branch?" and "choice" in step.detail["questions"]
        content = {"choice": {"action": "accept", "content": {"name": "main"}}}
        with pytest.raises(InvalidInput, match='has not asked "other"'):
            await rig.service.answer(OWNER, first.id, "ask", {"other": {}})
        await rig.service.answer(OWNER, first.id, "ask", content)
        run = await rig.until(first.id)
        assert run.output == "main with the state of the tool"
        with pytest.raises(InvalidInput, match="asks nothing"):
            await rig.service.answer(OWNER, first.id, "ask", content)
    async with run_rig(short_tmp, stub) as rig:
        await rig.service.answer(OWNER, second.id, "ask", content)
        run = await rig.until(second.id)
        assert (run.output, run.problem) == ("main with the state of the tool", "")


async def test_a_restart_repeats_nothing_that_may_not_be_repeated(short_tmp: Path) -> None:
    stub = StubTools()

    async def hang(one: Call) -> None:
        await asyncio.sleep(60)

    for name in ("first", "once", "again", "reads", "last"):
        stub.add(name, lambda one: "done")
    stub.tools |= {"once": hang, "again": hang}
    steps = (
        call("first"),
        call("once", "first"),
        call("again", "first", repeatable=True),
        node("wait", "approval"),
        call("last", "once", "again", "wait"),
    )
    async with run_rig(short_tmp, stub) as rig:
        await rig.define("six", *steps)
        await rig.define("other", call("first", arguments={"version": 1}), node("t", "approval"))
        run, other = await rig.start("six"), await rig.start("other")
        await rig.until(other.id, WAITING)
        async with asyncio.timeout(60):
            while stub.count("again") + stub.count("once") < 2:
                await asyncio.sleep(0.01)
        await rig.define("outer", node("child", "workflow.run", workflow="inner"))
        await rig.define("inner", node("ask", "approval"), call("reads", "ask"))
        outer = await rig.start("outer")
        await rig.until(outer.id, WAITING)
        await rig.until((await rig.steps(outer))["child"].child, WAITING)
        await rig.define("other", call("first", arguments={"version": 2}))
        await rig.define("inner", call("first", arguments={"version": 2}))
        await crash(rig)
    stub.tools |= {"once": lambda one: "done", "again": lambda one: "done"}
    async with run_rig(short_tmp, stub) as rig:
        run = await rig.until(run.id, NEEDS_DECISION)
        states = await rig.states(run)
        assert states == {
            "first": COMPLETED, "once": NEEDS_DECISION, "again": COMPLETED, "wait": WAITING,
        }  # fmt: skip
        assert (stub.count("once"), stub.count("again")) == (1, 2)
        with pytest.raises(InvalidInput, match="needs no decision"):
            await rig.service.resume(OWNER, run.id, "again", "skip")
        await rig.service.resume(OWNER, run.id, "once", "skip")
        desk = rig.app.parts.guards.approvals.find_desk()
        for one in (run, other):
            path = "wait" if one is run else "t"
            desk.decide((await rig.steps(one))[path].approval, True, OWNER)
        assert (await rig.until(run.id)).state == COMPLETED
        assert (await rig.states(run))["once"] == SKIPPED
        inner = (await rig.steps(outer))["child"].child
        ask = await rig.until(inner, WAITING)
        desk.decide((await rig.steps(ask))["ask"].approval, True, OWNER)
        assert (await rig.until(outer.id)).output == {"child": {"reads": {"text": "done"}}}
        # It finishes on the version that it began with.
        assert (await rig.until(other.id)).state == COMPLETED
        assert (await rig.states(other)) == {"first": COMPLETED, "t": COMPLETED}
    assert (stub.count("first"), stub.count("once"), stub.count("last")) == (2, 1, 1)


async def crash(rig: RunRig) -> None:
    """Ends the hub without letting a run note anything: as `kill -9`."""
    service = rig.service

    async def save_nothing(*_: Any) -> None:
        await asyncio.Event().wait()

    service._store.save = save_nothing  # type: ignore[assignment,method-assign]


async def test_one_principal_neither_fills_nor_blocks_the_queue(short_tmp: Path) -> None:
    async with run_rig(short_tmp, concurrency=1, max_unfinished=6) as rig:
        gate = asyncio.Event()

        async def wait(one: Call) -> None:
            await gate.wait()

        rig.add("slow", wait)
        rig.add("quick", lambda one: "done")
        keys = rig.app.parts.stores.keys
        keys.create("bob", owner="Bob", expires_at=None, scopes=["call"])
        await rig.define("slow", call("slow"))
        await rig.define("quick", call("quick"))
        runs = [await rig.start("slow") for _ in range(3)]
        with pytest.raises(Overloaded, match="3 of them of"):
            await rig.start("slow")
        assert (await rig.run("quick", BOB)).state == COMPLETED  # the slots are taken
        gate.set()
        for run in runs:
            assert (await rig.until(run.id)).state == COMPLETED
        assert not rig.service._runner.unfinished


async def test_outputs_and_inputs_are_bounded(short_tmp: Path) -> None:
    async with run_rig(short_tmp) as rig:
        rig.add("large", lambda one: "x" * 1_100_000)
        await rig.define("large", call("large"))
        run = await rig.run("large")
        assert run.state == FAILED and "1048576 are allowed" in run.problem
        with pytest.raises(InvalidInput, match="the inputs"):
            await rig.start("large", text="x" * 1_100_000)


async def test_a_run_ends_with_the_key_that_started_it(short_tmp: Path) -> None:
    async with run_rig(short_tmp) as rig:
        keys = rig.app.parts.stores.keys
        keys.create("bob", owner="Bob", expires_at=None, scopes=["call"])
        gate = asyncio.Event()

        async def wait(one: Call) -> str:
            await gate.wait()
            return "done"

        rig.add("slow", wait)
        rig.add("after", lambda one: "done")
        await rig.define("two", call("slow"), call("after", "slow"))
        run = await rig.start("two", BOB)
        await asyncio.wait_for(rig.stub.arrived.wait(), 60)
        keys.revoke("bob")
        gate.set()
        run = await rig.until(run.id)
        assert run.state == FAILED and "is not served any more" in run.problem
        assert rig.stub.count("after") == 0


async def test_labels_travel_from_step_to_step(short_tmp: Path) -> None:
    async with run_rig(short_tmp) as rig:
        rig.add("read", lambda one: "-----BEGIN RSA PRIVATE KEY-----\nMIIEpAIBAAKCAQEA")
        rig.add("send", lambda one: "sent", openWorldHint=True)
        await rig.define("leak", call("read"), node("pause", "wait", "read", seconds=0.05),
                         call("send", "pause"))  # fmt: skip
        run = await rig.run("leak")
        assert "secret" in run.labels
        assert run.state == FAILED and "secret -> net" in run.problem
        assert rig.stub.count("send") == 0


class OtherHubs:
    """A `ClusterBus` whose other end is the test."""

    def __init__(self) -> None:
        self.sent: list[tuple[str, Mapping[str, Any]]] = []
        self.receivers: dict[str, Receive] = {}

    def publish(self, kind: str, data: Mapping[str, Any]) -> None:
        self.sent.append((kind, data))

    def subscribe(self, kind: str, receive: Receive) -> End:
        self.receivers[kind] = receive
        return lambda: None


async def test_other_hubs_hear_which_events_a_step_begins_to_wait_for(short_tmp: Path) -> None:
    async with run_rig(short_tmp) as rig:
        await rig.define("w", node("event", "wait", event="user"))
        service, others = rig.service, OtherHubs()
        service._events = EventWaits(
            rig.bus, service._store, service._runner, time.time, cluster=others
        )
        run = await rig.start("w")
        await rig.until(run.id, WAITING)
        async with asyncio.timeout(60):
            while not others.sent:
                await asyncio.sleep(0.005)
        assert others.sent == [("awaited", {"event": "user"})]
        rig.bus.emit(UserEvent("a", "ready", {}, ""))
        assert (await rig.until(run.id)).state == COMPLETED
        # The other end: a hub that hears of it observes events that none of its own runs waits for.
        service._events.close()
        assert not service._events._ends
        others.receivers["awaited"]("00000000", {"event": "user"})
        others.receivers["awaited"]("00000000", {"event": ["unknown"]})
        assert list(service._events._ends) == ["user"]


async def test_a_hub_that_has_not_loaded_its_workflows_does_not_say_that_there_are_none(
    short_tmp: Path,
) -> None:
    async with run_rig(short_tmp) as rig:
        lazy = rig.app.parts.workflows
        running = WorkflowsView(lazy)
        (short_tmp / "workflows").mkdir()  # they are loaded a moment later
        assert await running.list_workflows(OWNER) == []
        started = asyncio.Event()
        lazy = dataclasses.replace(lazy, built=[], _started=started, load_seconds=0.01)
        view = WorkflowsView(lazy)  # of a hub that starts
        asked: list[Awaitable[Any]] = [
            view.describe(OWNER, "w"),
            view.get_run(OWNER, "r"),
            view.list_runs(OWNER, "", (), 9, ""),
            lazy.find_webhooks(),
        ]
        for answer in asked:
            with pytest.raises(Overloaded, match="try again"):
                await answer
        patient = WorkflowsView(dataclasses.replace(lazy, load_seconds=60.0))
        waiting = asyncio.create_task(patient.list_workflows(OWNER))
        await asyncio.sleep(0)
        assert not waiting.done()
        started.set()
        assert await waiting == []
        await rig.app.parts.workflows.require()
        with pytest.raises(NotFound):
            await running.describe(OWNER, "w")
