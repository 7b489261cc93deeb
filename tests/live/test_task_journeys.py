"""Tasks through a running hub: servers of both forms over both transports, clients of both forms,
and clients without tasks.
"""

from __future__ import annotations

import json
import shutil
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from tests.live.conftest import RunningHub
from tests.live.matrix_client import Client
from tests.live.matrix_fixture import Log
from tests.live.matrix_transports import OverHttp, connect
from tests.live.module_hub import error_text, run_module_hub, text_of, until
from tests.peers.process import HttpPeer, server_entry

pytestmark = pytest.mark.promise("B12")

NEW, OLD, OLDER = "2026-07-28", "2025-11-25", "2025-06-18"
TASKS = "io.modelcontextprotocol/tasks"
KNOWS: dict[str, Any] = {"extensions": {TASKS: {}}, "elicitation": {"form": {}}}
ASKABLE: dict[str, Any] = {"elicitation": {}}
RELATED = "io.modelcontextprotocol/related-task"
SERVERS = {
    "new_stdio": ("new", "stdio"),
    "new_http": ("new", "http"),
    "old_stdio": ("old", "stdio"),
    "old_http": ("old", "http"),
}
TRANSPORTS = ("http", "stdio")
every_server = pytest.mark.parametrize("server", SERVERS)
KEY = "k" * 32


@dataclass(frozen=True)
class HubRig:
    hub: RunningHub
    logs: Mapping[str, Log]

    def client(
        self, revision: str, way: str = "http", features: Mapping[str, Any] = KNOWS
    ) -> Client:
        return connect(self.hub, revision, way, features)

    def sent(self, server: str, method: str) -> list[dict[str, Any]]:
        return self.logs[server].entries(method=method)

    def until_sent(self, server: str, method: str, after: int = 0) -> dict[str, Any]:
        return until(lambda: self.sent(server, method)[after:])[-1]


@contextmanager
def run_rig(config: str, *servers: str, **keys: Any) -> Iterator[HubRig]:
    folder = Path(tempfile.mkdtemp(prefix="dgt", dir="/tmp"))
    logs = {name: Log(folder / f"{name}.log") for name in servers}
    try:
        with ExitStack() as stack:
            entries = []
            for name in servers:
                form, transport = SERVERS[name]
                args = ("--form", form, "--log", logs[name].file)
                if transport == "stdio":
                    entries.append(
                        server_entry(name, "task_server", *args, interactive=True, **keys)
                    )
                else:
                    peer = HttpPeer("task_server", "--transport", "http", *args)
                    stack.callback(peer.close)
                    entries.append(server_entry(name, "http", peer.url, interactive=True, **keys))
            hub = stack.enter_context(run_module_hub(entries, config))
            hub.wait_connected(*servers)
            yield HubRig(hub, logs)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture(scope="module")
def rig() -> Iterator[HubRig]:
    config = f'api_key = "{KEY}"\n[mcp]\nstdio_expose = ["*"]\ntask_after_secs = 0.3\n'
    with run_rig(config, *SERVERS) as made:
        yield made


def created(answer: Mapping[str, Any]) -> str:
    """The id of the task that was made of a call."""
    result = answer["result"]
    if "task" in result:
        assert result["task"]["status"] == "working"
        return str(result["task"]["taskId"])
    assert (result["resultType"], result["status"]) == ("task", "working"), result
    return str(result["taskId"])


def get(client: Client, task: str) -> dict[str, Any]:
    return dict(client.request("tasks/get", {"taskId": task})["result"])


def until_status(client: Client, task: str, status: str) -> dict[str, Any]:
    end = time.monotonic() + 60
    while (now := get(client, task))["status"] != status:
        assert time.monotonic() < end, now
        time.sleep(0.02)
    return now


def follows(server: str) -> str:
    """What the hub asks once it has heard that the server made a task."""
    return "tasks/get" if SERVERS[server][0] == "new" else "tasks/result"


def as_task(client: Client, tool: str, arguments: Mapping[str, Any], **task: Any) -> str:
    """2025-11-25: asks for a task."""
    params = {"name": tool, "arguments": dict(arguments), "task": task}
    return created(client.request("tools/call", params))


# --- clients that know the extension


@every_server
@pytest.mark.parametrize("way", TRANSPORTS)
def test_server_task_becomes_the_clients_task(rig: HubRig, server: str, way: str) -> None:
    with rig.client(NEW, way) as client:
        for tool in ("slow", "must"):
            id = created(client.call(f"{server}.{tool}", {"seconds": 0.15}))
            now = until_status(client, id, "completed")
            assert now["result"]["content"][0]["text"] == f"{tool} is done"
            assert RELATED not in json.dumps(now), "the server's id is nobody's"
            assert not any(id in str(one) for one in rig.sent(server, "tasks/get"))
        assert text_of(client.call(f"{server}.greet", {"name": "Ada"})) == "Hello, Ada!"


@every_server
def test_slow_tool_becomes_a_task_after_the_grace_period(rig: HubRig, server: str) -> None:
    with rig.client(NEW) as client, rig.client(NEW, features={}) as simple:
        id = created(client.call(f"{server}.plain", {"seconds": 1}))
        assert text_of(simple.call(f"{server}.plain", {"seconds": 0.6})) == "plain is done"
        now = until_status(client, id, "completed")
        assert now["result"]["content"][0]["text"] == "plain is done"


@every_server
def test_task_questions_reach_the_client(rig: HubRig, server: str) -> None:
    with rig.client(NEW) as client:
        id = created(client.call(f"{server}.asks", {"count": 2}))
        names = set()
        for turn in range(2):
            now = until_status(client, id, "input_required")
            ((name, question),) = now["inputRequests"].items()
            assert question["method"] == "elicitation/create"
            assert question["params"]["message"] == f"question {turn}"
            names.add(name)
            answer = {"action": "accept", "content": {"yes": bool(turn)}}
            client.request("tasks/update", {"taskId": id, "inputResponses": {name: answer}})
        done = json.loads(until_status(client, id, "completed")["result"]["content"][0]["text"])
        assert [one["content"] for one in done.values()] == [{"yes": False}, {"yes": True}]
        assert len(names) == 2


@every_server
def test_failed_task_fails_like_the_call(rig: HubRig, server: str) -> None:
    with rig.client(NEW) as client:
        id = created(client.call(f"{server}.fails"))
        now = until_status(client, id, "completed")
        assert now["result"]["isError"] is True
        assert now["result"]["content"][0]["text"] == "it failed"
        id = created(client.call(f"{server}.panics"))
        now = until_status(client, id, "failed")
        assert (now["error"]["code"], now["error"]["message"]) == (-32603, "panic")
        id = created(client.call(f"{server}.forgets"))
        now = until_status(client, id, "completed")
        assert now["result"]["isError"] is True
        assert "no longer knows" in now["result"]["content"][0]["text"]


@every_server
@pytest.mark.parametrize("asks", [False, True])
def test_cancel_reaches_the_server(rig: HubRig, server: str, asks: bool) -> None:
    before = len(rig.sent(server, "tasks/cancel"))
    tool, arguments = ("asks", {"count": 1}) if asks else ("slow", {"seconds": 30})
    with rig.client(NEW) as client:
        id = created(client.call(f"{server}.{tool}", arguments))
        if asks:
            until_status(client, id, "input_required")
        ack = client.request("tasks/cancel", {"taskId": id})["result"]
        assert ack["resultType"] == "complete" and "status" not in ack
        assert get(client, id)["status"] == "cancelled"
        cancelled = rig.until_sent(server, "tasks/cancel", before)
        assert cancelled["params"]["taskId"] != id
        if SERVERS[server] == ("new", "http"):
            assert cancelled["name"] == cancelled["params"]["taskId"], "Mcp-Name"


@pytest.mark.parametrize("way", TRANSPORTS)
@pytest.mark.parametrize("server", ["new_http", "old_stdio"])
def test_task_subscription_delivers_updates(rig: HubRig, server: str, way: str) -> None:
    with rig.client(NEW, way) as client:
        id = created(client.call(f"{server}.asks", {"count": 1}))
        wanted = {"notifications": {"taskIds": [id, "0" * 32]}}
        listening = client.begin("subscriptions/listen", wanted)
        granted = client.wait_notification("notifications/subscriptions/acknowledged")
        assert granted.params["notifications"] == {"taskIds": [id]}
        asked = client.wait_notification("notifications/tasks", status="input_required")
        (name,) = asked.params["inputRequests"]
        answer = {"action": "accept", "content": {"yes": True}}
        client.request("tasks/update", {"taskId": id, "inputResponses": {name: answer}})
        done = client.wait_notification("notifications/tasks", status="completed")
        assert done.params["taskId"] == id and "content" in done.params["result"]
        subscription = done.params["_meta"]["io.modelcontextprotocol/subscriptionId"]
        assert subscription == listening
        client.cancel(listening)


# --- clients that do not


@pytest.mark.parametrize("server", ["new_stdio", "new_http"])
def test_modern_client_without_tasks_receives_server_progress(rig: HubRig, server: str) -> None:
    with rig.client(NEW, features={}) as client:
        error = client.call(f"{server}.must")["error"]
        assert error["code"] == -32021
        assert error["data"] == {"requiredCapabilities": {"extensions": {TASKS: {}}}}
        assert text_of(client.call(f"{server}.slow", {"seconds": 0.1})) == "slow is done"
        for method in ("tasks/get", "tasks/cancel"):
            lacking = client.request(method, {"taskId": "x"})
            assert lacking["error"]["code"] == -32021
        lacking = client.request("subscriptions/listen", {"notifications": {"taskIds": []}})
        assert lacking["error"]["code"] == -32021


@pytest.mark.parametrize("server", ["old_stdio", "old_http"])
def test_modern_client_without_tasks_waits_for_legacy_server_tasks(
    rig: HubRig, server: str
) -> None:
    with rig.client(NEW, features=ASKABLE) as client:
        assert text_of(client.call(f"{server}.must", {"seconds": 0.1})) == "must is done"
        answer = client.call(f"{server}.asks", {"count": 1})
        assert "Ada" in text_of(answer) and len(client.asked) == 1


@every_server
@pytest.mark.parametrize(("revision", "way"), [(OLD, "http"), (OLD, "stdio"), (OLDER, "http")])
def test_handshake_clients_wait_and_see_progress(
    rig: HubRig, server: str, revision: str, way: str
) -> None:
    with rig.client(revision, way, ASKABLE) as client:
        answer = client.call(f"{server}.must", {"seconds": 0.4}, progressToken="p")
        assert text_of(answer) == "must is done"
        received = client.wait_notification("notifications/progress", progressToken="p")
        assert received.params["message"] == "half way"
        assert "resultType" not in answer["result"] and RELATED not in json.dumps(answer)
        answer = client.call(f"{server}.asks", {"count": 2})
        assert text_of(answer).count("Ada") == 2 and len(client.asked) == 2


@every_server
def test_cancel_by_a_waiting_client_cancels_the_task(rig: HubRig, server: str) -> None:
    before = len(rig.sent(server, "tasks/cancel"))
    followed = len(rig.sent(server, follows(server)))
    with rig.client(OLDER, features={}) as client:
        number = client.begin("tools/call", {"name": f"{server}.must", "arguments": {"seconds": 9}})
        rig.until_sent(server, follows(server), followed)
        client.cancel(number)
        rig.until_sent(server, "tasks/cancel", before)


@every_server
def test_older_client_sees_no_tasks(rig: HubRig, server: str) -> None:
    with rig.client(OLDER, features={}) as client:
        params = {"name": f"{server}.slow", "arguments": {"seconds": 0.1}, "task": {}}
        assert text_of(client.request("tools/call", params)) == "slow is done"
        for method in ("tasks/get", "tasks/list", "tasks/result", "tasks/cancel", "tasks/update"):
            assert client.request(method, {"taskId": "x"})["error"]["code"] == -32601
        assert "tasks" not in client.initialized["capabilities"]


# --- the form of 2025-11-25


@every_server
@pytest.mark.parametrize("way", TRANSPORTS)
def test_legacy_tasks_work_with_every_server(rig: HubRig, server: str, way: str) -> None:
    with rig.client(OLD, way, ASKABLE) as client:
        assert client.initialized["capabilities"]["tasks"]["requests"] == {"tools": {"call": {}}}
        for tool in ("slow", "plain", "must"):
            id = as_task(client, f"{server}.{tool}", {"seconds": 0.15}, ttl=30_000)
            assert get(client, id)["ttl"] == 30_000
            answer = client.request("tasks/result", {"taskId": id})
            assert text_of(answer) == f"{tool} is done"
            assert answer["result"]["_meta"][RELATED] == {"taskId": id}
            assert get(client, id)["status"] == "completed"
            client.wait_notification("notifications/tasks/status", taskId=id, status="completed")
        listed = client.request("tasks/list")["result"]["tasks"]
        assert id in [one["taskId"] for one in listed]


@every_server
@pytest.mark.parametrize("way", TRANSPORTS)
def test_legacy_task_elicits_while_waiting_for_its_result(
    rig: HubRig, server: str, way: str
) -> None:
    with rig.client(OLD, way, ASKABLE) as client:
        id = as_task(client, f"{server}.asks", {"count": 2})
        until_status(client, id, "input_required")
        assert client.asked == []
        answer = client.request("tasks/result", {"taskId": id})
        assert text_of(answer).count("Ada") == 2
        assert [one.params["_meta"] for one in client.asked] == [{RELATED: {"taskId": id}}] * 2
        assert [one.params["message"] for one in client.asked] == ["question 0", "question 1"]


@every_server
def test_legacy_task_fails_and_cancels_correctly(rig: HubRig, server: str) -> None:
    with rig.client(OLD, features=ASKABLE) as client:
        id = as_task(client, f"{server}.fails", {})
        assert client.request("tasks/result", {"taskId": id})["result"]["isError"] is True
        assert get(client, id)["status"] == "failed"
        id = as_task(client, f"{server}.panics", {})
        error = client.request("tasks/result", {"taskId": id})["error"]
        assert (error["code"], error["message"]) == (-32603, "panic")
        before = len(rig.sent(server, "tasks/cancel"))
        followed = len(rig.sent(server, follows(server)))
        id = as_task(client, f"{server}.slow", {"seconds": 30})
        rig.until_sent(server, follows(server), followed)
        cancelled = client.request("tasks/cancel", {"taskId": id})
        assert cancelled["result"]["status"] == "cancelled"
        assert client.request("tasks/cancel", {"taskId": id})["error"]["code"] == -32602
        rig.until_sent(server, "tasks/cancel", before)


# --- whose, how many, how long


@pytest.mark.promise("B12")
def test_tasks_are_hidden_from_other_principals(rig: HubRig) -> None:
    made = rig.hub.command("keys", "create", "bob").stdout.strip()
    bobs = {"Authorization": f"Bearer {made}"}
    with (
        rig.client(NEW) as mine,
        OverHttp(rig.hub, NEW, KNOWS, bobs) as bob,
        OverHttp(rig.hub, OLD, ASKABLE, bobs) as old_bob,
    ):
        id = created(mine.call("new_stdio.slow", {"seconds": 30}))
        unknown = bob.request("tasks/get", {"taskId": "0" * 32})["error"]
        for client, methods in (
            (bob, ("tasks/get", "tasks/update", "tasks/cancel")),
            (old_bob, ("tasks/get", "tasks/result", "tasks/cancel")),
        ):
            for method in methods:
                error = client.request(method, {"taskId": id, "inputResponses": {}})["error"]
                assert error["code"] == -32602
                assert error["message"] == unknown["message"].replace("0" * 32, id)
        assert old_bob.request("tasks/list")["result"]["tasks"] == []
        bob.begin("subscriptions/listen", {"notifications": {"taskIds": [id]}})
        granted = bob.wait_notification("notifications/subscriptions/acknowledged")
        assert granted.params["notifications"] == {"taskIds": []}
        assert get(mine, id)["status"] == "working", "and has changed nothing"
        with rig.client(OLD) as again:
            assert get(again, id)["status"] == "working", "the same principal by another client"
        mine.request("tasks/cancel", {"taskId": id})


def test_tasks_are_bounded_expire_and_end_with_the_hub() -> None:
    config = (
        '[mcp]\nstdio_expose = ["*"]\ntask_after_secs = 0.2\n[limits]\ntasks_each = 2\n'
        "task_timeout_secs = 60\nprogress_timeout_secs = 30\ntool_timeout_secs = 20\n"
    )
    with run_rig(config, "new_http", "old_http") as rig:
        with rig.client(NEW) as client, rig.client(OLD, features=ASKABLE) as old:
            brief = as_task(old, "old_http.slow", {"seconds": 30}, ttl=1_000)
            lasting = created(client.call("new_http.slow", {"seconds": 30}))
            params = {"name": "old_http.slow", "arguments": {"seconds": 1}, "task": {}}
            refused = old.request("tools/call", params)
            assert refused["error"]["code"] == -32000 and "2 tasks" in error_text(refused)
            waited = client.call("new_http.slow", {"seconds": 0.5})
            assert text_of(waited) == "slow is done", "there is no room: the call waits"
            until(lambda: "error" in old.request("tasks/get", {"taskId": brief}))
            gone = old.request("tasks/get", {"taskId": brief})["error"]
            assert gone["code"] == -32602 and "has expired" in gone["message"]
            rig.until_sent("old_http", "tasks/cancel")
            assert get(client, lasting)["ttlMs"] == 120_000
        assert rig.sent("new_http", "tasks/cancel") == []
        rig.hub.stop()
        assert len(rig.sent("new_http", "tasks/cancel")) == 1


@pytest.mark.promise("P3")
def test_server_task_may_outlast_the_tool_timeout() -> None:
    config = "[limits]\ntool_timeout_secs = 1.5\nprogress_timeout_secs = 1.5\n"
    servers = ("new_stdio", "old_stdio")
    with (
        run_rig(config, *servers, timeout_secs=2) as rig,
        rig.client(OLDER, features={}) as simple,
        rig.client(OLDER, features=ASKABLE) as askable,
    ):
        pairs = [(server, client) for server in servers for client in (simple, askable)]
        begun = [
            client.begin("tools/call", {"name": f"{server}.must", "arguments": {"seconds": 2.5}})
            for server, client in pairs
        ]
        plain = [
            simple.begin("tools/call", {"name": f"{server}.plain", "arguments": {"seconds": 2.5}})
            for server in servers
        ]
        for (_, client), number in zip(pairs, begun, strict=True):
            assert text_of(client.wait(number)) == "must is done"
        for number in plain:
            assert "took longer" in error_text(simple.wait(number))
