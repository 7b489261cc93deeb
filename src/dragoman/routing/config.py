"""`[routing]`: how the hub chooses an agent for work that names none."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta, Struct


class RoutingSettings(Struct, frozen=True, kw_only=True):
    soft_cap: Annotated[
        int,
        Meta(ge=1, le=10_000, description="Running calls at which an agent counts for half."),
    ] = 5
    hard_cap: Annotated[
        int,
        Meta(ge=1, le=10_000, description="Running calls at which an agent is not chosen."),
    ] = 10
    window: Annotated[
        int,
        Meta(
            ge=2,
            le=1_000_000,
            description="Dispatches of a work type after which an outcome has lost 63 % of its "
            "weight.",
        ),
    ] = 100
    half_life_hours: Annotated[
        float,
        Meta(gt=0, le=87_600, description="Hours after which an outcome has lost half its weight."),
    ] = 24.0
    keep_decisions: Annotated[
        int, Meta(ge=100, le=1_000_000, description="How many past decisions are kept.")
    ] = 10_000
    seed: Annotated[
        int | None,
        Meta(description="Makes the choices repeatable, for tests; by default they are random."),
    ] = None
