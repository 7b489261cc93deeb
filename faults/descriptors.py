"""Few file descriptors: many clients take all that remain, and the hub must recover without
spinning.
"""

from __future__ import annotations

import http.client
import json
import resource
import socket
import time
from contextlib import closing
from urllib.parse import urlsplit

from tests.live.conftest import RunningHub
from tests.live.module_hub import text_of
from tests.peers.process import server_entry

from faults.fixtures import echo_server
from faults.harness import (
    Outcome,
    cpu_seconds,
    fresh_hub,
    open_files,
    until,
)

CROWD = 400
KEPT_CALLS = 20
LIMITS = (64, 96, 256)  # it has some 46 open with two children


def hold_sockets(port: int, count: int) -> list[socket.socket]:
    """Opens connections that need not be accepted."""
    held = []
    for _ in range(count):
        one = socket.socket()
        one.setblocking(False)
        try:
            one.connect(("127.0.0.1", port))
        except BlockingIOError:
            pass
        except OSError:
            one.close()
            break
        held.append(one)
    return held


class PersistentClient:
    """A client that keeps its connection, and opens it again if the hub has closed it."""

    def __init__(self, port: int) -> None:
        self._connection = http.client.HTTPConnection("127.0.0.1", port, timeout=20)
        self.reconnected = 0

    def call(self, text: str) -> bool:
        body = json.dumps({"arguments": {"text": text}})
        kind = {"Content-Type": "application/json"}
        for attempt in (1, 2):
            try:
                self._connection.request("POST", "/api/tools/r.echo/call", body, kind)
                answer = self._connection.getresponse()
                return answer.status == 200 and text in answer.read().decode()
            except (OSError, http.client.HTTPException):
                self._connection.close()
                self.reconnected += attempt == 1
        return False

    def close(self) -> None:
        self._connection.close()


def exhaust(limit: int, outcome: Outcome) -> None:
    when = f"{limit} descriptors"
    servers = [echo_server(), server_entry("crashes", "faulty_server", "exit-at-call")]
    with fresh_hub(outcome, servers) as hub:
        hub.wait_connected("r", "crashes")
        resource.prlimit(hub.pid, resource.RLIMIT_NOFILE, (limit, limit))
        before = open_files(hub)
        port = urlsplit(hub.url).port or 0
        with closing(PersistentClient(port)) as kept:
            kept.call("first")
            held = hold_sockets(port, CROWD)
            try:
                spent, begun = cpu_seconds(hub.pid), time.monotonic()
                answered = sum(kept.call(f"call {n}") for n in range(KEPT_CALLS))
                time.sleep(1.0)  # all who wait to be accepted are there
                answered += sum(kept.call(f"call {n}") for n in range(KEPT_CALLS))
                share = (cpu_seconds(hub.pid) - spent) / (time.monotonic() - begun)
                outcome.check(answered == 2 * KEPT_CALLS, f"{when}: {answered} calls were answered")
                outcome.check(share < 0.5, f"{when}: the hub spins, {share:.0%} of a core")
            finally:
                for one in held:
                    one.close()
        left = until(lambda: has_closed(hub, before + 2), 20)
        outcome.check(left, f"{when}: {open_files(hub)} stay open, {before} were")
        for number in range(5):  # newcomers are served again
            answer = hub.call("mcp_r_echo", {"text": str(number)})
            outcome.check(text_of(answer) == str(number), f"{when}: afterwards {answer}")
        hub.call("crashes.echo", {"text": "x"})
        back = until(lambda: is_connected(hub, "crashes"), 20)
        outcome.check(back, f"{when}: a child that died is not started again")
        outcome.count("limits")
        outcome.count("calls", 2 * KEPT_CALLS)
        outcome.count("reconnected", kept.reconnected)


def has_closed(hub: RunningHub, most: int) -> bool:
    """Whether the hub has at most so many files open. Until it has closed the connections of the
    crowd, it closes new ones too."""
    try:
        return open_files(hub) <= most
    except OSError:
        return False


def is_connected(hub: RunningHub, name: str) -> bool:
    servers = hub.api("/api/mcp/servers")["connected"]
    return any(one["name"] == name and one["connected"] for one in servers)


def exhaust_descriptors(limits: int, seed: int, outcome: Outcome) -> None:
    for limit in LIMITS[:limits]:
        exhaust(limit, outcome)
