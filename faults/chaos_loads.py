"""The clients of hubs to which everything happens. Each keeps what was acknowledged, asks any hub,
and judges in the end at every hub, and by the ledger."""

from __future__ import annotations

import json
import random
import re
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from datetime import datetime
from functools import partial
from itertools import pairwise
from typing import Any, TypeVar
from urllib.parse import quote

from tests.live.a2a_hub import GET, SEND, V10
from tests.peers import wire

from faults.chaos_rig import ANSWER_SECONDS, HEADERS, STEPS, TICKS, ChaosRig, Place, choose_place
from faults.cluster_loads import BROKEN
from faults.harness import Outcome, until
from faults.ledger import count_effects, read_effects

T = TypeVar("T")
SETTLE_SECONDS = 60.0
READERS = 6
READ_SECONDS = 10.0
"""How long what was acknowledged may be unreadable in the end, when nothing is broken any more."""
LONG_SECONDS = 4.0
"""Of a tenth of the messages, so that there is work when a hub is taken for dead."""
REMEMBERED = 20
"""Turns of a conversation; hubs keep more."""
EVERY_SECONDS = 60.0
"""Between two times of a workflow; those of an outage are made up for."""
RESUMED_SECONDS = 30.0
"""After the last fault, the times of workflows up to it have their runs."""
AGENT_GAP_SECONDS = 240.0
"""Times of agents are left out while no hub can fire them: those of one pause, of a lease after it,
and of a start."""
COMPLETED, FAILED = "TASK_STATE_COMPLETED", "TASK_STATE_FAILED"


class Client:
    """Does one kind of thing again and again, in a thread of its own."""

    pause = 0.15

    def __init__(self, rig: ChaosRig, number: int, seed: int) -> None:
        self.rig, self.number = rig, number
        self.chance = random.Random(f"{seed} {type(self).__name__} {number}")
        self.made = 0

    @property
    def outcome(self) -> Outcome:
        return self.rig.outcome

    def run(self) -> None:
        with self.rig.reporting(f"the load {type(self).__name__}{self.number}"):
            while not self.rig.over.wait(self.pause * self.chance.uniform(0.5, 1.5)):
                self.made += 1
                self.attempt(choose_place(self.rig, self.chance))

    def attempt(self, place: Place) -> bool:
        """Does one thing at that hub; whether it was acknowledged."""
        key = f"{type(self).__name__}{self.number}-{self.made}-{self.chance.randrange(10**9)}"
        try:
            return self.work(place, key)
        except BROKEN:
            self.outcome.count("requests that were refused or broke")
            return False

    def work(self, place: Place, key: str) -> bool:
        raise NotImplementedError

    def settle(self) -> None:
        """Lets what was begun end, when all faults are over."""

    def judge(self, effects: Counter[str]) -> None:
        """Checks what was acknowledged."""


def _at_every_hub(rig: ChaosRig, items: Iterable[T], check: Callable[[Place, T], None]) -> None:
    pairs = [(place, item) for item in items for place in rig.places]
    with ThreadPoolExecutor(READERS) as pool:
        list(pool.map(lambda pair: check(*pair), pairs))


def _read(rig: ChaosRig, ask: Callable[[], T]) -> T | str:
    """What a hub answers, tried until all must have settled, and for some seconds in any case: a
    machine that stands still for a moment loses nothing. Returns the failure as text."""
    until = max(rig.settled_by, time.monotonic() + READ_SECONDS)
    while True:
        try:
            return ask()
        except BROKEN as error:
            if time.monotonic() > until:
                return f"{error!r}"[:300]
            time.sleep(0.2)


# --- MCP calls ------------------------------------------------------------------------------------


class Calls(Client):
    """MCP calls, in turn without a session and in one that any hub may own."""

    def __init__(self, rig: ChaosRig, number: int, seed: int) -> None:
        super().__init__(rig, number, seed)
        self.answered: list[str] = []
        self.session: wire.Session | None = None

    def work(self, place: Place, key: str) -> bool:
        params = {"name": "ledger.pay", "arguments": {"key": key, "seconds": 0.05}}
        if self.made % 2:
            answer = wire.modern_request(
                f"{place.url}/mcp", "tools/call", params, HEADERS, ANSWER_SECONDS
            ).rpc()
        else:
            if self.session is None or self.made % 40 == 0:
                self.session = None
                self.session = wire.Session(f"{place.url}/mcp", headers=HEADERS)
            self.session.url = f"{place.url}/mcp"
            answer = self.session.request("tools/call", params, ANSWER_SECONDS)
            if "session not found" in json.dumps(answer):
                self.outcome.fail(f"a session was lost: {answer}")
                self.session = None
        if answer["result"].get("isError"):
            raise ValueError("refused")
        self.answered.append(key)
        return True

    def judge(self, effects: Counter[str]) -> None:
        for key in self.answered:
            self.outcome.check(effects[key] == 1, f"call {key}: answered, {effects[key]} effects")
        self.outcome.count("calls answered", len(self.answered))


# --- A2A ------------------------------------------------------------------------------------------


def find_effects(why: str, id: str, members: Collection[str]) -> tuple[int, ...]:
    """How many effects a failed task may have had; none of these if a stop of its hub is not what
    it failed by, or its hub, which its id begins with, is still a member."""
    if id.partition("-")[0] in members:
        return ()
    if "it was interrupted: the hub was stopped" in why:
        return (0, 1)
    return (0,) if "it was not begun: the hub was stopped" in why else ()


class Messages(Client):
    """A2A messages with an idempotency key, each sent again, at any hub, until it is taken."""

    tries = 6

    def __init__(self, rig: ChaosRig, number: int, seed: int) -> None:
        super().__init__(rig, number, seed)
        self.tasks: dict[str, str] = {}
        """The task of each key that was acknowledged."""
        self.sent: list[str] = []

    def attempt(self, place: Place) -> bool:
        key = f"Messages{self.number}-{self.made}-{self.chance.randrange(10**9)}"
        self.sent.append(key)
        for _ in range(self.tries):
            try:
                self.tasks[key] = self.send(place, key)
                return True
            except BROKEN:
                self.outcome.count("messages that were sent again")
            if self.rig.over.wait(0.3):
                break
            place = choose_place(self.rig, self.chance)
        return False

    def send(self, place: Place, key: str, seconds: float = ANSWER_SECONDS) -> str:
        """The id of the task of that key."""
        is_long = key.endswith("0")
        text = json.dumps({"key": key, "seconds": LONG_SECONDS if is_long else 0.1})
        params = V10.params(text, at_once=is_long or key[-1] in "123")
        _, path, body, headers = V10.request(SEND, params, "worker")
        body["params"]["message"]["messageId"] = key
        headers["Idempotency-Key"] = key
        answer = self.rig.post(place, path, body, seconds, headers).json()
        if "result" not in answer:
            raise ValueError(str(answer)[:300])
        return str(answer["result"]["task"]["id"])

    def get_task(self, place: Place, id: str) -> Any:
        _, path, body, headers = V10.request(GET, {"id": id}, "worker")
        answer = self.rig.post(place, path, body, headers=headers).json()
        if "result" not in answer:
            raise ValueError(str(answer)[:300])
        state = answer["result"]["status"]["state"]
        if state in ("TASK_STATE_SUBMITTED", "TASK_STATE_WORKING"):
            raise ValueError(f"still {state}")
        return answer["result"]

    def judge(self, effects: Counter[str]) -> None:
        lost: set[str] = set()
        members = self.rig.list_members()

        def check(place: Place, item: tuple[str, str]) -> None:
            key, id = item
            if id in lost:
                return
            found = _read(self.rig, lambda: self.get_task(place, id))
            if isinstance(found, str):
                lost.add(id)
                self.outcome.fail(
                    f"task {id} of {key} cannot be read at hub {place.number}: {found}"
                )
                return
            self._judge_state(place, key, found, effects[key], members)

        _at_every_hub(self.rig, self.tasks.items(), check)
        self.outcome.count("tasks acknowledged", len(self.tasks))
        self.outcome.count("tasks lost", len(lost))

    def _judge_state(
        self, place: Place, key: str, task: Any, effects: int, members: Collection[str]
    ) -> None:
        state = task["status"]["state"]
        text = json.dumps(task["status"].get("message", {}).get("parts"))[:300]
        about = (
            f"hub {place.number}: task {task['id']} of {key} is {state}, {effects} effects: {text}"
        )
        wanted = {COMPLETED: (1,), FAILED: find_effects(text, task["id"], members)}.get(state, ())
        self.outcome.check(effects in wanted, about)
        if state != COMPLETED and place.number == 0:
            self.outcome.count(f"tasks that ended as {state}")

    def repeat(self) -> None:
        """Each key can be used again, and refers to the task that it had."""

        def repeat(key: str) -> None:
            place = choose_place(self.rig, self.chance)
            found = _read(self.rig, lambda: ("task", self.send(place, key)))
            if isinstance(found, str):
                self.outcome.count("idempotency keys that are blocked")
                self.outcome.fail(f"key {key} cannot be used again: {found}")
            elif key in self.tasks:
                same = found[1] == self.tasks[key]
                self.outcome.check(same, f"key {key} has another task than acknowledged")

        with ThreadPoolExecutor(READERS) as pool:
            list(pool.map(repeat, self.sent))
        self.outcome.count("idempotency keys used again", len(self.sent))


# --- runs -----------------------------------------------------------------------------------------


def judge_steps(rig: ChaosRig, id: str, steps: Iterable[str], effects: Counter[str]) -> None:
    """Each step of a completed run has its effect; one that was skipped may have it."""
    for step in steps:
        made = effects[f"run {id} {step}"]
        wanted = (0, 1) if (id, step) in rig.decided else (1,)
        rig.outcome.check(made in wanted, f"run {id}: its step {step} had {made} effects")


class Runs(Client):
    """Runs of three steps. A person skips the steps that may have been made."""

    pause = 0.4
    DECIDED = "steps that needed a decision"

    def __init__(self, rig: ChaosRig, number: int, seed: int) -> None:
        super().__init__(rig, number, seed)
        self.started: list[str] = []

    def work(self, place: Place, key: str) -> bool:
        answer = self.rig.post(place, "/api/workflows/three/run", {}).json()
        self.started.append(answer["run"]["id"])
        return True

    def decide(self) -> None:
        place = choose_place(self.rig, self.chance)
        listed = self.rig.get(place, "/api/runs?state=needs_decision&limit=200").json()
        for run in listed["runs"]:
            for step in self.rig.get(place, f"/api/runs/{run['id']}").json()["steps"]:
                if step["state"] == "needs_decision":
                    body = {"step": step["path"], "decision": "skip"}
                    self.rig.decided.add((run["id"], step["path"]))  # the answer may be lost
                    self.rig.post(place, f"/api/runs/{run['id']}/resume", body)
                    self.outcome.count(self.DECIDED)

    def _are_over(self) -> bool:
        with suppress(*BROKEN):
            self.decide()
            place = choose_place(self.rig, self.chance)
            path = "/api/runs?state=queued,running,waiting,needs_decision&limit=200"
            return not self.rig.get(place, path).json()["runs"]
        return False

    def settle(self) -> None:
        self.outcome.check(until(self._are_over, SETTLE_SECONDS), "runs have not ended")

    def judge(self, effects: Counter[str]) -> None:
        lost: set[str] = set()
        failed: set[str] = set()

        def check(place: Place, id: str) -> None:
            if id in lost:
                return
            found = _read(self.rig, lambda: self.rig.get(place, f"/api/runs/{id}").json()["run"])
            if isinstance(found, str):
                lost.add(id)
                self.outcome.fail(f"run {id} cannot be read at hub {place.number}: {found}")
            elif found["state"] != "completed" and id not in failed:
                failed.add(id)
                made = [effects[f"run {id} {step}"] for step in STEPS]
                problem = str(found.get("problem"))[:300]
                self.outcome.fail(f"run {id} {found['state']} with the effects {made}: {problem}")

        _at_every_hub(self.rig, self.started, check)
        for id in set(self.started) - lost - failed:
            judge_steps(self.rig, id, STEPS, effects)
        self.outcome.count("runs acknowledged", len(self.started))
        self.outcome.count("runs lost", len(lost))
        self.outcome.count("runs failed", len(failed))


# --- approvals ------------------------------------------------------------------------------------


class Approvals(Client):
    """Calls that need an approval, each step of which goes to any hub."""

    pause = 0.3

    def __init__(self, rig: ChaosRig, number: int, seed: int) -> None:
        super().__init__(rig, number, seed)
        self.requested: dict[str, str] = {}
        """The key of each approval whose request was acknowledged."""
        self.approved: set[str] = set()
        self.delivered: set[str] = set()

    def work(self, place: Place, key: str) -> bool:
        body = {"arguments": {"key": key, "seconds": 0.1}}
        path = "/api/tools/ledger.guarded/call"
        id = self.request(place, key)
        self.requested[id] = key
        place = choose_place(self.rig, self.chance)
        if self.rig.post(place, f"/api/approvals/{id}/approve", {}).status != 200:
            return False
        self.approved.add(id)
        for _ in range(3):
            answer = self.rig.post(choose_place(self.rig, self.chance), path, body)
            if answer.status == 200:
                self.delivered.add(id)
                break
        return True

    def request(self, place: Place, key: str, seconds: float = ANSWER_SECONDS) -> str:
        """The id of the approval that the call waits for."""
        body = {"arguments": {"key": key, "seconds": 0.1}}
        answer = self.rig.post(place, "/api/tools/ledger.guarded/call", body, seconds)
        found = re.search(r"approval (\w{8})", answer.body.decode())
        if found is None:
            raise ValueError(answer.body[:300])
        return found.group(1)

    def judge(self, effects: Counter[str]) -> None:
        lost: set[str] = set()

        def read(place: Place, id: str) -> Any:
            answer = self.rig.get(place, f"/api/approvals/{id}").json()
            if answer.get("outcome") == "running" or (
                id in self.approved and not answer.get("outcome")
            ):
                raise ValueError(f"still {answer}")
            return (answer["state"], answer["outcome"])

        def check(place: Place, id: str) -> None:
            if id in lost:
                return
            key = self.requested[id]
            found = _read(self.rig, lambda: read(place, id))
            if isinstance(found, str):
                lost.add(id)
                self.outcome.fail(f"approval {id} of {key} at hub {place.number}: {found}")
                return
            state, outcome = found
            wanted = "approved" if id in self.approved else state
            self.outcome.check(state == wanted, f"approval {id} of {key} was approved, is {state}")
            if outcome == "completed":
                self.outcome.check(
                    effects[key] == 1, f"approval {id} of {key}: made, {effects[key]} effects"
                )
            elif outcome:
                self.outcome.check(
                    outcome == "interrupted",
                    f"hub {place.number}: approval {id} of {key} ended as {outcome}",
                )
                if place.number == 0:
                    self.outcome.count(f"approved calls that ended as {outcome}")

        _at_every_hub(self.rig, self.requested, check)
        members = self.rig.list_members()
        for id, hub in self.rig.list_interrupted().items():
            self.outcome.check(
                hub not in members, f"approval {id} is interrupted, and hub {hub} has not ended"
            )
        self.outcome.count("approvals requested", len(self.requested))
        self.outcome.count("approvals approved", len(self.approved))
        self.outcome.count("approvals delivered", len(self.delivered))
        self.outcome.count("approvals lost", len(lost))


# --- registrations and policies -------------------------------------------------------------------


MOST_NAMED = 60
"""Of one client: what a hub stores of them is limited."""


class Named(Client):
    """Things with a name that are stored, half of which are removed again."""

    pause = 1.0
    kind = ""

    def __init__(self, rig: ChaosRig, number: int, seed: int) -> None:
        super().__init__(rig, number, seed)
        self.there: dict[str, bool] = {}
        """Whether it was stored last; nothing where the answer did not come."""

    def work(self, place: Place, key: str) -> bool:
        name = f"{self.kind}{self.number}x{self.made}x{self.chance.randrange(10**6)}"
        self.add(place, name)
        self.there[name] = True
        if self.chance.random() < 0.5 or sum(self.there.values()) > MOST_NAMED:
            self.there.pop(name)
            place = choose_place(self.rig, self.chance)
            answer = self.remove(place, name)
            if answer.status in (200, 204):
                self.there[name] = False
        return True

    def add(self, place: Place, name: str, seconds: float = ANSWER_SECONDS) -> None:
        raise NotImplementedError

    def remove(self, place: Place, name: str) -> wire.Answer:
        raise NotImplementedError

    def list_names(self, place: Place) -> set[str]:
        raise NotImplementedError

    def judge(self, effects: Counter[str]) -> None:
        for place in self.rig.places:

            def list_wrong(place: Place = place) -> list[str]:
                names = self.list_names(place)
                return [name for name, there in self.there.items() if there != (name in names)]

            def is_right(read: Callable[[], list[str]] = list_wrong) -> bool:
                with suppress(*BROKEN):
                    return not read()
                return False

            if not until(is_right, 5.0):
                found = _read(self.rig, list_wrong)
                self.outcome.fail(f"hub {place.number}: {self.kind}: not as acknowledged: {found}")
        self.outcome.count(f"{self.kind}: acknowledged changes", len(self.there))


class Registrations(Named):
    """Agents that are registered."""

    kind = "agent"

    def add(self, place: Place, name: str, seconds: float = ANSWER_SECONDS) -> None:
        body = {"url": f"{self.rig.agents.url}/good/{name}", "name": name}
        answer = self.rig.post(place, "/api/a2a/agents", body, seconds)
        if answer.status not in (200, 201):
            raise ValueError(answer.body[:300])

    def remove(self, place: Place, name: str) -> wire.Answer:
        url = f"{place.url}/api/a2a/agents/{name}"
        return wire.http_request("DELETE", url, None, HEADERS, ANSWER_SECONDS)

    def list_names(self, place: Place) -> set[str]:
        return {one["name"] for one in self.rig.get(place, "/api/a2a/agents").json()["agents"]}


class Policies(Named):
    """Policies that permit what others do already."""

    pause = 4.0
    kind = "policy"

    def add(self, place: Place, name: str, seconds: float = ANSWER_SECONDS) -> None:
        text = f'@id("{name}") permit (principal, action, resource == Hub::Tool::"ledger.pay");'
        answer = self.rig.post(place, "/api/policies", {"name": name, "text": text}, seconds)
        if answer.status != 200 or not answer.json()["ok"]:
            raise ValueError(answer.body[:300])

    def remove(self, place: Place, name: str) -> wire.Answer:
        url = f"{place.url}/api/policies/{name}"
        return wire.http_request("DELETE", url, None, HEADERS, ANSWER_SECONDS)

    def list_names(self, place: Place) -> set[str]:
        return {one["name"] for one in self.rig.get(place, "/api/policies").json()["files"]}


# --- conversations --------------------------------------------------------------------------------


class Conversations(Client):
    """Each talks to an agent with a model, whose turns go to any hub. The model is asked with each
    turn that was answered before."""

    pause = 1.5

    def __init__(self, rig: ChaosRig, number: int, seed: int) -> None:
        super().__init__(rig, number, seed)
        self.context = ""
        self.said: list[str] = []
        self.forgotten: set[str] = set()

    def work(self, place: Place, key: str) -> bool:
        word = f"word {self.number} {self.made}."
        params = V10.params(word)
        if self.context:
            params["message"]["contextId"] = self.context
        _, path, body, headers = V10.request(SEND, params, f"clock{self.number % TICKS}")
        answer = self.rig.post(place, path, body, headers=headers).json()
        task = answer["result"]["task"]
        if task["status"]["state"] != COMPLETED:
            raise ValueError(str(answer)[:300])
        self.context = task["contextId"]
        asked = self.rig.find_request(word)
        self.forgotten.update(one for one in self.said[-REMEMBERED:] if one not in asked)
        self.said.append(word)
        return True

    def judge(self, effects: Counter[str]) -> None:
        self.outcome.count("turns of conversations", len(self.said))
        self.outcome.count(
            "turns of conversations that a later one did not see", len(self.forgotten)
        )
        self.outcome.check(
            not self.forgotten, f"a conversation forgot {len(self.forgotten)} answered turns"
        )


# --- schedules ------------------------------------------------------------------------------------


def _list_runs(rig: ChaosRig, workflow: str) -> list[Any]:
    path = f"/api/runs?workflow={workflow}&limit=200"
    page = rig.get(rig.places[0], path).json()
    runs = list(page["runs"])
    while cursor := page.get("nextCursor"):
        page = rig.get(rig.places[0], f"{path}&cursor={quote(cursor)}").json()
        runs += page["runs"]
    return runs


def judge_schedules(rig: ChaosRig, begun: float, ended: float) -> None:
    """Times of workflows have one run each, and none is left out from the beginning of the load to
    its end; agents are asked at most once for each time, and go on."""
    outcome = rig.outcome
    due = begun, max(begun, ended - RESUMED_SECONDS)
    for number in range(TICKS):
        runs = _read(rig, partial(_list_runs, rig, f"tick{number}"))
        if isinstance(runs, str):
            outcome.fail(f"the runs of tick{number} cannot be read: {runs}")
            continue
        times = Counter(str(run["trigger"]["at"]) for run in runs)
        for moment, count in times.items():
            outcome.check(count == 1, f"tick{number} has {count} runs for {moment}")
        outcome.count("times of workflows", len(times))
        gaps = list_gaps([*due, *(read_time(moment) for moment in times)], EVERY_SECONDS)
        outcome.check(not gaps, f"tick{number} has no run for {gaps[:3]} s")
        bad = [f"{run['id']} {run['state']}" for run in runs if run["state"] != "completed"]
        outcome.check(not bad, f"tick{number}: runs that have not completed: {bad[:3]}")
        effects = count_effects(rig.ledger)
        for run in runs:
            judge_steps(rig, run["id"], STEPS[:1], effects)
    asked: dict[str, list[float]] = defaultdict(list)
    for at, key in read_effects(rig.ledger):
        if key.startswith("schedule "):
            asked[key].append(at)
    outcome.check(len(asked) == TICKS, f"only these agents were asked: {sorted(asked)}")
    for key, moments in asked.items():
        gaps = list_gaps([begun, *moments, ended], AGENT_GAP_SECONDS)
        outcome.check(not gaps, f"{key} was not asked for {gaps[:3]} s")
        for gap, again in list_repeated(moments):
            outcome.fail(f"{key} was asked again at {again:.1f}, {gap:.1f} s after the last time")
        outcome.count("times of agents", len(moments))


def read_time(text: str) -> float:
    return datetime.fromisoformat(text).timestamp()


def list_gaps(moments: Iterable[float], longest: float) -> list[float]:
    """The seconds between neighbours that are further apart."""
    return [b - a for a, b in pairwise(sorted(moments)) if b - a > longest + 0.5]


def list_repeated(moments: list[float]) -> list[tuple[float, float]]:
    """The moments in a minute that had a run already, and the seconds since it. A run that begins
    in the first second of a minute may be that of the minute before, if that had none."""
    taken: dict[int, float] = {}
    found = []
    for moment in sorted(moments):
        minute = int(moment // 60)
        before = taken.get(minute)
        if before is not None:
            is_late = before % 60 < 1.0 and minute - 1 not in taken and minute - 1 > min(taken)
            if is_late:
                taken[minute - 1] = before
            else:
                found.append((moment - before, moment))
        taken[minute] = moment
    return found


# --- all of them ----------------------------------------------------------------------------------

LOADS: tuple[type[Client], ...] = (
    Calls,
    Calls,
    Calls,
    Messages,
    Messages,
    Messages,
    Runs,
    Runs,
    Approvals,
    Approvals,
    Registrations,
    Policies,
    Conversations,
)


class Crowd:
    """All clients, each in a thread."""

    def __init__(self, rig: ChaosRig, seed: int) -> None:
        self.rig = rig
        self.clients = [kind(rig, number, seed) for number, kind in enumerate(LOADS)]
        self.threads = [threading.Thread(target=one.run, daemon=True) for one in self.clients]

    def start(self) -> None:
        self.begun = time.time()
        for thread in self.threads:
            thread.start()

    def stop(self) -> None:
        self.ended = time.time()
        self.rig.over.set()
        for thread in self.threads:
            thread.join(2 * ANSWER_SECONDS)

    def judge(self) -> None:
        self.rig.settled_by = time.monotonic() + SETTLE_SECONDS
        for one in self.clients:
            one.settle()
        effects = count_effects(self.rig.ledger)
        for one in self.clients:
            one.judge(effects)
        judge_schedules(self.rig, self.begun, self.ended)
        for one in self.clients:
            if isinstance(one, Messages):
                one.repeat()
        effects = count_effects(self.rig.ledger)
        once = [key for key in effects if not key.startswith("schedule ")]
        for key in once:
            self.rig.outcome.check(effects[key] == 1, f"{key} was made {effects[key]} times")
        self.rig.outcome.figures["effects"] = len(once)
        self.rig.outcome.figures["effects made twice"] = sum(effects[key] > 1 for key in once)
