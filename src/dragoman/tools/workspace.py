"""The files of an agent: everything below its workspace, and nothing else.

Every path is walked from the workspace's directory descriptor, one component at a time and without
following symbolic links, so that no link leads out of it, also not one that is created between a
check and its use. Files are replaced, never changed in place. All methods block.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
import threading
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import lru_cache
from pathlib import Path
from secrets import token_hex
from typing import NamedTuple
from weakref import WeakValueDictionary

from dragoman.core.errors import InvalidInput, NotFound, WorkFailed
from dragoman.core.file_modes import make_private_folder

MAX_PATH = 1_024
MAX_PARTS = 32
MAX_NAME_BYTES = 200
"""Of one component; file systems accept 255, and temporary names are longer than their file's."""
MAX_VISITED = 100_000
"""Entries of a workspace that one list visits."""
TEMPORARY = ".dragoman-"
"""Begins the names of files that are being written; no path may have such a component."""

_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_READ = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_CREATE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC


@dataclass(frozen=True, slots=True)
class WorkspaceLimits:
    """The bounds of one workspace."""

    total_bytes: int = 100 * 1024 * 1024
    files: int = 10_000
    """Files and folders."""
    file_bytes: int = 5 * 1024 * 1024
    """Of one file that is read or written."""
    listed: int = 1_000
    """Entries of one list."""


class FileEntry(NamedTuple):
    path: str
    """Relative to the workspace."""
    kind: str
    """`file`, `folder`, `link` or `other`."""
    size: int


class FileChange(NamedTuple):
    path: tuple[str, ...]
    content: bytes | None
    """None: the file is deleted."""
    mode_of: tuple[str, ...] | None = None
    """The file whose permissions it gets, if not its own."""


def list_matching(workspace: Workspace, patterns: Iterable[str]) -> list[str]:
    """Lists the files that match one of the patterns, in the order of names."""
    found: set[str] = set()
    for pattern in patterns:
        try:
            entries, _ = workspace.list_entries((), pattern, True)
        except (InvalidInput, NotFound, WorkFailed):
            continue
        found.update(entry.path for entry in entries if entry.kind == "file")
    return sorted(found)[: workspace.most_listed]


def parse_path(path: str, *, may_be_root: bool = False) -> tuple[str, ...]:
    """Splits a path into components, or raises `InvalidInput`. `/` and `.` are the workspace."""
    shown = path[:80]
    if len(path) > MAX_PATH:
        raise InvalidInput(f"the path is too long: at most {MAX_PATH} characters")
    if any(ord(letter) < 32 or ord(letter) == 127 for letter in path):
        raise InvalidInput("the path has control characters")
    if path.startswith("/") and path != "/":
        raise InvalidInput(
            f'the path "{shown}" is absolute: name the file relative to the workspace'
        )
    parts = tuple(part for part in path.split("/") if part not in ("", "."))
    if ".." in parts:
        raise InvalidInput(f'the path "{shown}" has "..": it must stay inside the workspace')
    if not parts and not may_be_root:
        raise InvalidInput("the path names the workspace itself, not a file in it")
    if len(parts) > MAX_PARTS:
        raise InvalidInput(f'the path "{shown}" has more than {MAX_PARTS} folders')
    for part in parts:
        try:
            too_long = len(part.encode()) > MAX_NAME_BYTES
        except UnicodeEncodeError:
            raise InvalidInput("the path has characters that no file name can have") from None
        if too_long:
            raise InvalidInput(f'the name "{part[:80]}…" is too long: at most {MAX_NAME_BYTES} B')
        if part.startswith(TEMPORARY):
            raise InvalidInput(f'names that begin with "{TEMPORARY}" are reserved')
    return parts


class Workspace:
    """The folder of one agent. Changes of one workspace in this process wait for one another, so
    that its quota holds."""

    def __init__(self, root: Path, limits: WorkspaceLimits) -> None:
        self.root = root
        self._limits = limits
        self._lock = _find_lock(str(root))

    @property
    def most_listed(self) -> int:
        return self._limits.listed

    # --- reading ----------------------------------------------------------------------------------

    def read(self, parts: Sequence[str]) -> bytes:
        with self._open_root() as root:
            return self._read(root, parts)[0]

    def _read(self, root: int, parts: Sequence[str]) -> tuple[bytes, int]:
        """Returns the contents and the permissions."""
        most = self._limits.file_bytes
        shown = "/".join(parts)
        with _open_folder(root, parts[:-1]) as folder:
            fd = _open(parts, parts[-1], _READ, folder)
        try:
            found = os.fstat(fd)
            if not stat.S_ISREG(found.st_mode):
                kind = "a folder" if stat.S_ISDIR(found.st_mode) else "not a regular file"
                raise InvalidInput(f'"{shown}" is {kind}')
            if found.st_size > most:
                raise InvalidInput(
                    f'"{shown}" is too large: {found.st_size} bytes, and at most {most} are read'
                )
            chunks, size = [], 0
            while size <= most and (chunk := os.read(fd, most + 1 - size)):
                chunks.append(chunk)
                size += len(chunk)
        except OSError as error:
            raise WorkFailed(f'"{shown}" cannot be read: {_describe(error)}') from error
        finally:
            os.close(fd)
        if size > most:  # it grew meanwhile
            raise InvalidInput(f'"{shown}" is too large: at most {most} bytes are read')
        return b"".join(chunks), stat.S_IMODE(found.st_mode)

    def list_entries(
        self, parts: Sequence[str], pattern: str | None, recursive: bool
    ) -> tuple[list[FileEntry], bool]:
        """Lists a folder in the order of names, and whether there is more. A pattern is relative to
        the folder; `**` in it stands for any folders."""
        wanted = _split_pattern(pattern) if pattern else None
        found: list[FileEntry] = []
        with self._open_root() as root, _open_folder(root, parts) as folder:
            for entry in _walk(folder, "/".join(parts), recursive, MAX_VISITED):
                below = entry.path.split("/")[len(parts) :]
                if wanted is not None and not match_parts(tuple(below), wanted):
                    continue
                if len(found) >= self._limits.listed:
                    return found, True
                found.append(entry)
        return found, False

    # --- changes ----------------------------------------------------------------------------------

    def write(self, parts: Sequence[str], content: bytes) -> bool:
        """Creates or replaces a file and its missing folders; returns whether it is new."""
        with self._lock, self._open_root() as root:
            is_new = self._find_kind(root, parts) is None
            self._apply(root, [FileChange(tuple(parts), content)])
        return is_new

    @contextlib.contextmanager
    def edit(self) -> Iterator[WorkspaceEdit]:
        """A set of changes that are made together when the block ends without an exception."""
        with self._lock, self._open_root() as root:
            edit = WorkspaceEdit(self, root)
            yield edit
            self._apply(root, edit.changes)

    def _apply(self, root: int, changes: Sequence[FileChange]) -> None:
        """Makes all changes or none: everything is written beside its place first."""
        self._check_quota(root, changes)
        staged: list[_StagedFile] = []
        made: list[tuple[str, ...]] = []
        try:
            for change in changes:
                staged.append(self._stage(root, change, made))
            done: list[_StagedFile] = []
            try:
                for one in staged:
                    one.install(len(staged) > 1)
                    done.append(one)
            except OSError:
                for one in reversed(done):
                    one.undo()
                raise
            made.clear()
        except OSError as error:
            raise WorkFailed(f"the files could not be written: {_describe(error)}") from error
        finally:
            for one in staged:
                one.close()
            for parts in reversed(made):  # folders for files that were not written
                _remove_folder(root, parts)

    def _stage(self, root: int, change: FileChange, made: list[tuple[str, ...]]) -> _StagedFile:
        parts = change.path
        before = self._find_kind(root, parts)
        if before not in (None, "file"):
            raise InvalidInput(f'"{"/".join(parts)}" is a {before}, not a file')
        if change.content is None:
            if before is None:
                raise NotFound(f'there is no file "{"/".join(parts)}"')
            return _StagedFile(_copy_folder(root, parts[:-1]), parts[-1], None, True)
        mode = self._find_mode(root, change.mode_of or parts)
        folder = _make_folders(root, parts[:-1], made)
        temporary = f"{TEMPORARY}{token_hex(8)}"
        try:
            fd = os.open(temporary, _CREATE, 0o600, dir_fd=folder)
        except OSError:
            os.close(folder)
            raise
        staged = _StagedFile(folder, parts[-1], temporary, before is not None)
        try:
            with os.fdopen(fd, "wb") as file:
                file.write(change.content)
                os.fchmod(fd, mode)
        except BaseException:
            staged.close()
            raise
        return staged

    def _find_kind(self, root: int, parts: Sequence[str]) -> str | None:
        try:
            with _open_folder(root, parts[:-1]) as folder:
                found = os.stat(parts[-1], dir_fd=folder, follow_symlinks=False)
        except (NotFound, FileNotFoundError):
            return None
        return _name_kind(found.st_mode)

    def _find_mode(self, root: int, parts: Sequence[str]) -> int:
        try:
            with _open_folder(root, parts[:-1]) as folder:
                found = os.stat(parts[-1], dir_fd=folder, follow_symlinks=False)
        except (NotFound, FileNotFoundError):
            return 0o600
        return stat.S_IMODE(found.st_mode) & 0o777 | 0o600

    def require_room(self) -> None:
        """Raises `InvalidInput` if the workspace is larger than allowed: a command may have made it
        so."""
        limits = self._limits
        with self._open_root() as root:
            total, count, _ = _measure(root, limits.files + 1)
        if total > limits.total_bytes or count > limits.files:
            raise InvalidInput(
                f"the workspace is full: it has {total} bytes in {count} files and folders, and "
                f"may have {limits.total_bytes} in {limits.files}. Delete files with apply_patch"
            )

    def _check_quota(self, root: int, changes: Sequence[FileChange]) -> None:
        limits = self._limits
        total, count, sizes = _measure(root, limits.files + len(changes) + 1)
        folders: set[tuple[str, ...]] = set()
        for change in changes:
            path = "/".join(change.path)
            if change.content is not None:
                if len(change.content) > limits.file_bytes:
                    raise InvalidInput(
                        f'"{path}" would be too large: {len(change.content)} bytes, and a file may '
                        f"have {limits.file_bytes}"
                    )
                total += len(change.content)
                count += path not in sizes
                folders |= {change.path[:depth] for depth in range(1, len(change.path))}
            else:
                count -= path in sizes
            total -= sizes.get(path, 0)
        if all(change.content is None for change in changes):
            return
        count += sum(self._find_kind(root, parts) is None for parts in folders)
        if total > limits.total_bytes:
            raise InvalidInput(
                f"the workspace would be too large: {total} bytes, and it may have "
                f"{limits.total_bytes} ([tools] workspace_megabytes)"
            )
        if count > limits.files:
            raise InvalidInput(
                f"the workspace would have too many files: {count}, and it may have "
                f"{limits.files} ([tools] workspace_files)"
            )

    @contextlib.contextmanager
    def _open_root(self) -> Iterator[int]:
        try:
            fd = os.open(self.root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        except FileNotFoundError:
            try:
                make_private_folder(self.root)
                fd = os.open(self.root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            except OSError as error:
                raise WorkFailed(f"the workspace cannot be created: {_describe(error)}") from None
        except OSError as error:
            raise WorkFailed(f"the workspace cannot be opened: {_describe(error)}") from None
        try:
            yield fd
        finally:
            os.close(fd)


class WorkspaceEdit:
    """Collects changes of several files. Reads see the files as they were before."""

    def __init__(self, workspace: Workspace, root: int) -> None:
        self._workspace = workspace
        self._root = root
        self.changes: list[FileChange] = []

    def read(self, parts: Sequence[str]) -> bytes:
        return self._workspace._read(self._root, parts)[0]

    def exists(self, parts: Sequence[str]) -> bool:
        return self._workspace._find_kind(self._root, parts) is not None

    def write(
        self, parts: Sequence[str], content: bytes, mode_of: Sequence[str] | None = None
    ) -> None:
        self._add(FileChange(tuple(parts), content, tuple(mode_of) if mode_of else None))

    def delete(self, parts: Sequence[str]) -> None:
        self._add(FileChange(tuple(parts), None))

    def _add(self, change: FileChange) -> None:
        if any(one.path == change.path for one in self.changes):
            raise InvalidInput(f'"{"/".join(change.path)}" is changed twice')
        self.changes.append(change)


class _StagedFile:
    """A change that is written beside its place. Owns the descriptor of the folder."""

    def __init__(self, folder: int, name: str, temporary: str | None, existed: bool) -> None:
        self._folder = folder
        self._name = name
        self._temporary = temporary
        """The new contents; None for a deletion."""
        self._existed = existed
        self._before: str | None = None
        """The former contents, until all changes are made."""

    def install(self, keeps_before: bool) -> None:
        """Puts the file in its place in one step. With `keeps_before`, `undo` can take it back."""
        folder, name = self._folder, self._name
        before = f"{TEMPORARY}{token_hex(8)}"
        if self._temporary is None:
            os.rename(name, before, src_dir_fd=folder, dst_dir_fd=folder)
            self._before = before
            return
        if self._existed and keeps_before:
            os.link(name, before, src_dir_fd=folder, dst_dir_fd=folder, follow_symlinks=False)
            self._before = before
        os.rename(self._temporary, name, src_dir_fd=folder, dst_dir_fd=folder)
        self._temporary = None

    def undo(self) -> None:
        with contextlib.suppress(OSError):
            if self._before is None:
                os.unlink(self._name, dir_fd=self._folder)
                return
            folder = self._folder
            os.rename(self._before, self._name, src_dir_fd=folder, dst_dir_fd=folder)
            self._before = None

    def close(self) -> None:
        for name in (self._temporary, self._before):
            if name is not None:
                with contextlib.suppress(OSError):
                    os.unlink(name, dir_fd=self._folder)
        os.close(self._folder)


# --- descriptors ----------------------------------------------------------------------------------


def _open(parts: Sequence[str], name: str, flags: int, folder: int) -> int:
    """Opens one component; the errors name the whole path."""
    try:
        return os.open(name, flags, dir_fd=folder)
    except FileNotFoundError:
        raise NotFound(f'there is no file or folder "{"/".join(parts)}"') from None
    except OSError as error:
        shown = "/".join(parts)
        if error.errno == errno.ELOOP or _is_link(name, folder):
            raise InvalidInput(
                f'"{shown}" leads through a symbolic link, which is not followed'
            ) from None
        if error.errno == errno.ENOTDIR:
            raise InvalidInput(f'"{shown}" leads through a file that is not a folder') from None
        raise InvalidInput(f'"{shown}" cannot be opened: {_describe(error)}') from None


def _is_link(name: str, folder: int) -> bool:
    try:
        return stat.S_ISLNK(os.stat(name, dir_fd=folder, follow_symlinks=False).st_mode)
    except OSError:
        return False


def _copy_folder(root: int, parts: Sequence[str]) -> int:
    """Opens a folder below `root`; the caller closes it."""
    fd = os.dup(root)
    try:
        for part in parts:
            inner = _open(parts, part, _FOLDER, fd)
            os.close(fd)
            fd = inner
    except BaseException:
        os.close(fd)
        raise
    return fd


@contextlib.contextmanager
def _open_folder(root: int, parts: Sequence[str]) -> Iterator[int]:
    fd = _copy_folder(root, parts)
    try:
        yield fd
    finally:
        os.close(fd)


def _make_folders(root: int, parts: Sequence[str], made: list[tuple[str, ...]]) -> int:
    """Opens a folder and creates the missing ones, which are added to `made`."""
    fd = os.dup(root)
    try:
        for depth, part in enumerate(parts):
            try:
                os.mkdir(part, 0o700, dir_fd=fd)
                made.append(tuple(parts[: depth + 1]))
            except FileExistsError:
                pass
            inner = _open(parts, part, _FOLDER, fd)
            os.close(fd)
            fd = inner
    except BaseException:
        os.close(fd)
        raise
    return fd


def _remove_folder(root: int, parts: Sequence[str]) -> None:
    """Removes a folder, if it is empty."""
    try:
        with _open_folder(root, parts[:-1]) as folder:
            os.rmdir(parts[-1], dir_fd=folder)
    except (OSError, NotFound, InvalidInput):
        pass


def _walk(
    folder: int, prefix: str, recursive: bool, most: int, *, with_temporary: bool = False
) -> Iterator[FileEntry]:
    """Visits entries in the order of names, at most `most`, and follows no links."""
    waiting: list[tuple[str, tuple[str, ...]]] = [(prefix, ())]
    visited = 0
    while waiting:
        shown, parts = waiting.pop()
        try:
            with _open_folder(folder, parts) as fd, os.scandir(fd) as entries:
                found = sorted(
                    (entry.name, entry.stat(follow_symlinks=False))
                    for entry in _take(entries, most - visited)
                )
        except (OSError, NotFound, InvalidInput):
            continue  # it is gone, or became a link
        below: list[tuple[str, tuple[str, ...]]] = []
        for name, status in found:
            if name.startswith(TEMPORARY) and not with_temporary:
                continue
            visited += 1
            if visited > most:
                return
            # A name need not be text; a replaced one is shown, and cannot be opened.
            text = name.encode("utf-8", "surrogateescape").decode("utf-8", "replace")
            path = f"{shown}/{text}" if shown else text
            kind = _name_kind(status.st_mode)
            yield FileEntry(path, kind, status.st_size if kind == "file" else 0)
            if kind == "folder" and recursive and len(parts) < MAX_PARTS:
                below.append((path, (*parts, name)))
        waiting += reversed(below)


def _measure(root: int, most: int) -> tuple[int, int, dict[str, int]]:
    """Measures a workspace, at most `most` entries of it: the bytes, the files and folders, and the
    size of each file."""
    sizes: dict[str, int] = {}
    total = count = 0
    with _open_folder(root, ()) as folder:
        for entry in _walk(folder, "", True, most, with_temporary=True):
            count += 1
            total += entry.size
            if entry.kind == "file":
                sizes[entry.path] = entry.size
    return total, count, sizes


def _take(entries: Iterable[os.DirEntry[str]], most: int) -> Iterator[os.DirEntry[str]]:
    for _, entry in zip(range(most + 1), entries, strict=False):
        with contextlib.suppress(OSError):
            entry.stat(follow_symlinks=False)
            yield entry


def _name_kind(mode: int) -> str:
    if stat.S_ISREG(mode):
        return "file"
    if stat.S_ISDIR(mode):
        return "folder"
    return "link" if stat.S_ISLNK(mode) else "other"


def _describe(error: OSError) -> str:
    return os.strerror(error.errno) if error.errno else str(error)


# --- patterns -------------------------------------------------------------------------------------


def _split_pattern(pattern: str) -> tuple[str, ...]:
    parts = tuple(part for part in pattern.split("/") if part not in ("", "."))
    if len(parts) > MAX_PARTS or len(pattern) > MAX_PATH:
        raise InvalidInput("the pattern is too long")
    return parts


@lru_cache(maxsize=10_000)
def match_parts(path: tuple[str, ...], pattern: tuple[str, ...]) -> bool:
    """Whether a path matches a glob; `**` matches any number of components."""
    if not pattern:
        return not path
    if pattern[0] == "**":
        return match_parts(path, pattern[1:]) or (bool(path) and match_parts(path[1:], pattern))
    return bool(path) and fnmatchcase(path[0], pattern[0]) and match_parts(path[1:], pattern[1:])


# --- locks ----------------------------------------------------------------------------------------


class _Lock:
    """A lock that a weak reference can refer to."""

    def __init__(self) -> None:
        self._lock = threading.Lock()

    def __enter__(self) -> None:
        self._lock.acquire()

    def __exit__(self, *error: object) -> None:
        self._lock.release()


_LOCKS: WeakValueDictionary[str, _Lock] = WeakValueDictionary()


def _find_lock(root: str) -> _Lock:
    return _LOCKS.setdefault(root, _Lock())
