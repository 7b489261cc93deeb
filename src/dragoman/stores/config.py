"""`[audit]`: how long the record of calls is kept, and how safely. `[redis]`: what several hubs
share besides their stores."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta, Struct


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
