"""`agents`: the agents of others that the hub knows, whose skills are its tools."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from urllib.parse import quote, urlencode

import click

from dragoman.cli.base.errors import USAGE, fail, say
from dragoman.cli.base.hub_client import HubClient, connect_hub
from dragoman.cli.base.output import (
    RenamingChoice,
    clean,
    home_option,
    json_option,
    print_json,
    print_table,
)
from dragoman.cli.completion import complete_agents
from dragoman.cli.pins import must_confirm, show_and_approve, yes_option
from dragoman.config import RENAMED_WIRES, load
from dragoman.core.errors import ConfigError
from dragoman.core.safe_text import escape_controls

AGENTS = "/api/a2a/agents"
ADD_SECONDS = 90_000.0
"""Longer than the longest time an agent may be given: the hub ends the look, not this."""

CARD = "card"

_AGENT = click.argument("agent", metavar="NAME", shell_complete=complete_agents)


@click.group(invoke_without_command=True)
@click.pass_context
@home_option
@json_option
def agents(ctx: click.Context, home: str | None, as_json: bool) -> None:
    """The agents of others: their skills are tools of the hub.

    \b
    dragoman agents add https://agents.example.com/ops           register it by its address
    dragoman agents add https://… --token env:DRAGOMAN_AGENT_OPS with a key, by reference
    dragoman agents                                              all of them, and how they are
    dragoman agents show "Vercel Ops"                            one: card, skills, tools, history
    dragoman agents refresh ops                                  look at it now
    dragoman agents trust ops trusted                            trust it further
    dragoman agents approve ops                                  accept what has changed
    dragoman agents calls ops                                    what was asked of it, by whom
    dragoman agents remove ops

    \b
    NAME is a name, a slug or an id. An agent is healthy, degraded (it failed once, answers wrongly
    or slowly), unreachable (it has no tools until it answers again) or unknown (not tried yet).

    Agents can also be written into config.toml, as [[a2a.external_agents]]. Talking to one is
    `dragoman a2a`, calling one of its skills `dragoman call`.
    """
    if ctx.invoked_subcommand is None:
        _list_agents(home, as_json)


@agents.command("list", short_help="All of them, and how they are.")
@home_option
@json_option
def list_command(home: str | None, as_json: bool) -> None:
    """List the agents: health, trust, number of skills, when last seen, and what is wrong.

    \b
    dragoman agents list
    """
    _list_agents(home, as_json)


def _list_agents(home: str | None, as_json: bool) -> None:
    with connect_hub(home) as hub:
        found = hub.get(AGENTS)
        if hub.is_temporary:
            found["agents"] = [_refetch_unknown(hub, agent) for agent in found["agents"]]
        held = hub.list_quarantined()
        local = hub.get("/api/status").get("agents", {}).get("local", [])
    if as_json:
        print_json({**found, "local": local})
        return
    if local:
        names = clean(", ".join(local))
        say(f"agents of the hub's own, from [[agents]] in config.toml: {names}; see: dragoman a2a")
    if not found["agents"]:
        print("no external agents are registered; see: dragoman agents add --help")
        return
    rows = [
        (
            agent["name"],
            agent["health"] if agent["enabled"] else "off",
            agent["trustLevel"],
            len(agent["skills"]),
            (agent["lastSeenAt"] or "-").partition(".")[0].replace("T", " "),
            agent["url"],
            "; ".join(filter(None, (agent["reason"], _describe_quarantined(agent, held)))),
        )
        for agent in found["agents"]
    ]
    print_table(
        ["NAME", "HEALTH", "TRUST", "SKILLS", "LAST SEEN", "URL", "REMARKS"], rows, whole=True
    )


def _describe_quarantined(agent: dict[str, Any], held: list[dict[str, Any]]) -> str:
    """What of it is not offered until somebody approves it."""
    names = [pin["name"] for pin in held if pin["target"] == agent["name"] and pin["kind"] != CARD]
    if not names:
        return ""  # of a card its health says so
    more = f" and {len(names) - 1} more" if len(names) > 1 else ""
    return f"held until approved: {names[0]}{more}; see: dragoman pins diff {names[0]}"


def _refetch_unknown(hub: HubClient, agent: dict[str, Any]) -> dict[str, Any]:
    """A hub that has just been started has not looked yet."""
    if agent["health"] != "unknown" or not agent["enabled"]:
        return agent
    seen: dict[str, Any] = hub.send("POST", f"{_build_path(agent['id'])}/refetch", {}, ADD_SECONDS)
    return seen


@agents.command(short_help="Register an agent by its address.")
@click.argument("url")
@click.option("--name", help="What it is called here; default: as its card says.")
@click.option("--token", metavar="env:NAME|file:PATH",
              help="The bearer token, by reference: a variable whose name begins with "
              "DRAGOMAN_AGENT_ or is in [bridge] credential_env of config.toml, or a private file "
              "below tokens/ in the hub's home (file:tokens/NAME).")  # fmt: skip
@click.option("--header", "headers", multiple=True, metavar="'NAME: ${VARIABLE}'",
              help="A header with a secret, by reference to such a variable.")  # fmt: skip
@click.option("--trust", type=click.Choice(["external", "trusted"]), default=None,
              help="How far it is trusted; default external.")  # fmt: skip
@click.option("--pin", type=click.Choice(["strict", "first", "off"]), default=None,
              help="What is held until it is approved: all (strict), changes (first, the default), "
              "nothing (off).")  # fmt: skip
@click.option("--wire", type=RenamingChoice(["auto", "skill-only"], RENAMED_WIRES), default=None,
              help="How a skill is called: as its card says (auto, the default), or by "
              "message/send with none of the members that 0.3 added (skill-only).")  # fmt: skip
@click.option("--timeout", type=click.FloatRange(0.1, 86_400), default=None,
              help="Seconds to wait for each of its answers; default 30.")  # fmt: skip
@click.option("--allow-private", is_flag=True,
              help="The name in URL may lead to a private address.")  # fmt: skip
@click.option("--public", is_flag=True,
              help="Publish its card to those who show no key.")  # fmt: skip
@home_option
@json_option
def add(
    url: str,
    name: str | None,
    token: str | None,
    headers: tuple[str, ...],
    trust: str | None,
    pin: str | None,
    wire: str | None,
    timeout: float | None,
    allow_private: bool,
    public: bool,
    home: str | None,
    as_json: bool,
) -> None:
    """Register the agent at URL: where its card is, or the address that the card is below.

    \b
    dragoman agents add https://agents.example.com/vercel-ops
    dragoman agents add http://localhost:9999 --name local --trust trusted
    dragoman agents add https://a.example.com --token env:DRAGOMAN_AGENT_A
    dragoman agents add https://a.example.com --header 'X-Api-Key: ${DRAGOMAN_AGENT_A}'
    dragoman agents add https://a.example.com --token file:tokens/a

    Nothing is kept unless the agent is found and its card can be read. To register it again looks
    at it again.

    Secrets are never given here, only where they are: put the line DRAGOMAN_AGENT_A=… into the file
    env of the hub's home. A variable of another name must be listed in config.toml, as
    credential_env = ["A_TOKEN"] below [bridge]. A reference is sent only to the scheme, host and
    port that it was first registered for.
    """
    body: dict[str, Any] = {"url": url}
    options = {"name": name, "token": token, "trust": trust, "pin": pin, "wire": wire}
    body |= {key: value for key, value in options.items() if value is not None}
    if headers:
        body["headers"] = _parse_headers(headers)
    if timeout is not None:
        body["timeout_secs"] = timeout
    if allow_private:
        body["allow_private"] = True
    if public:
        body["public"] = True
    with connect_hub(home) as hub:
        agent = hub.send("POST", AGENTS, body, ADD_SECONDS)
        held = hub.list_quarantined()
    _report(agent, as_json, "is registered", held)
    if not as_json and not _has_exposed_tools(hub.home):
        say(
            "an IDE that starts `dragoman mcp` does not see its skills until config.toml has "
            'stdio_expose = ["*"] below [mcp]; dragoman init writes such a file'
        )


def _has_exposed_tools(place: str) -> bool:
    """Whether IDEs are shown anything but agents as such."""
    try:
        return bool(load(Path(place) / "config.toml").mcp.stdio_expose)
    except ConfigError:
        return True  # that is said elsewhere


def _parse_headers(lines: tuple[str, ...]) -> dict[str, str]:
    found = {}
    for line in lines:
        name, colon, value = line.partition(":")
        if not colon:
            fail(f"write a header as 'NAME: ${{VARIABLE}}', not \"{name[:60]}\"", USAGE)
        found[name.strip()] = value.strip()
    return found


@agents.command(short_help="One agent: its card, skills and tools.")
@_AGENT
@click.option("--card", is_flag=True, help="Print its card as it came.")
@click.option("--cards", is_flag=True, help="List the cards it has had.")
@click.option("--diff", type=click.IntRange(1, 50), metavar="N",
              help="How card N differs from the one before it; 1 is the newest.")  # fmt: skip
@home_option
@json_option
def show(
    agent: str, card: bool, cards: bool, diff: int | None, home: str | None, as_json: bool
) -> None:
    """Show the agent NAME: how it is, what it can do, and which tools that makes.

    \b
    dragoman agents show ops
    dragoman agents show ops --card > card.json
    dragoman agents show ops --diff 1            what has changed with the last card
    """
    if card + cards + (diff is not None) > 1:
        fail("--card, --cards and --diff exclude each other", USAGE)
    with connect_hub(home) as hub:
        if cards or diff is not None:
            query = f"?n={diff}" if diff is not None else ""
            found = hub.get(f"{_build_path(agent)}/cards{query}")
        else:
            found = hub.get(_build_path(agent))
            found = _refetch_unknown(hub, found) if hub.is_temporary else found
    if card:
        print_json(found["card"])
    elif as_json:
        print_json(found)
    elif cards:
        rows = [(one["n"], one["seenAt"], one["bytes"], one["digest"]) for one in found["cards"]]
        print_table(["N", "SEEN", "BYTES", "SHA256"], rows)
    elif diff is not None:
        _print_card_diff(found)
    else:
        _print_agent(found)


def _print_card_diff(found: dict[str, Any]) -> None:
    if "diff" not in found:
        print("there was no card before this one")
        return
    for line in found["diff"].splitlines() or ["it says the same"]:
        print(escape_controls(line))


def _print_agent(agent: dict[str, Any]) -> None:
    card = agent["card"] or {}
    print(f"{clean(agent['name'])} ({agent['slug']}, {agent['id']})")
    rows = [
        ("url", agent["url"]),
        ("health", agent["health"] + (f": {agent['reason']}" if agent["reason"] else "")),
        ("trust", agent["trustLevel"]),
        ("speaks", agent["dialect"] or "-"),
        ("answers in", f"{agent['latencyMs']:g} ms" if agent["latencyMs"] is not None else "-"),
        ("last seen", agent["lastSeenAt"] or "-"),
        ("registered", "config.toml" if agent["source"] == "config" else agent["createdAt"]),
        ("pin", agent["pin"]),
        ("card", f"{card.get('name', '-')} {card.get('version', '')}"),
    ]
    for name, value in rows:
        print(f"  {name:<11} {clean(value)}")
    for finding in agent["findings"]:
        print(f"  {'finding':<11} {clean(finding)}")
    if agent["skills"]:
        print()
        listed = [(one["id"], one["name"], one["description"]) for one in agent["skills"]]
        print_table(["SKILL", "NAME", "DESCRIPTION"], listed)
    if agent["tools"]:
        print()
        print("tools: " + ", ".join(clean(tool) for tool in agent["tools"]))


@agents.command(short_help="Look at an agent now.")
@_AGENT
@home_option
@json_option
def refresh(agent: str, home: str | None, as_json: bool) -> None:
    """Look at the agent NAME now: read its card again and see whether it answers.

    \b
    dragoman agents refresh ops
    """
    with connect_hub(home) as hub:
        found = hub.send("POST", f"{_build_path(agent)}/refetch", {}, ADD_SECONDS)
        held = hub.list_quarantined()
    _report(found, as_json, "was looked at", held)


@agents.command(short_help="Forget an agent.")
@_AGENT
@home_option
@json_option
def remove(agent: str, home: str | None, as_json: bool) -> None:
    """Forget the agent NAME, its tools and its cards. The record of past calls stays.

    \b
    dragoman agents remove ops
    """
    with connect_hub(home) as hub:
        found = hub.send("DELETE", _build_path(agent))
    if as_json:
        print_json(found)
    else:
        print(f'agent "{clean(found["removed"])}" is removed')


@agents.command(short_help="Say how far an agent is trusted.")
@_AGENT
@click.argument("level", type=click.Choice(["external", "trusted"]), metavar="LEVEL")
@home_option
@json_option
def trust(agent: str, level: str, home: str | None, as_json: bool) -> None:
    """Trust the agent NAME as LEVEL; policies and labels go by it from the next call on.

    \b
    dragoman agents trust ops trusted
    """
    with connect_hub(home) as hub:
        found = hub.send("PATCH", _build_path(agent), {"trustLevel": level}, ADD_SECONDS)
        held = hub.list_quarantined()
    _report(found, as_json, f"is {level}", held)


@agents.command(short_help="Accept what an agent has changed.")
@_AGENT
@yes_option
@home_option
@json_option
def approve(agent: str, yes: bool, home: str | None, as_json: bool) -> None:
    """Accept all that is held of the agent NAME: its card, or skills, as they are now.

    \b
    dragoman agents approve ops          shows it, and asks on a terminal
    dragoman agents approve ops --yes

    What has changed since it was first seen is neither listed nor called until then; see what it
    is with `dragoman pins diff`. Skills are looked at once the card is accepted: what of them is
    held then is said, and accepted by the same command.
    """
    with connect_hub(home) as hub:
        found = hub.get(_build_path(agent))
        done = show_and_approve(hub, found["name"], as_json, must_confirm(yes, as_json))
        found = hub.send("POST", f"{_build_path(found['id'])}/refetch", {}, ADD_SECONDS)
        held = hub.list_quarantined()
    if as_json:
        print_json({"approved": done, "agent": found})
    else:
        _report(found, False, "is approved as it is now", held)


def _build_path(agent: str) -> str:
    return f"{AGENTS}/{quote(agent, safe='')}"


def _report(agent: dict[str, Any], as_json: bool, what: str, held: list[dict[str, Any]]) -> None:
    if as_json:
        print_json(agent)
        return
    name = clean(agent["name"])
    # The agent as such is a tool too, but its name begins otherwise.
    count = sum(tool != f"{agent['name']}.message" for tool in agent["tools"])
    tools = f"{count} tool{'s' * (count != 1)} under {agent['slug']}."
    print(f'agent "{name}" {what}: {agent["health"]}, {tools}')
    if waits := _describe_quarantined(agent, held):
        say(f'agent "{name}": {waits}')
    if agent["reason"]:
        say(f'agent "{name}": {agent["reason"]}')
    for finding in agent["findings"]:
        say(f'agent "{name}": {finding}')


DISPATCHES = "/api/a2a/dispatches"
PAGE = 200
STATUSES = ("running", "completed", "asked", "failed", "denied", "cancelled")
MOST_CALLS = 10_000


@agents.command(short_help="What was asked of agents, by whom, and what came of it.")
@click.argument("agent", metavar="[NAME]", required=False)
@click.option("--status", metavar="WORD", type=click.Choice(STATUSES),
              help=f"Only these: {', '.join(STATUSES)}.")  # fmt: skip
@click.option("--since", metavar="TIME",
              help="Only what began since: 2026-01-31, or 2026-01-31T12:00:00Z.")  # fmt: skip
@click.option("-n", "lines", default=20, show_default=True, type=click.IntRange(1, MOST_CALLS),
              help="How many.")  # fmt: skip
@home_option
@json_option
def calls(
    agent: str | None,
    status: str | None,
    since: str | None,
    lines: int,
    home: str | None,
    as_json: bool,
) -> None:
    """The newest calls of skills, of the agent NAME or of all agents; those under way too.

    \b
    dragoman agents calls
    dragoman agents calls ops --status failed -n 100
    dragoman agents calls --since 2026-01-31 --json

    TASK is what the call is known by at the agent: `dragoman a2a task URL TASK` asks it. The audit
    has the same calls, proved, and all others: `dragoman audit tail --agent "Vercel Ops"`.
    """
    with connect_hub(home) as hub:
        wanted = {"status": status, "from": since}
        if agent is not None:
            wanted["agentId"] = hub.get(f"{AGENTS}/{quote(agent, safe='')}")["id"]
        found = _list_dispatches(hub, {key: value for key, value in wanted.items() if value}, lines)
    if as_json:
        print_json(found)
    elif not found:
        print("no such calls")
    else:
        print_table(
            ["AT", "VERB", "CALLER", "STATUS", "MS", "TRACE", "TASK"],
            [_build_row(c) for c in found],
        )


def _list_dispatches(hub: HubClient, wanted: dict[str, str], lines: int) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    cursor: str | None = ""
    while cursor is not None and len(found) < lines:
        query = {**wanted, "limit": str(min(lines - len(found), PAGE))}
        query |= {"cursor": cursor} if cursor else {}
        page = hub.get(f"{DISPATCHES}?{urlencode(query)}")
        found += page["dispatches"]
        cursor = page["nextCursor"]
    return found


def _build_row(one: dict[str, Any]) -> tuple[Any, ...]:
    state = one["status"] + (f" ({one['errorCode']})" if one["errorCode"] is not None else "")
    took = "-" if one["latencyMs"] is None else f"{one['latencyMs']:.0f}"
    at = one["startedAt"].partition(".")[0].replace("T", " ")
    return at, one["verb"], one["caller"], state, took, one["traceId"][:8], one["taskId"] or "-"
