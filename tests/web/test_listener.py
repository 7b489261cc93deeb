"""The application on a real socket in this process: heads, bodies and responses within limits."""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, suppress
from typing import Any

import pytest
from tests.permissive_hub import build_permissive_hub

from dragoman.core.bus import Bus
from dragoman.core.call import Call, Result
from dragoman.core.catalog import Catalog, admit_all
from dragoman.core.errors import HubError, find_row, list_leaves
from dragoman.core.principal import LOCAL
from dragoman.core.tool import DEFAULT_TRAITS, Tool
from dragoman.mcp.server import replay_streams
from dragoman.mcp.server.dispatcher import McpServer
from dragoman.mcp.server.streamable_http import StreamableHttpTransport
from dragoman.web.api import Api
from dragoman.web.app import TcpApp
from dragoman.web.auth import AllowedNames, Authenticator
from dragoman.web.errors import TABLE
from dragoman.web.http import http1
from dragoman.web.http.connection_limits import BODY_BYTES
from dragoman.web.http.listener import HttpListener
from dragoman.web.http.request import ServerRequest
from dragoman.web.peer_process import ALONE


class Plain:
    """What the API tells of: nothing much."""

    waiting: str | None = None

    def ready(self) -> str | None:
        return self.waiting

    async def status(self) -> Mapping[str, Any]:
        raise RuntimeError("this crashes")

    def server_states(self) -> Mapping[str, Any]:
        return {}

    def note_denied(self, principal: Any, what: str) -> None:
        pass

    def server_log(self, name: str) -> str | None:
        return f"log of {name}" if name == "a/b %41" else None

    def metrics(self) -> str:
        return ""


class Slow:
    traits = DEFAULT_TRAITS
    name = "slow"

    def __init__(self) -> None:
        self.running = asyncio.Event()
        self.cancelled = asyncio.Event()
        self.go = asyncio.Event()

    async def run(self, call: Call) -> Result:
        self.running.set()
        try:
            await self.go.wait()
        except asyncio.CancelledError:
            self.cancelled.set()
            raise
        return Result(content=[{"type": "text", "text": "went"}])


class HubRig:
    def __init__(
        self,
        made: HttpListener,
        port: int,
        sources: Plain,
        slow: Slow,
        mcp_server: StreamableHttpTransport,
    ) -> None:
        self.listener = made
        self.port = port
        self.sources = sources
        self.slow = slow
        self.mcp_server = mcp_server

    async def connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        return await asyncio.open_connection("127.0.0.1", self.port)

    async def everyone_left(self) -> None:
        for _ in range(1000):
            if not self.listener.connections:
                return
            await asyncio.sleep(0.005)
        raise TimeoutError("a connection is still open")

    async def ask(self, request: bytes) -> tuple[int, dict[str, str], bytes]:
        """One exchange of bytes; the answer is read to the end of the connection."""
        reader, writer = await self.connect()
        writer.write(request)
        async with asyncio.timeout(60):
            answer = await reader.read()
        writer.close()
        return parsed(answer)


def parsed(answer: bytes) -> tuple[int, dict[str, str], bytes]:
    head, _, rest = answer.partition(b"\r\n\r\n")
    status, *lines = head.decode().split("\r\n")
    pairs = (line.split(": ", 1) for line in lines)
    return int(status.split()[1]), {name.lower(): value for name, value in pairs}, rest


@asynccontextmanager
async def run_listener_rig(
    api_key: str | None = None, padding: int = 0, body_bytes: int = BODY_BYTES
) -> AsyncIterator[HubRig]:
    catalog, sources, slow = Catalog(review=admit_all), Plain(), Slow()
    tool = Tool(
        name="slow.wait",
        alias="mcp_slow_wait",
        remote_name="wait",
        definition={"inputSchema": {"type": "object"}, "padding": "x" * padding},
        target=slow,
    )
    catalog.offer("slow", [tool])
    hub = build_permissive_hub(catalog, Bus(), [])
    mcp_server = StreamableHttpTransport(McpServer(hub), bytes(32))
    sock = socket.create_server(("127.0.0.1", 0))
    sock.setblocking(False)
    app = TcpApp(
        Authenticator(api_key, lambda key: None, lambda: False),
        AllowedNames("127.0.0.1", None, [], []),
        {"/mcp": mcp_server},
        Api(hub, sources),
        peers=ALONE,
    )
    made = HttpListener(app, sock, body_bytes=body_bytes)
    await made.start()
    try:
        yield HubRig(made, sock.getsockname()[1], sources, slow, mcp_server)
    finally:
        mcp_server.close()
        await made.drain(0.2)
        made.abort()


def get(path: str, *headers: str) -> bytes:
    lines = [f"GET {path} HTTP/1.1", "Host: localhost", "Connection: close", *headers]
    return ("\r\n".join([*lines, "", ""])).encode("latin-1")


def post(path: str, message: bytes, *headers: str) -> bytes:
    lines = [
        f"POST {path} HTTP/1.1",
        "Host: localhost",
        "Connection: close",
        f"Content-Length: {len(message)}",
        *headers,
    ]
    return ("\r\n".join([*lines, "", ""])).encode("latin-1") + message


JSON = "Content-Type: application/json"
PING = b'{"jsonrpc":"2.0","id":1,"method":"ping"}'


def call(**more: Any) -> bytes:
    params = {"name": "slow.wait", **more}
    message = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params}
    return json.dumps(message).encode()


MODERN = (
    "Mcp-Protocol-Version: 2026-07-28",
    "Mcp-Method: tools/call",
    "Mcp-Name: slow.wait",
)
META = {
    "io.modelcontextprotocol/protocolVersion": "2026-07-28",
    "io.modelcontextprotocol/clientCapabilities": {},
}


# --- heads


async def test_missing_request_head_times_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http1, "HEAD_SECONDS", 0.1)
    async with run_listener_rig() as here:
        for begun in (b"", b"GET / HTT", b"GET / HTTP/1.1\r\nHost: local"):
            assert await closed_after(here, begun)


async def closed_after(here: HubRig, begun: bytes) -> bool:
    reader, writer = await here.connect()
    writer.write(begun)
    left = b""
    async with asyncio.timeout(60):
        with suppress(ConnectionResetError):  # more remained unread
            left = await reader.read()
    writer.close()
    return left == b"" or left.startswith(b"HTTP/1.1 431 ")


async def test_idle_keep_alive_connection_is_closed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(http1, "HEAD_SECONDS", 0.1)
    async with run_listener_rig("secret") as here:
        keep = get("/healthz").replace(b"Connection: close\r\n", b"")
        unread = post("/mcp", b"x" * 1000, JSON).replace(b"Connection: close\r\n", b"")
        for first, then in ((keep, b"\r\n"), (unread[:-900], b"x" * 10)):
            reader, writer = await here.connect()
            writer.write(first)
            async with asyncio.timeout(60):
                head = await reader.readuntil(b"\r\n\r\n")
                length = int(parsed(head)[1]["content-length"])
                await reader.readexactly(length)
                writer.write(then)
                with suppress(ConnectionResetError):
                    assert await reader.read() == b""
            writer.close()


@pytest.mark.promise("N1")
async def test_request_head_size_is_bounded() -> None:
    async with run_listener_rig() as here:
        many = "".join(f"X-{n}: {'v' * 60}\r\n" for n in range(2000))
        assert await closed_after(here, get("/healthz")[:-2] + many.encode())
        assert await closed_after(here, b"GET /" + b"x" * 100_000)
        assert (await here.ask(get("/healthz")))[0] == 200


async def test_duplicate_header_is_refused_and_a_list_header_is_joined() -> None:
    async with run_listener_rig("secret") as here:
        key = "Authorization: Bearer secret"
        for twice in (
            ("Host: evil.example",),
            (key, "Authorization: Bearer wrong"),
            (key, "Origin: http://localhost", "Origin: http://evil.example"),
        ):
            status, _, said = await here.ask(get("/api/tools", *twice))
            assert status == 400 and b"is repeated" in said
        for line in ("Mcp-Method: a", "Mcp-Name: a", "Mcp-Session-Id: a", "Content-Type: a/b"):
            both = (line, line)
            assert (await here.ask(post("/mcp", PING, key, *both)))[0] == 400
        listed = ("Accept: application/json", "Accept: text/plain", "X-Other: 1", "X-Other: 2")
        status, headers, _ = await here.ask(post("/mcp", PING, key, JSON, *listed))
        assert (status, headers["content-type"]) == (200, "application/json")


@pytest.mark.parametrize("target", ["/caf\xe9", "*", "http://evil.example/healthz", "//healthz"])
async def test_odd_targets_get_an_answer(target: str) -> None:
    async with run_listener_rig() as here:
        assert (await here.ask(get(target)))[0] in {200, 400, 404}


# --- bodies


async def test_missing_request_body_times_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http1, "BODY_SECONDS", 0.1)
    async with run_listener_rig() as here:
        status, _, said = await here.ask(post("/mcp", PING, JSON)[:-5])
        assert status == 408 and b"timed out waiting for the body" in said


@pytest.mark.promise("N1")
async def test_unauthenticated_request_is_answered_without_reading_its_body() -> None:
    async with run_listener_rig("secret") as here:
        for path, status in (("/healthz", 405), ("/mcp", 401), ("/api/tools/x/call", 401)):
            request = post(path, b"x" * 100, JSON)[:-100]  # the body never comes
            assert (await here.ask(request))[0] == status


async def test_chunked_bodies_are_read() -> None:
    async with run_listener_rig() as here:
        head = post("/mcp", b"", JSON).replace(b"Content-Length: 0", b"Transfer-Encoding: chunked")
        chunks = b"".join(b"1\r\n" + PING[n : n + 1] + b"\r\n" for n in range(len(PING)))
        status, _, said = await here.ask(head + chunks + b"0\r\n\r\n")
        assert (status, json.loads(said)["result"]) == (200, {})


@pytest.mark.promise("N1")
async def test_chunked_body_is_counted_and_refused_over_the_limit() -> None:
    async with run_listener_rig(body_bytes=20_000) as here:
        head = post("/mcp", b"", JSON).replace(b"Content-Length: 0", b"Transfer-Encoding: chunked")
        for size, expected in ((20_000, 200), (20_001, 413)):
            body = PING + b" " * (size - len(PING))
            chunks = b"".join(b"%x\r\n%b\r\n" % (len(c), c) for c in (body[:500], body[500:]))
            assert (await here.ask(head + chunks + b"0\r\n\r\n"))[0] == expected


async def test_trailers_are_ignored() -> None:
    async with run_listener_rig() as here:
        head = post("/mcp", b"", JSON).replace(b"Content-Length: 0", b"Transfer-Encoding: chunked")
        chunk = b"%x\r\n%b\r\n0\r\n" % (len(PING), PING)
        trailers = b"Mcp-Protocol-Version: 2026-07-28\r\nAccept: text/html\r\nHost: evil\r\n\r\n"
        status, _, said = await here.ask(head + chunk + trailers)
        assert (status, json.loads(said)["result"]) == (200, {})


@pytest.mark.promise("N1")
async def test_chunk_framing_overhead_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http1, "DRAIN_BYTES", 100_000)
    async with run_listener_rig() as here:
        head = post("/mcp", b"", JSON).replace(b"Content-Length: 0", b"Transfer-Encoding: chunked")
        for endless in (b"1;" + b"x" * 300_000, b"0\r\nX: " + b"x" * 300_000):
            reader, writer = await here.connect()
            writer.write(head + endless)
            async with asyncio.timeout(60):
                with suppress(ConnectionResetError):
                    assert b" 413 " in await reader.read()
            writer.close()


# --- one connection, many requests


def kept(request: bytes) -> bytes:
    return request.replace(b"Connection: close\r\n", b"")


async def test_pipelined_requests_are_answered_in_order() -> None:
    async with run_listener_rig() as here:
        pings = [PING.replace(b'"id":1', b'"id":%d' % number) for number in range(10)]
        asked = b"".join(kept(post("/mcp", ping, JSON)) for ping in pings)
        _, _, rest = await here.ask(asked + get("/healthz"))
        assert [rest.count(b'"id":%d,' % number) for number in range(10)] == [1] * 10
        places = [rest.index(b'"id":%d,' % number) for number in range(10)]
        assert places == sorted(places) and rest.endswith(b"ok\n")


async def test_upgrade_offer_is_ignored() -> None:
    """Java's HTTP client, and with it the Java SDK, offers h2c with every first request."""
    offer = "Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAMAAABk"
    async with run_listener_rig() as here:
        for first in (kept(post("/mcp", PING, JSON, offer)), kept(get("/healthz", offer))):
            _, _, rest = await here.ask(first + post("/mcp", PING, JSON))
            assert rest.count(b'"result":{}') + rest.count(b"ok\n") >= 1
            reader, writer = await here.connect()
            writer.write(first)
            async with asyncio.timeout(60):
                head = await reader.readuntil(b"\r\n\r\n")
                assert parsed(head)[0] == 200
                await reader.readexactly(int(parsed(head)[1]["content-length"]))
                writer.write(post("/mcp", PING, JSON))
                assert parsed(await reader.read())[0] == 200
            writer.close()
        websocket = "Connection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Key: eA=="
        _, _, rest = await here.ask(kept(get("/healthz", websocket)) + get("/healthz"))
        assert b"101" not in rest


@pytest.mark.promise("N1")
async def test_next_request_head_is_bounded_while_the_first_is_processed() -> None:
    async with run_listener_rig() as here:
        reader, writer = await here.connect()
        writer.write(kept(post("/mcp", call(), JSON)))
        await asyncio.wait_for(here.slow.running.wait(), 60)
        writer.write(b"GET / HTTP/1.1\r\nX: ")
        async with asyncio.timeout(60):
            with suppress(ConnectionResetError, BrokenPipeError):
                for _ in range(100):
                    writer.write(b"x" * 10_000)
                    await writer.drain()
                here.slow.go.set()
                answers = await reader.read()
                assert answers.startswith(b"HTTP/1.1 200 ") and b"HTTP/1.1 431 " in answers
        await here.everyone_left()
        writer.close()


@pytest.mark.promise("N1")
async def test_client_that_does_not_read_responses_is_not_read_from() -> None:
    async with run_listener_rig(padding=50_000) as here:
        reader, writer = await here.connect()
        ask = kept(get("/api/tools/slow.wait"))
        for _ in range(400):  # 20 MB of answers, if they were all made
            writer.write(ask)
            assert (await here.ask(get("/healthz")))[0] == 200, "the hub has had its chance"
        (first,) = here.listener._connections
        assert 0 < first._transport.get_write_buffer_size() < 2 * http1.UNREAD_BYTES
        async with asyncio.timeout(60):
            for _ in range(20):
                head = await reader.readuntil(b"\r\n\r\n")
                await reader.readexactly(int(parsed(head)[1]["content-length"]))
        writer.close()


@pytest.mark.promise("N1")
async def test_client_that_never_reads_is_disconnected(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http1, "KEEP_ALIVE_SECONDS", 0.1)
    monkeypatch.setattr(http1, "LAST_SECONDS", 0.1)
    async with run_listener_rig(padding=5_000_000) as here:
        _, writer = await here.connect()
        writer.write(kept(get("/api/tools/slow.wait")) * 3)
        await here.everyone_left()
        writer.close()


# --- the API


async def test_each_error_has_a_status() -> None:
    assert all(400 <= find_row(TABLE, error) < 600 for error in list_leaves(HubError))


async def test_stopping_hub_is_live_and_not_ready() -> None:
    async with run_listener_rig() as here:
        assert (await here.ask(get("/readyz")))[0] == 200
        here.sources.waiting = "the hub is going down"
        status, _, said = await here.ask(get("/readyz"))
        assert status == 503 and b"going down" in said
        assert (await here.ask(get("/healthz")))[0] == 200


async def test_requests_on_their_way_are_served_when_a_hub_stops_accepting() -> None:
    async with run_listener_rig() as here:
        here.listener.wind_down()
        place = ("127.0.0.1", here.port)
        # Not accepted yet, as the loop has had no turn; one of them has not even sent its request.
        whole, begun = socket.create_connection(place), socket.create_connection(place)
        with whole, begun:
            whole.sendall(get("/healthz"))
            begun.sendall(get("/healthz")[:20])
            finishing = asyncio.ensure_future(here.listener.finish_accepting())
            await asyncio.sleep(0.05)
            with pytest.raises(ConnectionRefusedError):
                socket.create_connection(place)
            begun.sendall(get("/healthz")[20:])
            async with asyncio.timeout(60):
                await finishing
            for sock in (whole, begun):
                sock.settimeout(10)
                received = await asyncio.to_thread(sock.recv, 1024)
                assert received.startswith(b"HTTP/1.1 200"), received


async def test_path_parameter_is_decoded_once() -> None:
    async with run_listener_rig() as here:
        status, _, said = await here.ask(get("/api/mcp/servers/a%2Fb%20%2541/logs"))
        assert (status, json.loads(said)["stderr"]) == (200, "log of a/b %41")
        assert (await here.ask(get("/api/mcp/servers/a/b%20%41/logs")))[0] == 404


async def test_unexpected_exception_is_answered(caplog: pytest.LogCaptureFixture) -> None:
    async with run_listener_rig() as here:
        status, _, said = await here.ask(get("/api/status"))
        assert status == 500 and b"see the hub's log" in said and b"this crashes" not in said
    assert "this crashes" in caplog.text


async def test_head_is_get_without_the_body() -> None:
    async with run_listener_rig() as here:
        status, headers, said = await here.ask(get("/healthz").replace(b"GET", b"HEAD", 1))
        assert (status, said, headers["content-length"]) == (200, b"", "3")


# --- answers that take their time


@pytest.mark.promise("G2")
async def test_long_call_sends_keep_alive_comments_and_answers_in_the_stream(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(replay_streams, "WATCH_AFTER", 0.02)
    monkeypatch.setattr(replay_streams, "KEEPALIVE_SECONDS", 0.1)
    async with run_listener_rig() as here:
        asking = asyncio.ensure_future(here.ask(post("/mcp", call(), JSON)))
        await asyncio.wait_for(here.slow.running.wait(), 60)
        reader, writer = await here.connect()
        writer.write(post("/mcp", call(), JSON))
        async with asyncio.timeout(60):
            await reader.readuntil(b": keep-alive\n\n")
            await reader.readuntil(b": keep-alive\n\n")
            here.slow.go.set()
            rest = await reader.read()
        writer.close()
        assert b'"text":"went"' in rest and rest.endswith(b"0\r\n\r\n")
        status, headers, said = await asking
        assert status == 200 and headers["content-type"] == "text/event-stream"
        assert b'"text":"went"' in said


@pytest.mark.promise("G2")
async def test_json_only_client_gets_json_after_any_duration(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(replay_streams, "WATCH_AFTER", 0.02)
    monkeypatch.setattr(replay_streams, "KEEPALIVE_SECONDS", 0.05)
    async with run_listener_rig() as here:
        request = post("/mcp", call(_meta={"progressToken": 1}), JSON, "Accept: application/json")
        asking = asyncio.ensure_future(here.ask(request))
        await asyncio.wait_for(here.slow.running.wait(), 60)
        reader, writer = await here.connect()
        writer.write(post("/mcp", call(), JSON))
        async with asyncio.timeout(60):
            for _ in range(3):  # one who takes comments got three of them meanwhile
                await reader.readuntil(b": keep-alive\n\n")
        writer.close()
        here.slow.go.set()
        status, headers, said = await asking
        assert (status, headers["content-type"]) == (200, "application/json")
        assert json.loads(said)["result"]["content"][0]["text"] == "went"


async def test_api_call_is_cancelled_when_its_client_disconnects() -> None:
    async with run_listener_rig() as here:
        _, writer = await here.connect()
        writer.write(post("/api/tools/slow.wait/call", b"{}", JSON))
        await asyncio.wait_for(here.slow.running.wait(), 60)
        writer.close()
        await asyncio.wait_for(here.slow.cancelled.wait(), 60)


@pytest.mark.promise("G2", "B12")
@pytest.mark.parametrize("era", ["modern", "legacy"])
async def test_modern_disconnect_cancels_and_legacy_disconnect_does_not(
    era: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(replay_streams, "WATCH_AFTER", 0.02)
    async with run_listener_rig() as here:
        _, writer = await here.connect()
        modern = post("/mcp", call(_meta=META), JSON, *MODERN)
        writer.write(modern if era == "modern" else post("/mcp", call(), JSON))
        await asyncio.wait_for(here.slow.running.wait(), 60)
        writer.close()
        if era == "modern":
            await asyncio.wait_for(here.slow.cancelled.wait(), 60)
        else:
            await here.everyone_left()
            assert (await here.ask(get("/healthz")))[0] == 200
            assert not here.slow.cancelled.is_set()
            here.slow.go.set()


@pytest.mark.promise("G2")
async def test_sse_stream_is_kept_alive_and_ended_cleanly(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(replay_streams, "KEEPALIVE_SECONDS", 0.05)
    async with run_listener_rig() as here:
        hello = {"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": {}}
        _, headers, _ = await here.ask(post("/mcp", json.dumps(hello).encode(), JSON))
        session = f"Mcp-Session-Id: {headers['mcp-session-id']}"
        reader, writer = await here.connect()
        writer.write(get("/mcp", session, "Accept: text/event-stream"))
        async with asyncio.timeout(60):
            for _ in range(4):
                await reader.readuntil(b": keep-alive\n\n")
            here.mcp_server.close()
            assert (await reader.read()).endswith(b"0\r\n\r\n")
        writer.close()
        # Another one ends at once: a client that is refused would not try again.
        status, _, said = await here.ask(get("/mcp", session, "Accept: text/event-stream"))
        assert status == 200 and said == b"0\r\n\r\n"


@pytest.mark.promise("N1")
async def test_session_forgets_finished_calls() -> None:
    async with run_listener_rig() as here:
        here.slow.go.set()
        hello = {"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": {}}
        _, headers, _ = await here.ask(post("/mcp", json.dumps(hello).encode(), JSON))
        id = headers["mcp-session-id"]
        for number in range(3):
            message = call().replace(b'"id": 1', b'"id": %d' % number)
            assert (await here.ask(post("/mcp", message, JSON, f"Mcp-Session-Id: {id}")))[0] == 200
        session = here.mcp_server.sessions.find(id, LOCAL)
        assert session is not None and session.running == {}


@pytest.mark.promise("N1")
async def test_client_that_does_not_read_its_stream_is_disconnected(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(http1, "UNREAD_BYTES", 10_000)
    async with run_listener_rig() as here:
        hello = {"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": {}}
        _, headers, _ = await here.ask(post("/mcp", json.dumps(hello).encode(), JSON))
        id = headers["mcp-session-id"]
        reader, writer = await here.connect()
        writer.write(get("/mcp", f"Mcp-Session-Id: {id}", "Accept: text/event-stream"))
        async with asyncio.timeout(60):
            await reader.readuntil(b": keep-alive\n\n")
            session = here.mcp_server.sessions.find(id, LOCAL)
            assert session is not None
            told = 0
            while session.streams and told < 10_000:
                session.notify(b"x" * 5_000)  # at once, so that nothing can be read in between
                told += 1
                if told % 1_000 == 0:
                    await asyncio.sleep(0)
            assert told < 10_000
            rest = await reader.read()
        assert rest.endswith(b"0\r\n\r\n") and rest.count(b"event: message") < told
        writer.close()


@pytest.mark.promise("N1")
@pytest.mark.parametrize("waits", [True, False])
async def test_client_idle_in_reading_too_long_is_disconnected(
    waits: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(http1, "UNREAD_SECONDS", 0.1)
    ended = asyncio.Event()

    class Talker:
        def admit(self, request: ServerRequest) -> bool:
            return True

        async def answer(self, request: ServerRequest) -> None:
            request.start(200, [])
            while not request.gone.done():
                if waits:
                    await request.write(b"x" * 65536)
                elif not request.send(b"x" * 65536):
                    assert not request.reads
                    await asyncio.sleep(0.01)
            ended.set()

    sock = socket.create_server(("127.0.0.1", 0))
    serving = HttpListener(Talker(), sock)
    await serving.start()
    _, writer = await asyncio.open_connection(*sock.getsockname(), limit=1024)
    writer.write(get("/"))
    async with asyncio.timeout(60):
        await ended.wait()
    writer.close()
    serving.stop_accepting()


@pytest.mark.promise("N1")
async def test_body_in_small_pieces_takes_memory_of_its_size() -> None:
    bodies: list[bytes] = []

    class Taker:
        def admit(self, request: ServerRequest) -> bool:
            return True

        async def answer(self, request: ServerRequest) -> None:
            bodies.append(request.body)
            request.reply(200, [], b"")

    sock = socket.create_server(("127.0.0.1", 0))
    serving = HttpListener(Taker(), sock)
    await serving.start()
    reader, writer = await asyncio.open_connection(*sock.getsockname())
    head = b"POST / HTTP/1.1\r\nhost: localhost\r\ntransfer-encoding: chunked\r\n\r\n"
    writer.write(head + b"2\r\nab\r\n" * 10_000 + b"0\r\n\r\n")
    async with asyncio.timeout(60):
        await reader.readuntil(b"\r\n\r\n")
    assert bodies == [b"ab" * 10_000] and type(bodies[0]) is bytes
    writer.close()
    serving.stop_accepting()
