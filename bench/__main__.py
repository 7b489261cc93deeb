"""The command: selects tables, durations and the output page, and leaves nothing running."""

import argparse
import json
import re
import signal
import sys
import time
from dataclasses import asdict, replace
from typing import Any

from bench import machine, tables
from bench.agents import agents
from bench.bridge import bridge
from bench.cluster import cluster
from bench.console import console
from bench.goals import verdicts
from bench.model_agents import agent
from bench.paths import BUILD, PAGE, RESULTS, ROOT, CannotRun, prepare
from bench.plan import QUICK, TABLES, Plan, say
from bench.policy import policy
from bench.processes import LOAD_CORE, stop_all
from bench.report import page
from bench.stages import stages
from bench.starts import startup
from bench.streams import streams
from bench.workflows import workflows

MEASURE = {
    "calls": tables.calls,
    "growth": tables.growth,
    "memory": tables.memory,
    "start": startup,
    "streams": streams,
    "agents": agents,
    "bridge": bridge,
    "policy": policy,
    "stages": stages,
    "agent": agent,
    "console": console,
    "workflows": workflows,
    "cluster": cluster,
}


def regular_expression(text: str) -> str:
    try:
        re.compile(text)
    except re.error as error:
        raise argparse.ArgumentTypeError(
            f"{text!r} is not a regular expression: {error}"
        ) from error
    return text


def table_names(text: str) -> tuple[str, ...]:
    names = tuple(text.split(","))
    for name in names:
        if name not in TABLES:
            raise argparse.ArgumentTypeError(f"{name!r} is not one of {', '.join(TABLES)}")
    return names


def read_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser("python -m bench", description=__doc__)
    parser.add_argument("--rounds", type=int, metavar="N", help="turns of each row (3)")
    parser.add_argument(
        "--only", type=regular_expression, default="", metavar="REGEX", help="rows by name"
    )
    parser.add_argument(
        "--tables", type=table_names, default=TABLES, metavar="LIST", help=",".join(TABLES)
    )
    parser.add_argument("--quick", action="store_true", help="a smoke run of a minute or two")
    parser.add_argument("--strict", action="store_true", help="exit 1 if a goal is missed")
    return parser.parse_args()


def plan_from(arguments: argparse.Namespace) -> Plan:
    plan = QUICK if arguments.quick else Plan()
    if arguments.rounds is not None:
        plan = replace(plan, rounds=max(1, arguments.rounds))
    return replace(plan, only=arguments.only, tables=arguments.tables)


def run(plan: Plan) -> dict:
    results: dict[str, Any] = {"plan": asdict(plan), "machine": machine.describe()}
    began = time.perf_counter()
    for name in TABLES:
        if name in plan.tables:
            results[name] = MEASURE[name](plan)
    results["seconds"] = time.perf_counter() - began
    return results


def write(results: dict, *, whole: bool) -> None:
    """Only a whole run may change the page in docs/."""
    stamp = time.strftime("%Y%m%d-%H%M%S")
    raw = RESULTS / f"{stamp}.json"
    raw.write_text(json.dumps(results, indent=1), encoding="utf-8")
    target = PAGE if whole else RESULTS / "benchmarks.md"
    target.write_text(page(results), encoding="utf-8")
    print(page(results))
    say(f"wrote {target.relative_to(ROOT)} and {raw.relative_to(ROOT)}")


def main() -> int:
    arguments = read_arguments()
    plan = plan_from(arguments)
    signal.signal(signal.SIGINT, signal.default_int_handler)  # ignored where a shell has put us
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    signal.signal(signal.SIGHUP, lambda *_: sys.exit(129))
    try:
        with prepare():
            if LOAD_CORE is None:
                say("note: one core only, so target and generator share it")
            results = run(plan)
    except CannotRun as problem:
        print(f"bench: {problem}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print(f"bench: interrupted; logs are in {(BUILD / 'logs').relative_to(ROOT)}")
        return 130
    finally:
        stop_all()
    whole = not arguments.quick and not plan.only and plan.tables == TABLES
    write(results, whole=whole)
    unmet = [verdict for verdict in verdicts(results) if not verdict.met]
    return 1 if arguments.strict and unmet else 0


if __name__ == "__main__":
    sys.exit(main())
