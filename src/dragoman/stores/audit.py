"""The audit in SQLite: what is about to be done is stored before it is done, what came of it after.

All on the event loop's thread: everything that is appended in one turn of the loop goes in one
commit of some microseconds, and no thread is woken for a call. Knows nothing of what entries say,
except what to write for a call that ended before its intent was stored.
"""

from __future__ import annotations

import asyncio
import fcntl
import logging
import os
import sqlite3
import time
from collections.abc import Mapping
from contextlib import closing
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from dragoman.core.errors import ConfigError, Full
from dragoman.stores.chain import (
    BREAK,
    DATABASE,
    HEAD,
    INTENT,
    MIGRATIONS,
    ORIGIN,
    OUTCOME,
    START,
    Seal,
    Tip,
    departure,
    make_key,
    read_key,
    tail,
)
from dragoman.stores.sqlite import open_store

log = logging.getLogger(__name__)

MAX_PENDING = 4096
OUTCOME_SECONDS = 0.02
PAUSE_SECONDS = 0.25
"""How long calls are refused unasked after a failed write: each try may block the loop for BUSY."""
BUSY_MILLISECONDS = 100
LOOK_SECONDS = 1.0
PRUNE_BATCH = 250
CHECKPOINT_PAGES = 4000
BACKSTOP_PAGES = 16_000

LEFT = b'{"outcome":"cancelled","duration_ms":0}'
REFUSED = b'{"outcome":"refused","error":"Full","duration_ms":0}'

INSERT = "INSERT INTO entries (seq, kind, of, at, body, mac) VALUES (?, ?, ?, ?, ?, ?)"
MORE = ", (?, ?, ?, ?, ?, ?)"
FEW = 8

Row = tuple[int, str, int | None, float, bytes, bytes]
"""seq, kind, of, at, body, mac"""


class Pending(NamedTuple):
    kind: str
    of: int | None
    at: float
    body: bytes
    waiter: asyncio.Future[int] | None


class SqliteAudit:
    """An `AuditLog` in the files `audit.db`, `audit.key` and `audit.head` of the hub's home."""

    def __init__(self, home: Path, *, durable: bool = False) -> None:
        self.commits = 0
        self._home = home
        self._durable = durable
        self._encode = msgspec.json.Encoder().encode
        self._pending: list[Pending] = []
        self._running: dict[int, None] = {}
        """Intents that await their outcome, the oldest first."""
        self._scheduled = False
        self._loop: asyncio.AbstractEventLoop | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._closed = False
        self._failure: str | None = None
        self._paused_until = 0.0
        self._looked = 0.0
        self._pages = 0
        self._checkpointing: asyncio.Future[None] | None = None
        self._head = _open_head(home)
        try:
            self._open()
        except BaseException:
            os.close(self._head)
            raise

    def intend(self, entry: Mapping[str, Any]) -> asyncio.Future[int]:
        if self._closed:
            raise Full("the call was refused: the hub is going down and its audit is closed")
        if self._failure is not None and time.monotonic() < self._paused_until:
            raise self._refusal()
        if len(self._pending) >= MAX_PENDING:
            raise Full(f"the call was refused: {MAX_PENDING} entries wait for the audit; try again")
        loop = self._loop
        if loop is None or loop.is_closed():
            loop = self._loop = asyncio.get_running_loop()
        waiter = loop.create_future()
        self._pending.append(Pending(INTENT, None, time.time(), self._encode(entry), waiter))
        if not self._scheduled:
            self._scheduled = True
            loop.call_soon(self._turn)
        return waiter

    def conclude(self, intent: int, entry: Mapping[str, Any]) -> None:
        if intent not in self._running:
            log.error("entry %d of the audit has an outcome already, or is no intent", intent)
            return
        del self._running[intent]
        if self._closed or len(self._pending) >= 2 * MAX_PENDING:
            log.error("the outcome of entry %d of the audit is lost and reads unknown", intent)
            return
        self._pending.append(Pending(OUTCOME, intent, time.time(), self._encode(entry), None))
        if not self._scheduled:
            self._later(OUTCOME_SECONDS)

    @property
    def unfinished(self) -> bool:
        """Whether a call has begun whose outcome is still to come."""
        return bool(self._running) or any(entry.waiter is not None for entry in self._pending)

    def flush(self) -> None:
        """Writes now what is pending; raises `Full` when it cannot be written."""
        if not self._write():
            raise self._refusal()

    def close(self) -> None:
        if self._closed:
            return
        self._write()
        self._closed = True
        if self._timer is not None:
            self._timer.cancel()
        if self._pending:
            log.error("%d outcomes could not be written to the audit", len(self._pending))
        self._db.close()
        os.close(self._head)

    async def prune(self, older_than_seconds: float, max_entries: int) -> int:
        """Deletes entries from the oldest on while they are older than that, or more than that many
        are kept; never the intent of a call that still runs, nor anything after it. Says how many.
        One small batch a turn of the loop. A break goes like any other entry, when its time comes.
        """
        removed = 0
        while not self._closed:
            batch = self._prune_batch(time.time() - older_than_seconds, max_entries)
            if not batch:
                break
            removed += batch
            if self._checkpointing is not None:
                await asyncio.wait({self._checkpointing})
            else:
                await asyncio.sleep(0)
        return removed

    def _open(self) -> None:
        path = self._home / DATABASE
        key = read_key(self._home)
        fresh = key is None and not os.pread(self._head, 1, 0) and not path.exists()
        lost_key = key is None and not fresh
        if key is None:
            key = make_key(self._home)
        self._seal = Seal(key)
        if fresh:
            # At once, so that a key or entries without a head are never our own doing.
            os.pwrite(self._head, self._seal.head(ORIGIN), 0)
        self._db = open_store(path, MIGRATIONS, durable=self._durable)
        try:
            self._db.execute(f"PRAGMA busy_timeout={BUSY_MILLISECONDS}")
            self._db.execute(f"PRAGMA wal_autocheckpoint={BACKSTOP_PAGES}")
            self._inode = path.stat().st_ino
            self._begin(lost_key)
            if not self._write():
                raise OSError(self._failure)
        except (OSError, sqlite3.Error) as error:
            self._db.close()
            raise ConfigError(
                f'the audit "{path}" cannot be written ({error}); check the space left there and '
                "whether another program holds it"
            ) from error

    def _begin(self, lost_key: bool) -> None:
        """Goes on where the chain ends. Where that is not where it was left, the first thing to go
        in is an entry that says so: it cannot be taken out again unseen."""
        record = os.pread(self._head, 1024, 0)
        head = self._seal.tip_from_head(record)
        end = tail(self._db)
        if lost_key:
            problem: str | None = "the key was missing, so nothing before this entry can be proved"
        elif not record:
            problem = f"the head was missing, the database ends at entry {end.seq}"
        elif head is None:
            problem = f"the head was forged or damaged, the database ends at entry {end.seq}"
        else:
            problem = departure(self._db, self._seal, head, end)
        self._tip = end
        if problem is not None:
            log.error("the audit in %s is not as it was left: %s", self._home, problem)
            # Above whatever the head has seen, so that no number is given twice.
            self._tip = Tip(max(end.seq, head.seq if head else 0), end.mac)
            os.ftruncate(self._head, 0)
            body = self._encode({"problem": problem})
            self._pending.append(Pending(BREAK, None, time.time(), body, None))
        body = self._encode({"pid": os.getpid()})
        self._pending.append(Pending(START, None, time.time(), body, None))

    def _later(self, seconds: float) -> None:
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(seconds, self._timed)

    def _timed(self) -> None:
        self._timer = None
        if not self._closed:
            self._write()

    def _turn(self) -> None:
        self._scheduled = False
        if not self._closed:
            self._write()

    def _write(self) -> bool:
        """Puts all that is pending in one commit and moves the head; whether that went well."""
        group = self._pending
        if not group:
            return True
        self._pending = []
        try:
            self._check_place()
            rows, tip = self._rows(group)
            self._insert(rows)
        except (sqlite3.Error, OSError) as error:
            self._fail(group, error)
            return False
        self.commits += 1
        self._tip = tip
        try:
            os.pwrite(self._head, self._seal.head(tip), 0)
            if self._durable:
                os.fsync(self._head)
        except OSError as error:
            self._fail(self._stored_in_vain(rows, group), error)
            return False
        self._failure = None
        for row, entry in zip(rows, group, strict=False):
            if entry.waiter is not None and not entry.waiter.done():
                self._running[row[0]] = None
                entry.waiter.set_result(row[0])
        self._logged(3 + len(rows) // 8)
        return True

    def _insert(self, rows: list[Row]) -> None:
        if len(rows) <= FEW:  # one statement is a transaction by itself, and saves two
            self._db.execute(
                INSERT + MORE * (len(rows) - 1), [field for row in rows for field in row]
            )
            return
        self._db.execute("BEGIN IMMEDIATE")
        self._db.executemany(INSERT, rows)
        self._db.execute("COMMIT")

    def _rows(self, group: list[Pending]) -> tuple[list[Row], Tip]:
        seq, mac = self._tip
        rows: list[Row] = []
        left = []
        seal = self._seal.entry
        for kind, of, at, body, waiter in group:
            seq += 1
            mac = seal(mac, seq, kind, of, at, body)
            rows.append((seq, kind, of, at, body, mac))
            if waiter is not None and waiter.done():
                left.append((seq, at))
        # Whoever stopped waiting before its intent was stored will not conclude it.
        for of, at in left:
            seq += 1
            mac = seal(mac, seq, OUTCOME, of, at, LEFT)
            rows.append((seq, OUTCOME, of, at, LEFT, mac))
        return rows, Tip(seq, mac)

    def _fail(self, group: list[Pending], error: Exception) -> None:
        """Refuses the intents, keeps the outcomes for the next try."""
        try:
            if self._db.in_transaction:
                self._db.execute("ROLLBACK")
        except sqlite3.Error:
            log.exception("the audit's database did not roll back")
        if self._failure is None:
            log.error("the audit in %s cannot be written, calls are refused: %s", self._home, error)
        self._failure = str(error)
        self._paused_until = time.monotonic() + PAUSE_SECONDS
        self._pending[:0] = [entry for entry in group if entry.waiter is None]
        for entry in group:
            if entry.waiter is not None and not entry.waiter.done():
                entry.waiter.set_exception(self._refusal())
        if self._pending and not self._closed:
            try:
                self._later(PAUSE_SECONDS)
            except RuntimeError:  # no loop runs: at the start, or at the very end
                pass

    def _stored_in_vain(self, rows: list[Row], group: list[Pending]) -> list[Pending]:
        """A group is stored but its head is not: its intents, and that each was refused."""
        again = []
        for row, entry in zip(rows, group, strict=False):
            if entry.waiter is not None and not entry.waiter.done():
                again += [entry, Pending(OUTCOME, row[0], entry.at, REFUSED, None)]
        return again

    def _refusal(self) -> Full:
        """A new one each time: an error carries the trace of the one call it stopped."""
        return Full(
            f'the call was refused: the audit in "{self._home}" cannot be written '
            f"({self._failure}); calls are made again as soon as it can"
        )

    def _check_place(self) -> None:
        """A file that was removed takes writes for ever, and nobody can read them."""
        now = time.monotonic()
        if now - self._looked >= LOOK_SECONDS:
            path = self._home / DATABASE
            if path.stat().st_ino != self._inode:
                raise OSError(f"{DATABASE} was replaced while the hub runs; restart the hub")
            self._looked = now

    def _prune_batch(self, before: float, max_entries: int) -> int:
        if not self._write():
            return 0
        oldest_running = next(iter(self._running), self._tip.seq + 1)
        last: Tip | None = None
        count = 0
        try:
            rows = self._db.execute(
                "SELECT seq, at, mac FROM entries ORDER BY seq LIMIT ?", (PRUNE_BATCH,)
            ).fetchall()
            for seq, at, mac in rows:
                if seq >= oldest_running or (at >= before and seq > self._tip.seq - max_entries):
                    break
                last = Tip(seq, mac)
                count += 1
            if last is None:
                return 0
            now = time.time()
            self._db.execute("BEGIN IMMEDIATE")
            self._db.execute("DELETE FROM entries WHERE seq <= ?", (last.seq,))
            self._db.execute(
                "INSERT OR REPLACE INTO anchor (id, seq, mac, at, seal) VALUES (1, ?, ?, ?, ?)",
                (*last, now, self._seal.anchor(last, now)),
            )
            self._db.execute("COMMIT")
        except sqlite3.Error as error:
            self._fail([], error)
            return 0
        self._logged(10 + count // 4)
        return count

    def _logged(self, pages: int) -> None:
        """From time to time the log is copied into the database file, in a thread: that waits for
        the disk, the loop must not. Should the thread never catch up, SQLite does it itself at
        BACKSTOP_PAGES."""
        self._pages += pages
        if self._pages < CHECKPOINT_PAGES or self._checkpointing is not None:
            return
        self._pages = 0
        try:
            loop = asyncio.get_running_loop()
        except RuntimeError:
            return
        path = self._home / DATABASE
        self._checkpointing = loop.run_in_executor(None, _checkpoint, path)
        self._checkpointing.add_done_callback(self._checkpointed)

    def _checkpointed(self, done: asyncio.Future[None]) -> None:
        self._checkpointing = None


def _open_head(home: Path) -> int:
    """The head's file, locked for as long as the audit is open: readers tell by it that calls
    without an outcome still run, and no second hub writes here."""
    try:
        head = os.open(home / HEAD, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise ConfigError(f'"{home / HEAD}" cannot be opened ({error.strerror})') from error
    for _ in range(100):  # a reader that looks holds it for a moment
        try:
            fcntl.flock(head, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return head
        except OSError:
            time.sleep(0.01)
    os.close(head)
    raise ConfigError(f'another hub writes the audit in "{home}"; end it, or use another home')


def _checkpoint(path: Path) -> None:
    try:
        # `rw`, or a database that was taken away would be made anew.
        uri = f"{path.absolute().as_uri()}?mode=rw"
        with closing(sqlite3.connect(uri, uri=True, isolation_level=None)) as db:
            db.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchone()
    except sqlite3.Error as error:
        log.warning("the audit's log could not be copied into its database: %s", error)
