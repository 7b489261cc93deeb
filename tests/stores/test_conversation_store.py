"""The stored conversations of agents: found again by their principal alone, and bounded."""

from __future__ import annotations

import asyncio
from contextlib import closing
from pathlib import Path
from typing import Any

from tests.stores.places import execute

from dragoman.core.conversations import ConversationKey
from dragoman.stores.conversations import ConversationStoreLimits, DatabaseConversations
from dragoman.stores.database import StorePlace, connect_server

KEY = ConversationKey("a", "key:ann\0default", "c1")
NOW = 1_000_000.0


def say(text: str) -> list[dict[str, Any]]:
    return [{"role": "user", "content": text}]


def name(context: str, principal: str = KEY.principal) -> ConversationKey:
    return ConversationKey("a", principal, context)


def list_contexts(place: StorePlace) -> list[str]:
    rows = execute(place, "agents.db", "SELECT context FROM conversations ORDER BY used")
    return [row[0] for row in rows]


async def test_conversation_is_found_again_by_its_principal_alone(tmp_path: Path) -> None:
    opened: list[int] = []
    first = DatabaseConversations(tmp_path, lambda: opened.append(1))
    assert await first.find(KEY) is None and not (tmp_path / "agents.db").exists()
    first.save(KEY, say("one"))
    assert await first.find(KEY) == say("one")  # before it is written
    first.save(KEY, say("two"))
    first.close()
    assert (tmp_path / "agents.db").stat().st_mode & 0o777 == 0o600
    again = DatabaseConversations(tmp_path, lambda: opened.append(2))
    assert await again.find(KEY) == say("two")
    await asyncio.sleep(0)
    assert opened == [2]
    for other in (name("c2"), name("c1", "key:bob\0default"), name("c1", "key:ann\0acme")):
        assert await again.find(other) is None
    assert await again.find(KEY._replace(agent="b")) is None
    again.close()


async def test_least_recent_conversations_go_first(store_place: StorePlace) -> None:
    now = [NOW]
    limits = ConversationStoreLimits(
        total=4, of_principal=3, size=1_000, seconds=100, prune_every=1, delay=0
    )

    async def save(context: str, text: str = "x", principal: str = KEY.principal) -> None:
        now[0] += 1
        store.save(name(context, principal), say(text))
        async with asyncio.timeout(10):
            while store._pending:
                await asyncio.sleep(0.002)
        await store._submit(lambda: None)  # after the write, in the same thread

    store = DatabaseConversations(store_place, limits=limits, clock=lambda: now[0])
    for context in ("1", "2", "3", "4"):
        await save(context)
    assert list_contexts(store_place) == ["2", "3", "4"] and await store.find(name("1")) is None
    await save("2", "again")
    for context in ("5", "6"):
        await save(context, principal="other")
    assert list_contexts(store_place) == ["4", "2", "5", "6"]
    await save("7", "y" * 950, "other")
    assert list_contexts(store_place) == ["7"]
    now[0] += 101
    await save("8")
    assert list_contexts(store_place) == ["8"]
    store.close()


async def test_store_that_cannot_be_written_is_tried_again(tmp_path: Path) -> None:
    limits = ConversationStoreLimits(pending=2, delay=0)
    store = DatabaseConversations(tmp_path, limits=limits)
    (tmp_path / "agents.db").mkdir()
    for context in ("1", "2", "3"):
        store.save(name(context), say(context))
    async with asyncio.timeout(10):
        while not store._is_failing:
            await asyncio.sleep(0.002)
    assert await store.find(name("3")) == say("3") and await store.find(name("1")) is None
    (tmp_path / "agents.db").rmdir()
    store.save(name("3"), say("now"))
    store.close()
    assert sorted(list_contexts(tmp_path)) == ["2", "3"]


async def test_another_hub_continues_a_conversation(postgres_url: str) -> None:
    with (
        closing(connect_server(postgres_url)) as here,
        closing(connect_server(postgres_url)) as there,
    ):
        first, second = DatabaseConversations(here), DatabaseConversations(there)
        assert await second.find(KEY) is None
        for text in ("one", "two"):
            first.save(KEY, say(text))
            await first._submit(first._write)
            assert await second.find(KEY) == say(text)
        first.close()
        second.close()
