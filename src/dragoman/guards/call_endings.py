"""How approved calls have ended, until the store has it.

A store that fails for a while must neither lose a result nor leave a call as running that has
ended. No call begins while an ending is not stored, so that there are never more of them than calls
that ran when the store failed.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import NamedTuple

from dragoman.core.approvals import ApprovalStore, StoredApproval
from dragoman.core.backoff import Backoff
from dragoman.core.errors import StorageFailed
from dragoman.core.logs import STORAGE_OUTAGE
from dragoman.core.structs import Struct, replace

log = logging.getLogger(__name__)


class EndingLimits(Struct, frozen=True):
    reply_bytes: int = 64 * 1024 * 1024
    """Of all replies that are not stored yet; beyond it the oldest are dropped, and only how their
    calls ended is kept."""
    first_pause: float = 0.2
    longest_pause: float = 5.0


class CallEnding(NamedTuple):
    outcome: str
    """Empty: the call was put back, since nothing of it has left."""
    problem: str
    reply: bytes
    ended_at: float
    delivered_at: float
    """When its requester got the result; 0: not yet."""


class CallEndings:
    def __init__(
        self,
        store: ApprovalStore,
        on_stored: Callable[[str, CallEnding], None],
        limits: EndingLimits | None = None,
    ) -> None:
        self._store, self._on_stored = store, on_stored
        self._limits = limits or EndingLimits()
        self._pauses = Backoff(self._limits.first_pause, self._limits.longest_pause)
        self._endings: dict[str, CallEnding] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._is_closed = False

    def __len__(self) -> int:
        return len(self._endings)

    def add(self, id: str, ending: CallEnding) -> None:
        """Stores an ending now, or as soon as that is possible. The first of a call counts."""
        self._endings.setdefault(id, ending)
        self._drop_replies()
        try:
            self.store()
        except StorageFailed as error:
            STORAGE_OUTAGE.note(f"approval {id}: how its call ended is stored later: {error}")

    def find(self, id: str) -> CallEnding | None:
        """The ending of a call that is not stored yet."""
        ending = self._endings.get(id)
        return ending if ending is not None and ending.outcome else None

    def apply(self, stored: StoredApproval) -> StoredApproval:
        """Returns the request with what is known of its call, whether or not it is stored."""
        ending = self.find(stored.request.id)
        if ending is None:
            return stored
        return replace(
            stored,
            approval=replace(stored.approval, outcome=ending.outcome, problem=ending.problem),
            ended_at=ending.ended_at,
            delivered_at=ending.delivered_at,
        )

    def deliver(self, id: str, now: float) -> bytes | None:
        """Returns the reply of an ending that is not stored yet, once; None after that."""
        ending = self._endings[id]
        if ending.delivered_at:
            return None
        self._endings[id] = ending._replace(delivered_at=now)
        return ending.reply

    def store(self) -> None:
        """Stores all of them. If that fails, it is repeated until it succeeds; raises
        `StorageFailed`."""
        try:
            for id, ending in list(self._endings.items()):
                self._store_one(id, ending)
                del self._endings[id]
                self._on_stored(id, ending)
        except StorageFailed:
            if self._timer is None and not self._is_closed:
                pause = self._pauses.next_delay()
                self._timer = asyncio.get_running_loop().call_later(pause, self._store_later)
            raise
        self._pauses.reset()

    def close(self) -> None:
        """Stores what is left, for the last time."""
        self._is_closed = True
        try:
            self.store()
        except StorageFailed as error:
            words = "how %d approved calls ended cannot be stored; they count as interrupted: %s"
            log.error(words, len(self._endings), error)
        if self._timer is not None:
            self._timer.cancel()

    def _store_one(self, id: str, ending: CallEnding) -> None:
        if not ending.outcome:
            self._store.put_back(id)
            return
        delivered_at = ending.delivered_at
        self._store.finish(
            id, ending.outcome, ending.problem, ending.reply, ending.ended_at, delivered_at
        )

    def _store_later(self) -> None:
        self._timer = None
        count = len(self._endings)
        try:
            self.store()
        except StorageFailed:
            return  # it was logged when it began
        if count:
            log.info("the endings of %d approved calls were stored late", count)

    def _drop_replies(self) -> None:
        size = sum(len(ending.reply) for ending in self._endings.values())
        for id, ending in list(self._endings.items()):
            if size <= self._limits.reply_bytes:
                return
            size -= len(ending.reply)
            self._endings[id] = ending._replace(reply=b"")
