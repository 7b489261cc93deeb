"""Heads that are recognised by their bytes."""

from __future__ import annotations

import pytest

from dragoman.wire.repeated_head import MAX_HEAD, RepeatedHead, learn_head

HEAD = b"POST /mcp HTTP/1.1\r\nHost: a\r\nContent-Length: 3\r\nAccept: */*\r\n\r\n"


def known() -> RepeatedHead:
    head = learn_head(HEAD + b"one", b"3")
    assert head is not None
    return head


@pytest.mark.parametrize("body", [b"", b"1", b"one", b"x" * 8_000, HEAD])
def test_same_head_with_another_body_is_recognised(body: bytes) -> None:
    data = HEAD.replace(b": 3", b": %d" % len(body)) + body
    assert known().find_body(data) == (b"%d" % len(body), body)


@pytest.mark.parametrize(
    "data",
    [
        b"",
        HEAD,
        HEAD + b"on",
        HEAD + b"one" + HEAD + b"two",
        HEAD.replace(b": 3", b": -3") + b"one",
        HEAD.replace(b": 3", b": +3") + b"one",
        HEAD.replace(b": 3", b": 3 ") + b"one",
        HEAD.replace(b": 3", b": 0x3") + b"one",
        HEAD.replace(b": 3", b": 3, 3") + b"one",
        HEAD.replace(b": 3", b": ") + b"one",
        HEAD.replace(b": 3", b": 00003") + b"one",
        HEAD.replace(b": 3", b": 3\r\nContent-Length: 3") + b"one",
        HEAD.replace(b": 3", b": 3\r\nTransfer-Encoding: chunked") + b"one",
        HEAD.replace(b"Accept", b"accept") + b"one",
        HEAD.replace(b"/mcp", b"/mcp2") + b"one",
        HEAD.replace(b": 3", b": 10000") + b"x" * 10_000,
    ],
)
def test_anything_else_is_left_to_the_parser(data: bytes) -> None:
    assert known().find_body(data) is None


@pytest.mark.parametrize(
    ("data", "length"),
    [
        (HEAD[:-1], b"3"),
        (HEAD, b"4"),
        (b"GET / HTTP/1.1\r\n\r\ncontent-length: 3\r\n", b"3"),
        (HEAD.replace(b"Content-Length: 3", b"Content-Length:  3"), b"3"),
        (HEAD.replace(b"Content-Length: 3", b"X-Content-Length: 3"), b"3"),
        (HEAD.replace(b"Host: a", b"Host: " + b"a" * MAX_HEAD), b"3"),
    ],
)
def test_unusual_heads_are_not_remembered(data: bytes, length: bytes) -> None:
    assert learn_head(data, length) is None
