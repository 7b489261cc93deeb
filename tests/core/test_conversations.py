"""Conversations are bounded in number and age, and one principal cannot push out another's."""

from __future__ import annotations

from typing import Any

import pytest

from dragoman.core.call import Call, MessageOrigin
from dragoman.core.conversations import (
    Conversation,
    ConversationKey,
    ConversationLimits,
    Conversations,
    is_conversation_id,
)
from dragoman.core.errors import InvalidInput, StorageFailed
from dragoman.core.principal import Principal
from dragoman.core.tool import build_unknown_tool
from dragoman.core.trace import new_trace

ANN, BOB = Principal("key", "ann"), Principal("key", "bob")


def call_by(caller: Principal, **more: Any) -> Call:
    return Call(
        principal=caller,
        tool=build_unknown_tool("a.message"),
        requested_name="a.message",
        arguments={},
        trace=new_trace(),
        door="mcp-http",
        **more,
    )


def test_principal_cannot_evict_conversations_of_another() -> None:
    kept = Conversations("a", ConversationLimits(of_principal=3, total=4))
    first = kept.keep(call_by(ANN), Conversation(), "far")
    many = [kept.keep(call_by(BOB), Conversation(), f"far {n}") for n in range(10)]
    assert len(kept) == 4 and len(set(many)) == 10
    assert kept.find(call_by(ANN), first).context == "far"
    assert kept.find(call_by(BOB), many[-1]).context == "far 9"
    for id in (many[0], first):
        with pytest.raises(InvalidInput, match="unknown conversation"):
            kept.find(call_by(BOB), id)


def test_sessions_per_principal_are_bounded() -> None:
    kept = Conversations("a", ConversationLimits(of_principal=2))
    for n in range(5):
        kept.keep(call_by(ANN, session=f"s{n}"), Conversation(), f"far {n}")
    found = [kept.find(call_by(ANN, session=f"s{n}")).context for n in range(5)]
    assert found == ["", "", "", "far 3", "far 4"]


def test_idle_conversation_expires() -> None:
    now = 0.0
    kept = Conversations("a", ConversationLimits(idle_seconds=10), clock=lambda: now)
    call = call_by(ANN, session="s")
    id = kept.keep(call, Conversation(), "far")
    now = 9.0
    assert kept.find(call) == Conversation(id, "far")
    kept.keep(call, kept.find(call), "far")
    now = 18.0
    assert kept.find(call).context == "far"
    now = 28.5
    assert kept.find(call) == Conversation() and len(kept) == 0
    with pytest.raises(InvalidInput):
        kept.find(call, id)


def test_conversation_forgotten_by_the_agent_is_not_continued() -> None:
    kept = Conversations("a")
    call = call_by(ANN, session="s")
    kept.keep(call, Conversation(), "far")
    kept.forget(call, kept.find(call))
    assert kept.find(call) == Conversation() and len(kept) == 0


def test_agent_without_a_context_has_no_conversation() -> None:
    kept = Conversations("a")
    assert kept.keep(call_by(ANN, session="s"), Conversation(), "") == ""
    assert len(kept) == 0


class Contexts:
    """A store that several hubs use."""

    def __init__(self) -> None:
        self.is_shared = False
        self.rows: dict[ConversationKey, str] = {}
        self.writes = 0

    async def find_context(self, key: ConversationKey) -> str:
        return self.rows.get(key, "")

    def save_context(self, key: ConversationKey, context: str) -> None:
        self.writes += 1
        self.rows[key] = context

    async def flush(self) -> None:
        pass


async def find(kept: Conversations, call: Call, asked: str = "") -> Conversation:
    if id := kept.find_unloaded(call, asked):
        await kept.load(call, id)
    return kept.find(call, asked)


@pytest.mark.parametrize("is_shared", [False, True])
async def test_stored_conversation_is_known_to_the_next_hub(is_shared: bool) -> None:
    store = Contexts()
    store.is_shared = is_shared
    now = 0.0
    first, second = (Conversations("a", clock=lambda: now, store=store) for _ in range(2))
    call = call_by(ANN, session="")
    id = first.keep(call, Conversation(), "far")
    assert (call.notes.flush is not None) is is_shared
    assert await find(second, call_by(ANN), id) == Conversation(id, "far", is_named=True)
    for other, who in ((second, BOB), (Conversations("b", store=store), ANN)):
        with pytest.raises(InvalidInput, match="unknown conversation"):
            await find(other, call_by(who), id)
    # What is stored already is not written again, until the store might drop it.
    first.keep(call, await find(first, call, id), "far")
    assert store.writes == 1
    now = 3_601.0
    first.keep(call, await find(first, call, id), "far")
    assert store.writes == 2
    message = call_by(ANN, message=MessageOrigin(context="c-1"))
    assert first.keep(message, await find(first, message), "other") == "a2a c-1"
    assert (await find(second, message)).context == "other"
    # One that the agent has forgotten is forgotten everywhere.
    second.forget(message, await find(second, message))
    assert (await find(Conversations("a", store=store), message)).context == ""
    if is_shared:
        assert (await find(first, message)).context == ""
    assert first.find_unloaded(call, "x" * 1_000) == ""


@pytest.mark.parametrize("value", ["", "ctx-", "ctx-0123", "a word", 3, None, {"id": "new"}])
def test_invalid_conversation_ids_are_ignored(value: Any) -> None:
    assert not is_conversation_id(value)
    assert is_conversation_id("new") and is_conversation_id("ctx-0123456789abcdef")


async def test_nothing_has_left_while_the_conversation_cannot_be_read() -> None:
    class Away(Contexts):
        async def find_context(self, key: ConversationKey) -> str:
            raise StorageFailed("conversations cannot be read")

    kept = Conversations("a", store=Away())
    call = call_by(ANN)
    call.notes.has_left = True  # its target runs
    with pytest.raises(StorageFailed):
        await find(kept, call, "ctx-0123456789abcdef")
    assert not call.notes.has_left
