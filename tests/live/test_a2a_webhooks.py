"""Webhooks of a running hub, and its bounds at their full size."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest
from tests.live.a2a_hub import (
    PUSH_SET,
    SEND,
    V03,
    V10,
    Caller,
    HubRig,
    run_a2a_hub,
    with_key,
)
from tests.live.module_hub import until


class Receiver(ThreadingHTTPServer):
    """Takes what it is sent, while `answers` is set."""

    daemon_threads = True

    def __init__(self) -> None:
        self.answers = threading.Event()
        self.answers.set()
        self.asked = threading.Event()
        self.taken: list[tuple[dict[str, str], Any]] = []
        super().__init__(("127.0.0.1", 0), Taking)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}/hook"


class Taking(BaseHTTPRequestHandler):
    def do_POST(self) -> None:
        assert isinstance(self.server, Receiver)
        body = self.rfile.read(int(self.headers["content-length"]))
        self.server.asked.set()
        self.server.answers.wait(60)  # clear: a slow webhook
        headers = {name.lower(): value for name, value in self.headers.items()}
        self.server.taken.append((headers, json.loads(body)))
        self.send_response(204)
        self.end_headers()

    def log_message(self, format: str, *args: Any) -> None: ...


@contextmanager
def receiving() -> Iterator[Receiver]:
    receiver = Receiver()
    thread = threading.Thread(target=receiver.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    try:
        yield receiver
    finally:
        receiver.shutdown()
        thread.join()
        receiver.server_close()


@pytest.fixture(scope="module")
def rig() -> Iterator[HubRig]:
    with run_a2a_hub(a2a={"push_private": True}) as found:
        yield found


@pytest.mark.promise("I3")
def test_unresponsive_webhook_does_not_delay_a_send(rig: HubRig) -> None:
    with receiving() as slow:
        slow.answers.clear()
        params = V10.params("hello")
        secret = {"scheme": "Bearer", "credentials": "c"}
        config = {"url": slow.url, "token": "t", "authentication": secret}
        params["configuration"] = {"taskPushNotificationConfig": config}
        reply = V10.ask(rig.hub, SEND, params)
        assert reply.value["task"]["status"]["state"] == "TASK_STATE_COMPLETED"
        assert slow.asked.wait(60) and not slow.taken, "the answer did not wait for a delivery"
        slow.answers.set()
        until(lambda: len(slow.taken) == 3, 60)
    kinds = [next(iter(body)) for _, body in slow.taken]
    assert kinds == ["statusUpdate", "artifactUpdate", "statusUpdate"]
    headers, last = slow.taken[-1]
    assert last["statusUpdate"]["status"]["state"] == "TASK_STATE_COMPLETED"
    assert headers["authorization"] == "Bearer c" and headers["x-a2a-notification-token"] == "t"
    assert headers["content-type"] == "application/a2a+json"


@pytest.mark.promise("I3", "J3")
def test_webhook_receives_the_dialect_of_its_registration(rig: HubRig) -> None:
    with receiving() as receiver:
        params = V03.params("hello")
        config = {"url": receiver.url}
        params["configuration"] = {"blocking": True, "pushNotificationConfig": config}
        assert V03.ask(rig.hub, SEND, params).value["status"]["state"] == "completed"
        until(
            lambda: receiver.taken and receiver.taken[-1][1]["status"]["state"] == "completed", 60
        )
    headers, task = receiver.taken[-1]
    assert (task["kind"], headers["content-type"]) == ("task", "application/json")


@pytest.mark.promise("B11")
def test_private_webhook_refuses_the_send() -> None:
    with run_a2a_hub() as found:
        caller = Caller(found.hub)
        for url in ("http://127.0.0.1:1/", "http://169.254.169.254/latest", "http://[::1]/x"):
            params = V10.params("hello")
            params["configuration"] = {"taskPushNotificationConfig": {"url": url}}
            assert V10.code(V10.ask(found.hub, SEND, params).error) == -32602
        assert caller.ask("list", {}).value["totalSize"] == 0
        task = caller.send("hello")
        refused = caller.ask(PUSH_SET, {"taskId": task["id"], "url": "http://10.0.0.1/"})
        assert "leads to a private address" in refused.error["message"]


@pytest.mark.promise("K2")
def test_task_1001_replaces_the_oldest_finished_one() -> None:
    with run_a2a_hub(a2a={"store": "memory"}) as found:
        caller = Caller(found.hub)
        first, second = caller.send("first"), caller.send("second")
        for number in range(998):
            caller.send(str(number))
        assert caller.ask("list", {"pageSize": 1}).value["totalSize"] == 1_000
        assert caller.get(first["id"])["id"] == first["id"]
        caller.send("one more")
        assert caller.ask("list", {"pageSize": 1}).value["totalSize"] == 1_000
        assert V10.code(caller.ask("get", {"id": first["id"]}).error) == -32001
        assert caller.get(second["id"])["id"] == second["id"]


@pytest.mark.promise("K2")
def test_thousand_unfinished_tasks_refuse_the_next() -> None:
    with run_a2a_hub(a2a={"store": "memory"}) as found:
        mine, theirs = with_key(found.hub, "mine"), with_key(found.hub, "theirs")
        hub = Caller(found.hub, "dragoman", mine.headers)
        for number in range(1_000):  # it waits to hear which skill is meant
            task = hub.send(str(number))
            assert task["status"]["state"] == "TASK_STATE_INPUT_REQUIRED"
        refused = mine.ask(SEND, V10.params("one more"))
        assert "1000 tasks of this caller are unfinished" in refused.error["message"]
        assert "wait for one, answer it or cancel it" in refused.error["message"]
        assert theirs.send("hello")["status"]["state"] == "TASK_STATE_COMPLETED"
        assert mine.ask("cancel", {"id": task["id"]}).error is None
        assert mine.send("now")["status"]["state"] == "TASK_STATE_COMPLETED"
