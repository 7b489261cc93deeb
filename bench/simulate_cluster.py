"""Simulates many hubs behind a balancer without affinity: what each hub, the database and Valkey
have to do, and how long calls wait.

Time is simulated: calls arrive at random, each hub works on one thing after the other, as its one
core does. What a call costs comes from measured figures. The network, the far ends and the balancer
take no time.
"""

import math
import random
from bisect import insort
from dataclasses import dataclass


@dataclass(frozen=True)
class Costs:
    """Measured on one machine, in microseconds of CPU and shares of a core."""

    call_us: float
    """Of the hub, for a call that it answers itself."""
    forward_us: float
    """Of both hubs, more, for a call that another hub owns."""
    database_us: float
    """Of the database, for a call: the copy of the audit log."""
    idle_hub_share: float
    idle_database_share: float
    """Of the database for each hub: heartbeats, leases and looking for changes."""
    hub_mb: float


@dataclass(frozen=True)
class Assumptions:
    """What was not measured."""

    calls_per_minute: float = 6.0
    """Of each client."""
    sessions_share: float = 0.5
    """Of the clients that hold a session (2025-11-25 and older); the others are stateless."""
    edge_share: float = 0.6
    """Of what forwarding costs, which the hub that got the request pays."""
    notifications_per_second: float = 5.0
    """Changes that all hubs hear of: keys, registry, policies, lists of tools."""
    heard_us: float = 150.0
    """Of each hub for one notification."""
    told_us: float = 15.0
    """Of the database for each hub that hears one."""
    limiter_us: float = 60.0
    """Of the hub, for the round trip to Valkey for each call."""
    valkey_us: float = 8.0
    client_kb: float = 12.0
    """Memory of a hub for each connected client."""
    spread: float = 0.5
    """Of the cost of a call: the standard deviation of its logarithm."""


@dataclass
class Outcome:
    hubs: int
    clients: int
    calls_per_second: float
    forwarded_per_second: float
    hub_share: float
    """Of a core, of the hub that works most."""
    database_share: float
    valkey_share: float
    cpu_us: float
    """Of all hubs, the database and Valkey together, for a call."""
    p50_ms: float
    p99_ms: float
    hub_mb: float


@dataclass
class _Hub:
    free_at: float = 0.0
    worked: float = 0.0

    def work(self, at: float, seconds: float) -> float:
        """Returns when work that comes at this time is done. Work comes in the order of time."""
        self.free_at = max(self.free_at, at) + seconds
        self.worked += seconds
        return self.free_at


def simulate(
    hubs: int,
    clients: int,
    costs: Costs,
    assumed: Assumptions,
    *,
    calls: int = 200_000,
    seed: int = 18,
) -> Outcome:
    """Runs until so many calls have arrived."""
    chance = random.Random(seed)
    rate = clients * assumed.calls_per_minute / 60
    ends = calls / rate
    all_hubs = [_Hub() for _ in range(hubs)]
    # What happens by itself, as a share of each hub's time that calls do not get.
    alone = costs.idle_hub_share + assumed.notifications_per_second * assumed.heard_us / 1e6
    slower = 1 / (1 - alone)
    middle = -(assumed.spread**2) / 2  # so that the mean of the factor is 1
    waits: list[float] = []
    pending: list[
        tuple[float, float, int, float]
    ] = []  # arrivals at owners: at, seconds, hub, first
    now, forwarded = 0.0, 0
    for _ in range(calls):
        now += chance.expovariate(rate)
        while pending and pending[0][0] <= now:
            at, seconds, hub, first = pending.pop(0)
            waits.append(all_hubs[hub].work(at, seconds) - first)
        hub = chance.randrange(hubs)
        factor = math.exp(chance.gauss(middle, assumed.spread)) * slower / 1e6
        call = (costs.call_us + assumed.limiter_us) * factor
        owner = chance.randrange(hubs) if chance.random() < assumed.sessions_share else hub
        if owner == hub:
            waits.append(all_hubs[hub].work(now, call) - now)
            continue
        forwarded += 1
        edge = costs.forward_us * assumed.edge_share * factor
        rest = costs.forward_us * (1 - assumed.edge_share) * factor
        passed = all_hubs[hub].work(now, edge)
        insort(pending, (passed, call + rest, owner, now))
    for at, seconds, hub, first in pending:
        waits.append(all_hubs[hub].work(at, seconds) - first)
    waits.sort()
    told = hubs * assumed.notifications_per_second * assumed.told_us / 1e6
    database = rate * costs.database_us / 1e6 + hubs * costs.idle_database_share + told
    valkey = rate * assumed.valkey_us / 1e6
    busy = [hub.worked / slower / ends + alone for hub in all_hubs]
    return Outcome(
        hubs,
        clients,
        rate,
        forwarded / ends,
        max(busy),
        database,
        valkey,
        (sum(busy) + database + valkey) * 1e6 / rate,
        waits[len(waits) // 2] * 1e3,
        waits[len(waits) * 99 // 100] * 1e3,
        costs.hub_mb + clients / hubs * assumed.client_kb / 1024,
    )
