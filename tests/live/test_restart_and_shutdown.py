"""Across a restart no handle is valid twice; pending waits, streams and questions do not delay a
shutdown.
"""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Callable
from typing import Any

import pytest
from tests.live.conftest import RunningHub
from tests.live.matrix_client import ADA, everything
from tests.live.matrix_transports import OverHttp, OverSse, OverStdio
from tests.live.module_hub import error_kind, text_of, until
from tests.peers import wire
from tests.peers.process import server_entry
from tests.peers.wire import LEGACY, MODERN

FORM: dict[str, Any] = {"elicitation": {}}


def modern(hub: RunningHub, params: dict[str, Any]) -> Any:
    full = wire.modern_params(params)
    full["_meta"]["io.modelcontextprotocol/clientCapabilities"] = FORM
    headers = wire.modern_headers("tools/call", params)
    return wire.post(hub.mcp_url, wire.request(1, "tools/call", full), headers).rpc()


@pytest.mark.promise("B12")
def test_used_handle_stays_invalid_after_a_restart(
    hub: Callable[..., RunningHub],
) -> None:
    first = hub([server_entry("m", "matrix_server", "--era", "modern")])
    first.wait_connected("m")
    params: dict[str, Any] = {"name": "m.ask_form", "arguments": {"key": "k"}}
    asked = modern(first, params)["result"]
    (name,) = asked["inputRequests"]
    params |= {"inputResponses": {name: ADA}, "requestState": asked["requestState"]}
    assert json.loads(text_of(modern(first, params))) == ADA
    assert error_kind(modern(first, params)) == "InvalidInput"
    port = first.url.rpartition(":")[2]
    assert first.stop() == 0
    second = hub(home=first.home, args=["--port", port])
    second.wait_connected("m")
    assert error_kind(modern(second, params)) == "InvalidInput"


@pytest.mark.promise("N1")
def test_pending_questions_and_unread_streams_do_not_delay_shutdown(
    hub: Callable[..., RunningHub],
) -> None:
    running = hub(
        [
            server_entry("old", "matrix_server", "--era", "legacy", interactive=True),
            server_entry("new", "matrix_server", "--era", "modern"),
        ],
        config='[mcp]\nstdio_expose = ["*"]\ntask_after_secs = 0.2\n',
    )
    running.wait_connected("old", "new")
    clients: list[Any] = [
        OverHttp(running, MODERN, everything(MODERN)),
        OverHttp(running, LEGACY, everything(LEGACY)),
        OverStdio(running, LEGACY, everything(LEGACY)),
        OverSse(running, "2024-11-05", everything("2024-11-05")),
    ]
    for client in clients:
        client.answering = lambda method, params: None
        for server in ("old", "new"):
            tool = {"name": f"{server}.ask_form", "arguments": {"key": "never"}}
            client.begin("tools/call", tool)
            slow = {"name": f"{server}.slow", "arguments": {"seconds": 60}}
            client.begin("tools/call", slow)
    listen = {"notifications": {"toolsListChanged": True, "resourceSubscriptions": ["a:1"]}}
    clients[0].begin("subscriptions/listen", listen)
    until(lambda: all(len(client.asked) == 2 for client in clients[1:3]))
    begun = time.monotonic()
    assert running.stop() == 0
    assert time.monotonic() - begun < 30
    for client in clients:
        with contextlib.suppress(OSError):  # it would say goodbye
            client.close()
