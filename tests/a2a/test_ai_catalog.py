"""The public document of the hub's agents: an AI Catalog and an ARD manifest."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from tests.a2a.registry_fixture import RegistryRig, run_changeable_agent, run_registry, skill
from tests.permissive_hub import PermitAll

from dragoman.a2a.server.ai_catalog import CATALOG_PATHS, build_identifier
from dragoman.core.ports import Decision
from dragoman.core.principal import Principal
from dragoman.core.tool import Tool

pytestmark = pytest.mark.promise("R10")

TEXT = {"type": "string", "minLength": 1}
ENTRY = {
    "type": "object",
    "required": ["identifier", "displayName", "type", "url"],
    "properties": {
        "identifier": TEXT,
        "displayName": TEXT,
        "type": {"const": "application/a2a-agent-card+json"},
        "url": {"type": "string", "pattern": "^https?://"},
        "description": {"type": "string"},
        "version": TEXT,
        "tags": {"type": "array", "items": TEXT},
        "representativeQueries": {"type": "array", "items": TEXT, "maxItems": 5},
    },
    "additionalProperties": False,
}
CATALOG = {
    "type": "object",
    "required": ["specVersion", "entries"],
    "properties": {
        "specVersion": {"type": "string", "pattern": r"^\d+\.\d+$"},
        "host": {"type": "object", "required": ["displayName"]},
        "entries": {"type": "array", "items": ENTRY},
    },
    "additionalProperties": False,
}
"""As both specifications have it, of what the hub says."""


class FakeRequest:
    """A request as the hub's listener would make it."""

    def __init__(self, path: str, method: str = "GET", **fields: str) -> None:
        self.method, self.path, self.query, self.body = method, path, b"", b""
        self.fields = {
            name.replace("_", "-").encode(): value.encode() for name, value in fields.items()
        }
        self.status, self.headers, self.answer = 0, {}, b""  # type: ignore[var-annotated]

    def reply(self, status: int, headers: list[tuple[bytes, bytes]], body: bytes) -> None:
        self.status, self.headers, self.answer = status, dict(headers), body


async def ask(here: RegistryRig, path: str, method: str = "GET", **fields: str) -> Any:
    asked: Any = FakeRequest(path, method, host="hub.example.com", **fields)
    (under,) = [one for one in here.build_mounts() if one.has(path)]
    assert under.is_open(path)
    if (answer := under.serve(asked, None)) is not None:
        await answer
    return asked


@pytest.mark.parametrize("path", CATALOG_PATHS)
async def test_ai_catalog_lists_hub_and_agents_publicly(tmp_path: Path, path: str) -> None:
    async with (
        run_changeable_agent("deploy", name="Vercel Ops") as agent,
        run_registry(tmp_path) as here,
    ):
        here.state.set_url("http://hub.example.com")
        agent.card["skills"] = [skill("deploy", examples=["deploy main"], tags=["ops", "web"])]
        await here.listed.add({"url": agent.url, "public": True})
        asked = await ask(here, path)
        assert asked.status == 200
        assert asked.headers[b"content-type"] == b"application/ai-catalog+json"
        told = json.loads(asked.answer)
        jsonschema.validate(told, CATALOG)
        hub, ops = told["entries"]
        assert hub["displayName"] == "dragoman"
        assert ops["identifier"] == "urn:air:hub.example.com:agent:vercel_ops"
        assert ops["tags"] == ["ops", "web"] and ops["representativeQueries"] == ["deploy main"]
        assert len({entry["identifier"] for entry in told["entries"]}) == 2
        assert agent.url not in asked.answer.decode()  # it is reached through the hub
        for entry in told["entries"]:  # each address has the card that it promises
            address = entry["url"].removeprefix("http://hub.example.com")
            card: Any = FakeRequest(address, host="hub.example.com")
            (under,) = [one for one in here.build_mounts() if one.has(address)]
            assert under.serve(card, None) is None  # answered at once
            assert card.status == 200 and json.loads(card.answer)["name"] == entry["displayName"]

        tag = asked.headers[b"etag"].decode()
        same = await ask(here, path, if_none_match=tag)
        assert (same.status, same.answer) == (304, b"")
        agent.mode = "gone"
        for _ in range(3):
            await here.listed.refetch("vercel_ops")
        changed = await ask(here, path, if_none_match=tag)
        assert changed.status == 200 and b"Vercel Ops" not in changed.answer
        assert (await ask(here, path, "POST")).status == 405


async def test_ai_catalog_omits_undiscoverable_agents(tmp_path: Path) -> None:
    class Discreet(PermitAll):
        def decide_action(
            self, caller: Principal, action: str, tool: Tool | None = None, *, owner: bool = False
        ) -> Decision:
            return Decision(tool is None or tool.target.name != "Hidden")

    async with (
        run_changeable_agent("a", name="Open") as one,
        run_changeable_agent("b", name="Hidden") as two,
        run_registry(tmp_path) as here,
    ):
        await here.listed.add({"url": one.url, "public": True})
        await here.listed.add({"url": two.url, "public": True})
        assert b"Hidden" in (await ask(here, CATALOG_PATHS[0])).answer
        here.hub.authorizer = Discreet()
        here.hub.catalog.mark_changed()
        answer = (await ask(here, CATALOG_PATHS[0])).answer
        assert b"Hidden" not in answer and b"Open" in answer


@pytest.mark.parametrize(
    ("base", "said"),
    [
        ("https://Hub.Example.com:8443", "urn:air:hub.example.com:agent:linear_prod"),
        ("http://localhost:4200", "u"),
        ("http://127.0.0.1:4200", "u"),
        ("http://[::1]:4200", "u"),
    ],
)
def test_permanent_name_needs_a_domain(base: str, said: str) -> None:
    assert build_identifier(base, "Linear (prod)", "u") == said
