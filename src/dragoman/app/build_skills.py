"""Builds the command runner and the skills of the home."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

from dragoman.a2a.remote.registered_agents import RegisteredAgents
from dragoman.agents.skills.skill_book import SkillBook, SkillTable
from dragoman.app.build_catalogs import Catalogs
from dragoman.app.config_watch import LiveConfig
from dragoman.guards.validate import compile_schema
from dragoman.processes.command_runner import CommandRunner


def build_mark(home: Path) -> str:
    """The mark of all child processes of a hub on that home."""
    return hashlib.sha256(str(home).encode()).hexdigest()[:16]


def build_command_runner(home: Path, live: LiveConfig) -> CommandRunner:
    return CommandRunner(home, build_mark(home), live.variables)


def build_skills(
    home: Path,
    live: LiveConfig,
    table: SkillTable,
    catalogs: Catalogs,
    runner: CommandRunner,
    local: Mapping[str, object],
    registered: RegisteredAgents,
    note_change: Callable[[], None],
) -> SkillBook:
    """Loads the skills and offers their tools. `local` are the local agents by name."""

    def list_others() -> Iterator[tuple[str, str]]:
        """Lists the names that skills may not have: servers, agents and skills share names."""
        for server in live.config.mcp_servers:
            yield "server", server.name
        for name in (*(one.name for one in live.config.agents), *local, *registered.list_names()):
            yield "agent", name

    book = SkillBook(
        home,
        table,
        catalogs.tools,
        runner,
        compile_schema,
        list_others,
        catalogs.reviews.release_names,
        note_change,
    )
    book.load()
    return book
