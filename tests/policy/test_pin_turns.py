"""Long lists are reviewed in many turns of the event loop: others have theirs between, and what is
decided meanwhile counts.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from tests.policy.pin_corpus import READ
from tests.policy.test_pins import Board, tool

from dragoman.core import loop_turns
from dragoman.core.catalog import PART, Catalog, build_catalogs
from dragoman.core.errors import Quarantined, StorageFailed
from dragoman.core.loop_turns import LoopTurns
from dragoman.core.name_claims import NameClaims
from dragoman.core.ports import PinChange, PinDecision
from dragoman.core.tool import TOOL, Nowhere, Tool
from dragoman.pins import review
from dragoman.pins.lookalikes import build_skeletons

pytestmark = [pytest.mark.promise("B5"), pytest.mark.promise("R9")]

COUNT = 3 * review.PART + 7


def find_error(catalog: Catalog, name: str) -> Exception:
    """The error of a call of that tool."""
    target = catalog.find(name).target
    assert isinstance(target, Nowhere)
    return target.error


@pytest.fixture
def board(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setattr(loop_turns, "TURN_SECONDS", -1.0)  # every turn has been long enough
    made = Board(tmp_path)
    yield made
    made.store.close()


def build_catalog(board: Board) -> Catalog:
    claims = NameClaims(board.store)
    return build_catalogs(board.pins.review, claims, board.pins.review_in_turns)[TOOL]


def build_tools(title: str = "Reads") -> list[Tool]:
    return [tool({**READ, "description": title}, f"t{number}") for number in range(COUNT)]


class Stepper:
    """Lets an offer have one turn after the other."""

    def __init__(self, catalog: Catalog, tools: Sequence[Tool]) -> None:
        self.task = asyncio.ensure_future(catalog.offer_in_turns("files", tools, LoopTurns()))
        self.turns = 0

    async def step(self) -> bool:
        """Returns whether there is more to do."""
        self.turns += 1
        await asyncio.sleep(0)
        return not self.task.done()

    async def run_until_stored(self, board: Board, count: int) -> None:
        while len(board.store.load("files")) < count:
            assert await self.step()


async def test_list_is_offered_at_once_after_many_turns(board: Board) -> None:
    catalog = build_catalog(board)
    stepper = Stepper(catalog, build_tools())
    saved, claimed = [0], [0]
    while await stepper.step():
        assert len(catalog) == 0 and not catalog.list_offered("files")
        assert catalog.find("files.t0").name not in {one.name for one in catalog.list_tools()}
        saved.append(len(board.store.load("files")))
        claimed.append(len(board.store.load_names()))
    await stepper.task
    assert len(catalog) == COUNT and catalog.find("mcp_files_t9").name == "files.t9"
    assert len(board.store.load("files")) == saved[-1] == COUNT
    for counts, part in ((saved, review.PART), (claimed, PART)):
        steps = [after - before for before, after in itertools.pairwise(counts)]
        assert max(steps) == part
    assert stepper.turns > COUNT


@pytest.mark.parametrize("stored", [0, review.PART])
async def test_what_is_decided_meanwhile_is_not_overwritten(board: Board, stored: int) -> None:
    catalog, last = build_catalog(board), f"files.t{COUNT - 1}"
    catalog.offer("files", build_tools())
    catalog.offer("files", build_tools("Writes"))  # quarantined
    stepper = Stepper(catalog, build_tools())  # as they were approved
    for _ in range(10):
        assert await stepper.step()
    while sum(not pin.held_mark for pin in board.store.load("files")) < stored:
        assert await stepper.step()
    board.people.approve(last, "ann")
    await stepper.task
    assert len(catalog) == COUNT - 1
    with pytest.raises(Quarantined, match="has changed since it was approved"):
        raise find_error(catalog, last)


async def test_settings_that_change_meanwhile_count(board: Board) -> None:
    catalog = build_catalog(board)
    stepper = Stepper(catalog, build_tools())
    for _ in range(10):
        assert await stepper.step()
    board.mode = "strict"
    await stepper.task
    assert len(catalog) == 0 and catalog.find("files.t0").name == "files.t0"
    assert not any(pin.mark for pin in board.store.load("files"))


async def test_part_that_cannot_be_stored_is_not_offered(
    board: Board, monkeypatch: pytest.MonkeyPatch
) -> None:
    save, saves = board.store.save, 0

    def fail_second(
        changes: Sequence[PinChange],
        decisions: Sequence[PinDecision],
        listed: tuple[str, str] | None = None,
    ) -> None:
        nonlocal saves
        saves += 1
        if saves == 2:
            raise StorageFailed('"pins.db" cannot be written')
        save(changes, decisions, listed)

    monkeypatch.setattr(board.store, "save", fail_second)
    catalog = build_catalog(board)
    await catalog.offer_in_turns("files", build_tools(), LoopTurns())
    assert len(catalog) == 0 and "files" in board.pins.unreviewed
    assert len(board.store.load("files")) == review.PART
    assert not board.store.load_listed_kinds("files")  # the others are no additions
    await catalog.offer_in_turns("files", build_tools(), LoopTurns())
    assert len(catalog) == COUNT
    assert {pin.approved_by for pin in board.store.load("files")} == {review.FIRST_SIGHT}


async def test_cancelled_offer_changes_nothing(board: Board) -> None:
    catalog = build_catalog(board)
    catalog.offer("files", build_tools()[:5])
    stepper = Stepper(catalog, build_tools())
    await stepper.run_until_stored(board, 2 * review.PART)
    stepper.task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await stepper.task
    assert len(catalog) == 5


async def test_names_that_are_released_meanwhile_are_claimed_again(board: Board) -> None:
    catalog = build_catalog(board)
    stepper = Stepper(catalog, build_tools())
    await stepper.run_until_stored(board, 1)
    catalog.claims.release("files")
    await stepper.task
    assert catalog.find("mcp_files_t9").name == "files.t9"


async def test_pins_of_other_targets_do_not_restart_a_review(board: Board) -> None:
    catalog = build_catalog(board)
    catalog.offer("files", build_tools())
    known = board.pins._find_pins("files")
    version = known.version
    assert board.pins.reload() == []  # as after a change by another hub
    assert board.pins._find_pins("files") is known and known.version == version


async def test_names_of_known_pins_are_indexed_once(
    board: Board, monkeypatch: pytest.MonkeyPatch
) -> None:
    catalog, tools = build_catalog(board), build_tools()
    catalog.offer("files", tools[:-2])
    indexed: list[str] = []

    def build_and_note(spelling: str) -> Any:
        indexed.append(spelling)
        return build_skeletons(spelling)

    monkeypatch.setattr(review, "build_skeletons", build_and_note)
    for count in (COUNT - 1, COUNT):  # each list has an addition
        await catalog.offer_in_turns("files", tools[:count], LoopTurns())
    assert len(catalog) == COUNT
    assert indexed.count("t0") == 1
    lookalike = tool(READ, "to")
    await catalog.offer_in_turns("files", [*tools, lookalike], LoopTurns())
    with pytest.raises(Quarantined, match='its name looks like "t0"'):
        raise find_error(catalog, "files.to")
