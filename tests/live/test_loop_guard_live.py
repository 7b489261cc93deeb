"""The loop guard of a running hub: every entry point renders its warning and its refusal, runs do
not affect each other, and a function agent that repeats a call is stopped.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any
from uuid import uuid4

import httpx2
import pytest
from mcp.client.sse import sse_client
from mcp.client.streamable_http import streamable_http_client
from tests.live.a2a_hub import BINDINGS, SEND, DialectBinding
from tests.live.configurable_servers import run_configurable_hub, tool
from tests.live.conftest import DRAGOMAN, RunningHub
from tests.live.module_hub import ERROR_KEY, error_kind, until
from tests.peers import wire

from dragoman.stores.keys import KeyStore
from mcp import Client, StdioServerParameters

pytestmark = pytest.mark.promise("P4")

AGENT = '''
import json, urllib.request

def repeat(message):
    """Calls a tool again and again, whatever it returns, as an agent without judgement."""
    url, key, tool, times = message.split()
    said = []
    for number in range(int(times)):
        body = json.dumps({"arguments": {}}).encode()
        headers = {"Authorization": f"Bearer {key}", "Content-Type": "application/json"}
        request = urllib.request.Request(f"{url}/api/tools/{tool}/call", body, headers)
        try:
            said.append(json.load(urllib.request.urlopen(request)))
        except urllib.error.HTTPError as error:
            said.append(json.load(error))
    return json.dumps(said)
'''
CONFIG = """
[mcp]
stdio_expose = ["*"]
[a2a]
enabled = true
[[agents]]
name = "looper"
function = "loop_agent:repeat"
"""
FAILURE = {"content": [{"type": "text", "text": "out of order"}], "isError": True}
OFFERS = {
    "tools": [tool("fail"), tool("fine")],
    "results": {"fail": FAILURE},
}


KEYS = ("ann", "bob", "looper")


class Rig:
    def __init__(self, hub: RunningHub, keys: dict[str, str]) -> None:
        self.hub = hub
        self.keys = keys

    def authorize(self, who: str = "ann") -> dict[str, str]:
        return {"Authorization": f"Bearer {self.keys[who]}"}


@pytest.fixture(scope="module")
def rig(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Rig]:
    place = tmp_path_factory.mktemp("loop")
    (place / "loop_agent.py").write_text(AGENT, encoding="utf-8")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", str(place))
        with run_configurable_hub(place, CONFIG, s={"offers": OFFERS}) as (hub, _):
            yield Rig(hub, create_keys(hub))


def create_keys(hub: RunningHub) -> dict[str, str]:
    """Keys of two users, and of the agent, so that its calls belong to the call it serves."""
    store, keys = KeyStore(hub.home), {}
    for name in KEYS:
        target = "looper" if name == "looper" else ""
        keys[name] = store.create(
            f"{name}-key", owner=name, expires_at=None, scopes=["call", "metrics"], target=target
        )
    store.close()
    hub.headers = {"Authorization": f"Bearer {keys['ann']}"}
    until(lambda: hub.get("/api/status").status == 200)
    return keys


def assert_stopped(said: list[str], kind: object) -> None:
    """Of five answers: two plain ones, two with a warning, and the refusal."""
    assert ["[loop guard: " in one for one in said] == [False, False, True, True, False]
    assert all("out of order" in one for one in said[:4]), said
    assert "was called 3 times in a row" in said[2]
    assert "was refused: it was called 4 times in a row" in said[4]
    assert "Change the arguments, use another tool, or report what prevents progress" in said[4]
    assert kind == "Repeating"


# --- MCP, with the official SDK -----------------------------------------------------------------


@asynccontextmanager
async def connect(rig: Rig, transport: str) -> AsyncIterator[Client]:
    headers = rig.authorize()
    if transport == "stdio":
        rest = [*DRAGOMAN[1:], "mcp", "--home", str(rig.hub.home)]
        relay = StdioServerParameters(command=DRAGOMAN[0], args=rest)
        async with Client(relay, mode="legacy") as made:
            yield made
    elif transport == "sse":
        target = sse_client(f"{rig.hub.url}/sse", headers=headers)
        async with Client(target, mode="legacy") as made:
            yield made
    else:
        async with httpx2.AsyncClient(headers=headers) as http:
            target = streamable_http_client(rig.hub.mcp_url, http_client=http)
            async with Client(target, mode="legacy") as made:
                yield made


@pytest.mark.parametrize("transport", ["http", "sse", "stdio"])
async def test_mcp_session_is_warned_and_refused(rig: Rig, transport: str) -> None:
    async with connect(rig, transport) as client:
        results = [await client.call_tool("s.fail", {"path": transport}) for _ in range(5)]
        assert all(one.is_error for one in results)
        said = [" ".join(block.text for block in one.content) for one in results]  # type: ignore[union-attr]
        assert_stopped(said, (results[4].meta or {})[ERROR_KEY]["kind"])
        other = await client.call_tool("s.fine", {})
        assert not other.is_error
        again = await client.call_tool("s.fail", {"path": transport})
        assert again.content[0].text == "out of order"  # type: ignore[union-attr]
    async with connect(rig, transport) as client:  # another session
        fresh = await client.call_tool("s.fail", {"path": transport})
        assert len(fresh.content) == 1


async def test_session_may_repeat_what_succeeds(rig: Rig) -> None:
    async with connect(rig, "http") as client:
        results = [await client.call_tool("s.fine", {}) for _ in range(50)]
    assert not any(one.is_error or len(one.content) > 1 for one in results)


def call_modern(rig: Rig, who: str, trace: str = "") -> dict[str, Any]:
    headers = rig.authorize(who)
    if trace:
        headers["traceparent"] = f"00-{trace}-{uuid4().hex[:16]}-01"
    params = {"name": "s.fail", "arguments": {}}
    sent = wire.modern_request(rig.hub.mcp_url, "tools/call", params, headers)
    return dict(sent.rpc()["result"])


def test_request_without_a_session_belongs_to_the_trace_that_it_sends(rig: Rig) -> None:
    trace = uuid4().hex
    for _ in range(4):  # the same trace of another principal is another run
        assert call_modern(rig, "bob", trace)["isError"]
    results = [call_modern(rig, "ann", trace) for _ in range(5)]
    said = [" ".join(block["text"] for block in one["content"]) for one in results]
    assert_stopped(said, results[4]["_meta"][ERROR_KEY]["kind"])
    for make in (lambda: "", lambda: uuid4().hex):
        plain = [call_modern(rig, "ann", make()) for _ in range(8)]
        assert all(one["content"] == FAILURE["content"] for one in plain)


# --- A2A, the API and the command line ----------------------------------------------------------


@pytest.mark.parametrize("binding", BINDINGS, ids=str)
def test_a2a_context_is_warned_and_refused(rig: Rig, binding: DialectBinding) -> None:
    context, replies = str(uuid4()), []
    for _ in range(5):
        params = binding.params("go")
        params["message"]["metadata"] = {"skillId": "s.fail"}
        if binding.version == "0.1":
            params["sessionId"] = context
        else:
            params["message"]["contextId"] = context
        replies.append(binding.ask(rig.hub, SEND, params))
    said = [json.dumps(reply.value or reply.error) for reply in replies]
    states = [binding.task(reply.value)["status"]["state"] for reply in replies[:4]]
    assert states == [binding.state("failed")] * 4
    assert replies[4].value is None
    assert_stopped(said, "Repeating" if '"Repeating"' in said[4] else said[4])
    if binding.rest:
        assert replies[4].answer.status == 403


def test_api_is_warned_and_refused_within_a_trace(rig: Rig) -> None:
    url, headers = f"{rig.hub.url}/api/tools/s.fail/call", rig.authorize()
    sent = headers | {"X-OpenStarry-Trace-ID": uuid4().hex}
    answers = [wire.post(url, {"arguments": {}}, sent) for _ in range(5)]
    assert [one.status for one in answers] == [200] * 4 + [403]
    said = [json.dumps(one.json()) for one in answers]
    assert_stopped(said, "Repeating" if '"Repeating"' in said[4] else said[4])
    plain = [wire.post(url, {"arguments": {}}, headers) for _ in range(8)]
    assert {one.status for one in plain} == {200} and "loop guard" not in str(plain)


def test_command_line_may_repeat_a_failing_call(rig: Rig) -> None:
    done = [rig.hub.command("call", "s.fail") for _ in range(5)]
    assert [(one.returncode, one.stderr) for one in done] == [(1, "out of order\n")] * 5


# --- an agent -----------------------------------------------------------------------------------


@pytest.mark.parametrize(("tool", "word"), [("s.fail", "out of order"), ("s.fine", "arrived")])
def test_function_agent_that_repeats_a_call_is_stopped(rig: Rig, tool: str, word: str) -> None:
    hub = rig.hub
    asked = f"{hub.url} {rig.keys['looper']} {tool} 8"
    for _ in range(2):  # each call of the agent is a run of its own
        answer = hub.call("looper.message", {"message": asked})["result"]
        said = json.loads(answer["content"][0]["text"])
        assert [word in str(one) for one in said] == [True] * 4 + [False] * 4
        assert ["[loop guard: " in str(one) for one in said[:4]] == [False, False, True, True]
        assert all(one["error"]["kind"] == "Repeating" for one in said[4:]), said[4:]
    rows = [one for one in hub.audit() if one.get("caller") == "key:looper-key"]
    mine = [one for one in rows if one["verb"] == tool]
    refused = [one for one in mine if one["outcome"] == "refused"]
    assert len(mine) == 16 and len(refused) == 8
    assert {one["error"] for one in refused} == {"Repeating"}
    assert {one.get("decision") for one in refused} == {None}, "it costs no decision"
    assert {one["repeats"] for one in refused} == {"identical calls: 4"}
    assert sum("repeats" in one for one in mine) == 12, "the warnings too"
    metrics = hub.get("/metrics").body.decode()
    assert 'dragoman_call_errors_total{kind="Repeating"}' in metrics


def test_settings_apply_to_a_running_hub(tmp_path: Path) -> None:
    with run_configurable_hub(tmp_path, s={"offers": OFFERS}) as (hub, _):
        for _ in range(4):
            hub.call("s.fail", era="legacy")
        assert error_kind(hub.call("s.fail", era="legacy")) == "Repeating"
        file = hub.home / "config.toml"
        text = file.read_text(encoding="utf-8")
        file.write_text('limits.loop.mode = "off"\n' + text, encoding="utf-8")
        until(lambda: hub.call("s.fail", era="legacy")["result"]["content"] == FAILURE["content"])
        answers = [hub.call("s.fail", era="legacy")["result"] for _ in range(8)]
        assert all(one["content"] == FAILURE["content"] for one in answers)
