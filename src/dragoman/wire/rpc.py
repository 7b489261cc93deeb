"""JSON-RPC 2.0 envelopes. No I/O, no methods."""

from __future__ import annotations

from typing import Any

from dragoman.wire.json import encode

PARSE_ERROR = -32700
INVALID_REQUEST = -32600
METHOD_NOT_FOUND = -32601
INVALID_PARAMS = -32602
INTERNAL_ERROR = -32603

ENVELOPE = (b'"jsonrpc"', b'"id"', b'"method"', b'"params"')
PARAMS = (b'"name"', b'"arguments"', b'"_meta"')
"""The members that must not be duplicated."""

Id = str | int | float | None
_PLAIN_ID = (int, str)
WRONG_PARAMS = '"params" must be an object'
"""The flaw of a message whose parameters are of another type."""


def encode_request(id: Id, method: str, params: Any) -> bytes:
    return encode({"jsonrpc": "2.0", "id": id, "method": method, "params": params})


def encode_notification(method: str, params: Any = None) -> bytes:
    message: dict[str, Any] = {"jsonrpc": "2.0", "method": method}
    if params is not None:
        message["params"] = params
    return encode(message)


def encode_result(id: Id, value: Any) -> bytes:
    return encode({"jsonrpc": "2.0", "id": id, "result": value})


def wrap_result(id: Id, value: bytes) -> bytes:
    """Wraps a result that is already encoded."""
    return b'{"jsonrpc":"2.0","id":' + encode(id) + b',"result":' + value + b"}"


class EncodedError(bytes):
    """An encoded error response that knows its code, which HTTP maps to a status."""

    code: int
    retry_after: float = 0.0
    """Seconds after which a request that was refused for its rate can be sent again; 0.0 for other
    errors."""
    missing_scope: str = ""
    """The scope that the credential of the request does not have; empty for other errors."""


def encode_error(id: Id, code: int, message: str, data: Any = None) -> EncodedError:
    body: dict[str, Any] = {"code": code, "message": message}
    if data is not None:
        body["data"] = data
    encoded = EncodedError(encode({"jsonrpc": "2.0", "id": id, "error": body}))
    encoded.code = code
    return encoded


def find_flaw(message: Any) -> str | None:
    """Why `message` is not a JSON-RPC message; None if it is."""
    if (
        type(message) is dict
        and message.get("jsonrpc") == "2.0"
        and type(message.get("method")) is str
        and type(message.get("id")) in _PLAIN_ID
        and type(message.get("params")) is dict
    ):
        return None  # the common case
    if not isinstance(message, dict):
        return "a message is a JSON object"
    if message.get("jsonrpc") != "2.0":
        return '"jsonrpc" must be "2.0"'
    if "method" in message:
        if not isinstance(message["method"], str):
            return '"method" must be a string'
        if not isinstance(message.get("params"), dict | None):
            return WRONG_PARAMS
    elif "result" not in message and "error" not in message:
        return 'a message has a "method", a "result" or an "error"'
    if "id" in message and (
        isinstance(message["id"], bool) or not isinstance(message["id"], str | int | float)
    ):
        return '"id" must be a string or a number'
    return None


def build_key(id: Id) -> tuple[type, Id]:
    """1, 1.0 and "1" are three ids."""
    return type(id), id


def find_cancelled(message: Any) -> tuple[type, Id] | None:
    """Returns the key of the request that a `notifications/cancelled` cancels; else None."""
    if (
        not isinstance(message, dict)
        or message.get("method") != "notifications/cancelled"
        or "id" in message
    ):
        return None
    params = message.get("params")
    id = params.get("requestId") if isinstance(params, dict) else None
    return build_key(id) if isinstance(id, str | int | float) else None


def find_id(message: Any) -> Id:
    """The id for the error response to an invalid message: its own if valid, else null."""
    if isinstance(message, dict):
        id = message.get("id")
        if isinstance(id, str | int | float) and not isinstance(id, bool):
            return id
    return None
