"""The page docs/reliability.md: results to Markdown."""

from __future__ import annotations

import os
import platform
import subprocess
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

from faults.experiments import EXPERIMENTS, Experiment
from faults.harness import ROOT, Outcome

VERDICTS = ("passed", "failed", "not run")
CODE = ("--", "src", "faults", "tests", "locks")
"""What the figures depend on."""

INTRODUCTION = """\
# Reliability

Written by `make faults`; do not edit. Each experiment breaks the machine around a real hub, \
attacks the hub or kills it, and judges what it does; tests/faults runs short versions of most of \
them in `make test`. It needs Python and pip, and no root: a full and a read-only disk use \
`unshare -rm` where the machine allows it, failing file operations and jumps of the clock a C \
compiler where there is one, and so do steps of PostgreSQL's clock. `python -m faults --only \
NAME` runs some experiments again and renews their rows, with `--seed SEED --case N` one case of a \
fuzzer. A row says what was done, and no more: other faults are not tested by it.

The hubs have default settings, with these exceptions: rate limits above what an experiment sends; \
A2A enabled, with more tasks for fuzzers and fewer for a full store; shorter timeouts for servers \
and agents that misbehave; fewer calls at once in the two rows about overload; no pins for servers \
and agents that fuzz the hub; hubs of a cluster with `lease_secs = 3` and `drain_secs = 1` instead \
of 6 and 3, except for cluster chaos and failing statements; approvals there wait for 0.2 s. In \
the attacks on time and memory, another key calls a tool \
that takes 5 ms, 100 times a second; the attackers are processes of low priority.
"""


@dataclass(frozen=True)
class Result:
    experiment: Experiment
    outcome: Outcome
    seconds: float
    missing: str = ""
    """What the machine lacks for it."""
    seeds: int = 1
    """How many it was run with; counts are sums over them, other figures the largest."""

    @property
    def verdict(self) -> str:
        if self.missing:
            return "not run"
        return "failed" if self.outcome.failures else "passed"


def render_value(value: object) -> str:
    return f"{value:,}" if isinstance(value, int) else str(value)


def render_figures(figures: Mapping[str, object]) -> str:
    return "; ".join(f"{name} {render_value(value)}" for name, value in figures.items())


def escape(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ")


def render_page(results: Sequence[Result], seed: int, page: str = "") -> str:
    """Renders the results; experiments that were not run keep their rows of `page`."""
    rows, failures = _read_rows(page)
    commit = find_commit()
    for result in results:
        name = result.experiment.name
        rows[escape(name)] = _render_row(result, seed, commit)
        failures[escape(name)] = [
            f"- {escape(name)}: {escape(failure[:400])}" for failure in result.outcome.failures[:5]
        ]
    known = [escape(one.name) for one in EXPERIMENTS if escape(one.name) in rows]
    verdicts = Counter(rows[name].rstrip(" |").rpartition("| ")[2] for name in known)
    total = ", ".join(f"{verdicts[one]} {one}" for one in VERDICTS if verdicts[one])
    lines = [
        INTRODUCTION,
        f"{total}. {describe_machine()}.\n",
        "| experiment | what is done to the hub | passed if | figures | run | verdict |",
        "| --- | --- | --- | --- | --- | --- |",
        *(rows[name] for name in known),
    ]
    failed = [line for name in known for line in failures.get(name, ())]
    if failed:
        lines += ["", "## Failures", "", *failed]
    return "\n".join(lines) + "\n"


def _render_row(result: Result, seed: int, commit: str) -> str:
    figures = result.missing or render_figures(result.outcome.figures)
    seeds = f"seed {seed}" if result.seeds == 1 else f"seeds {seed} to {seed + result.seeds - 1}"
    run = f"{datetime.now(UTC):%Y-%m-%d}, {result.seconds:.0f} s, {seeds}"
    if commit:
        run += f", commit {commit}"
    one = result.experiment
    cells = (one.name, one.does, one.passes, figures, run, result.verdict)
    return f"| {' | '.join(map(escape, cells))} |"


def _read_rows(page: str) -> tuple[dict[str, str], dict[str, list[str]]]:
    """The rows and the failures of a page, by the name of their experiment."""
    rows: dict[str, str] = {}
    failures: dict[str, list[str]] = {}
    for line in page.splitlines():
        if line.startswith("| "):
            rows[line[2:].partition(" | ")[0]] = line
    for line in page.partition("## Failures")[2].splitlines():
        # The names of some experiments have a colon.
        found = [name for name in rows if line.startswith(f"- {name}: ")]
        if found:
            failures.setdefault(max(found, key=len), []).append(line)
    return rows, failures


def find_commit() -> str:
    """The commit of this checkout, with a mark if the code differs from it; empty without git."""
    commit = _run_git("rev-parse", "--short", "HEAD")
    return f"{commit} and changes" if commit and _run_git("diff", "HEAD", *CODE) else commit


def _run_git(*arguments: str) -> str:
    """What git prints; empty if it fails or is absent."""
    command = ["git", "-C", str(ROOT), *arguments]
    try:
        found = subprocess.run(command, capture_output=True, timeout=60, check=False)
    except OSError:
        return ""
    return found.stdout.decode(errors="replace").strip() if found.returncode == 0 else ""


def describe_machine() -> str:
    cores = len(os.sched_getaffinity(0))
    return f"{platform.system()} on {platform.machine()}, {cores} cores, Python " + (
        platform.python_version()
    )
