"""Builds the export of traces and metrics. Loads nothing of it where no collector is configured."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from dragoman import __version__
from dragoman.app.config_watch import LiveConfig
from dragoman.core.errors import ConfigError
from dragoman.core.measurements import Distribution, Measurement
from dragoman.core.pipeline import Stage
from dragoman.core.secret_rules import Author, SecretUse
from dragoman.net.client import OutboundHttp

if TYPE_CHECKING:
    from dragoman.telemetry.exporter import OtelExporter

USE = SecretUse(Author.OWNER, "[otel] headers")
CollectMetrics = Callable[[], Sequence[Measurement | Distribution]]


@dataclass(slots=True)
class Telemetry:
    exporter: OtelExporter
    _ratio: float
    _sources: list[CollectMetrics] = field(default_factory=list)

    def trace(self, stages: Sequence[Stage]) -> Sequence[Stage]:
        """Returns what runs the same stages and records how long each takes."""
        from dragoman.telemetry.call_spans import TracedStages

        return [TracedStages(stages, self._ratio, self.exporter.add)]

    def start(self, collect_metrics: CollectMetrics) -> None:
        self._sources.append(collect_metrics)
        self.exporter.start()

    async def close(self) -> None:
        await self.exporter.close()


def build_telemetry(live: LiveConfig, net: OutboundHttp) -> Telemetry | None:
    """Returns None where no collector is configured. Raises `ConfigError`."""
    settings = live.config.otel
    if settings.endpoint is None:
        return None
    try:
        from dragoman.telemetry.exporter import ExportLimits, OtelExporter
        from dragoman.telemetry.otlp import OtlpEncoder
    except ImportError:
        raise ConfigError(
            '[otel] endpoint needs the extra "otel"; run: pip install "dragoman-hub[otel]"'
        ) from None

    async def find_headers() -> Mapping[str, str]:
        expand, given = live.secrets.expand_to_send, settings.headers
        return {name: await expand(value, USE) for name, value in given.items()}

    resource = {
        "service.name": settings.service_name,
        "service.version": __version__,
        "service.instance.id": secrets.token_hex(8),
    }
    sources: list[CollectMetrics] = []
    exporter = OtelExporter(
        net.open_configured(settings.endpoint, allow_private=True, follow=False),
        settings.endpoint,
        find_headers,
        OtlpEncoder(resource, __version__),
        lambda: [one for collect in sources for one in collect()],
        ExportLimits(metrics_seconds=settings.metrics_secs),
    )
    return Telemetry(exporter, settings.sample_ratio, sources)
