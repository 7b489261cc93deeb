"""Client input and its limits: pipelined requests, body framing, and bodies that share a budget."""

from __future__ import annotations

import asyncio
import gc
import json
import socket
from contextlib import suppress
from contextvars import ContextVar
from itertools import pairwise

import pytest
from tests.web import mcp_http_fixture
from tests.web.mcp_http_fixture import ALICE, BOB
from tests.web.test_listener import (
    JSON,
    PING,
    HubRig,
    call,
    get,
    kept,
    parsed,
    post,
    run_listener_rig,
)

from dragoman.core import body_budget, read_pacing
from dragoman.core.background import Work
from dragoman.core.body_budget import BodyBudget
from dragoman.web.http import http1
from dragoman.web.http.listener import HttpListener
from dragoman.web.http.request import ServerRequest
from dragoman.wire.http import JSON_HEADERS

CHUNKED = b"Transfer-Encoding: chunked"


async def read_all(here: HubRig, request: bytes) -> bytes:
    reader, writer = await here.connect()
    writer.write(request)
    answer = b""
    async with asyncio.timeout(60):
        with suppress(ConnectionResetError):
            answer = await reader.read()
    writer.close()
    return answer


# --- one request behind the other


async def test_every_pipelined_request_is_answered_in_order() -> None:
    pings = [PING.replace(b'"id":1', b'"id":%d' % number) for number in range(100)]
    asked = b"".join(kept(post("/mcp", ping, JSON)) for ping in pings)
    async with run_listener_rig() as here:
        reader, writer = await here.connect()
        writer.write(kept(post("/mcp", call(), JSON)) + asked + get("/healthz"))
        await asyncio.wait_for(here.slow.running.wait(), 60)
        here.slow.go.set()
        async with asyncio.timeout(60):
            answers = await reader.read()
        writer.close()
    assert answers.index(b'"text":"went"') < answers.index(b'"id":0,')
    places = [answers.index(b'"id":%d,' % number) for number in range(100) if number != 1]
    assert places == sorted(places) and answers.endswith(b"ok\n")


async def test_malformed_pipelined_request_is_refused_after_the_valid_ones() -> None:
    async with run_listener_rig() as here:
        for bad, status in (
            (b"no HTTP\r\n\r\n", b"400"),
            (b"CONNECT a:1 HTTP/1.1\r\n\r\n", b"405"),
        ):
            answers = await read_all(here, kept(get("/healthz")) * 3 + bad + get("/healthz"))
            assert answers.count(b"HTTP/1.1 200 ") == 3
            assert answers.rindex(b"ok\n") < answers.index(b"HTTP/1.1 " + status)


class Mirror:
    """Answers with what it was asked."""

    def admit(self, request: ServerRequest) -> bool:
        return True

    def answer(self, request: ServerRequest) -> Work[None] | None:
        fields = sorted((name.decode(), value.decode()) for name, value in request.fields.items())
        seen = [request.method, request.path, request.query.decode(), fields]
        seen += [sorted(map(bytes.decode, request.repeated)), request.body.decode()]
        request.fields.clear()  # is its own
        request.reply(200, JSON_HEADERS, json.dumps(seen).encode())
        return None


def spell(body: bytes, length: bytes = b"", more: bytes = b"", target: bytes = b"/a?b") -> bytes:
    head = b"POST %b HTTP/1.1\r\nHost: hub\r\n%bContent-Length: %b\r\nX-Last: 1\r\n\r\n%b"
    return head % (target, more, length or b"%d" % len(body), body)


SERVED = (
    *[spell(b"one")] * 3,
    spell(b"three and more"),
    spell(b""),
    spell(b"one", b"3"),
    *[spell(b"one", more=b"X-More: 2\r\n")] * 2,
    spell(b"one", target=b"/other"),
    *[spell(spell(b"one"))] * 2,
    *[spell(b"x" * 20_000)] * 2,
    *[spell(b"one", more=b"X-Twice: 1\r\nX-Twice: 2\r\n")] * 2,
    b"GET /a HTTP/1.1\r\nHost: hub\r\n\r\n",
    b"POST /a HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n3\r\none\r\n0\r\n\r\n",
    *[spell(b"one")] * 2,
)
REFUSED = (
    spell(b"one", b"+3"),
    spell(b"one", b"3\r\nContent-Length: 3"),
    spell(b"one", more=b"Transfer-Encoding: chunked\r\n"),
)


async def exchange(port: int, *requests: bytes) -> list[bytes]:
    """Sends each request when the one before it was answered; returns the responses."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    answers = []
    async with asyncio.timeout(60):
        for request in requests:
            writer.write(request)
            head = await reader.readuntil(b"\r\n\r\n")
            length = int(head.lower().partition(b"content-length: ")[2].split(b"\r")[0])
            answers.append(head + await reader.readexactly(length))
    writer.close()
    return answers


async def test_repeated_heads_are_read_as_the_parser_reads_them() -> None:
    listener = await serve(Mirror())
    port = listener._sock.getsockname()[1]
    together = await exchange(port, *SERVED)
    assert together == [(await exchange(port, one))[0] for one in SERVED]
    for bad in REFUSED:
        *_, refusal = await exchange(port, spell(b"one"), spell(b"one"), bad)
        assert refusal.startswith(b"HTTP/1.1 400 ")
    listener.stop_accepting()


async def test_queued_input_counts_against_the_limit() -> None:
    async with mcp_http_fixture.run_mcp_rig(BodyBudget(100)) as here:
        reader, writer = await asyncio.open_connection("127.0.0.1", here.port)
        ping = json.dumps(mcp_http_fixture.request(7, "ping")).encode()
        head = b"POST /mcp HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer alice\r\n"
        lines = b"Content-Type: application/json\r\nAccept: */*\r\nContent-Length: %d\r\n\r\n"
        waits = json.dumps(mcp_http_fixture.call(1, waits=True)).encode()
        writer.write(head + lines % len(waits) + waits + (head + lines % len(ping) + ping) * 100)
        await asyncio.wait_for(here.work.running.wait(), 60)
        here.work.go.set()
        async with asyncio.timeout(60):
            answers = await reader.read()
        writer.close()
        assert 16 <= answers.count(b'"id":7') < 100
        assert b"HTTP/1.1 503 " in answers[answers.rindex(b'"id":7') :]


# --- what surrounds a body


@pytest.mark.promise("N1")
async def test_trailers_extensions_and_tiny_chunks_are_bounded() -> None:
    head = post("/mcp", b"", JSON, "Authorization: Bearer secret")
    head = head.replace(b"Content-Length: 0", CHUNKED)
    async with run_listener_rig("secret") as here:
        for excess in (
            b"5\r\nabcde\r\n" * 100_000 + b"0\r\nX: " + b"x" * 70_000,
            b"0\r\n" + b"X: y\r\n" * 15_000,
            b"1;" + b"x" * 70_000,
            b"1\r\na\r\n" * 100_000,
        ):
            # The connection may be reset before the answer is read: there was more to come.
            assert (await read_all(here, head + excess))[9:12] in (b"413", b"")
            answers = await read_all(here, head.replace(b"secret", b"wrong") + excess)
            assert answers.count(b"HTTP/1.1 ") <= 1 and answers[9:12] in (b"401", b"")
        tiny = b"".join(b"1\r\n%c\r\n" % byte for byte in PING + b" " * 10_000)
        ended = tiny + b"0\r\nX: y\r\n\r\n"
        assert (await read_all(here, head + ended)).endswith(b'"result":{}}')


async def test_tiny_chunks_are_parsed_without_blocking_the_loop() -> None:
    """However much of it the loop has read at once."""

    class Taker:
        def admit(self, request: ServerRequest) -> bool:
            return True

        async def answer(self, request: ServerRequest) -> None:
            request.reply(200, [], str(len(request.body)).encode())

    listener, steps = await serve(Taker()), [0]
    reader, writer = await asyncio.open_connection(*listener._sock.getsockname())

    async def watch() -> None:
        while True:
            sizes = [one._size for one in listener._connections]
            steps.append(sizes[0] if sizes else 0)
            await asyncio.sleep(0)

    watching = asyncio.ensure_future(watch())
    head = b"POST / HTTP/1.1\r\nhost: localhost\r\ntransfer-encoding: chunked\r\n\r\n"
    writer.write(head + b"2\r\nab\r\n" * 100_000 + b"0\r\n\r\n")
    async with asyncio.timeout(60):
        assert (await reader.readuntil(b"200000")).startswith(b"HTTP/1.1 200 ")
    watching.cancel()
    writer.close()
    listener.stop_accepting()
    largest = max(after - before for before, after in pairwise(steps))
    assert largest < 2 * 2 * (http1.PIECES_A_TURN + http1.SLICE_BYTES // 7)


async def test_requests_share_a_task_but_no_context_variable() -> None:
    seen: list[tuple[int, str]] = []
    secret = ContextVar("secret", default="unset")

    class Taker:
        def admit(self, request: ServerRequest) -> bool:
            return True

        async def answer(self, request: ServerRequest) -> None:
            seen.append((id(asyncio.current_task()), secret.get()))
            if request.path == "/set":
                secret.set("of another request")
            if request.path == "/cancelled":
                asyncio.current_task().cancel()  # type: ignore[union-attr]
            request.reply(200, [], b"done")

    listener = await serve(Taker())
    reader, writer = await asyncio.open_connection(*listener._sock.getsockname())
    for path in ("first", "second", "set", "third", "fourth", "cancelled", "fifth"):
        writer.write(f"GET /{path} HTTP/1.1\r\nhost: localhost\r\n\r\n".encode())
        async with asyncio.timeout(60):
            assert (await reader.readuntil(b"done")).startswith(b"HTTP/1.1 200 ")
    writer.close()
    listener.stop_accepting()
    assert {value for _, value in seen} == {"unset"}
    first, second, sets, third, fourth, cancelled, _ = (task for task, _ in seen)
    assert first == second == sets and third == fourth == cancelled


async def test_connection_leaves_no_task_and_no_reference_cycle() -> None:
    running = asyncio.Event()
    ended: list[str] = []

    class Taker:
        def admit(self, request: ServerRequest) -> bool:
            return True

        def answer(self, request: ServerRequest) -> Work[None]:
            if request.path == "/now":  # answered before its task begins
                request.reply(200, [], b"done")
            return self._run(request)

        async def _run(self, request: ServerRequest) -> None:
            try:
                if request.path == "/slow":
                    running.set()
                    await asyncio.sleep(60)
            except asyncio.CancelledError:
                ended.append(request.path)
                raise

    listener = await serve(Taker())
    get = "GET /{} HTTP/1.1\r\nhost: localhost\r\n\r\n"
    before = asyncio.all_tasks()
    gc.collect()  # connections of other tests
    gc.disable()
    try:
        reader, writer = await asyncio.open_connection(*listener._sock.getsockname())
        writer.write("".join(get.format(path) for path in (*["now"] * 9, "slow")).encode())
        await asyncio.wait_for(running.wait(), 60)
        assert len(asyncio.all_tasks() - before) == 1
        (connection,) = listener._connections
        connection.abort()  # cancels the request that runs, not an idle task
        del connection
        async with asyncio.timeout(60):
            while ended != ["/slow"] or asyncio.all_tasks() != before:
                await asyncio.sleep(0.01)
        writer.close()
        gc.collect()  # the error of a cancelled task keeps its frame
        for _ in range(20):
            reader, writer = await asyncio.open_connection(*listener._sock.getsockname())
            writer.write(get.format("now").encode())
            await asyncio.wait_for(reader.readuntil(b"done"), 60)
            writer.close()
        async with asyncio.timeout(60):
            while listener._connections or asyncio.all_tasks() != before:
                await asyncio.sleep(0.01)
        assert not [one for one in gc.get_objects() if type(one) is http1.HttpConnection]
    finally:
        gc.enable()
    listener.stop_accepting()


async def serve(app: http1.Application) -> HttpListener:
    sock = socket.create_server(("127.0.0.1", 0))
    sock.setblocking(False)
    listener = HttpListener(app, sock)
    await listener.start()
    return listener


# --- the room for bodies


class Upload:
    """A POST whose head has been sent and whose body has not; it waits for `100 Continue`."""

    def __init__(self, here: mcp_http_fixture.HubRig, who: str, body: bytes) -> None:
        self._here = here
        self._who = who
        self.body = body

    async def begin(self, framing: str = "") -> Upload:
        reader, writer = await asyncio.open_connection("127.0.0.1", self._here.port)
        self.reader, self.writer = reader, writer
        framing = framing or f"Content-Length: {len(self.body)}"
        lines = ("POST /mcp HTTP/1.1", "Host: localhost", f"Authorization: Bearer {self._who}")
        more = (JSON, "Accept: */*", "Expect: 100-continue", framing, "", "")
        writer.write("\r\n".join([*lines, *more]).encode())
        return self

    async def is_wanted(self) -> None:
        async with asyncio.timeout(60):
            assert await self.reader.readuntil(b"\r\n\r\n") == b"HTTP/1.1 100 Continue\r\n\r\n"

    async def finish(self) -> int:
        self.writer.write(self.body)
        return await self.status()

    async def status(self) -> int:
        async with asyncio.timeout(60):
            status, headers, _ = parsed(await self.reader.readuntil(b"\r\n\r\n"))
            self.said = await self.reader.readexactly(int(headers["content-length"]))
        self.headers = headers
        self.writer.close()
        return status


KB = 1024


def padded(message: object, size: int) -> bytes:
    text = json.dumps(message).encode()
    return text + b" " * (size - len(text))


LARGE = padded(mcp_http_fixture.request(1, "ping"), 90 * KB)


async def is_waiting(budget: BodyBudget, count: int) -> None:
    async with asyncio.timeout(60):
        while budget._count != count:
            await asyncio.sleep(0.001)


@pytest.mark.promise("N1")
async def test_principal_gets_half_of_the_body_budget_and_the_rest_waits() -> None:
    budget = BodyBudget(200 * KB)
    async with mcp_http_fixture.run_mcp_rig(budget) as here:
        first = await Upload(here, ALICE, LARGE).begin()
        await first.is_wanted()
        others = [await Upload(here, ALICE, LARGE).begin() for _ in range(3)]
        await is_waiting(budget, 3)
        # Others have their half, and a small request always passes.
        bobs = await Upload(here, BOB, LARGE).begin()
        await bobs.is_wanted()
        assert await bobs.finish() == 200
        answer = await here.send("POST", message=mcp_http_fixture.request(1, "ping"))
        assert (await answer.json())["result"] == {}
        assert budget.held == 90 * KB
        assert await first.finish() == 200
        for one in others:
            await one.is_wanted()
            assert await one.finish() == 200
        async with asyncio.timeout(60):
            while budget.held:
                await asyncio.sleep(0.001)
        assert not budget._held_by and not budget._waiting


@pytest.mark.promise("N1")
async def test_body_counts_against_the_budget_until_its_request_is_answered() -> None:
    budget = BodyBudget(200 * KB)
    async with mcp_http_fixture.run_mcp_rig(budget) as here:
        slow = await Upload(
            here, ALICE, padded(mcp_http_fixture.call(1, waits=True), 90 * KB)
        ).begin()
        await slow.is_wanted()
        slow.writer.write(slow.body)
        await asyncio.wait_for(here.work.running.wait(), 60)
        second = await Upload(here, ALICE, LARGE).begin()
        await is_waiting(budget, 1)
        here.work.go.set()
        await second.is_wanted()
        assert await second.finish() == 200
        slow.writer.close()


@pytest.mark.promise("N1")
async def test_disconnect_frees_body_budget_and_excess_waiters_are_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(body_budget, "MAX_WAITING_EACH", 2)
    budget = BodyBudget(200 * KB)
    async with mcp_http_fixture.run_mcp_rig(budget) as here:
        first = await Upload(here, ALICE, LARGE).begin()
        await first.is_wanted()
        second = await Upload(here, ALICE, LARGE).begin()
        third = await Upload(here, ALICE, LARGE).begin()
        await is_waiting(budget, 2)
        refused = await Upload(here, ALICE, LARGE).begin()
        assert await refused.status() == 503 and refused.headers["retry-after"] == "1"
        assert "body_megabytes" in json.loads(refused.said)["error"]["message"]
        first.writer.transport.abort()
        await second.is_wanted()
        second.writer.transport.abort()
        await third.is_wanted()
        assert await third.finish() == 200


async def test_waiting_too_long_for_body_budget_is_answered_with_retry(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    budget = BodyBudget(200 * KB)
    async with mcp_http_fixture.run_mcp_rig(budget) as here:
        first = await Upload(here, ALICE, LARGE).begin()
        await first.is_wanted()
        monkeypatch.setattr(http1, "BODY_SECONDS", 0.1)
        second = await Upload(here, ALICE, LARGE).begin()
        assert await second.status() == 503 and second.headers["retry-after"] == "1"
        await is_waiting(budget, 0)
        first.writer.close()


async def test_chunked_body_reserves_the_maximum_until_its_end(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(http1, "BODY_BYTES", 100 * KB)
    budget = BodyBudget(200 * KB)
    async with mcp_http_fixture.run_mcp_rig(budget) as here:
        waits = padded(mcp_http_fixture.call(1, waits=True), 40 * KB)
        upload = await Upload(here, ALICE, b"").begin("Transfer-Encoding: chunked")
        await upload.is_wanted()
        upload.writer.write(b"%x\r\n%b\r\n" % (len(waits), waits))
        async with asyncio.timeout(60):
            while budget.held != 100 * KB:
                await asyncio.sleep(0.001)
            upload.writer.write(b"0\r\n\r\n")
            await here.work.running.wait()
        assert budget.held == 40 * KB
        upload.writer.close()


# --- bodies that would take long


@pytest.mark.promise("N1")
async def test_body_with_too_many_values_is_refused_before_it_is_complete() -> None:
    budget = BodyBudget(64 << 20)
    async with mcp_http_fixture.run_mcp_rig(budget) as here:
        body = b'{"jsonrpc":"2.0","id":1,"method":"ping","params":{"a":[' + b"{}," * 3_300_000
        upload = await Upload(here, ALICE, body).begin()
        await upload.is_wanted()
        upload.writer.write(body[:500_000])
        assert await upload.status() == 400
        error = json.loads(upload.said)["error"]
        assert error == {"code": -32700, "message": "the message has more than 200000 values"}
        assert budget.held == 0


async def test_large_bodies_of_a_principal_are_read_at_a_bounded_speed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(read_pacing, "BODY_BYTES_PER_SECOND", 2 << 20)
    budget = BodyBudget(64 << 20)
    body = padded(mcp_http_fixture.request(1, "ping"), 1 << 20)
    async with mcp_http_fixture.run_mcp_rig(budget) as here:
        upload = await Upload(here, ALICE, body).begin()
        await upload.is_wanted()
        begun = asyncio.get_running_loop().time()
        assert await upload.finish() == 200
        took = asyncio.get_running_loop().time() - begun
        # The last piece is followed by no pause; uvloop reads a quarter of a megabyte at once.
        assert took > 0.15
        # Small requests of the principal wait for nothing, nor do large ones of others.
        (alice,) = budget._paces
        assert budget.pace(alice, 1 << 30) > 60
        answer = await here.send("POST", message=mcp_http_fixture.request(1, "ping"))
        assert (await answer.json())["result"] == {}
        bobs = await Upload(here, BOB, LARGE).begin()
        await bobs.is_wanted()
        assert await bobs.finish() == 200


def test_idle_principals_are_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(body_budget, "MAX_PACED", 3)
    budget = BodyBudget(1)
    assert budget.pace("busy", 1 << 30) > 30
    for number in range(10):
        assert budget.pace(number, 0) == 0
    assert len(budget._paces) <= 4
    assert budget.pace("busy", 0) > 29


# --- refusals in the form of the path


async def test_oversized_body_is_refused_in_the_format_of_its_route() -> None:
    async with run_listener_rig() as here:
        for path, is_rpc in (("/mcp", True), ("/api/tools/slow.wait/call", False)):
            head = post(path, b"", JSON).replace(b"Length: 0", b"Length: 99999999")
            status, headers, said = await here.ask(head)
            assert (status, headers["content-type"]) == (413, "application/json")
            assert ("jsonrpc" in json.loads(said)) is is_rpc
            assert "bytes" in json.loads(said)["error"]["message"]
