"""`runs.db`: the runs of workflows. PostgreSQL has the same tables."""

from __future__ import annotations

from dragoman.stores.database import StoreTables

DATABASE = "runs.db"
MIGRATIONS = (
    """
CREATE TABLE sources (digest TEXT PRIMARY KEY, source TEXT NOT NULL);
CREATE TABLE runs (
    seq INTEGER PRIMARY KEY AUTOINCREMENT,
    id TEXT NOT NULL UNIQUE,
    workflow TEXT NOT NULL,
    digest TEXT NOT NULL,
    org TEXT NOT NULL,
    owner TEXT NOT NULL,
    parent TEXT NOT NULL,
    created_at REAL NOT NULL,
    origin TEXT NOT NULL,
    inputs TEXT NOT NULL,
    state TEXT NOT NULL,
    ended_at REAL NOT NULL,
    wake_at REAL NOT NULL,
    problem TEXT NOT NULL,
    output TEXT NOT NULL,
    labels TEXT NOT NULL
);
CREATE INDEX runs_by_state ON runs (state, seq);
CREATE INDEX runs_by_wake ON runs (wake_at) WHERE wake_at > 0;
CREATE INDEX runs_by_end ON runs (ended_at) WHERE ended_at > 0;
CREATE INDEX runs_by_digest ON runs (digest);
CREATE TABLE steps (
    run TEXT NOT NULL,
    path TEXT NOT NULL,
    started_at REAL NOT NULL,
    awaited TEXT NOT NULL,
    body TEXT NOT NULL,
    PRIMARY KEY (run, path)
);
CREATE INDEX steps_by_awaited ON steps (awaited, run, path) WHERE awaited <> '';
""",
    """
ALTER TABLE runs ADD COLUMN hub TEXT NOT NULL DEFAULT '';
CREATE INDEX runs_by_hub ON runs (hub) WHERE hub <> '';
""",
)
TABLES = StoreTables("runs", DATABASE, MIGRATIONS)
