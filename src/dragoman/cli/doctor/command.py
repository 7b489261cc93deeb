"""`doctor`: runs all checks and prints the findings with their fixes."""

from __future__ import annotations

from collections import Counter
from dataclasses import asdict
from pathlib import Path

import click

from dragoman.cli.base.errors import FAILED
from dragoman.cli.base.hub_client import resolve_home
from dragoman.cli.base.output import clean, common_options, print_json, style
from dragoman.cli.doctor import checks, decision_checks, target_checks, workflow_checks
from dragoman.cli.doctor.findings import Check, DoctorContext, Finding, gather_context
from dragoman.core.errors import ConfigError

CHECKS: tuple[Check, ...] = (
    checks.check_python,
    checks.check_home,
    checks.check_files,
    checks.check_env_file,
    checks.check_modes,
    checks.check_configuration,
    checks.check_running_hub,
    checks.check_cluster,
    checks.check_port,
    checks.check_grpc,
    checks.check_plugins,
    checks.check_keys,
    target_checks.check_servers,
    target_checks.check_agents,
    target_checks.check_skills,
    target_checks.check_policies,
    target_checks.check_pins,
    target_checks.check_names,
    target_checks.check_list_costs,
    target_checks.check_target_keys,
    target_checks.check_seals,
    target_checks.check_scopes,
    decision_checks.check_approvals,
    decision_checks.check_runs,
    workflow_checks.check_workflows,
    checks.check_stores,
    checks.check_audit,
    checks.check_disk,
    checks.check_descriptors,
    checks.check_isolation,
    checks.check_clock,
    checks.check_clients,
)
MARKS = {
    "ok": ("ok  ", "green"),
    "info": ("info", "blue"),
    "warning": ("warn", "yellow"),
    "problem": ("FAIL", "red"),
}


@click.command()
@click.option(
    "--deep", is_flag=True, help="Verify the whole audit log and all databases, however large."
)
@common_options
def doctor(deep: bool, home: str | None, as_json: bool) -> None:
    """Check for known problems and suggest fixes.

    \b
    dragoman doctor
    dragoman doctor --deep --json

    Checks this machine, the home, the configuration, each server and agent, policies, pins, keys,
    what waits for a decision, the running hub, the audit log and the IDEs on this machine. Changes
    nothing. Works without a hub, without a home and with an invalid configuration. Exits with 1 if
    there is a problem, but not for warnings alone.
    """
    place = Path(resolve_home(home))
    findings = run_checks(gather_context(place, deep))
    problems = any(finding.level == "problem" for finding in findings)
    if as_json:
        shown = [asdict(finding) for finding in findings]
        print_json({"ok": not problems, "home": str(place), "checks": shown})
    else:
        _print_findings(findings)
    if problems:
        raise SystemExit(FAILED)


def run_checks(situation: DoctorContext) -> list[Finding]:
    findings: list[Finding] = []
    for check in CHECKS:
        try:
            findings += check(situation)
        except ConfigError as error:
            if str(error) != situation.store_problem:  # which one check reports
                findings.append(_describe_failure(check, error))
        except Exception as error:  # a failed check must not hide the others
            findings.append(_describe_failure(check, error))
    return findings


def _describe_failure(check: Check, error: Exception) -> Finding:
    name = check.__name__.removeprefix("check_").replace("_", " ")
    return Finding(name, "warning", f"the check failed: {error}")


def _print_findings(findings: list[Finding]) -> None:
    width = max(len(finding.check) for finding in findings)
    for finding in findings:
        mark, colour = MARKS[finding.level]
        print(f"{style(mark, fg=colour)}  {finding.check:<{width}}  {clean(finding.said)}")
        if finding.fix:
            word = "next" if finding.level == "info" else "fix"
            print(f"      {'':<{width}}  {word}: {clean(finding.fix)}")
    print()
    print(_summarize(findings))


def _summarize(findings: list[Finding]) -> str:
    counts = Counter(finding.level for finding in findings)
    warnings = f"{counts['warning']} warning{'s' * (counts['warning'] != 1)}"
    if counts["problem"]:
        problems = f"{counts['problem']} problem{'s' * (counts['problem'] != 1)}"
        return style(f"{problems}, {warnings}", fg="red", bold=True)
    if counts["warning"]:
        return style(f"no problems, {warnings}", fg="yellow", bold=True)
    return style("no problems found", fg="green", bold=True)
