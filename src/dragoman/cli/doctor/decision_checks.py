"""Checks for what waits for people: requests for approval, and runs that need a decision."""

from __future__ import annotations

from collections.abc import Iterator

from dragoman.cli.base.output import clean
from dragoman.cli.doctor.findings import MAX_WAITING, DoctorContext, Finding

MAX_NAMED = 5


def check_approvals(found: DoctorContext) -> Iterator[Finding]:
    """Counts the requests that wait: those of a running hub, or of its database."""
    if found.daemon is not None:
        count = len(found.approvals)
    else:
        from dragoman.stores.open_decisions import count_approvals

        count = count_approvals(found.home)
    if count:
        what = "request for approval waits" if count == 1 else "requests for approval wait"
        said = f"{_render_count(count, count)} {what} for a decision"
        yield Finding("approvals", "info", said, "dragoman approvals")


def check_runs(found: DoctorContext) -> Iterator[Finding]:
    """Names the runs of which it is unknown whether a step was executed."""
    if found.daemon is not None:
        runs = [(str(one["id"]), str(one["workflow"])) for one in found.undecided]
    else:
        from dragoman.stores.open_decisions import list_undecided_runs

        runs = list_undecided_runs(found.home, MAX_WAITING)
    for id, workflow in runs[:MAX_NAMED]:
        said = f"run {clean(id)} of workflow {clean(workflow)} needs a decision"
        yield Finding("runs", "warning", said, f"dragoman runs show {clean(id)}")
    if (more := len(runs) - MAX_NAMED) > 0:
        said = f"{_render_count(more, len(runs))} more runs need a decision"
        yield Finding("runs", "warning", said, "dragoman runs list --state needs_decision")


def _render_count(count: int, listed: int) -> str:
    return str(count) if listed < MAX_WAITING else f"{count} or more"
