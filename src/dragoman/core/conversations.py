"""The conversations of principals with one agent.

A client knows a conversation by an id that the hub makes; the agent's own context id stays inside,
so that an id is worthless to other principals. Conversations are bounded in number, per principal
and in total, and expire when idle. A store keeps them beyond a restart, and for the other hubs of a
cluster.
"""

from __future__ import annotations

import re
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from secrets import token_hex
from time import monotonic
from typing import Any, NamedTuple, Protocol

from dragoman.core.call import Call, Result
from dragoman.core.errors import InvalidInput, StorageFailed
from dragoman.core.structs import replace

CONTEXT = "context"
"""The argument that names a conversation."""
META = "dragoman.hub/context"
"""The same in the `_meta` of a request and of a result."""
NEW = "new"
"""In place of an id: starts another conversation."""

MAX_ID = 300
"""Characters of an id; those that protocols name are shorter."""
_ID = re.compile(r"ctx-[0-9a-f]{16}")


def new_conversation_id() -> str:
    return f"ctx-{token_hex(8)}"


def is_conversation_id(value: Any) -> bool:
    """Whether it has the form of an id of the hub, or is the word for a new conversation."""
    return isinstance(value, str) and (value == NEW or _ID.fullmatch(value) is not None)


@contextmanager
def noting_that_nothing_left(call: Call) -> Iterator[None]:
    """For what an agent reads before it is asked anything: if the store fails, the call can be made
    later."""
    try:
        yield
    except StorageFailed:
        call.notes.has_left = False
        raise


class ConversationKey(NamedTuple):
    """A conversation that is stored."""

    agent: str
    principal: str
    """Its key: no other principal finds the conversation."""
    context: str


Message = Mapping[str, Any]
FitMessages = Callable[[list[Message]], list[Message]]
"""Makes a conversation fit what is kept of one. Pure: any thread may call it."""


class StoredConversation(NamedTuple):
    messages: list[Message]
    version: float
    """Another one after each change."""


class ContextStore(Protocol):
    """Keeps the agents' own ids of conversations."""

    is_shared: bool
    """Whether other hubs continue the same conversations."""

    async def find_context(self, key: ConversationKey) -> str:
        """Finds the agent's own id; empty if there is none. Raises `StorageFailed`."""

    def save_context(self, key: ConversationKey, context: str) -> None:
        """Has it written soon; an empty one is deleted."""

    async def flush(self) -> None:
        """Has everything written now. Never fails: what could not be written is tried again."""


@dataclass(frozen=True, slots=True)
class ConversationLimits:
    of_principal: int = 1_000
    total: int = 10_000
    idle_seconds: float = 24 * 3600.0
    renew_seconds: float = 3600.0
    """After which a conversation is stored again, so that the store knows that it is in use."""


class Conversation(NamedTuple):
    id: str = ""
    """The client's id; empty for one that has just started."""
    context: str = ""
    """The agent's own id; empty until the agent has given one."""
    is_named: bool = False
    """Whether the client named it, rather than its session or its protocol."""


@dataclass(slots=True)
class _Kept:
    context: str
    used: float
    stored: float
    """When it was stored."""


_NONE = Conversation()


@dataclass(slots=True, eq=False)
class _Own:
    """The conversations of one principal, the least recently used first."""

    kept: OrderedDict[str, _Kept] = field(default_factory=OrderedDict)
    sessions: OrderedDict[str, str] = field(default_factory=OrderedDict)
    """The current conversation of each session."""


class Conversations:
    def __init__(
        self,
        agent: str,
        limits: ConversationLimits | None = None,
        clock: Callable[[], float] = monotonic,
        store: ContextStore | None = None,
        scope: str = "",
    ) -> None:
        """`agent` is its name, for messages. `scope` is what its conversations are stored under: an
        agent at another address, or one that is called with other credentials, does not know
        them."""
        self._agent = agent
        self._store = store
        self._scope = scope or agent
        self._limits = limits or ConversationLimits()
        self._clock = clock
        self._of: dict[str, _Own] = {}
        """By the keys of the principals."""
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def find_unloaded(self, call: Call, asked: str = "") -> str:
        """Finds the id of the conversation that a call names, if it has to be loaded before `find`;
        otherwise it is empty."""
        store = self._store
        if store is None or asked == NEW:
            return ""
        id = asked or _find_protocol_id(call)
        if len(id) > MAX_ID:
            return ""  # no conversation has such an id
        if not id or store.is_shared:  # another hub may have continued it
            return id
        own = self._of.get(call.principal.key)
        return "" if own is not None and id in own.kept else id

    async def load(self, call: Call, id: str) -> None:
        """Loads a conversation that was begun before a restart, or at another hub. Raises
        `StorageFailed`."""
        assert self._store is not None
        principal = call.principal.key
        with noting_that_nothing_left(call):
            context = await self._store.find_context(ConversationKey(self._scope, principal, id))
        own = self._of.get(principal)
        if context:
            kept = own.kept.get(id) if own is not None else None
            stored = kept.stored if kept is not None else self._clock()
            self._make_room(self._put(principal, id, _Kept(context, self._clock(), stored)))
        elif own is not None and self._store.is_shared and own.kept.pop(id, None) is not None:
            self._count -= 1

    def find(self, call: Call, asked: str = "") -> Conversation:
        """Finds the conversation that a call continues: the one it names, else the one that its
        protocol names, else that of its session. Raises `InvalidInput` for an unknown id."""
        own = self._of.get(call.principal.key)
        if asked == NEW:
            return Conversation(is_named=True)
        if asked:
            kept = self._find_live(own, asked) if own is not None else None
            if kept is None:
                raise InvalidInput(
                    f'unknown conversation "{asked[:60]}" with agent "{self._agent}": '
                    f'it may have expired. Omit "{CONTEXT}", or pass "{NEW}", to start another'
                )
            return Conversation(asked, kept.context, is_named=True)
        named = _find_protocol_id(call)
        if own is None:
            return Conversation(named) if named else _NONE
        id = named or own.sessions.get(call.session or "", "")
        kept = self._find_live(own, id) if id else None
        return Conversation(named) if kept is None else Conversation(id, kept.context)

    def keep(self, call: Call, conversation: Conversation, context: str) -> str:
        """Records the agent's own id of a conversation, if any, and returns the client's id."""
        context = context or conversation.context
        if not context:
            return conversation.id
        id = conversation.id or new_conversation_id()
        call.notes.conversation = id
        principal = call.principal.key
        own = self._of.get(principal)
        kept = own.kept.get(id) if own is not None else None
        stored = self._store_context(call, id, context, kept)
        own = self._put(principal, id, _Kept(context, self._clock(), stored))
        session = call.session
        if session:
            own.sessions[session] = id
            own.sessions.move_to_end(session)
        self._make_room(own)
        return id

    def forget(self, call: Call, conversation: Conversation) -> None:
        """Forgets a conversation that the agent no longer knows: the next call starts another."""
        own = self._of.get(call.principal.key)
        if own is None:
            return
        own.sessions.pop(call.session or "", None)
        if own.kept.pop(conversation.id, None) is not None:
            self._count -= 1
            self._store_context(call, conversation.id, "", None)

    def _store_context(self, call: Call, id: str, context: str, kept: _Kept | None) -> float:
        """Has the agent's own id stored, unless the store has it. Returns when it was stored."""
        now = self._clock()
        store = self._store
        if store is None:
            return now
        is_same = kept is not None and kept.context == context
        if kept is not None and is_same and now - kept.stored < self._limits.renew_seconds:
            return kept.stored
        store.save_context(ConversationKey(self._scope, call.principal.key, id), context)
        if store.is_shared:
            call.notes.flush = store.flush
        return now

    def _put(self, principal: str, id: str, kept: _Kept) -> _Own:
        """Makes it the most recently used one of its principal."""
        own = self._of.get(principal)
        if own is None:
            own = self._of[principal] = _Own()
        if own.kept.pop(id, None) is None:
            self._count += 1
        own.kept[id] = kept
        return own

    def _find_live(self, own: _Own, id: str) -> _Kept | None:
        kept = own.kept.get(id)
        if kept is not None and self._clock() - kept.used > self._limits.idle_seconds:
            del own.kept[id]
            self._count -= 1
            return None
        return kept

    def _make_room(self, own: _Own) -> None:
        while len(own.sessions) > self._limits.of_principal:
            own.sessions.popitem(last=False)
        if len(own.kept) > self._limits.of_principal:
            self._drop_oldest(own)
        if self._count > self._limits.total:
            self._drop_oldest(max(self._of.values(), key=lambda one: len(one.kept)))
            for principal in [one for one, held in self._of.items() if not held.kept]:
                del self._of[principal]

    def _drop_oldest(self, own: _Own) -> None:
        own.kept.popitem(last=False)
        self._count -= 1


def _find_protocol_id(call: Call) -> str:
    """Finds the conversation that the protocol of the call names; empty if it names none."""
    context = call.message.context if call.message is not None else ""
    return f"a2a {context}" if context else ""


def find_context_in_meta(call: Call) -> str:
    value = call.meta.get(META) if call.meta else None
    return value if isinstance(value, str) else ""


def add_context(result: Result, call: Call, id: str, *, shown: bool) -> Result:
    """Adds the conversation's id to the `_meta` of a result. A client without a session needs the
    id to continue: if `shown`, a block after the answer tells its model."""
    if not id or call.message is not None:
        return result
    meta = result.extra.get("_meta")
    extra = {**result.extra, "_meta": {**(meta if isinstance(meta, dict) else {}), META: id}}
    if not shown or call.session != "":
        return replace(result, extra=extra)
    words = f'[To continue this conversation, pass "{CONTEXT}": "{id}".]'
    note = {"type": "text", "text": words, "annotations": {"audience": ["assistant"]}}
    return replace(result, extra=extra, content=[*result.content, note])
