"""Revoking a key ends everything its principal has open, and nothing else."""

from __future__ import annotations

import http.client
import json
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import grpc
import pytest
from a2a.types import a2a_pb2 as pb
from a2a.types import a2a_pb2_grpc
from google.protobuf.json_format import ParseDict
from tests.live.a2a_hub import (
    AGENTS,
    REST10,
    SEND,
    STREAM,
    SUBSCRIBE,
    V03,
    V10,
    Caller,
    HubRig,
    a2a_config,
    agents_env,
    run_a2a_hub,
    steps,
)
from tests.live.conftest import RunningHub, open_keys
from tests.live.module_hub import until
from tests.live.test_a2a_webhooks import Receiver, receiving
from tests.peers import wire

pytestmark = pytest.mark.promise("O1")

SOON = 20.0
TOOL = "actor.message"
TASKS = "io.modelcontextprotocol/tasks"
META = "io.modelcontextprotocol/"
Headers = Mapping[str, str]


@dataclass
class Opened:
    """Something that a caller has open, in a thread of its own."""

    rig: HubRig
    headers: Headers
    caller: str
    kind: str
    ready: threading.Event = field(default_factory=threading.Event)
    ended: threading.Event = field(default_factory=threading.Event)
    received: list[str] = field(default_factory=list)

    @property
    def hub_url(self) -> str:
        return self.rig.hub.url

    @property
    def work(self) -> dict[str, Any]:
        """What the agent does: it says that it has begun, and waits for its caller's gate."""
        return steps(("mark", self.mark), ("wait", self.caller), ("reply", f"for {self.caller}"))

    @property
    def mark(self) -> str:
        return f"{self.caller}-{self.kind}"

    @property
    def call(self) -> dict[str, Any]:
        blocks = [{"type": "data", "data": self.work}]
        return {"name": TOOL, "arguments": {"message": "go", "parts": blocks}}

    def start(self) -> None:
        threading.Thread(target=self._run, daemon=True).start()

    def _run(self) -> None:
        try:
            KINDS[self.kind](self)
        except Exception as error:
            self.received.append(repr(error))
        finally:
            self.ended.set()

    def begun(self) -> None:
        """The agent is at work."""
        self.rig.seen(self.mark, SOON)
        self.ready.set()

    def hear(self, stream: wire.Stream) -> None:
        while True:
            try:
                self.received.append(stream.next().data)
            except EOFError:
                return

    def watch(self) -> None:
        threading.Thread(target=self.begun, daemon=True).start()


def hear_events(it: Opened) -> None:
    with wire.stream("GET", f"{it.hub_url}/api/events", None, it.headers, 60) as stream:
        it.ready.set()
        it.hear(stream)


def hear_session(it: Opened) -> None:
    """The GET stream of a session, which hears of the session's task."""
    session = wire.Session(f"{it.hub_url}/mcp", headers=it.headers)
    with wire.stream("GET", session.url, None, session.headers, 60) as stream:
        made = session.request("tools/call", {**it.call, "task": {}})
        assert made["result"]["task"]["status"] == "working", made
        it.begun()
        it.hear(stream)


def wait_for_task(it: Opened) -> None:
    """tasks/result of 2025-11-25."""
    session = wire.Session(f"{it.hub_url}/mcp", headers=it.headers)
    id = session.request("tools/call", {**it.call, "task": {}})["result"]["task"]["taskId"]
    it.watch()
    it.received.append(json.dumps(session.request("tasks/result", {"taskId": id}, 60)))


def call_in_session(it: Opened) -> None:
    session = wire.Session(f"{it.hub_url}/mcp", headers=it.headers)
    it.watch()
    answer = session.post(wire.request(1, "tools/call", it.call), 60)
    it.received.append(answer.body.decode())


def call_and_leave(it: Opened) -> None:
    """Without a session, by a client that hangs up, which has not cancelled."""
    message = json.dumps(wire.request(1, "tools/call", it.call))
    common = {"Content-Type": "application/json", "Mcp-Protocol-Version": wire.LEGACY}
    connection = http.client.HTTPConnection(it.hub_url.removeprefix("http://"), timeout=SOON)
    connection.request("POST", "/mcp", message, {**it.headers, **common})
    it.begun()
    connection.close()


def call_modern(it: Opened) -> None:
    it.watch()
    headers = {**it.headers, "Accept": "application/json"}
    answer = wire.modern_request(f"{it.hub_url}/mcp", "tools/call", it.call, headers, 60)
    it.received.append(answer.body.decode())


def listen(it: Opened) -> None:
    """subscriptions/listen of 2026-07-28, to a task."""
    url = f"{it.hub_url}/mcp"
    meta: dict[str, Any] = {f"{META}clientCapabilities": {"extensions": {TASKS: {}}}}
    made = wire.modern_request(url, "tools/call", {**it.call, "_meta": meta}, it.headers).rpc()
    wanted = {"taskIds": [made["result"]["taskId"]]}
    params = wire.modern_params({"notifications": wanted, "_meta": meta})
    headers = {**wire.modern_headers("subscriptions/listen"), **it.headers}
    message = wire.request(2, "subscriptions/listen", params)
    with wire.stream("POST", url, message, headers, 60) as stream:
        it.begun()
        it.hear(stream)


def call_legacy(it: Opened) -> None:
    """HTTP+SSE: the call is answered on the stream."""
    with wire.stream("GET", f"{it.hub_url}/sse", None, it.headers, 60) as stream:
        url = it.hub_url + stream.next().data
        version = "2024-11-05"
        wire.post(url, wire.request(1, "initialize", wire.initialize_params(version)), it.headers)
        wire.post(url, wire.notification("notifications/initialized"), it.headers)
        wire.post(url, wire.request(2, "tools/call", it.call), it.headers)
        it.begun()
        it.hear(stream)


def call_api(it: Opened) -> None:
    it.watch()
    url = f"{it.hub_url}/api/tools/{TOOL}/call"
    answer = wire.post(url, {"arguments": it.call["arguments"]}, it.headers, 60)
    it.received.append(f"{answer.status} {answer.body.decode()}")


def stream_task(it: Opened) -> None:
    _stream(it, V10, STREAM, V10.params(it.work))


def stream_rest(it: Opened) -> None:
    _stream(it, REST10, STREAM, REST10.params(it.work))


def _stream(it: Opened, binding: Any, op: str, params: Mapping[str, Any]) -> None:
    it.watch()
    with binding.stream(it.rig.hub, op, params, "actor", it.headers, 60) as stream:
        it.hear(stream)


def subscribe(it: Opened) -> None:
    caller = Caller(it.rig.hub, "actor", it.headers, V03)
    task = caller.send(it.work, at_once=True)
    _stream(it, V03, SUBSCRIBE, {"id": task["id"]})


def send(it: Opened) -> None:
    it.watch()
    reply = V10.ask(it.rig.hub, SEND, V10.params(it.work), "actor", it.headers, 60)
    it.received.append(json.dumps(reply.value))


def _grpc(it: Opened) -> tuple[Any, Any, dict[str, Any]]:
    port = json.loads((it.rig.gates / "port").read_text(encoding="utf-8"))
    channel = grpc.insecure_channel(f"127.0.0.1:{port}")
    request = ParseDict({**V10.params(it.work), "tenant": "actor"}, pb.SendMessageRequest())
    metadata = [("a2a-version", "1.0")]
    if "Authorization" in it.headers:
        metadata.append(("authorization", it.headers["Authorization"]))
    return a2a_pb2_grpc.A2AServiceStub(channel), request, {"metadata": metadata, "timeout": 60}


def stream_grpc(it: Opened) -> None:
    stub, request, how = _grpc(it)
    it.watch()
    for event in stub.SendStreamingMessage(request, **how):
        it.received.append(str(event))


def send_grpc(it: Opened) -> None:
    stub, request, how = _grpc(it)
    it.watch()
    it.received.append(str(stub.SendMessage(request, **how)))


KINDS: Mapping[str, Callable[[Opened], None]] = {
    "events": hear_events,
    "mcp-get": hear_session,
    "mcp-task": wait_for_task,
    "mcp-session-call": call_in_session,
    "mcp-call-left": call_and_leave,
    "mcp-modern-call": call_modern,
    "mcp-listen": listen,
    "sse": call_legacy,
    "api-call": call_api,
    "a2a-stream": stream_task,
    "a2a-rest-stream": stream_rest,
    "a2a-subscribe": subscribe,
    "a2a-send": send,
    "grpc-stream": stream_grpc,
    "grpc-send": send_grpc,
}
ALONE = frozenset({"events"})
"""Those that make no call."""


def open_all(rig: HubRig, headers: Headers, caller: str) -> dict[str, Opened]:
    made = {kind: Opened(rig, headers, caller, kind) for kind in KINDS}
    for one in made.values():
        one.start()
    for kind, one in made.items():
        assert one.ready.wait(SOON), (kind, one.received)
    assert not [kind for kind, one in made.items() if one.ended.is_set() and kind != LEFT]
    return made


def end_all(opened: Mapping[str, Opened]) -> None:
    end = time.monotonic() + SOON
    late = [k for k, one in opened.items() if not one.ended.wait(max(0, end - time.monotonic()))]
    assert not late, f"these still hear: {late}"


def key_for(rig: HubRig, name: str) -> Headers:
    with open_keys(rig.hub.home) as store:
        key = store.create(name, owner="the same", expires_at=None, scopes=["call"])
    headers = {"Authorization": f"Bearer {key}"}
    until(lambda: wire.get(f"{rig.hub.url}/api/status", headers).status == 200)
    return headers


def check_audit(rig: HubRig, caller: str, why: str, more: int = 0) -> None:
    """Every call of it, and so many more, is in the audit as cancelled for that reason."""

    end = time.monotonic() + SOON
    expected = [("cancelled", why)] * (len(KINDS) - len(ALONE) + more)
    while True:
        calls = [one for one in rig.hub.audit() if one["caller"] == caller]
        told = [(one["outcome"], one.get("message")) for one in calls if one["verb"] == TOOL]
        if told == expected:
            return
        odd = [one for one in calls if one.get("message") != why]
        assert time.monotonic() < end, f"{len(told)} calls, of which {odd}"


@pytest.fixture(scope="module")
def rig() -> Iterator[HubRig]:
    config = "[mcp]\ntask_after_secs = 0.05\n"
    with run_a2a_hub(AGENTS, config=config, a2a={"grpc_port": 0, "push_private": True}) as found:
        port = found.hub.api("/api/status")["agents"]["grpc_port"]
        (found.gates / "port").write_text(str(port), encoding="utf-8")
        yield found


def test_first_key_ends_open_requests_without_a_key(rig: HubRig) -> None:
    """All but what came by the owner's socket."""
    with rig.hub.relay() as relay:
        relay.initialize()
        opened = open_all(rig, {}, "local")
        key_for(rig, "any")
        end_all(opened)
        check_audit(rig, "local:local", "a key is needed now")
        rig.open("owner")
        work = [{"type": "data", "data": steps(("wait", "owner"), ("reply", "still here"))}]
        call = {"name": TOOL, "arguments": {"message": "go", "parts": work}}
        assert "still here" in str(relay.request("tools/call", call))


def test_revoked_key_ends_only_its_own_requests(rig: HubRig) -> None:
    first, second = key_for(rig, "first"), key_for(rig, "second")
    hub = rig.hub
    with receiving() as hook_first, receiving() as hook_second:
        tasks = {}
        for name, headers, hook in (("first", first, hook_first), ("second", second, hook_second)):
            params = V10.params(steps(("say", "begun"), ("wait", name)), at_once=True)
            params["configuration"]["taskPushNotificationConfig"] = {"url": hook.url}
            reply = V10.ask(hub, SEND, params, "actor", headers)
            tasks[name] = V10.task(reply.value)["id"]
            assert hook.asked.wait(SOON)
        opened = open_all(rig, first, "first")
        others = open_all(rig, second, "second")
        session = wire.Session(f"{hub.url}/mcp", headers=first)

        assert hub.command("keys", "revoke", "first").returncode == 0
        end_all(opened)
        assert not [kind for kind, one in others.items() if one.ended.is_set() and kind != LEFT]

        check_audit(rig, "key:first", "the key was revoked", more=1)
        for kind, said in LAST_WORDS.items():
            assert said in opened[kind].received[-1], (kind, opened[kind].received)
        for path, headers in (
            ("/api/status", first),
            ("/api/events", {**first, "Last-Event-ID": "1"}),
            ("/mcp", {**session.headers, "Last-Event-ID": "g0-1"}),
        ):
            assert wire.get(hub.url + path, headers).status == 401
        again = {"id": tasks["first"]}
        for op, params in ((SUBSCRIBE, again), (SEND, V10.params("x"))):
            _, path, body, own = V10.request(op, params, "actor")
            headers = {**first, **own, "Last-Event-ID": "1", "Idempotency-Key": "k"}
            assert wire.post(hub.url + path, body, headers).status == 401

        rig.open("second")
        end_all({kind: one for kind, one in others.items() if kind not in ENDLESS})
        for kind, said in DELIVERED.items():
            received = others[kind].received
            end = time.monotonic() + SOON
            while said not in str(received):
                assert time.monotonic() < end, (kind, received)
                time.sleep(0.02)
        until(lambda: "COMPLETED" in str(hook_second.taken))
        assert "begun" in str(hook_first.taken)
        for word in ("COMPLETED", "CANCELED"):
            assert word not in str(hook_first.taken)
        assert hub.command("keys", "revoke", "second").returncode == 0
        end_all(others)


def test_key_revoked_while_the_hub_is_down_receives_nothing_later(
    hub: Callable[..., RunningHub], tmp_path: Path
) -> None:
    config, env = a2a_config(AGENTS, a2a={"push_private": True}), agents_env(tmp_path)
    running = hub(config=config, env=env)
    with receiving() as hook_first, receiving() as hook_second:
        for name, hook in (("first", hook_first), ("second", hook_second)):
            headers = key_for(HubRig(running, tmp_path), name)
            params = V10.params(steps(("say", "begun"), ("wait", "never")), at_once=True)
            params["configuration"]["taskPushNotificationConfig"] = {"url": hook.url}
            assert V10.ask(running, SEND, params, "actor", headers).error is None

            def has_begun(hook: Receiver = hook) -> bool:
                return "begun" in str(hook.taken)

            until(has_begun)
        running.kill()  # the next hub says that the tasks were interrupted
        assert running.command("keys", "revoke", "first").returncode == 0
        again = hub(home=running.home, env=env)
        until(lambda: "FAILED" in str(hook_second.taken))
        again.stop()
        assert "FAILED" not in str(hook_first.taken)


LEFT = "mcp-call-left"
ENDLESS = frozenset({"events", "mcp-get", "mcp-listen", "sse"})
DELIVERED = {
    "events": "post-verb",
    "mcp-get": "completed",
    "mcp-task": "for second",
    "mcp-session-call": "for second",
    "mcp-modern-call": "for second",
    "mcp-listen": "for second",
    "sse": "for second",
    "api-call": "for second",
    "a2a-stream": "TASK_STATE_COMPLETED",
    "a2a-rest-stream": "TASK_STATE_COMPLETED",
    "a2a-subscribe": "completed",
    "a2a-send": "TASK_STATE_COMPLETED",
    "grpc-stream": "TASK_STATE_COMPLETED",
    "grpc-send": "TASK_STATE_COMPLETED",
}
"""What the others hear in the end."""
LAST_WORDS = {
    "mcp-session-call": "the key was revoked",
    "mcp-modern-call": "the key was revoked",
    "api-call": "401 the key was revoked",
    "a2a-stream": "TASK_STATE_CANCELED",
    "a2a-rest-stream": "the key was revoked",
    "a2a-subscribe": "canceled",
    "a2a-send": "TASK_STATE_CANCELED",
    "grpc-stream": "UNAUTHENTICATED",
    "grpc-send": "UNAUTHENTICATED",
}
"""Where the protocol has a way to say why something ends."""
