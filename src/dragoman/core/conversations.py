"""The conversations of principals with one agent.

A client knows a conversation by an id that the hub makes; the agent's own context id stays inside,
so that an id is worthless to other principals. Conversations are bounded in number, per principal
and in total, and expire when idle.
"""

from __future__ import annotations

import re
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field
from secrets import token_hex
from time import monotonic
from typing import Any, NamedTuple

from dragoman.core.call import Call, Result
from dragoman.core.errors import InvalidInput
from dragoman.core.structs import replace

CONTEXT = "context"
"""The argument that names a conversation."""
META = "dragoman.hub/context"
"""The same in the `_meta` of a request and of a result."""
NEW = "new"
"""In place of an id: starts another conversation."""

_ID = re.compile(r"ctx-[0-9a-f]{16}")


def new_conversation_id() -> str:
    return f"ctx-{token_hex(8)}"


def is_conversation_id(value: Any) -> bool:
    """Whether it has the form of an id of the hub, or is the word for a new conversation."""
    return isinstance(value, str) and (value == NEW or _ID.fullmatch(value) is not None)


class ConversationKey(NamedTuple):
    """A conversation that is stored."""

    agent: str
    principal: str
    """Its key: no other principal finds the conversation."""
    context: str


@dataclass(frozen=True, slots=True)
class ConversationLimits:
    of_principal: int = 1_000
    total: int = 10_000
    idle_seconds: float = 24 * 3600.0


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
    ) -> None:
        """`agent` is its name, for messages."""
        self._agent = agent
        self._limits = limits or ConversationLimits()
        self._clock = clock
        self._of: dict[str, _Own] = {}
        """By the keys of the principals."""
        self._count = 0

    def __len__(self) -> int:
        return self._count

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
        context = call.message.context if call.message is not None else ""
        named = f"a2a {context}" if context else ""  # the conversation that the protocol names
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
        own = self._of.get(call.principal.key)
        if own is None:
            own = self._of[call.principal.key] = _Own()
        id = conversation.id or new_conversation_id()
        call.notes.conversation = id
        if own.kept.pop(id, None) is None:
            self._count += 1
        own.kept[id] = _Kept(context, self._clock())
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
