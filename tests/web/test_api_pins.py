"""`/api/pins` over a real socket: queries, permissions, invalid requests."""

from __future__ import annotations

import json
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
from tests.permissive_hub import PermitAll, complete_catalogs
from tests.web.mcp_http_fixture import Answer, HubRig, Sources

from dragoman.core.bus import Bus
from dragoman.core.call import Call, Result
from dragoman.core.call_chains import CallChains
from dragoman.core.catalog import Catalog
from dragoman.core.hub import Hub
from dragoman.core.ports import ADMIN_ACTIONS, Decision
from dragoman.core.principal import Principal
from dragoman.core.scopes import EVERY_SCOPE
from dragoman.core.tool import DEFAULT_TRAITS, Tool
from dragoman.pins.approvals import PinApprovals
from dragoman.pins.review import PinReviewer
from dragoman.stores.pins import DatabasePins
from dragoman.web.api import Api
from dragoman.web.api_pins import PinsApi
from dragoman.web.app import TcpApp
from dragoman.web.auth import AllowedNames, Authenticator
from dragoman.web.http.listener import HttpListener
from dragoman.web.peer_process import ALONE


class AliceAlone(PermitAll):
    """May administer."""

    def decide_action(
        self, caller: Principal, action: str, tool: Tool | None = None, *, owner: bool = False
    ) -> Decision:
        return Decision(action not in ADMIN_ACTIONS or caller.id == "alice")


class Files:
    traits = DEFAULT_TRAITS
    name = "files"

    async def run(self, call: Call) -> Result:
        return Result()


def tools(*said: str) -> list[Tool]:
    return [
        Tool(
            name=f"files.t{number}",
            alias=f"t{number}",
            remote_name=f"t{number}",
            definition={"name": f"t{number}", "description": words, "inputSchema": {}},
            target=Files(),
        )
        for number, words in enumerate(said)
    ]


class PinsRig:
    def __init__(self, place: Any, catalog: Catalog) -> None:
        self.catalog = catalog
        self._place = place

    async def ask(self, method: str, path: str, body: Any = None, who: str = "alice") -> Any:
        answer: Answer = await self._place.send(method, path, body, who=who)
        return answer.status, json.loads(await answer.body())


@asynccontextmanager
async def run_pins_api(home: Path) -> AsyncIterator[PinsRig]:
    store = DatabasePins(home)
    pins = PinReviewer(store, lambda target: "first")
    catalog = Catalog(review=pins.review)
    hub = Hub(complete_catalogs(catalog), Bus(), [], CallChains(bytes(32)), AliceAlone())
    people = PinApprovals(pins, catalog.review_again, lambda decision: None)
    sock = socket.create_server(("127.0.0.1", 0))
    sock.setblocking(False)
    auth = Authenticator(None, lambda key: Principal("key", key, scopes=EVERY_SCOPE), lambda: True)
    api = Api(hub, Sources(), parts=[PinsApi(people)])
    listener = HttpListener(
        TcpApp(auth, AllowedNames("127.0.0.1", None, [], []), {}, api, peers=ALONE), sock
    )
    await listener.start()
    catalog.offer("files", tools("a", "b", "c"))
    catalog.offer("files", tools("a", "B", "C"))
    unused: Any = None
    made = HubRig(sock.getsockname()[1], listener, unused, unused, unused, unused)
    try:
        yield PinsRig(made, catalog)
    finally:
        await listener.drain(0.5)
        listener.abort()
        for answer in made.answers:
            answer.close()
        store.close()


@pytest.mark.promise("R9")
async def test_quarantined_definition_is_listed_shown_and_approved(tmp_path: Path) -> None:
    async with run_pins_api(tmp_path) as at:
        status, found = await at.ask("GET", "/api/pins")
        assert status == 200 and found["total"] == 2
        assert [pin["name"] for pin in found["pins"]] == ["files.t1", "files.t2"]
        assert {pin["state"] for pin in found["pins"]} == {"held"}
        _, found = await at.ask("GET", "/api/pins?state=all")
        assert found["total"] == 3
        status, shown = await at.ask("GET", "/api/pins/diff?name=files.t1")
        assert status == 200 and shown["diff"] == "description\n  - b\n  + B"
        assert shown["approved_by"] == "first sight" and shown["now"]["description"] == "B"
        body = {"name": "files.t1", "digest": shown["digest"]}
        assert await at.ask("POST", "/api/pins/approve", body) == (200, {"approved": ["files.t1"]})
        assert [tool.remote_name for tool in at.catalog.list_tools()] == ["t0", "t1"]
        _, shown = await at.ask("GET", "/api/pins/diff?name=" + quote("tool:files.t1"))
        assert shown["approved_by"] == "key:alice" and shown["diff"] == ""
        assert [one["action"] for one in shown["decisions"]] == ["approve"]
        rejected = await at.ask("POST", "/api/pins/reject", {"name": "files.t2"})
        assert rejected == (200, {"rejected": ["files.t2"]})
        _, found = await at.ask("GET", "/api/pins?state=held")
        assert [pin["state"] for pin in found["pins"]] == ["rejected"]
        done = await at.ask("POST", "/api/pins/forget", {"target": "files"})
        assert done[0] == 200 and len(done[1]["forgotten"]) == 3
        assert len(at.catalog) == 3


async def test_all_quarantined_definitions_are_approved_at_once(tmp_path: Path) -> None:
    async with run_pins_api(tmp_path) as at:
        done = await at.ask("POST", "/api/pins/approve", {"target": "files"})
        assert done == (200, {"approved": ["files.t1", "files.t2"]})
        assert len(at.catalog) == 3
        assert await at.ask("POST", "/api/pins/approve", {"all": True}) == (200, {"approved": []})


@pytest.mark.promise("R9")
async def test_pin_api_needs_admin(tmp_path: Path) -> None:
    async with run_pins_api(tmp_path) as at:
        for method, path, body in (
            ("GET", "/api/pins", None),
            ("GET", "/api/pins?state=all", None),
            ("GET", "/api/pins/diff?name=files.t1", None),
            ("GET", "/api/pins/diff?name=nothing", None),
            ("POST", "/api/pins/approve", {"name": "files.t1"}),
            ("POST", "/api/pins/approve", {"all": True}),
            ("POST", "/api/pins/reject", {"name": "files.t1"}),
            ("POST", "/api/pins/forget", {"target": "files"}),
        ):
            status, answer = await at.ask(method, path, body, who="bob")
            assert status == 403 and "files.t" not in json.dumps(answer), path
        assert (await at.ask("GET", "/api/pins"))[1]["total"] == 2


async def test_invalid_pin_request_is_explained_and_has_no_effect(tmp_path: Path) -> None:
    async with run_pins_api(tmp_path) as at:
        body: Any
        for body in (
            {},
            {"all": False},
            {"all": 1},
            {"name": ""},
            {"name": 1},
            {"target": ""},
            {"name": "files.t1", "all": True},
            {"name": "files.t1", "target": "files"},
            {"name": "files.t1", "digest": 1},
            {"name": "files.t1", "digest": ""},
            {"name": "files.t1", "digest": "0" * 64},
            {"name": "files.t0"},
            [],
        ):
            status, answer = await at.ask("POST", "/api/pins/approve", body)
            assert status == 400 and answer["error"]["message"], body
        for path, body in (
            ("reject", {}),
            ("reject", {"name": "files.t0"}),
            ("reject", {"name": "files.t1", "x": 1}),
            ("forget", {"name": "files"}),
        ):
            assert (await at.ask("POST", f"/api/pins/{path}", body))[0] == 400, (path, body)
        assert (await at.ask("GET", "/api/pins?state=x"))[0] == 400
        assert (await at.ask("GET", "/api/pins/diff"))[0] == 400
        assert (await at.ask("GET", "/api/pins/diff?name=x"))[0] == 404
        assert (await at.ask("POST", "/api/pins/approve", {"name": "x"}))[0] == 404
        assert (await at.ask("POST", "/api/pins/approve", {"target": "x"}))[0] == 404
        assert (await at.ask("POST", "/api/pins/forget", {"target": "x"}))[0] == 404
        assert (await at.ask("DELETE", "/api/pins"))[0] == 405
        assert (await at.ask("GET", "/api/pins"))[1]["total"] == 2
