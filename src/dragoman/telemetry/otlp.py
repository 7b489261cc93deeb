"""Encodes calls and measurements as OTLP messages.

With the messages of `opentelemetry-proto` alone: the SDK's spans cost fourteen times as much.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from random import getrandbits
from time import time_ns

from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import (
    ExportMetricsServiceRequest,
)
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.common.v1.common_pb2 import AnyValue, InstrumentationScope, KeyValue
from opentelemetry.proto.metrics.v1.metrics_pb2 import AggregationTemporality
from opentelemetry.proto.resource.v1.resource_pb2 import Resource
from opentelemetry.proto.trace.v1.trace_pb2 import ScopeSpans, Span, Status

from dragoman.core.measurements import COUNTER, Distribution, Measurement
from dragoman.telemetry.call_spans import RUN, CallRecord

SCOPE = "dragoman"
_FAILED = Status(code=Status.STATUS_CODE_ERROR)


def _attributes(values: Mapping[str, str]) -> list[KeyValue]:
    return [
        KeyValue(key=name, value=AnyValue(string_value=value)) for name, value in values.items()
    ]


class OtlpEncoder:
    def __init__(self, resource: Mapping[str, str], version: str) -> None:
        """`resource` are the attributes of this process."""
        self._resource = Resource(attributes=_attributes(resource))
        self._scope = InstrumentationScope(name=SCOPE, version=version)
        self._started = time_ns()

    def start_traces(self) -> tuple[ExportTraceServiceRequest, ScopeSpans]:
        """Returns an empty message, and the part of it that gets the spans."""
        message = ExportTraceServiceRequest()
        spans = message.resource_spans.add(resource=self._resource).scope_spans
        return message, spans.add(scope=self._scope)

    def encode_metrics(
        self, measured: Sequence[Measurement | Distribution]
    ) -> ExportMetricsServiceRequest:
        message = ExportMetricsServiceRequest()
        part = message.resource_metrics.add(resource=self._resource).scope_metrics
        metrics, now = part.add(scope=self._scope).metrics, time_ns()
        cumulative = AggregationTemporality.AGGREGATION_TEMPORALITY_CUMULATIVE
        for one in measured:
            metric = metrics.add(name=one.name, description=one.meaning)
            if isinstance(one, Distribution):
                metric.unit = "s"
                metric.histogram.aggregation_temporality = cumulative
                metric.histogram.data_points.add(
                    start_time_unix_nano=self._started,
                    time_unix_nano=now,
                    count=sum(one.counts),
                    sum=one.total,
                    bucket_counts=one.counts,
                    explicit_bounds=one.bounds,
                )
                continue
            if one.kind == COUNTER:
                metric.sum.aggregation_temporality = cumulative
                metric.sum.is_monotonic = True
            points = metric.sum.data_points if one.kind == COUNTER else metric.gauge.data_points
            for labels, value in one.values:
                points.add(
                    attributes=_attributes(labels),
                    start_time_unix_nano=self._started,
                    time_unix_nano=now,
                    as_double=value,
                )
        return message


def add_spans(record: CallRecord, part: ScopeSpans) -> None:
    """Adds the span of a call, and one below it for each of its steps."""
    trace, span, spans = bytes.fromhex(record.trace), bytes.fromhex(record.span), part.spans
    about = {
        "dragoman.tool": record.tool,
        "dragoman.target": record.target,
        "dragoman.principal": record.principal,
        "dragoman.org": record.org,
        "dragoman.entry_point": record.door,
    }
    failed = bool(record.error) or record.has_failed
    if failed:
        about["error.type"] = record.error or "ToolError"
    spans.add(
        trace_id=trace,
        span_id=span,
        parent_span_id=bytes.fromhex(record.parent),
        name=f"call {record.tool}",
        kind=Span.SPAN_KIND_SERVER,
        start_time_unix_nano=record.started,
        end_time_unix_nano=record.ended,
        attributes=_attributes(about),
        status=_FAILED if failed else None,
    )
    last = len(record.steps) - 1
    for number, (name, began) in enumerate(record.steps):
        # The step in which a call was refused is the last one; a target has a step after it.
        status = _FAILED if record.error and number == last and name != "return" else None
        if name == RUN:
            status = _FAILED if failed else None
            name, kind = f"run {record.target}", Span.SPAN_KIND_CLIENT
        else:
            name, kind = f"guard {name}", Span.SPAN_KIND_INTERNAL
        spans.add(
            trace_id=trace,
            span_id=(getrandbits(64) or 1).to_bytes(8, "big"),
            parent_span_id=span,
            name=name,
            kind=kind,
            start_time_unix_nano=began,
            end_time_unix_nano=record.steps[number + 1][1] if number < last else record.ended,
            status=status,
        )
