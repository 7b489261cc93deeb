"""Builds what hubs share in Redis: their rate limits, and messages to one another."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from dragoman.app.config_watch import LiveConfig
from dragoman.core.secret_references import is_reference
from dragoman.core.secret_rules import Author, SecretUse

if TYPE_CHECKING:
    from dragoman.stores.cluster import PostgresCluster
    from dragoman.stores.redis_bus import RedisBus
    from dragoman.stores.redis_limiter import SharedRateLimiter


@dataclass(frozen=True, slots=True)
class RedisParts:
    limiter: SharedRateLimiter
    bus: RedisBus | None
    """None for a hub that is not in a cluster."""

    def start(self) -> None:
        self.limiter.start()
        if self.bus is not None:
            self.bus.start()

    async def close(self) -> None:
        await self.limiter.close()
        if self.bus is not None:
            await self.bus.close()


def build_redis(live: LiveConfig, hubs: PostgresCluster | None) -> RedisParts | None:
    """Returns None where no Redis is configured. Raises `ConfigError`."""
    settings = live.config.redis
    url = settings.url
    if url is None:
        return None
    from dragoman.stores.redis_limiter import SharedRateLimiter

    if is_reference(url):
        url = live.secrets.resolve_local(url, SecretUse(Author.OWNER, "[redis] url"))
    rules, prefix = live.config.limits.rate.build_rules(), settings.prefix
    if hubs is None:
        return RedisParts(SharedRateLimiter(url, rules, prefix=prefix), None)
    from dragoman.stores.redis_bus import RedisBus

    limiter = SharedRateLimiter(
        url, rules, prefix=prefix, count_hubs=lambda: len(hubs.list_living())
    )
    bus = RedisBus(url, lambda: hubs.mark, prefix)
    hubs.use_bus(bus)
    return RedisParts(limiter, bus)
