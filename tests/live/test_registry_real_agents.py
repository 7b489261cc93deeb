"""Agents as they are found in use, registered at a running hub: cards behind a query, cards that
name this machine otherwise, odd names and odd HTTP."""

from __future__ import annotations

import asyncio
import gzip
import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from tests.a2a.scripted_agent import (
    WELL_KNOWN,
    Request,
    ScriptedAgent,
    card_10,
    scripted_agent,
    task_10,
)
from tests.live.conftest import RunningHub
from tests.live.module_hub import run_module_hub, text_of
from tests.peers import wire

pytestmark = pytest.mark.promise("R10")

AGENTS = "/api/a2a/agents"
SECRET = "9f8e7d6c5b4a3210"


@pytest.fixture(scope="module")
def hub() -> Iterator[RunningHub]:
    with run_module_hub([], "[a2a]\nenabled = true\n") as running:
        yield running


@contextmanager
def agent(handle: Callable[[Request], Any]) -> Iterator[ScriptedAgent]:
    """An agent in a thread of its own, so that the test may wait for the hub."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    served = scripted_agent(handle)
    try:
        yield asyncio.run_coroutine_threadsafe(served.__aenter__(), loop).result(10)
        asyncio.run_coroutine_threadsafe(served.__aexit__(None, None, None), loop).result(10)
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join(60)
        loop.close()


def add(hub: RunningHub, url: str, **more: Any) -> Any:
    body = json.dumps({"url": url, **more}).encode()
    headers = {"Content-Type": "application/json", **hub.headers}
    return wire.http_request("POST", f"{hub.url}{AGENTS}", body, headers).json()


def echo(request: Request) -> None:
    """What an agent does that was asked something else than its card."""
    if request.rpc == "SendMessage":
        words = " ".join(part.get("text", "") for part in request.params["message"]["parts"])
        made = [{"artifactId": "a", "parts": [{"text": f"echo: {words}"}]}]
        request.result({"task": task_10(artifacts=made)})
    else:
        request.fail(-32001, "no such task")


def test_card_url_with_a_query_is_registered_without_revealing_it(
    hub: RunningHub,
) -> None:
    """As LangGraph documents it: …/agent-card.json?assistant_id=…"""

    def handle(request: Request) -> None:
        if request.path == f"{WELL_KNOWN}?assistant_id={SECRET}":
            request.reply(200, card_10(f"http://{request.headers['host']}/a2a/x", name="Graph"))
        elif request.method == "GET":
            request.reply(404, {})
        else:
            echo(request)

    with agent(handle) as served:
        added = hub.command("agents", "add", f"{served.url}{WELL_KNOWN}?assistant_id={SECRET}")
        assert "is registered: healthy, 0 tools" in added.stdout, added.stderr
        shown = [hub.command("agents", *words) for words in ((), ("show", "Graph"))]
        called = hub.call("dragoman_agent_Graph", {"message": "hi"}, era="legacy")
        assert text_of(called) == "echo: hi"
        hub.command("agents", "remove", "Graph")
        refused = add(hub, f"{served.url}/x?key={SECRET}")["error"]["message"]
    told = "".join(one.stdout + one.stderr for one in (added, *shown)) + hub.log() + refused
    assert "has a query" in refused and SECRET not in told


def test_localhost_names_are_equivalent_and_another_port_is_refused(
    hub: RunningHub,
) -> None:
    says = "127.0.0.1"

    def handle(request: Request) -> None:
        port = request.headers["host"].rpartition(":")[2]
        if request.path == WELL_KNOWN:
            at = f"http://{says}:{port}" if ":" not in says else f"http://{says}"
            request.reply(200, card_10(f"{at}/rpc", name="Local"))
        else:
            echo(request)

    with agent(handle) as served, agent(handle) as other:
        port = served.url.rpartition(":")[2]
        for written, named in (("localhost", "127.0.0.1"), ("127.0.0.1", "localhost")):
            says = named
            row = add(hub, f"http://{written}:{port}", name=f"by {named}".replace(".", "-"))
            assert row["health"] == "healthy", row
            tool = f"{row['name']}.message"
            assert text_of(hub.call(tool, {"message": "hi"}, era="legacy")) == "echo: hi"
            hub.command("agents", "remove", row["id"])
        says = other.url.removeprefix("http://")
        row = add(hub, served.url, name="Led Away")
        assert other.requests == [], "what listens there was never meant"
        assert any("allow_private" in finding for finding in row["findings"]), row["findings"]
        hub.command("agents", "remove", "Led Away")


def test_agents_need_readable_names(hub: RunningHub) -> None:
    card: dict[str, Any] = {}

    def handle(request: Request) -> None:
        if request.path == WELL_KNOWN:
            request.reply(200, card_10(f"http://{request.headers['host']}", **card))
        else:
            echo(request)

    with agent(handle) as served:
        port = served.url.rpartition(":")[2]
        for said, name, slug in (
            ("Überblick", "Uberblick", "uberblick"),
            ("Café Français", "Cafe Francais", "cafe_francais"),
            ("翻訳エージェント", f"agent {port}", f"agent_{port}"),
            ("Погода 24", f"agent {port}", f"agent_{port}"),
        ):
            card = {"name": said}
            row = add(hub, served.url)
            assert (row["name"], row["slug"]) == (name, slug), row
            hub.command("agents", "remove", slug)
        strange = {"protocolBinding": "JSONRPC", "protocolVersion": "2.0", "url": served.url}
        card = {"name": "Strange", "supportedInterfaces": [strange]}
        refused = add(hub, served.url)["error"]["message"]
        assert "offers A2A 2.0 over JSONRPC" in refused and "no agent was registered" in refused
        assert "Strange" not in hub.command("agents").stdout


def test_unusual_http_of_an_agent_is_parsed(hub: RunningHub) -> None:
    """A BOM before the card, unrequested gzip, a stream whose lines end in CR."""

    async def handle(request: Request) -> None:
        if request.path == WELL_KNOWN:
            streaming = {"capabilities": {"streaming": True}}
            said = card_10(f"http://{request.headers['host']}", name="Odd", **streaming)
            data = gzip.compress(b"\xef\xbb\xbf" + json.dumps(said).encode())
            request.reply(200, data, content_encoding="gzip")
        elif request.rpc == "SendStreamingMessage":
            made = [{"artifactId": "a", "parts": [{"text": "read"}]}]
            result = {"task": task_10(artifacts=made)}
            event = json.dumps({"jsonrpc": "2.0", "id": request.json["id"], "result": result})
            request.stream()
            request.writer.write(f"data: {event}\r\r".encode())
            await request.writer.drain()
        else:
            echo(request)

    with agent(handle) as served:
        row = add(hub, served.url)
        assert row["health"] == "healthy", row
        assert text_of(hub.call("dragoman_agent_Odd", {"message": "hi"}, era="legacy")) == "read"
        hub.command("agents", "remove", "Odd")


def test_rejected_credential_is_reported_as_such(hub: RunningHub) -> None:
    tokens = hub.home / "tokens"
    tokens.mkdir(exist_ok=True)
    (tokens / "shop").write_text("right", encoding="utf-8")
    (tokens / "shop").chmod(0o600)

    def handle(request: Request) -> None:
        if request.path == WELL_KNOWN:
            request.reply(200, card_10(f"http://{request.headers['host']}", name="Shop"))
        elif request.headers.get("authorization") != "Bearer right":
            request.reply(401, {"error": "unauthorized"})
        else:
            echo(request)

    with agent(handle) as served:
        assert add(hub, served.url, token="file:tokens/shop")["health"] == "healthy"
        (tokens / "shop").write_text("revoked", encoding="utf-8")
        answer = json.dumps(hub.call("dragoman_agent_Shop", {"message": "hi"}, era="legacy"))
        assert "the agent rejected the credentials (HTTP 401)" in answer
        assert "revoked" not in answer
        hub.command("agents", "remove", "Shop")
