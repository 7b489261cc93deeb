"""Each of the five revisions, live over stdio and HTTP, sees only its own features."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from tests.live.conftest import RunningHub
from tests.live.module_hub import run_module_hub
from tests.live.unix_client import UnixClient
from tests.peers import wire
from tests.peers.process import server_entry

from dragoman.mcp.protocol.revisions import NAMES

LEGACY = ("2024-11-05", "2025-03-26", "2025-06-18", "2025-11-25")
ALL = NAMES
SINCE = {name: number for number, name in enumerate(ALL)}
ERROR_KEY = "dragoman.hub/error"
SERVER_KEY = "io.modelcontextprotocol/serverInfo"

pytestmark = pytest.mark.promise("F7", "B12")

Ask = Callable[..., Any]


@pytest.fixture(scope="module")
def hub() -> Iterator[RunningHub]:
    with run_module_hub(
        [server_entry("s", "sdk_server")], '[mcp]\nstdio_expose = ["*"]\n'
    ) as running:
        running.wait_connected("s")
        yield running


@pytest.fixture(params=["http", "stdio"])
def asking(request: pytest.FixtureRequest, hub: RunningHub) -> Iterator[Callable[[str], Ask]]:
    """`asking(revision)(method, params)`: the answer to a client of that revision."""
    clients: list[UnixClient] = []

    def over_http(revision: str) -> Ask:
        if revision >= wire.MODERN:
            return lambda method, params=None: hub.rpc(method, params, version=revision)
        return wire.Session(hub.mcp_url, revision, hub.headers).request

    def over_stdio(revision: str) -> Ask:
        clients.append(UnixClient(hub.home))
        ask = clients[-1].request
        if revision >= wire.MODERN:
            return lambda method, params=None: ask(method, wire.modern_params(params, revision))
        assert clients[-1].initialize(revision)["protocolVersion"] == revision
        return ask

    yield over_http if request.param == "http" else over_stdio
    for client in clients:
        client.close()


@pytest.mark.parametrize("revision", ALL)
def test_each_revision_gets_only_its_fields(asking: Callable[[str], Ask], revision: str) -> None:
    ask = asking(revision)
    number = SINCE[revision]
    modern = revision >= wire.MODERN

    def call(tool: str, **arguments: Any) -> Any:
        return ask("tools/call", {"name": f"mcp_s_{tool}", "arguments": arguments})

    listed = ask("tools/list")["result"]
    tools = {tool["name"]: tool for tool in listed["tools"]}
    echo = tools["mcp_s_echo"]
    assert echo["description"] == "[MCP:s] The tool echo"
    assert ("annotations" in echo) == (number >= SINCE["2025-03-26"])
    for field in ("title", "_meta"):
        assert (field in echo) == (number >= SINCE["2025-06-18"])
    assert ("outputSchema" in tools["mcp_s_add"]) == (number >= SINCE["2025-06-18"])
    assert ({"ttlMs", "cacheScope", "resultType"} <= set(listed)) == modern
    assert (SERVER_KEY in listed.get("_meta", {})) == modern

    added = call("add", a=1, b=2)["result"]
    assert added["content"] == [{"type": "text", "text": '{"sum": 3}'}]
    assert ("structuredContent" in added) == (number >= SINCE["2025-06-18"])
    assert (added.get("resultType") == "complete") == modern

    kinds = {tool: call(tool)["result"]["content"][0]["type"] for tool in ("audio", "link")}
    assert kinds["audio"] == ("audio" if number >= SINCE["2025-03-26"] else "resource")
    assert kinds["link"] == ("resource_link" if number >= SINCE["2025-06-18"] else "text")

    meta = call("meta")["result"]
    assert meta["_meta"]["example.com/result"] == [1, 2]
    assert ("_meta" in meta["content"][0]) == (number >= SINCE["2025-06-18"])
    assert (SERVER_KEY in meta["_meta"]) == modern

    failed = call("fail")["result"]
    assert failed["isError"] is True and failed["content"][0]["text"] == "it went wrong"


@pytest.mark.parametrize("revision", ALL)
def test_each_revision_gets_errors_in_its_form(asking: Callable[[str], Ask], revision: str) -> None:
    ask = asking(revision)

    def call(name: Any, arguments: Any) -> Any:
        return ask("tools/call", {"name": name, "arguments": arguments})

    unfit = call("mcp_s_echo", {"text": [7]})
    if revision >= "2025-11-25":
        assert unfit["result"]["isError"] is True
        assert unfit["result"]["_meta"][ERROR_KEY]["kind"] == "InvalidInput"
        assert "invalid arguments" in unfit["result"]["content"][0]["text"]
    else:
        assert unfit["error"]["code"] == -32602
        assert unfit["error"]["data"]["kind"] == "InvalidInput"
    assert call("no.such", {})["error"]["code"] == -32602
    assert call(7, {})["error"]["code"] == -32602
    assert call("mcp_s_echo", [])["error"]["code"] == -32602
    missing = ask("resources/read", {"uri": "a:b"})["error"]["code"]
    assert missing == (-32602 if revision >= wire.MODERN else -32002)
    assert ask("no/such")["error"]["code"] == -32601
    pinged = ask("ping")
    if revision >= wire.MODERN:
        assert pinged["error"]["code"] == -32601
        found = ask("server/discover")["result"]
        assert found["supportedVersions"] == list(ALL)
        assert found["_meta"][SERVER_KEY]["name"] == "dragoman"
    else:
        assert pinged["result"] == {}
        assert ask("server/discover")["error"]["code"] == -32601
