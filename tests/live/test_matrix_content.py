"""The matrix, part three: resources, prompts, completion, notifications and cancellation, for a
client of each revision with a server of each era and transport.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import pytest
from tests.live.matrix_client import Client
from tests.live.matrix_fixture import (
    CLIENTS,
    UPSTREAMS,
    YES,
    HubRig,
    expected,
    run_matrix_hub,
    scheme,
)
from tests.live.module_hub import text_of, until

pytestmark = pytest.mark.promise("B12", "F6", "F7", "G2")

KEYS = itertools.count()
UPDATED = "notifications/resources/updated"
ACKNOWLEDGED = "notifications/subscriptions/acknowledged"
SUBSCRIPTION = "io.modelcontextprotocol/subscriptionId"
LISTS = {
    "tools": ("tools/list", "name", "mcp_{upstream}_extra"),
    "prompts": ("prompts/list", "name", "mcp_{upstream}_extra"),
    "resources": ("resources/list", "uri", "{scheme}://extra"),
}


@pytest.fixture(scope="module")
def rig() -> Iterator[HubRig]:
    with run_matrix_hub() as made:
        yield made


@pytest.fixture(scope="module", params=CLIENTS, ids="-".join)
def client(request: pytest.FixtureRequest, rig: HubRig) -> Iterator[Client]:
    """Declares nothing: it shares the hub's connections."""
    with rig.connect(request.param, {}) as made:
        yield made


@pytest.fixture(params=UPSTREAMS)
def upstream(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def test_resource_is_read_as_the_server_returns_it(client: Client, upstream: str) -> None:
    def read(uri: str) -> Any:
        return client.request("resources/read", {"uri": uri})

    place = scheme(upstream)
    result = read(f"{place}://text")["result"]
    (content,) = result["contents"]
    assert content == {
        "uri": f"{place}://text",
        "mimeType": "text/plain",
        "text": f"the text of {place}",
    }
    assert ({"resultType", "ttlMs", "cacheScope"} <= set(result)) == client.modern
    (blob,) = read(f"{place}://blob")["result"]["contents"]
    assert blob["blob"] == "AAECAwT/" and "text" not in blob
    (item,) = read(f"{place}://item/7/b")["result"]["contents"]
    assert item["text"] == "7/b", "no list has it: a template leads to it"
    (shared,) = read(f"{upstream}.shared://everywhere")["result"]["contents"]
    assert shared["text"] == f"the text of {place}"


def test_missing_resource_is_not_found_in_the_form_of_the_revision(
    client: Client, upstream: str
) -> None:
    code = int(expected("not found", client.revision))
    for uri in (f"{scheme(upstream)}://item/7/none", "nobody://has/this"):
        error = client.request("resources/read", {"uri": uri})["error"]
        assert error["code"] == code
        assert error["data"]["uri"] == uri
    shared = client.request("resources/read", {"uri": "shared://everywhere"})["result"]
    assert shared["contents"], "of the server that had it first"


def test_prompt_is_rendered(client: Client, upstream: str) -> None:
    params = {"name": f"mcp_{upstream}_travel", "arguments": {"country": "fr", "city": "Pau"}}
    result = client.request("prompts/get", params)["result"]
    assert result["description"] == "The prompt travel"
    first, second = result["messages"]
    assert first == {"role": "user", "content": {"type": "text", "text": "To Pau"}}
    assert second["role"] == "assistant" and second["content"]["type"] == "image"
    assert (result.get("resultType") == "complete") == client.modern
    plain = client.request("prompts/get", {"name": f"{upstream}.plain"})["result"]
    assert plain["messages"][0]["content"]["text"] == "plain"
    unknown = client.request("prompts/get", {"name": f"mcp_{upstream}_none"})
    assert unknown["error"]["code"] == -32602


def test_prompt_and_template_arguments_are_completed(client: Client, upstream: str) -> None:
    def complete(ref: dict[str, str], name: str, value: str, **more: Any) -> Any:
        params = {"ref": ref, "argument": {"name": name, "value": value}, **more}
        return client.request("completion/complete", params)["result"]["completion"]

    prompt = {"type": "ref/prompt", "name": f"mcp_{upstream}_travel"}
    assert complete(prompt, "city", "P")["values"] == ["Paris", "Pau", "Porto"]
    known = complete(prompt, "city", "P", context={"arguments": {"country": "fr"}})
    narrowed = expected("completion context", client.revision) == YES
    assert known["values"] == (["Paris", "Pau"] if narrowed else ["Paris", "Pau", "Porto"])
    assert known["total"] == len(known["values"]) and known["hasMore"] is False
    template = {"type": "ref/resource", "uri": f"{scheme(upstream)}://item/{{id}}/{{part}}"}
    assert complete(template, "id", "o")["values"] == ["one", "other"]


def listening(client: Client, **wanted: Any) -> int:
    """A `subscriptions/listen` that was acknowledged; gives its id."""
    since = len(client.received)
    number = client.begin("subscriptions/listen", {"notifications": wanted})
    told = client.wait_notification(ACKNOWLEDGED, since)
    assert told.params["notifications"] == wanted
    assert told.params["_meta"][SUBSCRIPTION] == number
    assert [one.method for one in client.received[since:] if one.stream == number][:1] in (
        [ACKNOWLEDGED],
        [],  # on stdio
    )
    return number


def test_subscribed_resource_update_is_delivered(client: Client, upstream: str) -> None:
    uri = f"{scheme(upstream)}://watched"
    change = f"mcp_{upstream}_change"
    number: int | None = None
    if expected("resources/subscribe", client.revision) == YES:
        assert client.request("resources/subscribe", {"uri": uri})["result"] == {}
    else:
        number = listening(client, resourceSubscriptions=[uri])
    since = len(client.received)
    version = text_of(client.call(change, {"what": "watched"}))
    told = client.wait_notification(UPDATED, since, uri=uri)
    if number is None:
        assert told.stream == "session"
    else:
        assert told.params["_meta"][SUBSCRIPTION] == number
    (content,) = client.request("resources/read", {"uri": uri})["result"]["contents"]
    assert content["text"] == version

    if number is None:
        assert client.request("resources/unsubscribe", {"uri": uri})["result"] == {}
    else:
        client.cancel(number)
        number = listening(client, toolsListChanged=True)
    since = len(client.received)
    client.call(change, {"what": "watched"})
    client.call(change, {"what": "tools"})
    client.wait_notification("notifications/tools/list_changed", since)  # it comes after the other
    assert not client.said(UPDATED, since), "it does not follow that any more"
    if number is not None:
        client.cancel(number)


def test_list_change_is_announced_and_the_new_list_returned(client: Client) -> None:
    def there(what: str) -> list[bool]:
        """Of each server, whether what comes and goes is in its list."""
        method, member, form = LISTS[what]
        listed = [entry[member] for entry in client.request(method)["result"][what]]
        names = [form.format(upstream=one, scheme=scheme(one)) for one in UPSTREAMS]
        return [name in listed for name in names]

    wanted = {f"{what}ListChanged": True for what in LISTS}
    number = listening(client, **wanted) if client.modern else None
    after = {what: [not one for one in there(what)] for what in LISTS}
    since = len(client.received)
    for upstream in UPSTREAMS:
        for what in LISTS:
            assert text_of(client.call(f"mcp_{upstream}_change", {"what": what})) == "changed"
    for what in LISTS:
        told = client.wait_notification(f"notifications/{what}/list_changed", since)
        if number is not None:
            assert told.params["_meta"][SUBSCRIPTION] == number
    assert until(lambda: all(there(what) == after[what] for what in LISTS))
    if number is not None:
        client.cancel(number)


def test_a_cancelled_call_is_cancelled_at_the_server(
    rig: HubRig, client: Client, upstream: str
) -> None:
    key = f"cancel {next(KEYS)}"
    arguments = {"seconds": 60, "key": key}
    number = client.begin("tools/call", {"name": f"mcp_{upstream}_slow", "arguments": arguments})
    rig.wait(upstream, event="started", key=key)
    client.cancel(number)
    rig.wait(upstream, event="cancelled", key=key)
    assert text_of(client.call(f"mcp_{upstream}_echo", {"text": "after"})) == "after"


def test_older_client_disconnect_does_not_cancel(rig: HubRig) -> None:
    for revision in ("2025-03-26", "2025-11-25"):
        for upstream in UPSTREAMS:
            key = f"hung up {revision} {upstream}"
            with rig.connect((revision, "http"), {}) as client:
                arguments = {"seconds": 0.15, "key": key}
                call = {"name": f"mcp_{upstream}_slow", "arguments": arguments}
                number = client.begin("tools/call", call)
                rig.wait(upstream, event="started", key=key)
                client.hang_up(number)  # type: ignore[attr-defined]
                rig.wait(upstream, event="finished", key=key)
