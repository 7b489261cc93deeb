"""Steps whose agents work for long: parked, polled, taken up again after kill -9, and ended in
every way. The agents are made with the official SDK, 1.0 and 0.3, with and without streams, and one
of 0.3 is handwritten; a file says what each of their tasks does next."""

from __future__ import annotations

import shutil
import sqlite3
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

import pytest
from tests.live.bridge_fixture import external
from tests.live.conftest import RunningHub, _written_config
from tests.live.module_hub import until
from tests.live.recording_agents import TaskAgent, run_agents
from tests.peers import wire
from tests.peers.process import HttpPeer, read_log, server_entry

from dragoman.stores.dispatches import DATABASE as DISPATCHES

pytestmark = pytest.mark.promise("R14")

SDK = "a2a_sdk_agent"
SKILL = ("--skill", "review:code")
AGENTS: Mapping[str, tuple[str, ...]] = {
    "new": (SDK, "--declare", "JSONRPC:1.0", *SKILL, "--skill", "typescript:qa"),
    "rest": (SDK, "--declare", "HTTP+JSON:1.0", *SKILL),
    "mid": (SDK, "--declare", "JSONRPC:0.3", *SKILL),
    "quiet": (SDK, "--declare", "JSONRPC:1.0", "--no-streaming", *SKILL),
    "old": ("a2a_v03_agent", *SKILL),
    "grpc": ("a2a_grpc_agent",),
}
INVOKE = """
inputs: {agent: string, file: string, word: {type: string, default: long}}
steps:
- id: work
  nodeId: agent.invoke
  %s
  config: {agent: "{{ $trigger.agent }}", message: "{{ $trigger.word }} {{ $trigger.file }}"}
output: "{{ nodes.work.text }}"
"""
SKILLED = """
inputs: {agent: string, file: string}
steps:
- id: work
  nodeId: tool.call
  config: {tool: "{{ $trigger.agent }}.review", arguments: {text: "long {{ $trigger.file }}"}}
output: "{{ nodes.work.text }}"
"""
JOB = """
inputs: {agent: string, file: string, tool: string}
steps:
- id: work
  nodeId: tool.call
  config: {tool: "{{ $trigger.tool }}", arguments: {file: "{{ $trigger.file }}"}}
output: "{{ nodes.work.text }}"
"""
JOBS = ("must", "asks", "fails", "forgets")
DISPATCH = """
inputs: {agent: string, file: string}
steps:
- id: work
  nodeId: agent.dispatch
  config: {description: "long {{ $trigger.file }}", requiredSkills: [typescript]}
output: "{{ nodes.work.text }}"
"""
WORKFLOWS = {
    "invoke": INVOKE % "retry: 1",
    "again": INVOKE % "repeatable: true",
    "limited": INVOKE % "timeout: 1",
    "skilled": SKILLED,
    "dispatch": DISPATCH,
    "job": JOB,
}


@dataclass
class Rig:
    """A home whose hub is started, killed and started again; its agents stay."""

    folder: Path
    peers: dict[str, HttpPeer]
    hub: RunningHub = field(init=False)
    files: int = 0

    @property
    def home(self) -> Path:
        return self.folder / "home"

    def write(self, attached_secs: float = 0.2, more: str = "") -> None:
        shutil.rmtree(self.home, ignore_errors=True)
        self.home.mkdir(mode=0o700)
        (self.home / "workflows").mkdir(mode=0o700)
        agents = "".join(
            external(name, peer.url, allow_private=True) for name, peer in self.peers.items()
        )
        settings = f"[workflows]\nattached_secs = {attached_secs}\npoll_secs = 0.2\n"
        config = f"[a2a]\nenabled = true\n{agents}{settings}{more}"
        texts = {f"workflows/{name}.yaml": text for name, text in WORKFLOWS.items()}
        for name, text in {"config.toml": _written_config(config, []), **texts}.items():
            (self.home / name).write_text(text, encoding="utf-8")
            (self.home / name).chmod(0o600)

    def start(self) -> None:
        self.hub = RunningHub(self.home, [], {})

    def kill(self) -> None:
        self.hub.kill()
        self.hub.finish()

    def until_ready(self) -> None:
        def are_ready() -> bool:
            found = self.hub.api("/api/a2a/agents")["agents"]
            return bool(found) and all(one["health"] == "healthy" for one in found)

        until(are_ready)

    def list_written(self, verb: str) -> list[str]:
        """The states of its dispatches that are in the database."""
        with closing(sqlite3.connect(self.home / DISPATCHES)) as database:
            found = database.execute("SELECT status FROM dispatches WHERE verb = ?", (verb,))
            return sorted(status for (status,) in found)

    def begin(self, workflow: str, agent: str, said: str = "say at it", **more: Any) -> Work:
        self.files += 1
        file = self.folder / f"{self.files}.txt"
        if said:
            file.write_text(said, encoding="utf-8")
        headers = more.pop("headers", self.hub.headers)
        body = {"inputs": {"agent": agent, "file": str(file), **more}}
        sent = wire.post(f"{self.hub.url}/api/workflows/{workflow}/run", body, headers)
        assert sent.status == 202, sent.json()
        return Work(self, sent.json()["run"]["id"], file)

    def count(self, agent: str, event: str) -> int:
        return sum(one["event"] == event for one in read_log(self.folder / agent))


@dataclass
class Work:
    """A run of one step."""

    rig: Rig
    id: str
    file: Path

    def say(self, words: str) -> None:
        """Has the agent do that."""
        self.file.with_suffix(".new").write_text(words, encoding="utf-8")
        self.file.with_suffix(".new").replace(self.file)

    def find(self) -> dict[str, Any]:
        return dict(self.rig.hub.api(f"/api/runs/{self.id}"))

    def step(self) -> dict[str, Any]:
        return dict(self.find()["steps"][0])

    def until(self, *states: str) -> dict[str, Any]:
        wanted = states or ("completed", "failed", "cancelled", "needs_decision")

        def reached() -> dict[str, Any] | None:
            found = self.find()
            return found if found["run"]["state"] in wanted else None

        found = until(reached)
        assert found is not None
        return found

    def until_parked(self, message: str = "at it") -> dict[str, Any]:
        def reached() -> dict[str, Any] | None:
            found = self.step()
            is_parked = found["state"] == "waiting" and found.get("task")
            return found if is_parked and message in found["message"] else None

        found = until(reached)
        assert found is not None
        return found


@pytest.fixture(scope="module")
def folder() -> Iterator[Path]:
    made = Path(tempfile.mkdtemp(prefix="dgl", dir="/tmp"))
    yield made
    shutil.rmtree(made, ignore_errors=True)


@pytest.fixture(scope="module")
def peers(folder: Path) -> Iterator[dict[str, HttpPeer]]:
    with ExitStack() as stack:
        yield {
            name: stack.enter_context(HttpPeer(*args, "--log", folder / name))
            for name, args in AGENTS.items()
        }


@pytest.fixture
def rig(folder: Path, peers: dict[str, HttpPeer]) -> Iterator[Rig]:
    made = Rig(folder, peers, files=int(time.monotonic() * 1000))
    made.write()
    made.start()
    made.until_ready()
    yield made
    problems = made.hub.finish()
    assert not problems, "\n".join(problems)


def test_tasks_of_all_dialects_outlive_the_hub(rig: Rig) -> None:
    """Parked, killed with -9, polled, and completed: each agent has got its message once."""
    before = {name: rig.count(name, "execute") for name in AGENTS}
    works = {name: rig.begin("invoke", name) for name in AGENTS}
    works |= {"new.review": rig.begin("skilled", "new"), "old.review": rig.begin("skilled", "old")}
    works["dispatch"] = rig.begin("dispatch", "")
    for name, work in works.items():
        parked = work.until_parked()
        assert parked["task"]["id"] and "A2A" in parked["task"]["at"], (name, parked)
        assert work.find()["run"]["state"] == "waiting"
    until(lambda: not any(one["outcome"] == "running" for one in rig.hub.audit()))
    until(lambda: rig.list_written("new.review") == ["parked"])  # a crash loses what is not
    rig.kill()
    rig.start()
    for work in works.values():
        work.say("say further")
    for work in works.values():
        work.until_parked("further")  # by polls of the next hub
    watched = rig.hub.command("runs", "show", works["old"].id)
    assert "further" in watched.stdout
    for name, work in works.items():
        work.say(f"complete {name} is done")
    for name, work in works.items():
        found = work.until()
        assert (found["run"]["state"], found["output"]) == ("completed", f"{name} is done"), found
    more = Counter({"new": 3, "old": 2, **dict.fromkeys(("rest", "mid", "quiet", "grpc"), 1)})
    assert {name: rig.count(name, "execute") - before[name] for name in AGENTS} == more
    # The audit has the beginning and the outcome of each, and none of the polls between them.
    for work in works.values():
        trace = work.find()["run"]["trace"]
        told = [
            (one["verb"], one["outcome"]) for one in rig.hub.audit() if one.get("trace") == trace
        ]
        assert Counter(Counter(told).values()) == {1: len(told)}, told
        assert {one[1] for one in told} == {"parked", "completed"}, told
    until(lambda: rig.list_written("new.review") == ["completed", "parked"])


def test_each_end_of_a_parked_task_ends_its_step(rig: Rig) -> None:
    ends = {"fail": "failed: oh", "reject": "rejected the task: oh", "cancel": "cancelled its task"}
    works = {word: rig.begin("invoke", "new") for word in ("ask", "login", *ends)}
    for work in works.values():
        work.until_parked()
    for word, work in works.items():
        work.say(f"{word} oh" if word != "login" else "login at https://login.example/x")
    for word, problem in ends.items():
        found = works[word].until()
        assert found["run"]["state"] == "failed" and problem in found["run"]["problem"], found
    # A question is asked by the run; the answer continues the same task.
    before = rig.count("new", "execute")
    answer_question(works["ask"])
    found = works["ask"].until()
    assert (found["run"]["state"], found["output"]) == ("completed", "you said: blue"), found
    assert rig.count("new", "execute") == before + 1
    # A login elsewhere needs no answer: the run notices that the agent continues.
    until(lambda: "questions" in works["login"].step())
    works["login"].say("complete logged in")
    assert works["login"].until()["output"] == "logged in"


def test_a_timeout_a_cancelled_run_and_revoked_rights_cancel_the_task(rig: Rig) -> None:
    before = {name: rig.count(name, "cancel") for name in ("new", "old", "quiet")}
    made = rig.hub.command("keys", "create", "late")
    key = {"Authorization": f"Bearer {made.stdout.strip().splitlines()[-1]}"}
    owner = rig.hub.command("keys", "create", "boss", "--role", "owner")
    rig.hub.headers = {"Authorization": f"Bearer {owner.stdout.strip().splitlines()[-1]}"}
    until(lambda: rig.hub.get("/api/status").status == 200)
    until(lambda: wire.get(f"{rig.hub.url}/api/status", key).status == 200)
    limited = rig.begin("limited", "new")
    cancelled = rig.begin("dispatch", "")
    foreign = rig.begin("invoke", "old", headers=key)
    asking = rig.begin("invoke", "quiet", "ask what")
    foreign.until_parked()
    until(lambda: "questions" in asking.step())
    found = limited.until()
    problem = found["run"]["problem"]
    assert found["run"]["state"] == "failed" and "took longer than the 1 s" in problem
    cancelled.until_parked()
    for work in (cancelled, asking):
        assert rig.hub.command("runs", "cancel", work.id).returncode == 0
        assert work.until()["run"]["state"] == "cancelled"
    assert rig.hub.command("keys", "revoke", "late").returncode == 0
    found = foreign.until()
    assert found["run"]["state"] == "failed" and "not served any more" in found["run"]["problem"]
    until(lambda: rig.count("new", "cancel") == before["new"] + 2)
    until(lambda: rig.count("old", "cancel") == before["old"] + 1)
    until(lambda: rig.count("quiet", "cancel") == before["quiet"] + 1)
    # The record of a poll that was refused, and of the cancellation beside it.
    trace = found["run"]["trace"]
    records = [one for one in rig.hub.audit() if one.get("trace") == trace]
    assert [one["outcome"] for one in records] == ["parked", "completed"], records


def test_a_policy_that_forbids_the_call_stops_the_task(rig: Rig) -> None:
    work = rig.begin("invoke", "mid")
    work.until_parked()
    before = rig.count("mid", "cancel")
    assert rig.hub.command("policy", "init").returncode == 0
    (rig.home / "policies" / "mine.cedar").write_text(
        '@id("mid") forbid (principal, action, resource == Hub::Skill::"mid.message");\n',
        encoding="utf-8",
    )
    found = work.until()
    assert found["run"]["state"] == "failed", found
    until(lambda: rig.count("mid", "cancel") == before + 1)


def test_an_agent_that_goes_and_one_that_forgets(rig: Rig) -> None:
    """Unreachable for a while, then restarted without its tasks, then removed."""
    with ExitStack() as stack:
        args = (SDK, "--declare", "JSONRPC:1.0", "--log", rig.folder / "frail")
        peer = stack.enter_context(HttpPeer(*args))
        sent = rig.hub.post("/api/a2a/agents", {"url": peer.url, "name": "frail"})
        assert "error" not in sent, sent
        rig.until_ready()
        plain, again = rig.begin("invoke", "frail"), rig.begin("again", "frail")
        for work in (plain, again):
            work.until_parked()
        peer.kill()
        for work in (plain, again):
            work.until_parked("frail")  # the message says that it is unreachable
        stack.enter_context(HttpPeer(*args, "--port", peer.port))
        assert rig.hub.command("agents", "refresh", "frail").returncode == 0
        found = plain.until()
        assert found["run"]["state"] == "failed"
        assert "does not know its task" in found["run"]["problem"], found
        # What may be repeated is, by another message.
        until(lambda: rig.count("frail", "execute") == 3)
        again.until_parked()
        again.say("complete at last")
        assert again.until()["output"] == "at last"
        gone = rig.begin("invoke", "frail")
        gone.until_parked()
        removed = wire.http_request(
            "DELETE", f"{rig.hub.url}/api/a2a/agents/frail", None, rig.hub.headers
        )
        assert removed.status == 200, removed
        found = gone.until()
        assert found["run"]["state"] == "failed"
        assert "is not offered any more" in found["run"]["problem"], found


def test_killed_before_an_id_was_known(rig: Rig) -> None:
    """An agent that lists its tasks is asked for the message; of others people decide."""
    before = {name: rig.count(name, "execute") for name in AGENTS}
    works = {name: rig.begin("invoke", name, said="", word="late") for name in ("new", "mid")}

    def have(event: str) -> bool:
        return all(rig.count(name, event) > before[name] * (event == "execute") for name in works)

    until(lambda: have("execute"))
    rig.kill()
    for work in works.values():
        work.say("release")
    until(lambda: have("released"))
    rig.start()
    found = works["mid"].until()
    assert found["run"]["state"] == "needs_decision", found
    found = works["new"].until()
    said = f"echo: {works['new'].file}"
    assert (found["run"]["state"], found["output"]) == ("completed", said), found
    assert {rig.count(name, "execute") - before[name] for name in works} == {1}


def test_kill_9_in_each_phase(short_tmp: Path) -> None:
    """Of a call whose message was sent, whose task is followed, is polled, or is answered."""
    phases = ("sent", "named", "followed", "polled", "answered")
    agents = {name: TaskAgent(name) for name in phases}
    agents["named"] = TaskAgent("named", version="0.1")
    agents["sent"].held = agents["named"].held = {"send"}
    agents["answered"].state, agents["answered"].held = "input_required", {"answer"}
    with run_agents(*agents.values()):
        rig = Rig(short_tmp, {name: cast(Any, agent) for name, agent in agents.items()})
        rig.write()
        rig.start()
        try:
            rig.until_ready()
            agents["followed"].held = {"get"}  # so that the call is not left to itself
            works = {name: rig.begin("invoke", name) for name in phases}
            until(lambda: agents["sent"].waiting and agents["named"].waiting)
            until(lambda: agents["followed"].waiting and works["followed"].step().get("task"))
            assert works["followed"].step()["state"] == "running"
            works["polled"].until_parked()
            agents["polled"].held = {"get"}
            until(lambda: agents["polled"].waiting)
            answer_question(works["answered"])
            until(lambda: agents["answered"].waiting)
        finally:
            rig.kill()
        for agent in agents.values():
            agent.held = agent.held & {"answer"}
        rig.start()
        try:
            found = works["sent"].until()
            assert found["run"]["state"] == "needs_decision", found
            for name in ("named", "followed", "polled"):
                agents[name].settle("completed", "at last")
                found = works[name].until()
                assert (found["run"]["state"], found["output"]) == ("completed", "at last"), found
            until(lambda: works["answered"].step().get("questions"))  # it still asks
            agents["answered"].held = set()
            answer_question(works["answered"])
            assert works["answered"].until()["output"] == "answered"
        finally:
            assert not rig.hub.finish()
        sent = {name: len(agent.sent) for name, agent in agents.items()}
        assert sent == {**dict.fromkeys(phases, 1), "answered": 3}, sent


def answer_question(work: Work, value: Any = "blue") -> None:
    questions: dict[str, Any] = until(lambda: work.step().get("questions", {}))
    (name,) = questions
    content = dict.fromkeys(questions[name]["requestedSchema"]["properties"], value)
    answer = {"step": "work", "answers": {name: {"action": "accept", "content": content}}}
    work.rig.hub.post(f"/api/runs/{work.id}/answer", answer)


def test_tasks_of_mcp_servers_outlive_the_hub(short_tmp: Path) -> None:
    """By the extension of 2026-07-28; its question is answered after a restart, too."""
    with HttpPeer("task_server", "--transport", "http", "--form", "new", "--log", short_tmp / "log"
                  ) as peer:  # fmt: skip
        rig = Rig(short_tmp, {})
        rig.write(more=server_entry("jobs", "http", peer.url, interactive=True))
        rig.start()
        try:
            rig.hub.wait_connected("jobs")
            works = {name: rig.begin("job", "", said="", tool=f"jobs.{name}") for name in JOBS}
            works["must"].until_parked("half way")
            until(lambda: works["asks"].step().get("questions"))
        finally:
            rig.kill()
        rig.start()
        try:
            works["must"].say("go")
            found = works["must"].until()
            assert (found["run"]["state"], found["output"]) == ("completed", "must is done"), found
            answer_question(works["asks"], True)
            found = works["asks"].until()
            assert '"yes": true' in found["output"], found
            for name in ("fails", "forgets"):
                found = works[name].until()
                assert found["run"]["state"] == "failed", found
            assert "no longer knows the task" in works["forgets"].find()["run"]["problem"]
        finally:
            assert not rig.hub.finish()
        called = [one for one in read_log(short_tmp / "log") if one.get("method") == "tools/call"]
        assert len(called) == len(JOBS)


def test_a_graceful_stop_leaves_the_task_alone(rig: Rig) -> None:
    """Also while the hub still follows its stream."""
    (rig.home / "config.toml").write_text(
        (rig.home / "config.toml")
        .read_text(encoding="utf-8")
        .replace("attached_secs = 0.2", "attached_secs = 600"),
        encoding="utf-8",
    )
    before = rig.count("new", "cancel")
    rig.hub.finish()
    rig.start()
    rig.until_ready()
    work = rig.begin("invoke", "new")
    until(lambda: work.step()["message"] == "at it" and work.step().get("task"))
    assert work.step()["state"] == "running"
    problems = rig.hub.finish()
    assert not problems, problems
    rig.start()
    work.until_parked()
    work.say("complete well")
    assert work.until()["output"] == "well"
    assert rig.count("new", "cancel") == before
