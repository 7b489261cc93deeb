"""The matrix, part one: lists, calls, errors, progress and logs, for a client of each
revision over each transport, with a server of each era and transport.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator
from typing import Any

import pytest
from tests.live.matrix_client import Client
from tests.live.matrix_fixture import (
    CLIENTS,
    NO_METHOD,
    UPSTREAMS,
    HubRig,
    expected,
    run_matrix_hub,
    scheme,
)
from tests.live.module_hub import text_of

pytestmark = pytest.mark.promise("B12", "F6", "F7", "G1", "G2")

LOG_LEVEL = "io.modelcontextprotocol/logLevel"
KEYS = itertools.count()


@pytest.fixture(scope="module")
def rig() -> Iterator[HubRig]:
    with run_matrix_hub() as made:
        yield made


@pytest.fixture(scope="module", params=CLIENTS, ids="-".join)
def client(request: pytest.FixtureRequest, rig: HubRig) -> Iterator[Client]:
    """Declares nothing: it shares the hub's connections."""
    with rig.connect(request.param, {}) as made:
        yield made


@pytest.fixture(params=UPSTREAMS)
def upstream(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def listed(client: Client, method: str, member: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    cursor: dict[str, Any] = {}
    while True:
        result = client.request(method, cursor)["result"]
        assert ({"resultType", "ttlMs", "cacheScope"} <= set(result)) == client.modern
        found += result[member]
        if "nextCursor" not in result:
            return found
        cursor = {"cursor": result["nextCursor"]}


def test_every_list_has_all_entries_in_the_form_of_the_revision(
    client: Client, upstream: str
) -> None:
    tools = {tool["name"]: tool for tool in listed(client, "tools/list", "tools")}
    echo = tools[f"mcp_{upstream}_echo"]
    titled = bool(expected("title", client.revision))
    assert ("title" in echo) == ("_meta" in echo) == titled
    assert ("outputSchema" in tools[f"mcp_{upstream}_add"]) == titled

    prompts = {prompt["name"]: prompt for prompt in listed(client, "prompts/list", "prompts")}
    travel = prompts[f"mcp_{upstream}_travel"]
    assert [argument["name"] for argument in travel["arguments"]] == ["country", "city"]
    assert travel["arguments"][0]["required"] is True
    assert ("title" in travel) == ("title" in travel["arguments"][0]) == titled

    resources = {one["uri"]: one for one in listed(client, "resources/list", "resources")}
    text = resources[f"{scheme(upstream)}://text"]
    assert text["name"] == "text" and text["mimeType"] == "text/plain"
    assert text["annotations"] == {"audience": ["user"], "priority": 0.5}
    assert ("title" in text) == titled
    assert "shared://everywhere" in resources, "the server that had it first"
    others = [uri for uri in resources if uri.endswith(".shared://everywhere")]
    assert len(others) == sum(uri.endswith("://text") for uri in resources) - 1

    templates = listed(client, "resources/templates/list", "resourceTemplates")
    (item,) = [one for one in templates if one["uriTemplate"].startswith(scheme(upstream))]
    assert item["uriTemplate"] == f"{scheme(upstream)}://item/{{id}}/{{part}}"
    assert item["name"] == "item" and ("title" in item) == titled


def test_call_result_is_complete(client: Client, upstream: str) -> None:
    assert text_of(client.call(f"mcp_{upstream}_echo", {"text": "hé"})) == "hé"
    assert text_of(client.call(f"{upstream}.echo", {"text": "two"})) == "two"
    result = client.call(f"mcp_{upstream}_add", {"a": 1, "b": 2})["result"]
    assert result["content"] == [{"type": "text", "text": '{"sum": 3}'}]
    if expected("output", client.revision):
        assert result["structuredContent"] == {"sum": 3}
    else:
        assert "structuredContent" not in result
    meta = client.call(f"mcp_{upstream}_meta", **{"example.com/x": {"y": 1}})["result"]
    assert json.loads(meta["content"][0]["text"])["example.com/x"] == {"y": 1}
    assert meta["_meta"]["example.com/result"] == [1, 2]
    assert (meta.get("resultType") == "complete") == client.modern


@pytest.mark.parametrize(
    "modern", [name for name, (era, _) in UPSTREAMS.items() if era == "modern"]
)
def test_non_object_structured_result_is_wrapped_for_older_clients(
    client: Client, modern: str
) -> None:
    tools = {tool["name"]: tool for tool in listed(client, "tools/list", "tools")}
    schema = tools[f"mcp_{modern}_pick"].get("outputSchema")
    result = client.call(f"mcp_{modern}_pick")["result"]
    assert result["content"] == [{"type": "text", "text": "[1, 2]"}]
    kind = expected("output", client.revision)
    if not kind:
        assert schema is None and "structuredContent" not in result
    elif kind == "object":
        assert schema is not None
        assert schema["type"] == "object" and schema["required"] == ["result"]
        assert result["structuredContent"] == {"result": [1, 2]}
    else:
        assert schema is not None
        assert schema["type"] == "array" and result["structuredContent"] == [1, 2]


def test_server_error_is_passed_unchanged(client: Client, upstream: str) -> None:
    failed = client.call(f"mcp_{upstream}_fail")["result"]
    assert failed["isError"] is True
    assert failed["content"] == [{"type": "text", "text": "it went wrong"}]
    own = client.call(f"mcp_{upstream}_refuse")["error"]
    assert own == {"code": 7001, "message": "There is no such order", "data": {"order": 7}}
    assert client.call(f"mcp_{upstream}_none")["error"]["code"] == -32602


def test_progress_arrives_on_the_stream_of_the_call(client: Client, upstream: str) -> None:
    token = f"token {next(KEYS)}"
    since = len(client.received)
    number = client.begin(
        "tools/call",
        {"name": f"mcp_{upstream}_progress", "arguments": {"steps": 3}},
        progressToken=token,
    )
    assert text_of(client.wait(number)) == "3 steps"
    received = client.said("notifications/progress", since)
    assert [one.params["progressToken"] for one in received] == [token] * 3
    assert [one.params["progress"] for one in received] == [1, 2, 3]
    assert [one.params["total"] for one in received] == [3, 3, 3]
    words = [one.params.get("message") for one in received]
    spoken = expected("progress message", client.revision)
    assert words == (["step 1", "step 2", "step 3"] if spoken else [None] * 3)
    assert {one.stream for one in received} <= {number, "session"}
    if client.modern:
        assert len({one.stream for one in received}) == 1

    since = len(client.received)
    client.call(f"mcp_{upstream}_progress", {"steps": 3})
    assert not client.said("notifications/progress", since), "nobody asked for it"


def test_logs_arrive_from_the_requested_level(client: Client, upstream: str) -> None:
    since = len(client.received)
    assert text_of(client.call(f"mcp_{upstream}_log")) == "logged"
    if client.modern:
        assert not client.said("notifications/message", since), "nobody asked for it"
    for level, wanted in {"error": ["error"], "info": ["info", "warning", "error"]}.items():
        key = f"log {next(KEYS)}"
        meta = {}
        if client.modern:
            meta[LOG_LEVEL] = level
        else:
            assert client.request("logging/setLevel", {"level": level})["result"] == {}
        since = len(client.received)
        number = client.begin(
            "tools/call", {"name": f"mcp_{upstream}_log", "arguments": {"key": key}}, **meta
        )
        client.wait(number)
        client.wait_notification("notifications/message", since, level="error")
        received = client.said("notifications/message", since)
        assert [one.params["level"] for one in received] == wanted
        assert [one.params["data"] for one in received] == [
            {"said": one, "key": key} for one in wanted
        ]
        assert {one.params["logger"] for one in received} == {"matrix"}
        if client.modern:
            assert {one.stream for one in received} <= {number, "session"}


def test_each_revision_has_only_its_methods(client: Client) -> None:
    params: dict[str, dict[str, Any]] = {
        "ping": {},
        "server/discover": {},
        "logging/setLevel": {"level": "error"},
        "resources/subscribe": {"uri": "modern-http://text"},
        "resources/unsubscribe": {"uri": "modern-http://text"},
        "subscriptions/listen": {"notifications": {}},
    }
    for method, wanted in params.items():
        if expected(method, client.revision) == NO_METHOD:
            assert client.request(method, wanted)["error"]["code"] == -32601, method
        elif method != "subscriptions/listen":
            assert "result" in client.request(method, wanted), method
    assert client.request("no/such", {})["error"]["code"] == -32601
