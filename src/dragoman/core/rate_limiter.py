"""Limits how much one principal, org or address may do in a minute: GCRA, in this process.

The generic cell rate algorithm keeps one number per identity, the time at which its budget is full
again. A charge moves that time by the cost; one that would move it further than a whole budget into
the future is refused. It runs on the event loop's thread without awaiting, so concurrent calls
cannot exceed a limit.
"""

from __future__ import annotations

import heapq
import ipaddress
import math
from collections.abc import Awaitable, Callable, Generator, Iterator, Mapping
from time import monotonic
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from dragoman.core.errors import RateLimited
from dragoman.core.principal import Principal
from dragoman.core.structs import Struct

if TYPE_CHECKING:
    from dragoman.core.ports import RateLimiter

REQUEST, READ, TOOL_CALL, AGENT_CALL = "request", "read", "tool", "agent"
"""The operations that have a cost: a request that calls nothing; a resource, prompt or completion;
a tool; an agent."""
OWNER_SCOPE, PRINCIPAL_SCOPE, ORG_SCOPE, ADDRESS_SCOPE = "owner", "principal", "org", "address"
OWNER_ROLE = "owner"
"""The role of the hub's own user and of keys with the same rights. They have wider budgets, which
do not count towards that of an org."""
OVERFLOW = ""
"""The key of the budget that identities without a place share."""
MAX_PLACES = 65_536
SWEEP_SECONDS = 1.0
ROUNDING = 1e-6
"""Seconds that a charge may come early: times are floating point numbers."""


class Rate(Struct, frozen=True):
    """`burst` tokens at once, and `per_minute` in the long run."""

    per_minute: float
    burst: float


class RateRules(Struct, frozen=True):
    principal: Rate = Rate(12_000, 2_000)
    owner: Rate = Rate(120_000, 20_000)
    org: Rate = Rate(120_000, 20_000)
    address: Rate = Rate(500, 500)
    costs: Mapping[str, float] = MappingProxyType(
        {REQUEST: 1, READ: 1, TOOL_CALL: 2, AGENT_CALL: 10}
    )
    """Tokens, by operation."""


DEFAULT_RULES = RateRules()


class RateBudget(Struct, frozen=True):
    """What is left of a budget."""

    scope: str
    name: str
    rate: Rate
    remaining: int
    """Whole tokens."""
    full_in: float
    """Seconds until it is full again."""


class Budgets:
    """The budgets that have one rate.

    An entry whose time has passed equals an absent one, and is dropped now and then. While the
    table is full of others, new identities share one budget: no entry is evicted, so a flood of
    identities resets no budget.
    """

    __slots__ = ("_most", "_sweep_at", "full_at", "interval", "rate", "scope", "setting", "span")

    def __init__(self, scope: str, setting: str, rate: Rate, most: int) -> None:
        self.scope = scope
        self.setting = setting
        self.full_at: dict[str, float] = {}
        self._most = most
        self._sweep_at = 0.0
        self._set_rate(rate)

    def _set_rate(self, rate: Rate) -> None:
        self.rate = rate
        self.interval = 60.0 / rate.per_minute
        """Seconds in which one token returns."""
        self.span = rate.burst * self.interval
        """Seconds in which all of them do."""

    def apply(self, rate: Rate, now: float) -> None:
        """Sets another rate. The tokens that were used stay used, at most a whole budget."""
        if rate != self.rate:
            before = self.interval
            self._set_rate(rate)
            for key, full_at in self.full_at.items():
                used = max(full_at - now, 0.0) / before
                self.full_at[key] = now + min(used, rate.burst) * self.interval

    def take(self, key: str, cost: float, now: float) -> float:
        """Charges `cost` and returns 0.0, or returns in how many seconds it can be charged."""
        full_at = self.full_at.get(key)
        if full_at is None:
            key = self._find_place(key, now)
            full_at = self.full_at.get(key, now)
        if full_at < now:
            full_at = now
        full_at += cost * self.interval
        wait = full_at - now - self.span
        if wait <= ROUNDING:
            self.full_at[key] = full_at
            return 0.0
        return wait

    def find_wait(self, key: str, cost: float, now: float) -> float:
        """Like `take`, but charges nothing."""
        full_at = max(self.full_at.get(key, now), now) + cost * self.interval
        return max(full_at - now - self.span, 0.0)

    def note(self, key: str, full_in: float, now: float) -> None:
        """Notes what another process knows of a budget, unless the table is full of others."""
        if key not in self.full_at and self._find_place(key, now) != key:
            return
        self.full_at[key] = now + full_in

    def give_back(self, key: str, cost: float) -> None:
        """Takes back the charge that was made last."""
        key = key if key in self.full_at else OVERFLOW
        self.full_at[key] -= cost * self.interval

    def _find_place(self, key: str, now: float) -> str:
        if len(self.full_at) < self._most:
            return key
        if now >= self._sweep_at:
            self._sweep_at = now + SWEEP_SECONDS
            self.full_at = {one: at for one, at in self.full_at.items() if at > now}
            if len(self.full_at) < self._most:
                return key
        return OVERFLOW

    def is_low(self, key: str, now: float) -> bool:
        """Whether less than a quarter is left."""
        full_at = self.full_at.get(key)
        return full_at is not None and full_at - now > 0.75 * self.span

    def find_budget(self, key: str, name: str, now: float) -> RateBudget:
        full_in = max(self.full_at.get(key, now) - now, 0.0)
        left = math.floor((self.span - full_in) / self.interval + ROUNDING)
        return RateBudget(self.scope, name, self.rate, max(left, 0), round(full_in, 3))


class LocalRateLimiter:
    """Implements `core.ports.RateLimiter` for one process."""

    is_shared = False

    def __init__(
        self,
        rules: RateRules = DEFAULT_RULES,
        clock: Callable[[], float] = monotonic,
        most: int = MAX_PLACES,
    ) -> None:
        """`most` is the number of identities of each scope that have a budget of their own."""
        self._clock = clock
        self.owners = Budgets(OWNER_SCOPE, "owner_per_minute", rules.owner, most)
        self.principals = Budgets(PRINCIPAL_SCOPE, "per_minute", rules.principal, most)
        self.orgs = Budgets(ORG_SCOPE, "org_per_minute", rules.org, most)
        self.addresses = Budgets(ADDRESS_SCOPE, "address_per_minute", rules.address, most)
        self._set_rules(rules)

    def apply(self, rules: RateRules) -> None:
        now = self._clock()
        self.owners.apply(rules.owner, now)
        self.principals.apply(rules.principal, now)
        self.orgs.apply(rules.org, now)
        self.addresses.apply(rules.address, now)
        self._set_rules(rules)

    def _set_rules(self, rules: RateRules) -> None:
        self.rules = rules
        # An operation that costs more than a whole budget could never run.
        self.owner_costs = {
            name: min(cost, rules.owner.burst) for name, cost in rules.costs.items()
        }
        most = min(rules.principal.burst, rules.org.burst)
        self.costs = {name: min(cost, most) for name, cost in rules.costs.items()}

    def charge(self, principal: Principal, operation: str, what: str) -> None:
        now = self._clock()
        key = principal.key
        if OWNER_ROLE in principal.roles:
            wait = self.owners.take(key, self.owner_costs[operation], now)
            if wait:
                raise build_refusal(self.owners, principal.label, what, wait)
            return
        own, orgs, cost = self.principals, self.orgs, self.costs[operation]
        wait = own.take(key, cost, now)
        if wait:
            wait = max(wait, orgs.find_wait(principal.org, cost, now))
            raise build_refusal(own, principal.label, what, wait)
        wait = orgs.take(principal.org, cost, now)
        if wait:
            own.give_back(key, cost)
            raise build_refusal(orgs, f'org "{principal.org}"', what, wait)

    def charge_address(self, address: str) -> float:
        return self.addresses.take(find_network(address), 1.0, self._clock())

    def find_address_wait(self, address: str) -> float:
        return self.addresses.find_wait(find_network(address), 1.0, self._clock())

    def find_budgets(self, principal: Principal) -> list[RateBudget]:
        now = self._clock()
        if OWNER_ROLE in principal.roles:
            return [self.owners.find_budget(principal.key, principal.label, now)]
        return [
            self.principals.find_budget(principal.key, principal.label, now),
            self.orgs.find_budget(principal.org, principal.org, now),
        ]

    def find_low_budget(self, principal: Principal) -> RateBudget | None:
        now = self._clock()
        if OWNER_ROLE in principal.roles:
            if not self.owners.is_low(principal.key, now):
                return None
        elif not self.principals.is_low(principal.key, now) and not self.orgs.is_low(
            principal.org, now
        ):
            return None
        return find_tightest(self.find_budgets(principal))

    def list_lowest(self, most: int) -> list[RateBudget]:
        return heapq.nsmallest(most, self._list_budgets(), key=_find_share)

    def _list_budgets(self) -> Iterator[RateBudget]:
        now = self._clock()
        for budgets in (self.owners, self.principals, self.orgs, self.addresses):
            for key, full_at in list(budgets.full_at.items()):
                if full_at > now:
                    name = key.partition("\0")[0] or "others, together"
                    yield budgets.find_budget(key, name, now)


def find_tightest(budgets: list[RateBudget]) -> RateBudget:
    """Returns the one of which the smallest share is left."""
    return min(budgets, key=_find_share)


def _find_share(budget: RateBudget) -> float:
    return budget.remaining / budget.rate.burst


def find_network(address: str) -> str:
    """One IPv6 client can have every address of a /64 network, so these share one budget."""
    if ":" not in address:
        return address or "unknown"
    try:
        parsed = ipaddress.IPv6Address(address.partition("%")[0])
    except ValueError:
        return "unknown"
    if parsed.ipv4_mapped is not None:
        return str(parsed.ipv4_mapped)
    return f"{ipaddress.IPv6Address(int(parsed) >> 64 << 64)}/64"


def _round_up(wait: float) -> float:
    """Rounds to milliseconds, such that waiting for that long is enough."""
    return math.ceil((wait - ROUNDING) * 1000) / 1000


def limit_address(limiter: RateLimiter, address: str) -> Awaitable[None] | None:
    """Charges a request without a principal to its address, or raises `RateLimited`; both when it
    is awaited, if it returns an awaitable."""
    wait = limiter.charge_address(address)
    if isinstance(wait, float):
        _refuse_address(wait, address)
        return None
    return _AddressCharge(wait, address)


class _AddressCharge:
    """Unlike a coroutine, it need not be awaited."""

    __slots__ = ("_address", "_wait")

    def __init__(self, wait: Awaitable[float], address: str) -> None:
        self._wait = wait
        self._address = address

    def __await__(self) -> Generator[Any, None, None]:
        _refuse_address((yield from self._wait.__await__()), self._address)


def check_address(limiter: RateLimiter, address: str) -> None:
    """Raises `RateLimited` if the address has sent too many requests without a valid key: to verify
    another token costs more than to refuse it."""
    _refuse_address(limiter.find_address_wait(address), address)


def _refuse_address(wait: float, address: str) -> None:
    if wait:
        seconds = _round_up(wait)
        raise RateLimited(
            f"too many requests without a valid key from {address}; try again in {seconds:g} s, "
            "or send a key: Authorization: Bearer KEY",
            seconds,
        )


def build_refusal(budgets: Budgets, who: str, what: str, wait: float) -> RateLimited:
    rate = budgets.rate
    seconds = _round_up(wait)
    return RateLimited(
        f'"{what[:200]}" was refused: {who} has reached its rate limit of {rate.per_minute:g} '
        f"tokens a minute ({rate.burst:g} at once); try again in {seconds:g} s, or raise "
        f"[limits.rate] {budgets.setting}",
        seconds,
    )
