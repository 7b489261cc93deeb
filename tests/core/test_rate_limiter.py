from __future__ import annotations

import random

import pytest

from dragoman.core.errors import RateLimited
from dragoman.core.principal import LOCAL, OWNER, Principal
from dragoman.core.rate_limiter import (
    AGENT_CALL,
    READ,
    REQUEST,
    TOOL_CALL,
    LocalRateLimiter,
    Rate,
    RateRules,
)
from dragoman.core.structs import replace
from dragoman.guards.config import RateSettings
from dragoman.web.auth import API_KEY

pytestmark = pytest.mark.promise("O2")

WIDE = Rate(1e9, 1e9)


class Clock:
    def __init__(self) -> None:
        self.now = 1_000.0

    def __call__(self) -> float:
        return self.now


def key(name: str, org: str = "default") -> Principal:
    return Principal("key", name, org)


def build(clock: Clock, most: int = 65_536, **rules: Rate) -> LocalRateLimiter:
    wide = RateRules(principal=WIDE, org=WIDE, owner=WIDE, address=WIDE)
    return LocalRateLimiter(replace(wide, **rules), clock, most)


def count_charged(limiter: LocalRateLimiter, who: Principal, most: int = 100_000) -> int:
    """How many requests are admitted now."""
    for count in range(most):
        try:
            limiter.charge(who, REQUEST, "x")
        except RateLimited:
            return count
    return most


def test_shipped_settings_are_the_default_rules() -> None:
    rules = RateSettings().build_rules()
    assert rules == RateRules()
    assert rules.address == Rate(500, 500)
    assert rules.costs[REQUEST] <= rules.costs[READ] < rules.costs[TOOL_CALL]
    assert rules.costs[TOOL_CALL] < rules.costs[AGENT_CALL]


def test_budget_is_the_burst_and_refills_at_the_rate() -> None:
    clock = Clock()
    limiter = build(clock, principal=Rate(60, 10))
    assert count_charged(limiter, key("a")) == 10
    clock.now += 3.5
    assert count_charged(limiter, key("a")) == 3
    clock.now += 1_000  # never more than the burst
    assert count_charged(limiter, key("a")) == 10


def test_operations_cost_what_the_rules_say() -> None:
    limiter = build(Clock(), principal=Rate(60, 100))
    for operation in (REQUEST, READ, TOOL_CALL, AGENT_CALL):
        limiter.charge(key("a"), operation, "x")
    (own, _) = limiter.find_budgets(key("a"))
    assert (own.remaining, own.full_in) == (100 - 1 - 1 - 2 - 10, 14.0)


def test_waiting_as_long_as_told_is_always_enough_and_less_is_not() -> None:
    clock, rng = Clock(), random.Random(7)
    limiter = build(clock, principal=Rate(733, 17), org=Rate(2_000, 40))
    operations = [REQUEST, READ, TOOL_CALL, AGENT_CALL]
    refused = 0
    for _ in range(20_000):
        operation = rng.choice(operations)
        try:
            limiter.charge(key("a"), operation, "x")
        except RateLimited as error:
            refused += 1
            begun = clock.now
            clock.now = begun + error.retry_after - 0.0011  # it is rounded up to a millisecond
            with pytest.raises(RateLimited):
                limiter.charge(key("a"), operation, "x")
            clock.now = begun + error.retry_after
            limiter.charge(key("a"), operation, "x")
        clock.now += rng.expovariate(20)
    assert refused > 1_000


def test_wait_is_enough_for_the_org_too() -> None:
    clock = Clock()
    limiter = build(clock, principal=Rate(600, 10), org=Rate(60, 15))
    assert count_charged(limiter, key("a")) == 10
    assert count_charged(limiter, key("b")) == 5  # the org's budget is used up
    with pytest.raises(RateLimited, match='org "default" has reached its rate limit of 60') as org:
        limiter.charge(key("c"), REQUEST, "x")
    assert limiter.find_budgets(key("c"))[0].remaining == 10  # nothing was charged
    with pytest.raises(RateLimited, match="key:a has reached") as own:
        limiter.charge(key("a"), REQUEST, "x")
    assert own.value.retry_after == org.value.retry_after == 1.0  # its own would be 0.1 s
    assert count_charged(limiter, key("d", "other")) == 10
    for owner in (OWNER, LOCAL, API_KEY):  # which belong to no org's budget
        assert count_charged(limiter, owner, 50) == 50


def test_cost_above_the_burst_needs_a_full_budget() -> None:
    clock = Clock()
    limiter = build(clock, principal=Rate(60, 4))
    limiter.charge(key("a"), AGENT_CALL, "x")  # costs 10
    with pytest.raises(RateLimited) as raised:
        limiter.charge(key("a"), AGENT_CALL, "x")
    assert raised.value.retry_after == 4.0
    clock.now += 4
    limiter.charge(key("a"), AGENT_CALL, "x")


def test_flood_of_identities_takes_nothing_from_a_principal_and_resets_no_budget() -> None:
    clock = Clock()
    limiter = build(clock, most=1_000, principal=Rate(600, 20))
    honest, spent = key("honest"), key("spent")
    assert count_charged(limiter, honest) == count_charged(limiter, spent) == 20
    admitted = 0
    for number in range(10_000):
        clock.now += 0.001
        if number % 100 == 99:  # ten per second: its rate
            limiter.charge(honest, REQUEST, "x")
            assert count_charged(limiter, spent) <= 1
        try:
            limiter.charge(key(f"flood-{number}"), REQUEST, "x")
            admitted += 1
        except RateLimited:
            pass
    # Ten seconds: the places free themselves at most ten times, and the rest shares one budget.
    assert admitted < 10_000
    assert len(limiter.principals.full_at) <= 1_001


def test_places_in_a_full_table_are_shared_and_free_themselves() -> None:
    clock = Clock()
    limiter = build(clock, most=100, principal=Rate(60, 50))
    for number in range(100):
        assert count_charged(limiter, key(f"{number}")) == 50
    admitted = sum(count_charged(limiter, key(f"late-{number}")) for number in range(500))
    assert admitted == 50  # all of them together
    assert limiter.list_lowest(200)[0].remaining == 0
    clock.now += 51
    assert count_charged(limiter, key("late-1")) == 50
    assert len(limiter.principals.full_at) <= 101


def test_unauthenticated_addresses_are_charged_by_network() -> None:
    clock = Clock()
    limiter = build(clock, address=Rate(60, 3))
    assert [limiter.charge_address("192.0.2.1") for _ in range(4)] == [0.0, 0.0, 0.0, 1.0]
    assert limiter.charge_address("192.0.2.2") == 0.0
    assert limiter.charge_address("::ffff:192.0.2.1") == 1.0
    for host in range(3):
        assert limiter.charge_address(f"2001:db8::{host + 1}") == 0.0
    assert limiter.charge_address("2001:db8::ffff:1") == 1.0  # the same /64
    assert limiter.charge_address("2001:db8:0:1::1") == 0.0
    assert limiter.charge_address("not an address") == 0.0
    assert {one.name for one in limiter.list_lowest(9) if one.scope == "address"} >= {
        "192.0.2.1",
        "2001:db8::/64",
    }


def test_new_rules_apply_to_what_is_already_used() -> None:
    clock = Clock()
    limiter = build(clock, principal=Rate(60, 10))
    assert count_charged(limiter, key("a")) == 10
    limiter.apply(RateRules(principal=Rate(60, 15), org=WIDE))
    assert count_charged(limiter, key("a")) == 5
    limiter.apply(RateRules(principal=Rate(600, 5), org=WIDE))
    with pytest.raises(RateLimited) as raised:
        limiter.charge(key("a"), REQUEST, "x")
    assert raised.value.retry_after == 0.1  # a slower rate of before locks it out no longer


def test_budget_is_reported_low_below_a_quarter() -> None:
    limiter = build(Clock(), principal=Rate(60, 100))
    for _ in range(75):
        limiter.charge(key("a"), REQUEST, "x")
    assert limiter.find_low_budget(key("a")) is None
    limiter.charge(key("a"), REQUEST, "x")
    low = limiter.find_low_budget(key("a"))
    assert low is not None and (low.scope, low.remaining) == ("principal", 24)
