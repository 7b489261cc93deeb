"""What the short versions of the experiments share."""

from __future__ import annotations

from faults.harness import Outcome


def judge(outcome: Outcome) -> None:
    print(outcome.figures)
    assert not outcome.failures, "\n".join(outcome.failures)
