"""Tries a server in a sandbox: what it offers there, beside what it offers now."""

from __future__ import annotations

import asyncio
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from dragoman.config import load_variables
from dragoman.core.bus import Bus
from dragoman.core.catalog import admit_all, build_catalogs
from dragoman.core.name_claims import NameClaims
from dragoman.guards.validate import compile_schema
from dragoman.mcp.client.catalog_sync import KINDS
from dragoman.mcp.client.connector import Connector
from dragoman.mcp.client.upstream import Upstream
from dragoman.mcp.config import ServerEntry
from dragoman.net.client import OutboundHttp
from dragoman.processes.config import SandboxLevel

START_SECONDS = 120.0
"""A package runner may download the server first: a sandbox has a cache of its own."""
MAX_NAMED = 10
_MISSING = re.compile(
    r"(?:ENOENT|EACCES|EROFS|No such file|Permission denied|Read-only|FileNotFound|not found)"
    r"[^\n]*?(/[^\s'\":,;)\]]+)"
)


@dataclass(frozen=True, slots=True)
class Offers:
    """What a server offers, or why it could not be connected."""

    names: Mapping[str, frozenset[str]] = field(default_factory=dict)
    """The names of its tools, prompts, resources and templates."""
    problem: str = ""
    stderr: str = ""


@dataclass(frozen=True, slots=True)
class SandboxTrial:
    before: Offers
    within: Offers
    lost: Mapping[str, list[str]]
    """What it offers now and not in the sandbox, by kind."""
    missing_paths: list[str]
    """Files that it did not find in the sandbox and that exist outside of it."""

    @property
    def succeeded(self) -> bool:
        return not (self.before.problem or self.within.problem or self.lost)


def try_sandbox(home: Path, entry: ServerEntry, level: SandboxLevel) -> SandboxTrial:
    """Connects to the server as it is configured and then in the sandbox `level`."""
    return asyncio.run(_try_sandbox(home, entry, level))


async def _try_sandbox(home: Path, entry: ServerEntry, level: SandboxLevel) -> SandboxTrial:
    before = await _read_offers(home, entry)
    tried = entry.change_sandbox(level)
    within = Offers() if before.problem else await _read_offers(home, tried)
    lost = {
        kind: sorted(names - within.names.get(kind, frozenset()))
        for kind, names in before.names.items()
    }
    return SandboxTrial(
        before,
        within,
        {kind: names for kind, names in lost.items() if names and not within.problem},
        _find_missing_paths(within),
    )


async def _read_offers(home: Path, entry: ServerEntry) -> Offers:
    bus, net = Bus(), OutboundHttp()
    connector = Connector(
        home,
        f"trial{os.getpid()}",  # processes of a running hub have another mark
        load_variables(home),
        lambda url, private: net.open_configured(url, allow_private=private),
    )
    catalogs = build_catalogs(admit_all, NameClaims())
    compile = partial(compile_schema, check=entry.check_arguments)
    upstream = Upstream(entry, connector, catalogs, bus, compile)
    upstream.start()
    try:
        async with asyncio.timeout(START_SECONDS):
            await upstream.connection.wait_settled()
        problem = upstream.connection.reason if upstream.connection.session is None else ""
        names = {
            kind: frozenset(tool.remote_name for tool in upstream.catalog.list_offered(kind))
            for kind in KINDS
        }
    except TimeoutError:
        problem, names = f"it did not start within {START_SECONDS:g} s", {}
    finally:
        await upstream.stop()
    return Offers({} if problem else names, problem, upstream.stderr.read_text())


def _find_missing_paths(within: Offers) -> list[str]:
    text = f"{within.problem}\n{within.stderr}"
    found = dict.fromkeys(match[1] for match in _MISSING.finditer(text))
    return [path for path in found if os.path.exists(path)][:MAX_NAMED]
