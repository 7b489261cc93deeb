"""`policy`: the policies, whether they are right, and what they say.

The files are the truth: what looks at them or changes them needs no hub, works on a set that no hub
would start with, and a running hub takes a change up by itself. Who may call what depends on what
there is to call, so that is asked of a hub.
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

from dragoman.cli.base.errors import USAGE, fail, fail_with, say
from dragoman.cli.base.hub_client import (
    HubProblem,
    HubUnavailable,
    connect_hub,
    find_running_hub,
    request_json,
    resolve_home,
)
from dragoman.cli.base.output import (
    clean,
    home_option,
    json_option,
    print_json,
    print_table,
    render_output,
    style,
)
from dragoman.core.errors import ConfigError, HubError

if TYPE_CHECKING:
    from dragoman.app.app import policy_folder


CONFIGURATION = 7
SECONDS = 30.0


@click.group()
def policy() -> None:
    """Who may call what, in Cedar: the files *.cedar in the home's folder `policies`.

    \b
    dragoman policy init                            write the default policies out, to edit them
    dragoman policy check                           is what I wrote right?
    dragoman policy explain key:ci github.search    may it, and why?
    dragoman policy who-can vercel_ops.deploy       everybody, and whether they may
    dragoman policy what-can key:ci                 everything, and whether it may
    dragoman policy replay --since 24h --draft new  what of yesterday would a draft have decided
                                                    differently?
    dragoman policy propose --since 7d              the least that would have done

    A running hub takes changes up within a second, all of them or none. `dragoman docs policies`
    teaches it in five minutes.
    """


# --- the files -----------------------------------------------------------------------------------


@policy.command(short_help="Write the default policies out, to edit them.")
@home_option
def init(home: str | None) -> None:
    """Write the default policies into the home's folder `policies`, to be edited there.

    \b
    dragoman policy init

    Nothing changes by that: they are what holds without such a folder. An existing folder is left
    as it is.
    """
    folder = _open_folder(home, None)
    try:
        written = folder.init()
    except HubError as error:
        fail_with(error)
    if not written:
        print(f"{folder.path} is there already and was left as it is")
        return
    print(f"wrote {', '.join(str(folder.path / name) for name in written)}")
    print("next: edit them or add a file beside them, then: dragoman policy check")


@policy.command("list", short_help="The files, and the policies in each.")
@home_option
@json_option
def list_policies(home: str | None, as_json: bool) -> None:
    """The files, the policies in each, and whether all of it can be put in force.

    \b
    dragoman policy list
    """
    folder = _open_folder(home, None)
    found = _validate(folder, home)
    running_set = _get_active(home)
    if as_json:
        print_json({"folder": str(folder.path), **found, "hub": running_set})
        return
    if not folder.exists:
        print(f"there is no {folder.path}: the default policies hold; see: dragoman policy init")
    rows = [
        (entry["name"], "on" if entry["enabled"] else "off", each["effect"], each["id"])
        for entry in found["files"]
        for each in entry["policies"] or [{"effect": "-", "id": "(none)"}]
    ]
    print_table(["FILE", "STATE", "EFFECT", "POLICY"], rows)
    _print_findings(found["findings"])
    if running_set is not None:
        print(f"in force: {running_set['snapshot']} ({running_set['mode']})")
        if running_set["problem"]:
            say(f"the hub goes on with what it had: {running_set['problem']}")


@policy.command(short_help="Put a file in force.")
@click.argument("name")
@home_option
def enable(name: str, home: str | None) -> None:
    """Put the policies of the file NAME in force: NAME.cedar.off becomes NAME.cedar.

    \b
    dragoman policy enable mine
    """
    _switch(name, home, True)


@policy.command(short_help="Take a file out of force.")
@click.argument("name")
@home_option
def disable(name: str, home: str | None) -> None:
    """Take the policies of the file NAME out of force: NAME.cedar becomes NAME.cedar.off.

    \b
    dragoman policy disable mine

    What they permit is denied from then on, what they forbid is perhaps permitted: see first, with
    `dragoman policy replay`, what would have come out differently.
    """
    _switch(name, home, False)


def _switch(name: str, home: str | None, on: bool) -> None:
    from dragoman.app.app import policy_folder

    folder = _open_folder(home, None)
    try:
        after = policy_folder.judge(folder.switched(name, on), _load_known(home))
        # A set that is broken anyway may be mended in several steps; a good one stays good.
        if not after["ok"] and (on or policy_folder.judge(folder.texts(), _load_known(home))["ok"]):
            _print_findings(after["findings"], to_stderr=True)
            word = "on" if on else "off"
            fail(f'"{name}" was not switched {word}: the set could not be used', CONFIGURATION)
        folder.switch(name, on)
    except HubError as error:
        fail_with(error)
    print(f"{folder.path / name}.cedar is {'in' if on else 'out of'} force")
    if after["ok"] and not after["policies"]:
        say("no policy is left, so nothing is permitted, to you neither; enable one to undo it")
    if not after["ok"]:
        _print_findings(after["findings"], to_stderr=True)
        say("the set still cannot be used, for these reasons")


# --- whether it is right -------------------------------------------------------------------------

folder_argument = click.argument(
    "folder", required=False, type=click.Path(exists=True, file_okay=False)
)


@policy.command(short_help="Everything that is wrong with the policies.")
@folder_argument
@home_option
@json_option
def check(folder: str | None, home: str | None, as_json: bool) -> None:
    """Say everything that is wrong with the policies in FOLDER, or in the home's folder.

    \b
    dragoman policy check
    dragoman policy check ./draft && cp draft/*.cedar ~/.dragoman/policies/

    Parses them, checks them against the schema, looks for what is legal but surely not meant (ids
    that are missing, twice or not ASCII, permits without any condition, servers and roles that are
    not there), and runs the golden decisions of *.toml. Names are looked up in the configuration,
    and where a hub runs, in what it has. Needs no hub. Exits with 7 where a hub would not take
    them.
    """
    where = _open_folder(home, folder)
    found = _validate(where, home)
    if as_json:
        print_json({"folder": str(where.path), **found})
        raise SystemExit(0 if found["ok"] else CONFIGURATION)
    _print_findings(found["findings"])
    if not found["ok"]:
        fail(f"the policies in {where.path} cannot be used", CONFIGURATION)
    of = str(where.path) if where.exists else f"the default set (there is no {where.path})"
    tests = render_count(found["tests"], "decision")
    print(f"ok: {render_count(found['policies'], 'policy')}, {tests}, {of}")
    for each in found["uncached"]:
        print(
            f'  "{each["id"]}" reads {", ".join(each["reads"])}: where it counts, '
            "each call is decided anew, which takes some 0.1 ms"
        )


@policy.command(short_help="Run the golden decisions.")
@folder_argument
@home_option
@json_option
def test(folder: str | None, home: str | None, as_json: bool) -> None:
    """Run the golden decisions of FOLDER, or of the home's folder: the [[tests]] of *.toml.

    \b
    dragoman policy test
    dragoman policy test examples/policies/first

    \b
    [[tests]]
    name = "the build may deploy"
    caller = "key:ci"
    skill = "vercel_ops.deploy"
    expect = "permit"

    A hub runs them too, before it takes a set up. Exits with 7 where one of them fails.
    """
    from dragoman.app.app import policy_folder

    where = _open_folder(home, folder)
    try:
        found = policy_folder.tested(where.texts())
    except HubError as error:
        fail_with(error)
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
        why = f"{failed} of {len(found['tests'])} failed" if failed else "they cannot be run"
        fail(f"golden decisions of {where.path}: {why}", CONFIGURATION)


# --- small things --------------------------------------------------------------------------------


def _open_folder(home: str | None, given: str | None) -> policy_folder.Folder:
    from dragoman.app.app import policy_folder

    if given is not None:
        return policy_folder.Folder(Path(given))
    try:
        return policy_folder.folder_of(Path(resolve_home(home)))
    except HubError as error:
        fail_with(error)


def _load_known(home: str | None) -> Any:
    from dragoman.app.app import policy_folder

    try:
        return policy_folder.known_at(Path(resolve_home(home)), time.time())
    except ConfigError as error:  # the policies can be judged all the same
        say(f"the names in them are not looked up: {error}")
        return None


def _validate(folder: policy_folder.Folder, home: str | None) -> dict[str, Any]:
    """By the hub that runs, which knows what there is to call, or here."""
    from dragoman.app.app import policy_folder

    try:
        texts = folder.texts()
        daemon = find_running_hub(resolve_home(home))
        if daemon is not None:
            try:
                answer: dict[str, Any] = request_json(
                    daemon.socket, "POST", "/api/policies/validate", {"texts": texts}, SECONDS
                )
                return {**answer, "files": folder.files()}
            except (HubUnavailable, HubProblem) as error:
                say(f"the running hub was not asked ({error}); judged here")
        return {**policy_folder.judge(texts, _load_known(home)), "files": folder.files()}
    except HubError as error:
        fail_with(error)


def _get_active(home: str | None) -> dict[str, Any] | None:
    """What a running hub goes by; None where there is none, or it does not say."""
    daemon = find_running_hub(resolve_home(home))
    if daemon is None:
        return None
    try:
        found = request_json(daemon.socket, "GET", "/api/policies", None, SECONDS)
    except (HubUnavailable, HubProblem) as error:
        say(f"the running hub does not say what is in force: {error}")
        return None
    return {key: found[key] for key in ("snapshot", "mode", "problem")}


def _print_findings(findings: Sequence[Mapping[str, Any]], *, to_stderr: bool = False) -> None:
    for each in findings:
        where = f"{each['file']}:{each['line']}: " if each["line"] else f"{each['file']}: "
        where = where if each["file"] else ""
        word = "" if each["level"] == "error" else f"{each['level']}: "
        click.echo(f"{clean(where)} {word}{clean(each['message'])}".lstrip(), err=to_stderr)


REFUSED = 4
REPLAY_SECONDS = 600.0
_UNITS = {"s": 1, "m": 60, "h": 3_600, "d": 86_400, "w": 604_800}


@policy.command(short_help="Whether somebody may call a tool, and why.")
@click.argument("principal")
@click.argument("tool")
@click.option("--action", metavar="NAME", help="Another action than the call, e.g. list.")
@click.option("--role", "roles", metavar="NAME", multiple=True, help="As if it had this role.")
@click.option("--depth", type=int, metavar="N", help="How many calls deep; default 0.")
@click.option("--via", metavar="DOOR", help="By which door, e.g. mcp-stdio; default api.")
@click.option("--taint", "taints", metavar="LABEL", multiple=True, help="What the chain has seen.")
@click.option("--scope", "scopes", metavar="NAME", multiple=True, help="As if it had this scope.")
@click.option("--arg", "args", metavar="NAME=VALUE", multiple=True, help="An argument.")
@home_option
@json_option
def explain(
    principal: str,
    tool: str,
    action: str | None,
    roles: tuple[str, ...],
    home: str | None,
    as_json: bool,
    **context: Any,
) -> None:
    """Say whether PRINCIPAL may call TOOL, by which policies, and what would be needed.

    \b
    dragoman policy explain key:ci vercel_ops.deploy
    dragoman policy explain key:ci vercel_ops.deploy --taint external_network --depth 2
    dragoman policy explain key:new github.search --role reader

    PRINCIPAL is owner:owner (these commands, IDEs), local:local (loopback where no key is set),
    key:NAME, or agent:NAME for a server or agent that calls back with a key of its own. Exits with
    4 where it is denied.
    """
    pairs = [pair.partition("=") for pair in context.pop("args")]
    if wrong := [name for name, equals, _ in pairs if not equals]:
        fail(f'"{wrong[0]}" is no argument: write NAME=VALUE', USAGE)
    context["args"] = {name: value for name, _, value in pairs}
    given = {name: value for name, value in context.items() if value not in (None, (), {})}
    body: dict[str, Any] = {"principal": principal, "tool": tool, "context": given}
    if action is not None:
        body["action"] = action
    if roles:
        body["roles"] = list(roles)
    with connect_hub(home) as hub:
        hub.wait_until_connected()
        found = hub.send("POST", "/api/policies/explain", body)
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
            kind = " (a guardrail)" if each["guardrail"] else ""
            print(f"  {word}  {clean(each['id'])}{kind}{about}")
    for error in found["errors"]:
        print(f"  error         {clean(error)}")
    if found["attributes"]:
        read = ", ".join(f"{name} = {value}" for name, value in found["attributes"].items())
        print(f"  judged on     {clean(read)}")
    if found["listed"] is not None:
        print(f"  listed        {'yes' if found['listed'] else 'no'}")
    if found["mode"] == "shadow":
        print("  mode          shadow: only guardrails are enforced")
    if found["needed"]:
        print(f"needed: {clean(found['needed'])}")
    for line in found["example"].splitlines():
        print(f"  {line}")


@policy.command("who-can", short_help="Everybody, and whether they may call a tool.")
@click.argument("tool")
@home_option
@json_option
def who_can(tool: str, home: str | None, as_json: bool) -> None:
    """Everybody there is, and whether they may call TOOL.

    \b
    dragoman policy who-can vercel_ops.deploy
    dragoman policy who-can mcp_github_search --json | jq '.principals[] | select(.allowed)'
    """
    with connect_hub(home) as hub:
        hub.wait_until_connected()
        found = hub.get(f"/api/policies/who-can?tool={quote(tool, safe='')}")
    if as_json:
        print_json(found)
        return
    _print_verdicts("PRINCIPAL", found["principals"], found["mode"])


@policy.command("what-can", short_help="Everything, and whether somebody may call it.")
@click.argument("principal")
@click.option("--denied", is_flag=True, help="Only what it may not call.")
@home_option
@json_option
def what_can(principal: str, denied: bool, home: str | None, as_json: bool) -> None:
    """Everything there is to call, and whether PRINCIPAL may call it.

    \b
    dragoman policy what-can key:ci
    dragoman policy what-can agent:vercel_ops --denied
    """
    with connect_hub(home) as hub:
        starting = hub.wait_until_connected()
        found = hub.get(f"/api/policies/what-can?principal={quote(principal, safe='')}")
    if denied:
        found["tools"] = [each for each in found["tools"] if not each["allowed"]]
    if as_json:
        print_json(found)
        return
    if found["tools"]:
        _print_verdicts("TOOL", found["tools"], found["mode"])
    else:
        print("nothing" if denied else "there is nothing to call; see: dragoman servers")
    if starting:
        say(f"still being connected, so perhaps missing here: {', '.join(starting)}")


def _print_verdicts(head: str, verdicts: Sequence[Mapping[str, Any]], mode: str) -> None:
    rows = [
        (
            f"{each['name']} (for {each['agent']})" if each.get("agent") else each["name"],
            "yes" if each["allowed"] else "no",
            "yes" if each["listed"] else "no",
            ", ".join(sorted(each["policies"])) or each["why"],
        )
        for each in verdicts
    ]
    print_table([head, "CALL", "LISTED", "BY"], rows)
    if mode == "shadow":
        say("in shadow mode: only the guardrails are enforced; `explain` says what policies would")


since_option = click.option(
    "--since", required=True, metavar="WHEN", help="24h, 7d, or 2026-11-15T08:00Z."
)
until_option = click.option("--until", metavar="WHEN", help="The same; default: now.")
limit_option = click.option(
    "--limit",
    metavar="N",
    default=100_000,
    show_default=True,
    type=click.IntRange(1, 1_000_000),
    help="How many calls to look at, the newest first.",
)


@policy.command(short_help="What a draft would have decided differently.")
@since_option
@until_option
@click.option(
    "--draft",
    required=True,
    metavar="FOLDER",
    type=click.Path(exists=True, file_okay=False),
    help="The policies to try.",
)
@limit_option
@home_option
@json_option
def replay(
    since: str, until: str | None, draft: str, limit: int, home: str | None, as_json: bool
) -> None:
    """Decide the recorded calls of a period anew by a draft, and list only what flips.

    \b
    cp -r ~/.dragoman/policies draft && edit draft/mine.cedar
    dragoman policy replay --since 24h --draft draft

    The record has who called what, by which door and how deep, not the arguments: what policies
    say of context.args cannot be replayed, and neither can calls of tools and by keys that are not
    there any more; how many those were is said.
    """
    begin, end = _parse_time(since), _parse_time(until) if until else time.time()
    body = {"texts": _read_draft(draft), "since": begin, "until": end, "limit": limit}
    with connect_hub(home) as hub:
        hub.wait_until_connected()
        found = hub.send("POST", "/api/policies/replay", body, REPLAY_SECONDS)
    if as_json:
        print_json(found)
        return
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
        print_table(["FLIP", "CALLER", "TOOL", "CALLS", "FIRST", "LAST", "WAS BY", "NOW BY"], rows)
    print(f"{render_count(found['judged'], 'call')} decided anew, {found['flipped']} otherwise")
    for why, count in found["skipped"].items():
        print(f"  not replayed: {render_count(count, 'call')}, {clean(why)}")
    if found["more"]:
        say(f"only the newest {limit} calls were looked at; --limit takes more")


@policy.command(short_help="The least that would have permitted what was done.")
@since_option
@until_option
@limit_option
@home_option
@json_option
def propose(since: str, until: str | None, limit: int, home: str | None, as_json: bool) -> None:
    """Print the least policies that would have permitted what was called in a period.

    \b
    dragoman policy propose --since 7d > draft/least.cedar

    Run the hub with the default policies, or with [policy] mode = "shadow", for as long as it takes
    to see what everybody needs; then take this for a beginning. It names keys and tools one by
    one: make roles and servers of them where that is what you mean. What it would still have
    denied of the same calls is said.
    """
    begin, end = _parse_time(since), _parse_time(until) if until else time.time()
    with connect_hub(home) as hub:
        hub.wait_until_connected()
        body = {"since": begin, "until": end, "limit": limit}
        found = hub.send("POST", "/api/policies/propose", body, REPLAY_SECONDS)
    if as_json:
        print_json(found)
        return
    print(render_output(found["text"], sys.stdout), end="")
    for each in found["findings"]:
        say(f"{each['level']}: {each['message']}")
    for flip in found["denied"]:
        say(
            f"it denies {render_count(flip['count'], 'call')} of {flip['verb']} by {flip['caller']}"
        )
    if found["skipped"]:
        skipped = render_count(found["skipped"], "call")
        say(f"{skipped} left out: caller or tool are not there any more")
    if found["more"]:
        say(f"only the newest {limit} calls were looked at; --limit takes more")


def _read_draft(folder: str) -> dict[str, str]:
    from dragoman.app.app import policy_folder

    try:
        return policy_folder.Folder(Path(folder)).texts()
    except HubError as error:
        fail_with(error)


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
        fail(f'"{text}" is no time: write 24h or 7d (ago), or 2026-11-15T08:00Z', USAGE)
    return (when if when.tzinfo else when.replace(tzinfo=UTC)).timestamp()


def _render_time(at: float) -> str:
    return time.strftime("%Y-%m-%d %H:%MZ", time.gmtime(at))
