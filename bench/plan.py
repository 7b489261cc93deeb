"""How much is measured, and progress output."""

import http.client
import re
import subprocess
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from bench.paths import CannotRun

Records = dict[str, list[dict]]
FAILURES = (
    OSError,
    RuntimeError,
    ValueError,
    LookupError,
    http.client.HTTPException,
    subprocess.SubprocessError,
    CannotRun,
)
TABLES = (
    "calls",
    "growth",
    "memory",
    "start",
    "streams",
    "agents",
    "bridge",
    "policy",
    "stages",
    "agent",
    "console",
    "workflows",
    "cluster",
)


class Named(Protocol):
    """A row of any table."""

    @property
    def name(self) -> str: ...


@dataclass(frozen=True)
class Plan:
    rounds: int = 3
    seconds: float = 1.6  # of load for each row and number of connections
    connections: tuple[int, ...] = (1, 16, 64)
    sizes: tuple[int, ...] = (10, 1_000, 10_000)  # tools in the catalog
    marks: tuple[int, int] = (2_000, 20_000)  # calls after which memory is read
    starts: int = 9
    relay_starts: int = 25
    streams: int = 5_000  # open at once
    only: str = ""
    tables: tuple[str, ...] = TABLES

    def wants(self, row: Named) -> bool:
        return re.search(self.only, row.name, re.IGNORECASE) is not None


QUICK = Plan(rounds=1, seconds=0.3, marks=(200, 2_000), starts=2, relay_starts=4, streams=500)


def say(text: str) -> None:
    print(time.strftime("%H:%M:%S"), text, flush=True)


def microseconds(value: float) -> str:
    if value < 1_000:
        return f"{value:.0f} \u00b5s"
    return f"{value / 1_000:.2f} ms" if value < 10_000 else f"{value / 1_000:,.0f} ms"


def attempt(label: str, records: list[dict], work: Callable[..., dict], *arguments) -> None:
    """A row that fails costs its own figures and a FAIL line, never the run."""
    try:
        records.append(work(*arguments))
    except FAILURES as error:
        say(f"FAIL {label}: {error}")
