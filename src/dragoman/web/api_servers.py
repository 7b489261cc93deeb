"""`/api/reload` and `/api/mcp/servers/NAME/restart`: operations on a running hub. Need `admin`."""

from __future__ import annotations

from typing import Protocol

from dragoman.core.errors import NotFound
from dragoman.core.hub import Hub
from dragoman.web.api import ApiRequest, ApiResponse, build_response, require_admin
from dragoman.web.openapi import route


class ServerAdministration(Protocol):
    async def reload(self) -> str | None:
        """Applies the current configuration; returns why it is not used."""

    async def restart_server(self, name: str) -> bool:
        """Returns whether there is such an enabled server."""


class ServersApi:
    def __init__(self, hub: Hub, administration: ServerAdministration) -> None:
        self._hub = hub
        self._administration = administration

    @route("POST /api/reload", "Reload the configuration; says why the file is not used", 403)
    async def _reload(self, request: ApiRequest) -> ApiResponse:
        require_admin(self._hub, request.principal)
        return build_response({"problem": await self._administration.reload()})

    @route("POST /api/mcp/servers/{name}/restart", "Restart a server", 403, 404)
    async def _restart(self, request: ApiRequest) -> ApiResponse:
        require_admin(self._hub, request.principal)
        name = request.names[0]
        if not await self._administration.restart_server(name):
            raise NotFound(f'there is no enabled server "{name[:200]}"')
        return build_response({"restarted": name})
