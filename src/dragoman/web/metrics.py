"""Counts calls, in Prometheus' text format.

Hand-written: two counters and a histogram; a library would cost more than the call that it counts.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping

from dragoman.core.bus import Bus
from dragoman.core.events import PostVerb, VerbError

BUCKETS_MS = (1.0, 2.5, 5.0, 10.0, 25.0, 50.0, 100.0, 250.0, 500.0, 1000.0, 5000.0, 30000.0)


class Metrics:
    def __init__(self, bus: Bus) -> None:
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

    def render(self, gauges: Mapping[str, tuple[str, float]]) -> str:
        """Renders all metrics; `gauges` maps names to (meaning, value)."""
        lines = [*_render_head("dragoman_calls_total", "counter", "Calls by target and outcome.")]
        for (target, outcome), count in sorted(self._calls.items()):
            labels = f'target="{_escape(target)}",outcome="{outcome}"'
            lines.append(f"dragoman_calls_total{{{labels}}} {count}")
        lines += _render_head("dragoman_call_errors_total", "counter", "Errors by kind.")
        for kind, count in sorted(self._errors.items()):
            lines.append(f'dragoman_call_errors_total{{kind="{kind}"}} {count}')
        lines += _render_head("dragoman_call_seconds", "histogram", "How long calls took.")
        seen = 0
        for bound, count in zip((*BUCKETS_MS, None), self._buckets, strict=True):
            seen += count
            le = "+Inf" if bound is None else f"{bound / 1000:g}"
            lines.append(f'dragoman_call_seconds_bucket{{le="{le}"}} {seen}')
        lines.append(f"dragoman_call_seconds_sum {self._sum_ms / 1000:.6f}")
        lines.append(f"dragoman_call_seconds_count {seen}")
        for name, (meaning, value) in gauges.items():
            lines += _render_head(name, "gauge", meaning)
            lines.append(f"{name} {round(value, 3)}")
        return "\n".join(lines) + "\n"


def _render_head(name: str, kind: str, meaning: str) -> list[str]:
    return [f"# HELP {name} {meaning}", f"# TYPE {name} {kind}"]


def _escape(text: str) -> str:
    return text.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")
