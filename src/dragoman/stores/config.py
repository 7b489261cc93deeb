"""`[store]`: where the hub keeps its data. `[audit]`: how long the record of calls is kept.
`[cluster]`: which hubs share the data. `[redis]`: what they share besides their stores."""

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


class ClusterSettings(Struct, frozen=True, kw_only=True):
    """`[cluster]`: several hubs on one database."""

    secret: Annotated[
        str | None,
        Meta(
            description="A reference to the secret that all hubs of the cluster share, of at least "
            "32 characters: env:NAME or file:PATH."
        ),
    ] = None
    listen: Annotated[
        str,
        Meta(
            min_length=1,
            description="Where the hub takes the requests of other hubs: HOST:PORT, or the path of "
            "a Unix socket if all hubs are on this machine.",
        ),
    ] = "127.0.0.1:0"
    advertise: Annotated[
        str | None,
        Meta(
            description="HOST:PORT by which other hubs reach it, where that differs; needed if it "
            "listens on all addresses."
        ),
    ] = None
    lease_secs: Annotated[
        float,
        Meta(
            ge=1,
            le=60,
            description="Seconds after which a hub that has lost the database counts as dead.",
        ),
    ] = 6
    drain_secs: Annotated[
        float,
        Meta(
            ge=0,
            le=60,
            description="Seconds for which a hub that stops still takes requests, so that a "
            "balancer can notice it by /readyz.",
        ),
    ] = 3


class RedisSettings(Struct, frozen=True, kw_only=True):
    url: Annotated[
        str | None,
        Meta(
            description="The address of a Redis or Valkey server (redis://, rediss:// or unix://), "
            'or a reference to it such as "env:REDIS_URL": hubs that use the same one share their '
            'rate limits. Needs the extra "redis".'
        ),
    ] = None
    prefix: Annotated[
        str,
        Meta(
            min_length=1,
            max_length=100,
            pattern=r"^[A-Za-z0-9._:-]+$",
            description="The beginning of all names in Redis: hubs share what has the same one.",
        ),
    ] = "dragoman"
