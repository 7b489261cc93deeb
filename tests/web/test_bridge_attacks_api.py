"""Clients that exceed their share of the API, and plugins that raise instead of answering."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

import pytest
from tests.skill_hub import SkillHub
from tests.web.events_fixture import run_events_server

from dragoman.core.errors import Denied, Overloaded
from dragoman.core.events import PreVerb
from dragoman.stores.dispatches import ALL, MAX_FINDING, DispatchStore

DISPATCHES = "/api/a2a/dispatches"


@pytest.mark.parametrize("limit", ["0000000011000", "00000000200000000", "000000001" * 100])
async def test_limit_parameter_cannot_exceed_its_maximum(limit: str, tmp_path: Path) -> None:
    async with run_events_server(tmp_path) as here:
        status, found = await here.get(f"{DISPATCHES}?limit={limit}")
        assert status == 400 and "from 1 to 200" in found["error"]["message"]


async def test_repeated_dispatch_queries_do_not_block_writes(
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


async def test_gate_raising_system_exit_refuses_the_call() -> None:
    skill_hub = SkillHub()

    async def leave(event: PreVerb) -> None:
        sys.exit(3)

    skill_hub.bus.gate("rash", leave)
    with pytest.raises(Denied, match='the gate "rash" failed'):
        await skill_hub.call()
