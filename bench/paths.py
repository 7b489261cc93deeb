"""Paths: environments, compiled programs, results. Knows no measurement."""

import fcntl
import shutil
import subprocess
from pathlib import Path
from typing import TextIO


class CannotRun(Exception):
    """Something the bench needs is not there; the message says what to do."""


ROOT = Path(__file__).resolve().parent.parent
BENCH = ROOT / "bench"
NATIVE = BENCH / "native"
PEERS = BENCH / "peers"
BUILD = BENCH / "build"
LOGS = BUILD / "logs"
HOMES = BUILD / "homes"
RESULTS = BUILD / "results"
PAGE = ROOT / "docs" / "benchmarks.md"

HUB = ROOT / ".venv" / "bin" / "dragoman"
PYTHON = ROOT / ".venv" / "bin" / "python"
BENCH_PYTHON = ROOT / ".venv-bench" / "bin" / "python"
FASTMCP_PYTHON = ROOT / ".venv-fastmcp" / "bin" / "python"
MCPPROXY_PYTHON = ROOT / ".venv-mcpproxy" / "bin" / "python"
MCP_PROXY = ROOT / ".venv-mcpproxy" / "bin" / "mcp-proxy"
CONTEXTFORGE_PYTHON = ROOT / ".venv-contextforge" / "bin" / "python"
DBOS_PYTHON = ROOT / ".venv-dbos" / "bin" / "python"
CONTEXTFORGE = ROOT / ".venv-contextforge" / "bin" / "mcpgateway"

BLAST = BUILD / "blast"
UPSTREAM = BUILD / "upstream"


def prepare() -> TextIO:
    """Empties what a former run left, and compiles the generator and the far end.

    No other run can begin while the file that it gives is open.
    """
    if not Path("/proc/self/smaps_rollup").exists():
        raise CannotRun("The bench reads CPU and memory from Linux's /proc, which is not here.")
    BUILD.mkdir(exist_ok=True)
    lock = (BUILD / "lock").open("w", encoding="utf-8")
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise CannotRun("Another bench runs in this checkout; wait until it has ended.") from None
    for folder in (LOGS, HOMES):
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
    RESULTS.mkdir(parents=True, exist_ok=True)
    for program in (BLAST, UPSTREAM):
        compile_native(program)
    return lock


def compile_native(program: Path) -> None:
    sources = [NATIVE / f"{program.name}.c", NATIVE / "json.h"]
    newest = max(source.stat().st_mtime for source in sources)
    if program.exists() and program.stat().st_mtime > newest:
        return
    compiler = next(filter(None, map(shutil.which, ("cc", "gcc", "clang"))), None)
    if compiler is None:
        raise CannotRun("The load generator is C and no C compiler (cc, gcc, clang) was found.")
    made = subprocess.run(
        [compiler, "-O2", "-o", program, sources[0]], capture_output=True, text=True
    )
    if made.returncode:
        raise CannotRun(f"{sources[0].name} did not compile: {made.stderr.strip()[:500]}")
