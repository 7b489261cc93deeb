"""Every statement that a hub sends to PostgreSQL under load fails once in each way, and many of
those of its start in one."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from functools import partial

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
STARTS = 40
"""Starts in which a statement fails."""
START_SECONDS = 20.0
"""Within which the hub is ready all the same: a lost connection is tried again each second."""


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
            injector = _Injector(rig, place, link, Truth(rig, seed))
            injector.run(size, seed)
            injector.fail_starts(min(STARTS, size // 10), seed)
        finally:
            link.disarm()
            crowd.stop()
        crowd.judge()
        judge_logs(rig)


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
        least = min(len(texts), size) // 2
        self._rig.outcome.check(len(met) >= least, f"only {len(met)} statements failed")

    def fail_starts(self, count: int, seed: int) -> None:
        """The hub is killed and started again; a statement of its start fails."""
        self._link.seen.clear()
        self._restart()
        pairs = [
            (text, fault)
            for text in sorted(self._link.seen)
            for fault in FAULTS
            # An error in place of COMMIT has two answers, which the driver does not expect here.
            if not (fault in CODES and text.upper() in (*ENDS, "COMMIT"))
        ]
        chosen = random.Random(seed).sample(pairs, min(count, len(pairs)))
        for text, fault in chosen:
            self._restart(partial(self._link.arm, text, fault))
            if why := self._wait_until_works(START_SECONDS):
                self._rig.outcome.fail(f"start with {fault} at {text[:150]!r}: {why}")
            if self._link.fired.is_set():
                self._rig.outcome.count("starts in which a statement failed")
            self._link.disarm()
        failed = self._rig.outcome.figures.get("starts in which a statement failed", 0)
        self._rig.outcome.check(
            failed >= len(chosen) // 2, f"a statement failed in {failed} of {len(chosen)} starts"
        )

    def _wait_until_works(self, seconds: float) -> str:
        """Waits until the hub can do everything; returns what it cannot do after that time."""
        why = [""]
        until(lambda: self._truth.works(self._place, why), seconds)
        return why[0]

    def _restart(self, prepare: Callable[[], object] = lambda: None) -> None:
        """Prepares the start while no hub runs."""
        self._rig.mark_logs()
        self._rig.end_hub(self._place, gently=False)
        prepare()
        try:
            self._rig.start_hub(self._place)
        except RuntimeError as error:
            self._rig.outcome.fail(f"the hub does not start: {str(error)[-1_000:]}")
            self._rig.start_hub(self._place)

    def _fail_once(self, text: str, fault: str) -> bool:
        """Whether the statement came, and so met the fault."""
        outcome = self._rig.outcome
        self._rig.mark_logs()
        self._link.arm(text, fault)
        if not self._link.fired.wait(WAIT_SECONDS):
            self._link.disarm()
            self._rare.add(text)
            return False
        outcome.count("failures")
        outcome.count(f"failures: {fault}")
        begun = time.monotonic()
        if why := self._wait_until_works(READY_SECONDS):
            outcome.fail(f"{fault} at {text[:150]!r}: after {READY_SECONDS:.0f} s: {why}")
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
