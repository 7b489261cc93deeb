"""`tools` and `call`: lists, describes and calls tools."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping
from typing import Any, TextIO

import click

from dragoman.cli.base import prompt
from dragoman.cli.base.arguments import convert_pairs, parse_arguments
from dragoman.cli.base.errors import FAILED, NOT_FOUND, USAGE, fail, say
from dragoman.cli.base.hub_client import HubClient, connect_hub, suggest
from dragoman.cli.base.output import (
    clean,
    common_options,
    print_json,
    print_table,
    render_json,
    render_output,
)
from dragoman.cli.base.schema_text import (
    find_misspelt,
    get_properties,
    list_required,
    render_arguments,
    wrap,
)
from dragoman.cli.completion import complete_targets, complete_tools
from dragoman.core.conversations import CONTEXT
from dragoman.core.conversations import META as CONTEXT_META


class SearchGroup(click.Group):
    """A group that treats unknown subcommands as search words."""

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if args and args[0] not in self.commands:
            return "search", search, args
        return super().resolve_command(ctx, args)


_OF = click.option("--server", "--agent", "of", metavar="NAME", shell_complete=complete_targets,
                   help="Only tools of this server or agent.")  # fmt: skip


@click.group(cls=SearchGroup, invoke_without_command=True, subcommand_metavar="[WORDS]... | show")
@click.pass_context
@common_options
@_OF
@click.option("--search", "text", metavar="TEXT", help="Only tools that match this text.")
def tools(
    ctx: click.Context, home: str | None, as_json: bool, of: str | None, text: str | None
) -> None:
    """List the tools, or search them for WORDS; `tools show NAME` describes one.

    \b
    dragoman tools
    dragoman tools read file                tools with both words in name or description
    dragoman tools --agent "Vercel Ops"
    dragoman tools show vercel_ops.deploy

    The tool of a server is listed as mcp_SERVER_TOOL and is also known as SERVER.TOOL. The skill of
    an agent is listed as AGENT.SKILL and is also known as a2a_AGENT_SKILL. All names can be used.
    """
    if ctx.invoked_subcommand is None:
        _list_tools(home, as_json, of, (text or "").split())


@click.command(hidden=True)
@click.argument("words", nargs=-1)
@click.pass_context
@common_options
@_OF
def search(
    ctx: click.Context, words: tuple[str, ...], home: str | None, as_json: bool, of: str | None
) -> None:
    outer = ctx.parent.params if ctx.parent is not None else {}
    more = (outer.get("text") or "").split()
    _list_tools(home, as_json, of or outer.get("of"), [*words, *more])


def _list_tools(home: str | None, as_json: bool, of: str | None, words: list[str]) -> None:
    with connect_hub(home) as hub:
        starting = hub.wait_until_connected(only=of)
        states = hub.list_servers()
        for agent in hub.get("/api/a2a/agents")["agents"]:
            failed = agent["health"] == "unreachable"
            states.append({**agent, "what": "agent", "failed": failed})
        found = hub.get("/api/tools")["tools"]
        quarantined = hub.list_quarantined()
    if of is not None:
        of = _resolve_target(of, states, found)
        found = [tool for tool in found if tool["server"] == of]
        states = [state for state in states if state["name"] == of]
        quarantined = [pin for pin in quarantined if pin["target"] == of]
    total = len(found)
    found = find_matching(found, words)
    if as_json:
        print_json(found)
    elif found:
        rows = [(tool["name"], tool["description"]) for tool in found]
        print_table(["NAME", "DESCRIPTION"], rows)
    elif total:
        print(f"none of {total} tools matches: {clean(' '.join(words))}")
    elif not states:
        print("no tools: no servers or agents configured; see: dragoman import, dragoman agents")
    else:
        print("no tools")
    _report_unavailable(states, starting)
    if quarantined:
        more = " …" if len(quarantined) > 5 else ""
        names = ", ".join(pin["name"] for pin in quarantined[:5]) + more
        say(f"quarantined until approved, not listed: {names}; see: dragoman pins list")


def find_matching(tools: list[dict[str, Any]], words: list[str]) -> list[dict[str, Any]]:
    """Returns the tools with every word in a name or the description, name matches first."""
    wanted = [word.casefold() for word in words]
    found = []
    for tool in tools:
        names = f"{tool['name']} {tool['id']}".casefold()
        everything = f"{names} {tool['description']}".casefold()
        if all(word in everything for word in wanted):
            found.append((-sum(word in names for word in wanted), tool))
    return [tool for _, tool in sorted(found, key=lambda each: each[0])]


def _resolve_target(of: str, states: list[dict[str, Any]], found: list[dict[str, Any]]) -> str:
    """Returns the name of a server or agent given by name or slug."""
    names = {state["name"] for state in states} | {tool["server"] for tool in found}
    if of in names:
        return of
    slugs = {state["slug"]: str(state["name"]) for state in states if "slug" in state}
    if of in slugs:
        return slugs[of]
    hint = suggest(of, sorted(names)) or "see: dragoman servers, dragoman agents"
    fail(f'unknown server or agent "{of}"; {hint}', NOT_FOUND)


def _report_unavailable(states: list[dict[str, Any]], starting: list[str]) -> None:
    for state in states:
        who = f'{state.get("what", "server")} "{state["name"]}"'
        if state["name"] in starting:
            say(f"{who} is still connecting; its tools may be missing")
        elif state.get("failed") or state.get("state") == "failed":
            say(f"{who} is not connected: {state.get('reason', '')}")


@tools.command(short_help="Describe a tool and its arguments, with an example.")
@click.argument("name", shell_complete=complete_tools)
@common_options
def show(name: str, home: str | None, as_json: bool) -> None:
    """Show the description, arguments and an example call of tool NAME.

    \b
    dragoman tools show files.read
    dragoman tools show files.read --json     with the server's original schema
    """
    with connect_hub(home) as hub:
        tool = hub.get_tool(name)
    if as_json:
        return print_json(tool)
    kind = "agent" if tool["source"] in ("a2a", "agent") else "server"
    id = f"id {clean(tool['id'])}, " if tool["id"] != tool["name"] else ""
    print(f"{clean(tool['name'])}  ({id}{kind} {clean(tool['server'])})")
    for line in str(tool["description"]).splitlines():
        print("\n".join(wrap(clean(line), 2)))
    schema = _get_schema(tool)
    for line in render_arguments(schema):
        print(line)
    if not get_properties(schema):
        anything = schema.get("additionalProperties") is True
        print(f"  arguments: {'any (not described)' if anything else 'none declared'}")
    example = " ".join(f"{clean(argument)}=…" for argument in list_required(schema))
    print(f"  try: dragoman call {clean(tool['name'])} {example}".rstrip())


@click.command()
@click.argument("name", shell_complete=complete_tools)
@click.argument("arguments", nargs=-1, metavar="[KEY=VALUE]... | JSON | @FILE | -")
@click.option("--timeout", type=click.FloatRange(0.01, 86_400), metavar="SECONDS",
              help="Cancel the call after this time; the hub's limits apply as well.")  # fmt: skip
@click.option("--progress", is_flag=True,
              help="Print progress as lines on stderr.")  # fmt: skip
@click.option("--idempotency-key", metavar="TEXT",
              help="Tell this call from others: the same call with the same key is not made again "
              "once it was approved, and with another key it is.")  # fmt: skip
@common_options
def call(
    name: str, arguments: tuple[str, ...], home: str | None, as_json: bool, **options: Any
) -> None:
    """Call tool NAME with key=value arguments or one JSON object.

    \b
    dragoman call mcp_files_read path=/tmp/x
    dragoman call files.write path=/tmp/x content=@letter.txt     a value from a file; @- is stdin
    dragoman call files.read '{"path": "/tmp/x"}'
    dragoman call files.read @arguments.json
    dragoman call files.read - < arguments.json

    Values of string arguments are taken as text; other values are parsed as JSON (a number, true, a
    list) if possible. Write text that begins with @ as @@. `dragoman tools show NAME` lists the
    arguments. On a terminal, progress is shown and the tool's questions are asked: Ctrl-D declines
    a question, Ctrl-C cancels the call.

    \b
    Exit codes: 0 done, 1 the tool reported an error, 2 invalid arguments, 3 no hub, 4 refused,
    5 unknown tool, 6 the server failed, timed out or sent an invalid response, 130 interrupted.
    With 2, 4 and 5 nothing was executed. With --json an error is printed on stdout too:
    {"error": {"message", "code", "kind", "trace"}}, where code is the exit code.
    """
    given = parse_arguments(arguments)
    with connect_hub(home) as hub:
        tool = hub.find_tool(name) if isinstance(given, list) and given else None
        schema = _get_schema(tool) if tool else {}
        values = given if isinstance(given, dict) else convert_pairs(given, get_properties(schema))
        _refuse_misspelt(name, schema, values)
        how: dict[str, Any] = {
            "seconds": options["timeout"],
            "key": options["idempotency_key"],
            "progress": (lambda words: say(f"{name}: {words}")) if options["progress"] else None,
            "hint": lambda: _describe_misspelt(_get_schema(hub.find_tool(name) or {}), values),
        }
        kinds = prompt.list_question_kinds() if not as_json else []
        result = _call_tool(hub, name, values, kinds, how)
        if not as_json:
            _print_context(result, hub, name)
    if as_json:
        print_json(result)
    else:
        print_call_result(result)
    if result["failed"]:
        raise SystemExit(FAILED)


def _call_tool(
    hub: HubClient, name: str, values: dict[str, Any], can: list[str], how: dict[str, Any]
) -> Any:
    """Calls the tool and asks the user its questions, if any."""
    more: dict[str, Any] = {"can": can, **how} if can else how
    if key := more.pop("key", None):
        more["idempotencyKey"] = key
    result = hub.call(name, values, **more)
    for _ in range(prompt.MAX_ROUNDS):
        if "questions" not in result:
            return result
        answers = prompt.ask_questions(result["questions"])
        result = hub.call(name, values, **more, answers=answers, handle=result["handle"])
    fail(f"{name} asked more than {prompt.MAX_ROUNDS} rounds of questions; not continued", FAILED)


def _get_schema(tool: Mapping[str, Any]) -> Mapping[str, Any]:
    schema = tool.get("definition", {}).get("inputSchema")
    return schema if isinstance(schema, dict) else {}


def _refuse_misspelt(name: str, schema: Mapping[str, Any], values: Mapping[str, Any]) -> None:
    for wrong, meant, hopeless in find_misspelt(schema, values):
        words = f'"{name}" has no argument "{wrong}"; did you mean "{meant}"?'
        if hopeless:
            fail(words, USAGE, kind="InvalidInput")
        say(words)


def _describe_misspelt(schema: Mapping[str, Any], values: Mapping[str, Any]) -> str:
    found = find_misspelt(schema, values)
    return ", ".join(f'"{wrong}": did you mean "{meant}"?' for wrong, meant, _ in found)


def _print_context(result: dict[str, Any], hub: HubClient, name: str) -> None:
    """Prints how to continue the conversation, if the tool accepts a context."""
    context = result.get("extra", {}).get("_meta", {}).get(CONTEXT_META)
    schema = _get_schema(hub.find_tool(name) or {}) if isinstance(context, str) else {}
    if CONTEXT in get_properties(schema):
        say(f"to continue this conversation, add context={clean(context)}")


def print_call_result(result: dict[str, Any]) -> None:
    print_content(result["content"], sys.stderr if result["failed"] else sys.stdout)
    if not result["content"] and "structured" in result:
        print_json(result["structured"])


def print_content(content: Iterable[Mapping[str, Any]], out: TextIO) -> None:
    """Prints the blocks of a result."""
    for block in content:
        kind = block.get("type")
        if kind == "text":
            print(render_output(str(block.get("text", "")), out), file=out)
        elif kind in ("image", "audio"):
            data = str(block.get("data", ""))
            size = len(data) * 3 // 4 - data[-2:].count("=")
            print(
                f"[{kind}, {clean(block.get('mimeType'))}, {size} bytes; --json has it]", file=out
            )
        else:
            print(render_json(block), file=out)
