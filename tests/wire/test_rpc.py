"""Envelopes: what a message is, and the id under which an invalid one is answered."""

from __future__ import annotations

import json
from typing import Any

import pytest

from dragoman.wire import rpc

GOOD: dict[str, Any] = {"jsonrpc": "2.0", "id": 1, "method": "m", "params": {}}


@pytest.mark.parametrize(
    "message",
    [
        GOOD,
        {"jsonrpc": "2.0", "id": "a", "method": "m"},
        {"jsonrpc": "2.0", "id": 1.5, "method": "m"},
        {"jsonrpc": "2.0", "method": "m"},
        {**GOOD, "params": None},
        {"jsonrpc": "2.0", "id": 1, "result": None},
        {"jsonrpc": "2.0", "id": 1, "error": {"code": 1, "message": ""}},
        {**GOOD, "more": 1},
    ],
)
def test_valid_message_has_no_flaw(message: Any) -> None:
    assert rpc.find_flaw(message) is None


@pytest.mark.parametrize(
    ("message", "words"),
    [
        (None, "object"),
        ([], "object"),
        ("x", "object"),
        (7, "object"),
        ({}, "jsonrpc"),
        ({**GOOD, "jsonrpc": "1.0"}, "jsonrpc"),
        ({**GOOD, "jsonrpc": 2.0}, "jsonrpc"),
        ({**GOOD, "method": 7}, "method"),
        ({**GOOD, "method": None}, "method"),
        ({**GOOD, "params": []}, "params"),
        ({**GOOD, "params": "x"}, "params"),
        ({**GOOD, "params": 0}, "params"),
        ({**GOOD, "id": None}, "id"),
        ({**GOOD, "id": True}, "id"),
        ({**GOOD, "id": {}}, "id"),
        ({**GOOD, "id": [1]}, "id"),
        ({"jsonrpc": "2.0", "id": 1}, "method"),
    ],
)
def test_each_flaw_has_a_message(message: Any, words: str) -> None:
    assert f'"{words}"' in (rpc.find_flaw(message) or "") or words in (rpc.find_flaw(message) or "")


@pytest.mark.parametrize(
    ("message", "id"),
    [
        ({"id": 7}, 7),
        ({"id": "x"}, "x"),
        ({"id": 1.5}, 1.5),
        ({"id": True}, None),
        ({"id": [7]}, None),
        ({}, None),
        ([{"id": 7}], None),
        (None, None),
    ],
)
def test_invalid_message_is_answered_with_its_id_if_valid(message: Any, id: rpc.Id) -> None:
    assert rpc.find_id(message) == id


def test_responses_are_envelopes() -> None:
    assert json.loads(rpc.encode_result(1, {"a": 1})) == {
        "jsonrpc": "2.0",
        "id": 1,
        "result": {"a": 1},
    }
    assert rpc.wrap_result("é", b'{"a":1}') == rpc.encode_result("é", {"a": 1})
    error = {"code": -1, "message": "m"}
    assert json.loads(rpc.encode_error(None, -1, "m")) == {
        "jsonrpc": "2.0",
        "id": None,
        "error": error,
    }
    assert json.loads(rpc.encode_error(2**70, -1, "m", [1])) == {
        "jsonrpc": "2.0",
        "id": 2**70,
        "error": {**error, "data": [1]},
    }
    assert json.loads(rpc.encode_notification("n")) == {"jsonrpc": "2.0", "method": "n"}
    assert json.loads(rpc.encode_notification("n", {})) == {
        "jsonrpc": "2.0",
        "method": "n",
        "params": {},
    }
    assert json.loads(rpc.encode_request(1, "m", {"a": []})) == {
        "jsonrpc": "2.0",
        "id": 1,
        "method": "m",
        "params": {"a": []},
    }


def test_ids_of_different_types_are_distinct() -> None:
    assert len({rpc.build_key(id) for id in (1, 1.0, "1")}) == 3


@pytest.mark.parametrize(
    ("params", "key"),
    [
        ({"requestId": 1}, (int, 1)),
        ({"requestId": "1"}, (str, "1")),
        ({"requestId": None}, None),
        ({"requestId": [1]}, None),
        ({}, None),
        ([], None),
        (None, None),
    ],
)
def test_cancelled_request_id_is_found(params: Any, key: Any) -> None:
    message = {"jsonrpc": "2.0", "method": "notifications/cancelled", "params": params}
    assert rpc.find_cancelled(message) == key
    assert rpc.find_cancelled({**message, "id": 1}) is None
