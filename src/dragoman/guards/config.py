"""`[limits]`: how much, how long, how many. `[bus]`: plug-ins that observe calls or refuse them."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta, Struct


def _about(description: str) -> Meta:
    return Meta(description=description)


Seconds = Annotated[float, Meta(gt=0, le=86_400)]
WeekSeconds = Annotated[float, Meta(gt=0, le=604_800)]
Chars = Annotated[int, Meta(ge=1_000)]
Tasks = Annotated[int, Meta(ge=1, le=100_000)]


class Limits(Struct, frozen=True, kw_only=True):
    tool_timeout_secs: Annotated[Seconds, _about("Seconds a tool may take, whatever it is.")] = 60
    progress_timeout_secs: Annotated[
        Seconds,
        _about("Total seconds of a tool that reports progress, which restarts tool_timeout_secs."),
    ] = 600
    task_timeout_secs: Annotated[
        WeekSeconds, _about("Seconds of a call that became a task; tasks are kept twice as long.")
    ] = 3_600
    tasks: Annotated[Tasks, _about("Tasks kept at once, running or ended.")] = 1_000
    tasks_each: Annotated[Tasks, _about("Of these, how many of one caller.")] = 100
    result_chars: Annotated[
        Chars, _about("Characters of a text in a result or prompt; longer is cut (see kept_secs).")
    ] = 100_000
    data_chars: Annotated[
        Chars,
        _about(
            "Characters of structured content, and of a resource that is read; long texts in what "
            "is longer are cut. Binary data does not count."
        ),
    ] = 1_000_000
    kept_secs: Annotated[
        Seconds,
        _about("Seconds for which its caller can read what was cut, at dragoman://results/…."),
    ] = 600
    kept_megabytes: Annotated[
        int,
        Meta(ge=0, le=100_000),
        _about(
            "Megabytes of memory for that; one caller has at most half, and the oldest goes first. "
            "0 keeps nothing."
        ),
    ] = 64
    calls_in_flight: Annotated[
        int, Meta(ge=1), _about("Calls at once, at most half of one caller; others are refused.")
    ] = 1_000
    connections: Annotated[
        int,
        Meta(ge=10, le=1_000_000),
        _about(
            "HTTP connections at once; one address without a key, and one caller with one, has at "
            "most half. Beyond that, the one that was idle for longest is closed."
        ),
    ] = 10_000
    body_megabytes: Annotated[
        int,
        Meta(ge=20, le=100_000),
        _about(
            "Megabytes of HTTP request bodies in memory until they are answered; one caller has at "
            "most half of them, and what does not fit waits."
        ),
    ] = 64
    chain_depth: Annotated[int, Meta(ge=0, le=63), _about("How deep calls may lead to calls.")] = 5
    chain_calls: Annotated[
        int, Meta(ge=1, le=1_000_000), _about("Calls that one call may lead to, in total.")
    ] = 64
    chain_secs: Annotated[
        WeekSeconds, _about("Seconds in which a call may lead to further ones.")
    ] = 300
    target_calls: Annotated[
        int,
        Meta(ge=2),
        _about("Calls to one server or agent at once; one caller has at most half of them."),
    ] = 400
    question_secs: Annotated[
        Seconds, _about("Seconds in which a question of a tool can be answered.")
    ] = 600


class BusSettings(Struct, frozen=True, kw_only=True):
    plugins: Annotated[
        list[str],
        _about("Entry points of dragoman.bus in installed packages: they observe or refuse calls."),
    ] = []
    gate_secs: Annotated[
        float, Meta(gt=0, le=60), _about("Seconds a gate has to decide; then the call is refused.")
    ] = 0.25
