"""A conversation with an agent continues at every hub of a cluster, and after its restart."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import pytest
from tests.live.bridge_fixture import external
from tests.live.cluster_rig import Cluster, run_cluster
from tests.live.conftest import RunningHub
from tests.live.module_hub import until
from tests.peers.process import HttpPeer
from tests.peers.scripted_model import ScriptedModel, running_model, say

pytestmark = pytest.mark.promise("T1")

CONTEXT = "dragoman.hub/context"
COUNT = """
import json, sys
message = json.loads(sys.stdin.readline())
turn = (message["state"] or 0) + 1
print(json.dumps({"type": "result", "content": f"turn {turn}", "state": turn}))
"""
OWN = """
[[agents]]
name = "own"
function = "tests.peers.agents_module:mirror"
"""


@pytest.fixture(scope="module")
def model() -> Iterator[ScriptedModel]:
    with running_model() as running:
        running.rules.append(("", say("ok")))
        yield running


@pytest.fixture(scope="module")
def cluster(model: ScriptedModel) -> Iterator[Cluster]:
    """Runs two hubs with the model agent `helper`, the program `count`, the function `own` and the
    external agent `both`, which counts the turns of a conversation."""
    with HttpPeer("a2a_sdk_agent", "--declare", "JSONRPC:1.0") as both:
        config = f"[a2a]\nenabled = true\n{OWN}{external('both', both.url)}"
        with run_cluster(2, config=config) as cluster:
            for hub in cluster.hubs:
                write_agents(hub, model)
            for hub in cluster.hubs:
                wait_for_agents(hub)
            yield cluster


def write_agents(hub: RunningHub, model: ScriptedModel) -> None:
    program = '[command]\nargv = ["python3", "count.py"]\nsandbox = "off"\n'
    for name, text in (
        ("helper", f'[model]\nmodel = "m"\nbase_url = "{model.url}"\n'),
        ("count", program),
    ):
        folder = hub.home / "agents" / name
        (folder / "workspace").mkdir(parents=True)
        (folder / "workspace" / "count.py").write_text(COUNT, encoding="utf-8")
        (folder / "agent.toml").write_text(text, encoding="utf-8")


def wait_for_agents(hub: RunningHub) -> None:
    wanted = {f"dragoman_agent_{name}" for name in ("both", "helper", "count", "own")}

    def is_complete() -> bool:
        return wanted <= {tool["name"] for tool in hub.rpc("tools/list")["result"]["tools"]}

    until(is_complete)


def call(hub: RunningHub, agent: str, text: str, context: str = "") -> tuple[str, str]:
    """Sends a message in a request of the modern revision; returns the answer and its context."""
    arguments = {"message": text, **({"context": context} if context else {})}
    params = {"name": f"{agent}.message", "arguments": arguments}
    result = hub.rpc("tools/call", params)["result"]
    assert not result.get("isError"), result
    return result["content"][0]["text"], result["_meta"][CONTEXT]


def send(hub: RunningHub, agent: str, text: str, context: str) -> str:
    """Sends an A2A message."""
    message = {"messageId": text, "role": "ROLE_USER", "contextId": context}
    body = {
        "jsonrpc": "2.0", "id": 1, "method": "SendMessage",
        "params": {"message": {**message, "parts": [{"text": text}]}},
    }  # fmt: skip
    headers = {**hub.headers, "A2A-Version": "1.0"}
    answer = httpx.post(f"{hub.url}/a2a/{agent}", json=body, headers=headers, timeout=60).json()
    task = answer["result"]["task"]
    assert task["status"]["state"] == "TASK_STATE_COMPLETED", answer
    return str(task["artifacts"][-1]["parts"][0]["text"])


def list_seen(model: ScriptedModel, last: str) -> list[Any]:
    """Lists the messages of the request that ends with a message."""
    (request,) = [one for one in model.requests if one["messages"][-1]["content"] == last]
    return [message["content"] for message in request["messages"]]


def test_every_hub_sees_all_turns_of_a_conversation(cluster: Cluster, model: ScriptedModel) -> None:
    a, b = cluster.hubs
    for number, hub in enumerate((a, b, a, b)):
        assert send(hub, "helper", f"turn {number}", "conv") == "ok"
        seen = list_seen(model, f"turn {number}")
        assert seen[::2] == [f"turn {earlier}" for earlier in range(number + 1)]
    with ThreadPoolExecutor(2) as threads:
        sent = [threads.submit(send, hub, "helper", f"now {hub.url}", "conv") for hub in (a, b)]
        assert [one.result() for one in sent] == ["ok", "ok"]
    for hub in (a, b):
        send(hub, "helper", f"after {hub.url}", "conv")
    asked = list_seen(model, f"after {b.url}")[::2]
    assert set(asked[4:6]) == {f"now {hub.url}" for hub in (a, b)}
    assert asked[6:] == [f"after {a.url}", f"after {b.url}"]


def test_every_hub_continues_a_conversation_after_a_restart_too(
    cluster: Cluster, model: ScriptedModel
) -> None:
    a, b = cluster.hubs
    contexts = {}
    for agent in ("both", "count", "own", "helper"):
        _, contexts[agent] = call(a, agent, "turn")
        _, again = call(b, agent, "turn", contexts[agent])
        assert again == contexts[agent]
    assert call(a, "both", "turn", contexts["both"])[0] == "echo: turn 3"
    assert call(a, "count", "turn", contexts["count"])[0] == "turn 3"
    assert send(a, "both", "turn", "named") == "echo: turn 1"
    assert send(b, "both", "turn", "named") == "echo: turn 2"
    assert not a.finish()
    a = cluster.replace(0)
    wait_for_agents(a)
    assert call(a, "both", "turn", contexts["both"])[0] == "echo: turn 4"
    assert call(a, "count", "turn", contexts["count"])[0] == "turn 4"
    assert send(a, "both", "turn", "named") == "echo: turn 3"
    assert call(a, "helper", "last", contexts["helper"]) == ("ok", contexts["helper"])
    assert list_seen(model, "last")[::2] == ["turn", "turn", "last"]
