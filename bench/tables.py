"""The measurements under load: calls, growth with the catalog, memory. Each gives plain records."""

import time
from typing import Any

from bench import rows
from bench.load import blast, measure_calls, measure_lists
from bench.plan import Plan, Records, attempt, microseconds, say
from bench.processes import wait_until
from bench.rows import Row, up

SERVERS = 10  # that the hub gathers its catalog from, whatever the size
SETTLE_SECONDS = 0.5
MEMORY_SECONDS = 90.0  # for one row


def calls(plan: Plan) -> Records:
    wanted = [row for row in rows.OVER_HTTP + rows.OVER_STDIO if plan.wants(row)]
    found: Records = {row.name: [] for row in wanted}
    for number in range(1, plan.rounds + 1):
        for row in wanted:
            label = f"calls, round {number} of {plan.rounds}: {row.name}"
            attempt(label, found[row.name], call_round, plan, row, number, label)
    return found


def call_round(plan: Plan, row: Row, number: int, label: str) -> dict:
    record: dict = {"round": number, "load": {}}
    with up(row) as running:
        record["ready_seconds"] = running.ready_seconds
        blast(running.endpoint.port, running.endpoint.call_templates(4), 4, 40)
        for connections in plan.connections:
            figures = measure_calls(running.child, running.endpoint, connections, plan.seconds)
            record["load"][str(connections)] = figures
            if "first_bad" in figures:
                say(f"note: {row.name} gave a bad answer: {figures['first_bad'][:300]}")
    said = ", ".join(
        f"c={c} {microseconds(f['cpu_us'])} CPU {f['per_second']:,.0f}/s bad {f['bad']}"
        for c, f in record["load"].items()
    )
    say(f"{label}: {said}")
    return record


def growth(plan: Plan) -> Records:
    """Sizes and rows change places within a round, so that drift touches all alike."""
    wanted = [row for row in (rows.DIRECT, rows.HUB_HTTP) if plan.wants(row)]
    found: Records = {row.name: [] for row in wanted}
    for number in range(1, plan.rounds + 1):
        for size in plan.sizes:
            for row in wanted:
                label = f"growth, round {number} of {plan.rounds}: {size:,} tools, {row.name}"
                attempt(label, found[row.name], growth_round, plan, row, size, number, label)
    return found


def growth_round(plan: Plan, row: Row, size: int, number: int, label: str) -> dict:
    servers = 1 if row is rows.DIRECT else SERVERS
    with up(row, tools=size // servers, servers=servers) as running:
        endpoint, child = running.endpoint, running.child
        wait_until(lambda: len(endpoint.list_pages()[0]) >= size, child)
        record: dict[str, Any] = {
            "round": number,
            "size": size,
            "ready_seconds": child.age(),
            "list": measure_lists(child, endpoint, plan.seconds),
            "call": measure_calls(child, endpoint, 16, plan.seconds),
        }
        memory = child.memory()
    record |= {"rss_mb": memory.rss, "pss_mb": memory.pss}
    listed, called = record["list"], record["call"]
    say(
        f"{label}: ready {record['ready_seconds']:.2f} s, RSS {memory.rss:.0f} MB, "
        f"list {microseconds(listed['cpu_us'])} CPU in {listed['pages']} page(s), "
        f"call {microseconds(called['cpu_us'])} CPU, bad {listed['bad'] + called['bad']}"
    )
    return record


def memory(plan: Plan) -> Records:
    wanted = [rows.RAW, rows.HUB_HTTP, rows.HUB_2025, rows.HUB_STDIO, rows.SDK]
    found: Records = {row.name: [] for row in wanted if plan.wants(row)}
    for row in wanted:
        if plan.wants(row):
            attempt(f"memory: {row.name}", found[row.name], memory_of, plan, row)
    return found


def memory_of(plan: Plan, row: Row) -> dict:
    with up(row) as running:
        templates = running.endpoint.call_templates(16)
        samples = []
        done = bad = 0
        for mark in (0, *plan.marks):
            while done < mark:
                step = min(1_000, mark - done)
                figures = blast(running.endpoint.port, templates, 16, step)
                done += figures["n"]
                bad += figures["bad"]
                if running.child.age() > MEMORY_SECONDS:
                    raise RuntimeError(f"{done:,} calls took {MEMORY_SECONDS:.0f} s")
            time.sleep(SETTLE_SECONDS)  # what is written behind the answers is still memory
            used = running.child.memory()
            samples.append({"calls": mark, "rss_mb": used.rss, "pss_mb": used.pss})
    said = ", ".join(f"{s['calls']:,} calls {s['rss_mb']:.1f} MB" for s in samples)
    say(f"memory: {row.name}: {said}, bad {bad}")
    return {"samples": samples, "bad": bad}
