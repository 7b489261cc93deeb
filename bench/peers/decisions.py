"""The cost of a decision, by the hub's policies and by Cedar alone, in one process; printed as
JSON.

Cedar alone is asked the very questions that the hub has asked it, with everything prepared: what
the hub takes beside it is its own.

usage: python -m bench.peers.decisions ROUNDS SECONDS
"""

import json
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import cedarpy
from bench.policy_texts import TIMED_STRANGERS, render_policies

from dragoman.core.call import Call, Result
from dragoman.core.principal import Principal
from dragoman.core.tool import TargetFacts, TargetTraits, Tool
from dragoman.core.trace import Trace
from dragoman.policy.engine import PolicyEngine
from dragoman.policy.loader import load_policies

ROUNDS, SECONDS = int(sys.argv[1]), float(sys.argv[2])
ANEW = 2_000  # decisions, each of a chain that was not there before
KEPT = 20_000


class Server:
    name = "files"
    traits = TargetTraits(facts=TargetFacts(type="Server", transport="stdio"))

    async def run(self, call: Call) -> Result:
        raise NotImplementedError


SERVER = Server()
CALLERS = [Principal("key", f"k{n}", scopes=("hub:invoke",)) for n in range(4)]
TOOLS = [
    Tool(name=f"files.t{n}", alias=f"mcp_files_t{n}", remote_name=f"t{n}", target=SERVER)
    for n in range(4)
]


def call(caller: Principal, tool: Tool, chain: tuple[str, ...] = ()) -> Call:
    return Call(
        principal=caller,
        tool=tool,
        requested_name=tool.name,
        arguments={"path": "notes.txt"},
        trace=Trace("0" * 32, chain),
        door="mcp-http",
    )


NEW_CALLS = [call(CALLERS[0], TOOLS[0], (f"other.tool_{n}",)) for n in range(ANEW)]
OLD_CALLS = [call(caller, tool) for caller in CALLERS for tool in TOOLS]


class Set:
    """A set of policies, and the questions that come of the calls."""

    def __init__(self, text: str) -> None:
        with tempfile.TemporaryDirectory() as folder:
            (Path(folder) / "own.cedar").write_text(text, encoding="utf-8")
            self.policy_set = load_policies(Path(folder))
        with recorded() as self.questions:
            policies = self.fresh()
            assert all(policies.decide(one).allowed for one in NEW_CALLS)

    def fresh(self) -> PolicyEngine:
        policies = PolicyEngine(
            self.policy_set, facts=lambda name: SERVER.traits.facts, intact=lambda tool: True
        )
        assert policies.decide(OLD_CALLS[0]).allowed  # what a set prepares once is prepared
        return policies


@contextmanager
def recorded() -> Iterator[list[tuple]]:
    """The requests that Cedar receives meanwhile."""
    asked: list[tuple] = []
    ask = cedarpy.is_authorized

    def record(*question):
        asked.append(question)
        return ask(*question)

    cedarpy.is_authorized = record
    try:
        yield asked
    finally:
        cedarpy.is_authorized = ask


def timed(work: Callable[[], int]) -> float:
    """Microseconds of CPU for one."""
    done = 0
    began = time.process_time()
    while (spent := time.process_time() - began) < SECONDS or not done:
        done += work()
    return spent * 1e6 / done


def bare(policies: Set) -> float:
    ask, questions = cedarpy.is_authorized, policies.questions

    def work() -> int:
        for question in questions:
            ask(*question)
        return len(questions)

    return timed(work)


def anew(policies: Set) -> float:
    """Only deciding is timed: a set with nothing kept is made before each turn."""
    spent, turns = 0.0, 0
    while spent < SECONDS:
        decide = policies.fresh().decide
        began = time.process_time()
        for one in NEW_CALLS:
            decide(one)
        spent += time.process_time() - began
        turns += 1
    return spent * 1e6 / (turns * len(NEW_CALLS))


def kept(policies: Set) -> float:
    decide = policies.fresh().decide

    def work() -> int:
        for _ in range(KEPT // len(OLD_CALLS)):
            for one in OLD_CALLS:
                decide(one)
        return KEPT

    return timed(work)


def main() -> None:
    ten, hundred = Set(render_policies(10)), Set(render_policies(100))
    times = Set(render_policies(10, TIMED_STRANGERS))
    assert [len(one.policy_set.policies) for one in (ten, hundred, times)] == [10, 100, 10]
    rows = {
        "bare, 10": lambda: bare(ten),
        "anew, 10": lambda: anew(ten),
        "kept, 10": lambda: kept(ten),
        "bare, 100": lambda: bare(hundred),
        "anew, 100": lambda: anew(hundred),
        "kept, 100": lambda: kept(hundred),
        "timed, 10": lambda: kept(times),
    }
    found: dict[str, list[dict]] = {name: [] for name in rows}
    for number in range(1, ROUNDS + 1):
        for name, measure in rows.items():
            found[name].append({"round": number, "cpu_us": measure()})
    print(json.dumps(found))


main()
