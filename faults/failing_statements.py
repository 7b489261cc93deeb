"""Every statement that a hub sends to PostgreSQL under load fails once in each way."""

from __future__ import annotations

import random
import time

from faults.chaos import READY_SECONDS, Truth
from faults.chaos_loads import Crowd
from faults.chaos_rig import ChaosRig, Place, run_chaos_rig
from faults.harness import Outcome, until
from faults.hub_logs import judge_logs
from faults.links import Link
from faults.statements import CODES, FAULTS, StatementLink

LEARN_SECONDS = 15.0
"""Of load, in which the statements become known; those of timers come within it."""
WAIT_SECONDS = 4.0
"""For a statement to come again."""
ENDS = ("ROLLBACK",)
"""No error can be raised in place of these: the server never refuses them."""


def fail_statements(size: int, seed: int, outcome: Outcome) -> None:
    """`size` is the number of failures at most."""
    fail_each(size, seed, outcome, LEARN_SECONDS)


def fail_each(size: int, seed: int, outcome: Outcome, learn: float) -> None:
    link = StatementLink()
    with run_chaos_rig(outcome, 2, [link, Link(0)]) as rig:
        place = rig.places[0]
        crowd = Crowd(rig, seed)
        crowd.start()
        try:
            link.seen.clear()
            time.sleep(learn)
            _Injector(rig, place, link, Truth(rig, seed)).run(size, seed)
        finally:
            link.disarm()
            crowd.stop()
        crowd.judge()
        judge_logs(rig, outcome.figures.get("failures", 0))


class _Injector:
    def __init__(self, rig: ChaosRig, place: Place, link: StatementLink, truth: Truth) -> None:
        self._rig, self._place, self._link, self._truth = rig, place, link, truth
        self._rare: set[str] = set()

    def run(self, size: int, seed: int) -> None:
        texts = sorted(self._link.seen)
        pairs = [
            (text, fault)
            for text in texts
            for fault in FAULTS
            if not (fault in CODES and text.upper() in ENDS)
        ]
        random.Random(seed).shuffle(pairs)
        met: set[str] = set()
        for text, fault in pairs[:size]:
            if text not in self._rare and self._fail_once(text, fault):
                met.add(text)
        figures = self._rig.outcome.figures
        figures["statements known"] = len(texts)
        figures["statements that failed"] = len(met)
        figures["statements that did not come again"] = len(self._rare - met)

    def _fail_once(self, text: str, fault: str) -> bool:
        """Whether the statement came, and so met the fault."""
        outcome = self._rig.outcome
        self._link.arm(text, fault)
        if not self._link.fired.wait(WAIT_SECONDS):
            self._link.disarm()
            self._rare.add(text)
            return False
        outcome.count("failures")
        outcome.count(f"failures: {fault}")
        begun = time.monotonic()
        why = [""]
        if not until(lambda: self._truth.works(self._place, why), READY_SECONDS):
            outcome.fail(f"{fault} at {text[:150]!r}: after {READY_SECONDS:.0f} s: {why[0]}")
            outcome.count("failures that a hub did not survive")
            self._rig.end_hub(self._place, gently=False)
            self._rig.start_hub(self._place)
        took = time.monotonic() - begun
        outcome.check(took <= READY_SECONDS, f"{fault} at {text[:150]!r}: {took:.1f} s")
        figures = outcome.figures
        figures["slowest recovery, s"] = max(
            figures.get("slowest recovery, s", 0.0), round(took, 1)
        )
        return True
