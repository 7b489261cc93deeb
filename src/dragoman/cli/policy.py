"""`policy`: edits and validates the policy files, and queries decisions.

Commands on files need no hub and work on an invalid set; a running hub reloads by itself. Queries
depend on the catalog, so they ask a hub.
"""

from __future__ import annotations

import re
import sys
import time
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

import click

from dragoman.cli.base import hub_client
from dragoman.cli.base.errors import USAGE, fail, say
from dragoman.cli.base.output import (
    clean,
    common_options,
    home_option,
    print_json,
    print_table,
    render_output,
    style,
)
from dragoman.core.errors import ConfigError

if TYPE_CHECKING:
    from dragoman.policy.folder import PolicyFolder


CONFIGURATION = 7
SECONDS = 30.0


@click.group()
def policy() -> None:
    """Manage and query the Cedar policies: the files *.cedar in the home's folder `policies`.

    \b
    dragoman policy init                            write the default policies, to edit them
    dragoman policy check                           validate the policies
    dragoman policy explain key:ci github.search    explain one decision
    dragoman policy who-can vercel_ops.deploy       list the principals that may call a tool
    dragoman policy what-can key:ci                 list what a principal may call
    dragoman policy replay --since 24h --draft new  show which recorded calls a draft would have
                                                    decided differently
    dragoman policy propose --since 7d              propose least-privilege policies

    A running hub applies changes within a second, all or none. `dragoman docs policies` is a
    five-minute introduction.
    """


@policy.command(short_help="Write the default policies, to edit them.")
@home_option
def init(home: str | None) -> None:
    """Write the default policies into the home's folder `policies`, to edit them there.

    \b
    dragoman policy init

    This changes no decision: without the folder the same policies apply. An existing folder is not
    changed.
    """
    folder = _open_folder(home, None)
    written = folder.create_default()
    if not written:
        print(f"{folder.path} already exists; nothing was changed")
        return
    print(f"wrote {', '.join(str(folder.path / name) for name in written)}")
    print("next: edit them or add a file beside them, then: dragoman policy check")


@policy.command("list", short_help="List the files and their policies.")
@common_options
def list_policies(home: str | None, as_json: bool) -> None:
    """List the policy files with their policies, and report problems.

    \b
    dragoman policy list
    """
    folder = _open_folder(home, None)
    found = _validate(folder, home)
    running_set = _get_active(home)
    if as_json:
        return print_json({"folder": str(folder.path), **found, "hub": running_set})
    if not folder.exists:
        print(f"{folder.path} does not exist: default policies apply; see: dragoman policy init")
    rows = [
        (entry["name"], "on" if entry["enabled"] else "off", each["effect"], each["id"])
        for entry in found["files"]
        for each in entry["policies"] or [{"effect": "-", "id": "(none)"}]
    ]
    print_table(["FILE", "STATE", "EFFECT", "POLICY"], rows)
    _print_findings(found["findings"])
    if running_set is not None:
        print(f"active: {running_set['snapshot']} ({running_set['mode']})")
        if running_set["problem"]:
            say(f"the hub keeps its old policies: {running_set['problem']}")


@policy.command(short_help="Enable a policy file.")
@click.argument("name")
@home_option
def enable(name: str, home: str | None) -> None:
    """Enable the policy file NAME: renames NAME.cedar.off to NAME.cedar.

    \b
    dragoman policy enable mine
    """
    _switch(name, home, True)


@policy.command(short_help="Disable a policy file.")
@click.argument("name")
@home_option
def disable(name: str, home: str | None) -> None:
    """Disable the policy file NAME: renames NAME.cedar to NAME.cedar.off.

    \b
    dragoman policy disable mine

    Its permits and forbids no longer apply. `dragoman policy replay` shows beforehand which
    recorded calls would have been decided differently.
    """
    _switch(name, home, False)


def _switch(name: str, home: str | None, on: bool) -> None:
    from dragoman.policy.folder import build_report

    folder = _open_folder(home, None)
    word = "enabled" if on else "disabled"
    after = build_report(folder.plan_enable(name, on), _load_known(home))
    # An invalid set may be repaired in several steps; a valid one must stay valid.
    if not after["ok"] and (on or build_report(folder.read_texts(), _load_known(home))["ok"]):
        _print_findings(after["findings"], to_stderr=True)
        fail(f'"{name}" was not {word}: the policy set would be invalid', CONFIGURATION)
    folder.enable(name, on)
    print(f"{folder.path / name}.cedar is {word}")
    if after["ok"] and not after["policies"]:
        say("no policy is left: every call is denied, yours too; enable one to undo this")
    if not after["ok"]:
        _print_findings(after["findings"], to_stderr=True)
        say("the policy set is still invalid, for these reasons")


folder_argument = click.argument(
    "folder", required=False, type=click.Path(exists=True, file_okay=False)
)


@policy.command(short_help="Validate the policies.")
@folder_argument
@common_options
def check(folder: str | None, home: str | None, as_json: bool) -> None:
    """Validate the policies in FOLDER, or in the home's folder, and list all problems.

    \b
    dragoman policy check
    dragoman policy check ./draft && cp draft/*.cedar ~/.dragoman/policies/

    Parses them, checks them against the schema, warns about likely mistakes (ids that are missing,
    duplicate or not ASCII, permits without a condition, unknown servers and roles) and runs the
    golden decisions in *.toml. Looks names up in the configuration and in a running hub, but needs
    no hub. Exits with 7 if a hub would reject the policies.
    """
    where = _open_folder(home, folder)
    found = _validate(where, home)
    if as_json:
        print_json({"folder": str(where.path), **found})
        raise SystemExit(0 if found["ok"] else CONFIGURATION)
    _print_findings(found["findings"])
    if not found["ok"]:
        fail(f"the policies in {where.path} are invalid", CONFIGURATION)
    of = str(where.path) if where.exists else f"the default set ({where.path} does not exist)"
    tests = render_count(found["tests"], "decision")
    print(f"ok: {render_count(found['policies'], 'policy')}, {tests}, {of}")
    for each in found["uncached"]:
        print(
            f'  "{each["id"]}" reads {", ".join(each["reads"])}: decisions that depend on it are '
            "not cached and take about 0.1 ms per call"
        )


@policy.command(short_help="Run the golden decisions.")
@folder_argument
@common_options
def test(folder: str | None, home: str | None, as_json: bool) -> None:
    """Run the golden decisions of FOLDER, or of the home's folder: the [[tests]] in *.toml.

    \b
    dragoman policy test
    dragoman policy test examples/policies/first

    \b
    [[tests]]
    name = "the build may deploy"
    caller = "key:ci"
    skill = "vercel_ops.deploy"
    expect = "permit"

    A hub runs them too before it applies a policy set. Exits with 7 if one fails.
    """
    from dragoman.policy.folder import run_tests

    where = _open_folder(home, folder)
    found = run_tests(where.read_texts())
    if as_json:
        print_json({"folder": str(where.path), **found})
        raise SystemExit(0 if found["ok"] else CONFIGURATION)
    for each in found["tests"]:
        mark = style("ok", fg="green") if each["passed"] else style("FAILED", fg="red")
        print(f"{mark}  {clean(each['name'])}")
        if not each["passed"]:
            print(f"    {clean(each['message'])}")
    _print_findings(found["findings"])
    if not found["tests"] and found["ok"]:
        print("no golden decisions; see: dragoman policy test --help")
    if not found["ok"]:
        failed = sum(not each["passed"] for each in found["tests"])
        why = f"{failed} of {len(found['tests'])} failed" if failed else "the policies are invalid"
        fail(f"golden decisions of {where.path}: {why}", CONFIGURATION)


def _open_folder(home: str | None, given: str | None) -> PolicyFolder:
    from dragoman.config import load
    from dragoman.policy.folder import PolicyFolder

    if given is not None:
        return PolicyFolder(Path(given))
    place = Path(hub_client.resolve_home(home))
    return PolicyFolder(place / load(place / "config.toml").policy.folder)


def _load_known(home: str | None) -> Any:
    from dragoman.app.policy_admin.known_ids import load_known_ids

    try:
        return load_known_ids(Path(hub_client.resolve_home(home)), time.time())
    except ConfigError as error:  # the policies can still be validated
        say(f"names in the policies were not checked: {error}")
        return None


def _validate(folder: PolicyFolder, home: str | None) -> dict[str, Any]:
    """Validates in the running hub, which knows all tools, or else in this process."""
    from dragoman.policy.folder import build_report

    texts = folder.read_texts()
    daemon = hub_client.find_running_hub(hub_client.resolve_home(home))
    if daemon is not None:
        path = "/api/policies/validate"
        try:
            answer = hub_client.request_json(daemon.socket, "POST", path, {"texts": texts}, SECONDS)
            return {**answer, "files": folder.list_files()}
        except (hub_client.HubUnavailable, hub_client.HubProblem) as error:
            say(f"the running hub could not validate them ({error}); validated without it")
    return {**build_report(texts, _load_known(home)), "files": folder.list_files()}


def _get_active(home: str | None) -> dict[str, Any] | None:
    """Returns the active policy set of a running hub, or None."""
    daemon = hub_client.find_running_hub(hub_client.resolve_home(home))
    if daemon is None:
        return None
    try:
        found = hub_client.request_json(daemon.socket, "GET", "/api/policies", None, SECONDS)
    except (hub_client.HubUnavailable, hub_client.HubProblem) as error:
        say(f"the running hub did not report its active policies: {error}")
        return None
    return {key: found[key] for key in ("snapshot", "mode", "problem")}


def _print_findings(findings: Sequence[Mapping[str, Any]], *, to_stderr: bool = False) -> None:
    for each in findings:
        where = f"{each['file']}:{each['line']}: " if each["line"] else f"{each['file']}: "
        where = where if each["file"] else ""
        word = "" if each["level"] == "error" else f"{each['level']}: "
        click.echo(f"{clean(where)} {word}{clean(each['message'])}".lstrip(), err=to_stderr)


def _query(
    home: str | None, method: str, path: str, body: Any = None, seconds: float = 60.0
) -> Any:
    """Sends a request to a hub that has connected to its servers and agents."""
    with hub_client.connect_hub(home) as hub:
        hub.wait_until_connected()
        return hub.send(method, path, body, seconds)


REFUSED = 4
REPLAY_SECONDS = 600.0
_UNITS = {"s": 1, "m": 60, "h": 3_600, "d": 86_400, "w": 604_800}


@policy.command(short_help="Explain whether a principal may call a tool.")
@click.argument("principal")
@click.argument("tool")
@click.option("--action", metavar="NAME", help="Another action than call, for example list.")
@click.option("--role", "roles", metavar="NAME", multiple=True,
              help="Assume this role; may be repeated.")  # fmt: skip
@click.option("--depth", type=int, metavar="N", help="Call depth [default: 0].")
@click.option("--via", metavar="ENTRY", help="Entry point, for example mcp-stdio [default: api].")
@click.option("--label", "--taint", "labels", metavar="LABEL", multiple=True,
              help="Taint label of the call chain; may be repeated.")  # fmt: skip
@click.option("--scope", "scopes", metavar="NAME", multiple=True,
              help="Assume this scope; may be repeated.")  # fmt: skip
@click.option("--arg", "args", metavar="NAME=VALUE", multiple=True,
              help="Argument of the call; may be repeated.")  # fmt: skip
@common_options
def explain(
    principal: str,
    tool: str,
    action: str | None,
    roles: tuple[str, ...],
    home: str | None,
    as_json: bool,
    **context: Any,
) -> None:
    """Explain whether PRINCIPAL may call TOOL, which policies decide, and what is missing.

    \b
    dragoman policy explain key:ci vercel_ops.deploy
    dragoman policy explain key:ci vercel_ops.deploy --label external_network --depth 2
    dragoman policy explain key:new github.search --role reader

    PRINCIPAL is owner:owner (this command line, IDEs), local:local (loopback without keys),
    key:NAME, or agent:NAME for a server or agent that calls back with its own key. Exits with 4 if
    the call is denied.
    """
    pairs = [pair.partition("=") for pair in context.pop("args")]
    if wrong := [name for name, equals, _ in pairs if not equals]:
        fail(f'invalid --arg "{wrong[0]}": write NAME=VALUE', USAGE)
    context["args"] = {name: value for name, _, value in pairs}
    given = {name: value for name, value in context.items() if value not in (None, (), {})}
    body: dict[str, Any] = {"principal": principal, "tool": tool, "context": given}
    if action is not None:
        body["action"] = action
    if roles:
        body["roles"] = list(roles)
    found = _query(home, "POST", "/api/policies/explain", body)
    if as_json:
        print_json(found)
    else:
        _print_explained(found)
    raise SystemExit(0 if found["allowed"] else REFUSED)


def _print_explained(found: Mapping[str, Any]) -> None:
    colour = "green" if found["allowed"] else "red"
    print(style(clean(found["words"]), fg=colour))
    for word, policies in (("forbidden by", found["forbids"]), ("permitted by", found["permits"])):
        for each in policies:
            why = each["annotations"].get("why", "")
            about = f": {clean(why)}" if why else ""
            kind = " (guardrail)" if each["guardrail"] else ""
            print(f"  {word}  {clean(each['id'])}{kind}{about}")
    for error in found["errors"]:
        print(f"  error         {clean(error)}")
    if found["attributes"]:
        read = ", ".join(f"{name} = {value}" for name, value in found["attributes"].items())
        print(f"  based on      {clean(read)}")
    if found["listed"] is not None:
        print(f"  listed        {'yes' if found['listed'] else 'no'}")
    if found["mode"] == "shadow":
        print("  mode          shadow (only guardrails are enforced)")
    if found["needed"]:
        print(f"needed: {clean(found['needed'])}")
    for line in found["example"].splitlines():
        print(f"  {line}")


@policy.command("who-can", short_help="List the principals that may call a tool.")
@click.argument("tool")
@common_options
def who_can(tool: str, home: str | None, as_json: bool) -> None:
    """List all principals and whether each may call TOOL.

    \b
    dragoman policy who-can vercel_ops.deploy
    dragoman policy who-can mcp_github_search --json | jq '.principals[] | select(.allowed)'
    """
    found = _query(home, "GET", f"/api/policies/who-can?tool={quote(tool, safe='')}")
    if as_json:
        print_json(found)
    else:
        _print_verdicts("PRINCIPAL", found["principals"], found["mode"])


@policy.command("what-can", short_help="List what a principal may call.")
@click.argument("principal")
@click.option("--denied", is_flag=True, help="Only tools that it may not call.")
@common_options
def what_can(principal: str, denied: bool, home: str | None, as_json: bool) -> None:
    """List all tools and whether PRINCIPAL may call each.

    \b
    dragoman policy what-can key:ci
    dragoman policy what-can agent:vercel_ops --denied
    """
    with hub_client.connect_hub(home) as hub:
        starting = hub.wait_until_connected()
        found = hub.get(f"/api/policies/what-can?principal={quote(principal, safe='')}")
    if denied:
        found["tools"] = [each for each in found["tools"] if not each["allowed"]]
    if as_json:
        return print_json(found)
    if found["tools"]:
        _print_verdicts("TOOL", found["tools"], found["mode"])
    else:
        print("no denied tools" if denied else "no tools; see: dragoman servers")
    if starting:
        say(f"still connecting, tools may be missing: {', '.join(starting)}")


def _render_verdict(verdict: Mapping[str, Any]) -> str:
    if verdict["approval"]:
        return "with approval"
    return "yes" if verdict["allowed"] else "no"


def _print_verdicts(head: str, verdicts: Sequence[Mapping[str, Any]], mode: str) -> None:
    rows = [
        (
            f"{each['name']} (for {each['agent']})" if each.get("agent") else each["name"],
            _render_verdict(each),
            "yes" if each["listed"] else "no",
            ", ".join(sorted(each["policies"])) or each["why"],
        )
        for each in verdicts
    ]
    print_table([head, "CALL", "LISTED", "BY"], rows)
    if mode == "shadow":
        say("shadow mode: only guardrails are enforced; `explain` shows what the policies decide")


since_option = click.option(
    "--since", required=True, metavar="WHEN", help="Start: 24h, 7d, or 2026-11-15T08:00Z."
)
until_option = click.option("--until", metavar="WHEN", help="End, in the same form [default: now].")
limit_option = click.option("--limit", metavar="N", default=100_000, show_default=True,
                            type=click.IntRange(1, 1_000_000),
                            help="Maximum number of calls, newest first.")  # fmt: skip


@policy.command(short_help="Replay recorded calls with draft policies.")
@since_option
@until_option
@click.option("--draft", required=True, metavar="FOLDER",
              type=click.Path(exists=True, file_okay=False),
              help="Folder with the draft policies.")  # fmt: skip
@limit_option
@common_options
def replay(
    since: str, until: str | None, draft: str, limit: int, home: str | None, as_json: bool
) -> None:
    """Replay the recorded calls of a period with draft policies and list changed decisions.

    \b
    cp -r ~/.dragoman/policies draft && edit draft/mine.cedar
    dragoman policy replay --since 24h --draft draft

    The audit log has the principal, tool, entry point and depth of each call, but no arguments:
    conditions on context.args cannot be replayed, nor can calls of removed tools or by removed
    keys. The number of skipped calls is reported.
    """
    texts = _open_folder(None, draft).read_texts()
    body = {"texts": texts, **_build_period(since, until, limit)}
    found = _query(home, "POST", "/api/policies/replay", body, REPLAY_SECONDS)
    if as_json:
        return print_json(found)
    rows = [
        (
            f"{flip['was']} → {flip['now']}",
            flip["caller"],
            flip["verb"],
            flip["count"],
            _render_time(flip["first_at"]),
            _render_time(flip["last_at"]),
            ", ".join(sorted(flip["was_policies"])) or "nothing",
            ", ".join(sorted(flip["policies"])) or "nothing",
        )
        for flip in found["flips"]
    ]
    if rows:
        print_table(
            ["CHANGE", "PRINCIPAL", "TOOL", "CALLS", "FIRST", "LAST", "OLD POLICY", "NEW POLICY"],
            rows,
        )
    replayed = render_count(found["judged"], "call")
    print(f"{replayed} replayed, {found['flipped']} with a different decision")
    for why, count in found["skipped"].items():
        print(f"  not replayed: {render_count(count, 'call')}, {clean(why)}")
    if found["more"]:
        say(f"only the newest {limit} calls were used; raise --limit for more")


@policy.command(short_help="Propose least-privilege policies from recorded calls.")
@since_option
@until_option
@limit_option
@common_options
def propose(since: str, until: str | None, limit: int, home: str | None, as_json: bool) -> None:
    """Print the least policies that would have permitted the recorded calls of a period.

    \b
    dragoman policy propose --since 7d > draft/least.cedar

    Run the hub with the default policies, or with [policy] mode = "shadow", until all usual calls
    have been made; then start from this proposal. It lists keys and tools one by one: replace them
    with roles and servers where you mean those. Recorded calls that it would deny are reported.
    """
    body = _build_period(since, until, limit)
    found = _query(home, "POST", "/api/policies/propose", body, REPLAY_SECONDS)
    if as_json:
        return print_json(found)
    print(render_output(found["text"], sys.stdout), end="")
    for each in found["findings"]:
        say(f"{each['level']}: {each['message']}")
    for flip in found["denied"]:
        say(f"denied: {render_count(flip['count'], 'call')} of {flip['verb']} by {flip['caller']}")
    if found["skipped"]:
        skipped = render_count(found["skipped"], "call")
        say(f"{skipped} skipped: the principal or the tool no longer exists")
    if found["more"]:
        say(f"only the newest {limit} calls were used; raise --limit for more")


def render_count(number: int, what: str) -> str:
    if number == 1:
        return f"1 {what}"
    return f"{number} {what[:-1]}ies" if what.endswith("y") else f"{number} {what}s"


def _parse_time(text: str) -> float:
    found = re.fullmatch(r"(\d{1,6})([smhdw])", text)
    if found is not None:
        return time.time() - int(found[1]) * _UNITS[found[2]]
    try:
        when = datetime.fromisoformat(text)
    except ValueError:
        fail(f'invalid time "{text}": write 24h or 7d (ago), or 2026-11-15T08:00Z', USAGE)
    return (when if when.tzinfo else when.replace(tzinfo=UTC)).timestamp()


def _build_period(since: str, until: str | None, limit: int) -> dict[str, Any]:
    end = _parse_time(until) if until else time.time()
    return {"since": _parse_time(since), "until": end, "limit": limit}


def _render_time(at: float) -> str:
    return time.strftime("%Y-%m-%d %H:%MZ", time.gmtime(at))
