"""The conversations with agents in `agents.db`, so that they survive a restart and every hub of a
cluster can continue them: the messages of those with model agents, the context of others.

A thread of its own reads and writes, so that no call waits for the disk; what is not written yet is
kept by conversation. Turns are appended to what is stored: two hubs that answer messages of one
conversation at once both keep theirs. Bounded by age, number and size: the least recently used go
first.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import msgspec

from dragoman.core.backoff import Backoff
from dragoman.core.conversations import ConversationKey, FitMessages, Message, StoredConversation
from dragoman.core.errors import ConfigError, StorageFailed
from dragoman.stores.agents_db import DATABASE, TABLES
from dragoman.stores.database import (
    Database,
    Error,
    OperationalError,
    StorePlace,
    open_database,
)
from dragoman.stores.sqlite import BUSY_SECONDS

log = logging.getLogger(__name__)

CONVERSATIONS, CONTEXTS = "conversations", "contexts"
"""The tables."""
_KEY = "agent, principal, context"
_WHERE = "agent = ? AND principal = ? AND context = ?"
_ADD = (
    "INSERT INTO conversations (agent, principal, context, messages, size, used) "
    f"VALUES (?, ?, ?, ?, ?, ?) ON CONFLICT ({_KEY}) DO NOTHING"
)
_REPLACE = f"UPDATE conversations SET messages = ?, size = ?, used = ? WHERE {_WHERE} AND used = ?"
_SAVE_CONTEXT = (
    "INSERT INTO contexts (agent, principal, context, value, size, used) "
    f"VALUES (?, ?, ?, ?, ?, ?) ON CONFLICT ({_KEY}) DO UPDATE SET "
    "value = excluded.value, size = excluded.size, used = excluded.used"
)
_DROP_CONTEXT = f"DELETE FROM contexts WHERE {_WHERE}"
STEP = 0.001
"""Seconds between two versions of a conversation at least."""
TRIES = 10
"""How often a turn is appended that another hub was faster with."""
NEVER = -1.0
"""The version of no conversation."""


@dataclass(frozen=True, slots=True)
class TableLimits:
    total: int
    of_principal: int
    """Of one principal with one agent."""
    size: int
    """Bytes of all of them."""
    seconds: float
    """After the last message."""


@dataclass(frozen=True, slots=True)
class ConversationStoreLimits:
    messages: TableLimits = TableLimits(5_000, 500, 256 * 1024 * 1024, 30 * 86_400.0)
    contexts: TableLimits = TableLimits(10_000, 1_000, 64 * 1024 * 1024, 86_400.0)
    prune_every: int = 100
    """Written conversations."""
    prune_contexts_every: int = 1_000
    pending: int = 1_000
    """Conversations with messages that are not written yet."""
    delay: float = 0.1
    """Seconds after which messages are written, together with others."""
    context_delay: float = 5.0
    """The same for contexts: most are never used again, and of those of a busy caller only the
    latest are written."""


@dataclass(slots=True)
class _Turns:
    """The messages of a conversation that are not written yet."""

    base: float
    """The version of what is stored, if no other hub has added to it."""
    version: float
    whole: Sequence[Message]
    """The conversation, if no other hub has added to it."""
    added: Sequence[Message]
    """The messages since `base`."""
    fit: FitMessages
    tried: _Attempt | None = None
    """A write whose outcome may be unknown."""


@dataclass(frozen=True, slots=True)
class _Attempt:
    version: float
    """What it has stored, unless it failed."""
    count: int
    """How many of the added messages."""
    base: float
    """The base of further ones: the version, or `NEVER` if another hub has added to it."""


class DatabaseConversations:
    def __init__(
        self,
        place: StorePlace,
        note_opened: Callable[[], None] = lambda: None,
        limits: ConversationStoreLimits | None = None,
        clock: Callable[[], float] = time.time,
        *,
        is_shared: bool = False,
    ) -> None:
        """Opens the database when it is first needed; then `note_opened` is called on the loop.
        `is_shared`: other hubs continue the same conversations."""
        self._place = place
        self.is_shared = is_shared
        self._note_opened = note_opened
        self._limits = limits or ConversationStoreLimits()
        self._clock = clock
        self._threads: ThreadPoolExecutor | None = None
        self._turns: dict[ConversationKey, _Turns] = {}
        self._contexts: dict[ConversationKey, tuple[str, float]] = {}
        """What is to be written, an empty context to be deleted. The loop adds to them, the thread
        takes from them."""
        self._lock = threading.Lock()
        """Of these two."""
        self._base: Database | None = None
        self._known: dict[str, set[ConversationKey]] | None = None
        """The keys of each table that no other hub writes; None until it is opened."""
        self._timer: asyncio.TimerHandle | None = None
        """Of the next write."""
        self._writing: asyncio.Future[None] | None = None
        """Done when the write that runs has ended."""
        self._next: asyncio.Future[None] | None = None
        """The same for the write after it, which has everything that is added meanwhile."""
        self._backoff = Backoff(first=0.5, longest=30.0)
        self._is_closed = False
        self._is_failing = False
        self._unpruned = self._limits.prune_every  # the first write prunes
        self._unpruned_contexts = self._limits.prune_contexts_every

    # --- on the event loop ------------------------------------------------------------------------

    async def find(self, key: ConversationKey, known: float = NEVER) -> StoredConversation | None:
        """Finds a conversation; None if there is none, or only the version `known`. Raises
        `StorageFailed`: what cannot be read is not empty."""
        if not self.is_shared:
            with self._lock:
                if (turns := self._turns.get(key)) is not None:
                    return StoredConversation(list(turns.whole), turns.version)
            if not self._may_have(key, CONVERSATIONS):
                return None
        found: StoredConversation | None = await self._read(self._find_turns, key, known)
        return found

    def append(
        self,
        key: ConversationKey,
        known: float,
        whole: Sequence[Message],
        added: Sequence[Message],
        fit: FitMessages,
    ) -> float:
        """Has the messages `added` written soon, after the version `known`, which makes them the
        conversation `whole`; returns its version. If the stored version is another one, they are
        appended to that, and `fit` makes the result fit.

        They are not written before the call ends: the taint labels of the conversation are stored
        before that."""
        version = max(self._clock(), known + STEP)
        with self._lock:
            turns = self._turns.get(key)
            if turns is None:
                self._turns[key] = _Turns(known, version, whole, added, fit)
            else:
                turns.version, turns.whole, turns.fit = version, whole, fit
                turns.added = [*turns.added, *added]
            if len(self._turns) > self._limits.pending:  # the disk fails
                del self._turns[next(iter(self._turns))]
        self._write_soon(self._limits.delay)
        return version

    async def find_context(self, key: ConversationKey) -> str:
        """Finds the context of a conversation; empty if there is none. Raises `StorageFailed`."""
        with self._lock:
            if key in self._contexts:
                return self._contexts[key][0]
        if not self.is_shared and not self._may_have(key, CONTEXTS):
            return ""
        found: str = await self._read(self._find_context, key)
        return found

    def save_context(self, key: ConversationKey, context: str) -> None:
        """Has the context of a conversation written soon; an empty one is deleted."""
        with self._lock:
            self._contexts[key] = context, self._clock()
            if len(self._contexts) > self._limits.contexts.total:
                del self._contexts[next(iter(self._contexts))]
        self._write_soon(self._limits.context_delay)

    async def flush(self) -> None:
        """Has everything written now. Never fails: what could not be written is kept, and tried
        again."""
        if self._timer is not None:
            self._timer.cancel()
            self._begin()
        if (writing := self._next or self._writing) is not None:
            await asyncio.shield(writing)

    def close(self) -> None:
        """Writes what is pending. Waits for the disk."""
        self._is_closed = True
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._threads is None and (self._turns or self._contexts):
            self._threads = ThreadPoolExecutor(1, "conversations")
        if self._threads is not None:
            self._threads.submit(self._finish)
            self._threads.shutdown()
            self._threads = None
        for writing in (self._writing, self._next):
            if writing is not None and not writing.done():
                writing.set_result(None)

    def _may_have(self, key: ConversationKey, table: str) -> bool:
        if self._known is not None:
            return key in self._known[table]
        return not isinstance(self._place, Path) or (self._place / DATABASE).exists()

    def _write_soon(self, delay: float) -> None:
        if self._is_closed:
            return
        loop = asyncio.get_running_loop()
        if self._timer is not None:
            if self._timer.when() <= loop.time() + delay or self._backoff.failures:
                return
            self._timer.cancel()
        self._timer = loop.call_later(delay, self._begin)

    def _begin(self) -> None:
        self._timer = None
        loop = asyncio.get_running_loop()
        if self._writing is not None:
            self._next = self._next or loop.create_future()
            return
        self._writing, self._next = self._next or loop.create_future(), None
        self._submit(self._write).add_done_callback(self._end)

    def _end(self, done: asyncio.Future[Any]) -> None:
        writing, self._writing = self._writing, None
        if writing is not None and not writing.done():
            writing.set_result(None)
        if done.cancelled() or self._is_closed:
            return
        if done.exception() is None:
            self._backoff.reset()
        elif self._timer is None and self._next is None:
            loop = asyncio.get_running_loop()
            self._timer = loop.call_later(self._backoff.next_delay(), self._begin)
        if self._next is not None:
            self._begin()

    async def _read(self, work: Callable[..., Any], *args: Any) -> Any:
        if self._is_closed:
            raise StorageFailed("conversations with agents cannot be read: the hub has stopped")
        return await self._submit(work, *args)

    def _submit(self, work: Callable[..., Any], *args: Any) -> asyncio.Future[Any]:
        loop = asyncio.get_running_loop()
        if self._threads is None:
            self._threads = ThreadPoolExecutor(1, "conversations")
        return loop.run_in_executor(self._threads, self._guard, loop, work, *args)

    # --- in the thread ----------------------------------------------------------------------------

    def _guard(self, loop: asyncio.AbstractEventLoop, work: Callable[..., Any], *args: Any) -> Any:
        """Raises `StorageFailed`; the log has the first of several in a row."""
        try:
            if self._base is None:
                self._open()
                loop.call_soon_threadsafe(self._note_opened)
            found = work(*args)
            self._is_failing = False
        except (Error, ConfigError, msgspec.MsgspecError) as error:
            problem = f"conversations with agents cannot be read or written: {error}"
            if not self._is_failing:
                log.error("%s", problem)
            self._is_failing = True
            raise StorageFailed(problem) from error
        return found

    def _open(self) -> None:
        base = open_database(self._place, TABLES, busy_seconds=BUSY_SECONDS)
        try:
            if not self.is_shared:
                known = {table: _list_keys(base, table) for table in (CONVERSATIONS, CONTEXTS)}
                self._known = known
        except Error:
            base.close()
            raise
        self._base = base

    def _find_turns(self, key: ConversationKey, known: float) -> StoredConversation | None:
        assert self._base is not None
        if key in self._turns:
            self._append(key)
        query = f"SELECT messages, used FROM conversations WHERE {_WHERE} AND used <> ?"
        row = self._base.db.execute(query, (*key, known)).fetchone()
        return None if row is None else StoredConversation(_decode(row[0]), row[1])

    def _find_context(self, key: ConversationKey) -> str:
        assert self._base is not None
        query = f"SELECT value FROM contexts WHERE {_WHERE} AND used > ?"
        oldest = self._clock() - self._limits.contexts.seconds
        row = self._base.db.execute(query, (*key, oldest)).fetchone()
        return "" if row is None else str(row[0])

    def _write(self) -> None:
        """Writes everything that it can, then raises the first error."""
        problem: Exception | None = None
        with self._lock:
            keys = list(self._turns)
        for key in keys:
            try:
                self._append(key)
                self._unpruned += 1
            except (Error, msgspec.MsgspecError) as error:
                problem = problem or error
            except ValueError as error:  # lone surrogates; no later attempt can succeed
                log.error("a turn of a conversation cannot be stored: %s", error)
                with self._lock:
                    self._turns.pop(key, None)
        self._write_contexts()
        if problem is not None:
            raise problem
        if self._unpruned > self._limits.prune_every:
            self._unpruned = 0
            self._prune(CONVERSATIONS, self._limits.messages)
        if self._unpruned_contexts > self._limits.prune_contexts_every:
            self._unpruned_contexts = 0
            self._prune(CONTEXTS, self._limits.contexts)

    def _append(self, key: ConversationKey) -> None:
        """Writes the pending turns of a conversation."""
        with self._lock:
            if (turns := self._turns.get(key)) is None:
                return
            now = replace(turns)  # the loop may add to it
        done = self._append_to_stored(key, now, turns)
        if self._known is not None:
            self._known[CONVERSATIONS].add(key)
        with self._lock:
            turns.added = turns.added[done.count :]
            turns.base, turns.tried = done.base, None
            if not turns.added and self._turns.get(key) is turns:
                del self._turns[key]

    def _append_to_stored(self, key: ConversationKey, now: _Turns, turns: _Turns) -> _Attempt:
        """Writes the turns as they are `now`."""
        assert self._base is not None
        db = self._base.db
        query = f"SELECT messages, used FROM conversations WHERE {_WHERE}"
        for _ in range(TRIES):
            with self._base.writer.transaction():
                row = db.execute(query, key).fetchone()
                if row is not None and turns.tried is not None and row[1] == turns.tried.version:
                    return turns.tried
                messages = now.whole
                attempt = _Attempt(now.version, len(now.added), now.version)
                if row is not None and row[1] != now.base:
                    messages = now.fit([*_decode(row[0]), *now.added])
                    attempt = _Attempt(max(now.version, row[1]) + STEP, len(now.added), NEVER)
                data = msgspec.json.encode(messages)
                if row is None:
                    stored = db.execute(_ADD, (*key, data, len(data), attempt.version))
                else:
                    values = (data, len(data), attempt.version, *key, row[1])
                    stored = db.execute(_REPLACE, values)
                if stored.rowcount:
                    turns.tried = attempt
                    return attempt
        raise OperationalError("other hubs change the same conversation all the time")

    def _write_contexts(self) -> None:
        assert self._base is not None
        with self._lock:
            batch = dict(self._contexts)
        if not batch:
            return
        kept: Counter[tuple[str, str]] = Counter()
        saved = []
        for key, (value, at) in reversed(batch.items()):
            kept[key[:2]] += 1
            if value and kept[key[:2]] <= self._limits.contexts.of_principal:
                saved.append((*key, value, len(value), at))
        saved.sort()  # so that transactions of two hubs cannot wait for each other
        dropped = sorted(key for key, (value, _) in batch.items() if not value)
        with self._base.writer.transaction():
            if saved:
                self._base.db.executemany(_SAVE_CONTEXT, saved)
            if dropped:
                self._base.db.executemany(_DROP_CONTEXT, dropped)
        if self._known is not None:
            self._known[CONTEXTS].update(ConversationKey(*row[:3]) for row in saved)
            self._known[CONTEXTS].difference_update(dropped)
        self._unpruned_contexts += len(saved)
        with self._lock:
            for key, pair in batch.items():
                if self._contexts.get(key) is pair:
                    del self._contexts[key]

    def _prune(self, table: str, limits: TableLimits) -> None:
        assert self._base is not None
        ranked = (
            f"SELECT {_KEY}, used, "
            "row_number() OVER (ORDER BY used DESC) AS number, "
            "row_number() OVER (PARTITION BY agent, principal ORDER BY used DESC) AS own, "
            f"sum(size) OVER (ORDER BY used DESC, {_KEY}) AS total FROM {table}"
        )
        with self._base.writer.transaction():
            self._base.db.execute(
                f"DELETE FROM {table} WHERE ({_KEY}) IN (SELECT {_KEY} FROM ({ranked}) "
                "AS ranked WHERE used < ? OR number > ? OR own > ? OR total > ?)",
                (self._clock() - limits.seconds, limits.total, limits.of_principal, limits.size),
            )
        if self._known is not None:
            self._known[table] = _list_keys(self._base, table)

    def _finish(self) -> None:
        try:
            if self._turns or self._contexts:
                if self._base is None:
                    self._open()
                self._write()
        except (Error, ConfigError, msgspec.MsgspecError) as error:
            log.error("conversations with agents cannot be stored: %s", error)
        if self._base is not None:
            self._base.close()
            self._base = None


def _list_keys(base: Database, table: str) -> set[ConversationKey]:
    return {ConversationKey(*row) for row in base.db.execute(f"SELECT {_KEY} FROM {table}")}


def _decode(data: bytes) -> list[Mapping[str, Any]]:
    return msgspec.json.decode(data, type=list[Message])
