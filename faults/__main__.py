"""The command: which experiments, how large, where the page goes; no process is left running."""

from __future__ import annotations

import argparse
import signal
import sys
import time
import traceback
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from faults.experiments import EXPERIMENTS, Experiment, run_case
from faults.harness import ROOT, SEED, NotHere, Outcome
from faults.report import Result, render_figures, render_page

PAGE = ROOT / "docs" / "reliability.md"


def read_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser("python -m faults", description=__doc__)
    parser.add_argument(
        "--only", default="", metavar="NAME", help="experiments whose name has this in it"
    )
    parser.add_argument("--quick", action="store_true", help="small sizes, two or three minutes")
    parser.add_argument("--size", type=int, metavar="N", help="this size instead")
    parser.add_argument("--seed", type=int, default=SEED, help=f"of all that is random ({SEED})")
    parser.add_argument(
        "--seeds", type=int, metavar="N", help="so many seeds, of experiments that have several"
    )
    parser.add_argument("--case", type=int, metavar="N", help="this case of a fuzzer alone")
    parser.add_argument("--list", action="store_true", help="names and sizes")
    return parser.parse_args()


def say(text: str) -> None:
    print(time.strftime("%H:%M:%S"), text, flush=True)


def run(experiment: Experiment, size: int, seeds: Sequence[int], case: int | None = None) -> Result:
    """Runs it with each seed; with several, failures say of which they are."""
    if len(seeds) == 1:
        return run_seed(experiment, size, seeds[0], case)
    whole = Outcome()
    results = []
    for seed in seeds:
        results.append(result := run_seed(experiment, size, seed, case))
        if result.missing:
            return result
        say(f"        seed {seed}: {render_figures(result.outcome.figures)}")
        for name, value in result.outcome.figures.items():
            whole.figures[name] = add_up(whole.figures.get(name), value)
        for failure in result.outcome.failures:
            whole.fail(f"seed {seed}: {failure}")
    seconds = sum(result.seconds for result in results)
    return Result(experiment, whole, seconds, seeds=len(seeds))


def add_up(before: Any, value: Any) -> Any:
    """The figure of several seeds: the sum of counts, the largest of others."""
    if before is None or isinstance(value, str):
        return value
    return before + value if isinstance(value, int) else max(before, value)


def run_seed(experiment: Experiment, size: int, seed: int, case: int | None) -> Result:
    outcome = Outcome()
    begun = time.monotonic()
    missing = ""
    try:
        if case is not None and experiment.fuzz is not None:
            run_case(experiment.fuzz, 1, seed, outcome, case)
        else:
            experiment.run(size, seed, outcome)
    except NotHere as reason:
        missing = str(reason)
    except Exception as error:  # what the experiment asserts, and what it did not expect
        where = traceback.extract_tb(error.__traceback__)[-1]
        place = f"{Path(where.filename).name}:{where.lineno}"
        outcome.fail(f"{type(error).__name__} at {place}: {str(error)[:1000]}")
    return Result(experiment, outcome, time.monotonic() - begun, missing)


def main() -> int:
    arguments = read_arguments()
    chosen = [one for one in EXPERIMENTS if arguments.only in one.name]
    if not chosen:
        print(f"faults: no experiment has {arguments.only!r} in its name", file=sys.stderr)
        return 2
    if arguments.list:
        for one in chosen:
            print(f"{one.name}: {one.whole:,}")
        return 0
    signal.signal(signal.SIGINT, signal.default_int_handler)  # ignored where a shell has put us
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    results: list[Result] = []
    try:
        for one in chosen:
            size = arguments.size or (one.quick if arguments.quick else one.whole)
            count = 1
            if one.seeds > 1:
                count = arguments.seeds or (1 if arguments.quick else one.seeds)
            seeds = range(arguments.seed, arguments.seed + count)
            results.append(run(one, size, seeds, arguments.case))
            shown = results[-1].missing or render_figures(results[-1].outcome.figures)
            say(f"{results[-1].verdict:7} {one.name} ({results[-1].seconds:.0f} s): {shown}")
            for failure in results[-1].outcome.failures:
                say(f"        {failure}")
    except KeyboardInterrupt:
        print("faults: interrupted")
        return 130
    is_whole = not (arguments.quick or arguments.size or arguments.seeds)
    if is_whole and arguments.case is None:
        page = PAGE.read_text("utf-8") if PAGE.exists() else ""
        PAGE.write_text(render_page(results, arguments.seed, page), encoding="utf-8")
        say(f"wrote {PAGE.relative_to(ROOT)}")
    return 1 if any(result.verdict == "failed" for result in results) else 0


if __name__ == "__main__":
    sys.exit(main())
