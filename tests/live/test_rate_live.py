"""A principal that has used its budget is refused at every entry point, in the form of that entry
point, with the time after which it can try again."""

from __future__ import annotations

import json
import math
import os
import signal
import socket
import time
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack

import grpc
import pytest
from a2a.types import a2a_pb2 as pb
from a2a.types.a2a_pb2_grpc import A2AServiceStub
from tests.live.a2a_hub import BINDINGS, GET, SEND, Caller, DialectBinding, run_a2a_hub, with_key
from tests.live.conftest import RunningHub
from tests.live.module_hub import run_concurrently, run_module_hub, until
from tests.peers import wire
from tests.peers.process import server_entry
from tests.peers.valkey_server import run_valkey

pytestmark = pytest.mark.promise("O2")

RATE = """[limits.rate]
per_minute = 1
burst = 100
owner_per_minute = 1
owner_burst = 100
address_per_minute = 600
address_burst = 100
[limits.rate.costs]
tool = 101
agent = 101
"""
"""A few requests, and no call after the first request: there is a token per minute."""
ECHO = {"name": "mcp_ok_echo", "arguments": {"text": "x"}}


@pytest.fixture(scope="module", params=["alone", "shared"])
def hub(request: pytest.FixtureRequest) -> Iterator[RunningHub]:
    """A hub with limits of its own, and one with limits in Redis."""
    servers, config = [server_entry("ok", "faulty_server", "ok")], RATE
    with ExitStack() as stack:
        if request.param == "shared":
            url = stack.enter_context(run_valkey()).url
            config = f'[redis]\nurl = "{url}"\n{RATE}'
        rig = run_a2a_hub(servers=servers, config=config, a2a={"grpc_port": 0})
        running = stack.enter_context(rig).hub
        running.wait_connected("ok")
        if request.param == "shared":
            until(lambda: b"dragoman_redis_up 1" in running.get("/metrics").body, 60.0)
        yield running


@pytest.fixture(scope="module")
def caller(hub: RunningHub) -> Caller:
    return with_key(hub, "caller")


def check_wait(answer: wire.Answer, told: float) -> None:
    """Checks the header against the seconds in the body."""
    assert answer.headers["retry-after"] == str(math.ceil(told))
    assert 0 < told < 6_100


def check_error(error: Mapping[str, object], code: int) -> float:
    assert error["code"] == code
    assert "key:caller has reached its rate limit" in str(error["message"])
    data = error["data"]
    assert isinstance(data, dict) and data["kind"] == "RateLimited"
    return float(data["retryAfter"])


def test_modern_mcp_is_refused_with_429(hub: RunningHub, caller: Caller) -> None:
    answer = wire.modern_request(hub.mcp_url, "tools/call", ECHO, caller.headers)
    assert answer.status == 429
    check_wait(answer, check_error(answer.json()["error"], 42900))


def test_mcp_session_is_refused_with_an_error_that_old_clients_read(
    hub: RunningHub, caller: Caller
) -> None:
    session = wire.Session(hub.mcp_url, headers=caller.headers)
    answer = session.post(wire.request(2, "tools/call", ECHO))
    assert answer.status == 200  # an older SDK ends the session at any other status
    assert answer.json()["id"] == 2
    check_wait(answer, check_error(answer.json()["error"], -32000))


def test_legacy_sse_is_refused(hub: RunningHub, caller: Caller) -> None:
    with wire.stream("GET", f"{hub.url}/sse", headers=caller.headers) as stream:
        path = hub.url + stream.next().data
        wire.post(path, wire.request(1, "initialize", wire.initialize_params()), caller.headers)
        assert "result" in stream.next_json()
        wire.post(path, wire.request(2, "tools/call", ECHO), caller.headers)
        check_error(stream.next_json()["error"], -32000)


def test_api_is_refused_with_429(hub: RunningHub, caller: Caller) -> None:
    body = {"arguments": {"text": "x"}}
    answer = wire.post(f"{hub.url}/api/tools/ok.echo/call", body, caller.headers)
    assert answer.status == 429
    error = answer.json()["error"]
    assert error["kind"] == "RateLimited"
    check_wait(answer, error["retry_after"])
    assert '"principal";q=100;w=6000, "org"' in answer.headers["ratelimit-policy"]
    remaining = int(answer.headers["ratelimit"].split(";")[1].removeprefix("r="))
    assert 0 < remaining < 100


@pytest.mark.parametrize("binding", BINDINGS, ids=str)
def test_a2a_is_refused_in_every_dialect_and_binding(
    hub: RunningHub, caller: Caller, binding: DialectBinding
) -> None:
    reply = binding.ask(hub, SEND, binding.params("hello"), "echo", caller.headers)
    assert reply.error is not None
    if binding.rest:
        assert reply.answer.status == 429
    else:
        assert reply.error["code"] == -32000
    assert "key:caller has reached its rate limit" in json.dumps(reply.error)
    assert int(reply.answer.headers["retry-after"]) > 60


def test_grpc_is_refused_by_principal_and_by_address(hub: RunningHub, caller: Caller) -> None:
    status = json.loads(hub.command("status", "--json").stdout)
    target = f"127.0.0.1:{status['agents']['grpc_port']}"
    message = pb.SendMessageRequest(
        tenant="echo",
        message=pb.Message(message_id="m-1", role=pb.Role.ROLE_USER, parts=[pb.Part(text="hello")]),
    )

    def send(key: str) -> grpc.RpcError:
        metadata = (("authorization", key), ("a2a-version", "1.0"))
        with pytest.raises(grpc.RpcError) as raised:
            stub.SendMessage(message, metadata=metadata, timeout=60)
        return raised.value

    with grpc.insecure_channel(target) as channel:
        stub = A2AServiceStub(channel)
        refused = send(caller.headers["Authorization"])
        assert refused.code() == grpc.StatusCode.RESOURCE_EXHAUSTED
        assert "key:caller has reached its rate limit" in refused.details()
        assert int(dict(refused.trailing_metadata())["grpc-retry-pushback-ms"]) > 1_000
        codes = {send("Bearer dgm_no").code() for _ in range(130)}
    assert codes == {grpc.StatusCode.UNAUTHENTICATED, grpc.StatusCode.RESOURCE_EXHAUSTED}


def test_stdio_and_command_line_are_refused_as_the_owner(hub: RunningHub) -> None:
    with hub.relay() as relay:
        relay.initialize()
        answer = relay.request("tools/call", ECHO)
    assert answer["error"]["code"] == -32000
    assert "owner:owner has reached its rate limit" in answer["error"]["message"]
    done = hub.command("call", "ok.echo", "text=x")
    assert done.returncode == 4
    assert "was refused: owner:owner has reached its rate limit" in done.stderr
    assert "try again in " in done.stderr
    shown = hub.command("limits")
    assert shown.returncode == 0
    assert "owner:owner" in shown.stdout and "calls_in_flight" in shown.stdout
    found = json.loads(hub.command("limits", "--json").stdout)
    assert {"owner:owner", "key:caller"} <= {one["name"] for one in found["lowest"]}


def test_refused_calls_ran_nothing_and_are_recorded(hub: RunningHub, caller: Caller) -> None:
    records = [one for one in hub.audit() if one["verb"].endswith("ok.echo")]
    assert records and {one["outcome"] for one in records} == {"refused"}


def test_requests_that_call_nothing_are_limited_too(hub: RunningHub) -> None:
    busy = with_key(hub, "busy")
    seen = [wire.modern_request(hub.mcp_url, "tools/list", None, busy.headers)]
    while seen[-1].status == 200:
        seen.append(wire.modern_request(hub.mcp_url, "tools/list", None, busy.headers))
    assert seen[-1].status == 429 and len(seen) <= 100
    check_wait(seen[-1], seen[-1].json()["error"]["data"]["retryAfter"])
    low = [one for one in seen if "ratelimit" in one.headers]
    assert 0 < len(low) < 30  # told when less than a quarter is left
    assert busy.ask(GET, {"id": "none"}).error["code"] == -32000
    limits = wire.get(f"{hub.url}/api/limits", busy.headers)
    assert limits.status == 429


def test_addresses_without_a_key_are_limited_and_keys_from_there_are_not(
    hub: RunningHub, caller: Caller
) -> None:
    wrong = {"Authorization": "Bearer dgm_wrong"}
    found = run_concurrently(
        lambda _: [wire.get(f"{hub.url}/api/status", wrong) for _ in range(40)], 4
    )
    answers = [answer for one in found for answer in one]
    assert {answer.status for answer in answers} == {401, 429}
    refused = next(answer for answer in answers if answer.status == 429)
    assert "too many requests without a valid key from 127.0.0.1" in refused.body.decode()
    assert wire.get(f"{hub.url}/healthz").status == 200
    assert wire.get(f"{hub.url}/api/limits", caller.headers).status == 200
    time.sleep(int(refused.headers["retry-after"]))
    assert wire.get(f"{hub.url}/api/status", wrong).status == 401


def test_flood_from_many_addresses_takes_nothing_from_a_key(
    hub: RunningHub, caller: Caller
) -> None:
    host, port = "127.0.0.1", int(hub.url.rpartition(":")[2])
    wrong = b"GET /api/status HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer dgm_no\r\n\r\n"

    def flood(address: str) -> list[bytes]:
        """The statuses of 120 requests; 100 are admitted at once, and ten per second."""
        with socket.create_connection((host, port), 10, (address, 0)) as connection:
            connection.sendall(wrong * 120)
            answers = connection.makefile("rb")
            found = []
            for _ in range(120):
                found.append(answers.readline()[9:12])
                head = iter(answers.readline, b"\r\n")
                (length,) = [int(line[15:]) for line in head if line.startswith(b"content-length")]
                answers.read(length)
        return found

    def work(number: int) -> list[bytes]:
        return [status for one in range(1, 9) for status in flood(f"127.1.{number}.{one}")]

    with ThreadPoolExecutor(6) as pool:
        floods = [pool.submit(work, number) for number in range(6)]
        honest = [wire.get(f"{hub.url}/api/limits", caller.headers).status for _ in range(10)]
        found = [status for one in floods for status in one.result()]
    assert honest == [200] * 10
    assert 48 * 100 <= found.count(b"401") < 48 * 120
    assert found.count(b"401") + found.count(b"429") == len(found)


def test_new_limits_apply_at_once_and_waiting_as_told_is_enough(
    hub: RunningHub, caller: Caller
) -> None:
    file = hub.home / "config.toml"
    text = file.read_text(encoding="utf-8")
    new = "[limits.rate]\nper_minute = 6000\nburst = 100\n[limits.rate.costs]\ntool = 60\n"
    file.write_text(text.replace(RATE, new), encoding="utf-8")

    body = {"arguments": {"text": "x"}}

    def call() -> wire.Answer:
        return wire.modern_request(hub.mcp_url, "tools/call", ECHO, caller.headers)

    def call_by_api() -> wire.Answer:
        return wire.post(f"{hub.url}/api/tools/ok.echo/call", body, caller.headers)

    def find_cost() -> float:
        return float(wire.get(f"{hub.url}/api/limits", caller.headers).json()["costs"]["tool"])

    until(lambda: find_cost() == 60)
    until(lambda: call().status == 200)
    answer = until(lambda: None if (answer := call_by_api()).status == 200 else answer)
    assert answer is not None
    wait = answer.json()["error"]["retry_after"]
    assert 0 < wait < 1, answer.body  # 60 of 100 tokens a second
    time.sleep(wait)
    assert call_by_api().status == 200
    refused = told = 0
    deadline = time.monotonic() + 60
    while refused < 3 or not told:
        assert time.monotonic() < deadline, f"refused {refused} times, told {told} times"
        answer = call()
        if answer.status == 429:
            refused += 1
            time.sleep(answer.json()["error"]["data"]["retryAfter"])
            answer = call()
        assert answer.status == 200, answer.body
        told += "dragoman.hub/rate-limit" in answer.json()["result"].get("_meta", {})


@pytest.fixture
def late() -> Iterator[RunningHub]:
    config = "[limits]\noverload_delay_secs = 0.2\n"
    with run_module_hub([server_entry("ok", "faulty_server", "ok")], config) as running:
        running.wait_connected("ok")
        yield running


def test_hub_that_is_always_late_refuses_calls_and_recovers(late: RunningHub) -> None:

    def call() -> wire.Answer:
        return wire.post(f"{late.url}/api/tools/ok.echo/call", {"arguments": {"text": "x"}})

    def pause_and_call() -> wire.Answer | None:
        os.kill(late.pid, signal.SIGSTOP)
        time.sleep(0.8)  # longer than the interval of the measurements
        os.kill(late.pid, signal.SIGCONT)
        return refused if (refused := call()).status == 503 else None

    refused = until(pause_and_call)
    assert refused is not None
    assert "the hub is overloaded" in refused.json()["error"]["message"]
    assert refused.headers["retry-after"] == "1"
    until(lambda: call().status == 200)
