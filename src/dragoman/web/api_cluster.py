"""`/api/cluster`: the hubs that work as one, and their leases. It needs `admin`."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any

from dragoman.core.scopes import REGISTRY
from dragoman.web.api import ApiRequest, ApiResponse, build_response
from dragoman.web.openapi import admin_route


@dataclass(frozen=True, slots=True)
class ClusterApi:
    _describe: Callable[[], Awaitable[Mapping[str, Any]]]

    @admin_route(
        REGISTRY,
        "GET /api/cluster",
        "The hubs of the cluster with their versions and leases",
        (503,),
    )
    async def _get(self, request: ApiRequest) -> ApiResponse:
        return build_response(await self._describe())
