"""Sends traces and metrics to a collector in the background. What it does not take in time is
dropped: no call waits for it, and the queue is bounded."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial

from dragoman.core.background import Background
from dragoman.core.backoff import Backoff
from dragoman.core.errors import HubError
from dragoman.core.measurements import Distribution, Measurement
from dragoman.core.structs import Struct
from dragoman.core.urls import render_origin
from dragoman.telemetry.call_spans import CallRecord
from dragoman.telemetry.otlp import OtlpEncoder, add_spans
from dragoman.wire.http import HttpClient

log = logging.getLogger(__name__)

TRACES, METRICS = "/v1/traces", "/v1/metrics"
_CONTENT = {"content-type": "application/x-protobuf"}
MAX_REPLY = 64 * 1024

FindHeaders = Callable[[], Awaitable[Mapping[str, str]]]
"""Finds the headers of the collector, with their secrets. Raises `HubError`."""


class ExportLimits(Struct, frozen=True):
    queue: int = 4_096
    """Calls that wait to be exported."""
    batch: int = 512
    slice: int = 32
    """Calls that are encoded before others run."""
    batch_seconds: float = 1.0
    metrics_seconds: float = 15.0
    request_seconds: float = 5.0
    last_seconds: float = 1.0
    """For what is left when the hub stops."""
    longest_pause: float = 30.0


class CollectorFailed(Exception):
    """The collector did not accept an export."""


class OtelExporter:
    def __init__(
        self,
        client: HttpClient,
        endpoint: str,
        find_headers: FindHeaders,
        encoder: OtlpEncoder,
        collect_metrics: Callable[[], Sequence[Measurement | Distribution]],
        limits: ExportLimits,
    ) -> None:
        self.limits = limits
        self.dropped = 0
        """Calls that were not exported."""
        self._client = client
        self._endpoint = endpoint.rstrip("/")
        self._find_headers = find_headers
        self._encoder = encoder
        self._collect_metrics = collect_metrics
        self._queue: deque[CallRecord] = deque()
        self._is_full = asyncio.Event()
        """Whether there is a whole batch."""
        self._background = Background("the export to the collector")

    def add(self, record: CallRecord) -> None:
        queue = self._queue
        if len(queue) >= self.limits.queue:
            self.dropped += 1
            return
        queue.append(record)
        if len(queue) == self.limits.batch:
            self._is_full.set()

    def start(self) -> None:
        wait = partial(asyncio.sleep, self.limits.metrics_seconds)
        self._background.spawn(self._keep(self._export_calls, self._wait_for_batch))
        self._background.spawn(self._keep(self._export_metrics, wait))

    async def close(self) -> None:
        """Exports what is left, if the collector takes it at once."""
        await self._background.close()
        try:
            async with asyncio.timeout(self.limits.last_seconds):
                while self._queue:
                    await self._export_calls()
                await self._export_metrics()
        except (CollectorFailed, HubError, TimeoutError) as error:
            log.debug("the last export failed: %s", error)

    async def _keep(
        self, export: Callable[[], Awaitable[None]], wait: Callable[[], Awaitable[None]]
    ) -> None:
        backoff, place = Backoff(1.0, self.limits.longest_pause), render_origin(self._endpoint)
        while True:
            await wait()
            try:
                await export()
            except (CollectorFailed, HubError) as error:
                if not backoff.failures:
                    log.warning("the collector at %s fails, and data is dropped: %s", place, error)
                await asyncio.sleep(backoff.next_delay())
                continue
            if backoff.failures:
                log.warning("the collector at %s accepts data again", place)
            backoff.reset()

    async def _wait_for_batch(self) -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout(self.limits.batch_seconds):
                await self._is_full.wait()

    async def _export_calls(self) -> None:
        queue, limits = self._queue, self.limits
        count = min(len(queue), limits.batch)
        if not count:
            return
        message, part = self._encoder.start_traces()
        for number in range(count):
            add_spans(queue.popleft(), part)
            if number % limits.slice == limits.slice - 1:
                await asyncio.sleep(0)
        if len(queue) < limits.batch:
            self._is_full.clear()
        try:
            await self._send(TRACES, message.SerializeToString())
        except BaseException:
            self.dropped += count
            raise

    async def _export_metrics(self) -> None:
        message = self._encoder.encode_metrics(self._collect_metrics())
        await self._send(METRICS, message.SerializeToString())

    async def _send(self, path: str, body: bytes) -> None:
        headers = {**await self._find_headers(), **_CONTENT}
        url, seconds = self._endpoint + path, self.limits.request_seconds
        reply = await self._client.request("POST", url, headers, body, timeout=seconds)
        await reply.body.read(MAX_REPLY)
        if not 200 <= reply.status < 300:
            raise CollectorFailed(f"HTTP status {reply.status}")
