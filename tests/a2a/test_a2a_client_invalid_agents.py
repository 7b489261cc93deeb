"""Agents that contradict their cards, mix dialects, or do not respond."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from tests.a2a.scripted_agent import (
    OLD_PLACE,
    WELL_KNOWN,
    Request,
    ScriptedAgent,
    build_text_message,
    card_10,
    scripted_agent,
    task_10,
)

from dragoman.a2a.client.client import A2aClient
from dragoman.a2a.client.endpoint import AgentHttpStatus
from dragoman.a2a.protocol.errors import METHOD_NOT_FOUND, A2aError
from dragoman.core.errors import BadReply, TargetFailed, Unreachable
from dragoman.net.client import OutboundHttp

UNKNOWN = -32601
SAID = {"message": build_text_message("hello")}
OLD_CARD = {"name": "Odd", "version": "1", "capabilities": {}, "skills": []}


def client_for(agent: ScriptedAgent, **more: Any) -> A2aClient:
    return A2aClient(OutboundHttp().open_configured(agent.url, allow_private=True), **more)


def serving(
    card: Callable[[str], dict[str, Any]], rest: Callable[[Request], Any], place: str = WELL_KNOWN
) -> Callable[[Request], Any]:
    """A server of a card, and of whatever else."""

    def handle(request: Request) -> Any:
        if request.method == "GET" and "/.well-known/" in request.path:
            url = f"http://{request.headers['host']}"
            return request.reply(200, card(url)) if request.path == place else request.reply(404)
        return rest(request)

    return handle


@pytest.mark.promise("L1")
async def test_card_0_3_with_a_0_1_path_api_is_detected() -> None:
    """As python-a2a has it: what it does not understand is an error of its framework."""

    def rest(request: Request) -> None:
        if request.path == "/tasks/get":
            request.fail(-32000, "Task not found: x", status=404)
        elif request.path == "/tasks/send":
            task = {"id": request.params["id"], "sessionId": request.params.get("sessionId")}
            task["status"] = {"state": "completed", "timestamp": "2026-01-01T00:00:00.123456"}
            task["artifacts"] = [{"parts": [{"type": "text", "text": "legacy"}]}]
            request.result(task)
        else:
            request.reply(500, {"parts": [{"type": "data", "data": {"error": "what?"}}]})

    card = {**OLD_CARD, "protocolVersion": "0.3.0", "preferredTransport": "JSONRPC"}
    async with scripted_agent(serving(lambda url: {**card, "url": url}, rest)) as agent:
        client = client_for(agent)
        named = {"message": build_text_message("hello", context="s1")}
        task = (await client.send_message(agent.url, named))["task"]
        again = (await client.send_message(agent.url, {"message": build_text_message("hello")}))[
            "task"
        ]
        findings = [
            each for each in (await client.find_agent(agent.url)).findings if "speaks" in each
        ]
    assert task["contextId"] == "s1" and again["id"] != task["id"]
    assert task["artifacts"][0]["parts"] == [{"text": "legacy"}]
    assert task["status"]["timestamp"].endswith("Z")
    assert len(findings) == 1 and "its card says A2A 0.3 over JSONRPC" in findings[0]
    assert "it speaks A2A 0.1" in findings[0] and "HTTP 500" in findings[0]
    sends = [request for request in agent.requests if b"hello" in request.body]
    assert [request.path for request in sends] == ["/tasks/send", "/tasks/send"]
    probes = [request for request in agent.requests if request.path == "/tasks/get"]
    assert len(probes) == 1, "what was found out is remembered"


@pytest.mark.promise("L1")
async def test_card_1_0_with_a_0_3_endpoint_is_detected() -> None:
    def rest(request: Request) -> None:
        if request.rpc == "message/send":
            request.result({"kind": "task", "id": "t", "contextId": "c",
                            "status": {"state": "completed"}})  # fmt: skip
        elif request.rpc in ("tasks/get", "tasks/pushNotificationConfig/get"):
            request.fail(-32001, "Task not found")
        else:
            request.fail(UNKNOWN, "Method not found")

    async with scripted_agent(serving(card_10, rest)) as agent:
        client = client_for(agent)
        answer = await client.send_message(agent.url, SAID)
        peer = await client.find_probed(agent.url)
    assert answer["task"]["status"]["state"] == "TASK_STATE_COMPLETED"
    assert peer.endpoint is not None and peer.endpoint.version == "0.3"
    assert len(peer.findings) == 1 and "Method not found" in peer.findings[0]
    assert "a2a-version" not in agent.requests[0].headers
    assert agent.sent("GetTask")[0].headers["a2a-version"] == "1.0"


@pytest.mark.promise("L1")
@pytest.mark.parametrize("knows", ["0.1", "0.2"])
async def test_card_without_a_version_is_0_1_or_0_2(knows: str) -> None:
    """Both ask for a task in the same words."""

    def rest(request: Request) -> None:
        if request.rpc == "tasks/get":
            request.fail(-32001)
        elif request.rpc == "tasks/pushNotificationConfig/get" and knows == "0.2":
            request.fail(-32003)
        elif request.rpc == ("tasks/send" if knows == "0.1" else "message/send"):
            request.result({"id": "t", "status": {"state": "completed"}})
        else:
            request.fail(UNKNOWN)

    card = {**OLD_CARD, "url": ""}
    handle = serving(lambda url: {**card, "url": f"{url}/rpc"}, rest, OLD_PLACE)
    async with scripted_agent(handle) as agent:
        client = client_for(agent)
        assert (await client.send_message(agent.url, SAID))["task"]["id"] == "t"
        peer = await client.find_probed(agent.url)
    assert (
        peer.endpoint is not None and peer.endpoint.version == {"0.1": "0.1", "0.2": "0.3"}[knows]
    )
    unwanted = "message/send" if knows == "0.1" else "tasks/send"
    assert not agent.sent(unwanted)


@pytest.mark.promise("L1")
async def test_legacy_hubs_are_called_by_their_routes() -> None:
    """A legacy hub: JSON-RPC into POST /a2a/tasks/send, a bare task out; REST for the rest."""
    bare = {
        "id": "t",
        "sessionId": "s",
        "status": "completed",
        "messages": [
            {"role": "user", "parts": [{"type": "text", "text": "hello"}]},
            {"role": "agent", "parts": [{"type": "text", "text": "hi"}]},
        ],
        "artifacts": [],
    }

    def rest(request: Request) -> None:
        asked = f"{request.method} {request.path}"
        if asked in ("POST /a2a/tasks/send", "GET /a2a/tasks/t"):
            request.reply(200, bare)
        elif asked == "POST /a2a/tasks/t/cancel":
            request.reply(200, {**bare, "status": "cancelled"})
        elif request.method == "GET" and request.path.startswith("/a2a/tasks/"):
            request.reply(404, {"error": "Task 'x' not found"})
        else:
            request.reply(405, {})

    handle = serving(lambda url: {**OLD_CARD, "url": f"{url}/a2a"}, rest, OLD_PLACE)
    async with scripted_agent(handle) as agent:
        client = client_for(agent)
        task = (await client.send_message(agent.url, {"message": build_text_message("hello")}))[
            "task"
        ]
        assert task["artifacts"][0]["parts"] == [{"text": "hi"}]
        assert (await client.get_task(agent.url, "t"))["id"] == "t"
        assert (await client.cancel_task(agent.url, "t"))["status"][
            "state"
        ] == "TASK_STATE_CANCELED"


async def test_mixed_dialects_are_parsed() -> None:
    """As fasta2a answers: 0.3's method, 1.0's wrapper, states in lower case, naive times."""

    def rest(request: Request) -> None:
        if request.rpc == "message/send":
            status = {"state": "working", "timestamp": "2026-01-01T10:00:00.5"}
            request.result({"task": {"id": "t", "context_id": "c", "status": status}})
        elif request.rpc.startswith("tasks/"):
            request.fail(-32001)
        else:
            request.fail(UNKNOWN)

    async with scripted_agent(serving(lambda url: card_10(url, "JSONRPC:0.3"), rest)) as agent:
        answer = await client_for(agent).send_message(agent.url, SAID)
    assert answer["task"]["contextId"] == "c"
    assert answer["task"]["status"] == {
        "state": "TASK_STATE_WORKING",
        "timestamp": "2026-01-01T10:00:00.5Z",
    }


@pytest.mark.promise("L1")
async def test_possibly_executed_request_is_not_repeated_in_another_dialect() -> None:
    def rest(request: Request) -> None:
        if request.rpc == "GetTask":
            request.fail(-32001)
        else:
            request.reply(500, b"oops")

    async with scripted_agent(serving(card_10, rest)) as agent:
        with pytest.raises(AgentHttpStatus, match="HTTP 500: oops"):
            await client_for(agent).send_message(agent.url, SAID)
    assert [request.rpc for request in agent.requests if b"hello" in request.body] == [
        "SendMessage"
    ]


@pytest.mark.promise("L1")
@pytest.mark.parametrize("refusal", [UNKNOWN, -32009])
async def test_rejected_request_is_repeated_in_another_dialect(refusal: int) -> None:
    def rest(request: Request) -> None:
        if request.rpc == "GetTask":
            request.fail(-32001)
        elif request.rpc == "message/send":
            request.result({"kind": "message", "messageId": "m", "role": "agent",
                            "parts": [{"kind": "text", "text": "hi"}]})  # fmt: skip
        else:
            request.fail(refusal)

    async with scripted_agent(serving(card_10, rest)) as agent:
        client = client_for(agent)
        answer = await client.send_message(agent.url, SAID)
        assert len((await client.find_agent(agent.url)).findings) == 1
        await client.send_message(agent.url, SAID)
    assert answer["message"]["parts"] == [{"text": "hi"}]
    sends = [request.rpc for request in agent.requests if b"hello" in request.body]
    assert sends == ["SendMessage", "message/send", "message/send"]


async def test_agent_rejecting_every_dialect_is_reported_clearly() -> None:
    def rest(request: Request) -> None:
        request.reply(404, {"detail": "Not Found"})

    async with scripted_agent(serving(card_10, rest)) as agent:
        with pytest.raises(
            Unreachable, match='agent "Odd" understands no dialect of A2A'
        ) as failed:
            await client_for(agent).send_message(agent.url, SAID)
    assert failed.value.sent is False
    assert len(agent.requests) < 30


async def test_agent_without_a_known_protocol_is_reported_clearly() -> None:
    async with scripted_agent(
        serving(lambda url: card_10("a:1", "MQTT:1.0"), lambda _: None)
    ) as agent:
        with pytest.raises(BadReply, match=r"the hub supports A2A 0\.1 to 1"):
            await client_for(agent).send_message(agent.url, SAID)


async def test_unknown_operation_does_not_indicate_another_dialect() -> None:
    def rest(request: Request) -> None:
        request.fail(-32001 if request.rpc == "GetTask" else UNKNOWN)

    async with scripted_agent(serving(card_10, rest)) as agent:
        client = client_for(agent)
        with pytest.raises(A2aError) as refused:
            await client.list_tasks(agent.url, {})
        peer = await client.find_probed(agent.url)
    assert refused.value.reason == METHOD_NOT_FOUND
    assert peer.endpoint is not None and peer.endpoint.version == "1.0"


@pytest.mark.parametrize("said", ["localhost", "127.0.0.1"])
async def test_card_may_name_localhost_but_not_another_port(said: str) -> None:
    here = {"localhost": "127.0.0.1", "127.0.0.1": "localhost"}[said]

    def rest(request: Request) -> None:
        if request.rpc == "GetTask":
            request.fail(-32001)
        else:
            request.result({"task": task_10()})

    async with scripted_agent(
        serving(lambda _: card_10(f"http://127.0.0.1:{inside}"), rest)
    ) as agent:
        port = agent.url.rpartition(":")[2]
        registered = f"http://{here}:{port}"
        inside = port
        outlet = OutboundHttp().open_configured(registered, allow_private=False)
        headers = {"x-key": "k"}
        client = A2aClient(outlet, headers, registered=registered)
        assert (await client.send_message(registered, SAID))["task"]["id"] == "t1"
        assert agent.requests[-1].headers["x-key"] == "k"
        assert not (await client.find_agent(registered)).findings
        async with scripted_agent(rest) as other:
            inside = other.url.rpartition(":")[2]
            strange = A2aClient(OutboundHttp().open_configured(registered, allow_private=False))
            assert (await strange.send_message(registered, SAID))["task"]["id"] == "t1"
            (finding,) = (await strange.find_agent(registered)).findings
            assert "other ports of a private host" in finding and "allow_private" in finding
            assert not other.requests


async def test_unreachable_card_url_falls_back_to_the_card_origin() -> None:
    """Cards say `localhost` behind proxies, and what not."""

    def rest(request: Request) -> None:
        if request.rpc == "GetTask":
            request.fail(-32001)
        else:
            request.result({"task": task_10()})

    async with scripted_agent(serving(lambda _: card_10("http://127.0.0.1:1/rpc"), rest)) as agent:
        client = client_for(agent)
        assert (await client.send_message(agent.url, SAID))["task"]["id"] == "t1"
        (finding,) = (await client.find_agent(agent.url)).findings
    assert "127.0.0.1:1/…" in finding and "nothing listens there" in finding


async def test_unresponsive_address_is_tried_once() -> None:
    def silent(request: Request) -> None:
        request.writer.transport.abort()

    def rest(request: Request) -> None:
        request.fail(-32001)

    async with scripted_agent(silent) as dead:
        declared = ("JSONRPC:1.0", "HTTP+JSON:1.0", "JSONRPC:0.3")
        handle = serving(lambda _: card_10(dead.url, *declared), rest)
        async with scripted_agent(handle) as agent:
            peer = await client_for(agent).find_probed(agent.url)
    assert peer.endpoint is not None and peer.endpoint.url == agent.url
    assert len(dead.requests) == 1


async def test_restarting_agent_is_rediscovered() -> None:
    away = False

    def rest(request: Request) -> None:
        if away:
            request.reply(404, {"detail": "Not Found"})
        elif request.rpc == "GetTask":
            request.fail(-32001)
        else:
            request.result({"task": task_10()})

    async with scripted_agent(serving(card_10, rest)) as agent:
        client = client_for(agent)
        await client.send_message(agent.url, SAID)
        away = True
        for _ in range(2):
            with pytest.raises((A2aError, Unreachable)):
                await client.send_message(agent.url, SAID)
        away = False
        assert (await client.send_message(agent.url, SAID))["task"]["id"] == "t1"


@pytest.mark.promise("L1")
async def test_tenant_is_sent_exactly_as_on_the_card() -> None:
    def rest(request: Request) -> None:
        if request.rpc == "GetTask":
            request.fail(-32001)
        else:
            request.result({"task": task_10()})

    def card(url: str) -> dict[str, Any]:
        made = card_10(url)
        made["supportedInterfaces"][0]["tenant"] = "acme/1"
        return made

    async with (
        scripted_agent(serving(card, rest)) as agent,
        scripted_agent(serving(card_10, rest)) as other,
    ):
        extensions = ["urn:a", "urn:b"]
        for each in (agent, other):
            await client_for(each, extensions=extensions).send_message(
                each.url, {**SAID, "tenant": "mine"}
            )
    asked = agent.sent("SendMessage")[0]
    assert asked.params["tenant"] == "acme/1"
    assert agent.sent("GetTask")[0].params["tenant"] == "acme/1"
    assert asked.headers["a2a-version"] == "1.0"
    assert asked.headers["a2a-extensions"] == "urn:a,urn:b"
    assert "tenant" not in other.sent("SendMessage")[0].params


async def test_http_json_puts_the_tenant_in_the_path_and_tries_older_media_types() -> None:
    def rest(request: Request) -> None:
        if request.method == "GET":
            request.reply(404, {"error": {"code": 404, "status": "NOT_FOUND", "message": "no",
                                          "details": [{"reason": "TASK_NOT_FOUND"}]}})  # fmt: skip
        elif request.headers["content-type"] == "application/json":
            request.reply(200, {"task": task_10()})
        else:
            request.reply(415, {})

    def card(url: str) -> dict[str, Any]:
        made = card_10(f"{url}/base/", "HTTP+JSON:1.0")
        made["supportedInterfaces"][0]["tenant"] = "a b"
        return made

    async with scripted_agent(serving(card, rest)) as agent:
        answer = await client_for(agent).send_message(agent.url, SAID)
    assert answer["task"]["id"] == "t1"
    sends = agent.at("/base/a%20b/message:send")
    types = [request.headers["content-type"] for request in sends]
    assert types == ["application/a2a+json", "application/json"]


# --- credentials ----------------------------------------------------------------------------------


@pytest.mark.promise("L1")
async def test_credentials_are_sent_only_to_the_registered_origin() -> None:
    def elsewhere(request: Request) -> None:
        request.reply(401, {"error": "unauthorized"})

    async with scripted_agent(elsewhere) as other:
        handle = serving(lambda _: card_10(f"{other.url}/rpc"), lambda request: request.reply(404))
        async with scripted_agent(handle) as agent:
            client = client_for(
                agent, headers={"Authorization": "Bearer secret"}, registered=agent.url
            )
            with pytest.raises(AgentHttpStatus) as refused:
                await client.send_message(agent.url, SAID)
            peer = await client.find_agent(agent.url)
    assert "not sent to another origin" in str(refused.value)
    assert any("of another origin" in finding for finding in peer.findings)
    assert other.requests and all("authorization" not in each.headers for each in other.requests)
    assert agent.requests[0].headers["authorization"] == "Bearer secret"


async def test_headers_without_an_origin_are_never_sent() -> None:
    def rest(request: Request) -> None:
        request.fail(-32001)

    async with scripted_agent(serving(card_10, rest)) as agent:
        await client_for(agent, headers={"authorization": "x"}).find_probed(agent.url)
    assert all("authorization" not in request.headers for request in agent.requests)


async def test_unauthorized_response_is_reported_without_a_retry() -> None:
    def rest(request: Request) -> None:
        request.reply(401, {})

    async with scripted_agent(serving(card_10, rest)) as agent:
        with pytest.raises(AgentHttpStatus, match="needs credentials"):
            await client_for(agent).send_message(agent.url, SAID)
    asked = [request.rpc for request in agent.requests if request.method == "POST"]
    assert asked == ["GetTask", "SendMessage"]


# --- bounds ---------------------------------------------------------------------------------------


async def test_response_size_is_limited_to_ten_megabytes() -> None:
    def rest(request: Request) -> None:
        if request.rpc == "GetTask":
            request.fail(-32001)
        else:
            request.reply(200, b'"' + b"x" * (10 * 1024 * 1024) + b'"')

    async with scripted_agent(serving(card_10, rest)) as agent:
        with pytest.raises(BadReply):
            await client_for(agent).send_message(agent.url, SAID)


@pytest.mark.parametrize("answer", [b"[]", b"null", b'{"jsonrpc":"2.0"}', b'"x"', b"{", b""])
async def test_non_response_is_a_bad_reply(answer: bytes) -> None:
    def rest(request: Request) -> None:
        if request.rpc == "GetTask":
            request.fail(-32001)
        else:
            request.reply(200, answer)

    async with scripted_agent(serving(card_10, rest)) as agent:
        with pytest.raises(TargetFailed):
            await client_for(agent).send_message(agent.url, SAID)
    assert len(agent.sent("SendMessage")) == 1
