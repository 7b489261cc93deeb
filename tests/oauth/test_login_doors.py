"""Logins at every entry point: clients of the handshake era, A2A, and agents on behalf of users."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any
from uuid import uuid4

import httpx2
import mcp.types as types
import pytest
from mcp.client.context import ClientRequestContext
from mcp.client.streamable_http import streamable_http_client
from tests.oauth.login_rig import URL_CLIENT, LoginBrowser, LoginRig, build_login_rig

from dragoman.core.errors import LoginRequired, WorkFailed
from dragoman.mcp.protocol.elicitation import URL_REQUIRED
from dragoman.mcp.protocol.errors import adapt_error
from dragoman.mcp.protocol.revisions import R2506, R2511
from mcp import Client

pytestmark = pytest.mark.promise("U3")

SCRIPTED = """
description = "Marks what it is told"
[model]
provider = "script"
[capabilities]
tools = ["files.mark"]
[[script]]
after = "*"
say = "{result}"
[[script]]
call = [{ tool = "files.mark", arguments = { text = "{message}" } }]
"""


async def visit(url: str, user: str, press: str = "approve") -> str:
    browser = LoginBrowser(user, press)
    try:
        return (await browser.visit(url)).text
    finally:
        await browser.close()


@pytest.mark.parametrize("era", ["modern", "legacy"])
async def test_a_client_of_the_handshake_era_is_asked_and_its_call_continues(
    short_tmp: Path, era: str
) -> None:
    async with build_login_rig(short_tmp, credentials="user", era=era) as rig:
        await rig.log_in("bob")  # the lists
        await rig.until_state("connected")
        asked: list[Any] = []

        async def answer(
            context: ClientRequestContext, params: types.ElicitRequestParams
        ) -> types.ElicitResult:
            asked.append(params)
            assert isinstance(params, types.ElicitRequestURLParams)
            assert "You are logged in" in await visit(params.url, "anna")
            return types.ElicitResult(action="accept")

        http = httpx2.AsyncClient(headers=rig._headers("anna"))
        transport = streamable_http_client(f"{rig.url}/mcp", http_client=http)
        async with Client(transport, mode="legacy", elicitation_callback=answer) as client:
            result = await client.call_tool("files.mark", {"text": "one"})
            assert isinstance(result.content[0], types.TextContent)
            assert result.content[0].text == "one" and len(asked) == 1
            await client.call_tool("files.mark", {"text": "two"})
        await http.aclose()
        assert len(asked) == 1
        assert rig.server.calls == [("anna", "one"), ("anna", "two")]


def test_a_client_that_cannot_be_asked_now_gets_the_link_in_the_error_of_its_revision() -> None:
    """2025-11-25 has a code of its own for that; other clients get a readable error."""
    url = "http://127.0.0.1:50051/oauth/connect/abc"
    error = LoginRequired("needs a login", server="files")
    error.url = url
    found = adapt_error(error, R2511, URL_CLIENT)
    assert isinstance(found, WorkFailed) and found.native is not None
    assert found.native["code"] == URL_REQUIRED
    (asked,) = found.native["data"]["elicitations"]
    assert asked["mode"] == "url" and asked["url"] == url and asked["elicitationId"] == "abc"
    for revision, features in ((R2511, {}), (R2506, URL_CLIENT)):
        assert adapt_error(error, revision, features) is error


async def send(rig: LoginRig, user: str, method: str, params: dict[str, Any]) -> dict[str, Any]:
    headers = {**rig._headers(user), "a2a-version": "1.0"}
    body = {"jsonrpc": "2.0", "id": 1, "method": method, "params": params}
    reply = await rig.http.post(f"{rig.url}/a2a", json=body, headers=headers, timeout=60)
    return dict(reply.json())


def message(*parts: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {
        "message": {"messageId": uuid4().hex, "role": "ROLE_USER", "parts": list(parts)},
        **more,
    }


async def test_a_task_is_auth_required_and_continues_by_itself(short_tmp: Path) -> None:
    more = "\n[a2a]\nenabled = true\n"
    async with build_login_rig(short_tmp, credentials="user", opens_lists=True, more=more) as rig:
        part = {"data": {"text": "one"}, "mediaType": "application/json"}
        sent = message(part, metadata={"skillId": "files.mark"})
        task = (await send(rig, "anna", "SendMessage", sent))["result"]["task"]
        assert task["status"]["state"] == "TASK_STATE_AUTH_REQUIRED"
        said = task["status"]["message"]["parts"]
        url = next(one["data"]["url"] for one in said if "data" in one)
        assert url in said[0]["text"] and url.startswith(f"{rig.url}/oauth/connect/")
        await visit(url, "anna")

        async def finished() -> Any:
            now = (await send(rig, "anna", "GetTask", {"id": task["id"]}))["result"]
            return now if now["status"]["state"] == "TASK_STATE_COMPLETED" else None

        done = await rig.until(finished)
        assert done["artifacts"][0]["parts"][0]["text"] == "one"
        assert rig.server.calls == [("anna", "one")]


AGENT = "a2a/agents/helper"


@pytest.mark.parametrize(
    "declared", ["JSONRPC:1.0", "HTTP+JSON:1.0", "JSONRPC:0.3", "HTTP+JSON:0.3"]
)
async def test_an_external_agent_gets_the_token_of_each_user(
    short_tmp: Path, declared: str
) -> None:
    async with build_login_rig(
        short_tmp, credentials="user", opens_lists=True, agent=[declared]
    ) as rig:
        assert rig.agent is not None

        async def tell(user: str, text: str) -> dict[str, Any]:
            params = {"name": "helper.message", "arguments": {"message": text}}
            return dict((await rig.rpc(user, "tools/call", params))["result"])

        refused = await tell("anna", "echo nothing")
        assert refused["_meta"]["dragoman.hub/error"]["kind"] == "LoginRequired"
        assert rig.agent.calls == []
        await visit(refused["_meta"]["dragoman.hub/error"]["url"], "anna")
        await rig.log_in("bob", at=AGENT)
        said = [("anna", "echo a1"), ("bob", "echo b1"), ("anna", "echo a2"), ("bob", "echo b2")]
        results = await asyncio.gather(*(tell(user, text) for user, text in said))
        texts = [one["content"][0]["text"] for one in results]
        assert texts == ["echo: a1", "echo: b1", "echo: a2", "echo: b2"]
        assert sorted(rig.agent.calls) == sorted(said)
        # A conversation of one user is no other's.
        context = results[0]["_meta"]["dragoman.hub/context"]
        params = {"name": "helper.message", "arguments": {"message": "echo x", "context": context}}
        stolen = (await rig.rpc("bob", "tools/call", params))["result"]
        assert stolen["isError"] and "unknown conversation" in stolen["content"][0]["text"]


async def test_an_external_agent_with_a_shared_login(short_tmp: Path) -> None:
    async with build_login_rig(short_tmp, opens_lists=True, agent=["JSONRPC:1.0"]) as rig:
        assert rig.agent is not None
        found = (await rig.api("GET", "/api/a2a/agents/helper", "root")).json()
        assert "dragoman agents login helper" in found["reason"]
        await rig.log_in("root", at=AGENT)

        async def healthy() -> bool:
            state = (await rig.api("GET", "/api/a2a/agents/helper", "root")).json()
            return bool(state["health"] == "healthy")

        await rig.until(healthy)
        params = {"name": "helper.message", "arguments": {"message": "echo hi"}}
        result = (await rig.rpc("anna", "tools/call", params))["result"]
        assert result["content"][0]["text"] == "echo: hi"
        assert rig.agent.calls == [("root", "echo hi")]


async def test_an_agent_uses_the_login_of_the_user_it_serves(short_tmp: Path) -> None:
    folder = short_tmp / "agents" / "marker"
    folder.mkdir(parents=True)
    (folder / "agent.toml").write_text(SCRIPTED, encoding="utf-8")
    async with build_login_rig(short_tmp, credentials="user", opens_lists=True) as rig:
        assert rig.app is not None
        await rig.app.parts.manifests.follow()
        await rig.log_in("anna")
        await rig.log_in("bob")

        async def tell(user: str, text: str) -> dict[str, Any]:
            params = {"name": "marker.message", "arguments": {"message": text}}
            return dict((await rig.rpc(user, "tools/call", params))["result"])

        said = [("anna", "a1"), ("bob", "b1"), ("anna", "a2"), ("bob", "b2")]
        results = await asyncio.gather(*(tell(user, text) for user, text in said))
        assert [one["content"][0]["text"] for one in results] == ["a1", "b1", "a2", "b2"]
        assert sorted(rig.server.calls) == sorted(said)
        # A user without a login gets no other's, through an agent either.
        before = list(rig.server.calls)
        await tell("root", "r1")
        assert rig.server.calls == before
