"""Agents from manifests: what a message costs the hub beside the model, and what idle agents cost.

The model is a server in another process that thinks no time; the tool is the far end's.
"""

import contextlib
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from bench.paths import HUB, PYTHON, ROOT
from bench.plan import Plan, Records, attempt, say
from bench.processes import LOAD_CORE, free_port, start, wait_until
from bench.rows import HUB_HTTP, Command, Row, RowContext, server_table, up, write_home
from bench.tables import SETTLE_SECONDS, call_round
from bench.wire import Dialect, get_status

CONNECTIONS = (1, 16)
IDLE = 1_000  # agents with a manifest
IDLE_SECONDS = 3.0  # that the CPU of an idle hub is counted
WITH_TOOL, WITHOUT_TOOL = "Dragoman's agent, one tool call", "Dragoman's agent, no tool call"
NONE, MANY = "Dragoman, no agents", f"Dragoman, {IDLE:,} agents"
MANIFEST = """
description = "Repeats what it hears."
[model]
model = "scripted"
base_url = "{url}"
system_prompt = "{prompt}"
[capabilities]
tools = [{tools}]
"""
POLICY = """
@id("agents")
permit (principal, action in Hub::Action::"any_call", resource)
when { principal.org == resource.org };
"""
"""Agents of the hub have no scopes."""


def agent(plan: Plan) -> Records:
    plan = replace(plan, connections=CONNECTIONS)
    found: Records = {name: [] for name in (HUB_HTTP.name, WITH_TOOL, WITHOUT_TOOL, NONE, MANY)}
    with run_model() as url:
        wanted = [HUB_HTTP, agent_row(WITH_TOOL, url, "up0.echo"), agent_row(WITHOUT_TOOL, url)]
        for number in range(1, plan.rounds + 1):
            for row in wanted:
                label = f"agent, round {number} of {plan.rounds}: {row.name}"
                attempt(label, found[row.name], call_round, plan, row, number, label)
            for name, count in ((NONE, 0), (MANY, IDLE)):
                label = f"agent, round {number} of {plan.rounds}: {name}"
                attempt(label, found[name], idle_round, name, count, url, number, label)
    return found


@contextlib.contextmanager
def run_model() -> Iterator[str]:
    """Yields the URL of a model server."""
    port = free_port()
    command: Command = [PYTHON, "-m", "bench.peers.scripted_model", str(port)]
    child = start("scripted model", command, core=LOAD_CORE, folder=ROOT)
    try:
        wait_until(lambda: get_status(port, "/") == 405, child, 10)
        yield f"http://127.0.0.1:{port}/v1"
    finally:
        child.stop()


def agent_row(name: str, url: str, *tools: str) -> Row:
    def command(context: RowContext) -> Command:
        return write_agent_home(context, 1, url, tools)

    dialect = Dialect(tool="dragoman_agent_a0", argument="message")
    return Row(name, command, dialect, ready="/healthz")


def write_agent_home(context: RowContext, agents: int, url: str, tools: tuple[str, ...]) -> Command:
    text = f'[server]\nhost = "127.0.0.1"\nport = {context.port}\n'
    text += server_table(0, f'type = "http"\nurl = "{context.urls()[0]}"')
    write_home(context.home, text)
    (context.home / "policies" / "agents.cedar").write_text(POLICY, encoding="utf-8")
    granted = ", ".join(f'"{tool}"' for tool in tools)
    prompt = "Use your tool." if tools else "Repeat what you hear."
    manifest = MANIFEST.replace("{url}", url).replace("{tools}", granted)
    manifest = manifest.replace("{prompt}", prompt)
    for number in range(agents):
        folder: Path = context.home / "agents" / f"a{number}"
        folder.mkdir(parents=True)
        (folder / "agent.toml").write_text(manifest, encoding="utf-8")
    return [HUB, "up", "--home", context.home]


def idle_round(name: str, count: int, url: str, number: int, label: str) -> dict:
    def command(context: RowContext) -> Command:
        return write_agent_home(context, count, url, ("up0.echo",))

    with up(Row(name, command, HUB_HTTP.dialect, ready="/healthz")) as running:
        time.sleep(SETTLE_SECONDS)
        used, before = running.child.memory(), running.child.cpu_seconds()
        time.sleep(IDLE_SECONDS)
        percent = (running.child.cpu_seconds() - before) / IDLE_SECONDS * 100
        record = {
            "round": number,
            "healthy_seconds": running.healthy_seconds,
            "rss_mb": used.rss,
            "idle_percent": percent,
        }
    said = f"healthy after {record['healthy_seconds']:.2f} s, {used.rss:.1f} MB"
    say(f"{label}: {said}, {percent:.2f} % CPU when idle")
    return record


def compare_idle(found: Records, figure: str) -> list[dict]:
    """What the idle agents add to a figure, by round."""
    without = {one["round"]: one[figure] for one in found.get(NONE, [])}
    return [
        {"added": one[figure] - without[one["round"]]}
        for one in found.get(MANY, [])
        if one["round"] in without
    ]
