from __future__ import annotations

import asyncio
import re

from dragoman.core.bus import Bus
from dragoman.core.call import Call, Result
from dragoman.core.call_log import FLUSH_LINES, CallLog
from dragoman.core.errors import NotFound, TimedOut
from dragoman.core.events import PostVerb
from dragoman.core.principal import OWNER
from dragoman.core.tool import build_missing_tool
from dragoman.core.trace import Trace


def ended(name: str, error: TimedOut | None = None) -> PostVerb:
    call = Call(
        principal=OWNER,
        tool=build_missing_tool(name, NotFound("nowhere")),
        requested_name=name,
        arguments={"password": "hunter2"},
        trace=Trace("0123456789", ("a.b",)),
        door="test",
    )
    if error is not None:
        return PostVerb(call, "failed", 12.34, None, error)
    return PostVerb(call, "completed", 0.04, Result(), None)


async def test_log_line_has_verb_principal_outcome_time_depth_and_trace() -> None:
    written: list[str] = []
    there = asyncio.Event()
    bus = Bus()

    def write(text: str) -> None:
        written.append(text)
        there.set()

    CallLog(bus, write)
    bus.emit(ended("files.read"))
    bus.emit(ended("files.read", TimedOut("hunter2")))
    await asyncio.wait_for(there.wait(), 60)
    lines = "".join(written).splitlines()
    assert all(
        re.match(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z INFO call ", line) for line in lines
    )
    assert [line.partition(" INFO ")[2] for line in lines] == [
        "call files.read by owner:owner -> completed 0.0 ms depth 1 trace 01234567",
        "call files.read by owner:owner -> failed (TimedOut) 12.3 ms depth 1 trace 01234567",
    ]


async def test_client_chosen_name_is_one_bounded_log_line() -> None:
    written: list[str] = []
    bus = Bus()
    log = CallLog(bus, written.append)
    bus.emit(ended("x\ncall faked by owner:owner -> completed"))
    bus.emit(ended("y" * 100_000))
    log.flush()
    lines = "".join(written).splitlines()
    assert len(lines) == 2
    assert all(len(line) < 400 for line in lines)


async def test_many_log_lines_are_written_together_soon() -> None:
    written: list[str] = []
    bus = Bus()
    log = CallLog(bus, written.append)
    for _ in range(FLUSH_LINES):
        bus.emit(ended("files.read"))
    assert len(written) == 1 and written[0].count("\n") == FLUSH_LINES
    log.flush()
    assert len(written) == 1
