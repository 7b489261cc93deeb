"""The tables of all stores that a PostgreSQL database can have, each with its file in a home."""

from __future__ import annotations

from dragoman.stores import (
    agents_db,
    approvals,
    credentials,
    dispatches,
    keys,
    pins,
    registry,
    routing,
    runs_db,
    tasks,
    triggers,
    usage,
    users,
)

ALL_TABLES = (
    keys.TABLES,
    users.TABLES,
    credentials.TABLES,
    pins.TABLES,
    registry.TABLES,
    approvals.TABLES,
    tasks.TABLES,
    agents_db.TABLES,
    usage.TABLES,
    routing.TABLES,
    dispatches.TABLES,
    runs_db.TABLES,
    triggers.TABLES,
)
