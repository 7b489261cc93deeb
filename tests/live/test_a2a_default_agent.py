"""The default agent, of every kind, and the addresses on cards: which agent a message reaches."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.live.a2a_hub import (
    SEND,
    V10,
    Caller,
    a2a_config,
    agent_entry,
    agents_env,
    text_from_parts,
    with_key,
)
from tests.live.conftest import RunningHub
from tests.live.module_hub import until
from tests.peers import wire

CARD, OLD_CARD = "/.well-known/agent-card.json", "/.well-known/agent.json"
VERSION = {"A2A-Version": "1.0"}
StartHub = Callable[..., RunningHub]


def write_agent(hub: RunningHub, name: str) -> Path:
    """An agent with a manifest, which says its name."""
    folder = hub.home / "agents" / name
    folder.mkdir(parents=True)
    text = f'name = "{name}"\n[[script]]\nsay = "{name}: {{message}}"\n'
    (folder / "agent.toml").write_text(text, encoding="utf-8")
    until(lambda: hub.get(f"/a2a/{name}{CARD}").status == 200)
    return folder / "agent.toml"


def say(url: str, text: str) -> str:
    """What the agent at that address answers."""
    reply = wire.post(url, wire.request(1, "SendMessage", V10.params(text)), VERSION).json()
    return text_from_parts(reply["result"]["task"]["artifacts"][0])


def default_card(hub: RunningHub) -> Any:
    return hub.api(CARD)


@pytest.mark.promise("I2", "J2", "J4")
def test_agents_with_a_manifest_are_the_default_agent_by_name(hub: StartHub) -> None:
    running = hub(config=a2a_config(()))
    assert default_card(running)["name"] == "dragoman"
    write_agent(running, "reviewer")
    assert default_card(running)["name"] == running.api(OLD_CARD)["name"] == "reviewer"
    body = {"params": {"message": {"role": "user", "parts": [{"type": "text", "text": "hi"}]}}}
    task = wire.post(f"{running.url}/a2a/tasks/send", body).json()["id"]
    until(lambda: "reviewer: hi" in running.get(f"/a2a/tasks/{task}").body.decode())
    first = write_agent(running, "author")
    assert default_card(running)["name"] == "author"
    assert [one["name"] for one in running.api("/a2a/agents")["agents"]] == ["author", "reviewer"]
    first.unlink()
    until(lambda: default_card(running)["name"] == "reviewer")


@pytest.mark.promise("I2")
def test_agents_of_the_configuration_come_before_those_with_a_manifest(
    hub: StartHub, short_tmp: Path
) -> None:
    running = hub(config=a2a_config((agent_entry("zebra", "echo"),)), env=agents_env(short_tmp))
    write_agent(running, "author")
    assert default_card(running)["name"] == "zebra"
    assert [one["name"] for one in running.api("/a2a/agents")["agents"]] == ["zebra", "author"]


@pytest.mark.promise("I2", "J4")
def test_agent_with_a_manifest_is_the_default_agent_by_name_of_the_setting(
    hub: StartHub, short_tmp: Path
) -> None:
    """The name is resolved when it is asked for: the hub starts before the agent is there."""
    config = a2a_config((agent_entry("echo", "echo"),), a2a={"default_agent": "reviewer"})
    running = hub(config=config, env=agents_env(short_tmp))
    assert 'there is no agent "reviewer" yet' in running.log()
    assert Caller(running).ask(SEND, V10.params("x")).error["code"] == -32602
    write_agent(running, "author")
    write_agent(running, "reviewer")
    assert default_card(running)["name"] == "reviewer"
    assert say(f"{running.url}/a2a", "x") == "reviewer: x"


@pytest.mark.promise("I2", "I3")
def test_card_never_comes_to_mean_another_agent(hub: StartHub) -> None:
    running = hub(config=a2a_config(()))
    of_hub = default_card(running)
    write_agent(running, "reviewer")
    kept = default_card(running)
    own = running.api(f"/a2a/reviewer{CARD}")
    assert own == kept and own["url"] == f"{running.url}/a2a/reviewer"
    write_agent(running, "author")
    assert running.api(f"/a2a/reviewer{CARD}") == own
    assert default_card(running)["name"] == "author"
    for url in {kept["url"], *(one["url"] for one in kept["supportedInterfaces"])}:
        assert say(url, "x") == "reviewer: x"
    assert of_hub["url"] == f"{running.url}/a2a/dragoman"
    listed = running.api("/a2a/agents")["agents"]
    assert {one["name"]: one["url"] for one in listed} == {
        name: f"{running.url}/a2a/{name}" for name in ("author", "reviewer")
    }


@pytest.mark.promise("I2")
def test_no_address_answers_with_the_card_of_another_agent(hub: StartHub) -> None:
    """`@a2a-js/sdk` resolves the card relative to the URL that it was given."""
    running = hub(config=a2a_config(()))
    for _ in range(2):
        for path in (CARD, OLD_CARD):
            wrong = running.get(f"/a2a{path}")
            assert wrong.status == 404
            assert f"/a2a/{{agent}}{CARD}" in wrong.json()["error"]["message"]
        if not (running.home / "agents").exists():
            write_agent(running, "author")
    write_agent(running, "reviewer")
    assert running.api(f"/a2a/reviewer{CARD}")["name"] == "reviewer"
    assert say(f"{running.url}/a2a/reviewer", "x") == "reviewer: x"
    assert say(f"{running.url}/a2a/reviewer/", "x") == "reviewer: x"


@pytest.mark.promise("I2")
def test_default_agent_is_one_that_the_caller_may_discover(hub: StartHub) -> None:
    policies = (
        '@id("open") permit (principal, action in [Hub::Action::"any_call", Hub::Action::"list", '
        'Hub::Action::"a2a_discover"], resource);\n'
        '@id("hide") forbid (principal, action == Hub::Action::"a2a_discover", '
        'resource == Hub::Agent::"author");\n'
    )
    running = hub(config=a2a_config(()))
    write_agent(running, "author")
    write_agent(running, "reviewer")
    (running.home / "policies").mkdir(exist_ok=True)
    (running.home / "policies" / "hidden.cedar").write_text(policies, encoding="utf-8")
    until(lambda: default_card(running)["name"] == "reviewer")
    assert say(f"{running.url}/a2a", "x") == "reviewer: x"
    assert "author" not in running.get(CARD).body.decode()


@pytest.mark.promise("I2")
def test_missing_default_agent_is_not_named_to_clients_without_a_key(hub: StartHub) -> None:
    running = hub(config=a2a_config((), a2a={"default_agent": "reviewer"}))
    with_key(running, "guest")
    for path in (CARD, OLD_CARD):
        answer = wire.get(running.url + path)
        assert answer.status == 404 and b"reviewer" not in answer.body
