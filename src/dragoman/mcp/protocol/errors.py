"""How an MCP client sees each error: as a JSON-RPC error, or as a result that a model can read."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from dragoman.core import errors
from dragoman.core.call import URL
from dragoman.core.logins import render_problem
from dragoman.core.question_handles import NEEDS, can_answer
from dragoman.core.trace import new_trace
from dragoman.mcp.protocol.elicitation import URL_REQUIRED, questions_from_url_error
from dragoman.mcp.protocol.revisions import LATEST, NEVER, R2024, R2511, R2607, Revision
from dragoman.wire import rpc

log = logging.getLogger(__name__)

ERROR_KEY = "dragoman.hub/error"
MISSING_CAPABILITY = -32021
RESOURCE_NOT_FOUND = -32002
"""Until 2025-11-25; from then on parameters that do not fit (SEP-2164)."""


@dataclass(frozen=True, slots=True)
class ErrorRow:
    result_since: Revision
    """The first revision whose clients get a result with `isError`, which a model can read."""
    legacy: int = rpc.INTERNAL_ERROR
    """The code up to 2025-11-25."""
    modern: int = rpc.INTERNAL_ERROR
    """The code from 2026-07-28 on, which reserves a range for itself."""
    result_until: Revision = LATEST
    """The last revision with such a result."""
    bridge: bool = False
    """Whether `[bridge] errors` decides; its results have the code in `_meta`."""


TABLE: dict[type[errors.HubError], ErrorRow] = {
    errors.HubError: ErrorRow(NEVER),
    # A model that reads the reason can try something else.
    errors.Refused: ErrorRow(R2024),
    errors.Denied: ErrorRow(NEVER, legacy=-32003, modern=40300),
    errors.AuthorizationError: ErrorRow(R2607, legacy=-32003, bridge=True),
    # Not for a model: its client can ask for another token.
    errors.InsufficientScope: ErrorRow(NEVER, legacy=-32003, modern=40300),
    errors.ApprovalDenied: ErrorRow(R2024),
    errors.Overloaded: ErrorRow(NEVER, legacy=-32000, modern=42900),
    errors.ShuttingDown: ErrorRow(NEVER, legacy=-32000, modern=42900),
    errors.RateLimited: ErrorRow(NEVER, legacy=-32000, modern=42900),
    errors.NotFound: ErrorRow(NEVER, legacy=rpc.INVALID_PARAMS, modern=rpc.INVALID_PARAMS),
    # 2025-11-25, SEP-1303: a model should see what was wrong with its arguments
    errors.InvalidInput: ErrorRow(R2511, legacy=rpc.INVALID_PARAMS, modern=rpc.INVALID_PARAMS),
    errors.AmbiguousName: ErrorRow(NEVER, legacy=rpc.INVALID_PARAMS, modern=rpc.INVALID_PARAMS),
    errors.TargetFailed: ErrorRow(R2024),
    # The bridge's own codes, which 2026-07-28 reserves: from then on they stand in the result.
    errors.RemoteA2ATimeoutError: ErrorRow(R2607, legacy=-32201, bridge=True),
    errors.RemoteA2ATransportError: ErrorRow(R2607, legacy=-32202, bridge=True),
    errors.RemoteA2AInvalidResponseError: ErrorRow(R2607, legacy=-32203, bridge=True),
    errors.RemoteA2ATaskFailedError: ErrorRow(R2607, legacy=-32204, bridge=True),
    # 2026-07-28: MissingRequiredClientCapability; older clients' models read the question
    errors.NeedsInput: ErrorRow(R2024, modern=MISSING_CAPABILITY, result_until=R2511),
}


RETIRED_CODES = {RESOURCE_NOT_FOUND: rpc.INVALID_PARAMS, URL_REQUIRED: rpc.INTERNAL_ERROR}
"""Codes of older servers that 2026-07-28 does not have, and their replacements."""


def render_message(error: errors.HubError) -> str:
    problem = render_problem(error)
    return f"{problem} (trace {error.trace[:8]})" if error.trace else problem


def adapt_error(
    error: errors.HubError, revision: Revision, features: Mapping[str, Any]
) -> errors.HubError:
    """Replaces an error code of a server's revision, by which it requires something of the client,
    if the client's revision does not have that code."""
    native = error.native if isinstance(error, errors.WorkFailed) else None
    if isinstance(error, errors.LoginRequired):
        return _adapt_login(error, revision, features)
    if native is None:
        return error
    code, data, said = native.get("code"), native.get("data"), str(native.get("message", error))
    if code == MISSING_CAPABILITY and revision < R2607:
        missing = data.get("requiredCapabilities") if isinstance(data, dict) else None
        needs = errors.NeedsInput(said, missing if isinstance(missing, dict) else None)
    elif code == URL_REQUIRED and not (revision == R2511 and can_answer(URL, features)):
        asked = "; ".join(question.text for question in questions_from_url_error(native).values())
        needs = errors.NeedsInput(f"{said}: {asked}", dict(NEEDS[URL]))
    else:
        return error
    needs.trace = error.trace
    return needs


def _adapt_login(
    error: errors.LoginRequired, revision: Revision, features: Mapping[str, Any]
) -> errors.HubError:
    """2025-11-25: a client that can open URLs, and could not be asked to, gets the URL in an error
    of its own code."""
    if not error.url or revision != R2511 or not can_answer(URL, features):
        return error
    message = str(error)
    asked = {
        "mode": "url",
        "elicitationId": error.url.rpartition("/")[2],
        "url": error.url,
        "message": message,
    }
    native = {"code": URL_REQUIRED, "message": message, "data": {"elicitations": [asked]}}
    adapted = errors.WorkFailed(message, native)
    adapted.trace = error.trace
    return adapted


def render_error_result(
    error: errors.HubError, revision: Revision, bridge: str = "auto"
) -> dict[str, Any] | None:
    """Renders the error as a tool's result; None if this client gets a JSON-RPC error. `bridge` is
    `[bridge] errors`."""
    if isinstance(error, errors.WorkFailed) and error.native is not None:
        return None  # the server's own error passes unchanged
    row = errors.find_row(TABLE, type(error))
    shown = row.result_since <= revision <= row.result_until
    if row.bridge and bridge != "auto":
        shown = bridge == "result"
    if not shown:
        return None
    return {
        "content": [{"type": "text", "text": render_message(error)}],
        "isError": True,
        "_meta": {ERROR_KEY: _kind(error) | ({"code": row.legacy} if row.bridge else {})},
    }


def encode_error(
    id: rpc.Id, error: errors.HubError, revision: Revision, uri: str | None = None
) -> bytes:
    """Encodes the error as a JSON-RPC error; `uri` is the address of the requested resource."""
    if isinstance(error, errors.WorkFailed) and error.native is not None:
        return _as_native(id, error, error.native, revision, uri)
    row = errors.find_row(TABLE, type(error))
    code = row.modern if revision >= R2607 and not row.bridge else row.legacy
    data = _kind(error)
    if isinstance(error, errors.NotFound) and uri is not None:
        data["uri"] = uri
        code = code if revision >= R2607 else RESOURCE_NOT_FOUND
    if isinstance(error, errors.NeedsInput):
        data["requiredCapabilities"] = error.missing
    if isinstance(error, errors.RateLimited):
        data["retryAfter"] = error.retry_after
        encoded = rpc.encode_error(id, code, render_message(error), data)
        encoded.retry_after = error.retry_after
        return encoded
    if isinstance(error, errors.InsufficientScope):
        data["scope"] = error.scope
        encoded = rpc.encode_error(id, code, render_message(error), data)
        encoded.missing_scope = error.scope
        return encoded
    return rpc.encode_error(id, code, render_message(error), data)


def _as_native(
    id: rpc.Id, error: errors.HubError, native: dict[str, Any], revision: Revision, uri: str | None
) -> bytes:
    code, data = native.get("code"), native.get("data")
    code = code if type(code) is int else rpc.INTERNAL_ERROR  # nor a bool
    if uri is not None and code == RESOURCE_NOT_FOUND and data is None:
        data = {"uri": uri}
    if revision >= R2607:
        code = RETIRED_CODES.get(code, code)
    elif (
        code == rpc.INVALID_PARAMS and uri is not None and isinstance(data, dict) and "uri" in data
    ):
        code = RESOURCE_NOT_FOUND  # as a server of 2026-07-28 says it
    return rpc.encode_error(id, code, str(native.get("message", error)), data)


def _kind(error: errors.HubError) -> dict[str, Any]:
    found = {"kind": error.kind, "trace": error.trace}
    if isinstance(error, errors.LoginRequired) and error.url:
        found["url"] = error.url
    return found


def encode_crash(id: rpc.Id, error: Exception) -> bytes:
    """Logs an unexpected exception and returns the response, which names its trace."""
    trace = getattr(error, "trace", "") or new_trace().id
    log.error("request failed (trace %s)", trace, exc_info=error)
    problem = f"the request failed inside the hub; see the hub's log (trace {trace[:8]})"
    return rpc.encode_error(id, rpc.INTERNAL_ERROR, problem, {"trace": trace})
