"""gRPC end to end: official SDK clients, the real server, a function agent."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Any

import grpc
import pytest
from a2a.client.client import ClientCallContext
from a2a.client.transports.grpc import GrpcTransport
from a2a.compat.v0_3.grpc_transport import CompatGrpcTransport
from a2a.types import a2a_pb2 as pb
from a2a.utils import errors as sdk_errors
from a2a.utils.signing import create_signature_verifier
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from google.protobuf.json_format import ParseDict
from tests.a2a.task_builders import build_registry
from tests.permissive_hub import build_permissive_hub

from dragoman.a2a.cards.signing import sign_card
from dragoman.a2a.config import A2aSettings
from dragoman.a2a.server.card_service import CardService
from dragoman.a2a.server.grpc_server import A2aGrpcServer
from dragoman.a2a.server.operations import A2aServer
from dragoman.a2a.server.push_delivery import PushNotifier
from dragoman.a2a.server.routing import MessageRouter
from dragoman.agent import Ask, Decline, Reply, Request
from dragoman.agents.config import AgentEntry
from dragoman.agents.function import FunctionAgent
from dragoman.core.bus import Bus
from dragoman.core.catalog import Catalog, admit_all
from dragoman.core.principal import Principal
from dragoman.stores.tasks import MemoryTaskStore

SOON = 10
KEY = ec.generate_private_key(ec.SECP256R1())


async def agent(request: Request) -> Any:
    text = request.text
    if text == "ask" and request.turn == 1:
        return Ask("which colour?")
    if text == "decline":
        raise Decline("not today")
    if text == "direct":
        return Reply("hi", direct=True)
    if text == "wait":
        await asyncio.Event().wait()
    if text == "steps":
        for number in range(3):
            request.say(f"step {number}")
    return {"said": text, "turn": request.turn, "data": request.data}


async def _nothing_wrong(url: str) -> str | None:
    return None


class _NoWay:
    async def request(self, *args: Any, **how: Any) -> Any:
        raise AssertionError("nothing is sent")


@contextlib.asynccontextmanager
async def serving() -> AsyncIterator[grpc.aio.Channel]:
    settings = A2aSettings(enabled=True)
    catalog, store = Catalog(review=admit_all), MemoryTaskStore()
    hub = build_permissive_hub(catalog, Bus(), [])
    entry = AgentEntry(name="echo", function=f"{__name__}:agent", extended_card=True)
    catalog.offer("echo", [FunctionAgent(entry, "dragoman_agent_", lambda given: None).tool])
    tasks = build_registry(store)
    targets = MessageRouter(hub, "echo")
    ports: list[int] = []
    cards = CardService(
        targets,
        settings,
        lambda card: sign_card(card, KEY, "k"),
        find_grpc_port=lambda agent: None if agent else ports[0],
    )
    push = PushNotifier(tasks, store, _NoWay(), settings, check=_nothing_wrong)
    a2a_server = A2aServer(hub, tasks, targets, cards, push, 60)
    known = Principal("key", "one")
    server = A2aGrpcServer(
        a2a_server,
        lambda *_: known,
        "127.0.0.1",
        0,
        base="http://127.0.0.1:1",
        require_version=False,
    )
    ports.append(await server.start())
    try:
        async with grpc.aio.insecure_channel(f"127.0.0.1:{ports[0]}") as channel:
            yield channel
    finally:
        a2a_server.close()
        await push.close()
        await server.stop(0)


def sent(text: str, **more: Any) -> pb.SendMessageRequest:
    message = {"messageId": "m1", "role": "ROLE_USER", "parts": [{"text": text}], **more}
    request = pb.SendMessageRequest()
    ParseDict({"message": message}, request)
    return request


@pytest.mark.promise("J3", "J5")
@pytest.mark.parametrize("transport", [GrpcTransport, CompatGrpcTransport])
async def test_grpc_client_sends_answers_subscribes_and_cancels(transport: Any) -> None:
    async with serving() as channel:
        client = transport(channel, None)
        assert (await client.send_message(sent("direct"))).message.parts[0].text == "hi"
        asked = (await client.send_message(sent("ask"))).task
        assert asked.status.state == pb.TASK_STATE_INPUT_REQUIRED
        going_on = client.send_message_streaming(sent("blue", taskId=asked.id))
        states = [
            (event.task if event.HasField("task") else event.status_update).status.state
            async for event in going_on
        ]
        assert (states[0], states[-1]) == (pb.TASK_STATE_WORKING, pb.TASK_STATE_COMPLETED)
        asked = (await client.send_message(sent("ask"))).task
        done = (await client.send_message(sent("blue", taskId=asked.id))).task
        assert (done.id, done.status.state) == (asked.id, pb.TASK_STATE_COMPLETED)
        said = done.artifacts[0].parts[0].data.struct_value
        assert (said["said"], said["turn"]) == ("blue", 2)
        assert (await client.get_task(pb.GetTaskRequest(id=done.id))).id == done.id
        refused = (await client.send_message(sent("decline"))).task
        assert refused.status.state == pb.TASK_STATE_REJECTED

        heard = [event async for event in client.send_message_streaming(sent("steps"))]
        assert heard[0].HasField("task")
        words = [
            event.status_update.status.message.parts[0].text
            for event in heard
            if event.status_update.status.message.parts
        ]
        assert words == ["step 0", "step 1", "step 2"]
        assert heard[-1].status_update.status.state == pb.TASK_STATE_COMPLETED

        slow = sent("wait")
        slow.configuration.return_immediately = True
        task = (await client.send_message(slow)).task
        followed = client.subscribe(pb.SubscribeToTaskRequest(id=task.id))
        first = await asyncio.wait_for(anext(followed), SOON)
        assert first.task.status.state == pb.TASK_STATE_WORKING
        stopped = await client.cancel_task(pb.CancelTaskRequest(id=task.id))
        assert stopped.status.state == pb.TASK_STATE_CANCELED
        last = [event async for event in followed][-1]
        assert last.status_update.status.state == pb.TASK_STATE_CANCELED
        with pytest.raises(sdk_errors.TaskNotCancelableError):
            await client.cancel_task(pb.CancelTaskRequest(id=task.id))
        with pytest.raises(sdk_errors.UnsupportedOperationError):
            await anext(client.subscribe(pb.SubscribeToTaskRequest(id=task.id)))
        with pytest.raises(sdk_errors.TaskNotFoundError):
            await client.get_task(pb.GetTaskRequest(id="another"))
        with pytest.raises(sdk_errors.InvalidParamsError):
            await client.send_message(sent("x", messageId=""))


@pytest.mark.promise("J3")
@pytest.mark.parametrize("transport", [GrpcTransport, CompatGrpcTransport])
async def test_grpc_client_sets_and_deletes_webhooks(transport: Any) -> None:
    async with serving() as channel:
        client = transport(channel, None)
        task = (await client.send_message(sent("ask"))).task.id
        wanted = {
            "taskId": task,
            "url": "https://example.com/hook",
            "token": "t",
            "authentication": {"scheme": "Bearer", "credentials": "c"},
        }
        config = ParseDict(wanted, pb.TaskPushNotificationConfig())
        made = await client.create_task_push_notification_config(config)
        one = pb.GetTaskPushNotificationConfigRequest(task_id=task, id=made.id)
        assert await client.get_task_push_notification_config(one) == made
        every = pb.ListTaskPushNotificationConfigsRequest(task_id=task)
        assert [*(await client.list_task_push_notification_configs(every)).configs] == [made]
        gone = pb.DeleteTaskPushNotificationConfigRequest(task_id=task, id=made.id)
        await client.delete_task_push_notification_config(gone)
        assert not (await client.list_task_push_notification_configs(every)).configs


async def test_grpc_lists_pages_and_deduplicates_sends_by_key() -> None:
    async with serving() as channel:
        client = GrpcTransport(channel, None)
        once = ClientCallContext(service_parameters={"Idempotency-Key": "k1"})
        made = [(await client.send_message(sent("x"), context=once)).task.id for _ in range(2)]
        assert made[0] == made[1]
        made = [made[0]] + [(await client.send_message(sent("y"))).task.id for _ in range(2)]
        page = await client.list_tasks(pb.ListTasksRequest(page_size=2))
        assert (page.total_size, len(page.tasks)) == (3, 2)
        rest = await client.list_tasks(pb.ListTasksRequest(page_token=page.next_page_token))
        assert sorted(task.id for task in [*page.tasks, *rest.tasks]) == sorted(made)
        for wrong in ({"page_size": 0}, {"page_token": "?"}, {"status": 99}):
            with pytest.raises(sdk_errors.InvalidParamsError):
                await client.list_tasks(pb.ListTasksRequest(**wrong))
        with pytest.raises(sdk_errors.InvalidParamsError):
            await client.list_tasks(pb.ListTasksRequest(tenant="nobody"))


@pytest.mark.promise("I3")
async def test_grpc_card_signature_verifies_with_the_sdk() -> None:
    async with serving() as channel:
        client = GrpcTransport(channel, None)
        card = await client.get_extended_agent_card(pb.GetExtendedAgentCardRequest())
        assert card.name == "echo"
        assert "GRPC" in [one.protocol_binding for one in card.supported_interfaces]
        public = KEY.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
        verify = create_signature_verifier(lambda kid, jku: public, ["ES256"])
        verify(card)
        old = await CompatGrpcTransport(channel, None).get_extended_agent_card(
            pb.GetExtendedAgentCardRequest()
        )
        assert old.name == "echo" and old.security_schemes
