"""Queries over the audit log: search, chains of calls, and a summary of recent calls.

Each reads a bounded number of records. They block: run them in a thread.
"""

from __future__ import annotations

import time
from collections.abc import Generator, Iterable, Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from dragoman.core.audit_queries import SHADOW, RecordQuery
from dragoman.core.logs import render_time
from dragoman.stores.audit.reader import AuditReader, AuditRecord, MayMatch, build_needles

MAX_READ = 50_000
"""Records that one search reads."""
MAX_SUMMARIZED = 20_000
MAX_EDGES = 1_000
MAX_DURATIONS = 500
"""Durations of an edge that its percentiles are computed from."""
PAUSE_AFTER, PAUSE_SECONDS = 100, 0.0005
"""After about a millisecond of work the event loop may go on: it would have to wait for the
interpreter's lock five times as long."""
HIDDEN = frozenset({"args_mac", "outcome"})


class RecordScanner(Protocol):
    """Records of several hubs, in the order of time."""

    def scan(
        self, wanted: RecordQuery, before: int | None, may_match: MayMatch
    ) -> Iterator[tuple[int, AuditRecord | None]]:
        """Iterates over records before a position, newest first, with their positions; None for a
        record whose intent and outcome, as they are stored, do not match."""


Source = Path | RecordScanner
"""A home, where the position of a record is its number; or the records of several hubs."""


def search_records(
    source: Source, wanted: RecordQuery, before: int | None, limit: int
) -> tuple[list[dict[str, Any]], int | None]:
    rows: list[dict[str, Any]] = []
    matches = _Matcher(wanted)
    with closing(_read(source, wanted, before, matches)) as records:
        for read, (position, record) in enumerate(records, 1):
            if record is not None:
                if record.at < wanted.since:
                    return rows, None
                if matches(record):
                    rows.append(build_row(record))
            if len(rows) == limit or read >= MAX_READ:
                return rows, position
    return rows, None


def list_traces(
    source: Source, wanted: RecordQuery, before: int | None, limit: int
) -> tuple[list[dict[str, Any]], int | None]:
    found: dict[str, _TraceSummary] = {}
    matches, last = _Matcher(wanted), before
    with closing(_read(source, wanted, before, matches)) as records:
        for read, (position, record) in enumerate(records):
            if record is None:
                last = position
                if read > MAX_READ:
                    break
                continue
            trace = record.intent.get("trace")
            if isinstance(trace, str) and matches(record):
                if trace not in found and (len(found) == limit or read > MAX_READ):
                    return [one.render() for one in found.values()], last
                found.setdefault(trace, _TraceSummary(trace)).add(record)
            last = position
        else:
            last = None
    return [one.render() for one in found.values()], last


def summarize_calls(source: Source, wanted: RecordQuery, minutes: int) -> dict[str, Any]:
    since = time.time() - minutes * 60
    with closing(_read(source, wanted, None, _Matcher(wanted))) as records:
        return _summarize(records, wanted, since)


def _summarize(
    records: Iterable[tuple[int, AuditRecord | None]], wanted: RecordQuery, since: float
) -> dict[str, Any]:
    edges: dict[tuple[str, str], _Edge] = {}
    callers: set[str] = set()
    targets: dict[str, str] = {}
    """The target of each tool."""
    matches, read, complete = _Matcher(wanted), 0, True
    for _, record in records:
        read += 1
        if read > MAX_SUMMARIZED:
            complete = False
            break
        if record is None:
            continue
        if record.at < since:
            break
        intent = record.intent
        target = intent.get("target")
        if not isinstance(target, str) or not matches(record):
            continue
        targets[str(intent.get("verb"))] = target
        begin = _find_begin(intent, targets)
        if not intent.get("chain"):
            callers.add(begin)
        edge = edges.get((begin, target))
        if edge is None:
            if len(edges) >= MAX_EDGES:
                complete = False
                continue
            edge = edges[begin, target] = _Edge(record)
        edge.add(record)
    ends = {end for edge in edges for end in edge}
    nodes = [
        {"id": id, "kind": "client" if id in callers else "server", "label": id, "state": ""}
        for id in sorted(ends)
    ]
    drawn = [{"from": a, "to": b, **edge.render()} for (a, b), edge in edges.items()]
    return {"nodes": nodes, "edges": drawn, "complete": complete}


def _find_begin(intent: Mapping[str, Any], targets: Mapping[str, str]) -> str:
    """Finds who made the call: a client, or the target of the call that it belongs to."""
    chain = intent.get("chain")
    if isinstance(chain, list) and chain and isinstance(chain[-1], str):
        return targets.get(chain[-1]) or chain[-1].partition(".")[0]
    return str(intent.get("caller", ""))


def build_row(record: AuditRecord) -> dict[str, Any]:
    """Builds the row of a record, as `dragoman audit tail --json` prints it."""
    intent = {key: value for key, value in record.intent.items() if key not in HIDDEN}
    conclusion = {key: value for key, value in record.conclusion.items() if key not in HIDDEN}
    at = {"at": render_time(record.at), "time": record.at}
    hub = {"hub": record.hub} if record.hub else {}
    return {"seq": record.seq, **hub, **at, **intent, "outcome": record.outcome, **conclusion}


def _read(
    source: Source, wanted: RecordQuery, before: int | None, matches: _Matcher
) -> Generator[tuple[int, AuditRecord | None]]:
    """Yields positions and records; None for a record that cannot match."""
    records = (
        _read_home(source, before, matches)
        if isinstance(source, Path)
        else (source.scan(wanted, before, matches.may_match))
    )
    for read, one in enumerate(records, 1):
        yield one
        if read % PAUSE_AFTER == 0:
            time.sleep(PAUSE_SECONDS)


def _read_home(
    home: Path, before: int | None, matches: _Matcher
) -> Iterator[tuple[int, AuditRecord | None]]:
    with closing(AuditReader(home)) as reader:
        for one in reader.scan(before, matches.may_match):
            yield (one, None) if isinstance(one, int) else (one.seq, one)


class _Matcher:
    """Compares the text of entries before they are decoded, and the decoded records exactly."""

    def __init__(self, wanted: RecordQuery) -> None:
        self._wanted = wanted
        exact = {"verb": wanted.verb, "caller": wanted.caller, "org": wanted.org}
        self._needles = build_needles({name: value for name, value in exact.items() if value})
        if wanted.trace:
            self._needles.append(f'"trace":"{wanted.trace}'.encode())
        self._text = wanted.text.casefold()
        # Other letters may be in another case, or escaped.
        plain = self._text.isascii() and self._text.isprintable() and not {*self._text} & {*'"\\'}
        self._plain = self._text.encode() if plain else b""

    def may_match(self, intent: bytes, conclusion: bytes) -> bool:
        for needle in self._needles:
            if needle not in intent:
                return False
        return not self._plain or self._plain in intent.lower() or self._plain in conclusion.lower()

    def __call__(self, record: AuditRecord) -> bool:
        wanted, intent = self._wanted, record.intent
        exact = {"verb": wanted.verb, "caller": wanted.caller, "org": wanted.org}
        return (
            record.at < wanted.until
            and all(intent.get(name) == value for name, value in exact.items() if value)
            and wanted.outcome in ("", record.outcome)
            and wanted.decision in ("", record.conclusion.get("decision"), _find_shadow(record))
            and wanted.agent in ("", intent.get("target"), intent.get("agent"))
            and str(intent.get("trace", "")).startswith(wanted.trace)
            and (not self._text or self._has_text(record))
        )

    def _has_text(self, record: AuditRecord) -> bool:
        for value in (record.outcome, *record.intent.values(), *record.conclusion.values()):
            if isinstance(value, str) and self._text in value.casefold():
                return True
            if isinstance(value, list) and any(self._text in str(one).casefold() for one in value):
                return True
        return False


@dataclass(slots=True)
class _TraceSummary:
    trace: str
    calls: int = 0
    failed: int = 0
    refused: int = 0
    first: AuditRecord | None = None
    """The oldest that was read: records come newest first."""
    end: float = 0.0
    problem: str | None = None
    """What the first call that failed says."""

    def add(self, record: AuditRecord) -> None:
        self.calls += 1
        self.failed += record.outcome in ("failed", "target_failed", "crashed")
        self.refused += record.outcome in ("refused", "not_found", "invalid")
        self.end = max(self.end, record.at + _read_duration(record) / 1000)
        self.problem = record.conclusion.get("message") or self.problem
        self.first = record

    def render(self) -> dict[str, Any]:
        assert self.first is not None
        intent = self.first.intent
        return {
            "trace": self.trace,
            "at": render_time(self.first.at),
            "verb": intent.get("verb"),
            "caller": intent.get("caller"),
            "on_behalf_of": intent.get("on_behalf_of"),
            "door": intent.get("door"),
            "outcome": self.first.outcome,
            "calls": self.calls,
            "failed": self.failed,
            "refused": self.refused,
            "duration_ms": round((self.end - self.first.at) * 1000, 1),
            "problem": self.problem,
        }


@dataclass(slots=True)
class _Edge:
    newest: AuditRecord
    calls: int = 0
    failed: int = 0
    refused: int = 0
    durations: list[float] = field(default_factory=list)

    def add(self, record: AuditRecord) -> None:
        self.calls += 1
        self.failed += record.outcome in ("failed", "target_failed", "crashed")
        self.refused += record.outcome in ("refused", "not_found", "invalid")
        if "duration_ms" in record.conclusion and len(self.durations) < MAX_DURATIONS:
            self.durations.append(_read_duration(record))

    def render(self) -> dict[str, Any]:
        took = sorted(self.durations)
        return {
            "calls": self.calls,
            "failed": self.failed,
            "refused": self.refused,
            "p50_ms": took[len(took) // 2] if took else None,
            "p95_ms": took[min(int(len(took) * 0.95), len(took) - 1)] if took else None,
            "last": render_time(self.newest.at),
            "trace": self.newest.intent.get("trace"),
        }


def _find_shadow(record: AuditRecord) -> str | None:
    return SHADOW if "shadow" in record.conclusion else None


def _read_duration(record: AuditRecord) -> float:
    value = record.conclusion.get("duration_ms")
    return float(value) if isinstance(value, int | float) else 0.0
