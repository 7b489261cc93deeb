"""`/api/mcp/servers/NAME/login`, `/api/a2a/agents/NAME/login`, `/api/logins/ID`: logging in.

A principal logs in for itself; for all users where the credentials are shared, which needs `admin`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from dragoman.core.admin_audit import record_action
from dragoman.core.errors import InvalidInput
from dragoman.core.hub import Hub
from dragoman.core.ports import AuditLog
from dragoman.core.principal import Principal
from dragoman.core.scopes import USERS
from dragoman.web.api import ApiRequest, ApiResponse, build_response, parse_object, require_right
from dragoman.web.openapi import route

MAX_SCOPES = 100
_KEYS = frozenset({"scopes", "device", "shared"})


class LoginSource(Protocol):
    """The logins; results are plain JSON objects without any token."""

    async def begin(
        self, kind: str, name: str, by: Principal, scopes: tuple[str, ...],
        *, device: bool, shared: bool,
    ) -> dict[str, Any]: ...  # fmt: skip

    def get_login(self, id: str, by: Principal) -> dict[str, Any]:
        """Raises `NotFound` for a login that is not the principal's."""

    def describe(self, kind: str, name: str, by: Principal, *, all: bool) -> dict[str, Any]:
        """Describes the principal's credential; with `all` those of others, too."""

    async def forget(
        self, kind: str, name: str, by: Principal, *, holder: str | None, all: bool
    ) -> dict[str, Any]:
        """Removes the principal's credential, or those of `holder` or of `all`."""


@dataclass(frozen=True, slots=True)
class LoginsApi:
    _hub: Hub
    _source: LoginSource
    _audit: AuditLog

    @route(
        "POST /api/mcp/servers/{name}/login",
        "Log in at a server: returns the link to open, or with device the code to enter",
        (400, 403, 404, 502, 503),
        "Login",
    )
    async def _log_in_at_server(self, request: ApiRequest) -> ApiResponse:
        return await self._begin(request, "server")

    @route(
        "POST /api/a2a/agents/{name}/login",
        "The same for an agent",
        (400, 403, 404, 502, 503),
        "Login",
    )
    async def _log_in_at_agent(self, request: ApiRequest) -> ApiResponse:
        return await self._begin(request, "agent")

    async def _begin(self, request: ApiRequest, kind: str) -> ApiResponse:
        body = parse_object(request)
        scopes, device, shared = _parse_login(body)
        with record_action(self._audit, "login.begin", request.names[0], request.caller):
            return build_response(
                await self._source.begin(
                    kind, request.names[0], request.caller, scopes, device=device, shared=shared
                )
            )

    @route("GET /api/logins/{name}", "How a login that you began goes", (404,))
    async def _get_login(self, request: ApiRequest) -> ApiResponse:
        return build_response(self._source.get_login(request.names[0], request.caller))

    @route(
        "GET /api/mcp/servers/{name}/login",
        "Your login at a server; with all, everyone's (needs admin)",
        (403, 404),
        query={"all": {"type": "string", "enum": ["0", "1"]}},
    )
    async def _describe_server(self, request: ApiRequest) -> ApiResponse:
        return self._describe(request, "server")

    @route(
        "GET /api/a2a/agents/{name}/login",
        "The same for an agent",
        (403, 404),
        query={"all": {"type": "string", "enum": ["0", "1"]}},
    )
    async def _describe_agent(self, request: ApiRequest) -> ApiResponse:
        return self._describe(request, "agent")

    def _describe(self, request: ApiRequest, kind: str) -> ApiResponse:
        everyone = request.query.get("all") == "1"
        if everyone:
            require_right(self._hub, request.principal, USERS)
        found = self._source.describe(kind, request.names[0], request.caller, all=everyone)
        return build_response(found)

    @route(
        "DELETE /api/mcp/servers/{name}/login",
        "Log out at a server; with holder or all, others (needs admin)",
        (403, 404),
        query={"holder": {"type": "string"}, "all": {"type": "string", "enum": ["0", "1"]}},
    )
    async def _log_out_at_server(self, request: ApiRequest) -> ApiResponse:
        return await self._forget(request, "server")

    @route(
        "DELETE /api/a2a/agents/{name}/login",
        "The same for an agent",
        (403, 404),
        query={"holder": {"type": "string"}, "all": {"type": "string", "enum": ["0", "1"]}},
    )
    async def _log_out_at_agent(self, request: ApiRequest) -> ApiResponse:
        return await self._forget(request, "agent")

    async def _forget(self, request: ApiRequest, kind: str) -> ApiResponse:
        holder, everyone = request.query.get("holder"), request.query.get("all") == "1"
        if holder is not None or everyone:
            require_right(self._hub, request.principal, USERS)
        with record_action(self._audit, "login.forget", request.names[0], request.caller):
            found = await self._source.forget(
                kind, request.names[0], request.caller, holder=holder, all=everyone
            )
        return build_response(found)


def _parse_login(body: Mapping[str, Any]) -> tuple[tuple[str, ...], bool, bool]:
    scopes, device, shared = body.get("scopes", []), body.get("device"), body.get("shared")
    are_texts = isinstance(scopes, list) and all(isinstance(one, str) for one in scopes)
    if (
        body.keys() - _KEYS
        or not are_texts
        or len(scopes) > MAX_SCOPES
        or not isinstance(device, bool | None)
        or not isinstance(shared, bool | None)
    ):
        raise InvalidInput(
            'the body may be {"scopes": ["…"], "device": true, "shared": true}, or empty'
        )
    return tuple(scopes), device is True, shared is True
