"""Writes docs/sizing.md from measured figures and the simulation.

python -m bench.sizing            # from the figures in bench/sizing.json
python -m bench.sizing --measure  # measures them first: about five minutes
"""

import argparse
import json
import sys
from dataclasses import asdict, dataclass, fields
from typing import Any

from bench import cluster, machine
from bench.figures import median, ratio
from bench.paths import BENCH, ROOT, prepare
from bench.plan import QUICK, Plan, Records, say
from bench.processes import stop_all
from bench.report import show, show_us, table
from bench.simulate_cluster import Assumptions, Costs, Outcome, simulate

FIGURES = BENCH / "sizing.json"
TEXT = BENCH / "sizing_page.md"
PAGE = ROOT / "docs" / "sizing.md"
QUIET, ROUNDS = 1.0, 3
"""The load average up to which, and the rounds from which, times are worth something."""
WARNING = " **These figures are a trial on a busy machine: measure them again.**"
BUSY = 0.7
"""Of a core: the load at which a hub counts as full."""
ALONE_FACTOR = 1.8
"""The CPU of a call where calls come one at a time, over that of calls on 16 connections: the first
table of docs/benchmarks.md has 236 and 131 \u00b5s."""
CLIENTS_EACH = 1_000
HUBS = (1, 2, 3, 10, 30, 100)


@dataclass(frozen=True)
class Figures:
    """What was measured, and on what."""

    costs: Costs
    sqlite_us: float
    postgres_us: float
    hubs_us: list[float]
    workers_ratio: float | None
    """Calls of two workers over those of one."""
    machine: str
    date: str
    load_average: float
    rounds: int


def measure(plan: Plan) -> Figures:
    about = machine.describe()
    with prepare():
        try:
            found = cluster.cluster(plan)
        finally:
            stop_all()
    return read_figures(found, about, plan.rounds)


def read_figures(found: Records, about: dict[str, Any], rounds: int) -> Figures:
    def take(setup: cluster.Setup, figure: str) -> float:
        value = median(found[setup.name], figure)
        if value is None:
            raise SystemExit(f"sizing: {setup.name!r} was not measured; see the lines above")
        return value

    own, forwarded = take(cluster.OWN, "cpu_us"), take(cluster.FORWARDED, "cpu_us")
    one, *_ = cluster.HUBS
    single, several = cluster.WORKERS
    # What a hub does by itself is counted apart.
    seconds = 1 / take(one, "per_second")
    idle_hub, idle_database = (take(cluster.IDLE, f"{of}_share") for of in ("hub", "database"))
    return Figures(
        Costs(
            max(take(one, "cpu_us") - idle_hub * seconds * 1e6, 0.0),
            max(forwarded - own, 0.0),
            max(take(one, "database_us") - idle_database * seconds * 1e6, 0.0),
            idle_hub,
            idle_database,
            take(cluster.IDLE, "rss_mb"),
        ),
        take(cluster.SQLITE, "cpu_us"),
        take(cluster.POSTGRES, "cpu_us"),
        [take(setup, "cpu_us") for setup in cluster.HUBS],
        ratio(found[several.name], found[single.name], "per_second"),
        f"{about['processor']}, {about['cores']} cores",
        str(about["date"]),
        about["load_average_before"],
        rounds,
    )


def load_figures() -> Figures:
    stored = json.loads(FIGURES.read_text(encoding="utf-8"))
    return Figures(**{**stored, "costs": Costs(**stored["costs"])})


def render_measured(figures: Figures) -> str:
    costs = figures.costs
    lines = [
        ["a call, one hub on SQLite", f"{figures.sqlite_us:.0f} \u00b5s of CPU"],
        ["a call, one hub on PostgreSQL", f"{figures.postgres_us:.0f} \u00b5s"],
        *(
            [
                f"a call, {count} hub{'s' * (count > 1)} of a cluster",
                f"{value:.0f} \u00b5s of all hubs",
            ]
            for count, value in enumerate(figures.hubs_us, 1)
        ),
        ["a call of a session that another hub owns", f"{costs.forward_us:.0f} \u00b5s more"],
        ["a call, in the database", f"{costs.database_us:.1f} \u00b5s"],
        ["an idle hub", f"{costs.idle_hub_share:.2%} of a core, {costs.hub_mb:.0f} MB"],
        ["an idle hub, in the database", f"{costs.idle_database_share:.2%} of a core"],
        [
            "two workers on two cores, calls beside one on one core",
            show(figures.workers_ratio, "{:.2f} times") or "not measured",
        ],
    ]
    return table(["", "measured"], lines)


def render_assumptions(assumed: Assumptions) -> str:
    words = {
        "calls_per_minute": "calls of each client in a minute",
        "sessions_share": "share of clients with a session (2025-11-25 and older)",
        "edge_share": "share of the cost of forwarding at the hub that got the request",
        "notifications_per_second": "changes that all hubs hear of, in a second",
        "heard_us": "\u00b5s of each hub for such a change",
        "told_us": "\u00b5s of the database for each hub that hears it",
        "limiter_us": "\u00b5s of the hub for the round trip to Valkey at each call",
        "valkey_us": "\u00b5s of Valkey for each call",
        "client_kb": "KB of a hub for each connected client",
        "spread": "standard deviation of the logarithm of a call's cost",
    }
    assert words.keys() == {one.name for one in fields(assumed)}
    values = asdict(assumed)
    return table(["", "assumed"], [[text, f"{values[name]:g}"] for name, text in words.items()])


def render_outcomes(outcomes: list[Outcome]) -> str:
    lines = [
        [
            f"{one.hubs:,}",
            f"{one.clients:,}",
            f"{one.calls_per_second:,.0f}",
            f"{one.forwarded_per_second:,.0f}",
            f"{one.hub_share:.1%}",
            f"{one.database_share:.1%}",
            f"{one.valkey_share:.1%}",
            show_us(one.cpu_us),
            f"{one.p50_ms:.2f} / {one.p99_ms:.2f} ms",
            f"{one.hub_mb:.0f} MB",
        ]
        for one in outcomes
    ]
    header = ["hubs", "clients", "calls/s", "forwarded/s", "busiest hub", "database", "Valkey"]
    return table([*header, "CPU per call", "in hubs, p50 / p99", "memory of a hub"], lines)


def render(figures: Figures, assumed: Assumptions) -> str:
    costs = figures.costs
    many = [simulate(hubs, hubs * CLIENTS_EACH, costs, assumed) for hubs in HUBS]
    largest = many[-1]
    total = costs.call_us + assumed.limiter_us
    forwarding = costs.forward_us * assumed.sessions_share
    alone = costs.idle_hub_share + assumed.notifications_per_second * assumed.heard_us / 1e6
    carries = (BUSY - alone) * 1e6 / (total + forwarding)
    single = BUSY * 1e6 / figures.sqlite_us
    each = costs.idle_database_share + assumed.notifications_per_second * assumed.told_us / 1e6
    return TEXT.read_text(encoding="utf-8").format(
        alone=f"{single / ALONE_FACTOR:,.0f}",
        single=f"{single:,.0f}",
        busy=f"{BUSY:.0%}",
        carries=f"{carries:,.0f}",
        clients=f"{carries * 60 / assumed.calls_per_minute:,.0f}",
        calls_per_minute=f"{assumed.calls_per_minute:g}",
        calls_per_second=f"{assumed.calls_per_minute / 60:g}",
        database_us=f"{costs.database_us:.1f}",
        each=f"{each:.2%}",
        forward_us=f"{costs.forward_us:.0f}",
        hubs=largest.hubs,
        notifications=f"{assumed.notifications_per_second:g}",
        wakes=f"{largest.hubs * assumed.notifications_per_second:,.0f}",
        heard_us=f"{assumed.heard_us:g}",
        measured=render_measured(figures),
        machine=figures.machine,
        date=figures.date,
        rounds=f"{figures.rounds} round{'s' * (figures.rounds > 1)}",
        load_average=f"{figures.load_average:.1f}",
        warning=WARNING if figures.load_average > QUIET or figures.rounds < ROUNDS else "",
        clients_each=f"{CLIENTS_EACH:,}",
        simulated=render_outcomes(many),
        assumptions=render_assumptions(assumed),
    )


def main() -> int:
    parser = argparse.ArgumentParser("python -m bench.sizing", description=__doc__)
    parser.add_argument("--measure", action="store_true", help="measure the figures first")
    parser.add_argument("--quick", action="store_true", help="measure shortly, for a trial")
    arguments = parser.parse_args()
    if arguments.measure:
        figures = measure(QUICK if arguments.quick else Plan())
        text = json.dumps(asdict(figures), indent=2) + "\n"
        FIGURES.write_text(text, encoding="utf-8")
    PAGE.write_text(render(load_figures(), Assumptions()), encoding="utf-8")
    say(f"wrote {PAGE.relative_to(ROOT)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
