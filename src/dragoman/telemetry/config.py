"""`[otel]`: the OpenTelemetry collector that gets traces and metrics."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta, Struct


class OtelSettings(Struct, frozen=True, kw_only=True):
    endpoint: Annotated[
        Annotated[str, Meta(pattern="^https?://[^/]")] | None,
        Meta(
            description="The address of a collector for OTLP over HTTP, such as "
            "http://127.0.0.1:4318; /v1/traces and /v1/metrics are added. Without one, nothing is "
            'exported. Needs the extra "otel".',
        ),
    ] = None
    headers: Annotated[
        dict[str, str],
        Meta(
            max_length=50,
            description="Headers to send to the collector; ${NAME} and ${REFERENCE} stand for "
            "secrets.",
        ),
    ] = {}
    service_name: Annotated[
        str, Meta(min_length=1, max_length=200, description="The name of the service in traces.")
    ] = "dragoman"
    sample_ratio: Annotated[
        float,
        Meta(
            ge=0,
            le=1,
            description="The share of traces that are exported; all hubs choose the same ones.",
        ),
    ] = 1.0
    metrics_secs: Annotated[
        float, Meta(ge=1, le=3_600, description="Seconds between two exports of metrics.")
    ] = 15
