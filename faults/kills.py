"""kill -9 at random moments under load and during the start, and what must be true afterwards.

One experiment has A2A tasks, whose clients are in tests/live/crashing_hub.py; the other has calls,
agents that come and go, and policies that change.
"""

from __future__ import annotations

import http.client
import json
import random
import socket
import threading
import time
import uuid
from collections import Counter
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.live.crashing_hub import (
    LOST,
    AcknowledgedTask,
    Client,
    Hub,
    Load,
    build_message,
    executions,
    write_home,
)
from tests.peers.process import read_log, server_entry

from faults.agents import serving_agents
from faults.harness import Outcome, audit_records, temporary_home, until, verify_audit, write_config

CLIENTS = 5
COMPLETED, FAILED, CANCELED, WAITS = (
    f"TASK_STATE_{state}" for state in ("COMPLETED", "FAILED", "CANCELED", "INPUT_REQUIRED")
)
ENDS = (COMPLETED, FAILED, CANCELED)
UNFINISHED = ("TASK_STATE_SUBMITTED", "TASK_STATE_WORKING")


def kill_while_starting(home: Path, chance: random.Random, outcome: Outcome) -> None:
    unlucky = Hub(home)
    time.sleep(chance.uniform(0.05, 0.6))
    unlucky.kill()
    outcome.count("kills during the start")


# --- A2A tasks


def choose_moment(chance: random.Random) -> tuple[str, float, float]:
    """When the hub is killed: by what is counted, after how many of these, and how much later.

    Answers are counted and time is taken outside; where agents begin and end, the hub ends itself.
    """
    kind = chance.choice(["answered", "time", "began", "ended", "ended", "thread"])
    count = chance.randint(1, 60 if kind != "thread" else 15)
    after = chance.choice([0.0, chance.uniform(0, 0.003)]) if kind != "thread" else 0.0
    if kind == "time":
        after = chance.uniform(0, 0.15)
    return kind, count, after


def run_until_killed(hub: Hub, load: Load, moment: tuple[str, float, float]) -> None:
    kind, count, after = moment
    threads = load.start(CLIENTS)
    if kind == "answered":
        for _ in range(int(count)):
            if not load.answered.acquire(timeout=10):
                break
    if kind in ("answered", "time"):
        time.sleep(after)
        hub.process.kill()
    try:
        hub.process.wait(60)  # it ends itself as soon as it has done as much as the moment says
    finally:
        hub.process.kill()
        for thread in threads:
            thread.join(30)
    assert not load.broken, (load.broken, hub.log())


def check_task(client: Client, told: AcknowledgedTask, ran: Counter[str]) -> str:
    """Compares the stored task with what its client received; returns its state."""
    now = client.rpc("GetTask", {"id": told.id})
    state: str = now["status"]["state"]
    assert state not in UNFINISHED, now
    if told.state in ENDS and told.task is not None:
        assert now == told.task, (now, told.task)
    elif told.seed is not None:
        plain = {"content-type": "application/json"}
        assert client.answer("GET", f"/a2a/tasks/{told.id}", None, plain) == told.seed, now
    elif told.continued:
        assert state in (WAITS, COMPLETED, FAILED), now
    elif told.state in (*ENDS, WAITS):
        assert state == told.state, now
    else:
        assert state in (COMPLETED, FAILED) or (told.cancelled and state == CANCELED), now
    if state == FAILED:
        assert "interrupted" in now["status"]["message"]["parts"][0]["text"], now
    if state == COMPLETED:
        made = {one["name"]: one["parts"] for one in now["artifacts"]}
        assert made["response"] == [{"text": f"done {told.text}"}], now
        if told.agent == "slow":
            assert made["report"] == [{"text": f"made {told.text}"}], now
        assert ran[told.message] == 1 or not told.message, now
    if told.webhook is not None:
        wanted = {"taskId": told.id, "id": "hook"}
        assert client.rpc("GetTaskPushNotificationConfig", wanted) == told.webhook, told
    told.state, told.task, told.continued = state, now, False
    return state


def check_after_kill(client: Client, load: Load, home: Path) -> Counter[str]:
    """What is true of a hub that was started again, before anybody sends it anything."""
    for state in UNFINISHED:
        assert client.rpc("ListTasks", {"status": state})["totalSize"] == 0, state
    begun = [message for what, _, message in executions(home) if what in ("began", "thread")]
    ran = Counter(begun)
    twice = [message for message in ran if message and ran[message] > 1]
    assert not twice, twice
    found = Counter(check_task(client, told, ran) for told in load.told + load.touched)
    for name, message in load.keyed:  # sent again, since its outcome is unknown
        key = {"idempotency-key": name}
        task = client.rpc("SendMessage", {"message": message}, "/a2a/quick", **key)["task"]
        assert task["status"]["state"] in (COMPLETED, FAILED), task
    return found


@contextmanager
def closed_port() -> Iterator[int]:
    """A port without a listener that no other process takes."""
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        yield held.getsockname()[1]


def kill_tasks(kills: int, seed: int, outcome: Outcome) -> None:
    chance = random.Random(seed)
    hubs: list[Hub] = []
    with temporary_home() as home, closed_port() as port:
        write_home(home)
        try:
            _kill_tasks(home, f"http://127.0.0.1:{port}/hook", kills, chance, outcome, hubs)
        finally:
            for hub in hubs:
                hub.kill()
        verify_audit(outcome, home, "after all kills")


def _kill_tasks(
    home: Path, webhook: str, kills: int, chance: random.Random, outcome: Outcome, hubs: list[Hub]
) -> None:
    everything: list[AcknowledgedTask] = []
    found: Counter[str] = Counter()
    before = Load(("", 0), "", webhook, [])
    for number in range(kills):
        moment = choose_moment(chance)
        if number % 5 == 4:  # once in a while it is killed before it is up, and has to mend more
            kill_while_starting(home, chance, outcome)
        hubs.append(hub := Hub(home, " ".join(map(str, moment))))
        where = hub.wait_until_up()
        with closing(Client(where)) as client:
            found += check_after_kill(client, before, home)
        everything += before.told
        waiting = [told for told in everything if told.state == WAITS]
        before = Load(where, f"{chance.random()}", webhook, waiting[-20:])
        run_until_killed(hub, before, moment)
        outcome.count("kills under load")
    hubs.append(hub := Hub(home))
    client = hub.client()
    found += check_after_kill(client, before, home)
    everything += before.told
    ran = Counter(dict.fromkeys((message for _, _, message in executions(home)), 1))
    for told in everything:
        check_task(client, told, ran)
    for told in [told for told in everything if told.state == WAITS]:
        wanted = {"message": build_message(f"last {told.id}") | {"taskId": told.id}}
        task = client.rpc("SendMessage", wanted, "/a2a/asking")["task"]
        assert task["status"]["state"] == COMPLETED and len(task["history"]) >= 3, task
    outcome.figures["acknowledged tasks"] = len(everything)
    outcome.figures["interrupted"] = found[FAILED]
    # How many fit between two kills is the machine's affair; each kind must have been met.
    assert all(found[state] for state in (FAILED, COMPLETED, WAITS)), found


# --- calls, agents, policies


@dataclass
class Answered:
    """What clients were told, over all kills."""

    calls: set[str] = field(default_factory=set)
    agents: dict[str, bool] = field(default_factory=dict)
    """Whether it was registered last; nothing where the answer did not come."""
    policies: dict[str, str] = field(default_factory=dict)
    broken: list[str] = field(default_factory=list)
    count: Counter[str] = field(default_factory=Counter)


class Caller:
    """One client on one connection, which does one kind of thing until the hub is gone."""

    def __init__(self, where: tuple[str, int], kind: str, told: Answered, agents: str) -> None:
        self._connection = http.client.HTTPConnection(*where, timeout=30)
        self._kind, self._told, self._agents = kind, told, agents
        self.thread = threading.Thread(target=self._run, daemon=True)
        self.thread.start()

    def _ask(self, method: str, path: str, body: Any = None, **headers: str) -> tuple[int, bytes]:
        sent = {"Content-Type": "application/json", **headers}
        self._connection.request(method, path, json.dumps(body) if body else None, sent)
        answer = self._connection.getresponse()
        return answer.status, answer.read()

    def _run(self) -> None:
        step = {"call": self._call, "agent": self._agent, "policy": self._policy}[self._kind]
        chance = random.Random(uuid.uuid4().hex)
        try:
            while True:
                step(chance)
        except LOST:
            pass
        except Exception as error:
            self._told.broken.append(f"{self._kind}: {error!r}")
        finally:
            self._connection.close()

    def _call(self, chance: random.Random) -> None:
        trace = uuid.uuid4().hex
        status, body = self._ask(
            "POST", "/api/tools/r.echo/call", {"arguments": {"text": trace}},
            traceparent=f"00-{trace}-{trace[:16]}-01",
        )  # fmt: skip
        if status == 200:
            assert json.loads(body)["content"][0]["text"] == trace, body
            self._told.calls.add(trace)
            self._told.count["calls"] += 1

    def _agent(self, chance: random.Random) -> None:
        name = f"agent{chance.randrange(6)}"
        if self._told.agents.pop(name, False):
            status, _ = self._ask("DELETE", f"/api/a2a/agents/{name}")
            if status in (200, 204):
                self._told.agents[name] = False
        else:
            new = {"url": f"{self._agents}/good/{name}", "name": name}
            status, _ = self._ask("POST", "/api/a2a/agents", new)
            if status in (200, 201):
                self._told.agents[name] = True
        self._told.count["changes of agents"] += status in (200, 201, 204)

    def _policy(self, chance: random.Random) -> None:
        name, mark = f"p{chance.randrange(3)}", f"m{uuid.uuid4().hex[:10]}"
        text = (
            f'@id("{mark}")\n@why("w")\nforbid (principal, action in Hub::Action::"any_call", '
            f'resource == Hub::Tool::"r.no{mark}");\n'
        )
        self._told.policies.pop(name, None)
        status, _ = self._ask("POST", "/api/policies", {"name": name, "text": text})
        if status in (200, 201):
            self._told.policies[name] = mark
            self._told.count["changes of policies"] += 1


def check_changes(where: tuple[str, int], told: Answered, outcome: Outcome) -> None:
    connection = http.client.HTTPConnection(*where, timeout=30)
    try:
        connection.request("GET", "/api/a2a/agents")
        agents = json.loads(connection.getresponse().read())["agents"]
        there = {agent["name"] for agent in agents}
        for name, registered in told.agents.items():
            outcome.check(registered == (name in there), f"agent {name}: acknowledged {registered}")
        connection.request("GET", "/api/policies")
        policies = connection.getresponse().read().decode()
        for name, mark in told.policies.items():
            outcome.check(mark in policies, f"policy {name}: {mark} was acknowledged and is gone")
    finally:
        connection.close()


def kill_calls(kills: int, seed: int, outcome: Outcome) -> None:
    chance = random.Random(seed)
    told = Answered()
    with temporary_home() as home, serving_agents() as agents:
        log = home / "calls.jsonl"
        write_config(home, [server_entry("r", "faulty_server", "ok", "--log", log)])
        hub = Hub(home)
        try:
            where = hub.wait_until_up()
            for number in range(kills):
                kinds = ["call"] * 6 + ["agent", "policy"]
                callers = [Caller(where, kind, told, agents.url) for kind in kinds]
                if chance.random() < 0.8:  # else before anything was answered
                    wait_for_call(told)
                time.sleep(chance.choice([0.05, 0.3, 0.8]) * chance.random())
                hub.kill()
                outcome.count("kills under load")
                for caller in callers:
                    caller.thread.join(40)
                if number % 3 == 2:
                    kill_while_starting(home, chance, outcome)
                hub = Hub(home)
                where = hub.wait_until_up()
                check_changes(where, told, outcome)
        finally:
            hub.kill()
        outcome.check(not told.broken, f"clients met: {told.broken[:3]}")
        outcome.figures.update(told.count)
        verify_audit(outcome, home, "after all kills")
        check_effects(home, log, told, outcome)


def wait_for_call(told: Answered) -> None:
    """Until one more was answered: after a start the server comes up a moment later."""
    before = told.count["calls"]
    until(lambda: told.count["calls"] > before, 20)


def check_effects(home: Path, log: Path, told: Answered, outcome: Outcome) -> None:
    """Nothing ran twice, and each effect and each answer has its record."""
    hits = Counter(
        (entry["params"].get("arguments") or {}).get("text", "")
        for entry in read_log(log)
        if entry.get("method") == "tools/call"
    )
    recorded = {record.get("trace") for record in audit_records(home)}
    outcome.figures["effects"] = len(hits)
    twice = [trace for trace, count in hits.items() if count > 1]
    outcome.check(not twice, f"executed twice: {twice[:3]}")
    unannounced = [trace for trace in hits if trace not in recorded]
    outcome.check(not unannounced, f"executed without an intent in the audit: {unannounced[:3]}")
    lost = [trace for trace in told.calls if trace not in recorded or trace not in hits]
    outcome.check(not lost, f"answered, but without record or effect: {lost[:3]}")
    outcome.check(bool(told.calls), "no call was answered between the kills")
