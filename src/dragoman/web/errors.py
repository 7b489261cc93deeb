"""The HTTP status of each error, for the API."""

from __future__ import annotations

from dragoman.core import errors

TABLE: dict[type[errors.HubError], int] = {
    errors.HubError: 500,
    errors.Refused: 403,
    errors.Overloaded: 503,
    errors.NoCandidate: 409,
    errors.ApprovalPending: 409,
    errors.ApprovalClosed: 409,
    errors.ShuttingDown: 503,
    errors.RateLimited: 429,
    errors.StorageFailed: 503,  # until the operator has fixed it; calls are refused meanwhile
    errors.NotFound: 404,
    errors.InvalidInput: 400,
    errors.AmbiguousName: 409,
    errors.TargetFailed: 502,
    errors.TimedOut: 504,
    errors.NeedsInput: 409,
    errors.LoginRequired: 403,  # not 401: the client itself is authenticated
    errors.Declined: 422,
}


def find_status(error: errors.HubError) -> int:
    return errors.find_row(TABLE, type(error))
