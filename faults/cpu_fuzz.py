"""What requests cost the event loop: 64 KB of head or query, 1 MB of body, in many shapes.

A request may take five times the CPU of an ordinary one of its size, by the scheduler's account of
the thread that runs the loop. What another thread computes is not counted: only its caller waits.
"""

from __future__ import annotations

import http.client
import json
from collections import Counter
from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import grpc
from tests.live.conftest import RunningHub
from tests.peers import wire

from faults.cpu_bodies import (
    BODY,
    GRPC,
    HEAD,
    HOOK,
    JSON,
    SSE,
    VALUES,
    Sent,
    fill,
    list_bodies,
    wrap,
)
from faults.harness import Outcome

FACTOR = 5
FLOOR = 0.004
"""Seconds: what an ordinary request of 64 KB takes on a slow machine."""
TRIES = 8
"""A request that seems costly is sent again: the cheapest of them counts."""
PATHS = (
    "/", "/healthz", "/readyz", "/metrics", "/openapi.json", "/mcp", "/sse", "/a2a",
    "/oauth/callback", "/oauth/connect/x", "/oauth/client.json", "/oauth/authorize",
    "/oauth/token", "/oauth/account", "/oauth/login",
    "/.well-known/oauth-protected-resource", "/.well-known/agent-card.json",
    "/console/", "/api/hooks/hooked", "/api/tools", "/api/events", "/api/runs", "/api/audit",
)  # fmt: skip


def list_queries() -> Iterator[str]:
    yield "&".join(f"{number:x}=1" for number in range(HEAD))[:HEAD]
    for piece in ("a=1&", "&", "=", "%41", "%", "+", "a;", "state=a&", "%c3%bc", "/a", "a."):
        yield fill(piece, HEAD)


def list_heads() -> Iterator[dict[str, str]]:
    for name, pieces in {
        "cookie": ("a=b; ", ";", "=", "dragoman-login-a=b;"),
        "authorization": ("Bearer ", "a.", "Bearer a, "),
        "accept": ("text/html,", ",", ";q=0.1"),
        "forwarded": ("for=1.2.3.4,", '"'),
        "origin": ("http://a.", "/"),
        "mcp-session-id": ("a", "0"),
        "content-type": ("application/json;", ";a=b"),
        "if-none-match": ('"a",', "W/"),
    }.items():
        for piece in pieces:
            yield {name: fill(piece, HEAD).strip()}
    yield {f"x-{number}": "a" for number in range(90)}


BYTES = ("[", '{"a":', '"', "\\", "0,", "1", '"\\u0041', "[0,", "{}", " ")


def build_definition(steps: int) -> str:
    return json.dumps(
        {
            "steps": [
                {
                    "id": f"step-{one}",
                    "nodeId": "transform",
                    "config": {"value": [f"{{{{ nodes.stop-{one}-{two} }}}}" for two in range(5)]},
                }
                for one in range(steps)
            ]
        }
    )


def list_requests(document: dict[str, Any]) -> Iterator[Sent]:
    for path in PATHS:
        for number, query in enumerate(list_queries()):
            yield Sent(f"GET {path} query {number}", "GET", f"{path}?{query}", {})
        for number, headers in enumerate(list_heads()):
            yield Sent(f"GET {path} head {number}", "GET", path, headers)
    for path, item in document["paths"].items():
        if "post" not in item or path in ("/api/demo", "/api/reload", "/api/shutdown"):
            continue
        where = path.replace("{name}", "r.echo")
        for piece in BYTES:
            data = partial(build_bytes, piece)
            yield Sent(f"POST {path} of {piece}", "POST", where, JSON, data)
        for name in find_members(document, item["post"]):
            for shape, value in VALUES.items():
                body = wrap(value, name)
                yield Sent(f"POST {path} {name}: {shape}", "POST", where, JSON, body)
    source = wrap(partial(build_definition, 490), "source")
    yield Sent("POST /api/workflows/check", "POST", "/api/workflows/check", JSON, source, True)
    yield from list_bodies()


def build_bytes(piece: str) -> bytes:
    return fill(piece, BODY).encode()


def find_members(document: dict[str, Any], operation: dict[str, Any]) -> list[str]:
    """The members of a body that its schema names, or those that many bodies have."""
    schema = operation.get("requestBody", {}).get("content", {}).get("application/json", {})
    reference = schema.get("schema", {}).get("$ref", "").rpartition("/")[2]
    properties = document["components"]["schemas"].get(reference, {}).get("properties", {})
    return list(properties) or ["name", "source", "uri", "text", "arguments", "inputs"]


SERVED = (
    ("GET", "/oauth/callback"), ("GET", "/oauth/authorize"), ("POST", "/oauth/token"),
    ("POST", "/oauth/register"), ("POST", HOOK), ("POST", SSE), ("POST", "/a2a"), ("POST", "/mcp"),
)  # fmt: skip
"""What an ordinary hub does not serve: without it the fuzzer would measure the error 404."""


LIMITED = ("/oauth/login", "/oauth/register")
"""Where attempts are limited, whatever the settings."""


class Sender:
    """Sends the requests to one hub, with its key unless the request has one."""

    def __init__(self, hub: RunningHub, session: str) -> None:
        """`session` is the path of an open session of HTTP+SSE."""
        self._hub, self._session = hub, session
        port = hub.api("/api/status")["agents"]["grpc_port"]
        self._channel = grpc.insecure_channel(f"127.0.0.1:{port}")
        self.statuses: Counter[str] = Counter()
        self.limited: list[str] = []
        """What was refused for its rate."""

    def close(self) -> None:
        self._channel.close()

    def measure(self, sent: Sent, body: bytes) -> float:
        """Sends a request; returns the CPU seconds of the loop's thread."""
        return self.send(sent, body)[0]

    def send(self, sent: Sent, body: bytes) -> tuple[float, str]:
        """Sends a request; returns the CPU seconds of the loop's thread, and the status."""
        before = read_cpu(self._hub)
        status = self._call(sent, body) if sent.method == GRPC else self._send(sent, body)
        self.statuses[status] += 1
        if status in ("429", "RESOURCE_EXHAUSTED") and sent.path not in LIMITED:
            self.limited.append(sent.label)
        return read_cpu(self._hub) - before, status

    def _send(self, sent: Sent, body: bytes) -> str:
        where = urlsplit(self._hub.url)
        headers = {**({} if "authorization" in sent.headers else self._hub.headers), **sent.headers}
        path = sent.path.replace(SSE, self._session)
        connection = http.client.HTTPConnection(str(where.hostname), where.port, timeout=120)
        try:
            connection.request(sent.method, path, body or None, headers)
            response = connection.getresponse()
            if "event-stream" not in response.headers.get("content-type", "") or body:
                response.read()
            return str(response.status)
        except TimeoutError:
            return "no answer"
        except (http.client.HTTPException, ConnectionError):
            return "closed"  # refused before all was sent
        finally:
            connection.close()

    def _call(self, sent: Sent, body: bytes) -> str:
        headers = {**self._hub.headers, "a2a-version": "1.0"}
        metadata = [(name.lower(), value) for name, value in headers.items()]
        try:
            self._channel.unary_unary(sent.path)(body, timeout=120, metadata=metadata)
        except grpc.RpcError as error:
            return str(error.code().name)
        return "OK"


def read_cpu(hub: RunningHub) -> float:
    """CPU seconds of the hub's first thread, which runs its loop."""
    schedule = Path(f"/proc/{hub.pid}/task/{hub.pid}/schedstat").read_text(encoding="ascii")
    return int(schedule.split()[0]) / 1e9


def measure_ordinary(sender: Sender) -> tuple[float, float]:
    """The costs of an ordinary call with 64 KB, and with 1 MB."""
    costs = []
    for size in (HEAD, BODY - 1000):
        body = json.dumps({"arguments": {"text": "a" * size}}).encode()
        call = Sent("", "POST", "/api/tools/r.echo/call", JSON)
        costs.append(max(min(sender.measure(call, body) for _ in range(5)), FLOOR))
    return costs[0], costs[1]


def fuzz_cpu(
    hub: RunningHub,
    size: int,
    seed: int,
    outcome: Outcome,
    factor: float = FACTOR,
    only: int | None = None,
) -> None:
    """Sends up to `size` requests, spread over all of them."""
    requests = list(list_requests(hub.api("/openapi.json")))
    step = max(1, len(requests) // size)
    chosen = {
        number: sent
        for number, sent in enumerate(requests)
        if (sent.always or number % step == seed % step if only is None else number == only)
    }
    with wire.stream("GET", f"{hub.url}/sse", None, hub.headers, 3_600) as session:
        sender = Sender(hub, session.next().data)
        try:
            for method, path in SERVED:
                sender.measure(Sent("", method, path, JSON), b"{}" if method == "POST" else b"")
            outcome.check("404" not in sender.statuses, f"not served: {sender.statuses}")
            judge_requests(sender, chosen, factor, outcome)
        finally:
            sender.close()
    outcome.check(not sender.limited, f"refused for their rate: {sender.limited[:10]}")


def judge_requests(
    sender: Sender, chosen: Mapping[int, Sent], factor: float, outcome: Outcome
) -> None:
    small, large = measure_ordinary(sender)
    dearest = 0.0
    for number, sent in chosen.items():
        body = sent.build_body()
        size = max(len(body) / BODY, 1.0)  # escapes make some texts longer than 1 MB
        limit = factor * (large * size if len(body) > 2 * HEAD else small)
        cost, status = sender.send(sent, body)
        for _ in range(TRIES - 1):
            if cost > limit:
                again, other = sender.send(sent, body)
                if other == status:  # a refusal for other reasons costs nothing
                    cost = min(cost, again)
        outcome.count("requests")
        dearest = max(dearest, cost / limit * factor)
        outcome.check(
            cost <= limit,
            f"case {number}: {sent.label} took {cost * 1000:.1f} ms of the loop, "
            f"{cost / limit * factor:.1f} times an ordinary request",
        )
    outcome.figures["dearest, in ordinary requests"] = round(dearest, 1)
