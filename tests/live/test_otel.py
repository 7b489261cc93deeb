"""Traces and metrics of a hub at a real OTLP collector, and a hub whose collector is away."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator

import pytest
from opentelemetry.proto.trace.v1.trace_pb2 import Span, Status
from tests.live.conftest import RunningHub
from tests.peers import wire
from tests.peers.otel_collector import Collector, run_collector
from tests.peers.process import server_entry

TRACE, PARENT = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"


@pytest.fixture
def collector() -> Iterator[Collector]:
    with run_collector() as collector:
        yield collector


def build_config(url: str, more: str = "") -> str:
    return f"""[otel]
endpoint = "{url}"
service_name = "hub-of-the-test"
metrics_secs = 1
headers = {{ authorization = "Bearer ${{OTEL_TOKEN}}" }}
{more}
"""


def call(hub: RunningHub, tool: str, trace: str = TRACE) -> wire.Answer:
    arguments = {"name": tool, "arguments": {"text": "a secret argument"}}
    headers = {**hub.headers, "traceparent": f"00-{trace}-{PARENT}-01"}
    return wire.modern_request(hub.mcp_url, "tools/call", arguments, headers)


def test_a_call_has_a_span_and_one_for_each_guard_and_hop(
    hub: Callable[..., RunningHub], collector: Collector
) -> None:
    running = hub(
        servers=[server_entry("ok", "faulty_server", "ok")],
        config=build_config(collector.url),
        env={"OTEL_TOKEN": "t0k3n"},
    )
    running.wait_connected("ok")
    assert call(running, "mcp_ok_echo").status == 200
    collector.wait(lambda: collector.find_trace(TRACE))
    spans = collector.find_trace(TRACE)
    (top,) = [one for one in spans if one.kind == Span.SPAN_KIND_SERVER]
    assert top.name == "call ok.echo" and top.parent_span_id.hex() == PARENT
    about = {one.key: one.value.string_value for one in top.attributes}
    assert about["dragoman.target"] == "ok" and about["dragoman.principal"] == "local:local"
    (record,) = [one for one in running.audit() if one["trace"] == TRACE]
    assert record["verb"] == about["dragoman.tool"]
    below = [one for one in spans if one is not top]
    assert all(one.parent_span_id == top.span_id for one in below)
    names = [one.name for one in below]
    assert names[:4] == ["guard audit", "guard announce", "guard overload", "guard rate_limit"]
    assert names[-3:] == ["guard timeout", "run ok", "guard return"]
    starts = [one.start_time_unix_nano for one in below]
    assert starts == sorted(starts) and starts[0] >= top.start_time_unix_nano
    assert all(one.end_time_unix_nano >= one.start_time_unix_nano for one in spans)
    assert len({one.span_id for one in spans}) == len(spans) == 1 + len(names)
    assert collector.resource["service.name"] == "hub-of-the-test"
    assert collector.headers[0]["authorization"] == "Bearer t0k3n"
    assert b"a secret argument" not in b"".join(
        one.SerializeToString() for one in collector.requests
    )

    unknown = "f" * 31 + "e"
    assert "error" in call(running, "no_such_tool", unknown).json()
    collector.wait(lambda: collector.find_trace(unknown))
    (top,) = [one for one in collector.find_trace(unknown) if one.kind == Span.SPAN_KIND_SERVER]
    assert top.status.code == Status.STATUS_CODE_ERROR
    assert {"error.type": "NotFound"}.items() <= {
        one.key: one.value.string_value for one in top.attributes
    }.items()

    def has_counts() -> bool:
        calls = collector.metrics.get("dragoman_calls_total")
        return calls is not None and sum(one.as_double for one in calls.sum.data_points) >= 2

    collector.wait(has_counts)
    assert collector.metrics["dragoman_calls_total"].sum.is_monotonic
    assert collector.metrics["dragoman_call_seconds"].histogram.data_points[0].count >= 2
    assert collector.metrics["dragoman_servers_connected"].gauge.data_points[0].as_double == 1
    # What a stopping hub still has is exported.
    last = "e" * 32
    assert call(running, "mcp_ok_echo", last).status == 200
    running.stop()
    assert collector.find_trace(last)


@pytest.mark.parametrize("how", ["refuses", "hangs", "away"])
def test_a_collector_that_fails_delays_no_call(
    hub: Callable[..., RunningHub], collector: Collector, how: str
) -> None:
    collector.status, collector.hangs = (500 if how == "refuses" else 200), how == "hangs"
    url = "http://127.0.0.1:1" if how == "away" else collector.url
    running = hub(
        servers=[server_entry("ok", "faulty_server", "ok")],
        config=build_config(url),
        env={"OTEL_TOKEN": "t0k3n"},
    )
    running.wait_connected("ok")
    slowest = 0.0
    end = time.monotonic() + 2.0
    while time.monotonic() < end:
        begun = time.monotonic()
        assert call(running, "mcp_ok_echo").status == 200
        slowest = max(slowest, time.monotonic() - begun)
    assert slowest < 4.0  # the collector would take 5 s
    if how == "refuses":
        collector.wait(lambda: len(collector.headers) > 0)
        collector.status = 200
        collector.wait(lambda: collector.find_trace(TRACE))
    begun = time.monotonic()
    assert running.stop() == 0
    assert time.monotonic() - begun < 20
