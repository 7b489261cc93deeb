"""An authorization server made of the MCP SDK's parts, with a consent page."""

from __future__ import annotations

import secrets
import time
from typing import Any

from mcp.server.auth.provider import (
    AccessToken,
    AuthorizationCode,
    AuthorizationParams,
    RefreshToken,
    construct_redirect_uri,
)
from mcp.server.auth.routes import create_auth_routes
from mcp.server.auth.settings import ClientRegistrationOptions, RevocationOptions
from mcp.shared.auth import OAuthClientInformationFull, OAuthToken
from pydantic import AnyHttpUrl
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import HTMLResponse, RedirectResponse, Response
from starlette.routing import Route


class SdkAuthority:
    """Implements the SDK's `OAuthAuthorizationServerProvider` in memory."""

    def __init__(self, base: str, *, lifetime: int = 3600) -> None:
        self.base = base
        self.issuer = f"{base}/"  # as pydantic renders a URL without a path
        self.lifetime = lifetime
        self.clients: dict[str, OAuthClientInformationFull] = {}
        self.codes: dict[str, AuthorizationCode] = {}
        self.access: dict[str, AccessToken] = {}
        self.refresh: dict[str, RefreshToken] = {}
        self.waiting: dict[str, tuple[OAuthClientInformationFull, AuthorizationParams]] = {}
        self.authorized: list[AuthorizationParams] = []
        self.refreshes = 0
        self.revoked: list[str] = []

    @property
    def app(self) -> Starlette:
        registration = ClientRegistrationOptions(
            enabled=True, valid_scopes=["read", "write"], default_scopes=["read"]
        )
        routes = create_auth_routes(
            self,
            AnyHttpUrl(self.issuer),
            client_registration_options=registration,
            revocation_options=RevocationOptions(enabled=True),
        )
        consent = Route("/consent/{id}", self._consent, methods=["GET", "POST"])
        return Starlette(routes=[*routes, consent])

    def find(self, token: str) -> dict[str, Any] | None:
        found = self.access.get(token)
        if found is None:
            return None
        active = found.expires_at is None or found.expires_at > time.time()
        return {"scopes": found.scopes, "resource": found.resource, "active": active}

    def expire(self) -> None:
        """Lets all access tokens expire."""
        self.access.clear()

    async def _consent(self, request: Request) -> Response:
        client, params = self.waiting[request.path_params["id"]]
        if request.method == "GET":
            return HTMLResponse("<form method=post><button name=decision>approve</button></form>")
        form = await request.form()
        redirect = str(params.redirect_uri)
        if form["decision"] != "approve":
            url = construct_redirect_uri(redirect, error="access_denied", state=params.state)
            return RedirectResponse(url, 302)
        code = AuthorizationCode(
            code=secrets.token_urlsafe(32),
            scopes=params.scopes or [],
            expires_at=time.time() + 60,
            client_id=client.client_id or "",
            code_challenge=params.code_challenge,
            redirect_uri=params.redirect_uri,
            redirect_uri_provided_explicitly=params.redirect_uri_provided_explicitly,
            resource=params.resource,
        )
        self.codes[code.code] = code
        url = construct_redirect_uri(redirect, code=code.code, state=params.state)
        return RedirectResponse(url, 302)

    def _issue(self, client_id: str, scopes: list[str], resource: str | None) -> OAuthToken:
        access, refresh = f"at-{secrets.token_urlsafe(32)}", f"rt-{secrets.token_urlsafe(32)}"
        self.access[access] = AccessToken(
            token=access,
            client_id=client_id,
            scopes=scopes,
            expires_at=int(time.time()) + self.lifetime,
            resource=resource,
        )
        self.refresh[refresh] = RefreshToken(
            token=refresh, client_id=client_id, scopes=scopes, resource=resource
        )
        return OAuthToken(
            access_token=access,
            refresh_token=refresh,
            expires_in=self.lifetime,
            scope=" ".join(scopes),
        )

    # --- the SDK's interface ---------------------------------------------------------------------

    async def get_client(self, client_id: str) -> OAuthClientInformationFull | None:
        return self.clients.get(client_id)

    async def register_client(self, client_info: OAuthClientInformationFull) -> None:
        self.clients[client_info.client_id or ""] = client_info

    async def authorize(
        self, client: OAuthClientInformationFull, params: AuthorizationParams
    ) -> str:
        id = secrets.token_urlsafe(8)
        self.waiting[id] = (client, params)
        self.authorized.append(params)
        return f"{self.base}/consent/{id}"

    async def load_authorization_code(
        self, client: OAuthClientInformationFull, authorization_code: str
    ) -> AuthorizationCode | None:
        return self.codes.get(authorization_code)

    async def exchange_authorization_code(
        self, client: OAuthClientInformationFull, authorization_code: AuthorizationCode
    ) -> OAuthToken:
        code = self.codes.pop(authorization_code.code)
        return self._issue(client.client_id or "", code.scopes, code.resource)

    async def load_refresh_token(
        self, client: OAuthClientInformationFull, refresh_token: str
    ) -> RefreshToken | None:
        return self.refresh.get(refresh_token)

    async def exchange_refresh_token(
        self, client: OAuthClientInformationFull, refresh_token: RefreshToken, scopes: list[str]
    ) -> OAuthToken:
        self.refreshes += 1
        del self.refresh[refresh_token.token]
        return self._issue(client.client_id or "", scopes, refresh_token.resource)

    async def load_access_token(self, token: str) -> AccessToken | None:
        return self.access.get(token)

    async def revoke_token(self, token: AccessToken | RefreshToken) -> None:
        self.revoked.append(token.token)
        self.access.pop(token.token, None)
        self.refresh.pop(token.token, None)

    async def exchange_identity_assertion(self, client: Any, params: Any) -> OAuthToken:
        raise NotImplementedError
