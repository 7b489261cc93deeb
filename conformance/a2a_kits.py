"""The official A2A kit, fetched beside the project: its runs against a hub, and their results.

The kit is a public git repository; nothing of it is in this tree. Its two branches are unpacked
into the build folder and run as they are, in an environment that holds what they need.
"""

import json
import os
import shutil
import subprocess
import xml.etree.ElementTree as xml
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.peers.conformance_profiles import PROFILES

from conformance.a2a_hub import a2a_hub
from conformance.a2a_known import FAILURES, SKIPS, reason
from conformance.paths import BUILD, HERE, KIT_PYTHON
from conformance.processes import Command, run

SECONDS = 600.0
VARIABLE = "A2A_TCK"
HOW = (
    "the official A2A kit is not here: `git clone --no-single-branch "
    "https://github.com/a2aproject/a2a-tck` beside the project, then give its folder with --tck or "
    f"in the variable {VARIABLE}"
)
PLUGINS = HERE / "a2a_plugins"
STREAMING_SECONDS = "2"


class NoKit(Exception):
    """The kit cannot be used; the message says why."""


@dataclass(frozen=True)
class KitRun:
    title: str
    branch: str
    profile: str
    arguments: tuple[str, ...] = ()
    plugins: tuple[str, ...] = ()
    sut: str = "base"  # what the kit is pointed at


def old(category: str, transport: str) -> KitRun:
    arguments = ("--category", category, "--transports", transport)
    sut = "url" if transport == "jsonrpc" else "base"
    name = "JSON-RPC" if transport == "jsonrpc" else "REST"
    return KitRun(f"0.3.x, {category}, {name}", "0.3.x", "patient", arguments, sut=sut)


NEW = "1.0-dev"
ALIGNED = ("spec_1_0_1",)
KIT_RUNS = {
    "1.0-full": KitRun("1.0-dev as it is", NEW, "full"),
    "1.0.1-full": KitRun("1.0-dev with the table of 1.0.1", NEW, "full", (), ALIGNED),
    "1.0.1-bare": KitRun("the same, no capabilities declared", NEW, "bare", (), ALIGNED),
    "1.0.1-extension": KitRun(
        "the same, an extension required",
        NEW,
        "extension",
        ("--", "-k", "CapabilityExtension"),  # no other check sends the extension's header
        ALIGNED,
    ),
    "1.0.1-extended": KitRun(
        "the same, an extended card and a key", NEW, "extended", (), (*ALIGNED, "with_key")
    ),
    "0.3-mandatory-jsonrpc": old("mandatory", "jsonrpc"),
    "0.3-capabilities-jsonrpc": old("capabilities", "jsonrpc"),
    "0.3-mandatory-rest": old("mandatory", "rest"),
    "0.3-capabilities-rest": old("capabilities", "rest"),
}


@dataclass(frozen=True)
class CheckResult:
    """What one check of the kit came to."""

    check: str
    status: str  # passed, failed, skipped, xfailed
    message: str


@dataclass
class KitResult:
    run: str
    passed: int = 0
    skipped: int = 0
    levels: dict[str, str] = field(default_factory=dict)
    transports: dict[str, str] = field(default_factory=dict)
    explained: list[tuple[str, str, str]] = field(default_factory=list)
    problems: list[tuple[str, str]] = field(default_factory=list)


def find_kit(given: str | None) -> Path | None:
    place = given or os.environ.get(VARIABLE)
    if not place:
        return None
    path = Path(place).expanduser().resolve()
    if not path.is_dir():
        raise NoKit(f"{path} is not a folder; {HOW}")
    return path


def git(kit: Path, *arguments: str) -> bytes:
    command = ["git", "-C", str(kit), "-c", "safe.directory=*", *arguments]
    try:
        return subprocess.run(command, check=True, capture_output=True, timeout=60).stdout
    except FileNotFoundError:
        raise NoKit("git is needed to unpack the kit, and it is not installed") from None
    except subprocess.CalledProcessError as error:
        raise NoKit(error.stderr.decode("utf-8", "replace").strip()[:300]) from None


def commit_of(kit: Path, branch: str) -> str:
    """In a fresh clone a branch is known as the origin's."""
    for name in (branch, f"origin/{branch}"):
        try:
            return git(kit, "rev-parse", "--verify", "-q", f"{name}^{{commit}}").decode().strip()
        except NoKit:
            continue
    raise NoKit(f"the repository at {kit} has no branch {branch}; {HOW}")


def unpack(kit: Path, branch: str, name: str) -> Path:
    """A copy for each run: two of them write their reports at once."""
    folder = BUILD / "kits" / name
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    archive = git(kit, "archive", commit_of(kit, branch))
    subprocess.run(["tar", "-x", "-C", str(folder)], input=archive, check=True, timeout=60)
    return folder


def run_kits(kit: Path, names: list[str]) -> Iterator[KitResult]:
    """Two at a time: the kit waits far more than it works."""
    with ThreadPoolExecutor(2) as pool:
        yield from pool.map(lambda name: run_kit(kit, name), names)


def run_kit(kit: Path, name: str) -> KitResult:
    chosen = KIT_RUNS[name]
    result = KitResult(name)
    try:
        folder = unpack(kit, chosen.branch, name)
        report = folder / "reports" / "junitreport.xml"  # where branch 1.0-dev has it anyway
        options = f"-p no:cacheprovider --junitxml={report}"
        options += "".join(f" -p {plugin}" for plugin in chosen.plugins)
        extra = {
            "PYTEST_ADDOPTS": options,
            "PYTHONPATH": str(PLUGINS),
            "TCK_STREAMING_TIMEOUT": STREAMING_SECONDS,
            "A2A_KIT_KEY": PROFILES[chosen.profile].key or "",
        }
        # The kit for 0.3 is run over HTTP, where a first run of the hub has no gRPC on its cards.
        with a2a_hub(name, chosen.profile, grpc=chosen.branch == NEW) as hub:
            target = hub.url if chosen.sut == "url" else hub.base
            option = "--sut-host" if chosen.branch == NEW else "--sut-url"
            command: Command = [KIT_PYTHON, "run_tck.py", option, target, *chosen.arguments]
            code, _, errors = run(f"kit-{name}", command, SECONDS, extra, folder)
        if not report.exists():
            last = errors.strip().splitlines()[-1:] or ["it said nothing"]
            raise RuntimeError(f"the kit made no report (exit code {code}): {last[0][:300]}")
        judge(result, list(read(report)))
        summarize(result, report.with_name("compatibility.json"))
    except (NoKit, RuntimeError, OSError, subprocess.SubprocessError) as problem:
        result.problems.append(("run", str(problem)))
    return result


def read(report: Path) -> Iterator[CheckResult]:
    for case in xml.parse(report).iter("testcase"):
        name = f"{case.get('classname', '')}.{case.get('name', '')}".removeprefix("tests.")
        status, message = "passed", ""
        for child in case:
            if child.tag in ("failure", "error"):
                status, message = "failed", f"{child.get('message')} {child.text}"
            elif child.tag == "skipped":
                status = "xfailed" if child.get("type") == "pytest.xfail" else "skipped"
                message = child.get("message") or ""
        yield CheckResult(name, status, message)


def judge(result: KitResult, found: list[CheckResult]) -> None:
    """An expected failure of the kit's is a SHOULD that is not met: it counts as a failure."""
    for said in found:
        if said.status == "passed":
            result.passed += 1
            continue
        known = {"failed": FAILURES, "skipped": SKIPS}.get(said.status, (*FAILURES, *SKIPS))
        why = reason(known, result.run, said.check, said.message)
        if why is None:
            result.problems.append((said.check, f"{said.status}: {said.message[:500]}"))
        elif said.status == "skipped":
            result.skipped += 1
        else:
            result.explained.append((said.check, first_line(said.message), why))
    if not result.passed:
        result.problems.append(("run", "no check passed"))


def first_line(message: str) -> str:
    return message.strip().splitlines()[0][:200] if message.strip() else ""


def summarize(result: KitResult, report: Path) -> None:
    """Requirements met of those asked about, as branch 1.0-dev counts them."""
    if not report.exists():
        return
    found: dict[str, Any] = json.loads(report.read_text(encoding="utf-8"))
    for level in ("MUST", "SHOULD", "MAY"):
        states = [
            each["status"] for each in found["per_requirement"].values() if each["level"] == level
        ]
        asked = [state for state in states if state in ("PASS", "FAIL")]
        result.levels[level] = f"{asked.count('PASS')} of {len(asked)}"
    for transport, counts in found["per_transport"].items():
        result.transports[transport] = (
            f"{counts['passed']} of {counts['passed'] + counts['failed']}"
        )
