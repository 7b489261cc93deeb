"""The statements on the tables of runs and the conversion of rows, for SQLite and PostgreSQL."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from itertools import zip_longest
from typing import Any, NamedTuple

import msgspec

from dragoman.core.errors import InvalidInput
from dragoman.core.runs import (
    ENDED,
    NEEDS_DECISION,
    QUEUED,
    RUNNING,
    WAITING,
    Run,
    RunFilter,
    RunOrigin,
    StepRecord,
)
from dragoman.core.taint import LabelOrigin

PRUNED_AT_ONCE = 200
_FIXED = ("id", "workflow", "digest", "org", "owner", "parent", "created_at", "origin", "inputs")
_CHANGING = (
    "state", "ended_at", "wake_at", "problem", "output", "labels",
)  # fmt: skip
_LISTED = tuple(name for name in (*_FIXED, *_CHANGING) if name not in ("inputs", "output"))

ADD_SOURCE = "INSERT INTO sources (digest, source) VALUES (?, ?) ON CONFLICT DO NOTHING"
ADD_RUN = (
    f"INSERT INTO runs ({', '.join((*_FIXED, *_CHANGING, 'hub'))}) "
    f"VALUES ({', '.join('?' * (len(_FIXED) + len(_CHANGING) + 1))}) ON CONFLICT DO NOTHING"
)
SAVE_RUN = (
    f"UPDATE runs SET {', '.join(f'{name} = ?' for name in _CHANGING)} WHERE id = ? AND hub = ?"
)
"""`hub` is the hub that works on the run: what a hub writes after it lost the run has no effect."""
SAVE_STEP = (
    "INSERT INTO steps (run, path, started_at, awaited, body) VALUES (?, ?, ?, ?, ?) "
    "ON CONFLICT (run, path) DO UPDATE SET started_at = excluded.started_at, "
    "awaited = excluded.awaited, body = excluded.body"
)
DROP_RUN = f"DELETE FROM runs WHERE id = ? AND hub = ? AND state = '{QUEUED}'"
FIND_SOURCE = "SELECT source FROM sources WHERE digest = ?"
FIND_RUN = f"SELECT {', '.join((*_FIXED, *_CHANGING))} FROM runs WHERE id = ?"
LOAD_STEPS = "SELECT body FROM steps WHERE run = ? ORDER BY started_at, path"
COUNT_UNFINISHED = (
    "SELECT org, owner, count(*) FROM runs "
    f"WHERE state NOT IN ({', '.join('?' * len(ENDED))}) GROUP BY org, owner"
)
_OWN = "hub IN ('', ?)"
"""The runs that a hub may take: its own, and those that no hub works on."""
LIST_QUEUED = f"SELECT id FROM runs WHERE state = '{QUEUED}' AND {_OWN} ORDER BY seq LIMIT ?"
_SLEEPING = f"'{WAITING}', '{NEEDS_DECISION}'"
LIST_WOKEN = (
    "SELECT id FROM runs WHERE wake_at > 0 AND wake_at <= ? "
    f"AND state IN ({_SLEEPING}) AND {_OWN} ORDER BY wake_at LIMIT ?"
)
NEXT_WAKE = f"SELECT min(wake_at) FROM runs WHERE wake_at > 0 AND state IN ({_SLEEPING}) AND {_OWN}"
CLAIM = (
    f"UPDATE runs SET hub = ? WHERE id = ? AND {_OWN} RETURNING {', '.join((*_FIXED, *_CHANGING))}"
)
ADOPT = f"UPDATE runs SET hub = ? WHERE id = ? AND state = '{QUEUED}' AND hub <> ?"
FIND_HUB = "SELECT hub FROM runs WHERE id = ?"
RELEASE = "UPDATE runs SET hub = '' WHERE id = ? AND hub = ?"
RESCUE = (
    f"UPDATE runs SET hub = '', state = CASE state WHEN '{RUNNING}' THEN '{QUEUED}' "
    f"ELSE state END WHERE (hub = '' AND state = '{RUNNING}') OR (hub <> '' AND NOT EXISTS "
    "(SELECT 1 FROM hubs WHERE hubs.id = runs.hub AND hubs.heir IS NULL "
    "AND hubs.state NOT IN ('stopped', 'dead')))"
)
REQUEUE = f"UPDATE runs SET state = '{QUEUED}' WHERE state = '{RUNNING}'"
LIST_AWAITING = (
    "SELECT run, path, awaited FROM steps WHERE awaited >= ? AND awaited <= ? AND awaited <> '' "
    "AND (run > ? OR (run = ? AND path > ?)) ORDER BY run, path LIMIT ?"
)
_ENDED_RUNS = "SELECT id FROM runs WHERE ended_at > 0"
LIST_PRUNED = (
    f"SELECT id FROM runs WHERE ended_at > 0 AND ended_at < ? OR id IN ({_ENDED_RUNS} "
    "ORDER BY ended_at DESC LIMIT ? OFFSET ?) LIMIT ?"
)
DELETE_RUN, DELETE_STEPS = "DELETE FROM runs WHERE id = ?", "DELETE FROM steps WHERE run = ?"
DELETE_SOURCES = (
    "DELETE FROM sources WHERE NOT EXISTS (SELECT 1 FROM runs WHERE runs.digest = sources.digest)"
)

Statement = tuple[str, tuple[Any, ...]]

_encode = msgspec.json.Encoder(enc_hook=dict).encode  # mapping proxies
_origins = msgspec.json.Decoder(RunOrigin)
_labels = msgspec.json.Decoder(dict[str, LabelOrigin])
_steps = msgspec.json.Decoder(StepRecord)


class ListQuery(NamedTuple):
    statement: str
    values: tuple[Any, ...]


def build_add(run: Run, source: str, hub: str = "") -> list[Statement]:
    origin = run.origin
    fixed = (
        run.id, run.workflow, run.digest, run.org, run.owner, origin.parent, run.created_at,
        _dump(origin), _dump(run.inputs),
    )  # fmt: skip
    return [
        (ADD_SOURCE, (run.digest, source)),
        (ADD_RUN, (*fixed, *_list_changing(run), hub)),
    ]


def build_drop(run: Run, hubs: Collection[str], hub: str = "") -> list[Statement]:
    """A transaction that is still adding the run is not seen by the deletion; the insertion waits
    for its end."""
    return [build_add(run, "", hub)[1], *((DROP_RUN, (run.id, one)) for one in {hub, *hubs})]


def build_save(
    run: Run, steps: Collection[StepRecord], children: Sequence[tuple[Run, str]], hub: str = ""
) -> list[Statement]:
    found: list[Statement] = [(SAVE_RUN, (*_list_changing(run), run.id, hub))]
    for one in steps:
        awaited = one.awaited if one.state == WAITING else ""
        found.append((SAVE_STEP, (run.id, one.path, one.started_at, awaited, _dump(one))))
    for child, source in children:
        found += build_add(child, source, hub)
    return found


def build_list(wanted: RunFilter, limit: int, cursor: str) -> ListQuery:
    """Raises `InvalidInput` for an invalid cursor."""
    where, values = ["1 = 1"], list[Any]()
    for name in ("org", "owner", "workflow", "parent"):
        if value := getattr(wanted, name):
            where.append(f"{name} = ?")
            values.append(value)
    if wanted.states:
        where.append(f"state IN ({', '.join('?' * len(wanted.states))})")
        values += wanted.states
    if cursor:
        if not (cursor.isascii() and cursor.isdigit() and len(cursor) < 19):
            raise InvalidInput("invalid cursor: use nextCursor of the list before")
        where.append("seq < ?")
        values.append(int(cursor))
    statement = (
        f"SELECT seq, {', '.join(_LISTED)} FROM runs WHERE {' AND '.join(where)} "
        "ORDER BY seq DESC LIMIT ?"
    )
    return ListQuery(statement, (*values, limit + 1))


def list_from_rows(rows: Sequence[Sequence[Any]], limit: int) -> tuple[list[Run], str]:
    cursor = str(rows[limit - 1][0]) if len(rows) > limit else ""
    return [_build_run(dict(zip(_LISTED, row[1:], strict=True))) for row in rows[:limit]], cursor


def run_from_row(row: Sequence[Any]) -> Run:
    return _build_run(dict(zip((*_FIXED, *_CHANGING), row, strict=True)))


def step_from_row(row: Sequence[Any]) -> StepRecord:
    return _steps.decode(row[0])


def build_range(awaited: str, most: int, after: tuple[str, str]) -> tuple[Any, ...]:
    """The values of LIST_AWAITING."""
    last = awaited[:-1] + "!" if awaited.endswith(" ") else awaited  # "!" follows " "
    return awaited, last, after[0], *after, most


def merge_due(
    woken: Sequence[Sequence[Any]], queued: Sequence[Sequence[Any]], most: int
) -> list[str]:
    """Merges the rows of LIST_WOKEN and LIST_QUEUED in turns."""
    found = [row[0] for pair in zip_longest(queued, woken) for row in pair if row is not None]
    return found[:most]


def _list_changing(run: Run) -> tuple[Any, ...]:
    return (
        run.state, run.ended_at, run.wake_at, _clean(run.problem), _dump(run.output),
        _dump(run.labels),
    )  # fmt: skip


def _build_run(values: dict[str, Any]) -> Run:
    for name in ("org", "owner", "parent"):
        del values[name]
    values["origin"] = _origins.decode(values["origin"])
    values["labels"] = _labels.decode(values["labels"])
    for name in ("inputs", "output"):
        if name in values:
            values[name] = msgspec.json.decode(values[name])
    return Run(**values)


def _clean(text: str) -> str:
    return text.replace("\0", "")  # which a text of PostgreSQL cannot have


def _dump(value: Any) -> str:
    return _encode(value).decode()
