"""The matrix server and client against one another and against the official SDK's client, without
the hub, so that failures in the matrix are the hub's.
"""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import mcp.types as t
import pytest
from mcp.client.sse import sse_client
from mcp.client.streamable_http import streamable_http_client
from tests.live.matrix_client import ADA, FOLDERS, PARIS, Client, everything
from tests.live.matrix_transports import OverHttp, OverSse
from tests.peers.process import HttpPeer, wait_for_log

from mcp import Client as SdkClient

ERAS = [("http", "legacy"), ("http", "modern"), ("sse", "legacy")]


def peer(transport: str, era: str, *args: object) -> HttpPeer:
    return HttpPeer("matrix_server", "--transport", transport, "--era", era, *args)


def client_of(server: HttpPeer, transport: str, era: str) -> Client:
    revision = "2026-07-28" if era == "modern" else "2025-11-25"
    where: Any = SimpleNamespace(
        url=server.url.removesuffix("/sse"), mcp_url=server.url, headers={}
    )
    made = OverHttp if transport == "http" else OverSse
    return made(where, revision, everything(revision))


@pytest.mark.parametrize(("transport", "era"), ERAS)
async def test_official_client_answers_and_reads_everything_of_the_matrix_server(
    transport: str, era: str
) -> None:
    asked: list[str] = []

    async def elicit(context: Any, params: Any) -> t.ElicitResult:
        asked.append(params.mode)
        content = ADA["content"] if params.mode == "form" else None
        return t.ElicitResult(action="accept", content=content)

    async def sample(context: Any, params: Any) -> t.CreateMessageResult:
        asked.append("sampling")
        return t.CreateMessageResult.model_validate(PARIS)

    async def folders(context: Any) -> t.ListRootsResult:
        asked.append("roots")
        return t.ListRootsResult.model_validate(FOLDERS)

    with peer(transport, era) as server:
        made = streamable_http_client if transport == "http" else sse_client
        async with SdkClient(
            made(server.url),
            mode="legacy" if era == "legacy" else "2026-07-28",
            elicitation_callback=elicit,
            sampling_callback=sample,
            list_roots_callback=folders,
        ) as client:
            for tool in ("form", "url", "sampling", "roots"):
                result = await client.call_tool(f"ask_{tool}", {"key": tool})
                assert not result.is_error, result
            assert asked == ["form", "url", "sampling", "roots"]
            both = await client.call_tool("ask_rounds", {"key": "r"})
            assert isinstance(both.content[0], t.TextContent)
            assert both.content[0].text == "Ada and Ada"
            read = await client.read_resource("matrix://text")
            assert isinstance(read.contents[0], t.TextResourceContents)
            assert read.contents[0].text == "the text of matrix"
            prompt = await client.get_prompt("travel", {"country": "fr", "city": "Pau"})
            assert isinstance(prompt.messages[0].content, t.TextContent)
            assert prompt.messages[0].content.text == "To Pau"
            assert len((await client.list_resource_templates()).resource_templates) == 1


@pytest.mark.parametrize(("transport", "era"), ERAS)
def test_matrix_client_receives_and_answers_by_era(
    transport: str, era: str, tmp_path: Path
) -> None:
    log = tmp_path / "log"
    with peer(transport, era, "--log", log) as server, client_of(server, transport, era) as client:

        def text(answer: Any) -> str:
            return str(answer["result"]["content"][0]["text"])

        assert json.loads(text(client.call("ask_form", {"key": "f"}))) == ADA
        assert json.loads(text(client.call("ask_sampling", {"key": "s"}))) == PARIS
        assert json.loads(text(client.call("ask_roots", {"key": "r"}))) == FOLDERS
        assert json.loads(text(client.call("ask_url", {"key": "u"}))) == {"action": "accept"}
        several = json.loads(text(client.call("ask_several", {"key": "x"})))
        assert several == {"folders": FOLDERS, "who": ADA}
        assert text(client.call("ask_rounds", {"key": "2"})) == "Ada and Ada"
        assert len(client.asked) == 8
        assert wait_for_log(log, event="answered", key="f")["answers"] == {"who": ADA}
        assert set(json.loads(text(client.call("declared")))) == {
            "elicitation",
            "roots",
            "sampling",
        }

        client.call("progress", {"steps": 2}, progressToken="p")
        assert [h.params["progress"] for h in client.said("notifications/progress")] == [1, 2]
        if era == "legacy":
            assert client.request("logging/setLevel", {"level": "warning"})["result"] == {}
        meta: dict[str, Any] = {"io.modelcontextprotocol/logLevel": "warning"}
        client.call("log", **meta)
        received = [h.params["level"] for h in client.said("notifications/message")]
        assert received == ["warning", "error"]

        slow = client.begin("tools/call", {"name": "slow", "arguments": {"seconds": 60}})
        wait_for_log(log, event="started", name="slow")
        client.cancel(slow)
        wait_for_log(log, event="cancelled", name="slow")

        watched = "matrix://watched"
        if era == "legacy":
            assert client.request("resources/subscribe", {"uri": watched})["result"] == {}
        else:
            wanted = {"resourceSubscriptions": [watched], "toolsListChanged": True}
            listen = client.begin("subscriptions/listen", {"notifications": wanted})
            client.wait_notification("notifications/subscriptions/acknowledged")
        for what in ("watched", "tools"):
            client.call("change", {"what": what})
        told = client.wait_notification("notifications/resources/updated", uri=watched)
        client.wait_notification("notifications/tools/list_changed")
        if era == "modern":
            assert told.stream == listen
            client.cancel(listen)


def test_matrix_client_reports_a_missing_response() -> None:
    with peer("http", "modern") as server, client_of(server, "http", "modern") as client:
        slow = client.begin("tools/call", {"name": "slow", "arguments": {"seconds": 60}})
        client.cancel(slow)
        with pytest.raises((OSError, EOFError)):
            client.wait(slow)
