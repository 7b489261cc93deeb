"""Two hubs behind a balancer without affinity serve the clients of both eras as one hub does."""

from __future__ import annotations

import json
import re
import shutil
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

import grpc
import pytest
from a2a.types import a2a_pb2 as pb
from a2a.types import a2a_pb2_grpc
from tests.live.a2a_hub import (
    BINDINGS,
    SEND,
    STREAM,
    SUBSCRIBE,
    V10,
    Caller,
    a2a_config,
    agents_env,
    steps,
    with_key,
)
from tests.live.cluster_rig import KEY, Balancer, Cluster, run_balancer, run_cluster
from tests.live.conftest import RunningHub
from tests.live.module_hub import until
from tests.live.test_a2a_webhooks import Receiver, receiving
from tests.peers import wire
from tests.peers.process import read_log, run_client, server_entry
from tests.peers.sdk_client import conversation

PUBLIC_URL = "https://hub.test"


@pytest.fixture(scope="module")
def gates() -> Iterator[Path]:
    folder = Path(tempfile.mkdtemp(prefix="dgg", dir="/tmp"))
    yield folder
    shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture(scope="module")
def cluster(gates: Path) -> Iterator[Cluster]:
    servers = [
        server_entry("new", "sdk_server", "--era", "modern"),
        server_entry(
            "only", "sdk_server", "--era", "legacy", "--log", gates / "only.log", placement="one"
        ),
    ]
    rate = "[limits.rate]\nper_minute = 1\nburst = 100\n"  # of principals that are not the owner
    config = f'{rate}[server]\npublic_url = "{PUBLIC_URL}"\n{a2a_config(a2a={"grpc_port": 0})}'
    with run_cluster(2, servers, config, agents_env(gates)) as running:
        for hub in running.hubs:
            hub.wait_connected("new", "only")
        yield running


@pytest.fixture
def balancer(cluster: Cluster) -> Iterator[Balancer]:
    with run_balancer(cluster, each_request=True) as running:
        yield running


CALL = ("--call", "mcp_new_add", "--arguments", '{"a": 1, "b": 2}')


@pytest.mark.parametrize("mode", ["2026-07-28", "legacy"])
def test_an_sdk_client_of_each_era_converses_with_both_hubs(
    cluster: Cluster, balancer: Balancer, mode: str
) -> None:
    header = ("--header", f"Authorization: {cluster.headers['Authorization']}")
    got = conversation("--mode", mode, *header, *CALL, "--http", f"{balancer.url}/mcp")
    assert "result" in got, (got, [hub.log() for hub in cluster.hubs])
    assert got["result"]["structuredContent"] == {"sum": 3}, got
    assert set(balancer.served) == set(cluster.ports)


def test_the_previous_sdk_converses_with_both_hubs(cluster: Cluster, balancer: Balancer) -> None:
    header = ("--header", f"Authorization: {cluster.headers['Authorization']}")
    for transport in (("--http", f"{balancer.url}/mcp"), ("--sse", f"{balancer.url}/sse")):
        balancer.served.clear()
        got = run_client("mcp1_client", *header, *CALL, *transport)
        assert "result" in got, (got, [hub.log() for hub in cluster.hubs])
        assert got["result"]["structuredContent"] == {"sum": 3}, got
        assert set(balancer.served) == set(cluster.ports)


def test_a_session_is_served_at_either_hub(cluster: Cluster) -> None:
    first, second = cluster.hubs
    session = wire.Session(first.mcp_url, headers=cluster.headers)
    session.url = second.mcp_url
    answer = session.request("tools/call", {"name": "mcp_new_add", "arguments": {"a": 2, "b": 2}})
    assert answer["result"]["structuredContent"] == {"sum": 4}, answer


def test_tasks_are_served_at_either_hub_in_every_dialect(cluster: Cluster, gates: Path) -> None:
    for binding in BINDINGS:
        first, second = (Caller(hub, "actor", {}, binding) for hub in cluster.hubs)
        key = f"gate{BINDINGS.index(binding)}"
        todo = steps(["mark", f"{key}.begun"], ["wait", key], ["reply", "done"])
        with first.stream(STREAM, binding.params(todo)) as stream:
            begun = binding.event(stream.next())
            until((gates / f"{key}.begun").exists)
            id = find_task_id(begun)
            assert find_state(second.get(id)) in ("working", "TASK_STATE_WORKING"), binding
            with second.stream(SUBSCRIBE, {"id": id}) as other:
                other.next()
                (gates / key).touch()
                rest = binding.events(other)
            assert rest == binding.events(stream)[-len(rest) :], binding
        assert find_state(second.get(id)) in ("completed", "TASK_STATE_COMPLETED")
        assert (gates / f"{key}.begun").read_text("utf-8") == "x"


def test_grpc_names_the_bindings_that_reach_a_task_of_another_hub(
    cluster: Cluster, gates: Path
) -> None:
    first, second = cluster.hubs
    caller = Caller(first, "actor", {}, V10)
    with caller.stream(STREAM, V10.params(steps(["wait", "grpc"], ["reply", "done"]))) as stream:
        id = find_task_id(V10.event(stream.next()))
        until(lambda: find_state(Caller(second, "actor", {}, V10).get(id)) != "")
        assert call_grpc(first, "GetTask", pb.GetTaskRequest(id=id)) == "OK"
        for method, request in {
            "GetTask": pb.GetTaskRequest(id=id),
            "CancelTask": pb.CancelTaskRequest(id=id),
            "SubscribeToTask": pb.SubscribeToTaskRequest(id=id),
            "ListTaskPushNotificationConfigs": pb.ListTaskPushNotificationConfigsRequest(
                task_id=id
            ),
        }.items():
            refusal = call_grpc(second, method, request)
            assert refusal.startswith("UNAVAILABLE") and "JSONRPC" in refusal, (method, refusal)
        (gates / "grpc").touch()
        V10.events(stream)
    assert "Traceback" not in second.log()


def call_grpc(hub: RunningHub, method: str, request: Any) -> str:
    """Returns the status of the call, and the words of an error."""
    port = hub.api("/api/status")["agents"]["grpc_port"]
    metadata = [("a2a-version", "1.0"), ("authorization", f"Bearer {KEY}")]
    with grpc.insecure_channel(f"127.0.0.1:{port}") as channel:
        call = getattr(a2a_pb2_grpc.A2AServiceStub(channel), method)
        try:
            answer = call(request, metadata=metadata, timeout=20)
            if method.startswith("Subscribe"):
                next(answer)
        except grpc.RpcError as error:
            return f"{error.code().name}: {error.details()}"
    return "OK"


def find_task_id(event: Any) -> str:
    task = event.get("task", event)
    return str(task.get("id") or task["statusUpdate"]["taskId"])


def find_state(task: Any) -> str:
    return str(task["status"]["state"])


def test_a_forwarded_request_is_charged_once(cluster: Cluster) -> None:
    first, second = cluster.hubs
    here = with_key(first, "counted", "echo")
    there = Caller(second, "echo", here.headers)
    until(lambda: wire.get(f"{second.url}/api/status", here.headers).status == 200)
    id = here.send("hello")["id"]
    before = [count_left(hub, here.headers) for hub in cluster.hubs]
    for _ in range(10):
        assert there.get(id)["id"] == id
    left = [count_left(hub, here.headers) for hub in cluster.hubs]
    # Each look at the budget costs one; a minute brings one back.
    assert before[0] - left[0] in (0, 1) and before[1] - left[1] in (10, 11), (before, left)


def count_left(hub: RunningHub, headers: Any) -> int:
    budgets = wire.get(f"{hub.url}/api/limits", headers).json()["budgets"]
    return int(next(one["remaining"] for one in budgets if one["scope"] == "principal"))


def test_a_large_message_and_a_large_result_are_forwarded(cluster: Cluster) -> None:
    first, second = cluster.hubs
    session = wire.Session(first.mcp_url, headers=cluster.headers)
    session.url = second.mcp_url
    params = {"name": "mcp_new_no_such_tool", "arguments": {"text": "x" * (10 * 1024 * 1024 - 200)}}
    answer = session.request("tools/call", params, timeout=60)
    assert answer["error"]["code"] == -32602, str(answer)[:300]
    size = 4 * 1024 * 1024
    params = {"name": "mcp_new_echo", "arguments": {"text": "y" * size}}
    answer = session.request("tools/call", params, timeout=60)
    kept = re.search(r"dragoman://results/[\w-]+", answer["result"]["content"][0]["text"])
    assert kept is not None, str(answer)[-300:]
    answer = session.request("resources/read", {"uri": kept[0]}, timeout=60)
    assert "result" in answer, str(answer)[:300]
    assert answer["result"]["contents"][0]["text"].count("y") >= size


def test_a_message_of_a_batch_that_belongs_to_another_hub_is_answered(cluster: Cluster) -> None:
    first, second = cluster.hubs
    session = wire.Session(first.mcp_url, "2025-03-26", cluster.headers)
    uri = f"dragoman://results/{find_id(second)}{'A' * 24}"
    batch = [wire.request(7, "ping"), wire.request(8, "resources/read", {"uri": uri})]
    answers = {one["id"]: one for one in session.post(batch).json()}
    assert answers[7]["result"] == {}
    assert "another hub" in answers[8]["error"]["message"], answers


def test_each_hub_shows_the_events_of_all(cluster: Cluster) -> None:
    first, second = cluster.hubs
    path = f"{second.url}/api/events"
    with wire.stream("GET", path, headers=cluster.headers, timeout=20) as stream:
        seen = []

        def call() -> bool:
            assert "result" in first.call("mcp_new_add", {"a": 1, "b": 2})
            with suppress(TimeoutError):
                seen.append(stream.next().json())
            return any("new.add" in json.dumps(one) for one in seen)

        until(call)


def test_a_session_of_the_console_is_served_at_either_hub(cluster: Cluster) -> None:
    first, second = cluster.hubs
    headers = {"Content-Type": "application/x-www-form-urlencoded", "Origin": PUBLIC_URL}
    form = f"key={KEY}".encode()
    signed_in = wire.http_request("POST", f"{first.url}/console/login", form, headers, 20)
    assert signed_in.status in (302, 303), signed_in
    cookie = {"Cookie": signed_in.headers["set-cookie"].partition(";")[0]}
    for hub in (first, second):
        answer = wire.get(f"{hub.url}/api/status", cookie)
        assert answer.status == 200 and answer.json()["home"] == str(first.home), answer
        assert wire.get(f"{hub.url}/console/", cookie).status == 200
    forged = {"Cookie": cookie["Cookie"][:-4] + "AAAA"}
    assert wire.get(f"{second.url}/api/status", forged).status == 401


def test_a_server_with_one_place_runs_at_one_hub_and_serves_all(
    cluster: Cluster, gates: Path
) -> None:
    for number, hub in enumerate(cluster.hubs):
        answer = hub.call("mcp_only_add", {"a": number, "b": 2})
        assert answer["result"].get("structuredContent") == {"sum": number + 2}, answer
    begun = [one for one in read_log(gates / "only.log") if one.get("event") == "start"]
    assert len(begun) == 1, begun


# --- a hub ends -----------------------------------------------------------------------------------


def call_add(session: wire.Session, a: int) -> Any:
    params = {"name": "mcp_new_add", "arguments": {"a": a, "b": 1}}
    return session.request("tools/call", params, timeout=20)


def begin_delivery(hub: RunningHub, receiver: Receiver) -> None:
    """A task has ended, and its webhook has not answered the first notification."""
    receiver.answers.clear()
    params = V10.params("hello")
    params["configuration"] = {"taskPushNotificationConfig": {"url": receiver.url}}
    assert Caller(hub, "echo").ask(SEND, params).error is None
    assert receiver.asked.wait(10)


def check_delivery(receiver: Receiver) -> None:
    """The heir has delivered the rest: only the notification that was being sent came twice."""
    receiver.answers.set()
    done = "TASK_STATE_COMPLETED"
    assert until(lambda: receiver.taken and done in json.dumps(receiver.taken[-1][1]), 20)
    kinds = [next(iter(body)) for _, body in receiver.taken]
    rest = ["artifactUpdate", "statusUpdate"]
    assert kinds in (["statusUpdate", *rest], ["statusUpdate", "statusUpdate", *rest]), kinds


def test_a_session_goes_on_after_its_hub_was_killed_or_has_stopped(gates: Path) -> None:
    servers = [server_entry("new", "sdk_server", "--era", "modern")]
    config = a2a_config(a2a={"push_private": True})
    with receiving() as receiver, run_cluster(3, servers, config, agents_env(gates)) as cluster:
        for hub in cluster.hubs:
            hub.wait_connected("new")
        first, second, third = cluster.hubs
        session = wire.Session(first.mcp_url, headers=cluster.headers)
        rows = json.loads(second.command("cluster", "status", "--json").stdout)
        assert [one["state"] for one in rows["hubs"]] == ["ready"] * 3, rows
        begin_delivery(first, receiver)
        first.kill()
        session.url = second.mcp_url
        begun = time.monotonic()
        answer = call_add(session, 1)  # waits until the lease of the first hub has expired
        assert answer["result"]["structuredContent"] == {"sum": 2}, answer
        assert time.monotonic() - begun < 10
        session.url = third.mcp_url  # forwarded to the heir
        assert call_add(session, 2)["result"]["structuredContent"] == {"sum": 3}
        check_delivery(receiver)
        heir = next(one["heir"] for one in third.api("/api/cluster")["hubs"] if one["heir"])
        owners = {hub: find_id(hub) for hub in (second, third)}
        other = next(hub for hub, id in owners.items() if id != heir)
        [stopping] = [hub for hub in owners if hub is not other]
        # The one that stops hands the session over. A call in its last moment may fail.
        session.url = other.mcp_url
        with ThreadPoolExecutor(1) as pool:
            stopped = pool.submit(stopping.stop)
            number, failed = 2, 0
            while not stopped.done() or number < 5:
                number += 1
                answer = call_add(session, number)
                result = answer.get("result", {"isError": True})
                if result.get("isError"):
                    failed += 1
                else:
                    assert result["structuredContent"] == {"sum": number + 1}, answer
            assert stopped.result() == 0 and failed <= 1, failed
        assert call_add(session, 10)["result"]["structuredContent"] == {"sum": 11}


def find_id(hub: RunningHub) -> str:
    return str(next(one["id"] for one in hub.api("/api/cluster")["hubs"] if one["is_this"]))
