"""`GET /api/a2a/dispatches`: every call of a registered agent's skill, the newest first."""

from __future__ import annotations

import math
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Protocol

from dragoman.core.errors import InvalidInput
from dragoman.core.hub import Hub
from dragoman.core.ports import ADMIN
from dragoman.web.api import ApiRequest, ApiResponse, build_response
from dragoman.web.openapi import route
from dragoman.web.openapi_schemas import TEXT

LIMIT, MAX_LIMIT = 50, 200
ALL_CALLERS = "*"

_EXACT = {"agentId": "agent_id", "agent": "agent", "session": "session"}
_WORDS = {
    "status": ("running", "completed", "asked", "failed", "denied", "cancelled"),
    "kind": ("explicit", "routed"),
}
_TIMES = {"from": "since", "to": "until"}
_KNOWN = (*_EXACT, *_WORDS, *_TIMES, "limit", "cursor")


class DispatchSource(Protocol):
    async def find(
        self, limit: int, cursor: str | None, **wanted: Any
    ) -> tuple[list[dict[str, Any]], str | None]: ...


@dataclass(frozen=True, slots=True)
class DispatchesApi:
    _hub: Hub
    _store: DispatchSource

    @route(
        "GET /api/a2a/dispatches",
        "Calls of registered agents' skills, newest first",
        (500,),
        query={
            **dict.fromkeys((*_EXACT, *_TIMES, "cursor"), TEXT),
            **{name: {"enum": list(words)} for name, words in _WORDS.items()},
            "limit": {"type": "integer", "minimum": 1, "maximum": MAX_LIMIT},
        },
    )
    async def _list(self, request: ApiRequest) -> ApiResponse:
        principal, query = request.caller, request.query
        if unknown := query.keys() - set(_KNOWN):
            raise InvalidInput(f'unknown parameter "{min(unknown)[:100]}": use {", ".join(_KNOWN)}')
        wanted: dict[str, Any] = {_EXACT[name]: query[name] for name in _EXACT if name in query}
        for name, words in _WORDS.items():
            if name in query:
                if query[name] not in words:
                    raise InvalidInput(f"{name} must be one of {', '.join(words)}")
                wanted[name] = query[name]
        for name, field in _TIMES.items():
            if name in query:
                wanted[field] = _parse_time(name, query[name])
        # An administrator sees all of them, other principals their own.
        sees_all = self._hub.authorizer.decide_action(principal, ADMIN).allowed
        found, cursor = await self._store.find(
            _parse_limit(query.get("limit")),
            query.get("cursor"),
            org=principal.org,
            caller=ALL_CALLERS if sees_all else principal.label,
            **wanted,
        )
        return build_response({"dispatches": found, "nextCursor": cursor})


def _parse_limit(given: str | None) -> int:
    if given is None:
        return LIMIT
    if not (given.isascii() and given.isdigit() and len(given) <= 9) or not (
        1 <= int(given) <= MAX_LIMIT
    ):
        raise InvalidInput(f"limit must be a number from 1 to {MAX_LIMIT}")
    return int(given)


def _parse_time(name: str, given: str) -> float:
    """Parses ISO 8601, in UTC without an offset, or seconds since 1970."""
    try:
        seconds = float(given)
    except ValueError:
        try:
            at = datetime.fromisoformat(given.replace(" ", "+"))  # a plus sign that was not quoted
            seconds = (at if at.tzinfo is not None else at.replace(tzinfo=UTC)).timestamp()
        except (ValueError, OverflowError):
            seconds = math.nan
    if not math.isfinite(seconds):
        raise InvalidInput(f'{name} must be a time such as "2026-01-31T12:00:00Z"')
    return seconds
