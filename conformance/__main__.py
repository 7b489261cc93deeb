"""The command: which parts, against which targets, and where the page goes; nothing is left
running.

`--scenario` with one target and suite is the quick way to debug one check.
"""

import argparse
import json
import re
import signal
import sys
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from conformance.a2a_kits import HOW, KIT_RUNS, NoKit, commit_of, find_kit, run_kits
from conformance.a2a_peers import run_counterparts
from conformance.clients import CLIENT_SETS, run_scenario
from conformance.comparison import differences
from conformance.frameworks import FRAMEWORKS, find_python, run_frameworks
from conformance.hubs import several_hubs
from conformance.lists import run_lists
from conformance.official import OFFICIAL, how_to_get, is_there, version_of_fixture
from conformance.paths import (
    LOGS,
    PAGE,
    PYTHON,
    PYTHON_A2A,
    RESULTS,
    ROOT,
    SDK02_PYTHON,
    SDK03_PYTHON,
    CannotRun,
    prepare,
    set_aside,
    version_of,
)
from conformance.peers import run_peers
from conformance.processes import run, stop_all
from conformance.references import run_references
from conformance.report import find_several, page, replace_several, several
from conformance.sign_in import run_sign_in
from conformance.stories import run_stories
from conformance.suites import SUITES, Outcome, run_suite
from conformance.targets import DIRECT, FIXTURE, OWN, TARGETS, TASKS, standing

PARTS = (
    "server",
    "lists",
    "client",
    "peers",
    "sign-in",
    "references",
    "stories",
    "a2a-peers",
    "frameworks",
    "a2a-kits",
)
CLUSTER_PARTS = ("server", "client", "a2a-kits")
CLUSTER_TARGETS = (DIRECT, "hub", "stdio", "legacy")
CLUSTER_SIZES = (2, 3)
MAX_HUBS = 9
Records = list[dict[str, Any]]
Direct = dict[tuple[str, str], Outcome]
"""What was found without a hub, by fixture or set of scenarios, and by suite or scenario."""
Kits = tuple[Path, dict[str, str]]


def say(text: str) -> None:
    print(time.strftime("%H:%M:%S"), text, flush=True)


def names_of(known: tuple[str, ...]) -> Callable[[str], tuple[str, ...]]:
    def read(text: str) -> tuple[str, ...]:
        names = tuple(text.split(","))
        for name in names:
            if name not in known:
                raise argparse.ArgumentTypeError(f"{name!r} is not one of {', '.join(known)}")
        return names

    return read


def read_sizes(text: str) -> tuple[int, ...]:
    sizes = tuple(int(part) for part in text.split(","))
    if not all(1 <= size <= MAX_HUBS for size in sizes):
        raise argparse.ArgumentTypeError(f"a number of hubs is 1 to {MAX_HUBS}")
    return sizes


def read_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser("python -m conformance", description=__doc__)
    for option, known, help_ in (
        ("--parts", PARTS, "which parts"),
        ("--where", tuple(TARGETS), "which targets; without direct nothing is compared"),
        ("--suites", tuple(SUITES), "which suites of the server part"),
        ("--clients", tuple(CLIENT_SETS), "which sets of client scenarios"),
        ("--kits", tuple(KIT_RUNS), "which runs of the official A2A kit"),
    ):
        parser.add_argument(
            option, type=names_of(known), metavar="LIST",
            help=f"{help_}: {','.join(known)}",
        )  # fmt: skip
    parser.add_argument("--scenario", metavar="NAME", help="one scenario, server or client")
    parser.add_argument("--only", default="", metavar="REGEX", help="peers by name")
    parser.add_argument(
        "--tck", metavar="PATH", help="the official A2A kit's git repository; else $A2A_TCK"
    )
    parser.add_argument(
        "--hubs", type=read_sizes, metavar="LIST",
        help="the official suites and kits with so many hubs behind a balancer, e.g. 2,3",
    )  # fmt: skip
    arguments = parser.parse_args()
    is_several = arguments.hubs is not None
    arguments.parts = arguments.parts or (CLUSTER_PARTS if is_several else PARTS)
    arguments.where = arguments.where or (CLUSTER_TARGETS if is_several else tuple(TARGETS))
    arguments.suites = arguments.suites or tuple(SUITES)
    arguments.clients = arguments.clients or tuple(CLIENT_SETS)
    arguments.kits = arguments.kits or tuple(KIT_RUNS)
    return arguments


def server_part(arguments: argparse.Namespace, direct: Direct) -> Records:
    """`direct` gets what was found without a hub, unless it has it."""
    records: Records = []
    for target in TARGETS:
        if target not in arguments.where:
            continue
        fixture = TARGETS[target].fixture
        if fixture != OWN and not is_there(fixture):
            say(f"SKIPPED {target}: {how_to_get(fixture)}.")
            continue
        for command, suites in ((FIXTURE, [s for s in SUITES if s != "tasks"]), (TASKS, ["tasks"])):
            wanted = [suite for suite in suites if suite in arguments.suites]
            if not TARGETS[target].through_hub and all((fixture, one) in direct for one in wanted):
                continue
            if not wanted or (command == TASKS and TARGETS[target].era == "legacy"):
                continue
            if command == TASKS and fixture != OWN:
                continue
            if command == TASKS and TARGETS[target].transport == "stdio":
                continue  # it speaks HTTP only
            try:
                with standing(target, command) as url:
                    for suite in wanted:
                        outcome = run_suite(suite, target, url, arguments.scenario)
                        if not TARGETS[target].through_hub:
                            direct[fixture, suite] = outcome
                        records.append(record(outcome, direct.get((fixture, suite))))
            except RuntimeError as problem:
                say(f"FAIL {target}: {problem}")
                records += [broken(suite, target, str(problem)) for suite in wanted]
    return records


def record(outcome: Outcome, direct: Outcome | None) -> dict[str, Any]:
    target = TARGETS.get(outcome.target, TARGETS["hub"])
    is_ours = target.fixture == OWN
    found = differences(outcome, direct if target.through_hub else None, is_ours=is_ours)
    unexplained = [each for each in found if each.reason is None]
    # The suite's own verdict knows no reasons; without any, it counts.
    ok = not unexplained and (outcome.ok or bool(found))
    passed = outcome.count("SUCCESS")
    say(f"{'ok  ' if ok else 'FAIL'} {outcome.target} {outcome.suite}: {passed} passed, "
        f"{len(unexplained)} failed or missing")  # fmt: skip
    for each in unexplained:
        print(f"       {each.key}: {each.message[:300]}")
    return {
        "suite": outcome.suite,
        "ground": outcome.target,
        "ok": ok,
        "passed": passed,
        "skipped": outcome.count("SKIPPED"),
        "made": outcome.count("SUCCESS", "FAILURE", "WARNING"),
        "differences": [vars(each) for each in found],
    }


def broken(suite: str, target: str, problem: str) -> dict[str, Any]:
    difference = {"key": "start", "message": problem, "reason": None}
    return {"suite": suite, "ground": target, "ok": False, "passed": 0, "skipped": 0, "made": 0,
            "differences": [difference]}  # fmt: skip


def client_part(arguments: argparse.Namespace, known: Direct) -> Records:
    records: Records = []
    for name, chosen in CLIENT_SETS.items():
        for scenario in chosen.scenarios:
            if name in arguments.clients and arguments.scenario in (None, scenario):
                compares = DIRECT in arguments.where and not chosen.has_logins
                direct = known.get((name, scenario))
                if direct is None and compares:
                    direct = known[name, scenario] = run_scenario(name, scenario, DIRECT)
                made = record(run_scenario(name, scenario, "hub"), direct)
                made["direct"] = direct.count("SUCCESS") if direct else None
                records.append(made)
    return records


def find_kits(arguments: argparse.Namespace) -> Kits | None:
    """The official A2A kit and the commits of its branches; None where it is not given. Looked for
    before anything runs, so that a wrong folder is noticed at once."""
    try:
        kit = find_kit(arguments.tck)
        if kit is None:
            return None
        return kit, {branch: commit_of(kit, branch) for branch in ("1.0-dev", "0.3.x")}
    except NoKit as problem:
        raise CannotRun(f"{problem}.") from None


def kits_part(arguments: argparse.Namespace, kits: Kits | None) -> Records:
    """Where no kit is given nothing fails, but it is said, and the page is not written."""
    if kits is None:
        say(f"SKIPPED a2a-kits: {HOW}.")
        return []
    kit, commits = kits
    records: Records = []
    for result in run_kits(kit, [name for name in KIT_RUNS if name in arguments.kits]):
        made = {**vars(result), "ok": not result.problems}
        made["commit"] = commits[KIT_RUNS[result.run].branch]
        say(f"{'ok  ' if made['ok'] else 'FAIL'} kit {result.run}: {result.passed} passed, "
            f"{len(result.problems)} failed, {len(result.explained)} explained, "
            f"{result.skipped} skipped")  # fmt: skip
        for check, message in result.problems:
            print(f"       {check}: {message[:300]}")
        records.append(made)
    return records


def plain_part(part: str, arguments: argparse.Namespace) -> Records:
    runners: dict[str, Callable[[Any], Iterable[object]]] = {
        "lists": lambda _: run_lists(),
        "peers": run_peers,
        "sign-in": run_sign_in,
        "references": run_references,
        "stories": run_stories,
        "a2a-peers": run_counterparts,
        "frameworks": run_frameworks,
    }
    try:
        records = [vars(each) for each in runners[part](arguments.only)]
    except Exception as problem:  # of whatever was run: the other parts are run all the same
        records = [{"name": part, "problem": f"{type(problem).__name__}: {problem}"[:300]}]
    records = [
        {**each, "ok": each["problem"] is None or each.get("reason") is not None}
        for each in records
    ]
    for each in records:
        if not each["ok"]:
            say(f"FAIL {each['name']}: {each['problem']}")
    good = sum(each["problem"] is None for each in records)
    intended = sum(each["ok"] for each in records) - good
    say(f"{part}: {good} of {len(records)} pass, {intended} differ as intended")
    return records


def versions() -> dict[str, str]:
    show = "import sys, importlib.metadata as m; print(m.version(sys.argv[1]))"

    def of(python: Path, package: str) -> str:
        return run("versions", [python, "-c", show, package], 30)[1].strip()

    _, python, _ = run("versions", [PYTHON, "-c", "import sys; print(sys.version.split()[0])"], 30)
    return {
        "suite, latest release": version_of("suite-release"),
        "suite, newest prerelease": version_of("suite-prerelease"),
        "official Python SDK, of the fixture": of(PYTHON, "mcp"),
        "Inspector": version_of("@modelcontextprotocol/inspector"),
        "server-everything": version_of("@modelcontextprotocol/server-everything"),
        "official A2A SDKs for Python": ", ".join(
            of(python_of, "a2a-sdk") for python_of in (SDK03_PYTHON, SDK02_PYTHON)
        ),
        "official A2A SDK for JavaScript": version_of("@a2a-js/sdk"),
        "python-a2a": of(PYTHON_A2A, "python-a2a"),
        **{one.title: of(find_python(name), one.package) for name, one in FRAMEWORKS.items()},
        "Python": python.strip(),
        **{
            f"{one.title}, commit": version_of_fixture(name)
            for name, one in OFFICIAL.items()
            if one.repository is not None and is_there(name)
        },
    }


def everything(arguments: argparse.Namespace) -> dict[str, Any]:
    kits = find_kits(arguments) if "a2a-kits" in arguments.parts else None
    results: dict[str, Any] = {"versions": versions()}
    for part in PARTS:
        if part not in arguments.parts:
            continue
        if part == "server":
            results[part] = server_part(arguments, {})
        elif part == "client":
            results[part] = client_part(arguments, {})
        elif part == "a2a-kits":
            results[part] = kits_part(arguments, kits)
        else:
            results[part] = plain_part(part, arguments)
    return results


def run_several(arguments: argparse.Namespace) -> dict[str, Any]:
    """Runs the official suites and kits with each number of hubs."""
    kits = find_kits(arguments) if "a2a-kits" in arguments.parts else None
    servers: Direct = {}
    clients: Direct = {}
    results: dict[str, Any] = {}
    for size in arguments.hubs:
        say(f"{size} hubs")
        found: dict[str, Any] = {}
        with several_hubs(size):
            if "server" in arguments.parts:
                found["server"] = server_part(arguments, servers)
            if "client" in arguments.parts:
                found["client"] = client_part(arguments, clients)
            if "a2a-kits" in arguments.parts:
                found["a2a-kits"] = kits_part(arguments, kits)
        results[str(size)] = found
        text = json.dumps(found, indent=1)
        (RESULTS / "results.json").write_text(text, encoding="utf-8")
        set_aside(f"hubs-{size}")
    return results


def write_several(arguments: argparse.Namespace, results: dict[str, Any]) -> bool:
    """Writes the section of the page, or a page of its own for a part of the runs. Returns whether
    all is well."""
    (RESULTS / "results.json").write_text(json.dumps(results, indent=1), encoding="utf-8")
    chosen = (arguments.parts, arguments.where, arguments.suites, arguments.clients, arguments.kits)
    known = (CLUSTER_PARTS, CLUSTER_TARGETS, tuple(SUITES), tuple(CLIENT_SETS), tuple(KIT_RUNS))
    whole = chosen == known and arguments.hubs == CLUSTER_SIZES and not arguments.scenario
    whole = whole and all(found["a2a-kits"] for found in results.values())
    output, text = RESULTS / "conformance.md", several(results)
    if whole:
        output, text = PAGE, replace_several(PAGE.read_text(encoding="utf-8"), text)
    output.write_text(text, encoding="utf-8")
    say(f"wrote {output.relative_to(ROOT)}; logs are in {LOGS.parent.relative_to(ROOT)}/hubs-*")
    return all(
        each["ok"] for found in results.values() for records in found.values() for each in records
    )


def is_whole(arguments: argparse.Namespace, results: dict[str, Any]) -> bool:
    chosen = (arguments.parts, arguments.where, arguments.suites, arguments.clients, arguments.kits)
    known = (PARTS, tuple(TARGETS), tuple(SUITES), tuple(CLIENT_SETS), tuple(KIT_RUNS))
    whole = chosen == known and not arguments.scenario and not arguments.only
    return whole and bool(results["a2a-kits"]) and all(map(is_there, OFFICIAL))


def main() -> int:
    arguments = read_arguments()
    re.compile(arguments.only)
    signal.signal(signal.SIGINT, signal.default_int_handler)  # ignored where a shell has put us
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    try:
        with prepare(few=arguments.hubs is not None):
            if arguments.hubs is not None:
                return 0 if write_several(arguments, run_several(arguments)) else 1
            results = everything(arguments)
    except CannotRun as problem:
        print(f"conformance: {problem}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print(f"conformance: interrupted; logs are in {LOGS.relative_to(ROOT)}")
        return 130
    finally:
        stop_all()
    (RESULTS / "results.json").write_text(json.dumps(results, indent=1), encoding="utf-8")
    output = PAGE if is_whole(arguments, results) else RESULTS / "conformance.md"
    kept = find_several(PAGE.read_text(encoding="utf-8"))
    output.write_text(page(results, kept), encoding="utf-8")
    say(f"wrote {output.relative_to(ROOT)}; logs are in {LOGS.relative_to(ROOT)}")
    good = all(each["ok"] for part in PARTS for each in results.get(part, []))
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
