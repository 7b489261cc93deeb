"""`usage`: shows the tokens, cost, calls and time that agents have used."""

from __future__ import annotations

from typing import Any
from urllib.parse import urlencode

import click

from dragoman.cli.base.errors import say
from dragoman.cli.base.hub_client import connect_hub
from dragoman.cli.base.output import common_options, print_json, print_table

GROUPS = ("agent", "principal", "origin", "trace", "model", "day")


@click.command()
@click.option("--by", metavar="NAME", multiple=True, type=click.Choice(GROUPS),
              help=f"Add up by {', '.join(GROUPS)}; may be repeated [default: agent].")  # fmt: skip
@click.option("--days", metavar="N", type=click.FloatRange(0, 366, min_open=True), default=30,
              show_default=True, help="Of so many days.")  # fmt: skip
@click.option("--agent", metavar="NAME", help="Only of this agent.")
@click.option("--principal", metavar="NAME", help="Only of this caller, for example key:ci.")
@click.option("--trace", metavar="ID", help="Only of this chain of calls.")
@common_options
def usage(by: tuple[str, ...], days: float, home: str | None, as_json: bool, **only: Any) -> None:
    """Show what agents have used: tokens, cost, calls and time.

    \b
    dragoman usage                      by agent, of 30 days
    dragoman usage --by day --days 7
    dragoman usage --by origin          by who began the work
    dragoman usage --by agent --by model --agent code-reviewer

    The cost is what the provider reports, or else follows from [prices] in config.toml. Budgets per
    day: limits.tokens_per_day and limits.cost_per_day in an agent's manifest, and [limits.budget]
    for each caller.
    """
    query = {"by": ",".join(by or ("agent",)), "days": f"{days:g}"}
    query |= {name: value for name, value in only.items() if value}
    with connect_hub(home) as hub:
        found = hub.get(f"/api/usage?{urlencode(query)}")
    if as_json:
        return print_json(found)
    if not found["usage"]:
        say("agents have used nothing yet")
        return
    names = list(by or ("agent",))
    rows = [[str(one[name]) for name in names] + _render_sums(one) for one in found["usage"]]
    if len(rows) > 1:
        rows.append(["total", *[""] * (len(names) - 1), *_render_sums(found["total"])])
    print_table([*(name.upper() for name in names), *_HEADINGS], rows)


_HEADINGS = ("MESSAGES", "MODEL CALLS", "TOOL CALLS", "TOKENS IN", "TOKENS OUT", "COST", "TIME")


def _render_sums(row: dict[str, Any]) -> list[str]:
    counts = ("messages", "model_calls", "tool_calls", "input_tokens", "output_tokens")
    return [
        *(f"{row[name]:,}" for name in counts),
        f"${row['cost']:,.4f}",
        f"{row['seconds']:,.1f} s",
    ]
