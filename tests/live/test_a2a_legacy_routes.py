"""The legacy routes and bodies, request by request: paths, bodies, status codes."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.live.a2a_hub import (
    AGENTS,
    V10,
    Caller,
    HubRig,
    a2a_config,
    agent_entry,
    agents_env,
    run_a2a_hub,
    steps,
)
from tests.live.conftest import DRAGOMAN, RunningHub
from tests.live.module_hub import until
from tests.peers import wire

EXAMPLE_AGENTS = (
    agent_entry(
        "code-reviewer",
        "echo",
        description="Reviews code for bugs, security issues, and style",
        skills=[{"id": "file_read", "description": "Can use the file_read tool", "tags": ["tool"]}],
    ),
    *AGENTS,
)
TABLE = """[a2a]
enabled = true
listen_path = "/a2a"

[[a2a.external_agents]]
name = "research-agent"
url = "https://research.example.com"

[[a2a.external_agents]]
name = "data-analyst"
url = "https://data.example.com"
"""
UUID = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")
OFF = "A2A is not enabled here: set enabled = true under [a2a] in config.toml"
PATHS = (
    ("GET", "/.well-known/agent.json"),
    ("GET", "/.well-known/agent-card.json"),
    ("GET", "/a2a/agents"),
    ("POST", "/a2a/tasks/send"),
    ("GET", "/a2a/tasks/550e8400-e29b-41d4-a716-446655440000"),
    ("POST", "/a2a/tasks/550e8400-e29b-41d4-a716-446655440000/cancel"),
    ("POST", "/a2a"),
)


@pytest.fixture(scope="module")
def rig() -> Iterator[HubRig]:
    with run_a2a_hub(EXAMPLE_AGENTS, a2a={"listen_path": "/a2a"}) as made:
        yield made


@pytest.fixture
def served(rig: HubRig) -> RunningHub:
    return rig.hub


def bare_body(text: str = "Review this code for security issues") -> dict[str, Any]:
    """The body of `POST /a2a/tasks/send`."""
    return {
        "jsonrpc": "2.0",
        "id": 1,
        "method": "tasks/send",
        "params": {
            "message": {"role": "user", "parts": [{"type": "text", "text": text}]},
            "sessionId": "optional-session-id",
        },
    }


def data_body(*todo: Any) -> dict[str, Any]:
    part = {"type": "data", "mime_type": "application/json", "data": steps(*todo)}
    return {"params": {"message": {"role": "user", "parts": [part]}}}


# --- cards ----------------------------------------------------------------------------------------


@pytest.mark.promise("I1", "I2")
@pytest.mark.parametrize("path", ["/.well-known/agent.json", "/.well-known/agent-card.json"])
def test_first_agent_card_has_all_documented_members(served: RunningHub, path: str) -> None:
    card = served.api(path)
    assert card["name"] == "code-reviewer"
    assert card["description"] == "Reviews code for bugs, security issues, and style"
    assert card["url"] == f"{served.url}/a2a/code-reviewer"
    assert isinstance(card["version"], str) and card["version"]
    for name in ("streaming", "pushNotifications", "stateTransitionHistory"):
        assert card["capabilities"][name] is True, name
    (skill,) = card["skills"]
    shown = {
        "id": "file_read",
        "name": "file read",
        "description": "Can use the file_read tool",
        "tags": ["tool"],
        "examples": [],
    }
    assert {key: skill[key] for key in shown} == shown
    assert card["defaultInputModes"] and card["defaultOutputModes"]


@pytest.mark.promise("I2")
def test_client_0_1_gets_the_0_1_card(served: RunningHub) -> None:
    card = served.get("/.well-known/agent.json", {"A2A-Version": "0.1"}).json()
    assert list(card) == [
        "name",
        "description",
        "url",
        "version",
        "capabilities",
        "skills",
        "defaultInputModes",
        "defaultOutputModes",
    ]
    assert set(card["skills"][0]) == {"id", "name", "description", "tags", "examples"}
    assert card["defaultInputModes"][0] == "text" and card["defaultOutputModes"][0] == "text"


@pytest.mark.promise("J1")
def test_all_cards_are_listed_with_their_count(served: RunningHub) -> None:
    answer = served.get("/a2a/agents")
    assert answer.status == 200 and answer.headers["content-type"] == "application/json"
    listed = answer.json()
    assert set(listed) == {"agents", "total"}
    names = [card["name"] for card in listed["agents"]]
    assert names == ["code-reviewer", "echo", "actor", "mirror"]
    assert listed["total"] == len(names)
    assert listed["agents"][0]["url"] == f"{served.url}/a2a/code-reviewer"
    assert listed["agents"][1]["url"] == f"{served.url}/a2a/echo"
    for card in listed["agents"]:
        assert {"version", "capabilities", "skills", "defaultInputModes"} <= set(card)


@pytest.mark.promise("J1")
def test_refused_card_list_gives_the_reason(served: RunningHub) -> None:
    refused = served.get("/a2a/agents", {"A2A-Version": "9.9"})
    assert refused.status == 400 and '"9.9"' in refused.json()["error"]["message"]
    many = served.get("/a2a/agents?" + "&".join(f"a{n}=1" for n in range(40)))
    assert many.status == 400 and "more than 32" in many.json()["error"]["message"]
    assert wire.post(f"{served.url}/a2a/agents", {}).status == 405


# --- tasks ----------------------------------------------------------------------------------------


@pytest.mark.promise("J2")
def test_bare_task_is_as_documented(served: RunningHub) -> None:
    answer = wire.post(f"{served.url}/a2a/tasks/send", bare_body())
    assert answer.status == 200 and answer.headers["content-type"] == "application/json"
    task = answer.json()
    assert UUID.fullmatch(task["id"])
    said = [{"type": "text", "text": "Review this code for security issues"}]
    assert task == {
        "id": task["id"],
        "sessionId": "optional-session-id",
        "status": "completed",
        "messages": [{"role": "user", "parts": said}, {"role": "agent", "parts": said}],
        "artifacts": [],
    }
    assert list(task) == ["id", "sessionId", "status", "messages", "artifacts"]
    assert served.api(f"/a2a/tasks/{task['id']}") == task


@pytest.mark.promise("J2")
def test_documented_client_request_is_accepted(served: RunningHub) -> None:
    body = bare_body("Analyze this dataset...")
    body["params"]["sessionId"] = "session-123"
    task = served.post("/a2a/tasks/send", body)
    assert task["sessionId"] == "session-123" and task["status"] == "completed"
    del body["params"]["sessionId"]
    alone = served.post("/a2a/tasks/send", body["params"])  # without an envelope
    assert alone["status"] == "completed" and UUID.fullmatch(alone["sessionId"])


@pytest.mark.promise("J2")
def test_session_id_is_the_context_id_of_newer_dialects(served: RunningHub) -> None:
    first = served.post("/a2a/tasks/send", bare_body("one"))
    second = served.post("/a2a/tasks/send", bare_body("two"))
    assert first["id"] != second["id"]
    found = Caller(served).ask("list", {"contextId": "optional-session-id"}).value
    assert {first["id"], second["id"]} <= {task["id"] for task in found["tasks"]}
    assert {task["contextId"] for task in found["tasks"]} == {"optional-session-id"}


@pytest.mark.promise("J2", "K1")
def test_running_task_is_cancelled_by_path(rig: HubRig) -> None:
    hub = rig.hub
    body = data_body(["say", "begun"], ["wait", "never-s1"])
    params = {**body["params"], "id": "chosen-1"}
    with wire.stream("POST", f"{hub.url}/a2a/actor/tasks/sendSubscribe", params) as stream:
        stream.next()
        working = hub.api("/a2a/tasks/chosen-1")
        assert working["status"] == "working"
        answer = wire.post(f"{hub.url}/a2a/tasks/chosen-1/cancel", b"")
    assert answer.status == 200
    cancelled = answer.json()
    assert list(cancelled) == ["id", "sessionId", "status", "messages", "artifacts"]
    assert cancelled["status"] == "cancelled"
    assert hub.api("/a2a/tasks/chosen-1")["status"] == "cancelled"
    rig.seen("chosen-1.cancelled")
    again = wire.post(f"{hub.url}/a2a/tasks/chosen-1/cancel", {})
    assert again.status == 409 and "already" in again.json()["error"]


@pytest.mark.promise("J2")
def test_unknown_task_is_404_on_every_path(served: RunningHub) -> None:
    path = "/a2a/tasks/550e8400-e29b-41d4-a716-446655440000"
    for answer in (served.get(path), wire.post(f"{served.url}{path}/cancel", {})):
        assert answer.status == 404
        assert "550e8400" in answer.json()["error"]


@pytest.mark.promise("K1", "K4")
def test_every_state_and_part_has_its_bare_form(rig: HubRig) -> None:
    hub = rig.hub
    failed = hub.post("/a2a/actor/tasks/send", data_body(["fail", "no disk"]))
    assert failed["status"] == "failed"
    assert failed["messages"][-1] == {
        "role": "agent",
        "parts": [{"type": "text", "text": 'agent "actor" failed: no disk'}],
    }
    asked = hub.post("/a2a/actor/tasks/send", data_body(["ask", "Which one?"]))
    assert asked["status"] == "input-required"
    assert asked["messages"][-1]["parts"] == [{"type": "text", "text": "Which one?"}]
    image = {"type": "image", "data": "aGk=", "mimeType": "image/png"}
    table = {"type": "data", "data": {"rows": [1, 2]}}
    made = hub.post(
        "/a2a/actor/tasks/send",
        data_body(["artifact", [image, table], {"name": "report"}], ["reply", "made"]),
    )
    assert made["artifacts"] == [
        {
            "name": "report",
            "parts": [
                {"type": "file", "name": "", "mime_type": "image/png", "data": "aGk="},
                {"type": "data", "mime_type": "application/json", "data": {"rows": [1, 2]}},
            ],
        }
    ]
    assert made["messages"][-1]["parts"] == [{"type": "text", "text": "made"}]


@pytest.mark.promise("K4")
def test_bare_file_and_data_parts_reach_the_agent(served: RunningHub) -> None:
    parts = [
        {"type": "text", "text": "see"},
        {"type": "file", "name": "a.txt", "mime_type": "text/x-log", "data": "aGVsbG8="},
        {"type": "data", "mime_type": "application/json", "data": {"n": 1}},
    ]
    body = {"params": {"message": {"role": "user", "parts": parts}}}
    task = served.post("/a2a/mirror/tasks/send", body)
    assert task["messages"][0]["parts"] == parts
    (answer,) = task["messages"][-1]["parts"]
    saw = answer["data"]
    assert saw["text"] == "see" and saw["data"] == {"n": 1}
    assert [part["type"] for part in saw["parts"]] == ["text", "resource", "data"]
    assert "aGVsbG8=" in str(saw["parts"][1]) and "text/x-log" in str(saw["parts"][1])


@pytest.mark.promise("J3", "J4")
def test_task_is_bare_without_a_version_and_newer_with_one(
    served: RunningHub,
) -> None:
    task = Caller(served).send("hello")
    bare = served.api(f"/a2a/tasks/{task['id']}")
    assert bare["status"] == "completed" and bare["sessionId"] == task["contextId"]
    for how in ({"A2A-Version": "1.0"}, {"A2A-Version": "1.0.1"}):
        newer = served.get(f"/a2a/tasks/{task['id']}", how)
        assert newer.headers["content-type"] == "application/a2a+json"
        assert newer.json() == task
    assert served.api(f"/a2a/tasks/{task['id']}?A2A-Version=1.0") == task
    old = served.get(f"/a2a/tasks/{task['id']}", {"A2A-Version": "0.1"})
    assert old.status == 200 and old.json() == bare


@pytest.mark.promise("J3")
def test_invalid_body_is_refused_with_a_reason(served: RunningHub) -> None:
    url = f"{served.url}/a2a/tasks/send"
    for body, words in (
        (b"{", "JSON"),
        (b"[]", "message"),
        (b'{"params": {}}', '"message" is required'),
        (b'{"params": {"message": {"role": "user", "parts": []}}}', "at least one part"),
    ):
        answer = wire.post(url, body)
        assert answer.status == 400, (body, answer.body)
        assert words.lower() in answer.json()["error"].lower()
    plain = wire.http_request("POST", url, b"{}", {"Content-Type": "text/plain"})
    assert plain.status == 400 and "application/json" in plain.json()["error"]


# --- the setting ----------------------------------------------------------------------------------


@pytest.mark.promise("M1")
@pytest.mark.parametrize("config", ["", "[a2a]\nenabled = false\n"])
def test_disabled_legacy_routes_are_404_and_name_the_setting(
    hub: Callable[..., RunningHub], config: str
) -> None:
    off = hub(config=config)
    for method, path in PATHS:
        answer = wire.http_request(method, off.url + path, b"{}" if method == "POST" else None)
        assert (answer.status, answer.json()) == (404, {"error": {"message": OFF}}), path
    assert OFF.encode() not in wire.get(f"{off.url}/a2ab").body


@pytest.mark.promise("M1")
def test_documented_agent_table_loads_and_missing_agents_delay_nothing(
    hub: Callable[..., RunningHub], short_tmp: Path
) -> None:
    (short_tmp / "checked").mkdir()
    (short_tmp / "checked" / "config.toml").write_text(TABLE, encoding="utf-8")
    checked = subprocess.run(
        [*DRAGOMAN, "config", "check", "--home", str(short_tmp / "checked")],
        capture_output=True,
        check=False,
    )
    assert checked.returncode == 0, checked.stderr
    here = TABLE.replace("https://research.example.com", "http://127.0.0.1:9")
    running = hub(config=here.replace("https://data.example.com", "http://127.0.0.1:9/data"))
    state = running.api("/api/status")["agents"]
    assert [one["name"] for one in state["remote"]] == ["research-agent", "data-analyst"]
    card = running.api("/.well-known/agent.json")
    assert card["name"] == "dragoman" and card["url"] == f"{running.url}/a2a/dragoman"
    until(lambda: "research-agent" in running.log())


@pytest.mark.promise("M1", "I3")
def test_configured_listen_path_applies_to_routes_and_cards(
    hub: Callable[..., RunningHub], short_tmp: Path
) -> None:
    running = hub(config=a2a_config(a2a={"listen_path": "/agents/here"}), env=agents_env(short_tmp))
    assert running.api("/.well-known/agent.json")["url"] == f"{running.url}/agents/here/echo"
    cards = running.api("/agents/here/agents")["agents"]
    assert cards[1]["url"] == f"{running.url}/agents/here/actor"
    task = running.post("/agents/here/tasks/send", bare_body())
    assert task["status"] == "completed"
    message = wire.request(1, "SendMessage", V10.params("hi"))
    assert "result" in wire.post(f"{running.url}/agents/here/mirror", message).json()
    card = running.api("/agents/here/mirror/.well-known/agent-card.json")
    assert card["name"] == "mirror"
    for method, path in PATHS[2:]:
        answer = wire.http_request(method, running.url + path, b"{}" if method == "POST" else None)
        assert answer.status in (404, 405) and b"enabled" not in answer.body, path
