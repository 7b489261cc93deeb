"""The configurations that experiments use: an MCP server, agents that are functions, settings."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.live.conftest import RunningHub
from tests.peers.process import server_entry

from faults import costly_server
from faults.cpu_bodies import SECRET
from faults.harness import RATE_LIMITS, Outcome, running_hub, temporary_home, write_config

AGENTS = """
from dragoman.agent import Ask, Request


async def quick(request: Request):
    return f"done {request.text}"


async def asking(request: Request):
    return Ask("How many?") if request.turn == 1 else f"done {request.text}"
"""
EVERYTHING = """
[mcp]
stdio_expose = ["*"]
[a2a]
enabled = true
max_tasks = 100000
max_tasks_all = 100000
push_private = true
push_attempts = 1
"""
FUZZED = EVERYTHING + "grpc_port = 0\n"


COSTLY = (
    FUZZED.replace("[mcp]", 'api_key = "owner-of-the-fuzzed-hub-0123456789"\n[mcp]', 1)
    + """
[auth.server]
enabled = true
"""
)
HOOKED = """
triggers:
- type: webhook
  secret: "file:tokens/hook"
  inputs: {a: "{{ $event.a }}"}
inputs: {a: {}}
steps:
- id: look
  nodeId: transform
  config: {value: "{{ $trigger.a }}"}
"""


def echo_server(name: str = "r") -> str:
    return server_entry(name, "faulty_server", "ok")


def write_agents(home: Path, *names: str) -> str:
    """Puts the functions into the home; gives their entries."""
    home.mkdir(mode=0o700, exist_ok=True)
    (home / "fault_agents.py").write_text(AGENTS, encoding="utf-8")
    return "\n".join(
        f'[[agents]]\nname = "{name}"\nfunction = "fault_agents:{name}"' for name in names
    )


@contextmanager
def run_fuzzed_hub(outcome: Outcome) -> Iterator[RunningHub]:
    """A hub with a server and two agents, which serves every protocol."""
    with temporary_home() as home:
        write_config(home, [echo_server()], FUZZED + write_agents(home, "quick", "asking"))
        with running_hub(outcome, home) as hub:
            hub.wait_connected("r")
            yield hub


@contextmanager
def run_costly_hub(outcome: Outcome) -> Iterator[RunningHub]:
    """A hub with an authorization server, an account at which users log in, a webhook, and a tool
    with a costly schema."""
    servers = [
        echo_server(),
        server_entry("costly", "stdio", sys.executable, costly_server.__file__),
        server_entry("locked", "http", "http://127.0.0.1:9/mcp", credentials="user"),
    ]
    more = "address_per_minute = 1_000_000_000\naddress_burst = 1_000_000_000\n"
    with temporary_home() as home:
        agents = write_agents(home, "quick", "asking")
        write_config(home, servers, COSTLY + agents, RATE_LIMITS + more)
        (home / "tokens").mkdir(mode=0o700)
        (home / "tokens" / "hook").write_text(SECRET, encoding="utf-8")
        (home / "tokens" / "hook").chmod(0o600)
        with running_hub(outcome, home) as hub:
            hub.wait_connected("r", "costly")
            written = hub.post("/api/workflows", {"name": "hooked", "source": HOOKED})
            outcome.check(written.get("state") == "active", f"the workflow: {written}")
            yield hub
