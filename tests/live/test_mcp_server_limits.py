"""Too large, too deep or malformed messages over both transports: refused, and the next is served.
The test watches the hub's memory from outside.

The hub's memory is watched from outside.
"""

from __future__ import annotations

import json
import socket
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from tests.live.conftest import RunningHub
from tests.live.module_hub import rss, run_module_hub, text_of
from tests.live.unix_client import UnixClient
from tests.peers import http_seeds, wire
from tests.peers.process import server_entry

LIMIT = 10 * 1024 * 1024
MB = 1024 * 1024


@pytest.fixture(scope="module")
def hub() -> Iterator[RunningHub]:
    with run_module_hub(
        [server_entry("r", "faulty_server", "ok")], '[mcp]\nstdio_expose = ["*"]\n'
    ) as running:
        running.wait_connected("r")
        yield running


def padded(message: dict[str, Any], size: int) -> bytes:
    """The message as JSON of exactly so many bytes: what fills it up is among its params."""
    params = {**message.get("params", {}), "padding": ""}
    empty = json.dumps({**message, "params": params}).encode()
    full = {**message, "params": {**params, "padding": "x" * (size - len(empty))}}
    return json.dumps(full).encode()


PING = wire.request(1, "ping")


@pytest.mark.promise("F5", "N1")
@pytest.mark.parametrize("framing", ["newline", "content-length"])
def test_stdio_message_size_is_limited_to_ten_megabytes(hub: RunningHub, framing: str) -> None:
    def framed(body: bytes) -> bytes:
        head = b"Content-Length: %d\r\n\r\n" % len(body)
        return body + b"\n" if framing == "newline" else head + body

    with UnixClient(hub.home) as client, hub.relay() as ide:
        for write, read in (
            (client.write, client.read),
            (ide.write, lambda: ide.read(20)),
        ):
            write(framed(padded(PING, LIMIT)))
            assert read() == {"jsonrpc": "2.0", "id": 1, "result": {}}
            write(framed(padded({**PING, "id": "large"}, LIMIT + 1)))
            refused = read()
            assert refused["error"]["code"] == -32600 and refused["id"] == "large"
            assert "10" in refused["error"]["message"]
            write(framed(json.dumps({**PING, "id": 2}).encode()))
            assert read() == {"jsonrpc": "2.0", "id": 2, "result": {}}


@pytest.mark.promise("F5", "N1", "G1")
def test_http_message_size_is_limited_to_ten_megabytes(hub: RunningHub) -> None:
    assert wire.post(hub.mcp_url, padded(PING, LIMIT), timeout=60).json()["result"] == {}
    for size in (LIMIT + 1, 3 * LIMIT):
        refused = wire.post(hub.mcp_url, padded(PING, size), timeout=60)
        assert refused.status == 413
        assert refused.json()["error"]["code"] == -32600
    assert wire.post(hub.mcp_url, PING).json()["result"] == {}
    called = wire.post(hub.url + "/api/tools/r.echo/call", b" " * (LIMIT + 1))
    assert called.status == 413


@pytest.mark.promise("N1")
def test_absurd_content_length_is_refused_at_once(hub: RunningHub) -> None:
    port = int(hub.url.rpartition(":")[2])
    head = b"POST /mcp HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    with socket.create_connection(("127.0.0.1", port), timeout=60) as raw:
        raw.sendall(head + b"Content-Length: 99999999999999\r\n\r\n{")
        assert b" 413 " in raw.recv(4096)
    with UnixClient(hub.home) as client:
        client.write(b"Content-Length: 99999999999999\r\n\r\n{")
        with pytest.raises(EOFError):
            client.read()


@pytest.mark.promise("N1")
def test_connect_method_is_refused_and_others_are_served(hub: RunningHub) -> None:
    port = int(hub.url.rpartition(":")[2])
    for request in http_seeds.CONNECTS:
        with socket.create_connection(("127.0.0.1", port), timeout=60) as raw:
            raw.sendall(request)
            raw.recv(4096)
        assert wire.get(hub.url + "/healthz", timeout=60).status == 200


@pytest.mark.promise("N1", "F5")
@pytest.mark.parametrize("door", ["http", "stdio"])
def test_ten_concurrent_large_messages_take_bounded_memory(hub: RunningHub, door: str) -> None:
    echo = wire.request(1, "tools/call", {"name": "no.such"})
    body = padded(echo, LIMIT)
    too_large = padded(echo, LIMIT + 1)
    peak = 0

    def over_http(number: int) -> int:
        sent = body if number % 2 else too_large
        return int(wire.post(hub.mcp_url, sent, timeout=60).json()["error"]["code"])

    def over_stdio(number: int) -> int:
        with UnixClient(hub.home, timeout=60) as client:
            client.write((body if number % 2 else too_large) + b"\n")
            return int(client.read()["error"]["code"])

    ask: Callable[[int], int] = over_http if door == "http" else over_stdio
    ask(1)
    before = rss(hub.pid)
    with ThreadPoolExecutor(10) as pool:
        asked = [pool.submit(ask, number) for number in range(10)]
        while not all(one.done() for one in asked):
            peak = max(peak, rss(hub.pid))
            time.sleep(0.005)  # the hub needs the processor
        codes = [one.result() for one in asked]
    assert codes == [-32600, -32602] * 5
    # Ten messages, at the worst each one once as bytes, once joined and once decoded.
    assert peak - before < 10 * 3 * LIMIT, f"{(peak - before) / MB:.0f} MB"
    with ThreadPoolExecutor(10) as pool:  # what the allocator keeps does not add up
        list(pool.map(ask, range(10)))
    after = rss(hub.pid)
    assert after - before < 120 * MB, f"{(after - before) / MB:.0f} MB were kept"


# --- no messages

CALL = b'{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"r.echo","arguments":'
MALFORMED = {
    "half an object": b'{"jsonrpc":"2.0","id":1',
    "not JSON": b"hello",
    "NaN": CALL + b'{"text":NaN}}}',
    "infinity": CALL + b'{"text":-Infinity}}}',
    "too large a number": CALL + b'{"text":1e999}}}',
    "not UTF-8": CALL + b'{"text":"\xff"}}}',
    "half a surrogate": CALL + b'{"text":"\\ud800"}}}',
    "a control character": CALL + b'{"text":"\x01"}}}',
    "two values": b"{} {}",
    "65 deep": b"[" * 65 + b"]" * 65,
    "100,000 deep": b'{"a":' * 100_000 + b"1" + b"}" * 100_000,
    "too many values": CALL + b'{"text":[' + b"1," * 200_000 + b"1]}}}",
    "a number of 5,000 digits": CALL + b'{"text":' + b"1" * 5_000 + b"}}}",
}
INVALID = {
    "id twice": b'{"jsonrpc":"2.0","id":1,"id":2,"method":"ping"}',
    "method twice": b'{"jsonrpc":"2.0","id":1,"method":"ping","method":"tools/list"}',
    "params twice": b'{"jsonrpc":"2.0","id":1,"method":"ping","params":{},"params":{}}',
    "name twice": b'{"jsonrpc":"2.0","id":1,"method":"a","params":{"name":"a","name":"b"}}',
    "arguments twice": CALL + b'{"text":"a"},"arguments":{"text":"b"}}}',
    "name twice, escaped": CALL + b'{},"n\\u0061me":"r.slow"}}',
    "a number": b"7",
    "a string": b'"ping"',
    "null": b"null",
    "an empty list": b"[]",
    "no jsonrpc": b'{"id":1,"method":"ping"}',
    "params are a list": b'{"jsonrpc":"2.0","id":1,"method":"ping","params":[]}',
    "no method": b'{"jsonrpc":"2.0","id":1}',
    "method is a number": b'{"jsonrpc":"2.0","id":1,"method":7}',
    "id is null": b'{"jsonrpc":"2.0","id":null,"method":"ping"}',
    "id is an object": b'{"jsonrpc":"2.0","id":{},"method":"ping"}',
}
WRONG = {
    "name is a number": b'{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":7}}',
    "no name": b'{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{}}',
    "arguments are a list": CALL + b"[]}}",
    "arguments are a string": CALL + b'"x"}}',
    "cursor is a number": b'{"jsonrpc":"2.0","id":1,"method":"tools/list","params":{"cursor":7}}',
}
CASES = [
    *((name, text, -32700) for name, text in MALFORMED.items()),
    *((name, text, -32600) for name, text in INVALID.items()),
    *((name, text, -32602) for name, text in WRONG.items()),
]


@pytest.fixture(scope="module")
def old(hub: RunningHub) -> Iterator[UnixClient]:
    with UnixClient(hub.home) as client:
        client.initialize("2025-11-25")
        yield client


@pytest.mark.promise("F5", "F6", "N1")
@pytest.mark.parametrize(("name", "text", "code"), CASES, ids=[name for name, _, _ in CASES])
def test_invalid_message_gets_its_error_and_the_next_is_served(
    hub: RunningHub, old: UnixClient, name: str, text: bytes, code: int
) -> None:
    old.write(text + b"\n")
    over_stdio = old.read()
    assert over_stdio["error"]["code"] == code
    assert old.request("ping")["result"] == {}
    for version in ("2025-03-26", "2025-11-25"):
        answer = wire.post(hub.mcp_url, text, {"Mcp-Protocol-Version": version})
        assert answer.json()["error"]["code"] == code
        assert answer.status == (200 if code == -32602 else 400)
        assert answer.json()["id"] == over_stdio["id"]
    modern = wire.post(hub.mcp_url, text, {"Mcp-Protocol-Version": wire.MODERN})
    assert modern.status == 400
    if code != -32602:
        assert modern.json()["error"]["code"] in {code, -32020}


@pytest.mark.promise("F5", "F6")
def test_invalid_messages_through_the_relay_get_errors(hub: RunningHub) -> None:
    with hub.relay() as ide:
        ide.initialize()
        for name, text, code in CASES:
            ide.write(text + b"\n")
            answer = ide.read()
            assert answer["error"]["code"] == code, name
        assert ide.request("ping")["result"] == {}
        ide.write(b"\xff\xfe\n")
        assert ide.read()["error"]["code"] == -32700


@pytest.mark.promise("N1")
def test_message_of_depth_64_is_served(hub: RunningHub, old: UnixClient) -> None:
    deep: Any = "x"
    for _ in range(61):
        deep = [deep]
    arguments = {"deep": deep}
    params = {"name": "r.pid", "arguments": arguments}  # the envelope has three levels
    message = json.dumps(wire.request("deep", "tools/call", params)).encode()
    old.write(message + b"\n")
    assert text_of(old.read()).isdigit()
    assert text_of(wire.post(hub.mcp_url, message).json()).isdigit()
    arguments["deep"] = [deep]
    refused = wire.post(hub.mcp_url, wire.request("deep", "tools/call", params))
    assert refused.json()["error"]["code"] == -32700


@pytest.mark.promise("F6", "F7")
def test_batches_over_http_are_accepted_in_2025_03_26_only(hub: RunningHub) -> None:
    batch = [wire.request(1, "ping"), wire.notification("x"), wire.request(2, "no/such")]
    for version in ("2024-11-05", "2025-03-26", "2025-06-18", "2025-11-25", wire.MODERN, None):
        headers = {"Mcp-Protocol-Version": version} if version else {}
        answer = wire.post(hub.mcp_url, batch, headers)
        if version in {"2025-03-26", None}:
            assert [one["id"] for one in answer.json()] == [1, 2]
            only = wire.post(hub.mcp_url, [wire.notification("x")], headers)
            assert (only.status, only.body) == (202, b"")
        else:
            assert (answer.status, answer.json()["error"]["code"]) == (400, -32600)


@pytest.mark.promise("N1")
def test_hub_logged_no_crash(hub: RunningHub) -> None:
    """Last in this file: all that was thrown at it has been answered, not survived."""
    assert "Traceback" not in hub.log()
