"""A principal, or clients without a key, that take all they can get do not starve others."""

from __future__ import annotations

import json
import select
import socket
from collections.abc import Iterator
from contextlib import ExitStack

import pytest
from tests.live.conftest import RunningHub
from tests.live.module_hub import rss, run_module_hub, until
from tests.peers import wire
from tests.peers.process import server_entry

KEY = "a-key-of-the-first-caller"
MB = 1024 * 1024


@pytest.fixture(scope="module")
def hub() -> Iterator[RunningHub]:
    config = (
        f'api_key = "{KEY}"\n[limits]\nconnections = 40\nbody_megabytes = 20\ncalls_in_flight = 4\n'
    )
    servers = [
        server_entry("hangs", "faulty_server", "hang-on-call"),
        server_entry("ok", "faulty_server", "ok"),
    ]
    with run_module_hub(servers, config) as running:
        running.wait_connected("hangs", "ok")
        yield running


@pytest.fixture(scope="module")
def other(hub: RunningHub) -> dict[str, str]:
    """The headers of another caller."""
    made = hub.command("keys", "create", "other")
    return {"Authorization": f"Bearer {made.stdout.strip()}"}


def connect(hub: RunningHub, stack: ExitStack) -> socket.socket:
    port = int(hub.url.rpartition(":")[2])
    return stack.enter_context(socket.create_connection(("127.0.0.1", port), timeout=60))


def head(path: str, length: int) -> bytes:
    lines = (f"POST {path} HTTP/1.1", "Host: localhost", f"Authorization: Bearer {KEY}")
    more = ("Content-Type: application/json", f"Content-Length: {length}", "", "")
    return "\r\n".join([*lines, *more]).encode()


def echo(hub: RunningHub, headers: dict[str, str]) -> wire.Answer:
    body = {"arguments": {"text": "x"}}
    return wire.post(hub.url + "/api/tools/ok.echo/call", body, headers)


@pytest.mark.promise("N1")
def test_idle_keyless_connections_do_not_lock_out_others(
    hub: RunningHub, other: dict[str, str]
) -> None:
    with ExitStack() as stack:
        for _ in range(100):
            idle = connect(hub, stack)
            idle.sendall(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n")
            assert idle.recv(4096).startswith(b"HTTP/1.1 200 ")
        assert hub.api("/api/status")["version"]
        assert echo(hub, other).status == 200
        assert wire.get(hub.url + "/healthz").status == 200


@pytest.mark.promise("N1")
def test_unfinished_bodies_take_bounded_memory_and_leave_room(
    hub: RunningHub, other: dict[str, str]
) -> None:
    before = rss(hub.pid)
    with ExitStack() as stack:
        for _ in range(18):
            sender = connect(hub, stack)
            sender.sendall(head("/mcp", 10 * MB))
            sender.settimeout(0.05)  # it may be held back
            try:
                sender.sendall(b" " * (9 * MB))
            except TimeoutError:
                pass
        body = json.dumps(wire.request(1, "ping")).encode() + b" " * (8 * MB)
        assert wire.post(hub.mcp_url, body, other, timeout=60).json()["result"] == {}
        assert wire.post(hub.mcp_url, wire.request(1, "ping"), hub.headers).status == 200
        assert rss(hub.pid) - before < 110 * MB
    body = json.dumps(wire.request(1, "ping")).encode() + b" " * (9 * MB)
    assert wire.post(hub.mcp_url, body, hub.headers, timeout=60).json()["result"] == {}


@pytest.mark.promise("N1")
def test_principal_has_at_most_half_of_the_running_calls(
    hub: RunningHub, other: dict[str, str]
) -> None:
    body = b'{"arguments":{"text":"x"}}'
    with ExitStack() as stack:
        senders = [connect(hub, stack) for _ in range(4)]
        for sender in senders:
            sender.sendall(head("/api/tools/hangs.echo/call", len(body)) + body)
        answered = until(lambda: two_of(senders))
        for sender in answered:
            said = sender.recv(4096)
            assert said.startswith(b"HTTP/1.1 503 ") and b"retry-after: 1\r\n" in said
            assert b"calls_in_flight" in said
        assert echo(hub, other).status == 200


def two_of(senders: list[socket.socket]) -> list[socket.socket]:
    ready, _, _ = select.select(senders, [], [], 0.1)
    return ready if len(ready) == 2 else []
