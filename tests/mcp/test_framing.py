import time
import tracemalloc

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from dragoman.mcp.protocol.framing import (
    HEADER_LIMIT,
    LIMIT,
    PREFIX,
    SUFFIX,
    Deframer,
    Frame,
    MalformedFrame,
    OversizedFrame,
    Unrecoverable,
    find_id,
    find_id_at_end,
    frame,
)


def told(pieces: list) -> list[tuple]:
    """What the pieces say, as values that can be compared."""
    return [
        (type(piece).__name__, *(getattr(piece, name) for name in sorted(type(piece).__slots__)))
        for piece in pieces
    ]


def whole(data: bytes, **limits: int) -> list[tuple]:
    return told(Deframer(**limits).feed(data))


def line(payload: bytes) -> tuple:
    return ("Frame", "line", payload)


def length(payload: bytes) -> tuple:
    return ("Frame", "length", payload)


def malformed(pieces: list[tuple]) -> int:
    return sum(kind == "MalformedFrame" for kind, *_ in pieces)


@pytest.mark.promise("F4")
def test_both_framings_are_recognised_message_by_message():
    stream = (
        b'{"a":1}\n'
        b"Content-Length: 7\r\n\r\n"
        b'{"b":2}'
        b'{"c":3}\r\n'
        b"content-LENGTH:7\n\n"
        b'{"d":4}\n'
        b"Content-Type: application/vscode-jsonrpc; charset=utf-8\r\n"
        b"X-Other: yes\r\nContent-Length:   9  \r\n\r\n"
        b'{\n"e":5}\n'
        b'[{"f":6}]\n'
    )

    assert whole(stream) == [
        line(b'{"a":1}'),
        length(b'{"b":2}'),
        line(b'{"c":3}'),
        length(b'{"d":4}'),
        length(b'{\n"e":5}\n'),
        line(b'[{"f":6}]'),
    ]


@pytest.mark.promise("F4")
@pytest.mark.parametrize("framing", ["line", "length"])
def test_framing_round_trips(framing):
    payload = '{"text":"grüße"}'.encode()

    assert whole(frame(payload, framing) * 3) == [("Frame", framing, payload)] * 3


def test_empty_lines_and_a_byte_order_mark_are_skipped():
    assert whole(b'\xef\xbb\xbf\r\n\n \t\n{"a":1}\n\n') == [line(b'{"a":1}')]
    assert whole(b'\xef\xbb\xbf{"a":1}\n') == [line(b'{"a":1}')]
    assert whole(b"\xef\xbb\xbfContent-Length: 2\r\n\r\n{}") == [length(b"{}")]


def test_byte_order_mark_inside_the_stream_is_kept():
    assert whole(b"{}\n\xef\xbb\xbf{}\n") == [line(b"{}"), line(b"\xef\xbb\xbf{}")]


@pytest.mark.promise("F5")
@pytest.mark.parametrize(
    "headers",
    [
        b"Content-Length: -5\r\n\r\n",
        b"Content-Length: +5\r\n\r\n",
        b"Content-Length: 5.0\r\n\r\n",
        b"Content-Length: five\r\nContent-Type: x\r\n\r\n",
        b"Content-Length:\r\n\r\n",
        b"Content-Length: \xd9\xa5\r\n\r\n",
        b"Content-Length: 99999999999999999999999\r\n\r\n",
        b"Content-Length: 5\r\nContent-Length: 6\r\n\r\n",
        b"Content-Type: application/json\r\n\r\n",
        b"Content-Length 5\r\n",
        b"Content-Length: 5\r\n: nameless\r\n",
        b"Content-Length: x" + b"x" * HEADER_LIMIT + b"\r\n",
        b"Content-Length: 5\r\n" + b"A: b\r\n" * HEADER_LIMIT,
    ],
)
def test_headers_without_a_length_are_reported_and_the_next_line_read(headers):
    pieces = whole(headers + b'{"next":1}\n')

    assert malformed(pieces) == 1
    assert pieces[0][0] == "MalformedFrame"
    assert pieces[-1] == line(b'{"next":1}')


def test_length_without_a_body_does_not_swallow_following_json():
    assert [kind for kind, *_ in whole(b'Content-Length: 5\r\n{"next":1}\n')] == [
        "MalformedFrame",
        "Frame",
    ]


def test_zero_length_is_an_empty_message():
    assert whole(b"Content-Length: 0\r\n\r\n{}\n") == [length(b""), line(b"{}")]


@pytest.mark.promise("F5")
def test_line_length_limit_is_exact():
    fits, over = b"x" * 100, b"y" * 101

    for end in (b"\n", b"\r\n"):
        pieces = whole(fits + end + over + end + b"{}\n", limit=100)
        assert [kind for kind, *_ in pieces] == ["Frame", "OversizedFrame", "Frame"]
        assert pieces[0] == line(fits)
        assert pieces[2] == line(b"{}")


@pytest.mark.promise("F5")
def test_body_length_limit_is_exact():
    stream = frame(b"x" * 100, "length") + frame(b"y" * 101, "length") + frame(b"{}", "length")

    pieces = whole(stream, limit=100)

    assert [kind for kind, *_ in pieces] == ["Frame", "OversizedFrame", "Frame"]
    assert pieces[1][-2] == 101


@pytest.mark.promise("F5")
@pytest.mark.parametrize("framing", ["line", "length"])
def test_oversized_message_is_reported_once_with_its_beginning(framing):
    head = b'{"jsonrpc":"2.0","id":7,"method":"tools/call","params":"'
    stream = frame(head + b"x" * LIMIT + b'"}', framing) + frame(b"{}", framing)
    deframer = Deframer()

    pieces = []
    for at in range(0, len(stream), 65536):
        pieces += deframer.feed(stream[at : at + 65536])

    large, after = pieces
    assert isinstance(large, OversizedFrame)
    assert (large.framing, len(large.prefix)) == (framing, PREFIX)
    assert large.size == len(head) + LIMIT + 2
    assert find_id(large.prefix) == (7, False)
    assert isinstance(after, Frame)
    assert after.payload == b"{}"


@pytest.mark.promise("F5")
def test_draining_takes_no_memory_and_little_time():
    deframer = Deframer()
    piece = b"x" * 65536
    tracemalloc.start()
    began = time.process_time()
    try:
        for _ in range(200 * 16):
            assert deframer.feed(piece) == []
        spent = time.process_time() - began
        held, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()

    assert spent < 2
    assert held < 100_000
    assert peak < 3 * LIMIT
    assert [type(each) for each in deframer.feed(b"\n{}\n")] == [OversizedFrame, Frame]


def test_long_line_in_small_pieces_is_scanned_once():
    deframer = Deframer()
    began = time.process_time()
    for _ in range(100_000):
        deframer.feed(b"x" * 50)
    pieces = deframer.feed(b"\n")

    assert time.process_time() - began < 2
    assert isinstance(pieces[0], Frame) and len(pieces[0].payload) == 5_000_000


@pytest.mark.promise("F5")
@pytest.mark.parametrize(
    "stream",
    [b"x" * 1001, b"x" * 1001 + b"\n", b"Content-Length: 1001\r\n\r\n", b"Content-A" * 9000],
)
def test_absurdly_large_message_ends_reading(stream):
    deframer = Deframer(limit=100, drain_limit=1000)

    assert [type(each) for each in deframer.feed(stream)] == [Unrecoverable]
    assert deframer.feed(b"\n{}\n") == []


def test_unusable_limit_is_refused():
    with pytest.raises(ValueError, match="is not between"):
        Deframer(limit=0)
    with pytest.raises(ValueError, match="is not between"):
        Deframer(limit=1000, drain_limit=999)


WORDS = st.sampled_from(
    [
        b"\n",
        b"\r\n",
        b"\r",
        b"\n\n",
        b"\xef\xbb\xbf",
        b"{}",
        b'{"a":1}',
        b" ",
        b"Content-",
        b"Content-Length:",
        b"Content-Length: 5\r\n\r\nhello",
        b"content-length: 70\n\n",
        b"Content-Length: 200\r\n\r\n",
        b"Content-Length: 9999\r\n\r\n",
        b"Content-Type: x\r\n",
        b"Content-Length: -1\r\n",
        b"Content-Length: 3\r\n",
        b"A: b\r\n",
        b"word",
        b"7",
        b"x" * 63,
        b"x" * 70,
        b"y" * 260,
        b"z" * 8190,
    ]
)


@settings(max_examples=400, deadline=None)
@given(st.lists(WORDS | st.binary(max_size=4), max_size=14), st.data())
@example([b"Content-A: ", b"z" * 8190, b"\r\n{}\n"], None)
@example([b"x" * 63, b"y", b"\r", b"\n", b"x" * 65, b"\r\n"], None)
@example([b"Content-A: ", b"z" * (HEADER_LIMIT - 13), b"\r\n", b"\r\n", b"{}\n"], None)
def test_any_cut_of_a_stream_gives_the_same_messages(words, data):
    stream = b"".join(words)
    limits = {"limit": 64, "drain_limit": 9000 if b"z" in stream else 256}
    expected = whole(stream, **limits)
    if data is None:
        cuts = list(range(1, len(stream)))
    else:
        cuts = sorted(data.draw(st.lists(st.integers(0, len(stream)), max_size=20)))

    deframer = Deframer(**limits)
    pieces = []
    for start, end in zip([0, *cuts], [*cuts, len(stream)], strict=True):
        pieces += deframer.feed(stream[start:end])

    assert told(pieces) == expected


@settings(max_examples=200, deadline=None)
@given(
    st.lists(
        st.tuples(
            st.sampled_from(["line", "length"]),
            st.binary(min_size=1, max_size=60).filter(
                lambda b: b"\n" not in b and b"\r" not in b and not b.isspace()
            ),
        ),
        max_size=10,
    )
)
def test_any_message_round_trips(messages):
    messages = [(how, b"{" + payload) for how, payload in messages]

    stream = b"".join(frame(payload, how) for how, payload in messages)

    assert whole(stream, limit=64) == [("Frame", how, payload) for how, payload in messages]


@pytest.mark.promise("F5")
@pytest.mark.parametrize(
    ("prefix", "expected"),
    [
        (b'{"jsonrpc":"2.0","id":7,"method":"x","params":{"id":8,"a":"', (7, False)),
        (b'{"method":"x","params":{"id":8,"deep":[{"id":9}]},"id":"ten","a":"b', ("ten", False)),
        (b'{ "id" : "a\\"b" , "x', ('a"b', False)),
        (b'{"params":{"text":"\\"id\\":5, {\\"id\\":6}', (None, False)),
        (b'{"text":"cut off, "id":5, ', (None, False)),
        (b'{"id":5', (None, False)),
        (b'{"id":5.5,"a":1', (None, False)),
        (b'{"id":true,"a":1', (None, False)),
        (b'{"id":null,"a":1', (None, False)),
        (b'{"x":"id","id":3,"a":1', (3, False)),
        (b'[{"id":5,"a":1', (None, False)),
        (b'["id",5,', (None, False)),
        (b'{"jsonrpc":"2.0","id":3,"result":{"content":"xxx', (3, True)),
        (b'{"result":{"a":[1,2]},"id":"q","x":1', ("q", True)),
        (b"\xff\xfe garbage", (None, False)),
        (b"", (None, False)),
    ],
)
def test_id_at_the_beginning_is_found(prefix, expected):
    assert find_id(prefix) == expected


def test_small_messages_take_microseconds():
    deframer = Deframer()
    data = b'{"jsonrpc":"2.0","id":1,"method":"ping"}\n'
    began = time.process_time()
    for _ in range(20_000):
        deframer.feed(data)

    assert (time.process_time() - began) / 20_000 < 20e-6


def test_malformed_header_block_is_explained():
    (piece,) = Deframer().feed(b"Content-Length: five\r\n\r\n")

    assert isinstance(piece, MalformedFrame)
    assert piece.reason == "Content-Length b'five' is not a number of bytes"


@pytest.mark.parametrize(
    ("suffix", "id"),
    [
        (b'"}]},"jsonrpc":"2.0","id":7}', 7),
        (b'"}]}, "id" : "a-7" , "jsonrpc": "2.0" } ', "a-7"),
        (b'"text":"x"}]},"id":-7}', -7),
        (b'"x":{"id":7}}', None),
        (b'"x":[{"id":7}]}', None),
        (b'"a,\\"id":7}', None),
        (b'"id":7.5}', None),
        (b"", None),
    ],
)
def test_id_at_the_end_is_found(suffix: bytes, id: object) -> None:
    assert find_id_at_end(suffix) == id


@pytest.mark.parametrize("size", [1, 7, 100, 100_000])
def test_tail_of_an_oversized_message_is_kept(size: int) -> None:
    message = b'{"result":"' + b"x" * 2_000 + b'","id":7}'
    data = message + b"\n{}\n" + b"Content-Length: %d\r\n\r\n%b" % (len(message), message)
    deframer, pieces = Deframer(1_000, 10_000), []
    for at in range(0, len(data), size):
        pieces += deframer.feed(data[at : at + size])
    large = [piece for piece in pieces if isinstance(piece, OversizedFrame)]
    assert [piece.suffix for piece in large] == [message[-SUFFIX:]] * 2
