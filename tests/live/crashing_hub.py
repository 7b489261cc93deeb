"""A hub that is killed while clients send A2A messages: its agents, process and clients.

A client that gets a task writes down what it got. The test says what must be true of it.
"""

from __future__ import annotations

import http.client
import json
import os
import random
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from tests.peers.forked import start_process

HEADERS = {"content-type": "application/json", "a2a-version": "1.0"}
START_SECONDS = 60.0
LOST = (OSError, http.client.HTTPException, EOFError)
"""What a client sees of a hub that was killed."""

AGENTS = '''
import asyncio, json, os, signal, time
from pathlib import Path
from dragoman.agent import Ask, Request

LOG = os.open(Path(__file__).with_name("ran.jsonl"), os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
WHEN, _, LEFT = os.environ.get("CRASH", "never 0 0").partition(" ")
LEFT, AFTER = (float(one) for one in LEFT.split())


def note(what, request):
    """Writes down an execution, and ends the hub at the moment that was asked for."""
    global LEFT
    os.write(LOG, json.dumps([what, request.task, request.message_id]).encode() + b"\\n")
    if what == WHEN:
        LEFT -= 1
        if LEFT == 0 and AFTER == 0:
            die()
        elif LEFT == 0:
            asyncio.get_running_loop().call_later(AFTER, die)


def die():
    os.kill(os.getpid(), signal.SIGKILL)


async def quick(request: Request):
    note("began", request)
    note("ended", request)
    return f"done {request.text}"


async def slow(request: Request):
    note("began", request)
    request.say("at it")
    for n in range(3):
        await asyncio.sleep(0.002 * (1 + len(request.text) % 5))
        request.say(f"step {n}")
    request.artifact(f"made {request.text}", name="report", id="report")
    await asyncio.sleep(0.002)
    note("ended", request)
    return f"done {request.text}"


def threaded(request: Request):
    note("thread", request)
    request.say("at it")
    time.sleep(0.003)
    return f"done {request.text}"


async def asking(request: Request):
    note("began", request)
    if request.turn == 1:
        return Ask("How many?")
    await asyncio.sleep(0.002)
    note("ended", request)
    return f"done {request.text}"
'''

CONFIG = """
[server]
port = 0
[a2a]
enabled = true
store = "{store}"
max_tasks = 100000
max_tasks_all = 100000
push_private = true
push_attempts = 2
"""


def write_home(home: Path, store: str = "sqlite") -> None:
    names = ("quick", "slow", "threaded", "asking")
    entries = [f'[[agents]]\nname = "{name}"\nfunction = "crash_agents:{name}"' for name in names]
    home.mkdir(mode=0o700, exist_ok=True)
    (home / "crash_agents.py").write_text(AGENTS, encoding="utf-8")
    (home / "config.toml").write_text("\n".join([CONFIG.format(store=store), *entries]))
    (home / "config.toml").chmod(0o600)


def executions(home: Path) -> list[tuple[str, str, str]]:
    """What the agents wrote: what, task, message."""
    path = home / "ran.jsonl"
    lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
    return [tuple(json.loads(line)) for line in lines]


class Hub:
    """A hub in `home` as a child process, which may end at any moment."""

    def __init__(self, home: Path, crash: str = "", env: Mapping[str, str] | None = None) -> None:
        self.home = home
        self._clients: list[Client] = []
        environment = {k: v for k, v in os.environ.items() if not k.startswith("DRAGOMAN_")}
        environment |= env or {}
        if crash:
            environment["CRASH"] = crash
        self._log = (home / "out.txt").open("ab")
        self.process = start_process(
            [sys.executable, "-m", "dragoman", "up", "--home", str(home)],
            stdin=subprocess.DEVNULL,
            stdout=self._log,
            stderr=self._log,
            env=environment,
        )

    def wait_until_up(self) -> tuple[str, int]:
        """Where it listens."""
        end = time.monotonic() + START_SECONDS
        while time.monotonic() < end and self.process.poll() is None:
            try:
                record = json.loads((self.home / "daemon.json").read_bytes())
                if record["pid"] == self.process.pid:
                    parts = urlsplit(record["url"])
                    return parts.hostname or "", parts.port or 0
            except (OSError, ValueError, KeyError):
                pass
            time.sleep(0.005)
        raise RuntimeError(f"the hub did not come up ({self.process.poll()}):\n{self.log()}")

    def log(self) -> str:
        """The end of what it and those before it wrote."""
        return (self.home / "out.txt").read_text(encoding="utf-8", errors="replace")[-3000:]

    def client(self) -> Client:
        """A connection to it, as soon as it is up."""
        self._clients.append(Client(self.wait_until_up()))
        return self._clients[-1]

    def kill(self) -> None:
        self.process.kill()
        self.process.wait(60)
        for client in self._clients:
            client.close()
        self._log.close()


class Client:
    """One connection to a hub. Everything raises one of `LOST` when the hub has gone."""

    def __init__(self, where: tuple[str, int]) -> None:
        self._connection = http.client.HTTPConnection(*where, timeout=60)

    def close(self) -> None:
        self._connection.close()

    def send(self, method: str, path: str, body: Any, headers: dict[str, str]) -> Any:
        text = json.dumps(body) if body is not None else None
        self._connection.request(method, path, text, headers)
        return self._connection.getresponse()

    def answer(self, method: str, path: str, body: Any, headers: dict[str, str]) -> Any:
        return json.loads(self.send(method, path, body, headers).read())

    def rpc(self, method: str, params: Any, path: str = "/a2a", **headers: str) -> Any:
        """The result of a call; raises `Refused` for an error."""
        body = {"jsonrpc": "2.0", "id": 1, "method": method, "params": params}
        answer = self.answer("POST", path, body, {**HEADERS, **headers})
        if "error" in answer:
            raise Refused(answer["error"]["code"], answer["error"]["message"])
        return answer["result"]

    def events(self, agent: str, params: Any) -> Iterator[dict[str, Any]]:
        """Of a stream, each as soon as it is there whole."""
        body = {"jsonrpc": "2.0", "id": 1, "method": "SendStreamingMessage", "params": params}
        response = self.send("POST", f"/a2a/{agent}", body, HEADERS)
        kind = response.headers["content-type"]
        if not kind.startswith("text/event-stream"):
            answer = json.loads(response.read())
            raise Refused(answer["error"]["code"], answer["error"]["message"])
        data = b""
        while line := response.readline():
            if line.startswith(b"data:"):
                data = line[5:]
            elif not line.strip() and data:
                yield json.loads(data)["result"]
                data = b""


class Refused(Exception):
    """The hub answered with an error: its code and its words."""


@dataclass
class AcknowledgedTask:
    """What a client knows of one task."""

    id: str
    agent: str
    text: str
    message: str
    """The id of the message that began it."""
    state: str
    task: dict[str, Any] | None = None
    """The complete task, where the client received it."""
    seed: dict[str, Any] | None = None
    """The same in the first dialect."""
    webhook: dict[str, Any] | None = None
    continued: bool = False
    """Whether an answer was sent to its question and nothing was heard since."""
    cancelled: bool = False
    """Whether it was to be cancelled."""


@dataclass
class Load:
    """Clients that send messages of all kinds until the hub is gone."""

    where: tuple[str, int]
    seed: str
    webhook: str
    waiting: list[AcknowledgedTask]
    """Tasks that wait for an answer, which some client may give."""
    told: list[AcknowledgedTask] = field(default_factory=list)
    touched: list[AcknowledgedTask] = field(default_factory=list)
    """Earlier tasks that a client has answered."""
    keyed: list[tuple[str, dict[str, Any]]] = field(default_factory=list)
    """What was sent with an Idempotency-Key and has not been answered."""
    broken: list[str] = field(default_factory=list)
    answered: threading.Semaphore = field(default_factory=lambda: threading.Semaphore(0))

    def start(self, clients: int) -> list[threading.Thread]:
        threads = [threading.Thread(target=self._run, args=(n,)) for n in range(clients)]
        for thread in threads:
            thread.start()
        return threads

    def _run(self, number: int) -> None:
        name = f"{self.seed}-{number}"
        chance = random.Random(name)
        ways = [self._blocking, self._at_once, self._stream, self._seed, self._ask, self._keyed]
        ways += [self._hooked, self._go_on, self._cancel]
        client = Client(self.where)
        try:
            for count in range(10_000):
                way: Callable[[Client, random.Random, str], None] = chance.choice(ways)
                way(client, chance, f"{name}-{count}")
                self.answered.release()
        except LOST:
            pass  # the hub was killed
        except Exception as error:
            self.broken.append(f"{name}: {error!r}")
        finally:
            client.close()

    def _note(self, agent: str, message: dict[str, Any], task: dict[str, Any]) -> AcknowledgedTask:
        text = message["parts"][0]["text"]
        state = task["status"]["state"]
        told = AcknowledgedTask(task["id"], agent, text, message["messageId"], state, task)
        self.told.append(told)
        return told

    def _blocking(self, client: Client, chance: random.Random, name: str) -> None:
        agent = chance.choice(["quick", "quick", "slow", "threaded"])
        message = build_message(name)
        answer = client.rpc("SendMessage", {"message": message}, f"/a2a/{agent}")
        self._note(agent, message, answer["task"])

    def _at_once(self, client: Client, chance: random.Random, name: str) -> None:
        agent = chance.choice(["slow", "threaded"])
        message = build_message(name)
        wanted = {"message": message, "configuration": {"returnImmediately": True}}
        self._note(agent, message, client.rpc("SendMessage", wanted, f"/a2a/{agent}")["task"])

    def _stream(self, client: Client, chance: random.Random, name: str) -> None:
        message = build_message(name)
        told: AcknowledgedTask | None = None
        for event in client.events("slow", {"message": message}):
            if told is None:
                told = self._note("slow", message, event["task"])
                told.task = None  # it goes on
            elif "statusUpdate" in event:
                told.state = event["statusUpdate"]["status"]["state"]

    def _seed(self, client: Client, chance: random.Random, name: str) -> None:
        message = {"role": "user", "parts": [{"type": "text", "text": name}]}
        body = {"jsonrpc": "2.0", "id": 1, "method": "tasks/send", "params": {"message": message}}
        plain = {"content-type": "application/json"}
        task = client.answer("POST", "/a2a/tasks/send", body, plain)
        state = "TASK_STATE_COMPLETED" if task["status"] == "completed" else task["status"]
        self.told.append(AcknowledgedTask(task["id"], "quick", name, "", state, None, task))

    def _ask(self, client: Client, chance: random.Random, name: str) -> None:
        message = build_message(name)
        answer = client.rpc("SendMessage", {"message": message}, "/a2a/asking")
        self._note("asking", message, answer["task"])

    def _keyed(self, client: Client, chance: random.Random, name: str) -> None:
        message = build_message(name)
        sent = (name, message)
        self.keyed.append(sent)
        key = {"idempotency-key": name}
        answer = client.rpc("SendMessage", {"message": message}, "/a2a/quick", **key)
        self.keyed.remove(sent)
        self._note("quick", message, answer["task"])

    def _hooked(self, client: Client, chance: random.Random, name: str) -> None:
        message = build_message(name)
        wanted = {
            "message": message,
            "configuration": {
                "returnImmediately": True,
                "taskPushNotificationConfig": {"id": "hook", "url": self.webhook, "token": name},
            },
        }
        task = client.rpc("SendMessage", wanted, "/a2a/slow")["task"]
        told = self._note("slow", message, task)
        told.webhook = {"taskId": task["id"], "id": "hook", "url": self.webhook, "token": name}

    def _go_on(self, client: Client, chance: random.Random, name: str) -> None:
        try:
            told = self.waiting.pop()
        except IndexError:
            return
        self.touched.append(told)
        told.continued, told.text, told.message = True, name, name
        message = build_message(name) | {"taskId": told.id}
        immediately = {"returnImmediately": chance.random() < 0.5}
        wanted = {"message": message, "configuration": immediately}
        told.task = client.rpc("SendMessage", wanted, "/a2a/asking")["task"]
        told.state, told.continued = told.task["status"]["state"], False

    def _cancel(self, client: Client, chance: random.Random, name: str) -> None:
        message = build_message(name)
        wanted = {"message": message, "configuration": {"returnImmediately": True}}
        told = self._note("slow", message, client.rpc("SendMessage", wanted, "/a2a/slow")["task"])
        told.cancelled = True
        try:
            told.task = client.rpc("CancelTask", {"id": told.id})
            told.state = told.task["status"]["state"]
        except Refused:
            pass  # it was finished by then


def build_message(name: str) -> dict[str, Any]:
    return {"messageId": name[:64], "role": "ROLE_USER", "parts": [{"text": name}]}
