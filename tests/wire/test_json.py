"""The codec accepts JSON within limits and nothing else."""

from __future__ import annotations

import json
import time
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dragoman.wire import rpc
from dragoman.wire.json import (
    ENCODED_BYTES,
    MAX_BYTES,
    MAX_DEPTH,
    MAX_TOKENS,
    Malformed,
    decode,
    has_duplicate_names,
)


def nested(depth: int) -> bytes:
    return b"[" * depth + b"]" * depth


@pytest.mark.promise("F5", "N1")
@pytest.mark.parametrize(
    "text",
    [
        b"",
        b" ",
        b"{",
        b"{} {}",
        b"{'a': 1}",
        b'{"a": NaN}',
        b'{"a": Infinity}',
        b'{"a": -Infinity}',
        b'{"a": 1e999}',
        b'{"a": 01}',
        b'{"a": \xff}',
        b'{"a": "\xff"}',
        b'{"a": "\xc0\x80"}',
        b'{"a": "\\ud800"}',
        b'{"a": "\x01"}',
        b'{"a": "\\x41"}',
        b'{"a": 1,}',
        b"// no comments\n{}",
        b"\xef\xbb\xbf{}",
        b"1" * 5000,
        b"\x00",
    ],
)
def test_non_strict_json_is_malformed(text: bytes) -> None:
    with pytest.raises(Malformed):
        decode(text)


@pytest.mark.promise("N1")
def test_nesting_depth_is_limited_to_64() -> None:
    assert decode(nested(MAX_DEPTH)) is not None
    with pytest.raises(Malformed, match="deeper than 64"):
        decode(nested(MAX_DEPTH + 1))
    for text in (nested(100_000), b'{"a":' * 100_000 + b"1" + b"}" * 100_000):
        with pytest.raises(Malformed):
            decode(text)


def test_brackets_in_strings_do_not_count_as_depth() -> None:
    assert decode(json.dumps(["[" * 1000, "{" * 1000]).encode()) == ["[" * 1000, "{" * 1000]


@pytest.mark.promise("N1")
def test_number_of_values_is_bounded() -> None:
    # A bracket and the commas.
    assert len(decode(b"[" + b"1," * (MAX_TOKENS - 1) + b"1]")) == MAX_TOKENS
    with pytest.raises(Malformed, match="more than 200000 values"):
        decode(b"[" + b"1," * MAX_TOKENS + b"1]")
    assert len(decode(b"[" + b"1," * MAX_TOKENS + b"1]", max_tokens=MAX_TOKENS + 1)) > MAX_TOKENS


@pytest.mark.promise("N1")
def test_message_size_is_limited_to_ten_megabytes() -> None:
    assert decode(b'"' + b"x" * (MAX_BYTES - 2) + b'"') == "x" * (MAX_BYTES - 2)
    with pytest.raises(Malformed, match="larger than"):
        decode(b'"' + b"x" * (MAX_BYTES - 1) + b'"')


def twice(text: bytes) -> bool:
    return has_duplicate_names(text, decode(text, max_tokens=10**7), rpc.ENVELOPE, rpc.PARAMS)


@pytest.mark.parametrize(
    "text",
    [
        b'{"jsonrpc":"2.0","id":1,"id":2,"method":"ping"}',
        b'{"jsonrpc":"2.0","id":1,"method":"ping","method":"tools/call"}',
        b'{"jsonrpc":"2.0","id":1,"method":"a","params":{},"params":{"name":"b"}}',
        b'{"jsonrpc":"2.0","id":1,"method":"a","params":{"name":"b","name":"c"}}',
        b'{"jsonrpc":"2.0","id":1,"method":"a","params":{"name":"b","arguments":{},"arguments":{}}}',
        b'{"jsonrpc":"2.0","id":1,"method":"a","params":{"_meta":{},"_meta":{}}}',
        b'{"jsonrpc":"2.0","id":1,"method":"a","params":{"na\\u006de":"b","name":"c"}}',
        b'{"\\u0069d":1,"id":2,"jsonrpc":"2.0","method":"ping"}',
        b' {"id":1,"id":2}',
        b'[{"id":1,"id":2}]',
        b'[{"id":1},{"params":{"name":"a","name":"b"}}]',
        b'{"id":{"id":1},"id":2}',
    ],
)
def test_duplicate_envelope_member_is_detected(text: bytes) -> None:
    decode(text)
    assert twice(text)


@pytest.mark.parametrize(
    "text",
    [
        b'{"jsonrpc":"2.0","id":1,"method":"a","params":{"name":"b","arguments":{"name":"c","id":7}}}',
        b'{"id":"id","method":"method","params":{"arguments":{"params":{"id":1,"name":2}}}}',
        b'{"params":{"arguments":{"text":"\\"id\\" and \\"name\\" and \\"id\\""}}}',
        b'{"params":{"arguments":{"a":[{"name":1},{"name":2},{"name":3}]},"name":"x"}}',
        b'{"params":{"arguments":{"caf\\u00e9":{"name":1},"name":2},"name":"x"}}',
        b'[{"id":1,"params":{"name":"a"}},{"id":2,"params":{"name":"b"}}]',
        b'{"params":["name","name"]}',
        b"7",
        b'"id"',
        b"[]",
    ],
)
def test_duplicate_names_inside_values_are_ignored(text: bytes) -> None:
    decode(text)
    assert not twice(text)


KEYS = st.sampled_from(["jsonrpc", "id", "method", "params", "name", "arguments", "_meta", "x"])
SMALL = st.one_of(st.none(), st.integers(0, 3), KEYS)
INNER = st.lists(st.tuples(KEYS, SMALL), max_size=5)


def written(pairs: list[tuple[str, Any]]) -> str:
    inside = (
        f"{json.dumps(key)}:{written(value) if isinstance(value, list) else json.dumps(value)}"
        for key, value in pairs
    )
    return "{" + ",".join(inside) + "}"


@given(st.lists(st.tuples(KEYS, st.one_of(SMALL, INNER)), max_size=6))
def test_duplicate_envelope_members_never_pass(pairs: list[Any]) -> None:
    def repeats(some: list[tuple[str, Any]], names: tuple[bytes, ...]) -> bool:
        keys = [key for key, _ in some]
        return any(keys.count(name.decode().strip('"')) > 1 for name in names)

    params = [value for key, value in pairs if key == "params" and isinstance(value, list)]
    must = repeats(pairs, rpc.ENVELOPE) or any(repeats(one, rpc.PARAMS) for one in params)
    text = written(pairs).encode()
    for spaced in (text, text.replace(b":", b": "), text.replace(b",", b"\r\n,\t")):
        assert twice(spaced) or not must


def test_duplicate_search_in_a_large_message_is_fast() -> None:
    arguments = [{"name": "n", "id": 1, "params": "x" * 400} for _ in range(20_000)]
    message = {"jsonrpc": "2.0", "id": 1, "method": "m", "params": {"name": "t"}}
    text = json.dumps({**message, "params": {"name": "t", "arguments": {"a": arguments}}}).encode()
    begun = time.process_time()
    assert not twice(text)
    assert time.process_time() - begun < 0.5


@pytest.mark.parametrize("padding", ["", "x" * ENCODED_BYTES], ids=["short", "long"])
@pytest.mark.parametrize(
    ("text", "twice"),
    [
        ('{"id":1,"params":{"name":"a","_meta":{"c":{"name":"b"}}}}', False),
        ('{"id":1,"id":2,"params":{"_meta":{"c":{"name":"b"}}}}', True),
        ('{"id":1,"id":2,"params":{"name":"a","_meta":{"c":{"name":"b"}}}}', True),
        ('{"id":1,"params":{"name":"a","name":"a","_meta":{"c":{"name":"b"}}}}', True),
        ('{"id":1,"params":{"name":"a","name":"a","_meta":{"c":{}}}}', True),
        ('{"id":1,"params":{"arguments":{"id":7,"name":"x","params":1},"name":"a"}}', False),
    ],
)
def test_excused_nested_name_does_not_hide_a_duplicate(
    text: str, twice: bool, padding: str
) -> None:
    data = text.replace('"_meta"', f'"pad":"{padding}","_meta"').encode()
    outer, inner = (b'"id"', b'"params"'), (b'"name"', b'"arguments"', b'"_meta"')
    for spaced in (data, data.replace(b":", b" : ").replace(b",", b",\n ")):
        assert has_duplicate_names(spaced, decode(spaced), outer, inner) is twice
