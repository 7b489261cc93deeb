"""`audit`: the record of every call, and the proof that it is whole."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from dragoman.cli.client import place_of
from dragoman.cli.errors import FAILED, stop, stop_for
from dragoman.cli.output import Waiting, home_option, json_option, print_json, table
from dragoman.core.errors import HubError

if TYPE_CHECKING:
    from dragoman.assembly import Record


@click.group()
def audit() -> None:
    """The record of every call: who asked for what, by which door, and what came of it."""


@audit.command()
@click.option("-n", "--lines", default=20, show_default=True, type=click.IntRange(1, 1_000_000))
@click.option("-f", "--follow", is_flag=True, help="Go on printing records as they come.")
@click.option("--verb", help="Only calls of this tool (its canonical name).")
@click.option("--caller", help="Only calls by this caller, e.g. owner:owner.")
@click.option("--outcome", help="Only calls with this outcome, e.g. refused.")
@click.option("--trace", help="Only calls of this trace.")
@home_option
@json_option
def tail(
    lines: int,
    follow: bool,
    verb: str | None,
    caller: str | None,
    outcome: str | None,
    trace: str | None,
    home: str | None,
    as_json: bool,
) -> None:
    """The newest records, oldest of them first. With --json one object a line."""
    from dragoman.assembly import AuditReader

    try:
        reader = AuditReader(Path(place_of(home)))
        found = reader.records(lines, verb=verb, caller=caller, outcome=outcome, trace=trace)
    except HubError as error:
        stop_for(error)
    shown = [_shown(record) for record in reversed(found)]
    _print(shown, as_json)
    if not follow:
        return
    last = reader.last_seq()
    try:
        while True:
            time.sleep(0.5)
            fresh = reader.records_after(last)
            last = max([last, *(record.last for record in fresh)])
            _print([_shown(record) for record in fresh], as_json)
    except KeyboardInterrupt:
        return


def _shown(record: Record) -> dict[str, Any]:
    return {
        "seq": record.seq,
        "at": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(record.at)),
        **record.intent,
        "outcome": record.outcome,
        **{key: value for key, value in record.conclusion.items() if key != "outcome"},
    }


def _print(records: list[dict[str, Any]], as_json: bool) -> None:
    if as_json:
        for record in records:
            print(json.dumps(record, ensure_ascii=False), flush=True)
    elif records:
        columns = ("at", "caller", "door", "verb", "outcome", "duration_ms", "trace")
        rows = []
        for record in records:
            cells = [record.get(column, "") for column in columns]
            cells[-1] = str(cells[-1])[:8]
            rows.append(cells)
        table([column.upper() for column in columns], rows)


@audit.command()
@home_option
@json_option
def verify(home: str | None, as_json: bool) -> None:
    """Prove that no record was changed, taken out, moved or cut off. Exits with 1 if one was."""
    from dragoman.assembly import verify as prove

    waiting = Waiting()
    verdict = prove(
        Path(place_of(home)), lambda done, total: waiting.say(f"{done} of {total} entries …")
    )
    waiting.done()
    if as_json:
        print_json(
            {
                "ok": verdict.ok,
                "entries": verdict.entries,
                "first_seq": verdict.first_seq,
                "last_seq": verdict.last_seq,
                "problem": verdict.problem,
                "at_seq": verdict.at_seq,
            }
        )
        raise SystemExit(0 if verdict.ok else FAILED)
    if not verdict.ok:
        stop(f"the audit is not whole: {verdict.problem}")
    print(f"ok: {verdict.entries} entries, {verdict.first_seq} to {verdict.last_seq}")
