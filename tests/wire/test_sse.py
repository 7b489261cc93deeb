"""Server-sent events: any split of the bytes gives the same events, within limits."""

from __future__ import annotations

import time
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dragoman.wire.sse import KEEPALIVE, EventTooLong, ServerEvent, SseParser, encode_event

STREAM = (
    b"\xef\xbb\xbf: hello\n\nevent: a\nid: 7\ndata: 1\ndata: 2\n\n"
    b"data:3\r\n\r\n"
    b"event: none\n\n"
    b"retry: 250\nretry: soon\ndata\n\n"
    b"id: \0bad\rdata: last\r\r"
    b"unknown: x\ndata: \xff\n\n"
    b"data: not ended"
)
EVENTS = [
    ServerEvent("a", b"1\n2", "7"),
    ServerEvent("message", b"3", "7"),
    ServerEvent("message", b"", "7"),
    ServerEvent("message", b"last", "7"),
    ServerEvent("message", b"\xff", "7"),
]


def test_events_parse_as_the_standard_requires() -> None:
    parser = SseParser()
    assert parser.feed(STREAM) == EVENTS
    assert parser.retry == 250


@given(st.lists(st.integers(0, len(STREAM)), max_size=8))
def test_any_cut_of_a_stream_gives_the_same_events(cuts: list[int]) -> None:
    parser = SseParser()
    got = []
    edges = [0, *sorted(cuts), len(STREAM)]
    for start, end in pairwise(edges):
        got += parser.feed(STREAM[start:end])
    assert got == EVENTS


def test_event_round_trips() -> None:
    assert SseParser().feed(KEEPALIVE + encode_event(b'{"a":1}')) == [
        ServerEvent("message", b'{"a":1}', None)
    ]
    assert SseParser().feed(encode_event(b"x", name="n", id="i")) == [ServerEvent("n", b"x", "i")]


@pytest.mark.promise("N1")
@pytest.mark.parametrize(
    "stream", [b"data: " + b"x" * 200, b"data: 1234567\n" * 20, b"x" * 200, b": " + b"x" * 200]
)
def test_oversized_event_is_refused_before_its_end(stream: bytes) -> None:
    parser = SseParser(limit=100)
    with pytest.raises(EventTooLong):
        parser.feed(stream)


def test_long_event_in_small_pieces_is_scanned_once() -> None:
    parser = SseParser()
    begun = time.perf_counter()
    parser.feed(b"data: ")
    for _ in range(40_000):
        parser.feed(b"x" * 200)
    assert parser.feed(b"\n\n")[0].data == b"x" * 8_000_000
    assert time.perf_counter() - begun < 30


@pytest.mark.parametrize("pieces", [[b"data: 1\r\r"], [b"data: 1\r", b"\r"], [b"data: 1\r\n\r"]])
def test_event_is_complete_when_its_last_line_ends_in_cr(pieces: list[bytes]) -> None:
    """Nothing more may come: an LF that belongs to the CR is passed over when it does."""
    parser = SseParser()
    found = [one for piece in pieces for one in parser.feed(piece)]
    assert [one.data for one in found] == [b"1"]
    assert [one.data for one in parser.feed(b"\ndata: 2\r\n\r\n")] == [b"2"]
