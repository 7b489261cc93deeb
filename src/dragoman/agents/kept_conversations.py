"""The conversations of one model agent: kept in memory within bounds, and in a store.

What a run adds to a conversation is appended to what the conversation is then, so that no turn of
another run, at this or at another hub, is lost.
"""

from __future__ import annotations

import asyncio
from collections import Counter, OrderedDict
from collections.abc import Sequence
from typing import Protocol

from dragoman.agents.model_loop import fit_conversation, measure_message
from dragoman.agents.models.chat import Message
from dragoman.core.call import Call
from dragoman.core.conversations import ConversationKey, FitMessages, StoredConversation
from dragoman.core.principal import Principal
from dragoman.core.structs import Struct

UNSTORED = -1.0
"""The version of a conversation that the store does not have."""


class KeptLimits(Struct, frozen=True, kw_only=True):
    conversations: int = 1_000
    """Conversations of one agent that are kept in memory."""
    messages: int = 200
    """Messages of one of them."""
    conversation_bytes: int = 1024 * 1024
    """Size of the messages of one conversation that are kept."""
    total_bytes: int = 64 * 1024 * 1024
    """Of all conversations of one agent in memory; the least recent go first."""


class ConversationStore(Protocol):
    """Keeps conversations; a key is the agent, the key of the principal, and the context."""

    is_shared: bool
    """Whether other hubs continue the same conversations."""

    async def find(self, key: ConversationKey, known: float = ...) -> StoredConversation | None:
        """Finds a conversation; None if there is none, or only the version `known`. Raises
        `StorageFailed`."""

    def append(
        self,
        key: ConversationKey,
        known: float,
        whole: Sequence[Message],
        added: Sequence[Message],
        fit: FitMessages,
    ) -> float:
        """Has messages appended to the version `known`, or to what is stored by then; returns the
        new version at once."""

    async def flush(self) -> None:
        """Has everything written now. Never fails: what could not be written is tried again."""


class KeptConversation:
    def __init__(self) -> None:
        self.messages: list[Message] = []
        self.version = UNSTORED
        self.is_loaded = False
        """Whether the messages are those of the store."""
        self.size = 0
        self.lock = asyncio.Lock()
        """Held while a message is answered."""


class KeptConversations:
    def __init__(
        self, agent: str, store: ConversationStore | None, limits: KeptLimits | None = None
    ) -> None:
        """Without a `store` they end with the agent."""
        self._agent = agent
        self._store = store
        self._limits = limits or KeptLimits()
        self._kept: OrderedDict[tuple[str, str], KeptConversation] = OrderedDict()
        """By principal and context, the least recent first."""
        self._bytes = 0

    def find(self, principal: Principal, context: str) -> KeptConversation:
        """Finds or begins a conversation; the caller locks it, and loads it under the lock."""
        key = principal.key, context
        kept = self._kept.get(key)
        if kept is None:
            kept = self._kept[key] = KeptConversation()
        self._kept.move_to_end(key)
        limits = self._limits
        while len(self._kept) > limits.conversations or self._bytes > limits.total_bytes:
            oldest = self._find_oldest(key)
            if oldest is None:
                break
            self._bytes -= self._kept.pop(oldest).size
        return kept

    def _find_oldest(self, current: tuple[str, str]) -> tuple[str, str] | None:
        """Finds the conversation to drop: the least recent of the principal that has most."""
        idle = [
            key for key, kept in self._kept.items() if not kept.lock.locked() and key != current
        ]
        if not idle:
            return None
        counts = Counter(principal for principal, _ in idle)
        holder = counts.most_common(1)[0][0]
        return next(key for key in idle if key[0] == holder)

    async def is_stored(self, principal: Principal, context: str) -> bool:
        """Raises `StorageFailed`."""
        if self._store is None:
            return False
        return await self._store.find(self._build_key(principal, context)) is not None

    async def load(self, kept: KeptConversation, principal: Principal, context: str) -> None:
        """Takes a conversation up that began before a restart or before the manifest changed, or
        that another hub has continued. Raises `StorageFailed`: what cannot be read is not empty."""
        if self._store is None or (kept.is_loaded and not self._store.is_shared):
            return
        stored = await self._store.find(self._build_key(principal, context), kept.version)
        kept.is_loaded = True
        if stored is not None:
            kept.version = stored.version
            self._set_messages(kept, stored.messages)

    def append(
        self, call: Call, context: str, kept: KeptConversation, added: Sequence[Message]
    ) -> None:
        """Appends the messages of a run to a loaded conversation."""
        self._set_messages(kept, self._fit([*kept.messages, *added]))
        if self._store is None:
            return
        key = self._build_key(call.principal, context)
        kept.version = self._store.append(key, kept.version, kept.messages, added, self._fit)
        if self._store.is_shared:
            call.notes.flush = self._store.flush

    def _fit(self, messages: list[Message]) -> list[Message]:
        return fit_conversation(messages, self._limits.messages, self._limits.conversation_bytes)

    def _set_messages(self, kept: KeptConversation, messages: list[Message]) -> None:
        size = sum(map(measure_message, messages))
        self._bytes += size - kept.size
        kept.messages, kept.size = messages, size

    def _build_key(self, principal: Principal, context: str) -> ConversationKey:
        return ConversationKey(self._agent, principal.key, context)

    def clear(self) -> None:
        self._kept.clear()
        self._bytes = 0
