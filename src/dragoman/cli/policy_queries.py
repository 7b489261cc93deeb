"""`policy explain`, `who-can`, `what-can` and `replay`: what the policies say, asked of a hub."""

from __future__ import annotations

import re
import sys
import time
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from urllib.parse import quote

import click

from dragoman.cli.base.errors import USAGE, fail, fail_with, say
from dragoman.cli.base.hub_client import connect_hub
from dragoman.cli.base.output import (
    clean,
    home_option,
    json_option,
    print_json,
    print_table,
    render_output,
    style,
)
from dragoman.core.errors import HubError

REFUSED = 4
REPLAY_SECONDS = 600.0
_UNITS = {"s": 1, "m": 60, "h": 3_600, "d": 86_400, "w": 604_800}


@click.command(short_help="Whether somebody may call a tool, and why.")
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


@click.command("who-can", short_help="Everybody, and whether they may call a tool.")
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


@click.command("what-can", short_help="Everything, and whether somebody may call it.")
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


@click.command(short_help="What a draft would have decided differently.")
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


@click.command(short_help="The least that would have permitted what was done.")
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
