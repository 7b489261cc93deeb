"""The memory tools, and their store: namespaces, grants, search, bounds."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.tools.tool_rig import ToolRig, read_object, read_text

from dragoman.core.errors import InvalidInput, NotFound, Overloaded
from dragoman.stores.agent_memory import DatabaseMemory, MemoryLimits

pytestmark = pytest.mark.promise("T2")


async def test_own_and_shared_memory(rig: ToolRig) -> None:
    rig.add_agent(rig.build_profile("other"))
    await rig.use("memory_store", key="plan", value="mine")
    await rig.use("memory_store", key="shared.plan", value="ours")
    await rig.use("memory_store", "other", key="self.plan", value="theirs")
    assert read_text(await rig.use("memory_recall", key="self.plan")) == "mine"
    assert read_text(await rig.use("memory_recall", "other", key="plan")) == "theirs"
    assert read_text(await rig.use("memory_recall", "other", key="shared.plan")) == "ours"
    assert read_text(await rig.use("memory_store", key="plan", value="new")) == (
        'replaced "self.plan"'
    )
    assert read_text(await rig.use("memory_recall", key="plan")) == "new"
    listed = read_object(await rig.use("memory_recall"))
    assert listed == {"keys": ["self.plan", "shared.plan"]}
    with pytest.raises(NotFound, match=r'nothing is stored under "self\.nothing"'):
        await rig.use("memory_recall", key="nothing")


async def test_memory_is_searched_by_words(rig: ToolRig) -> None:
    rig.add_agent(rig.build_profile("other", memory_read=("self.*",)))
    await rig.use("memory_store", key="a", value="the deploy of the website failed")
    await rig.use("memory_store", key="shared.b", value="deploy deploy deploy")
    await rig.use("memory_store", "other", key="c", value="deploy of another agent")

    async def search(query: str, agent: str = "tester", **more: int) -> list[str]:
        found = await rig.use("memory_recall", agent, query=query, **more)
        return [one["key"] for one in read_object(found)["matches"]]

    assert sorted(await search("deploy")) == ["self.a", "shared.b"]
    assert await search("deploy website", limit=1) == ["self.a"]
    assert await search("deploy", "other") == ["self.c"]  # not granted to recall shared keys
    for odd in ('" OR key:*', "a AND NOT b", "*", "NEAR(x y)", "key:self", "🙂", "'"):
        await search(odd)  # has no meaning of its own
    assert await search("nothing") == []


async def test_keys_that_were_not_granted(rig: ToolRig) -> None:
    rig.add_agent(
        rig.build_profile("narrow", memory_read=("self.*",), memory_write=("self.notes.*",))
    )
    await rig.use("memory_store", "narrow", key="notes.a", value="x")
    for key in ("a", "self.a", "shared.notes.a"):
        with pytest.raises(InvalidInput, match="not granted to store"):
            await rig.use("memory_store", "narrow", key=key, value="x")
    with pytest.raises(InvalidInput, match="not granted to recall"):
        await rig.use("memory_recall", "narrow", key="shared.a")
    rig.add_agent(rig.build_profile("none", memory_read=(), memory_write=()))
    with pytest.raises(InvalidInput, match="granted keys: none"):
        await rig.use("memory_store", "none", key="a", value="x")
    assert read_object(await rig.use("memory_recall", "none")) == {"keys": []}


@pytest.mark.parametrize(
    "arguments",
    [
        {"key": "self."},
        {"key": " a"},
        {"key": "a\nb"},
        {"key": "a", "query": "b"},
        {"key": "x" * 300},
    ],
)
async def test_malformed_recall_is_refused(rig: ToolRig, arguments: dict[str, str]) -> None:
    with pytest.raises(InvalidInput):
        await rig.use("memory_recall", **arguments)


async def test_large_value_is_refused(rig: ToolRig) -> None:
    with pytest.raises(InvalidInput, match="larger than 100000 bytes"):
        await rig.use("memory_store", key="a", value="x" * 100_001)


# --- the store ------------------------------------------------------------------------------------


@pytest.fixture
def store(tmp_path: Path) -> Iterator[DatabaseMemory]:
    made = DatabaseMemory(tmp_path, MemoryLimits(keys=3, size=30, total_keys=5, total_size=35))
    yield made
    made.close()


def test_store_is_bounded_per_namespace_and_in_total(store: DatabaseMemory) -> None:
    for key in "abc":
        assert store.store("one", key, "x")
    with pytest.raises(Overloaded, match="3 keys"):
        store.store("one", "d", "x")
    assert not store.store("one", "a", "y")  # replacing needs no room
    with pytest.raises(Overloaded, match="30 bytes"):
        store.store("one", "a", "y" * 30)
    store.store("two", "a", "x")
    store.store("two", "b", "x")
    with pytest.raises(Overloaded, match="all agents is full"):
        store.store("three", "a", "x")
    assert store.delete("one", "a") and not store.delete("one", "a")
    with pytest.raises(Overloaded, match="all agents is full"):
        store.store("three", "a", "x" * 28)
    assert store.store("three", "a", "x")


def test_store_survives_a_restart(tmp_path: Path) -> None:
    first = DatabaseMemory(tmp_path)
    first.store("one", "a", "words to find")
    first.close()
    again = DatabaseMemory(tmp_path)
    found = again.find("one", "a")
    assert found is not None and found.value == "words to find"
    assert [one.key for one in again.search(["one"], "find", 5)] == ["a"]
    assert again.search([], "find", 5) == [] and again.search(["two"], "find", 5) == []
    assert (tmp_path / "agents.db").stat().st_mode & 0o777 == 0o600
    again.close()
