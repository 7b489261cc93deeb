"""The clients of a cluster whose hubs are killed, each with what it must find in the end.

Every request goes over a new connection to the next hub of a balancer. Clients that may repeat a
request do so with an idempotency key; the others do not, and count what broke.
"""

from __future__ import annotations

import http.client
import json
import threading
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import psycopg
from tests.live.a2a_hub import GET, SEND, STREAM, SUBSCRIBE, V10, steps
from tests.live.cluster_rig import Balancer, Cluster
from tests.peers import wire
from tests.peers.process import read_log

from dragoman.workflows.schedules import LEASE
from faults.harness import Outcome, until

ANSWER_SECONDS = 30.0
SETTLE_SECONDS = 60.0
BROKEN = (
    *(OSError, EOFError, ValueError, AssertionError, KeyError, TypeError, IndexError),
    http.client.HTTPException,
)
"""How a request fails that is refused, or whose hub dies."""
ENDED = ("TASK_STATE_COMPLETED", "TASK_STATE_FAILED")
SCHEDULES = 30
LATE_SECONDS = 10.0
"""A schedule goes on within this time after the death of the hub that owns it."""
PER_SECOND, BURST = 20, 20
WITHIN = 1.2
CALL = "{{id: {id}, nodeId: tool.call, config: {{tool: s.slow, arguments: {{seconds: 0.05, key: \
'{{{{ $run.id }}}}-{id}'}}}}{more}}}"
WORKFLOW = "steps:\n" + "".join(
    f"  - {CALL.format(id=id, more=more)}\n"
    for id, more in (
        ("a", ""),
        ("b", ", dependsOn: [a]"),
        ("c", ", dependsOn: [a]"),
        ("d", ", dependsOn: [b, c]"),
    )
)
TICK = "triggers:\n  - {{type: schedule, every: 1m, catchUp: all}}\nsteps:\n  - {}\n".format(
    CALL.format(id="a", more="")
)


@dataclass
class Rig:
    cluster: Cluster
    balancer: Balancer
    gates: Path
    log: Path
    """What the MCP servers of all hubs were asked."""
    outcome: Outcome
    over: threading.Event = field(default_factory=threading.Event)

    @property
    def headers(self) -> dict[str, str]:
        return self.cluster.headers

    @property
    def mcp(self) -> str:
        return f"{self.balancer.url}/mcp"

    def get(self, path: str) -> Any:
        return wire.get(f"{self.balancer.url}{path}", self.headers, ANSWER_SECONDS).json()

    def post(self, path: str, body: Any) -> Any:
        return wire.post(f"{self.balancer.url}{path}", body, self.headers, ANSWER_SECONDS).json()


class Load:
    """One client, in a thread of its own."""

    def __init__(self, rig: Rig, number: int) -> None:
        self.rig, self.number = rig, number
        self.answered = 0
        self.made = 0
        self.effective: list[str] = []
        """The keys of answered calls, each of which must have had its effect."""

    @property
    def outcome(self) -> Outcome:
        return self.rig.outcome

    def run(self) -> None:
        while not self.rig.over.is_set():
            self.made += 1
            self.work(f"{type(self).__name__}{self.number}-{self.made}")

    def work(self, key: str) -> None:
        """Does one thing, which is the only one with that key."""
        raise NotImplementedError

    def judge(self) -> None:
        """Checks what was left when all kills are over."""


# --- MCP ------------------------------------------------------------------------------------------


class SessionCalls(Load):
    """Calls of one session, each with an effect outside of the hubs."""

    session: wire.Session | None = None

    def work(self, key: str) -> None:
        try:
            if self.session is None:
                self.session = wire.Session(self.rig.mcp, headers=self.rig.headers)
                self.outcome.count("sessions")
            params = {"name": "s.slow", "arguments": {"seconds": 0.02, "key": key}}
            answer = self.session.request("tools/call", params, ANSWER_SECONDS)
        except BROKEN:
            self.outcome.count("connections that broke")
            return
        if "result" in answer and not answer["result"].get("isError"):
            self.answered += 1
            self.effective.append(key)
        elif "session not found" in json.dumps(answer):
            self.outcome.fail(f"a session was lost: {answer}")
            self.session = None
        else:
            self.outcome.count("calls that failed with their hub")


class PlainCalls(Load):
    """Calls without a session."""

    def work(self, key: str) -> None:
        params = {"name": "s.slow", "arguments": {"seconds": 0.02, "key": key}}
        try:
            answer = wire.modern_request(
                self.rig.mcp, "tools/call", params, self.rig.headers, ANSWER_SECONDS
            ).rpc()
        except BROKEN:
            self.outcome.count("connections that broke")
            return
        if "result" in answer and not answer["result"].get("isError"):
            self.answered += 1
            self.effective.append(key)
        else:
            self.outcome.count("calls that failed with their hub")


def judge_effects(rig: Rig, loads: Sequence[Load]) -> None:
    """No call of any client, and no step of a run, was made twice; each answered one was made."""
    begun = Counter(one["key"] for one in read_log(rig.log) if one.get("event") == "started")
    for key, times in begun.items():
        rig.outcome.check(times == 1, f"call {key} was made {times} times")
    answered = [key for load in loads for key in load.effective]
    for key in answered:
        rig.outcome.check(key in begun, f"call {key} was answered and has no effect")
    rig.outcome.figures["calls with an effect"] = begun.total()
    rig.outcome.figures["of them answered to clients"] = len(answered)


class ResponseStreams(Load):
    """Calls that report progress. A stream that breaks is resumed at another hub."""

    STEPS, PAUSE = 12, 0.1
    revision = ""
    session: wire.Session | None = None

    def work(self, key: str) -> None:
        self.revision = ("2025-06-18", "2025-11-25")[self.made % 2]
        try:
            session = wire.Session(self.rig.mcp, self.revision, self.rig.headers)
        except BROKEN:
            self.outcome.count("connections that broke")
            return
        arguments = {"steps": self.STEPS, "pause": self.PAUSE}
        params = {"name": "s.progress", "arguments": arguments, "_meta": {"progressToken": key}}
        events: list[tuple[str, Any]] = []
        self._read("POST", session, wire.request(key, "tools/call", params), "", events)
        until_at = time.monotonic() + ANSWER_SECONDS
        resumed = False
        while events and not _is_answer(events[-1][1]) and time.monotonic() < until_at:
            resumed = True
            status = self._read("GET", session, None, events[-1][0], events)
            if status and status not in (200, 502, 503):
                self.outcome.fail(f"a stream could not be resumed: {status}")
                return
            time.sleep(0.05)
        if not events or not events[0][0]:  # no event came that it could be resumed after
            self.outcome.count("calls that failed with their hub")
            return
        self._check(key, events, resumed)

    def _read(
        self,
        method: str,
        session: wire.Session,
        message: Any,
        last: str,
        events: list[tuple[str, Any]],
    ) -> int:
        headers = {**session.headers, **({"Last-Event-ID": last} if last else {})}
        status = 0
        try:
            with wire.stream(method, self.rig.mcp, message, headers, ANSWER_SECONDS) as stream:
                status = stream.status
                if status != 200 or "event-stream" not in stream.headers["content-type"]:
                    return status
                while True:
                    event = stream.next()
                    if event.data:
                        events.append((event.id, event.json()))
        except BROKEN:
            return status

    def _check(self, key: str, events: list[tuple[str, Any]], resumed: bool) -> None:
        check = self.outcome.check
        numbers = [int(id.rpartition("-")[2]) for id, _ in events]
        wanted = list(range(1, len(events) + 1))
        check(numbers == wanted, f"stream {key} has the events {numbers}")
        check(len({id.rpartition("-")[0] for id, _ in events}) == 1, f"stream {key} has two ids")
        *progress, (_, answer) = events
        steps = [one.get("params", {}).get("progress") for _, one in progress]
        check(steps == list(range(1, len(steps) + 1)), f"stream {key} has the steps {steps}")
        if not check(_is_answer(answer), f"stream {key} has no end: {answer}"):
            return
        if "error" in answer:
            text = answer["error"]["message"]
            check("interrupted" in text or "died" in text, f"stream {key} ended: {answer}")
            self.outcome.count("streams of responses that were interrupted")
        else:
            check(len(steps) == self.STEPS, f"stream {key} has {len(steps)} steps")
        if resumed:
            self.outcome.count("streams of responses that were resumed")
        self.answered += 1


def _is_answer(message: Any) -> bool:
    return "method" not in message


class Notifications(Load):
    """A stream of notifications that is resumed for ever. Its events have gapless numbers."""

    session: wire.Session | None = None
    last = ""

    def work(self, key: str) -> None:
        try:
            if self.session is None:
                self.session = wire.Session(self.rig.mcp, headers=self.rig.headers)
            headers = dict(self.session.headers)
            if self.last:
                headers["Last-Event-ID"] = self.last
            with wire.stream("GET", self.rig.mcp, None, headers, timeout=1.0) as stream:
                if self.outcome.check(
                    stream.status in (200, 502, 503), f"notifications: {stream.status}"
                ):
                    self._follow(stream)
        except BROKEN:
            return

    def _follow(self, stream: wire.Stream) -> None:
        assert self.session is not None
        while not self.rig.over.is_set():
            params = {"name": "s.toggle", "arguments": {}}
            self.session.request("tools/call", params, ANSWER_SECONDS)
            event = stream.next()  # of the list that has changed
            before, _, number = self.last.rpartition("-")
            name, _, new = event.id.rpartition("-")
            if self.last and event.data:
                self.outcome.check(
                    (name, int(new)) == (before, int(number) + 1),
                    f"notification {event.id} came after {self.last}",
                )
            if self.last and self.last.rpartition("-")[0] == name:
                self.outcome.count("notifications")
            self.last = event.id
            self.answered += 1


class McpTasks(Load):
    """Tasks of MCP clients: each that was created is known, and ends."""

    def __init__(self, rig: Rig, number: int) -> None:
        super().__init__(rig, number)
        self.tasks: list[tuple[wire.Session, str]] = []
        self.session: wire.Session | None = None

    def work(self, key: str) -> None:
        try:
            if self.session is None or self.made % 20 == 0:
                self.session = wire.Session(self.rig.mcp, headers=self.rig.headers)
            arguments = {"seconds": 0.3, "key": key}
            params = {"name": "s.slow", "arguments": arguments, "task": {"ttl": 3_600_000}}
            answer = self.session.request("tools/call", params, ANSWER_SECONDS)
            self.tasks.append((self.session, answer["result"]["task"]["taskId"]))
        except BROKEN:
            self.outcome.count("connections that broke")
            return
        self.answered += 1
        self.rig.over.wait(0.2)

    def judge(self) -> None:
        states: Counter[str] = Counter()
        for session, id in self.tasks:
            found: list[Any] = []

            def has_ended(
                session: wire.Session = session, id: str = id, found: Any = found
            ) -> bool:
                with suppress(*BROKEN):
                    found[:] = [session.request("tasks/get", {"taskId": id}, ANSWER_SECONDS)]
                    status = found[0].get("result", {}).get("status")
                    return status in ("completed", "failed") or "error" in found[0]
                return False

            until(has_ended, SETTLE_SECONDS)
            status = found[0].get("result", {}).get("status") if found else None
            if self.outcome.check(status in ("completed", "failed"), f"MCP task {id}: {found}"):
                states[f"MCP tasks that have {status}"] += 1
        for name, count in states.items():
            self.outcome.count(name, count)


# --- A2A ------------------------------------------------------------------------------------------


class Messages(Load):
    """A2A messages, each sent again with its key until it is acknowledged."""

    def __init__(self, rig: Rig, number: int) -> None:
        super().__init__(rig, number)
        self.tasks: list[str] = []
        """Acknowledged."""
        self.sent: list[str] = []
        """The keys of all messages, acknowledged or not."""

    def work(self, key: str) -> None:
        self.sent.append(key)
        todo = steps(["mark", key], ["pause", 0.05], ["reply", key])
        for _ in range(20):
            task = self._send(todo, key)
            if task is not None:
                self.tasks.append(task)
                self.answered += 1
                return
            if self.rig.over.wait(0.2):
                return

    def _send(self, todo: Any, key: str) -> str | None:
        _, path, body, headers = V10.request(SEND, V10.params(todo), "actor")
        headers = {**self.rig.headers, **headers, "Idempotency-Key": key}
        body["params"]["message"]["messageId"] = key
        try:
            answer = wire.post(f"{self.rig.balancer.url}{path}", body, headers, ANSWER_SECONDS)
            return str(answer.json()["result"]["task"]["id"])
        except BROKEN:
            self.outcome.count("messages that were sent again")
            return None

    def judge(self) -> None:
        """Every acknowledged task has ended and is readable, and no message had two effects."""
        for id in dict.fromkeys(self.tasks):
            has_ended = until(partial(self._has_ended, id), SETTLE_SECONDS)
            if not self.outcome.check(has_ended, f"task {id} has not ended"):
                self.outcome.fail(f"task {id} is in the state {self._get_state(id)!r}")
        for key in self.sent:
            file = self.rig.gates / key
            effects = len(file.read_text("utf-8")) if file.exists() else 0
            self.outcome.check(effects <= 1, f"message {key} was carried out {effects} times")
        self.outcome.count("tasks", len(self.tasks))

    def _has_ended(self, id: str) -> bool:
        return self._get_state(id) in ENDED

    def _get_state(self, id: str) -> str:
        _, path, body, headers = V10.request(GET, {"id": id}, "actor")
        headers = {**self.rig.headers, **headers}
        try:
            url = f"{self.rig.balancer.url}{path}"
            answer = wire.post(url, body, headers, ANSWER_SECONDS).json()
            return str(answer["result"]["status"]["state"])
        except BROKEN:
            return ""


class TaskStreams(Load):
    """Streams of A2A tasks. One that breaks is resumed at another hub, with the last event."""

    SAID = 10

    def work(self, key: str) -> None:
        say = [one for n in range(self.SAID) for one in (["say", f"{n}"], ["pause", 0.1])]
        todo = steps(*say, ["reply", "done"])
        events: list[tuple[int, Any]] = []
        self._read(STREAM, V10.params(todo), events)
        if not events:
            self.outcome.count("connections that broke")
            return
        id = next(_list_ids(events))
        resumed = False
        until_at = time.monotonic() + ANSWER_SECONDS
        while not _has_ended(events) and time.monotonic() < until_at:
            resumed = True
            self._read(SUBSCRIBE, {"id": id}, events)
            time.sleep(0.05)
        check = self.outcome.check
        if not check(_has_ended(events), f"task {id}: its stream has no end: {events[-1:]}"):
            return
        numbers = [number for number, _ in events]
        wanted = list(range(numbers[0], numbers[0] + len(numbers)))
        check(numbers == wanted, f"task {id}: its stream has the events {numbers}")
        said = [text for _, event in events if (text := _find_said(event)).isdigit()]
        wanted_texts = [f"{n}" for n in range(len(said))]
        check(said == wanted_texts, f"task {id}: its stream has said {said}")
        if resumed:
            self.outcome.count("streams of tasks that were resumed")
        self.answered += 1

    def _read(self, op: str, params: Any, events: list[tuple[int, Any]]) -> None:
        _, path, body, headers = V10.request(op, params, "actor")
        headers = {**self.rig.headers, **headers}
        if events:
            headers["Last-Event-ID"] = str(events[-1][0])
        url = f"{self.rig.balancer.url}{path}"
        with (
            suppress(*BROKEN),
            wire.stream("POST", url, body, headers, ANSWER_SECONDS) as stream,
        ):
            while True:
                event = stream.next()
                found = event.json()
                if "result" in found:
                    is_first = op == SUBSCRIBE and "task" in found["result"]
                    if not (is_first and events):  # the task as it is now has no number of its own
                        events.append((int(event.id), found["result"]))


def _list_ids(events: list[tuple[int, Any]]) -> Any:
    for _, event in events:
        if "task" in event:
            yield event["task"]["id"]
        elif "statusUpdate" in event:
            yield event["statusUpdate"]["taskId"]


def _has_ended(events: list[tuple[int, Any]]) -> bool:
    status = events[-1][1].get("statusUpdate", events[-1][1].get("task", {})).get("status", {})
    return status.get("state") in ENDED


def _find_said(event: Any) -> str:
    message = event.get("statusUpdate", {}).get("status", {}).get("message") or {}
    return "".join(part.get("text", "") for part in message.get("parts", ()))


# --- workflows ------------------------------------------------------------------------------------


class Runs(Load):
    """Runs of a workflow. A person skips the steps that may have been made."""

    OPEN = "queued,running,waiting,needs_decision"

    def __init__(self, rig: Rig, number: int) -> None:
        super().__init__(rig, number)
        self.runs: list[str] = []
        """Acknowledged."""

    def work(self, key: str) -> None:
        try:
            self.runs.append(self.rig.post("/api/workflows/four/run", {})["run"]["id"])
            self.answered += 1
            self._decide()
        except BROKEN:
            self.outcome.count("connections that broke")
        self.rig.over.wait(0.3)

    def _decide(self) -> None:
        for run in self.rig.get("/api/runs?state=needs_decision&limit=200")["runs"]:
            for step in self.rig.get(f"/api/runs/{run['id']}")["steps"]:
                if step["state"] == "needs_decision":
                    self.outcome.count("steps that needed a decision")
                    body = {"step": step["path"], "decision": "skip"}
                    self.rig.post(f"/api/runs/{run['id']}/resume", body)

    def judge(self) -> None:
        def is_over() -> bool:
            with suppress(*BROKEN):
                self._decide()
                return not self.rig.get(f"/api/runs?state={self.OPEN}&limit=200")["runs"]
            return False

        self.outcome.check(until(is_over, SETTLE_SECONDS), "runs have not ended")
        with psycopg.connect(self.rig.cluster.database) as database:
            rows = database.execute("SELECT state, count(*) FROM dragoman.runs GROUP BY state")
            states = {str(state): int(count) for state, count in rows.fetchall()}
        self.outcome.check(set(states) <= {"completed"}, f"runs have not ended well: {states}")
        for id in self.runs:
            state = self.rig.get(f"/api/runs/{id}").get("run", {}).get("state")
            self.outcome.check(state == "completed", f"acknowledged run {id} is {state}")
        self.outcome.figures["runs"] = sum(states.values())
        self.outcome.figures["of them acknowledged to clients"] = len(self.runs)


class Schedules(Load):
    """Schedules of a minute each, of which one is due every two seconds."""

    def __init__(self, rig: Rig, number: int) -> None:
        super().__init__(rig, number)
        for hub in rig.cluster.hubs:
            folder = hub.home / "workflows"
            folder.mkdir(mode=0o700, exist_ok=True)
            for n in range(SCHEDULES):
                (folder / f"tick{n}.yaml").write_text(TICK, encoding="utf-8")
            (folder / "four.yaml").write_text(WORKFLOW, encoding="utf-8")
        assert until(self._is_known, 30), "the schedules are not known"
        with psycopg.connect(rig.cluster.database, autocommit=True) as database:
            query = "SELECT id FROM dragoman.trigger_schedules ORDER BY workflow"
            now = time.time()
            for place, (id,) in enumerate(database.execute(query).fetchall()):
                database.execute(
                    "UPDATE dragoman.trigger_schedules SET next_at = %s WHERE id = %s",
                    (now + 5 + place * 60 / SCHEDULES, id),
                )
            # The next holder reads them.
            [(holder,)] = database.execute(
                "SELECT hub FROM dragoman.leases WHERE name = %s", (LEASE,)
            ).fetchall()
            others = [one["id"] for one in rig.get("/api/cluster")["hubs"] if one["id"] != holder]
            database.execute(
                "UPDATE dragoman.leases SET hub = %s WHERE name = %s", (others[0], LEASE)
            )

    def _is_known(self) -> bool:
        where = self.rig.cluster.database
        with suppress(psycopg.Error), psycopg.connect(where) as database:
            rows = database.execute("SELECT count(*) FROM dragoman.trigger_schedules")
            held = database.execute("SELECT 1 FROM dragoman.leases WHERE name = %s", (LEASE,))
            return rows.fetchone() == (SCHEDULES,) and held.fetchone() == (1,)
        return False

    def run(self) -> None:
        self.rig.over.wait()

    def judge(self) -> None:
        check = self.outcome.check
        fired: Counter[tuple[str, str]] = Counter()
        latest = 0.0
        for n in range(SCHEDULES):
            runs = self.rig.get(f"/api/runs?workflow=tick{n}&limit=200")["runs"]
            times = []
            for run in runs:
                at = _parse_time(run["trigger"]["at"])
                fired[f"tick{n}", run["trigger"]["at"]] += 1
                times.append(at)
                latest = max(latest, _parse_time(run["createdAt"]) - at)
            times.sort()
            gaps = {round(b - a) for a, b in pairwise(times)}
            check(gaps <= {60}, f"schedule tick{n} has missed a time, or fired twice: {gaps}")
        for (name, moment), count in fired.items():
            check(count == 1, f"schedule {name} has fired {count} times at {moment}")
        check(latest <= LATE_SECONDS, f"a schedule was {latest:.1f} s late")
        check(len(fired) > 0, "no schedule has fired")
        self.outcome.figures["times of schedules"] = len(fired)
        self.outcome.figures["latest start of a schedule, s"] = round(latest, 1)


def _parse_time(text: str | float) -> float:
    return text if isinstance(text, float | int) else datetime.fromisoformat(text).timestamp()


# --- limits ---------------------------------------------------------------------------------------


class Limited(Load):
    """A client with a key of its own that calls as fast as it can."""

    def __init__(self, rig: Rig, number: int) -> None:
        super().__init__(rig, number)
        made = rig.cluster.hubs[0].command("keys", "create", f"limited{number}", "--json")
        self.key = json.loads(made.stdout)["key"]
        self.begun = time.monotonic()
        self.admitted: list[float] = []
        self.refused = 0

    def run(self) -> None:
        threads = [threading.Thread(target=self._send) for _ in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    def _send(self) -> None:
        headers = {"Authorization": f"Bearer {self.key}"}
        while not self.rig.over.wait(0.02):
            try:
                url = f"{self.rig.balancer.url}/api/tools"
                status = wire.get(url, headers, ANSWER_SECONDS).status
            except BROKEN:
                continue
            if status == 200:
                self.admitted.append(time.monotonic())
                self.answered += 1
            elif status == 429:
                self.refused += 1

    def judge(self) -> None:
        seconds = time.monotonic() - self.begun
        share = len(self.admitted) / (BURST + PER_SECOND * seconds)
        check = self.outcome.check
        check(share <= WITHIN, f"{share:.2f} times the limit was admitted")
        check(self.refused > 0, "the limit was never reached")
        worst = 0.0
        for start in range(0, len(self.admitted), 10):  # over ten seconds, too
            window = [at for at in self.admitted[start:] if at < self.admitted[start] + 10]
            worst = max(worst, len(window) / (BURST + PER_SECOND * 10))
        check(worst <= WITHIN, f"{worst:.2f} times the limit was admitted in ten seconds")
        self.outcome.figures["times the limit"] = round(share, 2)
        self.outcome.figures["times the limit, within 10 s"] = round(worst, 2)
