"""One table: the HTTP status of each error, for the API."""

from __future__ import annotations

from dragoman.core.errors import (
    AmbiguousName,
    AuthorizationError,
    BadReply,
    ConfigError,
    Declined,
    Denied,
    Full,
    HubError,
    InvalidInput,
    Looping,
    NeedsInput,
    NotFound,
    Quarantined,
    RemoteA2AInvalidResponseError,
    RemoteA2ATaskFailedError,
    RemoteA2ATimeoutError,
    RemoteA2ATransportError,
    TimedOut,
    TooDeep,
    Unreachable,
    WorkFailed,
)

TABLE: dict[type[HubError], int] = {
    Denied: 403,
    AuthorizationError: 403,
    TooDeep: 403,
    Looping: 403,
    Quarantined: 403,
    Full: 503,
    NotFound: 404,
    AmbiguousName: 409,
    InvalidInput: 400,
    Unreachable: 502,
    TimedOut: 504,
    BadReply: 502,
    WorkFailed: 502,
    RemoteA2ATransportError: 502,
    RemoteA2ATimeoutError: 504,
    RemoteA2AInvalidResponseError: 502,
    RemoteA2ATaskFailedError: 502,
    NeedsInput: 409,
    Declined: 422,
    ConfigError: 500,
}


def status_of(error: HubError) -> int:
    return next(TABLE[kind] for kind in type(error).__mro__ if kind in TABLE)
