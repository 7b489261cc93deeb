"""Workflows: what a durable run of three steps costs, beside DBOS alone with the same steps."""

from bench.paths import DBOS_PYTHON, PYTHON
from bench.plan import FAILURES, Plan, Records, say
from bench.processes import run_peer

OWN, PEER = "Dragoman", "DBOS alone"
PEERS = {OWN: ("workflow_runs", PYTHON), PEER: ("dbos_runs", DBOS_PYTHON)}


def workflows(plan: Plan) -> Records:
    """A fresh process for each round and row, in turns."""
    found: Records = {name: [] for name in PEERS}
    for number in range(1, plan.rounds + 1):
        for name, (module, python) in PEERS.items():
            label = f"workflows, round {number} of {plan.rounds}: {name}"
            try:
                record = run_peer(module, plan.seconds, python=python)
            except FAILURES as error:
                say(f"FAIL {label}: {error}")
                continue
            found[name].append({"round": number, **record})
            say(
                f"{label}: {record['cpu_us']:.0f} \u00b5s CPU, {record['wall_us']:.0f} \u00b5s a "
                f"run, start {record['start_ms']:.2f} ms"
            )
    return found
