"""Reads what waits for people from the databases of a home, without a hub. What is wrong with a
database is for others to report: here it has nothing."""

from __future__ import annotations

import sqlite3
import time
from contextlib import closing
from pathlib import Path
from typing import Any

from dragoman.core.errors import ConfigError
from dragoman.core.runs import NEEDS_DECISION
from dragoman.stores import approvals, runs_db
from dragoman.stores.sqlite import open_to_read


def count_approvals(home: Path) -> int:
    """Counts the requests for approval that can be decided."""
    query = "SELECT count(*) FROM approvals WHERE state = 'pending' AND expires_at > ?"
    known = len(approvals.MIGRATIONS)
    rows = _read(home / approvals.DATABASE, known, query, (time.time(),))
    return int(rows[0][0]) if rows else 0


def list_undecided_runs(home: Path, most: int) -> list[tuple[str, str]]:
    """Lists the runs that need a decision, with their workflows, the newest first."""
    query = "SELECT id, workflow FROM runs WHERE state = ? ORDER BY seq DESC LIMIT ?"
    known = len(runs_db.MIGRATIONS)
    rows = _read(home / runs_db.DATABASE, known, query, (NEEDS_DECISION, most))
    return [(str(id), str(workflow)) for id, workflow in rows]


def _read(path: Path, known: int, query: str, values: tuple[Any, ...]) -> list[Any]:
    if not path.exists():
        return []
    try:
        with closing(open_to_read(path, known)) as db:
            return db.execute(query, values).fetchall()
    except (ConfigError, sqlite3.Error):
        return []
