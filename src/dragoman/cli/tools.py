"""`tools` and `call`: what there is, and using it."""

from __future__ import annotations

import json
import sys
from typing import Any
from urllib.parse import quote

import click

from dragoman.cli.client import connected
from dragoman.cli.errors import FAILED, USAGE, stop
from dragoman.cli.output import home_option, json_option, print_json, table


@click.group(invoke_without_command=True)
@click.pass_context
@home_option
@json_option
@click.option("--server", help="Only the tools of this server.")
def tools(ctx: click.Context, home: str | None, as_json: bool, server: str | None) -> None:
    """List the tools; `tools show NAME` shows one with its arguments."""
    if ctx.invoked_subcommand is not None:
        return
    with connected(home) as hub:
        found = hub.get("/api/tools")["tools"]
    if server is not None:
        found = [tool for tool in found if tool["server"] == server]
    if as_json:
        print_json(found)
    elif not found:
        print("no tools yet; see: dragoman servers")
    else:
        table(["NAME", "DESCRIPTION"], [(tool["name"], tool["description"]) for tool in found])


@tools.command()
@click.argument("name")
@home_option
@json_option
def show(name: str, home: str | None, as_json: bool) -> None:
    """One tool: what it does, what it takes, an example call."""
    with connected(home) as hub:
        tool = hub.get(f"/api/tools/{quote(name, safe='')}")
    if as_json:
        print_json(tool)
        return
    print(f"{tool['name']}  (id {tool['id']}, server {tool['server']})")
    if tool["description"]:
        print(f"  {tool['description']}")
    schema = tool["definition"].get("inputSchema", {})
    properties, required = schema.get("properties", {}), schema.get("required", [])
    for argument, about in properties.items():
        about = about if isinstance(about, dict) else {}
        needed = "required" if argument in required else "optional"
        print(f"  {argument}  {about.get('type', 'any')}, {needed}  {about.get('description', '')}")
    example = " ".join(f"{argument}=…" for argument in required)
    print(f"  try: dragoman call {tool['name']} {example}".rstrip())


@click.command()
@click.argument("name")
@click.argument("arguments", nargs=-1)
@home_option
@json_option
def call(name: str, arguments: tuple[str, ...], home: str | None, as_json: bool) -> None:
    """Call a tool with arguments: one JSON object, or key=value pairs.

    \b
    dragoman call mcp_files_read path=/tmp/x
    dragoman call files.read '{"path": "/tmp/x"}'
    dragoman call files.read - < arguments.json

    A value that is JSON (a number, true, a list) is taken as such, anything else as text.
    Exits with 1 if the tool says that it failed.
    """
    given = _arguments(arguments)
    with connected(home) as hub:
        result = hub.call(name, given)
    if as_json:
        print_json(result)
    else:
        _print(result)
    if result["failed"]:
        raise SystemExit(FAILED)


def _arguments(given: tuple[str, ...]) -> dict[str, Any]:
    if not given:
        return {}
    if len(given) == 1 and (given[0] == "-" or given[0].lstrip().startswith("{")):
        text = sys.stdin.read() if given[0] == "-" else given[0]
        try:
            value = json.loads(text)
        except ValueError as error:
            stop(f"the arguments are not valid JSON: {error}", USAGE)
        if not isinstance(value, dict):
            stop("the arguments must be one JSON object", USAGE)
        return value
    pairs: dict[str, Any] = {}
    for pair in given:
        key, equals, value = pair.partition("=")
        if not equals or not key:
            stop(
                f'"{pair}" is neither key=value nor a JSON object; see: dragoman call --help', USAGE
            )
        pairs[key] = _value(value)
    return pairs


def _value(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return text


def _print(result: dict[str, Any]) -> None:
    out = sys.stderr if result["failed"] else sys.stdout
    for block in result["content"]:
        kind = block.get("type")
        if kind == "text":
            print(block.get("text", ""), file=out)
        elif kind in ("image", "audio"):
            size = len(block.get("data", "")) * 3 // 4
            print(f"[{kind}, {block.get('mimeType')}, {size} bytes; --json has it]", file=out)
        else:
            print(json.dumps(block, indent=2, ensure_ascii=False), file=out)
    if not result["content"] and "structured" in result:
        print_json(result["structured"])
