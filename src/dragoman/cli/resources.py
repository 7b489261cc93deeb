"""`resources`: lists the resources of servers and reads one."""

from __future__ import annotations

import base64
import binascii
import os
import sys
from pathlib import Path
from typing import Any

import click

from dragoman.cli.base.errors import TARGET_FAILED, USAGE, CommandFailed, fail, say
from dragoman.cli.base.hub_client import connect_hub, suggest
from dragoman.cli.base.output import clean, common_options, print_json, print_table, render_output
from dragoman.cli.completion import complete_resources

READ_SECONDS = 90_000.0


@click.group(invoke_without_command=True)
@click.pass_context
@click.option("--server", "of", metavar="NAME", help="Only resources of this server.")
@common_options
def resources(ctx: click.Context, of: str | None, home: str | None, as_json: bool) -> None:
    """List the resources of all servers; `read` prints one or saves it.

    \b
    dragoman resources
    dragoman resources templates                       list URI templates
    dragoman resources read file:///notes/today.md
    dragoman resources read demo://logo.png -o logo.png
    """
    if ctx.invoked_subcommand is None:
        found = _list_resources(home, of)
        _print_resources(found["resources"], "uri", as_json)
        if not as_json and found["templates"]:
            say(f"plus {len(found['templates'])} templates; see: dragoman resources templates")


@resources.command(short_help="List URI templates.")
@click.option("--server", "of", metavar="NAME", help="Only resources of this server.")
@common_options
def templates(of: str | None, home: str | None, as_json: bool) -> None:
    """List resource templates: URIs with parameters in braces.

    \b
    dragoman resources templates
    dragoman resources read note://2026-01-31          matches the template note://{day}
    """
    _print_resources(_list_resources(home, of)["templates"], "uriTemplate", as_json)


def _list_resources(home: str | None, of: str | None) -> dict[str, list[dict[str, Any]]]:
    with connect_hub(home) as hub:
        hub.wait_until_connected(agents=False)
        found: dict[str, list[dict[str, Any]]] = hub.get("/api/resources")
    return {
        kind: [one for one in listed if of is None or one["server"] == of]
        for kind, listed in found.items()
    }


def _print_resources(found: list[dict[str, Any]], key: str, as_json: bool) -> None:
    if as_json:
        print_json(found)
    elif found:
        rows = [
            (
                one[key],
                one["server"],
                one.get("mimeType", "-"),
                " - ".join(filter(None, (one.get("title") or one["name"], one["description"]))),
            )
            for one in found
        ]
        print_table(["URI", "SERVER", "TYPE", "DESCRIPTION"], rows)
    else:
        print("no resources; see: dragoman servers")


@resources.command(short_help="Print a resource, or save it to a file.")
@click.argument("uri", metavar="URI", shell_complete=complete_resources)
@click.option("-o", "--output", metavar="FILE", help="Save to FILE; - is stdout.")
@click.option("--force", is_flag=True, help="Overwrite FILE.")
@common_options
def read(uri: str, output: str | None, force: bool, home: str | None, as_json: bool) -> None:
    """Print the resource at URI, or save it to a file. Binary data needs -o or a pipe.

    \b
    dragoman resources read file:///notes/today.md
    dragoman resources read demo://logo.png -o logo.png
    dragoman resources read demo://logo.png > logo.png

    Exit codes are the same as for `dragoman call`.
    """
    with connect_hub(home) as hub:
        hub.wait_until_connected(agents=False)

        def hint() -> str:
            known = [one["uri"] for one in hub.get("/api/resources")["resources"]]
            return suggest(uri, known) or "see: dragoman resources"

        found = hub.send("POST", "/api/resources/read", {"uri": uri}, READ_SECONDS, hint=hint)
    if as_json:
        return print_json(found)
    contents = found["contents"]
    if output is not None and output != "-":
        if len(contents) != 1:
            fail(
                f"the resource has {len(contents)} parts, too many for one file; use --json", USAGE
            )
        _save_file(_decode_part(contents[0]), Path(output), force)
        return
    for part in contents:
        _print_part(part, output == "-")


def _print_part(part: dict[str, Any], forced: bool) -> None:
    if "blob" not in part:
        print(render_output(str(part.get("text", "")), sys.stdout))
        return
    data = _decode_part(part)
    if sys.stdout.isatty() and not forced:
        kind = clean(part.get("mimeType") or "no type")
        say(f"{clean(part.get('uri'))}: {len(data)} bytes, {kind}; save it with -o FILE")
        return
    sys.stdout.flush()
    sys.stdout.buffer.write(data)
    sys.stdout.buffer.flush()


def _decode_part(part: dict[str, Any]) -> bytes:
    if "blob" not in part:
        return str(part.get("text", "")).encode()
    try:
        return base64.b64decode(str(part["blob"]), validate=True)
    except binascii.Error:
        fail(f"{part.get('uri')}: the server sent invalid base64", TARGET_FAILED)


def _save_file(data: bytes, file: Path, force: bool) -> None:
    flags = os.O_WRONLY | os.O_CREAT | (os.O_TRUNC if force else os.O_EXCL)
    try:
        with os.fdopen(os.open(file, flags, 0o600), "wb") as opened:
            opened.write(data)
    except FileExistsError:
        raise CommandFailed(f'"{file}" already exists; use --force to overwrite it') from None
    print(f"saved {len(data)} bytes to {file}")
