"""Approved calls that the hub makes by itself, in a whole hub whose stores fail for a while."""

from __future__ import annotations

import asyncio
import logging
from contextlib import suppress
from pathlib import Path

import pytest
from tests.table_outage import take_away
from tests.workflows.run_rig import RunRig, run_rig

from dragoman.core.approvals import StoredApproval
from dragoman.core.errors import StorageFailed
from dragoman.core.hub import CallOptions
from dragoman.core.principal import OWNER, Principal
from dragoman.core.tool_filter import EVERYTHING
from dragoman.guards.approval_desk import ApprovalDesk
from dragoman.stores.config import StoreSettings

pytestmark = [pytest.mark.promise("U6"), pytest.mark.anyio]

BOB = Principal("key", "bob", roles=("owner",))
OPTIONS = CallOptions(door="api", view=EVERYTHING)
POLICIES = """
@id("owner") permit (principal in Hub::Role::"owner", action, resource);
@id("pay") @approval("it costs money")
forbid (principal, action in Hub::Action::"any_call", resource == Hub::Tool::"stub.pay")
unless { context.approved };
"""


async def park(rig: RunRig, desk: ApprovalDesk, **arguments: int) -> str:
    """Has a client ask for an approval and leave."""
    calling = asyncio.ensure_future(rig.hub.call(BOB, "stub.pay", arguments, OPTIONS))
    async with asyncio.timeout(60):
        while not (pending := (await desk.list_visible(OWNER, "pending", None, 1))[0]):
            await asyncio.sleep(0.01)
    calling.cancel()
    await asyncio.wait([calling])
    return pending[0].request.id


async def until_completed(rig: RunRig, desk: ApprovalDesk, id: str) -> None:
    async with asyncio.timeout(60):
        while (outcome := desk.get(id).outcome) != "completed":
            assert outcome in ("", "running"), desk.get(id).approval.problem
            await asyncio.sleep(0.02)
    assert rig.stub.count("pay") == 1


async def test_rights_that_cannot_be_checked_fail_no_approved_call(short_tmp: Path) -> None:
    async with run_rig(short_tmp, policies=POLICIES) as rig:
        rig.app.parts.stores.keys.create(
            "bob", owner="Bob", expires_at=None, scopes=["call"], roles=["owner"]
        )
        rig.add("pay", lambda one: "paid")
        approvals = rig.app.parts.guards.approvals
        desk = approvals.find_desk()
        id = await park(rig, desk)
        with take_away(short_tmp, "hub.db", "keys"):
            begun = []
            begin, store = desk.begin, approvals.built[0].store

            def note(id: str) -> bool:
                begun.append(id)
                return begin(id)

            desk.begin = note  # type: ignore[method-assign]
            desk.decide(id, True, OWNER)
            async with asyncio.timeout(60):
                while len(begun) < 2:  # it was put back, and is tried again
                    await asyncio.sleep(0.02)
            stored = store.find(id)
            assert stored is not None and stored.state == "approved" and not rig.stub.calls
        await until_completed(rig, desk, id)


@pytest.mark.parametrize("engine", ["sqlite", "postgres"])
async def test_approved_call_begins_once_its_store_is_back(
    short_tmp: Path, engine: str, request: pytest.FixtureRequest
) -> None:
    url = request.getfixturevalue("postgres_url") if engine == "postgres" else None
    async with run_rig(short_tmp, policies=POLICIES, store=StoreSettings(url=url)) as rig:
        rig.app.parts.stores.keys.create(
            "bob", owner="Bob", expires_at=None, scopes=["call"], roles=["owner"]
        )
        rig.add("pay", lambda one: "paid")
        desk = rig.app.parts.guards.approvals.find_desk()
        id = await park(rig, desk)
        failed = asyncio.Event()
        claim = desk.claim

        def note(id: str) -> object:
            failed.set()
            return claim(id)

        desk.claim = note  # type: ignore[method-assign, assignment]
        desk.decide(id, True, OWNER)
        with take_away(url or short_tmp, "approvals.db", "approvals"):
            await asyncio.wait_for(failed.wait(), 60)
        await until_completed(rig, desk, id)


async def test_calls_that_wait_for_the_store_are_one_line_in_the_log(
    short_tmp: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with run_rig(short_tmp, policies=POLICIES) as rig:
        rig.app.parts.stores.keys.create(
            "bob", owner="Bob", expires_at=None, scopes=["call"], roles=["owner"]
        )
        rig.add("pay", lambda one: "paid")
        desk = rig.app.parts.guards.approvals.find_desk()
        claim, failed = desk.claim, set[str]()

        def fail(id: str) -> StoredApproval | None:
            if id not in failed:
                failed.add(id)
                raise StorageFailed("the database is away")
            return claim(id)

        desk.claim = fail  # type: ignore[method-assign]
        ids = []
        for number in range(3):
            ids.append(await park(rig, desk, number=number))
            desk.decide(ids[-1], True, OWNER)
        async with asyncio.timeout(60):
            while {desk.get(id).outcome for id in ids} != {"completed"}:
                await asyncio.sleep(0.02)
    assert failed == set(ids)
    lines = [one for one in caplog.records if "its call begins later" in one.getMessage()]
    assert len([one for one in lines if one.levelno >= logging.WARNING]) == 1


async def test_attempt_that_fails_does_not_begin_a_running_call_again(short_tmp: Path) -> None:
    async with run_rig(short_tmp, policies=POLICIES) as rig:
        rig.add("pay", lambda one: "paid")
        desk = rig.app.parts.guards.approvals.find_desk()
        id = await park(rig, desk)
        desk._on_ready = lambda id: None  # the requester is faster than the hub
        desk.decide(id, True, OWNER)
        assert desk.begin(id)
        with take_away(short_tmp, "approvals.db", "approvals"), suppress(StorageFailed):
            assert not desk.begin(id)
        assert not desk.begin(id) and desk.claim(id) is None
        desk.finish(id, "completed", "", b"")


@pytest.mark.parametrize("is_told", [False, True], ids=["nobody was told", "the requester was"])
async def test_call_of_which_nothing_left_is_made_although_its_hub_was_taken_for_dead(
    short_tmp: Path, is_told: bool
) -> None:
    async with run_rig(short_tmp, policies=POLICIES) as rig:
        rig.app.parts.stores.keys.create(
            "bob", owner="Bob", expires_at=None, scopes=["call"], roles=["owner"]
        )
        rig.add("pay", lambda one: "paid")
        approvals = rig.app.parts.guards.approvals
        desk, store = approvals.find_desk(), approvals.built[0].store
        id = await park(rig, desk)
        start, desk._on_ready = desk._on_ready, lambda id: None
        desk.decide(id, True, OWNER)
        assert desk.begin(id)
        store.interrupt(1.0)  # as the heir does, while this hub is paused
        if is_told:
            assert store.deliver(id, 2.0) == b""
        desk._on_ready = start
        desk.put_back(id)
        if is_told:
            assert desk.get(id).outcome == "interrupted" and not rig.stub.calls
        else:
            await until_completed(rig, desk, id)
