"""The hub's own authorization server: routes requests to its endpoints, their outer boundary.

For teams without an identity provider: users of `dragoman users` sign in with a browser, and MCP
clients that only speak OAuth connect by the hub's URL.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from dragoman.core.cluster import Ownership
from dragoman.core.errors import HubError, InvalidInput, RateLimited
from dragoman.core.principal import Principal
from dragoman.core.users import UserGrants, Users
from dragoman.oauth.authority import pages, passkeys
from dragoman.oauth.authority.attempts import Attempts
from dragoman.oauth.authority.authorize import AuthorizationEndpoint
from dragoman.oauth.authority.client_documents import ClientDocuments
from dragoman.oauth.authority.config import AuthServerSettings
from dragoman.oauth.authority.oidc import OidcSignIn, ResolveSecret
from dragoman.oauth.authority.passwords import PasswordChecker
from dragoman.oauth.authority.protocol import NO_SNIFF, FindBase, OAuthError, reply_json
from dragoman.oauth.authority.sign_in import Browsers, SignIn, reply_page
from dragoman.oauth.authority.token_endpoint import TokenEndpoint, reply_error
from dragoman.wire.http import HttpClient, HttpRequest, build_retry_after

log = logging.getLogger(__name__)

METADATA = ("/.well-known/oauth-authorization-server", "/.well-known/openid-configuration")
"""The second is where clients look that try OpenID Connect first."""
FOR_CLIENTS = ("/oauth/token", "/oauth/register", "/oauth/revoke")
FOR_BROWSERS = (
    "/oauth/authorize",
    "/oauth/login",
    "/oauth/logout",
    "/oauth/account",
    "/oauth/enroll",
    "/oauth/passkeys",
    "/oauth/passkeys.js",
)
FOR_OIDC = ("/oauth/oidc/start", "/oauth/oidc/callback")
_GET_ONLY = frozenset({*METADATA, *FOR_OIDC, "/oauth/passkeys.js"})
_POST_ONLY = frozenset({*FOR_CLIENTS, "/oauth/passkeys"})


@dataclass(frozen=True, slots=True)
class AuthorityPorts:
    """What the authorization server needs of the rest of the hub."""

    users: Users
    grants: UserGrants
    browsers: Browsers
    find_base: FindBase
    public_http: HttpClient
    """For metadata documents of clients: reaches public addresses only."""
    oidc_http: HttpClient | None
    """For the identity provider of the configuration."""
    resolve_secret: ResolveSecret
    note_failed: Callable[[str], None]
    """Gets the address of a failed sign-in."""
    key: bytes
    """Seals what browsers bring back; several hubs share it."""
    ownership: Ownership


class AuthorizationServer:
    def __init__(
        self,
        settings: AuthServerSettings,
        ports: AuthorityPorts,
        scopes: tuple[str, ...] = ("call",),
        attempts: Attempts | None = None,
    ) -> None:
        """`scopes` are those that new users have. Raises `ConfigError` if the extra is not
        installed."""
        self._ports = ports
        attempts = attempts or Attempts()
        keys = passkeys.Passkeys(ports.users, ports.find_base, ports.key)
        provider = settings.oidc.name if settings.oidc is not None else ""
        sign_in = SignIn(
            ports.users, ports.grants, ports.browsers, attempts, PasswordChecker(), keys,
            provider, ports.note_failed,
        )  # fmt: skip
        self._sign_in = sign_in
        self._tokens = TokenEndpoint(settings, ports.grants, attempts, ports.find_base, scopes)
        self._authorization = AuthorizationEndpoint(
            settings,
            ports.grants,
            ports.browsers,
            sign_in,
            ClientDocuments(ports.public_http, settings),
            attempts,
            ports.find_base,
            self._tokens.find_registered,
        )
        self._oidc: OidcSignIn | None = None
        if settings.oidc is not None and ports.oidc_http is not None:
            self._oidc = OidcSignIn(
                settings.oidc, ports.users, ports.browsers, sign_in, ports.oidc_http,
                ports.resolve_secret, ports.find_base, ports.note_failed, scopes,
                ports.ownership,
            )  # fmt: skip
        self.paths: tuple[str, ...] = (*METADATA, *FOR_CLIENTS, *FOR_BROWSERS)
        """The paths that it serves, all without a key."""
        if self._oidc is not None:
            self.paths += FOR_OIDC
        self._is_loaded = False

    async def serve(self, request: HttpRequest, principal: Principal | None) -> None:
        path = request.path
        allowed = _list_methods(path)
        if request.method not in allowed:
            header = (b"allow", ", ".join(allowed).encode())
            message = f"use {' or '.join(allowed)}"
            body = {"error": "invalid_request", "error_description": message}
            return reply_json(request, 405, body, header)
        try:
            await self._route(request)
        except OAuthError as error:
            if path in FOR_CLIENTS:
                return reply_error(request, error)
            reply_page(request, pages.render_problem(error.status, f"{error}."))
        except HubError as error:
            self._reply_failure(request, error)
        except Exception:
            log.exception("%s %s failed", request.method, path)
            self._reply_failure(request, None)

    async def _route(self, request: HttpRequest) -> None:
        path, address = request.path, request.address
        if path in METADATA:
            return reply_json(request, 200, self._tokens.describe())
        if path == "/oauth/token":
            return self._tokens.exchange(request)
        if path == "/oauth/register":
            return self._tokens.register(request, address)
        if path == "/oauth/revoke":
            return self._tokens.revoke(request)
        if path == "/oauth/passkeys.js":
            kind = (b"content-type", b"text/javascript; charset=utf-8")
            return request.reply(200, [kind, NO_SNIFF], passkeys.SCRIPT.encode())
        return await self._route_page(request, address)

    async def _route_page(self, request: HttpRequest, address: str) -> None:
        path = request.path
        if not self._is_loaded:  # takes a third of a second
            await asyncio.to_thread(passkeys.load_library)
            self._is_loaded = True
        if path == "/oauth/authorize":
            return await self._authorization.serve(request)
        if path == "/oauth/login":
            return await self._sign_in.serve_login(request, address)
        if path == "/oauth/logout":
            return self._sign_in.serve_logout(request)
        if path == "/oauth/account":
            return self._sign_in.serve_account(request)
        if path == "/oauth/enroll":
            return await self._sign_in.serve_enrolment(request)
        if path == "/oauth/passkeys":
            return self._sign_in.serve_passkey(request, address)
        if self._oidc is not None and path == "/oauth/oidc/start":
            return await self._oidc.start(request)
        if self._oidc is not None and path == "/oauth/oidc/callback":
            return await self._oidc.finish(request, address)
        raise OAuthError("invalid_request", "there is no such page", 404)

    def _reply_failure(self, request: HttpRequest, error: HubError | None) -> None:
        """Sends a failure of the hub in the form that the client of the path reads."""
        status, message = 503, str(error) if error is not None else "internal error"
        if isinstance(error, RateLimited):
            status = 429
        elif isinstance(error, InvalidInput):
            status = 400
        elif error is None:
            status = 500
        if request.path not in FOR_CLIENTS and request.path not in METADATA:
            return reply_page(request, pages.render_problem(status, f"{message}."))
        codes = {400: "invalid_request", 500: "server_error"}
        body = {
            "error": codes.get(status, "temporarily_unavailable"),
            "error_description": message,
        }
        more = [build_retry_after(error.retry_after)] if isinstance(error, RateLimited) else []
        return reply_json(request, status, body, *more)


def _list_methods(path: str) -> Sequence[str]:
    if path in _POST_ONLY:
        return ("POST",)
    return ("GET", "HEAD") if path in _GET_ONLY else ("GET", "HEAD", "POST")
