"""One table: the HTTP status of each error, for the API."""

from __future__ import annotations

from dragoman.core.errors import (
    AmbiguousName,
    BadReply,
    ConfigError,
    Declined,
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

TABLE: dict[type[HubError], int] = {
    Denied: 403,
    Full: 503,
    NotFound: 404,
    AmbiguousName: 409,
    InvalidInput: 400,
    Unreachable: 502,
    TimedOut: 504,
    BadReply: 502,
    WorkFailed: 502,
    NeedsInput: 409,
    Declined: 422,
    ConfigError: 500,
}


def status_of(error: HubError) -> int:
    return next(TABLE[kind] for kind in type(error).__mro__ if kind in TABLE)
