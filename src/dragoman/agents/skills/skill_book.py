"""The skills of a running hub: offers the tools of those with a program, and has the texts of all
for the prompts of agents. Follows changes of the home. A home without skills loads nothing more.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import re
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from dragoman.core.catalog import Catalog
from dragoman.core.errors import ConfigError, InvalidInput, NotFound
from dragoman.core.ports import SchemaCompiler
from dragoman.core.tool_identity import fold_server_name

if TYPE_CHECKING:
    from dragoman.agents.skills.installation import InstalledSkill, SkillStore
    from dragoman.agents.skills.skill_target import SkillTarget
    from dragoman.processes.command_runner import CommandRunner

log = logging.getLogger(__name__)

FOLDER = "skills"
"""The folder in the home."""
MAX_FILE = 256 * 1024
"""Bytes of a file of a skill that an agent reads."""

ListOthers = Callable[[], Iterable[tuple[str, str]]]
"""Lists the kinds and names of the other targets."""


class SkillPrompt(NamedTuple):
    """What an agent knows of a skill before it loads it."""

    name: str
    description: str


class LoadedPrompt(NamedTuple):
    text: str
    files: list[str]
    """The other files of the skill, for `SkillBook.load_file`."""


class UsedSkill(NamedTuple):
    """An installed skill in the hub."""

    skill: InstalledSkill
    target: SkillTarget | None = None
    """None if it has no program."""
    problem: str = ""
    """Why it is not used."""


class SkillTable:
    """The table of installed skills. The book fills it; pins, policies and name claims read it."""

    def __init__(self) -> None:
        self.entries: dict[str, UsedSkill] = {}

    def __contains__(self, name: object) -> bool:
        return name in self.entries

    def list_names(self) -> list[str]:
        """Lists the installed skills, used or not."""
        return list(self.entries)

    def list_identities(self) -> dict[str, Any]:
        """What was approved of each skill, what it was granted, and what its files are now."""
        return {
            name: (
                one.skill.record.digest,
                one.skill.digest,
                one.skill.record.env,
                one.skill.sandbox,
            )
            for name, one in self.entries.items()
        }

    def list_variables(self) -> set[str]:
        """The names of the variables that the programs of skills get."""
        return {name for one in self.entries.values() for name in one.skill.record.env}

    def find_target(self, name: str) -> SkillTarget | None:
        entry = self.entries.get(name)
        return entry.target if entry is not None else None

    def list_problems(self) -> dict[str, str]:
        return {name: one.problem for name, one in self.entries.items() if one.problem}


class SkillBook:
    def __init__(
        self,
        home: Path,
        table: SkillTable,
        catalog: Catalog,
        build_runner: Callable[[], CommandRunner],
        compile_schema: SchemaCompiler,
        list_others: ListOthers,
        release_names: Callable[[str], None],
        note_change: Callable[[], None],
    ) -> None:
        """Fills `table`. `release_names` frees the names of a skill that was removed; `note_change`
        is called after every change."""
        self.table = table
        self._home = home
        self._catalog = catalog
        self._build_runner = build_runner
        self._compile = compile_schema
        self._list_others = list_others
        self._release_names = release_names
        self._note_change = note_change
        self._seen: object = None
        self._applying = asyncio.Lock()

    # --- changes ----------------------------------------------------------------------------------

    def load(self) -> None:
        """Reads and offers the skills before the hub starts."""
        state = self._find_state()
        self._apply(self._read_all())
        self._seen = state

    async def check(self) -> None:
        """Applies what has changed since the last time."""
        async with self._applying:
            state = await asyncio.to_thread(self._find_state)
            if state == self._seen:
                return
            found = await asyncio.to_thread(self._read_all)
            self._seen = state
            self._apply(found)
            self._note_change()

    def _find_state(self) -> object:
        store = self._open_store()
        return (store.read_state(), tuple(self._list_others())) if store is not None else ()

    def _open_store(self) -> SkillStore | None:
        if not (self._home / FOLDER).exists():
            return None
        from dragoman.agents.skills.installation import SkillStore

        return SkillStore(self._home)

    def _read_all(self) -> list[InstalledSkill]:
        found: list[InstalledSkill] = []
        if (store := self._open_store()) is not None:
            for name in store.list_names():
                with contextlib.suppress(NotFound):  # removed meanwhile
                    found.append(store.read(name))
        return found

    def _apply(self, found: Iterable[InstalledSkill]) -> None:
        taken = {_fold(name): (kind, name) for kind, name in self._list_others()}
        before, after = self.table.entries, dict[str, UsedSkill]()
        for skill in found:
            after[skill.name] = self._build_entry(skill, before.get(skill.name), taken)
            taken.setdefault(_fold(skill.name), ("skill", skill.name))
        self.table.entries = after
        for name in before.keys() - after.keys():
            self._catalog.withdraw(name)
            if _fold(name) not in taken:
                self._release_names(name)
            log.info('skill "%s" was removed', name)
        for name, entry in after.items():
            if entry is not before.get(name):
                self._offer(name, entry)
                self._report(name, before.get(name))

    def _build_entry(
        self, skill: InstalledSkill, before: UsedSkill | None, taken: Mapping[str, tuple[str, str]]
    ) -> UsedSkill:
        """Returns the entry that there was if nothing has changed."""
        from dragoman.agents.skills.manifest import PROMPT
        from dragoman.agents.skills.skill_target import SkillTarget

        problem = skill.problem
        if (other := taken.get(_fold(skill.name))) is not None:
            problem = f'its name is that of {other[0]} "{other[1]}"; add it again with --name'
        if before is not None and before.skill == skill and before.problem == problem:
            return before
        if problem or skill.manifest is None or skill.manifest.runtime == PROMPT:
            return UsedSkill(skill, problem=problem)
        try:
            target = SkillTarget(skill, skill.manifest, self._build_runner(), self._compile)
        except ValueError as error:
            problem = f"the schema of one of its tools is invalid: {error}"
            return UsedSkill(skill, problem=problem)
        return UsedSkill(skill, target)

    def _offer(self, name: str, entry: UsedSkill) -> None:
        if entry.target is None:
            self._catalog.withdraw(name)
            return
        try:
            self._catalog.offer(name, entry.target.tools)
        except ConfigError as error:
            self._catalog.withdraw(name)
            self.table.entries[name] = UsedSkill(entry.skill, problem=str(error))

    def _report(self, name: str, before: UsedSkill | None) -> None:
        problem = self.table.entries[name].problem
        if problem and (before is None or before.problem != problem):
            log.error('skill "%s" is not used: %s', name, problem)
        elif not problem and self._seen is not None:
            log.info('skill "%s" was %s', name, "added" if before is None else "changed")

    def describe(self) -> list[dict[str, Any]]:
        """Describes all installed skills."""
        from dragoman.agents.skills.describe import describe_skill

        return [describe_skill(one.skill, one.problem) for one in self.table.entries.values()]

    # --- prompts ----------------------------------------------------------------------------------

    def list_prompts(self, names: Iterable[str] | None = None) -> list[SkillPrompt]:
        """Lists the skills that have a text for prompts; with `names`, those of them."""
        wanted = None if names is None else set(names)
        return [
            SkillPrompt(name, entry.skill.manifest.description)
            for name, entry in self.table.entries.items()
            if not entry.problem
            and entry.skill.manifest is not None
            and entry.skill.manifest.prompt
            and (wanted is None or name in wanted)
        ]

    def load_prompt(self, name: str) -> LoadedPrompt:
        """Returns the text of a skill and the names of its other files. Raises `NotFound`."""
        skill = self._get_used(name)
        assert skill.manifest is not None
        return LoadedPrompt(skill.manifest.prompt, [stamp[0] for stamp in skill.stamps])

    async def load_file(self, name: str, path: str) -> str:
        """Returns the text of a file of a skill. Raises `NotFound` or `InvalidInput`."""
        skill = self._get_used(name)
        if path not in (stamp[0] for stamp in skill.stamps):
            raise NotFound(f'skill "{name}" has no file "{path[:200]}"')
        return await asyncio.to_thread(_read_text, skill, path)

    def _get_used(self, name: str) -> InstalledSkill:
        entry = self.table.entries.get(name)
        if entry is None or entry.problem:
            why = f" that can be used: {entry.problem}" if entry is not None else ""
            raise NotFound(f'there is no skill "{name[:80]}"{why}')
        return entry.skill


def _fold(name: str) -> str:
    """Folds a name as the configuration does: names that differ in case, hyphens and underscores
    are the same."""
    return re.sub("_+", "_", fold_server_name(name)).strip("_")


def _read_text(skill: InstalledSkill, path: str) -> str:
    if not skill.is_unchanged():
        raise NotFound(f'skill "{skill.name}" has changed since it was approved')
    with (skill.folder / path).open("rb") as file:
        data = file.read(MAX_FILE + 1)
    if len(data) > MAX_FILE:
        raise InvalidInput(f'"{path[:200]}" is larger than {MAX_FILE >> 10} KB')
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError:
        raise InvalidInput(f'"{path[:200]}" is not text') from None
