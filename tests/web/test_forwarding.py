"""Requests between hubs: their seals, and the responses of another hub."""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from contextvars import copy_context
from dataclasses import dataclass

import msgspec
import pytest

from dragoman.app.build_cluster import HubClients
from dragoman.core.background import Work
from dragoman.core.body_budget import BodyBudget
from dragoman.core.cluster import OwnedElsewhere, prepay, take_prepayment
from dragoman.core.errors import Unreachable
from dragoman.core.logs import RepeatedFailure
from dragoman.web import forwarding
from dragoman.web.cluster_tls import build_tls, derive_certificate
from dragoman.web.forwarding import (
    PATH,
    PROTOCOL,
    ForwardedRequest,
    ForwardingApp,
    InternalApp,
    send_to_hub,
)
from dragoman.web.http.listener import HttpListener
from dragoman.web.http.request import ServerRequest
from dragoman.web.http.sockets import tcp_socket

KEY, OTHER_KEY = b"k" * 32, b"x" * 32


def test_hubs_derive_the_same_certificate() -> None:
    assert derive_certificate(KEY) == derive_certificate(KEY)
    assert derive_certificate(KEY)[0] != derive_certificate(OTHER_KEY)[0]


# --- the connection -------------------------------------------------------------------------------


async def send_raw(
    port: int, context: ssl.SSLContext | None, to: str, protocol: str = PROTOCOL
) -> bytes:
    """Sends a request to an internal listener, which must end the connection."""
    how = {"ssl": context, "server_hostname": "hub"} if context else {}
    reader, writer = await asyncio.open_connection("127.0.0.1", port, **how)  # type: ignore[arg-type]
    body = msgspec.msgpack.encode(ForwardedRequest("GET", b"/whole", [], None, b""))
    head = f"POST {PATH} HTTP/1.1\r\nhost: x\r\nx-dragoman-protocol: {protocol}\r\n"
    head += f"x-dragoman-to: {to}\r\nx-dragoman-from: {EDGE}\r\n"
    try:
        writer.write(f"{head}connection: close\r\ncontent-length: {len(body)}\r\n\r\n".encode())
        writer.write(body)
        return await reader.read()
    finally:
        writer.close()


async def test_only_hubs_with_the_secret_are_answered() -> None:
    ours, other = build_tls(KEY), build_tls(OTHER_KEY)
    nameless = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)  # has no certificate
    nameless.check_hostname, nameless.verify_mode = False, ssl.CERT_NONE
    careless = build_tls(OTHER_KEY).client
    careless.verify_mode = ssl.CERT_NONE
    async with asyncio.timeout(60), run_hubs() as (edge, _, _):
        answer = await send_raw(edge.port, ours.client, OWNER)
        assert answer.startswith(b"HTTP/1.1 200") and answer.endswith(b"whole")
        # Meant for another hub, whose address this one has by now.
        assert (await send_raw(edge.port, ours.client, "cccccccc")).startswith(b"HTTP/1.1 404")
        assert (await send_raw(edge.port, ours.client, OWNER, "9")).startswith(b"HTTP/1.1 404")
        with pytest.raises(ssl.SSLCertVerificationError):
            await send_raw(edge.port, other.client, OWNER)
        for context in (nameless, careless):
            with pytest.raises(ssl.SSLError):
                assert not await send_raw(edge.port, context, OWNER)
                raise ssl.SSLError("ended without an answer")
        with pytest.raises(ConnectionError):
            assert not await send_raw(edge.port, None, OWNER)
            raise ConnectionResetError


async def test_an_answer_without_the_secret_is_not_passed_on() -> None:
    """An attacker in the network answers instead of the hub."""
    asked: list[bytes] = []

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        asked.append(await reader.read(10_000))
        writer.write(f"HTTP/1.1 200 OK\r\nx-dragoman-hub: {OWNER}\r\n".encode())
        writer.write(b"content-length: 6\r\n\r\nforged")
        writer.close()

    clients = HubClients(build_tls(KEY).client)
    packed = ForwardedRequest("GET", b"/whole", [], None, b"")
    for context in (None, build_tls(OTHER_KEY).server):
        if context is not None:
            context.verify_mode = ssl.CERT_NONE
        server = await asyncio.start_server(answer, "127.0.0.1", 0, ssl=context)
        opened = clients.open(f"127.0.0.1:{server.sockets[0].getsockname()[1]}")
        with pytest.raises(Unreachable) as found:
            await send_to_hub(EDGE, OWNER, opened, packed, 10)
        assert not found.value.sent
        server.close()
    await clients.close()
    assert not [one for one in asked if b"dragoman" in one]  # no request was shown to it


# --- responses of another hub ---------------------------------------------------------------------

EDGE, OWNER = "aaaaaaaa", "bbbbbbbb"


@dataclass
class TwoHubs:
    """What a hub knows of the other one."""

    mark: str
    port: int = 0
    lives: bool = True
    has_stopped: bool = False
    lease_secs: float = 0.2
    renews: bool = False
    looks: int = 0
    last_look: int = 0
    """It has an heir after this one."""

    @property
    def id(self) -> str:
        return OWNER

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    @property
    def is_ended(self) -> bool:
        return not self.lives

    async def has_left(self, id: str) -> bool:
        return self.has_stopped

    async def find_owner(self, mark: str, *, is_fresh: bool = False) -> TwoHubs | None:
        return self if self.mark == EDGE and self.lives else None

    def list_others(self) -> list[TwoHubs]:
        return []

    async def wait_for_change(self, seconds: float) -> None:
        await asyncio.sleep(seconds)

    async def read_beat(self, id: str) -> object:
        self.looks += 1
        if self.looks == self.last_look:
            self.lives = False
        return self.looks if self.renews else 0


class Elsewhere:
    def admit(self, request: ServerRequest) -> bool:
        return True

    def answer(self, request: ServerRequest) -> Work[None] | None:
        raise OwnedElsewhere(OWNER)


class Slow:
    """Answers with the beginning of a response, and then nothing more."""

    def __init__(self) -> None:
        self.begun = asyncio.Event()

    def admit(self, request: ServerRequest) -> bool:
        return True

    def answer(self, request: ServerRequest) -> Work[None] | None:
        if request.path == "/whole":
            request.reply(200, [(b"content-type", b"text/plain")], b"whole")
            return None
        return self._stall(request)

    async def _stall(self, request: ServerRequest) -> None:
        if request.path in ("/stream", "/resumable"):
            request.start(200, [(b"content-type", b"text/event-stream")])
            await request.write(b"id: p-1\n" if request.path == "/resumable" else b"")
            await request.write(b"data: 1\n\n")
        else:
            length = b"100000" if request.path == "/long" else b"100"
            head = b"HTTP/1.1 200 OK\r\ncontent-length: " + length + b"\r\n"
            proof = b"".join(b"%b: %b\r\n" % one for one in request.extra)
            request.connection.write(head + proof + b"\r\nbegun")
        self.begun.set()
        self.end = request.connection.abort
        await request.gone


@asynccontextmanager
async def run_hubs() -> AsyncIterator[tuple[TwoHubs, Slow, int]]:
    """Runs a hub that owns all requests, and one that gets them; yields what that one knows, the
    application of the first one, and the port."""
    tls = build_tls(KEY)
    edge, owner, clients, slow = TwoHubs(EDGE), TwoHubs(OWNER), HubClients(tls.client), Slow()
    internal = InternalApp(slow, owner, {})
    app = ForwardingApp(Elsewhere(), edge, clients.open)
    sockets = [tcp_socket("127.0.0.1", 0) for _ in range(2)]
    listeners = [
        HttpListener(internal, sockets[0], tls=tls.server),
        HttpListener(app, sockets[1]),
    ]
    edge.port = sockets[0].getsockname()[1]
    for listener in listeners:
        await listener.start()
    try:
        yield edge, slow, sockets[1].getsockname()[1]
    finally:
        for listener in listeners:
            listener.stop_accepting()
            listener.abort()
        await clients.close()


CALL = b'{"jsonrpc":"2.0","id":7,"method":"tools/call"}'


async def test_a_forwarded_request_for_the_head_is_answered() -> None:
    async with asyncio.timeout(60), run_hubs() as (_, _, port):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(b"HEAD /whole HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n")
        response = await reader.read()
        writer.close()
    assert response.startswith(b"HTTP/1.1 200") and response.endswith(b"\r\n\r\n")


async def test_a_long_response_is_passed_on_as_it_arrives() -> None:
    async with asyncio.timeout(60), run_hubs() as (_, slow, port):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(b"GET /long HTTP/1.1\r\nhost: x\r\n\r\n")
        response = await reader.readuntil(b"begun")
        assert response.startswith(b"HTTP/1.1 200")
        slow.end()  # in the middle
        assert b"0\r\n\r\n" not in await reader.read()
        writer.close()


@pytest.mark.parametrize("path", ["/stream", "/stalled", "/resumable"])
async def test_a_response_ends_with_the_hub_that_sends_it(
    path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The connection of a machine that was switched off stays open."""
    monkeypatch.setattr(forwarding, "LAST_SECONDS", 0.2)
    monkeypatch.setattr(forwarding, "BODY_SECONDS", 0.2)
    async with asyncio.timeout(60), run_hubs() as (edge, slow, port):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        head = f"POST {path} HTTP/1.1\r\nhost: x\r\nconnection: close\r\nmcp-session-id: s\r\n"
        writer.write(head.encode() + b"content-length: %d\r\n\r\n" % len(CALL) + CALL)
        await slow.begun.wait()
        begun = await reader.readuntil(b"data: 1") if path != "/stalled" else b""
        edge.lives = False
        response = begun
        with suppress(ConnectionError):
            response += await reader.read()
        writer.close()
    if path == "/resumable":  # its client resumes it at the heir of the hub
        assert b'"id":7' not in response and not response.endswith(b"0\r\n\r\n")
    else:
        assert b'"id":7' in response and forwarding.LOST.encode() in response


def test_bytes_of_a_body_move_to_the_principal_of_a_forwarded_request() -> None:
    budget = BodyBudget(100)
    for _ in range(10):  # the first principal, none, has its share again each time
        assert budget.take(None, 40)
        budget.move(None, "anna", 40)
        assert not budget.take("anna", 20) and budget.take(None, 50)
        budget.give_back(None, 50)
        budget.give_back("anna", 40)
    assert budget.held == 0


def test_a_request_that_was_paid_elsewhere_is_not_charged_once() -> None:
    assert not take_prepayment()
    with prepay():
        assert take_prepayment() and not take_prepayment()
    with prepay():
        begun = copy_context()  # of work that outlasts the request
    assert not begun.run(take_prepayment) and not take_prepayment()


class Heir(Elsewhere):
    """Owns what the other hub has owned once that has ended."""

    def __init__(self, edge: TwoHubs) -> None:
        self._edge = edge

    def answer(self, request: ServerRequest) -> Work[None] | None:
        if self._edge.lives:
            return super().answer(request)
        request.reply(200, [(b"content-type", b"text/plain")], b"served by the heir")
        return None


@pytest.mark.parametrize("has_stopped", [True, False])
async def test_a_request_that_a_stopped_hub_has_not_taken_is_served_by_its_heir(
    has_stopped: bool,
) -> None:
    """A hub that stops answers all that it has taken; one that was killed may have taken it."""
    tls = build_tls(KEY)
    edge, clients = TwoHubs(EDGE, has_stopped=has_stopped), HubClients(tls.client)

    async def hang_up(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        edge.lives = False
        writer.transport.abort()

    owner = await asyncio.start_server(hang_up, "127.0.0.1", 0, ssl=tls.server)
    edge.port = owner.sockets[0].getsockname()[1]
    app = ForwardingApp(Heir(edge), edge, clients.open)
    listener = HttpListener(app, sock := tcp_socket("127.0.0.1", 0))
    port = sock.getsockname()[1]
    await listener.start()
    async with asyncio.timeout(60):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        head = b"POST /mcp HTTP/1.1\r\nhost: x\r\nconnection: close\r\ncontent-length: %d\r\n\r\n"
        writer.write(head % len(CALL) + CALL)
        response = await reader.read()
        writer.close()
    listener.stop_accepting()
    listener.abort()
    owner.close()
    await clients.close()
    said = b"served by the heir" if has_stopped else forwarding.LOST.encode()
    assert said in response, response


@pytest.mark.parametrize("renews", [True, False])
async def test_a_hub_that_lives_and_is_not_reached_is_not_waited_for(
    renews: bool, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """One that has died is, until it has an heir. The log has one line for many requests."""
    monkeypatch.setattr(forwarding, "_unreachable", {})
    edge = TwoHubs(EDGE, lease_secs=1.0, renews=renews, last_look=0 if renews else 3)
    clients = HubClients(build_tls(KEY).client)
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))  # and does not listen
        edge.port = unused.getsockname()[1]
        listener = HttpListener(
            ForwardingApp(Heir(edge), edge, clients.open), sock := tcp_socket("127.0.0.1", 0)
        )
        port = sock.getsockname()[1]
        await listener.start()

        async def get() -> bytes:
            async with asyncio.timeout(60):
                reader, writer = await asyncio.open_connection("127.0.0.1", port)
                writer.write(b"GET /x HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n")
                response = await reader.read()
                writer.close()
                return response

        response = await get()
        looks = edge.looks
        await asyncio.gather(*(get() for _ in range(5)))
        listener.stop_accepting()
        listener.abort()
    await clients.close()
    lines = [one.getMessage() for one in caplog.records if "cannot reach it" in one.getMessage()]
    assert len(lines) == renews, lines
    if renews:
        assert response.startswith(b"HTTP/1.1 503") and b"nothing was sent" in response, response
        assert looks == 2
    else:
        assert b"served by the heir" in response and looks == 3, response


async def test_a_hub_that_was_reached_meanwhile_is_lost_anew(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A second absence is logged, however long the first one lasted; one that flaps is not."""
    now = 0.0
    failure = RepeatedFailure(lambda: now)
    monkeypatch.setattr(forwarding, "_unreachable", {OWNER: failure})
    async with asyncio.timeout(60), run_hubs() as (edge, _, port):

        async def reach() -> None:
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(b"GET /whole HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n")
            assert (await reader.read()).endswith(b"whole")
            writer.close()

        lines = []
        for pause in (0.0, 1.0, forwarding.QUIET_SECONDS):
            now += pause
            await reach()
            now += 1.0
            caplog.clear()
            forwarding.log_unreachable(edge, Unreachable("no answer"))
            lines.append([one.getMessage() for one in caplog.records])
    text = f"hub {OWNER} lives, and this hub cannot reach it: no answer"
    assert lines == [[text], [], [text]]
