"""Compares the CPU per request of this checkout with another one, interleaved in one run.

    make compare BEFORE=HEAD~3                   # creates the other checkout from a commit
    python -m bench.compare ../before            # a checkout that has its own .venv

Both hubs run at the same time and are loaded in turns of less than a second, so other activity on
the machine affects both equally. Each pair is started several times, because the memory layout of
a process shifts its figures too. Exits with 1 if a row costs more than the limit allows.
"""

import argparse
import contextlib
import statistics
import sys
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from bench import agents, bridge, rows
from bench.agents import AgentRow, Endpoint
from bench.load import blast, fitting, measure
from bench.paths import CannotRun, prepare
from bench.plan import microseconds, say
from bench.processes import Child, stop_all
from bench.rows import Row
from bench.wire import CALLED, LISTED, REQUEST_ID

LIST_TOOLS = 1_000
TURNS = (0, 1, 1, 0)  # alternates which hub goes first


@dataclass(frozen=True)
class Load:
    """One kind of request that is sent to one of the two hubs repeatedly."""

    name: str
    child: Child
    port: int
    templates: list[bytes]
    connections: int
    expected: str = CALLED
    with_id: bool = True

    def ask(self, requests: int) -> dict:
        checks = {"expected": self.expected, "with_id": self.with_id}
        return measure(self.child, self.port, self.templates, self.connections, requests, **checks)

    def count(self, seconds: float) -> int:
        checks: dict[str, Any] = {"expected": self.expected, "with_id": self.with_id}
        request = (self.port, self.templates, self.connections)
        pilot = blast(*request, max(20, 3 * self.connections), **checks)
        pilot = blast(*request, fitting(pilot, 0.2, self.connections), **checks)
        return fitting(pilot, seconds, self.connections)


def from_checkout(row: Row, checkout: Path) -> Row:
    assert row.command is not None
    make = row.command
    hub = checkout / ".venv" / "bin" / "dragoman"

    def command(context: rows.RowContext) -> rows.Command:
        made = make(context)
        drop_unknown_settings(checkout, context.home)
        return [hub, *made[1:]]

    return replace(row, command=command)


def drop_unknown_settings(checkout: Path, home: Path) -> None:
    """A checkout from before the rate limits does not start with their settings."""
    if not (checkout / "src" / "dragoman" / "core" / "rate_limiter.py").exists():
        file = home / "config.toml"
        text = file.read_text(encoding="utf-8").replace(rows.NO_RATE_LIMIT, "")
        file.write_text(text, encoding="utf-8")


def agent_from_checkout(row: AgentRow, checkout: Path) -> AgentRow:
    make = row.command
    hub = checkout / ".venv" / "bin" / "dragoman"

    def command(port: int, home: Path, counts: Path | None) -> rows.Command:
        made = make(port, home, counts)
        drop_unknown_settings(checkout, home)
        return [hub, *made[1:]]

    return replace(row, command=command)


@contextlib.contextmanager
def call_loads(row: Row, checkout: Path, connections: tuple[int, ...]) -> Iterator[list[Load]]:
    with rows.up(from_checkout(row, checkout)) as running:
        endpoint = running.endpoint
        yield [
            Load(f"{count} connections", running.child, endpoint.port,
                 endpoint.call_templates(count), count)
            for count in connections
        ]  # fmt: skip


@contextlib.contextmanager
def list_loads(row: Row, checkout: Path) -> Iterator[list[Load]]:
    with rows.up(from_checkout(row, checkout), tools=LIST_TOOLS) as running:
        endpoint = running.endpoint
        template = endpoint.list_template(endpoint.list_pages()[1][0])
        yield [
            Load("first page", running.child, endpoint.port, [template], 1, LISTED, with_id=False)
        ]


@contextlib.contextmanager
def agent_loads(row: AgentRow, checkout: Path) -> Iterator[list[Load]]:
    with agents.up(agent_from_checkout(row, checkout)) as (child, endpoint):
        text = f"ping-{REQUEST_ID} in {agents.EVENTS}"
        streaming = Endpoint(endpoint.port, "SendStreamingMessage", text)
        task = endpoint.send("kept")["id"]
        getting = Endpoint(endpoint.port, "GetTask").template({"id": task})
        yield [
            Load("get, 16 connections", child, endpoint.port, [getting], 16,
                 f"{CALLED[:2]}kept", with_id=False),  # first: later tasks push the kept one out
            Load("send, 1 connection", child, endpoint.port, endpoint.call_templates(1), 1),
            Load("send, 16 connections", child, endpoint.port, endpoint.call_templates(16), 16),
            Load("stream, 16 connections", child, endpoint.port, streaming.call_templates(16), 16),
        ]  # fmt: skip


SUBJECTS = {
    "MCP call over HTTP": lambda where: call_loads(rows.HUB_HTTP, where, (1, 16, 64)),
    "MCP call, 2025-11-25 session": lambda where: call_loads(rows.HUB_2025, where, (1, 16)),
    "MCP call to a stdio server": lambda where: call_loads(rows.HUB_STDIO, where, (1, 16)),
    f"tools/list of {LIST_TOOLS:,} tools": lambda where: list_loads(rows.HUB_HTTP, where),
    "A2A, tasks in memory": lambda where: agent_loads(agents.HUB_MEMORY, where),
    "A2A, tasks on SQLite": lambda where: agent_loads(agents.HUB_SQLITE, where),
    "skill of an agent as a tool": lambda where: call_loads(bridge.HUB_SKILL, where, (1, 16)),
}


def compare_once(subject: str, before: Path, after: Path, turns: int, seconds: float) -> dict:
    """Returns the CPU per request of each turn, before and after, by the name of the load."""
    found: dict[str, tuple[list[float], list[float]]] = {}
    with SUBJECTS[subject](before) as old, SUBJECTS[subject](after) as new:
        for pair in zip(old, new, strict=True):
            counts = [load.count(seconds) for load in pair]
            spent: tuple[list[float], list[float]] = ([], [])
            for _ in range(turns):
                for which in TURNS:
                    figures = pair[which].ask(counts[which])
                    if figures["bad"]:
                        raise RuntimeError(f"a bad answer: {figures.get('first_bad', '')[:200]}")
                    spent[which].append(figures["cpu_us"])
            found[pair[0].name] = spent
    return found


def show(name: str, starts: list[tuple[list[float], list[float]]], limit: float) -> bool:
    """Prints one line; returns whether the row is within the limit."""
    # The speed of a shared machine drifts from second to second: only neighbouring turns compare.
    ratios = [
        statistics.median(after / before for before, after in zip(old, new, strict=True))
        for old, new in starts
    ]
    ratio = statistics.median(ratios)
    old, new = (statistics.median(min(one[side]) for one in starts) for side in (0, 1))
    fits = ratio <= 1 + limit / 100
    each = " ".join(f"{(one - 1) * 100:+.1f}" for one in ratios)
    say(
        f"{name}: {microseconds(old)} -> {microseconds(new)}, {(ratio - 1) * 100:+.1f} % "
        f"(each start: {each}){'' if fits else '  DEARER'}"
    )
    return fits


def read_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser("python -m bench.compare", description=__doc__)
    parser.add_argument("before", type=Path, help="a checkout with its own .venv")
    parser.add_argument("--after", type=Path, default=Path(__file__).resolve().parent.parent)
    parser.add_argument("--only", default="", metavar="TEXT", help="subjects that contain it")
    parser.add_argument("--starts", type=int, default=5, help="fresh pairs of hubs (5)")
    parser.add_argument("--turns", type=int, default=8, help="times A B B A for each pair (8)")
    parser.add_argument("--seconds", type=float, default=0.25, help="of load for each turn (0.25)")
    parser.add_argument("--limit", type=float, default=3.0, help="per cent dearer at most (3)")
    return parser.parse_args()


def run(given: argparse.Namespace) -> bool:
    fits = True
    before, after = given.before.resolve(), given.after.resolve()
    for subject in SUBJECTS:
        if given.only not in subject:
            continue
        found: dict[str, list] = {}
        for _ in range(given.starts):
            once = compare_once(subject, before, after, given.turns, given.seconds)
            for name, spent in once.items():
                found.setdefault(name, []).append(spent)
        for name, starts in found.items():
            fits &= show(f"{subject}, {name}", starts, given.limit)
    return fits


def main() -> int:
    given = read_arguments()
    for checkout in (given.before, given.after):
        if not (checkout / ".venv" / "bin" / "dragoman").exists():
            print(f"bench.compare: {checkout} has no .venv; run `make .venv/.core` there")
            return 2
    try:
        with prepare():
            return 0 if run(given) else 1
    except CannotRun as problem:
        print(f"bench.compare: {problem}", file=sys.stderr)
        return 2
    finally:
        stop_all()


if __name__ == "__main__":
    sys.exit(main())
