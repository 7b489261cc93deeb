"""A request that fails inside the hub is answered by every transport, and no other
client notices.
"""

from __future__ import annotations

import asyncio
import json
import logging
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from tests.web.mcp_http_fixture import HubRig, modern, notification, request, run_mcp_rig

from dragoman.core.hub import Hub
from dragoman.core.principal import OWNER
from dragoman.core.tool_filter import EVERYTHING
from dragoman.mcp.protocol.revisions import LATEST, METHODS, R2511
from dragoman.mcp.server.socket_transport import SocketConnection
from dragoman.wire import rpc

PARAMS: dict[str, dict[str, Any]] = {
    "initialize": {"protocolVersion": "2025-11-25", "capabilities": {}},
    "tools/call": {"name": "work.do", "arguments": {}},
    "prompts/get": {"name": "p"},
    "resources/read": {"uri": "a:b"},
    "resources/subscribe": {"uri": "a:b"},
    "resources/unsubscribe": {"uri": "a:b"},
    "subscriptions/listen": {"notifications": {"toolsListChanged": True}},
    "completion/complete": {
        "ref": {"type": "ref/prompt", "name": "p"},
        "argument": {"name": "a", "value": "b"},
    },
    "logging/setLevel": {"level": "info"},
    **{f"tasks/{verb}": {"taskId": "t"} for verb in ("get", "cancel", "result")},
    "tasks/update": {"taskId": "t", "inputResponses": {}},
}
UNHARMED = {"ping", "logging/setLevel", "tasks/get", "tasks/cancel", "tasks/result", "tasks/list",
            "tasks/update"}  # fmt: skip
"""What needs nothing of the hub, or finds no task before it would."""
LEGACY = [name for name, (first, last) in METHODS.items() if first <= R2511 <= last]
MODERN = [name for name in METHODS if name in LATEST.methods]


class BrokenHub(Hub):
    def __getattribute__(self, name: str) -> Any:
        raise RuntimeError(f"{name} is broken")


@asynccontextmanager
async def broken(here: HubRig) -> AsyncIterator[None]:
    hub = here.mcp_server.hub
    hub.__class__ = BrokenHub
    try:
        yield
    finally:
        object.__setattr__(hub, "__class__", Hub)


def check(answer: dict[str, Any], id: int, method: str) -> None:
    assert answer["id"] == id
    if method not in UNHARMED:
        assert answer["error"]["code"] == rpc.INTERNAL_ERROR, (method, answer)
        assert "see " in answer["error"]["message"] and "broken" not in str(answer)


@pytest.fixture(autouse=True)
def _quiet(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.CRITICAL)


async def test_every_method_over_a_connection() -> None:
    loop = asyncio.get_running_loop()
    async with run_mcp_rig() as here:
        ours, theirs = socket.socketpair()
        transport, _ = await loop.create_connection(
            lambda: SocketConnection(here.mcp_server, lambda _: OWNER, lambda: EVERYTHING, set()),
            sock=ours,
        )
        reader, writer = await asyncio.open_connection(sock=theirs)
        await reader.readline()  # what the hub says of itself

        async def ask(message: Any) -> Any:
            writer.write(json.dumps(message).encode() + b"\n")
            async with asyncio.timeout(60):
                return json.loads(await reader.readline())

        await ask(request(0, "initialize", **PARAMS["initialize"]))
        async with broken(here):
            for id, method in enumerate(LEGACY, 1):
                check(await ask(request(id, method, **PARAMS.get(method, {}))), id, method)
            for id, method in enumerate(MODERN, 100):
                message = request(id, method, **PARAMS.get(method, {}))
                check(await ask(modern(message)["message"]), id, method)
            writer.write(json.dumps(notification("notifications/initialized")).encode() + b"\n")
        assert (await ask(request(99, "tools/list")))["result"]["tools"]
        writer.close()
        transport.abort()
        await asyncio.sleep(0)


async def test_every_method_over_http() -> None:
    async with run_mcp_rig() as here:
        session = await here.session()
        async with broken(here):
            for id, method in enumerate(LEGACY, 1):
                if method == "initialize":
                    continue  # begins a session, and no request of one
                answer = await here.send(
                    "POST", message=request(id, method, **PARAMS.get(method, {})), **session
                )
                check(await answer.json(), id, method)
            for id, method in enumerate(MODERN, 100):
                message = request(id, method, **PARAMS.get(method, {}))
                answer = await here.send("POST", **modern(message))
                assert answer.status in (200, 400, 404, 500)
                if answer.streams:  # a listen has begun, which takes nothing of the hub
                    found = await answer.message()
                    assert found["method"] == "notifications/subscriptions/acknowledged"
                    continue
                check(await answer.json(), id, method)
        answer = await here.send("POST", message=request(99, "tools/list"), **session)
        assert (await answer.json())["result"]["tools"]


async def test_every_method_over_sse() -> None:
    async with run_mcp_rig() as here:
        stream = await here.send("GET", "/sse")
        path = (await stream.event()).data.decode()

        async def ask(message: Any) -> Any:
            assert (await here.send("POST", path, message)).status == 202
            return await stream.message()

        await ask(request(0, "initialize", **PARAMS["initialize"]))
        async with broken(here):
            for id, method in enumerate(LEGACY, 1):
                check(await ask(request(id, method, **PARAMS.get(method, {}))), id, method)
        assert (await ask(request(99, "tools/list")))["result"]["tools"]


async def test_batch_is_answered_completely() -> None:
    async with run_mcp_rig() as here:
        session = await here.session("2025-03-26")
        async with broken(here):
            batch = [request(1, "tools/list"), request(2, "ping")]
            answer = await here.send("POST", message=batch, **session)
            first, second = await answer.json()
        check(first, 1, "tools/list")
        assert second == {"jsonrpc": "2.0", "id": 2, "result": {}}
