"""The audit log: stores the intent of a call before it runs and the outcome after it.

An intent is written to the journal at once (a microsecond), together with the outcomes since the
last one; SQLite gets the entries of 100 ms in one commit, or fewer if they are many: a commit costs
as much as dozens of entries. Everything happens on the event loop's thread, so a call waits for no
loop iteration and wakes no thread. Does not know what entries mean, except for the outcome of a
call that is refused because its intent could not be stored.

The journal and then the head are updated after the commit. Wherever the hub is killed, the journal
never ends before the head, and the head never points beyond the database.
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
from typing import Any

from dragoman.core.errors import ConfigError, ShuttingDown, StorageFailed
from dragoman.stores.audit import chain
from dragoman.stores.audit.chain import INTENT, OUTCOME, AuditSeal, ChainTip
from dragoman.stores.audit.journal import JOURNAL, MAX_BODY, Journal, read_journal
from dragoman.stores.audit.verify import find_discrepancy, list_journal_rows_after
from dragoman.stores.sqlite import (
    LOOP_BUSY_SECONDS,
    WatchedFile,
    connect,
    describe_remedy,
    is_damage,
    is_locked,
    open_store,
)
from dragoman.wire.json import encode

log = logging.getLogger(__name__)

JOURNAL_SECONDS = 0.02
"""How long an outcome may wait for the intent of the next call before it is in the journal."""
SAVE_SECONDS = 0.1
SAVE_ENTRIES = 512
"""That many are committed earlier: the loop waits for a commit, some milliseconds for thousands."""
PAUSE_SECONDS = 0.25
"""How long calls are refused without an attempt after a failed write: each attempt may block."""
PRUNE_BATCH = 250
CHECKPOINT_BYTES = 16 * 1024 * 1024
BACKSTOP_BYTES = 64 * 1024 * 1024
PAGE_BYTES = 16 * 1024
"""Of a new database. Each page of a commit is two writes to the write-ahead log, whatever its size;
larger pages are rewritten more often before they are full."""
ENTRY_BYTES = 512
"""The estimated size of an entry in the database."""

REFUSED = b'{"outcome":"refused","error":"StorageFailed","duration_ms":0}'


class SqliteAuditLog:
    """The `AuditLog` in the files `audit.*` of the home."""

    def __init__(
        self, home: Path, *, durable: bool = False, broken: tuple[int, str] | None = None
    ) -> None:
        """`broken` describes a loss that the files do not show: the number of entries there were,
        and what happened. It is recorded as a break."""
        self.commits = 0
        self._home = home
        self._broken = broken
        self.tip = chain.ORIGIN
        self._trailer = b""
        """The sealed end of the chain for the journal."""
        self.previous_end_at = 0.0
        """The time of the newest entry of an earlier hub; 0 if there is none."""
        self._durable = durable
        self._pending: list[chain.PendingEntry] = []
        """Entries that are not in the chain yet."""
        self._unsaved: list[chain.EntryRow] = []
        """Entries in the chain that are not in the database yet. The journal contains them, so its
        size bounds them, apart from the outcomes of running calls."""
        self.copied_seq: int | None = None
        """Entries after this number are not pruned, because they are still to be copied to another
        database; None if they are not copied."""
        self.last_pruned = chain.ORIGIN
        self._unwritten: list[bytes] = []
        """Sealed entries of the chain that are not in the journal yet."""
        self._running: dict[int, None] = {}
        """Intents without an outcome, oldest first."""
        self._timer: asyncio.TimerHandle | None = None
        self._save_at = 0.0
        """When the timer saves; before that it writes the journal."""
        self._closed = False
        self._failure: str | None = None
        self._paused_until = 0.0
        self._logged_bytes = 0
        """Estimated, since the last checkpoint."""
        self._checkpointing: asyncio.Future[None] | None = None
        self._head = _open_head(home)
        try:
            self._open()
        except BaseException:
            os.close(self._head)
            raise

    def intend(self, entry: Mapping[str, Any]) -> int:
        if self._failure is not None and not self._try_recovery():
            raise self._build_refusal()
        body = encode(entry)
        if len(body) > MAX_BODY:
            raise StorageFailed(
                f"the call was refused: its record of {len(body)} bytes is too long"
            )
        self._pending.append((INTENT, None, time.time(), body))
        # If the journal is full, everything goes to the database. After a failure calls are
        # refused until the database has all entries.
        is_stored = self._write_journal() or (self._failure is None and self._save())
        seq = self.tip.seq
        if not is_stored:
            self._pending.append((OUTCOME, seq, time.time(), REFUSED))
            raise self._build_refusal()
        self._running[seq] = None
        if self._timer is None:
            self._start_timer()
        return seq

    def conclude(self, intent: int, entry: Mapping[str, Any]) -> None:
        try:
            del self._running[intent]
        except KeyError:
            log.error("audit entry %d already has an outcome, or is not an intent", intent)
            return
        body = encode(entry)
        if self._closed or len(body) > MAX_BODY:
            log.error("the outcome of audit entry %d is lost; it will read unknown", intent)
            return
        self._pending.append((OUTCOME, intent, time.time(), body))
        if self._timer is None:
            self._start_timer()

    @property
    def has_running_calls(self) -> bool:
        return bool(self._running)

    def find_first(self) -> tuple[int, float]:
        """The number and the time of the oldest entry that is kept. Raises `StorageFailed`."""
        try:
            found = self._db.execute("SELECT seq, at FROM entries ORDER BY seq LIMIT 1").fetchone()
        except sqlite3.Error as error:
            raise StorageFailed(f'the audit in "{self._home}" cannot be read ({error})') from error
        return found or (self.tip.seq, time.time())

    @property
    def has_unsaved_entries(self) -> bool:
        """Whether there are entries that are not in the database."""
        return bool(self._pending or self._unsaved)

    def sync(self) -> bool:
        """Syncs the database to disk and returns whether that succeeded. Thread-safe."""
        try:
            _checkpoint_log(self._home / chain.DATABASE)
            head = os.open(self._home / chain.HEAD, os.O_RDONLY | os.O_CLOEXEC)
            try:
                os.fsync(head)
            finally:
                os.close(head)
        except (OSError, sqlite3.Error) as error:
            log.warning("the audit log could not be synced to disk: %s", error)
            return False
        return True

    def flush(self) -> None:
        """Writes all entries to the database now. Raises `StorageFailed`."""
        if not self._save(can_wait=True):
            raise self._build_refusal()

    def close(self) -> None:
        if self._closed:
            return
        if not self._save():
            kept = "the journal has it" if self._write_journal() else "entries are lost"
            log.error("the audit log in %s could not be saved; %s", self._home, kept)
        self._closed = True
        self._failure = "the hub is shutting down"
        if self._timer is not None:
            self._timer.cancel()
        self._db.close()
        self._journal.close()
        os.close(self._head)

    async def prune(self, older_than_seconds: float, max_entries: int) -> int:
        """Deletes the oldest entries that are too old or too many, and returns their number.

        Never deletes the intent of a running call or anything after it. Deletes one small batch per
        loop iteration. Breaks are deleted like other entries.
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
        path = self._home / chain.DATABASE
        stored = chain.read_key(self._home)
        others = path.exists() or (self._home / JOURNAL).exists()
        # The head of a start that was killed before it stored the key is no loss.
        first = os.pread(self._head, 1, 0) in (b"", chain.FIRST_HEAD)
        fresh = stored is None and first and not others
        lost_key = stored is None and not fresh
        key = stored or chain.generate_key()
        self._seal = AuditSeal(key)
        self.hash_arguments = self._seal.hash_arguments
        if fresh:
            # Before the key: a key or entries without a head then always mean a loss.
            os.pwrite(self._head, self._seal.seal_tip(chain.FIRST_HEAD, *chain.ORIGIN), 0)
        if stored is None:
            chain.store_key(self._home, key)
        self._db = open_store(
            path,
            chain.MIGRATIONS,
            durable=self._durable,
            busy_seconds=LOOP_BUSY_SECONDS,
            page_bytes=PAGE_BYTES,
        )
        self._journal = Journal(self._home)
        try:
            self._page_bytes: int = self._db.execute("PRAGMA page_size").fetchone()[0]
            self._db.execute(f"PRAGMA wal_autocheckpoint={BACKSTOP_BYTES // self._page_bytes}")
            self._file = WatchedFile(path)
            self._resume(lost_key)
            if not self._save():
                raise OSError(self._failure)
        except BaseException as error:
            self._journal.close()
            self._db.close()
            if not isinstance(error, OSError | sqlite3.Error):
                raise
            if is_damage(error):
                raise ConfigError(
                    f'"{path}" is damaged ({error}); {describe_remedy(path)}'
                ) from error
            raise ConfigError(
                f'the audit log "{path}" cannot be written ({error}); check the free space and '
                "whether another program has locked it"
            ) from error

    def _resume(self, lost_key: bool) -> None:
        """Continues the chain, including entries that a killed hub left in the journal. If the
        files are not as they were left, the first new entry records a break, which cannot be
        removed without being detected."""
        record = os.pread(self._head, 1024, 0)
        left = read_journal(self._home, self._seal)
        if lost_key:
            problem: str | None = "the key was missing, so no entry before this one can be verified"
        else:
            problem = find_discrepancy(self._db, self._seal, record, left)
        lost, told = self._broken or (0, None)
        problem = told or problem
        end = chain.find_tail(self._db)
        newest = self._db.execute("SELECT at FROM entries WHERE seq = ?", (end.seq,)).fetchone()
        self.previous_end_at = newest[0] if newest else 0.0
        waiting = list_journal_rows_after(end, left)
        try:
            for row, tip in zip(
                waiting, chain.verify_entries(waiting, self._seal, end), strict=True
            ):
                self._unsaved.append(row)
                end = tip
        except chain.ChainBroken:  # `problem` describes it
            pass
        self.tip = end
        if problem is not None:
            log.error("the audit log in %s was changed or damaged: %s", self._home, problem)
            # Above every number that head and journal have seen, so that no number is used twice.
            head = self._seal.read_tip(chain.HEADS, record)
            trailer = self._seal.read_tip(chain.TRAILERS, left.trailer) if left else None
            last = max(lost, *(tip.seq for tip in (end, head, trailer) if tip is not None))
            self.tip = ChainTip(last, end.mac)
            os.ftruncate(self._head, 0)
            self._pending.append((chain.BREAK, None, time.time(), encode({"problem": problem})))
        elif left is None:
            # Before any other write: a missing journal would be a break.
            self._journal.restart(self._seal.seal_tip(chain.TRAILER, *self.tip))
        self._pending.append((chain.START, None, time.time(), encode({"pid": os.getpid()})))

    def _try_recovery(self) -> bool:
        if self._closed:
            raise ShuttingDown("the call was refused: the hub is shutting down")
        return time.monotonic() >= self._paused_until and self._save()

    def _seal_pending(self) -> None:
        encoded, rows, tip = self._seal.seal_batch(self._pending, self.tip)
        self._pending.clear()
        self._unwritten += encoded
        self._unsaved += rows
        self.tip = tip
        seq, mac = tip
        self._trailer = self._seal.seal_tip(chain.TRAILER, seq, mac)

    def _write_journal(self) -> bool:
        """Seals and writes new entries to the journal; returns False if that failed."""
        self._seal_pending()
        try:
            if not self._journal.append(self._unwritten, self._trailer):
                return False
            self._unwritten.clear()
            if self._durable:
                self._journal.sync()
        except OSError as error:
            self._note_failure(error)
            return False
        return True

    def _write_ends(self) -> None:
        self._unwritten.clear()
        self._journal.restart(self._trailer)
        if self._durable:
            self._journal.sync()
        os.pwrite(self._head, self._seal.seal_tip(chain.HEAD_BESIDE_JOURNAL, *self.tip), 0)
        if self._durable:
            os.fsync(self._head)

    def _start_timer(self) -> None:
        self._save_at = time.monotonic() + SAVE_SECONDS - JOURNAL_SECONDS / 2
        self._schedule(JOURNAL_SECONDS)

    def _schedule(self, seconds: float) -> None:
        try:
            loop = asyncio.get_running_loop()
        except RuntimeError:  # at the start, or at the very end
            return
        self._timer = loop.call_later(seconds, self._write_on_timer)

    def _write_on_timer(self) -> None:
        self._timer = None
        if self._closed:
            return
        now = time.monotonic()
        if (pause := self._paused_until - now) > 0:
            self._schedule(pause)
        elif now < self._save_at and len(self._unsaved) < SAVE_ENTRIES and self._failure is None:
            if self._pending:
                self._write_journal()
            if self._timer is None:
                self._schedule(JOURNAL_SECONDS)
        elif not self._save(can_wait=True):
            self._write_journal()

    def _save(self, *, can_wait: bool = False) -> bool:
        """Writes all unsaved entries to the database in one commit; returns whether it succeeded.
        With `can_wait` a locked database is not a failure: the journal has the entries, and the
        timer tries again."""
        self._seal_pending()
        count = len(self._unsaved)
        if not count and self._failure is None:
            return True
        try:
            self._file.check()
            chain.insert_entries(self._db, self._unsaved)
            self._unsaved.clear()
            self._write_ends()
        except (sqlite3.Error, OSError) as error:
            if can_wait and self._failure is None and is_locked(error):
                self._roll_back()
                if self._timer is None:
                    self._schedule(PAUSE_SECONDS)
            else:
                self._note_failure(error)
            return False
        self.commits += 1
        self._failure = None
        self._paused_until = 0.0
        self._count_bytes(3 * self._page_bytes + count * ENTRY_BYTES)
        return True

    def _note_failure(self, error: Exception) -> None:
        """Refuses calls until everything is saved, which the timer keeps trying."""
        self._roll_back()
        if self._failure is None:
            log.error(
                "the audit log in %s cannot be written; refusing calls: %s", self._home, error
            )
        self._failure = str(error)
        self._paused_until = time.monotonic() + PAUSE_SECONDS
        if self._timer is None and not self._closed:
            self._schedule(PAUSE_SECONDS)

    def _roll_back(self) -> None:
        try:
            if self._db.in_transaction:
                self._db.execute("ROLLBACK")
        except sqlite3.Error:
            log.exception("the audit database did not roll back")

    def _build_refusal(self) -> StorageFailed:
        """Builds a new error each time, because an error carries the trace of one call."""
        return StorageFailed(
            f'the call was refused: the audit log in "{self._home}" cannot be written '
            f"({self._failure or 'database is locked'}); calls are made again as soon as it can"
        )

    def _prune_batch(self, before: float, max_entries: int) -> int:
        if not self._save(can_wait=True):
            return 0
        keep_from = next(iter(self._running), self.tip.seq + 1)
        if self.copied_seq is not None:
            keep_from = min(keep_from, self.copied_seq + 1)
        last: ChainTip | None = None
        count = 0
        try:
            rows = self._db.execute(
                "SELECT seq, at, mac FROM entries ORDER BY seq LIMIT ?", (PRUNE_BATCH,)
            ).fetchall()
            for seq, at, mac in rows:
                if seq >= keep_from or (at >= before and seq > self.tip.seq - max_entries):
                    break
                last = ChainTip(seq, mac)
                count += 1
            if last is None:
                return 0
            now = time.time()
            self._db.execute("BEGIN IMMEDIATE")
            self._db.execute("DELETE FROM entries WHERE seq <= ?", (last.seq,))
            self._db.execute(
                "INSERT OR REPLACE INTO anchor (id, seq, mac, at, seal) VALUES (1, ?, ?, ?, ?)",
                (*last, now, self._seal.seal_anchor(last, now)),
            )
            self._db.execute("COMMIT")
        except sqlite3.Error as error:
            if is_locked(error):
                self._roll_back()
            else:
                self._note_failure(error)
            return 0
        self.last_pruned = last
        self._count_bytes(10 * self._page_bytes + 2 * count * ENTRY_BYTES)
        return count

    def _count_bytes(self, logged: int) -> None:
        """Starts a WAL checkpoint in a thread now and then: it waits for the disk, and the loop
        must not. If the thread falls behind, SQLite checkpoints by itself at BACKSTOP_BYTES."""
        self._logged_bytes += logged
        if self._logged_bytes < CHECKPOINT_BYTES or self._checkpointing is not None:
            return
        self._logged_bytes = 0
        try:
            loop = asyncio.get_running_loop()
        except RuntimeError:
            return
        path = self._home / chain.DATABASE
        self._checkpointing = loop.run_in_executor(None, _try_checkpoint, path)
        self._checkpointing.add_done_callback(self._end_checkpoint)

    def _end_checkpoint(self, done: asyncio.Future[None]) -> None:
        self._checkpointing = None


def _open_head(home: Path) -> int:
    """Opens the head file and locks it while the audit log is open: the lock tells readers that
    calls without an outcome are running, and excludes a second hub."""
    try:
        head = os.open(home / chain.HEAD, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise ConfigError(f'"{home / chain.HEAD}" cannot be opened ({error.strerror})') from error
    for _ in range(100):  # a reader may hold it briefly
        try:
            fcntl.flock(head, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return head
        except OSError:
            time.sleep(0.01)
    os.close(head)
    raise ConfigError(f'another hub uses the audit log in "{home}"; stop it, or use another home')


def _checkpoint_log(path: Path) -> None:
    # `rw`: a removed database must not be created again.
    with closing(connect(path, "rw", 5.0)) as db:
        db.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchone()


def _try_checkpoint(path: Path) -> None:
    try:
        _checkpoint_log(path)
    except sqlite3.Error as error:
        log.warning("the audit database could not be checkpointed: %s", error)


def compact_database(path: Path) -> None:
    """Returns the space of deleted entries to the file system, while no hub runs. Auto-vacuum would
    do this automatically but make every commit more expensive."""
    try:
        with closing(connect(path, "rw", 5.0)) as db:
            db.execute("VACUUM")
            db.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
    except sqlite3.Error as error:
        raise ConfigError(f'"{path}" cannot be compacted ({error})') from error
