"""Takes a table of a real store away for a while: whatever needs it fails meanwhile."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import psycopg


@contextmanager
def take_away(place: Path | str, file: str, table: str) -> Iterator[None]:
    """`place` is the home, whose `file` has the table, or the address of a PostgreSQL database."""

    def rename(old: str, new: str) -> None:
        if isinstance(place, str):
            with psycopg.connect(place, autocommit=True) as server:
                server.execute(f"ALTER TABLE dragoman.{old} RENAME TO {new}")
            return
        with closing(sqlite3.connect(place / file, isolation_level=None)) as database:
            database.execute(f"ALTER TABLE {old} RENAME TO {new}")

    rename(table, f"{table}_away")
    try:
        yield
    finally:
        rename(f"{table}_away", table)
