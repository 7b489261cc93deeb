"""Requests for approval in a hub of this process, with a real store: callers that make their calls
themselves, steps of workflows, limits, and clients that go at the moment of the decision."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.permissive_hub import PermitAll, build_permissive_hub

from dragoman.core.approvals import (
    APPROVED,
    CANCELLED,
    DENIED,
    EXPIRED,
    INTERRUPTED,
    PENDING,
    RUNNING,
    STEP,
    ApprovalRequest,
    ApprovalRule,
    can_satisfy,
    join_rules,
)
from dragoman.core.bus import Bus
from dragoman.core.call import Call, Result
from dragoman.core.call_chains import CallChains
from dragoman.core.catalog import Catalog, admit_all
from dragoman.core.errors import (
    ApprovalClosed,
    ApprovalDenied,
    ApprovalPending,
    AuthorizationError,
    InvalidInput,
    NotFound,
    Overloaded,
    WorkFailed,
)
from dragoman.core.events import ApprovalDecided, ApprovalRequested
from dragoman.core.hub import CallOptions
from dragoman.core.pipeline import Stage
from dragoman.core.ports import Decision
from dragoman.core.principal import Principal
from dragoman.core.scopes import APPROVE
from dragoman.core.tool import TOOL, TargetFacts, TargetTraits, Tool
from dragoman.core.tool_filter import EVERYTHING
from dragoman.core.tool_identity import KEY_META
from dragoman.guards.approval import ApprovalGuard
from dragoman.guards.approval_desk import ApprovalDesk
from dragoman.guards.audit import Audit
from dragoman.guards.authorize import Authorize
from dragoman.guards.config import ApprovalSettings
from dragoman.guards.held_calls import HeldCalls
from dragoman.stores.approvals import DatabaseApprovals
from dragoman.stores.database import StorePlace

pytestmark = pytest.mark.promise("U6")

CI, LEA, GUEST = (Principal("key", name, roles=(name,)) for name in ("ci", "lea", "guest"))
ABROAD = Principal("key", "lea", "elsewhere", roles=("lea",))


class Judge(PermitAll):
    """Demands an approval for every call; the role `lea` may decide, and may not its own."""

    rule = ApprovalRule("because")

    def decide(self, call: Call) -> Decision:
        return Decision(True, ("a",), "test", approval=None if call.is_approved else self.rule)

    def decide_action(
        self, caller: Principal, action: str, tool: Tool | None = None, *, owner: bool = False
    ) -> Decision:
        return Decision(action != APPROVE or ("lea" in caller.roles and not owner))


class Target:
    name = "t"
    traits = TargetTraits(facts=TargetFacts(type="Server"))

    def __init__(self) -> None:
        self.calls: list[Call] = []
        self.error: Exception | None = None

    async def run(self, call: Call) -> Result:
        self.calls.append(call)
        if self.error is not None:
            raise self.error
        return Result(content=[{"type": "text", "text": f"done {call.arguments}"}])


class NullAudit:
    def __init__(self) -> None:
        self.entries: list[Any] = []
        self.conclusions: list[Any] = []

    def intend(self, entry: Any) -> int:
        self.entries.append(entry)
        return len(self.entries)

    def hash_arguments(self, arguments: bytes) -> str:
        return ""

    def conclude(self, intent: int, entry: Any) -> None:
        self.conclusions.append(entry)


class Rig:
    def __init__(self, home: StorePlace, **settings: Any) -> None:
        self.now = 1_000.0
        self.place = home
        self.judge, self.target, self.audit = Judge(), Target(), NullAudit()
        self.settings = ApprovalSettings(**{"wait_secs": 0, **settings})
        self.store = DatabaseApprovals(home)
        self.ready: list[str] = []
        bus, chains = Bus(), CallChains(bytes(32))
        catalog = Catalog(review=admit_all)
        self.tool = Tool(
            name="t.act", alias="t.act", remote_name="act", kind=TOOL, target=self.target
        )
        catalog.offer("t", [self.tool])
        stages: list[Stage] = [
            Audit(self.audit),
            Authorize(self.judge),
            ApprovalGuard(lambda: self.held),
        ]
        self.hub = build_permissive_hub(catalog, bus, stages)
        self.desk = ApprovalDesk(
            self.store, bus, self.audit, self.judge,
            lambda name, kind: self.hub.find(name, EVERYTHING), lambda: self.settings,
            self.ready.append, lambda: self.now,
        )  # fmt: skip
        self.held = HeldCalls(self.desk, chains, lambda call: call, lambda: self.settings)
        self.events: list[Any] = []
        for kind in (ApprovalRequested, ApprovalDecided):
            bus.observe(kind, self.events.append)

    async def call(self, approval: str | None = None, who: Principal = CI, **args: Any) -> Any:
        return (await self.get_result(approval, who, **args)).content[0]["text"]

    async def get_result(
        self, approval: str | None = None, who: Principal = CI, key: str = "", **args: Any
    ) -> Result:
        meta = {KEY_META: key} if key else None
        options = CallOptions(door="api", view=EVERYTHING, approval=approval, meta=meta)
        _, result = await self.hub.call(who, "t.act", args, options)
        return result

    async def park(self, **args: Any) -> str:
        with pytest.raises(ApprovalPending) as raised:
            await self.call(**args)
        return raised.value.id


@pytest.fixture
def rig(store_place: StorePlace) -> Iterator[Rig]:
    made = Rig(store_place)
    yield made
    made.store.close()


async def test_caller_that_makes_its_call_itself_uses_the_approval_once(rig: Rig) -> None:
    for _ in range(2):  # requesting again finds the same request
        with pytest.raises(ApprovalPending) as raised:
            await rig.call("run1.step", x=1)
        assert raised.value.id == "run1.step"
    assert [one.id for one in rig.events] == ["run1.step"]
    rig.desk.decide("run1.step", True, LEA)
    assert rig.ready == [] and rig.target.calls == []  # the hub leaves it to the caller
    with pytest.raises(InvalidInput, match="another call"):
        await rig.call("run1.step", x=2)
    assert await rig.call("run1.step", x=1) == "done {'x': 1}"
    with pytest.raises(ApprovalClosed, match="used already"):
        await rig.call("run1.step", x=1)
    assert len(rig.target.calls) == 1 and rig.target.calls[0].is_approved
    with pytest.raises(ApprovalPending):
        await rig.call("run1.other")
    rig.desk.decide("run1.other", False, LEA, "no")
    with pytest.raises(ApprovalDenied, match='denied by key:lea: "no"'):
        await rig.call("run1.other")


async def test_call_that_its_client_left_is_given_to_the_hub(rig: Rig) -> None:
    rig.settings = ApprovalSettings(wait_secs=60)
    waiting = asyncio.ensure_future(rig.call(x=1))
    while not rig.events:
        await asyncio.sleep(0)
    id = rig.events[0].id
    await asyncio.sleep(0)
    rig.desk.decide(id, True, LEA)
    waiting.cancel()  # before it could begin
    with pytest.raises(asyncio.CancelledError):
        await waiting
    assert rig.ready == [id] and rig.target.calls == []
    # The hub makes it, and keeps the result for the requester.
    found = rig.desk.claim(id)
    assert found is not None and rig.desk.claim(id) is None
    assert await rig.call(id, x=1) == "done {'x': 1}"
    assert rig.desk.get(id).outcome == "completed"
    assert await rig.call(x=1) == "done {'x': 1}" and len(rig.target.calls) == 1
    rig.settings = ApprovalSettings(wait_secs=0)
    rig.now += rig.settings.repeat_secs + 1
    assert await rig.park(x=1) != id


async def test_failure_is_kept_and_result_expires(rig: Rig) -> None:
    first, second = await rig.park(x=1), await rig.park(x=2)
    assert await rig.park(x=1) == first
    rig.target.error = WorkFailed("it broke")
    for id, x in ((first, 1), (second, 2)):
        rig.desk.decide(id, True, LEA)
        assert rig.desk.claim(id) is not None
        with pytest.raises(WorkFailed):
            await rig.call(id, x=x)
    assert rig.desk.get(first).approval.problem == "it broke"
    with pytest.raises(WorkFailed, match="it broke"):
        await rig.call(x=1)
    rig.now += rig.settings.result_secs + 1
    assert await rig.park(x=2) != second  # kept for its time


async def test_decisions_are_final_and_need_the_right(rig: Rig) -> None:
    id = await rig.park(x=1)
    with pytest.raises(AuthorizationError, match="may not approve"):
        rig.desk.decide(id, True, CI)
    for who in (GUEST, ABROAD):  # who may neither see nor decide it learns nothing of it
        assert not rig.desk.is_visible(who, rig.desk.get(id))
        with pytest.raises(NotFound):
            rig.desk.decide(id, True, who)
    own = await rig.park(who=LEA, x=2)
    with pytest.raises(AuthorizationError):
        rig.desk.decide(own, True, LEA)
    assert rig.desk.decide(id, True, LEA, "fine").decided_by == "key:lea"
    for approves in (True, False):
        with pytest.raises(ApprovalClosed, match='approved by key:lea: "fine"'):
            rig.desk.decide(id, approves, LEA)
    late = await rig.park(x=3)
    rig.now += rig.settings.expiry_secs
    with pytest.raises(ApprovalClosed, match="expired"):
        rig.desk.decide(late, True, LEA)
    rig.desk.sweep()
    states = {one.id: one.state for one in rig.events if isinstance(one, ApprovalDecided)}
    assert states == {id: APPROVED, late: EXPIRED, own: EXPIRED}
    assert rig.ready == [id]
    verbs = [one["verb"] for one in rig.audit.entries]
    assert verbs.count("approval.approve") == 1 and verbs.count("approval.expire") == 2
    # What was approved long before the hub could make it is not made.
    rig.now += 600
    assert rig.desk.claim(id) is None and rig.desk.get(id).outcome == "failed"


async def test_a_step_is_requested_found_and_withdrawn(rig: Rig, store_place: StorePlace) -> None:
    request = ApprovalRequest(
        id="run9.review", kind=STEP, title="Review", reason="a person reads it", requester=CI,
        arguments={"text": "hello"}, expires_at=2_000.0, run="run9", step="review",
        approvers=("role:lea", "key:boss"),
    )  # fmt: skip
    assert rig.desk.request(request).state == PENDING
    assert rig.desk.request(request).state == PENDING and len(rig.events) == 1
    assert rig.desk.find("run9.other") is None
    rig.desk.withdraw("run9.review")
    found = rig.desk.find("run9.review")
    assert found is not None and found.state == CANCELLED and found.request == request
    with pytest.raises(ApprovalClosed, match="withdrawn"):
        rig.desk.decide("run9.review", True, LEA)
    second = rig.desk.request(
        ApprovalRequest(id="b", kind=STEP, title="B", reason="r", requester=CI, expires_at=2_000.0)
    )
    rig.desk.decide("b", True, LEA)
    assert second.state == PENDING and rig.ready == [] and not rig.store.begin("b")
    # Another process finds the same.
    again = Rig(store_place)
    approval = again.desk.find("b")
    assert approval is not None and (approval.state, approval.decided_by) == (APPROVED, "key:lea")
    again.store.close()


async def test_a_long_list_lets_others_work(tmp_path: Path) -> None:
    rig = Rig(tmp_path, pending=2_000, pending_each=2_000)
    for number in range(450):
        await rig.park(x=number)
    seen: list[str] = []
    asyncio.get_running_loop().call_soon(seen.append, "another")
    assert await rig.desk.list_visible(GUEST, "", None, 50) == ([], None)
    assert seen == ["another"]
    rig.store.close()


async def test_requests_are_bounded(store_place: StorePlace) -> None:
    rig = Rig(store_place, pending=3, pending_each=2, keep=10)
    await rig.park(x=1), await rig.park(x=2)
    with pytest.raises(Overloaded, match="pending_each"):
        await rig.call(x=3)
    await rig.park(who=GUEST, x=1)
    with pytest.raises(Overloaded, match=r"\[approvals\] pending$"):
        await rig.call(who=LEA, x=1)
    with pytest.raises(AuthorizationError, match="too large"):
        await rig.call(x="x" * 300_000)
    rig.now += rig.settings.expiry_secs  # what expires makes room
    for number in range(20):
        rig.desk.decide(await rig.park(x=f"n{number}"), False, LEA)
        rig.now += 61
    kept = rig.store.list_approvals("default", "", None, 100, rig.now)
    assert len(kept) <= 12 and {one.state for one in kept} == {DENIED}
    rig.store.close()


@pytest.mark.parametrize(
    ("approvers", "allowed"),
    [((), True), (("role:lea",), True), (("lea",), True), (("key:lea",), True),
     (("role:boss", "user:corp/anna"), False), (("key:leah",), False)],
)  # fmt: skip
def test_approvers_are_roles_or_principals(approvers: tuple[str, ...], allowed: bool) -> None:
    assert can_satisfy(approvers, LEA) is allowed


def test_rules_of_an_agent_and_its_caller_are_joined() -> None:
    one = ApprovalRule("a", ("role:x", "role:y"), 60.0)
    assert join_rules(None, one) is one
    joined = join_rules(one, ApprovalRule("b", ("role:y",), 30.0))
    assert joined == ApprovalRule("a; b", ("role:y",), 30.0)
    assert join_rules(one, ApprovalRule("b")) == ApprovalRule("a; b", one.approvers, 60.0)
    with pytest.raises(AuthorizationError):
        join_rules(one, ApprovalRule("b", ("role:z",)))


async def test_calls_of_another_hub_that_has_ended_are_interrupted(rig: Rig) -> None:
    begun = []
    for hub in ("one", "two"):
        rig.store.rename_hub(hub)
        id = await rig.park(hub=hub)
        rig.desk.decide(id, True, LEA)
        assert rig.desk.claim(id) is not None
        begun.append(id)
    approved = await rig.park(hub="none")  # by a hub that dies before it begins
    rig.store.decide(approved, APPROVED, "lea", "", rig.now)
    rig.ready.clear()
    rig.desk.take_over("one")
    assert [rig.desk.get(id).outcome for id in begun] == [INTERRUPTED, RUNNING]
    assert rig.ready == [approved]
    with rig.desk.attend(approved):  # its client waits here, and makes the call itself
        rig.desk.take_over("one")
        assert rig.ready == [approved]
