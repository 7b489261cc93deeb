"""How approved calls end while their store fails, and which calls get an earlier result."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from tests.guards.test_approval import CI, GUEST, LEA, Rig
from tests.table_outage import take_away

from dragoman.core.approvals import COMPLETED, INTERRUPTED, RUNNING
from dragoman.core.call import Call, Question, Result
from dragoman.core.errors import ApprovalPending, StorageFailed, WorkFailed
from dragoman.guards.call_endings import CallEnding, CallEndings, EndingLimits
from dragoman.guards.config import ApprovalSettings
from dragoman.guards.held_calls import REPEATED_META
from dragoman.stores.database import StorePlace

pytestmark = pytest.mark.promise("U6")


@pytest.fixture
def rig(store_place: StorePlace) -> Iterator[Rig]:
    made = Rig(store_place)
    yield made
    made.store.close()


@pytest.fixture
def place(store_place: StorePlace) -> Path | str:
    return store_place if isinstance(store_place, Path) else store_place.url


async def until_ended(rig: Rig, id: str) -> str:
    """Waits until the store has it that the call has ended, and returns how."""
    async with asyncio.timeout(60):
        while True:
            stored = rig.store.find(id)
            assert stored is not None
            if stored.outcome not in ("", RUNNING):
                return stored.outcome
            await asyncio.sleep(0.02)


# --- endings that cannot be stored ----------------------------------------------------------------


async def make_while_away(rig: Rig, place: Path | str, id: str, **args: Any) -> None:
    """Makes an approved call whose end meets an outage of the store."""
    outages = []

    async def run(call: Call) -> Result:
        outage = take_away(place, "approvals.db", "approvals")
        outage.__enter__()
        outages.append(outage)
        return Result(content=[{"type": "text", "text": "paid"}])

    assert rig.desk.claim(id) is not None
    rig.target.run = run  # type: ignore[method-assign]
    assert await rig.call(id, **args) == "paid"
    with pytest.raises(StorageFailed):
        rig.desk.get(id)
    outages[0].__exit__(None, None, None)


async def test_ending_is_kept_until_it_can_be_stored(rig: Rig, place: Path | str) -> None:
    id = await rig.park(x=1)
    rig.desk.decide(id, True, LEA)
    await make_while_away(rig, place, id, x=1)
    # The requester gets the result before it is stored, and it is stored without another call.
    assert rig.desk.get(id).outcome == COMPLETED
    assert await rig.call(x=1) == "paid"
    assert await until_ended(rig, id) == COMPLETED
    again = Rig(rig.place)  # another process
    assert await again.call(x=1) == "paid" and again.target.calls == []
    again.store.close()


async def test_stored_result_says_how_it_ends(rig: Rig) -> None:
    id = await rig.park(x=1)
    rig.desk.decide(id, True, LEA)

    async def run(call: Call) -> Result:
        return Result(content=[{"type": "text", "text": "half"}], ending="cut")

    assert rig.desk.claim(id) is not None
    rig.target.run = run  # type: ignore[method-assign]
    assert await rig.call(id, x=1) == "half"
    again = Rig(rig.place)  # another process
    assert (await again.get_result(x=1)).ending == "cut" and again.target.calls == []
    again.store.close()


async def test_hub_that_was_declared_dead_stores_what_it_knows(rig: Rig, place: Path | str) -> None:
    rig.store.rename_hub("one")
    id = await rig.park(x=1)
    rig.desk.decide(id, True, LEA)
    await make_while_away(rig, place, id, x=1)
    heir = Rig(rig.place)
    heir.desk.take_over("one")
    assert heir.desk.get(id).outcome == INTERRUPTED
    with pytest.raises(WorkFailed, match="unknown"):
        await heir.call(x=1)
    rig.store.rename_hub("two")  # it is back, under another id
    async with asyncio.timeout(60):
        while heir.desk.get(id).outcome != COMPLETED:
            await asyncio.sleep(0.02)
    assert await heir.call(x=1) == "paid" and heir.target.calls == []
    heir.store.close()


async def test_nothing_begins_while_endings_are_not_stored(rig: Rig, place: Path | str) -> None:
    first, second = await rig.park(x=1), await rig.park(x=2)
    for id in (first, second):
        rig.desk.decide(id, True, LEA)
    assert rig.desk.claim(first) is not None
    with take_away(place, "approvals.db", "approvals"):
        rig.desk.finish(first, COMPLETED, "", b"{}")
        with pytest.raises(StorageFailed):
            rig.desk.begin(second)
    assert rig.desk.begin(second)
    stored = rig.store.find(first)
    assert stored is not None and stored.outcome == COMPLETED


async def test_error_that_cannot_be_stored_holds_up_no_other_call(rig: Rig) -> None:
    """Names of files may have lone surrogates, and errors of agents repeat them."""
    first, second = await rig.park(x=1), await rig.park(x=2)
    for id in (first, second):
        rig.desk.decide(id, True, LEA)

    async def fail(call: Call) -> Result:
        raise WorkFailed("there is no file \udcff")

    run, rig.target.run = rig.target.run, fail  # type: ignore[method-assign]
    assert rig.desk.claim(first) is not None
    with pytest.raises(WorkFailed):
        await rig.call(first, x=1)
    rig.target.run = run  # type: ignore[method-assign]
    stored = rig.store.find(first)
    assert stored is not None and stored.approval.problem.endswith("there is no file ?")
    assert rig.desk.claim(second) is not None
    await rig.call(second, x=2)
    assert await until_ended(rig, second) == COMPLETED


async def test_request_that_was_deleted_holds_up_no_other_ending(
    rig: Rig, place: Path | str
) -> None:
    first, second = await rig.park(x=1), await rig.park(x=2)
    for id in (first, second):
        rig.desk.decide(id, True, LEA)
        assert rig.desk.claim(id) is not None
    with take_away(place, "approvals.db", "approvals"):
        rig.desk.put_back(first)
        rig.desk.finish(second, COMPLETED, "", b"{}")
    with rig.store._transact() as db:
        db.execute("DELETE FROM approvals WHERE id = ?", (first,))
    assert await until_ended(rig, second) == COMPLETED


async def test_call_that_the_hub_could_not_make_may_begin_again(rig: Rig) -> None:
    rig.settings = ApprovalSettings(wait_secs=60)
    waiting = asyncio.ensure_future(rig.call(x=1))
    while not rig.events:
        await asyncio.sleep(0)
    id = rig.events[0].id

    def fail(call: Call) -> Call:
        raise StorageFailed("keys cannot be checked")

    recheck, rig.held._recheck = rig.held._recheck, fail
    rig.desk.decide(id, True, LEA)
    with pytest.raises(StorageFailed):  # its client hears of it, and the hub is to make it now
        await waiting
    assert rig.desk.get(id).outcome == "" and rig.ready == [id]
    rig.held._recheck = recheck
    assert await rig.call(x=1) == "done {'x': 1}"
    assert rig.desk.get(id).outcome == COMPLETED and len(rig.target.calls) == 1


@contextmanager
def lose_answers(rig: Rig) -> Iterator[None]:
    """Lets the store commit, and fail then."""
    transact = rig.store._transact

    @contextmanager
    def lose() -> Iterator[Any]:
        with transact() as db:
            yield db
        raise StorageFailed("the connection was lost")

    rig.store._transact = lose  # type: ignore[method-assign]
    try:
        yield
    finally:
        del rig.store._transact


async def test_begin_whose_answer_was_lost_is_not_lost(rig: Rig) -> None:
    id = await rig.park(x=1)
    rig.desk.decide(id, True, LEA)
    with lose_answers(rig), pytest.raises(StorageFailed):
        rig.desk.claim(id)
    assert rig.desk.get(id).outcome == RUNNING
    assert rig.desk.claim(id) is not None and rig.desk.claim(id) is None
    assert await rig.call(id, x=1) == "done {'x': 1}"


@pytest.mark.parametrize("is_stored", [True, False], ids=["stored at first", "stored later"])
async def test_begin_whose_answers_were_lost_around_a_rejoin_is_not_lost(
    rig: Rig, place: Path | str, is_stored: bool
) -> None:
    rig.store.rename_hub("one")
    id = await rig.park(x=1)
    rig.desk.decide(id, True, LEA)
    outage = lose_answers(rig) if is_stored else take_away(place, "approvals.db", "approvals")
    with outage, pytest.raises(StorageFailed):
        rig.desk.begin(id)
    for hub in ("two", "three"):  # the others have declared it dead
        if is_stored:
            rig.store.interrupt(1.0, "one")
        rig.store.rename_hub(hub)
        with lose_answers(rig), pytest.raises(StorageFailed):
            rig.desk.begin(id)
    assert rig.desk.claim(id) is not None and rig.desk.claim(id) is None
    assert await rig.call(id, x=1) == "done {'x': 1}"
    assert rig.desk.get(id).outcome == COMPLETED


async def test_replies_that_are_not_stored_are_bounded(rig: Rig, place: Path | str) -> None:
    endings = CallEndings(rig.store, lambda id, ending: None, EndingLimits(reply_bytes=250))
    ids = [await rig.park(x=number) for number in range(3)]
    for id in ids:
        rig.desk.decide(id, True, LEA)
        assert rig.store.begin(id)
    with take_away(place, "approvals.db", "approvals"):
        for id in ids:
            endings.add(id, CallEnding(COMPLETED, "", bytes(100), 1.0, 0.0))
        sizes = [len(found.reply) for id in ids if (found := endings.find(id)) is not None]
    assert sizes == [0, 100, 100]
    endings.close()
    assert len(endings) == 0 and len(rig.store.load_reply(ids[2])) == 100


# --- repetitions ----------------------------------------------------------------------------------


async def approve(rig: Rig, **args: Any) -> str:
    """Has a call made whose client waits for it."""
    rig.settings = ApprovalSettings(wait_secs=60)
    rig.events.clear()
    waiting = asyncio.ensure_future(rig.get_result(**args))
    while not rig.events:
        await asyncio.sleep(0)
    id: str = rig.events[0].id
    rig.desk.decide(id, True, LEA)
    await waiting
    rig.settings = ApprovalSettings(wait_secs=0)
    return id


async def test_lost_answer_leads_neither_to_an_approval_nor_to_an_effect(rig: Rig) -> None:
    id = await approve(rig, x=1)
    again = Rig(rig.place)  # the hub was killed before the client had the answer
    again.now = rig.now + 60
    again.desk.start_ready()
    result = await again.get_result(x=1)
    first, mark = result.content
    assert first["text"] == "done {'x': 1}" and again.target.calls == []
    assert "was not made again" in mark["text"] and id in mark["text"]
    assert result.extra["_meta"][REPEATED_META]["approval"] == id
    assert again.audit.conclusions[-1]["repeated"] is True
    assert again.audit.conclusions[-1]["approval"] == id
    # Other arguments, another caller, and a later call are other calls.
    assert await again.park(x=2) and await again.park(who=GUEST, x=1)
    again.now += again.settings.repeat_secs
    assert await again.park(x=1) != id
    again.store.close()


async def test_client_says_by_a_key_what_is_the_same_call(rig: Rig) -> None:
    id = await approve(rig, x=1, key="first")
    rig.now += rig.settings.repeat_secs + 60
    assert len((await rig.get_result(x=1, key="first")).content) == 2  # for as long as it is kept
    with pytest.raises(ApprovalPending) as raised:
        await rig.get_result(x=1, key="second")
    assert raised.value.id != id
    with pytest.raises(ApprovalPending):
        await rig.get_result(x=1)
    assert len(rig.target.calls) == 1


async def test_failures_and_questions_are_not_repeated(rig: Rig) -> None:
    answers: list[Result | Exception] = [
        Result(content=[{"type": "text", "text": "no money"}], failed=True),
        Result(questions={"q": Question("form", {"message": "Sure?"})}, handle="h"),
        WorkFailed("it broke"),
    ]

    async def run(call: Call) -> Result:
        answer = answers[int(call.arguments["x"])]
        if isinstance(answer, Exception):
            raise answer
        return answer

    rig.target.run = run  # type: ignore[method-assign]
    for number in range(3):
        try:
            id = await approve(rig, x=number)
        except WorkFailed:
            id = rig.events[0].id
        rig.settings = ApprovalSettings(wait_secs=0)
        assert await rig.park(x=number) != id


async def test_repetitions_can_be_turned_off(rig: Rig) -> None:
    id = await approve(rig, x=1)
    rig.settings = ApprovalSettings(wait_secs=0, repeat_secs=0)
    assert await rig.park(x=1) != id
    assert rig.desk.get(id).request.requester == CI
