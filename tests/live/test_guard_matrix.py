"""Every guard refuses at every entry point, in the form of that entry point, with one record in the
audit, and the server behind the hub is not reached. Messages that are too large are refused, and
long results cut, at every one too.

Each cell has a tool of its own, named after the guard and the entry point: what the server and the
audit have recorded can be assigned to it.
"""

from __future__ import annotations

import json
import os
import re
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any
from uuid import uuid4

import grpc
import pytest
from a2a.types import a2a_pb2 as pb
from a2a.types.a2a_pb2_grpc import A2AServiceStub
from google.protobuf.json_format import ParseDict
from tests.live.a2a_hub import BINDINGS, SEND, DialectBinding
from tests.live.conftest import RunningHub
from tests.live.module_hub import error_kind, error_text, run_module_hub, until
from tests.peers import wire
from tests.peers.process import server_entry

from dragoman.a2a.protocol.errors import ERROR_CODES, REASONS_BY_ERROR
from dragoman.cli.base.errors import find_exit_code
from dragoman.core import errors
from dragoman.core.errors import HubError, find_row
from dragoman.core.trace import CHAIN
from dragoman.mcp.protocol.errors import TABLE as MCP_TABLE
from dragoman.mcp.protocol.revisions import R2511, R2607
from dragoman.stores.keys import KeyStore
from dragoman.web.errors import TABLE as HTTP_TABLE
from dragoman.wire.json import MAX_BYTES
from dragoman.wire.rpc import INVALID_REQUEST

pytestmark = pytest.mark.promise("O2", "P4", "P5", "R7")

PROGRAM = Path(__file__).with_name("recording_server.py")
AGENT = '''
import json, os, time, urllib.request

def nest(message):
    """Calls a tool several times and writes the last answer to a file: a result may be cut."""
    asked = json.loads(message)
    open(asked["begun"], "w").close()
    while not os.path.exists(asked["gate"]):
        time.sleep(0.01)
    headers = {"Authorization": f"Bearer {asked['key']}", "Content-Type": "application/json"}
    arguments = {"n": "x" * asked["size"]}
    body = json.dumps({"arguments": arguments}).encode()
    for _ in range(asked["times"]):
        request = urllib.request.Request(asked["url"], body, headers)
        try:
            answer = urllib.request.urlopen(request)
        except urllib.error.HTTPError as error:
            answer = error
        said = [answer.status, json.load(answer)]
    with open(asked["begun"] + ".answer", "w") as file:
        json.dump(said, file)
    return "called"
'''
CONFIG = """
[mcp]
stdio_expose = ["*"]
[a2a]
enabled = true
grpc_port = 0
[[agents]]
name = "nest"
function = "nest_agent:nest"
[taint]
clients = "enforce"
[[taint.tools]]
match = "rec.taint_*"
sources = ["external_network"]
sinks = ["exec"]
[limits]
LIMITS = 1
"""
LOOP = "loop.warn = 2\nloop.refuse = 3\n"
FORBID = """@id("no") forbid (principal, action in Hub::Action::"any_call", resource)
when {{ resource in [{}] }};"""
APPROVE = """@id("asked") @approval("it is tested") @expires("1s")
forbid (principal, action in Hub::Action::"any_call", resource)
when {{ resource in [{}] }} unless {{ context.approved }};"""
LATE = "late"
"""The file that says that the hub is late."""
CUT = 1_000
"""To how many characters a result is cut."""
WHOLE = "".join(f"line {number:04}\n" for number in range(300))


@dataclass(frozen=True)
class Guard:
    error: type[HubError]
    says: str
    reached: int = 0
    """How many calls of a cell reach the server: those before the refused one."""
    outcome: str = "refused"
    limits: str = "tool_timeout_secs = 0.6\n"
    server: str = "rec"
    beside: Sequence[str] = ()
    """Entry points where it cannot refuse: each command is a chain and a run of its own."""


GUARDS: Mapping[str, Guard] = {
    "policy": Guard(errors.AuthorizationError, "a policy forbids"),
    "schema": Guard(errors.InvalidInput, "invalid arguments for", outcome="invalid"),
    "pin": Guard(errors.Quarantined, "changed"),
    "fail": Guard(errors.Repeating, "times in a row", reached=2, beside=["cli"]),
    "taint": Guard(errors.Tainted, "external_network -> exec", reached=1, beside=["cli"]),
    "slow": Guard(errors.TimedOut, "took longer than 0.6 s", reached=1, outcome="target_failed"),
    "approval": Guard(errors.ApprovalDenied, "expired at"),
    "absent": Guard(
        errors.Unreachable, "is not available yet", outcome="target_failed", server="gone"
    ),
    "chain": Guard(
        errors.TooDeep, "its chain has made 1 calls", limits="chain_calls = 1\n", beside=["cli"]
    ),
    "full": Guard(errors.Overloaded, "are running; try again shortly", limits="target_calls = 2\n"),
    "late": Guard(errors.Overloaded, "is overloaded", limits="overload_delay_secs = 0.1\n"),
    "rate": Guard(
        errors.RateLimited,
        "has reached its rate limit",
        limits="rate.per_minute = 1\nrate.owner_per_minute = 1\nrate.costs.tool = 1_000_000\n",
    ),
}


@dataclass(frozen=True)
class Seen:
    """How a call was answered: refused, or with the text of its result."""

    form: Any
    kind: str
    text: str


@dataclass
class Rig:
    hub: RunningHub
    folder: Path
    keys: dict[str, str]
    grpc: A2AServiceStub
    relay: wire.Stdio
    session: wire.Session
    sse: wire.Stream
    sse_url: str
    written: str = ""
    headers: dict[str, str] = field(default_factory=dict)
    token: str = ""
    """The hub's token of a call that has led to the next ones."""
    size: int = 1
    """How many characters the argument of the next calls has."""

    @property
    def arguments(self) -> dict[str, str]:
        return {"n": "x" * self.size}

    def list_calls(self) -> list[str]:
        file = self.folder / "calls"
        return file.read_text(encoding="utf-8").split() if file.exists() else []

    def limit(self, limits: str, mark: int) -> None:
        """Applies limits; `mark` is a limit that the hub shows once they apply."""
        text = self.written.replace("LIMITS = 1\n", f"{LOOP}calls_in_flight = {mark}\n{limits}")
        (self.hub.home / "config.toml").write_text(text, encoding="utf-8")
        path = "/api/limits"
        until(lambda: self.hub.api(path)["concurrency"]["calls_in_flight"]["limit"] == mark)


# --- the entry points: each calls a tool `times` times and returns the form of the last answer ----


def see_mcp(answer: Any) -> Seen:
    form = ("error", answer["error"]["code"]) if "error" in answer else ("result",)
    if "result" in answer and not answer["result"].get("isError"):
        return Seen(form, "", answer["result"]["content"][0]["text"])
    return Seen(form, error_kind(answer), error_text(answer))


def with_token(rig: Rig) -> dict[str, Any]:
    return {"_meta": {CHAIN: rig.token}} if rig.token else {}


def call_stdio(rig: Rig, tool: str, times: int) -> Seen:
    params = {"name": tool, "arguments": rig.arguments, **with_token(rig)}
    return see_mcp([rig.relay.request("tools/call", params) for _ in range(times)][-1])


def call_session(rig: Rig, tool: str, times: int) -> Seen:
    params = {"name": tool, "arguments": rig.arguments, **with_token(rig)}
    return see_mcp([rig.session.request("tools/call", params) for _ in range(times)][-1])


def call_sse(rig: Rig, tool: str, times: int) -> Seen:
    params = {"name": tool, "arguments": rig.arguments, **with_token(rig)}
    for number in range(times):
        message = wire.request(number + 2, "tools/call", params)
        posted = wire.post(rig.sse_url, message, rig.headers)
        answer = rig.sse.next_json() if posted.status == 202 else posted.json()
    return see_mcp(answer)


def trace_headers(rig: Rig) -> dict[str, str]:
    """Those of one run, or of a call that another one has led to."""
    if rig.token:
        return {**rig.headers, "x-dragoman-chain": rig.token}
    return {**rig.headers, "traceparent": f"00-{uuid4().hex}-{uuid4().hex[:16]}-01"}


def call_modern(rig: Rig, tool: str, times: int) -> Seen:
    params, headers = {"name": tool, "arguments": rig.arguments}, trace_headers(rig)
    url = rig.hub.mcp_url
    answers = [wire.modern_request(url, "tools/call", params, headers) for _ in range(times)]
    return see_mcp(answers[-1].rpc())


def call_rest(rig: Rig, tool: str, times: int) -> Seen:
    url = f"{rig.hub.url}/api/tools/{tool}/call"
    headers = {**trace_headers(rig), "Accept": "application/json"}  # no stream with progress
    answers = [wire.post(url, {"arguments": rig.arguments}, headers) for _ in range(times)]
    return see_rest(answers[-1].status, answers[-1].json())


def see_rest(status: int, body: Any) -> Seen:
    if status == 200:
        return Seen(status, "", body["content"][0]["text"])
    if "kind" not in body["error"]:  # refused before it was a call
        return Seen(status, "", body["error"]["message"])
    return Seen(status, body["error"]["kind"], body["error"]["message"])


def call_cli(rig: Rig, tool: str, times: int) -> Seen:
    file = rig.folder / "argument"
    file.write_text(rig.arguments["n"], encoding="utf-8")
    done = rig.hub.command("call", tool, f"n=@{file}", "--json")
    if done.returncode == 0:
        return Seen(0, "", json.loads(done.stdout)["content"][0]["text"])
    error = json.loads(done.stdout)["error"]
    assert error["code"] == done.returncode
    return Seen(done.returncode, error.get("kind", ""), done.stderr)


def call_nested(rig: Rig, tool: str, times: int) -> Seen:
    """An agent calls it with its own key, while it serves a call."""
    url = f"{rig.hub.url}/api/tools/{tool}/call"
    asked = {"url": url, "key": rig.keys["nest"], "size": rig.size, "times": times}
    asked["begun"] = str(rig.folder / tool.removeprefix("rec."))
    asked["gate"] = str(rig.folder / (LATE if "late" in tool else ""))
    rig.hub.call("nest.message", {"message": json.dumps(asked)})
    return see_rest(*json.loads(Path(f"{asked['begun']}.answer").read_text(encoding="utf-8")))


def call_a2a(binding: DialectBinding) -> Callable[[Rig, str, int], Seen]:
    def call(rig: Rig, tool: str, times: int) -> Seen:
        headers, context = trace_headers(rig), str(uuid4())
        for _ in range(times):
            params = binding.params(rig.arguments)
            params["message"]["metadata"] = {"skillId": tool}
            if binding.version == "0.1":
                params["sessionId"] = context
            else:
                params["message"]["contextId"] = context
            if rig.size > 1:
                method, path, body, own = binding.request(SEND, params)
                sent = {"Content-Type": "application/json", **own, **headers}
                data = json.dumps(body).encode()
                answer = wire.http_request(method, rig.hub.url + path, data, sent)
                return Seen(answer.status, "", answer.body.decode())
            reply = binding.ask(rig.hub, SEND, params, headers=headers)
        if reply.error is None:
            task = binding.task(reply.value)
            if task.get("artifacts"):
                (part,) = task["artifacts"][0]["parts"]
                return Seen("completed", "", part["text"])
            states = {binding.state(word): word for word in ("failed", "input-required")}
            return Seen(states.get(task["status"]["state"]), "", json.dumps(task["status"]))
        form = reply.answer.status if binding.rest else reply.error["code"]
        return Seen(form, "", json.dumps(reply.error))

    return call


def call_grpc(rig: Rig, tool: str, times: int) -> Seen:
    sent = {"authorization": rig.headers["Authorization"], "a2a-version": "1.0"}
    sent |= {"x-dragoman-chain": rig.token} if rig.token else {}
    context = str(uuid4())
    for _ in range(times):
        message = {"messageId": str(uuid4()), "role": "ROLE_USER", "contextId": context}
        parts = {"parts": [{"data": rig.arguments}], "metadata": {"skillId": tool}}
        request = ParseDict({"message": message | parts}, pb.SendMessageRequest())
        try:
            task = rig.grpc.SendMessage(request, metadata=tuple(sent.items()), timeout=60).task
        except grpc.RpcError as error:
            seen = Seen(error.code().name, "", error.details())
        else:
            if task.artifacts:
                seen = Seen("completed", "", task.artifacts[0].parts[0].text)
                continue
            state = pb.TaskState.Name(task.status.state).removeprefix("TASK_STATE_")
            seen = Seen(state.lower().replace("_", "-"), "", str(task.status))
    return seen


ENTRY_POINTS: Mapping[str, Callable[[Rig, str, int], Seen]] = {
    "stdio": call_stdio,
    "session": call_session,
    "sse": call_sse,
    "modern": call_modern,
    "rest": call_rest,
    "cli": call_cli,
    "nested": call_nested,
    **{f"a2a_{str(one).replace('.', '').replace('-', '_')}": call_a2a(one) for one in BINDINGS},
    "a2a_grpc": call_grpc,
}


def find_form(entry: str, error: type[HubError]) -> Any:
    """The form in which an entry point must answer, from the tables of the errors."""
    if entry in ("rest", "nested"):
        return find_row(HTTP_TABLE, error)
    if entry == "cli":
        return find_exit_code(error.kind)
    if entry.startswith("a2a"):
        if issubclass(error, errors.TargetFailed):
            return "failed"  # the message was accepted: there is a task
        if error is errors.InvalidInput:
            return "input-required"  # the task asks for the arguments
        codes = ERROR_CODES[find_row(REASONS_BY_ERROR, error)]
        return codes.grpc if "grpc" in entry else codes.http if "rest" in entry else codes.code
    revision = R2607 if entry == "modern" else R2511
    row = find_row(MCP_TABLE, error)
    if row.result_since <= revision <= row.result_until:
        return ("result",)
    return ("error", row.modern if entry == "modern" else row.legacy)


# --- the walk ------------------------------------------------------------------------------------


def list_tools(changed: bool = False) -> list[dict[str, Any]]:
    tools: list[dict[str, Any]] = [
        {"name": name, "inputSchema": {"type": "object"}} for name in ("look", "token", "hold")
    ]
    for guard, rule in GUARDS.items():
        if rule.server != "rec":
            continue
        of = "integer" if guard == "schema" else "string"
        schema: dict[str, Any] = {
            "type": "object",
            "properties": {"n": {"type": of}},
            "required": ["n"],
        }
        says = "Now it does more." if changed and guard == "pin" else "Does it."
        tools += [
            {"name": f"{guard}_{entry}", "description": says, "inputSchema": schema}
            for entry in ENTRY_POINTS
        ]
    for name in ("size", "long"):
        tools += [
            {"name": f"{name}_{entry}", "inputSchema": {"type": "object"}} for entry in ENTRY_POINTS
        ]
    return tools


@pytest.fixture(scope="module")
def rig(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Rig]:
    folder = tmp_path_factory.mktemp("guards")
    (folder / "nest_agent.py").write_text(AGENT, encoding="utf-8")
    (folder / "tools.json").write_text(json.dumps(list_tools()), encoding="utf-8")
    (folder / "long").write_text(WHOLE, encoding="utf-8")
    entries = [
        server_entry("rec", "stdio", sys.executable, PROGRAM, folder),
        server_entry("gone", "stdio", "/bin/false"),
    ]
    config = CONFIG.replace("LIMITS = 1\n", LOOP)
    with ExitStack() as stack:
        env = {"PYTHONPATH": str(folder)}
        hub = stack.enter_context(run_module_hub(entries, config, env))
        for gate in ("release", LATE):
            stack.callback((folder / gate).touch)
        hub.wait_connected("rec")
        forbidden = ", ".join(f'Hub::Tool::"rec.policy_{one}"' for one in ENTRY_POINTS)
        held = ", ".join(f'Hub::Tool::"rec.approval_{one}"' for one in ENTRY_POINTS)
        text = FORBID.format(forbidden) + APPROVE.format(held)
        done = hub.post("/api/policies", {"name": "mine", "text": text})
        assert done.get("ok"), done
        (folder / "tools.json").write_text(json.dumps(list_tools(True)), encoding="utf-8")
        hub.call("rec.look")
        until(
            lambda: (
                len([p for p in hub.api("/api/pins")["pins"] if p["offered"]]) == len(ENTRY_POINTS)
            )
        )
        keys = create_keys(hub)
        headers = hub.headers
        port = json.loads(hub.command("status", "--json").stdout)["agents"]["grpc_port"]
        channel = stack.enter_context(grpc.insecure_channel(f"127.0.0.1:{port}"))
        relay = stack.enter_context(hub.relay())
        relay.initialize()
        sse = stack.enter_context(wire.stream("GET", f"{hub.url}/sse", headers=headers))
        sse_url = hub.url + sse.next().data
        wire.post(sse_url, wire.request(1, "initialize", wire.initialize_params()), headers)
        assert "result" in sse.next_json()
        session = wire.Session(hub.mcp_url, headers=headers)
        written = (hub.home / "config.toml").read_text(encoding="utf-8")
        written = written.replace(LOOP, "LIMITS = 1\n")
        stub = A2AServiceStub(channel)
        yield Rig(hub, folder, keys, stub, relay, session, sse, sse_url, written, headers)


def create_keys(hub: RunningHub) -> dict[str, str]:
    """Keys of a user, and of the agent, so that its calls belong to the call it serves."""
    store, keys = KeyStore(hub.home), {}
    for name in ("ann", "nest"):
        target = "" if name == "ann" else name
        keys[name] = store.create(
            f"{name}-key", owner=name, expires_at=None, scopes=["call"], target=target
        )
    store.close()
    until(lambda: wire.get(f"{hub.url}/api/status", {}).status == 401)
    hub.headers = {"Authorization": f"Bearer {keys['ann']}"}
    until(lambda: hub.get("/api/status").status == 200)
    return keys


@contextmanager
def lead_to(rig: Rig) -> Iterator[None]:
    """Makes the next calls part of a chain that has begun."""
    said = rig.hub.call("rec.token")["result"]["content"][0]["text"]
    rig.token = json.loads(said)[CHAIN]
    yield
    rig.token = ""


@contextmanager
def hold_calls(rig: Rig) -> Iterator[None]:
    """Has a call of each of two principals run."""
    with ThreadPoolExecutor(1) as pool, rig.hub.relay() as other:
        held = pool.submit(rig.hub.call, "rec.hold")
        other.initialize()
        other.send(wire.request(9, "tools/call", {"name": "rec.hold"}))
        try:
            until(lambda: rig.list_calls().count("hold") == 2)
            yield
        finally:
            (rig.folder / "release").touch()
        assert "released" in str(held.result())
        assert "released" in str(other.read())


@contextmanager
def be_late(rig: Rig) -> Iterator[None]:
    """Pauses the hub for most of the time, so that each measurement of its event loop is late. The
    calls wait for that, and it waits for the agent that makes a nested one."""
    over = threading.Event()

    def pause() -> None:
        until((rig.folder / "late_nested").exists)
        pauses = 0
        while not over.is_set():
            os.kill(rig.hub.pid, signal.SIGSTOP)
            time.sleep(0.65)  # longer than the interval of the measurements
            os.kill(rig.hub.pid, signal.SIGCONT)
            pauses += 1
            if pauses == 3:
                (rig.folder / LATE).touch()
            over.wait(0.15)

    with ThreadPoolExecutor(1) as pool:
        pausing = pool.submit(pause)
        try:
            yield
        finally:
            over.set()
        pausing.result()
    until(lambda: "result" in rig.hub.call("rec.token"))


@contextmanager
def use_tokens(rig: Rig) -> Iterator[None]:
    """A call costs a whole budget: one token less refuses it."""
    rig.relay.request("tools/list")
    for key in rig.keys.values():
        wire.get(f"{rig.hub.url}/api/status", {"Authorization": f"Bearer {key}"})
    yield


ARRANGED = {"chain": lead_to, "full": hold_calls, "late": be_late, "rate": use_tokens}


def call_cell(rig: Rig, guard: str, entry: str) -> Seen:
    rule = GUARDS[guard]
    if guard == "late" and entry != "nested":
        until((rig.folder / LATE).exists)
    times = 1 if guard == "slow" else rule.reached + 1
    try:
        return ENTRY_POINTS[entry](rig, f"{rule.server}.{guard}_{entry}", times)
    except Exception as error:
        return Seen(repr(error), "", "")


def test_every_guard_refuses_at_every_entry_point(rig: Rig) -> None:
    seen: dict[tuple[str, str], Seen] = {}
    with ThreadPoolExecutor(len(ENTRY_POINTS)) as pool:
        applied = ""
        for number, (guard, rule) in enumerate(GUARDS.items()):
            if rule.limits != applied:
                applied = rule.limits
                rig.limit(applied, 500 + number)
            entries = [entry for entry in ENTRY_POINTS if entry not in rule.beside]
            with ARRANGED[guard](rig) if guard in ARRANGED else nullcontext():
                answers = pool.map(partial(call_cell, rig, guard), entries)
                for entry, answer in zip(entries, answers, strict=True):
                    seen[guard, entry] = answer
    calls, rows = rig.list_calls(), rig.hub.audit()
    wrong = []
    for (guard, entry), answer in seen.items():
        rule, name = GUARDS[guard], f"{guard}_{entry}"
        mine = [row for row in rows if row["verb"] == f"{rule.server}.{name}"]
        ends = [(row["outcome"], row.get("error")) for row in mine]
        allowed = 0 if guard == "slow" else rule.reached
        checks = {
            "form": (answer.form, find_form(entry, rule.error)),
            "kind": (answer.kind or rule.error.kind, rule.error.kind),
            "text": (rule.says in answer.text, True),
            "reached": (calls.count(name), rule.reached),
            "record": (ends[allowed:], [(rule.outcome, rule.error.kind)]),
        }
        wrong += [(name, *what, answer) for what in checks.items() if what[1][0] != what[1][1]]
    assert not wrong, "\n".join(map(str, wrong))


# --- sizes ---------------------------------------------------------------------------------------


def call_each(rig: Rig, kind: str) -> dict[str, Seen]:
    """Calls the tool of each entry point whose name begins with `kind`."""

    def call(entry: str) -> Seen:
        try:
            return ENTRY_POINTS[entry](rig, f"rec.{kind}_{entry}", 1)
        except Exception as error:
            return Seen(repr(error), "", "")

    with ThreadPoolExecutor(len(ENTRY_POINTS)) as pool:
        return dict(zip(ENTRY_POINTS, pool.map(call, ENTRY_POINTS), strict=True))


def find_size_form(entry: str) -> tuple[Any, str]:
    """The form in which an entry point refuses a message that is too large, and what it says. No
    part of the hub decodes such a message, so it makes no call and no record."""
    if entry == "cli":
        return find_exit_code("InvalidInput"), "too large, over 10 MB"
    if entry == "a2a_grpc":
        return "RESOURCE_EXHAUSTED", "larger than max"
    if entry == "stdio":  # `dragoman mcp` reads it
        return ("error", INVALID_REQUEST), "the message exceeds the limit of 10 MB"
    says = f"message too large: at most {MAX_BYTES} bytes"
    if entry in ("session", "sse", "modern"):
        return ("error", INVALID_REQUEST), says
    return 413, says


def test_too_large_message_is_refused_at_every_entry_point(rig: Rig) -> None:
    rig.limit("", 700)
    rig.size = MAX_BYTES + 1
    try:
        seen = call_each(rig, "size")
    finally:
        rig.size = 1
    wrong = []
    for entry, answer in seen.items():
        form, says = find_size_form(entry)
        if answer.form != form or says not in answer.text:
            wrong.append((entry, form, says, answer))
    assert not wrong, "\n".join(map(str, wrong))
    names = [f"size_{entry}" for entry in ENTRY_POINTS]
    assert not [name for name in rig.list_calls() if name in names]
    assert not [row for row in rig.hub.audit() if row["verb"].removeprefix("rec.") in names]
    assert call_each(rig, "size").keys() == set(ENTRY_POINTS)
    assert sorted(n for n in rig.list_calls() if n in names) == sorted(names), "each serves again"


def read_resource(rig: Rig, entry: str, uri: str) -> str:
    """As the principal of that entry point, through it where it has resources."""
    params = {"uri": uri}
    if entry == "stdio":
        answer = rig.relay.request("resources/read", params)
    elif entry == "session":
        answer = rig.session.request("resources/read", params)
    elif entry == "modern":
        sent = wire.modern_request(rig.hub.mcp_url, "resources/read", params, rig.headers)
        answer = sent.rpc()
    elif entry == "sse":
        wire.post(rig.sse_url, wire.request(9, "resources/read", params), rig.headers)
        answer = rig.sse.next_json()
    elif entry == "cli":
        answer = {"result": json.loads(rig.hub.command("resources", "read", uri, "--json").stdout)}
    else:
        key = rig.keys["nest" if entry == "nested" else "ann"]
        headers = {"Authorization": f"Bearer {key}"}
        answer = {"result": wire.post(f"{rig.hub.url}/api/resources/read", params, headers).json()}
    return str(answer["result"]["contents"][0]["text"])


def test_long_result_is_cut_with_its_notice_at_every_entry_point(rig: Rig) -> None:
    rig.limit(f"result_chars = {CUT}\n", 701)
    wrong: list[Any] = []
    for entry, answer in call_each(rig, "long").items():
        text, _, notice = answer.text.partition("\n[cut: ")
        address = re.search(r"dragoman://results/[\w-]{20,}", notice)
        if text != WHOLE[:CUT] or f"[limits] result_chars = {CUT}; for 10" not in notice:
            wrong.append((entry, answer))
        elif not notice.startswith(f"{len(WHOLE) - CUT} of {len(WHOLE)} characters left out"):
            wrong.append((entry, notice))
        elif address is None or (read := read_resource(rig, entry, address[0])) != WHOLE:
            wrong.append((entry, address, read[:200]))
    assert not wrong, "\n".join(map(str, wrong))
    names = [f"rec.long_{entry}" for entry in ENTRY_POINTS]
    outcomes = {row["verb"]: row["outcome"] for row in rig.hub.audit() if row["verb"] in names}
    assert outcomes == dict.fromkeys(names, "completed")
