"""Schemas pass byte for byte, references are never fetched, and an unusable schema affects no other
tool.
"""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator

import pytest
from tests.live.matrix_client import REVISIONS
from tests.live.matrix_fixture import UPSTREAMS, HubRig, run_matrix_hub
from tests.live.module_hub import state_of, text_of
from tests.peers import wire

pytestmark = pytest.mark.promise("B12", "F7")


@pytest.fixture(scope="module")
def elsewhere() -> Iterator[socket.socket]:
    """The target of a schema reference: fetching it connects here."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.setblocking(False)
        yield listener


@pytest.fixture(scope="module")
def rig(elsewhere: socket.socket) -> Iterator[HubRig]:
    address = f"http://127.0.0.1:{elsewhere.getsockname()[1]}/schema.json"
    with run_matrix_hub("--refer-to", address, "--bomb") as made:
        yield made


def raw_list(url: str, revision: str) -> str:
    """The answer to `tools/list` as it stands on the wire."""
    if revision >= wire.MODERN:
        return wire.modern_request(url, "tools/list", version=revision).body.decode()
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
def test_schema_passes_byte_for_byte(rig: HubRig, revision: str) -> None:
    shown = raw_tools(raw_list(rig.hub.mcp_url, revision))
    for upstream, (era, _) in UPSTREAMS.items():
        own_revision = wire.MODERN if era == "modern" else wire.LEGACY
        own = raw_tools(raw_list(rig.urls[f"{era}_http"], own_revision))["faithful"]
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
def test_schema_references_are_never_fetched(
    rig: HubRig, elsewhere: socket.socket, upstream: str
) -> None:
    shown = raw_tools(raw_list(rig.hub.mcp_url, wire.MODERN))
    reference = f'"$ref":"http://127.0.0.1:{elsewhere.getsockname()[1]}/schema.json"'
    assert reference in shown[f"mcp_{upstream}_refers"]
    for era in ("modern", "legacy"):
        answer = rig.hub.call(f"mcp_{upstream}_refers", {"x": 1}, era=era)
        assert text_of(answer) == "refers", "only its server can check what it refers to"
    with pytest.raises(BlockingIOError):
        elsewhere.accept()


@pytest.mark.parametrize("upstream", UPSTREAMS)
def test_schema_bomb_is_refused_without_affecting_other_tools(rig: HubRig, upstream: str) -> None:
    hub = rig.hub
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
