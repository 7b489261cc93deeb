"""A question handle is bound to one principal, one call and a time, and valid once; any other use
is refused before the server sees it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from tests.live.matrix_client import ADA, Client, everything
from tests.live.matrix_fixture import UPSTREAMS, HubRig, run_matrix_hub
from tests.live.matrix_transports import OverHttp
from tests.live.module_hub import error_kind, error_text, text_of, until
from tests.peers.wire import MODERN

pytestmark = pytest.mark.promise("B12")

QUESTION_SECS = 2.0
CONFIG = f"""
api_key = "the-key-of-the-first-caller"

[limits]
question_secs = {QUESTION_SECS}
"""


@pytest.fixture(scope="module")
def rig() -> Iterator[HubRig]:
    with run_matrix_hub(config=CONFIG) as made:
        yield made


@pytest.fixture(scope="module")
def caller(rig: HubRig) -> Iterator[Client]:
    with OverHttp(rig.hub, MODERN, everything(MODERN)) as made:
        yield made


@pytest.fixture(scope="module")
def other(rig: HubRig) -> Iterator[Client]:
    """Another principal, with a key of its own."""
    made = rig.hub.command("keys", "create", "other")
    assert made.returncode == 0, made.stderr
    headers = {"Authorization": f"Bearer {made.stdout.split()[-1]}"}
    with OverHttp(rig.hub, MODERN, everything(MODERN), headers) as client:
        yield client


@pytest.fixture(params=UPSTREAMS)
def upstream(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def call(upstream: str, key: str, tool: str = "ask_form") -> dict[str, Any]:
    return {"name": f"mcp_{upstream}_{tool}", "arguments": {"key": key}}


def asked(client: Client, params: dict[str, Any]) -> dict[str, Any]:
    """What must come with the next request for it to be the answer to this one's question."""
    result = client.wait(client.begin("tools/call", params))["result"]
    assert result["resultType"] == "input_required", result
    (name,) = result["inputRequests"]
    return {"inputResponses": {name: ADA}, "requestState": result["requestState"]}


def received(rig: HubRig, upstream: str, key: str) -> int:
    """How many answers the server has got for this key, in whatever way."""
    count = 0
    for entry in rig.logs[upstream].entries():
        params = entry.get("params") or {}
        if entry["event"] == "message" and params.get("inputResponses"):
            count += (params.get("arguments") or {}).get("key") == key
        elif UPSTREAMS[upstream][0] == "legacy":
            count += entry["event"] == "answered" and entry["key"] == key
    return count


def refused(answer: Any) -> str:
    assert error_kind(answer) == "InvalidInput", answer
    return error_text(answer)


@pytest.fixture
def ask(rig: HubRig, upstream: str) -> Callable[..., Any]:
    def ask(client: Client, params: dict[str, Any], answer: dict[str, Any]) -> Any:
        return client.wait(client.begin("tools/call", {**params, **answer}))

    return ask


def test_only_the_asked_client_can_answer(
    rig: HubRig, caller: Client, other: Client, upstream: str, ask: Callable[..., Any]
) -> None:
    params = call(upstream, "stolen")
    answer = asked(caller, params)
    assert "start the call again" in refused(ask(other, params, answer))
    assert received(rig, upstream, "stolen") == 0
    assert (
        text_of(ask(caller, params, answer)) == '{"action": "accept", "content": {"name": "Ada"}}'
    )
    assert received(rig, upstream, "stolen") == 1


def test_answer_is_accepted_once(
    rig: HubRig, caller: Client, upstream: str, ask: Callable[..., Any]
) -> None:
    params = call(upstream, "twice")
    answer = asked(caller, params)
    text_of(ask(caller, params, answer))
    assert "already been answered" in refused(ask(caller, params, answer))
    assert received(rig, upstream, "twice") == 1


def test_handle_is_bound_to_its_call(
    rig: HubRig, caller: Client, upstream: str, ask: Callable[..., Any]
) -> None:
    answer = asked(caller, call(upstream, "this"))
    refused(ask(caller, call(upstream, "that"), answer))
    refused(ask(caller, call(upstream, "this", "ask_politely"), answer))
    elsewhere = next(name for name in UPSTREAMS if name != upstream)
    refused(ask(caller, call(elsewhere, "this"), answer))
    prompt = {"name": f"mcp_{upstream}_asks", "arguments": {"key": "this"}, **answer}
    assert "error" in caller.wait(caller.begin("prompts/get", prompt))
    for server in (upstream, elsewhere):
        assert received(rig, server, "this") == received(rig, server, "that") == 0


def test_modified_or_forged_handle_is_refused(
    rig: HubRig, caller: Client, upstream: str, ask: Callable[..., Any]
) -> None:
    params = call(upstream, "changed")
    answer = asked(caller, params)
    handle = answer["requestState"]
    for bad in (handle[:-8] + "AAAAAAAA", handle[4:], "", "made up", "é" * 20, "A" * 300_000):
        refused(ask(caller, params, {**answer, "requestState": bad}))
    assert received(rig, upstream, "changed") == 0


def test_late_answer_is_refused(rig: HubRig, caller: Client) -> None:
    answers = {upstream: asked(caller, call(upstream, "late")) for upstream in UPSTREAMS}
    end = time.monotonic() + QUESTION_SECS + 0.1
    until(lambda: time.monotonic() > end)
    for upstream, answer in answers.items():
        late = caller.wait(caller.begin("tools/call", {**call(upstream, "late"), **answer}))
        assert "start the call again" in refused(late)
        if UPSTREAMS[upstream][0] == "legacy":
            rig.wait(upstream, event="lost", key="late")  # the server waits no more either
        assert received(rig, upstream, "late") == 0
        assert asked(caller, call(upstream, "late")), "begun again, it asks again"


def test_answer_without_its_handle_is_refused(caller: Client, upstream: str) -> None:
    """These servers all give a state; it then belongs to the answer."""
    params = call(upstream, "bare")
    answer = asked(caller, params)
    bare = {**params, "inputResponses": answer["inputResponses"]}
    again = caller.wait(caller.begin("tools/call", bare))["result"]
    assert again["resultType"] == "input_required"
