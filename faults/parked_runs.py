"""Many steps whose agents work for long: parked ones hold no connection and little memory, a hub
that was killed takes them up again at a measured pace, and each ends once."""

from __future__ import annotations

import time
from collections import Counter
from contextlib import closing
from pathlib import Path
from typing import Any

from tests.live.crashing_hub import Client, Hub
from tests.live.recording_agents import TaskAgent, run_agents

from faults.harness import Outcome, cpu_seconds, resident_mb, temporary_home, until, verify_audit

PLAIN = {"content-type": "application/json"}
PAGE = 200
MOST_FILES, MOST_MB_EACH, MOST_AT_ONCE = 20, 0.05, 64
"""What parked steps may hold: files more than before, memory each; and polls at once."""
IDLE_SECONDS = 10.0
WORKFLOW = """
steps:
  - {id: work, nodeId: agent.invoke, config: {agent: slow, skillId: work, args: {a: 1}}}
output: "{{ nodes.work.text }}"
"""
CONFIG = """
[server]
port = 0
[workflows]
attached_secs = 0.2
poll_secs = 5
[limits.rate]
owner_per_minute = 1_000_000
owner_burst = 1_000_000
org_per_minute = 1_000_000
org_burst = 1_000_000
[a2a]
enabled = true
[[a2a.external_agents]]
name = "slow"
"""


def park_runs(size: int, seed: int, outcome: Outcome) -> None:
    agent = TaskAgent("slow", "work")
    with temporary_home() as home, run_agents(agent):
        _write_home(home, agent)
        hub = Hub(home)
        try:
            runs = _park(hub, agent, size, outcome)
        finally:
            hub.kill()
        hub = Hub(home)
        try:
            _take_up(hub, agent, runs, outcome)
        finally:
            hub.kill()
        outcome.check(len(agent.sent) == size, f"the agent has got {len(agent.sent)} messages")
        verify_audit(outcome, home, "at the end")


def _write_home(home: Path, agent: TaskAgent) -> None:
    (home / "workflows").mkdir(mode=0o700)
    config = f'{CONFIG}url = "{agent.url}"\n'
    for path, text in (
        (home / "config.toml", config),
        (home / "workflows" / "long.yaml", WORKFLOW),
    ):
        path.write_text(text, encoding="utf-8")
        path.chmod(0o600)


def _park(hub: Hub, agent: TaskAgent, size: int, outcome: Outcome) -> list[str]:
    """Starts the runs, and measures what they hold once they are parked."""
    with closing(Client(hub.wait_until_up())) as client:
        until(lambda: _is_healthy(client))
        pid = hub.process.pid
        runs = [_start(client)]
        until(lambda: _count(client)["waiting"] == 1)
        files, memory = _count_files(pid), resident_mb(pid)
        runs += [_start(client) for _ in range(size - 1)]
        until(lambda: _count(client)["waiting"] == size, 120)
        found = _count(client)
        outcome.check(found == {"waiting": size}, f"of {size} runs: {dict(found)}")
        until(lambda: _count_files(pid) <= files + MOST_FILES, 30)
        polls, cpu = agent.polls, cpu_seconds(pid)
        time.sleep(IDLE_SECONDS)
        more_files, more = _count_files(pid) - files, resident_mb(pid) - memory
        outcome.figures |= {
            "parked": size,
            "files more": more_files,
            "MB more": round(more, 1),
            "polls a second": round((agent.polls - polls) / IDLE_SECONDS, 1),
            "CPU meanwhile, %": round((cpu_seconds(pid) - cpu) / IDLE_SECONDS * 100, 1),
        }
        outcome.check(more_files <= MOST_FILES, f"parked steps hold {more_files} files")
        outcome.check(more <= 8 + size * MOST_MB_EACH, f"parked steps hold {more:.1f} MB")
        return runs


def _take_up(hub: Hub, agent: TaskAgent, runs: list[str], outcome: Outcome) -> None:
    """Has all tasks end once the next hub has polled each of them."""
    agent.most_polls = 0
    polled = agent.polls
    begun = time.monotonic()
    with closing(Client(hub.wait_until_up())) as client:
        until(lambda: agent.polls - polled >= len(runs), 60)
        outcome.figures["polled after a restart within, s"] = round(time.monotonic() - begun, 1)
        outcome.figures["polls at once"] = agent.most_polls
        at_once = agent.most_polls
        outcome.check(at_once <= MOST_AT_ONCE, f"{at_once} polls at once after the restart")
        agent.settle("completed", "done")
        begun = time.monotonic()
        until(lambda: _count(client)["completed"] == len(runs), 120)
        outcome.figures["completed within, s"] = round(time.monotonic() - begun, 1)
        states = Counter(_find(client, id)["run"]["state"] for id in runs)
        outcome.check(states == {"completed": len(runs)}, f"the runs are {dict(states)}")


def _is_healthy(client: Client) -> bool:
    found = client.answer("GET", "/api/a2a/agents", None, PLAIN)["agents"]
    return bool(found) and found[0]["health"] == "healthy"


def _start(client: Client) -> str:
    return str(client.answer("POST", "/api/workflows/long/run", {}, PLAIN)["run"]["id"])


def _find(client: Client, id: str) -> Any:
    return client.answer("GET", f"/api/runs/{id}", None, PLAIN)


def _count(client: Client) -> Counter[str]:
    """How many runs are in each state."""
    found: Counter[str] = Counter()
    cursor = ""
    while True:
        query = f"/api/runs?limit={PAGE}" + (f"&cursor={cursor}" if cursor else "")
        page = client.answer("GET", query, None, PLAIN)
        found.update(one["state"] for one in page["runs"])
        cursor = page.get("nextCursor") or ""
        if not cursor:
            return found


def _count_files(pid: int) -> int:
    return len(list(Path(f"/proc/{pid}/fd").iterdir()))
