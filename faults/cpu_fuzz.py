"""What requests cost the event loop: 64 KB of head or query, 1 MB of body, in many shapes.

A request may take five times the CPU of an ordinary one of its size, by the scheduler's account of
the thread that runs the loop. What another thread computes is not counted: only its caller waits.
"""

from __future__ import annotations

import http.client
import json
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import urlsplit

from tests.live.conftest import RunningHub

from faults.harness import Outcome

FACTOR = 5
FLOOR = 0.004
"""Seconds: what an ordinary request of 64 KB takes on a slow machine."""
HEAD, BODY = 60 * 1024, 1024 * 1024
TRIES = 3
"""A request that seems costly is sent again: the cheapest of them counts."""
JSON = {"content-type": "application/json"}
PATHS = (
    "/", "/healthz", "/readyz", "/metrics", "/openapi.json", "/mcp", "/sse", "/a2a",
    "/oauth/callback", "/oauth/connect/x", "/oauth/client.json", "/oauth/authorize",
    "/oauth/token", "/.well-known/oauth-protected-resource", "/.well-known/agent-card.json",
    "/console/", "/api/hooks/x", "/api/tools", "/api/events", "/api/runs", "/api/audit",
)  # fmt: skip


class Sent(NamedTuple):
    label: str
    method: str
    path: str
    headers: dict[str, str]
    build_body: Callable[[], bytes] = bytes


def fill(piece: str, size: int) -> str:
    return (piece * (size // len(piece) + 1))[:size]


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


TEXTS = ("a", "a/", "a.", "(a", "{{ a }}", "{{", "- a\n", "a: b\n", "[", "%41", "\n", "ü")
VALUES: tuple[Callable[[], Any], ...] = (
    *(partial(fill, piece, BODY // 2) for piece in TEXTS),
    lambda: [1] * (BODY // 8),
    lambda: ["a"] * (BODY // 16),
    lambda: {f"k{number}": 1 for number in range(BODY // 32)},
)
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
            body = partial(build_bytes, piece)
            yield Sent(f"POST {path} of {piece}", "POST", where, JSON, body)
        for name in find_members(document, item["post"]):
            for number, value in enumerate(VALUES):
                body = partial(build_object, name, value)
                yield Sent(f"POST {path} {name} {number}", "POST", where, JSON, body)
    source = partial(build_object, "source", partial(build_definition, 490))
    yield Sent("POST /api/workflows/check", "POST", "/api/workflows/check", JSON, source)


def build_bytes(piece: str) -> bytes:
    return fill(piece, BODY).encode()


def build_object(name: str, build_value: Callable[[], Any]) -> bytes:
    return json.dumps({name: build_value()}).encode()


def find_members(document: dict[str, Any], operation: dict[str, Any]) -> list[str]:
    """The members of a body that its schema names, or those that many bodies have."""
    schema = operation.get("requestBody", {}).get("content", {}).get("application/json", {})
    reference = schema.get("schema", {}).get("$ref", "").rpartition("/")[2]
    properties = document["components"]["schemas"].get(reference, {}).get("properties", {})
    return list(properties) or ["name", "source", "uri", "text", "arguments", "inputs"]


def measure(hub: RunningHub, sent: Sent, body: bytes) -> float:
    """Sends a request; returns the CPU seconds of the loop's thread."""
    before = read_cpu(hub)
    where = urlsplit(hub.url)
    connection = http.client.HTTPConnection(str(where.hostname), where.port, timeout=120)
    try:
        connection.request(sent.method, sent.path, body or None, sent.headers)
        connection.sock.settimeout(120)
        response = connection.getresponse()
        if "event-stream" not in response.headers.get("content-type", ""):
            response.read()
    except (http.client.HTTPException, ConnectionError):
        pass  # refused before all was sent
    finally:
        connection.close()
    return read_cpu(hub) - before


def read_cpu(hub: RunningHub) -> float:
    """CPU seconds of the hub's first thread, which runs its loop."""
    schedule = Path(f"/proc/{hub.pid}/task/{hub.pid}/schedstat").read_text(encoding="ascii")
    return int(schedule.split()[0]) / 1e9


def measure_ordinary(hub: RunningHub) -> tuple[float, float]:
    """The costs of an ordinary call with 64 KB, and with 1 MB."""
    costs = []
    for size in (HEAD, BODY - 1000):
        body = json.dumps({"arguments": {"text": "a" * size}}).encode()
        call = Sent("", "POST", "/api/tools/r.echo/call", JSON)
        costs.append(max(min(measure(hub, call, body) for _ in range(5)), FLOOR))
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
    document = hub.api("/openapi.json")
    requests = list(list_requests(document))
    step = max(1, len(requests) // size)
    chosen = requests[seed % step :: step]
    if requests[-1] not in chosen:
        chosen.append(requests[-1])
    small, large = measure_ordinary(hub)
    dearest = 0.0
    for number, sent in enumerate(chosen):
        if only is not None and number != only:
            continue
        body = sent.build_body()
        limit = factor * (large if len(body) > 2 * HEAD else small)
        cost = measure(hub, sent, body)
        for _ in range(TRIES - 1):
            if cost > limit:
                cost = min(cost, measure(hub, sent, body))
        outcome.count("requests")
        dearest = max(dearest, cost / limit * factor)
        outcome.check(
            cost <= limit,
            f"case {number}: {sent.label} took {cost * 1000:.1f} ms of the loop, "
            f"{cost / limit * factor:.1f} times an ordinary request",
        )
    outcome.figures["dearest, in ordinary requests"] = round(dearest, 1)
