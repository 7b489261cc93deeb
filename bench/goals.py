"""The hub's cost goals, compared with a run."""

from collections.abc import Callable
from dataclasses import dataclass

from bench import agents, bridge, cluster, console, model_agents, rows, stages, workflows
from bench.figures import bad_answers, dig, median, of_size, ratio
from bench.starts import RELAY


@dataclass(frozen=True)
class Verdict:
    goal: str
    measured: str
    met: bool | None  # None: not measured

    @property
    def word(self) -> str:
        return {True: "met", False: "**missed**", None: "not measured"}[self.met]


def judge(goal: str, value: float | None, form: str, holds: Callable[[float], bool]) -> Verdict:
    if value is None:
        return Verdict(goal, "", None)
    return Verdict(goal, form.format(value), holds(value))


ONE_CLIENT = ("load", "1", "cpu_us")


def calls_goals(calls: dict, plan: dict) -> list[Verdict]:
    hub = calls.get(rows.HUB_HTTP.name, [])
    raw, sdk = calls.get(rows.RAW.name, []), calls.get(rows.SDK.name, [])
    own = [
        row.name
        for row in (rows.HUB_HTTP, rows.HUB_2025, rows.HUB_KEY, rows.HUB_JWT, rows.HUB_STDIO)
    ]
    answered = [record for name in own for record in calls.get(name, [])]
    return [
        judge(
            "CPU of a call, one client: at most 5 times the raw proxy's (aim: 3)",
            ratio(hub, raw, "load", "1", "cpu_us"),
            "{:.1f} times",
            lambda times: times <= 5,
        ),
        judge(
            "CPU of a call, one client: at least 6 times less than an SDK-made gateway's",
            ratio(sdk, hub, "load", "1", "cpu_us"),
            "{:.1f} times less",
            lambda times: times >= 6,
        ),
        judge(
            "calls per second at 16 connections: at least 8 times an SDK-made gateway's",
            ratio(hub, sdk, "load", "16", "per_second"),
            "{:.1f} times",
            lambda times: times >= 8,
        ),
        judge(
            "CPU of a call with an access token and a user's login: at most 10 % more than with a "
            "key and a fixed header",
            ratio(calls.get(rows.HUB_JWT.name, []), calls.get(rows.HUB_KEY.name, []), *ONE_CLIENT),
            "{:.2f} times",
            lambda times: times <= 1.1,
        ),
        judge(
            "every answer right",
            bad_answers(answered) if answered else None,
            "{} bad",
            lambda bad: bad == 0,
        ),
    ]


def growth_goals(growth: dict, plan: dict) -> list[Verdict]:
    hub, direct = growth.get(rows.HUB_HTTP.name, []), growth.get(rows.DIRECT.name, [])
    small, large = min(plan["sizes"]), max(plan["sizes"])
    grown = ratio(of_size(hub, large), of_size(hub, small), "call", "cpu_us")
    return [
        judge(
            f"CPU of a call with {small:,} and with {large:,} tools: within 10 %",
            None if grown is None else (grown - 1) * 100,
            "{:+.1f} %",
            lambda percent: abs(percent) <= 10,
        ),
        judge(
            f"CPU of listing {large:,} tools: at most 3 times the upstream's own",
            ratio(of_size(hub, large), of_size(direct, large), "list", "cpu_us"),
            "{:.1f} times",
            lambda times: times <= 3,
        ),
    ]


def memory_goals(memory: dict, plan: dict) -> list[Verdict]:
    records = memory.get(rows.HUB_HTTP.name, [])
    samples = dig(records[0], ("samples",)) if records else None
    first, last = plan["marks"]
    return [
        judge(
            f"RSS growth from call {first:,} to call {last:,}: under 2 MB",
            samples[-1]["rss_mb"] - samples[-2]["rss_mb"] if samples else None,
            "{:+.2f} MB",
            lambda megabytes: megabytes < 2,
        )
    ]


def start_goals(start: dict, plan: dict) -> list[Verdict]:
    hub = start.get(rows.HUB_HTTP.name, [])
    return [
        judge(
            "`dragoman up` to healthy: under 1.5 s",
            median(hub, "healthy_seconds"),
            "{:.2f} s",
            lambda seconds: seconds < 1.5,
        ),
        judge("idle RSS: under 90 MB", median(hub, "rss_mb"), "{:.0f} MB", lambda mb: mb < 90),
        judge(
            "`dragoman mcp` to 100 tools listed: under 0.1 s (aim: 0.03)",
            median(start.get(RELAY, []), "seconds"),
            "{:.3f} s",
            lambda seconds: seconds < 0.1,
        ),
    ]


def streams_goals(streams: dict, plan: dict) -> list[Verdict]:
    kept = [median(records, "kb_each") for records in streams.values()]
    return [
        judge(
            f"an idle stream, {plan['streams']:,} open at once: at most 12 KB",
            None if not kept or None in kept else max(each for each in kept if each is not None),
            "{:.1f} KB",
            lambda kilobytes: kilobytes <= 12,
        )
    ]


def agents_goals(found: dict, plan: dict) -> list[Verdict]:
    own = [found.get(row.name, []) for row in (agents.HUB_MEMORY, agents.HUB_SQLITE)]
    answered = [record for records in own for record in records]

    def sparing(row: agents.AgentRow, where: str, least: int, connections: int) -> Verdict:
        at = "one client" if connections == 1 else f"{connections} connections"
        level = ("load", str(connections), "cpu_us")
        return judge(
            f"CPU of SendMessage, tasks {where}, {at}: at least {least} times less than a2a-sdk's",
            ratio(found.get(row.sdk, []), found.get(row.name, []), *level),
            "{:.1f} times less",
            lambda times: times >= least,
        )

    return [
        *(sparing(agents.HUB_MEMORY, "in memory", 10, count) for count in agents.CONNECTIONS),
        *(sparing(agents.HUB_SQLITE, "on SQLite", 15, count) for count in agents.CONNECTIONS),
        judge(
            "statements for an event, in tasks of {} and of {} events: at most 4".format(
                *agents.LENGTHS
            ),
            agents.most_statements(own[1]),
            "{:.1f}",
            lambda each: each <= 4,
        ),
        judge(
            "every answer of an agent right",
            bad_answers(answered) if answered else None,
            "{} bad",
            lambda bad: bad == 0,
        ),
    ]


def bridge_goals(found: dict, plan: dict) -> list[Verdict]:
    hub = found.get(bridge.HUB_SKILL.name, [])

    def sparing(row: rows.Row, whose: str, least: int, connections: int) -> Verdict:
        at = "one client" if connections == 1 else f"{connections} connections"
        return judge(
            f"CPU of a skill called as a tool, {at}: at least {least} times less than {whose}",
            ratio(found.get(row.name, []), hub, "load", str(connections), "cpu_us"),
            "{:.1f} times less",
            lambda times: times >= least,
        )

    both, forge = "a bridge made of both SDKs", "ContextForge's"
    return [
        *(sparing(bridge.SDKS, both, 5, count) for count in bridge.CONNECTIONS),
        *(sparing(bridge.CONTEXTFORGE_TOOL, forge, 25, count) for count in bridge.CONNECTIONS),
        judge(
            "every answer of a skill right",
            bad_answers(hub) if hub else None,
            "{} bad",
            lambda bad: bad == 0,
        ),
    ]


def policy_goals(found: dict, plan: dict) -> list[Verdict]:
    return [
        judge(
            "CPU of a decision anew, 10 policies: at most 1.3 times cedarpy's alone",
            ratio(found.get("anew, 10", []), found.get("bare, 10", []), "cpu_us"),
            "{:.2f} times",
            lambda times: times <= 1.3,
        ),
        judge(
            "CPU of a decision that was made before: at most 5 \u00b5s",
            median(found.get("kept, 10", []), "cpu_us"),
            "{:.1f} \u00b5s",
            lambda microseconds: microseconds <= 5,
        ),
    ]


def stages_goals(found: dict, plan: dict) -> list[Verdict]:
    there = stages.list_stages(found)
    absent = [name for name in stages.SUMMED if there and name not in there]
    note = f" (there is no {' and no '.join(absent)})" if absent else ""
    return [
        judge(
            f"{', '.join(stages.SUMMED)} together, {name}: at most 15 \u00b5s{note}",
            median(stages.sum_stages(found.get(kind, [])), "us"),
            "{:.1f} \u00b5s",
            lambda microseconds: microseconds <= 15,
        )
        for kind, name in stages.NAMES.items()
    ]


def agent_goals(found: dict, plan: dict) -> list[Verdict]:
    turns = found.get(model_agents.WITH_TOOL, [])
    added = {
        figure: median(model_agents.compare_idle(found, figure), "added")
        for figure in ("rss_mb", "idle_percent")
    }
    idle = f"{model_agents.IDLE:,} idle agents"
    return [
        judge(
            "CPU of a message to an agent with one tool call, one client: at most 2 ms",
            median(turns, "load", "1", "cpu_us"),
            "{:.0f} \u00b5s",
            lambda microseconds: microseconds <= 2_000,
        ),
        judge(f"{idle}: under 20 MB", added["rss_mb"], "{:.1f} MB", lambda mb: mb < 20),
        judge(
            f"{idle}: at most 1 % of a core more",
            added["idle_percent"],
            "{:+.2f} %",
            lambda percent: percent <= 1,
        ),
        judge(
            "every answer of a model's agent right",
            bad_answers(turns) if turns else None,
            "{} bad",
            lambda bad: bad == 0,
        ),
    ]


def console_goals(found: dict, plan: dict) -> list[Verdict]:
    idle = median(found.get(console.OPEN, []), "idle_share")
    cost = ratio(found.get(console.OPEN, []), found.get(console.NONE, []), "call", "cpu_us")
    return [
        judge(
            f"{console.CONSOLES} open consoles, idle: under 2 % of a core",
            idle,
            "{:.2%}",
            lambda share: share < 0.02,
        ),
        judge(
            f"CPU of a call with {console.CONSOLES} open consoles: at most 5 % more than without",
            cost,
            "{:.2f} times",
            lambda times: times <= 1.05,
        ),
    ]


def workflows_goals(found: dict, plan: dict) -> list[Verdict]:
    own, peer = found.get(workflows.OWN, []), found.get(workflows.PEER, [])
    return [
        judge(
            f"{name} of a run of three steps that do nothing: at most 1.3 times that of DBOS",
            ratio(own, peer, figure),
            "{:.2f} times",
            lambda times: times <= 1.3,
        )
        for name, figure in (("CPU", "cpu_us"), ("time", "wall_us"))
    ] + [
        judge(
            "starting a run: under 10 ms at the median",
            median(own, "start_ms"),
            "{:.2f} ms",
            lambda milliseconds: milliseconds < 10,
        ),
    ]


def cluster_goals(found: dict, plan: dict) -> list[Verdict]:
    one, *more = (found.get(setup.name, []) for setup in cluster.HUBS)
    single, several = (found.get(setup.name, []) for setup in cluster.WORKERS)
    return [
        *(
            judge(
                f"CPU of a call with {setup.hubs} hubs: at most 10 % more than with one",
                ratio(records, one, "cpu_us"),
                "{:.2f} times",
                lambda times: times <= 1.1,
            )
            for setup, records in zip(cluster.HUBS[1:], more, strict=True)
        ),
        judge(
            "two workers on two cores: at least 1.7 times the calls of one on one",
            ratio(several, single, "per_second"),
            "{:.2f} times",
            lambda times: times >= 1.7,
        ),
    ]


GOALS = {
    "calls": calls_goals,
    "growth": growth_goals,
    "memory": memory_goals,
    "start": start_goals,
    "streams": streams_goals,
    "agents": agents_goals,
    "bridge": bridge_goals,
    "policy": policy_goals,
    "stages": stages_goals,
    "agent": agent_goals,
    "console": console_goals,
    "workflows": workflows_goals,
    "cluster": cluster_goals,
}


def verdicts(results: dict) -> list[Verdict]:
    """Of the tables that were measured; a row that failed leaves its goals not measured."""
    plan = results["plan"]
    asked = [of(results[name], plan) for name, of in GOALS.items() if name in results]
    return [verdict for group in asked for verdict in group]
