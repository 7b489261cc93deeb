"""The gRPC service of 0.3 beside that of 1.0, with the official SDK's client for 0.3."""

from __future__ import annotations

from typing import Any

import grpc
import pytest
from a2a.compat.v0_3 import a2a_v0_3_pb2 as old
from a2a.compat.v0_3.a2a_v0_3_pb2_grpc import A2AServiceStub
from a2a.compat.v0_3.grpc_transport import CompatGrpcTransport
from a2a.types import a2a_pb2 as pb
from a2a.utils import errors as sdk_errors
from google.protobuf.json_format import MessageToDict
from tests.a2a.test_a2a_grpc import (
    ANSWERS,
    CALLS,
    EVENTS,
    MESSAGE,
    CannedServer,
    parameters,
    reason_of,
    sent,
    serving,
)
from tests.a2a.test_a2a_grpc_types import fields_of

from dragoman.a2a.protocol import errors
from dragoman.a2a.protocol.dialects import operations
from dragoman.a2a.protocol.errors import A2aError
from dragoman.a2a.protocol.grpc.messages import TYPES_03
from dragoman.a2a.protocol.grpc.services import SERVICES_BY_VERSION


@pytest.mark.promise("J3")
def test_every_0_3_message_and_method_matches_the_official_sdk() -> None:
    theirs = old.DESCRIPTOR.message_types_by_name
    assert len(theirs) > 40
    for name, descriptor in theirs.items():
        assert fields_of(TYPES_03.descriptor(name)) == fields_of(descriptor), name
    service = old.DESCRIPTOR.services_by_name["A2AService"]
    methods = {m.name: (m.input_type.name, m.output_type.name) for m in service.methods}
    known = SERVICES_BY_VERSION["0.3"].methods
    assert {m.name: (m.request_type, m.response_type) for m in known.values()} == methods
    assert set(known) == set(operations.OPS) - {operations.LIST}


@pytest.mark.promise("J3")
async def test_every_operation_of_the_sdks_client_for_0_3_is_answered() -> None:
    canned = CannedServer()
    async with serving(canned) as client:
        before = CompatGrpcTransport(client.channel, None)
        for op, (_, call, expected) in CALLS.items():
            if op == operations.LIST:
                continue  # 0.3 had none
            answer = await call(before)
            asker, asked, request = canned.asked[-1]
            assert asked == op and asker.version == "0.3"
            assert request.items() >= expected.items() or op == operations.SEND
            if op == operations.SEND:
                assert request["message"] == MESSAGE
                assert MessageToDict(answer)["task"]["id"] == "t1"
            elif op == operations.CARD:
                shown = MessageToDict(answer)
                assert shown["name"] == "echo" and shown["skills"][0]["id"] == "s"
                assert list(shown["securitySchemes"]) == ["key"]
                assert shown["securityRequirements"] == [{"schemes": {"key": {}}}]
            elif op != operations.PUSH_DELETE:
                found = MessageToDict(answer)
                assert found == {k: v for k, v in ANSWERS[op].items() if v != ""}


@pytest.mark.promise("J3")
async def test_stream_0_3_marks_its_final_event() -> None:
    async with serving(CannedServer()) as client:
        call = A2AServiceStub(client.channel).SendStreamingMessage(_sent())
        heard = [event async for event in call]
        assert [event.WhichOneof("payload") for event in heard] == [
            "task",
            "artifact_update",
            "status_update",
        ]
        assert heard[-1].status_update.final
        before = CompatGrpcTransport(client.channel, None)
        again = [
            MessageToDict(event)
            async for event in before.subscribe(pb.SubscribeToTaskRequest(id="t1"))
        ]
        assert again == EVENTS


def _sent(**more: Any) -> old.SendMessageRequest:
    message = old.Message(message_id="m1", role=old.ROLE_USER, content=[old.Part(text="hello")])
    return old.SendMessageRequest(request=message, **more)


@pytest.mark.parametrize(
    ("configuration", "at_once"),
    [
        (None, False),
        (old.SendMessageConfiguration(blocking=True), False),
        (old.SendMessageConfiguration(history_length=3), True),
    ],
)
async def test_non_blocking_send_is_answered_at_once(
    configuration: old.SendMessageConfiguration | None, at_once: bool
) -> None:
    canned = CannedServer()
    async with serving(canned) as client:
        await A2AServiceStub(client.channel).SendMessage(_sent(configuration=configuration))
    asked = canned.asked[0][2].get("configuration", {})
    assert asked.get("returnImmediately", False) is at_once


async def test_extensions_header_of_0_3_has_its_own_name() -> None:
    canned = CannedServer()
    async with serving(canned) as client:
        before = CompatGrpcTransport(client.channel, None)
        await before.send_message(sent(), context=parameters(x_a2a_extensions="urn:a"))
    assert canned.asked[0][0].extensions == frozenset({"urn:a"})


async def test_error_message_of_0_3_begins_with_its_name() -> None:
    canned = CannedServer(A2aError(errors.TASK_NOT_FOUND, 'there is no task "t"'))
    async with serving(canned) as client:
        before = CompatGrpcTransport(client.channel, None)
        with pytest.raises(sdk_errors.TaskNotFoundError, match="there is no task"):
            await before.get_task(pb.GetTaskRequest(id="t"))
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await A2AServiceStub(client.channel).GetTask(old.GetTaskRequest(name="tasks/t"))
        assert caught.value.code() == grpc.StatusCode.NOT_FOUND
        assert reason_of(caught.value).reason == "TASK_NOT_FOUND"


@pytest.mark.parametrize("name", ["", "t1", "tasks/", "tasks/a/b", "agents/a"])
async def test_invalid_task_name_is_refused(name: str) -> None:
    canned = CannedServer()
    async with serving(canned) as client:
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await A2AServiceStub(client.channel).GetTask(old.GetTaskRequest(name=name))
        assert caught.value.code() == grpc.StatusCode.INVALID_ARGUMENT
    assert not canned.asked


async def test_each_grpc_service_accepts_only_its_version() -> None:
    async with serving(CannedServer(), require_version=True) as client:
        stub = A2AServiceStub(client.channel)
        for version in ((), (("a2a-version", "0.3"),), (("a2a-version", "0.2.5"),)):
            assert (await stub.SendMessage(_sent(), metadata=version)).task.id == "t1"
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await stub.SendMessage(_sent(), metadata=(("a2a-version", "1.0"),))
        assert caught.value.code() == grpc.StatusCode.FAILED_PRECONDITION
