"""The rules of views, and lists under a budget, without connections."""

from __future__ import annotations

import json
from typing import Any

import pytest
from tests.permissive_hub import build_permissive_hub
from tests.views.real_tools import SilentTarget, build_tool, build_tools, load_rows

from dragoman.config import parse
from dragoman.core.bus import Bus
from dragoman.core.catalog import Catalog, admit_all
from dragoman.core.errors import ConfigError
from dragoman.core.principal import OWNER
from dragoman.core.token_estimate import estimate_tokens, select_shown
from dragoman.core.tool import RESOURCE, TargetFacts, TargetTraits, Tool
from dragoman.core.tool_filter import EVERYTHING
from dragoman.core.views import MAX_KEPT, NamedView, ViewRule, Views, find_view_name
from dragoman.mcp.protocol.revisions import LATEST, R2511
from dragoman.mcp.server.client_state import ClientState
from dragoman.mcp.server.dispatcher import McpServer
from dragoman.mcp.server.view_shapes import cut_schema, cut_text

SERVER = TargetTraits(facts=TargetFacts(type="Server"))
AGENT = TargetTraits(facts=TargetFacts(type="Agent"))


class Place(SilentTarget):
    def __init__(self, name: str, traits: TargetTraits = SERVER) -> None:
        super().__init__(name)
        self.traits = traits


def make_tool(name: str, traits: TargetTraits = SERVER, **more: Any) -> Tool:
    target, _, own = name.partition(".")
    alias = more.pop("alias", f"mcp_{target}_{own}")
    return Tool(name=name, alias=alias, remote_name=own, target=Place(target, traits), **more)


def make_view(**rule: Any) -> NamedView:
    views = Views()
    views.apply([ViewRule(name="v", **rule)], {"files": frozenset({"dev"})}, {})
    view = views.find("v")
    assert view is not None
    return view


READ = make_tool("files.read")
CASES: tuple[tuple[dict[str, Any], Tool, bool], ...] = (
    ({}, READ, True),
    ({"include": ("files.*",)}, READ, True),
    ({"include": ("files:read",)}, READ, True),
    ({"include": ("mcp_files_*",)}, READ, True),
    ({"include": ("other.*",)}, READ, False),
    ({"servers": ("files",)}, READ, True),
    ({"servers": ("fil*",)}, READ, True),
    ({"servers": ("file",)}, READ, False),
    ({"servers": ("files",)}, make_tool("files.read", AGENT), False),
    ({"agents": ("files",)}, make_tool("files.read", AGENT), True),
    ({"agents": ("*",)}, READ, False),
    ({"servers": ("*",)}, make_tool("builtin.file_read"), False),
    ({"include": ("other.*",), "servers": ("files",)}, READ, True),
    ({"exclude": ("files.read",)}, READ, False),
    ({"exclude": ("*_read",), "servers": ("files",)}, READ, False),
    ({"exclude": ("short",)}, make_tool("files.read", other_names={"legacy": "short"}), False),
    ({"tags": ("dev",)}, READ, True),
    ({"tags": ("ops",)}, READ, False),
    ({"include": ("files.*",)}, make_tool("files.x:1", alias="x:1", kind=RESOURCE), True),
    ({"exclude": ("x:*",)}, make_tool("files.x:1", alias="x:1", kind=RESOURCE), False),
    ({"include": ("evil.*",)}, make_tool("files.u", alias="evil.u:1", kind=RESOURCE), False),
    ({"agents": ("spy",)}, make_tool("spy.read", AGENT, origin=READ), False),
    ({"servers": ("files",)}, make_tool("spy.read", AGENT, origin=READ), True),
)


@pytest.mark.promise("U5")
@pytest.mark.parametrize(("rule", "tool", "included"), CASES)
def test_a_rule_selects_and_excludes(rule: dict[str, Any], tool: Tool, included: bool) -> None:
    view = make_view(**rule)
    assert view.includes(tool) is included


@pytest.mark.parametrize(
    ("urls", "name"),
    [
        (["http://hub/mcp"], ""),
        (["http://hub"], ""),
        (["http://hub/mcp/v/ide"], "ide"),
        (["http://hub/sse/v/i%64e"], "ide"),
        (["http://hub/mcp/v/ide/"], "ide"),
        (["http://hub/mcp/v/ide", "http://hub/mcp"], ""),
        (["http://hub/mcp/v/ide", "http://hub/sse/v/ide/"], "ide"),
        (["http://hub/mcp/v/ide", "http://hub/mcp/v/other"], "\0"),
        (["http://hub/mcp/v/ide?x"], "ide?x"),
        (["http://hub/mcp/v/ide\n"], "ide\n"),
        (["http://hub/mcp/v/ide/x"], "ide/x"),
        (["http://hub/mcp/v/"], "\0"),
    ],
)
def test_a_token_for_the_address_of_a_view_is_bound_however_it_is_written(
    urls: list[str], name: str
) -> None:
    assert find_view_name(urls) == name


def test_a_view_takes_over_new_rules_and_is_empty_without_any() -> None:
    views = Views()
    bound = views.get_bound("v")
    assert not bound.includes(READ) and views.find("v") is None
    assert views.apply([ViewRule(name="v")], {}, {"cursor*": "v"})
    assert views.find("v") is bound and bound.includes(READ)
    assert views.find_for_client("Cursor 1.2") is bound and views.find_for_client("x") is None
    assert not views.apply([ViewRule(name="v")], {}, {"cursor*": "v"})
    assert views.narrow(EVERYTHING, "v") is bound and views.narrow(bound, "v") is bound
    assert views.narrow(make_view(include=("x.*",)), "v").includes(READ) is False
    assert views.apply([], {}, {})
    assert not bound.includes(READ) and views.find("v") is None


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ('[mcp]\nviews_for = { "c*" = "ide" }', 'there is no view "ide" in [[views]]; known: none'),
        ('[[views]]\nname = "a"\n[[views]]\nname = "a"', 'there are two views "a"'),
        ('[[views]]\nname = "a/b"', "views.name"),
        ('[[views]]\nname = "a"\nserver = ["x"]', 'did you mean "servers"?'),
        ('[[views]]\nname = "a"\nrename = { x = "find_tools" }', "is reserved"),
        ('[[views]]\nname = "a"\nrename = { x = "z", y = "z" }', 'called "z"'),
        ('[[views]]\nname = "a"\nrename = { x = "a.b" }', "rename"),
        ('[[views]]\nname = "a"\nsearch = "sometimes"', '"auto", "always", "never"'),
    ],
)
def test_mistakes_in_views_are_refused_when_the_file_is_read(text: str, problem: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse(text)
    assert problem in str(caught.value)


def test_descriptions_are_cut_after_a_sentence_or_a_word() -> None:
    text = "Reads a file. It may be long and it may be longer."
    assert cut_text(text, 100) == text
    assert cut_text(text, 20) == "Reads a file."
    assert cut_text("Reads several files at once", 15) == "Reads several…"
    assert cut_text("x" * 50, 10) == "x" * 9 + "…"
    schema = {
        "description": text,
        "properties": {
            "description": {
                "type": "string",
                "description": text,
                "default": {"description": text},
            },
            "items": {"type": "array", "items": {"anyOf": [{"description": text}, True]}},
        },
        "const": {"description": text},
    }
    cut = cut_schema(schema, 20)
    inner = cut["properties"]["description"]
    assert cut["description"] == inner["description"] == "Reads a file."
    assert inner["default"]["description"] == cut["const"]["description"] == text
    assert cut["properties"]["items"]["items"]["anyOf"] == [{"description": "Reads a file."}, True]
    assert schema["description"] == text


async def test_a_view_says_which_descriptions_it_cuts(many: tuple[McpServer, Views]) -> None:
    server, views = many
    views.apply([ViewRule(name="v", description_chars=40)], {}, {})
    whole = {one["name"]: one for one in await list_tools(server, EVERYTHING)}
    for one in await list_tools(server, views.find("v")):
        text = whole[one["name"]]["description"]
        noted = one.get("_meta", {}).get("dragoman.hub/shortened", {})
        assert noted.get("/description") == (len(text) if len(text) > 40 else None)


# --- lists under a budget -------------------------------------------------------------------------


async def list_tools(server: McpServer, view: Any, revision: Any = LATEST) -> list[dict[str, Any]]:
    client = ClientState(OWNER, "test", view, revision)
    page = server.lists.find_page("tool", None, client, revision, "legacy")
    assert page is not None
    found: list[dict[str, Any]] = json.loads(page)["tools"]
    return found


@pytest.fixture
def many() -> tuple[McpServer, Views]:
    """A hub with 500 tools: those of public servers, some of them twice."""
    hub = build_permissive_hub(Catalog(review=admit_all), Bus(), [])
    tools = build_tools()
    twins = [build_tool(row, SilentTarget(f"{row['server']}-2")) for row in load_rows()[:70]]
    by_target: dict[str, list[Tool]] = {}
    for tool in [*tools, *twins]:
        by_target.setdefault(tool.target.name, []).append(tool)
    for name, listed in by_target.items():
        hub.catalog.offer(name, listed)
    assert len(hub.catalog) == 500
    return McpServer(hub), hub.views


@pytest.mark.promise("U5")
async def test_500_tools_cost_less_than_a_budget_of_4000_tokens(
    many: tuple[McpServer, Views],
) -> None:
    """The smallest definition of a public server has 3.4 bytes per token, by two tokenizers."""
    server, views = many
    views.apply([ViewRule(name="small", token_budget=4_000)], {}, {})
    small = views.find("small")
    assert small is not None
    whole = await list_tools(server, EVERYTHING)
    assert len(whole) == 500
    assert sum(len(json.dumps(select_shown(one))) for one in whole) / 5 > 4_000
    for revision in (LATEST, R2511):
        listed = await list_tools(server, small, revision)
        assert [one["name"] for one in listed] == ["call_tool", "find_tools"]
        assert len(json.dumps(listed).encode()) / 3.4 < 1_000
    # One search and its answer stay below the budget, too.
    client = ClientState(OWNER, "test", small, R2511)
    for query in ("create", "search", "linear issue project", "notion page block", "file"):
        call = {"name": "find_tools", "arguments": {"query": query, "limit": 20}}
        message = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": call}
        answer = await server.answer(message, client)
        assert answer is not None
        text = json.loads(answer)["result"]["content"][0]["text"]
        assert len(text.encode()) / 3.4 < 2_600, query
        assert len(json.loads(text)["tools"]) >= 5


async def test_the_budget_decides_unless_search_is_always_or_never(
    many: tuple[McpServer, Views],
) -> None:
    server, views = many
    costs = server.lists.list_costs(OWNER, "test", EVERYTHING, LATEST, "legacy")
    total = sum(one.tokens for one in costs)
    assert total == sum(
        estimate_tokens(len(json.dumps(select_shown(one), separators=(",", ":"),
                                       ensure_ascii=False).encode()))
        for one in await list_tools(server, EVERYTHING)
    )  # fmt: skip
    for rule, searches in (
        ({"token_budget": total}, False),
        ({"token_budget": total - 1}, True),
        ({"token_budget": 1, "search": "never"}, False),
        ({"search": "always"}, True),
        ({}, False),
    ):
        views.apply([ViewRule(name="v", **rule)], {}, {})
        view = views.find("v")
        server.hub.catalog.mark_changed()
        listed = await list_tools(server, view)
        assert (len(listed) == 2) is searches, rule


async def request(server: McpServer, view: Any, who: str, method: str, **params: Any) -> Any:
    client = ClientState(OWNER, "test", view, R2511)
    client.client_name = who
    message = {"jsonrpc": "2.0", "id": 1, "method": method, "params": params}
    answer = await server.answer(message, client)
    assert answer is not None
    return json.loads(answer)


async def test_clients_with_a_limit_get_search_mode_above_it(
    many: tuple[McpServer, Views],
) -> None:
    hub, views = many[0].hub, many[1]
    views.apply([ViewRule(name="v", search="never"), ViewRule(name="w")], {}, {})
    server = McpServer(hub, limit_of=lambda client: {"Some": 499, "More": 500}.get(client, 0))
    for name, view, listed in (
        ("Some", EVERYTHING, 2), ("Some", views.find("w"), 2), ("Some", views.find("v"), 500),
        ("More", EVERYTHING, 500), ("Any", EVERYTHING, 500),
    ):  # fmt: skip
        result = (await request(server, view, name, "tools/list"))["result"]
        assert len(result["tools"]) == listed, (name, view)

    async def call(client: str, tool: str, **arguments: Any) -> Any:
        return await request(
            server, EVERYTHING, client, "tools/call", name=tool, arguments=arguments
        )

    found = await call("Some", "find_tools", query="create an issue")
    tools = json.loads(found["result"]["content"][0]["text"])["tools"]
    assert len(tools) == 5
    called = await call("Some", "call_tool", name=tools[0]["name"], arguments={})
    assert called["result"]["content"][0]["text"].startswith("ran ")
    unlimited = await call("Any", "find_tools", query="create an issue")
    assert 'there is no tool "find_tools"' in str(unlimited)


async def test_tools_of_these_names_are_not_replaced_by_search_mode() -> None:
    hub = build_permissive_hub(Catalog(review=admit_all), Bus(), [])
    hub.catalog.offer("s", [make_tool("s.a", alias="find_tools"), make_tool("s.b")])
    server = McpServer(hub, limit_of=lambda client: 1)
    listed = (await request(server, EVERYTHING, "x", "tools/list"))["result"]["tools"]
    assert [one["name"] for one in listed] == ["find_tools", "mcp_s_b"]
    answer = await request(server, EVERYTHING, "x", "tools/call", name="find_tools", arguments={})
    assert answer["result"]["content"] == [{"type": "text", "text": "ran s.a"}]


@pytest.mark.parametrize(
    ("client", "most"),
    [("Visual Studio Code", 128), ("Visual Studio Code - Insiders", 128), ("claude-ai", 0),
     ("github-copilot-developer", 128), ("windsurf-client", 100), ("mine", 7), ("", 0)],
)  # fmt: skip
def test_limits_of_clients_are_known_and_can_be_set(client: str, most: int) -> None:
    settings = parse('[mcp]\ntool_limits = { "Mine*" = 7 }').mcp
    assert settings.find_tool_limit(client) == most
    assert parse('[mcp]\ntool_limits = { "*" = 0 }').mcp.find_tool_limit(client) == 0


async def test_an_exact_name_returns_the_whole_definition(many: tuple[McpServer, Views]) -> None:
    server, views = many
    views.apply([ViewRule(name="small", token_budget=1_000)], {}, {})
    client = ClientState(OWNER, "test", views.get_bound("small"), R2511)
    call = {"name": "find_tools", "arguments": {"query": "notion.API-post-page"}}
    message = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": call}
    answer = await server.answer(message, client)
    assert answer is not None
    (found,) = json.loads(json.loads(answer)["result"]["content"][0]["text"])["tools"]
    assert found["name"].endswith("API-post-page") and found["inputSchema"]["properties"]


def test_unknown_views_of_tokens_are_not_kept_without_end() -> None:
    views = Views()
    for number in range(MAX_KEPT + 10):
        bound = views.get_bound(f"v{number}")
        assert bound.name == f"v{number}" and not bound.is_configured
    assert len(views._by_name) == MAX_KEPT
