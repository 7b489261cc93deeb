"""The conversations of model agents in `agents.db`, so that they survive a restart.

A thread of its own reads and writes, so that no call waits for the disk; what is not written yet is
kept by conversation. Bounded by age, number and size: the least recently used go first.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from dragoman.core.conversations import ConversationKey
from dragoman.core.errors import ConfigError
from dragoman.stores.agents_db import DATABASE, TABLES
from dragoman.stores.database import Database, Error, StorePlace, open_database
from dragoman.stores.sqlite import BUSY_SECONDS

log = logging.getLogger(__name__)

Message = Mapping[str, Any]
_KEY = "agent, principal, context"
_WHERE = "agent = ? AND principal = ? AND context = ?"
_SAVE = (
    "INSERT INTO conversations (agent, principal, context, messages, size, used) "
    f"VALUES (?, ?, ?, ?, ?, ?) ON CONFLICT ({_KEY}) DO UPDATE SET "
    "messages = excluded.messages, size = excluded.size, used = excluded.used"
)


@dataclass(frozen=True, slots=True)
class ConversationStoreLimits:
    total: int = 5_000
    of_principal: int = 500
    """Of one principal with one agent."""
    size: int = 256 * 1024 * 1024
    """Bytes of all of them."""
    seconds: float = 30 * 86_400.0
    """After the last message."""
    prune_every: int = 100
    """Written conversations."""
    pending: int = 1_000
    delay: float = 0.1
    """Seconds after which they are written, together with others."""


class DatabaseConversations:
    def __init__(
        self,
        place: StorePlace,
        note_opened: Callable[[], None] = lambda: None,
        limits: ConversationStoreLimits | None = None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        """Opens the database when it is first needed; then `note_opened` is called on the loop."""
        self._place = place
        self._path = place / DATABASE if isinstance(place, Path) else None
        """None on a server, where other hubs store conversations too."""
        self._note_opened = note_opened
        self._limits = limits or ConversationStoreLimits()
        self._clock = clock
        self._threads: ThreadPoolExecutor | None = None
        self._pending: dict[ConversationKey, Sequence[Message]] = {}
        """What is to be written. The loop adds to it, the thread takes from it."""
        self._is_due = False
        """Whether it will be written without being asked."""
        self._lock = threading.Lock()
        """Of these two."""
        self._base: Database | None = None
        self._known: set[ConversationKey] = set()
        """Those in the database."""
        self._is_opened = False
        self._is_failing = False
        self._written = 0

    # --- on the event loop ------------------------------------------------------------------------

    async def find(self, key: ConversationKey) -> list[Message] | None:
        """Finds the messages of a conversation; None if there is none, or it cannot be read."""
        if (pending := self._pending.get(key)) is not None:
            return list(pending)
        if self._path is not None:
            if not self._is_opened and not self._path.exists():
                return None
            if self._is_opened and key not in self._known:
                return None
        found: list[Message] | None = await self._submit(self._read, key)
        return found

    def save(self, key: ConversationKey, messages: Sequence[Message]) -> None:
        """Has the messages written soon, and not before the current step of the loop has ended: the
        taint labels of the conversation are stored in it."""
        with self._lock:
            self._pending[key] = messages
            if len(self._pending) > self._limits.pending:  # the disk fails
                del self._pending[next(iter(self._pending))]
            if self._is_due:
                return
            self._is_due = True
        loop = asyncio.get_running_loop()
        loop.call_later(self._limits.delay, lambda: self._submit(self._write))

    def close(self) -> None:
        """Writes what is pending. Waits for the disk."""
        if self._threads is None and self._pending:
            self._threads = ThreadPoolExecutor(1, "conversations")
        if self._threads is not None:
            self._threads.submit(self._finish)
            self._threads.shutdown()
            self._threads = None

    def _submit(self, work: Callable[..., Any], *args: Any) -> asyncio.Future[Any]:
        loop = asyncio.get_running_loop()
        if self._threads is None:
            self._threads = ThreadPoolExecutor(1, "conversations")
        return loop.run_in_executor(self._threads, self._guard, loop, work, *args)

    # --- in the thread ----------------------------------------------------------------------------

    def _guard(self, loop: asyncio.AbstractEventLoop, work: Callable[..., Any], *args: Any) -> Any:
        """Conversations are a convenience: agents work without the store, and it is tried again."""
        try:
            if self._base is None:
                self._open()
                loop.call_soon_threadsafe(self._note_opened)
            found = work(*args)
            self._is_failing = False
        except (Error, ConfigError, msgspec.MsgspecError) as error:
            if not self._is_failing:
                log.error("conversations with agents cannot be stored: %s", error)
            self._is_failing = True
            return None
        return found

    def _open(self) -> None:
        self._base = open_database(self._place, TABLES, busy_seconds=BUSY_SECONDS)
        self._prune()
        self._is_opened = True

    def _read(self, key: ConversationKey) -> list[Message] | None:
        assert self._base is not None
        query = f"SELECT messages FROM conversations WHERE {_WHERE}"
        row = self._base.db.execute(query, key).fetchone()
        return msgspec.json.decode(row[0], type=list[Message]) if row is not None else None

    def _write(self) -> None:
        assert self._base is not None
        with self._lock:
            batch, self._is_due = dict(self._pending), False
        rows = []
        for key, messages in batch.items():
            data = msgspec.json.encode(messages)
            rows.append((*key, data, len(data), self._clock()))
        with self._base.writer.transaction():
            self._base.db.executemany(_SAVE, rows)
        if self._path is not None:
            self._known.update(batch)
        with self._lock:
            for key, messages in batch.items():
                if self._pending.get(key) is messages:
                    del self._pending[key]
        self._written += len(rows)
        if self._written >= self._limits.prune_every:
            self._prune()

    def _prune(self) -> None:
        assert self._base is not None
        limits, self._written = self._limits, 0
        ranked = (
            f"SELECT {_KEY}, used, "
            "row_number() OVER (ORDER BY used DESC) AS number, "
            "row_number() OVER (PARTITION BY agent, principal ORDER BY used DESC) AS own, "
            f"sum(size) OVER (ORDER BY used DESC, {_KEY}) AS total FROM conversations"
        )
        with self._base.writer.transaction():
            self._base.db.execute(
                f"DELETE FROM conversations WHERE ({_KEY}) IN (SELECT {_KEY} FROM ({ranked}) "
                "AS ranked WHERE used < ? OR number > ? OR own > ? OR total > ?)",
                (self._clock() - limits.seconds, limits.total, limits.of_principal, limits.size),
            )
        if self._path is not None:
            rows = self._base.db.execute(f"SELECT {_KEY} FROM conversations")
            self._known = {ConversationKey(*row) for row in rows}

    def _finish(self) -> None:
        try:
            if self._pending:
                if self._base is None:
                    self._open()
                self._write()
        except (Error, ConfigError, msgspec.MsgspecError) as error:
            log.error("conversations with agents cannot be stored: %s", error)
        if self._base is not None:
            self._base.close()
