"""A hub that serves A2A with the agents of tests/peers/agents_module.py, and clients for each
dialect over each binding, written independently of the hub's code.
"""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlencode
from uuid import uuid4

from tests.live.conftest import RunningHub
from tests.live.module_hub import run_module_hub, until
from tests.peers import wire
from tests.peers.process import HERE, toml

A2A_JSON = "application/a2a+json"


def agent_entry(name: str, function: str, **keys: Any) -> str:
    """`[[agents]]` for a function of agents_module."""
    entry = {"name": name, "function": f"agents_module:{function}", **keys}
    lines = [f"{key} = {toml(value)}" for key, value in entry.items()]
    return "\n".join(["[[agents]]", *lines]) + "\n"


AGENTS = (
    agent_entry("echo", "echo", description="Says it again"),
    agent_entry("actor", "actor", input_modes=["*/*"], output_modes=["*/*"]),
    agent_entry("mirror", "mirror", input_modes=["*/*"]),
)


@dataclass(frozen=True)
class HubRig:
    hub: RunningHub
    gates: Path

    def open(self, key: str) -> None:
        (self.gates / key).touch()

    def seen(self, key: str, seconds: float = 60.0) -> None:
        """Waits until an agent has left word."""
        until((self.gates / key).exists, seconds)


@contextmanager
def run_a2a_hub(
    agents: Sequence[str] = AGENTS,
    servers: Sequence[str] = (),
    config: str = "",
    a2a: Mapping[str, Any] | None = None,
    env: Mapping[str, str] | None = None,
) -> Iterator[HubRig]:
    """`a2a` are keys of `[a2a]`, `config` is what stands before it."""
    gates = Path(tempfile.mkdtemp(prefix="dgg", dir="/tmp"))
    try:
        written = a2a_config(agents, config, a2a)
        with run_module_hub(servers, written, {**agents_env(gates), **(env or {})}) as hub:
            yield HubRig(hub, gates)
    finally:
        shutil.rmtree(gates, ignore_errors=True)


def a2a_config(
    agents: Sequence[str] = AGENTS, config: str = "", a2a: Mapping[str, Any] | None = None
) -> str:
    keys = [f"{key} = {toml(value)}" for key, value in {"enabled": True, **(a2a or {})}.items()]
    return "\n".join([config, "[a2a]", *keys, *agents])


def agents_env(gates: Path) -> dict[str, str]:
    paths = [str(HERE), *filter(None, [os.environ.get("PYTHONPATH")])]
    return {"PYTHONPATH": os.pathsep.join(paths), "A2A_GATES": str(gates)}


# --- the ways -----------------------------------------------------------------------------------

SEND, STREAM, GET, LIST, CANCEL, SUBSCRIBE = "send", "stream", "get", "list", "cancel", "subscribe"
PUSH_SET, PUSH_GET, PUSH_LIST, PUSH_DELETE = "push set", "push get", "push list", "push delete"
CARD = "card"

_METHODS: Mapping[str, Mapping[str, str]] = {
    "0.1": {
        SEND: "tasks/send",
        STREAM: "tasks/sendSubscribe",
        GET: "tasks/get",
        CANCEL: "tasks/cancel",
        SUBSCRIBE: "tasks/resubscribe",
        PUSH_SET: "tasks/pushNotification/set",
        PUSH_GET: "tasks/pushNotification/get",
    },
    "0.3": {
        SEND: "message/send",
        STREAM: "message/stream",
        GET: "tasks/get",
        CANCEL: "tasks/cancel",
        SUBSCRIBE: "tasks/resubscribe",
        PUSH_SET: "tasks/pushNotificationConfig/set",
        PUSH_GET: "tasks/pushNotificationConfig/get",
        PUSH_LIST: "tasks/pushNotificationConfig/list",
        PUSH_DELETE: "tasks/pushNotificationConfig/delete",
        CARD: "agent/getAuthenticatedExtendedCard",
    },
    "1.0": {
        SEND: "SendMessage",
        STREAM: "SendStreamingMessage",
        GET: "GetTask",
        LIST: "ListTasks",
        CANCEL: "CancelTask",
        SUBSCRIBE: "SubscribeToTask",
        PUSH_SET: "CreateTaskPushNotificationConfig",
        PUSH_GET: "GetTaskPushNotificationConfig",
        PUSH_LIST: "ListTaskPushNotificationConfigs",
        PUSH_DELETE: "DeleteTaskPushNotificationConfig",
        CARD: "GetExtendedAgentCard",
    },
}
_ROUTES: Mapping[str, tuple[str, str]] = {
    SEND: ("POST", "/message:send"),
    STREAM: ("POST", "/message:stream"),
    GET: ("GET", "/tasks/{id}"),
    LIST: ("GET", "/tasks"),
    CANCEL: ("POST", "/tasks/{id}:cancel"),
    SUBSCRIBE: ("POST", "/tasks/{id}:subscribe"),
    PUSH_SET: ("POST", "/tasks/{taskId}/pushNotificationConfigs"),
    PUSH_GET: ("GET", "/tasks/{taskId}/pushNotificationConfigs/{id}"),
    PUSH_LIST: ("GET", "/tasks/{taskId}/pushNotificationConfigs"),
    PUSH_DELETE: ("DELETE", "/tasks/{taskId}/pushNotificationConfigs/{id}"),
}


@dataclass(frozen=True)
class Reply:
    """What was answered, out of its envelope."""

    answer: wire.Answer
    value: Any
    """The result; None for an error."""
    error: Any
    """As the binding has it: JSON-RPC's error object, or the body of an HTTP error."""


@dataclass(frozen=True)
class DialectBinding:
    """A dialect and a binding. What it sends and reads is written out here, in the dialect's own
    words, and is none of the hub's code."""

    version: str
    rest: bool = False
    says: str | None = None
    """The version that it names; None for none, as older clients do."""

    def __str__(self) -> str:
        return f"{self.version}-{'rest' if self.rest else 'rpc'}"

    # --- words

    def state(self, word: str) -> str:
        """A state in its spelling, of the word of 0.3."""
        if self.version != "1.0" and not self.rest:
            return word
        if self.rest and self.version == "0.3" and word == "canceled":
            return "TASK_STATE_CANCELLED"
        return f"TASK_STATE_{word.upper().replace('-', '_')}"

    def part(self, content: Any) -> dict[str, Any]:
        kind = "text" if isinstance(content, str) else "data"
        if self.version == "1.0":
            return {kind: content}
        if self.rest:
            return {kind: content} if kind == "text" else {"data": {"data": content}}
        return {"type" if self.version == "0.1" else "kind": kind, kind: content}

    def message(self, *contents: Any, **more: Any) -> dict[str, Any]:
        parts = [self.part(content) for content in contents]
        if self.version == "0.1":
            return {"role": "user", "parts": parts, **more}
        message: dict[str, Any] = {"messageId": str(uuid4()), "role": "user", **more}
        if self.version == "0.3" and not self.rest:
            return {"kind": "message", **message, "parts": parts}
        message["role"] = "ROLE_USER"
        return {**message, "content" if self.version == "0.3" else "parts": parts}

    def params(self, *contents: Any, task: Any = None, at_once: bool = False) -> dict[str, Any]:
        """Of a send. `task` is one to continue; `at_once` does not wait for the outcome,
        which 0.1 cannot say."""
        if self.version == "0.1":
            params: dict[str, Any] = {"id": task or str(uuid4()), "message": None}
            return {**params, "message": self.message(*contents)}
        params = {"message": self.message(*contents, **({"taskId": task} if task else {}))}
        if at_once:
            now = {"returnImmediately": True} if self.version == "1.0" else {"blocking": False}
            params["configuration"] = now
        return params

    def task(self, value: Any) -> dict[str, Any]:
        """The task in the answer to a send, or in the event that has one."""
        bare = self.version == "0.1" or (self.version == "0.3" and not self.rest)
        return dict(value if bare else value["task"])

    def said(self, artifact: Mapping[str, Any]) -> str:
        """The one text of an artifact, whose part must look as the dialect has it."""
        (part,) = artifact["parts"]
        assert part == self.part(part["text"]), part
        return str(part["text"])

    def code(self, error: Any) -> Any:
        """What tells errors apart: JSON-RPC's code, or HTTP's name for it."""
        if not self.rest:
            return error["code"]
        return error["error"]["status"] if self.version == "1.0" else error["error"]

    # --- asking

    def request(
        self, op: str, params: Mapping[str, Any], agent: str = ""
    ) -> tuple[str, str, Any, dict[str, str]]:
        """The HTTP method, path, body and headers."""
        base = f"/a2a/{quote(agent)}" if agent else "/a2a"
        headers = {"A2A-Version": self.says} if self.says is not None else {}
        if not self.rest:
            return "POST", base, wire.request(7, _METHODS[self.version][op], params), headers
        method, pattern = _ROUTES[op]
        left = dict(params)
        for name in ("id", "taskId"):
            if "{" + name + "}" in pattern:
                pattern = pattern.replace("{" + name + "}", quote(left.pop(name)))
        path = base + ("/v1" if self.version == "0.3" else "") + pattern
        if method == "POST":
            return method, path, left, headers
        return method, f"{path}?{urlencode(left)}" if left else path, None, headers

    def ask(
        self,
        hub: RunningHub,
        op: str,
        params: Mapping[str, Any],
        agent: str = "",
        headers: Mapping[str, str] | None = None,
        timeout: float = 60.0,
    ) -> Reply:
        method, path, body, own = self.request(op, params, agent)
        sent = {**hub.headers, "Content-Type": "application/json", **own, **(headers or {})}
        data = None if body is None else json.dumps(body).encode()
        answer = wire.http_request(method, hub.url + path, data, sent, timeout)
        found = answer.json()
        if not self.rest:
            assert answer.status == 200, (answer.status, answer.body)
            assert found["jsonrpc"] == "2.0" and found["id"] == 7, found
            return Reply(answer, found.get("result"), found.get("error"))
        good = answer.status == 200
        return Reply(answer, found if good else None, None if good else found)

    def stream(
        self,
        hub: RunningHub,
        op: str,
        params: Mapping[str, Any],
        agent: str = "",
        headers: Mapping[str, str] | None = None,
        timeout: float = 60.0,
    ) -> AbstractContextManager[wire.Stream]:
        method, path, body, own = self.request(op, params, agent)
        sent = {**hub.headers, **own, **(headers or {})}
        return wire.stream(method, hub.url + path, body, sent, timeout)

    def event(self, event: wire.Event) -> Any:
        found = event.json()
        return found if self.rest else found["result"]

    def events(self, stream: wire.Stream) -> list[tuple[str, Any]]:
        """All that is left of it, each with its id."""
        found: list[tuple[str, Any]] = []
        while True:
            try:
                event = stream.next()
            except EOFError:
                return found
            found.append((event.id, self.event(event)))


V01, V03, V10 = DialectBinding("0.1"), DialectBinding("0.3"), DialectBinding("1.0", says="1.0")
REST03, REST10 = DialectBinding("0.3", rest=True), DialectBinding("1.0", rest=True, says="1.0")
BINDINGS = (V01, V03, REST03, V10, REST10)
NEWER = (V03, REST03, V10, REST10)


# --- what nearly every test does, in 1.0 ---------------------------------------------------------


@dataclass(frozen=True)
class Caller:
    """A client with its own key, or none; speaks 1.0 by JSON-RPC by default."""

    hub: RunningHub
    agent: str = ""
    headers: Mapping[str, str] = field(default_factory=dict)
    binding: DialectBinding = V10

    def ask(self, op: str, params: Mapping[str, Any], **how: Any) -> Reply:
        headers = {**self.headers, **how.pop("headers", {})}
        return self.binding.ask(self.hub, op, params, how.pop("agent", self.agent), headers, **how)

    def send(self, *contents: Any, **how: Any) -> Any:
        """The task of a message that is taken; `how` of `DialectBinding.params`."""
        reply = self.ask(SEND, self.binding.params(*contents, **how))
        assert reply.error is None, reply.error
        return self.binding.task(reply.value)

    def send_until_taken(self, *contents: Any) -> Any:
        """The task of a message that is sent again while a store is not available."""

        def take() -> Any:
            reply = self.ask(SEND, self.binding.params(*contents))
            assert reply.error is None or "is not available" in str(reply.error), reply.error
            return self.binding.task(reply.value) if reply.error is None else None

        return until(take)

    def get(self, id: str, **more: Any) -> Any:
        reply = self.ask(GET, {"id": id, **more})
        assert reply.error is None, reply.error
        return reply.value

    def until(self, id: str, word: str) -> Any:
        """The task, once it is in that state."""

        def there() -> Any:
            task = self.get(id)
            return task if task["status"]["state"] == self.binding.state(word) else None

        return until(there)

    def stream(
        self, op: str, params: Mapping[str, Any], **how: Any
    ) -> AbstractContextManager[wire.Stream]:
        headers = {**self.headers, **how.pop("headers", {})}
        return self.binding.stream(
            self.hub, op, params, how.pop("agent", self.agent), headers, **how
        )


def with_key(hub: RunningHub, name: str, agent: str = "") -> Caller:
    """A client with a new key, once the hub knows it."""
    made = hub.command("keys", "create", name)
    assert made.returncode == 0, made.stderr
    headers = {"Authorization": f"Bearer {made.stdout.strip().splitlines()[-1]}"}
    status = f"{hub.url}/api/status"
    until(lambda: wire.get(status, {}).status == 401)  # it has seen that there are keys
    until(lambda: wire.get(status, headers).status == 200)
    return Caller(hub, agent, headers)


def steps(*todo: Sequence[Any]) -> dict[str, Any]:
    """Data for the agent `actor`."""
    return {"do": [list(step) for step in todo]}


def text_from_parts(message: Mapping[str, Any]) -> str:
    """The texts of a message or artifact of 1.0."""
    return "\n".join(part["text"] for part in message["parts"] if "text" in part)


def reason(error: Mapping[str, Any]) -> str:
    """Of an error of 1.0, by JSON-RPC or HTTP+JSON."""
    details = error["data"] if "data" in error else error["error"]["details"]
    return str(details[0]["reason"])
