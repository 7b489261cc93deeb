"""What a program that the hub starts may use: the sandbox level and the resource limits."""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta, Struct

SandboxLevel = Literal["strict", "net", "off"]


class ProcessLimits(Struct, frozen=True, kw_only=True):
    memory_megabytes: Annotated[
        int,
        Meta(
            ge=0,
            le=16_777_216,
            description="Megabytes of memory that each process may allocate; 0: no limit.",
        ),
    ] = 16_384
    processes: Annotated[
        int,
        Meta(
            ge=0,
            le=4_194_304,
            description="Processes and threads in its sandbox; without one at least 16384, because "
            "the system then counts all of the user's; 0: no limit.",
        ),
    ] = 1_024
    file_megabytes: Annotated[
        int,
        Meta(ge=0, le=16_777_216, description="Megabytes of a file it writes; 0: no limit."),
    ] = 102_400
    cpu_secs: Annotated[
        int,
        Meta(
            ge=0,
            le=1_000_000_000,
            description="Seconds of CPU time after which a process is killed; 0: no limit.",
        ),
    ] = 0
