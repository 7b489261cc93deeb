"""Counts calls, and renders measurements in Prometheus' text format.

Hand-written: two counters and a histogram; a library would cost more than the call that it counts.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Mapping, Sequence

from dragoman.core.bus import Bus
from dragoman.core.events import PostVerb, VerbError
from dragoman.core.measurements import COUNTER, GAUGE, Distribution, Measurement

BUCKETS_MS = (1.0, 2.5, 5.0, 10.0, 25.0, 50.0, 100.0, 250.0, 500.0, 1000.0, 5000.0, 30000.0)


class Metrics:
    def __init__(self, bus: Bus, collect_more: Callable[[], Sequence[Measurement]] = tuple) -> None:
        """`collect_more` returns what others have measured."""
        self._collect_more = collect_more
        self._calls: dict[tuple[str, str], int] = {}
        self._errors: dict[str, int] = {}
        self._buckets = [0] * (len(BUCKETS_MS) + 1)
        self._sum_ms = 0.0
        bus.observe(PostVerb, self._count_call)
        bus.observe(VerbError, self._count_error)

    def _count_call(self, event: PostVerb) -> None:
        key = (event.call.tool.target.name, event.outcome)
        self._calls[key] = self._calls.get(key, 0) + 1
        self._buckets[bisect_left(BUCKETS_MS, event.duration_ms)] += 1
        self._sum_ms += event.duration_ms

    def _count_error(self, event: VerbError) -> None:
        kind = event.error.kind
        self._errors[kind] = self._errors.get(kind, 0) + 1

    def collect(self, gauges: Mapping[str, tuple[str, float]]) -> list[Measurement | Distribution]:
        """Collects all metrics; `gauges` maps names to (meaning, value)."""
        calls = [
            ({"target": target, "outcome": outcome}, float(count))
            for (target, outcome), count in sorted(self._calls.items())
        ]
        errors = [({"kind": kind}, float(count)) for kind, count in sorted(self._errors.items())]
        return [
            Measurement("dragoman_calls_total", COUNTER, "Calls by target and outcome.", calls),
            Measurement("dragoman_call_errors_total", COUNTER, "Errors by kind.", errors),
            Distribution(
                "dragoman_call_seconds",
                "How long calls took.",
                [bound / 1000 for bound in BUCKETS_MS],
                list(self._buckets),
                self._sum_ms / 1000,
            ),
            *(
                Measurement(name, GAUGE, meaning, [({}, value)])
                for name, (meaning, value) in gauges.items()
            ),
            *self._collect_more(),
        ]

    def render(self, gauges: Mapping[str, tuple[str, float]]) -> str:
        """Renders all metrics; `gauges` maps names to (meaning, value)."""
        lines: list[str] = []
        for one in self.collect(gauges):
            if isinstance(one, Distribution):
                lines += _render_distribution(one)
                continue
            lines += _render_head(one.name, one.kind, one.meaning)
            for labels, value in one.values:
                shown = ",".join(f'{name}="{_escape(text)}"' for name, text in labels.items())
                number = f"{value:.0f}" if one.kind == COUNTER else f"{round(value, 3)}"
                lines.append(f"{one.name}{{{shown}}} {number}" if shown else f"{one.name} {number}")
        return "\n".join(lines) + "\n"


def _render_distribution(one: Distribution) -> list[str]:
    lines, seen = _render_head(one.name, "histogram", one.meaning), 0
    for bound, count in zip((*one.bounds, None), one.counts, strict=True):
        seen += count
        le = "+Inf" if bound is None else f"{bound:g}"
        lines.append(f'{one.name}_bucket{{le="{le}"}} {seen}')
    return [*lines, f"{one.name}_sum {one.total:.6f}", f"{one.name}_count {seen}"]


def _render_head(name: str, kind: str, meaning: str) -> list[str]:
    return [f"# HELP {name} {meaning}", f"# TYPE {name} {kind}"]


def _escape(text: str) -> str:
    return text.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")
