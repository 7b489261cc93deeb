"""The official SDK's client against the hub: 1.0 and 0.3, by JSON-RPC and HTTP+JSON."""

from __future__ import annotations

import base64
import json
from collections.abc import AsyncIterator, Iterator
from typing import Any
from uuid import uuid4

import httpx
import pytest
from a2a.client import A2ACardResolver, ClientConfig, ClientFactory
from a2a.client.client import Client, ClientCallContext
from a2a.compat.v0_3.jsonrpc_transport import CompatJsonRpcTransport
from a2a.compat.v0_3.rest_transport import CompatRestTransport
from a2a.types import (
    AgentCard,
    CancelTaskRequest,
    DeleteTaskPushNotificationConfigRequest,
    GetExtendedAgentCardRequest,
    GetTaskPushNotificationConfigRequest,
    GetTaskRequest,
    ListTaskPushNotificationConfigsRequest,
    ListTasksRequest,
    Message,
    Part,
    Role,
    SendMessageConfiguration,
    SendMessageRequest,
    SubscribeToTaskRequest,
    TaskPushNotificationConfig,
    TaskState,
)
from a2a.utils.errors import (
    ContentTypeNotSupportedError,
    TaskNotCancelableError,
    TaskNotFoundError,
    UnsupportedOperationError,
)
from google.protobuf.json_format import MessageToDict, ParseDict
from google.protobuf.struct_pb2 import Value
from tests.live.a2a_hub import AGENTS, HubRig, agent_entry, run_a2a_hub, steps

pytestmark = pytest.mark.promise("J3")

API_KEY = "the key of the configuration"
BINDINGS = [
    (version, binding) for version in ("1.0", "0.3") for binding in ("JSONRPC", "HTTP+JSON")
]
OLD = {"JSONRPC": CompatJsonRpcTransport, "HTTP+JSON": CompatRestTransport}
HOOK = "http://127.0.0.1:9/hook"


@pytest.fixture(scope="module")
def rig() -> Iterator[HubRig]:
    more = (
        agent_entry("narrow", "echo", input_modes=["text/plain"]),
        agent_entry(
            "shy", "echo", extended_card=True, skills=[{"id": "a"}, {"id": "b", "public": False}]
        ),
    )
    settings = {"push_private": True}
    with run_a2a_hub((*AGENTS, *more), config=f'api_key = "{API_KEY}"', a2a=settings) as made:
        yield made


@pytest.fixture
async def http(rig: HubRig) -> AsyncIterator[httpx.AsyncClient]:
    async with httpx.AsyncClient(timeout=60, headers=rig.hub.headers) as client:
        yield client


async def client_of(
    rig: HubRig,
    http: httpx.AsyncClient,
    protocol: tuple[str, str],
    agent: str = "actor",
    streaming: bool = True,
) -> Client:
    """From the card that the hub serves, held to one version and binding."""
    version, binding = protocol
    card = await A2ACardResolver(http, f"{rig.hub.url}/a2a/{agent}").get_agent_card()
    only = AgentCard()
    only.CopyFrom(card)
    del only.supported_interfaces[:]
    only.supported_interfaces.extend(
        one for one in card.supported_interfaces if one.protocol_version == version
    )
    config = ClientConfig(
        httpx_client=http, streaming=streaming, supported_protocol_bindings=[binding]
    )
    made = ClientFactory(config).create(only)
    transport: Any = made._transport  # type: ignore[attr-defined]
    assert isinstance(transport, OLD[binding]) == (version == "0.3")
    return made


def request(*contents: Any, now: bool = False, **more: Any) -> SendMessageRequest:
    parts = [
        Part(text=one) if isinstance(one, str) else Part(data=ParseDict(one, Value()))
        for one in contents
    ]
    message = Message(message_id=str(uuid4()), role=Role.ROLE_USER, parts=parts, **more)
    configuration = SendMessageConfiguration(return_immediately=now)
    return SendMessageRequest(message=message, configuration=configuration)


async def sent(client: Client, asked: SendMessageRequest) -> list[Any]:
    return [event async for event in client.send_message(asked)]


def describe_event(event: Any) -> str:
    kind = event.WhichOneof("payload")
    if kind == "artifact_update":
        return f"artifact {event.artifact_update.artifact.parts[0].text}"
    if kind == "message":
        return f"message {event.message.parts[0].text}"
    inner = event.task if kind == "task" else event.status_update
    state = TaskState.Name(inner.status.state).removeprefix("TASK_STATE_").lower()
    return f"{kind} {state}"


each_protocol = pytest.mark.parametrize(
    "protocol", BINDINGS, ids=lambda protocol: f"{protocol[0]}-{protocol[1]}"
)


@each_protocol
async def test_sdk_sends_a_message_and_reads_its_task(
    rig: HubRig, http: httpx.AsyncClient, protocol: tuple[str, str]
) -> None:
    client = await client_of(rig, http, protocol, "echo", streaming=False)
    (event,) = await sent(client, request("hello"))
    task = event.task
    assert task.status.state == TaskState.TASK_STATE_COMPLETED
    assert task.artifacts[0].parts[0].text == "hello"
    assert task.history[0].role == Role.ROLE_USER
    found = await client.get_task(GetTaskRequest(id=task.id))
    assert found == task
    short = await client.get_task(GetTaskRequest(id=task.id, history_length=0))
    assert not short.history


@each_protocol
async def test_sdk_streams_a_task(
    rig: HubRig, http: httpx.AsyncClient, protocol: tuple[str, str]
) -> None:
    client = await client_of(rig, http, protocol)
    todo = steps(["say", "half"], ["artifact", "made", {"id": "a"}], ["reply", "end"])
    events = await sent(client, request(todo))
    assert [describe_event(event) for event in events] == [
        "task submitted",
        "status_update working",
        "status_update working",
        "artifact made",
        "artifact end",
        "status_update completed",
    ]
    assert events[2].status_update.status.message.parts[0].text == "half"
    (word,) = await sent(client, request(steps(["direct", "just a word"])))
    assert describe_event(word) == "message just a word"


@each_protocol
async def test_sdk_subscribes_and_cancels_a_task(
    rig: HubRig, http: httpx.AsyncClient, protocol: tuple[str, str]
) -> None:
    sender = await client_of(rig, http, protocol, streaming=False)
    (event,) = await sent(sender, request(steps(["wait", "never"]), now=True))
    id = event.task.id
    client = await client_of(rig, http, protocol)
    stream = client.subscribe(SubscribeToTaskRequest(id=id))
    assert describe_event(await anext(stream)) == "task working"
    cancelled = await client.cancel_task(CancelTaskRequest(id=id))
    assert cancelled.status.state == TaskState.TASK_STATE_CANCELED
    assert [describe_event(event) async for event in stream] == ["status_update canceled"]
    rig.seen(f"{id}.cancelled")


@each_protocol
async def test_sdk_answers_a_question(
    rig: HubRig, http: httpx.AsyncClient, protocol: tuple[str, str]
) -> None:
    client = await client_of(rig, http, protocol, streaming=False)
    (event,) = await sent(client, request(steps(["ask", "Which?"])))
    asked = event.task
    assert asked.status.state == TaskState.TASK_STATE_INPUT_REQUIRED
    assert asked.status.message.parts[0].text == "Which?"
    (event,) = await sent(client, request("this", task_id=asked.id, context_id=asked.context_id))
    assert event.task.status.state == TaskState.TASK_STATE_COMPLETED
    assert event.task.artifacts[0].parts[0].text == "2: this"


@each_protocol
@pytest.mark.promise("K4")
async def test_sdk_round_trips_every_part_kind(
    rig: HubRig, http: httpx.AsyncClient, protocol: tuple[str, str]
) -> None:
    client = await client_of(rig, http, protocol, "mirror", streaming=False)
    asked = request("see", {"n": [1, 2]})
    asked.message.parts.append(Part(raw=b"\x00\xff", filename="a.bin", media_type="x/y"))
    asked.message.parts.append(Part(url="https://example.com/b", media_type="image/png"))
    (event,) = await sent(client, asked)
    saw = MessageToDict(event.task.artifacts[0].parts[0].data)
    kinds = [part["type"] for part in saw["parts"]]
    assert kinds == ["text", "data", "resource", "resource_link"]
    assert saw["data"] == {"n": [1, 2]}
    assert base64.b64encode(b"\x00\xff").decode() in json.dumps(saw["parts"][2])
    back = event.task.history[0].parts
    assert back[2].raw == b"\x00\xff" and back[2].filename == "a.bin"
    assert back[3].url == "https://example.com/b"


@each_protocol
async def test_errors_raise_the_sdk_classes(
    rig: HubRig, http: httpx.AsyncClient, protocol: tuple[str, str]
) -> None:
    client = await client_of(rig, http, protocol, "narrow", streaming=False)
    with pytest.raises(TaskNotFoundError):
        await client.get_task(GetTaskRequest(id="nobody"))
    with pytest.raises(TaskNotFoundError):
        await sent(client, request("x", task_id="nobody"))
    with pytest.raises(ContentTypeNotSupportedError):
        await sent(client, request({"some": "data"}))
    (event,) = await sent(client, request("x"))
    with pytest.raises(TaskNotCancelableError):
        await client.cancel_task(CancelTaskRequest(id=event.task.id))
    with pytest.raises(UnsupportedOperationError):
        await sent(client, request("more", task_id=event.task.id))
    streaming = await client_of(rig, http, protocol, "narrow")
    with pytest.raises(UnsupportedOperationError):
        async for _ in streaming.subscribe(SubscribeToTaskRequest(id=event.task.id)):
            pass


@each_protocol
async def test_webhooks_are_set_and_read_and_deleted(
    rig: HubRig, http: httpx.AsyncClient, protocol: tuple[str, str]
) -> None:
    client = await client_of(rig, http, protocol, streaming=False)
    (event,) = await sent(client, request(steps(["wait", "never"]), now=True))
    id = event.task.id
    wanted = TaskPushNotificationConfig(task_id=id, id="one", url=HOOK, token="t")
    made = await client.create_task_push_notification_config(wanted)
    assert (made.task_id, made.id, made.url, made.token) == (id, "one", HOOK, "t")
    key = GetTaskPushNotificationConfigRequest(task_id=id, id="one")
    assert await client.get_task_push_notification_config(key) == made
    if protocol != ("0.3", "HTTP+JSON"):  # which its client does not have
        asked = ListTaskPushNotificationConfigsRequest(task_id=id)
        listed = await client.list_task_push_notification_configs(asked)
        assert list(listed.configs) == [made]
        gone = DeleteTaskPushNotificationConfigRequest(task_id=id, id="one")
        await client.delete_task_push_notification_config(gone)
        with pytest.raises(Exception, match="one"):
            await client.get_task_push_notification_config(key)
    await client.cancel_task(CancelTaskRequest(id=id))


@each_protocol
async def test_sdk_reads_the_extended_card_with_a_key(
    rig: HubRig, http: httpx.AsyncClient, protocol: tuple[str, str]
) -> None:
    client = await client_of(rig, http, protocol, "shy")
    card = await client.get_extended_agent_card(GetExtendedAgentCardRequest())
    assert [skill.id for skill in card.skills] == ["a", "b"]


@pytest.mark.parametrize("binding", ["JSONRPC", "HTTP+JSON"])
async def test_sdk_lists_tasks_in_pages(rig: HubRig, http: httpx.AsyncClient, binding: str) -> None:
    client = await client_of(rig, http, ("1.0", binding), streaming=False)
    context = str(uuid4())
    made = [(await sent(client, request("x", context_id=context)))[0].task.id for _ in range(3)]
    first = await client.list_tasks(ListTasksRequest(context_id=context, page_size=2))
    assert (first.total_size, first.page_size) == (3, 2)
    rest = await client.list_tasks(
        ListTasksRequest(
            context_id=context,
            page_size=2,
            page_token=first.next_page_token,
            include_artifacts=True,
            status=TaskState.TASK_STATE_COMPLETED,
        )
    )
    assert [task.id for task in (*first.tasks, *rest.tasks)] == made[::-1]
    assert not first.tasks[0].artifacts and rest.tasks[0].artifacts
    assert rest.next_page_token == ""


async def test_tenant_selects_the_agent(rig: HubRig, http: httpx.AsyncClient) -> None:
    for binding in ("JSONRPC", "HTTP+JSON"):
        card = await A2ACardResolver(http, f"{rig.hub.url}").get_agent_card()
        one = next(i for i in card.supported_interfaces if i.protocol_binding == binding)
        one.url, one.tenant = f"{rig.hub.url}/a2a", "actor"
        del card.supported_interfaces[:]
        card.supported_interfaces.append(one)
        config = ClientConfig(
            httpx_client=http, streaming=False, supported_protocol_bindings=[binding]
        )
        client = ClientFactory(config).create(card)
        (event,) = await sent(client, request("x"))
        assert event.task.artifacts[0].parts[0].text == "1: x"
        found = await client.get_task(GetTaskRequest(id=event.task.id))
        assert found == event.task


async def test_send_repeated_with_a_key_runs_once(rig: HubRig, http: httpx.AsyncClient) -> None:
    client = await client_of(rig, http, ("1.0", "JSONRPC"), "echo", streaming=False)
    asked = request("once")
    context = ClientCallContext(service_parameters={"Idempotency-Key": str(uuid4())})
    found = set()
    for _ in range(3):
        async for event in client.send_message(asked, context=context):
            found.add(event.task.id)
    assert len(found) == 1
