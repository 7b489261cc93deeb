"""`taint`: shows the rules, the sources and sinks of tools, and how data reached a call."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

import click

from dragoman.cli.base.errors import NOT_FOUND, fail, say
from dragoman.cli.base.hub_client import connect_hub, resolve_home
from dragoman.cli.base.output import clean, common_options, print_json, print_table, style

if TYPE_CHECKING:
    from dragoman.stores.audit.reader import AuditReader, AuditRecord

PAGE = 1_000
MAX_TRACES = 5
"""Traces that `explain` follows data back to."""
_MODES = {"enforce": "refused", "ask": "asked about", "observe": "recorded", "off": "ignored"}


@click.group(invoke_without_command=True)
@common_options
@click.pass_context
def taint(ctx: click.Context, home: str | None, as_json: bool) -> None:
    """Show which labelled data may go where, and why a call was refused.

    \b
    dragoman taint                     the rules in force
    dragoman taint tools               the sources and sinks of each tool
    dragoman taint explain 4f2a9c01    how data reached the calls of a trace
    dragoman taint stored              labels of files and conversations

    Results get labels at their source: external_network, untrusted_agent, secret, pii, user_input.
    The chain of calls keeps them, and rules say what happens when such data reaches a sink: exec,
    write, net or agent. Settings: [taint] in config.toml; a change takes effect at once.
    """
    if ctx.invoked_subcommand is not None:
        return
    with connect_hub(home) as hub:
        found = hub.get("/api/taint")
    if as_json:
        return print_json({name: value for name, value in found.items() if name != "tools"})
    sinks = list(dict.fromkeys(one["sink"] for one in found["rules"]))
    modes = {(one["label"], one["sink"]): one["mode"] for one in found["rules"]}
    labels = dict.fromkeys(one["label"] for one in found["rules"])
    print_table(
        ["DATA", *(f"TO {sink.upper()}" for sink in sinks)],
        [[label, *(modes.get((label, sink), "off") for sink in sinks)] for label in labels],
    )
    print(f"\nBetween the calls of a client: {found['clients']}")
    print(f"Results are searched for: {', '.join(found['detect']) or 'nothing'}")


@taint.command(short_help="Show the sources and sinks of each tool.")
@click.argument("name", required=False)
@common_options
def tools(name: str | None, home: str | None, as_json: bool) -> None:
    """Show the labels of each tool's results, where its arguments may go, and the reasons.

    \b
    dragoman taint tools
    dragoman taint tools github        only those whose name has "github" in it

    Tools without either are not shown unless named. To change what is known of a tool, add
    [[taint.tools]] with match, sources, sinks or allow to config.toml.
    """
    with connect_hub(home) as hub:
        found = [
            one
            for one in hub.get("/api/taint")["tools"]
            if (name in one["name"] if name else one["sources"] or one["sinks"])
        ]
    if as_json:
        return print_json(found)
    if not found:
        say(f'no tool has "{name}" in its name' if name else "no tool has sources or sinks")
        return
    print_table(
        ["TOOL", "SOURCES", "SINKS", "RULES"],
        [
            [
                one["name"],
                _render_reasons(one["sources"]),
                _render_reasons(one["sinks"]),
                ", ".join(f"{each['mode']} {each['label']}" for each in one["rules"]) or "-",
            ]
            for one in found
        ],
    )


def _render_reasons(reasons: dict[str, str]) -> str:
    return ", ".join(f"{name} ({why})" for name, why in reasons.items()) or "-"


@taint.command(short_help="Show labels of files and conversations.")
@click.option("--prefix", metavar="TEXT", default="", help='Only keys that begin so: "file /srv".')
@common_options
def stored(prefix: str, home: str | None, as_json: bool) -> None:
    """Show the labels of data that outlives its chain of calls: files, conversations, other data.

    \b
    dragoman taint stored
    dragoman taint stored --prefix "file /srv"
    """
    with connect_hub(home) as hub:
        found = hub.get(f"/api/taint/stored?prefix={quote(prefix)}")["stored"]
    if as_json:
        return print_json(found)
    if not found:
        say("no stored data has labels")
        return
    print_table(
        ["KEY", "LABEL", "FROM", "TRACE"],
        [[one["key"], one["label"], one["tool"], one["trace"][:8]] for one in found],
    )


@taint.command(short_help="Remove labels of reviewed data.")
@click.argument("key")
@click.option("--label", metavar="NAME", help="Only this label [default: all].")
@click.option("--why", metavar="TEXT", required=True, help="The reason, for the audit log.")
@common_options
def declassify(key: str, label: str | None, why: str, home: str | None, as_json: bool) -> None:
    """Remove the labels of the stored data KEY, which you have reviewed. It is recorded.

    \b
    dragoman taint declassify "file /srv/notes.md" --why "read it, nothing in it"

    `dragoman taint stored` lists the keys. The audit log has the reason and your name.
    """
    body = {"key": key, "why": why, **({"label": label} if label else {})}
    with connect_hub(home) as hub:
        removed = hub.send("POST", "/api/taint/declassify", body)["removed"]
    if as_json:
        return print_json({"removed": removed})
    print(f"removed: {', '.join(removed)}")


@taint.command(short_help="Explain how labelled data reached the calls of a trace.")
@click.argument("trace")
@common_options
def explain(trace: str, home: str | None, as_json: bool) -> None:
    """Draw the calls of TRACE with the labels that each brought and the rules that each met.

    \b
    dragoman taint explain 4f2a9c01    a prefix of the id is enough

    The refusal of a call ends with its trace. Data from another trace, such as a file that was
    written there, is followed back. Reads the audit log; no hub needs to be running.
    """
    from dragoman.stores.audit.reader import AuditReader

    reader = AuditReader(Path(resolve_home(home)))
    found = _find_traces(reader, trace)
    if not found:
        fail(f'no record has a trace that begins with "{trace}"', NOT_FOUND)
    if as_json:
        return print_json(
            [
                {"trace": id, "calls": [_build_row(one) for one in records]}
                for id, records in found.items()
            ]
        )
    for number, (id, records) in enumerate(found.items()):
        if number:
            print()
        print(style(f"trace {id}", bold=True))
        for record in records:
            for line in _render_record(record, id):
                print(line)


def _find_traces(reader: AuditReader, wanted: str) -> dict[str, list[AuditRecord]]:
    """Finds the records of a trace, and of those that labels came from, oldest first."""
    found: dict[str, list[AuditRecord]] = {}
    waiting = [wanted]
    while waiting and len(found) < MAX_TRACES:
        prefix = waiting.pop(0)
        records = _list_records(reader, prefix)
        if not records:
            continue
        id = str(records[0].intent["trace"])
        found[id] = [one for one in records if one.intent["trace"] == id]
        origins = [
            flow["trace"]
            for one in found[id]
            for flow in one.conclusion.get("taint", ())
            if flow.get("trace")
        ]
        waiting += [one for one in dict.fromkeys(origins) if one not in found]
    return found


def _list_records(reader: AuditReader, prefix: str) -> list[AuditRecord]:
    found: list[AuditRecord] = []
    before: int | None = None
    while True:
        page = reader.list_records(PAGE, before=before)
        found += [one for one in page if str(one.intent.get("trace", "")).startswith(prefix)]
        if len(page) < PAGE:
            return found[::-1]
        before = page[-1].seq


def _build_row(record: AuditRecord) -> dict[str, Any]:
    names = ("verb", "caller", "depth", "labels")
    row = {name: record.intent[name] for name in names if name in record.intent}
    told = {name: record.conclusion[name] for name in ("labels", "sources", "taint", "message")
            if name in record.conclusion}  # fmt: skip
    return {"seq": record.seq, **row, "outcome": record.outcome, **told}


def _render_record(record: AuditRecord, trace: str) -> Iterator[str]:
    row = _build_row(record)
    indent = "  " * (1 + int(row.get("depth", 0)))
    outcome = "" if row["outcome"] == "completed" else f"  {row['outcome']}"
    yield clean(f"{indent}{row.get('verb', '?')}{outcome}")
    if labels := row.get("labels"):
        yield clean(f"{indent}    carries {', '.join(labels)}")
    for label, why in row.get("sources", {}).items():
        yield clean(f"{indent}    + {label}: {why}")
    for flow in row.get("taint", ()):
        source = f" from {flow['from']}" if flow.get("from") else ""
        if flow.get("trace") and flow["trace"] != trace:
            source += f" in trace {flow['trace'][:8]}"
        result = _MODES.get(str(flow.get("mode")), str(flow.get("mode")))
        if flow.get("approved_by"):
            result = f"approved by {flow['approved_by']}"
        yield clean(f"{indent}    ! {flow.get('rule')}{source}: {result}")
