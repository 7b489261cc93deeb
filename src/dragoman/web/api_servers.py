"""`/api/reload` and `/api/mcp/servers/NAME/restart`: what an operator does to a running hub.

Both need `admin`.
"""

from __future__ import annotations

from typing import Any, Protocol

from dragoman.core.errors import NotFound
from dragoman.core.hub import Hub
from dragoman.web.api import ApiRequest, ApiResponse, Route, build_response, require_admin

OPERATIONS: list[tuple[Any, ...]] = [
    (
        "/api/reload",
        "post",
        "Read the configuration now; says why what stands there is not used",
        "Object",
        [403],
    ),
    (
        "/api/mcp/servers/{name}/restart",
        "post",
        "Stop a server and connect to it again",
        "Object",
        [403, 404],
    ),
]


class ServerAdministration(Protocol):
    async def reload(self) -> str | None:
        """Applies the configuration as it is now; returns why it is not used."""

    async def restart_server(self, name: str) -> bool:
        """Returns whether there is such a server that is switched on."""


class ServersApi:
    def __init__(self, hub: Hub, operates: ServerAdministration) -> None:
        self._hub = hub
        self._operates = operates
        self.routes: list[Route] = [
            ("POST", r"/api/reload", self._reload),
            ("POST", r"/api/mcp/servers/([^/]+)/restart", self._restart),
        ]

    async def _reload(self, request: ApiRequest) -> ApiResponse:
        require_admin(self._hub, request.principal)
        return build_response({"problem": await self._operates.reload()})

    async def _restart(self, request: ApiRequest) -> ApiResponse:
        require_admin(self._hub, request.principal)
        name = request.names[0]
        if not await self._operates.restart_server(name):
            raise NotFound(f'there is no server "{name[:200]}" that is switched on')
        return build_response({"restarted": name})
