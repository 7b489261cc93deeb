"""Builds the command runner and the skills of the home."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from dragoman.a2a.remote.registered_agents import RegisteredAgents
from dragoman.agents.skills.skill_book import SkillBook, SkillTable
from dragoman.app.build_catalogs import Catalogs
from dragoman.app.config_watch import LiveConfig
from dragoman.core.tool_identity import BUILTIN, HUB, WORKFLOW
from dragoman.guards.validate import compile_schema

if TYPE_CHECKING:
    from dragoman.processes.command_runner import CommandRunner


def build_mark(home: Path) -> str:
    """The mark of all child processes of a hub on that home."""
    return hashlib.sha256(str(home).encode()).hexdigest()[:16]


def find_command_runner(home: Path, live: LiveConfig) -> Callable[[], CommandRunner]:
    """Returns a function that builds the one command runner of the hub when it is first needed."""

    @cache
    def build() -> CommandRunner:
        from dragoman.processes.command_runner import CommandRunner

        return CommandRunner(home, build_mark(home), live.variables)

    return build


def build_skills(
    home: Path,
    live: LiveConfig,
    table: SkillTable,
    catalogs: Catalogs,
    build_runner: Callable[[], CommandRunner],
    local: Mapping[str, object],
    registered: RegisteredAgents,
    note_change: Callable[[], None],
) -> SkillBook:
    """Loads the skills and offers their tools. `local` are the local agents by name."""

    def list_others() -> Iterator[tuple[str, str]]:
        """Lists the names that skills may not have: servers, agents and skills share names."""
        yield "target of the built-in tools", BUILTIN
        yield "target of the hub's own tools", HUB
        yield "target of the workflows", WORKFLOW
        for server in live.config.mcp_servers:
            yield "server", server.name
        for name in (*(one.name for one in live.config.agents), *local, *registered.list_names()):
            yield "agent", name

    book = SkillBook(
        home,
        table,
        catalogs.tools,
        build_runner,
        compile_schema,
        list_others,
        catalogs.reviews.release_names,
        note_change,
    )
    book.load()
    return book
