"""`[limits]`: how much, how long, how many."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta, Struct


class Limits(Struct, frozen=True, kw_only=True):
    tool_timeout_secs: Annotated[
        float, Meta(gt=0, le=86_400, description="Seconds a tool may take, whatever it is.")
    ] = 60
    result_chars: Annotated[
        int,
        Meta(ge=1_000, description="Characters of a text in a result; what is longer is cut."),
    ] = 50_000
    calls_in_flight: Annotated[
        int, Meta(ge=1, description="Calls under way at once; one more is refused.")
    ] = 1_000
    question_secs: Annotated[
        float,
        Meta(gt=0, le=86_400, description="Seconds in which a question of a tool can be answered."),
    ] = 600
