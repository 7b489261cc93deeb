"""kill -9 and power failures at random moments of workflow runs with a fan-out, an approval and a
step whose agent works for long.

Every run must end as if nothing had happened, or stop where a person has to decide; the agents,
which live outside of the hub, must have seen each step that is not repeatable at most once. A power
failure is a kill after which the database of runs has only what was synced to the disk.
"""

from __future__ import annotations

import random
import time
from collections import Counter
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

from tests.live.crashing_hub import LOST, Client, Hub
from tests.live.recording_agents import RecordingAgent, TaskAgent, run_agents

from faults.harness import Outcome, temporary_home, until, verify_audit
from faults.shim import Shim

PLAIN = {"content-type": "application/json"}
RUNS = 4
"""That have begun when the hub is killed."""
ONCE, AGAIN = ("fetch", "left", "right", "deploy"), ("note",)
"""The steps that may not be repeated, and those that may."""
OPEN = ("queued", "running", "waiting", "needs_decision")

WORKFLOW = """
description: Six steps with a fan-out, a long task and an approval
steps:
  - {id: fetch, nodeId: agent.invoke, config: {agent: worker, skillId: work, args:
      {run: "{{ $run.id }}", step: fetch}}}
  - {id: left, nodeId: agent.invoke, dependsOn: [fetch], config: {agent: worker, skillId: work,
      args: {run: "{{ $run.id }}", step: left, before: "{{ nodes.fetch.text | default(0) }}"}}}
  - {id: right, nodeId: agent.invoke, dependsOn: [fetch], config: {agent: slow, skillId: work,
      args: {run: "{{ $run.id }}", step: right, before: "{{ nodes.fetch.text | default(0) }}"}}}
  - {id: ask, nodeId: approval, dependsOn: [left], config: {title: Deploy?}}
  - {id: deploy, nodeId: agent.invoke, dependsOn: [left, right, ask], config: {agent: worker,
      skillId: work, args: {run: "{{ $run.id }}", step: deploy}}}
  - {id: note, nodeId: agent.invoke, dependsOn: [deploy], repeatable: true, config: {agent: other,
      skillId: work, args: {run: "{{ $run.id }}", step: note}}}
output: {by: "{{ nodes.ask.by }}", done: "{{ nodes.note.text }}"}
"""
CONFIG = """
[server]
port = 0
[workflows]
attached_secs = 0.05
poll_secs = 0.2
[a2a]
enabled = true
"""


def write_home(home: Path, agents: list[RecordingAgent]) -> None:
    entries = [f'[[a2a.external_agents]]\nname = "{one.name}"\nurl = "{one.url}"' for one in agents]
    (home / "workflows").mkdir(mode=0o700)
    for path, text in (
        (home / "config.toml", "\n".join([CONFIG, *entries])),
        (home / "workflows" / "six.yaml", WORKFLOW),
    ):
        path.write_text(text, encoding="utf-8")
        path.chmod(0o600)


def kill_runs(kills: int, seed: int, outcome: Outcome) -> None:
    _kill(kills, seed, outcome, None)


def lose_power(failures: int, seed: int, outcome: Outcome) -> None:
    """After each kill, `runs.db` is put back to what was synced."""
    with temporary_home() as folder:
        _kill(failures, seed, outcome, folder)


def _kill(kills: int, seed: int, outcome: Outcome, folder: Path | None) -> None:
    chance = random.Random(seed)
    slow = TaskAgent("slow", "work")
    slow.seconds = lambda: chance.uniform(0.0, 1.5)
    agents = [RecordingAgent("worker", "work"), RecordingAgent("other", "work"), slow]
    for one in agents:
        one.delay = lambda: chance.uniform(0.0, 0.03)
    with temporary_home() as home, run_agents(*agents):
        write_home(home, agents)
        disk = SyncedDisk(folder, home) if folder is not None else None
        _Killer(home, agents, chance, outcome, disk).run(kills)
        outcome.figures["polls"] = slow.polls
        verify_audit(outcome, home, "after all kills")


class SyncedDisk:
    """Keeps a copy of each file of a home as it was when it was last synced."""

    def __init__(self, folder: Path, home: Path) -> None:
        self._home, self._copies = home, folder / "synced"
        self._copies.mkdir()
        self.env = {**Shim(folder, home).env, "KEEP_SYNCED": str(self._copies)}

    def lose_unsynced(self, outcome: Outcome) -> None:
        """Puts the database of runs back to what a power failure would have left of it."""
        for name in ("runs.db", "runs.db-wal"):
            copy, file = self._copies / name, self._home / name
            before = file.read_bytes() if file.exists() else b""
            after = copy.read_bytes() if copy.exists() else b""
            outcome.count("bytes lost", sum(a != b for a, b in zip(before, after, strict=False)))
            outcome.count("bytes lost", max(0, len(before) - len(after)))
            file.write_bytes(after)
            file.chmod(0o600)
        (self._home / "runs.db-shm").unlink(missing_ok=True)


class _Killer:
    def __init__(
        self,
        home: Path,
        agents: list[RecordingAgent],
        chance: random.Random,
        outcome: Outcome,
        disk: SyncedDisk | None,
    ) -> None:
        self._home, self._agents, self._chance, self._outcome = home, agents, chance, outcome
        self._disk = disk
        self._started: list[str] = []
        self._decided: set[tuple[str, str]] = set()
        """The steps that were skipped by decision."""
        self._lost: set[str] = set()
        """Runs that a power failure has erased."""

    def run(self, kills: int) -> None:
        for _ in range(kills):
            hub = Hub(self._home, env=self._disk.env if self._disk is not None else None)
            try:
                self._work_until_killed(hub)
            finally:
                hub.kill()
            self._outcome.count("kills")
            if self._disk is not None:
                self._disk.lose_unsynced(self._outcome)
        hub = Hub(self._home)
        try:
            self._finish(hub)
        finally:
            hub.kill()
        self._judge()

    def _work_until_killed(self, hub: Hub) -> None:
        """Starts runs, decides what waits, and kills the hub meanwhile."""
        where = hub.wait_until_up()
        left = time.monotonic() + self._chance.uniform(0.02, 0.9)
        with closing(Client(where)) as client, suppress(*LOST):
            for _ in range(RUNS):
                sent = client.answer("POST", "/api/workflows/six/run", {}, PLAIN)
                self._started.append(sent["run"]["id"])
            while time.monotonic() < left:
                self._decide(client, until_at=left)
        hub.process.kill()
        hub.process.wait(10)

    def _decide(self, client: Client, until_at: float) -> None:
        """Approves what waits, and skips steps of which it is unknown whether they were done."""
        path = "/api/approvals?state=pending&limit=200"
        for one in client.answer("GET", path, None, PLAIN)["approvals"]:
            if time.monotonic() > until_at:
                return
            client.answer("POST", f"/api/approvals/{one['id']}/approve", {}, PLAIN)
        stuck = client.answer("GET", "/api/runs?state=needs_decision&limit=200", None, PLAIN)
        for run in stuck["runs"]:
            if time.monotonic() > until_at:
                return
            self._resume(client, run["id"])
        time.sleep(0.005)

    def _resume(self, client: Client, id: str) -> None:
        found = client.answer("GET", f"/api/runs/{id}", None, PLAIN)
        for step in found["steps"]:
            if step["state"] == "needs_decision":
                self._outcome.count("needed a decision")
                self._outcome.check(step["id"] in ONCE, f"{step['id']} needed a decision")
                self._decided.add((id, step["id"]))
                body = {"step": step["path"], "decision": "skip"}
                client.answer("POST", f"/api/runs/{id}/resume", body, PLAIN)

    def _finish(self, hub: Hub) -> None:
        """Lets all runs end, and checks that nothing is left."""
        with closing(Client(hub.wait_until_up())) as client:

            def is_over() -> bool:
                self._decide(client, until_at=time.monotonic() + 60)
                query = f"/api/runs?state={','.join(OPEN)}&limit=200"
                return not client.answer("GET", query, None, PLAIN)["runs"]

            until(is_over, 60)
            states: Counter[str] = Counter()
            for id in self._started:
                found = client.answer("GET", f"/api/runs/{id}", None, PLAIN)
                if "run" not in found and self._disk is not None:
                    states["lost before their first step"] += 1
                    self._lost.add(id)
                    continue
                states[found["run"]["state"]] += 1
                self._check_run(id, found)
            self._outcome.figures |= {"runs": len(self._started), **states}
        self._outcome.check(not any(one.at_once for one in self._agents), "an agent still works")

    def _check_run(self, id: str, found: dict[str, Any]) -> None:
        """A run ends as if nothing had happened, or as people have decided."""
        run, check = found["run"], self._outcome.check
        if check(run["state"] == "completed", f"run {id} {run['state']}: {run['problem']}"):
            said = found["output"] == {"by": "local:local", "done": "done"}
            check(said, f"run {id} returned {found['output']}")
            wanted = {"completed", "skipped"} if any(one[0] == id for one in self._decided) else {
                "completed"
            }  # fmt: skip
            states = {step["state"] for step in found["steps"]}
            check(states <= wanted, f"run {id} has steps that are {states}")

    def _judge(self) -> None:
        seen: Counter[tuple[str, str]] = Counter()
        for agent in self._agents:
            for message in agent.sent:
                data = message["parts"][0]["data"]
                seen[data["run"], data["step"]] += 1
        for (run, step), times in seen.items():
            self._outcome.check(run not in self._lost, f"step {step} of a lost run was executed")
            if step in ONCE:
                self._outcome.check(times == 1, f"step {step} of run {run} was done {times} times")
        self._outcome.figures["steps that agents saw"] = sum(seen.values())
        self._outcome.figures["repeated, as they may be"] = sum(
            times - 1 for (_, step), times in seen.items() if step in AGAIN
        )
