"""The four lists as clients see them: names, order, cursors. No transport."""

from __future__ import annotations

import base64
import json
from typing import Any

import pytest
from tests.permissive_hub import build_permissive_hub

from dragoman.core.bus import Bus
from dragoman.core.call import Call, Result
from dragoman.core.catalog import Catalog, admit_all
from dragoman.core.hub import Hub
from dragoman.core.principal import OWNER
from dragoman.core.tool import DEFAULT_TRAITS, PROMPT, RESOURCE, TEMPLATE, TOOL, Tool
from dragoman.core.tool_filter import EVERYTHING, View
from dragoman.mcp.protocol.revisions import ORDERED, R2506, R2511, R2607, Revision
from dragoman.mcp.server import list_pages
from dragoman.mcp.server.client_state import ClientState
from dragoman.mcp.server.dispatcher import McpServer
from dragoman.wire import rpc

MODERN_META: dict[str, Any] = {
    "io.modelcontextprotocol/protocolVersion": "2026-07-28",
    "io.modelcontextprotocol/clientCapabilities": {},
}
LISTS = [
    ("tools/list", "tools", "name"),
    ("prompts/list", "prompts", "name"),
    ("resources/list", "resources", "uri"),
    ("resources/templates/list", "resourceTemplates", "uriTemplate"),
]


class Silent:
    traits = DEFAULT_TRAITS

    def __init__(self, name: str) -> None:
        self.name = name

    async def run(self, call: Call) -> Result:
        return Result()


def offered(server: str, kind: str, name: str, **definition: Any) -> Tool:
    named = {TOOL: "name", PROMPT: "name", RESOURCE: "uri", TEMPLATE: "uriTemplate"}[kind]
    plain = kind in (TOOL, PROMPT)
    return Tool(
        name=f"{server}.{name}",
        alias=f"mcp_{server}_{name}" if plain else name,
        other_names={"dotted": f"{server}.{name}", "safe": f"{server}_{name}"} if plain else {},
        kind=kind,
        remote_name=name,
        definition={named: name, "name": name, "inputSchema": {}, **definition},
        target=Silent(server),
    )


def hub_with(*tools: Tool) -> Hub:
    hub = build_permissive_hub(Catalog(review=admit_all), Bus(), [])
    for kind, catalog in hub.catalogs.items():
        for server in {tool.target.name for tool in tools}:
            catalog.offer(server, [t for t in tools if t.kind == kind and t.target.name == server])
    return hub


def full_hub() -> Hub:
    return hub_with(
        *(offered("desk", kind, name) for kind in (TOOL, PROMPT) for name in "ba"),
        *(offered("desk", RESOURCE, f"note://{name}") for name in "ba"),
        *(offered("desk", TEMPLATE, f"note://{name}/{{id}}") for name in "ba"),
    )


async def ask(
    mcp_server: McpServer, method: str, revision: Revision, info: str = "", **params: Any
) -> Any:
    peer = ClientState(OWNER, "test", params.pop("view", EVERYTHING), revision)
    peer.client_name = info
    if revision >= R2607:
        client = {"io.modelcontextprotocol/clientInfo": {"name": info, "version": "1"}}
        named = {"io.modelcontextprotocol/protocolVersion": revision.name}
        params["_meta"] = {**MODERN_META, **named, **(client if info else {})}
    answer = await mcp_server.answer(json.loads(rpc.encode_request(1, method, params)), peer)
    assert answer is not None
    return json.loads(answer)


@pytest.mark.promise("F7")
@pytest.mark.parametrize(("method", "member", "named"), LISTS)
@pytest.mark.parametrize("revision", ORDERED)
async def test_lists_keep_the_order_of_the_server_and_follow_the_revision(
    method: str, member: str, named: str, revision: Revision
) -> None:
    result = (await ask(McpServer(full_hub()), method, revision))["result"]
    entries = [entry[named] for entry in result[member]]
    assert len(entries) == 2 and entries == sorted(entries, reverse=True), "as it is offered"
    modern = {"ttlMs", "cacheScope", "resultType", "_meta"}
    assert set(result) == {member} | (modern if revision >= R2607 else set())
    if revision >= R2607:
        assert (result["ttlMs"], result["cacheScope"]) == (0, "private")


async def test_resources_and_templates_keep_their_uri() -> None:
    mcp_server = McpServer(full_hub())
    listed = (await ask(mcp_server, "resources/list", R2511))["result"]["resources"]
    assert [one["uri"] for one in listed] == ["note://b", "note://a"]
    listed = (await ask(mcp_server, "resources/templates/list", R2511))["result"][
        "resourceTemplates"
    ]
    assert [one["uriTemplate"] for one in listed] == ["note://b/{id}", "note://a/{id}"]


async def test_second_resource_with_a_shared_uri_is_listed_by_full_name() -> None:
    mcp_server = McpServer(
        hub_with(offered("one", RESOURCE, "a:b"), offered("two", RESOURCE, "a:b"))
    )
    listed = (await ask(mcp_server, "resources/list", R2511))["result"]["resources"]
    assert "a:b" in [one["uri"] for one in listed]
    assert {one["uri"] for one in listed} & {"one.a:b", "two.a:b"}


async def test_resource_without_a_name_uses_its_uri() -> None:
    tool = offered("desk", RESOURCE, "a:b")
    nameless = {key: value for key, value in tool.definition.items() if key != "name"}
    bare = Tool(
        name=tool.name, alias="a:b", kind=RESOURCE, remote_name="a:b", definition=nameless,
        target=tool.target,
    )  # fmt: skip
    (one,) = (await ask(McpServer(hub_with(bare)), "resources/list", R2511))["result"]["resources"]
    assert one["name"] == one["uri"] == "a:b"


@pytest.mark.parametrize("revision", [R2511, R2607])
@pytest.mark.parametrize("method", ["tools/list", "prompts/list"])
async def test_names_follow_the_client_style(method: str, revision: Revision) -> None:
    styles = {"Robot": "safe", "Dotty": "dotted"}
    mcp_server = McpServer(full_hub(), style_of=lambda client: styles.get(client, "legacy"))
    member = method.partition("/")[0]
    for info, expected in (
        ("Robot", ["desk_b", "desk_a"]),
        ("Dotty", ["desk.b", "desk.a"]),
        ("else", ["mcp_desk_b", "mcp_desk_a"]),
        ("", ["mcp_desk_b", "mcp_desk_a"]),
    ):
        listed = (await ask(mcp_server, method, revision, info))["result"][member]
        assert [one["name"] for one in listed] == expected


async def test_client_name_applies_after_the_handshake() -> None:
    mcp_server = McpServer(
        full_hub(), style_of=lambda client: "dotted" if client == "Dotty" else "legacy"
    )
    peer = ClientState(OWNER, "test", EVERYTHING)
    params = {"protocolVersion": "2025-11-25", "clientInfo": {"name": "Dotty"}}
    await mcp_server.answer(json.loads(rpc.encode_request(1, "initialize", params)), peer)
    answer = await mcp_server.answer(json.loads(rpc.encode_request(2, "tools/list", {})), peer)
    assert answer is not None
    assert json.loads(answer)["result"]["tools"][0]["name"] == "desk.b"


@pytest.mark.promise("F3")
@pytest.mark.parametrize(("method", "member", "named"), LISTS)
async def test_view_filters_every_kind(method: str, member: str, named: str) -> None:
    view = View(("desk.a", "desk.note://a*"))
    listed = (await ask(McpServer(full_hub()), method, R2511, view=view))["result"][member]
    assert len(listed) == 1 and "a" in listed[0][named]


# --- cursors


async def cursor_of(mcp_server: McpServer, method: str) -> str:
    result = (await ask(mcp_server, method, R2511))["result"]
    return str(result["nextCursor"])


@pytest.mark.parametrize(("method", "member", "named"), LISTS)
@pytest.mark.parametrize("revision", [R2506, R2607])
async def test_pages_continue_where_the_last_ended(
    monkeypatch: pytest.MonkeyPatch, method: str, member: str, named: str, revision: Revision
) -> None:
    monkeypatch.setattr(list_pages, "PAGE_BYTES", 10)
    mcp_server = McpServer(full_hub(), b"k" * 32)
    first = (await ask(mcp_server, method, revision))["result"]
    second = (await ask(mcp_server, method, revision, cursor=first["nextCursor"]))["result"]
    assert [len(first[member]), len(second[member])] == [1, 1]
    assert first[member][0][named] > second[member][0][named]
    assert "nextCursor" not in second


async def test_servers_are_sorted_and_each_keeps_its_own_order() -> None:
    names = ("zoo.z", "zoo.a", "b-2.y", "b-2.x", "b.n", "b.m")
    hub = hub_with()
    for server in ("zoo", "b-2", "b"):
        own = [name.partition(".")[2] for name in names if name.startswith(f"{server}.")]
        hub.catalog.offer(server, [offered(server, TOOL, name) for name in own])
    listed = (await ask(McpServer(hub), "tools/list", R2511))["result"]["tools"]
    assert [one["name"] for one in listed] == [
        "mcp_b_n", "mcp_b_m", "mcp_b-2_y", "mcp_b-2_x", "mcp_zoo_z", "mcp_zoo_a",
    ]  # fmt: skip


async def test_cursors_leave_nothing_out_while_entries_come_and_go(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(list_pages, "PAGE_BYTES", 10)
    hub = hub_with(offered("a", TOOL, "one"), *(offered("b", TOOL, name) for name in "zyxwv"))
    mcp_server = McpServer(hub, b"k" * 32)

    async def follow(cursor: str | None) -> tuple[str, str | None]:
        page = (await ask(mcp_server, "tools/list", R2511, cursor=cursor))["result"]
        (one,) = page["tools"]
        return one["name"], page.get("nextCursor")

    cursors: dict[str, str | None] = {}
    cursor = None
    for name in ("mcp_a_one", "mcp_b_z", "mcp_b_y", "mcp_b_x", "mcp_b_w", "mcp_b_v"):
        listed, cursor = await follow(cursor)
        assert listed == name
        cursors[name] = cursor
    assert cursor is None
    hub.catalog.offer("b", [offered("b", TOOL, name) for name in "qyxzw"])
    assert (await follow(cursors["mcp_b_y"]))[0] == "mcp_b_x"
    assert (await follow(cursors["mcp_b_z"]))[0] == "mcp_b_w"
    hub.catalog.offer("b", [offered("b", TOOL, name) for name in "xwv"])
    hub.catalog.offer("c", [offered("c", TOOL, "new")])
    assert (await follow(cursors["mcp_b_y"]))[0] == "mcp_b_x", "what is left of its server"
    hub.catalog.offer("b", [])
    assert (await follow(cursors["mcp_b_y"]))[0] == "mcp_c_new"
    assert (await follow(cursors["mcp_a_one"]))[0] == "mcp_c_new"


@pytest.mark.promise("N1")
async def test_cursor_is_bound_to_its_list_and_hub(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(list_pages, "PAGE_BYTES", 10)
    mcp_server = McpServer(full_hub(), b"k" * 32)
    cursor = await cursor_of(mcp_server, "tools/list")
    after_restart = McpServer(full_hub(), b"k" * 32)
    assert "result" in await ask(after_restart, "tools/list", R2511, cursor=cursor)
    raw = base64.urlsafe_b64decode(cursor)
    forged = [
        base64.urlsafe_b64encode(one).decode()
        for one in (raw[:-1] + b"z", bytes(16) + raw[16:], raw[16:], raw[:16], raw + b"\xff")
    ]
    for bad in forged:
        answer = await ask(mcp_server, "tools/list", R2511, cursor=bad)
        assert answer["error"]["code"] == -32602
    for other, method in (
        (mcp_server, "prompts/list"),
        (McpServer(full_hub(), b"x" * 32), "tools/list"),
        (McpServer(full_hub()), "tools/list"),
    ):
        answer = await ask(other, method, R2511, cursor=cursor)
        assert answer["error"]["code"] == -32602


async def test_empty_cursor_is_invalid() -> None:
    answer = await ask(McpServer(full_hub()), "prompts/list", R2511, cursor="")
    assert answer["error"]["code"] == -32602
    assert "result" in await ask(McpServer(full_hub()), "prompts/list", R2511, cursor=None)


async def test_cached_list_forms_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(list_pages, "MAX_KEPT", 3)
    mcp_server = McpServer(full_hub())
    for number in range(20):
        await ask(mcp_server, "tools/list", R2511, view=View((f"desk.{number}",)))
        assert len(mcp_server.lists._kept[TOOL]) <= 4
