"""Few file descriptors: a crowd takes all that are left, and the hub must heal without spinning."""

from __future__ import annotations

import http.client
import json
import resource
import socket
import time
from contextlib import closing
from urllib.parse import urlsplit

from tests.live.conftest import RunningHub
from tests.live.lasting import text_of
from tests.peers.process import server_entry

from faults.grounds import echo_server
from faults.harness import Outcome, cpu_seconds, fresh_hub, open_files, until

CROWD = 400
KEPT_CALLS = 20
LIMITS = (64, 96, 256)  # it has some 46 open with two children


def hold_sockets(port: int, count: int) -> list[socket.socket]:
    """Connections that nobody has to accept."""
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


def call_on(connection: http.client.HTTPConnection, text: str) -> bool:
    body = json.dumps({"arguments": {"text": text}})
    connection.request("POST", "/api/tools/r.echo/call", body, {"Content-Type": "application/json"})
    answer = connection.getresponse()
    return answer.status == 200 and text in answer.read().decode()


def exhaust(limit: int, outcome: Outcome) -> None:
    when = f"{limit} descriptors"
    servers = [echo_server(), server_entry("crashes", "rude_server", "exit-at-call")]
    with fresh_hub(outcome, servers) as hub:
        hub.wait_connected("r", "crashes")
        resource.prlimit(hub.pid, resource.RLIMIT_NOFILE, (limit, limit))
        before = open_files(hub.pid)
        port = urlsplit(hub.url).port or 0
        with closing(http.client.HTTPConnection("127.0.0.1", port, timeout=20)) as kept:
            call_on(kept, "first")
            held = hold_sockets(port, CROWD)
            try:
                until(lambda: open_files(hub.pid) >= limit - 2, 5)
                outcome.figures[f"open of {limit}"] = open_files(hub.pid)
                spent, begun = cpu_seconds(hub.pid), time.monotonic()
                answered = sum(call_on(kept, f"call {n}") for n in range(KEPT_CALLS))
                time.sleep(1.0)
                share = (cpu_seconds(hub.pid) - spent) / (time.monotonic() - begun)
                outcome.check(answered == KEPT_CALLS, f"{when}: {answered} answers on a kept one")
                outcome.check(share < 0.5, f"{when}: the hub spins, {share:.0%} of a core")
            finally:
                for one in held:
                    one.close()
        left = until(lambda: open_files(hub.pid) <= before + 2, 20)
        outcome.check(left, f"{when}: {open_files(hub.pid)} stay open, {before} were")
        for number in range(5):  # newcomers are served again
            answer = hub.call("mcp_r_echo", {"text": str(number)})
            outcome.check(text_of(answer) == str(number), f"{when}: afterwards {answer}")
        hub.call("crashes.echo", {"text": "x"})
        back = until(lambda: is_connected(hub, "crashes"), 20)
        outcome.check(back, f"{when}: a child that died is not started again")
        outcome.count("limits")


def is_connected(hub: RunningHub, name: str) -> bool:
    servers = hub.api("/api/mcp/servers")["connected"]
    return any(one["name"] == name and one["connected"] for one in servers)


def exhaust_descriptors(limits: int, seed: int, outcome: Outcome) -> None:
    for limit in LIMITS[:limits]:
        exhaust(limit, outcome)
