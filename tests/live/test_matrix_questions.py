"""The matrix, part two: questions of servers of either era, answers of clients of each revision,
and errors for clients that cannot answer.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator
from typing import Any

import pytest
from tests.live.matrix_client import ADA, FOLDERS, PARIS, Client, everything, well
from tests.live.matrix_fixture import (
    CLIENTS,
    UPSTREAMS,
    WORDS,
    YES,
    HubRig,
    expected,
    run_matrix_hub,
    scheme,
)
from tests.live.module_hub import text_of, until

pytestmark = pytest.mark.promise("B12", "B13", "F7", "G2")

KEYS = itertools.count()
COMPLETED = "notifications/elicitation/complete"
QUESTIONS: dict[str, tuple[str, Any, str]] = {
    # kind: method, the answer that the server must get, what a refusal must say
    "form": ("elicitation/create", ADA, "What is your name?"),
    "url": ("elicitation/create", {"action": "accept"}, "https://example.com/sign-in?x=1"),
    "sampling": ("sampling/createMessage", PARIS, "an answer of your model"),
    "roots": ("roots/list", FOLDERS, "the folders that you work in"),
}
NEEDED = {
    "form": {"elicitation": {"form": {}}},
    "url": {"elicitation": {"url": {}}},
    "sampling": {"sampling": {}},
    "roots": {"roots": {}},
}
LEGACY = [name for name, (era, _) in UPSTREAMS.items() if era == "legacy"]


@pytest.fixture(scope="module")
def rig() -> Iterator[HubRig]:
    with run_matrix_hub() as made:
        yield made


@pytest.fixture(scope="module", params=CLIENTS, ids="-".join)
def able(request: pytest.FixtureRequest, rig: HubRig) -> Iterator[Client]:
    """Declares all that its revision has."""
    with rig.connect(request.param) as made:
        yield made


@pytest.fixture(scope="module", params=CLIENTS, ids="-".join)
def client(request: pytest.FixtureRequest, rig: HubRig) -> Iterator[Client]:
    """Declares nothing: it shares the hub's connections."""
    with rig.connect(request.param, {}) as made:
        yield made


@pytest.fixture(params=UPSTREAMS)
def upstream(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def readable(answer: Any, words: str) -> None:
    """A result that a model can read, with the question."""
    result = answer["result"]
    assert result["isError"] is True
    assert words in result["content"][0]["text"]


def answered(rig: HubRig, upstream: str, key: str) -> list[Any]:
    return rig.logs[upstream].entries(event="answered", key=key)


@pytest.mark.parametrize("kind", QUESTIONS)
def test_question_reaches_the_client_and_its_answer_the_server(
    rig: HubRig, able: Client, upstream: str, kind: str
) -> None:
    method, answer, words = QUESTIONS[kind]
    key = f"{kind} {next(KEYS)}"
    before = len(able.asked)
    params = {"name": f"mcp_{upstream}_ask_{kind}", "arguments": {"key": key}}
    number = able.begin("tools/call", params)
    got = able.answer_to(number, "tools/call", params)
    asked = able.asked[before:]
    if expected(kind, able.revision) == WORDS:
        readable(got, words)
        assert not asked and not answered(rig, upstream, key)
        return
    assert json.loads(text_of(got)) == answer
    (entry,) = answered(rig, upstream, key)
    assert list(entry["answers"].values()) == [answer]
    (question,) = asked
    assert question.method == method
    assert question.stream in (number, "session")
    check = {"form": a_form, "url": a_page, "sampling": a_prompt, "roots": nothing_more}[kind]
    check(able, dict(question.params))


def a_form(client: Client, params: dict[str, Any]) -> None:
    assert params["message"] == "What is your name?"
    schema = params["requestedSchema"]
    assert schema["properties"]["name"] == {"type": "string", "title": "Name"}
    assert schema["required"] == ["name"] and schema["type"] == "object"
    size = schema["properties"]["size"]
    if client.revision >= "2025-11-25":
        assert params.get("mode", "form") == "form"
        assert size == {"type": "string", "oneOf": [{"const": "s", "title": "S"}]}
    else:
        assert "mode" not in params
        assert size == {"type": "string", "enum": ["s"], "enumNames": ["S"]}


def a_page(client: Client, params: dict[str, Any]) -> None:
    assert params["mode"] == "url"
    assert params["message"] == "Please sign in."
    assert params["url"] == "https://example.com/sign-in?x=1"
    if client.modern:
        assert "elicitationId" not in params, "2026-07-28 has none"
    else:
        id = params["elicitationId"]
        client.wait_notification("notifications/elicitation/complete", elicitationId=id)


def a_prompt(client: Client, params: dict[str, Any]) -> None:
    content = {"type": "text", "text": "What is the capital of France?"}
    assert params["messages"] == [{"role": "user", "content": content}]
    assert params["maxTokens"] == 100 and params["systemPrompt"] == "Be brief."


def nothing_more(client: Client, params: dict[str, Any]) -> None:
    assert not set(params) - {"_meta"}


def test_declined_question_reaches_the_server_as_declined(able: Client, upstream: str) -> None:
    able.answering = lambda method, params: {"action": "decline"}
    try:
        got = able.call(f"mcp_{upstream}_ask_form", {"key": f"declined {next(KEYS)}"})
    finally:
        able.answering = well
    if expected("form", able.revision) == YES:
        assert json.loads(text_of(got)) == {"action": "decline"}
    else:
        readable(got, "What is your name?")


def test_concurrent_and_sequential_questions_are_answered(able: Client, upstream: str) -> None:
    key = f"several {next(KEYS)}"
    before = len(able.asked)
    several = able.call(f"mcp_{upstream}_ask_several", {"key": key})
    if expected("several", able.revision) == WORDS:
        assert several["result"]["isError"] is True
    else:
        assert json.loads(text_of(several)) == {"folders": FOLDERS, "who": ADA}
        methods = sorted(one.method for one in able.asked[before:])
        assert methods == ["elicitation/create", "roots/list"]

    before = len(able.asked)
    rounds = able.call(f"mcp_{upstream}_ask_rounds", {"key": key})
    if expected("rounds", able.revision) == WORDS:
        readable(rounds, "First?")
        assert len(able.asked) == before
    else:
        assert text_of(rounds) == "Ada and Ada"
        words = [one.params["message"] for one in able.asked[before:]]
        assert words == ["First?", "Second?"]


def test_prompts_and_resources_may_elicit(able: Client, upstream: str) -> None:
    prompt = able.request("prompts/get", {"name": f"mcp_{upstream}_asks", "arguments": {}})
    read = able.request("resources/read", {"uri": f"{scheme(upstream)}://asks"})
    if expected("form", able.revision) == YES:
        assert json.loads(prompt["result"]["messages"][0]["content"]["text"]) == ADA
        assert json.loads(read["result"]["contents"][0]["text"]) == ADA
    else:
        assert "Who?" in prompt["error"]["message"]
        assert "Who reads?" in read["error"]["message"]


def test_server_sees_only_capabilities_of_the_client(able: Client, upstream: str) -> None:
    declared = json.loads(text_of(able.call(f"mcp_{upstream}_declared")))
    assert set(declared) == set(everything(able.revision))
    if able.revision < "2025-11-25":
        assert "url" not in (declared.get("elicitation") or {})
    else:
        assert set(declared["elicitation"]) == {"form", "url"}


def test_server_checking_capabilities_asks_capable_clients(able: Client, upstream: str) -> None:
    got = able.call(f"mcp_{upstream}_ask_politely", {"key": f"polite {next(KEYS)}"})
    if expected("form", able.revision) == YES:
        assert json.loads(text_of(got)) == ADA
    else:
        readable(got, "form")


def test_server_not_asking_is_handled(client: Client, upstream: str) -> None:
    """2026-07-28 has an error for it (-32021), which says nothing to older clients."""
    got = client.call(f"mcp_{upstream}_ask_politely", {"key": f"polite {next(KEYS)}"})
    if client.modern and UPSTREAMS[upstream][0] == "modern":
        assert got["error"]["code"] == -32021
        assert got["error"]["data"]["requiredCapabilities"] == NEEDED["form"]
    else:
        readable(got, "form")


@pytest.mark.parametrize("legacy", LEGACY)
def test_url_elicitation_error_has_the_form_of_the_revision(able: Client, legacy: str) -> None:
    """2025-11-25 has an error for it (-32042), after which the client calls again."""
    before, key = len(able.asked), f"needed {next(KEYS)}"
    got = able.call(f"mcp_{legacy}_need_url", {"key": key})
    if able.revision == "2025-11-25":
        (sent,) = got["error"]["data"]["elicitations"]
        assert got["error"]["code"] == -32042 and sent["elicitationId"] == f"needed {key}"
        assert sent["url"] == "https://example.com/sign-in?x=1"
        assert text_of(able.call(f"mcp_{legacy}_need_url", {"key": key})) == "signed in"
        able.wait_notification(COMPLETED, elicitationId=f"needed {key}")
        assert len(able.asked) == before
    elif expected("url", able.revision) == YES:
        assert text_of(got) == "signed in"
        (question,) = able.asked[before:]
        assert question.params["url"] == "https://example.com/sign-in?x=1"
    else:
        readable(got, "https://example.com/sign-in?x=1")
        assert len(able.asked) == before


@pytest.mark.parametrize("legacy", LEGACY)
def test_url_elicitation_error_names_the_url_for_incapable_clients(
    client: Client, legacy: str
) -> None:
    got = client.call(f"mcp_{legacy}_need_url", {"key": f"needed {next(KEYS)}"})
    refused(client, got, "url")


def refused(client: Client, answer: Any, kind: str) -> None:
    """The answer to a client that declares nothing."""
    words = QUESTIONS[kind][2]
    if expected("unasked", client.revision) == WORDS:
        readable(answer, words)
    else:
        error = answer["error"]
        assert error["code"] == -32021
        assert error["data"]["requiredCapabilities"] == NEEDED[kind]
        assert words in error["message"]


@pytest.mark.parametrize("legacy", LEGACY)
def test_call_on_a_client_session_is_cancelled_at_the_server(
    rig: HubRig, able: Client, legacy: str
) -> None:
    key = f"cancel {next(KEYS)}"
    call = {"name": f"mcp_{legacy}_slow", "arguments": {"seconds": 60, "key": key}}
    number = able.begin("tools/call", call)
    rig.wait(legacy, event="started", key=key)
    able.cancel(number)
    rig.wait(legacy, event="cancelled", key=key)


def test_cancelled_call_withdraws_its_question(rig: HubRig, able: Client, upstream: str) -> None:
    """Of a client that is asked by push: a modern one has its answer, which is the question."""
    if able.modern:
        return
    key = f"left {next(KEYS)}"
    able.answering = lambda method, params: None
    try:
        before, since = len(able.asked), len(able.received)
        call = {"name": f"mcp_{upstream}_ask_roots", "arguments": {"key": key}}
        number = able.begin("tools/call", call)
        until(lambda: len(able.asked) > before)
        able.cancel(number)
        able.wait_notification("notifications/cancelled", since)
    finally:
        able.answering = well
    if UPSTREAMS[upstream][0] == "legacy":
        rig.wait(upstream, event="lost", key=key)
    assert not answered(rig, upstream, key)


def test_client_session_delivers_subscribed_updates(able: Client, upstream: str) -> None:
    """What its calls change may be known on that connection alone."""
    uri = f"{scheme(upstream)}://watched"
    since = len(able.received)
    if able.modern:
        listening = {"notifications": {"resourceSubscriptions": [uri]}}
        number = able.begin("subscriptions/listen", listening)
        able.wait_notification("notifications/subscriptions/acknowledged", since)
    else:
        assert able.request("resources/subscribe", {"uri": uri})["result"] == {}
    version = text_of(able.call(f"mcp_{upstream}_change", {"what": "watched"}))
    able.wait_notification("notifications/resources/updated", since, uri=uri)
    (content,) = able.request("resources/read", {"uri": uri})["result"]["contents"]
    assert content["text"] == version
    if able.modern:
        able.cancel(number)
    else:
        assert able.request("resources/unsubscribe", {"uri": uri})["result"] == {}


@pytest.mark.parametrize("kind", QUESTIONS)
def test_client_without_elicitation_gets_the_question_as_an_error(
    rig: HubRig, client: Client, upstream: str, kind: str
) -> None:
    key = f"unable {kind} {next(KEYS)}"
    got = client.call(f"mcp_{upstream}_ask_{kind}", {"key": key})
    refused(client, got, kind)
    assert not client.asked and not answered(rig, upstream, key)


def test_shared_session_declares_no_capabilities(client: Client, upstream: str) -> None:
    assert json.loads(text_of(client.call(f"mcp_{upstream}_declared"))) == {}


def test_capability_unknown_to_the_revision_is_ignored(
    rig: HubRig,
) -> None:
    features: dict[str, Any] = {"elicitation": {"form": {}, "url": {}}}
    with rig.connect(("2025-03-26", "http"), features) as client:
        for upstream in UPSTREAMS:
            key = f"undeclarable {upstream}"
            readable(client.call(f"mcp_{upstream}_ask_form", {"key": key}), "What is your name?")
            assert not client.asked and not answered(rig, upstream, key)
    with rig.connect(("2025-06-18", "http"), features) as client:
        for upstream in UPSTREAMS:
            got = client.call(f"mcp_{upstream}_ask_url", {"key": f"page {upstream}"})
            readable(got, "https://example.com/sign-in?x=1")
            assert not client.asked
