"""The HTTP status of each error, for the API."""

from __future__ import annotations

from dragoman.core.errors import (
    AmbiguousName,
    Declined,
    HubError,
    InvalidInput,
    NeedsInput,
    NotFound,
    Overloaded,
    Refused,
    ShuttingDown,
    StorageFailed,
    TargetFailed,
    TimedOut,
    find_row,
)

TABLE: dict[type[HubError], int] = {
    HubError: 500,
    Refused: 403,
    Overloaded: 503,
    ShuttingDown: 503,
    StorageFailed: 503,  # until the operator has fixed it; calls are refused meanwhile
    NotFound: 404,
    InvalidInput: 400,
    AmbiguousName: 409,
    TargetFailed: 502,
    TimedOut: 504,
    NeedsInput: 409,
    Declined: 422,
}


def find_status(error: HubError) -> int:
    return find_row(TABLE, type(error))
