"""Those who ask for more than their share, and plug-ins that end where they should answer."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

import pytest
from tests.skill_hub import SkillHub
from tests.web.events_place import ground

from dragoman.core.errors import Denied, Overloaded
from dragoman.core.events import PreVerb
from dragoman.stores.dispatches import ALL, MAX_FINDING, DispatchStore

DISPATCHES = "/api/a2a/dispatches"


@pytest.mark.parametrize("limit", ["0000000011000", "00000000200000000", "000000001" * 100])
async def test_no_way_of_writing_a_limit_goes_beyond_it(limit: str, tmp_path: Path) -> None:
    async with ground(tmp_path) as here:
        status, found = await here.get(f"{DISPATCHES}?limit={limit}")
        assert status == 400 and "from 1 to 200" in found["error"]["message"]


async def test_who_looks_for_dispatches_again_and_again_does_not_keep_them_from_being_written(
    tmp_path: Path,
) -> None:
    store = DispatchStore(tmp_path, 1_000)
    try:
        finds = (store.find(10, None, org="default", caller=ALL) for _ in range(200))
        found = await asyncio.gather(*finds, return_exceptions=True)
        refused = [one for one in found if isinstance(one, Overloaded)]
        assert len(refused) == 200 - MAX_FINDING
        assert (await store.find(10, None, org="default", caller=ALL)) == ([], None)
    finally:
        await store.close()


async def test_a_gate_that_wants_to_end_the_process_refuses_the_call() -> None:
    road = SkillHub()

    async def leave(event: PreVerb) -> None:
        sys.exit(3)

    road.bus.gate("rash", leave)
    with pytest.raises(Denied, match='the gate "rash" failed'):
        await road.call()
