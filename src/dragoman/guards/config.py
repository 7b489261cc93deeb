"""`[limits]`: how much, how long, how many. `[bus]`: who else hears of calls."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta, Struct


class Limits(Struct, frozen=True, kw_only=True):
    tool_timeout_secs: Annotated[
        float, Meta(gt=0, le=86_400, description="Seconds a tool may take, whatever it is.")
    ] = 60
    progress_timeout_secs: Annotated[
        float,
        Meta(
            gt=0,
            le=86_400,
            description="Seconds a tool may take in all that reports progress, which gives it "
            "tool_timeout_secs anew each time.",
        ),
    ] = 600
    task_timeout_secs: Annotated[
        float,
        Meta(
            gt=0,
            le=604_800,
            description="Seconds a call may take of which its server has made a task; tasks are "
            "kept twice as long.",
        ),
    ] = 3_600
    tasks: Annotated[
        int, Meta(ge=1, le=100_000, description="Tasks kept at once, those under way and others.")
    ] = 1_000
    tasks_each: Annotated[
        int, Meta(ge=1, le=100_000, description="Of these, how many of one caller.")
    ] = 100
    result_chars: Annotated[
        int,
        Meta(
            ge=1_000,
            description="Characters of a text in a result or prompt; what is longer is cut, and "
            "the whole of it kept for kept_secs.",
        ),
    ] = 100_000
    data_chars: Annotated[
        int,
        Meta(
            ge=1_000,
            description="Characters of structured content, and of a resource that is read; long "
            "texts in what is longer are cut. Binary data does not count.",
        ),
    ] = 1_000_000
    kept_secs: Annotated[
        float,
        Meta(
            gt=0,
            le=86_400,
            description="Seconds for which the whole of what was cut can be read by its caller, "
            "as a resource dragoman://results/….",
        ),
    ] = 600
    kept_megabytes: Annotated[
        int,
        Meta(
            ge=0,
            le=100_000,
            description="Megabytes of memory for that; one caller has at most half, and what is "
            "kept longest goes first. 0 keeps nothing.",
        ),
    ] = 64
    calls_in_flight: Annotated[
        int,
        Meta(
            ge=1,
            description="Calls under way at once, of which one caller has at most half; one more "
            "is refused.",
        ),
    ] = 1_000
    connections: Annotated[
        int,
        Meta(
            ge=10,
            le=1_000_000,
            description="Connections over HTTP at once. One address has at most half of them "
            "without a key, and one caller half with one; where there are too many, the one goes "
            "that has been idle for longest.",
        ),
    ] = 10_000
    body_megabytes: Annotated[
        int,
        Meta(
            ge=20,
            le=100_000,
            description="Megabytes of request bodies over HTTP held at once, from the first byte "
            "to the answer; one caller has at most half of them, and what does not fit waits.",
        ),
    ] = 64
    chain_depth: Annotated[
        int,
        Meta(ge=0, le=63, description="How deep calls may be that are made on behalf of others."),
    ] = 5
    chain_calls: Annotated[
        int, Meta(ge=1, le=1_000_000, description="Calls that may come of one call, all in all.")
    ] = 64
    chain_secs: Annotated[
        float,
        Meta(gt=0, le=604_800, description="Seconds in which a call may lead to further ones."),
    ] = 300
    target_calls: Annotated[
        int,
        Meta(
            ge=2,
            description="Calls to one server or agent under way at once; one caller has at most "
            "half of them.",
        ),
    ] = 400
    question_secs: Annotated[
        float,
        Meta(gt=0, le=86_400, description="Seconds in which a question of a tool can be answered."),
    ] = 600


class BusSettings(Struct, frozen=True, kw_only=True):
    plugins: Annotated[
        list[str],
        Meta(
            description="Entry points of the group dragoman.bus, in packages installed beside the "
            "hub, that are told of events or may refuse calls."
        ),
    ] = []
    gate_secs: Annotated[
        float,
        Meta(gt=0, le=60, description="Seconds a gate has to decide; then the call is refused."),
    ] = 0.25
