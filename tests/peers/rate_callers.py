"""Callers of one key in a process of their own: they charge to a limiter in Redis as fast as it
admits them, and print how many calls it admitted, and when.

    python rate_callers.py URL CALLERS SECONDS PER_MINUTE BURST
"""

from __future__ import annotations

import asyncio
import json
import sys
import time

from dragoman.core.errors import RateLimited
from dragoman.core.principal import Principal
from dragoman.core.rate_limiter import REQUEST, Rate, RateRules
from dragoman.stores.redis_limiter import SharedRateLimiter
from dragoman.stores.redis_link import LinkLimits


async def call(limiter: SharedRateLimiter, until: float, found: dict[str, int]) -> None:
    while time.time() < until:
        try:
            charged = limiter.charge(Principal("key", "shared"), REQUEST, "x")
            found["local"] += charged is None
            if charged is not None:
                await charged
            found["admitted"] += 1
        except RateLimited as refusal:
            found["refused"] += 1
            await asyncio.sleep(refusal.retry_after)


async def main(url: str, callers: int, seconds: float, per_minute: float, burst: float) -> None:
    wide = Rate(1e9, 1e9)
    rules = RateRules(principal=Rate(per_minute, burst), org=wide)
    # A busy machine is not an outage.
    limiter = SharedRateLimiter(url, rules, link_limits=LinkLimits(reply_seconds=20.0))
    limiter.start()
    while not limiter.is_shared:
        await asyncio.sleep(0.005)
    print("ready", flush=True)
    await asyncio.to_thread(sys.stdin.readline)
    found = {"admitted": 0, "refused": 0, "local": 0}
    begun = time.time()
    await asyncio.gather(*(call(limiter, begun + seconds, found) for _ in range(callers)))
    print(json.dumps({**found, "begun": begun, "ended": time.time()}), flush=True)
    await limiter.close()


if __name__ == "__main__":
    given = sys.argv[1:]
    asyncio.run(main(given[0], int(given[1]), *map(float, given[2:])))
