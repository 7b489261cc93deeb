"""The cost of idle open streams of each kind, many at once."""

import contextlib
import json
import resource
import socket
import time
from collections.abc import Iterator

from bench import rows
from bench.plan import Plan, Records, attempt, say
from bench.rows import Running, up
from bench.tables import SETTLE_SECONDS
from bench.wire import META, Dialect, Endpoint

LISTEN = "`subscriptions/listen`, 2026-07-28"
GET = "`GET /mcp` in a session, 2025-11-25"
OPEN_SECONDS = 60.0
BATCH = 100


def streams(plan: Plan) -> Records:
    found: Records = {}
    for kind in (LISTEN, GET):
        if plan.wants(rows.HUB_HTTP):
            attempt(f"streams: {kind}", found.setdefault(kind, []), idle, kind, plan.streams)
    return found


def idle(kind: str, count: int) -> dict:
    _raise_file_limit(count + 200)
    with up(rows.HUB_HTTP) as running, contextlib.ExitStack() as stack:
        with contextlib.closing(_opened(kind, running, 0)):  # what the first one alone loads
            time.sleep(SETTLE_SECONDS)
        before = running.child.memory().rss
        for batch in range(0, count, BATCH):
            fresh = [_asked(kind, running, n) for n in range(batch, min(batch + BATCH, count))]
            for sock in fresh:
                stack.callback(sock.close)
                wait_begun(sock)
        time.sleep(SETTLE_SECONDS)
        after = running.child.memory().rss
        cpu = running.child.cpu_seconds()
        time.sleep(1.0)
        record = {
            "open": count,
            "kb_each": (after - before) * 1024 / count,
            "idle_cpu": running.child.cpu_seconds() - cpu,
        }
    say(f"streams: {kind}: {count:,} open, {record['kb_each']:.1f} KB each")
    return record


def _opened(kind: str, running: Running, number: int) -> socket.socket:
    sock = _asked(kind, running, number)
    wait_begun(sock)
    return sock


def _asked(kind: str, running: Running, number: int) -> socket.socket:
    port = running.context.port
    sock = socket.create_connection(("127.0.0.1", port), OPEN_SECONDS)
    sock.sendall(_listen(port, number) if kind == LISTEN else _get(port))
    return sock


def _listen(port: int, number: int) -> bytes:
    method = "subscriptions/listen"
    wanted = {"notifications": {"toolsListChanged": True}, "_meta": META}
    message = {"jsonrpc": "2.0", "id": number, "method": method, "params": wanted}
    body = json.dumps(message).encode()
    headers = Endpoint(port, Dialect()).headers(method, None, None)
    headers |= {"Host": f"127.0.0.1:{port}", "Content-Length": str(len(body))}
    return build_head("POST", headers) + body


def _get(port: int) -> bytes:
    endpoint = Endpoint(port, rows.HUB_2025.dialect)
    headers = endpoint.headers("", None, endpoint.initialize())
    headers |= {"Host": f"127.0.0.1:{port}", "Accept": "text/event-stream"}
    return build_head("GET", headers)


def build_head(method: str, headers: dict[str, str], path: str = "/mcp") -> bytes:
    lines = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
    return f"{method} {path} HTTP/1.1\r\n{lines}\r\n".encode()


def wait_begun(sock: socket.socket) -> None:
    """Waits for the head of the stream, and for the first of it."""
    said = b""
    for piece in _pieces(sock):
        said += piece
        if b"text/event-stream" in said and said.partition(b"\r\n\r\n")[2]:
            return
    raise RuntimeError(f"no stream was opened: {said[:200]!r}")


def _pieces(sock: socket.socket) -> Iterator[bytes]:
    while piece := sock.recv(65536):
        yield piece


def _raise_file_limit(wanted: int) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (min(wanted, hard), hard))
