"""A hub that is paused until the others have declared it dead, and then goes on."""

from __future__ import annotations

import http.client
import json
import os
import shutil
import signal
import tempfile
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import psycopg
import pytest
from tests.live.a2a_hub import SEND, V10, a2a_config, agents_env, steps
from tests.live.cluster_rig import Cluster, run_cluster
from tests.live.conftest import RunningHub
from tests.live.module_hub import until

MESSAGES = 8
TAKEN_OVER = """
SELECT count(*) FROM dragoman.hubs WHERE heir IS NOT NULL AND settled AND node LIKE %s
"""


@pytest.fixture
def gates() -> Iterator[Path]:
    folder = Path(tempfile.mkdtemp(prefix="dgg", dir="/tmp"))
    yield folder
    shutil.rmtree(folder, ignore_errors=True)


def count_takeovers(cluster: Cluster, hub: RunningHub) -> int:
    with psycopg.connect(cluster.database) as connection:
        row = connection.execute(TAKEN_OVER, (f"%:{hub.pid}",)).fetchone()
    return int(row[0]) if row else 0


class Message:
    """A message that was sent with an idempotency key, whose response is read later."""

    def __init__(self, hub: RunningHub, cluster: Cluster, key: str) -> None:
        self.key = key
        self._cluster = cluster
        script = steps(["mark", key], ["pause", 0.1], ["reply", key])
        self._params = V10.params(script, at_once=key.endswith(("0", "2", "4", "6")))
        self._connection = self._post(hub, SEND, self._params)

    def _post(self, hub: RunningHub, op: str, params: Any) -> http.client.HTTPConnection:
        method, path, body, own = V10.request(op, params, "actor")
        headers = {**self._cluster.headers, "Content-Type": "application/json", **own}
        connection = http.client.HTTPConnection(hub.url.partition("://")[2], timeout=60)
        connection.request(method, path, json.dumps(body), {**headers, "Idempotency-Key": self.key})
        return connection

    def read(self) -> Any:
        return self._read(self._connection)

    def repeat(self, hub: RunningHub) -> Any:
        return self._read(self._post(hub, SEND, self._params))

    def repeat_accepted(self, hub: RunningHub) -> Any:
        """Returns the task; None while the hub says that it must be sent again."""
        reply = self.repeat(hub)
        if "error" in reply:
            assert "send it again" in reply["error"]["message"], reply
            return None
        return reply["result"]["task"]

    def get(self, hub: RunningHub, id: str) -> Any:
        return self._read(self._post(hub, "get", {"id": id}))

    def _read(self, connection: http.client.HTTPConnection) -> Any:
        try:
            return json.loads(connection.getresponse().read())
        finally:
            connection.close()


def test_a_hub_that_was_declared_dead_loses_no_task_and_blocks_no_key(gates: Path) -> None:
    with run_cluster(2, config=a2a_config(), env=agents_env(gates)) as cluster:
        first, second = cluster.hubs
        early = [Message(second, cluster, f"early-{number}") for number in range(2)]
        acknowledged = [(one, one.read()["result"]["task"]["id"]) for one in early]
        before = count_takeovers(cluster, second)
        os.kill(second.pid, signal.SIGSTOP)
        try:
            until(lambda: count_takeovers(cluster, second) > before, 60)
            # They wait in the socket of the paused hub, which reads them before it knows.
            messages = [Message(second, cluster, f"late-{number}") for number in range(MESSAGES)]
        finally:
            os.kill(second.pid, signal.SIGCONT)
        for message in messages:
            reply = message.read()
            if "result" in reply:
                acknowledged.append((message, reply["result"]["task"]["id"]))
                assert reply["result"]["task"]["status"]["state"] != "TASK_STATE_CANCELED", reply
            else:
                assert "send it again" in reply["error"]["message"], reply
        for message, id in acknowledged:
            for hub in cluster.hubs:
                assert message.get(hub, id)["result"]["id"] == id
        for message in messages:
            for hub in (first, second):
                task = until(partial(message.repeat_accepted, hub))
                assert task["status"]["state"] in ("TASK_STATE_COMPLETED", "TASK_STATE_WORKING")
        names = [one.key for one in (*early, *messages)]
        until(lambda: all((gates / name).exists() for name in names))
        assert [(gates / name).read_text() for name in names] == ["x"] * len(names)
