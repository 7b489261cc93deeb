"""Copies a home into one file, whether or not a hub is running, and restores it.

The file is a gzipped tar: `manifest.json` first, then the files it lists. A copy is verified before
it is kept and before it becomes a home: all stores of its record are present, every database can be
read, and the audit chain is intact.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import os
import shutil
import sqlite3
import tarfile
import tempfile
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Annotated, NamedTuple

import msgspec

from dragoman.core.admin_audit import record_done
from dragoman.core.errors import ConfigError, HubError, InvalidInput
from dragoman.stores import pins, registry
from dragoman.stores.audit import chain, journal
from dragoman.stores.audit.log import SqliteAuditLog
from dragoman.stores.audit.shared_keys import CHAIN
from dragoman.stores.audit.verify import verify
from dragoman.stores.sqlite import connect, find_damage
from dragoman.stores.store_inventory import (
    AS_RECORDED,
    FILES,
    KEY_FILE,
    RECORD_FILE,
    survey_stores,
)

MANIFEST = "manifest.json"
FORMAT = 1
TRIES = 3
BUSY_SECONDS = 10.0
CHECK_SECONDS = 60.0
MAX_MANIFEST = 16 * 1024 * 1024
PIECE = 1024 * 1024
WORKERS = "workers"
"""The folder with the private directories of `[server] workers`; of each the audit log is copied,
since the rest are links to the home."""
PASSING = ("run", "lock", "daemon.json", "children.json", "servers", "programs", "cache", WORKERS)
"""Files of a running hub, the private homes of servers and programs, and their shared cache."""
WITHOUT_SECRETS = (pins.DATABASE, registry.DATABASE)
"""The databases without secrets; their copies belong to a new home."""
CONFIG = "config.toml"
POLICY_FILES = (".cedar", ".toml")
"""The files that the hub reads in the policies folder."""


class BackupEntry(msgspec.Struct, frozen=True):
    size: Annotated[int, msgspec.Meta(ge=0)]
    sha256: str


class BackupManifest(msgspec.Struct, frozen=True):
    format: int
    version: str
    """Of the program that created the copy."""
    created: str
    home: str
    secrets: bool
    """Whether it contains keys and credentials: without them it is not a complete home."""
    policies: str | None
    """The policies folder, relative to the home; None if it is elsewhere."""
    files: dict[str, BackupEntry]
    left_out: tuple[str, ...] = ()


class _FoundFiles(NamedTuple):
    """The files of a home to copy, and the links that were not followed."""

    files: list[tuple[Path, Path]]
    left_out: list[str]


def back_up(
    home: Path, file: Path, policies: Path, version: str, created: str, *, secrets: bool
) -> BackupManifest:
    """Creates the copy atomically, with mode 0600. Raises `InvalidInput` if `file` exists, and
    `ConfigError` if the home cannot be copied completely."""
    if os.path.lexists(file):
        raise InvalidInput(f'"{file}" already exists; choose another name')
    inside = _find_relative_path(home, policies)
    with _create_staging_folder(file.parent) as staged:
        for left in range(TRIES - 1, -1, -1):
            copied = staged / str(left)
            copied.mkdir(mode=0o700)
            left_out = _copy_home(home, copied, file, inside, secrets=secrets)
            problem = _find_problem(copied, copied / inside if inside else policies, secrets)
            if not problem:
                break
            if not left:
                raise ConfigError(f'"{home}" cannot be copied completely: {problem}')
            shutil.rmtree(copied)  # the hub wrote meanwhile
        files = dict(_list_files(copied))
        manifest = BackupManifest(
            FORMAT, version, created, str(home), secrets, inside, files, tuple(left_out)
        )
        ready = staged / "ready"
        _write_archive(ready, copied, manifest)
        os.link(ready, file)  # not rename: never replaces an existing file
    return manifest


def restore(file: Path, home: Path, by: str) -> BackupManifest:
    """Restores a copy to `home`, which must not exist or be empty."""
    if os.path.lexists(home) and (not home.is_dir() or any(home.iterdir())):
        raise InvalidInput(
            f'"{home}" exists and is not empty; move it away, or choose another --home'
        )
    home = Path(os.path.realpath(home))  # a link to an empty folder stays one
    home.parent.mkdir(parents=True, exist_ok=True)
    with _create_staging_folder(home.parent) as staged:
        manifest = _extract(file, staged / "home")
        place = staged / "home"
        # Policies outside the home are not in the copy.
        policies = place / manifest.policies if manifest.policies is not None else place
        if problem := _find_problem(place, policies, manifest.secrets):
            raise InvalidInput(f'"{file}" is incomplete or damaged: {problem}')
        if manifest.secrets:
            _record_restore(place, manifest, by)
        try:
            os.rename(place, home)
        except OSError as error:
            raise InvalidInput(f'"{home}" cannot be created: {error.strerror}') from error
    return manifest


def read_manifest(file: Path) -> BackupManifest:
    with _open_archive(file) as archive:
        return _read_manifest(archive, file)


# --- copying --------------------------------------------------------------------------------------


def _copy_home(
    home: Path, copied: Path, output: Path, policies: str | None, *, secrets: bool
) -> list[str]:
    """Copies files in an order that keeps them consistent. Returns the links that were not
    followed."""
    found = _find_files(home, output, policies, secrets=secrets)
    for path, name in found.files:
        with contextlib.suppress(FileNotFoundError):  # the hub wrote meanwhile
            _copy_file(path, copied / name)
    databases = [one for one in (FILES if secrets else WITHOUT_SECRETS) if one != chain.DATABASE]
    for database in databases:
        _copy_database(home / database, copied / database)
        if not secrets:
            _forget_home(copied / database)
    if secrets:
        for beside in (chain.HEAD, journal.JOURNAL):
            with contextlib.suppress(FileNotFoundError):
                _copy_file(home / beside, copied / beside)
        _copy_database(home / chain.DATABASE, copied / chain.DATABASE)
        for worker in _list_workers(home):
            _copy_worker(worker, copied / WORKERS / worker.name)
    return found.left_out


def _list_workers(home: Path) -> list[Path]:
    return sorted(one for one in (home / WORKERS).glob("*") if one.is_dir())


def _copy_worker(place: Path, copied: Path) -> None:
    for name in (RECORD_FILE, KEY_FILE, chain.KEY, CHAIN, chain.HEAD, journal.JOURNAL):
        with contextlib.suppress(FileNotFoundError):
            _copy_file(place / name, copied / name)
    _copy_database(place / chain.DATABASE, copied / chain.DATABASE)


def _is_public(name: Path, policies: str | None) -> bool:
    """Whether a copy without secrets contains this file; databases are handled separately."""
    if str(name) == CONFIG or (len(name.parts) == 1 and name.suffix == ".py"):
        return True
    if policies == ".":  # the home itself, which contains everything
        return len(name.parts) == 1 and name.suffix == ".cedar"
    return policies is not None and name.is_relative_to(policies)


def _find_files(home: Path, output: Path, policies: str | None, *, secrets: bool) -> _FoundFiles:
    """Finds all files except databases and run-time files, the record of stores first."""
    found = _FoundFiles([], [])
    real_home = Path(os.path.realpath(home))
    for path in _walk(home, policies):
        name = path.relative_to(home)
        if path == output or not (secrets or _is_public(name, policies)):
            continue
        if path.is_symlink():
            target = Path(os.path.realpath(path))
            if not path.is_file() or not _is_followed(name, target, real_home, policies, secrets):
                if not target.is_relative_to(real_home):
                    found.left_out.append(str(name))
                continue
        if path.is_file() and (len(name.parts) > 1 or not _is_archive(path)):
            found.files.append((path, name))
    return found


def _is_archive(path: Path) -> bool:
    """Whether a file is an archive, as earlier copies are; False if the hub has removed it."""
    try:
        return tarfile.is_tarfile(path)
    except FileNotFoundError:
        return False


def _walk(home: Path, policies: str | None) -> Iterator[Path]:
    """Iterates over candidates for a copy. Linked folders are not entered, except the policies
    folder."""
    if (home / RECORD_FILE).exists():
        yield home / RECORD_FILE
    folder = home / policies if policies is not None else None
    if folder is not None and _is_linked(home, folder):
        yield from (one for one in sorted(folder.glob("*")) if one.suffix in POLICY_FILES)
    else:
        folder = None
    for path in sorted(home.iterdir()):
        name = path.name
        is_database = name in FILES or name.endswith(("-wal", "-shm", "-journal"))
        if is_database or name in PASSING or name.startswith((".", "hub.log")):
            continue
        if name in (RECORD_FILE, chain.HEAD, journal.JOURNAL) or ".lost-" in name:
            continue
        below = _list_below(path) if path.is_dir() and not path.is_symlink() else [path]
        for one in below:
            is_seen = folder is not None and one.is_symlink() and folder.is_relative_to(one)
            if not is_seen and "__pycache__" not in one.parts:
                yield one


def _list_below(folder: Path) -> list[Path]:
    """Lists what a folder contains, at any depth, without what the hub removes meanwhile."""

    def refuse(error: OSError) -> None:
        if not isinstance(error, FileNotFoundError):
            raise ConfigError(f'"{error.filename}" cannot be read ({error.strerror})') from error

    below = []
    for parent, folders, files in os.walk(folder, onerror=refuse):
        below += [Path(parent, name) for name in (*folders, *files)]
    return sorted(below)


def _is_linked(home: Path, folder: Path) -> bool:
    """Whether the path from the home to the folder contains a link."""
    plain = os.path.join(os.path.realpath(home), folder.relative_to(home))
    return os.path.realpath(folder) != os.path.normpath(plain)


def _is_followed(name: Path, target: Path, home: Path, policies: str | None, secrets: bool) -> bool:
    """Whether a copy contains the target of the link `name`. Outside the home only files that the
    hub itself reads: operators may keep them in a repository."""
    if str(name) == CONFIG:
        return True
    if target.is_relative_to(home):
        return secrets or _is_public(target.relative_to(home), policies)
    if policies is not None and name.parent == Path(policies) and name.suffix in POLICY_FILES:
        return True
    return (
        secrets and len(name.parts) == 1 and (str(name) == "env" or name.suffix in (".py", ".key"))
    )


def _copy_file(path: Path, target: Path) -> None:
    target.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    try:
        with path.open("rb") as source, open(_create(target), "wb") as file:
            shutil.copyfileobj(source, file, PIECE)
    except FileNotFoundError:
        raise
    except OSError as error:
        raise ConfigError(f'"{path}" cannot be copied ({error.strerror})') from error


def _copy_database(path: Path, target: Path) -> None:
    if not path.exists():
        return
    os.close(_create(target))
    try:
        with (
            closing(connect(path, "ro", BUSY_SECONDS)) as source,
            closing(sqlite3.connect(target)) as copy,
        ):
            source.backup(copy)
    except sqlite3.Error as error:
        raise ConfigError(f'"{path}" cannot be copied ({error})') from error


def _forget_home(database: Path) -> None:
    """Detaches a store from its home: it belongs to the next home that opens it."""
    if not database.exists():
        return
    with closing(sqlite3.connect(database, isolation_level=None)) as db:
        db.execute("DROP TABLE IF EXISTS home_store")
        db.execute("VACUUM")


def _create(path: Path) -> int:
    return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)


def _find_relative_path(home: Path, policies: Path) -> str | None:
    """Returns the folder relative to the home; None if it is elsewhere."""
    with contextlib.suppress(ValueError):
        return str(Path(os.path.normpath(policies)).relative_to(os.path.normpath(home)))
    return None


@contextlib.contextmanager
def _create_staging_folder(folder: Path) -> Iterator[Path]:
    made = Path(tempfile.mkdtemp(prefix=".dragoman-", dir=folder))
    try:
        yield made
    finally:
        shutil.rmtree(made, ignore_errors=True)


# --- verifying ------------------------------------------------------------------------------------


def _find_problem(copied: Path, policies: Path, secrets: bool) -> str:
    for name in FILES:
        if (copied / name).exists() and (damage := find_damage(copied / name, CHECK_SECONDS)):
            return f"{name} is damaged ({damage})"
    if not secrets:
        return ""
    try:
        losses = survey_stores(copied, policies, AS_RECORDED).losses
    except HubError as error:
        return str(error)
    if losses:
        return "; ".join(f"{loss.file.name} {loss.how}" for loss in losses)
    for place in (copied, *_list_workers(copied)):
        if (place / chain.DATABASE).exists() and not (verdict := verify(place)).ok:
            return f"its audit log is broken: {verdict.problem}"
    return ""


def _record_restore(place: Path, manifest: BackupManifest, by: str) -> None:
    for worker in _list_workers(place):
        _record_restore(worker, manifest, by)
    if not (place / chain.DATABASE).exists():
        return
    audit = SqliteAuditLog(place)
    try:
        told = {"message": f"restored from a copy of {manifest.home} of {manifest.created}"}
        record_done(audit, "home.restore", "home", by, "cli", told)
        audit.flush()
    finally:
        audit.close()


# --- the archive ----------------------------------------------------------------------------------


def _list_files(folder: Path) -> Iterator[tuple[str, BackupEntry]]:
    for path in sorted(folder.rglob("*")):
        if path.is_file():
            with path.open("rb") as file:
                digest = hashlib.file_digest(file, "sha256").hexdigest()
            yield str(path.relative_to(folder)), BackupEntry(path.stat().st_size, digest)


def _write_archive(ready: Path, folder: Path, manifest: BackupManifest) -> None:
    with open(_create(ready), "wb") as file:
        with tarfile.open(fileobj=file, mode="w:gz", format=tarfile.PAX_FORMAT) as archive:
            data = msgspec.json.encode(manifest)
            first = tarfile.TarInfo(MANIFEST)
            first.size, first.mode = len(data), 0o600
            archive.addfile(first, io.BytesIO(data))
            for name, entry in manifest.files.items():
                info = tarfile.TarInfo(f"home/{name}")
                info.size, info.mode = entry.size, 0o600
                with (folder / name).open("rb") as source:
                    archive.addfile(info, source)
        file.flush()
        os.fsync(file.fileno())


@contextlib.contextmanager
def _open_archive(file: Path) -> Iterator[tarfile.TarFile]:
    try:
        with tarfile.open(file, "r:gz") as archive:
            yield archive
    except OSError as error:
        if isinstance(error, FileNotFoundError | PermissionError | IsADirectoryError):
            raise InvalidInput(f'"{file}" cannot be read: {error.strerror}') from None
        raise InvalidInput(f'"{file}" is damaged, or not a backup: {error}') from None
    except (tarfile.TarError, EOFError) as error:
        raise InvalidInput(f'"{file}" is damaged, or not a backup: {error}') from None


def _read_manifest(archive: tarfile.TarFile, file: Path) -> BackupManifest:
    first = archive.next()
    if first is None or first.name != MANIFEST or not 0 < first.size <= MAX_MANIFEST:
        raise InvalidInput(f'"{file}" is not a backup: it does not begin with {MANIFEST}')
    source = archive.extractfile(first)
    assert source is not None
    try:
        manifest = msgspec.json.decode(source.read(MAX_MANIFEST), type=BackupManifest)
    except (msgspec.MsgspecError, ValueError) as error:
        raise InvalidInput(f'"{file}" is not a backup: invalid {MANIFEST}: {error}') from None
    if manifest.format != FORMAT:
        raise InvalidInput(
            f'"{file}" was created by dragoman {manifest.version} in a format that this version '
            "does not support; restore it with that version"
        )
    for name in manifest.files:
        _refuse_outside(name, file)
    if manifest.policies not in (None, "."):
        _refuse_outside(str(manifest.policies), file)
    return manifest


def _extract(file: Path, place: Path) -> BackupManifest:
    """Extracts and verifies the files that the manifest lists; names are paths below the home."""
    place.mkdir(mode=0o700)
    with _open_archive(file) as archive:
        manifest = _read_manifest(archive, file)
        left = dict(manifest.files)
        while (member := archive.next()) is not None:
            name = member.name.removeprefix("home/")
            if name == member.name or name not in left or not member.isreg():
                raise InvalidInput(f'"{file}" contains a file that its manifest does not list')
            _extract_file(archive, member, place / name, left.pop(name), file)
    if left:
        raise InvalidInput(f'"{file}" is damaged: {sorted(left)[0]} is missing')
    return manifest


def _refuse_outside(name: str, file: Path) -> None:
    path = Path(name)
    if path.is_absolute() or ".." in path.parts or not path.parts or "\0" in name:
        raise InvalidInput(f'"{file}" contains a path outside the home: {name[:200]!r}')


def _extract_file(
    archive: tarfile.TarFile, member: tarfile.TarInfo, target: Path, entry: BackupEntry, file: Path
) -> None:
    source = archive.extractfile(member)
    assert source is not None
    target.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    digest, size = hashlib.sha256(), 0
    with open(_create(target), "wb") as out:
        while piece := source.read(min(PIECE, entry.size + 1 - size)):
            size += len(piece)
            digest.update(piece)
            out.write(piece)
            if size > entry.size:
                break
    if size != entry.size or digest.hexdigest() != entry.sha256:
        raise InvalidInput(f'"{file}" is damaged: {target.name} does not match its checksum')
