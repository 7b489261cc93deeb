"""What hubs have logged about outages: a line when one begins, a line when it ends."""

from __future__ import annotations

import re
from collections import Counter

from faults.chaos_rig import ChaosRig

LINES_PER_FAULT = 2
"""Of one text at one hub, on average over all faults: the link may fail twice in one fault."""


def judge_logs(rig: ChaosRig, faults: int) -> None:
    outcome = rig.outcome
    most: Counter[str] = Counter()
    for place in rig.places:
        log = place.read_log()
        outcome.count("tracebacks", log.count("Traceback (most recent"))
        if "Traceback (most recent" in log:
            at = log.index("Traceback (most recent")
            outcome.fail(f"hub {place.number}: traceback in its log: {log[at - 300 : at + 900]}")
        texts = Counter(_normalize(line) for line in log.splitlines() if _is_complaint(line))
        for text, count in texts.items():
            most[text] = max(most[text], count)
    for text, count in most.most_common():
        outcome.check(
            count <= LINES_PER_FAULT * max(faults, 1), f"{count} times in a log: {text[:200]}"
        )
    outcome.figures["lines of the commonest complaint"] = max(most.values(), default=0)


def _is_complaint(line: str) -> bool:
    return " WARNING " in line or " ERROR " in line


def _normalize(line: str) -> str:
    return re.sub(r"[0-9a-f]{6,}|\d+", "#", line)
