"""Keeps the policy folders of hubs on one database the same.

Each hub works with the files in its folder, as a single hub does. A change of the folder, by the
API, a command or by hand, is stored in the database once the set is valid and in force here; a
change in the database is written to the folder, if the set that results is valid here. Of two
changes of a file at once the later one wins, and the other text is kept beside it.

Once the rows are sealed, what another program has written or deleted in the database counts as
missing there, and each hub stores again what it has.

Only where `[store] url` is set.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import os
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from dragoman.core.errors import ConfigError, StorageFailed
from dragoman.core.file_modes import make_private_folder
from dragoman.core.logs import STORAGE_OUTAGE
from dragoman.core.policy_files import PolicyFileStore, SharedFile, hash_text
from dragoman.policy import loader
from dragoman.policy.folder import DISABLED, TEMPORARY
from dragoman.policy.loader import POLICIES, TESTS, PolicyError
from dragoman.policy.reloader import FolderState, PolicyReloader, read_state

log = logging.getLogger(__name__)

RECORD = "policies.shared"
"""In the home: the digest of each file when folder and database were last the same."""
MAX_FILES, MAX_BYTES, MAX_NAME = 1_000, 1024 * 1024, 200
ENDINGS = (POLICIES, TESTS, DISABLED)

Digests = Mapping[str, str]


class _LocalFile(NamedTuple):
    text: str
    digest: str
    changed_at: float


class _Differences(NamedTuple):
    """The files that differ in the folder and in the database."""

    taken: dict[str, SharedFile]
    """Those whose text in the database counts."""
    gone: list[str]
    """Those that were deleted in the database."""
    ours: list[str]
    """Those that were changed or deleted in the folder."""


class SharedPolicies:
    def __init__(self, store: PolicyFileStore, home: Path, folder: Path) -> None:
        self._store = store
        self._record = home / RECORD
        self._folder = folder
        self._known = _read_record(self._record)
        self._version = -1
        self._state: FolderState = None
        self._seen: FolderState = None
        self._refused = ""
        self._strange: set[str] = set()

    def close(self) -> None:
        self._store.close()

    def prepare(self) -> None:
        """Takes the files of the database before the policies are loaded. Raises `ConfigError`."""
        try:
            self._version = self._store.read_version()
            stored = self._load()
        except StorageFailed as error:
            raise ConfigError(f"the policies cannot be read: {error}") from error
        local = _read_folder(self._folder)
        if self._known:
            split = self._split(stored, local)
        else:  # a home that joins brings no policies with it
            live = {name: one for name, one in stored.items() if one.text}
            gone = [name for name in local if live and name not in live]
            split = _Differences(live, gone, [])
        if stored and self._write(split.taken, split.gone, local):
            self._note_taken(split.taken, split.gone)

    async def check(self, reloader: PolicyReloader) -> None:
        """Compares folder and database if either has changed. Never raises."""
        try:
            version, state = self._store.read_version(), read_state(self._folder)
            seen, self._seen = self._seen, state
            if (version, state) == (self._version, self._state):
                return
            # A folder that is still being written, or whose set is invalid, is not stored.
            is_settled = state == seen and not reloader.is_stale and not reloader.problem
            if version == self._version and not is_settled and state is not None:
                return
            if await self._compare(reloader, is_settled):
                self._version, self._state = version, read_state(self._folder)
        except StorageFailed as error:
            STORAGE_OUTAGE.note(f"the policies of other hubs cannot be compared: {error}")
        except (ConfigError, OSError) as error:
            self._report(f"the policies of other hubs cannot be compared: {error}")
        except Exception:
            log.exception("the policies of other hubs cannot be compared")

    async def _compare(self, reloader: PolicyReloader, is_settled: bool) -> bool:
        """Returns whether both are the same now, as far as this hub can tell."""
        stored, local = self._load(), await asyncio.to_thread(_read_folder, self._folder)
        taken, gone, ours = self._split(stored, local)
        sent: dict[str, str | None] = {}
        beaten: dict[str, str] = {}
        for name in ours:
            here, there = local.get(name), stored.get(name)
            sent[name] = here.text if here is not None else None
            if there is not None and there.text and there.digest != self._known.get(name):
                beaten[name] = there.text
        if (taken or gone) and not await self._take(reloader, taken, gone, local):
            return False
        if sent and not is_settled:
            return False
        lost: list[str] = []
        if sent:
            before = {name: one.digest for name, one in stored.items()}
            lost = self._store.change(sent, before)
            for name in beaten.keys() - set(lost):
                self._keep_aside(name, beaten[name])
            log.info("policy files are stored for the other hubs: %s", ", ".join(sorted(sent)))
        if not lost:
            self._report("")
            merged = {name: one.digest for name, one in stored.items() if one.text}
            merged |= {name: hash_text(text) for name, text in sent.items() if text is not None}
            self._save_record({n: d for n, d in merged.items() if sent.get(n, "") is not None})
        return not lost

    def _load(self) -> dict[str, SharedFile]:
        """Loads the files of the database that may be written to the folder: a row may have been
        written by anybody who can write the database. Raises `StorageFailed`."""
        found = self._store.load()
        for name in [name for name in found if not is_shared_name(name)]:
            del found[name]
            if name not in self._strange and len(self._strange) < MAX_FILES:
                self._strange.add(name)
                log.error("policy file %r in the database is refused by its name", name[:MAX_NAME])
        return found

    def _split(
        self, stored: Mapping[str, SharedFile], local: Mapping[str, _LocalFile]
    ) -> _Differences:
        """Decides for each file that differs in folder and database which of the two counts."""
        found = _Differences({}, [], [])
        has_folder = self._folder.is_dir()  # a folder that is lost deletes nothing
        for name in stored.keys() | local.keys():
            here, there = local.get(name), stored.get(name)
            is_lost = there is None and self._store.is_sealed
            if there is not None and not there.text:
                there = None
            if (here and here.digest) == (there and there.digest):
                continue
            if is_lost or (has_folder and self._is_ours(here, there, self._known.get(name))):
                found.ours.append(name)
            elif there is not None:
                found.taken[name] = there
            else:
                found.gone.append(name)
        return found

    @staticmethod
    def _is_ours(here: _LocalFile | None, there: SharedFile | None, known: str | None) -> bool:
        """Whether the text in the folder is the newer one of two that differ."""
        mine = here.digest if here is not None else None
        theirs = there.digest if there is not None else None
        if theirs == known:
            return True
        if mine == known:
            return False
        if here is None or there is None:
            return there is None  # one was changed, the other one deleted: the text stays
        return here.changed_at > there.changed_at

    async def _take(
        self,
        reloader: PolicyReloader,
        taken: Mapping[str, SharedFile],
        gone: list[str],
        local: Mapping[str, _LocalFile],
    ) -> bool:
        texts = {name: one.text for name, one in local.items() if name not in gone}
        texts |= {name: one.text for name, one in taken.items()}
        used = {name: text for name, text in texts.items() if name.endswith((POLICIES, TESTS))}
        checked = await asyncio.to_thread(loader.check_texts, used)
        if checked.policy_set is None:
            why = "; ".join(str(one) for one in checked.findings[:3])
            self._report(f"the policies of other hubs are not used here: {why}")
            return False
        if not await asyncio.to_thread(self._write, taken, gone, local):
            return False
        self._note_taken(taken, gone)
        with contextlib.suppress(PolicyError):  # the reloader reports it
            await reloader.reload()
        return True

    def _write(
        self, taken: Mapping[str, SharedFile], gone: list[str], local: Mapping[str, _LocalFile]
    ) -> bool:
        """Writes files of the database to the folder, each of them atomically."""
        try:
            make_private_folder(self._folder)
            for name, one in taken.items():
                here = local.get(name)
                if not is_shared_name(name):
                    continue  # `_load` refuses it: no other way leads out of the folder
                if here is not None and here.digest == one.digest:
                    continue
                if here is not None and self._known.get(name) != here.digest:
                    self._keep_aside(name, here.text)
                _replace(self._folder / name, one.text)
            for name in gone:
                if self._known.get(name) != local[name].digest:
                    self._keep_aside(name, local[name].text)
                (self._folder / name).unlink(missing_ok=True)
        except OSError as error:
            self._report(f'"{self._folder}" cannot be written ({error.strerror})')
            return False
        return True

    def _keep_aside(self, name: str, text: str) -> None:
        aside = self._folder / f"{name}.aside-{time.strftime('%Y%m%dT%H%M%S', time.gmtime())}"
        with contextlib.suppress(OSError):
            _replace(aside, text)
        log.warning(
            'the policy file "%s" differed at two hubs; the text that lost is kept in "%s"',
            name,
            aside,
        )

    def _note_taken(self, taken: Mapping[str, SharedFile], gone: list[str]) -> None:
        kept = {name: digest for name, digest in self._known.items() if name not in gone}
        self._save_record({**kept, **{name: one.digest for name, one in taken.items()}})

    def _save_record(self, known: Digests) -> None:
        self._known = dict(known)
        with contextlib.suppress(OSError):
            _replace(self._record, json.dumps(self._known))

    def _report(self, problem: str) -> None:
        if problem and problem != self._refused:
            log.error("%s", problem)
        self._refused = problem


def _replace(path: Path, text: str) -> None:
    handle, ready = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.", suffix=TEMPORARY)
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        os.replace(ready, path)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(ready)
        raise


def is_shared_name(name: str) -> bool:
    """Whether it is a plain name of a file that hubs share."""
    is_plain = name.isprintable() and len(name) <= MAX_NAME and not {"/", "\\"} & set(name)
    return is_plain and not name.startswith(".") and name.endswith(ENDINGS)


def _read_folder(folder: Path) -> dict[str, _LocalFile]:
    """Reads the files that hubs share. Raises `OSError` or `ConfigError`."""
    if not folder.is_dir():
        return {}
    found: dict[str, _LocalFile] = {}
    for path in sorted(folder.iterdir()):
        if not is_shared_name(path.name) or not path.is_file():
            continue
        data = path.read_bytes()[: MAX_BYTES + 1]
        if not data:
            continue  # as one that was deleted
        if len(data) > MAX_BYTES or len(found) >= MAX_FILES:
            raise ConfigError(f'"{folder}" is too large to be shared with other hubs')
        try:
            text = data.decode()
        except UnicodeDecodeError as error:
            raise ConfigError(f'"{path}" is not UTF-8 text: {error}') from None
        found[path.name] = _LocalFile(text, hash_text(text), path.stat().st_mtime)
    return found


def _read_record(path: Path) -> dict[str, str]:
    try:
        found = json.loads(path.read_text("utf-8"))
    except (OSError, ValueError):
        return {}
    return {str(name): str(digest) for name, digest in found.items()} if found else {}
