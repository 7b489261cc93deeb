"""Fuzzes the hub as a client: an MCP server over stdio and HTTP, an A2A agent, its cards.

Every call through the hub is answered in time, with a result or a typed error, and a server that
behaves again is used again.
"""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from tests.live.bridge_fixture import external
from tests.live.conftest import RunningHub
from tests.live.module_hub import state_of
from tests.peers import wire
from tests.peers.process import server_entry

from faults.bytes_fuzz import ANSWER_SECONDS
from faults.fixtures import echo_server
from faults.harness import ROOT, Outcome, fresh_hub, until
from faults.message_fuzz import Connection
from faults.message_seeds import Seed
from faults.peers import call_over_api

PROGRAM = Path(__file__).with_name("fuzzing_peer.py")
AT_ONCE = 8
TYPED = (200, 400, 403, 404, 409, 429, 502, 503, 504)
FAULT = b"see the hub's log"
"""What every answer says that is an error of the hub itself; -32603 may be one of a server."""
EACH = 4
"""Messages per call, where several fit into one."""
CALL_SECONDS = 2
AGENTS = 8
"""Agents whose cards change."""
CONFIG = """
[bridge]
probe_secs = 3600
[a2a]
enabled = true
max_tasks = 100
"""
UPSTREAMS = ("MCP over stdio", "MCP over HTTP", "MCP over SSE", "MCP over HTTP+SSE", "A2A answers",
             "A2A streams")  # fmt: skip
TOOLS = {
    "MCP over stdio": ("piped.t", EACH),
    "MCP over HTTP": ("http.t", 1),
    "MCP over SSE": ("http.t", EACH),
    "MCP over HTTP+SSE": ("legacy.t", EACH),
    "A2A answers": ("answers.do", 1),
    "A2A streams": ("streams.do", EACH),
}
"""The tool that leads to each, and the messages per call."""


@contextmanager
def fuzzing_peer(seed: int) -> Iterator[str]:
    """The URL of the servers and agents."""
    command = [sys.executable, str(PROGRAM), "http", str(seed)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, cwd=ROOT) as peer:
        try:
            assert peer.stdout is not None
            yield json.loads(peer.stdout.readline())["url"]
        finally:
            peer.terminate()


@contextmanager
def fuzzed_hub(seed: int, outcome: Outcome) -> Iterator[tuple[RunningHub, str]]:
    with fuzzing_peer(seed) as url:
        servers = [
            server_entry("piped", "stdio", sys.executable, PROGRAM, "stdio", seed,
                         timeout_secs=CALL_SECONDS),
            server_entry("legacy", "sse", f"{url}/sse", timeout_secs=CALL_SECONDS),
            server_entry("http", "http", f"{url}/mcp", timeout_secs=CALL_SECONDS),
        ]  # fmt: skip
        agents = [external(name, f"{url}/{name}", timeout_secs=CALL_SECONDS, pin="off")
                  for name in ("streams", "answers")]  # fmt: skip
        with fresh_hub(outcome, servers, CONFIG + "".join(agents)) as hub:
            hub.wait_connected("piped", "http", "legacy")
            for tool, _ in TOOLS.values():
                outcome.check(is_served(hub, tool, 20), f"{tool} does not work")
            yield hub, url


def is_served(hub: RunningHub, tool: str, seconds: float) -> bool:
    return until(lambda: call_over_api(hub, tool, 20)[0] == 200, seconds)


def build_request(tool: str, arguments: dict[str, object], turn: int) -> Seed:
    """A call of a tool by REST, MCP and A2A in turn: what comes back is rendered for each."""
    if turn % 3 == 0:
        body: Any = {"arguments": arguments}
        return Seed(f"/api/tools/{tool}/call", json.dumps(body).encode(), headers={"Accept": "*/*"})
    if turn % 3 == 1:
        params = {"name": tool, "arguments": arguments}
        body = wire.request(1, "tools/call", wire.modern_params(params))
        return Seed(
            "/mcp", json.dumps(body).encode(), headers=wire.modern_headers("tools/call", params)
        )
    message = {"messageId": "m", "role": "ROLE_USER", "metadata": {"skillId": tool}}
    body = wire.request(1, "SendMessage", {"message": {**message, "parts": [{"data": arguments}]}})
    return Seed("/a2a", json.dumps(body).encode(), headers={"A2A-Version": "1.0"})


async def call_tool(upstream: str, port: int, numbers: range, seed: int, outcome: Outcome) -> None:
    tool, each = TOOLS[upstream]
    left = iter(range(numbers.start, numbers.stop, each))

    async def work() -> None:
        connection = Connection(port)
        for number in left:
            if len(outcome.failures) > 10:
                break
            wanted = min(each, numbers.stop - number)
            arguments: dict[str, object] = {"number": number, "count": wanted}
            if tool.endswith(".do"):
                arguments = {"message": json.dumps(arguments)}
            case = build_request(tool, arguments, number // each)
            problem = ""
            try:
                async with asyncio.timeout(ANSWER_SECONDS):
                    status, came = await connection.exchange(case, {})
                failed = b'"error"' in came or b'"isError":true' in came or b"_FAILED" in came
                outcome.count("accepted", status == 200 and not failed)
                if status not in TYPED or FAULT in came:
                    problem = f"HTTP {status}: {came[:300]!r}"
            except TimeoutError:
                connection.close()
                problem = f"no answer within {ANSWER_SECONDS:.0f} s"
            except (asyncio.IncompleteReadError, OSError) as error:
                problem = f"closed without an answer: {error!r}"
            outcome.count("calls")
            outcome.count("messages", wanted)
            if problem:
                outcome.fail(f"{upstream}, seed {seed}, case {number}: {problem}")
        connection.close()

    await asyncio.gather(*(work() for _ in range(AT_ONCE)))


def send_calls(hub: RunningHub, upstream: str, numbers: range, seed: int, outcome: Outcome) -> None:
    asyncio.run(call_tool(upstream, urlsplit(hub.url).port or 0, numbers, seed, outcome))
    share = outcome.figures.get("accepted", 0) / max(1, outcome.figures.get("calls", 0))
    outcome.check(share > 0.05, f"{upstream}: {share:.1%} of the calls succeeded")
    tool = TOOLS[upstream][0]
    outcome.check(is_served(hub, tool, 60), f"{tool} does not work afterwards")


def fuzz_upstream(upstream: str, size: int, seed: int, outcome: Outcome) -> None:
    with fuzzed_hub(seed, outcome) as (hub, _):
        send_calls(hub, upstream, range(size), seed, outcome)


def fuzz_lists(size: int, seed: int, outcome: Outcome) -> None:
    """A server is connected to again and again, with another handshake and other lists each time;
    the good answers that follow are used."""
    with fuzzing_peer(seed) as url:
        lists = server_entry(
            "lists", "http", f"{url}/lists/{size}", timeout_secs=CALL_SECONDS, pin="off"
        )
        with fresh_hub(outcome, [echo_server(), lists], CONFIG) as hub:
            hub.wait_connected("r")
            end = time.monotonic() + size / 10 + 60
            while not (good := call_over_api(hub, "lists.good", 20)[0] == 200):
                if time.monotonic() > end or len(outcome.failures) > 10:
                    break
                answer = wire.post(f"{hub.url}/api/mcp/servers/lists/restart", {})
                outcome.check(answer.status == 200, f"HTTP {answer.status}: {answer.body[:300]!r}")
                ended = until(
                    lambda: state_of(hub, "lists")["state"] in ("connected", "failed"), 15
                )
                outcome.check(ended, f"neither connected nor failed: {state_of(hub, 'lists')}")
                outcome.count("connected", state_of(hub, "lists")["state"] == "connected")
                for path in ("/api/mcp/servers", "/api/tools", "/api/prompts", "/api/resources"):
                    status = hub.get(path).status
                    outcome.check(status == 200, f"GET {path}: HTTP {status}")
                outcome.count("connections")
                served = call_over_api(hub, "r.echo", 20)[0] == 200
                outcome.check(served, "another server is not served")
            outcome.figures["messages"] = size
            outcome.check(good, "the server is not used although it answers well")


async def refetch_cards(names: list[str], port: int, size: int, outcome: Outcome) -> None:
    async def work(name: str) -> None:
        connection = Connection(port)
        for _ in range(size // len(names)):
            if len(outcome.failures) > 10:
                break
            case = Seed(f"/api/a2a/agents/{name}/refetch")
            try:
                async with asyncio.timeout(ANSWER_SECONDS):
                    status, came = await connection.exchange(case, {})
                outcome.count("cards accepted", b"is not an agent card" not in came)
                outcome.check(status in TYPED, f"{name}: HTTP {status}: {came[:300]!r}")
            except (TimeoutError, asyncio.IncompleteReadError, OSError) as error:
                connection.close()
                outcome.fail(f"{name}: {error!r}")
            outcome.count("messages")
        connection.close()

    await asyncio.gather(*(work(name) for name in names))


def fuzz_cards(size: int, seed: int, outcome: Outcome) -> None:
    with fuzzed_hub(seed, outcome) as (hub, url):
        fetch_cards(hub, url, size, outcome)


def fetch_cards(hub: RunningHub, url: str, size: int, outcome: Outcome) -> None:
    """Each agent has a mutated card whenever it is fetched."""
    names = [f"card{number}" for number in range(AGENTS)]
    for number, name in enumerate(names):
        place = f"{url}/card/{number * 1_000_000}/{name}"
        added = hub.post("/api/a2a/agents", {"url": place, "name": name, "pin": "off"})
        outcome.check("id" in added, f"{name} was not registered: {added}")
    asyncio.run(refetch_cards(names, urlsplit(hub.url).port or 0, size, outcome))
    outcome.check(outcome.figures.get("cards accepted", 0) > size // 20, "few cards were accepted")
    outcome.check(is_served(hub, "streams.do", 20), "an agent whose card is good is not used")
