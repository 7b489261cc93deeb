"""Runs commands of the command line for the API: what they check and edit is in one place only.

A command is a child process with the home of this hub; it ends after a time, and its output is
bounded. Its arguments are a list, never a shell.
"""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path
from typing import Any

from dragoman.core.errors import HubError, InvalidInput, NotFound, Overloaded
from dragoman.processes.descendants import DESCENDANTS, OWN

SECONDS = 60.0
MAX_OUTPUT = 4 * 1024 * 1024
AT_ONCE, WAITING = 1, 8
NOT_FOUND = 5
"""The exit code of a command whose object does not exist."""


class OwnCommands:
    def __init__(self, home: Path, seconds: float = SECONDS) -> None:
        self._home = home
        self._seconds = seconds
        self._turns = asyncio.Semaphore(AT_ONCE)
        self._waiting = 0

    async def run(self, *args: str, codes: tuple[int, ...] = (0,), given: Any = None) -> Any:
        """Runs `dragoman ARGS --json` and returns what it prints. `codes` are the exit codes that
        are no failure; `given` is passed as JSON on the standard input. Raises `NotFound` or
        `InvalidInput` with what the command says otherwise."""
        if self._waiting >= WAITING:
            raise Overloaded("too many commands are waiting; try again in a moment")
        self._waiting += 1
        try:
            async with self._turns:
                code, output = await self._run(
                    args, b"" if given is None else json.dumps(given).encode()
                )
        finally:
            self._waiting -= 1
        try:
            printed = json.loads(output)
        except ValueError:
            raise HubError(f'"dragoman {args[0]}" failed; run it to see why') from None
        if code not in codes:
            said = printed.get("error", {}) if isinstance(printed, dict) else {}
            message = str(said.get("message") or f"it failed with exit code {code}")
            raise NotFound(message) if code == NOT_FOUND else InvalidInput(message)
        return printed

    async def _run(self, args: tuple[str, ...], data: bytes) -> tuple[int, bytes]:
        command = [sys.executable, "-m", "dragoman", "--home", str(self._home), *args]
        try:
            async with (
                asyncio.timeout(self._seconds),
                DESCENDANTS.run_command(
                    OWN, *command, has_input=bool(data), limit=MAX_OUTPUT
                ) as process,
            ):
                if process.stdin is not None:
                    process.stdin.write(data)  # the pipe takes it, or the transport keeps it
                    process.stdin.close()
                assert process.stdout is not None
                output = await process.stdout.read(MAX_OUTPUT)
                while more := await process.stdout.read(MAX_OUTPUT):
                    output += more
                    if len(output) > MAX_OUTPUT:
                        raise HubError(f'"dragoman {args[0]}" printed too much')
                return await process.wait(), output
        except TimeoutError:
            raise HubError(f'"dragoman {args[0]}" did not end within {self._seconds:g} s') from None
