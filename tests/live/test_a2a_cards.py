"""Served cards: paths, shapes, URLs, caching."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from a2a.client.card_resolver import parse_agent_card
from a2a.utils.signing import InvalidSignaturesError, create_signature_verifier
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec
from tests.live.a2a_hub import (
    AGENTS,
    V10,
    Caller,
    HubRig,
    a2a_config,
    agent_entry,
    agents_env,
    run_a2a_hub,
)
from tests.live.conftest import RunningHub
from tests.peers import wire

CARD, OLD_CARD = "/.well-known/agent-card.json", "/.well-known/agent.json"
OLDER = {"url", "preferredTransport", "additionalInterfaces", "protocolVersion"}


@pytest.fixture(scope="module")
def rig() -> Iterator[HubRig]:
    skilled = agent_entry(
        "skilled",
        "echo",
        description="Has skills",
        version="7.1",
        skills=[
            {"id": "say_it", "tags": ["a", "b"], "examples": ["say: hi"]},
            {"id": "x", "name": "The X", "description": "Does X."},
        ],
        extensions=[{"uri": "urn:example:one", "description": "One", "params": {"k": 1}}],
    )
    server = '\n[server]\nallowed_hosts = ["hub.example.com"]\n'
    agents = (*AGENTS, skilled, agent_entry("SDK 1-3", "echo"))
    with run_a2a_hub(agents, config=server, a2a={"grpc_port": 0}) as made:
        yield made


@pytest.fixture
def served(rig: HubRig) -> RunningHub:
    return rig.hub


def named(version: str) -> dict[str, str]:
    return {"A2A-Version": version}


@pytest.mark.promise("I2")
def test_card_shape_follows_the_requested_version(served: RunningHub) -> None:
    for path in (CARD, OLD_CARD, f"/a2a/skilled{CARD}", f"/a2a/skilled{OLD_CARD}"):
        pure = served.get(path, named("1.0")).json()
        assert not OLDER & set(pure) and "stateTransitionHistory" not in pure["capabilities"]
        assert {"supportedInterfaces", "capabilities", "skills"} <= set(pure)
        old = served.get(path, named("0.3")).json()
        assert set(old) >= OLDER and "supportedInterfaces" not in old
        assert old["protocolVersion"] == "0.3.0" and old["preferredTransport"] == "JSONRPC"
        oldest = served.get(path, named("0.1")).json()
        assert "protocolVersion" not in oldest and "url" in oldest
        merged = served.get(path).json()
        assert set(pure) | set(old) <= set(merged)
        assert merged["supportedInterfaces"] == pure["supportedInterfaces"]
        by_query = served.api(f"{path}?A2A-Version=0.3")
        assert by_query == old


@pytest.mark.promise("I1", "I3")
def test_card_describes_the_agent(served: RunningHub) -> None:
    card = served.get(f"/a2a/skilled{CARD}", named("1.0")).json()
    assert (card["name"], card["description"], card["version"]) == ("skilled", "Has skills", "7.1")
    first, second = card["skills"]
    assert (first["id"], first["name"], first["tags"]) == ("say_it", "say it", ["a", "b"])
    assert first["examples"] == ["say: hi"]
    assert (second["name"], second["description"]) == ("The X", "Does X.")
    assert card["capabilities"]["extensions"] == [
        {"uri": "urn:example:one", "description": "One", "params": {"k": 1}}
    ]
    bindings = [
        (one["protocolBinding"], one["protocolVersion"]) for one in card["supportedInterfaces"]
    ]
    assert bindings == [
        ("JSONRPC", "1.0"),
        ("HTTP+JSON", "1.0"),
        ("JSONRPC", "0.3"),
        ("HTTP+JSON", "0.3"),
    ]
    assert {one["url"] for one in card["supportedInterfaces"]} == {f"{served.url}/a2a/skilled"}
    assert "securitySchemes" not in card  # no key is needed here


@pytest.mark.promise("I3")
def test_every_address_on_every_card_is_served(served: RunningHub) -> None:
    for card in served.api("/a2a/agents")["agents"]:
        for one in card["supportedInterfaces"]:
            named_version = {"A2A-Version": one["protocolVersion"]}
            if one["protocolBinding"] == "JSONRPC":
                method = "GetTask" if one["protocolVersion"] == "1.0" else "tasks/get"
                message = wire.request(1, method, {"id": "none"})
                answer = wire.post(one["url"], message, named_version).json()
                assert answer["error"]["code"] == -32001, one
            else:
                prefix = "" if one["protocolVersion"] == "1.0" else "/v1"
                answer = wire.get(f"{one['url']}{prefix}/tasks/none", named_version)
                assert answer.status == 404 and "none" in json.dumps(answer.json()), one


@pytest.mark.promise("I3")
def test_card_urls_follow_the_requested_host(served: RunningHub) -> None:
    card = served.get(CARD, {"Host": "hub.example.com"}).json()
    assert card["url"] == "http://hub.example.com/a2a/echo"
    assert served.get(CARD, {"Host": "evil.example.com"}).status == 421
    assert served.api(CARD)["url"] == f"{served.url}/a2a/echo"


@pytest.mark.promise("I3")
def test_grpc_interface_is_on_cards_that_support_it(served: RunningHub) -> None:
    """Others have one origin alone, or google-adk would refuse them."""
    port = served.api("/api/status")["agents"]["grpc_port"]
    for host in (served.url.partition("//")[2], "hub.example.com", f"localhost:{port}"):
        name = host.partition(":")[0]
        plain = served.get(CARD, {"Host": host, **named("1.0")}).json()
        origins = {one["url"].partition("/a2a")[0] for one in plain["supportedInterfaces"]}
        assert origins == {f"http://{host}"}
        asked = served.get(f"{CARD}?binding=GRPC", {"Host": host, **named("1.0")}).json()
        added = asked["supportedInterfaces"][len(plain["supportedInterfaces"]) :]
        grpc = {"url": f"{name}:{port}", "protocolBinding": "GRPC"}
        assert added == [
            {**grpc, "protocolVersion": "1.0", "tenant": "echo"},
            {**grpc, "protocolVersion": "0.3"},  # which has no tenant: the default agent
        ]
    old = served.get(f"{CARD}?binding=GRPC", named("0.3")).json()
    assert old["preferredTransport"] == "JSONRPC"
    assert old["additionalInterfaces"][-1] == {"url": f"127.0.0.1:{port}", "transport": "GRPC"}
    for agent in ("skilled", "echo"):  # which cannot be named there
        other = served.get(f"/a2a/{agent}{CARD}?binding=GRPC", named("0.3")).json()
        assert "GRPC" not in json.dumps(other)


@pytest.mark.promise("I3")
def test_agent_is_reachable_by_its_slug(served: RunningHub) -> None:
    by_slug = served.get(f"/a2a/sdk_1_3{CARD}").json()
    assert by_slug == served.get(f"/a2a/SDK%201-3{CARD}").json()
    task = Caller(served, "sdk_1_3").send("hello")
    assert Caller(served, "SDK 1-3").get(task["id"]) == Caller(served, "sdk_1_3").get(task["id"])
    tenant = {**V10.params("hello"), "tenant": "sdk_1_3"}
    assert Caller(served).ask("send", tenant).error is None


@pytest.mark.promise("I3")
def test_declared_card_capabilities_work(served: RunningHub) -> None:
    card = served.api(f"/a2a/actor{CARD}")
    said = card["capabilities"]
    assert said["streaming"] and said["pushNotifications"] and said["stateTransitionHistory"]
    assert said["extendedAgentCard"] is False  # there is nothing more to say
    assert Caller(served, "actor").ask("card", {}).error["code"] == -32004
    assert served.get("/a2a/actor/extendedAgentCard", named("1.0")).status == 400


@pytest.mark.promise("I2")
def test_unchanged_card_is_answered_with_304(served: RunningHub) -> None:
    first = served.get(CARD)
    assert first.headers["content-type"] == "application/json"
    assert "max-age=" in first.headers["cache-control"]
    assert {"A2A-Version", "Authorization"} <= set(first.headers["vary"].split(", "))
    tag = first.headers["etag"]
    for asked in (tag, f"W/{tag}", f'"other", {tag}', "*"):
        again = served.get(CARD, {"If-None-Match": asked})
        assert (again.status, again.body) == (304, b"")
        assert again.headers["etag"] == tag
    assert served.get(CARD, {"If-None-Match": '"other"'}).status == 200
    older = served.get(CARD, {"If-None-Match": tag, **named("0.3")})
    assert older.status == 200 and older.headers["etag"] != tag
    head = wire.http_request("HEAD", served.url + CARD)
    assert (head.status, head.body, head.headers["etag"]) == (200, b"", tag)
    assert wire.post(served.url + CARD, {}).status == 405


@pytest.mark.promise("I2")
def test_unknown_card_is_404(served: RunningHub) -> None:
    for path in (f"/a2a/nobody{CARD}", f"/a2a/nobody{OLD_CARD}"):
        answer = served.get(path)
        assert answer.status == 404 and '"nobody"' in answer.json()["error"]["message"]
    assert served.get(f"/a2a/tasks{CARD}").status == 404
    assert served.get("/.well-known/other.json").status == 404


@pytest.mark.promise("I2")
def test_default_agent_and_card_shape_are_configurable(
    hub: Callable[..., RunningHub], short_tmp: Path
) -> None:
    settings = {"default_agent": "mirror", "card": "1.0"}
    server = '[server]\npublic_url = "https://hub.example.com/under/"\n'
    running = hub(config=a2a_config(config=server, a2a=settings), env=agents_env(short_tmp))
    card = running.api(OLD_CARD)
    assert card["name"] == "mirror" and not OLDER & set(card)
    urls = {one["url"] for one in card["supportedInterfaces"]}
    assert urls == {"https://hub.example.com/under/a2a/mirror"}
    other = running.api(f"/a2a/echo{CARD}")["supportedInterfaces"][0]["url"]
    assert other == "https://hub.example.com/under/a2a/echo"
    reply = Caller(running).ask("send", V10.params("x"))
    assert reply.value["task"]["artifacts"][0]["parts"][0]["data"]["text"] == "x"


@pytest.mark.promise("I2", "L1")
def test_own_client_accepts_the_cards(served: RunningHub) -> None:
    for url in (served.url, f"{served.url}/a2a/skilled", f"{served.url}/a2a/dragoman"):
        found = served.command("a2a", "discover", url, "--json")
        assert found.returncode == 0, found.stderr
    asked = served.command("a2a", "send", f"{served.url}/a2a/skilled", "hello there")
    assert asked.returncode == 0 and "hello there" in asked.stdout, asked.stderr


@pytest.mark.promise("I2")
def test_cards_are_signed_when_a_key_is_configured(
    hub: Callable[..., RunningHub], short_tmp: Path
) -> None:
    key = ec.generate_private_key(ec.SECP256R1())
    pem = key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    )
    (short_tmp / "card.pem").write_bytes(pem)
    (short_tmp / "card.pem").chmod(0o600)
    config = a2a_config(a2a={"signing_key": str(short_tmp / "card.pem")})
    running = hub(config=config, env=agents_env(short_tmp))
    public: Any = key.public_key()
    verify = create_signature_verifier(lambda kid, jku: public, ["ES256"])
    for path in (CARD, f"/a2a/mirror{CARD}"):
        for headers in ({}, named("1.0")):
            served_card = running.get(path, headers).json()
            verify(parse_agent_card(dict(served_card)))
            with pytest.raises(InvalidSignaturesError):
                verify(parse_agent_card({**served_card, "description": "Another"}))
    again = running.get(CARD, {"If-None-Match": running.get(CARD).headers["etag"]})
    assert again.status == 304  # a signature is made once, or its tag would say nothing
    for card in running.api("/a2a/agents")["agents"]:
        verify(parse_agent_card(card))
