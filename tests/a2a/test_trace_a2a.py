"""Traces of A2A clients are read in every dialect and binding, and a task has one trace."""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
from collections.abc import AsyncIterator, Mapping
from typing import Any

import grpc
import pytest
from a2a.client.client import ClientCallContext
from a2a.client.transports.grpc import GrpcTransport
from a2a.compat.v0_3.grpc_transport import CompatGrpcTransport
from a2a.types import a2a_pb2 as pb
from google.protobuf.json_format import ParseDict
from tests.a2a.task_builders import build_registry
from tests.live.a2a_hub import REST03, REST10, SEND, V01, V03, V10, DialectBinding
from tests.permissive_hub import build_permissive_hub
from tests.web.mcp_http_fixture import Sources

from dragoman.a2a.config import A2aSettings
from dragoman.a2a.server.card_service import CardService
from dragoman.a2a.server.grpc_server import A2aGrpcServer
from dragoman.a2a.server.http import A2aHttpTransport
from dragoman.a2a.server.operations import A2aServer
from dragoman.a2a.server.push_delivery import PushNotifier
from dragoman.a2a.server.routing import MessageRouter
from dragoman.core.agent_tool import build_agent_tool
from dragoman.core.bus import Bus
from dragoman.core.call import FORM, Call, Question, Result
from dragoman.core.call_chains import RunningCall
from dragoman.core.catalog import Catalog, admit_all
from dragoman.core.cluster import SINGLE_HUB, ClusterMember
from dragoman.core.hub import Hub
from dragoman.core.principal import Principal
from dragoman.core.question_handles import QuestionHandles
from dragoman.core.tool import DEFAULT_TRAITS, AgentFacts, Tool, accept_anything
from dragoman.core.trace import Trace
from dragoman.guards.questions import Questions
from dragoman.stores.tasks import MemoryTaskStore
from dragoman.web.api import Api
from dragoman.web.app import PathMount, TcpApp
from dragoman.web.auth import AllowedNames, Authenticator
from dragoman.web.http.listener import HttpListener
from dragoman.web.peer_process import ALONE

PARENT = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
ID = PARENT[3:35]
BINDINGS = (V01, V03, REST03, V10, REST10)
ANN = Principal("key", "ann")


class Mirror:
    """The agent: remembers how it was called, and asks once where it is to."""

    traits = DEFAULT_TRAITS
    name = "mirror"

    def __init__(self) -> None:
        self.calls: list[Call] = []

    async def run(self, call: Call) -> Result:
        self.calls.append(call)
        if call.arguments.get("message") == "ask" and call.answers is None:
            form = Question(FORM, {"message": "who?", "requestedSchema": {"type": "object"}})
            return Result(questions={"q": form}, handle="h")
        return Result(content=[{"type": "text", "text": "done"}])


class Nowhere:
    async def request(self, *args: Any, **how: Any) -> Any:
        raise AssertionError("nothing is sent")


async def _nothing_wrong(url: str) -> str | None:
    return None


class HubRig:
    def __init__(self, hub: Hub, agent: Mirror, port: int, channel: Any) -> None:
        self.hub = hub
        self.agent = agent
        self.port = port
        self.channel = channel

    def start_call(self) -> RunningCall:
        """A running call of another principal."""
        call = Call(
            principal=ANN,
            tool=Tool(name="far.run", alias="far", remote_name="run", target=self.agent),
            requested_name="far.run",
            arguments={},
            trace=self.hub.chains.start_trace(ANN, "far.run", "far", None),
            door="test",
        )
        return self.hub.chains.enter(call)

    async def post(self, path: str, body: Any, headers: Mapping[str, str]) -> Any:
        data = json.dumps(body).encode()
        lines = [f"POST {path} HTTP/1.1", "Host: localhost", "Content-Type: application/json"]
        lines += [f"Content-Length: {len(data)}", "Connection: close"]
        lines += [f"{name}: {value}" for name, value in headers.items()]
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
        writer.write("\r\n".join([*lines, "", ""]).encode() + data)
        try:
            answer = await asyncio.wait_for(reader.read(), 60)
        finally:
            writer.close()
        head, _, found = answer.partition(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 200"), answer
        return json.loads(found)

    async def send(
        self, binding: DialectBinding, metadata: Mapping[str, Any], headers: Mapping[str, str]
    ) -> Trace:
        params = binding.params("hi")
        if metadata:
            params["message"]["metadata"] = dict(metadata)
        _, path, body, own = binding.request(SEND, params)
        answer = await self.post(path, body, {**own, **headers})
        assert "error" not in answer, answer
        return self.agent.calls[-1].trace


@contextlib.asynccontextmanager
async def run_rig(cluster: ClusterMember = SINGLE_HUB) -> AsyncIterator[HubRig]:
    settings = A2aSettings(enabled=True)
    catalog, store, agent = Catalog(review=admit_all), MemoryTaskStore(), Mirror()
    stages = [Questions(QuestionHandles(bytes(32), 60))]
    hub = build_permissive_hub(catalog, Bus(), stages, cluster=cluster)
    facts = AgentFacts(name="mirror", description="")
    catalog.offer("mirror", [build_agent_tool(agent, facts, "dragoman_agent_", accept_anything)])
    tasks = build_registry(store)
    targets = MessageRouter(hub, "mirror")
    cards = CardService(targets, settings, dict)
    push = PushNotifier(tasks, store, Nowhere(), settings, check=_nothing_wrong)
    a2a_server = A2aServer(hub, tasks, targets, cards, push, 60)
    http = A2aHttpTransport(a2a_server, settings, lambda request: "http://localhost")
    sock = socket.create_server(("127.0.0.1", 0))
    sock.setblocking(False)
    auth = Authenticator(None, lambda key: None, lambda: False)
    under = [PathMount("/a2a", http, http.is_card)]
    names = AllowedNames("127.0.0.1", None, [], [])
    listener = HttpListener(TcpApp(auth, names, {}, Api(hub, Sources()), under, peers=ALONE), sock)
    await listener.start()
    known = Principal("key", "one")
    server = A2aGrpcServer(
        a2a_server, lambda *_: known, "127.0.0.1", 0, base="http://localhost", require_version=False
    )
    where = f"127.0.0.1:{await server.start()}"
    try:
        async with grpc.aio.insecure_channel(where) as channel:
            yield HubRig(hub, agent, sock.getsockname()[1], channel)
    finally:
        a2a_server.close()
        await push.close()
        await server.stop(0)
        await listener.drain(0.5)
        listener.abort()


@pytest.mark.promise("Q6")
@pytest.mark.parametrize("binding", BINDINGS, ids=str)
async def test_trace_is_continued_in_every_dialect_and_binding(binding: DialectBinding) -> None:
    async with run_rig() as here:
        assert (await here.send(binding, {"traceparent": PARENT}, {})).id == ID
        assert (await here.send(binding, {"X-OpenStarry-Trace-ID": ID}, {})).id == ID
        assert (await here.send(binding, {}, {"Traceparent": PARENT})).id == ID
        assert (await here.send(binding, {}, {"X-OpenStarry-Trace-ID": ID})).id == ID
        assert (await here.send(binding, {"other": 1}, {"Traceparent": PARENT})).id == ID
        other = PARENT.replace(ID, "5e" * 16)
        assert (await here.send(binding, {"traceparent": other}, {"traceparent": PARENT})).id != ID
        first, second = (
            await here.send(binding, {}, {}),
            await here.send(binding, {"traceparent": 1}, {}),
        )
        assert len({ID, first.id, second.id}) == 3


@pytest.mark.promise("Q6", "Q7")
@pytest.mark.parametrize("binding", BINDINGS, ids=str)
async def test_returning_message_joins_the_call_it_was_sent_for(binding: DialectBinding) -> None:
    async with run_rig() as here:
        flight = here.start_call()
        for metadata, headers in (
            (flight.trace.build_context(), {}),
            ({}, flight.trace.build_headers()),
            ({"traceparent": PARENT}, flight.trace.build_headers()),  # its agent's library was busy
        ):
            trace = await here.send(binding, metadata, headers)
            assert trace.parent is flight and trace.chain == ("far.run",)
            assert trace.id == flight.trace.id and trace.origin == "key:ann"


@pytest.mark.promise("Q6", "Q7")
@pytest.mark.parametrize("body", ["message", "params"])
async def test_trace_in_request_metadata_is_read(body: str) -> None:
    async with run_rig() as here:
        flight = here.start_call()
        params = V10.params("hi")
        params["metadata"] = flight.trace.build_context()
        params["message"]["metadata"] = {"own": 1} if body == "message" else {}
        _, path, message, own = V10.request(SEND, params)
        await here.post(path, message, own)
        assert here.agent.calls[-1].trace.parent is flight


@pytest.mark.promise("Q6", "Q7")
@pytest.mark.parametrize(
    ("path", "body"),
    [
        (
            "/a2a/tasks/send",
            {"message": {"role": "user", "parts": [{"type": "text", "text": "x"}]}},
        ),
        ("/a2a", {"content": {"type": "text", "text": "x"}, "role": "user"}),
    ],
)
async def test_trace_is_read_on_legacy_routes(path: str, body: Any) -> None:
    async with run_rig() as here:
        flight = here.start_call()
        await here.post(path, body, flight.trace.build_headers())
        assert here.agent.calls[-1].trace.parent is flight


@pytest.mark.promise("Q6", "Q7")
@pytest.mark.parametrize("transport", [GrpcTransport, CompatGrpcTransport])
async def test_trace_is_read_from_both_kinds_of_grpc_metadata(transport: Any) -> None:
    async with run_rig() as here:
        client = transport(here.channel, None)
        flight = here.start_call()

        async def send(metadata: Mapping[str, Any], headers: Mapping[str, str]) -> Trace:
            message = {"messageId": "m", "role": "ROLE_USER", "parts": [{"text": "hi"}]}
            given = {**message, "metadata": dict(metadata)}
            request = ParseDict({"message": given}, pb.SendMessageRequest())
            context = ClientCallContext(service_parameters=dict(headers))
            await asyncio.wait_for(client.send_message(request, context=context), 60)
            return here.agent.calls[-1].trace

        assert (await send(flight.trace.build_context(), {})).parent is flight
        assert (await send({}, flight.trace.build_headers())).parent is flight
        assert (await send({}, {"traceparent": PARENT})).id == ID
        assert (await send({}, {})).parent is None


@pytest.mark.promise("Q6")
async def test_answer_to_a_question_stays_in_the_trace_of_its_task() -> None:
    async with run_rig() as here:
        params = V10.params("ask")
        _, path, body, own = V10.request(SEND, params)
        task = (await here.post(path, body, {**own, "traceparent": PARENT}))["result"]["task"]
        _, path, body, own = V10.request(SEND, V10.params("Ann", task=task["id"]))
        other = PARENT.replace(ID, "5e" * 16)
        await here.post(path, body, {**own, "traceparent": other})
        assert [call.trace.id for call in here.agent.calls] == [ID, ID]
        assert here.agent.calls[1].answers is not None
