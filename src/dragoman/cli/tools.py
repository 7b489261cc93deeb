"""`tools` and `call`: what there is, and using it."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from typing import Any

import click

from dragoman.cli import asking
from dragoman.cli.client import HubClient, connected, nearest
from dragoman.cli.errors import FAILED, NOT_FOUND, USAGE, say, stop
from dragoman.cli.output import (
    clean,
    home_option,
    json_option,
    json_text,
    output_text,
    print_json,
    table,
)
from dragoman.core.conversations import CONTEXT
from dragoman.core.conversations import META as CONTEXT_META

MAX_BYTES = 10 * 1024 * 1024
"""What a message of the hub may have."""


@click.group(invoke_without_command=True)
@click.pass_context
@home_option
@json_option
@click.option("--server", "--agent", "of", metavar="NAME",
              help="Only the tools of this server or agent.")  # fmt: skip
def tools(ctx: click.Context, home: str | None, as_json: bool, of: str | None) -> None:
    """List the tools; `tools show NAME` shows one with its arguments.

    \b
    dragoman tools
    dragoman tools --agent "Vercel Ops"
    dragoman tools show vercel_ops.deploy

    A server's tool is listed as mcp_SERVER_TOOL and is also called SERVER.TOOL. An agent's skill is
    listed as AGENT.SKILL and is also called a2a_AGENT_SKILL. Every one of these names can be used.
    """
    if ctx.invoked_subcommand is not None:
        return
    with connected(home) as hub:
        starting = hub.wait_settled()
        states = [*hub.servers(), *_agents(hub)]
        found = hub.get("/api/tools")["tools"]
        held = hub.held()
    if of is not None:
        of = _whose(of, states, found)
        found = [tool for tool in found if tool["server"] == of]
        states = [state for state in states if state["name"] == of]
        held = [pin for pin in held if pin["target"] == of]
    if as_json:
        print_json(found)
    elif found:
        table(["NAME", "DESCRIPTION"], [(tool["name"], tool["description"]) for tool in found])
    elif not states:
        print("no tools: there are no servers and no agents; see: dragoman import, dragoman agents")
    else:
        print("no tools")
    _say_missing(states, starting)
    if held:
        names = ", ".join(pin["name"] for pin in held[:5]) + (" …" if len(held) > 5 else "")
        say(f"held until approved, so not here: {names}; see: dragoman pins list")


def _agents(hub: HubClient) -> list[dict[str, Any]]:
    """In the words that servers have."""
    return [
        {**agent, "what": "agent", "failed": agent["health"] == "unreachable"}
        for agent in hub.get("/api/a2a/agents")["agents"]
    ]


def _whose(of: str, states: list[dict[str, Any]], found: list[dict[str, Any]]) -> str:
    """The name of the server or agent; an agent may be given by its slug."""
    names = {state["name"] for state in states} | {tool["server"] for tool in found}
    if of in names:
        return of
    slugs = {state["slug"]: str(state["name"]) for state in states if "slug" in state}
    if of in slugs:
        return slugs[of]
    hint = nearest(of, sorted(names)) or "see: dragoman servers, dragoman agents"
    stop(f'there is no server or agent "{of}"; {hint}', NOT_FOUND)


def _say_missing(states: list[dict[str, Any]], starting: list[str]) -> None:
    for state in states:
        who = f'{state.get("what", "server")} "{state["name"]}"'
        if state["name"] in starting:
            say(f"{who} is still being connected, its tools may be missing here")
        elif state.get("failed") or state.get("state") == "failed":
            say(f"{who} is not connected: {state.get('reason', '')}")


@tools.command()
@click.argument("name")
@home_option
@json_option
def show(name: str, home: str | None, as_json: bool) -> None:
    """Tool NAME: what it does, what it takes, an example call."""
    with connected(home) as hub:
        tool = hub.tool(name)
    if as_json:
        print_json(tool)
        return
    kind = "agent" if tool["source"] in ("a2a", "agent") else "server"
    id = f"id {clean(tool['id'])}, " if tool["id"] != tool["name"] else ""
    print(f"{clean(tool['name'])}  ({id}{kind} {clean(tool['server'])})")
    if tool["description"]:
        print(f"  {clean(tool['description'])}")
    properties, required = _properties(tool), _required(tool)
    for argument, about in properties.items():
        needed = "required" if argument in required else "optional"
        words = (
            f"{clean(argument)}  {_type(about)}, {needed}  {clean(about.get('description', ''))}"
        )
        print(f"  {words}".rstrip())
    if not properties:
        anything = _schema(tool).get("additionalProperties") is True
        what = "any arguments; it does not say which" if anything else "no arguments it tells of"
        print(f"  takes {what}")
    example = " ".join(f"{clean(argument)}=…" for argument in required)
    print(f"  try: dragoman call {clean(tool['name'])} {example}".rstrip())


@click.command()
@click.argument("name")
@click.argument("arguments", nargs=-1, metavar="[KEY=VALUE]... | JSON | -")
@home_option
@json_option
def call(name: str, arguments: tuple[str, ...], home: str | None, as_json: bool) -> None:
    """Call tool NAME with arguments: key=value pairs, one JSON object, or - for JSON on stdin.

    \b
    dragoman call mcp_files_read path=/tmp/x
    dragoman call files.read '{"path": "/tmp/x"}'
    dragoman call files.read - < arguments.json

    Where the tool wants text, a value is taken as text; elsewhere a value that is JSON (a number,
    true, a list) is taken as such. `dragoman tools show NAME` says what it wants. What the tool
    asks meanwhile is asked here, on a terminal; Ctrl-D declines.

    \b
    Exit codes: 0 done, 1 the tool says that it failed, 2 the arguments do not fit, 4 refused,
    5 no such tool, 6 the server did not answer, or not well. With 4 and 5 nothing was done.
    """
    given = _given(arguments)
    with connected(home) as hub:
        values = given if isinstance(given, dict) else _typed(given, hub, name)
        result = _called(hub, name, values, asking.can_ask() if not as_json else [])
        if not as_json:
            _say_context(result, hub, name)
    if as_json:
        print_json(result)
    else:
        _print(result)
    if result["failed"]:
        raise SystemExit(FAILED)


def _called(hub: HubClient, name: str, values: dict[str, Any], can: list[str]) -> Any:
    """Through the questions of the tool, if it has any and somebody is there to answer."""
    more: dict[str, Any] = {"can": can} if can else {}
    result = hub.call(name, values, **more)
    for _ in range(asking.ROUNDS):
        if "questions" not in result:
            return result
        answers = asking.answered(result["questions"])
        result = hub.call(name, values, **more, answers=answers, handle=result["handle"])
    stop(f"{name} has asked {asking.ROUNDS} times and is not done", FAILED)


# --- what a tool takes --------------------------------------------------------------------------

_NO_TOOL: Mapping[str, Any] = {"definition": {}}


def _schema(tool: Mapping[str, Any]) -> Mapping[str, Any]:
    schema = tool["definition"].get("inputSchema")
    return schema if isinstance(schema, dict) else {}


def _properties(tool: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """A server may have written anything there."""
    found = _schema(tool).get("properties")
    properties = found if isinstance(found, dict) else {}
    return {key: about if isinstance(about, dict) else {} for key, about in properties.items()}


def _required(tool: Mapping[str, Any]) -> list[str]:
    found = _schema(tool).get("required")
    return [each for each in found if isinstance(each, str)] if isinstance(found, list) else []


def _type(about: Mapping[str, Any]) -> str:
    kind = about.get("type", "any")
    choices = about.get("enum")
    if isinstance(choices, list):
        return "one of " + ", ".join(clean(choice) for choice in choices[:20])
    return clean(" or ".join(map(str, kind)) if isinstance(kind, list) else kind)


def _given(arguments: tuple[str, ...]) -> dict[str, Any] | list[tuple[str, str]]:
    """One JSON object, or the pairs as they were typed."""
    if len(arguments) == 1 and (arguments[0] == "-" or arguments[0].lstrip()[:1] in ("{", "[")):
        text = _stdin() if arguments[0] == "-" else arguments[0]
        try:
            value = json.loads(text)
        except (ValueError, RecursionError) as error:
            stop(f"the arguments are not valid JSON: {error or 'nested too deeply'}", USAGE)
        if not isinstance(value, dict):
            stop("the arguments must be one JSON object", USAGE)
        return value
    pairs: dict[str, str] = {}
    for pair in arguments:
        key, equals, value = pair.partition("=")
        if not equals or not key:
            stop(
                f'"{pair[:100]}" is neither key=value nor a JSON object; see: dragoman call --help',
                USAGE,
            )
        if key in pairs:
            stop(f'"{key}" is given twice; for a list write {key}=\'["a", "b"]\'', USAGE)
        pairs[key] = value
    return list(pairs.items())


def _stdin() -> bytes:
    if sys.stdin.isatty():
        say("reading one JSON object from the terminal; end it with Ctrl-D")
    data = sys.stdin.buffer.read(MAX_BYTES + 1)
    if len(data) > MAX_BYTES:
        stop(f"the arguments have more than {MAX_BYTES >> 20} MB", USAGE)
    return data


def _typed(pairs: list[tuple[str, str]], hub: HubClient, name: str) -> dict[str, Any]:
    """Each value as the tool's schema wants it, as far as that says so."""
    tool = hub.known_tool(name) if pairs else None
    properties = _properties(tool) if tool else {}
    return {key: _value(value, properties.get(key, {})) for key, value in pairs}


def _value(text: str, about: Mapping[str, Any]) -> Any:
    if about.get("type") == "string":
        return text
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return text


# --- what came of it ----------------------------------------------------------------------------


def _say_context(result: dict[str, Any], hub: HubClient, name: str) -> None:
    """How to go on with the conversation, where there is one and the tool takes its id."""
    context = result.get("extra", {}).get("_meta", {}).get(CONTEXT_META)
    if isinstance(context, str) and CONTEXT in _properties(hub.known_tool(name) or _NO_TOOL):
        say(f"to go on with this conversation, add context={clean(context)}")


def _print(result: dict[str, Any]) -> None:
    out = sys.stderr if result["failed"] else sys.stdout
    for block in result["content"]:
        kind = block.get("type")
        if kind == "text":
            print(output_text(str(block.get("text", "")), out), file=out)
        elif kind in ("image", "audio"):
            data = str(block.get("data", ""))
            size = len(data) * 3 // 4 - data[-2:].count("=")
            print(
                f"[{kind}, {clean(block.get('mimeType'))}, {size} bytes; --json has it]", file=out
            )
        else:
            print(json_text(block), file=out)
    if not result["content"] and "structured" in result:
        print_json(result["structured"])
