"""The workflows of a home: loads the files of its folder, follows their changes, and writes them.

A file that cannot be used leaves its workflow as it was; the others are not touched.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import re
import stat
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from time import monotonic
from typing import NamedTuple

from dragoman.core.access import require_scope
from dragoman.core.errors import ConfigError, InvalidInput, NotFound
from dragoman.core.file_modes import find_exposure, make_private_folder
from dragoman.core.nearest_names import find_nearest
from dragoman.core.principal import Principal
from dragoman.core.scopes import CALL
from dragoman.core.secret_rules import Author, ReferenceRules
from dragoman.core.structs import Struct, replace
from dragoman.workflows.authorship import CheckReference, find_refused, is_marked, set_author
from dragoman.workflows.loader import InvalidDefinition, load_workflow
from dragoman.workflows.model import MANUAL, Workflow
from dragoman.workflows.schema import ID
from dragoman.workflows.yaml_reader import MAX_BYTES, Problem

log = logging.getLogger(__name__)

FOLDER = "workflows"
"""The folder of the workflows in the home."""
ENDINGS = (".yaml", ".yml")
TEMPORARY = ".tmp"
MAX_FILES = 500
MAX_OWN = 5_000
"""Versions of the owner's definitions that are known as such."""
WATCH_SHARE = 0.005
"""Of the time, that the files may be watched."""
LONGEST_PAUSE = 5.0
"""Seconds between two checks of the files, with however many."""
FileState = tuple[int, int, int, int]
"""The time of change, size, inode and mode of a file."""


class DefinitionFile(Struct, frozen=True, kw_only=True):
    """A file of the folder, and the workflow that it has in force."""

    name: str
    """Of the workflow; the name of the file as long as none was loaded."""
    file: str
    workflow: Workflow | None = None
    """The last version that could be loaded; None if there was none."""
    problems: tuple[Problem, ...] = ()
    """Why the file is not in force as it is now."""
    problem: str = ""
    """The same as text, with the name of the file."""


class PreparedDefinition(NamedTuple):
    """What is about to be written."""

    workflow: Workflow
    source: str
    """The text of the file, which says who wrote it."""


class WorkflowFolder:
    def __init__(
        self,
        path: Path,
        clock: Callable[[], float] = monotonic,
        check: CheckReference | None = None,
    ) -> None:
        """`check` decides on the references of definitions that the API wrote; without it, they may
        use what every home sets aside."""
        self.path = path
        self._check_reference = check or ReferenceRules((), path.parent).check
        self._own: dict[str, None] = {}
        """The digests of the owner's definitions that were loaded, the oldest first."""
        self._clock = clock
        self._next_check = 0.0
        self._is_full = False
        self._states: dict[str, FileState] = {}
        self._files: dict[str, DefinitionFile] = {}
        """By file name."""
        self._names: dict[str, str] = {}
        """The file that has the workflow of each name."""
        self._parsed: dict[str, tuple[FileState, Workflow | InvalidDefinition]] = {}
        """What changed files contain, parsed before they are loaded."""
        self._observers: list[Callable[[], None]] = []

    def observe(self, changed: Callable[[], None]) -> None:
        """Has `changed` called after each change of the workflows that are in force."""
        self._observers.append(changed)

    # --- reading ---------------------------------------------------------------------------------

    def list_files(self) -> list[DefinitionFile]:
        """Lists the files of the folder by the name of their workflows."""
        return sorted(self._files.values(), key=lambda one: (one.name, one.file))

    def list_workflows(self) -> list[Workflow]:
        """Lists the workflows in force."""
        found = (self._files[file].workflow for _, file in sorted(self._names.items()))
        return [one for one in found if one is not None]

    def get(self, name: str) -> Workflow | None:
        """Returns the version of a workflow that is in force."""
        file = self._names.get(name)
        return self._files[file].workflow if file is not None else None

    def find(self, name: str) -> Workflow:
        """The same; raises `NotFound` with the nearest name, or `InvalidInput` if its file cannot
        be used."""
        if (workflow := self.get(name)) is not None:
            return workflow
        entry = self.find_file(name)
        raise InvalidInput(f'the workflow "{name[:80]}" cannot be used: {entry.problem}')

    def find_file(self, name: str) -> DefinitionFile:
        """Returns the file of a workflow. Raises `NotFound`."""
        if (file := self._names.get(name)) is not None:
            return self._files[file]
        for entry in self.list_files():
            if name == entry.name:
                return entry
        near = find_nearest(name, (one.name for one in self._files.values()))
        hint = f'; did you mean "{near}"?' if near else ""
        raise NotFound(f'there is no workflow "{name[:80]}"{hint}')

    def is_own(self, digest: str) -> bool:
        """Whether a definition of this digest was a file of the owner since the hub started."""
        return digest in self._own

    def check_references(self, workflow: Workflow, file: str = "") -> None:
        """Raises `InvalidDefinition` for a secret that the author of the definition may not use."""
        if problems := list(find_refused(workflow, self._check_reference)):
            raise InvalidDefinition(problems, file)

    def check(self, found: Mapping[str, FileState] | None = None) -> list[str]:
        """Loads files that are new or have changed, and removes workflows whose file is gone.
        Returns the names of the files that have changed. `found` is what the files are now."""
        found = self._read_states() if found is None else found
        changed = [file for file in self._states if file not in found]
        for file in changed:
            del self._states[file]
            removed = self._files.pop(file)
            if self._names.get(removed.name) == file:
                del self._names[removed.name]
        # A file whose name was taken may have it now.
        freed = [file for file in self._files if changed and file not in self._names.values()]
        for file, state in found.items():
            if self._states.get(file) != state or file in freed:
                self._states[file] = state
                changed.append(file)
                self._load(file)
        if changed:
            for observer in self._observers:
                observer()
        return changed

    def _read_states(self) -> dict[str, FileState]:
        """Reads what the files of the folder are now, without reading their text."""
        try:
            with os.scandir(self.path) as entries:
                names = sorted(
                    entry.name
                    for entry in entries
                    if entry.name.endswith(ENDINGS) and not entry.name.startswith(".")
                )
        except OSError:
            return {}
        if len(names) > MAX_FILES and not self._is_full:
            log.error('"%s" has more than %d workflows; the rest is ignored', self.path, MAX_FILES)
        self._is_full = len(names) > MAX_FILES
        found: dict[str, FileState] = {}
        for name in names[:MAX_FILES]:
            with contextlib.suppress(OSError):
                now = os.stat(self.path / name)
                if stat.S_ISREG(now.st_mode):
                    found[name] = now.st_mtime_ns, now.st_size, now.st_ino, now.st_mode
        return found

    async def follow(self) -> None:
        """Applies changes of files and logs them; called again and again. With many files it
        checks less often, so that watching them takes a small share of the time."""
        begun = self._clock()
        if begun < self._next_check:
            return
        found = self._read_states()
        waiting = [file for file, state in found.items() if self._states.get(file) != state]
        for file in waiting:
            # Not on the event loop: a large definition takes a second.
            self._parsed[file] = found[file], await asyncio.to_thread(_parse, self.path / file)
        changed = self.check(None if waiting else found)  # others may have changed meanwhile
        self._parsed.clear()
        for file in changed:
            self._log(file)
        spent = self._clock() - begun
        self._next_check = begun + (0 if changed else min(spent / WATCH_SHARE, LONGEST_PAUSE))

    def _log(self, file: str) -> None:
        entry = self._files.get(file)
        if entry is None:
            log.info('the file "%s" of a workflow was removed', self.path / file)
        elif entry.problem:
            kept = "; the workflow stays as it was" if entry.workflow else ""
            log.error('in "%s": %s%s', self.path, entry.problem, kept)
        elif entry.workflow is not None:
            log.info('workflow "%s" is ready (%s)', entry.name, entry.workflow.digest[:12])

    def _load(self, file: str) -> None:
        before = self._files.get(file)
        stem = Path(file).stem
        try:
            exposed = find_exposure(self.path / file)
            if exposed is not None and exposed.reachable:
                raise InvalidDefinition([Problem(1, str(exposed))], file)
            state, workflow = self._parsed.get(file, (None, None))
            if workflow is None or state != self._states[file]:
                workflow = _parse(self.path / file)
            if isinstance(workflow, InvalidDefinition):
                raise workflow
            self.check_references(workflow, file)
            owner = self._names.get(workflow.name, file)
            if owner != file:
                words = f'there is a workflow "{workflow.name}" already, in {owner}'
                raise InvalidDefinition([Problem(1, words)], file)
        except InvalidDefinition as error:
            entry = before or DefinitionFile(name=stem, file=file)
            self._files[file] = replace(entry, problems=error.problems, problem=str(error))
            return
        if before is not None and self._names.get(before.name) == file:
            del self._names[before.name]
        self._names[workflow.name] = file
        self._files[file] = DefinitionFile(name=workflow.name, file=file, workflow=workflow)
        if workflow.author is Author.OWNER:
            self._own[workflow.digest] = None
            while len(self._own) > MAX_OWN:
                del self._own[next(iter(self._own))]

    # --- writing ---------------------------------------------------------------------------------

    def write(
        self, name: str, source: str, author: Author, writer: Principal | None = None
    ) -> Workflow:
        """Creates or replaces the workflow `name` for `author`. Raises `InvalidInput` and
        `ConfigError`."""
        return self.save(name, prepare_definition(name, source, author, writer))

    def save(self, name: str, prepared: PreparedDefinition) -> Workflow:
        """Writes the file of the workflow `name` atomically and loads it. Raises `InvalidInput` and
        `ConfigError`."""
        if not re.fullmatch(ID, name):
            raise InvalidInput(
                f"invalid workflow name {name[:80]!r}: use up to 64 letters, digits, hyphens and "
                "underscores"
            )
        self.check()
        workflow, source = prepared
        self.check_references(workflow)
        taken = next((one.file for one in self._files.values() if one.name == name), None)
        file = taken or f"{name}{ENDINGS[0]}"
        if taken is None and file in self._files:
            other = self._files[file].name
            raise InvalidInput(f'the file {file} has the workflow "{other}"; choose another name')
        if taken is None and len(self._files) >= MAX_FILES:
            raise InvalidInput(f"there are {MAX_FILES} workflows already; delete one first")
        write_file(self.path / file, source)
        found = self._read_states()
        if file in found and Path(file).stem == name:
            self._parsed[file] = found[file], workflow
        self.check(found)
        self._parsed.pop(file, None)
        return self.find(name)

    def remove(self, name: str) -> None:
        """Deletes the file of a workflow; its runs finish. Raises `NotFound`."""
        self.check()
        entry = self.find_file(name)
        try:
            (self.path / entry.file).unlink(missing_ok=True)
        except OSError as error:
            raise _build_error(self.path, error) from None
        self.check()


def prepare_definition(
    name: str, source: str, author: Author, writer: Principal | None = None
) -> PreparedDefinition:
    """Loads a definition as it will be in its file, and compares it with the one that was given.
    `writer` is the caller of the API. Raises `InvalidInput`, and `InsufficientScope` for a trigger
    of a writer who may not call anything."""
    given = load_workflow(source, name, author=author)
    if given.name != name:
        raise InvalidInput(f'the definition has the name "{given.name}", not "{name}"')
    kind = next((one.kind for one in given.triggers if one.kind != MANUAL), "")
    if writer is not None and kind:
        require_scope(writer, CALL, f'the {kind} trigger of the workflow "{name}"')
    source = set_author(source, author, writer)
    written = load_workflow(source, name, author=author)
    given = replace(given, source=written.source, digest=written.digest, writer=written.writer)
    if written != given:
        raise InvalidInput("the definition cannot be written as it is: end it with a line break")
    return PreparedDefinition(written, source)


def _parse(path: Path) -> Workflow | InvalidDefinition:
    try:
        return load_file(path)
    except InvalidDefinition as error:
        return error


def load_file(path: Path) -> Workflow:
    """Loads a file. Raises `InvalidDefinition`, whose message begins with the file's name."""

    def fail(words: str) -> InvalidDefinition:
        return InvalidDefinition([Problem(1, words)], path.name)

    try:
        with path.open("rb") as opened:
            data = opened.read(MAX_BYTES + 1)
    except OSError as error:
        raise fail(f"the file cannot be read: {error.strerror}") from None
    if len(data) > MAX_BYTES:
        raise fail(f"the file is too large: more than {MAX_BYTES // 1024} KB")
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError:
        raise fail("the file is not UTF-8 text") from None
    author = Author.API if is_marked(text) else Author.OWNER
    workflow = load_workflow(text, path.stem, path.name, author)
    if not re.fullmatch(ID, workflow.name):
        words = f'the file name "{workflow.name[:80]}" cannot be the name of a workflow'
        raise fail(f'{words}; add the key "name"')
    return workflow


def write_file(path: Path, text: str) -> None:
    """Writes a file of the folder atomically, for this user alone. Raises `ConfigError`."""
    ready = ""
    try:
        make_private_folder(path.parent)
        if path.is_symlink():
            raise InvalidInput(f'"{path}" is a symbolic link: change the file it points to')
        handle, ready = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.", suffix=TEMPORARY)
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        os.replace(ready, path)
    except OSError as error:
        if ready:
            with contextlib.suppress(OSError):
                os.unlink(ready)
        raise _build_error(path.parent, error) from None


def _build_error(folder: Path, error: OSError) -> ConfigError:
    return ConfigError(f'cannot change the workflows in "{folder}": {error.strerror}')
