"""`agents`: lists all agents, and manages external ones, whose skills are tools of the hub."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from urllib.parse import quote, urlencode

import click

from dragoman.cli.base.arguments import parse_header
from dragoman.cli.base.errors import USAGE, fail, say
from dragoman.cli.base.hub_client import HubClient, connect_hub, resolve_home
from dragoman.cli.base.output import (
    RenamingChoice,
    clean,
    common_options,
    print_json,
    print_result,
    print_table,
)
from dragoman.cli.base.prompt import yes_option
from dragoman.cli.completion import complete_agents
from dragoman.cli.local_agents import (
    LOCAL_AGENTS,
    check,
    find_local_agent,
    new,
    print_local_agent,
    print_local_agents,
)
from dragoman.cli.logins import log_in, log_out, login_options, logout_options
from dragoman.cli.pins import must_confirm, show_and_approve
from dragoman.config import RENAMED_WIRES, load
from dragoman.core.errors import ConfigError
from dragoman.core.safe_text import escape_controls

AGENTS = "/api/a2a/agents"
ADD_SECONDS = 90_000.0
"""Longer than the longest agent timeout: the hub ends the request, not the command."""

CARD = "card"

_AGENT = click.argument("agent", metavar="NAME", shell_complete=complete_agents)


@click.group(invoke_without_command=True)
@click.pass_context
@common_options
def agents(ctx: click.Context, home: str | None, as_json: bool) -> None:
    """Manage agents: those that run in this hub, and external A2A agents.

    \b
    dragoman agents                                              list all agents
    dragoman agents new helper                                   write the manifest of a new agent
    dragoman agents check                                        check the manifests

    \b
    dragoman agents add https://agents.example.com/ops           register an agent by its URL
    dragoman agents add https://… --token env:DRAGOMAN_AGENT_OPS with a token, by reference
    dragoman agents show "Vercel Ops"                            show card, skills and tools
    dragoman agents refresh ops                                  check it now
    dragoman agents trust ops trusted                            set its trust level
    dragoman agents approve ops                                  approve its changes
    dragoman agents calls ops                                    list calls to it
    dragoman agents login ops                                    log in with the browser
    dragoman agents remove ops

    \b
    NAME is a name, slug or id. Health is healthy, degraded (a request failed, or responses are
    invalid or slow), unreachable (no tools until it answers again) or unknown (not tried yet).

    Each skill of an external agent is a tool of the hub. External agents can also be configured in
    config.toml as [[a2a.external_agents]]. Use `dragoman chat` to talk to an agent, `dragoman a2a`
    to send it single messages, and `dragoman call` to call one of its skills.
    """
    if ctx.invoked_subcommand is None:
        _list_agents(home, as_json)


@agents.command("list", short_help="List agents.")
@common_options
def list_command(home: str | None, as_json: bool) -> None:
    """List the agents of this hub with their models and tools, and the external ones with health,
    trust level, skills, last contact and problems.

    \b
    dragoman agents list
    """
    _list_agents(home, as_json)


def _list_agents(home: str | None, as_json: bool) -> None:
    with connect_hub(home) as hub:
        found = hub.get(AGENTS)
        if hub.is_temporary:
            found["agents"] = [_refetch_unknown(hub, agent) for agent in found["agents"]]
        quarantined = hub.list_quarantined()
        local = hub.get(LOCAL_AGENTS)
    if as_json:
        names = [one["name"] for one in local["agents"]]
        more = {"localAgents": local["agents"], "failed": local["failed"]}
        return print_json({**found, "local": names, **more})
    has_local = bool(local["agents"] or local["failed"])
    if has_local:
        print_local_agents(local["agents"], local["failed"])
    if not found["agents"]:
        if not has_local:
            print("no agents; see: dragoman agents new --help, dragoman agents add --help")
        return
    if has_local:
        print()
    rows = [
        (
            agent["name"],
            agent["health"] if agent["enabled"] else "off",
            agent["trustLevel"],
            len(agent["skills"]),
            (agent["lastSeenAt"] or "-").partition(".")[0].replace("T", " "),
            agent["url"],
            "; ".join(filter(None, (agent["reason"], _describe_quarantined(agent, quarantined)))),
        )
        for agent in found["agents"]
    ]
    print_table(
        ["NAME", "HEALTH", "TRUST", "SKILLS", "LAST SEEN", "URL", "REMARKS"], rows, whole=True
    )


agents.add_command(new)
agents.add_command(check)


def _describe_quarantined(agent: dict[str, Any], pins: list[dict[str, Any]]) -> str:
    """Describes the skills of an agent that are quarantined until approved."""
    names = [pin["name"] for pin in pins if pin["target"] == agent["name"] and pin["kind"] != CARD]
    if not names:
        return ""  # its health reports a quarantined card
    more = f" and {len(names) - 1} more" if len(names) > 1 else ""
    return f"quarantined until approved: {names[0]}{more}; see: dragoman pins diff {names[0]}"


def _refetch_unknown(hub: HubClient, agent: dict[str, Any]) -> dict[str, Any]:
    """Checks an agent now if a temporary hub has not done so yet."""
    if agent["health"] != "unknown" or not agent["enabled"]:
        return agent
    seen: dict[str, Any] = hub.send("POST", f"{_build_path(agent['id'])}/refetch", {}, ADD_SECONDS)
    return seen


@agents.command(short_help="Register an agent by its URL.")
@click.argument("url")
@click.option("--name", help="Name of the agent here [default: the name in its card].")
@click.option("--token", metavar="env:NAME|file:PATH",
              help="Bearer token, by reference: an environment variable whose name begins with "
              "DRAGOMAN_AGENT_ or is listed in [bridge] credential_env, or a private file below "
              "tokens/ in the hub's home (file:tokens/NAME).")  # fmt: skip
@click.option("--header", "headers", multiple=True, metavar="'NAME: ${VARIABLE}'",
              help="Header with a secret, by reference to such a variable.")  # fmt: skip
@click.option("--trust", type=click.Choice(["external", "trusted"]), default=None,
              help="Trust level [default: external].")  # fmt: skip
@click.option("--pin", type=click.Choice(["strict", "first", "off"]), default=None,
              help="What is quarantined until approved: everything (strict), changes (first, the "
              "default), nothing (off).")  # fmt: skip
@click.option("--wire", type=RenamingChoice(["auto", "skill-only"], RENAMED_WIRES), default=None,
              help="How a skill is called: as its card says (auto, the default), or by "
              "message/send with none of the members that 0.3 added (skill-only).")  # fmt: skip
@click.option("--timeout", "timeout_secs", metavar="SECONDS", type=click.FloatRange(0.1, 86_400),
              help="Time to wait for each response [default: 30].")  # fmt: skip
@click.option("--allow-private", is_flag=True,
              help="Allow the host in URL to resolve to a private address.")  # fmt: skip
@click.option("--public", is_flag=True,
              help="Publish its card to clients without a key.")  # fmt: skip
@click.option("--credentials", type=click.Choice(["shared", "user"]), default=None,
              help="Whose login its calls use, if it needs OAuth: one for all callers (shared, the "
              "default), or that of each user (user).")  # fmt: skip
@common_options
def add(
    url: str, headers: tuple[str, ...], home: str | None, as_json: bool, **options: Any
) -> None:
    """Register the agent at URL: the URL of its card, or the base URL of the agent.

    \b
    dragoman agents add https://agents.example.com/vercel-ops
    dragoman agents add http://localhost:9999 --name local --trust trusted
    dragoman agents add https://a.example.com --token env:DRAGOMAN_AGENT_A
    dragoman agents add https://a.example.com --header 'X-Api-Key: ${DRAGOMAN_AGENT_A}'
    dragoman agents add https://a.example.com --token file:tokens/a

    The agent is registered only if its card can be read. Registering it again checks it again.

    Secrets are given by reference only: put the line DRAGOMAN_AGENT_A=… into the file env in the
    hub's home. A variable with another name must be listed in config.toml as credential_env =
    ["A_TOKEN"] below [bridge]. The hub sends a secret only to the scheme, host and port that it was
    first registered for.
    """
    body: dict[str, Any] = {"url": url}
    body |= {key: value for key, value in options.items() if value not in (None, False)}
    if headers:
        body["headers"] = dict(parse_header(line, "NAME: ${VARIABLE}") for line in headers)
    _change(home, as_json, "is registered", "POST", AGENTS, body)
    if not as_json and not _has_exposed_tools(resolve_home(home)):
        say(
            'IDEs do not see its skills yet: add stdio_expose = ["*"] below [mcp] in config.toml; '
            "dragoman init writes such a file"
        )


def _has_exposed_tools(place: str) -> bool:
    """Whether IDEs see tools besides the agents themselves."""
    try:
        return bool(load(Path(place) / "config.toml").mcp.stdio_expose)
    except ConfigError:
        return True  # other commands report it


@agents.command(short_help="Log in at an external agent with the browser.")
@_AGENT
@login_options
@common_options
def login(agent: str, home: str | None, as_json: bool, **options: Any) -> None:
    """Log in at external agent NAME with OAuth: your browser opens a page of the running hub, from
    there the page of the agent's authorization server, and returns.

    \b
    dragoman agents login ops
    dragoman agents login ops --no-browser       print the link
    dragoman agents login ops --device           enter a code on another device

    Exit codes: 0 logged in, 3 no hub running, 4 not permitted, 5 unknown agent, 6 not logged in.
    """
    log_in("agent", agent, home, as_json, **options)


@agents.command(short_help="Remove and revoke a login.")
@_AGENT
@logout_options
@common_options
def logout(agent: str, home: str | None, as_json: bool, **options: Any) -> None:
    """Remove the login at external agent NAME, and revoke it there.

    \b
    dragoman agents logout ops
    dragoman agents logout ops --all        as an administrator
    """
    log_out("agent", agent, home, as_json, **options)


@agents.command(short_help="Show an agent's card, skills and tools.")
@_AGENT
@click.option("--card", is_flag=True, help="Print its original card.")
@click.option("--cards", is_flag=True, help="List the history of its cards.")
@click.option("--diff", type=click.IntRange(1, 50), metavar="N",
              help="Show the diff of card N to the one before it; 1 is the newest.")  # fmt: skip
@common_options
def show(
    agent: str, card: bool, cards: bool, diff: int | None, home: str | None, as_json: bool
) -> None:
    """Show the health, card, skills and tools of agent NAME; of one in this hub, what it may use.

    \b
    dragoman agents show ops
    dragoman agents show ops --card > card.json
    dragoman agents show ops --diff 1            what the newest card changed
    """
    if card + cards + (diff is not None) > 1:
        fail("--card, --cards and --diff exclude each other", USAGE)
    with connect_hub(home) as hub:
        if not (card or cards or diff) and (local := find_local_agent(hub, agent)) is not None:
            return print_json(local) if as_json else print_local_agent(local)
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
        print("no earlier card")
        return
    for line in found["diff"].splitlines() or ["no differences"]:
        print(escape_controls(line))


def _print_agent(agent: dict[str, Any]) -> None:
    card = agent["card"] or {}
    print(f"{clean(agent['name'])} ({agent['slug']}, {agent['id']})")
    rows = [
        ("url", agent["url"]),
        ("health", agent["health"] + (f": {agent['reason']}" if agent["reason"] else "")),
        ("trust", agent["trustLevel"]),
        ("protocol", agent["dialect"] or "-"),
        ("latency", f"{agent['latencyMs']:g} ms" if agent["latencyMs"] is not None else "-"),
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


@agents.command(short_help="Check an agent now.")
@_AGENT
@common_options
def refresh(agent: str, home: str | None, as_json: bool) -> None:
    """Check agent NAME now: fetch its card again and test whether it answers.

    \b
    dragoman agents refresh ops
    """
    _change(home, as_json, "was checked", "POST", f"{_build_path(agent)}/refetch", {})


@agents.command(short_help="Remove an agent.")
@_AGENT
@common_options
def remove(agent: str, home: str | None, as_json: bool) -> None:
    """Remove agent NAME with its tools and cards. The audit of past calls stays.

    \b
    dragoman agents remove ops
    """
    with connect_hub(home) as hub:
        if (local := find_local_agent(hub, agent)) is not None:
            source = local.get("source") or "its manifest"
            fail(f'agent "{agent}" runs in this hub; to remove it, delete it from {source}', USAGE)
        found = hub.send("DELETE", _build_path(agent))
    print_result(found, f'agent "{clean(found["removed"])}" is removed', as_json)


@agents.command(short_help="Set the trust level of an agent.")
@_AGENT
@click.argument("level", type=click.Choice(["external", "trusted"]), metavar="LEVEL")
@common_options
def trust(agent: str, level: str, home: str | None, as_json: bool) -> None:
    """Set the trust level of agent NAME to LEVEL (external or trusted).

    \b
    dragoman agents trust ops trusted

    Policies and taint labels use it from the next call on.
    """
    _change(home, as_json, f"is {level}", "PATCH", _build_path(agent), {"trustLevel": level})


@agents.command(short_help="Approve the changes of an agent.")
@_AGENT
@yes_option
@common_options
def approve(agent: str, yes: bool, home: str | None, as_json: bool) -> None:
    """Approve everything quarantined of agent NAME: its card and its skills as they are now.

    \b
    dragoman agents approve ops          shows the changes and asks on a terminal
    dragoman agents approve ops --yes

    A definition that changed since it was first seen is neither listed nor callable until it is
    approved; `dragoman pins diff` shows the change. Skills are checked after the card is approved:
    run the command again to approve skills that are quarantined then.
    """
    with connect_hub(home) as hub:
        found = hub.get(_build_path(agent))
        done = show_and_approve(hub, found["name"], as_json, must_confirm(yes, as_json))
        found = hub.send("POST", f"{_build_path(found['id'])}/refetch", {}, ADD_SECONDS)
        quarantined = hub.list_quarantined()
    if as_json:
        print_json({"approved": done, "agent": found})
    else:
        _report(found, False, "is approved as it is now", quarantined)


def _change(
    home: str | None, as_json: bool, what: str, method: str, path: str, body: dict[str, Any]
) -> None:
    """Sends a request that returns the agent, and reports it as `what`."""
    with connect_hub(home) as hub:
        agent = hub.send(method, path, body, ADD_SECONDS)
        quarantined = hub.list_quarantined()
    _report(agent, as_json, what, quarantined)


def _build_path(agent: str) -> str:
    return f"{AGENTS}/{quote(agent, safe='')}"


def _report(agent: dict[str, Any], as_json: bool, what: str, pins: list[dict[str, Any]]) -> None:
    if as_json:
        return print_json(agent)
    name = clean(agent["name"])
    # The agent itself is a tool too, but without the slug prefix.
    count = sum(tool != f"{agent['name']}.message" for tool in agent["tools"])
    tools = f"{count} tool{'s' * (count != 1)} under {agent['slug']}."
    print(f'agent "{name}" {what}: {agent["health"]}, {tools}')
    if waits := _describe_quarantined(agent, pins):
        say(f'agent "{name}": {waits}')
    if agent["reason"]:
        say(f'agent "{name}": {agent["reason"]}')
    for finding in agent["findings"]:
        say(f'agent "{name}": {finding}')


DISPATCHES = "/api/a2a/dispatches"
PAGE = 200
STATUSES = ("running", "completed", "asked", "parked", "failed", "denied", "cancelled")
MOST_CALLS = 10_000


@agents.command(short_help="List calls to agents and their outcome.")
@click.argument("agent", metavar="[NAME]", required=False)
@click.option("--status", metavar="WORD", type=click.Choice(STATUSES),
              help=f"Only calls with this status: {', '.join(STATUSES)}.")  # fmt: skip
@click.option("--since", metavar="TIME",
              help="Only calls since this time: 2026-01-31, or 2026-01-31T12:00:00Z.")  # fmt: skip
@click.option("-n", "lines", default=20, show_default=True, type=click.IntRange(1, MOST_CALLS),
              help="Number of calls.")  # fmt: skip
@common_options
def calls(
    agent: str | None, lines: int, home: str | None, as_json: bool, **filters: str | None
) -> None:
    """List the newest calls of skills, of agent NAME or of all agents, with those in progress.

    \b
    dragoman agents calls
    dragoman agents calls ops --status failed -n 100
    dragoman agents calls --since 2026-01-31 --json

    TASK is the id of the task at the agent; `dragoman a2a task URL TASK` shows it. The audit log
    has these calls too, tamper-evident: `dragoman audit tail --agent "Vercel Ops"`.
    """
    with connect_hub(home) as hub:
        wanted = {"status": filters["status"], "from": filters["since"]}
        if agent is not None:
            wanted["agentId"] = hub.get(_build_path(agent))["id"]
        found = _list_dispatches(hub, {key: value for key, value in wanted.items() if value}, lines)
    if as_json:
        print_json(found)
    elif not found:
        print("no calls found")
    else:
        heads = ["AT", "VERB", "CALLER", "STATUS", "MS", "TRACE", "TASK"]
        print_table(heads, [_build_row(one) for one in found])


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
