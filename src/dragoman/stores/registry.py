"""The external agents registered at run time, and the cards of all external agents.

An agent is a row of JSON that this module does not interpret. Each distinct card is stored once, as
received: the last fifty of an agent within a few megabytes.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import msgspec

from dragoman.stores.database import LoopStore, StorePlace, StoreTables
from dragoman.stores.row_seals import SealedTable, find_seals

DATABASE = "registry.db"
MIGRATIONS = (
    """
    CREATE TABLE agents (
        id TEXT PRIMARY KEY,
        org TEXT NOT NULL,
        slug TEXT NOT NULL,
        row TEXT NOT NULL,
        UNIQUE (org, slug)
    );
    CREATE TABLE cards (
        agent TEXT NOT NULL,
        digest TEXT NOT NULL,
        seen_at REAL NOT NULL,
        number INTEGER NOT NULL,
        card BLOB NOT NULL,
        PRIMARY KEY (agent, digest)
    );
    CREATE INDEX cards_by_number ON cards (agent, number);
    """,
    """
    CREATE TABLE credential_origins (
        reference TEXT NOT NULL,
        origin TEXT NOT NULL,
        PRIMARY KEY (reference, origin)
    ) WITHOUT ROWID;
    """,
)
TABLES = StoreTables("registry", DATABASE, MIGRATIONS, counted="registry")

SEALED = SealedTable("agents", "agent", ("id", "org", "slug", "row"))

PAGE = 200
"""Agents that are read at once: reading ten thousand takes too long for the event loop."""
MAX_CARDS = 50
MAX_CARD_BYTES = 4 * 1024 * 1024
"""Of all cards of an agent; the last two are kept whatever they have."""


class _NamedEntry(msgspec.Struct):
    name: str


class _NamedRow(msgspec.Struct):
    """The part of a row that has its agent's name."""

    entry: _NamedEntry


class RegistryStore(LoopStore):
    def __init__(self, place: StorePlace) -> None:
        super().__init__(place, TABLES)
        self._seals = find_seals(place)

    def list_agents(self) -> list[dict[str, Any]]:
        """Lists the agents in the order of their orgs and slugs."""
        return list(self.iterate_agents())

    def iterate_agents(self) -> Iterator[dict[str, Any]]:
        """Reads the agents in pages, in that order; one that is stored meanwhile may be missing."""
        try:
            for data in self._iterate_rows():
                yield msgspec.json.decode(data, type=dict[str, Any])
        except msgspec.DecodeError as error:
            raise self._build_read_error(error) from error

    def list_names(self) -> list[str]:
        """Lists the names of the agents, and decodes nothing else of them."""
        try:
            decode = msgspec.json.Decoder(_NamedRow).decode
            rows = self._read(f"SELECT {self._seals.build_selection(SEALED)} FROM agents")
            return [decode(row[3]).entry.name for row in rows if self._seals.admits(SEALED, row)]
        except msgspec.DecodeError as error:
            raise self._build_read_error(error) from error

    def _iterate_rows(self) -> Iterator[str]:
        query = (
            f"SELECT {self._seals.build_selection(SEALED)} FROM agents "
            f"WHERE (org, slug) > (?, ?) ORDER BY org, slug LIMIT {PAGE}"
        )
        after = "", ""
        while page := self._read(query, after):
            for row in page:
                if self._seals.admits(SEALED, row):
                    yield row[3]
            after = page[-1][1], page[-1][2]

    def save_agent(self, row: Mapping[str, Any]) -> None:
        """`row` has an `id`, an `org` and a `slug`; it is kept when this returns."""
        values = (row["id"], row["org"], row["slug"], msgspec.json.encode(row).decode())
        with self._transact() as db:
            db.execute(
                "INSERT INTO agents (id, org, slug, row) VALUES (?, ?, ?, ?) "
                "ON CONFLICT (id) DO UPDATE SET org = excluded.org, slug = excluded.slug, "
                "row = excluded.row",
                values,
            )
            self._seals.put(db, SEALED, values)

    def delete_agent(self, id: str) -> None:
        """And its cards."""
        with self._transact() as db, self._seals.change(db, SEALED, id):
            db.execute("DELETE FROM agents WHERE id = ?", (id,))
            db.execute("DELETE FROM cards WHERE agent = ?", (id,))

    # --- where credentials may be sent -----------------------------------------------------------

    def bind_credential(self, reference: str, origin: str) -> None:
        with self._transact() as db:
            db.execute(
                "INSERT INTO credential_origins VALUES (?, ?) ON CONFLICT DO NOTHING",
                (reference, origin),
            )

    def list_bound_origins(self, reference: str) -> list[str]:
        query = "SELECT origin FROM credential_origins WHERE reference = ? ORDER BY origin"
        return [origin for (origin,) in self._read(query, (reference,))]

    # --- cards -----------------------------------------------------------------------------------

    def save_card(self, agent: str, digest: str, card: bytes, at: float) -> None:
        """One that was there before is the newest again, and is kept once."""
        with self._transact() as db:
            db.execute(
                "INSERT INTO cards (agent, digest, seen_at, number, card) VALUES (?, ?, ?, "
                "(SELECT coalesce(max(number), 0) + 1 FROM cards WHERE agent = ?), ?) "
                "ON CONFLICT (agent, digest) DO UPDATE SET seen_at = excluded.seen_at, "
                "number = excluded.number",
                (agent, digest, at, agent, card),
            )
            self._drop_old(agent)

    def _drop_old(self, agent: str) -> None:
        kept = self._db.execute(
            "SELECT number, length(card) FROM cards WHERE agent = ? ORDER BY number DESC", (agent,)
        ).fetchall()
        total = 0
        for place, (number, size) in enumerate(kept):
            total += size
            if place >= MAX_CARDS or (place >= 2 and total > MAX_CARD_BYTES):
                self._db.execute(
                    "DELETE FROM cards WHERE agent = ? AND number <= ?", (agent, number)
                )
                return

    def list_cards(self, agent: str) -> list[tuple[str, float, int]]:
        """The digest of each, when it was seen and how many bytes it has, the newest first."""
        columns = "digest, seen_at, length(card)"
        return self._read(
            f"SELECT {columns} FROM cards WHERE agent = ? ORDER BY number DESC", (agent,)
        )

    def load_card(self, agent: str, digest: str) -> bytes | None:
        found = self._read("SELECT card FROM cards WHERE agent = ? AND digest = ?", (agent, digest))
        return bytes(found[0][0]) if found else None
