"""One table: what an MCP client sees of each error, a code or a result it can read."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from dragoman.core.errors import (
    AmbiguousName,
    BadReply,
    ConfigError,
    Denied,
    Full,
    HubError,
    InvalidInput,
    NeedsInput,
    NotFound,
    TimedOut,
    Unreachable,
    WorkFailed,
)
from dragoman.mcp.revisions import R2024, R2511, R2607
from dragoman.wire import rpc

NEVER = R2607 + 1
ERROR_KEY = "dragoman.hub/error"


@dataclass(frozen=True, slots=True)
class Row:
    result_since: int
    """The first revision whose clients get a result with `isError`, which a model can read."""
    legacy: int = rpc.INTERNAL_ERROR
    """The code for clients that shake hands."""
    modern: int = rpc.INTERNAL_ERROR
    """The code from 2026-07-28 on, whose own range is not ours to use."""


TABLE: dict[type[HubError], Row] = {
    Denied: Row(NEVER, legacy=-32003, modern=40300),
    Full: Row(NEVER, legacy=-32000, modern=42900),
    NotFound: Row(NEVER, legacy=rpc.INVALID_PARAMS, modern=rpc.INVALID_PARAMS),
    AmbiguousName: Row(NEVER, legacy=rpc.INVALID_PARAMS, modern=rpc.INVALID_PARAMS),
    # 2025-11-25, SEP-1303: a model should see what was wrong with its arguments
    InvalidInput: Row(R2511, legacy=rpc.INVALID_PARAMS, modern=rpc.INVALID_PARAMS),
    Unreachable: Row(R2024),
    TimedOut: Row(R2024),
    BadReply: Row(R2024),
    WorkFailed: Row(R2024),
    # 2026-07-28: MissingRequiredClientCapability; older clients' models read what was asked
    NeedsInput: Row(R2024, modern=-32021),
    ConfigError: Row(NEVER),
}


GIVEN_UP = {-32002: rpc.INVALID_PARAMS, -32042: rpc.INTERNAL_ERROR}
"""Codes of older servers that 2026-07-28 must not see, and what stands for them there."""


def row_of(error: HubError) -> Row:
    return next(TABLE[kind] for kind in type(error).__mro__ if kind in TABLE)


def words(error: HubError) -> str:
    return f"{error} (trace {error.trace[:8]})" if error.trace else str(error)


def as_result(error: HubError, revision: int) -> dict[str, Any] | None:
    """The error as a tool's result, where this client gets one."""
    if isinstance(error, WorkFailed) and error.native is not None:
        return None  # the server's own error goes through as it is
    if revision < row_of(error).result_since:
        return None
    return {
        "content": [{"type": "text", "text": words(error)}],
        "isError": True,
        "_meta": {ERROR_KEY: _kind(error)},
    }


def as_error(id: rpc.Id, error: HubError, revision: int) -> bytes:
    """The error as a JSON-RPC error."""
    if isinstance(error, WorkFailed) and error.native is not None:
        native = error.native
        code = native.get("code")
        code = code if isinstance(code, int) else rpc.INTERNAL_ERROR
        if revision >= R2607:
            code = GIVEN_UP.get(code, code)
        return rpc.error(id, code, str(native.get("message", error)), native.get("data"))
    row = row_of(error)
    code = row.modern if revision >= R2607 else row.legacy
    return rpc.error(id, code, words(error), _kind(error))


def _kind(error: HubError) -> dict[str, Any]:
    return {"kind": error.kind, "trace": error.trace}
