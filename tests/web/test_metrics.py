"""Metrics in the Prometheus text format."""

from __future__ import annotations

import re

from dragoman.core.bus import Bus
from dragoman.core.call import Call, Result
from dragoman.core.errors import TimedOut
from dragoman.core.events import PostVerb, VerbError
from dragoman.core.principal import OWNER
from dragoman.core.tool import DEFAULT_TRAITS, Tool
from dragoman.core.trace import Trace
from dragoman.web.metrics import Metrics

SAMPLE = re.compile(
    r'([a-zA-Z_:][a-zA-Z0-9_:]*)(\{(?:[a-z_]+="(?:[^"\\\n]|\\["\\n])*",?)*\})? (\S+)'
)


def parsed(text: str) -> dict[str, float]:
    """By hand, as strict as the format is; each metric has its HELP and TYPE before its samples."""
    assert text.endswith("\n")
    samples: dict[str, float] = {}
    announced: set[str] = set()
    for line in text.splitlines():
        if line.startswith("# HELP "):
            continue
        if line.startswith("# TYPE "):
            _, _, name, kind = line.split(" ")
            assert kind in {"counter", "gauge", "histogram"}
            assert name not in announced
            announced.add(name)
            continue
        found = SAMPLE.fullmatch(line)
        assert found, line
        name = re.sub(r"_(bucket|sum|count)$", "", found[1])
        assert name in announced or found[1] in announced, line
        key = found[1] + (found[2] or "")
        assert key not in samples, f"{key} stands there twice"
        samples[key] = float(found[3])
    return samples


class FakeTarget:
    traits = DEFAULT_TRAITS

    def __init__(self, name: str) -> None:
        self.name = name

    async def run(self, call: Call) -> Result:
        raise NotImplementedError


def call_of(target: str) -> Call:
    tool = Tool(name="t", alias="t", remote_name="t", target=FakeTarget(target))
    return Call(
        principal=OWNER,
        tool=tool,
        requested_name="t",
        arguments={},
        trace=Trace("0"),
        door="test",
    )


def test_calls_are_counted_by_target_outcome_error_and_time() -> None:
    bus = Bus()
    metrics = Metrics(bus)
    odd = 'a"b\\c\nd'
    for milliseconds in (0.5, 1.0, 1.1, 40_000):
        bus.emit(PostVerb(call_of("far"), "completed", milliseconds, Result(), None))
    error = TimedOut("late")
    bus.emit(PostVerb(call_of(odd), "failed", 10, None, error))
    bus.emit(VerbError(call_of(odd), error))
    got = parsed(metrics.render({"dragoman_x": ("An x.", 1_234_567), "dragoman_y": ("A y.", 0.25)}))
    assert got['dragoman_calls_total{target="far",outcome="completed"}'] == 4
    assert got['dragoman_calls_total{target="a\\"b\\\\c\\nd",outcome="failed"}'] == 1
    assert got['dragoman_call_errors_total{kind="TimedOut"}'] == 1
    assert got['dragoman_call_seconds_bucket{le="0.001"}'] == 2
    assert got['dragoman_call_seconds_bucket{le="0.0025"}'] == 3
    assert got['dragoman_call_seconds_bucket{le="30"}'] == 4
    assert got['dragoman_call_seconds_bucket{le="+Inf"}'] == 5
    assert got["dragoman_call_seconds_count"] == 5
    assert abs(got["dragoman_call_seconds_sum"] - 40.0126) < 1e-6
    assert got["dragoman_x"] == 1_234_567
    assert got["dragoman_y"] == 0.25


def test_metrics_text_is_valid_before_the_first_call() -> None:
    assert parsed(Metrics(Bus()).render({}))["dragoman_call_seconds_count"] == 0
