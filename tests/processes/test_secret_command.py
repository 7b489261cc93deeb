"""Secrets that commands print: their environment, their end, and that no message has them."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import time
from pathlib import Path
from shlex import join

import pytest

from dragoman.core.errors import ConfigError
from dragoman.core.secret_references import MAX_SECRET_BYTES
from dragoman.processes.secret_command import read_command

CANARY = "canary-93ab17"
VARIABLES = {"PATH": os.environ["PATH"], "HOME": "/home/of-user", "OTHER": CANARY}


def python(code: str) -> str:
    return join([sys.executable, "-c", code])


async def read(command: str, seconds: float = 60.0) -> str:
    return await read_command(command, 'server "s"', VARIABLES, seconds)


async def test_reads_what_the_command_prints_without_a_shell() -> None:
    assert await read(f"echo {CANARY}") == CANARY
    assert await read("echo 'a b' $HOME `id` && id") == "a b $HOME `id` && id"


async def test_the_command_gets_path_and_home_alone() -> None:
    code = "import os; print(sorted(set(os.environ) - {'LC_CTYPE'}), os.environ['HOME'])"
    assert await read(python(code)) == "['HOME', 'PATH'] /home/of-user"
    code = "import sys; print(repr(sys.stdin.read()))"
    assert await read(python(code)) == "''"


@pytest.mark.parametrize(
    ("command", "problem"),
    [
        (python(f"import sys; print('{CANARY}'); sys.exit(3)"), "exit code 3"),
        (python(f"import sys; sys.stderr.write('{CANARY}'); sys.exit(1)"), "exit code 1"),
        (python(f"print('{CANARY}' * 10_000)"), f"more than {MAX_SECRET_BYTES} bytes"),
        (f"/nothing/here {CANARY}", "cannot be run: no such file"),
        (f"echo '{CANARY}", "no closing quotation"),
        ("  ", "needs a command"),
    ],
)
async def test_says_what_is_wrong_and_nothing_of_what_it_printed(
    command: str, problem: str
) -> None:
    with pytest.raises(ConfigError) as caught:
        await read(command)
    assert problem in str(caught.value) and 'server "s"' in str(caught.value)
    assert CANARY not in str(caught.value)


async def test_a_command_that_does_not_end_is_killed_with_its_children(tmp_path: Path) -> None:
    pids = tmp_path / "pids"
    script = f"sleep 600 & echo $$ $! > {pids}; wait"  # a shell starts at once, however busy it is
    with pytest.raises(ConfigError, match="did not end within 2 s"):
        await read(join(["sh", "-c", script]), 2.0)
    end = time.monotonic() + 60
    for pid in map(int, pids.read_text(encoding="utf-8").split()):
        while _is_running(pid):
            assert time.monotonic() < end
            await asyncio.sleep(0.01)


def _is_running(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state != "Z"


SWEPT = """
import asyncio, sys
from dragoman.processes.descendants import DESCENDANTS
from dragoman.processes.secret_command import read_command

async def main():
    DESCENDANTS.adopt_orphans()
    reading = asyncio.ensure_future(read_command(sys.argv[1], "server", {}, 10.0))
    while not reading.done():
        DESCENDANTS.sweep()
        await asyncio.sleep(0)
    print(reading.result())

asyncio.run(main())
"""


def test_the_sweep_of_a_hub_without_servers_leaves_the_command_alone() -> None:
    """In a process of its own: a sweep kills what it does not know."""
    command = [sys.executable, "-c", SWEPT, python(f"print('{CANARY}')")]
    swept = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert swept.stdout.strip() == CANARY, swept.stderr
