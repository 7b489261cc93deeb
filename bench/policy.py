"""Policies: the cost of one decision compared with Cedar alone."""

from bench.plan import FAILURES, Plan, Records, microseconds, say
from bench.processes import run_peer

NAMES = {  # as decisions.py calls them: and their names for people
    "bare, 10": "cedarpy alone, 10 policies",
    "anew, 10": "Dragoman, 10 policies, decided anew",
    "timed, 10": "Dragoman, 10 policies, one of which reads the time: never kept",
    "kept, 10": "Dragoman, 10 policies, decided before",
    "bare, 100": "cedarpy alone, 100 policies",
    "anew, 100": "Dragoman, 100 policies, decided anew",
    "kept, 100": "Dragoman, 100 policies, decided before",
}


def policy(plan: Plan) -> Records:
    try:
        found: Records = run_peer("decisions", plan.rounds, plan.seconds / 4)
    except FAILURES as error:
        say(f"FAIL policy: {error}")
        return {}
    for name, records in found.items():
        said = ", ".join(microseconds(record["cpu_us"]) for record in records)
        say(f"policy: {NAMES[name]}: {said}")
    return found
