"""`/api/reload` and `/api/mcp/servers/NAME/restart`: operations on a running hub. Need `admin`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from dragoman.core.errors import NotFound
from dragoman.web.api import ApiRequest, ApiResponse, build_response
from dragoman.web.openapi import admin_route


class ServerAdministration(Protocol):
    async def reload(self) -> str | None:
        """Applies the current configuration; returns why it is not used."""

    async def restart_server(self, name: str) -> bool:
        """Returns whether there is such an enabled server."""


@dataclass(frozen=True, slots=True)
class ServersApi:
    _administration: ServerAdministration

    @admin_route(
        "POST /api/reload", "Reload the configuration; says why the file is not used", body=None
    )
    async def _reload(self, request: ApiRequest) -> ApiResponse:
        return build_response({"problem": await self._administration.reload()})

    @admin_route("POST /api/mcp/servers/{name}/restart", "Restart a server", (404,), body=None)
    async def _restart(self, request: ApiRequest) -> ApiResponse:
        name = request.names[0]
        if not await self._administration.restart_server(name):
            raise NotFound(f'there is no enabled server "{name[:200]}"')
        return build_response({"restarted": name})
