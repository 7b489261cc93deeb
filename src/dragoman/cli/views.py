"""`views`: lists the views, shows their tools, and estimates what a list costs a client."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from urllib.parse import quote, urlencode

import click

from dragoman.cli.base.errors import UnreadableFile
from dragoman.cli.base.hub_client import connect_hub, resolve_home
from dragoman.cli.base.output import common_options, print_json, print_table
from dragoman.cli.base.toml_edit import append_toml, parse_toml, render_value
from dragoman.cli.completion import complete_views

BUDGET_VIEW = "search"
_EVERYTHING = "Everything, found by search where the list is long"


@click.group()
def views() -> None:
    """Show views: which tools a client is listed, and how many tokens they cost.

    \b
    dragoman views list
    dragoman views show ide
    dragoman views cost
    dragoman views cost ide --client cursor
    dragoman views budget 8000

    A view is a part of the hub with a name: [[views]] in config.toml. It is served at
    /mcp/v/NAME, by `dragoman mcp --view NAME`, and to keys that are bound to it.
    """


@views.command("list")
@common_options
def list_views(home: str | None, as_json: bool) -> None:
    """List the views.

    \b
    dragoman views list
    """
    with connect_hub(home) as hub:
        found = hub.get("/api/views")
    if as_json:
        return print_json(found["views"])
    if not found["views"]:
        return print("no views; add one to config.toml: [[views]]. See: dragoman docs views")
    print_table(
        ["NAME", "PATH", "TOOLS", "TOKENS", "BUDGET", "LISTED AS", "DESCRIPTION"],
        [
            [
                one["name"],
                one["path"],
                one["tools"],
                f"{one['tokens']:,}",
                _render_budget(one),
                "find_tools, call_tool" if one["searching"] else "all tools",
                one["description"],
            ]
            for one in found["views"]
        ],
    )


@views.command()
@click.argument("name", shell_complete=complete_views)
@common_options
def show(name: str, home: str | None, as_json: bool) -> None:
    """Show the rule and the tools of the view NAME.

    \b
    dragoman views show ide
    """
    found = _fetch(home, name, "")
    if as_json:
        return print_json(found)
    print(f"{found['name']}: {found['description'] or 'no description'}")
    for key, value in found.get("rule", {}).items():
        if value:
            print(f"  {key}: {_render_value(value)}")
    print(f"  served at {found['path']}\n")
    print_table(
        ["TOOL", "ID", "SERVER"],
        sorted([one["name"], one["id"], one["server"]] for one in found["list"]),
    )


@views.command()
@click.argument("name", required=False, shell_complete=complete_views)
@click.option("--client", metavar="NAME", default="",
              help="Name of a client, which decides how its tools are called.")  # fmt: skip
@common_options
def cost(name: str | None, client: str, home: str | None, as_json: bool) -> None:
    """Estimate the tokens that the tools of the view NAME cost a client, or those of all views.

    \b
    dragoman views cost
    dragoman views cost ide
    dragoman views cost ide --client cursor

    The estimate is one token for every four bytes of the name, the description and the input schema
    of a tool, as JSON: about a tenth more than the tokenizers of OpenAI count.
    """
    if name is None:
        return _print_costs(home, client, as_json)
    found = _fetch(home, name, client)
    if as_json:
        return print_json(found)
    print_table(
        ["TOKENS", "TOOL", "SERVER"],
        [[f"{one['tokens']:,}", one["name"], one["server"]] for one in found["list"]],
    )
    print(f"\n{found['tools']} tools, about {found['tokens']:,} tokens. {_explain(found)}")


@views.command()
@click.argument("tokens", type=click.IntRange(500, 1_000_000))
@common_options
def budget(tokens: int, home: str | None, as_json: bool) -> None:
    """Have all clients without a view of their own search for tools once the list of all tools
    takes more than TOKENS.

    \b
    dragoman views budget 8000

    Adds the view "search", with everything and that token_budget, to config.toml, and chooses it
    for every client. Clients then get find_tools and call_tool in place of the list; a running hub
    applies it at once. To undo it, remove both tables from config.toml.
    """
    from dragoman.cli.configure import FIRST_CONFIG, edit_config
    from dragoman.home import prepare

    def edit(text: str) -> str:
        text = text or FIRST_CONFIG
        document = parse_toml(text)
        names = [one.get("name") for one in document.get("views", ())]
        chosen = document.get("mcp", {}).get("views_for")
        if chosen or BUDGET_VIEW in names:
            where = "[mcp] views_for" if chosen else f'the view "{BUDGET_VIEW}"'
            raise UnreadableFile(f"it already has {where}: set token_budget in the view")
        entry = {"name": BUDGET_VIEW, "description": _EVERYTHING, "token_budget": tokens}
        lines = [f"{key} = {render_value(value)}" for key, value in entry.items()]
        new = append_toml(text, "\n".join(["[[views]]", *lines]) + "\n")
        new = append_toml(new, f'[mcp.views_for]\n"*" = {render_value(BUDGET_VIEW)}\n')
        document["views"] = [*document.get("views", ()), entry]
        document.setdefault("mcp", {})["views_for"] = {"*": BUDGET_VIEW}
        if parse_toml(new) != document:
            raise UnreadableFile("the layout of its views cannot be edited safely")
        return new

    place = resolve_home(home)
    prepare(place)
    file = Path(place) / "config.toml"
    backup = edit_config(file, edit)
    if as_json:
        return print_json({"view": BUDGET_VIEW, "token_budget": tokens, "config": str(file)})
    kept = f" (backup: {backup.name})" if backup else ""
    print(f'added the view "{BUDGET_VIEW}" for all clients to {file}{kept}')
    print("what it costs: dragoman views cost")


def _print_costs(home: str | None, client: str, as_json: bool) -> None:
    query = f"?{urlencode({'client': client})}" if client else ""
    with connect_hub(home) as hub:
        found = hub.get(f"/api/views{query}")
    if as_json:
        return print_json(found)
    rows = [
        [one["name"], one["tools"], f"{one['tokens']:,}", f"{one['listed_tokens']:,}"]
        for one in [*found["views"], {"name": "(without a view)", **found["all"]}]
    ]
    print_table(["VIEW", "TOOLS", "TOKENS OF ALL", "TOKENS OF THE LIST"], rows)
    if client:
        print(f"\n{client} gets: {found['chosen'] or 'no view of its own'}")


def _fetch(home: str | None, name: str, client: str) -> Any:
    query = f"?{urlencode({'client': client})}" if client else ""
    with connect_hub(home) as hub:
        return hub.send(
            "GET", f"/api/views/{quote(name, safe='')}{query}", hint=lambda: "dragoman views list"
        )


def _explain(found: dict[str, Any]) -> str:
    if found["searching"]:
        return (
            f"Clients are listed find_tools and call_tool instead: about {found['listed_tokens']:,}"
            " tokens."
        )
    budget = found["token_budget"]
    if budget and found["tokens"] > budget:
        return f'That is above the budget of {budget:,}, and search = "never".'
    return f"The budget is {budget:,}." if budget else "The view has no budget."


def _render_budget(one: dict[str, Any]) -> str:
    return f"{one['token_budget']:,}" if one["token_budget"] else "-"


def _render_value(value: Any) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{name} -> {shown}" for name, shown in value.items())
    return ", ".join(value) if isinstance(value, list) else str(value)
