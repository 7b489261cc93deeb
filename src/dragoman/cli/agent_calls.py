"""`agents calls`: the dispatches, what was asked of the agents of others and what came of it."""

from __future__ import annotations

from typing import Any
from urllib.parse import quote, urlencode

import click

from dragoman.cli.base.hub_client import HubClient, connect_hub
from dragoman.cli.base.output import home_option, json_option, print_json, print_table

AGENTS = "/api/a2a/agents"
DISPATCHES = "/api/a2a/dispatches"
PAGE = 200
STATUSES = ("running", "completed", "asked", "failed", "denied", "cancelled")
MOST_CALLS = 10_000


@click.command(short_help="What was asked of agents, by whom, and what came of it.")
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
