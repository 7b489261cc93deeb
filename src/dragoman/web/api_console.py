"""`/api/console` and `/api/session`: login links and sessions of the console, and who is asking."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote, urlsplit

from dragoman import __version__
from dragoman.core.access import SESSION
from dragoman.core.errors import AuthorizationError, InvalidInput
from dragoman.core.hub import Hub
from dragoman.core.logs import render_time
from dragoman.core.principal import OWNER
from dragoman.core.scopes import ADMIN, ADMIN_RIGHTS, USERS
from dragoman.web.api import ApiRequest, ApiResponse, build_response, parse_object
from dragoman.web.console.gate import ConsoleGate
from dragoman.web.http.sockets import is_loopback
from dragoman.web.openapi import admin_route, route


@dataclass(frozen=True, slots=True)
class ConsoleApi:
    _hub: Hub
    _console: ConsoleGate
    _find_base: Callable[[], str]

    @route(
        "POST /api/console/link",
        "A link that opens the console once, within a minute; with local, only in a browser of the "
        "hub's own user. Only over the hub's Unix socket",
        (403,),
        "ConsoleLink",
    )
    async def _create_link(self, request: ApiRequest) -> ApiResponse:
        caller = request.caller
        # A session must not make others that outlive it.
        if caller.kind != OWNER.kind or caller.credential:
            raise AuthorizationError(
                f'"{caller.label}" may not open the console for the owner: run dragoman console on '
                "the machine of the hub"
            )
        is_local = parse_object(request).get("local", False)
        if not isinstance(is_local, bool):
            raise InvalidInput('"local" must be true or false')
        sessions, base = self._console.site.sessions, self._find_base()
        # Behind a proxy, all requests come from the proxy.
        is_local = is_local and is_loopback(urlsplit(base).hostname or "")
        url = f"{base}/console/login?code={quote(sessions.create_link(is_local=is_local))}"
        return build_response({"url": url, "expires_in": sessions.limits.link_secs})

    @admin_route(USERS, "GET /api/console/sessions", "The sessions of the console")
    async def _list_sessions(self, request: ApiRequest) -> ApiResponse:
        sessions = self._console.site.sessions
        found = [
            {
                "id": one.principal.credential.removeprefix(SESSION),
                "principal": one.principal.label,
                "created_at": render_time(one.created_at),
                "used_at": render_time(one.used_at),
                "expires_at": render_time(sessions.find_end(one)),
                "current": one.principal.credential == request.caller.credential,
            }
            for one in sessions.list_sessions()
        ]
        return build_response({"sessions": found, "total": len(found)})

    @admin_route(USERS, "DELETE /api/console/sessions", "End all sessions of the console")
    async def _end_sessions(self, request: ApiRequest) -> ApiResponse:
        return build_response({"ended": self._console.site.sessions.close_all()})

    @route("GET /api/session", "Who the caller is, and what the caller may do", right="")
    async def _get_session(self, request: ApiRequest) -> ApiResponse:
        caller, may = request.caller, self._hub.authorizer.decide_action
        found: dict[str, Any] = {
            "principal": caller.label,
            "kind": caller.kind,
            "org": caller.org,
            "roles": list(caller.roles),
            "admin": may(caller, ADMIN).allowed,
            "rights": [right for right in ADMIN_RIGHTS if may(caller, right).allowed],
            "scopes": list(caller.scopes),
            "version": __version__,
        }
        if caller.credential.startswith(SESSION):
            sessions = self._console.site.sessions
            session = sessions.find_by_credential(caller.credential)
            if session is not None:
                found["expires_at"] = render_time(sessions.find_end(session))
        return build_response(found)
