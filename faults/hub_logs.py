"""What hubs have logged about outages: a line when one begins, a line when it ends."""

from __future__ import annotations

import re
from collections import Counter
from itertools import pairwise

from faults.chaos_rig import ChaosRig

LINES_PER_FAULT = 2
"""Of one text at one hub, from one fault to the next: what the fault before has caused may be noted
late. After the last fault a busy machine may have outages of its own: as many for each minute."""


def judge_logs(rig: ChaosRig) -> None:
    """Judges the lines between two marks of the rig, each of which begins a fault."""
    outcome = rig.outcome
    rig.mark_logs()
    most = 0
    for place in rig.places:
        log = place.read_log()
        outcome.count("tracebacks", log.count("Traceback (most recent"))
        if "Traceback (most recent" in log:
            at = log.index("Traceback (most recent")
            outcome.fail(f"hub {place.number}: traceback in its log: {log[at - 300 : at + 900]}")
        for (faults, begun, begins), (_, ended, ends) in pairwise(rig.log_marks):
            minutes = int((ended - begun) // 60)
            part = log[begins[place.number] : ends[place.number]]
            texts = Counter(_normalize(line) for line in part.splitlines() if _is_complaint(line))
            for text, count in texts.items():
                most = max(most, count)
                outcome.check(
                    count <= LINES_PER_FAULT * (faults + minutes),
                    f"hub {place.number}: {count} times in {ended - begun:.0f} s after {faults} "
                    f"faults: {text[:200]}",
                )
    outcome.figures["lines of the commonest complaint after a fault"] = most


def _is_complaint(line: str) -> bool:
    return (" WARNING " in line or " ERROR " in line) and "the event loop was held" not in line


def _normalize(line: str) -> str:
    """The same text for the same complaint. The end of each hub is an episode of its own."""
    return re.sub(
        r"hub [0-9a-f]{8}|[0-9a-f]{6,}|\d+",
        lambda found: found[0] if found[0].startswith("hub ") else "#",
        line,
    )
