"""Stages: what each stage of the pipeline adds to the cost of a call."""

from bench.plan import FAILURES, Plan, Records, say
from bench.processes import run_peer

NAMES = {  # as peers/stages.py calls them: and their names for people
    "first": "a first call, by a client with a session",
    "nested": "a call in an agent's run",
}
SUMMED = ("RateLimit", "LoopGuard", "Taint")


def stages(plan: Plan) -> Records:
    """A fresh process each round: the memory layout of a process shifts its figures."""
    found: Records = {kind: [] for kind in NAMES}
    for number in range(1, plan.rounds + 1):
        label = f"stages, round {number} of {plan.rounds}"
        try:
            measured = run_peer("stages", plan.seconds * 4)
        except FAILURES as error:
            say(f"FAIL {label}: {error}")
            continue
        for kind, record in measured.items():
            found[kind].append({"round": number, **record})
            costs = ", ".join(f"{name} {cost:.1f}" for name, cost in record["stages"].items())
            say(f"{label}: {NAMES[kind]}: {record['whole_us']:.1f} \u00b5s; {costs}")
    return found


def list_stages(found: Records) -> list[str]:
    """Lists the stages that were measured, outermost first."""
    return list(
        dict.fromkeys(name for some in found.values() for one in some for name in one["stages"])
    )


def sum_stages(records: list[dict]) -> list[dict]:
    """Adds up the stages that have a goal together, those of them that there are."""
    return [
        {"round": one["round"], "us": sum(one["stages"].get(name, 0.0) for name in SUMMED)}
        for one in records
    ]
