"""Policies: the cost of one decision compared with Cedar alone."""

import json
import subprocess

from bench.paths import PEERS, PYTHON
from bench.plan import FAILURES, Plan, Records, microseconds, say
from bench.processes import TARGET_CORE, clean_environment, on_core

LONGEST_SECONDS = 300
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
        found = ask(plan)
    except FAILURES as error:
        say(f"FAIL policy: {error}")
        return {}
    for name, records in found.items():
        said = ", ".join(microseconds(record["cpu_us"]) for record in records)
        say(f"policy: {NAMES[name]}: {said}")
    return found


def ask(plan: Plan) -> Records:
    command = [str(PYTHON), str(PEERS / "decisions.py"), str(plan.rounds), str(plan.seconds / 4)]
    with on_core(TARGET_CORE):
        ran = subprocess.run(
            command,
            env=clean_environment({}),
            capture_output=True,
            text=True,
            timeout=LONGEST_SECONDS,
        )
    if ran.returncode:
        raise RuntimeError(f"decisions.py ended with code {ran.returncode}: {ran.stderr[-300:]}")
    records: Records = json.loads(ran.stdout)
    return records
