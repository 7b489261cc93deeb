"""Builds what hubs share in Redis: their rate limits, and messages to one another."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from dragoman.app.config_watch import LiveConfig
from dragoman.core.secret_references import is_reference

if TYPE_CHECKING:
    from dragoman.stores.redis_bus import RedisBus
    from dragoman.stores.redis_limiter import SharedRateLimiter


@dataclass(frozen=True, slots=True)
class RedisParts:
    limiter: SharedRateLimiter
    _url: str
    _prefix: str

    def build_bus(self, find_mark: Callable[[], str]) -> RedisBus:
        """`find_mark` returns the id of this hub."""
        from dragoman.stores.redis_bus import RedisBus

        return RedisBus(self._url, find_mark, self._prefix)

    def start(self) -> None:
        self.limiter.start()

    async def close(self) -> None:
        await self.limiter.close()


def build_redis(live: LiveConfig) -> RedisParts | None:
    """Returns None where no Redis is configured. Raises `ConfigError`."""
    settings = live.config.redis
    url = settings.url
    if url is None:
        return None
    from dragoman.stores.redis_limiter import SharedRateLimiter

    if is_reference(url):
        url = live.secrets.resolve_local(url, "[redis] url")
    rules = live.config.limits.rate.build_rules()
    limiter = SharedRateLimiter(url, rules, prefix=settings.prefix)
    return RedisParts(limiter, url, settings.prefix)
