"""The errors of A2A: one exception, and the table of its codes.

    reason -> JSON-RPC code, HTTP status, gRPC status        (1.0.1, section 5.4)

Each binding and dialect renders an `A2aError` in its own form. A second table gives errors of the
hub their reason. Knows no wire form.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

from dragoman.core import errors as hub_errors
from dragoman.core.errors import HubError
from dragoman.core.logins import render_problem

TASK_NOT_FOUND: Final = "TASK_NOT_FOUND"
TASK_NOT_CANCELABLE: Final = "TASK_NOT_CANCELABLE"
PUSH_NOTIFICATION_NOT_SUPPORTED: Final = "PUSH_NOTIFICATION_NOT_SUPPORTED"
UNSUPPORTED_OPERATION: Final = "UNSUPPORTED_OPERATION"
CONTENT_TYPE_NOT_SUPPORTED: Final = "CONTENT_TYPE_NOT_SUPPORTED"
INVALID_AGENT_RESPONSE: Final = "INVALID_AGENT_RESPONSE"
EXTENDED_AGENT_CARD_NOT_CONFIGURED: Final = "EXTENDED_AGENT_CARD_NOT_CONFIGURED"
EXTENSION_SUPPORT_REQUIRED: Final = "EXTENSION_SUPPORT_REQUIRED"
VERSION_NOT_SUPPORTED: Final = "VERSION_NOT_SUPPORTED"
INVALID_PARAMS: Final = "INVALID_PARAMS"
INVALID_REQUEST: Final = "INVALID_REQUEST"
METHOD_NOT_FOUND: Final = "METHOD_NOT_FOUND"
PARSE_ERROR: Final = "PARSE_ERROR"
INTERNAL: Final = "INTERNAL"
UNAUTHENTICATED: Final = "UNAUTHENTICATED"
PERMISSION_DENIED: Final = "PERMISSION_DENIED"
RESOURCE_EXHAUSTED: Final = "RESOURCE_EXHAUSTED"
UNAVAILABLE: Final = "UNAVAILABLE"

DOMAIN: Final = "a2a-protocol.org"


class ErrorCodes(NamedTuple):
    code: int
    """Of JSON-RPC."""
    http: int
    grpc: str
    """The name of the gRPC status, which is also the `status` of an HTTP+JSON error."""


_SERVER = -32000
"""The one server code of JSON-RPC that A2A does not use (it has -32001 to -32099)."""

ERROR_CODES: Mapping[str, ErrorCodes] = {
    TASK_NOT_FOUND: ErrorCodes(-32001, 404, "NOT_FOUND"),
    TASK_NOT_CANCELABLE: ErrorCodes(-32002, 400, "FAILED_PRECONDITION"),
    PUSH_NOTIFICATION_NOT_SUPPORTED: ErrorCodes(-32003, 400, "FAILED_PRECONDITION"),
    UNSUPPORTED_OPERATION: ErrorCodes(-32004, 400, "FAILED_PRECONDITION"),
    CONTENT_TYPE_NOT_SUPPORTED: ErrorCodes(-32005, 400, "INVALID_ARGUMENT"),
    INVALID_AGENT_RESPONSE: ErrorCodes(-32006, 500, "INTERNAL"),
    EXTENDED_AGENT_CARD_NOT_CONFIGURED: ErrorCodes(-32007, 400, "FAILED_PRECONDITION"),
    EXTENSION_SUPPORT_REQUIRED: ErrorCodes(-32008, 400, "FAILED_PRECONDITION"),
    VERSION_NOT_SUPPORTED: ErrorCodes(-32009, 400, "FAILED_PRECONDITION"),
    INVALID_PARAMS: ErrorCodes(-32602, 400, "INVALID_ARGUMENT"),
    INVALID_REQUEST: ErrorCodes(-32600, 400, "INVALID_ARGUMENT"),
    METHOD_NOT_FOUND: ErrorCodes(-32601, 404, "UNIMPLEMENTED"),
    PARSE_ERROR: ErrorCodes(-32700, 400, "INVALID_ARGUMENT"),
    INTERNAL: ErrorCodes(-32603, 500, "INTERNAL"),
    UNAUTHENTICATED: ErrorCodes(_SERVER, 401, "UNAUTHENTICATED"),
    PERMISSION_DENIED: ErrorCodes(_SERVER, 403, "PERMISSION_DENIED"),
    RESOURCE_EXHAUSTED: ErrorCodes(_SERVER, 429, "RESOURCE_EXHAUSTED"),
    UNAVAILABLE: ErrorCodes(_SERVER, 503, "UNAVAILABLE"),
}

REASONS_BY_CODE: Mapping[int, str] = {
    row.code: reason for reason, row in ERROR_CODES.items() if row.code != _SERVER
}

Violations = Sequence[tuple[str, str]]


class A2aError(Exception):
    """The answer is an error: `reason` identifies it, the message is for people."""

    def __init__(
        self,
        reason: str,
        message: str,
        *,
        violations: Violations = (),
        metadata: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(message)
        self.reason = reason
        self.message = message
        self.violations: list[tuple[str, str]] = list(violations)
        """The invalid fields of the request, each with a description."""
        self.metadata: dict[str, str] = dict(metadata or {})
        self.missing_scope = ""
        """The scope that the credential of the request does not have."""
        self.retry_after = 0.0
        """Seconds after which a request that was refused for its rate can be sent again."""

    @property
    def codes(self) -> ErrorCodes:
        return ERROR_CODES[self.reason]


def invalid(field: str, description: str) -> A2aError:
    """Returns the error for one invalid field of a request."""
    return A2aError(INVALID_PARAMS, f'"{field}" {description}', violations=[(field, description)])


REASONS_BY_ERROR: Mapping[type[HubError], str] = {
    HubError: INTERNAL,
    hub_errors.Refused: PERMISSION_DENIED,
    hub_errors.Overloaded: RESOURCE_EXHAUSTED,
    hub_errors.NoCandidate: UNSUPPORTED_OPERATION,
    hub_errors.ApprovalPending: UNSUPPORTED_OPERATION,
    hub_errors.ShuttingDown: RESOURCE_EXHAUSTED,
    hub_errors.RateLimited: RESOURCE_EXHAUSTED,
    # A task of another principal is answered as not found (section 13.1).
    hub_errors.NotFound: TASK_NOT_FOUND,
    hub_errors.InvalidInput: INVALID_PARAMS,
    hub_errors.StorageFailed: UNAVAILABLE,  # nothing was begun
    hub_errors.Unreachable: UNAVAILABLE,
    hub_errors.BadReply: INVALID_AGENT_RESPONSE,
    hub_errors.NeedsInput: UNSUPPORTED_OPERATION,
    hub_errors.Declined: UNSUPPORTED_OPERATION,
    hub_errors.LoginRequired: PERMISSION_DENIED,
}


def error_from_hub(error: HubError) -> A2aError:
    reason = hub_errors.find_row(REASONS_BY_ERROR, type(error))
    if isinstance(error, hub_errors.Unreachable) and error.sent:
        reason = INTERNAL  # clients retry UNAVAILABLE, and this may have been executed
    metadata = {"kind": error.kind}
    words = render_problem(error)
    if error.trace:
        metadata["trace"] = error.trace
        words = f"{words} (trace {error.trace[:8]})"
    if isinstance(error, hub_errors.LoginRequired) and error.url:
        metadata["url"] = error.url
    if isinstance(error, hub_errors.RateLimited):
        metadata["retryAfter"] = f"{error.retry_after:g}"
        limited = A2aError(reason, words, metadata=metadata)
        limited.retry_after = error.retry_after
        return limited
    if isinstance(error, hub_errors.InsufficientScope):
        metadata["scope"] = error.scope
        refused = A2aError(reason, words, metadata=metadata)
        refused.missing_scope = error.scope
        return refused
    return A2aError(reason, words, metadata=metadata)


# --- the details of google.rpc, which 1.0 requires in every binding -------------------------------

ERROR_INFO: Final = "type.googleapis.com/google.rpc.ErrorInfo"
BAD_REQUEST: Final = "type.googleapis.com/google.rpc.BadRequest"


def render_details(error: A2aError) -> list[dict[str, Any]]:
    info: dict[str, Any] = {"@type": ERROR_INFO, "reason": error.reason, "domain": DOMAIN}
    if error.metadata:
        info["metadata"] = error.metadata
    found = [info]
    if error.violations:
        found.append(
            {
                "@type": BAD_REQUEST,
                "fieldViolations": [
                    {"field": field, "description": description}
                    for field, description in error.violations
                ],
            }
        )
    return found
