"""The headers of 2026-07-28 on a real socket: each must match the body."""

from __future__ import annotations

import base64
import json
from typing import Any, cast

import pytest
from tests.web.mcp_http_fixture import MODERN, call, modern, notification, request, run_mcp_rig

from dragoman.core.catalog import Catalog
from dragoman.core.tool import Tool

NAMED = [
    ("tools/call", {"name": "work.do"}),
    ("prompts/get", {"name": "no.prompt"}),
    ("resources/read", {"uri": "no://resource"}),
    ("tasks/get", {"taskId": "no-task"}),
    ("tasks/update", {"taskId": "no-task"}),
    ("tasks/cancel", {"taskId": "no-task"}),
]


def b64(text: str) -> str:
    return f"=?base64?{base64.b64encode(text.encode()).decode()}?="


@pytest.mark.promise("G2")
@pytest.mark.parametrize(("method", "params"), NAMED)
async def test_name_header_must_match_the_body(method: str, params: dict[str, Any]) -> None:
    async with run_mcp_rig() as here:
        message = request(1, method, **params)
        (right,) = params.values()
        for name in ("", right + "x", right.upper(), "x", b64("x"), "=?base64?eA?=", "=?base64??="):
            answer = await here.send("POST", **modern(message, Mcp_Name=name))
            error = (await answer.json())["error"]
            assert (answer.status, error["code"]) == (400, -32020), name
            assert "Mcp-Name" in error["message"]
        for name in (right, b64(right), f"  {right}  "):
            answer = await here.send("POST", **modern(message, Mcp_Name=name))
            assert (await answer.json()).get("error", {}).get("code") != -32020, name


@pytest.mark.promise("G2")
async def test_method_header_must_match_the_body() -> None:
    async with run_mcp_rig() as here:
        message = request(1, "tools/list")
        for name in ("", "prompts/list", "TOOLS/LIST", "tools/list, tools/list"):
            answer = await here.send("POST", **modern(message, Mcp_Method=name))
            assert (answer.status, (await answer.json())["error"]["code"]) == (400, -32020)
        answer = await here.send("POST", **modern(message))
        assert answer.status == 200
        told = notification("notifications/x")
        for name, status in (("", 202), ("notifications/x", 202), ("notifications/y", 400)):
            answer = await here.send("POST", **modern(told, Mcp_Method=name))
            assert answer.status == status, "of a notification no header is demanded"


MIRRORED: list[tuple[dict[str, Any], dict[str, str], bool]] = [
    # arguments, headers, whether they agree
    ({}, {}, True),
    ({"region": None}, {}, True),
    ({"region": "eu"}, {"Mcp_Param_Region": "eu"}, True),
    ({"region": "eu"}, {"MCP_PARAM_REGION": "  eu "}, True),
    ({"region": "été"}, {"Mcp_Param_Region": b64("été")}, True),
    ({"region": "été"}, {"Mcp_Param_Region": "été"}, False),
    ({"region": "Hello"}, {"Mcp_Param_Region": "=?base64?SGVsbG8=?="}, True),
    ({"region": "Hello"}, {"Mcp_Param_Region": "=?base64?SGVsbG8?="}, False),
    ({"region": "Hello"}, {"Mcp_Param_Region": "=?base64?SGVs!!!bG8=?="}, False),
    ({"region": "Hello"}, {"Mcp_Param_Region": "=?base64?SGVsbG9=?="}, False),
    ({"region": "SGVsbG8="}, {"Mcp_Param_Region": "SGVsbG8="}, True),
    ({"region": "=?base64?SGVsbG8="}, {"Mcp_Param_Region": "=?base64?SGVsbG8="}, True),
    ({"region": "eu"}, {}, False),
    ({"region": "eu"}, {"Mcp_Param_Region": "us"}, False),
    ({"region": "eu"}, {"Mcp_Param_Region": "EU"}, False),
    ({}, {"Mcp_Param_Region": "eu"}, False),
    ({"region": None}, {"Mcp_Param_Region": "null"}, False),
    ({"deep": {"count": 42}}, {"Mcp_Param_Count": "42"}, True),
    ({"deep": {"count": 42}}, {"Mcp_Param_Count": "42.0"}, True),
    ({"deep": {"count": 42}}, {"Mcp_Param_Count": "43"}, False),
    ({"deep": {"count": 42}}, {}, False),
    ({"deep": {}}, {}, True),
    ({"deep": 7}, {}, True),
    ({"region": "eu"}, {"Mcp_Param_Region": "eu", "Mcp_Param_Other": "x"}, True),
]


@pytest.mark.promise("G2", "B12")
async def test_mirrored_argument_headers_must_match_the_arguments() -> None:
    async with run_mcp_rig() as here:
        for arguments, headers, agree in MIRRORED:
            for tool in ("work.mirrored", "mcp_work_mirrored"):
                message = call(1, tool, **arguments)
                answer = await here.send("POST", **modern(message), **headers)
                said = await answer.json()
                if agree:
                    assert "result" in said, (arguments, headers, said)
                else:
                    assert (answer.status, said["error"]["code"]) == (400, -32020), headers
                    assert "mcp-param-" in said["error"]["message"] and said["id"] == 1
        assert len(here.work.calls) == 2 * sum(agree for *_, agree in MIRRORED)


@pytest.mark.promise("G2")
async def test_unmarked_tools_and_older_revisions_need_no_mirrored_headers() -> None:
    async with run_mcp_rig() as here:
        for tool in ("work.do", "work.spoilt", "no.such"):
            message = call(1, tool, region="eu", x=1)
            answer = await here.send("POST", **modern(message), Mcp_Param_Region="us")
            assert (await answer.json()).get("error", {}).get("code") != -32020, tool
        session = await here.session("2025-11-25")
        lies = {"Mcp_Method": "tools/list", "Mcp_Name": "work.do", "Mcp_Param_Region": "us"}
        message = call(1, "work.mirrored", region="eu")
        answer = await here.send("POST", message=message, **session, **lies)
        assert "result" in await answer.json(), "what it says there is trusted for nothing"
        assert here.work.calls[-1].tool.name == "work.mirrored"


async def test_mirrored_headers_follow_the_tool_schema() -> None:
    async with run_mcp_rig() as here:
        message = call(1, "work.do", region="eu")
        assert (await here.send("POST", **modern(message))).status == 200
        catalog: Catalog = here.mcp_server.hub.catalog
        (do,) = [tool for tool in catalog.list_tools() if tool.name == "work.do"]
        schema = {"type": "object", "properties": {"region": {"type": "string"}}}
        schema["properties"]["region"]["x-mcp-header"] = "Zone"  # type: ignore[index]
        changed = Tool(
            name=do.name,
            alias=do.alias,
            remote_name=do.remote_name,
            definition={"inputSchema": schema},
            target=do.target,
        )
        catalog.offer("work", [changed])
        assert (await here.send("POST", **modern(message))).status == 400
        assert (await here.send("POST", **modern(message), Mcp_Param_Zone="eu")).status == 200
        for number in range(50):
            await (await here.send("POST", **modern(call(1, f"no.such{number}")))).body()
        check = cast(Any, here.http._find_mismatch).__self__
        assert len(check._params) == 1, "wrong names are not remembered"


@pytest.mark.promise("G2")
@pytest.mark.parametrize(
    "header",
    ["Mcp-Param-Region: eu", "Mcp-Method: tools/call", "Mcp-Name: work.mirrored"],
)
async def test_security_relevant_header_may_appear_once(header: str) -> None:
    async with run_mcp_rig() as here:
        sent = modern(call(1, "work.mirrored", region="eu"))
        answer = await here.send("POST", **sent, Mcp_Param_Region=f"eu\r\n{header}")
        assert answer.status == 400 and b"is repeated" in await answer.body()
        assert here.work.calls == []


@pytest.mark.promise("G2")
async def test_modern_revision_refuses_get_and_delete() -> None:
    async with run_mcp_rig() as here:
        session = await here.session()
        for method in ("GET", "DELETE"):
            version = {**session, "Mcp_Protocol_Version": MODERN}
            answer = await here.send(method, **version)
            assert (answer.status, answer.headers["allow"]) == (405, "POST")
            unknown = await here.send(method, **{**session, "Mcp_Protocol_Version": "2027-01-01"})
            assert (unknown.status, (await unknown.json())["error"]["code"]) == (400, -32022)
        assert (await here.send("DELETE", **session)).status == 200


@pytest.mark.promise("N1")
@pytest.mark.parametrize("member", ["uri", "taskId", "inputResponses", "requestState", "arguments"])
async def test_duplicate_parameters_are_refused(member: str) -> None:
    async with run_mcp_rig() as here:
        sent = modern(call(1))
        body = json.dumps(sent.pop("message"))
        twice = body.replace('"name"', f'"{member}": "a", "{member}": "b", "name"', 1)
        answer = await here.send("POST", message=twice.encode(), **sent)
        assert (answer.status, (await answer.json())["error"]["code"]) == (400, -32600)
        assert here.work.calls == []
        inside = json.dumps({"a": {member: 1}, "b": {member: 2}})
        nested = body.replace('"arguments": {}', f'"arguments": {inside}', 1)
        assert nested != body
        assert (await here.send("POST", message=nested.encode(), **sent)).status == 200


async def test_cors_preflight_allows_tool_headers() -> None:
    async with run_mcp_rig() as here:
        wanted = "authorization, Mcp-Param-Region,mcp-param-été, x-other"
        answer = await here.send(
            "OPTIONS",
            Origin=f"http://localhost:{here.port}",
            Host=f"localhost:{here.port}",
            Access_Control_Request_Headers=wanted,
        )
        allowed = answer.headers["access-control-allow-headers"].split(", ")
        assert answer.status == 204
        assert {"authorization", "mcp-method", "mcp-param-region"} <= set(allowed)
        assert "x-other" not in allowed and all(name.isascii() for name in allowed)
