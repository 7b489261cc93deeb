"""Pages of a list of tasks: filters, page tokens, and the size of a page."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Mapping
from typing import Any

from dragoman.a2a.protocol.errors import INVALID_PARAMS, A2aError
from dragoman.a2a.protocol.validation import seconds_from_timestamp
from dragoman.a2a.server.task import STATES, A2aTask


def matches_filter(task: A2aTask, request: Mapping[str, Any]) -> bool:
    context, status = request.get("contextId"), request.get("status")
    after = request.get("statusTimestampAfter")
    return (
        (context is None or task.record.header.context == context)
        and (status is None or STATES[task.state] == status)
        and (after is None or task.updated >= (seconds_from_timestamp(after) or 0.0))
    )


def limit_bytes(tasks: list[A2aTask], most: int) -> list[A2aTask]:
    """The first tasks that together take at most `most` bytes; at least one."""
    left = most
    for place, task in enumerate(tasks):
        left -= task.size
        if left < 0:
            return tasks[: max(place, 1)]
    return tasks


def page_token_from_task(task: A2aTask) -> str:
    place = f"{task.updated!r} {task.id}"
    return base64.urlsafe_b64encode(place.encode()).decode()


def find_page_start(tasks: list[A2aTask], token: str | None) -> int:
    """The index where the page of `token` begins: after the task that it names, or where that task
    was when the token was issued."""
    if not token:
        return 0
    try:
        at, _, id = base64.b64decode(token, b"-_", validate=True).decode().partition(" ")
        updated = float(at)
    except (binascii.Error, ValueError):
        raise A2aError(
            INVALID_PARAMS,
            'invalid "pageToken": use the nextPageToken of the previous page',
            violations=[("pageToken", "is invalid: use the nextPageToken of the previous page")],
        ) from None
    for place, task in enumerate(tasks):
        if task.updated < updated or (task.updated == updated and task.id == id):
            return place + 1 if task.id == id else place
    return len(tasks)
