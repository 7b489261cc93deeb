"""The stored conversations of agents: found again by their principal alone, appended to by several
hubs at once, and bounded."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, closing, contextmanager
from pathlib import Path
from typing import Any

import pytest
from tests.stores.places import execute

from dragoman.core.conversations import ConversationKey
from dragoman.core.errors import StorageFailed
from dragoman.stores.conversations import (
    NEVER,
    ConversationStoreLimits,
    DatabaseConversations,
    TableLimits,
)
from dragoman.stores.database import (
    DatabaseWriter,
    OperationalError,
    StorePlace,
    connect_server,
)
from dragoman.stores.sqlite import open_store

KEY = ConversationKey("a", "key:ann\0default", "c1")
NOW = 1_000_000.0


def say(*texts: str) -> list[dict[str, Any]]:
    return [{"role": "user", "content": text} for text in texts]


def keep_all(messages: list[Any]) -> list[Any]:
    return messages


def name(context: str, principal: str = KEY.principal) -> ConversationKey:
    return ConversationKey("a", principal, context)


def put(store: DatabaseConversations, key: ConversationKey, *texts: str) -> float:
    """Begins a conversation."""
    return store.append(key, NEVER, say(*texts), say(*texts), keep_all)


async def read(store: DatabaseConversations, key: ConversationKey = KEY) -> list[Any] | None:
    found = await store.find(key)
    return found.messages if found is not None else None


async def read_texts(store: DatabaseConversations) -> list[str]:
    return [message["content"] for message in await read(store) or ()]


def list_contexts(place: StorePlace, table: str = "conversations") -> list[str]:
    rows = execute(place, "agents.db", f"SELECT context FROM {table} ORDER BY used")
    return [row[0] for row in rows]


async def settle(store: DatabaseConversations) -> None:
    """Waits until everything is written."""
    async with asyncio.timeout(60):
        while store._turns or store._contexts:
            await store.flush()
            await asyncio.sleep(0.002)


@asynccontextmanager
async def open_two(url: str) -> AsyncIterator[tuple[DatabaseConversations, DatabaseConversations]]:
    with closing(connect_server(url)) as here, closing(connect_server(url)) as there:
        first = DatabaseConversations(here, is_shared=True)
        stores = first, DatabaseConversations(there, is_shared=True)
        yield stores
        for store in stores:
            store.close()


async def test_conversation_is_found_again_by_its_principal_alone(tmp_path: Path) -> None:
    opened: list[int] = []
    first = DatabaseConversations(tmp_path, lambda: opened.append(1))
    assert await read(first) is None and not (tmp_path / "agents.db").exists()
    version = put(first, KEY, "one")
    assert await read(first) == say("one")  # before it is written
    first.append(KEY, version, say("one", "two"), say("two"), keep_all)
    first.close()
    assert (tmp_path / "agents.db").stat().st_mode & 0o777 == 0o600
    again = DatabaseConversations(tmp_path, lambda: opened.append(2))
    assert await read(again) == say("one", "two")
    await asyncio.sleep(0)
    assert opened == [2]
    for other in (name("c2"), name("c1", "key:bob\0default"), name("c1", "key:ann\0acme")):
        assert await read(again, other) is None
    assert await read(again, KEY._replace(agent="b")) is None
    again.close()


async def test_least_recent_conversations_go_first(store_place: StorePlace) -> None:
    now = [NOW]
    bounds = TableLimits(total=4, of_principal=3, size=1_000, seconds=100)
    limits = ConversationStoreLimits(
        bounds, bounds, prune_every=0, prune_contexts_every=0, delay=0, context_delay=0
    )
    store = DatabaseConversations(store_place, limits=limits, clock=lambda: now[0])

    async def save(context: str, text: str = "x", principal: str = KEY.principal) -> None:
        now[0] += 1
        key = name(context, principal)
        known = await store.find(key)
        added = say(text)
        store.append(key, known.version if known else NEVER, added, added, keep_all)
        store.save_context(key, text.ljust(50))
        await settle(store)

    def list_both() -> list[str]:
        contexts = list_contexts(store_place)
        assert list_contexts(store_place, "contexts") == contexts
        return contexts

    for context in ("1", "2", "3", "4"):
        await save(context)
    assert list_both() == ["2", "3", "4"] and await store.find(name("1")) is None
    assert await store.find_context(name("1")) == ""
    await save("2", "again")
    for context in ("5", "6"):
        await save(context, principal="other")
    assert list_both() == ["4", "2", "5", "6"]
    await save("7", "y" * 960, "other")
    assert list_both() == ["7"]
    now[0] += 101
    assert await store.find_context(name("7", "other")) == ""
    await save("8")
    assert list_both() == ["8"]
    store.close()


async def test_store_that_cannot_be_written_is_tried_again(tmp_path: Path) -> None:
    limits = ConversationStoreLimits(pending=2, delay=0)
    store = DatabaseConversations(tmp_path, limits=limits)
    (tmp_path / "agents.db").mkdir()
    for context in ("1", "2", "3"):
        put(store, name(context), context)
    async with asyncio.timeout(60):
        while not store._is_failing:
            await asyncio.sleep(0.002)
    assert await read(store, name("3")) == say("3")
    with pytest.raises(StorageFailed):  # there may be one
        await store.find(name("1"))
    (tmp_path / "agents.db").rmdir()
    async with asyncio.timeout(60):
        while store._turns:  # by itself
            await asyncio.sleep(0.01)
    assert sorted(list_contexts(tmp_path)) == ["2", "3"]
    store.close()


async def test_conversation_is_read_while_another_process_writes(tmp_path: Path) -> None:
    first = DatabaseConversations(tmp_path)
    put(first, KEY, "one")
    first.close()
    store = DatabaseConversations(tmp_path, limits=ConversationStoreLimits(delay=0))
    with closing(sqlite3.connect(tmp_path / "agents.db", isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        found = await store.find(KEY)
        assert found is not None and found.messages == say("one")
        store.append(KEY, found.version, say("one", "two"), say("two"), keep_all)
        async with asyncio.timeout(60):
            while not store._is_failing:
                await asyncio.sleep(0.01)
        assert await read(store) == say("one", "two")
    await settle(store)
    store.close()
    again = DatabaseConversations(tmp_path)
    assert await read(again) == say("one", "two")
    again.close()


async def test_conversation_that_cannot_be_decoded_is_not_empty(tmp_path: Path) -> None:
    first = DatabaseConversations(tmp_path)
    put(first, KEY, "one")
    first.close()
    execute(tmp_path, "agents.db", "UPDATE conversations SET messages = CAST('[{' AS BLOB)")
    store = DatabaseConversations(tmp_path)
    with pytest.raises(StorageFailed, match="cannot be read"):
        await store.find(KEY)
    store.close()


async def test_file_of_the_version_before_is_extended(tmp_path: Path) -> None:
    from dragoman.stores.agents_db import MIGRATIONS

    open_store(tmp_path / "agents.db", MIGRATIONS[:4]).close()
    store = DatabaseConversations(tmp_path)
    store.save_context(KEY, "far")
    store.close()
    again = DatabaseConversations(tmp_path)
    assert await again.find_context(KEY) == "far"
    again.close()


async def test_nothing_is_written_after_it_is_closed(tmp_path: Path) -> None:
    store = DatabaseConversations(tmp_path, limits=ConversationStoreLimits(delay=0.01))
    put(store, KEY, "one")
    timer = store._timer
    store.close()
    assert timer is not None and timer.cancelled()
    store.append(KEY, NEVER, say("late"), say("late"), keep_all)
    assert store._timer is None and store._threads is None
    again = DatabaseConversations(tmp_path)
    assert await read(again) == say("one")
    again.close()


async def test_contexts_are_kept_and_deleted(store_place: StorePlace) -> None:
    store = DatabaseConversations(store_place)
    assert await store.find_context(KEY) == ""
    store.save_context(KEY, "far")
    assert await store.find_context(KEY) == "far"
    await settle(store)
    assert await store.find_context(KEY) == "far"
    assert await store.find_context(name("c1", "other")) == ""
    store.save_context(KEY, "")
    assert await store.find_context(KEY) == ""
    await settle(store)
    assert await store.find_context(KEY) == "" and list_contexts(store_place, "contexts") == []
    store.close()


async def test_only_the_latest_contexts_of_a_busy_caller_are_written(tmp_path: Path) -> None:
    bounds = TableLimits(total=100, of_principal=3, size=10_000, seconds=100)
    limits = ConversationStoreLimits(contexts=bounds, prune_contexts_every=1_000)
    store = DatabaseConversations(tmp_path, limits=limits)
    store._unpruned_contexts = 0
    for number in range(10):
        store.save_context(name(str(number)), "far")
        store.save_context(name("own", f"other {number}"), "far")
    await settle(store)
    contexts = list_contexts(tmp_path, "contexts")
    assert sorted(contexts) == ["7", "8", "9", *["own"] * 10]
    store.close()


async def test_another_hub_continues_a_conversation(postgres_url: str) -> None:
    async with open_two(postgres_url) as (first, second):
        assert await second.find(KEY) is None and await second.find_context(KEY) == ""
        version = NEVER
        for number in range(1, 4):
            texts = [str(one) for one in range(number)]
            version = first.append(KEY, version, say(*texts), say(texts[-1]), keep_all)
            first.save_context(KEY, texts[-1])
            await first.flush()
            found = await second.find(KEY)
            assert found == (say(*texts), version)
            assert await second.find(KEY, version) is None  # nothing newer
            assert await second.find_context(KEY) == texts[-1]


async def test_turns_of_two_hubs_at_once_are_all_kept(postgres_url: str) -> None:
    async with open_two(postgres_url) as (first, second):

        async def talk(store: DatabaseConversations, who: str) -> None:
            for number in range(15):
                known = await store.find(KEY)
                added = say(f"{who} {number}")
                whole = [*(known.messages if known is not None else ()), *added]
                await asyncio.sleep(0)  # the model answers
                version = known.version if known is not None else NEVER
                store.append(KEY, version, whole, added, keep_all)
                await store.flush()

        async with asyncio.timeout(60):
            await asyncio.gather(talk(first, "a"), talk(second, "b"))
        texts = await read_texts(first)
        for who in "ab":
            own = [text for text in texts if text.startswith(who)]
            assert own == [f"{who} {number}" for number in range(15)]
        assert len(texts) == 30


async def test_turns_that_follow_while_one_is_written_are_stored_once(
    store_place: StorePlace,
) -> None:
    store = DatabaseConversations(store_place, limits=ConversationStoreLimits(delay=0))
    version, texts = NEVER, []
    for number in range(40):
        texts.append(str(number))
        version = store.append(KEY, version, say(*texts), say(texts[-1]), keep_all)
        if number % 3 == 0:
            await asyncio.sleep(0.001)  # a write begins, and ends at any time
    await settle(store)
    assert await read_texts(store) == texts
    store.close()


class LostOutcome:
    """A writer whose next commit succeeds, which the hub does not learn."""

    def __init__(self, writer: DatabaseWriter) -> None:
        self.writer = writer
        self.is_lost = False

    @contextmanager
    def transaction(self) -> Iterator[None]:
        with self.writer.transaction():
            yield
        if not self.is_lost:
            self.is_lost = True
            raise OperationalError("the connection was lost")


@pytest.mark.parametrize("conflicts", [False, True])
async def test_turn_whose_commit_was_not_confirmed_is_stored_once(
    store_place: StorePlace, conflicts: bool
) -> None:
    store = DatabaseConversations(store_place, limits=ConversationStoreLimits(delay=0))
    version = put(store, KEY, "one")
    await settle(store)
    assert store._base is not None
    store._base.writer = LostOutcome(store._base.writer)
    store.append(KEY, NEVER if conflicts else version, say("one", "two"), say("two"), keep_all)
    await settle(store)
    assert store._base.writer.is_lost and await read_texts(store) == ["one", "two"]
    store.close()
