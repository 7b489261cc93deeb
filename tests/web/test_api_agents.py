"""`/api/a2a/agents` over a real socket: permissions and error messages."""

from __future__ import annotations

import asyncio
import json
import re
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
from tests.a2a.registry_fixture import RegistryRig, external, run_changeable_agent, run_registry
from tests.permissive_hub import PermitAll
from tests.web.mcp_http_fixture import Sources

from dragoman.core.ports import A2A_DISCOVER, ADMIN_ACTIONS, Decision
from dragoman.core.principal import Principal
from dragoman.core.scopes import EVERY_SCOPE
from dragoman.core.tool import Tool
from dragoman.stores.audit.reader import AuditReader
from dragoman.web.api import Api
from dragoman.web.api_agents import AgentsApi
from dragoman.web.app import TcpApp
from dragoman.web.auth import AllowedNames, Authenticator
from dragoman.web.http.listener import HttpListener
from dragoman.web.peer_process import ALONE

pytestmark = pytest.mark.promise("R10")

PATH = "/api/a2a/agents"


class Judge(PermitAll):
    """The key "boss" runs the hub; "guest" may not know of the agent "Hidden"."""

    def decide_action(
        self, caller: Principal, action: str, tool: Tool | None = None, *, owner: bool = False
    ) -> Decision:
        if action in ADMIN_ACTIONS:
            return Decision(caller.id == "boss")
        assert action == A2A_DISCOVER and tool is not None
        return Decision(caller.id == "boss" or tool.target.name != "Hidden")


class Served:
    def __init__(self, port: int, here: RegistryRig) -> None:
        self.port = port
        self.here = here

    async def ask(
        self, method: str, path: str, body: Any = None, who: str = "boss"
    ) -> tuple[int, Any]:
        data = json.dumps(body).encode() if body is not None else b""
        lines = [f"{method} {path} HTTP/1.1", "Host: localhost", f"Authorization: Bearer {who}"]
        lines += ["Content-Type: application/json", f"Content-Length: {len(data)}"]
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
        try:
            writer.write("\r\n".join([*lines, "", ""]).encode() + data)
            async with asyncio.timeout(60):
                head = (await reader.readuntil(b"\r\n\r\n")).decode()
                length = re.search(r"(?i)content-length: (\d+)", head)
                assert length is not None
                answer = await reader.readexactly(int(length[1]))
        finally:
            writer.close()
        return int(head.split()[1]), json.loads(answer)


@asynccontextmanager
async def served(home: Path, config: str = "") -> AsyncIterator[Served]:
    async with run_registry(home, config, lookup={"DRAGOMAN_AGENT_X": "t0ken"}) as here:
        here.hub.authorizer = Judge()
        part = AgentsApi(here.hub, here.listed, here.audit)
        api = Api(here.hub, Sources(), parts=[part])
        sock = socket.create_server(("127.0.0.1", 0))
        sock.setblocking(False)
        auth = Authenticator(
            None, lambda key: Principal("key", key, scopes=EVERY_SCOPE), lambda: True
        )
        listener = HttpListener(
            TcpApp(auth, AllowedNames("127.0.0.1", None, [], []), {}, api, peers=ALONE), sock
        )
        await listener.start()
        try:
            yield Served(sock.getsockname()[1], here)
        finally:
            await listener.drain(0.5)
            listener.abort()


async def test_registry_changes_are_audited_with_their_principal(tmp_path: Path) -> None:
    async with run_changeable_agent("deploy", name="Vercel Ops") as agent, served(tmp_path) as hub:
        assert (await hub.ask("POST", "/api/a2a/agents", {"url": agent.url}))[0] == 200
        assert (await hub.ask("PATCH", "/api/a2a/agents/nobody", {"trust": "trusted"}))[0] == 404
        assert (await hub.ask("DELETE", "/api/a2a/agents/vercel_ops", who="guest"))[0] == 403
        assert (await hub.ask("DELETE", "/api/a2a/agents/vercel_ops"))[0] == 200
        hub.here.audit.flush()
        reader = AuditReader(tmp_path)
        found = [
            (one.intent["verb"], one.intent["caller"], one.intent["asked_as"], one.outcome)
            for one in reversed(reader.list_records(9))
        ]
        reader.close()
    assert found == [
        ("agent.add", "key:boss", agent.url, "completed"),
        ("agent.change", "key:boss", "nobody", "failed"),
        ("agent.remove", "key:boss", "vercel_ops", "completed"),
    ]


async def test_agent_is_registered_read_updated_refreshed_and_removed(tmp_path: Path) -> None:
    async with run_changeable_agent("deploy", name="Vercel Ops") as agent, served(tmp_path) as hub:
        status, row = await hub.ask(
            "POST", PATH, {"url": agent.url, "token": "env:DRAGOMAN_AGENT_X"}
        )
        assert status == 200 and row["name"] == "Vercel Ops" and row["health"] == "healthy"
        assert set(row) >= {
            *("id", "orgId", "name", "slug", "url", "trustLevel", "health", "reachable", "card"),
            *("skills", "lastFetchedAt", "lastSeenAt", "createdAt", "updatedAt", "dialect"),
            *("findings", "source", "tools"),
        }
        status, listed = await hub.ask("GET", PATH)
        assert status == 200 and listed["total"] == 1 and "t0ken" not in json.dumps(listed)
        for key in (row["id"], "vercel_ops", quote("Vercel Ops")):
            status, one = await hub.ask("GET", f"{PATH}/{key}")
            assert (status, one["id"]) == (200, row["id"]) and one["card"]["supportedInterfaces"]
        status, changed = await hub.ask("PATCH", f"{PATH}/vercel_ops", {"trustLevel": "trusted"})
        assert (status, changed["trustLevel"]) == (200, "trusted")
        agent.card["description"] = "new"
        status, looked = await hub.ask("POST", f"{PATH}/vercel_ops/refetch", {})
        assert (status, looked["card"]["description"]) == (200, "new")
        status, cards = await hub.ask("GET", f"{PATH}/vercel_ops/cards")
        assert (status, cards["total"]) == (200, 2)
        status, card = await hub.ask("GET", f"{PATH}/vercel_ops/cards?n=1")
        assert status == 200 and '+  "description": "new",' in card["diff"]
        assert (await hub.ask("GET", f"{PATH}/vercel_ops/cards?n=2&from=1"))[1]["comparedWith"] == 1
        assert (await hub.ask("GET", f"{PATH}/vercel_ops/cards?n=9"))[0] == 404
        assert (await hub.ask("GET", f"{PATH}/vercel_ops/cards?n=x"))[0] == 400
        status, gone = await hub.ask("DELETE", f"{PATH}/{row['id']}")
        assert (status, gone["removed"]) == (200, "Vercel Ops")
        assert (await hub.ask("GET", f"{PATH}/vercel_ops"))[0] == 404
        assert not hub.here.tools()


@pytest.mark.parametrize(
    ("method", "path", "body"),
    [
        ("POST", PATH, {"url": "http://127.0.0.1:9"}),
        ("PATCH", f"{PATH}/ops", {"trust": "trusted"}),
        ("DELETE", f"{PATH}/ops", None),
        ("POST", f"{PATH}/ops/refetch", {}),
    ],
)
async def test_registry_changes_need_admin(
    tmp_path: Path, method: str, path: str, body: Any
) -> None:
    async with served(tmp_path) as hub:
        status, told = await hub.ask(method, path, body, who="guest")
        assert status == 403 and '"key:guest" may not do this' in told["error"]["message"]


async def test_guest_sees_neither_hidden_agents_nor_credentials(
    tmp_path: Path,
) -> None:
    async with (
        run_changeable_agent("a", name="Open") as one,
        run_changeable_agent("b", name="Hidden") as two,
        served(tmp_path) as hub,
    ):
        await hub.ask("POST", PATH, {"url": one.url, "token": "env:DRAGOMAN_AGENT_X"})
        await hub.ask("POST", PATH, {"url": two.url})
        _, listed = await hub.ask("GET", PATH, who="guest")
        assert [row["name"] for row in listed["agents"]] == ["Open"]
        assert "AGENT_X" not in json.dumps(listed) and "credentials" not in listed["agents"][0]
        status, told = await hub.ask("GET", f"{PATH}/hidden", who="guest")
        assert status == 404
        assert told["error"]["message"] == 'there is no registered agent "hidden"'
        # Cards may be quarantined: administrators alone see them, and no answer tells of an agent.
        cards = [
            await hub.ask("GET", f"{PATH}/{name}/cards{query}", who="guest")
            for name in ("hidden", "open", "unknown")
            for query in ("", "?n=1")
        ]
        assert all(answer == cards[0] for answer in cards) and cards[0][0] == 403
        assert "admin" in cards[0][1]["error"]["message"]
        _, boss = await hub.ask("GET", f"{PATH}/open")
        assert boss["credentials"] == {"token": "env:DRAGOMAN_AGENT_X", "headers": []}


async def test_invalid_registry_request_has_its_status_and_reason(tmp_path: Path) -> None:
    async with (
        run_changeable_agent("a") as agent,
        run_changeable_agent("b") as other,
        served(tmp_path, external("fixed", agent.url)) as hub,
    ):
        await hub.ask("POST", PATH, {"url": agent.url, "name": "ops"})
        for method, path, body, status, said in (
            ("POST", PATH, {"url": "http://127.0.0.1:9"}, 400, "no agent was registered"),
            ("POST", PATH, {"url": other.url, "token": "sk-1"}, 400, "env:NAME"),
            ("POST", PATH, {}, 400, "registered by"),
            ("POST", PATH, [], 400, "JSON object"),
            ("POST", PATH, {"url": other.url, "name": "Ops"}, 409, f'"ops" at {agent.url}'),
            ("PATCH", f"{PATH}/ops", {"trustLevel": "internal"}, 400, "external, trusted"),
            ("PATCH", f"{PATH}/ops", {"url": other.url}, 400, 'unknown setting "url"'),
            ("PATCH", f"{PATH}/fixed", {"trust": "trusted"}, 400, "config.toml"),
            ("DELETE", f"{PATH}/fixed", None, 400, "config.toml"),
            ("DELETE", f"{PATH}/opps", None, 404, 'did you mean "ops"'),
            ("PUT", f"{PATH}/ops", {}, 405, "DELETE or GET or PATCH"),
        ):
            found, told = await hub.ask(method, path, body)
            assert (found, said in told["error"]["message"]) == (status, True), (path, told)
