"""Reads and changes the tables of a store from outside, wherever it is."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

from dragoman.stores.database import StorePlace, StoreTables


def execute(place: StorePlace, file: str, statement: str) -> list[Any]:
    if isinstance(place, Path):
        with closing(sqlite3.connect(place / file, isolation_level=None)) as db:
            return db.execute(statement).fetchall()
    base = place.open(StoreTables("outside", file, (), counted="outside"))
    with closing(base):
        if statement.startswith("SELECT"):
            return base.db.execute(statement).fetchall()
        with base.writer.transaction():
            base.db.execute(statement)
        return []
