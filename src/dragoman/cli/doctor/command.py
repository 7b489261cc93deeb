"""`doctor`: what is known to go wrong, checked, each with its fix."""

from __future__ import annotations

from collections import Counter
from dataclasses import asdict
from pathlib import Path

import click

from dragoman.cli.base.errors import FAILED
from dragoman.cli.base.hub_client import place_of
from dragoman.cli.base.output import clean, home_option, json_option, print_json, styled
from dragoman.cli.doctor import (
    agent_checks,
    checks,
    guard_checks,
    server_checks,
    start_checks,
    store_checks,
)
from dragoman.cli.doctor.findings import Check, Finding, Situation, look

CHECKS: tuple[Check, ...] = (
    checks.python,
    checks.home_folder,
    start_checks.files,
    checks.env_file,
    checks.modes,
    checks.configuration,
    checks.running_hub,
    checks.port,
    start_checks.grpc,
    start_checks.parts,
    checks.key,
    server_checks.servers,
    agent_checks.agents,
    guard_checks.policies,
    guard_checks.pins,
    guard_checks.names,
    guard_checks.keys_for_others,
    store_checks.stores,
    checks.audit,
    checks.disk,
    checks.descriptors,
    checks.isolation,
    checks.clock,
    checks.clients,
)
MARKS = {
    "ok": ("ok  ", "green"),
    "info": ("info", "blue"),
    "warning": ("warn", "yellow"),
    "problem": ("FAIL", "red"),
}


@click.command()
@click.option("--deep", is_flag=True, help="Prove the whole record of calls, however long it is.")
@home_option
@json_option
def doctor(deep: bool, home: str | None, as_json: bool) -> None:
    """Check everything that is known to go wrong, and say how to fix it.

    \b
    dragoman doctor
    dragoman doctor --deep --json

    Looks at this machine, the home, the configuration, each server and agent, the policies, what is
    held, the keys, the running hub, the record of calls and the IDEs that are here. Changes
    nothing. Works with no hub, no home and a broken configuration. Exits with 1 if there is a
    problem; warnings alone do not count.
    """
    place = Path(place_of(home))
    findings = examine(look(place, deep))
    problems = any(finding.level == "problem" for finding in findings)
    if as_json:
        shown = [asdict(finding) for finding in findings]
        print_json({"ok": not problems, "home": str(place), "checks": shown})
    else:
        _print(findings)
    if problems:
        raise SystemExit(FAILED)


def examine(situation: Situation) -> list[Finding]:
    findings: list[Finding] = []
    for check in CHECKS:
        try:
            findings += check(situation)
        except Exception as error:  # one check that cannot look must not hide the others
            name = check.__name__.replace("_", " ")
            findings.append(Finding(name, "warning", f"this could not be checked: {error}"))
    return findings


def _print(findings: list[Finding]) -> None:
    width = max(len(finding.check) for finding in findings)
    for finding in findings:
        mark, colour = MARKS[finding.level]
        print(f"{styled(mark, fg=colour)}  {finding.check:<{width}}  {clean(finding.said)}")
        if finding.fix:
            word = "next" if finding.level == "info" else "fix"
            print(f"      {'':<{width}}  {word}: {clean(finding.fix)}")
    print()
    print(_sum(findings))


def _sum(findings: list[Finding]) -> str:
    counts = Counter(finding.level for finding in findings)
    warnings = f"{counts['warning']} warning{'s' * (counts['warning'] != 1)}"
    if counts["problem"]:
        problems = f"{counts['problem']} problem{'s' * (counts['problem'] != 1)}"
        return styled(f"{problems}, {warnings}", fg="red", bold=True)
    if counts["warning"]:
        return styled(f"no problems, {warnings}", fg="yellow", bold=True)
    return styled("all is well", fg="green", bold=True)
