"""Parses the errors of other agents, in any dialect: those of JSON-RPC and of HTTP."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from dragoman.a2a.protocol import errors
from dragoman.a2a.protocol.errors import A2aError

_OF_STATUS: Mapping[int, str] = {
    400: errors.INVALID_PARAMS,
    401: errors.UNAUTHENTICATED,
    403: errors.PERMISSION_DENIED,
    404: errors.TASK_NOT_FOUND,
    405: errors.METHOD_NOT_FOUND,
    409: errors.TASK_NOT_CANCELABLE,
    415: errors.CONTENT_TYPE_NOT_SUPPORTED,
    422: errors.INVALID_PARAMS,
    429: errors.RESOURCE_EXHAUSTED,
    501: errors.UNSUPPORTED_OPERATION,
    503: errors.UNAVAILABLE,
}
"""For HTTP+JSON errors without a reason."""
MAX_WORDS = 2000


def parse_error(error: Any) -> A2aError:
    """Parses the error object of a JSON-RPC response."""
    if not isinstance(error, dict):
        return A2aError(errors.INTERNAL, _cut_text(error, "the agent answered with an error"))
    code, reason = error.get("code"), errors.INTERNAL
    if isinstance(code, int):
        reason = errors.REASONS_BY_CODE.get(code, reason)
    return _build_error(reason, error.get("message"), error.get("data"))


def parse_rest_error(status: int, body: Any) -> A2aError:
    """Parses an HTTP response of 400 or above: 1.0's `{"error": {...}}`, or a form of 0.3."""
    reason = _OF_STATUS.get(status, errors.INTERNAL)
    if not isinstance(body, dict):
        return A2aError(reason, _cut_text(body, f"the agent answered with HTTP status {status}"))
    error = body.get("error")
    if isinstance(error, dict):
        return _build_error(reason, error.get("message"), error.get("details") or error.get("data"))
    code = body.get("code")
    if isinstance(code, int) and code in errors.REASONS_BY_CODE:
        reason = errors.REASONS_BY_CODE[code]
    elif isinstance(error, str):
        named = re.sub(r"(?<=[a-z])(?=[A-Z])", "_", error.split(".")[-1].removesuffix("Error"))
        reason = named.upper() if named.upper() in errors.ERROR_CODES else reason
    words = next(filter(None, map(body.get, ("message", "detail", "title", "error"))), None)
    return _build_error(reason, words, body.get("data"))


def _build_error(reason: str, words: Any, data: Any) -> A2aError:
    violations: list[tuple[str, str]] = []
    metadata: dict[str, str] = {}
    for detail in data if isinstance(data, list) else [data]:
        if not isinstance(detail, dict):
            continue
        if isinstance(named := detail.get("reason"), str) and named in errors.ERROR_CODES:
            reason = named
        if isinstance(detail.get("metadata"), dict):
            metadata = {str(name): str(held) for name, held in detail["metadata"].items()}
        flaws = detail.get("fieldViolations")
        for flaw in flaws if isinstance(flaws, list) else []:
            if isinstance(flaw, dict):
                violations.append((str(flaw.get("field", "")), str(flaw.get("description", ""))))
    said = _cut_text(words, "the agent answered with an error")
    return A2aError(reason, said, violations=violations, metadata=metadata)


def _cut_text(value: Any, otherwise: str) -> str:
    return value[:MAX_WORDS] if isinstance(value, str) and value else otherwise
