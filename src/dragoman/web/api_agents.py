"""`/api/a2a/agents`: the agents of others that the hub knows. To change something needs `admin`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Protocol

from dragoman.core.admin_audit import recorded
from dragoman.core.errors import InvalidInput, NotFound
from dragoman.core.hub import Hub
from dragoman.core.ports import A2A_DISCOVER, ADMIN, AuditLog
from dragoman.core.principal import Principal
from dragoman.core.tool import Tool
from dragoman.core.urls import render_origin
from dragoman.web.api import Request, Response, Route, demand_admin, object_in, ok

May = Callable[[Tool], bool]


class AgentSource(Protocol):
    """What is asked here; a key is an id, a slug or a name. Answers are plain JSON objects."""

    def all(self, may: May, *, secret: bool) -> list[dict[str, Any]]:
        """Those that `may` says yes to; `secret` has by which references they are trusted, and
        their cards as they came, which may be held."""

    def one(self, key: str, may: May, *, secret: bool) -> dict[str, Any]: ...

    async def add(self, body: Mapping[str, Any]) -> dict[str, Any]: ...

    async def change(self, key: str, body: Mapping[str, Any]) -> dict[str, Any]: ...

    async def remove(self, key: str) -> dict[str, Any]: ...

    async def refetch(self, key: str) -> dict[str, Any]: ...

    def cards(self, key: str, may: May) -> list[dict[str, Any]]: ...

    def card(self, key: str, may: May, number: int, other: int | None) -> dict[str, Any]: ...


_AGENTS, _AGENT = "/api/a2a/agents", "/api/a2a/agents/{name}"
OPERATIONS: list[tuple[Any, ...]] = [
    (_AGENTS, "get", "The agents of others, and how they are", "Object", [404]),
    (
        _AGENTS,
        "post",
        "Register an agent: url, and name, token (env:NAME or file:tokens/NAME), headers "
        "(${NAME}), "
        "trust, pin, wire, allow_private, timeout_secs, public",
        "Object",
        [400, 403, 404, 409, 503],
        "Object",
    ),
    (_AGENT, "get", "One agent by id, slug or name, with its card", "Object", [404]),
    (
        _AGENT,
        "patch",
        "Change an agent: trustLevel, enabled, token, headers, pin, wire, allow_private, "
        "timeout_secs, public",
        "Object",
        [400, 403, 404],
        "Object",
    ),
    (_AGENT, "delete", "Forget an agent and its cards", "Object", [400, 403, 404]),
    (f"{_AGENT}/refetch", "post", "Look at an agent now", "Object", [403, 404], "Object"),
    (
        f"{_AGENT}/cards",
        "get",
        "The cards it has had; with n, that one and how it differs from the one before it, or from "
        "the one that the parameter from names",
        "Object",
        [400, 403, 404],
    ),
]


class AgentsApi:
    def __init__(self, hub: Hub, source: AgentSource | None, audit: AuditLog) -> None:
        """`source` is None where agents are not looked for at all."""
        self._hub = hub
        self._source = source
        self._audit = audit
        one = r"/api/a2a/agents/([^/]+)"
        self.routes: list[Route] = [
            ("GET", r"/api/a2a/agents", self._all),
            ("POST", r"/api/a2a/agents", self._add),
            ("GET", one, self._one),
            ("PATCH", one, self._change),
            ("DELETE", one, self._remove),
            ("POST", rf"{one}/refetch", self._refetch),
            ("GET", rf"{one}/cards", self._cards),
        ]

    async def _all(self, request: Request) -> Response:
        may, secret = self._known(request.principal)
        agents = self._there().all(may, secret=secret)
        return ok({"agents": agents, "total": len(agents)})

    async def _one(self, request: Request) -> Response:
        may, secret = self._known(request.principal)
        return ok(self._there().one(request.names[0], may, secret=secret))

    async def _add(self, request: Request) -> Response:
        demand_admin(self._hub, request.principal)
        body = object_in(request)
        where = render_origin(str(body.get("url", "")))
        with recorded(self._audit, "agent.add", where, request.principal):
            return ok(await self._there().add(body))

    async def _change(self, request: Request) -> Response:
        demand_admin(self._hub, request.principal)
        body = object_in(request)
        with recorded(self._audit, "agent.change", request.names[0], request.principal):
            return ok(await self._there().change(request.names[0], body))

    async def _remove(self, request: Request) -> Response:
        demand_admin(self._hub, request.principal)
        with recorded(self._audit, "agent.remove", request.names[0], request.principal):
            return ok(await self._there().remove(request.names[0]))

    async def _refetch(self, request: Request) -> Response:
        demand_admin(self._hub, request.principal)
        return ok(await self._there().refetch(request.names[0]))

    async def _cards(self, request: Request) -> Response:
        may, _ = self._known(request.principal)
        cards = self._there().cards(request.names[0], may)
        demand_admin(self._hub, request.principal)  # they are as they came, held or not
        number, other = _number(request, "n"), _number(request, "from")
        if number is None:
            return ok({"cards": cards, "total": len(cards)})
        return ok(self._there().card(request.names[0], may, number, other))

    def _there(self) -> AgentSource:
        if self._source is None:
            raise NotFound("A2A is not enabled here: set enabled = true under [a2a] in config.toml")
        return self._source

    def _known(self, principal: Principal | None) -> tuple[May, bool]:
        """Which agents this caller may know of, and whether it runs the hub."""
        if principal is None:
            return lambda _: False, False
        may = self._hub.authorizer.may
        admin = may(principal, ADMIN).allowed
        return lambda tool: may(principal, A2A_DISCOVER, tool).allowed, admin


def _number(request: Request, name: str) -> int | None:
    text = request.query.get(name)
    if text is None:
        return None
    if not (text.isascii() and text.isdigit() and len(text) <= 4):
        raise InvalidInput(f"{name} is the number of a card, 1 for the newest")
    return int(text)
