"""`[store]`: where the hub keeps its data. `[audit]`: how long the record of calls is kept."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta, Struct


class StoreSettings(Struct, frozen=True, kw_only=True):
    url: Annotated[
        str | None,
        Meta(
            description="The address of a PostgreSQL database for the hub's data "
            '(postgresql://USER@HOST/NAME), or a reference to it such as "env:DATABASE_URL" or '
            '"file:PATH"; by default SQLite files in the home.'
        ),
    ] = None


class AuditSettings(Struct, frozen=True, kw_only=True):
    keep_days: Annotated[
        float, Meta(ge=1, description="Days a record is kept before it may be deleted; at least 1.")
    ] = 90
    max_entries: Annotated[
        int, Meta(ge=1_000, description="Entries kept at most; a call makes two.")
    ] = 10_000_000
    durable: Annotated[
        bool,
        Meta(
            description="Wait for the disk at every commit, so that records survive a power cut, "
            "not only a crash. Costs about 0.2 ms a call."
        ),
    ] = False
