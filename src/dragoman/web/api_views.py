"""`/api/views`: the views of the configuration, and what their lists cost a client."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

from dragoman.core.errors import NotFound
from dragoman.core.principal import Principal
from dragoman.web.api import ApiRequest, ApiResponse, build_response
from dragoman.web.openapi import route
from dragoman.web.openapi_schemas import TEXT

MAX_CLIENT = 200


class ViewReports(Protocol):
    async def list_views(self, caller: Principal, client: str) -> dict[str, Any]:
        """The views that the caller can use, with the cost of each for a client of that name."""

    def describe_view(self, caller: Principal, name: str, client: str) -> dict[str, Any] | None:
        """One view with its tools, as the caller would be listed them; None if it is unknown."""


@dataclass(frozen=True, slots=True)
class ViewsApi:
    _reports: ViewReports

    @route(
        "GET /api/views",
        "The views, with the tools and estimated tokens of each for the caller",
        query={"client": TEXT},
    )
    async def _list_views(self, request: ApiRequest) -> ApiResponse:
        client = request.query.get("client", "")[:MAX_CLIENT]
        return build_response(await self._reports.list_views(request.caller, client))

    @route(
        "GET /api/views/{name}",
        "One view, with its tools and their estimated tokens for the caller",
        (404,),
        query={"client": TEXT},
    )
    async def _get_view(self, request: ApiRequest) -> ApiResponse:
        name, client = request.names[0], request.query.get("client", "")[:MAX_CLIENT]
        found = self._reports.describe_view(request.caller, name, client)
        if found is None:
            raise NotFound(f'there is no view "{name[:100]}"')
        return build_response(found)
