"""Requests between hubs: their seals, and the responses of another hub."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from contextvars import copy_context
from dataclasses import dataclass
from hashlib import sha256

import pytest

from dragoman.app.build_cluster import HubClients
from dragoman.core.background import Work
from dragoman.core.cluster import OwnedElsewhere, prepay, take_prepayment
from dragoman.web import forwarding
from dragoman.web.forwarding import ClusterSecret, ForwardingApp, InternalApp
from dragoman.web.http.body_budget import BodyBudget
from dragoman.web.http.listener import HttpListener
from dragoman.web.http.request import ServerRequest
from dragoman.web.http.sockets import tcp_socket

BODY = b"a request"


def test_a_seal_is_good_once_for_its_receiver_and_its_body() -> None:
    ours, theirs = ClusterSecret(b"k" * 32), ClusterSecret(b"k" * 32)
    header, proof = ours.seal("aaaaaaaa", "bbbbbbbb", BODY)
    opened = theirs.open(header, "bbbbbbbb")
    assert opened is not None
    text, digest = opened
    assert theirs.prove(text) == proof
    assert digest == sha256(BODY).hexdigest()
    assert theirs.open(header, "bbbbbbbb") is None  # used
    assert theirs.open(ours.seal("aaaaaaaa", "bbbbbbbb", BODY)[0], "cccccccc") is None


def test_a_seal_of_another_secret_or_changed_text_is_refused() -> None:
    ours, other = ClusterSecret(b"k" * 32), ClusterSecret(b"x" * 32)
    header, proof = ours.seal("aaaaaaaa", "bbbbbbbb", BODY)
    assert other.open(header, "bbbbbbbb") is None
    assert other.prove(header.rpartition(" ")[0]) != proof
    assert ours.open(header.replace("aaaaaaaa", "cccccccc"), "bbbbbbbb") is None
    for wrong in ("", "1", " ", header[:-1], header + "0"):
        assert ours.open(wrong, "bbbbbbbb") is None


def test_an_old_seal_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    secret = ClusterSecret(b"k" * 32)
    header, _ = secret.seal("aaaaaaaa", "bbbbbbbb", BODY)
    later = time.time() + forwarding.SKEW_SECONDS + 1
    monkeypatch.setattr(time, "time", lambda: later)
    assert secret.open(header, "bbbbbbbb") is None


# --- responses of another hub ---------------------------------------------------------------------

EDGE, OWNER = "aaaaaaaa", "bbbbbbbb"


@dataclass
class TwoHubs:
    """What a hub knows of the other one."""

    mark: str
    port: int = 0
    lives: bool = True
    lease_secs: float = 0.2

    @property
    def id(self) -> str:
        return OWNER

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    @property
    def is_ended(self) -> bool:
        return False

    async def find_owner(self, mark: str) -> TwoHubs | None:
        return self if self.mark == EDGE and self.lives else None

    def list_others(self) -> list[TwoHubs]:
        return []

    async def wait_for_change(self, seconds: float) -> None:
        await asyncio.sleep(seconds)


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
            head = b"HTTP/1.1 200 OK\r\ncontent-length: 100\r\n"
            proof = b"".join(b"%b: %b\r\n" % one for one in request.extra)
            request.connection.write(head + proof + b"\r\nbegun")
        self.begun.set()
        await request.gone


@asynccontextmanager
async def run_hubs() -> AsyncIterator[tuple[TwoHubs, Slow, int]]:
    """Runs a hub that owns all requests, and one that gets them; yields what that one knows, the
    application of the first one, and the port."""
    edge, owner, clients, slow = TwoHubs(EDGE), TwoHubs(OWNER), HubClients(), Slow()
    internal = InternalApp(slow, owner, ClusterSecret(b"k" * 32), {})
    app = ForwardingApp(Elsewhere(), edge, ClusterSecret(b"k" * 32), clients.open)
    sockets = [tcp_socket("127.0.0.1", 0) for _ in range(2)]
    listeners = [HttpListener(internal, sockets[0]), HttpListener(app, sockets[1])]
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
    async with asyncio.timeout(10), run_hubs() as (_, _, port):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(b"HEAD /whole HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n")
        response = await reader.read()
        writer.close()
    assert response.startswith(b"HTTP/1.1 200") and response.endswith(b"\r\n\r\n")


@pytest.mark.parametrize("path", ["/stream", "/stalled", "/resumable"])
async def test_a_response_ends_with_the_hub_that_sends_it(
    path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The connection of a machine that was switched off stays open."""
    monkeypatch.setattr(forwarding, "LAST_SECONDS", 0.2)
    async with asyncio.timeout(10), run_hubs() as (edge, slow, port):
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
