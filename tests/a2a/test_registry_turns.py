"""Thousands of agents: they are loaded, started, listed and stopped in many turns of the event
loop, so that calls and health checks have turns between them.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from tests.a2a.registry_fixture import permit_all, run_registry

from dragoman.a2a.config import ExternalAgent
from dragoman.a2a.remote import registry
from dragoman.a2a.remote.health_watch import HealthWatch
from dragoman.a2a.remote.registration import (
    create_registration,
    decode_registration,
    encode_registration,
)
from dragoman.core import loop_turns
from dragoman.core.tool import Tool
from dragoman.stores.registry import PAGE, RegistryStore

pytestmark = pytest.mark.promise("R10")

AGENTS = 2 * PAGE + 50


class LoopCount:
    """Counts the turns of the event loop, and what is done in each."""

    def __init__(self) -> None:
        self.done: Counter[tuple[str, int]] = Counter()
        self._number = 0
        self._loop = asyncio.get_running_loop()
        self._count()

    def _count(self) -> None:
        self._number += 1
        self._next = self._loop.call_soon(self._count)

    def note(self, what: str) -> None:
        self.done[what, self._number] += 1

    def find_most(self, what: str) -> tuple[int, int]:
        """Returns how often it was done in all, and in one turn at most."""
        counts = [count for (name, _), count in self.done.items() if name == what]
        return sum(counts), max(counts, default=0)

    def stop(self) -> None:
        self._next.cancel()


def save_agents(home: Path, count: int) -> None:
    store = RegistryStore(home)
    for number in range(count):
        entry = ExternalAgent(name=f"agent {number}", url="http://127.0.0.1:9/")
        store.save_agent(encode_registration(create_registration(entry, 0.0)))
    store.close()


async def test_many_agents_have_many_turns(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    save_agents(tmp_path, AGENTS)
    loop = LoopCount()

    def decode_and_note(kept: Mapping[str, Any]) -> Any:
        loop.note("load")
        return decode_registration(kept)

    class NotingWatch(HealthWatch):
        async def _run(self) -> None:
            loop.note("start")
            self._first.set()

        async def stop(self) -> None:
            loop.note("stop")
            await super().stop()

    def permit_and_note(tool: Tool) -> bool:
        loop.note("list")
        return permit_all(tool)

    monkeypatch.setattr(loop_turns, "TURN_SECONDS", -1.0)  # every turn has been long enough
    monkeypatch.setattr(registry, "decode_registration", decode_and_note)
    monkeypatch.setattr(registry, "HealthWatch", NotingWatch)
    async with run_registry(tmp_path) as here:
        await here.registry.wait_until_checked()
        listed = await here.listed.list_agents(permit_and_note, secret=True)
        assert len(listed) == len(await here.listed.list_status()) == AGENTS
    loop.stop()

    assert loop.find_most("load") == (AGENTS, 1)
    assert loop.find_most("list") == (AGENTS, 1)
    assert loop.find_most("start") == (AGENTS, registry.GROUP)
    assert loop.find_most("stop") == (AGENTS, registry.GROUP)


async def test_stored_agents_are_read_in_pages(tmp_path: Path) -> None:
    save_agents(tmp_path, AGENTS)
    store = RegistryStore(tmp_path)
    slugs = [row["slug"] for row in store.iterate_agents()]
    assert slugs == sorted(slugs) and len({*slugs}) == AGENTS
    assert sorted(store.list_names()) == sorted(f"agent {number}" for number in range(AGENTS))
    store.close()


async def test_agent_that_is_added_during_a_reload_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The rows were read before it was stored."""
    save_agents(tmp_path, 2)
    monkeypatch.setattr(loop_turns, "TURN_SECONDS", -1.0)
    async with run_registry(tmp_path, start=False) as here:
        reload = asyncio.ensure_future(here.registry.reload())
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        late = create_registration(ExternalAgent(name="a", url="http://127.0.0.1:9/"), 0.0)
        here.registry._store.save_agent(encode_registration(late))
        here.registry._join(late)
        await reload
        assert sorted(here.registry.agents.list_names()) == ["a", "agent 0", "agent 1"]
        assert not here.registry.failures
