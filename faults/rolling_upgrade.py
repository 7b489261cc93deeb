"""Three hubs that work as one are stopped and replaced, one after the other, under load.

Clients of both eras of MCP and of A2A are spread by a balancer without affinity; none of their
requests may fail. The balancer notices that a hub stops by `/readyz`, or only by its refused
connections. The hubs may be of two versions.
"""

from __future__ import annotations

import http.client
import json
import random
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any

from tests.live.a2a_hub import GET, SEND, STREAM, V10, a2a_config, agents_env, steps
from tests.live.cluster_rig import Balancer, Cluster, run_cluster
from tests.peers import wire
from tests.peers.process import HERE, server_entry

from faults.harness import RATE_LIMITS, ROOT, NotHere, Outcome, until

HUBS = 3
PREVIOUS = "71032b3c"
"""The commit that stands for the previous version, as long as there is no release."""
ANSWER_SECONDS = 30.0
SETTLE_SECONDS = 30.0
LISTEN_SECONDS = 15.0
"""How long a stream of notifications stays open, or waits for its hub to be replaced."""
READY_SECONDS = 0.2
"""How often the balancer asks for `/readyz`."""
WORKFLOW = """expose: true
steps:
  - {id: a, nodeId: tool.call, config: {tool: s.slow, arguments: {seconds: 0.5}}}
  - {id: b, nodeId: tool.call, config: {tool: s.add, arguments: {a: 1, b: 2}}, dependsOn: [a]}
"""
PLACED = "calls of a server with one place"
LISTENS = "streams of notifications"
COMPLETED = "TASK_STATE_COMPLETED"


def upgrade_hubs(rounds: int, seed: int, outcome: Outcome) -> None:
    """In each second round the balancer knows nothing of `/readyz`."""
    with _run_load(outcome) as load:
        for number in range(rounds):
            with load.follow_readiness(number % 2 == 0):
                for hub in range(HUBS):
                    load.replace(hub)
        load.finish(rounds)


def stop_one(outcome: Outcome) -> None:
    """Stops one of two hubs."""
    with _run_load(outcome, 2) as load:
        with load.follow_readiness(False):
            load.stop(load.find_placed())
        load.finish(0)


def upgrade_versions(rounds: int, seed: int, outcome: Outcome) -> None:
    """Hubs of this version become those of the previous one, and then of this one again."""
    chance = random.Random(seed)
    with checked_out(PREVIOUS) as tree:
        previous = build_environment(tree)
        with _run_load(outcome) as load:
            for number in range(rounds):
                with load.follow_readiness(True):
                    for hub in chance.sample(range(HUBS), HUBS):
                        load.replace(hub, None if number % 2 else previous)
            load.finish(rounds)


@contextmanager
def checked_out(commit: str) -> Iterator[Path]:
    """The sources of another commit."""
    folder = Path(tempfile.mkdtemp(prefix="dfo", dir="/tmp"))
    try:
        packed = subprocess.run(
            ["git", "archive", commit, "src"], cwd=ROOT, capture_output=True, timeout=60
        )
        if packed.returncode:
            raise NotHere(f"commit {commit} of this repository")
        subprocess.run(["tar", "-x", "-C", folder], input=packed.stdout, timeout=60, check=True)
        yield folder / "src"
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def build_environment(tree: Path) -> dict[str, str]:
    """The variables by which a hub runs from those sources, in an interpreter of its own."""
    found = subprocess.run(
        [sys.executable, "-c", "import dragoman; print(dragoman.__file__)"],
        env={"PYTHONPATH": str(tree)}, capture_output=True, text=True, timeout=60,
    ).stdout  # fmt: skip
    assert found.startswith(str(tree)), found
    return {"PYTHONPATH": f"{tree}:{HERE}", "PYTHONHASHSEED": "0"}


@contextmanager
def _run_load(outcome: Outcome, hubs: int = HUBS) -> Iterator[_Load]:
    gates = Path(tempfile.mkdtemp(prefix="dfg", dir="/tmp"))
    servers = [
        server_entry("s", "sdk_server", "--era", "modern"),
        server_entry("one", "sdk_server", "--era", "legacy", placement="one"),
    ]
    config = a2a_config(config=RATE_LIMITS)
    try:
        with run_cluster(hubs, servers, config, agents_env(gates)) as cluster:
            for hub in cluster.hubs:
                hub.wait_connected("s", "one")
                made = hub.post("/api/workflows", {"name": "sums", "source": WORKFLOW})
                assert made.get("state") == "active", made
            load = _Load(cluster, gates, outcome)
            try:
                yield load
            finally:
                load.end()
    finally:
        shutil.rmtree(gates, ignore_errors=True)


class _Load:
    """Clients that go on until they are ended; each request of theirs must succeed."""

    def __init__(self, cluster: Cluster, gates: Path, outcome: Outcome) -> None:
        self._cluster, self._gates, self._outcome = cluster, gates, outcome
        self._each = Balancer(cluster.ports, each_request=True)
        self._kept = Balancer(cluster.ports)
        """Its clients keep their connections."""
        self._held = Balancer(cluster.ports, each_request=True)
        """For streams, which last until it is closed."""
        self._over = threading.Event()
        self._lock = threading.Lock()
        self._marks: list[str] = []
        """The keys of all messages, each of which has one effect."""
        self._counts: dict[str, int] = {}
        self._follows = True
        self._works: dict[str, Callable[[str], None]] = {
            "calls in a session": self._call_in_session,
            "calls over kept connections": self._call_over_kept,
            "calls with progress": self._call_with_progress,
            "long calls": self._call_for_long,
            "calls without a session": self._call_without_session,
            "new sessions": self._begin_sessions,
            PLACED: partial(self._call_without_session, tool="one.add"),
            "workflows as tools": self._call_workflow,
            "runs that are polled": self._poll_runs,
            "messages": self._send_messages,
            "messages with a stream": self._stream_messages,
            "tasks that are polled": self._poll_tasks,
            LISTENS: self._listen,
        }
        self._threads: list[threading.Thread] = []

    # --- the hubs

    def find_placed(self) -> int:
        """The number of the hub that runs the server with one place."""
        found = [hub.api("/api/cluster") for hub in self._cluster.hubs]
        holder = next(one["hub"] for one in found[0]["leases"] if one["name"] == "server one")
        own = [next(one["id"] for one in each["hubs"] if one["is_this"]) for each in found]
        return own.index(holder)

    def begin(self) -> None:
        for name, work in self._works.items():
            self._counts[name] = 0
            self._threads.append(threading.Thread(target=self._repeat, args=[name, work]))
            self._threads[-1].start()

    def end(self) -> None:
        if self._over.is_set():
            return
        self._over.set()
        self._held.close()
        for thread in self._threads:
            thread.join(2 * ANSWER_SECONDS)
        self._each.close()
        self._kept.close()

    @contextmanager
    def follow_readiness(self, follows: bool) -> Iterator[None]:
        """Has the balancers send nothing to hubs whose `/readyz` fails, or to all that accept."""
        if not self._threads:
            self.begin()
        if not follows:
            self._set_ports(self._cluster.ports)
            self._follows = False
            yield
            return
        self._follows = True
        stopped = threading.Event()
        thread = threading.Thread(target=self._watch, args=[stopped])
        thread.start()
        try:
            yield
        finally:
            stopped.set()
            thread.join(10)

    def _watch(self, stopped: threading.Event) -> None:
        while not stopped.wait(READY_SECONDS):
            ready = []
            for port in self._cluster.ports:
                with suppress(OSError, http.client.HTTPException):
                    if wire.get(f"http://127.0.0.1:{port}/readyz", timeout=2).status == 200:
                        ready.append(port)
            if ready:
                self._set_ports(ready)

    def _set_ports(self, ports: list[int]) -> None:
        for balancer in (self._each, self._kept, self._held):
            balancer.ports[:] = ports

    def replace(self, number: int, env: Mapping[str, str] | None = None) -> None:
        """Stops a hub and starts another one in its home. Each client gets answers meanwhile."""
        cluster = self._cluster
        self.stop(number)
        cluster.replace(number, env).wait_connected("s", "one")
        self._outcome.count("hubs replaced")
        if not self._follows:
            self._set_ports(cluster.ports)
        self._wait_for_answers()

    def stop(self, number: int) -> None:
        victim, figures = self._cluster.hubs[number], self._outcome.figures
        begun = time.monotonic()
        victim.stop()
        took = round(time.monotonic() - begun, 1)
        figures["longest stop"] = max(figures.get("longest stop", 0.0), took)
        self._wait_for_answers()
        if "Traceback" in (log := victim.log()):
            self._outcome.fail(log[log.index("Traceback") :][:1000])
        for problem in victim.finish():
            self._outcome.fail(problem[:1000])

    def _wait_for_answers(self) -> None:
        before = dict(self._counts)
        for name in self._works.keys() - {LISTENS}:
            with suppress(TimeoutError):
                until(lambda: self._counts[name] > before[name], ANSWER_SECONDS)  # noqa: B023
                continue
            self._outcome.fail(f"{name}: no answer in {ANSWER_SECONDS:g} s")

    def finish(self, rounds: int) -> None:
        """Ends the load; each message must have had its effect once."""
        self.end()
        for key in self._marks:
            file = self._gates / key
            effects = len(file.read_text("utf-8")) if file.exists() else 0
            self._outcome.check(effects == 1, f"message {key} was carried out {effects} times")
        self._outcome.figures |= {"rounds": rounds, **self._counts}

    # --- clients

    def _repeat(self, name: str, work: Callable[[str], None]) -> None:
        while not self._over.is_set():
            begun = time.monotonic()
            try:
                work(name)
            except Exception as error:  # each is a request that failed
                if name == LISTENS and self._over.is_set():
                    return
                at = f"{time.monotonic() - begun:.1f} s after its start"
                self._outcome.count("requests that failed")
                self._outcome.fail(f"{name}: {type(error).__name__} {at}: {str(error)[:300]}")
                self._over.wait(0.1)

    def _note(self, name: str) -> None:
        self._counts[name] += 1

    def _open_session(self, version: str, balancer: Balancer | None = None) -> wire.Session:
        url = (balancer or self._each).url
        return wire.Session(f"{url}/mcp", version, self._cluster.headers)

    def _call_in_session(self, name: str) -> None:
        session = self._open_session("2025-06-18")
        while not self._over.is_set():
            number = self._counts[name]
            params = {"name": "s.add", "arguments": {"a": number, "b": 1}}
            _check_sum(session.request("tools/call", params, ANSWER_SECONDS), number + 1)
            self._note(name)

    def _call_over_kept(self, name: str) -> None:
        """Opens a connection when the last one was closed, as clients do."""
        session = self._open_session("2025-11-25", self._kept)
        headers = {**session.headers, "Content-Type": "application/json", "Accept": wire.ACCEPT}
        connection = http.client.HTTPConnection("127.0.0.1", self._kept.port, timeout=30)
        try:
            while not self._over.is_set():
                number = self._counts[name]
                params = {"name": "s.add", "arguments": {"a": number, "b": 2}}
                body = json.dumps(wire.request(number, "tools/call", params))
                connection.request("POST", "/mcp", body, headers)
                response = connection.getresponse()
                found = {key.lower(): value for key, value in response.getheaders()}
                answer = wire.Answer(response.status, found, response.read())
                _check_sum(answer.rpc(), number + 2)
                if found.get("connection", "").lower() == "close":
                    connection.close()
                self._note(name)
        finally:
            connection.close()

    def _call_with_progress(self, name: str) -> None:
        session = self._open_session("2025-11-25")
        while not self._over.is_set():
            number = self._counts[name] + 1
            params = {
                "name": "s.progress",
                "arguments": {"steps": 4, "pause": 0.1},
                "_meta": {"progressToken": number},
            }
            messages = session.post(wire.request(number, "tools/call", params), 30).messages()
            steps = [one["params"]["progress"] for one in messages if "method" in one]
            text = messages[-1].get("result", {}).get("content", [{}])[0].get("text")
            assert steps == [1, 2, 3, 4] and text == "4 steps", messages
            self._note(name)

    def _call_for_long(self, name: str) -> None:
        """Longer than a hub takes requests after SIGTERM."""
        session = self._open_session("2025-11-25")
        while not self._over.is_set():
            params = {"name": "s.slow", "arguments": {"seconds": 3}}
            answer = session.request("tools/call", params, ANSWER_SECONDS)
            text = answer.get("result", {}).get("content", [{}])[0].get("text")
            assert text == "slept 3", answer
            self._note(name)

    def _call_without_session(self, name: str, tool: str = "s.add") -> None:
        number = self._counts[name]
        params = {"name": tool, "arguments": {"a": number, "b": 3}}
        url, headers = f"{self._each.url}/mcp", self._cluster.headers
        answer = wire.modern_request(url, "tools/call", params, headers, ANSWER_SECONDS)
        _check_sum(answer.rpc(), number + 3)
        self._note(name)

    def _begin_sessions(self, name: str) -> None:
        session = self._open_session("2025-06-18")
        for _ in range(3):
            assert "result" in (answer := session.request("tools/list")), answer
        ended = wire.http_request("DELETE", session.url, None, session.headers, ANSWER_SECONDS)
        assert ended.status == 200, ended
        self._note(name)

    def _call_workflow(self, name: str) -> None:
        params = {"name": "workflow.sums", "arguments": {}}
        url, headers = f"{self._each.url}/mcp", self._cluster.headers
        answer = wire.modern_request(url, "tools/call", params, headers, ANSWER_SECONDS).rpc()
        result = answer.get("result", {})
        assert not result.get("isError") and "sum" in json.dumps(result), answer
        self._note(name)

    def _poll_runs(self, name: str) -> None:
        url, headers = self._each.url, self._cluster.headers
        sent = wire.post(f"{url}/api/workflows/sums/run", {}, headers, ANSWER_SECONDS)
        assert sent.status == 202, sent
        place = f"{url}/api/runs/{sent.json()['run']['id']}"
        end, state = time.monotonic() + SETTLE_SECONDS, ""
        while state != "completed" and time.monotonic() < end:
            found = wire.get(place, headers, ANSWER_SECONDS)
            assert found.status == 200, found
            state = found.json()["run"]["state"]
            time.sleep(0.1)
        assert state == "completed", found.json()
        self._note(name)

    def _prepare(self, name: str, op: str, pause: float, at_once: bool = False) -> Any:
        key = f"{name[:9].replace(' ', '-')}{name[-6:].replace(' ', '-')}-{len(self._marks)}"
        with self._lock:
            self._marks.append(key)
        todo = steps(["mark", key], ["say", "one"], ["pause", pause], ["reply", key])
        _, path, body, headers = V10.request(op, V10.params(todo, at_once=at_once), "actor")
        return key, f"{self._each.url}{path}", body, {**self._cluster.headers, **headers}

    def _send_messages(self, name: str) -> None:
        key, url, body, headers = self._prepare(name, SEND, 0.05)
        answer = wire.post(url, body, headers, ANSWER_SECONDS).json()
        _check_task(answer.get("result", {}).get("task"), key, answer)
        self._note(name)

    def _stream_messages(self, name: str) -> None:
        key, url, body, headers = self._prepare(name, STREAM, 0.7)
        answer = wire.post(url, body, headers, ANSWER_SECONDS)
        said = answer.body.decode()
        states = [state for one in answer.messages() if (state := _find_state(one))]
        assert answer.status == 200 and states[-1:] == [COMPLETED] and key in said, said
        self._note(name)

    def _poll_tasks(self, name: str) -> None:
        key, url, body, headers = self._prepare(name, SEND, 1.0, at_once=True)
        answer = wire.post(url, body, headers, ANSWER_SECONDS).json()
        assert "task" in answer.get("result", {}), answer
        id = answer["result"]["task"]["id"]
        _, _, body, _ = V10.request(GET, {"id": id}, "actor")
        end = time.monotonic() + SETTLE_SECONDS
        while time.monotonic() < end:
            answer = wire.post(url, body, headers, ANSWER_SECONDS).json()
            assert "result" in answer, answer
            if answer["result"]["status"]["state"] not in (
                "TASK_STATE_WORKING",
                "TASK_STATE_SUBMITTED",
            ):
                break
            time.sleep(0.1)
        _check_task(answer["result"], key, answer)
        self._note(name)

    def _listen(self, name: str) -> None:
        """Opens a stream of notifications, and again when it has ended, which it must properly."""
        session = self._open_session("2025-11-25", self._held)
        last = ""
        while not self._over.is_set():
            headers = {**session.headers, **({"Last-Event-ID": last} if last else {})}
            with wire.stream("GET", session.url, None, headers, LISTEN_SECONDS) as stream:
                assert stream.status == 200, (stream.status, stream.headers)
                with suppress(TimeoutError, EOFError):
                    last = stream.next().id or last
            self._note(name)


def _check_sum(answer: Any, expected: int) -> None:
    found = answer.get("result", {}).get("structuredContent")
    assert found == {"sum": expected}, answer


def _check_task(task: Any, key: str, answer: Any) -> None:
    assert task and task["status"]["state"] == COMPLETED and key in json.dumps(task), answer


def _find_state(message: Any) -> str:
    result = message.get("result", {})
    found = result.get("task") or result.get("statusUpdate") or {}
    return str(found.get("status", {}).get("state", ""))
