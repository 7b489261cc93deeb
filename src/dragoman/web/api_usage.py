"""`GET /api/usage`: what agents have used, by agent, principal, chain of calls, model or day."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any

from dragoman.core.errors import InvalidInput
from dragoman.core.hub import Hub
from dragoman.core.scopes import USERS
from dragoman.core.usage import UsageStore
from dragoman.web.api import ApiRequest, ApiResponse, build_response
from dragoman.web.openapi import route

GROUPS = ("agent", "principal", "origin", "trace", "model", "day")
DAY = 86_400.0


@dataclass(frozen=True, slots=True)
class UsageApi:
    _hub: Hub
    _usage: UsageStore

    @route(
        "GET /api/usage",
        "What agents have used; ?by=agent,day, ?days=7, ?agent=, ?trace= and others",
        (400, 500, 503),
    )
    async def _get(self, request: ApiRequest) -> ApiResponse:
        query = request.query
        if unknown := query.keys() - {"by", "days", *GROUPS}:
            raise InvalidInput(
                f'unknown parameter "{min(unknown)[:100]}": use by, days, {", ".join(GROUPS)}'
            )
        by = query.get("by", "agent").split(",")
        if wrong := [one for one in by if one not in GROUPS]:
            raise InvalidInput(f'by must be of {", ".join(GROUPS)}, not "{wrong[0][:100]}"')
        only = {name: query[name] for name in GROUPS if name in query}
        # An administrator sees all of it, other principals what they have caused.
        if not self._hub.authorizer.decide_action(request.caller, USERS).allowed:
            only["origin"] = request.caller.label
        days = _parse_days(query.get("days", "30"))
        found = self._usage.summarize(by, time.time() - days * DAY, only)
        total: dict[str, Any] = {}
        for row in found:
            for name, value in row.items():
                if isinstance(value, int | float):
                    total[name] = total.get(name, 0) + value
        return build_response({"usage": found, "total": total, "days": days})


def _parse_days(text: str) -> float:
    try:
        days = float(text)
    except ValueError:
        days = 0.0
    if not 0 < days <= 366:
        raise InvalidInput("days must be a number from 0 to 366")
    return days
