"""How many messages and lists one announcement of a server causes."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from tests.live.conftest import RunningHub
from tests.live.matrix_client import Client
from tests.live.matrix_fixture import Log
from tests.live.matrix_transports import connect
from tests.live.module_hub import run_module_hub, until
from tests.peers.process import HttpPeer, server_entry

pytestmark = pytest.mark.promise("B5", "B12", "N1")

SERVERS = {"lh": ("legacy", "http"), "le": ("legacy", "sse"), "bh": ("both", "http")}
MODERN = "2026-07-28"
CLIENTS = [
    ("2025-11-25", "http"),
    ("2025-11-25", "stdio"),
    ("2024-11-05", "sse"),
    ("2025-06-18", "http"),
    (MODERN, "http"),
]
METHODS = {"tools": "tools/list", "prompts": "prompts/list", "resources": "resources/list"}
QUIET_SECONDS = 1.0
"""How long nothing more may come: what must not happen has no event to wait for."""


class Rig:
    def __init__(self, hub: RunningHub, logs: dict[str, Log]) -> None:
        self.hub = hub
        self.logs = logs

    def count_lists(self, server: str, method: str) -> int:
        return len(self.logs[server].entries(event="message", method=method))

    def wait_quiet(self, server: str, clients: list[Client]) -> None:
        """Waits until nothing was sent for some time; a storm never ends, and is counted."""
        end = time.monotonic() + 4 * QUIET_SECONDS
        while time.monotonic() < end:
            before = self._count_all(server, clients)
            time.sleep(QUIET_SECONDS)
            if self._count_all(server, clients) == before:
                return

    def _count_all(self, server: str, clients: list[Client]) -> int:
        return len(self.logs[server].entries()) + sum(len(one.received) for one in clients)


@pytest.fixture(scope="module")
def rig(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Rig]:
    folder = tmp_path_factory.mktemp("announcements")
    logs = {name: Log(Path(folder) / f"{name}.log") for name in [*SERVERS, "ls"]}
    with ExitStack() as stack:
        entries = []
        for name, (era, transport) in SERVERS.items():
            arguments = ("--transport", transport, "--era", era, "--scheme", name)
            peer = stack.enter_context(
                HttpPeer("matrix_server", *arguments, "--log", logs[name].file)
            )
            entries.append(server_entry(name, transport, peer.url))
        child = ("--era", "legacy", "--scheme", "ls", "--log", logs["ls"].file)
        entries.append(server_entry("ls", "matrix_server", *child))
        settings = '[mcp]\nstdio_expose = ["*"]\n'
        hub = stack.enter_context(run_module_hub(entries, settings))
        hub.wait_connected(*logs)
        yield Rig(hub, logs)


@pytest.fixture
def clients(rig: Rig) -> Iterator[list[Client]]:
    """Of every transport, each with every feature of its revision, and one that has none."""
    with ExitStack() as stack:
        found = [stack.enter_context(connect(rig.hub, *one)) for one in CLIENTS]
        found.append(stack.enter_context(connect(rig.hub, "2025-11-25", "http", {})))
        for client in found:
            if client.modern:
                wanted = {f"{what}ListChanged": True for what in METHODS}
                client.begin("subscriptions/listen", {"notifications": wanted})
                client.wait_notification("notifications/subscriptions/acknowledged")
        yield found


def list_all(clients: list[Client]) -> None:
    for client in clients:
        for method in METHODS.values():
            assert "result" in client.request(method)


def change(rig: Rig, server: str, clients: list[Client], what: str) -> int:
    """Has one client cause the announcement; returns the lists that the server answered before.
    Each makes a call first, so that those that can be asked have their sessions."""
    list_all(clients)
    for client in clients:
        client.call(f"{server}.declared")
    list_all(clients)
    rig.wait_quiet(server, clients)
    for client in clients:
        client.received.clear()
    before = rig.count_lists(server, METHODS.get(what, "tools/list"))
    answer = clients[0].call(f"{server}.change", {"what": what, "to": "caller"})
    assert "result" in answer, answer
    return before


@pytest.mark.parametrize(
    ("server", "what"),
    [*(("lh", what) for what in METHODS), *((name, "tools") for name in ("le", "bh", "ls"))],
)
def test_announced_change_is_one_message_and_one_list(
    server: str, what: str, rig: Rig, clients: list[Client]
) -> None:
    method, notification = METHODS[what], f"notifications/{what}/list_changed"
    before = change(rig, server, clients, what)
    until(lambda: clients[0].said(notification))
    rig.wait_quiet(server, clients)

    counts = [len(client.said(notification)) for client in clients]
    assert counts[0] == 1 and max(counts) == 1, counts
    if server != "ls":  # over stdio, what has changed is in one process alone
        assert counts == [1] * len(clients), counts
    lists = rig.count_lists(server, method) - before
    # Of the session that announced it and of those that all share: one, or one of each era.
    assert 1 <= lists <= (3 if server == "bh" else 2)
    list_all(clients)  # as they all do then
    rig.wait_quiet(server, clients)
    assert [len(client.said(notification)) for client in clients] == counts


@pytest.mark.parametrize("server", ["lh", "le", "ls"])
def test_announcement_without_a_change_is_one_list_and_no_message(
    server: str, rig: Rig, clients: list[Client]
) -> None:
    before = change(rig, server, clients, "nothing")
    until(lambda: rig.count_lists(server, "tools/list") > before)
    rig.wait_quiet(server, clients)
    assert rig.count_lists(server, "tools/list") - before == 1
    assert not any(client.said("notifications/tools/list_changed") for client in clients)
