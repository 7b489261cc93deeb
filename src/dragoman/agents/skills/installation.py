"""The skills of a home: copied into `skills/NAME`, each pinned by a digest over all of its files.

Beside each folder is a record, `NAME.json`: the digest, where the skill came from, and what the
operator granted. A skill whose files have another digest is not used until it is approved or added
again. Works without a hub.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
import shutil
import stat
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from secrets import token_hex
from typing import Any

from dragoman.agents.skills.manifest import NAME, PROMPT, SkillManifest, read_manifest
from dragoman.agents.skills.skill_book import FOLDER
from dragoman.core.errors import InvalidInput, NotFound
from dragoman.core.file_modes import make_private_folder

MAX_FILES = 1_000
MAX_BYTES = 20 * 1024 * 1024
MAX_DEPTH = 16
MAX_SKILLS = 200
MAX_RECORD = 64 * 1024
LEFT_OUT = frozenset((".git", ".hg", ".svn", "__pycache__", ".DS_Store"))
"""Not copied: no part of a skill, or made by running it."""
VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")

Stamp = tuple[str, int, int, int, int]
"""The path of a file or folder, and what changes with it. The time of the last change of status
cannot be set back, as that of the contents can."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SkillRecord:
    """What was approved, and what the operator granted."""

    digest: str
    source: str = ""
    added: str = ""
    env: tuple[str, ...] = ()
    """Names of the hub's variables that its program gets."""
    sandbox: str = ""
    """The level of its sandbox; empty: as its manifest says."""


@dataclass(frozen=True, slots=True, kw_only=True)
class InstalledSkill:
    """A skill of a home, as it was when it was read."""

    name: str
    folder: Path
    record: SkillRecord
    digest: str = ""
    """That of the files now."""
    manifest: SkillManifest | None = None
    """None if it is not as approved, or cannot be read."""
    problem: str = ""
    """Why it is not used."""
    stamps: tuple[Stamp, ...] = ()

    @property
    def sandbox(self) -> str:
        """The level of its sandbox; empty for one without a program."""
        if self.manifest is None or self.manifest.runtime == PROMPT:
            return ""
        return self.record.sandbox or ("net" if self.manifest.network else "strict")

    def is_unchanged(self) -> bool:
        """Whether its files are those that were read."""
        try:
            return read_stamps(self.folder) == self.stamps
        except (OSError, InvalidInput):
            return False


# --- files ----------------------------------------------------------------------------------------


def walk(
    folder: Path, *, skips: frozenset[str] = frozenset()
) -> Iterator[tuple[str, os.stat_result]]:
    """Yields the relative path and the state of each file and folder below, in order. Raises
    `InvalidInput` for what no skill may contain."""
    if not stat.S_ISDIR(os.lstat(folder).st_mode):
        raise InvalidInput(f'"{folder}" is not a folder')
    count, size, left = 0, 0, [""]
    while left:
        here = left.pop()
        inner = []
        for name in sorted(os.listdir(folder / here)):
            if name in skips:
                continue
            path = f"{here}/{name}" if here else name
            found = os.lstat(folder / path)
            if stat.S_ISDIR(found.st_mode):
                inner.append(path)
            elif not stat.S_ISREG(found.st_mode):
                kind = "a symbolic link" if stat.S_ISLNK(found.st_mode) else "not a file"
                raise InvalidInput(f'"{_show(path)}" in "{folder}" is {kind}; skills have none')
            else:
                size += found.st_size
            count += 1
            if count > MAX_FILES or size > MAX_BYTES or path.count("/") > MAX_DEPTH:
                raise InvalidInput(
                    f'"{folder}" is too large for a skill: at most {MAX_FILES} files and folders, '
                    f"{MAX_BYTES >> 20} MB and {MAX_DEPTH} levels"
                )
            yield path, found
        left += reversed(inner)


def read_stamps(folder: Path) -> tuple[Stamp, ...]:
    """Returns values that change when the skill does."""
    return tuple(
        (path, found.st_ctime_ns, found.st_size, found.st_ino, found.st_mode)
        for path, found in walk(folder)
        if stat.S_ISREG(found.st_mode)
    )


def compute_digest(folder: Path) -> str:
    """Computes a digest over the paths, the executable bits and the contents of all files."""
    total = hashlib.sha256()
    for path, found in sorted(walk(folder)):
        if stat.S_ISREG(found.st_mode):
            runs = "x" if found.st_mode & stat.S_IXUSR else "-"
            content = hashlib.sha256(_read(folder / path)).hexdigest()
            line = json.dumps([path, runs, content])
            total.update(line.encode("utf-8", "surrogatepass") + b"\n")
    return f"sha256:{total.hexdigest()}"


def _read(file: Path) -> bytes:
    fd = os.open(file, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    with open(fd, "rb") as opened:
        data = opened.read(MAX_BYTES + 1)
    if len(data) > MAX_BYTES:
        raise InvalidInput(f'"{_show(file.name)}" is larger than {MAX_BYTES >> 20} MB')
    return data


def _show(path: str) -> str:
    return ascii(path[:200])[1:-1]


# --- the skills of a home -------------------------------------------------------------------------


class SkillStore:
    def __init__(self, home: Path) -> None:
        self.folder = home / FOLDER

    def list_names(self) -> list[str]:
        """Lists the skills that have a record."""
        try:
            names = os.listdir(self.folder)
        except OSError:
            return []
        found = (name.removesuffix(".json") for name in names if name.endswith(".json"))
        return sorted(name for name in found if NAME.fullmatch(name))[:MAX_SKILLS]

    def list_variables(self) -> set[str]:
        """The names of the variables that the programs of skills get, from their records alone."""
        found: set[str] = set()
        for name in self.list_names():
            with contextlib.suppress(NotFound):  # removed meanwhile
                found.update(self._read_record(name).env)
        return found

    def read_state(self) -> tuple[object, ...]:
        """Returns a value that changes when a skill is added, changed, approved or removed."""
        return tuple(
            (name, _read_stamp(self._find_record(name)), _read_stamps_of(self.folder / name))
            for name in self.list_names()
        )

    def read(self, name: str) -> InstalledSkill:
        """Reads a skill and verifies its digest. Raises `NotFound`."""
        folder = self.folder / name
        record = self._read_record(name)
        blank = InstalledSkill(name=name, folder=folder, record=record)
        try:
            stamps = read_stamps(folder)
            digest = compute_digest(folder)
        except (OSError, InvalidInput) as error:
            return _replace(blank, problem=f"its files cannot be read: {error}")
        if digest != record.digest:
            reason = (
                "its files have changed since they were approved; look at them in "
                f'"{folder}" and run: dragoman skills approve {name}'
            )
            return _replace(blank, digest=digest, problem=reason, stamps=stamps)
        try:
            manifest = read_manifest(folder)
        except InvalidInput as error:
            return _replace(blank, digest=digest, problem=str(error), stamps=stamps)
        found = _replace(blank, digest=digest, manifest=manifest, stamps=stamps)
        if not found.is_unchanged():  # between the digest and the manifest
            return _replace(blank, digest=digest, problem="its files are being changed")
        return found

    def install(
        self, source: Path, name: str, *, env: tuple[str, ...] = (), sandbox: str = ""
    ) -> InstalledSkill:
        """Copies a folder and approves it. An installed skill of that name is replaced."""
        if not NAME.fullmatch(name):
            raise InvalidInput(f'"{name[:80]}" cannot be the name of a skill')
        for variable in env:
            if not VARIABLE.fullmatch(variable):
                raise InvalidInput(f'"{variable[:80]}" cannot be the name of a variable')
        if name not in (known := self.list_names()) and len(known) >= MAX_SKILLS:
            raise InvalidInput(f"there are {MAX_SKILLS} skills already")
        make_private_folder(self.folder)
        new = self.folder / f".new-{token_hex(8)}"
        try:
            _copy(source.resolve(), new)
            read_manifest(new)  # of the copy: the source may change
            record = SkillRecord(
                digest=compute_digest(new),
                source=str(source.resolve()),
                added=_render_now(),
                env=env,
                sandbox=sandbox,
            )
            self._put(new, name, record)
        finally:
            shutil.rmtree(new, ignore_errors=True)
        return self.read(name)

    def _put(self, new: Path, name: str, record: SkillRecord) -> None:
        """Without a record between two versions, a hub sees the old one, none, or the new one."""
        old = self.folder / f".old-{token_hex(8)}"
        self._find_record(name).unlink(missing_ok=True)
        with contextlib.suppress(FileNotFoundError):
            os.rename(self.folder / name, old)
        os.rename(new, self.folder / name)
        self._write_record(name, record)
        shutil.rmtree(old, ignore_errors=True)

    def approve(self, name: str, digest: str) -> InstalledSkill:
        """Approves the files as they are now, if they still have that digest."""
        record = self._read_record(name)
        if compute_digest(self.folder / name) != digest:
            raise InvalidInput(f'skill "{name}" has changed meanwhile; look at it again')
        self._write_record(name, SkillRecord(**{**asdict(record), "digest": digest}))
        return self.read(name)

    def remove(self, name: str) -> None:
        self._read_record(name)
        self._find_record(name).unlink(missing_ok=True)
        shutil.rmtree(self.folder / name, ignore_errors=True)

    def _find_record(self, name: str) -> Path:
        return self.folder / f"{name}.json"

    def _read_record(self, name: str) -> SkillRecord:
        if not NAME.fullmatch(name) or not self._find_record(name).exists():
            raise NotFound(f'there is no skill "{name[:80]}"; see: dragoman skills list')
        try:
            with self._find_record(name).open("rb") as file:
                return _parse_record(json.loads(file.read(MAX_RECORD)))
        except (OSError, ValueError, TypeError, KeyError, AttributeError):
            return SkillRecord(digest="")  # matches no files

    def _write_record(self, name: str, record: SkillRecord) -> None:
        new = self.folder / f".{name}.json-{token_hex(4)}"
        fd = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with open(fd, "w", encoding="utf-8") as file:
            json.dump(asdict(record), file, indent=2)
            file.write("\n")
        new.replace(self._find_record(name))


def _parse_record(value: Any) -> SkillRecord:
    sandbox = str(value.get("sandbox", ""))
    return SkillRecord(
        digest=str(value["digest"]),
        source=str(value.get("source", "")),
        added=str(value.get("added", "")),
        env=tuple(map(str, value.get("env", ()))),
        sandbox=sandbox if sandbox in ("", "net", "strict", "off") else "strict",
    )


def _replace(skill: InstalledSkill, **changes: Any) -> InstalledSkill:
    members = {name: getattr(skill, name) for name in skill.__slots__}
    return InstalledSkill(**{**members, **changes})


def _copy(source: Path, target: Path) -> None:
    """Copies files only, for this user alone; keeps executable bits."""
    target.mkdir(mode=0o700)
    for path, found in walk(source, skips=LEFT_OUT):
        if stat.S_ISDIR(found.st_mode):
            (target / path).mkdir(mode=0o700)
            continue
        mode = 0o700 if found.st_mode & stat.S_IXUSR else 0o600
        fd = os.open(target / path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
        with open(fd, "wb") as file:
            file.write(_read(source / path))


def _read_stamp(file: Path) -> object:
    try:
        found = os.lstat(file)
    except OSError:
        return None
    return found.st_ctime_ns, found.st_size, found.st_ino


def _read_stamps_of(folder: Path) -> object:
    try:
        return read_stamps(folder)
    except (OSError, InvalidInput) as error:
        return str(error)


def _render_now() -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
