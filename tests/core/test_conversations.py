"""Conversations are bounded in number and age, and one principal cannot push out another's."""

from __future__ import annotations

from typing import Any

import pytest

from dragoman.core.call import Call
from dragoman.core.conversations import (
    Conversation,
    ConversationLimits,
    Conversations,
    is_conversation_id,
)
from dragoman.core.errors import InvalidInput
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


@pytest.mark.parametrize("value", ["", "ctx-", "ctx-0123", "a word", 3, None, {"id": "new"}])
def test_invalid_conversation_ids_are_ignored(value: Any) -> None:
    assert not is_conversation_id(value)
    assert is_conversation_id("new") and is_conversation_id("ctx-0123456789abcdef")
