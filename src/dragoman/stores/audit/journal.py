"""Where the audit's entries are first: a file that is written from its beginning until the database
has them all, and then from its beginning again.

Entries stand one behind the other as they are sealed, and behind the last the trailer: the sealed
end of the chain. The next entries are written over it together with their own trailer, by one write
to the page cache, which survives kill -9. An entry's MAC stands in what follows it, entry or
trailer, at the same place. What is behind a trailer is left from before and means nothing.
Proves nothing: that takes the key.
"""

from __future__ import annotations

import errno
import os
import time
from pathlib import Path
from typing import NamedTuple

from dragoman.core.errors import ConfigError
from dragoman.stores.audit.chain import (
    ENTRY,
    INTENT,
    OUTCOME,
    TIP,
    TRAILER,
    TRAILERS,
    AuditSeal,
    EntryRow,
)

JOURNAL = "audit.journal"
SIZE = 1024 * 1024
MAX_BODY = 64 * 1024
FIRST_LOOK = 64 * 1024
TRIES = 10

TRAILER_BYTES = TIP.size + 32
KINDS = {INTENT.encode(): INTENT, OUTCOME.encode(): OUTCOME}


class Journal:
    """For the one hub that holds the home. Every method may raise `OSError`."""

    def __init__(self, home: Path) -> None:
        self._path = str(home / JOURNAL)
        self._file = -1
        self._inode = 0
        self._end = SIZE
        self._trailer = b""

    def append(self, entries: bytes, trailer: bytes) -> bool:
        """When it returns, any process can read the entries; False if there is no room for them.
        If it fails, all is as before."""
        whole = entries + trailer
        place = self._end
        if place + len(whole) > SIZE:
            return False
        if os.pwrite(self._file, whole, place) != len(whole):
            # What stood there before is put back: half an entry is nobody's entry, nor a break.
            os.pwrite(self._file, self._trailer, place)
            raise OSError(errno.EIO, f"{JOURNAL} took only a part of an entry")
        self._end = place + len(entries)
        self._trailer = trailer
        return True

    def sync(self) -> None:
        os.fsync(self._file)

    def restart(self, trailer: bytes) -> None:
        """Forgets all entries; makes the file if there is none, or not the one that was made. If
        it fails nothing is taken until it succeeds: what stands behind a gap would not be read."""
        self._end = SIZE
        try:
            in_place = os.stat(self._path).st_ino == self._inode
        except FileNotFoundError:
            in_place = False
        if not in_place:
            self._create(trailer)
        elif os.pwrite(self._file, trailer, 0) != len(trailer):
            raise OSError(errno.EIO, f"{JOURNAL} took only a part of its trailer")
        self._end = 0
        self._trailer = trailer

    def close(self) -> None:
        if self._file >= 0:
            os.close(self._file)
            self._file = -1

    def _create(self, trailer: bytes) -> None:
        """There from the first moment with its trailer, or not at all: one without is a break."""
        self.close()
        draft = Path(self._path + ".new")
        draft.unlink(missing_ok=True)
        file = os.open(draft, os.O_CREAT | os.O_EXCL | os.O_RDWR | os.O_CLOEXEC, 0o600)
        try:
            if hasattr(os, "posix_fallocate"):  # so that a disk that fills up does not stop it
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
    """What stands in a journal."""

    before: bytes
    """The MAC that the first entry follows, as it says."""
    rows: list[EntryRow]
    trailer: bytes
    """What stands behind the last entry that can be read, be it one or not."""


def read_journal(home: Path, seal: AuditSeal | None = None) -> JournalContents | None:
    """What stands there, from any process at any time; None when there is no such file. Whoever
    reads the database after this misses nothing: what has left the journal is in there by then.
    It may be read in the middle of being written, so one without a proper end is read again."""
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


def _parse(whole: bytes) -> JournalContents:
    rows: list[EntryRow] = []
    place = 0
    while place + ENTRY.size <= len(whole):
        code, _, seq, with_of, of, at, name_size, size = ENTRY.unpack_from(whole, place)
        body = place + ENTRY.size + name_size
        kind = KINDS.get(whole[place + ENTRY.size : body]) if code == b"E" else None
        end = body + size
        if kind is None or size > MAX_BODY or end + 33 > len(whole):
            break
        mac = whole[end + 1 : end + 33]
        rows.append((seq, kind, of if with_of else None, at, whole[body:end], mac))
        place = end
    return JournalContents(whole[1:33], rows, whole[place : place + TRAILER_BYTES])


def _has_valid_end(left: JournalContents, seal: AuditSeal | None) -> bool:
    """Whether the trailer is one, and of the last entry."""
    _, rows, trailer = left
    if len(trailer) < TRAILER_BYTES or trailer[:1] != TRAILER:
        return False
    if rows and TIP.unpack_from(trailer)[2] != rows[-1][0]:
        return False
    return seal is None or seal.read_tip(TRAILERS, trailer) is not None
