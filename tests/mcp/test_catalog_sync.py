"""Prompts, resources and templates of servers of both eras over every transport, and calls of each
kind.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.mcp.upstream_hub import Scripted, UpstreamHub, http, run_hub, stdio, until
from tests.peers.process import HttpPeer, read_log

from dragoman.core.errors import BadReply, WorkFailed
from dragoman.core.tool import COMPLETION, PROMPT, RESOURCE, TEMPLATE, TOOL

WAYS = [
    ("legacy", "stdio"),
    ("modern", "stdio"),
    ("legacy", "http"),
    ("modern", "http"),
    ("legacy", "sse"),
]
Peers = Callable[..., HttpPeer]


def entry(peers: Peers, era: str, transport: str, *args: object, **keys: Any) -> Any:
    if transport == "stdio":
        return stdio("m", "matrix_server", "--era", era, *args, **keys)
    peer = peers("matrix_server", "--transport", transport, "--era", era, *args)
    return http("m", peer.url, **keys)


def names(world: UpstreamHub, kind: str) -> list[str]:
    return [tool.name for tool in world.hub.catalogs[kind].list_tools()]


def versions(world: UpstreamHub) -> dict[str, int]:
    return {kind: catalog.version for kind, catalog in world.hub.catalogs.items()}


@pytest.mark.promise("B5")
@pytest.mark.parametrize(("era", "transport"), WAYS)
async def test_prompts_resources_and_templates_are_listed_and_used(
    era: str, transport: str, short_tmp: Path, http_peer: Peers
) -> None:
    async with run_hub(short_tmp) as world:
        upstream = await world.add(entry(http_peer, era, transport))

        assert names(world, PROMPT) == ["m.asks", "m.plain", "m.travel"]
        assert "m.matrix://text" in names(world, RESOURCE)
        (template,) = world.hub.catalogs[TEMPLATE].list_tools()
        assert (template.name, template.alias) == (
            "m.matrix://item/{id}/{part}",
            "matrix://item/{id}/{part}",
        )
        travel = world.hub.catalogs[PROMPT].find("m.travel")
        assert (travel.alias, travel.definition["title"]) == ("mcp_m_travel", "Travel")

        prompt = await world.call("mcp_m_travel", {"country": "fr", "city": "Pau"}, kind=PROMPT)
        assert [block["type"] for block in prompt.content] == ["text", "image"]
        assert prompt.content[0]["text"] == "To Pau"
        assert prompt.extra["roles"] == ["user", "assistant"]
        assert prompt.extra["description"] == "The prompt travel"

        for name in ("matrix://blob", "m.matrix://blob"):
            read = await world.call(name, kind=RESOURCE)
            assert [block["resource"]["blob"] for block in read.content] == ["AAECAwT/"]
        item = await world.call("matrix://item/7/lid", kind=RESOURCE)
        assert item.content[0]["resource"]["text"] == "7/lid"

        city = {"ref": {}, "argument": {"name": "city", "value": "P"}}
        near = {**city, "context": {"arguments": {"country": "fr"}}}
        done = await world.call("mcp_m_travel", near, kind=COMPLETION)
        assert done.structured["values"] == ["Paris", "Pau"]
        part = {"ref": {}, "argument": {"name": "id", "value": "o"}}
        ids = await world.call("matrix://item/{id}/{part}", part, kind=COMPLETION)
        assert ids.structured["values"] == ["one", "other"]

        with pytest.raises(WorkFailed) as failed:
            await world.call("matrix://item/7/none", kind=RESOURCE)
        assert failed.value.native is not None
        assert failed.value.native["code"] == (-32602 if era == "modern" else -32002)

        shown = world.servers.snapshot()["connected"][0]
        assert (shown["prompts_count"], shown["resources_count"]) == (3, 5)
        await upstream.stop()
        assert [len(catalog) for catalog in world.hub.catalogs.values()] == [0, 0, 0, 0]


@pytest.mark.promise("B7")
@pytest.mark.parametrize(("era", "transport"), WAYS)
async def test_changed_list_is_reread_alone(
    era: str, transport: str, short_tmp: Path, http_peer: Peers
) -> None:
    log = short_tmp / "log"
    async with run_hub(short_tmp) as world:
        upstream = await world.add(entry(http_peer, era, transport, "--log", log))

        def asked() -> dict[str, int]:
            methods = [seen.get("method") for seen in read_log(log)]
            lists = ("tools/list", "prompts/list", "resources/list", "resources/templates/list")
            return {method: methods.count(method) for method in lists}

        # In the new era all is looked at again once the stream for changes is open.
        if era == "modern":
            if transport == "http":
                await until(lambda: min(asked().values()) >= 2)
            else:
                await until(lambda: any("listen" in str(s.get("method")) for s in read_log(log)))
        before, seen = versions(world), asked()

        for what, kind in (("prompts", PROMPT), ("tools", TOOL), ("extra", RESOURCE)):
            await world.call("m.change", {"what": what})

            def has_extra(kind: str = kind) -> bool:
                return any("extra" in name for name in names(world, kind))

            await until(has_extra)
            before[kind] += 1
            assert versions(world) == before
        after = asked()
        for method in ("tools/list", "prompts/list", "resources/list", "resources/templates/list"):
            assert after[method] - seen[method] == 1, method
        assert upstream.catalog.problems == []


@pytest.mark.promise("B5")
@pytest.mark.parametrize("era", ["legacy", "modern"])
async def test_undeclared_lists_are_not_requested(era: str, short_tmp: Path) -> None:
    server = Scripted(short_tmp, era, {})
    async with run_hub(short_tmp) as world:
        await world.add(server.entry())

        assert names(world, TOOL) == ["s.t"]
        assert {one["method"] for one in server.sent()} <= {
            "server/discover",
            "initialize",
            "notifications/initialized",
            "tools/list",
        }
        assert versions(world) == {TOOL: 1, PROMPT: 0, RESOURCE: 0, TEMPLATE: 0}


@pytest.mark.promise("B5")
async def test_malformed_entry_is_omitted_alone_and_reported(short_tmp: Path) -> None:
    fine = {"name": "fine", "uri": "x://fine"}
    server = Scripted(
        short_tmp,
        "legacy",
        {
            "prompts/list": [
                {"prompts": [7, {"name": "ok"}, {"name": ""}], "nextCursor": "2"},
                {"prompts": [{"name": "ok"}, {"name": "odd", "arguments": [{"name": 1}]}]},
            ],
            "resources/list": {
                "resources": [
                    fine,
                    fine,
                    {"uri": "x://nameless"},
                    {"name": "long", "uri": "x://" + "y" * 9_000},
                    {"name": "control", "uri": "x://\n"},
                    {"name": "words", "uri": "x://w", "description": 3},
                    "none",
                ]
            },
        },
        capabilities={"tools": {}, "prompts": {}, "resources": {}},
    )
    async with run_hub(short_tmp) as world:
        upstream = await world.add(server.entry())

        assert names(world, PROMPT) == ["s.ok"]
        assert names(world, RESOURCE) == ["s.x://fine"]
        assert len(upstream.catalog.problems) == 4 + 6
        assert 'prompt 4 is omitted: "ok" is listed twice' in upstream.catalog.problems
        assert 'resource 2 is omitted: "x://fine" is listed twice' in upstream.catalog.problems
        # It has resources and no templates at all, which is nothing to complain about.
        assert not any("template" in problem for problem in upstream.catalog.problems)
        assert world.servers.snapshot()["connected"][0]["problems"] == upstream.catalog.problems


@pytest.mark.promise("B5")
async def test_failing_list_is_reported_and_the_rest_offered(short_tmp: Path) -> None:
    broken = {"error": {"code": -32603, "message": "out of order"}}
    server = Scripted(
        short_tmp,
        "legacy",
        {
            "prompts/list": broken,
            "resources/list": {"resources": [{"name": "a", "uri": "x://a"}]},
        },
        capabilities={"tools": {}, "prompts": {}, "resources": {}},
    )
    async with run_hub(short_tmp) as world:
        upstream = await world.add(server.entry())

        assert names(world, TOOL) == ["s.t"] and names(world, RESOURCE) == ["s.x://a"]
        (problem,) = upstream.catalog.problems
        assert "no prompts are listed" in problem and "out of order" in problem


@pytest.mark.promise("B12")
async def test_repairable_responses_are_repaired(short_tmp: Path) -> None:
    def one(**members: Any) -> dict[str, Any]:
        return {"contents": [members]}

    server = Scripted(
        short_tmp,
        "modern",
        {
            "resources/list": {"resources": [{"name": "a", "uri": "x://a"}]},
            "prompts/list": {"prompts": [{"name": "p"}]},
            "resources/read": [
                {"contents": [], "ttlMs": -5, "cacheScope": "everyone"},
                one(text="no address", mimeType="text/x"),
                one(uri="x://b"),
                {"contents": "none"},
                {"contents": [7]},
            ],
            "prompts/get": [
                {"messages": [{"role": "system", "content": "words"}]},
                {
                    "messages": [
                        {"role": "assistant", "content": [{"type": "text", "text": "a"}] * 2}
                    ]
                },
                {"messages": [{"role": "user"}]},
            ],
            "completion/complete": [
                {"completion": {"values": [*map(str, range(150)), 7]}},
                {"completion": {}},
            ],
        },
        capabilities={"tools": {}, "prompts": {}, "resources": {}, "completions": {}},
    )
    async with run_hub(short_tmp) as world:
        await world.add(server.entry())

        async def read() -> Any:
            return await world.call("x://a", kind=RESOURCE)

        empty = await read()
        assert empty.content == [{"type": "resource", "resource": {"uri": "x://a", "text": ""}}]
        assert (empty.extra["ttlMs"], empty.extra["cacheScope"]) == (0, "private")
        assert (await read()).content[0]["resource"] == {
            "uri": "x://a",
            "text": "no address",
            "mimeType": "text/x",
        }
        assert (await read()).content[0]["resource"] == {"uri": "x://b", "text": ""}
        for _ in range(2):
            with pytest.raises(BadReply, match="contents"):
                await read()

        first = await world.call("s.p", kind=PROMPT)
        assert first.content == [{"type": "text", "text": "words"}]
        assert first.extra["roles"] == ["user"]
        second = await world.call("s.p", kind=PROMPT)
        assert len(second.content) == 2 and second.extra["roles"] == ["assistant"] * 2
        with pytest.raises(BadReply, match="message"):
            await world.call("s.p", kind=PROMPT)

        argument = {"ref": {}, "argument": {"name": "a", "value": ""}}
        many = await world.call("s.p", argument, kind=COMPLETION)
        assert len(many.structured["values"]) == 100 and many.structured["hasMore"] is True
        with pytest.raises(BadReply, match="values"):
            await world.call("s.p", argument, kind=COMPLETION)


@pytest.mark.promise("B12")
async def test_server_without_completions_is_not_asked(short_tmp: Path) -> None:
    server = Scripted(
        short_tmp,
        "legacy",
        {"prompts/list": {"prompts": [{"name": "p"}]}},
        capabilities={"tools": {}, "prompts": {}},
    )
    async with run_hub(short_tmp) as world:
        await world.add(server.entry())
        argument = {"ref": {}, "argument": {"name": "a", "value": ""}}

        done = await world.call("s.p", argument, kind=COMPLETION)

        assert done.structured == {"values": [], "hasMore": False}
        assert server.sent("completion/complete") == []


@pytest.mark.promise("B12")
async def test_extension_results_pass_where_both_ends_declare_it(short_tmp: Path) -> None:
    odd = {"resultType": "example.com/odd", "thing": [1]}
    server = Scripted(
        short_tmp,
        "modern",
        {"tools/call": odd},
        capabilities={"tools": {}, "extensions": {"example.com/odd": {"v": 1}}},
    )
    both: dict[str, Any] = {
        "extensions": {"example.com/odd": {}, "example.com/other": {}},
        "sampling": {},
    }
    async with run_hub(short_tmp) as world:
        await world.add(server.entry())

        passed = await world.call("s.t", features=both)
        assert passed.extra == odd
        features: dict[str, Any]
        for features in ({}, {"extensions": {"example.com/other": {}}}):
            with pytest.raises(BadReply, match=r"example\.com/odd"):
                await world.call("s.t", features=features)

        declared = [
            one["params"]["_meta"]["io.modelcontextprotocol/clientCapabilities"]
            for one in server.sent("tools/call")
        ]
        assert declared == [
            {"sampling": {}, "extensions": {"example.com/odd": {}}},
            {},
            {},
        ]
        lists = server.sent("tools/list")
        key = "io.modelcontextprotocol/clientCapabilities"
        assert all(one["params"]["_meta"][key] == {} for one in lists)


@pytest.mark.promise("B7")
@pytest.mark.parametrize("era", ["legacy", "modern"])
async def test_server_without_capabilities_and_tools_is_connected(
    era: str, short_tmp: Path
) -> None:
    unknown = {"error": {"code": -32601, "message": "Method not found"}}
    scripted = Scripted(short_tmp, era, {"tools/list": unknown}, capabilities={})
    async with run_hub(short_tmp) as world:
        upstream = await world.add(scripted.entry())
        assert (upstream.connection.state, upstream.catalog.problems) == ("connected", [])
        assert not world.hub.catalog.list_tools()
