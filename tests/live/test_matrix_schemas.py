"""Schemas come through as the server wrote them, to the byte; nothing that they refer to is
fetched; and one that is unbearable takes no other tool with it.
"""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator

import pytest
from tests.live.lasting import state_of, text_of
from tests.live.matrix_client import REVISIONS
from tests.live.matrix_grounds import UPSTREAMS, Grounds, matrix_grounds
from tests.peers import wire

pytestmark = pytest.mark.promise("B12", "F7")


@pytest.fixture(scope="module")
def elsewhere() -> Iterator[socket.socket]:
    """What a schema refers to: whoever fetches it connects here."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.setblocking(False)
        yield listener


@pytest.fixture(scope="module")
def grounds(elsewhere: socket.socket) -> Iterator[Grounds]:
    address = f"http://127.0.0.1:{elsewhere.getsockname()[1]}/schema.json"
    with matrix_grounds("--refer-to", address, "--bomb") as made:
        yield made


def raw_list(url: str, revision: str) -> str:
    """The answer to `tools/list` as it stands on the wire."""
    if revision == wire.MODERN:
        return wire.modern_request(url, "tools/list").body.decode()
    listing = wire.request(1, "tools/list", {})
    return wire.Session(url, revision).post(listing).body.decode()


def raw_tools(text: str) -> dict[str, str]:
    """Each tool's own text."""
    decoder = json.JSONDecoder()
    at = text.index('"tools":[') + len('"tools":[')
    found: dict[str, str] = {}
    while text[at] == "{":
        tool, end = decoder.raw_decode(text, at)
        found[tool["name"]] = text[at:end]
        at = end + 1 if text[end] == "," else end
    return found


def raw_member(tool: str, member: str) -> str | None:
    at = tool.find(f'"{member}":')
    if at < 0:
        return None
    at += len(member) + 3
    return tool[at : json.JSONDecoder().raw_decode(tool, at)[1]]


@pytest.mark.parametrize("revision", REVISIONS)
def test_a_schema_comes_through_to_the_byte(grounds: Grounds, revision: str) -> None:
    shown = raw_tools(raw_list(grounds.hub.mcp_url, revision))
    for upstream, (era, _) in UPSTREAMS.items():
        own_revision = wire.MODERN if era == "modern" else wire.LEGACY
        own = raw_tools(raw_list(grounds.urls[f"{era}_http"], own_revision))["faithful"]
        there = shown[f"mcp_{upstream}_faithful"]
        schema = raw_member(own, "inputSchema")
        assert schema is not None
        for part in ('"$anchor":"stripes"', '"$defs":', '"x-zeta":{"later":[1.0,'):
            assert part in schema
        assert raw_member(there, "inputSchema") == schema
        if revision >= "2025-06-18":
            assert raw_member(there, "outputSchema") == raw_member(own, "outputSchema")
        else:
            assert raw_member(there, "outputSchema") is None


@pytest.mark.parametrize("upstream", UPSTREAMS)
def test_what_a_schema_refers_to_is_never_fetched(
    grounds: Grounds, elsewhere: socket.socket, upstream: str
) -> None:
    shown = raw_tools(raw_list(grounds.hub.mcp_url, wire.MODERN))
    reference = f'"$ref":"http://127.0.0.1:{elsewhere.getsockname()[1]}/schema.json"'
    assert reference in shown[f"mcp_{upstream}_refers"]
    for era in ("modern", "legacy"):
        answer = grounds.hub.call(f"mcp_{upstream}_refers", {"x": 1}, era=era)
        assert text_of(answer) == "refers", "only its server can check what it refers to"
    with pytest.raises(BlockingIOError):
        elsewhere.accept()


@pytest.mark.parametrize("upstream", UPSTREAMS)
def test_a_schema_bomb_is_refused_and_its_neighbours_stay(grounds: Grounds, upstream: str) -> None:
    hub = grounds.hub
    state = state_of(hub, upstream)
    names = [tool["name"] for tool in state["tools"]]
    assert len(names) > 20
    assert not [name for name in names if name.endswith(("bomb", "wide", "deep"))]
    for name in ("bomb", "wide", "deep"):
        assert hub.call(f"mcp_{upstream}_{name}")["error"]["code"] == -32602
    assert text_of(hub.call(f"mcp_{upstream}_echo", {"text": "still here"})) == "still here"
    told = [line for line in hub.log().splitlines() if upstream in line]
    for name in ("bomb", "wide", "deep"):
        assert any(f'"{name}"' in line for line in told), told
