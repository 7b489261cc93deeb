"""`[workflows]`: how many runs are worked on, and how long they are kept."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta, Struct


class WorkflowSettings(Struct, frozen=True, kw_only=True):
    durable: Annotated[
        bool,
        Meta(
            description="Wait for the disk before a step that may not be repeated is executed, so "
            "that it is executed at most once after a power failure too, not only after a crash. "
            "The calls of others do not wait. For `runs.db`: PostgreSQL has its own setting."
        ),
    ] = True
    concurrency: Annotated[
        int,
        Meta(
            ge=1,
            le=1_000,
            description="How many runs are advanced at once; those whose calls take long, or that "
            "wait, do not count.",
        ),
    ] = 8
    max_active: Annotated[
        int,
        Meta(ge=1, le=10_000, description="How many runs may have calls in progress."),
    ] = 256
    attached_secs: Annotated[
        float,
        Meta(
            gt=0,
            le=3_600,
            description="Seconds for which a step follows the task of a remote agent; after that "
            "the task is polled, and nothing is held in memory for it.",
        ),
    ] = 5.0
    poll_secs: Annotated[
        float,
        Meta(ge=0.1, le=3_600, description="Seconds between two polls of such a task, at most."),
    ] = 60.0
    task_days: Annotated[
        float,
        Meta(gt=0, le=80, description="Days that such a task may take if its step has no timeout."),
    ] = 7.0
    max_unfinished: Annotated[
        int,
        Meta(
            ge=1,
            le=10_000_000,
            description="How many runs may be unfinished, half of them of one principal.",
        ),
    ] = 100_000
    max_depth: Annotated[
        int,
        Meta(ge=1, le=20, description="How deep runs may start other runs with `workflow.run`."),
    ] = 5
    keep_days: Annotated[
        float, Meta(gt=0, le=36_500, description="Days after which a finished run is deleted.")
    ] = 30.0
    keep_runs: Annotated[
        int,
        Meta(
            ge=0,
            le=10_000_000,
            description="How many finished runs are kept; the oldest are deleted.",
        ),
    ] = 10_000
