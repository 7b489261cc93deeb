"""`agents.db`: the memory, the task queue, the schedules and the conversations of the agents."""

from __future__ import annotations

from dragoman.stores.database import StoreTables

DATABASE = "agents.db"
MIGRATIONS = (
    """
    CREATE TABLE memory (
        number INTEGER PRIMARY KEY AUTOINCREMENT,
        owner TEXT NOT NULL,
        key TEXT NOT NULL,
        value TEXT NOT NULL,
        size INTEGER NOT NULL,
        at REAL NOT NULL,
        UNIQUE (owner, key)
    );
    CREATE VIRTUAL TABLE memory_words USING fts5 (key, value);
    CREATE TABLE queue (
        number INTEGER PRIMARY KEY AUTOINCREMENT,
        id TEXT NOT NULL UNIQUE,
        org TEXT NOT NULL,
        title TEXT NOT NULL,
        description TEXT NOT NULL,
        posted_by TEXT NOT NULL,
        assigned_to TEXT NOT NULL,
        state TEXT NOT NULL,
        claimed_by TEXT NOT NULL,
        lease_until REAL NOT NULL,
        result TEXT NOT NULL,
        created REAL NOT NULL,
        updated REAL NOT NULL
    );
    CREATE INDEX queue_by_state ON queue (state, number);
    CREATE TABLE schedules (
        id TEXT PRIMARY KEY,
        org TEXT NOT NULL,
        owner TEXT NOT NULL,
        agent TEXT NOT NULL,
        message TEXT NOT NULL,
        spec TEXT NOT NULL,
        zone TEXT NOT NULL,
        once INTEGER NOT NULL,
        created REAL NOT NULL,
        next_at REAL NOT NULL,
        last_at REAL NOT NULL,
        outcome TEXT NOT NULL,
        runs INTEGER NOT NULL,
        missed INTEGER NOT NULL
    );
    """,
    "ALTER TABLE schedules ADD COLUMN source TEXT NOT NULL DEFAULT ''",
    "ALTER TABLE schedules ADD COLUMN callers TEXT NOT NULL DEFAULT '[]'",
    """
    CREATE TABLE conversations (
        agent TEXT NOT NULL,
        principal TEXT NOT NULL,
        context TEXT NOT NULL,
        messages BLOB NOT NULL,
        size INTEGER NOT NULL,
        used REAL NOT NULL,
        PRIMARY KEY (agent, principal, context)
    );
    """,
    """
    CREATE TABLE contexts (
        agent TEXT NOT NULL,
        principal TEXT NOT NULL,
        context TEXT NOT NULL,
        value TEXT NOT NULL,
        size INTEGER NOT NULL,
        used REAL NOT NULL,
        PRIMARY KEY (agent, principal, context)
    );
    """,
)
TABLES = StoreTables("agents", DATABASE, MIGRATIONS, oldest=4)
