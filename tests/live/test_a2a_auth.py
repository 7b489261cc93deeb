"""A2A access control: cards are public, everything else needs a key."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from urllib.parse import urlsplit

import pytest
from tests.live.a2a_hub import (
    AGENTS,
    BINDINGS,
    CARD,
    REST10,
    SEND,
    V03,
    V10,
    Caller,
    DialectBinding,
    HubRig,
    agent_entry,
    run_a2a_hub,
    with_key,
)
from tests.live.conftest import RunningHub
from tests.live.module_hub import until
from tests.peers import wire
from tests.peers.process import server_entry

API_KEY = "the key of the configuration"
WELL_KNOWN = "/.well-known/agent-card.json"
PUBLIC = tuple(
    f"{base}/.well-known/{name}.json"
    for base in ("", "/a2a/shy", "/a2a/echo", "/a2a/dragoman")
    for name in ("agent-card", "agent")
)
GUARDED = (
    ("POST", "/a2a"),
    ("POST", "/a2a/"),
    ("POST", "/a2a/shy"),
    ("GET", "/a2a/agents"),
    ("POST", "/a2a/tasks/send"),
    ("POST", "/a2a/tasks/sendSubscribe"),
    ("GET", "/a2a/tasks/x"),
    ("POST", "/a2a/tasks/x/cancel"),
    ("POST", "/a2a/message:send"),
    ("POST", "/a2a/shy/message:stream"),
    ("GET", "/a2a/tasks"),
    ("GET", "/a2a/tasks/x:subscribe"),
    ("GET", "/a2a/extendedAgentCard"),
    ("GET", "/a2a/v1/card"),
    ("POST", "/a2a/v1/message:send"),
    ("GET", "/a2a/nobody/at/all"),
    ("GET", "/a2a/tasks/.well-known/agent.json"),
)


@pytest.fixture(scope="module")
def rig() -> Iterator[HubRig]:
    shy = agent_entry(
        "shy",
        "mirror",
        extended_card=True,
        skills=[{"id": "open"}, {"id": "hidden", "public": False}],
    )
    servers = [server_entry("r", "faulty_server", "ok")]
    config = f'api_key = "{API_KEY}"'
    with run_a2a_hub((shy, *AGENTS), servers, config) as made:
        made.hub.wait_connected("r")
        yield made


@pytest.fixture
def served(rig: HubRig) -> RunningHub:
    return rig.hub


@pytest.mark.promise("O1", "I2")
def test_cards_are_public_and_other_routes_need_a_key(served: RunningHub) -> None:
    for path in PUBLIC:
        assert wire.get(served.url + path).status == 200, path
        wrong = {"Authorization": "Bearer wrong"}
        assert wire.get(served.url + path, wrong).status in (200, 401), path
    for method, path in GUARDED:
        for headers in ({}, {"Authorization": "Bearer wrong"}, {"A2A-Version": "1.0"}):
            body = b"{}" if method == "POST" else None
            answer = wire.http_request(method, served.url + path, body, headers)
            assert answer.status == 401, (method, path, answer.status)
            assert answer.headers["www-authenticate"].startswith("Bearer"), path


@pytest.mark.promise("O1")
@pytest.mark.parametrize("binding", BINDINGS, ids=str)
def test_every_dialect_is_served_with_a_key(served: RunningHub, binding: DialectBinding) -> None:
    task = binding.task(binding.ask(served, SEND, binding.params("x"), "echo").value)
    assert task["status"]["state"] == binding.state("completed")


@pytest.mark.promise("I3")
def test_card_declares_the_key_requirement(served: RunningHub) -> None:
    pure = wire.get(served.url + WELL_KNOWN, {"A2A-Version": "1.0"}).json()
    scheme = pure["securitySchemes"]["bearer"]["httpAuthSecurityScheme"]
    assert scheme["scheme"] == "Bearer"
    assert pure["securityRequirements"] == [{"schemes": {"bearer": {}}}]
    old = wire.get(served.url + WELL_KNOWN, {"A2A-Version": "0.3"}).json()
    assert old["securitySchemes"]["bearer"]["type"] == "http"
    assert old["security"] == [{"bearer": []}]
    oldest = wire.get(served.url + WELL_KNOWN, {"A2A-Version": "0.1"}).json()
    assert oldest["authentication"] == {"schemes": ["bearer"]}


@pytest.mark.promise("I2", "I3")
def test_extended_card_shows_more_to_authenticated_clients(served: RunningHub) -> None:
    def skills(card: dict[str, list[dict[str, str]]]) -> list[str]:
        return [skill["id"] for skill in card["skills"]]

    public = wire.get(f"{served.url}/a2a/shy{WELL_KNOWN}").json()
    assert skills(public) == ["open"] and public["capabilities"]["extendedAgentCard"] is True
    assert public["supportsAuthenticatedExtendedCard"] is True
    assert skills(served.api(f"/a2a/shy{WELL_KNOWN}")) == ["open"]  # the same for all
    whole = V10.ask(served, CARD, {}, "shy").value
    assert skills(whole) == ["open", "hidden"] and "protocolVersion" not in whole
    assert skills(V10.ask(served, CARD, {}).value) == ["open", "hidden"]  # it is the default
    assert skills(V10.ask(served, CARD, {"tenant": "shy"}).value) == ["open", "hidden"]
    old = V03.ask(served, CARD, {}, "shy").value
    assert skills(old) == ["open", "hidden"] and old["protocolVersion"] == "0.3.0"
    rest = served.get("/a2a/shy/extendedAgentCard", {"A2A-Version": "1.0"})
    assert rest.json() == whole
    assert served.get("/a2a/shy/v1/card").json() == old
    refused = V10.ask(served, CARD, {}, "echo")  # which declares none
    assert refused.error["code"] == -32004


@pytest.mark.promise("I2")
def test_hub_card_lists_tools_to_permitted_clients(rig: HubRig) -> None:
    hub, path = rig.hub, f"/a2a/dragoman{WELL_KNOWN}"
    stranger = wire.get(hub.url + path)
    assert b"r.echo" not in stranger.body and stranger.headers["cache-control"].startswith("public")
    known = hub.get(path)
    assert "r.echo" in [skill["id"] for skill in known.json()["skills"]]
    assert known.headers["cache-control"].startswith("private")
    assert known.headers["etag"] != stranger.headers["etag"]
    extended = V10.ask(hub, CARD, {}, "dragoman").value
    assert "r.echo" in [skill["id"] for skill in extended["skills"]]
    again = hub.get(path, {"If-None-Match": stranger.headers["etag"]})
    assert again.status == 200


@pytest.mark.promise("O1")
def test_agent_receives_the_principal(rig: HubRig) -> None:
    caller = with_key(rig.hub, "ann", "shy")
    task = caller.send("x")
    saw = task["artifacts"][0]["parts"][0]["data"]["caller"]
    owner = Caller(rig.hub, "shy").send("x")["artifacts"][0]["parts"][0]["data"]["caller"]
    assert "ann" in saw and saw != owner


@pytest.mark.promise("O1")
def test_a2a_checks_host_and_origin(served: RunningHub) -> None:
    for method, path in (*GUARDED, *(("GET", path) for path in PUBLIC)):
        for name, value, status in (
            ("Host", "evil.example.com", 421),
            ("Origin", "https://evil.example.com", 403),
        ):
            headers = {**served.headers, "Content-Type": "application/json", name: value}
            body = b"{}" if method == "POST" else None
            answer = wire.http_request(method, served.url + path, body, headers)
            assert answer.status == status, (method, path, name)


@pytest.mark.promise("O1", "I2")
def test_first_key_closes_open_a2a_access() -> None:
    """The cards that were served before are not served from memory."""
    hidden = agent_entry("shy", "echo", skills=[{"id": "hidden", "public": False}])
    with run_a2a_hub((hidden,), [server_entry("r", "faulty_server", "ok")]) as rig:
        hub = rig.hub
        hub.wait_connected("r")
        own, shy = f"/a2a/dragoman{WELL_KNOWN}", f"/a2a/shy{WELL_KNOWN}"
        assert b"r.echo" in hub.get(own).body and b"hidden" in hub.get(shy).body
        with_key(hub, "first")
        until(lambda: wire.get(f"{hub.url}/a2a/agents").status == 401)
        for path in (own, shy):
            closed = wire.get(hub.url + path)
            assert closed.status == 200 and "securitySchemes" in closed.json()
            assert b"r.echo" not in closed.body and b"hidden" not in closed.body


def test_security_relevant_headers_cannot_repeat(served: RunningHub) -> None:
    for name in ("A2A-Version", "Idempotency-Key", "Last-Event-ID"):
        answer = _twice(served, name)
        assert answer.startswith(b"HTTP/1.1 400"), (name, answer[:200])


def _twice(served: RunningHub, name: str) -> bytes:
    with socket.create_connection(("127.0.0.1", urlsplit(served.url).port or 0), 5) as line:
        line.sendall(
            f"GET /a2a/tasks HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n"
            f"Authorization: Bearer {API_KEY}\r\n{name}: 1.0\r\n{name}: 0.3\r\n\r\n".encode()
        )
        return line.recv(4096)


def test_rest_call_without_a_key_has_no_effect(rig: HubRig) -> None:
    before = Caller(rig.hub).ask("list", {}).value["totalSize"]
    for binding in (V10, REST10):
        method, path, body, headers = binding.request(SEND, binding.params("x"))
        answer = wire.post(rig.hub.url + path, body, headers)
        assert (method, answer.status) == ("POST", 401)
    assert Caller(rig.hub).ask("list", {}).value["totalSize"] == before
