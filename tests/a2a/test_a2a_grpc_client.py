"""The gRPC client: where it connects, what it trusts, how it maps an agent's errors."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import grpc
import pytest
from a2a.types import a2a_pb2 as pb
from a2a.types.a2a_pb2_grpc import A2AServiceServicer, add_A2AServiceServicer_to_server
from google.protobuf import struct_pb2
from tests.a2a.scripted_agent import (
    WELL_KNOWN,
    Request,
    build_text_message,
    card_10,
    scripted_agent,
)
from tests.net.raw_server import a_client
from tests.net.test_http_tls import certificate

from dragoman.a2a.client import grpc_channels
from dragoman.a2a.client.client import A2aClient
from dragoman.a2a.client.dialect_probe import normalize_grpc_url
from dragoman.a2a.protocol.errors import A2aError
from dragoman.a2a.remote.credentials import AgentCredentials, CredentialHttpClient
from dragoman.core.errors import BadReply, TimedOut, Unreachable
from dragoman.core.secret_references import SecretResolver
from dragoman.core.secret_rules import Author
from dragoman.net.dialing import Resolve

SAID = {"message": build_text_message("hi")}

Handle = Callable[[Any], Any]


class Servicer(A2AServiceServicer):
    def __init__(self, handle: Handle) -> None:
        self.handle = handle

    async def SendMessage(self, request: Any, context: Any) -> Any:
        return await self.handle(context)

    async def GetTask(self, request: Any, context: Any) -> Any:
        await context.abort(grpc.StatusCode.NOT_FOUND, "no such task")


async def words(context: Any) -> Any:
    return pb.SendMessageResponse(
        message=pb.Message(message_id="m", role=pb.ROLE_AGENT, parts=[pb.Part(text="hello")])
    )


@asynccontextmanager
async def served(handle: Handle, credentials: Any = None) -> AsyncIterator[int]:
    server = grpc.aio.server()
    add_A2AServiceServicer_to_server(Servicer(handle), server)
    where = "127.0.0.1:0"
    if credentials is None:
        port = server.add_insecure_port(where)
    else:
        port = server.add_secure_port(where, credentials)
    await server.start()
    try:
        yield port
    finally:
        await server.stop(0)


@asynccontextmanager
async def client_of(
    address: str, *, private: bool = True, resolve: Resolve | None = None
) -> AsyncIterator[tuple[A2aClient, str]]:
    def handle(request: Request) -> None:
        if request.path == WELL_KNOWN:
            request.reply(200, card_10(address, "GRPC:1.0"))
        else:
            request.reply(404, {})

    async with scripted_agent(handle) as agent, a_client(resolve) if resolve else a_client() as net:
        http = net.open_configured(agent.url, allow_private=private)
        client = A2aClient(http, timeout=60, registered=agent.url)
        try:
            yield client, agent.url
        finally:
            await client.close()


def text_in(answer: Any) -> str:
    return str(answer["message"]["parts"][0]["text"])


async def test_grpc_client_resolves_names_and_checks_every_address() -> None:
    async def resolve(host: str, port: int) -> Sequence[str]:
        return {"good.test": ["127.0.0.1"], "metadata.test": ["169.254.169.254"]}[host]

    async with served(words) as port:
        async with client_of(f"good.test:{port}", resolve=resolve) as (client, url):
            assert text_in(await client.send_message(url, SAID)) == "hello"
        async with client_of(f"metadata.test:{port}", resolve=resolve) as (client, url):
            with pytest.raises(Unreachable, match=r"169\.254\.169\.254") as caught:
                await client.send_message(url, SAID)
            assert not caught.value.sent
        async with client_of(f"127.0.0.1:{port}", private=False) as (client, url):
            with pytest.raises(Unreachable, match="allow_private = true"):
                await client.send_message(url, SAID)


async def test_grpc_tls_is_verified_by_the_name_in_the_card(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def resolve(host: str, port: int) -> Sequence[str]:
        return ["127.0.0.1"]

    certificate(tmp_path, "good.test")
    pair = (tmp_path / "key.pem").read_bytes(), (tmp_path / "cert.pem").read_bytes()
    monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "cert.pem"))
    grpc_channels._load_roots.cache_clear()
    try:
        async with served(words, grpc.ssl_server_credentials([pair])) as port:
            async with client_of(f"grpcs://good.test:{port}", resolve=resolve) as (client, url):
                assert text_in(await client.send_message(url, SAID)) == "hello"
            async with client_of(f"grpcs://other.test:{port}", resolve=resolve) as (client, url):
                with pytest.raises(Unreachable):
                    await client.send_message(url, SAID)
    finally:
        grpc_channels._load_roots.cache_clear()


async def test_credentials_that_a_grpc_agent_repeats_are_masked(tmp_path: Path) -> None:
    async def repeat(context: Any) -> Any:
        sent = dict(context.invocation_metadata())["authorization"]
        fields = struct_pb2.Struct(fields={"sent": struct_pb2.Value(string_value=sent)})
        data = pb.Part(data=struct_pb2.Value(struct_value=fields))
        return pb.SendMessageResponse(
            message=pb.Message(
                message_id="m", role=pb.ROLE_AGENT, parts=[pb.Part(text=f"debug: {sent}"), data]
            )
        )

    secrets = SecretResolver({"DRAGOMAN_AGENT_A": "canary-8d31f0"}, tmp_path)
    credentials = AgentCredentials("a", "env:DRAGOMAN_AGENT_A", {}, secrets, author=Author.OWNER)
    async with served(repeat) as port, client_of(f"127.0.0.1:{port}") as (plain, url):
        http = CredentialHttpClient(plain._http, credentials)
        client = A2aClient(http, credentials.headers, timeout=60, registered=url)
        answer = await client.send_message(url, SAID)
        await client.close()
    parts = answer["message"]["parts"]
    assert parts[0]["text"] == "debug: Bearer ***" and "canary" not in str(parts)
    assert "Bearer ***" in str(parts[1])


@pytest.mark.parametrize(
    ("code", "kind"),
    [
        (grpc.StatusCode.INVALID_ARGUMENT, A2aError),
        (grpc.StatusCode.INTERNAL, A2aError),
        (grpc.StatusCode.UNAVAILABLE, Unreachable),
        (grpc.StatusCode.CANCELLED, Unreachable),
        (grpc.StatusCode.DEADLINE_EXCEEDED, TimedOut),
        (grpc.StatusCode.UNIMPLEMENTED, A2aError),
    ],
)
async def test_grpc_status_maps_to_its_error(code: Any, kind: type[Exception]) -> None:
    async def fail(context: Any) -> None:
        await context.abort(code, "failed to connect to all addresses of the database")

    async with served(fail) as port, client_of(f"127.0.0.1:{port}") as (client, url):
        with pytest.raises(kind) as caught:
            await client.send_message(url, SAID)
        if isinstance(caught.value, Unreachable):
            assert caught.value.sent, "it may have been done"


async def test_unavailable_operation_does_not_disable_the_agent() -> None:
    begun, refused = asyncio.Event(), asyncio.Event()

    async def answer(context: Any) -> Any:
        if begun.is_set():
            await context.abort(grpc.StatusCode.UNAVAILABLE, "not now")
        begun.set()
        await refused.wait()
        return pb.SendMessageResponse(message=pb.Message(message_id="m", role=pb.ROLE_AGENT))

    async with served(answer) as port, client_of(f"127.0.0.1:{port}") as (client, url):
        slow = asyncio.ensure_future(client.send_message(url, SAID))
        await asyncio.wait_for(begun.wait(), 60)
        with pytest.raises(Unreachable):
            await client.send_message(url, SAID)
        refused.set()
        assert (await asyncio.wait_for(slow, 60))["message"]["messageId"] == "m"


async def test_channel_is_not_closed_during_a_call(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(grpc_channels, "MAX_CHANNELS", 2)
    begun, released = asyncio.Event(), asyncio.Event()
    slow_at = 0

    async def answer(context: Any) -> Any:
        if slow_at:
            begun.set()
            await released.wait()
        return await words(context)

    async with AsyncExitStack() as stack:
        ports = [await stack.enter_async_context(served(answer)) for _ in range(5)]

        def handle(request: Request) -> None:
            place, _, rest = request.path.lstrip("/").partition("/")
            if place.isdigit() and f"/{rest}" == WELL_KNOWN:
                request.reply(200, card_10(f"127.0.0.1:{ports[int(place)]}", "GRPC:1.0"))
            else:
                request.reply(404, {})

        agent = await stack.enter_async_context(scripted_agent(handle))
        net = await stack.enter_async_context(a_client())
        client = A2aClient(net.open_configured(agent.url, allow_private=True), timeout=60)
        stack.push_async_callback(client.close)

        async def send(n: int) -> str:
            return text_in(await client.send_message(f"{agent.url}/{n}", SAID))

        slow_at = 1
        slow = asyncio.create_task(send(0))
        await asyncio.wait_for(begun.wait(), 60)
        slow_at = 0
        for n in range(1, 5):
            assert await send(n) == "hello"
            assert not slow.done()
        channels = client._channels
        assert channels is not None and len(channels._channels) == 2
        released.set()
        assert await asyncio.wait_for(slow, 60) == "hello"
        # With calls on all of them there are more, for as long as these last.
        released.clear()
        slow_at = 1
        calls = [asyncio.create_task(send(n)) for n in range(5)]
        async with asyncio.timeout(60):
            while sum(one.calls for one in channels._channels.values()) < 5:
                await asyncio.sleep(0.01)
        released.set()
        assert await asyncio.wait_for(asyncio.gather(*calls), 60) == ["hello"] * 5
        async with asyncio.timeout(60):
            while len(channels._channels) > 2:
                await asyncio.sleep(0.01)
        # A channel closed because its agent is removed says so; no call is cancelled for it.
        begun.clear()
        released.clear()
        slow = asyncio.create_task(send(0))
        await asyncio.wait_for(begun.wait(), 60)
        await client.close()
        with pytest.raises(Unreachable, match="connection was closed") as caught:
            await asyncio.wait_for(slow, 60)
        assert caught.value.sent
        slow = asyncio.create_task(send(0))
        begun.clear()
        await asyncio.wait_for(begun.wait(), 60)
        slow.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asyncio.wait_for(slow, 60)


async def test_silent_or_oversized_grpc_agent_fails() -> None:
    large = False

    async def hang(context: Any) -> Any:
        if not large:
            await asyncio.Event().wait()
        text = "x" * (11 << 20)
        message = pb.Message(message_id="m", role=pb.ROLE_AGENT, parts=[pb.Part(text=text)])
        return pb.SendMessageResponse(message=message)

    async with served(hang) as port, client_of(f"127.0.0.1:{port}") as (client, url):
        with pytest.raises(TimedOut):
            await client.send_message(url, SAID, timeout=0.2)
        large = True
        with pytest.raises((A2aError, BadReply), match="larger than max"):
            await client.send_message(url, SAID)


@pytest.mark.parametrize(
    ("said", "found_at", "url"),
    [
        ("a.example:50051", "http://a.example/card", "http://a.example:50051"),
        ("a.example:50051", "https://a.example/card", "https://a.example:50051"),
        ("a.example:443", "http://a.example/card", "https://a.example:443"),
        ("grpc://a.example:9000", "https://a.example/card", "http://a.example:9000"),
        ("grpcs://a.example", "http://a.example/card", "https://a.example"),
        ("dns:///a.example:9000", "http://a.example/card", "http://a.example:9000"),
        ("[::1]:9000", "http://[::1]/card", "http://[::1]:9000"),
        ("https://a.example:9000/x", "http://a.example/card", "https://a.example:9000"),
    ],
)
def test_grpc_address_on_a_card_is_parsed_in_all_forms(said: str, found_at: str, url: str) -> None:
    assert normalize_grpc_url(said, found_at) == url
