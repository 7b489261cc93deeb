"""Sends fuzzed messages to one of the hub's doors, and judges the hub afterwards."""

from __future__ import annotations

import asyncio
import json
from urllib.parse import urlsplit

from tests.live.conftest import RunningHub
from tests.peers import wire

from faults.bytes_fuzz import ANSWER_SECONDS
from faults.grpc_fuzz import fuzz_grpc
from faults.harness import Outcome
from faults.message_fuzz import fuzz_door, open_session
from faults.session_fuzz import fuzz_sessions


def fuzz_messages(
    hub: RunningHub, door: str, cases: int, seed: int, outcome: Outcome, only: int | None = None
) -> None:
    numbers = range(cases) if only is None else range(only, only + 1)
    port = urlsplit(hub.url).port or 0
    if door == "stdio":
        path = json.loads((hub.home / "daemon.json").read_bytes())["mcp_socket"]
        asyncio.run(fuzz_sessions(door, path, numbers, seed, outcome))
    elif door == "HTTP+SSE":
        asyncio.run(fuzz_sessions(door, port, numbers, seed, outcome))
    elif door == "A2A over gRPC":
        grpc_port = hub.api("/api/status")["agents"]["grpc_port"]
        asyncio.run(fuzz_grpc(grpc_port, numbers, seed, outcome))
    else:
        session = open_session(hub) if door == "MCP, handshake era" else ""
        asyncio.run(fuzz_door(door, port, numbers, seed, outcome, session))
    if only is None:  # a fuzzer that is turned away at the door shows nothing
        share = outcome.figures.get("accepted", 0) / max(1, outcome.figures.get("messages", 0))
        outcome.check(share > 0.05, f"{door}: {share:.1%} of the messages were accepted")
    try:
        healthy = wire.get(hub.url + "/healthz", timeout=ANSWER_SECONDS).status == 200
    except OSError:
        healthy = False
    if not outcome.check(healthy, f"{door}: /healthz does not answer"):
        hub.kill()
