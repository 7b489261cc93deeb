"""Rate limits that several hubs share: GCRA as one script in Redis.

Each charge is one round trip, and exact over all hubs. What a reply says is noted, so that headers,
reports and charges that cannot fit need none. While Redis is away, each hub keeps budgets of its
own, whose sum over the hubs is one limit: with what Redis admits, that is at most twice the limit.
"""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Awaitable, Callable, Coroutine, Generator, Sequence
from contextlib import suppress
from functools import partial
from math import inf
from time import monotonic
from typing import Any

from dragoman.core.principal import Principal
from dragoman.core.rate_limiter import (
    DEFAULT_RULES,
    MAX_PLACES,
    OWNER_ROLE,
    ROUNDING,
    Budgets,
    LocalRateLimiter,
    Rate,
    RateBudget,
    RateRules,
    build_refusal,
    find_network,
)
from dragoman.core.structs import replace
from dragoman.stores.redis_link import (
    Argument,
    LinkLimits,
    RedisLink,
    RedisScript,
    RedisUnavailable,
)

SLACK = 1.001
"""For what the numbers of a reply were rounded by."""
HUB_SECONDS = 10
"""For how long a hub counts that is not heard of any more."""
MOST_HUBS = 16
"""How many hubs in no cluster count at most: a program that writes to Redis can add any."""

# Times are in microseconds since 2026, so that a double has them exactly. A value is the time at
# which a budget is full again, and the time in which one token returned when it was written: under
# other rules the tokens that were used stay used, and return as fast as the new rules say: then a
# refusal is written, too. No budget can be emptier than empty: the clock of the server may have
# been set back. An expired key equals a full budget.
CHARGE = RedisScript("""\
local time = redis.call('TIME')
local now = (time[1] - 1767225600) * 1000000 + time[2]
local used, changed, refused, found = {}, {}, false, {}
for i, key in ipairs(KEYS) do
  local cost, interval, span = ARGV[3 * i - 2] * 1, ARGV[3 * i - 1] * 1, ARGV[3 * i] * 1
  local rest = 0
  local value = redis.call('GET', key)
  if value then
    local full_at, before = string.match(value, '^(%S+) (%S+)$')
    full_at, before = tonumber(full_at), tonumber(before)
    if full_at and before and full_at > now then
      rest = full_at - now
      if before ~= interval then
        rest = rest / before * interval
        changed[i] = true
      end
      if rest > span then rest = span end
    end
  end
  local wait = rest + cost * interval - span
  if wait > 1 then refused = true else wait = 0 end
  used[i] = rest
  found[2 * i - 1] = math.ceil(wait)
  found[2 * i] = math.ceil(rest)
end
for i, key in ipairs(KEYS) do
  if changed[i] or not refused then
    local interval = ARGV[3 * i - 1] * 1
    local rest = used[i]
    if not refused then rest = rest + ARGV[3 * i - 2] * interval end
    local value = string.format('%.17g %.17g', now + rest, interval)
    redis.call('SET', key, value, 'PX', string.format('%d', math.ceil(rest / 1000) + 1000))
    found[2 * i] = math.ceil(rest)
  end
end
return found
""")
COUNT_HUBS = RedisScript("""\
local time = redis.call('TIME')
local now = time[1] + time[2] / 1000000
redis.call('ZADD', KEYS[1], now, ARGV[1])
redis.call('ZREMRANGEBYSCORE', KEYS[1], '-inf', now - ARGV[2])
redis.call('EXPIRE', KEYS[1], 3600)
return {redis.call('ZCARD', KEYS[1])}
""")

Account = tuple[Budgets, str]
"""A budget that is charged: the table it is in, and its key there."""


class SharedRateLimiter:
    """Implements `core.ports.RateLimiter` for all hubs that use the same Redis."""

    def __init__(
        self,
        url: str,
        rules: RateRules = DEFAULT_RULES,
        *,
        prefix: str = "dragoman",
        count_hubs: Callable[[], int] | None = None,
        link_limits: LinkLimits | None = None,
        clock: Callable[[], float] = monotonic,
        most: int = MAX_PLACES,
    ) -> None:
        """`count_hubs` returns how many hubs the cluster has. For a hub in no cluster it is None:
        then those that use this Redis are counted, up to `MOST_HUBS`. Raises `ConfigError` for an
        invalid address."""
        self.rules = rules
        self._clock = clock
        self._seen = LocalRateLimiter(rules, clock, most)
        """The budgets in Redis as the last replies have them."""
        self._alone = LocalRateLimiter(rules, clock, most)
        """This hub's share, for the time in which Redis is away."""
        self._count_hubs = count_hubs
        self._hubs = 1
        self._hubs_seen = 1
        self._id = secrets.token_hex(8)
        self._prefix = f"{prefix}:rate:"
        self._hubs_key = f"{self._prefix}hubs"
        self._probe_key = f"{self._prefix}probe"
        self._link = RedisLink(url, self._beat, link_limits)

    @property
    def is_shared(self) -> bool:
        """Whether charges go to Redis now; otherwise this hub decides by itself."""
        return self._link.is_up

    def start(self) -> None:
        self._link.start()

    async def close(self) -> None:
        with suppress(RedisUnavailable):  # the others need not wait until it is forgotten
            await self._link.send(("ZREM", self._hubs_key, self._id))
        await self._link.close()

    def apply(self, rules: RateRules) -> None:
        self.rules = rules
        self._seen.apply(rules)
        self._alone.apply(divide_rules(rules, self._hubs))

    async def _beat(self) -> None:
        """Tests the connection, and counts the hubs that use this Redis. A charge of nothing is
        among the tests, so that a server that answers charges wrongly is not used again."""
        (self._hubs_seen,) = await self._link.evaluate(
            COUNT_HUBS, (self._hubs_key,), self._id, HUB_SECONDS, bounds=(inf,)
        )
        await self._link.evaluate(CHARGE, (self._probe_key,), 0, 1, 1, bounds=(0, 1))
        self._divide()

    def _divide(self) -> None:
        count = self._count_hubs
        hubs = max(min(self._hubs_seen, MOST_HUBS) if count is None else count(), 1)
        if hubs != self._hubs:
            self._hubs = hubs
            self._alone.apply(divide_rules(self.rules, hubs))

    # --- charging --------------------------------------------------------------------------------

    def charge(self, principal: Principal, operation: str, what: str) -> Awaitable[None] | None:
        if not self._link.is_up:
            self._charge_alone(principal, operation, what)
            return None
        seen = self._seen
        accounts: tuple[Account, ...]
        if OWNER_ROLE in principal.roles:
            cost, accounts = seen.owner_costs[operation], ((seen.owners, principal.key),)
        else:
            cost = seen.costs[operation]
            accounts = (seen.principals, principal.key), (seen.orgs, principal.org)
        self._refuse(self._find_waits(accounts, cost), accounts, principal, what)
        return self._charge_shared(accounts, cost, principal, operation, what)

    async def _charge_shared(
        self,
        accounts: Sequence[Account],
        cost: float,
        principal: Principal,
        operation: str,
        what: str,
    ) -> None:
        try:
            waits = await self._take(accounts, cost)
        except RedisUnavailable:
            self._charge_alone(principal, operation, what)
        else:
            self._refuse(waits, accounts, principal, what)

    def _charge_alone(self, principal: Principal, operation: str, what: str) -> None:
        self._divide()
        self._alone.charge(principal, operation, what)

    def _find_waits(self, accounts: Sequence[Account], cost: float) -> list[float]:
        """Finds what must be waited for according to the last replies. Other hubs may have charged
        since, so it may be more; it is less only if Redis has lost something."""
        now = self._clock()
        return [budgets.find_wait(key, cost, now) for budgets, key in accounts]

    def _refuse(
        self, waits: Sequence[float], accounts: Sequence[Account], principal: Principal, what: str
    ) -> None:
        if waits[0] > ROUNDING:
            raise build_refusal(accounts[0][0], principal.label, what, max(waits))
        if len(waits) > 1 and waits[1] > ROUNDING:
            raise build_refusal(accounts[1][0], f'org "{principal.org}"', what, waits[1])

    async def _take(self, accounts: Sequence[Account], cost: float) -> list[float]:
        """Charges all accounts, or none; returns how long to wait for each. Raises
        `RedisUnavailable`."""
        keys: list[Argument] = []
        values: list[Argument] = []
        bounds: list[float] = []
        intervals = [budgets.interval for budgets, _ in accounts]
        for budgets, key in accounts:
            digest = hashlib.blake2b(key.encode(), digest_size=16).hexdigest()
            keys.append(f"{self._prefix}{budgets.scope}:{digest}")
            interval, span = budgets.interval * 1e6, budgets.span * 1e6
            values += cost, interval, span
            # No budget is emptier than empty, so the wait is for the cost at most.
            bounds += cost * interval * SLACK + 1_000, span * SLACK + 1_000
        reply = await self._link.evaluate(CHARGE, keys, *values, bounds=bounds)
        now, waits = self._clock(), []
        for number, (budgets, key) in enumerate(accounts):
            # Other rules may have been applied since the request: the tokens count, not the time.
            scale = budgets.interval / intervals[number] / 1e6
            waits.append(reply[2 * number] * scale)
            budgets.note(key, min(reply[2 * number + 1] * scale, budgets.span), now)
        return waits

    def charge_address(self, address: str) -> float | Awaitable[float]:
        if not self._link.is_up:
            self._divide()
            return self._alone.charge_address(address)
        wait = self._seen.find_address_wait(address)
        return wait if wait > ROUNDING else _Later(partial(self._charge_address, address))

    async def _charge_address(self, address: str) -> float:
        try:
            (wait,) = await self._take([(self._seen.addresses, find_network(address))], 1.0)
        except RedisUnavailable:
            return self._alone.charge_address(address)
        return wait

    # --- reports ---------------------------------------------------------------------------------

    def _find_known(self) -> LocalRateLimiter:
        return self._seen if self._link.is_up else self._alone

    def find_address_wait(self, address: str) -> float:
        return self._find_known().find_address_wait(address)

    def find_budgets(self, principal: Principal) -> list[RateBudget]:
        return self._find_known().find_budgets(principal)

    def find_low_budget(self, principal: Principal) -> RateBudget | None:
        return self._find_known().find_low_budget(principal)

    def list_lowest(self, most: int) -> list[RateBudget]:
        return self._find_known().list_lowest(most)


class _Later:
    """Unlike a coroutine, it need not be awaited."""

    __slots__ = ("_start",)

    def __init__(self, start: Callable[[], Coroutine[Any, Any, float]]) -> None:
        self._start = start

    def __await__(self) -> Generator[Any, None, float]:
        return self._start().__await__()


def divide_rules(rules: RateRules, hubs: int) -> RateRules:
    """Returns the share of one hub, which is enough for the most expensive operation."""
    if hubs <= 1:
        return rules
    most = max(rules.costs.values(), default=1.0)

    def divide(rate: Rate, cost: float) -> Rate:
        return Rate(rate.per_minute / hubs, max(rate.burst / hubs, min(rate.burst, cost)))

    return replace(
        rules,
        principal=divide(rules.principal, most),
        owner=divide(rules.owner, most),
        org=divide(rules.org, most),
        address=divide(rules.address, 1.0),
    )
