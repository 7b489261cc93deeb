"""The journal of the audit log: a file of fixed size with the entries not yet in the database.

Sealed entries follow one another, then the trailer: the sealed end of the chain. New entries and
their trailer overwrite the old trailer in the page cache, which survives kill -9. The MAC of an
entry is stored in the record that follows it, entry or trailer, at the same offset. Bytes after the
trailer are left over and have no meaning. Does not verify seals.

kill -9 can end a write between two pages, never within one. No trailer extends over two pages, and
its page is written last: the journal ends with the old entries or with the new ones.
"""

from __future__ import annotations

import errno
import os
import time
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

from dragoman.core.errors import ConfigError
from dragoman.stores.audit import chain
from dragoman.stores.audit.chain import AuditSeal, EntryRow

JOURNAL = "audit.journal"
SIZE = 1024 * 1024
MAX_BODY = 64 * 1024
FIRST_LOOK = 64 * 1024
TRIES = 10
PAGE = 4096
"""Pages of the page cache have this size or a multiple of it."""

TRAILER_BYTES = chain.TIP.size + 32
FULL_PAGE = PAGE - TRAILER_BYTES
"""A page with more bytes has no room for a trailer."""
PARTIAL = f"only a part of an entry was written to {JOURNAL}"
KINDS = {chain.INTENT.encode(): chain.INTENT, chain.OUTCOME.encode(): chain.OUTCOME}


class Journal:
    """Writes the journal of the home that this process holds. Every method may raise `OSError`."""

    def __init__(self, home: Path) -> None:
        self._path = str(home / JOURNAL)
        self._file = -1
        self._inode = 0
        self._end = SIZE
        self._trailer = b""

    def append(self, entries: Iterable[bytes], trailer: bytes) -> bool:
        """Appends entries, which any process can then read; returns False if there is no room.
        A failure leaves the journal unchanged."""
        begin = end = self._end
        records: list[bytes] = []
        for entry in entries:
            records.append(entry)
            end += len(entry)
            if end % PAGE > FULL_PAGE:  # as after few entries
                gap = measure_gap(end)
                records.append(bytes(gap))
                end += gap
        if end + TRAILER_BYTES > SIZE:
            return False
        records.append(trailer)
        whole = b"".join(records)
        first = PAGE - begin % PAGE
        if len(whole) > first:
            rest = whole[first:]
            if os.pwrite(self._file, rest, begin + first) != len(rest):
                raise OSError(errno.EIO, PARTIAL)
            whole = whole[:first]
        if os.pwrite(self._file, whole, begin) != len(whole):
            # Restore the old trailer: half an entry is neither an entry nor a break.
            os.pwrite(self._file, self._trailer, begin)
            raise OSError(errno.EIO, PARTIAL)
        self._end = end
        self._trailer = trailer
        return True

    def sync(self) -> None:
        os.fsync(self._file)

    def restart(self, trailer: bytes) -> None:
        """Discards all entries; creates the file if it is missing or was replaced. After a failure
        `append` accepts nothing until this succeeds: entries after a gap would not be read."""
        self._end = SIZE
        try:
            in_place = os.stat(self._path).st_ino == self._inode
        except FileNotFoundError:
            in_place = False
        if not in_place:
            self._create(trailer)
        elif os.pwrite(self._file, trailer, 0) != len(trailer):
            raise OSError(errno.EIO, f"only a part of the trailer was written to {JOURNAL}")
        self._end = 0
        self._trailer = trailer

    def close(self) -> None:
        if self._file >= 0:
            os.close(self._file)
            self._file = -1

    def _create(self, trailer: bytes) -> None:
        """Creates the file atomically with its trailer: a journal without one would be a break."""
        self.close()
        draft = Path(self._path + ".new")
        draft.unlink(missing_ok=True)
        file = os.open(draft, os.O_CREAT | os.O_EXCL | os.O_RDWR | os.O_CLOEXEC, 0o600)
        try:
            if hasattr(os, "posix_fallocate"):  # so that a full disk does not stop writes
                os.posix_fallocate(file, 0, SIZE)
            os.pwrite(file, trailer, 0)
            os.fsync(file)
            draft.replace(self._path)
        except BaseException:
            os.close(file)
            raise
        self._file = file
        self._inode = os.fstat(file).st_ino


class JournalContents(NamedTuple):
    before: bytes
    """The MAC before the first entry, unverified."""
    rows: list[EntryRow]
    trailer: bytes
    """The bytes after the last readable entry, which may not be a valid trailer."""


def read_journal(home: Path, seal: AuditSeal | None = None) -> JournalContents | None:
    """Reads the journal from any process; returns None if there is no file. A reader that reads the
    database afterwards misses nothing, because entries leave the journal only after the commit.
    A journal without a valid end may have been read during a write and is read again, or is that of
    a hub of version 0.1, which left no gaps."""
    left = None
    for attempt in range(TRIES):
        if attempt:
            time.sleep(0.001)
        whole = _read(home / JOURNAL, SIZE if attempt else FIRST_LOOK)
        if whole is None:
            return None
        left = _parse(whole)
        if _has_valid_end(left, seal):
            break
        older = _parse(whole, with_gaps=False)
        if _has_valid_end(older, seal):
            return older
    return left


def _read(path: Path, size: int) -> bytes | None:
    try:
        file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            return os.pread(file, size, 0)
        finally:
            os.close(file)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise ConfigError(f'"{path}" cannot be read ({error.strerror})') from error


def measure_gap(end: int) -> int:
    """Returns how many bytes are left free after a record so that a trailer fits into the page."""
    room = -end % PAGE
    return room if room < TRAILER_BYTES else 0


def _parse(whole: bytes, *, with_gaps: bool = True) -> JournalContents:
    rows: list[EntryRow] = []
    place = 0
    while place + chain.ENTRY.size <= len(whole):
        code, _, seq, with_of, of, at, name_size, size = chain.ENTRY.unpack_from(whole, place)
        body = place + chain.ENTRY.size + name_size
        kind = KINDS.get(whole[place + chain.ENTRY.size : body]) if code == b"E" else None
        end = body + size
        if with_gaps:
            end += measure_gap(end)
        if kind is None or size > MAX_BODY or end + 33 > len(whole):
            break
        mac = whole[end + 1 : end + 33]
        rows.append((seq, kind, of if with_of else None, at, whole[body : body + size], mac))
        place = end
    return JournalContents(whole[1:33], rows, whole[place : place + TRAILER_BYTES])


def _has_valid_end(left: JournalContents, seal: AuditSeal | None) -> bool:
    """Whether the trailer is valid and belongs to the last entry."""
    _, rows, trailer = left
    if len(trailer) < TRAILER_BYTES or trailer[:1] != chain.TRAILER:
        return False
    if rows and chain.TIP.unpack_from(trailer)[2] != rows[-1][0]:
        return False
    return seal is None or seal.read_tip(chain.TRAILERS, trailer) is not None
