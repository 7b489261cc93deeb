"""The cost of each stage of the hub's pipeline, in one process; printed as JSON.

The hub is built as `dragoman up` builds it, in a home of its own, with ten policies. A pipeline
that ends in a tool which suspends once and returns a small text grows by one stage after the other:
the cost of a stage is what it adds to those before it. The outermost one is added last, because it
writes to the disk: beside it, others would be hard to see. The pipelines take turns of some
milliseconds, and only neighbouring turns are compared.

usage: python -m bench.peers.stages SECONDS
"""

import asyncio
import contextlib
import gc
import json
import logging
import statistics
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Iterator
from itertools import pairwise
from operator import sub
from pathlib import Path

from bench.rows import POLICIES, write_home

from dragoman import config
from dragoman.app import process
from dragoman.app.build import build_app
from dragoman.core.call import Call, Result
from dragoman.core.catalog import admit_all, build_catalogs
from dragoman.core.hub import CallOptions, Hub
from dragoman.core.logs import start_logging
from dragoman.core.name_claims import NameClaims
from dragoman.core.principal import Principal
from dragoman.core.tool import TOOL, TargetFacts, TargetTraits, Tool
from dragoman.core.tool_filter import EVERYTHING
from dragoman.core.trace import TraceContext
from dragoman.guards.validate import compile_schema

SECONDS = float(sys.argv[1])  # for each kind of call
CALLS = 100  # in a turn
LIMITS = """
[limits]
chain_calls = 1_000_000
"""
SCHEMA = {"type": "object", "properties": {"text": {"type": "string"}}, "required": ["text"]}
TRAITS = TargetTraits(facts=TargetFacts(type="Server", transport="stdio"))
SCOPES = ("hub:invoke",)
CLIENT = Principal("key", "client", scopes=SCOPES)
AGENT = Principal("key", "agent", scopes=SCOPES)
# Each call and each result differs, as those of a run that makes progress do.
ARGUMENTS = [{"text": f"note {number} of some that are read"} for number in range(CALLS)]

Turn = Callable[[Hub], Awaitable[float]]
"""Makes CALLS calls and returns the microseconds of CPU of one."""


class Echo:
    name = "files"
    traits = TRAITS

    async def run(self, call: Call) -> Result:
        await asyncio.sleep(0)  # as a call that leaves the hub
        return Result(content=[{"type": "text", "text": call.arguments["text"]}], size=64)


class Agent:
    """Makes calls while it serves one."""

    name = "agent"
    traits = TRAITS

    def __init__(self) -> None:
        self.work: Callable[[Call], Awaitable[None]]

    async def run(self, call: Call) -> Result:
        await self.work(call)
        return Result()


def build_tool(target: Echo | Agent, name: str) -> Tool:
    return Tool(
        name=f"{target.name}.{name}",
        alias=f"mcp_{target.name}_{name}",
        remote_name=name,
        definition={"name": name, "inputSchema": SCHEMA},
        validate=compile_schema(SCHEMA),
        sources=frozenset({"external_network"}),
        target=target,
    )


class Bench:
    def __init__(self, home: Path) -> None:
        write_home(home, LIMITS)
        app = build_app(home, config.load(home / "config.toml"), "mcp")
        self.stop = app.stop
        self.parts = app.parts
        guards = self.parts.guards
        assert len(guards.policies.engine.policy_set.policies) == POLICIES
        self.agent = Agent()
        catalogs = build_catalogs(admit_all, NameClaims())
        for target, name in ((Echo(), "read"), (self.agent, "work")):
            catalogs[TOOL].offer(target.name, [build_tool(target, name)])
        bus, chains, authorizer = guards.hub.bus, guards.chains, guards.hub.authorizer
        stages = guards.stages
        pipelines = [*(stages[1:count] for count in range(1, len(stages) + 1)), stages]
        self.hubs = [Hub(catalogs, bus, some, chains, authorizer) for some in pipelines]
        self.names = [type(stage).__name__ for stage in stages]

    async def make_calls(self, hub: Hub, principal: Principal, options: CallOptions) -> float:
        call = hub.call
        self.write_behind()
        with collection_paused():
            began = time.process_time_ns()
            for arguments in ARGUMENTS:
                await call(principal, "files.read", arguments, options)
            self.write_behind()
            spent = time.process_time_ns() - began
        return spent / 1000 / CALLS

    def write_behind(self) -> None:
        """Writes what is otherwise written some milliseconds after a call."""
        self.parts.stores.audit.flush()
        if self.parts.events.calls is not None:
            self.parts.events.calls.flush()

    async def make_first_calls(self, hub: Hub) -> float:
        options = CallOptions(door="mcp-http", view=EVERYTHING, client="a session")
        return await self.make_calls(hub, CLIENT, options)

    async def make_nested_calls(self, hub: Hub) -> float:
        spent = 0.0

        async def work(call: Call) -> None:
            nonlocal spent
            carried = TraceContext(call.trace.id, call.trace.span, "")
            options = CallOptions(door="mcp-http", view=EVERYTHING, trace_context=carried)
            spent = await self.make_calls(hub, AGENT, options)

        self.agent.work = work
        options = CallOptions(door="a2a", view=EVERYTHING)
        await self.hubs[-1].call(CLIENT, "agent.work", ARGUMENTS[0], options)
        return spent

    async def measure(self, turn: Turn) -> dict:
        """Returns the cost of a call without stages, and what each stage adds."""
        for hub in self.hubs:
            await turn(hub)
        rounds: list[list[float]] = []
        ends = time.process_time() + SECONDS
        while time.process_time() < ends or not rounds:
            order = range(len(self.hubs))
            turns = {at: await turn(self.hubs[at]) for at in order[:: (-1) ** len(rounds)]}
            rounds.append([turns[at] for at in order])
        bare, *grown = zip(*rounds, strict=True)
        added = [
            statistics.median(map(sub, after, before)) for before, after in pairwise((bare, *grown))
        ]
        return {
            "bare_us": statistics.median(bare),
            "whole_us": statistics.median(grown[-1]),
            "stages": dict(zip(self.names, (added[-1], *added[:-1]), strict=True)),
        }


@contextlib.contextmanager
def collection_paused() -> Iterator[None]:
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


async def main(home: Path) -> dict:
    bench = Bench(home)
    process.freeze_garbage()
    process.keep_memory()
    try:
        return {
            "first": await bench.measure(bench.make_first_calls),
            "nested": await bench.measure(bench.make_nested_calls),
        }
    finally:
        await bench.stop()


if __name__ == "__main__":
    start_logging(logging.INFO)  # to stderr: a hub logs each call
    with (
        tempfile.TemporaryDirectory() as folder,
        asyncio.Runner(loop_factory=process.find_loop_factory()) as runner,
    ):
        print(json.dumps(runner.run(main(Path(folder)))))
