"""Paths: environments, suites, results. Knows no protocol."""

import fcntl
import json
import shutil
from pathlib import Path
from typing import TextIO


class CannotRun(Exception):
    """Something that is needed is not there; the message says what to do."""


ROOT = Path(__file__).resolve().parent.parent
HERE = ROOT / "conformance"
BUILD = HERE / "build"
LOGS = BUILD / "logs"
HOMES = BUILD / "homes"
RESULTS = BUILD / "results"
PAGE = ROOT / "docs" / "conformance.md"

HUB = ROOT / ".venv" / "bin" / "dragoman"
PYTHON = ROOT / ".venv-conformance" / "bin" / "python"
EXAMPLES = ROOT / ".venv-conformance" / "mcp-source" / "examples"
NODE = ROOT / ".venv-conformance" / "bin" / "node"
REFERENCES = ROOT / ".venv-references" / "bin"
KIT_PYTHON = ROOT / ".venv-tck" / "bin" / "python"
SDK03_PYTHON = ROOT / ".venv-a2asdk03" / "bin" / "python"
SDK02_PYTHON = ROOT / ".venv-a2asdk02" / "bin" / "python"
PYTHON_A2A = ROOT / ".venv-pythona2a" / "bin" / "python"

PACKAGES = HERE / "node_modules"
RELEASE = PACKAGES / "suite-release" / "dist" / "index.js"
PRERELEASE = PACKAGES / "suite-prerelease" / "dist" / "index.js"
INSPECTOR = PACKAGES / "@modelcontextprotocol/inspector/clients/launcher/build/index.js"
EVERYTHING = PACKAGES / "@modelcontextprotocol/server-everything/dist/index.js"
FILESYSTEM = PACKAGES / "@modelcontextprotocol/server-filesystem/dist/index.js"
MEMORY = PACKAGES / "@modelcontextprotocol/server-memory/dist/index.js"
PLAYWRIGHT = PACKAGES / "@playwright/mcp/cli.js"

NOTHING_EXPECTED = HERE / "no-expected-failures.yml"


def prepare(*, few: bool = False) -> TextIO:
    """Empties what a former run left. No other run can begin while the file it gives is open. With
    `few` only the programs of the official suites and kits are needed."""
    programs = (HUB, PYTHON, NODE, KIT_PYTHON, SDK03_PYTHON, SDK02_PYTHON, PYTHON_A2A)
    frameworks = [
        ROOT / f".venv-{name}" for name in ("adk", "beeai", "crewai", "langgraph", "strands")
    ]
    packages = (RELEASE, PRERELEASE, INSPECTOR, EVERYTHING, FILESYSTEM, MEMORY, PLAYWRIGHT)
    every = (*programs, *frameworks, EXAMPLES, REFERENCES, *packages)
    for needed in (HUB, PYTHON, NODE, KIT_PYTHON, RELEASE, PRERELEASE) if few else every:
        if not needed.exists():
            raise CannotRun(f"{needed.relative_to(ROOT)} is not there; run `make conformance`.")
    BUILD.mkdir(exist_ok=True)
    lock = (BUILD / "lock").open("w", encoding="utf-8")
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise CannotRun("Another run is under way in this checkout; wait for its end.") from None
    for folder in (LOGS, HOMES, RESULTS):
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
    return lock


def set_aside(name: str) -> None:
    """Moves what was written so far into a folder of the build folder, so that the same runs can be
    made again."""
    shutil.rmtree(BUILD / name, ignore_errors=True)
    for folder in (LOGS, HOMES, RESULTS):
        shutil.copytree(folder, BUILD / name / folder.name, symlinks=True, ignore=_ignore_sockets)
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)


def _ignore_sockets(folder: str, names: list[str]) -> list[str]:
    return [name for name in names if (Path(folder) / name).is_socket()]


def version_of(package: str) -> str:
    text = (PACKAGES / package / "package.json").read_text(encoding="utf-8")
    return str(json.loads(text)["version"])
