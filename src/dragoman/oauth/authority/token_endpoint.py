"""The endpoints that clients call themselves: token, registration, revocation and metadata."""

from __future__ import annotations

import hashlib
import hmac
import secrets
from typing import Any

from dragoman.core.errors import RateLimited
from dragoman.core.users import IssuedTokens, UserGrants
from dragoman.oauth.authority.attempts import Attempts
from dragoman.oauth.authority.client_documents import is_document_url
from dragoman.oauth.authority.clients import (
    AUTH_METHODS,
    InvalidClient,
    OAuthClient,
    parse_metadata,
)
from dragoman.oauth.authority.config import AuthServerSettings
from dragoman.oauth.authority.protocol import (
    MAX_BODY,
    FindBase,
    OAuthError,
    is_right_verifier,
    parse_form,
    read_basic,
    reply_json,
    resolve_resource,
)
from dragoman.wire.http import HttpRequest, build_retry_after
from dragoman.wire.json import Malformed, decode

_BASIC = (b"www-authenticate", b'Basic realm="dragoman"')


class TokenEndpoint:
    def __init__(
        self,
        settings: AuthServerSettings,
        grants: UserGrants,
        attempts: Attempts,
        find_base: FindBase,
        scopes: tuple[str, ...],
    ) -> None:
        """`scopes` are those that the metadata lists."""
        self._settings = settings
        self._grants = grants
        self._attempts = attempts
        self._find_base = find_base
        self._scopes = scopes

    # --- metadata --------------------------------------------------------------------------------

    def describe(self) -> dict[str, Any]:
        """Builds the metadata of RFC 8414."""
        base, settings = self._find_base(), self._settings
        found: dict[str, Any] = {
            "issuer": base,
            "authorization_endpoint": f"{base}/oauth/authorize",
            "token_endpoint": f"{base}/oauth/token",
            "revocation_endpoint": f"{base}/oauth/revoke",
            "scopes_supported": list(self._scopes),
            "response_types_supported": ["code"],
            "response_modes_supported": ["query"],
            "grant_types_supported": ["authorization_code", "refresh_token"],
            "token_endpoint_auth_methods_supported": list(AUTH_METHODS),
            "revocation_endpoint_auth_methods_supported": list(AUTH_METHODS),
            "code_challenge_methods_supported": ["S256"],
            "client_id_metadata_document_supported": settings.allow_client_documents,
            "authorization_response_iss_parameter_supported": True,
        }
        if settings.allow_registration:
            found["registration_endpoint"] = f"{base}/oauth/register"
        return found

    # --- registration (RFC 7591) -----------------------------------------------------------------

    def register(self, request: HttpRequest, address: str) -> None:
        if not self._settings.allow_registration:
            raise OAuthError("access_denied", "clients cannot register themselves here", 403)
        self._attempts.take_registration(address)
        kind = request.fields.get(b"content-type", b"").partition(b";")[0].strip().lower()
        if kind != b"application/json" or len(request.body) > MAX_BODY:
            raise OAuthError("invalid_client_metadata", "send application/json of at most 32 KB")
        try:
            raw = decode(request.body)
        except Malformed as error:
            raise OAuthError("invalid_client_metadata", str(error)) from None
        if not isinstance(raw, dict):
            raise OAuthError("invalid_client_metadata", "the metadata must be an object")
        try:
            metadata = parse_metadata(raw, self._settings)
        except InvalidClient as problem:
            raise OAuthError(problem.error, str(problem)) from None
        secret = "" if metadata.auth_method == "none" else secrets.token_urlsafe(32)
        kept = {
            "client_name": metadata.name,
            "redirect_uris": list(metadata.redirect_uris),
            "token_endpoint_auth_method": metadata.auth_method,
        }
        record = self._grants.register_client(kept, secret)
        answer: dict[str, Any] = {
            "client_id": record.id,
            "client_id_issued_at": int(record.created_at),
            **kept,
            "grant_types": ["authorization_code", "refresh_token"],
            "response_types": ["code"],
        }
        if isinstance(scope := raw.get("scope"), str):
            answer["scope"] = scope[:1_000]
        if secret:
            answer |= {"client_secret": secret, "client_secret_expires_at": 0}
        reply_json(request, 201, answer)

    # --- tokens ----------------------------------------------------------------------------------

    def exchange(self, request: HttpRequest) -> None:
        form = parse_form(request)
        client = self._authenticate(request, form)
        grant_type = form.get("grant_type")
        if grant_type == "authorization_code":
            issued = self._redeem(form, client)
        elif grant_type == "refresh_token":
            issued = self._refresh(form, client)
        else:
            raise OAuthError("unsupported_grant_type", "use authorization_code or refresh_token")
        answer = {
            "access_token": issued.access,
            "token_type": "Bearer",
            "expires_in": int(self._settings.access_minutes * 60),
            "refresh_token": issued.refresh,
            "scope": " ".join(issued.grant.scopes),
        }
        reply_json(request, 200, answer, (b"pragma", b"no-cache"))

    def _redeem(self, form: dict[str, str], client: OAuthClient) -> IssuedTokens:
        """Checks nothing before the code is used up: there is one try."""
        taken = self._grants.take_code(form.get("code", ""))
        error, problem = "invalid_grant", ""
        if taken is None:
            raise OAuthError("invalid_grant", "the code is unknown, expired or was used")
        if taken.grant.client != client.id:
            problem = "the code is another client's"
        elif form.get("redirect_uri") != taken.redirect_uri:
            problem = "redirect_uri is not that of the authorization request"
        elif not is_right_verifier(form.get("code_verifier", ""), taken.challenge):
            problem = "code_verifier does not match the code_challenge"
        elif not self._is_same_resource(form.get("resource", ""), taken.grant.resource):
            error, problem = "invalid_target", "the resource is not that of the authorization"
        if problem:
            self._grants.revoke(taken.grant.id, problem)
            raise OAuthError(error, problem)
        return self._grants.issue_tokens(taken.grant, *self._find_lifetimes())

    def _refresh(self, form: dict[str, str], client: OAuthClient) -> IssuedTokens:
        resolve_resource(form.get("resource", ""), self._find_base())
        token = form.get("refresh_token", "")
        issued = self._grants.rotate(token, client.id, *self._find_lifetimes())
        if issued is None:
            raise OAuthError("invalid_grant", "the refresh token is unknown, expired or was used")
        return issued

    def _is_same_resource(self, given: str, bound: str) -> bool:
        """Whether a client that repeats the resource means that of the authorization."""
        return not given or given.rstrip("/") == bound.rstrip("/")

    def _find_lifetimes(self) -> tuple[float, float]:
        return self._settings.access_minutes * 60, self._settings.refresh_days * 86_400

    def revoke(self, request: HttpRequest) -> None:
        """RFC 7009: an unknown token is no error."""
        form = parse_form(request)
        client = self._authenticate(request, form)
        self._grants.revoke_token(form.get("token", ""), client.id)
        reply_json(request, 200, {})

    # --- clients ---------------------------------------------------------------------------------

    def _authenticate(self, request: HttpRequest, form: dict[str, str]) -> OAuthClient:
        basic = read_basic(request)
        id, secret = basic if basic is not None else (form.get("client_id", ""), "")
        if basic is None:
            secret = form.get("client_secret", "")
        elif form.get("client_id", id) != id or "client_secret" in form:
            raise OAuthError("invalid_request", "send the client's credentials once")
        if not id:
            raise OAuthError("invalid_client", "client_id is missing", 401)
        client = self.find_registered(id)
        if client is None:
            # A document need not be fetched again: codes and tokens belong to their client's id.
            if self._settings.allow_client_documents and is_document_url(id) and not secret:
                return OAuthClient(id, "", ())
            raise OAuthError("invalid_client", "unknown client; register again", 401)
        hashed = hashlib.sha256(secret.encode("utf-8", "replace")).digest() if secret else b""
        if not hmac.compare_digest(hashed, client.secret):
            raise OAuthError("invalid_client", "the client's secret is missing or wrong", 401)
        return client

    def find_registered(self, id: str) -> OAuthClient | None:
        record = self._grants.find_client(id)
        if record is None:
            return None
        kept = record.metadata
        return OAuthClient(
            record.id,
            kept["client_name"],
            tuple(kept["redirect_uris"]),
            kept["token_endpoint_auth_method"],
            record.secret,
        )


def reply_error(request: HttpRequest, error: OAuthError | RateLimited) -> None:
    """Sends an error of RFC 6749, section 5.2."""
    if isinstance(error, RateLimited):
        body = {"error": "temporarily_unavailable", "error_description": str(error)}
        return reply_json(request, 429, body, build_retry_after(error.retry_after))
    headers = [_BASIC] if error.status == 401 else []
    body = {"error": error.error, "error_description": str(error)}
    return reply_json(request, error.status, body, *headers)
