"""`/api/skills`: the installed skills. `dragoman skills` adds and removes them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from dragoman.core.scopes import REGISTRY
from dragoman.web.api import ApiRequest, ApiResponse, build_response
from dragoman.web.openapi import admin_route


@dataclass(frozen=True, slots=True)
class SkillsApi:
    _describe: Callable[[], list[dict[str, Any]]]

    @admin_route(REGISTRY, "GET /api/skills", "The installed skills: state, tools, findings")
    async def _list(self, request: ApiRequest) -> ApiResponse:
        found = self._describe()
        return build_response({"skills": found, "total": len(found)})
