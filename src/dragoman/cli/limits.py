"""`limits`: shows the rate and concurrency limits in force, and what is left of the budgets."""

from __future__ import annotations

from typing import Any

import click

from dragoman.cli.base.hub_client import connect_hub
from dragoman.cli.base.output import common_options, print_json, print_table


@click.command()
@common_options
def limits(home: str | None, as_json: bool) -> None:
    """Show the rate and concurrency limits in force, and what is left of the budgets.

    \b
    dragoman limits           your budget, the limits, and the lowest budgets
    dragoman limits --json    the same for programs

    A budget is a number of tokens that refills steadily. Each operation costs some: a list or a
    read 1, a tool 2, an agent 10. Without enough of them an operation is refused, with the number
    of seconds after which it can be tried again. Settings: [limits.rate] in config.toml; a change
    takes effect at once.
    """
    with connect_hub(home) as hub:
        found = hub.get("/api/limits")
    if as_json:
        return print_json(found)
    print("Your budget:")
    _print_budgets(found["budgets"])
    print("\nRate limits, in tokens:")
    print_table(
        ["SCOPE", "PER MINUTE", "AT ONCE"],
        [[name, _show(one["per_minute"]), _show(one["burst"])] for name, one in _rates(found)],
    )
    costs = ", ".join(f"{name} {_show(cost)}" for name, cost in found["costs"].items())
    print(f"Costs: {costs}")
    if found["shared"]:
        print("These budgets are shared with other hubs.")
    print("\nAt once:")
    print_table(
        ["SETTING", "LIMIT", "OF ONE CALLER", "RUNNING"],
        [
            [name, *(_show(one.get(key)) for key in ("limit", "each", "running"))]
            for name, one in found["concurrency"].items()
        ],
    )
    if lowest := found.get("lowest"):
        print("\nLowest budgets:")
        _print_budgets(lowest)


def _rates(found: dict[str, Any]) -> list[tuple[str, dict[str, Any]]]:
    return list(found["rates"].items())


def _print_budgets(budgets: list[dict[str, Any]]) -> None:
    print_table(
        ["SCOPE", "NAME", "REMAINING", "OF", "FULL IN"],
        [
            [
                one["scope"],
                one["name"],
                _show(one["remaining"]),
                _show(one["burst"]),
                f"{one['full_in_secs']:g} s",
            ]
            for one in budgets
        ],
    )


def _show(number: float | None) -> str:
    return "-" if number is None else f"{number:,.0f}"
