"""`/api/reload` and `/api/mcp/servers/NAME/restart`: operations on a running hub. Need `admin`."""

from __future__ import annotations

from typing import Any, Protocol

from dragoman.core.errors import NotFound
from dragoman.core.hub import Hub
from dragoman.web.api import ApiRequest, ApiResponse, Route, build_response, require_admin

OPERATIONS: list[tuple[Any, ...]] = [
    (
        "/api/reload",
        "post",
        "Reload the configuration; says why the file is not used",
        "Object",
        [403],
    ),
    (
        "/api/mcp/servers/{name}/restart",
        "post",
        "Restart a server",
        "Object",
        [403, 404],
    ),
]


class ServerAdministration(Protocol):
    async def reload(self) -> str | None:
        """Applies the current configuration; returns why it is not used."""

    async def restart_server(self, name: str) -> bool:
        """Returns whether there is such an enabled server."""


class ServersApi:
    def __init__(self, hub: Hub, administration: ServerAdministration) -> None:
        self._hub = hub
        self._administration = administration
        self.routes: list[Route] = [
            ("POST", r"/api/reload", self._reload),
            ("POST", r"/api/mcp/servers/([^/]+)/restart", self._restart),
        ]

    async def _reload(self, request: ApiRequest) -> ApiResponse:
        require_admin(self._hub, request.principal)
        return build_response({"problem": await self._administration.reload()})

    async def _restart(self, request: ApiRequest) -> ApiResponse:
        require_admin(self._hub, request.principal)
        name = request.names[0]
        if not await self._administration.restart_server(name):
            raise NotFound(f'there is no enabled server "{name[:200]}"')
        return build_response({"restarted": name})
