"""Two hubs behind a balancer without affinity serve the clients of both eras as one hub does."""

from __future__ import annotations

import asyncio
import json
import re
import shutil
import tempfile
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import grpc
import httpx
import httpx2
import mcp.types as types
import psycopg
import pytest
from a2a.client import A2ACardResolver, ClientConfig, ClientFactory
from a2a.types import a2a_pb2 as pb
from a2a.types import a2a_pb2_grpc
from mcp.client.streamable_http import streamable_http_client
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
from tests.live.matrix_client import Client
from tests.live.matrix_transports import connect
from tests.live.module_hub import text_of, until
from tests.live.test_a2a_sdk import request
from tests.live.test_a2a_webhooks import Receiver, receiving
from tests.live.test_oidc_sign_in import CONFIG as SIGN_IN
from tests.live.test_task_journeys import ASKABLE, KNOWS, NEW, OLD, RELATED, until_status
from tests.peers import wire
from tests.peers.browser import HTTP
from tests.peers.oidc_provider import SECRET as OIDC_SECRET
from tests.peers.oidc_provider import OidcProvider, run_oidc_provider
from tests.peers.process import alive, read_log, run_client, server_entry
from tests.peers.sdk_client import conversation

from dragoman.app.store_place import open_offline_place
from dragoman.stores.keys import KeyStore
from mcp import Client as SdkClient

PUBLIC_URL = "https://hub.test"
TASK_STATUS = "notifications/tasks"


@pytest.fixture(scope="module")
def gates() -> Iterator[Path]:
    folder = Path(tempfile.mkdtemp(prefix="dgg", dir="/tmp"))
    yield folder
    shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture(scope="module")
def provider() -> Iterator[OidcProvider]:
    with run_oidc_provider() as running:
        running.redirect_uri = f"{PUBLIC_URL}/oauth/oidc/callback"
        running.person = {"sub": "1", "email": "anna@example.com", "email_verified": True}
        running.person["department"] = ["tools"]
        yield running


@pytest.fixture(scope="module")
def cluster(gates: Path, provider: OidcProvider) -> Iterator[Cluster]:
    servers = [
        server_entry("new", "matrix_server", "--era", "modern", interactive=True),
        server_entry(
            "only", "sdk_server", "--era", "legacy", "--log", gates / "only.log", placement="one"
        ),
        server_entry("jobs", "task_server", "--form", "new", interactive=True),
    ]
    rate = "[limits.rate]\nper_minute = 1\nburst = 100\n"  # of principals that are not the owner
    rate += '[mcp]\nstdio_expose = ["*"]\n'
    config = f'{rate}[server]\npublic_url = "{PUBLIC_URL}"\n{a2a_config(a2a={"grpc_port": 0})}'
    config += SIGN_IN.replace("ISSUER", provider.issuer)
    env = {**agents_env(gates), "OIDC_SECRET": OIDC_SECRET}
    with run_cluster(1, servers, config, env) as running:
        # The next version may add to the tables, while hubs run and before they are started again.
        extend_tables(running.database)
        running.start()
        for hub in running.hubs:
            hub.wait_connected("new", "only", "jobs")
        yield running


def extend_tables(database: str) -> None:
    """Migrates the database as a later version may: adds a column to each table."""
    with psycopg.connect(database, autocommit=True) as connection:
        found = connection.execute(
            b"SELECT tablename FROM pg_tables WHERE schemaname = 'dragoman'"
        ).fetchall()
        assert len(found) > 20
        for (table,) in found:
            column = f'ALTER TABLE dragoman."{table}" ADD COLUMN later TEXT'
            connection.execute(column.encode())
        connection.execute(b"UPDATE dragoman.versions SET oldest = number, number = number + 1")


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


def talk(client: str, cluster: Cluster, balancer: Balancer, *how: object) -> dict[str, Any]:
    """What an official client saw: of the previous SDK, or of this one in that mode."""
    header = ("--header", f"Authorization: {cluster.headers['Authorization']}")
    where = (*header, *how, "--http", f"{balancer.url}/mcp")
    if client == "mcp1":
        return run_client("mcp1_client", *where)
    return conversation("--mode", client, *where)


@pytest.mark.parametrize("client", ["2026-07-28", "legacy", "mcp1"])
def test_official_clients_answer_questions_across_hubs(
    cluster: Cluster, balancer: Balancer, client: str
) -> None:
    for tool in ("ask_rounds", "ask_sampling"):
        key = json.dumps({"key": f"{client}-{tool}"})
        how = ("--call", f"mcp_new_{tool}", "--arguments", key, "--answers", "Ada")
        balancer.served.clear()
        got = talk(client, cluster, balancer, *how)
        assert "Ada" in str(got.get("result")), got
        assert set(balancer.served) == set(cluster.ports)


@pytest.mark.parametrize("client", ["legacy", "mcp1"])
def test_official_clients_resume_a_broken_stream_at_another_hub(
    cluster: Cluster, client: str
) -> None:
    steps = json.dumps({"steps": 3, "pause": 0.2})
    with run_balancer(cluster, each_request=True, cut=b"step 1") as balancer:
        how = ("--call", "mcp_new_progress", "--arguments", steps)
        got = talk(client, cluster, balancer, *how)
        assert not balancer.cut
    assert got["result"]["content"][0]["text"] == "3 steps", got
    assert [one[0] for one in got["progress"]] == [1, 2, 3], got  # none lost, none twice


def test_the_previous_sdk_follows_a_task_across_hubs(cluster: Cluster, balancer: Balancer) -> None:
    how = ("--call", "mcp_jobs_asks", "--arguments", '{"count": 1}')
    got = talk("mcp1", cluster, balancer, *how, "--as-task", "--answers", "Ada")
    assert got["task"] in got["listed"] and "result" in got, got
    assert "Ada" in str(got["result"]), got


async def test_the_a2a_sdk_holds_tasks_across_hubs(cluster: Cluster, balancer: Balancer) -> None:
    async with httpx.AsyncClient(timeout=60, headers=cluster.headers) as http:
        card = await A2ACardResolver(http, f"{balancer.url}/a2a/actor").get_agent_card()
        for one in card.supported_interfaces:
            one.url = one.url.replace(PUBLIC_URL, balancer.url)
        for binding in ("JSONRPC", "HTTP+JSON"):
            config = ClientConfig(httpx_client=http, supported_protocol_bindings=[binding])
            client = ClientFactory(config).create(card)
            asks = request(steps(["ask", "Which one?"]))
            events = [event async for event in client.send_message(asks)]
            id = events[0].task.id
            for _ in range(2):  # at each hub
                found = await client.get_task(pb.GetTaskRequest(id=id))
                assert found.status.state == pb.TASK_STATE_INPUT_REQUIRED
            answer = request("this one", task_id=id, context_id=found.context_id)
            events = [event async for event in client.send_message(answer)]
            assert "this one" in str(events), events
            for _ in range(2):
                found = await client.get_task(pb.GetTaskRequest(id=id))
                assert found.status.state == pb.TASK_STATE_COMPLETED
            listed = await client.list_tasks(pb.ListTasksRequest(context_id=found.context_id))
            assert [task.id for task in listed.tasks] == [id]
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


def test_grpc_reaches_a_task_of_another_hub(cluster: Cluster, gates: Path) -> None:
    first, second = cluster.hubs
    caller = Caller(first, "actor", {}, V10)
    todo = steps(["wait", "grpc"], ["say", "half"], ["wait", "never"])
    with caller.stream(STREAM, V10.params(todo)) as stream, open_grpc(second) as agent:
        id = find_task_id(V10.event(stream.next()))
        got = agent.GetTask(pb.GetTaskRequest(id=id), metadata=METADATA, timeout=60)
        assert got.id == id and got.status.state == pb.TASK_STATE_WORKING
        events = agent.SubscribeToTask(
            pb.SubscribeToTaskRequest(id=id), metadata=METADATA, timeout=60
        )
        assert next(events).task.id == id
        asked = pb.GetTaskPushNotificationConfigRequest(task_id=id, id="no-such-webhook")
        refusals = []
        for hub in (first, second):
            with open_grpc(hub) as one, pytest.raises(grpc.RpcError) as refused:
                one.GetTaskPushNotificationConfig(asked, metadata=METADATA, timeout=60)
            trailers = dict(refused.value.trailing_metadata())
            refusals.append((refused.value.code(), refused.value.details(), trailers))
        assert refusals[0] == refusals[1], "an error is the same by way of another hub"
        (gates / "grpc").touch()
        update = next(events)
        assert "half" in str(update), update
        cancelled = agent.CancelTask(pb.CancelTaskRequest(id=id), metadata=METADATA, timeout=60)
        assert cancelled.status.state == pb.TASK_STATE_CANCELED
        assert [event.status_update.status.state for event in events][-1] == pb.TASK_STATE_CANCELED
    assert all("Traceback" not in hub.log() for hub in cluster.hubs)


METADATA = (("a2a-version", "1.0"), ("authorization", f"Bearer {KEY}"))


@contextmanager
def open_grpc(hub: RunningHub) -> Iterator[a2a_pb2_grpc.A2AServiceStub]:
    port = hub.api("/api/status")["agents"]["grpc_port"]
    with grpc.insecure_channel(f"127.0.0.1:{port}") as channel:
        yield a2a_pb2_grpc.A2AServiceStub(channel)


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
    params = {"name": "mcp_new_echo", "arguments": {"text": "y" * 300_000}}
    answer = wire.Session(second.mcp_url, headers=cluster.headers).request("tools/call", params)
    kept = re.search(r"dragoman://results/[\w-]+", answer["result"]["content"][0]["text"])
    assert kept is not None, str(answer)[-300:]
    batch = [wire.request(7, "ping"), wire.request(8, "resources/read", {"uri": kept[0]})]
    answers = {one["id"]: one for one in session.post(batch).json()}
    assert answers[7]["result"] == {}
    assert answers[8]["result"]["contents"][0]["text"].count("y") >= 300_000, answers


@pytest.mark.parametrize("way", ["http", "stdio"])
def test_a_client_reaches_the_tasks_of_another_session_at_another_hub(
    cluster: Cluster, way: str
) -> None:
    first, second = cluster.hubs
    with connect(first, OLD, way, ASKABLE) as begins, connect(second, OLD, way, ASKABLE) as goes:
        ids = [begin_task(begins, "mcp_jobs_asks", {"count": 1}) for _ in range(2)]
        listed = goes.request("tasks/list")["result"]["tasks"]
        assert set(ids) <= {one["taskId"] for one in listed}
        until_status(goes, ids[0], "input_required")
        answer = goes.request("tasks/result", {"taskId": ids[0]})  # asks this client meanwhile
        assert "Ada" in text_of(answer), answer
        assert [one.params["_meta"][RELATED] for one in goes.asked] == [{"taskId": ids[0]}]
        assert begins.asked == []
        cancelled = goes.request("tasks/cancel", {"taskId": ids[1]})
        assert cancelled["result"]["status"] == "cancelled"
        begins.wait_notification("notifications/tasks/status", taskId=ids[1], status="cancelled")


def test_a_client_listens_to_the_tasks_of_all_hubs(cluster: Cluster) -> None:
    clients = [connect(hub, NEW, "http", KNOWS) for hub in cluster.hubs]
    with clients[0] as here, clients[1] as there:
        ids = [find_created(one.call("mcp_jobs_asks", {"count": 1})) for one in (here, there)]
        here.begin("subscriptions/listen", {"notifications": {"taskIds": [*ids, "0" * 32]}})
        granted = here.wait_notification("notifications/subscriptions/acknowledged")
        assert granted.params["notifications"] == {"taskIds": ids}
        for id in ids:
            asked = here.wait_notification(
                "notifications/tasks", taskId=id, status="input_required"
            )
            answers = {
                name: {"action": "accept", "content": {"yes": True}}
                for name in asked.params["inputRequests"]
            }
            here.request("tasks/update", {"taskId": id, "inputResponses": answers})
            done = here.wait_notification(TASK_STATUS, taskId=id, status="completed")
            assert "content" in done.params["result"]


def begin_task(client: Client, tool: str, arguments: Any) -> str:
    params = {"name": tool, "arguments": arguments, "task": {}}
    return str(client.request("tools/call", params)["result"]["task"]["taskId"])


def find_created(answer: Any) -> str:
    assert answer["result"]["resultType"] == "task", answer
    return str(answer["result"]["taskId"])


def test_each_hub_shows_the_events_of_all(cluster: Cluster) -> None:
    first, second = cluster.hubs
    path = f"{second.url}/api/events"
    with wire.stream("GET", path, headers=cluster.headers, timeout=60) as stream:
        ended = threading.Event()

        def call() -> None:
            while not ended.wait(0.1):
                assert "result" in first.call("mcp_new_add", {"a": 1, "b": 2})

        # Repeated: the stream shows what other hubs do once it is connected to them.
        caller = threading.Thread(target=call)
        caller.start()
        try:
            until(lambda: "new.add" in stream.next().data)
        finally:
            ended.set()
            caller.join(60)


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


def test_a_key_that_was_changed_in_the_database_is_refused_by_all_hubs(cluster: Cluster) -> None:
    with (
        open_offline_place(cluster.hubs[0].home) as place,  # as `dragoman keys create` does
        closing(KeyStore(place)) as store,
        psycopg.connect(cluster.database, autocommit=True) as connection,
    ):
        keys = {
            name: store.create(name, owner="anna", expires_at=None, scopes=["call", "admin"])
            for name in ("good", "low")
        }

        def list_statuses(name: str) -> list[int]:
            headers = {"Authorization": f"Bearer {keys[name]}"}
            return [wire.get(f"{hub.url}/api/tools", headers).status for hub in cluster.hubs]

        assert list_statuses("low") == list_statuses("good") == [200, 200]
        connection.execute(b"UPDATE dragoman.keys SET roles = '[\"owner\"]' WHERE name = 'low'")
        store.create("next", owner="anna", expires_at=None, scopes=["call"])  # all are read again
        assert until(lambda: list_statuses("low") == [401, 401], 60)
        assert list_statuses("good") == [200, 200]


def test_a_sign_in_at_a_provider_ends_at_either_hub(cluster: Cluster) -> None:
    first, second = cluster.hubs
    sent = wire.get(f"{first.url}/oauth/oidc/start?next=/oauth/account")
    assert sent.status == 303, sent
    cookie = sent.headers["set-cookie"].partition(";")[0]
    back = HTTP.get(sent.headers["location"], follow_redirects=False).headers["location"]
    assert back.startswith(f"{PUBLIC_URL}/oauth/oidc/callback?"), back
    callback = second.url + back.removeprefix(PUBLIC_URL)
    assert wire.get(callback).status == 403  # another browser, which has used up the sign-in
    assert wire.get(callback, {"Cookie": cookie}).status == 403
    sent = wire.get(f"{first.url}/oauth/oidc/start?next=/oauth/account", {"Cookie": cookie})
    back = HTTP.get(sent.headers["location"], follow_redirects=False).headers["location"]
    callback = second.url + back.removeprefix(PUBLIC_URL)
    done = HTTP.get(callback, headers={"Cookie": cookie}, follow_redirects=False)
    assert done.status_code == 303, done.text
    cookies = " ".join(done.headers.get_list("set-cookie"))
    session = re.search(r"__Host-dragoman-session=[\w-]+", cookies)
    assert session is not None, cookies
    for hub in cluster.hubs:
        page = wire.get(f"{hub.url}/oauth/account", {"Cookie": session[0]})
        assert page.status == 200 and b"anna@example.com" in page.body, page


def test_a_server_with_one_place_runs_at_one_hub_and_serves_all(
    cluster: Cluster, gates: Path
) -> None:
    for number, hub in enumerate(cluster.hubs):
        answer = hub.call("mcp_only_add", {"a": number, "b": 2})
        assert answer["result"].get("structuredContent") == {"sum": number + 2}, answer
    begun = [one for one in read_log(gates / "only.log") if one.get("event") == "start"]
    # A slow start is repeated.
    assert len([one for one in begun if alive(one["pid"])]) == 1, begun


def test_a_hub_that_is_too_old_for_the_tables_does_not_start(cluster: Cluster) -> None:
    change = b"UPDATE dragoman.versions SET oldest = oldest + %d WHERE store = 'tasks'"
    with psycopg.connect(cluster.database, autocommit=True) as connection:
        connection.execute(change % 1)
        try:
            with pytest.raises(
                RuntimeError, match=r'"tasks" .* by a newer dragoman: .*install the'
            ):
                cluster.start()
        finally:
            connection.execute(change % -1)


# --- a hub ends -----------------------------------------------------------------------------------


def call_add(session: wire.Session, a: int) -> Any:
    params = {"name": "mcp_new_add", "arguments": {"a": a, "b": 1}}
    return session.request("tools/call", params, timeout=60)


def begin_delivery(hub: RunningHub, receiver: Receiver) -> None:
    """A task has ended, and its webhook has not answered the first notification."""
    receiver.answers.clear()
    params = V10.params("hello")
    params["configuration"] = {"taskPushNotificationConfig": {"url": receiver.url}}
    assert Caller(hub, "echo").ask(SEND, params).error is None
    assert receiver.asked.wait(60)


def check_delivery(receiver: Receiver) -> None:
    """The heir has delivered the rest: only the notification that was being sent came twice."""
    receiver.answers.set()
    done = "TASK_STATE_COMPLETED"
    assert until(lambda: receiver.taken and done in json.dumps(receiver.taken[-1][1]), 60)
    kinds = [next(iter(body)) for _, body in receiver.taken]
    rest = ["artifactUpdate", "statusUpdate"]
    assert kinds in (["statusUpdate", *rest], ["statusUpdate", "statusUpdate", *rest]), kinds


@pytest.mark.filterwarnings("ignore:resources/subscribe is removed")
def test_a_session_goes_on_after_its_hub_was_killed_or_has_stopped(gates: Path) -> None:
    servers = [
        server_entry("new", "sdk_server", "--era", "modern"),
        server_entry("m", "matrix_server", "--era", "legacy", "--scheme", "m"),
    ]
    config = a2a_config(a2a={"push_private": True})
    with receiving() as receiver, run_cluster(3, servers, config, agents_env(gates)) as cluster:
        for hub in cluster.hubs:
            hub.wait_connected("new", "m")
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
        assert time.monotonic() - begun < 30
        session.url = third.mcp_url  # forwarded to the heir
        assert call_add(session, 2)["result"]["structuredContent"] == {"sum": 3}
        check_delivery(receiver)
        heir = next(one["heir"] for one in third.api("/api/cluster")["hubs"] if one["heir"])
        owners = {hub: find_id(hub) for hub in (second, third)}
        other = next(hub for hub, id in owners.items() if id != heir)
        [stopping] = [hub for hub in owners if hub is not other]
        # The one that stops hands the session over.
        session.url = other.mcp_url
        with ThreadPoolExecutor(2) as pool, run_balancer(cluster, each_request=True) as balancer:
            subscribed = threading.Event()
            balancer.ports = [int(stopping.url.rpartition(":")[2])]
            watched = pool.submit(asyncio.run, watch(balancer.url, cluster.headers, subscribed))
            assert subscribed.wait(60)
            balancer.ports.append(int(other.url.rpartition(":")[2]))
            stopped = pool.submit(stopping.stop)
            number = 2
            while not stopped.done() or number < 5:
                number += 1
                answer = call_add(session, number)
                assert answer["result"].get("structuredContent") == {"sum": number + 1}, answer
            assert stopped.result() == 0
            watched.result(30)
        assert call_add(session, 10)["result"]["structuredContent"] == {"sum": 11}


async def watch(url: str, headers: Any, subscribed: threading.Event) -> None:
    """A client of the official SDK follows a resource while its hub is replaced by another one."""
    updated: asyncio.Queue[str] = asyncio.Queue()
    changed = asyncio.Event()

    async def on_message(message: Any) -> None:
        if isinstance(message, types.ResourceUpdatedNotification):
            updated.put_nowait(message.params.uri)
        elif isinstance(message, types.ToolListChangedNotification):
            changed.set()

    async with (
        asyncio.timeout(60),
        httpx2.AsyncClient(headers=headers, timeout=60) as http,
        SdkClient(
            streamable_http_client(f"{url}/mcp", http_client=http),
            mode="legacy",
            message_handler=on_message,
        ) as client,
    ):
        await client.subscribe_resource("m://watched")
        await client.call_tool("mcp_m_change", {"what": "watched"})
        assert await updated.get() == "m://watched"
        subscribed.set()
        # What it knows may have changed while it had no stream, and it is subscribed again.
        await changed.wait()
        assert await updated.get() == "m://watched"
        await client.call_tool("mcp_m_change", {"what": "watched"})
        assert await updated.get() == "m://watched"


def find_id(hub: RunningHub) -> str:
    return str(next(one["id"] for one in hub.api("/api/cluster")["hubs"] if one["is_this"]))
