"""A2A over gRPC: the official SDK's client, real sockets, canned responses."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import sys
import textwrap
from collections.abc import AsyncIterator, Callable, Mapping
from types import SimpleNamespace
from typing import Any

import grpc
import pytest
from a2a.client.client import ClientCallContext
from a2a.client.transports.base import ClientTransport
from a2a.client.transports.grpc import GrpcTransport
from a2a.types import a2a_pb2 as pb
from a2a.types.a2a_pb2_grpc import A2AServiceStub
from a2a.utils import errors as sdk_errors
from google.protobuf.json_format import MessageToDict, ParseDict
from google.rpc import error_details_pb2, status_pb2

from dragoman.a2a.protocol import errors
from dragoman.a2a.protocol.dialects import operations
from dragoman.a2a.protocol.errors import A2aError
from dragoman.a2a.server import grpc_server
from dragoman.a2a.server.grpc_server import A2aGrpcServer
from dragoman.core.cluster import OwnedElsewhere
from dragoman.core.errors import ConfigError, Overloaded, RateLimited
from dragoman.core.principal import Principal

LOCAL = Principal("local", "local")
SOON = 10
TASK = {
    "id": "t1",
    "contextId": "c1",
    "status": {"state": "TASK_STATE_WORKING", "timestamp": "2026-11-16T04:05:06.789Z"},
}
PUSH = {"taskId": "t1", "id": "p1", "url": "https://example.com/hook"}
CARD = {
    "name": "echo",
    "description": "again",
    "version": "1",
    "supportedInterfaces": [
        {"url": "http://hub/a2a", "protocolBinding": "JSONRPC", "protocolVersion": "1.0"},
        {"url": "http://hub/a2a", "protocolBinding": "JSONRPC", "protocolVersion": "0.3"},
    ],
    "capabilities": {"streaming": True, "pushNotifications": True, "extendedAgentCard": True},
    "securitySchemes": {"key": {"httpAuthSecurityScheme": {"scheme": "bearer"}}},
    "securityRequirements": [{"schemes": {"key": {}}}],
    "defaultInputModes": ["text/plain"],
    "defaultOutputModes": ["text/plain"],
    "skills": [{"id": "s", "name": "s", "description": "says it", "tags": ["tool"]}],
}
MESSAGE = {"messageId": "m1", "role": "ROLE_USER", "parts": [{"text": "hello"}]}
ANSWERS: dict[str, dict[str, Any]] = {
    operations.SEND: {"task": TASK},
    operations.GET: TASK,
    operations.LIST: {"tasks": [TASK], "nextPageToken": "n", "pageSize": 50, "totalSize": 51},
    operations.CANCEL: TASK,
    operations.PUSH_SET: PUSH,
    operations.PUSH_GET: PUSH,
    operations.PUSH_LIST: {"configs": [PUSH], "nextPageToken": ""},
    operations.PUSH_DELETE: {},
    operations.CARD: CARD,
}
EVENTS: list[dict[str, Any]] = [
    {"task": TASK},
    {
        "artifactUpdate": {
            "taskId": "t1",
            "contextId": "c1",
            "artifact": {"artifactId": "a", "parts": [{"data": {"n": 1}}]},
            "lastChunk": True,
        }
    },
    {"statusUpdate": {"taskId": "t1", "contextId": "c1", "status": TASK["status"]}},
]


SIGNED = [{"protected": "p", "signature": "s"}]


class Events:
    """A stream as the server opens it; with `endless`, one that goes on until it is closed."""

    def __init__(self, events: list[dict[str, Any]], endless: dict[str, Any] | None) -> None:
        self._events = list(events)
        self._endless = endless
        self.given = 0
        self.closed = asyncio.Event()

    def __aiter__(self) -> Events:
        return self

    async def __anext__(self) -> tuple[int, dict[str, Any], bool]:
        if self._events:
            event = self._events.pop(0)
        elif self._endless is None:
            raise StopAsyncIteration
        elif self._endless:
            event = self._endless
        else:
            await asyncio.Event().wait()
        self.given += 1
        return self.given, event, not self._events and self._endless is None

    def close(self) -> None:
        self.closed.set()


class CannedServer:
    def __init__(
        self, stop: BaseException | None = None, endless: dict[str, Any] | None = None
    ) -> None:
        self.stop = stop
        self.endless = endless
        self.router = self.cards = self
        self.asked: list[tuple[Any, str, dict[str, Any]]] = []
        self.streams: list[Events] = []

    def get_facts(self, agent: str | None, principal: Principal) -> SimpleNamespace:
        return SimpleNamespace(extensions=[{"uri": "urn:b"}] if agent == "echo" else [])

    def shape_card(self, card: dict[str, Any], version: str) -> dict[str, Any]:
        assert version == "1.0"
        return {**card, "signatures": SIGNED}

    async def answer(self, ctx: Any, op: str, request: dict[str, Any]) -> dict[str, Any]:
        self.asked.append((ctx, op, request))
        if self.stop is not None:
            raise self.stop
        return ANSWERS[op]

    async def stream(self, ctx: Any, request: dict[str, Any]) -> Events:
        return self._open(ctx, operations.STREAM, request)

    async def subscribe(self, ctx: Any, request: dict[str, Any], last: int | None) -> Events:
        assert last is None
        return self._open(ctx, operations.SUBSCRIBE, request)

    def _open(self, ctx: Any, op: str, request: dict[str, Any]) -> Events:
        self.asked.append((ctx, op, request))
        self.streams.append(Events(EVENTS, self.endless))
        return self.streams[-1]


def permit_all(metadata: Mapping[str, str], peer: str, port: int) -> Principal | None:
    return LOCAL


def with_key(metadata: Mapping[str, str], peer: str, port: int) -> Principal | None:
    scheme, _, key = metadata.get("authorization", "").partition(" ")
    return Principal("key", key) if scheme == "Bearer" and key in ("one", "two") else None


@contextlib.asynccontextmanager
async def serving(canned: Any, **how: Any) -> AsyncIterator[GrpcTransport]:
    settings: dict[str, Any] = {
        "authenticate": permit_all,
        "base": "http://hub",
        "require_version": False,
        **how,
    }
    server = A2aGrpcServer(canned, host="127.0.0.1", port=0, **settings)
    port = await server.start()
    channel = grpc.aio.insecure_channel(f"127.0.0.1:{port}")
    try:
        yield GrpcTransport(channel, None)
    finally:
        await channel.close()
        await server.stop(0)


def sent(**more: Any) -> pb.SendMessageRequest:
    request = pb.SendMessageRequest()
    ParseDict({"message": MESSAGE, **more}, request)
    return request


def parameters(**values: str) -> ClientCallContext:
    named = {name.replace("_", "-"): value for name, value in values.items()}
    return ClientCallContext(service_parameters=named)


def reason_of(error: grpc.aio.AioRpcError) -> error_details_pb2.ErrorInfo:
    data = dict(error.trailing_metadata() or ())["grpc-status-details-bin"]
    status = status_pb2.Status.FromString(data)
    assert status.code == error.code().value[0] and status.message == error.details()
    info = error_details_pb2.ErrorInfo()
    assert status.details[0].Unpack(info)
    return info


CALLS: dict[str, tuple[str, Callable[[ClientTransport], Any], dict[str, Any]]] = {
    operations.SEND: (
        "send_message",
        lambda t: t.send_message(sent(configuration={"historyLength": 0})),
        {"message": MESSAGE, "configuration": {"historyLength": 0}},
    ),
    operations.GET: (
        "get_task",
        lambda t: t.get_task(pb.GetTaskRequest(id="t1", history_length=2)),
        {"id": "t1", "historyLength": 2},
    ),
    operations.LIST: (
        "list_tasks",
        lambda t: t.list_tasks(
            pb.ListTasksRequest(context_id="c1", status="TASK_STATE_WORKING", page_size=3)
        ),
        {"contextId": "c1", "status": "TASK_STATE_WORKING", "pageSize": 3},
    ),
    operations.CANCEL: (
        "cancel_task",
        lambda t: t.cancel_task(pb.CancelTaskRequest(id="t1")),
        {"id": "t1"},
    ),
    operations.PUSH_SET: (
        "create_push",
        lambda t: t.create_task_push_notification_config(
            ParseDict(PUSH, pb.TaskPushNotificationConfig())
        ),
        PUSH,
    ),
    operations.PUSH_GET: (
        "get_push",
        lambda t: t.get_task_push_notification_config(
            pb.GetTaskPushNotificationConfigRequest(task_id="t1", id="p1")
        ),
        {"taskId": "t1", "id": "p1"},
    ),
    operations.PUSH_LIST: (
        "list_push",
        lambda t: t.list_task_push_notification_configs(
            pb.ListTaskPushNotificationConfigsRequest(task_id="t1")
        ),
        {"taskId": "t1"},
    ),
    operations.PUSH_DELETE: (
        "delete_push",
        lambda t: t.delete_task_push_notification_config(
            pb.DeleteTaskPushNotificationConfigRequest(task_id="t1", id="p1")
        ),
        {"taskId": "t1", "id": "p1"},
    ),
    operations.CARD: (
        "card",
        lambda t: t.get_extended_agent_card(pb.GetExtendedAgentCardRequest()),
        {},
    ),
}


@pytest.mark.promise("J3")
async def test_every_sdk_operation_reaches_the_server_and_is_answered() -> None:
    canned = CannedServer()
    async with serving(canned) as client:
        for op, (_, call, expected) in CALLS.items():
            answer = await call(client)
            ctx, asked, request = canned.asked[-1]
            assert (asked, request) == (op, expected)
            assert (ctx.principal, ctx.agent, ctx.base) == (LOCAL, None, "http://hub")
            wanted = {k: v for k, v in ANSWERS[op].items() if v != ""}
            if op == operations.CARD:
                wanted["signatures"] = SIGNED
            assert (MessageToDict(answer) if answer is not None else {}) == wanted
    assert set(CALLS) == set(ANSWERS)


@pytest.mark.promise("J3")
async def test_stream_delivers_the_server_events_in_order() -> None:
    canned = CannedServer()
    async with serving(canned) as client:
        heard = [MessageToDict(event) async for event in client.send_message_streaming(sent())]
        again = client.subscribe(pb.SubscribeToTaskRequest(id="t1"))
        assert heard == EVENTS == [MessageToDict(event) async for event in again]
        assert [(op, request) for _, op, request in canned.asked] == [
            (operations.STREAM, {"message": MESSAGE}),
            (operations.SUBSCRIBE, {"id": "t1"}),
        ]
        for stream in canned.streams:
            await asyncio.wait_for(stream.closed.wait(), SOON)


async def test_metadata_and_tenant_set_the_request_context() -> None:
    canned = CannedServer()
    async with serving(canned, authenticate=with_key) as client:
        await client.send_message(
            sent(tenant="echo"),
            context=parameters(
                authorization="Bearer one",
                a2a_extensions="urn:a, urn:b,",
                idempotency_key="again-1",
            ),
        )
    ctx, _, request = canned.asked[0]
    assert ctx.principal == Principal("key", "one")
    assert ctx.version == "1.0"
    assert request == {"tenant": "echo", "message": MESSAGE}
    assert ctx.extensions == frozenset({"urn:a", "urn:b"})
    assert ctx.key == "again-1"


async def test_used_extensions_are_returned() -> None:
    async with serving(CannedServer()) as client:
        stub = A2AServiceStub(client.channel)
        metadata = [("a2a-extensions", "urn:a,urn:b")]
        for tenant, said in (("echo", "urn:b"), ("", None)):
            call = stub.SendMessage(sent(tenant=tenant), metadata=metadata)
            assert dict(await call.initial_metadata()).get("a2a-extensions") == said
            events = stub.SendStreamingMessage(sent(tenant=tenant), metadata=metadata)
            assert dict(await events.initial_metadata()).get("a2a-extensions") == said


async def test_idempotency_key_length_is_bounded() -> None:
    async with serving(CannedServer()) as client:
        with pytest.raises(sdk_errors.InvalidRequestError):
            await client.send_message(sent(), context=parameters(idempotency_key="k" * 257))


@pytest.mark.parametrize("authorization", [None, "Bearer three", "Basic one"])
async def test_unauthenticated_call_is_refused_before_reading(
    authorization: str | None,
) -> None:
    canned = CannedServer()
    async with serving(canned, authenticate=with_key) as client:
        call = client.channel.unary_unary("/lf.a2a.v1.A2AService/SendMessage")
        metadata = [("authorization", authorization)] if authorization else []
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await call(b"\xff", metadata=metadata)
        assert caught.value.code() == grpc.StatusCode.UNAUTHENTICATED
        assert reason_of(caught.value).reason == "UNAUTHENTICATED"
    assert not canned.asked


async def test_two_credentials_are_refused() -> None:
    async with serving(CannedServer(), authenticate=with_key) as client:
        call = client.channel.unary_unary("/lf.a2a.v1.A2AService/GetExtendedAgentCard")
        both = [("authorization", "Bearer one"), ("authorization", "Bearer two")]
        assert await call(b"", metadata=both[:1])
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await call(b"", metadata=both)
        assert caught.value.code() == grpc.StatusCode.UNAUTHENTICATED


@pytest.mark.promise("J3")
@pytest.mark.parametrize(
    ("version", "required", "taken"),
    [
        ("1.0", True, True),
        ("1.0.1", True, True),
        (None, False, True),
        (None, True, False),
        ("1.7", False, False),
        ("99.0", False, False),
        ("0.3", False, False),
    ],
)
async def test_service_accepts_only_its_version(
    version: str | None, required: bool, taken: bool
) -> None:
    async with serving(CannedServer(), require_version=required) as client:
        stub = A2AServiceStub(client.channel)
        metadata = [("a2a-version", version)] if version else []
        if taken:
            assert (await stub.SendMessage(sent(), metadata=metadata)).task.id == "t1"
            return
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await stub.SendMessage(sent(), metadata=metadata)
        assert caught.value.code() == grpc.StatusCode.FAILED_PRECONDITION
        info = reason_of(caught.value)
        assert (info.reason, info.domain) == ("VERSION_NOT_SUPPORTED", "a2a-protocol.org")
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await stub.SubscribeToTask(pb.SubscribeToTaskRequest(id="t"), metadata=metadata).read()
        assert caught.value.code() == grpc.StatusCode.FAILED_PRECONDITION


@pytest.mark.promise("J3")
async def test_every_reason_has_its_status_and_sdk_error() -> None:
    canned = CannedServer()
    async with serving(canned) as client:
        stub = A2AServiceStub(client.channel)
        for reason, row in errors.ERROR_CODES.items():
            canned.stop = A2aError(reason, "no: ö")
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await stub.GetTask(pb.GetTaskRequest(id="t"))
            assert caught.value.code().name == row[2]
            info = reason_of(caught.value)
            assert (info.reason, info.domain) == (reason, "a2a-protocol.org")
            assert caught.value.details() == "no: ö"
            theirs = sdk_errors.A2A_REASON_TO_ERROR.get(reason)
            if theirs is not None:
                with pytest.raises(theirs):
                    await client.get_task(pb.GetTaskRequest(id="t"))


async def test_invalid_fields_are_named_and_trailers_stay_small() -> None:
    wrong = [(f"message.parts[{n}]", "ü" * 5000) for n in range(100)]
    canned = CannedServer(A2aError(errors.INVALID_PARAMS, "ü" * 5000, violations=wrong))
    async with serving(canned) as client:
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await A2AServiceStub(client.channel).SendMessage(sent())
    assert caught.value.code() == grpc.StatusCode.INVALID_ARGUMENT
    data = dict(caught.value.trailing_metadata() or ())["grpc-status-details-bin"]
    bad = error_details_pb2.BadRequest()
    assert status_pb2.Status.FromString(data).details[1].Unpack(bad)
    assert bad.field_violations[1].field == "message.parts[1]"
    assert bad.field_violations[1].description.startswith("üü")


async def test_hub_error_has_a_status_and_an_internal_fault_shows_nothing() -> None:
    canned = CannedServer(Overloaded("too much is under way"))
    async with serving(canned) as client:
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await A2AServiceStub(client.channel).SendMessage(sent())
        assert caught.value.code() == grpc.StatusCode.RESOURCE_EXHAUSTED
        assert "too much is under way" in (caught.value.details() or "")
        canned.stop = RateLimited("key:ci has reached its rate limit", 2.5)
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await A2AServiceStub(client.channel).SendMessage(sent())
        assert caught.value.code() == grpc.StatusCode.RESOURCE_EXHAUSTED
        assert dict(caught.value.trailing_metadata() or ())["grpc-retry-pushback-ms"] == "2500"
        canned.stop = KeyError("select * from secrets")
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await A2AServiceStub(client.channel).SendMessage(sent())
        assert caught.value.code() == grpc.StatusCode.INTERNAL
        assert "secrets" not in (caught.value.details() or "")
        canned.stop = OwnedElsewhere("0123abcd")  # gRPC calls are not forwarded
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await A2AServiceStub(client.channel).SendMessage(sent(), timeout=60)
        assert caught.value.code() == grpc.StatusCode.UNAVAILABLE
        assert "another hub" in (caught.value.details() or "")


async def test_response_that_grpc_cannot_carry_is_an_agent_error(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(ANSWERS, operations.GET, {"id": "t", "status": {"timestamp": "yesterday"}})
    async with serving(CannedServer()) as client:
        with pytest.raises(sdk_errors.InvalidAgentResponseError):
            await client.get_task(pb.GetTaskRequest(id="t"))


async def test_undecodable_bytes_are_a_client_error() -> None:
    async with serving(CannedServer()) as client:
        call = client.channel.unary_unary("/lf.a2a.v1.A2AService/SendMessage")
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await call(b"\xff\xff")
        assert caught.value.code() == grpc.StatusCode.INVALID_ARGUMENT
        assert reason_of(caught.value).reason == "INVALID_PARAMS"


async def test_oversized_message_is_refused_and_one_at_the_limit_accepted() -> None:
    canned = CannedServer()
    async with serving(canned) as client:
        for size, fits in ((9 * 1024 * 1024, True), (11 * 1024 * 1024, False)):
            asked = sent()
            asked.message.parts[0].raw = bytes(size)
            call = A2AServiceStub(client.channel).SendMessage(asked)
            if fits:
                await call
                part = canned.asked[-1][2]["message"]["parts"][0]
                assert len(part["raw"]) == size // 3 * 4
                continue
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await call
            assert caught.value.code() == grpc.StatusCode.RESOURCE_EXHAUSTED
    assert len(canned.asked) == 1


async def test_compressed_message_is_refused_before_inflating() -> None:
    async with serving(CannedServer()) as client:
        call = client.channel.unary_unary("/lf.a2a.v1.A2AService/SendMessage")
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await call(bytes(1_000_000), compression=grpc.Compression.Gzip)
        assert caught.value.code() == grpc.StatusCode.UNIMPLEMENTED


async def test_client_disconnect_ends_its_stream() -> None:
    canned = CannedServer(endless={})
    async with serving(canned) as client:
        call = A2AServiceStub(client.channel).SendStreamingMessage(sent())
        for _ in EVENTS:
            await call.read()
        assert not canned.streams[0].closed.is_set()
        call.cancel()
        await asyncio.wait_for(canned.streams[0].closed.wait(), SOON)


async def test_unread_stream_events_are_not_buffered() -> None:
    big = {"message": {"messageId": "m", "parts": [{"text": "x" * 1_000_000}]}}
    canned = CannedServer(endless=big)
    async with serving(canned) as client:
        call = A2AServiceStub(client.channel).SendStreamingMessage(sent())
        await call.read()
        before = -1
        async with asyncio.timeout(SOON):
            while before != (before := canned.streams[0].given):
                await asyncio.sleep(0.3)  # nothing came in this time: it stands still
        assert before < len(EVENTS) + 20
        for _ in range(before + 5):  # and goes on when it is read
            await call.read()
        call.cancel()
        await asyncio.wait_for(canned.streams[0].closed.wait(), SOON)


async def test_unread_stream_is_cancelled(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(grpc_server, "UNREAD_SECONDS", 0.2)
    canned = CannedServer(
        endless={"message": {"messageId": "m", "parts": [{"text": "x" * 1_000_000}]}}
    )
    async with serving(canned, max_of_caller=1) as client:
        call = A2AServiceStub(client.channel).SendStreamingMessage(sent())
        await call.read()
        await asyncio.wait_for(canned.streams[0].closed.wait(), SOON)
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            while True:
                assert await asyncio.wait_for(call.read(), SOON)
        assert caught.value.code() == grpc.StatusCode.UNAVAILABLE
        assert (await client.get_task(pb.GetTaskRequest(id="t"))).id == "t1"


async def test_running_calls_are_bounded_per_principal() -> None:
    canned = CannedServer(endless={})
    async with serving(canned, authenticate=with_key, max_of_caller=2) as client:
        stub = A2AServiceStub(client.channel)

        def opened(key: str) -> Any:
            return stub.SendStreamingMessage(sent(), metadata=[("authorization", f"Bearer {key}")])

        calls = []
        for _ in range(2):
            calls.append(opened("one"))
            await calls[-1].read()
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await opened("one").read()
        assert caught.value.code() == grpc.StatusCode.RESOURCE_EXHAUSTED
        other = opened("two")
        assert (await other.read()).task.id == "t1"
        calls[0].cancel()
        await asyncio.wait_for(canned.streams[0].closed.wait(), SOON)
        assert (await opened("one").read()).task.id == "t1"


async def test_calls_over_the_limit_are_refused_at_once() -> None:
    canned = CannedServer(endless={})
    async with serving(canned, max_calls=1) as client:
        stub = A2AServiceStub(client.channel)
        held = stub.SendStreamingMessage(sent())
        await held.read()
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await stub.GetTask(pb.GetTaskRequest(id="t"))
        assert caught.value.code() == grpc.StatusCode.RESOURCE_EXHAUSTED


async def test_stopping_ends_the_streams_that_are_open() -> None:
    canned = CannedServer(endless={})
    server = A2aGrpcServer(
        canned,  # type: ignore[arg-type]
        permit_all,
        "127.0.0.1",
        0,
        base="http://hub",
        require_version=False,
    )
    async with grpc.aio.insecure_channel(f"127.0.0.1:{await server.start()}") as channel:
        call = A2AServiceStub(channel).SendStreamingMessage(sent())
        await call.read()
        async with asyncio.timeout(SOON):
            await server.stop(0.1)
            await canned.streams[0].closed.wait()
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                while True:
                    await call.read()
        assert caught.value.code() == grpc.StatusCode.UNAVAILABLE


def made(host: str, port: int, authenticate: Any = permit_all) -> A2aGrpcServer:
    return A2aGrpcServer(
        CannedServer(),  # type: ignore[arg-type]
        authenticate,
        host,
        port,
        base="http://hub",
        require_version=False,
    )


async def test_used_grpc_port_is_reported() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(ConfigError, match=rf"port {port} for gRPC.*grpc_port"):
            await made("127.0.0.1", port).start()


async def test_second_hub_cannot_share_a_grpc_port() -> None:
    first = made("127.0.0.1", 0)
    port = await first.start()
    with pytest.raises(ConfigError):
        await made("127.0.0.1", port).start()
    await first.stop(0)


async def test_public_grpc_address_needs_a_key() -> None:
    with pytest.raises(ConfigError, match="needs a key"):
        await made("0.0.0.0", 0).start()
    guarded = made("0.0.0.0", 0, with_key)
    assert await guarded.start()
    await guarded.stop(0)


async def _run(program: str) -> tuple[int, str, str]:
    child = await asyncio.create_subprocess_exec(
        sys.executable,
        "-c",
        textwrap.dedent(program),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    out, err = await asyncio.wait_for(child.communicate(), 60)
    assert child.returncode is not None
    return child.returncode, out.decode(), err.decode()


@pytest.mark.parametrize("missing", ["grpc", "google.protobuf"])
async def test_without_the_extra_the_message_says_how_to_install_it(missing: str) -> None:
    code, out, err = await _run(
        f"""
        import sys
        sys.modules[{missing!r}] = None
        import dragoman.a2a.server.http, dragoman.a2a.server.operations
        from dragoman.core.errors import ConfigError
        try:
            import dragoman.a2a.server.grpc_server
        except ConfigError as error:
            print(error)
        """
    )
    assert (code, err) == (0, "")
    assert "pip install 'dragoman-hub[grpc]'" in out and "grpc_port" in out


async def test_grpc_works_under_uvloop_beside_child_processes() -> None:
    pytest.importorskip("uvloop")
    code, out, err = await _run(
        """
        import asyncio, sys
        import grpc, uvloop
        from dragoman.a2a.server.grpc_server import A2aGrpcServer
        from dragoman.core.principal import Principal

        class Server:
            async def answer(self, ctx, op, request):
                child = await asyncio.create_subprocess_exec(sys.executable, "-c", "print(1)")
                return {"id": f"{request['id']}-{await child.wait()}"}

        async def main():
            canned = A2aGrpcServer(Server(), lambda *_: Principal("local", "local"), "127.0.0.1", 0,
                            base="http://hub", require_version=False)
            port = await canned.start()
            async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
                call = channel.unary_unary("/lf.a2a.v1.A2AService/GetTask")
                said = await asyncio.gather(*(call(b"\\x12\\x01%d" % n) for n in range(5)))
            await canned.stop(1)
            loop = asyncio.get_running_loop()
            print(said == [b"\\x0a\\x03%d-0" % n for n in range(5)], type(loop))

        uvloop.run(main())
        """
    )
    assert (code, err) == (0, "")
    assert out.endswith("True <class 'uvloop.Loop'>\n")
