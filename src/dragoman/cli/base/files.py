"""Reads other programs' configuration files within bounds; replaces them atomically, with a backup.

Knows bytes, text and line ends, not what the text means.
"""

from __future__ import annotations

import os
import re
import stat
import tempfile
from datetime import UTC, datetime
from pathlib import Path

from dragoman.cli.base.errors import CommandFailed, UnreadableFile

MAX_BYTES = 32 * 1024 * 1024
"""~/.claude.json grows to megabytes; a larger file is no configuration."""
KEPT_BACKUPS = 5


def read_bytes(path: Path) -> bytes | None:
    """Returns the bytes of a file, or None if it does not exist."""
    try:
        if not stat.S_ISREG(path.stat().st_mode):  # opening a FIFO would wait for a writer
            raise UnreadableFile(f'"{path}" is not a regular file')
        with path.open("rb") as file:
            data = file.read(MAX_BYTES + 1)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise UnreadableFile(f'"{path}" cannot be read: {error.strerror}') from None
    if len(data) > MAX_BYTES:
        raise UnreadableFile(f'"{path}" is too large (over {MAX_BYTES >> 20} MiB)')
    return data


def decode_text(data: bytes) -> tuple[str, str]:
    """Splits UTF-8 bytes into the byte order mark (or an empty string) and the text."""
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise UnreadableFile(f"byte {error.start}: not valid UTF-8") from None
    return ("\ufeff", text[1:]) if text.startswith("\ufeff") else ("", text)


def detect_newline(text: str) -> str:
    if "\r\n" in text:
        return "\r\n"
    return "\r" if "\r" in text and "\n" not in text else "\n"


def has_line_break(text: str) -> bool:
    return "\n" in text or "\r" in text


def list_backups(path: Path) -> list[Path]:
    """Lists the backups that this module wrote of a file, oldest first."""
    target = Path(os.path.realpath(path))
    ours = re.compile(re.escape(target.name) + r"\.bak-\d{8}T\d{6}\.\d{6}Z")
    try:
        return sorted(p for p in target.parent.iterdir() if ours.fullmatch(p.name))
    except OSError:
        return []


def replace_file(
    path: Path, data: bytes | None, before: bytes | None, *, mode: int = 0o600, backup: bool = True
) -> Path | None:
    """Replaces `before` with `data` (None: removes the file) atomically. Returns the backup.

    Follows links and keeps mode and owner; `mode` applies to a new file. Refuses a read-only file
    and one that changed since `before` was read.
    """
    target = Path(os.path.realpath(path))
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        found = target.stat() if before is not None else None
        if found and (not found.st_mode & 0o222 or not os.access(target, os.W_OK)):
            raise CommandFailed(
                f'"{target}" is read-only; make it writable, or add the entry by hand'
            )
        saved = None
        if before is not None and backup:
            stamp = datetime.now(UTC).strftime("%Y%m%dT%H%M%S.%fZ")
            saved = target.with_name(f"{target.name}.bak-{stamp}")
            os.replace(_write_temporary(target, before, found, mode), saved)
        try:
            _swap(target, data, before, found, mode)
        except BaseException:
            if saved:
                saved.unlink(missing_ok=True)
            raise
        for old in list_backups(path)[:-KEPT_BACKUPS]:
            old.unlink(missing_ok=True)
        return saved
    except OSError as error:
        raise CommandFailed(f'"{target}" cannot be written: {error.strerror}') from None


def _swap(
    target: Path, data: bytes | None, before: bytes | None, found: os.stat_result | None, mode: int
) -> None:
    ready = None if data is None else _write_temporary(target, data, found, mode)
    try:
        if read_bytes(target) != before:
            raise CommandFailed(
                f'"{target}" was changed by another program just now; run this again'
            )
        if ready is None:
            target.unlink()
        else:
            os.replace(ready, target)
            ready = None
    finally:
        if ready is not None:
            ready.unlink(missing_ok=True)
    if os.name == "posix":
        folder = os.open(target.parent, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)


def _write_temporary(target: Path, data: bytes, like: os.stat_result | None, mode: int) -> Path:
    handle, name = tempfile.mkstemp(dir=target.parent, prefix=f".{target.name}.", suffix=".tmp")
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(data)
            file.flush()
            if os.name == "posix":
                if like and (like.st_uid, like.st_gid) != (os.geteuid(), os.getegid()):
                    os.fchown(file.fileno(), like.st_uid, like.st_gid)
                os.fchmod(file.fileno(), like.st_mode & 0o7777 if like else mode)
            os.fsync(file.fileno())
    except BaseException:
        os.unlink(name)
        raise
    return Path(name)
