"""Measures the CPU time of work, for tests that compare it with that of other work."""

from __future__ import annotations

import time
from collections.abc import Callable


def measure_cpu(work: Callable[[], object], times: int = 3) -> float:
    """Returns the CPU seconds of this thread in the fastest of several runs: others met noise."""
    spent: list[float] = []
    for _ in range(times):
        begun = time.thread_time()
        work()
        spent.append(time.thread_time() - begun)
    return min(spent)
