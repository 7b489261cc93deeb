"""Reads a secret from the output of a command: `exec:COMMAND ARGS`, for the clients of vaults.

The command is a list of arguments, never a shell. It gets PATH and HOME and nothing else of the
hub's environment, an end after a time, and a bound on its output. What it prints is never part of a
message.
"""

from __future__ import annotations

import asyncio
import os
import shlex
from collections.abc import Mapping
from typing import Any

from dragoman.core.errors import ConfigError
from dragoman.core.secret_references import MAX_SECRET_BYTES
from dragoman.processes.descendants import DESCENDANTS, UNKNOWN


async def read_command(
    command: str, owner: str, variables: Mapping[str, str], seconds: float
) -> str:
    """Raises `ConfigError`."""
    try:
        words = shlex.split(command)
    except ValueError as error:
        raise ConfigError(f"{owner}: invalid exec: reference: {str(error).lower()}") from None
    if not words:
        raise ConfigError(f"{owner}: an exec: reference needs a command")
    program = os.path.expanduser(words[0])
    shown = f'"exec:{words[0][:100]} …"'
    names = ("PATH", "HOME")
    environment = {name: variables[name] for name in names if name in variables}
    options: dict[str, Any] = {"env": {"PATH": os.defpath, **environment}, "cwd": "/"}
    try:
        async with (
            asyncio.timeout(seconds),
            DESCENDANTS.run_command(UNKNOWN, program, *words[1:], **options) as process,
        ):
            output = await _read_output(process)
            status = 0 if len(output) > MAX_SECRET_BYTES else await process.wait()
    except TimeoutError:
        raise ConfigError(f"{owner}: {shown} did not end within {seconds:g} s") from None
    except OSError as error:
        why = str(error.strerror or error).lower()
        raise ConfigError(f"{owner}: {shown} cannot be run: {why}") from None
    if len(output) > MAX_SECRET_BYTES:
        raise ConfigError(f"{owner}: {shown} printed more than {MAX_SECRET_BYTES} bytes")
    if status != 0:
        raise ConfigError(
            f"{owner}: {shown} failed with exit code {status}; run it yourself to see why"
        )
    return output.decode("utf-8", "replace").strip()


async def _read_output(process: asyncio.subprocess.Process) -> bytes:
    assert process.stdout is not None
    output = b""
    while len(output) <= MAX_SECRET_BYTES:
        piece = await process.stdout.read(MAX_SECRET_BYTES + 1 - len(output))
        if not piece:
            break
        output += piece
    return output
