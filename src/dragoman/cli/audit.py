"""`audit`: prints, verifies and prunes the audit log."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from heapq import merge
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import click

from dragoman import home as homes
from dragoman.cli.base.errors import FAILED, NO_HUB, NOT_FOUND, fail, say
from dragoman.cli.base.hub_client import resolve_home
from dragoman.cli.base.output import (
    StatusLine,
    clean,
    common_options,
    find_user_name,
    home_option,
    print_json,
    render_json,
    style,
)
from dragoman.cli.base.prompt import confirm, yes_option
from dragoman.cli.base.shared_audit import find_shared_audit, list_audit_homes
from dragoman.config import load

if TYPE_CHECKING:
    from dragoman.stores.audit.reader import AuditReader, AuditRecord
    from dragoman.stores.audit.shared_verify import SharedReport
    from dragoman.stores.audit.verify import Progress, VerifyReport

PAGE = 1_000
DECISIONS = ("permit", "deny")
COLUMNS = ("at", "caller", "door", "verb", "outcome", "duration_ms", "trace")
OUTCOMES = ("completed", "failed", "asked", "parked", "refused", "not_found", "invalid",
            "target_failed", "cancelled", "crashed", "running", "unknown", "break")  # fmt: skip


@click.group()
def audit() -> None:
    """Read and verify the audit log: principal, entry point, tool and outcome of every call.

    \b
    dragoman audit tail
    dragoman audit verify
    """


@audit.command()
@click.option("-n", "--lines", metavar="N", default=20, show_default=True,
              type=click.IntRange(1, 1_000_000), help="Number of records.")  # fmt: skip
@click.option("-f", "--follow", is_flag=True, help="Follow: print records as calls end.")
@click.option("--verb", metavar="TOOL", help="Only calls of this tool, as SERVER.TOOL.")
@click.option("--caller", metavar="PRINCIPAL",
              help="Only calls by this principal, for example owner:owner.")  # fmt: skip
@click.option("--outcome", metavar="WORD", type=click.Choice(OUTCOMES),
              help=f"Only calls with this outcome: {', '.join(OUTCOMES)}.")  # fmt: skip
@click.option("--trace", metavar="ID",
              help="Only calls of this trace; a prefix of the id is enough.")  # fmt: skip
@click.option("--agent", metavar="NAME",
              help="Only calls to this server or agent, by name or card id.")  # fmt: skip
@click.option("--decision", metavar="WORD", type=click.Choice(DECISIONS),
              help=f"Only calls with this policy decision: {', '.join(DECISIONS)}.")  # fmt: skip
@click.option("--local", is_flag=True, help="Only this hub's records, from its home.")
@common_options
def tail(
    lines: int, follow: bool, local: bool, home: str | None, as_json: bool, **filters: str | None
) -> None:
    """Show the newest records, oldest first. --json prints one object per line.

    \b
    dragoman audit tail -f
    dragoman audit tail --outcome refused -n 100
    dragoman audit tail --agent vercel_ops --decision deny
    dragoman audit tail --json | jq .message

    After the tool: on whose behalf the principal acted, the policy decision with policy ids, and
    other refusals. Changes of agents, pins and policies are recorded too. Arguments are never
    recorded, only their hash and size. Hubs with [store] url show the records of all hubs that
    share the database.
    """
    wanted = RecordFilter(**filters)
    place = Path(resolve_home(home))
    shared = None if local else find_shared_audit(place)
    logs = list_audit_homes(place)
    source: RecordReader
    source = HomeRecords(place, logs) if shared is None else SharedTail(shared.url, logs)
    found = source.find_newest(wanted, lines)
    if not found and not follow and not as_json:
        say("no matching records" if any(asdict(wanted).values()) else "no records yet")
        return
    if not as_json:
        print(style(_render_line({column: column.upper() for column in COLUMNS}), bold=True))
    _print_records(reversed(found), as_json)
    if follow:
        _follow(source, wanted, as_json)


@dataclass(frozen=True, slots=True)
class RecordFilter:
    verb: str | None
    caller: str | None
    outcome: str | None
    trace: str | None
    agent: str | None
    decision: str | None

    def find_newest(self, reader: AuditReader, lines: int) -> list[AuditRecord]:
        """Finds the newest matching records, newest first. Matches trace prefixes, because errors
        show only 8 characters of a trace and the reader finds whole ids only."""
        exact = {"verb": self.verb, "caller": self.caller, "outcome": self.outcome}
        if self.trace is None and self.agent is None and self.decision is None:
            return reader.list_records(lines, before=None, trace=None, **exact)
        found: list[AuditRecord] = []
        before: int | None = None
        while len(found) < lines:
            page = reader.list_records(PAGE, before=before, trace=None, **exact)
            found += [record for record in page if self.matches(record)]
            if len(page) < PAGE:
                break
            before = page[-1].seq
        return found[:lines]

    def matches(self, record: AuditRecord) -> bool:
        intent = record.intent
        return (
            self.verb in (None, intent.get("verb"))
            and self.caller in (None, intent.get("caller"))
            and self.outcome in (None, record.outcome)
            and self.agent in (None, intent.get("target"), intent.get("agent"))
            and self.decision in (None, record.conclusion.get("decision"))
            and str(intent.get("trace", "")).startswith(self.trace or "")
        )


class RecordReader(Protocol):
    def find_newest(self, wanted: RecordFilter, lines: int) -> list[AuditRecord]:
        """Finds the newest matching records, newest first."""

    def list_fresh(self) -> list[AuditRecord]:
        """Lists the calls that have ended since the last time."""


class HomeRecords:
    """The records of a home, and of its workers."""

    def __init__(self, home: Path, logs: Sequence[Path]) -> None:
        from dragoman.stores.audit.reader import AuditReader

        self._readers = [(_name_log(home, log), AuditReader(log)) for log in logs or [home]]
        self._last = {name: reader.find_last_seq() for name, reader in self._readers}

    def find_newest(self, wanted: RecordFilter, lines: int) -> list[AuditRecord]:
        found: list[list[AuditRecord]] = []
        for name, reader in self._readers:
            self._last[name] = reader.find_last_seq()
            found.append([replace(one, hub=name) for one in wanted.find_newest(reader, lines)])
        return list(merge(*found, key=lambda one: one.at, reverse=True))[:lines]

    def list_fresh(self) -> list[AuditRecord]:
        found: list[list[AuditRecord]] = []
        for name, reader in self._readers:
            fresh = reader.list_records_after(self._last[name])
            self._last[name] = max([self._last[name], *(record.last for record in fresh)])
            found.append([replace(one, hub=name) for one in fresh])
        return list(merge(*found, key=lambda one: one.at))


def _name_log(home: Path, log: Path) -> str:
    """The name of an audit log within a home; empty for that of the home itself."""
    return str(log.relative_to(home)) if log != home else ""


class SharedTail:
    """The records of all hubs of a database."""

    def __init__(self, url: str, logs: Sequence[Path]) -> None:
        from dragoman.stores.audit.shared_reader import SharedRecords

        self._records = SharedRecords(url, *logs)
        self._last = self._records.find_positions()

    def find_newest(self, wanted: RecordFilter, lines: int) -> list[AuditRecord]:
        from dragoman.core.audit_queries import RecordQuery

        values = {name: value for name, value in asdict(wanted).items() if value is not None}
        records = self._records.scan(RecordQuery(**values), None, lambda *_: True)
        matching = (one for _, one in records if one is not None and wanted.matches(one))
        return list(islice(matching, lines))

    def list_fresh(self) -> list[AuditRecord]:
        fresh, self._last = self._records.list_ended_after(self._last)
        return fresh


def _follow(source: RecordReader, wanted: RecordFilter, as_json: bool) -> None:
    try:
        while True:
            time.sleep(0.5)
            _print_records(filter(wanted.matches, source.list_fresh()), as_json)
    except KeyboardInterrupt:
        return


def _build_row(record: AuditRecord) -> dict[str, Any]:
    return {
        "seq": record.seq,
        **({"hub": record.hub} if record.hub else {}),
        "at": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(record.at)),
        **record.intent,
        "outcome": record.outcome,
        **{key: value for key, value in record.conclusion.items() if key != "outcome"},
    }


def _print_records(records: Iterable[AuditRecord], as_json: bool) -> None:
    for row in map(_build_row, records):
        print(render_json(row, None) if as_json else _render_line(row), flush=True)


def _render_line(record: dict[str, Any]) -> str:
    """Renders columns of fixed width, because more lines may follow."""
    at, caller, door, verb, outcome, duration, trace = (
        clean(record.get(column, "")) for column in COLUMNS
    )
    columns = (
        f"{at:<20}  {caller:<16}  {door:<9}  {outcome:<13}  {duration:>11}  {trace[:8]:<8}  {verb}"
    )
    return "  ".join([columns, *map(clean, _list_details(record))])


def _list_details(record: dict[str, Any]) -> Iterator[str]:
    """Yields the details that only some records have."""
    verb, asked = str(record.get("verb", "")), str(record.get("asked_as", ""))
    if asked and asked != verb and "target" not in record:
        yield asked  # a change of a pin or an agent, not a call
    for sign, ids in (("+", "added"), ("-", "removed"), ("changed ", "changed")):
        if verb == "policy.change" and record.get(ids):
            yield ", ".join(f"{sign}{id}" for id in record[ids])
    if behalf := record.get("on_behalf_of"):
        yield f"for {behalf}"
    if decision := record.get("decision"):
        yield _render_decision(str(decision), record.get("policies"))
    if record.get("outcome") == "refused" and record.get("decision") != "deny":
        yield str(record.get("error", ""))  # refused by another guard: quarantine, depth, loop
    if shadow := record.get("shadow"):
        yield f"in shadow: {_render_decision(str(shadow.get('decision')), shadow.get('policies'))}"


def _render_decision(decision: str, policies: list[Any] | None) -> str:
    return f"{decision} ({', '.join(map(str, policies))})" if policies else decision


@audit.command()
@click.option("--local", is_flag=True, help="Only this hub's records, in its home.")
@common_options
def verify(local: bool, home: str | None, as_json: bool) -> None:
    """Verify that no record was changed, removed, moved or truncated. Exits with 1 if one was.

    \b
    dragoman audit verify

    Entries are chained with a key in the home (audit.key). A call has two entries: its intent and
    its outcome. A hub may be running. Hubs with [store] url each have a chain of their own, all of
    which the database has: these are verified too.
    """
    status_line = StatusLine()
    place = Path(resolve_home(home))
    logs = _require_audit(place)

    def show(done: int, total: int) -> None:
        status_line.show(f"{done} of {total} entries …")

    verdict = _verify_logs(place, logs, show)
    shared = None if local or not verdict.ok else find_shared_audit(place)
    if shared is not None:
        from dragoman.stores.audit.shared_verify import verify_shared

        verdict = verify_shared(shared.url, logs, shared.keys, show)
    status_line.clear()
    if as_json:
        print_json(asdict(verdict))
        raise SystemExit(0 if verdict.ok else FAILED)
    if not verdict.ok:
        fail(f"the audit log is not intact: {verdict.problem}")
    entries = "1 entry" if verdict.entries == 1 else f"{verdict.entries} entries"
    if shared is not None or len(logs) > 1:
        chains = len(getattr(verdict, "chains", ()))
        print(f"ok: {entries} of {chains} {'chain' if chains == 1 else 'chains'}")
        return
    print(f"ok: {entries}, {verdict.first_seq} to {verdict.last_seq}")


def _require_audit(place: Path) -> list[Path]:
    """Lists the audit logs of the home, of which there must be one."""
    logs = list_audit_homes(place)
    if not logs:
        fail(
            f'there is no audit log in "{place}"; the hub creates it at its first start', NOT_FOUND
        )
    return logs


def _verify_logs(home: Path, logs: list[Path], progress: Progress) -> VerifyReport | SharedReport:
    """Verifies the audit log of a home, or those of its workers."""
    from dragoman.stores.audit.verify import verify as prove

    if logs == [home]:
        return prove(home, progress)
    from dragoman.stores.audit.shared_keys import read_chain_id
    from dragoman.stores.audit.shared_verify import ChainReport, sum_up

    found = [(log, prove(log, progress)) for log in logs]
    return sum_up(
        [
            ChainReport(
                read_chain_id(log) or "", _name_log(home, log), one.entries, one.first_seq,
                one.last_seq, one.problem, one.at_seq,
            )
            for log, one in found
        ]
    )  # fmt: skip


@audit.command()
@yes_option
@home_option
def prune(yes: bool, home: str | None) -> None:
    """Delete records older than [audit] keep_days or beyond max_entries, and shrink the file.

    \b
    dragoman audit prune --yes

    A running hub does this every hour. After its clock jumped by more than a day, for example after
    a long time off, the hub waits until the clock has been steady for a day; this command does not
    wait. No hub may be running. The deletion is recorded, and the rest can still be verified.
    Records that a hub with [store] url has not copied to its database yet are kept.
    """
    from dragoman.stores.audit.prune import prune_offline

    place = resolve_home(home)
    logs = _require_audit(Path(place))
    try:
        settings = load(Path(place) / "config.toml").audit
        if not yes:
            now = time.strftime("%Y-%m-%d %H:%M", time.localtime())
            confirm(f"Delete records older than {settings.keep_days:g} days (now is {now})?")
        with homes.lock_home(place):
            shared = find_shared_audit(Path(place))
            removed = 0
            for log in logs:
                copied = None
                if shared is not None:
                    from dragoman.stores.audit.copy_home import find_copied

                    copied = find_copied(log, shared.url)
                removed += prune_offline(log, settings, find_user_name(), copied)
    except (homes.HomeLocked, homes.HomeUnusable) as error:
        fail(str(error), NO_HUB)
    print(f"{removed} entries deleted")
