"""The official suite: its runs against a URL, and what its checks said."""

import json
import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from conformance.paths import NODE, NOTHING_EXPECTED, PRERELEASE, RELEASE, RESULTS
from conformance.processes import Command, run

SECONDS = 240.0
STAMP = re.compile(r"-\d{4}-\d\d-\d\dT[\dT:.Z-]+$")
TASK_SCENARIOS = tuple(
    f"tasks-{name}"
    for name in (
        "lifecycle",
        "capability-negotiation",
        "wire-fields",
        "request-state-removal",
        "mrtr-input",
        "request-headers",
        "dispatch-and-envelope",
        "status-notifications",
        "required-task-error",
        "mrtr-composition",
    )
)


@dataclass(frozen=True)
class Suite:
    title: str
    program: Path
    arguments: tuple[str, ...]
    scenarios: tuple[str, ...] = ()  # one at a time, where the suite has no name for the set

    @property
    def for_one(self) -> list[str]:
        """The arguments for one scenario of it."""
        if self.program == RELEASE:
            return []
        return ["--spec-version", self.arguments[-1]]


SUITES = {
    "release": Suite("release, all scenarios", RELEASE, ("--suite", "all")),
    **{
        f"required-{revision}": Suite(
            f"prerelease, required for {revision}", PRERELEASE, ("--requirements", revision)
        )
        for revision in ("2025-11-25", "2026-07-28")
    },
    **{
        f"all-{revision}": Suite(
            f"prerelease, all at {revision}",
            PRERELEASE,
            ("--suite", "all", "--spec-version", revision),
        )
        for revision in ("2025-06-18", "2025-11-25", "2026-07-28")
    },
    "tasks": Suite("prerelease, tasks extension", PRERELEASE, (), TASK_SCENARIOS),
}


@dataclass(frozen=True)
class Check:
    scenario: str
    id: str
    status: str
    message: str

    @property
    def key(self) -> str:
        return f"{self.scenario}: {self.id}"


@dataclass(frozen=True)
class Outcome:
    """One suite against one target."""

    suite: str
    target: str
    ok: bool  # as the suite's exit code has it
    checks: tuple[Check, ...]

    def count(self, *statuses: str) -> int:
        return sum(check.status in statuses for check in self.checks)

    def failed(self) -> list[Check]:
        return [check for check in self.checks if check.status in ("FAILURE", "WARNING")]

    def passes(self) -> Counter[str]:
        return Counter(check.key for check in self.checks if check.status == "SUCCESS")


def run_suite(name: str, target: str, url: str, scenario: str | None) -> Outcome:
    suite = SUITES[name]
    label = f"{target}-{name}"
    folder = RESULTS / label
    wanted = suite.scenarios
    if scenario is not None:
        wanted = tuple(each for each in suite.scenarios if each == scenario) or (scenario,)
    runs: list[list[str]] = [["--scenario", each] for each in wanted]
    if scenario is not None and not suite.scenarios:
        runs[0] += suite.for_one
    ok = True
    for number, arguments in enumerate(runs or [list(suite.arguments)]):
        command: Command = [NODE, suite.program, "server", "--url", url, *arguments]
        command += ["--expected-failures", NOTHING_EXPECTED, "--output-dir", folder]
        code, _, _ = run(f"suite-{label}-{number}", command, SECONDS)
        ok = ok and code == 0
    checks = tuple(check for check in read_all(folder) if of_suite(name, check.scenario))
    return Outcome(name, target, ok, checks)


def of_suite(name: str, scenario: str) -> bool:
    """The tasks scenarios are run with any set but scored by none; they have their own fixture."""
    return scenario.startswith("tasks-") == (name == "tasks")


def read_all(folder: Path) -> Iterator[Check]:
    for path in sorted(folder.glob("**/checks.json")):
        scenario = STAMP.sub("", path.parent.name).removeprefix("server-")
        for check in json.loads(path.read_text(encoding="utf-8")):
            message = str(check.get("errorMessage") or check.get("description") or "")
            yield Check(scenario, check["id"], check["status"], message)
