"""Agents with a model: a model server that fails in every way, and kill -9 while agents run.

The model is a server in this process; it answers a message with a call of the echo tool, and the
result of the tool with "done" and the result.
"""

from __future__ import annotations

import json
import random
import threading
import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.live.crashing_hub import LOST, Client, Hub, build_message
from tests.peers.process import read_log, server_entry
from tests.peers.scripted_model import Answer, ScriptedModel, running_model, say, use

from faults.fixtures import EVERYTHING
from faults.harness import (
    Outcome,
    audit_records,
    running_hub,
    temporary_home,
    until,
    verify_audit,
    write_config,
)

AGENTS = 50
TOOL = "mcp_r_echo"
COMPLETED, FAILED = "TASK_STATE_COMPLETED", "TASK_STATE_FAILED"
UNFINISHED = ("TASK_STATE_SUBMITTED", "TASK_STATE_WORKING")
MANIFEST = """
[model]
model = "scripted"
base_url = "{url}"
timeout_secs = 2
[limits]
turns = 6
[capabilities]
tools = ["r.echo"]
"""
MANY_KILLS = 10


def write_agent_home(home: Path, url: str, log: Path) -> None:
    write_config(home, [server_entry("r", "faulty_server", "ok", "--log", log)], EVERYTHING)
    for number in range(AGENTS):
        folder = home / "agents" / f"a{number}"
        folder.mkdir(parents=True)
        (folder / "agent.toml").write_text(MANIFEST.replace("{url}", url), encoding="utf-8")


# --- a model server that fails

LARGE = b"data: " + b"x" * (11 * 1024 * 1024) + b"\n\n"
FAULTS: dict[str, Answer] = {
    "hangs": {"hang": True},
    "stalls": {"text": "begun and then nothing", "stall": 2},
    "drops": {"text": "begun", "drop": True},
    "limits the rate": {"status": 429, "body": {}, "headers": {"retry-after": "0"}},
    "is overloaded": {"status": 503, "body": {"error": {"message": "overloaded"}}},
    "sends a page": {"status": 502, "body": "<html>Bad gateway</html>"},
    "sends garbage": {"raw": b"data: {]\n\n"},
    "sends nothing": {"raw": b""},
    "sends an error later": {"raw": b'data: {"error": {"message": "lost", "code": 502}}\n\n'},
    "sends too much": {"raw": LARGE},
    "answers without a message": {"whole": {"choices": []}},
    "invents a tool": use(("made_up", {})),
    "sends malformed arguments": use((TOOL, '{"text": '), (TOOL, "[1]")),
    "asks for 120 calls": use(*[(TOOL, {"text": f"{n}"}) for n in range(120)]),
    "refuses the key": {"status": 401, "body": {"error": {"message": "bad key"}}},
    "finds it too long": {
        "status": 400,
        "body": {"error": {"code": "context_length_exceeded", "message": "too long"}},
    },
}


class FailingModel(ScriptedModel):
    """Fails for messages that name a fault: `often` times, and for ever without a number."""

    def __init__(self) -> None:
        super().__init__()
        self.left: dict[str, int] = {}
        self.asked = 0

    def take(self, body: dict[str, Any]) -> Answer:
        message = next(one for one in reversed(body["messages"]) if one["role"] == "user")
        text, last = str(message["content"]), body["messages"][-1]
        fault, _, rest = text.partition(": ")
        with self.lock:
            self.asked += 1
            if fault == "loops":
                return use((TOOL, {"text": f"{rest} {len(body['messages'])}"}))
            left = self.left.setdefault(text, 1 if rest.startswith("once") else 1_000)
            self.left[text] = left - 1
            if fault in FAULTS and left > 0:
                return FAULTS[fault]
        if last["role"] == "tool":
            return say(f"done {last['content']}")
        return use((TOOL, {"text": text}))


def fail_models(size: int, seed: int, outcome: Outcome) -> None:
    """`size` rounds, each with fifty messages at once, to as many agents."""
    chance = random.Random(seed)
    with temporary_home() as home, running_model(thinking := FailingModel()) as model:
        log = home / "calls.jsonl"
        write_agent_home(home, model.url, log)
        with running_hub(outcome, home) as hub:
            hub.wait_connected("r")
            sent = 0
            for number in range(size):
                kinds = [*FAULTS, "loops", *["well"] * 5]
                texts = [
                    f"{chance.choice(kinds)}: {chance.choice(['once', 'always'])} {number}-{agent}"
                    for agent in range(AGENTS)
                ]

                def send(agent: int, texts: list[str] = texts) -> tuple[float, dict[str, Any]]:
                    begun = time.monotonic()
                    called = hub.call(f"a{agent}.message", {"message": texts[agent]})
                    return time.monotonic() - begun, called

                with ThreadPoolExecutor(AGENTS) as pool:
                    answers = list(pool.map(send, range(AGENTS)))
                sent += len(answers)
                for text, (seconds, called) in zip(texts, answers, strict=True):
                    judge_answer(text, seconds, called, outcome)
            until(lambda: model.open == 0, 10)
            outcome.check(model.open == 0, f"{model.open} requests to the model are left open")
            recorded = [one for one in hub.audit() if one["verb"].endswith(".message")]
            outcome.check(len(recorded) == sent, f"{sent} messages, {len(recorded)} records")
            outcome.figures["messages"] = sent
            outcome.figures["requests to the model"] = thinking.asked


RECOVERS = frozenset(FAULTS) - {"refuses the key"}
"""Faults after which another try, or another turn, succeeds."""


def judge_answer(text: str, seconds: float, called: dict[str, Any], outcome: Outcome) -> None:
    fault, _, rest = text.partition(": ")
    result = called.get("result") or {}
    said = json.dumps(called)[:300]
    outcome.check(seconds < 45, f"{text}: answered after {seconds:.0f} s: {said}")
    is_well = fault == "well" or (rest.startswith("once") and fault in RECOVERS)
    if is_well:
        outcome.count("answers")
        content = str((result.get("content") or [{}])[0].get("text", ""))
        is_right = content.startswith("done") and not result.get("isError")
        outcome.check(is_right, f"{text}: {said}")
    else:
        outcome.count("errors that say why")
        outcome.check("error" in called or bool(result.get("isError")), f"{text}: {said}")
        outcome.check("Traceback" not in said and "internal" not in said.lower(), f"{text}: {said}")


# --- kill -9


class EchoingModel(ScriptedModel):
    def take(self, body: dict[str, Any]) -> Answer:
        last = body["messages"][-1]
        if last["role"] == "tool":
            return say(f"done {last['content']}")
        text = str(last["content"])
        return {"hang": True} if text.startswith("hang") else use((TOOL, {"text": text}))


@dataclass
class Sent:
    """What clients were told of their tasks, over all kills."""

    tasks: dict[str, tuple[str, str]] = field(default_factory=dict)
    """The text and the last known state, by task."""
    broken: list[str] = field(default_factory=list)
    answered: threading.Semaphore = field(default_factory=lambda: threading.Semaphore(0))


def send_messages(where: tuple[str, int], name: str, sent: Sent) -> None:
    """Sends messages of all kinds to all agents until the hub is gone."""
    chance = random.Random(name)
    client = Client(where)
    ways: list[Callable[[str, str, dict[str, Any]], None]] = []

    def block(agent: str, text: str, message: dict[str, Any]) -> None:
        task = client.rpc("SendMessage", {"message": message}, f"/a2a/{agent}")["task"]
        sent.tasks[task["id"]] = text, task["status"]["state"]
        sent.answered.release()

    def leave(agent: str, text: str, message: dict[str, Any]) -> None:
        wanted = {"message": message, "configuration": {"returnImmediately": True}}
        task = client.rpc("SendMessage", wanted, f"/a2a/{agent}")["task"]
        sent.tasks[task["id"]] = text, ""

    def stream(agent: str, text: str, message: dict[str, Any]) -> None:
        id = ""
        for event in client.events(agent, {"message": message}):
            id = id or event["task"]["id"]
            state = event.get("statusUpdate", {}).get("status", {}).get("state", "")
            sent.tasks[id] = text, state if state in (COMPLETED, FAILED) else ""
        sent.answered.release()

    ways += [block, block, leave, stream]
    try:
        for count in range(10_000):
            agent = f"a{chance.randrange(AGENTS)}"
            hangs = chance.random() < 0.1
            text = f"{'hang' if hangs else 'go'} {name}-{count}"
            (leave if hangs else chance.choice(ways))(agent, text, build_message(text))
    except LOST:
        pass
    except Exception as error:
        sent.broken.append(f"{name}: {error!r}")
    finally:
        client.close()


def kill_agents(kills: int, seed: int, outcome: Outcome) -> None:
    chance = random.Random(seed)
    sent = Sent()
    with temporary_home() as home, running_model(EchoingModel()) as model:
        log = home / "calls.jsonl"
        write_agent_home(home, model.url, log)
        hub = Hub(home)
        try:
            for number in range(kills):
                where = hub.wait_until_up()
                threads = [
                    threading.Thread(target=send_messages, args=(where, f"{number}-{n}", sent))
                    for n in range(8)
                ]
                for thread in threads:
                    thread.start()
                answered = sent.answered.acquire(timeout=20)
                outcome.check(answered, "no agent answered before the kill")
                time.sleep(chance.uniform(0, 0.4))
                hub.kill()
                outcome.count("kills while agents run")
                for thread in threads:
                    thread.join(30)
                hub = Hub(home)
                check_agents(hub, log, sent, outcome)
        finally:
            hub.kill()
        outcome.check(not sent.broken, f"clients met: {sent.broken[:3]}")
        verify_audit(outcome, home, "after all kills")
        check_effects(home, log, sent, outcome, kills)


def check_agents(hub: Hub, log: Path, sent: Sent, outcome: Outcome) -> None:
    """What is true of a hub that was started again."""
    with closing(Client(hub.wait_until_up())) as client:
        for state in UNFINISHED:
            left = client.rpc("ListTasks", {"status": state})["totalSize"]
            outcome.check(left == 0, f"{left} tasks are still {state}")
        for id, (text, before) in list(sent.tasks.items()):
            task = client.rpc("GetTask", {"id": id})
            state = task["status"]["state"]
            outcome.check(state in (COMPLETED, FAILED), f"{text} is {state}")
            outcome.check(before in ("", state), f"{text} was {before} and is {state}")
            if state == FAILED and not before:
                said = json.dumps(task["status"])
                is_said = "interrupted" in said or "has no model that answers" in said
                outcome.check(is_said, f"{text} failed: {said[:200]}")
            if state == COMPLETED:
                made = json.dumps(task.get("artifacts"))
                outcome.check(f"done {text}" in made, f"{text} was answered with {made[:200]}")
            sent.tasks[id] = text, state
        plain = {"content-type": "application/json"}
        usage = client.answer("GET", "/api/usage?by=agent", None, plain)["usage"]
        counted = sum(row["messages"] for row in usage)
        completed = sum(state == COMPLETED for _, state in sent.tasks.values())
        outcome.check(counted >= completed, f"{completed} answers, {counted} in the usage")
        message = build_message("go on")
        until(lambda: count_processes(log) == 1, 10)
        outcome.check(count_processes(log) == 1, f"{count_processes(log)} servers run, not one")
        answer = client.rpc("SendMessage", {"message": message}, "/a2a/a0")["task"]
        outcome.check(answer["status"]["state"] == COMPLETED, f"afterwards: {answer['status']}")


def count_processes(log: Path) -> int:
    """Counts the servers of the hubs in this home, dead hubs included."""
    found = 0
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            found += str(log).encode() in path.read_bytes()
        except OSError:
            continue
    return found


def check_effects(home: Path, log: Path, sent: Sent, outcome: Outcome, kills: int) -> None:
    hits = Counter(
        (entry["params"].get("arguments") or {}).get("text", "")
        for entry in read_log(log)
        if entry.get("method") == "tools/call"
    )
    twice = [text for text, count in hits.items() if count > 1 and text != "go on"]
    outcome.check(not twice, f"executed twice: {twice[:3]}")
    states = Counter(state for _, state in sent.tasks.values())
    outcome.figures |= {"tasks": len(sent.tasks), "interrupted": states[FAILED]}
    # A few kills may all come between two tasks.
    was_met = states[COMPLETED] and (states[FAILED] or kills < MANY_KILLS)
    outcome.check(bool(was_met), f"not each kind was met: {states}")
    calls = [one for one in audit_records(home) if one["verb"] == "r.echo"]
    unannounced = len(calls) < sum(hits.values())
    outcome.check(not unannounced, f"{sum(hits.values())} tool calls, {len(calls)} records")
