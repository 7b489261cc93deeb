"""The page docs/reliability.md: results to Markdown."""

from __future__ import annotations

import os
import platform
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

from faults.experiments import Experiment
from faults.harness import Outcome

INTRODUCTION = """\
# Reliability

Written by `make faults`; do not edit. Each experiment breaks the machine around a real hub, \
attacks the hub or kills it, and judges what it does; tests/faults runs short versions of most of \
them in `make test`. It needs Python and pip, and no root: a full and a read-only disk use \
`unshare -rm` where the machine allows it, failing file operations and jumps of the clock a C \
compiler where there is one. `python -m faults --only NAME --seed SEED --case N` runs one case of \
a fuzzer again.

The hubs have default settings, with these exceptions: rate limits above what an experiment sends; \
A2A enabled, with more tasks for fuzzers and fewer for a full store; shorter timeouts for servers \
and agents that misbehave; fewer calls at once in the two rows about overload; no pins for servers \
and agents that fuzz the hub. In the attacks on time and memory, another key calls a tool \
that takes 5 ms, 100 times a second; the attackers are processes of low priority.
"""


@dataclass(frozen=True)
class Result:
    experiment: Experiment
    outcome: Outcome
    seconds: float
    missing: str = ""
    """What the machine lacks for it."""

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


def render_page(results: Sequence[Result], seed: int) -> str:
    failed = sum(result.verdict == "failed" for result in results)
    passed = sum(result.verdict == "passed" for result in results)
    not_run = len(results) - failed - passed
    total = f"{passed} passed, {failed} failed" + (f", {not_run} not run" if not_run else "")
    minutes = sum(result.seconds for result in results) / 60
    lines = [
        INTRODUCTION,
        f"{total}. {datetime.now(UTC):%Y-%m-%d}, {minutes:.0f} minutes, seed {seed}; "
        f"{describe_machine()}.\n",
        "| experiment | what is done to the hub | passed if | figures | verdict |",
        "| --- | --- | --- | --- | --- |",
    ]
    for result in results:
        figures = result.missing or render_figures(result.outcome.figures)
        cells = (result.experiment.name, result.experiment.does, result.experiment.passes, figures)
        lines.append(f"| {' | '.join(map(escape, cells))} | {result.verdict} |")
    failures = [
        f"- {result.experiment.name}: {escape(failure[:400])}"
        for result in results
        for failure in result.outcome.failures[:5]
    ]
    if failures:
        lines += ["", "## Failures", "", *failures]
    return "\n".join(lines) + "\n"


def describe_machine() -> str:
    cores = len(os.sched_getaffinity(0))
    return f"{platform.system()} on {platform.machine()}, {cores} cores, Python " + (
        platform.python_version()
    )
