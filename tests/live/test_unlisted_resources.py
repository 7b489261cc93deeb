"""Unlisted resources behind several servers: a URI that a server returned or declared is readable,
and only from that server.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.live.configurable_servers import names, run_configurable_hub, tool
from tests.live.conftest import RunningHub
from tests.peers import wire


def resource(uri: str) -> dict[str, Any]:
    return {"uri": uri, "name": uri}


def link(*uris: str) -> dict[str, Any]:
    return {"content": [{"type": "resource_link", "uri": uri, "name": "it"} for uri in uris]}


def shows(name: str, uri: str) -> dict[str, Any]:
    return tool(name, _meta={"ui": {"resourceUri": uri, "visibility": ["model"]}})


SHOP = {
    "reads": "shop has",
    "resources": [resource("shop://list"), resource("ui://panel")],
    "tools": [tool("buy"), shows("cart", "ui://shop/cart"), shows("panel", "ui://panel"),
              shows("help", "ui://help")],
    "results": {"buy": link("shop://receipt/9", "https://shop.test/9")},
}  # fmt: skip
DOCS = {
    "reads": "docs has",
    "resources": [
        resource("docs://list"),
        resource("ui://panel"),
        resource("ui://shop.dragoman/help"),
    ],
    "tools": [tool("quote"), shows("panel", "ui://panel"), shows("help", "ui://help")],
    "results": {"quote": link("shop://receipt/9", "shop://list")},
}
NOTES = {
    "reads": "notes has",
    "tools": [tool("add")],
    "results": {
        "add": {"content": [{"type": "resource", "resource": {"uri": "note://1", "text": "a"}}]}
    },
}


@pytest.fixture(scope="module")
def hub(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningHub]:
    place: Path = tmp_path_factory.mktemp("unlisted")
    servers: Any = {"shop": {"offers": SHOP}, "docs": {"offers": DOCS}, "notes": {"offers": NOTES}}
    with run_configurable_hub(place, **servers) as (running, _):
        yield running


def read(hub: RunningHub, uri: str) -> str:
    """What both eras read there."""
    session = wire.Session(hub.mcp_url, "2025-11-25")
    answers = [
        hub.rpc("resources/read", {"uri": uri}),
        session.request("resources/read", {"uri": uri}),
    ]
    texts = {
        answer["result"]["contents"][0]["text"] if "result" in answer else "(nothing)"
        for answer in answers
    }
    assert len(texts) == 1
    for answer in answers:
        if "result" in answer:
            assert answer["result"]["contents"][0]["uri"] == uri
    return texts.pop()


def links(hub: RunningHub, name: str) -> list[str]:
    return [block["uri"] for block in hub.call(name)["result"]["content"]]


@pytest.mark.promise("B12")
def test_resource_link_in_a_result_is_readable_from_its_server(
    hub: RunningHub,
) -> None:
    assert read(hub, "shop://receipt/9") == "(nothing)", "no server has spoken of it"
    assert links(hub, "shop.buy") == ["shop://receipt/9", "https://shop.test/9"]
    assert read(hub, "shop://receipt/9") == "shop has shop://receipt/9"
    # What another server returns under the same address, or lists, stays that one's.
    mine, listed = links(hub, "docs.quote")
    assert read(hub, mine) == "docs has shop://receipt/9"
    assert read(hub, listed) == "docs has shop://list"
    assert read(hub, "shop://receipt/9") == "shop has shop://receipt/9"
    # A server that lists no resource at all.
    assert read(hub, "note://1") == "(nothing)"
    hub.call("notes.add")
    assert read(hub, "note://1") == "notes has note://1"
    assert read(hub, "notes.note://2") == "notes has note://2", "its full name says whose it is"


@pytest.mark.promise("B12")
def test_tool_ui_resource_is_readable_by_its_uri(
    hub: RunningHub,
) -> None:
    tools, shown = names(hub), names(hub, "resources")
    pages = {
        name: tools[f"mcp_{name}"]["_meta"]["ui"]["resourceUri"]
        for name in ("shop_cart", "shop_panel", "docs_panel", "shop_help", "docs_help")
    }
    assert pages["shop_cart"] == "ui://shop/cart"
    assert all(page.startswith("ui://") for page in pages.values()), "hosts take nothing else"
    assert len(set(pages.values())) == len(pages)
    assert {pages["shop_panel"], pages["docs_panel"]} <= shown.keys()
    assert "ui://panel" in shown, "one of the two has it as it is"
    for name, page in pages.items():
        server, what = name.split("_")
        wanted = "ui://shop/cart" if what == "cart" else f"ui://{what}"
        assert read(hub, page) == f"{server} has {wanted}"
    # No server lists itself in the place of another, and what it lists so can be read as its own.
    assert pages["shop_help"] == "ui://shop.dragoman/help" not in shown
    foreign = "ui://docs.dragoman/shop.dragoman/help"
    assert foreign in shown and read(hub, foreign) == "docs has ui://shop.dragoman/help"
    assert tools["mcp_docs_panel"]["_meta"]["ui"]["visibility"] == ["model"]
