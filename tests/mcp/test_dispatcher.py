"""The MCP server without a transport: lists, malformed messages, views. The target is
defined here.
"""

from __future__ import annotations

import asyncio
import base64
import gc
import json
import weakref
from collections.abc import Callable, Iterator
from typing import Any, cast

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.permissive_hub import build_permissive_hub

from dragoman.core.bus import Bus
from dragoman.core.call import Call, Progress, Result
from dragoman.core.catalog import Catalog, admit_all
from dragoman.core.errors import Denied, Unreachable
from dragoman.core.principal import OWNER
from dragoman.core.tool import DEFAULT_TRAITS, PROMPT, TOOL, Tool
from dragoman.core.tool_filter import EVERYTHING, View
from dragoman.mcp.protocol.revisions import METHODS as KNOWN
from dragoman.mcp.protocol.revisions import (
    NAMES,
    ORDERED,
    R2024,
    R2503,
    R2506,
    R2511,
    R2607,
    Revision,
)
from dragoman.mcp.server import list_pages
from dragoman.mcp.server.client_state import ClientState
from dragoman.mcp.server.dispatcher import McpServer
from dragoman.wire import rpc
from dragoman.wire.json import encode

MODERN_META = {
    "io.modelcontextprotocol/protocolVersion": "2026-07-28",
    "io.modelcontextprotocol/clientCapabilities": {},
}


class FakeTarget:
    """A target whose tools do what their names say."""

    traits = DEFAULT_TRAITS
    name = "desk"

    async def run(self, call: Call) -> Result:
        call.updates(Progress(progress=1, total=2, message="half"))
        kind = call.tool.remote_name
        if kind == "deny":
            raise Denied("no")
        if kind == "lose":
            raise Unreachable("lost")
        if kind == "odd":
            extra = {"_meta": 7, "resultType": "complete", "more": [1]}
            return Result(content=["text", 7, None, {}, {"type": 7}], structured=None, extra=extra)
        if kind == "unencodable":
            return Result(content=[{"type": "text", "text": "\ud800"}])
        return Result(content=[{"type": "text", "text": json.dumps(dict(call.arguments))}])


def tool(name: str, target: Any, **definition: Any) -> Tool:
    return Tool(
        name=f"desk.{name}",
        alias=f"mcp_desk_{name}",
        remote_name=name,
        description=f"[MCP:desk] {name}",
        definition={"name": name, "inputSchema": {"type": "object"}, **definition},
        target=target,
    )


def build_mcp_server(*names: str, **definition: Any) -> McpServer:
    catalog = Catalog(review=admit_all)
    catalog.offer("desk", [tool(name, FakeTarget(), **definition) for name in names])
    return McpServer(build_permissive_hub(catalog, Bus(), []))


def peer(revision: Revision = R2511, view: View = EVERYTHING) -> ClientState:
    return ClientState(OWNER, "test", view, revision)


def params_for(revision: Revision, **params: Any) -> dict[str, Any]:
    if revision < R2607:
        return params
    named = {"io.modelcontextprotocol/protocolVersion": revision.name}
    return {**params, "_meta": {**MODERN_META, **named}}


async def ask(
    build_mcp_server: McpServer,
    method: str,
    revision: Revision = R2511,
    view: View = EVERYTHING,
    **params: Any,
) -> Any:
    message = rpc.encode_request(1, method, params_for(revision, **params))
    answer = await build_mcp_server.answer(json.loads(message), peer(revision, view))
    assert answer is not None
    return json.loads(answer)


# --- lists


async def test_list_is_in_the_order_of_the_server() -> None:
    listed = await ask(build_mcp_server("c", "a", "b"), "tools/list")
    assert [t["name"] for t in listed["result"]["tools"]] == [
        "mcp_desk_c",
        "mcp_desk_a",
        "mcp_desk_b",
    ]


async def test_list_is_cached_encoded_until_the_catalog_changes() -> None:
    made = build_mcp_server("a", "b")

    def pages(revision: Revision = R2511, style: str = "legacy") -> Any:
        return made.lists.find_page(TOOL, None, peer(revision), revision, style)

    first = pages()
    assert pages() is first
    assert pages(R2024) is not first
    assert pages(style="dotted") is not first
    made.hub.catalogs[PROMPT].offer("desk", [])
    assert pages() is first
    made.hub.catalog.offer("desk", [tool("z", FakeTarget())])
    after = pages()
    assert after is not first
    assert [t["name"] for t in json.loads(after)["tools"]] == ["mcp_desk_z"]


async def test_a_small_list_is_one_page() -> None:
    assert "nextCursor" not in (await ask(build_mcp_server("a"), "tools/list"))["result"]
    assert (await ask(build_mcp_server(), "tools/list"))["result"]["tools"] == []


@pytest.mark.promise("N1")
@pytest.mark.parametrize("revision", [R2024, R2511, R2607])
async def test_list_over_8_mb_is_paged_without_loss(
    revision: Revision,
) -> None:
    names = [f"t{number:03}" for number in range(300)]
    made = build_mcp_server(*names, example="x" * 100_000)
    got: list[str] = []
    pages = 0
    cursor: dict[str, Any] = {}
    while True:
        message = rpc.encode_request(1, "tools/list", params_for(revision, **cursor))
        answer = await made.answer(json.loads(message), peer(revision))
        assert answer is not None and len(answer) < 8.1 * 1024 * 1024
        result = json.loads(answer)["result"]
        got += [t["name"] for t in result["tools"]]
        pages += 1
        assert ("ttlMs" in result) == (revision >= R2607)
        if "nextCursor" not in result:
            break
        cursor = {"cursor": result["nextCursor"]}
    assert got == [f"mcp_desk_{name}" for name in names]
    assert pages == 4


async def test_page_sized_tool_does_not_stop_the_list(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(list_pages, "PAGE_BYTES", 10)
    made = build_mcp_server("a", "b", "c")
    got, cursor = [], None
    for _ in range(3):
        result = (await ask(made, "tools/list", **({"cursor": cursor} if cursor else {})))["result"]
        got += [t["name"] for t in result["tools"]]
        cursor = result.get("nextCursor")
    assert got == ["mcp_desk_a", "mcp_desk_b", "mcp_desk_c"]
    assert cursor is None


async def test_cursor_continues_after_changes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(list_pages, "PAGE_BYTES", 10)
    made = build_mcp_server("a", "b", "c", "d")
    first = (await ask(made, "tools/list"))["result"]
    made.hub.catalog.offer("desk", [tool(name, FakeTarget()) for name in "bcd"])
    second = (await ask(made, "tools/list", cursor=first["nextCursor"]))["result"]
    assert second["tools"][0]["name"] == "mcp_desk_b"


FORGED = [
    base64.urlsafe_b64encode(raw).decode()
    for raw in (b"\xff\xfe", b"desk.a", bytes(16) + b"desk.a", bytes(16))
]


@pytest.mark.parametrize(
    "cursor",
    ["", "!!!!", "abc", "abcd", "é", "a b=", *FORGED, 7, [], {}, True],
)
async def test_unknown_cursor_is_refused(cursor: Any) -> None:
    answer = await ask(build_mcp_server("a"), "tools/list", cursor=cursor)
    assert answer["error"]["code"] == -32602
    assert "cursor" in answer["error"]["message"]


async def test_shared_alias_belongs_to_the_first_tool() -> None:
    catalog = Catalog(review=admit_all)
    shared = [
        Tool(
            name=name,
            alias="mcp_desk_same",
            remote_name=name,
            definition={"inputSchema": {"type": "object"}},
            target=FakeTarget(),
        )
        for name in ("desk.same", "desk.SAME")
    ]
    catalog.offer("desk", shared)
    made = McpServer(build_permissive_hub(catalog, Bus(), []))
    listed = await ask(made, "tools/list")
    assert [t["name"] for t in listed["result"]["tools"]] == ["mcp_desk_same", "desk.SAME"]
    for name in ("mcp_desk_same", "desk.same", "desk.SAME"):
        assert "result" in await ask(made, "tools/call", name=name)


# --- views


@pytest.mark.promise("F3")
@pytest.mark.parametrize(
    ("patterns", "seen"),
    [
        ((), ""),
        (("*",), "abc"),
        (("desk.a",), "a"),
        (("mcp_desk_a", "desk.[bc]"), "abc"),
        (("other.*",), ""),
        (("DESK.*",), ""),
    ],
)
async def test_tool_outside_the_view_is_not_callable_by_any_name(
    patterns: tuple[str, ...], seen: str
) -> None:
    made, view = build_mcp_server(*"abc"), View(patterns)
    listed = (await ask(made, "tools/list", view=view))["result"]["tools"]
    assert [t["name"] for t in listed] == [f"mcp_desk_{name}" for name in seen]
    for name in "abc":
        for form in (f"mcp_desk_{name}", f"desk.{name}"):
            answer = await ask(made, "tools/call", view=view, name=form)
            if name in seen:
                assert "result" in answer
            else:
                unknown = await ask(made, "tools/call", view=view, name="no.such")
                assert answer["error"]["code"] == unknown["error"]["code"] == -32602
                assert answer["error"]["message"].startswith(f'there is no tool "{form}"')


# --- calls


@pytest.mark.promise("B12")
@pytest.mark.parametrize("revision", ORDERED)
async def test_requested_progress_follows_the_revision(
    revision: Revision,
) -> None:
    pushed: list[Any] = []

    def push(message: bytes) -> bool:
        pushed.append(json.loads(message))
        return True

    meta: dict[str, Any]
    for meta in ({"progressToken": "t"}, {"progressToken": 0}, {}, {"progressToken": [1]}):
        params = params_for(revision, name="desk.a")
        params["_meta"] = {**params.get("_meta", {}), **meta}
        message = json.loads(rpc.encode_request(1, "tools/call", params))
        await build_mcp_server("a").answer(message, peer(revision), push)
    told = {"progressToken": "t", "progress": 1, "total": 2}
    if revision > R2024:
        told["message"] = "half"
    assert [one["params"] for one in pushed] == [told, {**told, "progressToken": 0}]
    assert {one["method"] for one in pushed} == {"notifications/progress"}


@pytest.mark.parametrize("revision", ORDERED)
async def test_unusual_result_is_still_a_response(revision: Revision) -> None:
    answer = await ask(build_mcp_server("odd"), "tools/call", revision, name="desk.odd")
    assert len(answer["result"]["content"]) == 5
    shown = "none" if revision < R2506 else {"result": None} if revision < R2607 else None
    assert answer["result"].get("structuredContent", "none") == shown


async def test_crashing_call_is_answered(caplog: pytest.LogCaptureFixture) -> None:
    answer = await ask(build_mcp_server("unencodable"), "tools/call", name="desk.unencodable")
    assert answer["error"]["code"] == -32603
    trace = answer["error"]["data"]["trace"]
    assert f"see the hub's log (trace {trace[:8]})" in answer["error"]["message"]
    assert f"request failed (trace {trace})" in caplog.text


class Watched(dict[str, Any]):
    """Arguments that can be watched going away."""


@pytest.mark.promise("N1")
@pytest.mark.parametrize("name", ["desk.a", "desk.odd", "desk.deny", "desk.lose", "no.such"])
async def test_finished_call_is_freed_without_garbage_collection(name: str) -> None:
    """Collections are rare, and a few large messages that wait for one fill the memory."""
    made = build_mcp_server("a", "odd", "deny", "lose")
    gc.disable()
    try:
        arguments = Watched(text="x")
        watch = weakref.ref(arguments)
        message = {"jsonrpc": "2.0", "id": 1, "method": "tools/call"}
        message["params"] = {"name": name, "arguments": arguments}
        del arguments
        assert await made.answer(message, peer()) is not None
        del message
        assert watch() is None
    finally:
        gc.enable()


# --- odd messages

ODD: list[tuple[Any, int | None]] = [
    ("x", -32600),
    (7, -32600),
    (None, -32600),
    (True, -32600),
    ([], -32600),
    ({}, -32600),
    ({"jsonrpc": "2.0"}, -32600),
    ({"jsonrpc": "1.0", "id": 1, "method": "ping"}, -32600),
    ({"jsonrpc": "2.0", "id": None, "method": "ping"}, -32600),
    ({"jsonrpc": "2.0", "id": True, "method": "ping"}, -32600),
    ({"jsonrpc": "2.0", "id": [], "method": "ping"}, -32600),
    ({"jsonrpc": "2.0", "id": 1, "method": 7}, -32600),
    ({"jsonrpc": "2.0", "id": 1, "method": "ping", "params": []}, -32600),
    ({"jsonrpc": "2.0", "id": 1, "method": "ping", "params": 7}, -32600),
    ({"jsonrpc": "2.0", "id": 1, "method": "no/such"}, -32601),
    ({"jsonrpc": "2.0", "id": 1, "method": "x" * 10_000}, -32601),
    ({"jsonrpc": "2.0", "id": 1, "method": "notifications/initialized"}, -32601),
    ({"jsonrpc": "2.0", "id": 1, "method": "tools/call"}, -32602),
    ({"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": {}}, -32602),
    ({"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": {"name": 7}}, -32602),
    ({"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": {"name": ""}}, -32602),
    ({"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": {"name": "no.such"}}, -32602),
    *(
        (
            {
                "jsonrpc": "2.0",
                "id": 1,
                "method": "tools/call",
                "params": {"name": "desk.a", "arguments": arguments},
            },
            -32602,
        )
        for arguments in cast(tuple[Any, ...], ([], "x", 7, True))
    ),
    ({"jsonrpc": "2.0", "method": "tools/list"}, None),
    ({"jsonrpc": "2.0", "method": "no/such"}, None),
    ({"jsonrpc": "2.0", "method": "tools/call", "params": {"name": "desk.a"}}, None),
    ({"jsonrpc": "2.0", "id": 1, "result": {}}, None),
    ({"jsonrpc": "2.0", "id": 1, "error": {}}, None),
]


@pytest.mark.promise("F6")
@pytest.mark.parametrize("position", range(len(ODD)))
@pytest.mark.parametrize("revision", [R2024, R2503, R2511])
async def test_each_malformed_message_gets_its_response(position: int, revision: Revision) -> None:
    message, code = ODD[position]
    answer = await build_mcp_server("a").answer(message, peer(revision))
    if code is None:
        assert answer is None
        return
    assert answer is not None
    got = json.loads(answer)
    assert got["error"]["code"] == code
    assert len(got["error"]["message"]) < 300
    id = message.get("id") if isinstance(message, dict) else None
    assert got["id"] == (1 if type(id) is int else None)


@pytest.mark.promise("F6")
@pytest.mark.parametrize("params", [{}, None, {"protocolVersion": 7}, {"capabilities": []}])
async def test_initialize_succeeds_with_any_params(params: Any) -> None:
    who = peer(R2024)
    message = {"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": params}
    answer = await build_mcp_server().answer(message, who)
    assert answer is not None
    assert json.loads(answer)["result"]["protocolVersion"] == "2024-11-05"


META = "io.modelcontextprotocol/"
LACKING = [
    ({META + "protocolVersion": "2026-07-28"}, -32602),
    ({META + "protocolVersion": "2026-07-28", META + "clientCapabilities": []}, -32602),
    ({META + "protocolVersion": "2025-11-25", META + "clientCapabilities": {}}, -32022),
    ({META + "protocolVersion": "2027-01-01", META + "clientCapabilities": {}}, -32022),
    ({META + "protocolVersion": 7}, -32022),
    ({META + "protocolVersion": ["2026-07-28"]}, -32022),
    ({META + "protocolVersion": "x" * 10_000}, -32022),
]


@pytest.mark.promise("F7")
@pytest.mark.parametrize(("meta", "code"), LACKING)
async def test_modern_request_without_client_info_is_refused(meta: Any, code: int) -> None:
    message = {"jsonrpc": "2.0", "id": 1, "method": "tools/list", "params": {"_meta": meta}}
    answer = await build_mcp_server("a").answer(message, peer())
    assert answer is not None and len(answer) < 1000
    error = json.loads(answer)["error"]
    assert error["code"] == code
    if code == -32022:
        assert error["data"]["supported"] == list(NAMES)


# --- batches


async def batch(revision: Revision, *messages: Any) -> Any:
    answer = await build_mcp_server("a").answer_tracked(list(messages), peer(revision), None, {})
    return None if answer is None else json.loads(answer)


PING = {"jsonrpc": "2.0", "id": 1, "method": "ping"}


@pytest.mark.promise("F7")
@pytest.mark.parametrize("revision", ORDERED)
async def test_batches_are_of_one_revision(revision: Revision) -> None:
    got = await batch(revision, PING, {"jsonrpc": "2.0", "method": "x"}, {**PING, "id": 2}, 7)
    if revision == R2503:
        assert [one["id"] for one in got] == [1, 2, None]
        assert got[2]["error"]["code"] == -32600
    else:
        assert got["error"]["code"] == -32600 and got["id"] is None


async def test_batch_of_notifications_is_unanswered_and_an_empty_one_refused() -> None:
    assert await batch(R2503, {"jsonrpc": "2.0", "method": "x"}) is None
    assert (await batch(R2503))["error"]["code"] == -32600
    assert (await batch(R2503, *[PING] * 101))["error"]["code"] == -32600
    assert len(await batch(R2503, *[PING] * 100)) == 100


# --- anything at all

# Not `st.recursive`: once in a while that warns of recursing no further, and warnings are errors.
JSON: st.SearchStrategy[Any] = st.deferred(
    lambda: st.one_of(
        *(st.none(), st.booleans(), st.integers(), st.floats(allow_nan=False), st.text()),
        *(st.lists(JSON, max_size=4), st.dictionaries(st.text(), JSON, max_size=4)),
    )
)
METHODS = st.sampled_from([*KNOWN, "notifications/x", "x"])
MAYBE_META = st.one_of(
    JSON, st.just(MODERN_META), st.dictionaries(st.sampled_from([*MODERN_META]), JSON)
)
PARAMS = st.one_of(
    JSON,
    st.fixed_dictionaries(
        {},
        optional={
            "name": st.one_of(JSON, st.sampled_from(["desk.a", "desk.odd", "desk.deny", "x"])),
            "arguments": JSON,
            "cursor": JSON,
            "uri": JSON,
            "level": JSON,
            "ref": st.one_of(JSON, st.fixed_dictionaries({"type": JSON, "name": JSON})),
            "argument": JSON,
            "notifications": JSON,
            "inputResponses": JSON,
            "requestState": JSON,
            "capabilities": JSON,
            "clientInfo": JSON,
            "_meta": MAYBE_META,
            "protocolVersion": st.one_of(JSON, st.sampled_from(NAMES)),
        },
    ),
)
MESSAGES = st.one_of(
    JSON,
    st.fixed_dictionaries(
        {},
        optional={
            "jsonrpc": st.one_of(st.just("2.0"), JSON),
            "id": st.one_of(st.integers(), st.text(), JSON),
            "method": st.one_of(METHODS, JSON),
            "params": PARAMS,
            "result": JSON,
        },
    ),
    st.builds(
        lambda method, params: {"jsonrpc": "2.0", "id": 1, "method": method, "params": params},
        METHODS,
        PARAMS,
    ),
)


@pytest.fixture(scope="module")
def run() -> Iterator[Callable[[Any], Any]]:
    with asyncio.Runner() as runner:
        yield runner.run


@pytest.mark.promise("F5", "F6")
@settings(max_examples=400, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(message=MESSAGES, revision=st.sampled_from(ORDERED))
def test_any_message_is_answered_exactly_when_due(
    run: Callable[[Any], Any], message: Any, revision: Revision
) -> None:
    made = build_mcp_server("a", "odd", "deny", "lose")
    encoded = encode(message)  # as it would have come: infinity is none of it
    message = json.loads(encoded)
    answer = run(made.answer(message, peer(revision)))
    is_message = rpc.find_flaw(message) is None
    due = not is_message or ("id" in message and "method" in message)
    assert (answer is not None) == due
    if answer is not None:
        got = json.loads(answer)
        assert got["jsonrpc"] == "2.0"
        assert got["id"] == rpc.find_id(message)
        assert ("result" in got) != ("error" in got)
        if not is_message:
            assert got["error"]["code"] == -32600


@settings(max_examples=100, deadline=None)
@given(messages=st.lists(MESSAGES, max_size=5), revision=st.sampled_from(ORDERED))
def test_any_batch_is_answered_exactly_when_due(
    run: Callable[[Any], Any], messages: list[Any], revision: Revision
) -> None:
    messages = json.loads(encode(messages))
    answer = run(build_mcp_server("a").answer_tracked(messages, peer(revision), None, {}))
    if revision != R2503 or not messages:
        assert json.loads(answer)["error"]["code"] == -32600
        return
    due = [m for m in messages if rpc.find_flaw(m) is not None or ("id" in m and "method" in m)]
    assert (answer is not None) == bool(due)
    if answer is not None:
        assert len(json.loads(answer)) == len(due)
