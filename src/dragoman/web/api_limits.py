"""`/api/limits`: the limits in force, and what is left of the caller's budget."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from dragoman.core.hub import Hub
from dragoman.core.rate_limiter import Rate, RateBudget
from dragoman.core.scopes import USERS
from dragoman.web.api import ApiRequest, ApiResponse, build_response
from dragoman.web.openapi import route

MAX_LISTED = 20

FindConcurrency = Callable[[], Mapping[str, Any]]
"""Finds the limits of what may happen at once, by the name of their settings: `limit`, `each` for
one principal, and `running` where it is counted."""


@dataclass(frozen=True, slots=True)
class LimitsApi:
    _hub: Hub
    _find_concurrency: FindConcurrency

    @route("GET /api/limits", "Rate and concurrency limits, and the caller's remaining budget")
    async def _get_limits(self, request: ApiRequest) -> ApiResponse:
        limiter, caller = self._hub.limiter, request.caller
        rules = limiter.rules
        is_admin = self._hub.authorizer.decide_action(caller, USERS).allowed
        concurrency = {
            name: one if is_admin else {key: one[key] for key in one if key != "running"}
            for name, one in self._find_concurrency().items()
        }
        found: dict[str, Any] = {
            "budgets": [render_budget(one) for one in limiter.find_budgets(caller)],
            "rates": {
                "principal": _render_rate(rules.principal),
                "owner": _render_rate(rules.owner),
                "org": _render_rate(rules.org),
                "address": _render_rate(rules.address),
            },
            "costs": dict(rules.costs),
            "concurrency": concurrency,
            "shared": limiter.is_shared,
        }
        if is_admin:
            found["lowest"] = [render_budget(one) for one in limiter.list_lowest(MAX_LISTED)]
        return build_response(found)


def _render_rate(rate: Rate) -> dict[str, Any]:
    return {"per_minute": rate.per_minute, "burst": rate.burst}


def render_budget(budget: RateBudget) -> dict[str, Any]:
    return {
        "scope": budget.scope,
        "name": budget.name,
        "remaining": budget.remaining,
        "full_in_secs": budget.full_in,
        **_render_rate(budget.rate),
    }
