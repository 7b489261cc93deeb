"""`prompts`: lists the prompts of servers and fills one in."""

from __future__ import annotations

import sys
from typing import Any
from urllib.parse import quote

import click

from dragoman.cli.base.arguments import convert_pairs, parse_arguments
from dragoman.cli.base.errors import NOT_FOUND, fail
from dragoman.cli.base.hub_client import connect_hub, suggest
from dragoman.cli.base.output import (
    clean,
    common_options,
    print_json,
    print_table,
    render_json,
    render_output,
    style,
)
from dragoman.cli.base.schema_text import wrap
from dragoman.cli.completion import complete_prompts

GET_SECONDS = 90_000.0
_AS_TEXT = {"type": "string"}


@click.group(invoke_without_command=True)
@click.pass_context
@common_options
def prompts(ctx: click.Context, home: str | None, as_json: bool) -> None:
    """List the prompts of all servers; `get` fills one in.

    \b
    dragoman prompts
    dragoman prompts show review.summarize
    dragoman prompts get review.summarize language=French text=@letter.txt
    """
    if ctx.invoked_subcommand is not None:
        return
    with connect_hub(home) as hub:
        hub.wait_until_connected()
        found = hub.get("/api/prompts")["prompts"]
    if as_json:
        print_json(found)
    elif found:
        rows = [(one["name"], _render_arguments(one), one["description"]) for one in found]
        print_table(["NAME", "ARGUMENTS", "DESCRIPTION"], rows)
    else:
        print("no prompts; see: dragoman servers")


def _render_arguments(prompt: dict[str, Any]) -> str:
    """Renders the argument names, optional ones in brackets."""
    listed = _list_arguments(prompt)
    words = (one["name"] if one.get("required") else f"[{one['name']}]" for one in listed)
    return " ".join(words) or "-"


def _list_arguments(prompt: dict[str, Any]) -> list[dict[str, Any]]:
    """Returns the declared arguments, ignoring malformed ones."""
    found = prompt.get("arguments")
    listed = found if isinstance(found, list) else []
    return [one for one in listed if isinstance(one, dict) and isinstance(one.get("name"), str)]


def _suggest_prompt(name: str, listed: list[dict[str, Any]]) -> str:
    near = suggest(name, [known for one in listed for known in (one["name"], one["id"])])
    return near or "see: dragoman prompts"


@prompts.command(short_help="Describe a prompt and its arguments.")
@click.argument("name", shell_complete=complete_prompts)
@common_options
def show(name: str, home: str | None, as_json: bool) -> None:
    """Show the description and arguments of prompt NAME.

    \b
    dragoman prompts show review.summarize
    """
    with connect_hub(home) as hub:
        hub.wait_until_connected()
        found = hub.get("/api/prompts")["prompts"]
    prompt = next((one for one in found if name in (one["name"], one["id"])), None)
    if prompt is None:
        fail(f'unknown prompt "{name}"; {_suggest_prompt(name, found)}', NOT_FOUND)
    if as_json:
        return print_json(prompt)
    print(f"{clean(prompt['name'])}  (id {clean(prompt['id'])}, server {clean(prompt['server'])})")
    for line in str(prompt["description"]).splitlines():
        print("\n".join(wrap(clean(line), 2)))
    for one in _list_arguments(prompt):
        needed = "required" if one.get("required") else "optional"
        words = f"{clean(one['name'])}  {needed}  {clean(one.get('description') or '')}"
        print("\n".join(wrap(words.rstrip(), 6, 2)))
    example = " ".join(f"{clean(one['name'])}=…" for one in _list_arguments(prompt))
    print(f"  try: dragoman prompts get {clean(prompt['name'])} {example}".rstrip())


@prompts.command(short_help="Fill in a prompt and print its messages.")
@click.argument("name", shell_complete=complete_prompts)
@click.argument("arguments", nargs=-1, metavar="[KEY=VALUE]... | JSON | @FILE | -")
@common_options
def get(name: str, arguments: tuple[str, ...], home: str | None, as_json: bool) -> None:
    """Fill in prompt NAME with key=value arguments or one JSON object and print its messages.

    \b
    dragoman prompts get review.summarize language=French text=@letter.txt
    dragoman prompts get review.summarize '{"language": "French"}' --json

    Exit codes are the same as for `dragoman call`.
    """
    given = parse_arguments(arguments, "dragoman prompts get")
    if isinstance(given, list):
        given = convert_pairs(given, {key: _AS_TEXT for key, _ in given})
    with connect_hub(home) as hub:
        hub.wait_until_connected()
        path = f"/api/prompts/{quote(name, safe='')}/get"

        def hint() -> str:
            return _suggest_prompt(name, hub.get("/api/prompts")["prompts"])

        found = hub.send("POST", path, {"arguments": given}, GET_SECONDS, hint)
    if as_json:
        return print_json(found)
    for message in found["messages"]:
        print(style(f"[{clean(message['role'])}]", bold=True))
        content = message["content"]
        text = content.get("text") if content.get("type") == "text" else None
        print(render_output(text, sys.stdout) if isinstance(text, str) else render_json(content))
