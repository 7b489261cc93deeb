"""What clients of a hub that was killed find at another one: their streams, calls and tasks."""

from __future__ import annotations

import http.client
import json
import time
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import psycopg
import pytest
from tests.live.cluster_rig import Balancer, Cluster, run_balancer, run_cluster
from tests.live.conftest import RunningHub
from tests.live.module_hub import text_of, until
from tests.peers import wire
from tests.peers.process import read_log, run_client, server_entry, wait_for_log
from tests.peers.sdk_client import conversation

REVISIONS = ("2025-06-18", "2025-11-25")
TASKS = "io.modelcontextprotocol/tasks"
FAR = 60
SDKS = ("sdk", "mcp1")


class Client:
    """A session with a stream of notifications and some calls at the hub that is killed."""

    def __init__(self, hub: RunningHub, cluster: Cluster, revision: str) -> None:
        self.session = wire.Session(hub.mcp_url, revision, cluster.headers)
        self.seen: dict[str, str] = {}
        """The last event of each stream."""

    def call(self, stack: ExitStack, id: str, tool: str, **arguments: Any) -> wire.Stream:
        params = {"name": tool, "arguments": arguments, "_meta": {"progressToken": id}}
        message = wire.request(id, "tools/call", params)
        return self.open(stack, "POST", message)

    def open(
        self, stack: ExitStack, method: str, message: Any = None, last: str = ""
    ) -> wire.Stream:
        headers = {**self.session.headers, **({"Last-Event-ID": last} if last else {})}
        stream = stack.enter_context(
            wire.stream(method, self.session.url, message, headers, timeout=60)
        )
        assert stream.status == 200
        return stream


def read_all(stream: wire.Stream) -> list[tuple[str, Any]]:
    found: list[tuple[str, Any]] = []
    while True:
        try:
            event = stream.next()
        except EOFError:
            return found
        if event.data:
            found.append((event.id, event.json()))


@pytest.fixture(scope="module")
def log(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("death") / "log"


@pytest.fixture(scope="module")
def cluster(log: Path) -> Iterator[Cluster]:
    servers = [server_entry("s", "sdk_server", "--log", log)]
    with run_cluster(3, servers, "[mcp]\ntask_after_secs = 0.2\n") as running:
        for hub in running.hubs:
            hub.wait_connected("s")
        yield running


def test_streams_and_tasks_of_a_killed_hub_end_at_another(cluster: Cluster, log: Path) -> None:
    first, second, third = cluster.hubs
    clients = [Client(first, cluster, revision) for revision in REVISIONS]
    last: dict[tuple[Client, str], str] = {}
    with ExitStack() as stack, ThreadPoolExecutor(2) as pool, run_balancer(cluster) as balancer:
        balancer.ports[:] = cluster.ports[:1]
        sdks = [pool.submit(call_with_sdk, client, balancer, cluster) for client in SDKS]
        broken = {}
        for client in clients:
            if client is clients[1]:
                client.session.url = second.mcp_url  # which forwards
            # A response that has ended, one in the middle, and the notifications.
            ended = client.call(stack, "ended", "s.progress", steps=3)
            last[client, "ended"] = next_event(ended).id
            read_all(ended)
            running = client.call(stack, "running", "s.progress", steps=300, pause=0.3)
            for _ in range(2):
                last[client, "running"] = next_event(running).id
            broken[client] = running
            listening = client.open(stack, "GET")
            client.call(stack, "toggle", "s.toggle")
            last[client, "listening"] = next_event(listening).id
            client.call(stack, "toggle", "s.toggle")
            next_event(listening)  # received, and lost by the client
        tasks = start_tasks(first, cluster, clients[1].session, log)
        until(lambda: is_handed_over(cluster))
        balancer.ports[:] = cluster.ports[1:]
        first.kill()
        begun = time.monotonic()
        for running in broken.values():  # it ends early: the client is not told that it failed
            with suppress(OSError, http.client.HTTPException):
                assert [one for _, one in read_all(running) if "error" in one] == []
        for name, sdk in zip(SDKS, sdks, strict=True):
            assert "interrupted" in str(sdk.result()), (name, sdk.result())
    for number, client in enumerate(clients):
        client.session.url = (second if number else third).mcp_url
        with ExitStack() as stack:
            events = read_all(client.open(stack, "GET", last=last[client, "ended"]))
            assert [one.get("params", {}).get("progress") for _, one in events] == [2, 3, None]
            assert text_of(events[-1][1]) == "3 steps"
            events = read_all(client.open(stack, "GET", last=last[client, "running"]))
            *missed, (_, answer) = events
            seen = [one["params"]["progress"] for _, one in missed]
            assert seen == list(range(3, 3 + len(missed)))
            assert answer["id"] == "running" and "interrupted" in answer["error"]["message"]
            ids = [last[client, "running"], *(id for id, _ in events)]
            assert [int(one.rpartition("-")[2]) for one in ids] == list(range(2, 2 + len(ids)))
            listening = client.open(stack, "GET", last=last[client, "listening"])
            stream, _, seq = last[client, "listening"].rpartition("-")
            missed_one = next_event(listening)
            assert missed_one.id == f"{stream}-{int(seq) + 1}"
            # Whether lists have changed meanwhile is unknown: the client reads them again.
            announced = [next_event(listening) for _ in range(3)]
            assert [one.id for one in announced] == [
                f"{stream}-{int(seq) + 2 + n}" for n in range(3)
            ]
            # The connection breaks again, and what the client has lost comes again.
            again = client.open(stack, "GET", last=last[client, "listening"])
            assert [next_event(again).id for _ in range(4)] == [
                one.id for one in (missed_one, *announced)
            ]
    assert time.monotonic() - begun < 30
    check_tasks(second, third, cluster, clients[1].session, tasks)
    finished = [one["key"] for one in read_log(log) if one.get("event") == "started"]
    assert sorted(finished) == ["legacy", "modern"], "no call was made twice"


def call_with_sdk(client: str, balancer: Balancer, cluster: Cluster) -> Any:
    """What an official client says of a call whose hub is killed."""
    arguments = json.dumps({"steps": 600, "pause": 0.1})
    slow = ("--call", "mcp_s_progress", "--arguments", arguments, "--timeout", "40")
    header = f"Authorization:{cluster.headers['Authorization']}"
    where = ("--http", f"{balancer.url}/mcp", "--header", header)
    if client == "sdk":
        return conversation("--mode", "legacy", *slow, *where)
    return run_client("mcp1_client", *slow, *where, timeout=60)


def is_handed_over(cluster: Cluster) -> bool:
    """Whether what was said so far is in the database."""
    query = """
    SELECT (SELECT count(*) FILTER (WHERE stream LIKE 'g%') >= 4 AND count(*) FILTER
              (WHERE is_last) >= 2 AND count(DISTINCT owner) = 4 FROM dragoman.handover_events)
       AND (SELECT count(*) FILTER (WHERE state = 'completed') = 2 AND count(*) = 4
            FROM dragoman.handover_tasks)
    """
    with psycopg.connect(cluster.database) as connection:
        row = connection.execute(query).fetchone()
        return row is not None and bool(row[0])


def next_event(stream: wire.Stream) -> wire.Event:
    event = stream.next()
    while not event.data:
        event = stream.next()
    return event


def start_tasks(
    hub: RunningHub, cluster: Cluster, session: wire.Session, log: Path
) -> Mapping[str, str]:
    """Starts tasks in both forms: one that ends and one that does not."""
    found: dict[str, str] = {}
    for name, arguments in (
        ("done", {"name": "s.progress", "arguments": {"steps": 2}}),
        ("open", {"name": "s.slow", "arguments": {"seconds": FAR, "key": "legacy"}}),
    ):
        answer = session.request("tools/call", {**arguments, "task": {"ttl": 600_000}})
        found[name] = answer["result"]["task"]["taskId"]
    for name, arguments in (
        ("modern done", {"name": "s.progress", "arguments": {"steps": 2, "pause": 0.3}}),
        ("modern open", {"name": "s.slow", "arguments": {"seconds": FAR, "key": "modern"}}),
    ):
        found[name] = ask(hub, cluster, "tools/call", arguments)["result"]["taskId"]
    until(
        lambda: (
            get_task(hub, cluster, found["modern done"])["status"] == "completed"
            and session.request("tasks/get", {"taskId": found["done"]})["result"]["status"]
            == "completed"
        )
    )
    for key in ("legacy", "modern"):
        wait_for_log(log, event="started", key=key)
    return found


def check_tasks(
    second: RunningHub,
    third: RunningHub,
    cluster: Cluster,
    session: wire.Session,
    tasks: Mapping[str, str],
) -> None:
    for hub in (second, third):
        session.url = hub.mcp_url
        answer = session.request("tasks/get", {"taskId": tasks["done"]})
        assert answer.get("result", {}).get("status") == "completed", answer
        result = session.request("tasks/result", {"taskId": tasks["done"]})
        assert text_of(result) == "2 steps"
        status = session.request("tasks/get", {"taskId": tasks["open"]})["result"]
        assert status["status"] == "failed" and "interrupted" in status["statusMessage"]
        assert "interrupted" in json.dumps(
            session.request("tasks/result", {"taskId": tasks["open"]})["result"]
        )
        found = get_task(hub, cluster, tasks["modern done"])
        assert text_of({"result": found["result"]}) == "2 steps"
        found = get_task(hub, cluster, tasks["modern open"])
        assert "interrupted" in json.dumps(found), found
        unknown = ask(hub, cluster, "tasks/get", {"taskId": tasks["open"][:-4] + "0000"})
        assert "was not found" in unknown["error"]["message"]


def ask(hub: RunningHub, cluster: Cluster, method: str, params: Mapping[str, Any]) -> Any:
    meta: dict[str, Any] = {
        "io.modelcontextprotocol/clientCapabilities": {"extensions": {TASKS: {}}}
    }
    return wire.modern_request(
        hub.mcp_url, method, {**params, "_meta": meta}, cluster.headers, timeout=60
    ).rpc()


def get_task(hub: RunningHub, cluster: Cluster, id: str) -> Any:
    return ask(hub, cluster, "tasks/get", {"taskId": id})["result"]
