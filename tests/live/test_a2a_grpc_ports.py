"""Clients of gRPC in 0.3, which cannot name an agent, reach each agent at a port of its own."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import grpc
import pytest
from a2a.client.client import ClientConfig
from a2a.client.client_factory import ClientFactory
from a2a.client.transports.grpc import GrpcTransport
from a2a.compat.v0_3.grpc_transport import CompatGrpcTransport
from a2a.types import a2a_pb2 as pb
from google.protobuf.json_format import ParseDict
from tests.live.a2a_hub import V10, HubRig, agent_entry, run_a2a_hub
from tests.live.conftest import RunningHub

pytestmark = pytest.mark.promise("J3")

WELL_KNOWN = "/.well-known/agent-card.json"
PORTS = {"actor": 0, "SDK 1-3": 0, "absent": 0}


@pytest.fixture(scope="module")
def rig() -> Iterator[HubRig]:
    agents = (
        agent_entry("echo", "echo"),
        agent_entry("actor", "mirror"),
        agent_entry("SDK 1-3", "echo"),
    )
    a2a = {"grpc_port": 0, "grpc_ports": PORTS, "grpc_on_cards": "always"}
    with run_a2a_hub(agents, a2a=a2a) as made:
        yield made


@pytest.fixture
def served(rig: HubRig) -> RunningHub:
    return rig.hub


def list_grpc(served: RunningHub, path: str) -> dict[str, str]:
    """The addresses of gRPC on a card by their version."""
    card = served.get(f"{path}{WELL_KNOWN}", {"A2A-Version": "1.0"}).json()
    return {
        one["protocolVersion"]: one["url"]
        for one in card["supportedInterfaces"]
        if one["protocolBinding"] == "GRPC"
    }


def build_message(text: str, **more: Any) -> pb.SendMessageRequest:
    message = {"messageId": "m1", "role": "ROLE_USER", "parts": [{"text": text}], **more}
    request = pb.SendMessageRequest()
    ParseDict({"message": message}, request)
    return request


def create_client(served: RunningHub, path: str, version: str = "0.3") -> Any:
    """The SDK's client for the one interface of a card that is gRPC of that version."""
    card = served.get(f"{path}{WELL_KNOWN}", {"A2A-Version": "1.0"}).json()
    card["supportedInterfaces"] = [
        one
        for one in card["supportedInterfaces"]
        if (one["protocolBinding"], one["protocolVersion"]) == ("GRPC", version)
    ]
    config = ClientConfig(
        supported_protocol_bindings=["GRPC"],
        grpc_channel_factory=grpc.aio.insecure_channel,
        streaming=False,
    )
    known = ParseDict(card, pb.AgentCard(), ignore_unknown_fields=True)
    return ClientFactory(config).create(known)


async def send(client: Any, text: str) -> pb.Task:
    async for event in client.send_message(build_message(text)):
        task: pb.Task = event.task
    return task


async def test_card_of_an_agent_lists_its_own_port(served: RunningHub) -> None:
    agents = served.api("/api/status")["agents"]
    ports, common = agents["grpc_ports"], agents["grpc_port"]
    assert set(ports) == set(PORTS) and len({common, *ports.values()}) == 4
    for name, path in (("actor", "/a2a/actor"), ("SDK 1-3", "/a2a/sdk_1_3")):
        shared, own = f"127.0.0.1:{common}", f"127.0.0.1:{ports[name]}"
        assert list_grpc(served, path) == {"1.0": shared, "0.3": own}
    assert "0.3" not in list_grpc(served, "/a2a/echo")
    assert list_grpc(served, "")["0.3"] == f"127.0.0.1:{common}"  # of the default agent
    old = served.get(f"/a2a/actor{WELL_KNOWN}", {"A2A-Version": "0.3"}).json()
    listed = {"url": f"127.0.0.1:{ports['actor']}", "transport": "GRPC"}
    assert listed in old["additionalInterfaces"]


async def test_client_of_0_3_reaches_the_agent_of_the_card(served: RunningHub) -> None:
    async with create_client(served, "/a2a/actor") as client:
        task = await send(client, "hello")
        assert "caller" in str(task.artifacts[0].parts[0].data)  # as only `mirror` answers
        assert (await client.get_task(pb.GetTaskRequest(id=task.id))).id == task.id
    async with create_client(served, "/a2a/sdk_1_3") as client:
        other = await send(client, "hello")
        assert other.artifacts[0].parts[0].text == "hello"
        with pytest.raises(Exception, match="not found"):  # it is of another agent
            await client.get_task(pb.GetTaskRequest(id=task.id))
    reply = V10.ask(served, "get", {"id": task.id}, "actor")
    assert reply.value["id"] == task.id


async def test_port_of_an_agent_refuses_another_tenant(served: RunningHub) -> None:
    port = served.api("/api/status")["agents"]["grpc_ports"]["actor"]
    async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
        client = GrpcTransport(channel, None)
        request = build_message("hello")
        assert (await client.send_message(request)).task.id
        request.tenant = "actor"
        assert (await client.send_message(request)).task.id
        request.tenant = "echo"
        with pytest.raises(Exception, match="not a tenant of this agent"):
            await client.send_message(request)


async def test_port_of_an_agent_that_does_not_exist_reaches_no_other(served: RunningHub) -> None:
    port = served.api("/api/status")["agents"]["grpc_ports"]["absent"]
    async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
        with pytest.raises(Exception, match='agent "absent" was not found'):
            await CompatGrpcTransport(channel, None).send_message(build_message("hello"))
    assert 'there is no agent "absent" yet' in served.log()


async def test_message_names_its_agent_in_metadata_at_the_common_port(served: RunningHub) -> None:
    port = served.api("/api/status")["agents"]["grpc_port"]
    async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
        client = CompatGrpcTransport(channel, None)
        request = build_message("hello", metadata={"agent": "actor"})
        task = (await client.send_message(request)).task
        assert "caller" in json.dumps(str(task.artifacts[0].parts[0].data))
        assert (await client.get_task(pb.GetTaskRequest(id=task.id))).id == task.id
