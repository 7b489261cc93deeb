"""Agents of the well-known frameworks, registered in a hub: two turns of a conversation from MCP
clients of both eras and over A2A, each framework in an environment of its own."""

import asyncio
import contextlib
import json
import re
import urllib.request
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import mcp.types as types
from mcp.client.client import Client

from conformance.paths import HERE, HOMES, HUB, ROOT
from conformance.peers import Result
from conformance.processes import Command, free_port, reachable, run, started, wait_for

AGENTS = HERE / "framework_agents"
SECONDS = 60.0
CONTEXT = "dragoman.hub/context"


def find_langgraph_card(base: str) -> str:
    """LangGraph serves a card for each assistant, under the id that its server has given it."""
    body = json.dumps({"graph_id": "talker"}).encode()
    headers = {"Content-Type": "application/json"}
    request = urllib.request.Request(f"{base}/assistants/search", body, headers)
    with urllib.request.urlopen(request, timeout=10) as answer:
        assistant = json.load(answer)[0]["assistant_id"]
    return f"{base}/.well-known/agent-card.json?assistant_id={assistant}"


@dataclass(frozen=True)
class Framework:
    title: str
    package: str
    find_address: Callable[[str], str] = str
    """What is registered, from the address of the server."""


FRAMEWORKS = {
    "adk": Framework("Google ADK", "google-adk"),
    "beeai": Framework("BeeAI", "beeai-framework"),
    "crewai": Framework("crewAI", "crewai"),
    "langgraph": Framework("LangGraph", "langgraph-api", find_langgraph_card),
    "strands": Framework("Strands", "strands-agents"),
}


def find_python(name: str) -> Any:
    return ROOT / f".venv-{name}" / "bin" / "python"


@contextlib.contextmanager
def serve_agent(name: str) -> Iterator[str]:
    """The address under which the agent of a framework is registered, while it runs."""
    port = free_port()
    command: Command = [find_python(name), AGENTS / f"{name}_agent.py", str(port)]
    with started(f"framework-{name}", command) as process:
        wait_for(process, lambda: reachable(port), 90)
        base = f"http://127.0.0.1:{port}"
        yield wait_for(process, lambda: FRAMEWORKS[name].find_address(base))


@contextlib.contextmanager
def hub_with(name: str, url: str) -> Iterator[str]:
    """A hub that serves A2A, in which the agent is registered; the rest as a first run has it."""
    home = HOMES / f"framework-{name}"
    home.mkdir(mode=0o700)
    (home / "config.toml").write_text(
        "[server]\nport = 0\n\n[a2a]\nenabled = true\n", encoding="utf-8"
    )
    (home / "config.toml").chmod(0o600)
    with started(f"hub-framework-{name}", [HUB, "up", "--json", "--home", home]) as process:
        base = str(json.loads(process.first_line())["url"])
        command: Command = [HUB, "agents", "add", url, "--home", home]
        code, out, errors = run(f"framework-{name}-add", command, SECONDS)
        if code:
            raise RuntimeError(f"dragoman agents add {url}: {(errors or out).strip()[:300]}")
        yield base


def text_of(result: types.CallToolResult) -> str:
    return "\n".join(one.text for one in result.content if isinstance(one, types.TextContent))


async def find_message_tool(client: Client) -> str:
    for _ in range(100):
        for tool in (await client.list_tools()).tools:
            if tool.name.startswith("dragoman_agent_"):
                return tool.name
        await asyncio.sleep(0.1)
    raise LookupError("no tool of the agent is listed")


async def talk_in_session(base: str) -> str | None:
    """A handshake client: its session goes on with the conversation."""
    async with Client(f"{base}/mcp", mode="legacy", read_timeout_seconds=SECONDS) as client:
        tool = await find_message_tool(client)
        first = text_of(await client.call_tool(tool, {"message": "I am Ada"}))
        second = text_of(await client.call_tool(tool, {"message": "who am I?"}))
        third = text_of(await client.call_tool(tool, {"message": "hello", "context": "new"}))
    return check_turns(first, second, third)


async def talk_by_context(base: str) -> str | None:
    """A client of 2026-07-28: it names the conversation."""
    async with Client(f"{base}/mcp", mode="2026-07-28", read_timeout_seconds=SECONDS) as client:
        tool = await find_message_tool(client)
        begun = await client.call_tool(tool, {"message": "I am Ada"})
        context = (begun.meta or {}).get(CONTEXT)
        if not context:
            return f"no context was returned: {begun.meta}"
        gone_on = await client.call_tool(tool, {"message": "who am I?", "context": context})
        other = await client.call_tool(tool, {"message": "hello"})
    return check_turns(text_of(begun), text_of(gone_on), text_of(other))


def check_turns(first: str, second: str, other: str) -> str | None:
    for said, expected in (
        (first, "turn 1: I am Ada"),
        (second, "turn 2: who am I?"),
        (other, "turn 1: hello"),
    ):
        if expected not in said:
            return f'"{expected}" was expected, {said[:200]!r} came'
    return None


def post(url: str, method: str, params: dict[str, Any]) -> Any:
    body = {"jsonrpc": "2.0", "id": 1, "method": method, "params": params}
    headers = {"Content-Type": "application/json", "A2A-Version": "1.0"}
    request = urllib.request.Request(url, json.dumps(body).encode(), headers)
    with urllib.request.urlopen(request, timeout=SECONDS) as answer:
        return json.load(answer)


def talk_over_a2a(base: str) -> str | None:
    with urllib.request.urlopen(f"{base}/a2a/agents", timeout=10) as answer:
        listed = json.load(answer)
    urls = [interface["url"] for agent in listed["agents"] for interface in
            agent.get("supportedInterfaces", [])
            if interface.get("protocolBinding") == "JSONRPC"]  # fmt: skip
    if not urls:
        return f"no agent with JSON-RPC is listed: {json.dumps(listed)[:300]}"

    def send(text: str, context: str | None) -> dict[str, Any]:
        message: dict[str, Any] = {"messageId": str(uuid.uuid4()), "role": "ROLE_USER"}
        message["parts"] = [{"text": text}]
        if context:
            message["contextId"] = context
        answered = post(urls[0], "SendMessage", {"message": message})
        result: dict[str, Any] = answered.get("result") or {}
        if not result:
            raise LookupError(json.dumps(answered)[:300])
        said: dict[str, Any] = result.get("task") or result["message"]
        return said

    first = send("I am Ada", None)
    second = send("who am I?", first["contextId"])
    other = send("hello", None)
    return check_turns(json.dumps(first), json.dumps(second), json.dumps(other))


JOURNEYS: dict[str, Callable[[str], str | None]] = {
    "two turns in an MCP session": lambda base: asyncio.run(talk_in_session(base)),
    "two turns of a 2026-07-28 client": lambda base: asyncio.run(talk_by_context(base)),
    "two turns over A2A": talk_over_a2a,
}


def run_frameworks(only: str) -> list[Result]:
    found: list[Result] = []
    for name, framework in FRAMEWORKS.items():
        if not re.search(only, name):
            continue
        try:
            with serve_agent(name) as url, hub_with(name, url) as base:
                for title, journey in JOURNEYS.items():
                    try:
                        problem = journey(base)
                    except Exception as error:  # whatever a client raises is the finding
                        problem = f"{type(error).__name__}: {error}"[:300]
                    found.append(Result(f"{framework.title}: {title}", problem))
        except RuntimeError as problem_at_start:
            found.append(Result(framework.title, str(problem_at_start)))
    return found
