"""Adds servers to config.toml and removes them, with the commands that people use for it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from dragoman.core.secret_rules import Author, ReferenceRules, SecretUse
from dragoman.processes.own_commands import OwnCommands


@dataclass(frozen=True, slots=True)
class ServerEditor:
    """Implements `web.api_servers.ServerEditing`."""

    _commands: OwnCommands
    _reload: Callable[[], Awaitable[str | None]]
    _rules: ReferenceRules

    def check_reference(self, reference: str, use: SecretUse) -> None:
        self._rules.check(reference, use)

    async def add_program(
        self, name: str, command: list[str], env: Sequence[str], sandbox: str
    ) -> Mapping[str, Any]:
        options = [f"--env={variable}" for variable in env]
        options += [f"--sandbox={sandbox}"] if sandbox else []
        return await self._add(name, options, command)

    async def add_url(
        self, name: str, url: str, headers: Mapping[str, str], author: Author
    ) -> Mapping[str, Any]:
        options = ["--headers-stdin"]
        if author is not Author.OWNER:
            options.append(f'--set=added_by="{author.value}"')
        return await self._add(name, options, [url], dict(headers))

    async def remove(self, name: str) -> Mapping[str, Any]:
        await self._commands.run("servers", "remove", "--json", "--", name)
        return {"removed": name, "problem": await self._reload()}

    async def add_demo(self) -> Mapping[str, Any]:
        done: Mapping[str, Any] = await self._commands.run("demo", "add", "--json")
        return done

    async def _add(
        self, name: str, options: list[str], where: list[str], given: Any = None
    ) -> Mapping[str, Any]:
        done = await self._commands.run(
            "servers", "add", "--no-connect", "--json", *options, "--", name, *where, given=given
        )
        return {"added": name, "notes": done.get("notes", []), "problem": await self._reload()}
