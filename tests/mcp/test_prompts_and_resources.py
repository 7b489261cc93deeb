"""Prompts, resources and completions through the MCP server, in every revision. The target is
defined here.
"""

from __future__ import annotations

import json
from typing import Any

import pytest
from tests.permissive_hub import build_permissive_hub

from dragoman.core.bus import Bus
from dragoman.core.call import Call, LogMessage, Progress, Result
from dragoman.core.catalog import Catalog, admit_all
from dragoman.core.errors import BadReply, Denied, TimedOut, Unreachable, WorkFailed
from dragoman.core.principal import OWNER
from dragoman.core.tool import COMPLETION, DEFAULT_TRAITS, PROMPT, RESOURCE, TEMPLATE, TOOL, Tool
from dragoman.core.tool_filter import EVERYTHING
from dragoman.mcp.protocol.elicitation import TASKS_ONLY
from dragoman.mcp.protocol.revisions import (
    ORDERED,
    R2024,
    R2503,
    R2506,
    R2511,
    R2607,
    SERVER_KEY,
    Revision,
)
from dragoman.mcp.server.client_state import ClientState
from dragoman.mcp.server.dispatcher import McpServer
from dragoman.wire import rpc

META = "io.modelcontextprotocol/"
MODERN_META: dict[str, Any] = {
    META + "protocolVersion": "2026-07-28",
    META + "clientCapabilities": {"roots": {}},
}
TEXT = {"type": "text", "text": "hello", "_meta": {"a": 1}}
AUDIO = {"type": "audio", "data": "AA==", "mimeType": "audio/wav"}
READ = {"uri": "note://a", "mimeType": "text/plain", "text": "hello", "_meta": {"a": 1}}
FAILURES = {
    "denied": Denied("no"),
    "lost": Unreachable("lost"),
    "late": TimedOut("late"),
    "bad": BadReply("bad"),
    "broken": WorkFailed("broken"),
    "native": WorkFailed("broken", {"code": -32002, "message": "mine", "data": {"uri": "x"}}),
}


class Library:
    """Keeps the last call, and does what the end of a name says."""

    traits = DEFAULT_TRAITS
    name = "library"

    def __init__(self) -> None:
        self.last: Call | None = None
        self.extra: dict[str, Any] = {}
        self.structured: Any = {"values": ["x"], "total": 1, "hasMore": False}

    async def run(self, call: Call) -> Result:
        self.last = call
        failure = FAILURES.get(call.tool.remote_name.rpartition("/")[2])
        if failure is not None:
            raise failure
        if call.tool.kind == PROMPT:
            extra = {"description": "d", "roles": ["user", "assistant"], **self.extra}
            return Result(content=[TEXT, AUDIO], extra=extra)
        if call.tool.kind == RESOURCE:
            content = [{"type": "resource", "resource": READ}, {"type": "text", "text": "cut"}]
            return Result(content=content, extra=self.extra)
        if call.tool.kind == COMPLETION:
            return Result(structured=self.structured, extra=self.extra)
        for level in ("debug", "info", "notice", "error", "strange"):
            call.updates(
                LogMessage(level=level, data={"n": 1}, logger="l" if level == "info" else None)
            )
        call.updates(Progress(progress=1))
        return Result(content=[TEXT], structured=[1])


def library() -> tuple[McpServer, Library]:
    target, hub = Library(), build_permissive_hub(Catalog(review=admit_all), Bus(), [])

    def offer(kind: str, *names: str, **definition: Any) -> None:
        tools = [
            Tool(
                name=f"library.{name}",
                alias=name if kind in (RESOURCE, TEMPLATE) else f"mcp_library_{name}",
                kind=kind,
                remote_name=name,
                definition=definition,
                target=target,
            )
            for name in names
        ]
        hub.catalogs[kind].offer("library", tools)

    offer(TOOL, "t", outputSchema={"type": "array"})
    offer(PROMPT, "p", *(f"p/{name}" for name in FAILURES))
    offer(RESOURCE, "note://a", *(f"note://{name}" for name in FAILURES))
    offer(TEMPLATE, "note://t/{id}")
    return McpServer(hub), target


def params_for(revision: Revision, **params: Any) -> dict[str, Any]:
    meta = params.pop("meta", {})
    if revision >= R2607:
        meta = {**MODERN_META, META + "protocolVersion": revision.name, **meta}
    return {**params, "_meta": meta} if meta else params


async def ask(
    mcp_server: McpServer, method: str, revision: Revision, push: Any = None, **params: Any
) -> Any:
    peer = ClientState(OWNER, "test", EVERYTHING, revision, client="c")
    message = json.loads(rpc.encode_request(1, method, params_for(revision, **params)))
    answer = await mcp_server.answer(message, peer, push)
    assert answer is not None
    return json.loads(answer)


# --- results


@pytest.mark.promise("F7")
@pytest.mark.parametrize("revision", ORDERED)
async def test_prompt_messages_follow_the_revision(revision: Revision) -> None:
    mcp_server, target = library()
    target.extra = {"resultType": "complete", "_meta": {"a": 1}}
    got = await ask(mcp_server, "prompts/get", revision, name="mcp_library_p", arguments={"x": "y"})
    result = got["result"]
    assert result["description"] == "d" and "roles" not in result
    first, second = result["messages"]
    assert (first["role"], second["role"]) == ("user", "assistant")
    assert ("_meta" in first["content"]) == (revision >= R2506)
    assert second["content"]["type"] == ("audio" if revision >= R2503 else "resource")
    assert ("resultType" in result) == (revision >= R2607)
    assert (SERVER_KEY in result["_meta"]) == (revision >= R2607)
    assert target.last is not None
    assert (target.last.tool.name, target.last.arguments) == ("library.p", {"x": "y"})


async def test_message_without_a_role_is_the_users() -> None:
    mcp_server, target = library()
    target.extra = {"roles": []}
    got = await ask(mcp_server, "prompts/get", R2511, name="library.p")
    assert [one["role"] for one in got["result"]["messages"]] == ["user", "user"]


@pytest.mark.promise("F7")
@pytest.mark.parametrize("revision", ORDERED)
async def test_resource_contents_follow_the_revision(revision: Revision) -> None:
    mcp_server, target = library()
    result = (await ask(mcp_server, "resources/read", revision, uri="note://a"))["result"]
    first, second = result["contents"]
    assert first == {k: v for k, v in READ.items() if k != "_meta" or revision >= R2506}
    assert second == {"uri": "note://a", "mimeType": "text/plain", "text": "cut"}
    modern = {"ttlMs": 0, "cacheScope": "private", "resultType": "complete"}
    assert {key: result.get(key) for key in modern} == (
        modern if revision >= R2607 else dict.fromkeys(modern)
    )
    assert target.last is not None and target.last.arguments == {}
    assert target.last.tool.remote_name == "note://a"


@pytest.mark.parametrize(
    ("said", "shown"), [(5000, 5000), (0, 0), (-1, 0), (1.5, 0), (True, 0), ("9", 0), (None, 0)]
)
async def test_resource_ttl_of_the_server_is_kept_if_valid(said: Any, shown: int) -> None:
    mcp_server, target = library()
    target.extra = {"ttlMs": said, "cacheScope": "public"}
    result = (await ask(mcp_server, "resources/read", R2607, uri="note://a"))["result"]
    assert (result["ttlMs"], result["cacheScope"]) == (shown, "private")
    answered = await ask(mcp_server, "resources/read", R2607, uri="note://a", inputResponses={})
    assert (
        answered["result"]["ttlMs"] == 0
    )  # 2026-07-28, caching: the requested result is not cached
    old = (await ask(mcp_server, "resources/read", R2511, uri="note://a"))["result"]
    assert not old.keys() & {"ttlMs", "cacheScope"}


@pytest.mark.promise("F7")
@pytest.mark.parametrize("revision", ORDERED)
@pytest.mark.parametrize(
    ("ref", "name"),
    [
        ({"type": "ref/prompt", "name": "mcp_library_p"}, "library.p"),
        ({"type": "ref/resource", "uri": "note://t/{id}"}, "library.note://t/{id}"),
    ],
)
async def test_argument_is_completed(revision: Revision, ref: Any, name: str) -> None:
    mcp_server, target = library()
    argument, context = {"name": "a", "value": "x"}, {"arguments": {"b": "c"}}
    params = {"ref": ref, "argument": argument, "context": context}
    result = (await ask(mcp_server, "completion/complete", revision, **params))["result"]
    assert result["completion"] == {"values": ["x"], "total": 1, "hasMore": False}
    assert ("resultType" in result) == (revision >= R2607)
    assert target.last is not None and target.last.tool.name == name
    expected = {"ref": ref, "argument": argument}
    if revision >= R2506:
        expected["context"] = context
    assert target.last.arguments == expected


async def test_completion_has_at_most_a_hundred_values() -> None:
    mcp_server, target = library()
    target.structured = {"values": [str(n) for n in range(300)]}
    ref = {"type": "ref/prompt", "name": "library.p"}
    params = {"ref": ref, "argument": {"name": "a", "value": ""}}
    completion = (await ask(mcp_server, "completion/complete", R2511, **params))["result"][
        "completion"
    ]
    assert len(completion["values"]) == 100 and completion["hasMore"] is True
    odd: Any
    for odd in (None, [], {}, {"values": 7}, "x"):
        target.structured = odd
        answer = await ask(mcp_server, "completion/complete", R2511, **params)
        assert answer["error"]["code"] == -32603


@pytest.mark.parametrize("revision", ORDERED)
async def test_non_object_structured_result_follows_its_schema(
    revision: Revision,
) -> None:
    mcp_server, _ = library()
    (tool,) = (await ask(mcp_server, "tools/list", revision))["result"]["tools"]
    result = (await ask(mcp_server, "tools/call", revision, name="library.t"))["result"]
    if revision < R2506:
        assert "structuredContent" not in result and "outputSchema" not in tool
    elif revision < R2607:
        assert result["structuredContent"] == {"result": [1]}
        assert tool["outputSchema"]["properties"]["result"] == {"type": "array"}
    else:
        assert result["structuredContent"] == [1]
        assert tool["outputSchema"] == {"type": "array"}
    assert result["content"][0]["text"] == "hello"


# --- errors: prompts and resources have no results that say so


@pytest.mark.promise("F7")
@pytest.mark.parametrize("revision", ORDERED)
@pytest.mark.parametrize(
    ("failure", "legacy", "modern"),
    [
        ("denied", -32003, 40300),
        ("lost", -32603, -32603),
        ("late", -32603, -32603),
        ("bad", -32603, -32603),
        ("broken", -32603, -32603),
        ("native", -32002, -32602),
    ],
)
async def test_prompt_and_resource_failures_are_errors(
    failure: str, legacy: int, modern: int, revision: Revision
) -> None:
    mcp_server, _ = library()
    for answer in (
        await ask(mcp_server, "prompts/get", revision, name=f"library.p/{failure}"),
        await ask(mcp_server, "resources/read", revision, uri=f"note://{failure}"),
    ):
        assert answer["error"]["code"] == (modern if revision >= R2607 else legacy)
        said = "mine" if failure == "native" else str(FAILURES[failure])
        assert answer["error"]["message"].startswith(said)


@pytest.mark.promise("F7")
@pytest.mark.parametrize("revision", ORDERED)
async def test_missing_entry_has_the_code_of_the_revision(revision: Revision) -> None:
    hub = build_permissive_hub(Catalog(review=admit_all), Bus(), [])
    answer = await ask(McpServer(hub), "resources/read", revision, uri="note://nowhere")
    assert answer["error"]["code"] == (-32602 if revision >= R2607 else -32002)
    assert answer["error"]["data"]["uri"] == "note://nowhere"
    mcp_server, _ = library()
    ref = {"type": "ref/prompt", "name": "no.such"}
    argument = {"name": "a", "value": "b"}
    for method, params in (
        ("prompts/get", {"name": "no.such"}),
        ("completion/complete", {"ref": ref, "argument": argument}),
    ):
        assert (await ask(mcp_server, method, revision, **params))["error"]["code"] == -32602


ARGUMENT = {"name": "a", "value": "b"}
ODD: list[tuple[str, dict[str, Any]]] = [
    ("prompts/get", {}),
    ("prompts/get", {"name": 7}),
    ("prompts/get", {"name": "library.p", "arguments": []}),
    ("resources/read", {}),
    ("resources/read", {"uri": ["note://a"]}),
    ("completion/complete", {}),
    ("completion/complete", {"ref": "x", "argument": ARGUMENT}),
    ("completion/complete", {"ref": {}, "argument": ARGUMENT}),
    ("completion/complete", {"ref": {"type": ["ref/prompt"]}, "argument": ARGUMENT}),
    ("completion/complete", {"ref": {"type": "ref/prompt"}, "argument": ARGUMENT}),
    ("completion/complete", {"ref": {"type": "ref/prompt", "uri": "x"}, "argument": ARGUMENT}),
    ("completion/complete", {"ref": {"type": "ref/prompt", "name": "library.p"}}),
    (
        "completion/complete",
        {"ref": {"type": "ref/prompt", "name": "library.p"}, "argument": {"name": "a"}},
    ),
    (
        "completion/complete",
        {
            "ref": {"type": "ref/prompt", "name": "library.p"},
            "argument": ARGUMENT,
            "context": 7,
        },
    ),
    ("resources/subscribe", {}),
    ("resources/unsubscribe", {"uri": 7}),
    ("logging/setLevel", {}),
    ("logging/setLevel", {"level": "loud"}),
    ("logging/setLevel", {"level": ["info"]}),
]


@pytest.mark.promise("F6")
@pytest.mark.parametrize("position", range(len(ODD)))
async def test_invalid_requests_get_invalid_params(position: int) -> None:
    method, params = ODD[position]
    mcp_server, target = library()
    assert (await ask(mcp_server, method, R2511, **params))["error"]["code"] == -32602
    assert target.last is None


LONG = f"note://{'a/' * 4_096}"
LONG_URIS: list[tuple[str, dict[str, Any]]] = [
    ("resources/read", {"uri": LONG}),
    ("resources/subscribe", {"uri": LONG}),
    ("resources/unsubscribe", {"uri": LONG}),
    ("completion/complete", {"ref": {"type": "ref/resource", "uri": LONG}, "argument": ARGUMENT}),
    ("completion/complete", {"ref": {"type": "ref/prompt", "name": LONG}, "argument": ARGUMENT}),
]


@pytest.mark.parametrize("position", range(len(LONG_URIS)))
async def test_an_address_that_is_too_long_is_refused_before_it_is_looked_at(position: int) -> None:
    method, params = LONG_URIS[position]
    mcp_server, target = library()
    error = (await ask(mcp_server, method, R2511, **params))["error"]
    assert error["code"] == -32602 and "at most 8192 characters" in error["message"]
    assert target.last is None


async def test_a_stream_is_not_opened_for_an_address_that_is_too_long() -> None:
    mcp_server, _ = library()
    wanted = {"resourceSubscriptions": ["note://a", LONG]}
    pushed: list[bytes] = []
    said = await ask(mcp_server, "subscriptions/listen", R2607, pushed.append, notifications=wanted)
    assert "at most 8192 characters" in said["error"]["message"] and not pushed


# --- what a server says of its work meanwhile

SAID = ["debug", "info", "notice", "error"]


async def notes(revision: Revision, level: str | None, meta: dict[str, Any] | None = None) -> Any:
    """What of the log of a call is pushed; the levels."""
    mcp_server, target = library()
    peer = ClientState(OWNER, "test", EVERYTHING, revision, client="c")
    if level is not None:
        request = json.loads(rpc.encode_request(1, "logging/setLevel", {"level": level}))
        answer = await mcp_server.answer(request, peer)
        assert answer is not None and json.loads(answer)["result"] == {}
    pushed: list[Any] = []

    def push(message: bytes) -> bool:
        pushed.append(json.loads(message))
        return True

    params = params_for(revision, name="library.t", meta=meta or {})
    await mcp_server.answer(json.loads(rpc.encode_request(2, "tools/call", params)), peer, push)
    assert {one["method"] for one in pushed} <= {"notifications/message"}
    for one in pushed:
        assert one["params"]["data"] == {"n": 1}
        assert ("logger" in one["params"]) == (one["params"]["level"] == "info")
    assert target.last is not None
    return [one["params"]["level"] for one in pushed], target.last.wanted_updates.log_level


@pytest.mark.promise("B12")
@pytest.mark.parametrize("revision", [R2024, R2503, R2506, R2511])
@pytest.mark.parametrize(
    ("level", "received"),
    [(None, SAID[1:]), ("debug", SAID), ("warning", ["error"]), ("emergency", [])],
)
async def test_logs_are_sent_from_the_set_level(
    revision: Revision, level: str | None, received: list[str]
) -> None:
    assert await notes(revision, level) == (received, level or "info")


@pytest.mark.promise("B12")
@pytest.mark.parametrize(
    ("level", "received"), [(None, []), ("debug", SAID), ("notice", ["notice", "error"])]
)
async def test_modern_client_gets_logs_of_the_requested_level(
    level: str | None, received: list[str]
) -> None:
    meta = {META + "logLevel": level} if level else {}
    assert await notes(R2607, None, meta) == (received, level)


@pytest.mark.parametrize("level", ["loud", 7, ["info"], {}, ""])
async def test_invalid_log_level_is_refused(level: Any) -> None:
    mcp_server, target = library()
    answer = await ask(
        mcp_server, "tools/call", R2607, name="library.t", meta={META + "logLevel": level}
    )
    assert answer["error"]["code"] == -32602 and target.last is None


async def test_logs_are_not_requested_without_a_channel() -> None:
    mcp_server, target = library()
    meta = {META + "logLevel": "debug", "progressToken": 1}
    await ask(mcp_server, "tools/call", R2607, name="library.t", meta=meta)
    assert target.last is not None
    assert (target.last.wanted_updates.progress, target.last.wanted_updates.log_level) == (
        False,
        None,
    )
    await ask(mcp_server, "tools/call", R2607, lambda _: True, name="library.t", meta=meta)
    assert (target.last.wanted_updates.progress, target.last.wanted_updates.log_level) == (
        True,
        "debug",
    )


# --- what goes with every call


@pytest.mark.promise("B13")
@pytest.mark.parametrize("revision", ORDERED)
@pytest.mark.parametrize(
    ("method", "params"),
    [
        ("tools/call", {"name": "library.t"}),
        ("prompts/get", {"name": "library.p"}),
        ("resources/read", {"uri": "note://a"}),
    ],
)
async def test_call_carries_client_capabilities_and_identity(
    method: str, params: dict[str, Any], revision: Revision
) -> None:
    mcp_server, target = library()
    peer = ClientState(OWNER, "test", EVERYTHING, revision, client="c")
    peer.features = {"sampling": {}}
    meta = {"traceparent": "00-1-2-01"}
    message = json.loads(rpc.encode_request(1, method, params_for(revision, meta=meta, **params)))
    for push, able in ((lambda _: True, True), (None, False)):
        await mcp_server.answer(message, peer, push)
        assert target.last is not None
        if revision >= R2607:
            assert target.last.features == {"roots": {}}  # its requests say it
        else:
            assert target.last.features == ({"sampling": {}} if able else TASKS_ONLY)
        assert target.last.client == "c"
        session = "c" if revision < R2607 else ""  # the new era has none
        assert (target.last.meta, target.last.session) == (meta, session)
    peer.client = ""
    await mcp_server.answer(message, peer, lambda _: True)
    if revision < R2607:
        assert target.last is not None
        assert target.last.features is TASKS_ONLY  # its responses would reach no one
