"""The configurations that experiments use: an MCP server, agents that are functions, settings."""

from __future__ import annotations

from pathlib import Path

from tests.peers.process import server_entry

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


def echo_server(name: str = "r") -> str:
    return server_entry(name, "faulty_server", "ok")


def write_agents(home: Path, *names: str) -> str:
    """Puts the functions into the home; gives their entries."""
    home.mkdir(mode=0o700, exist_ok=True)
    (home / "fault_agents.py").write_text(AGENTS, encoding="utf-8")
    return "\n".join(
        f'[[agents]]\nname = "{name}"\nfunction = "fault_agents:{name}"' for name in names
    )
