"""What is recorded of a call, and its spans; the exporter's bounds."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from types import SimpleNamespace
from typing import Any

import pytest
from opentelemetry.proto.trace.v1.trace_pb2 import Span, Status

from dragoman.core.call import Call, Result
from dragoman.core.errors import Denied, Unreachable
from dragoman.core.pipeline import Next, build_pipeline
from dragoman.core.principal import OWNER
from dragoman.core.tool import DEFAULT_TRAITS, Tool
from dragoman.core.trace import Trace
from dragoman.telemetry.call_spans import CallRecord, TracedStages
from dragoman.telemetry.exporter import ExportLimits, OtelExporter
from dragoman.telemetry.otlp import OtlpEncoder, add_spans
from dragoman.wire.http import HttpReply

ABOVE = Trace("a" * 32, (), "b" * 16, "far.do")


class FarTarget:
    traits = DEFAULT_TRAITS
    name = "far"

    async def run(self, call: Call) -> Result:
        raise NotImplementedError


def build_call(trace: Trace) -> Call:
    tool = Tool(name="far.do", alias="do", remote_name="do", target=FarTarget())
    return Call(OWNER, tool, "do", {}, trace, "test")


class OuterGuard:
    async def __call__(self, next: Next, call: Call) -> Result:
        return await next(call)


class InnerGuard:
    refuses = False

    async def __call__(self, next: Next, call: Call) -> Result:
        if self.refuses:
            raise Denied("no")
        return await next(call)


class Rig:
    """Two guards and a target."""

    def __init__(self, ratio: float = 1.0) -> None:
        self.records: list[CallRecord] = []
        self.inner = InnerGuard()
        self.run: Callable[[Call], Any] = self._answer
        stages = TracedStages([OuterGuard(), self.inner], ratio, self.records.append)

        async def end(call: Call) -> Result:
            found = await self.run(call)
            assert isinstance(found, Result)
            return found

        self.call = build_pipeline([stages], end)

    async def _answer(self, call: Call) -> Result:
        return Result()

    def list_spans(self) -> list[Span]:
        _, part = OtlpEncoder({}, "1").start_traces()
        for one in self.records:
            add_spans(one, part)
        return list(part.spans)


def trace(number: int = 1, **more: Any) -> Trace:
    return Trace(f"{number:032x}", (), f"{number:016x}", "far.do", **more)


def is_failed(span: Span) -> bool:
    return span.status.code == Status.STATUS_CODE_ERROR


async def test_spans_follow_one_another() -> None:
    rig = Rig()
    await rig.call(build_call(trace(caller_span="c" * 16)))
    top, outer, inner, run, back = rig.list_spans()
    assert top.parent_span_id.hex() == "c" * 16 and top.span_id.hex() == f"{1:016x}"
    assert [one.name for one in (outer, inner, run, back)] == [
        *("guard outer_guard", "guard inner_guard", "run far", "guard return"),
    ]
    assert outer.end_time_unix_nano == inner.start_time_unix_nano
    assert inner.end_time_unix_nano == run.start_time_unix_nano
    assert back.end_time_unix_nano == top.end_time_unix_nano
    assert not any(map(is_failed, (top, outer, inner, run, back)))


async def test_a_refusal_is_the_failure_of_its_guard() -> None:
    rig = Rig()
    rig.inner.refuses = True
    with pytest.raises(Denied):
        await rig.call(build_call(trace()))
    top, outer, inner = rig.list_spans()
    assert is_failed(top) and is_failed(inner) and not is_failed(outer)
    assert {one.key: one.value.string_value for one in top.attributes}["error.type"] == "Denied"


@pytest.mark.parametrize("error", [Unreachable("x"), RuntimeError("x"), asyncio.CancelledError()])
async def test_a_failure_of_the_target_is_its_own(error: BaseException) -> None:
    rig = Rig()

    async def fail(call: Call) -> Result:
        raise error

    rig.run = fail
    with pytest.raises(type(error)):
        await rig.call(build_call(trace()))
    failed = {one.name: is_failed(one) for one in rig.list_spans()}
    assert failed == {
        "call far.do": True,
        "guard outer_guard": False,
        "guard inner_guard": False,
        "run far": True,
        "guard return": False,
    }
    kinds = {Unreachable: "Unreachable", RuntimeError: "InternalError"}
    assert rig.records[0].error == kinds.get(type(error), "Cancelled")


async def test_a_call_within_a_call_is_below_it() -> None:
    rig = Rig()

    async def call_again(call: Call) -> Result:
        rig.run = rig._answer
        above = SimpleNamespace(trace=call.trace)
        return await rig.call(build_call(trace(2, parent=above)))

    rig.run = call_again
    await rig.call(build_call(trace(1)))
    inner, outer = rig.records
    assert (inner.parent, outer.parent) == (outer.span, "")
    assert len(inner.steps) == len(outer.steps) == 4
    # A chain that the hub has opened for someone has no span.
    opened = SimpleNamespace(trace=Trace("1" * 32, (), "2" * 16))
    await rig.call(build_call(trace(3, parent=opened)))
    assert rig.records[-1].parent == ""


async def test_traces_are_sampled_by_their_id() -> None:
    half, none = Rig(0.5), Rig(0.0)
    ids = [f"{number:018x}{number * 2**47:014x}" for number in range(512)]
    for id in ids:
        for rig in (half, none):
            await rig.call(build_call(Trace(id, (), "1" * 16, "far.do")))
    assert [one.trace for one in half.records] == ids[:256] and not none.records


class RecordingClient:
    def __init__(self) -> None:
        self.status = 200
        self.bodies: list[bytes] = []

    async def request(
        self,
        method: str,
        url: str,
        headers: Mapping[str, str],
        body: bytes = b"",
        *,
        timeout: float,
        extra_headers: Mapping[str, str] | None = None,
    ) -> HttpReply:
        self.bodies.append(body)

        async def read(limit: int) -> bytes:
            return b""

        return HttpReply(self.status, {}, SimpleNamespace(read=read))


async def test_the_queue_is_bounded_and_what_is_dropped_is_counted() -> None:
    async def find_headers() -> Mapping[str, str]:
        return {}

    client = RecordingClient()
    limits = ExportLimits(queue=20, batch=8, slice=3, batch_seconds=30)
    exporter = OtelExporter(
        client, "http://collector", find_headers, OtlpEncoder({}, "1"), list, limits
    )
    for number in range(25):
        exporter.add(CallRecord(build_call(trace(number + 1))))
    assert exporter.dropped == 5
    exporter.start()  # a whole batch does not wait
    async with asyncio.timeout(60):
        while len(client.bodies) < 2:
            await asyncio.sleep(0.005)
    assert exporter.dropped == 5
    client.status = 503
    await exporter.close()
    assert exporter.dropped == 9  # the last four
