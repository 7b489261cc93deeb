"""A collector for OTLP over HTTP: decodes what it gets with the official messages."""

from __future__ import annotations

import http.server
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import (
    ExportMetricsServiceRequest,
)
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.trace.v1.trace_pb2 import Span


class Collector:
    def __init__(self) -> None:
        self.status = 200
        self.hangs = False
        self.headers: list[dict[str, str]] = []
        self.requests: list[ExportTraceServiceRequest] = []
        self.metrics: dict[str, Any] = {}
        """The newest of each name."""
        self.resource: dict[str, str] = {}
        self.url = ""
        self._changed = threading.Condition()
        self._released = threading.Event()

    def receive(self, path: str, headers: dict[str, str], body: bytes) -> int:
        with self._changed:
            self.headers.append(headers)
            self._changed.notify_all()
        if self.hangs:
            self._released.wait(60)
        if self.status != 200:
            return self.status
        with self._changed:
            if path == "/v1/traces":
                traces = ExportTraceServiceRequest.FromString(body)
                self.requests.append(traces)
                attributes = traces.resource_spans[0].resource.attributes
                self.resource = {one.key: one.value.string_value for one in attributes}
            elif path == "/v1/metrics":
                message = ExportMetricsServiceRequest.FromString(body)
                for one in message.resource_metrics[0].scope_metrics[0].metrics:
                    self.metrics[one.name] = one
            else:
                return 404
            self._changed.notify_all()
        return 200

    def list_spans(self) -> list[Span]:
        return [
            span
            for request in self.requests
            for resource in request.resource_spans
            for scope in resource.scope_spans
            for span in scope.spans
        ]

    def find_trace(self, trace: str) -> list[Span]:
        return [one for one in self.list_spans() if one.trace_id.hex() == trace]

    def wait(self, holds: Any, seconds: float = 60.0) -> None:
        with self._changed:
            assert self._changed.wait_for(holds, seconds)

    def release(self) -> None:
        self._released.set()


@contextmanager
def run_collector() -> Iterator[Collector]:
    collector = Collector()

    class Handler(http.server.BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["content-length"]))
            fields = {name.lower(): value for name, value in self.headers.items()}
            status = collector.receive(self.path, fields, body)
            self.send_response(status)
            self.send_header("content-length", "0")
            self.end_headers()

        def log_message(self, *_: object) -> None: ...

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    collector.url = f"http://127.0.0.1:{server.server_address[1]}"
    thread = threading.Thread(target=server.serve_forever, args=(0.02,))
    thread.start()
    try:
        yield collector
    finally:
        collector.release()
        server.shutdown()
        thread.join()
        server.server_close()
