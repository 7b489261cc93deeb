"""`/api/a2a/agents`: the registry of remote agents. Changing it needs `admin`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from dragoman.core.admin_audit import record_action
from dragoman.core.errors import InvalidInput
from dragoman.core.hub import Hub
from dragoman.core.ports import A2A_DISCOVER, AuditLog
from dragoman.core.principal import Principal
from dragoman.core.scopes import REGISTRY
from dragoman.core.tool import Tool
from dragoman.core.urls import render_origin
from dragoman.web.api import ApiRequest, ApiResponse, build_response, parse_object
from dragoman.web.openapi import admin_route, route

IsAllowed = Callable[[Tool], bool]
CARD_NUMBER = {"type": "integer", "minimum": 1, "maximum": 9_999}


class AgentSource(Protocol):
    """The registry; a key is an id, a slug or a name. Results are plain JSON objects."""

    async def list_agents(self, may: IsAllowed, *, secret: bool) -> list[dict[str, Any]]:
        """Lists the agents that `may` allows. With `secret`, includes the references of their
        credentials and their cards as received, quarantined or not."""

    def get_agent(self, key: str, may: IsAllowed, *, secret: bool) -> dict[str, Any]: ...

    async def add(self, body: Mapping[str, Any]) -> dict[str, Any]: ...

    async def change(self, key: str, body: Mapping[str, Any]) -> dict[str, Any]: ...

    async def remove(self, key: str) -> dict[str, Any]: ...

    async def refetch(self, key: str) -> dict[str, Any]: ...

    def list_cards(self, key: str, may: IsAllowed) -> list[dict[str, Any]]: ...

    def get_card(
        self, key: str, may: IsAllowed, number: int, other: int | None
    ) -> dict[str, Any]: ...


@dataclass(frozen=True, slots=True)
class AgentsApi:
    _hub: Hub
    _source: AgentSource
    _audit: AuditLog

    @route("GET /api/a2a/agents", "The remote agents and their health", (404,))
    async def _list(self, request: ApiRequest) -> ApiResponse:
        may, secret = self._visibility(request.principal)
        agents = await self._source.list_agents(may, secret=secret)
        return build_response({"agents": agents, "total": len(agents)})

    @route("GET /api/a2a/agents/{name}", "One agent by id, slug or name, with its card", (404,))
    async def _get(self, request: ApiRequest) -> ApiResponse:
        may, secret = self._visibility(request.principal)
        return build_response(self._source.get_agent(request.names[0], may, secret=secret))

    @admin_route(
        REGISTRY,
        "POST /api/a2a/agents",
        "Register an agent: url, and name, token (env:NAME or file:tokens/NAME), headers "
        "(${NAME}), trust, pin, wire, allow_private, timeout_secs, public",
        (404, 409, 500),
        "Agent",
    )
    async def _add(self, request: ApiRequest) -> ApiResponse:
        body = parse_object(request)
        where = render_origin(str(body.get("url", "")))
        with record_action(self._audit, "agent.add", where, request.principal):
            return build_response(await self._source.add(body))

    @admin_route(
        REGISTRY,
        "PATCH /api/a2a/agents/{name}",
        "Change an agent: trustLevel, enabled, token, headers, pin, wire, allow_private, "
        "timeout_secs, public",
        (404,),
        "AgentChange",
    )
    async def _change(self, request: ApiRequest) -> ApiResponse:
        body = parse_object(request)
        with record_action(self._audit, "agent.change", request.names[0], request.principal):
            return build_response(await self._source.change(request.names[0], body))

    @admin_route(REGISTRY, "DELETE /api/a2a/agents/{name}", "Remove an agent and its cards", (404,))
    async def _remove(self, request: ApiRequest) -> ApiResponse:
        with record_action(self._audit, "agent.remove", request.names[0], request.principal):
            return build_response(await self._source.remove(request.names[0]))

    @admin_route(
        REGISTRY, "POST /api/a2a/agents/{name}/refetch", "Check an agent now", (404,), None
    )
    async def _refetch(self, request: ApiRequest) -> ApiResponse:
        return build_response(await self._source.refetch(request.names[0]))

    @route(
        "GET /api/a2a/agents/{name}/cards",
        "The cards it had; with n, that one and its diff to the one before it, or to the one that "
        "the parameter from names",
        (404,),
        query={"n": CARD_NUMBER, "from": CARD_NUMBER},
        right=REGISTRY,  # cards as received, quarantined or not
    )
    async def _list_cards(self, request: ApiRequest) -> ApiResponse:
        may, _ = self._visibility(request.principal)
        cards = self._source.list_cards(request.names[0], may)
        number, other = _parse_number(request, "n"), _parse_number(request, "from")
        if number is None:
            return build_response({"cards": cards, "total": len(cards)})
        return build_response(self._source.get_card(request.names[0], may, number, other))

    def _visibility(self, principal: Principal | None) -> tuple[IsAllowed, bool]:
        """Returns which agents the principal may see, and whether it is an administrator."""
        if principal is None:
            return lambda _: False, False
        may = self._hub.authorizer.decide_action
        admin = may(principal, REGISTRY).allowed
        return lambda tool: may(principal, A2A_DISCOVER, tool).allowed, admin


def _parse_number(request: ApiRequest, name: str) -> int | None:
    text = request.query.get(name)
    if text is None:
        return None
    if not (text.isascii() and text.isdigit() and len(text) <= 4):
        raise InvalidInput(f"{name} must be the number of a card, 1 for the newest")
    return int(text)
