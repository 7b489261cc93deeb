"""Token requests: the forms of each grant, and the answers of a token endpoint."""

from __future__ import annotations

import re
import time
from collections.abc import Awaitable, Callable
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from dragoman.core.errors import BadReply, ConfigError
from dragoman.core.secret_rules import Author, SecretUse
from dragoman.core.urls import render_origin
from dragoman.oauth.client.challenges import parse_scopes
from dragoman.oauth.client.client_auth import (
    ClientIdentity,
    ClientKeys,
    authenticate,
    choose_method,
)
from dragoman.oauth.client.discovery import Discovered, Discovery, ServerMetadata
from dragoman.oauth.client.exchanges import post_form
from dragoman.oauth.client.limits import OAuthLimits
from dragoman.oauth.client.records import SHARED, ResolveSecret
from dragoman.oauth.config import ACCESS_TOKEN, OAuthSettings
from dragoman.wire.http import HttpClient

TOKEN_EXCHANGE = "urn:ietf:params:oauth:grant-type:token-exchange"
JWT_BEARER_GRANT = "urn:ietf:params:oauth:grant-type:jwt-bearer"
ID_JAG = "urn:ietf:params:oauth:token-type:id-jag"
MAX_TOKEN = 16 * 1024
LONGEST_SECONDS = 10 * 365 * 86_400
_VISIBLE = re.compile(r"[\x21-\x7e]+")

FindSubject = Callable[[str], Awaitable[str]]
"""Finds the token of a holder at the identity provider."""


class IssuedToken(Struct, frozen=True):
    """A successful answer of a token endpoint."""

    access_token: str
    refresh_token: str = ""
    expires_at: float = float("inf")
    scopes: tuple[str, ...] | None = None
    """None: those that were asked for."""
    issued_type: str = ""

    def __repr__(self) -> str:
        return "<IssuedToken>"


class StoredToken(Struct, frozen=True, omit_defaults=True):
    """A holder's tokens with all that refreshing and revoking them takes. Stored encrypted."""

    access_token: str
    refresh_token: str
    expires_at: float | None
    """None: not said."""
    issued_at: float
    scopes: tuple[str, ...]
    wanted: tuple[str, ...]
    """The scopes that were asked for."""
    issuer: str
    resource: str
    token_endpoint: str
    revocation_endpoint: str
    client: ClientIdentity
    problem: str = ""
    """Why only a login can help; empty while the tokens can be used."""
    logged_in_at: float = 0.0
    """When a person has logged in; refreshed tokens keep it."""

    def __repr__(self) -> str:
        return f"<StoredToken of {render_origin(self.issuer)}>"

    def end(self, problem: str) -> StoredToken:
        """The record that only a login can replace, without the tokens."""
        return replace(self, access_token="", refresh_token="", problem=problem)

    @property
    def expiry(self) -> float:
        return float("inf") if self.expires_at is None else self.expires_at


class TokenClient:
    """Sends the token requests of one server or agent."""

    def __init__(
        self,
        name: str,
        settings: OAuthSettings,
        http: HttpClient,
        resolve_secret: ResolveSecret,
        discovery: Discovery,
        limits: OAuthLimits,
        find_subject: FindSubject | None,
    ) -> None:
        self._name = name
        self._settings = settings
        self._http = http
        self._resolve = resolve_secret
        self._discovery = discovery
        self._limits = limits
        self._find_subject = find_subject

    async def request(
        self, url: str, issuer: str, client: ClientIdentity, form: dict[str, str]
    ) -> IssuedToken:
        """Raises `EndpointRefused`, `Unreachable`, `TimedOut`, `BadReply` or `ConfigError`."""
        return read_token(await self.post(url, issuer, client, form), url)

    async def post(
        self, url: str, issuer: str, client: ClientIdentity, form: dict[str, str]
    ) -> dict[str, Any]:
        """Posts a form to an endpoint at which the client authenticates."""
        proof, headers = authenticate(client, await self._find_keys(client), issuer)
        return await post_form(self._http, url, {**form, **proof}, headers, self._limits)

    async def refresh(self, stored: StoredToken) -> IssuedToken:
        form = {
            "grant_type": "refresh_token",
            "refresh_token": stored.refresh_token,
            "resource": stored.resource,
        }
        return await self.request(stored.token_endpoint, stored.issuer, stored.client, form)

    async def obtain(
        self, found: Discovered, holder: str, scopes: tuple[str, ...]
    ) -> tuple[ClientIdentity, IssuedToken]:
        """Obtains a token without a person: by the grant of the settings."""
        settings, server = self._settings, found.server
        if not settings.client_id:
            raise ConfigError(
                f'"{self._name}": grant = "{settings.grant}" needs client_id in its oauth settings'
            )
        client = ClientIdentity(settings.client_id, choose_method(settings, server))
        form = {"resource": found.resource.resource}
        if scopes:
            form["scope"] = " ".join(scopes)
        if settings.audience:
            form["audience"] = settings.audience
        if settings.grant == "client_credentials":
            form["grant_type"] = "client_credentials"
        elif settings.grant == "token_exchange":
            form |= {
                "grant_type": TOKEN_EXCHANGE,
                "subject_token": await self._find_subject_token(holder),
                "subject_token_type": settings.identity_provider.subject_token_type,
                "requested_token_type": ACCESS_TOKEN,
            }
        elif settings.grant == "jwt_bearer":
            assertion = await self._find_subject_token(holder)
            form |= {"grant_type": JWT_BEARER_GRANT, "assertion": assertion}
        else:
            assertion = await self._obtain_assertion(found, holder, scopes)
            form |= {"grant_type": JWT_BEARER_GRANT, "assertion": assertion}
        return client, await self.request(server.token_endpoint, server.issuer, client, form)

    async def _obtain_assertion(
        self, found: Discovered, holder: str, scopes: tuple[str, ...]
    ) -> str:
        """Exchanges a token of the identity provider for an ID-JAG, which names the resource's
        authorization server as its audience."""
        provider = self._settings.identity_provider
        server = await self._find_provider()
        form = {
            "grant_type": TOKEN_EXCHANGE,
            "requested_token_type": ID_JAG,
            "audience": found.server.issuer,
            "resource": found.resource.resource,
            "subject_token": await self._find_subject_token(holder),
            "subject_token_type": provider.subject_token_type,
        }
        if scopes:
            form["scope"] = " ".join(scopes)
        secret = provider.client_secret
        settings = OAuthSettings(client_id=provider.client_id, client_secret=secret)
        client = ClientIdentity(provider.client_id, choose_method(settings, server))
        keys = ClientKeys(secret=await self._resolve_one(secret)) if secret else ClientKeys()
        proof, headers = authenticate(client, keys, server.issuer)
        if not provider.client_id:
            proof = {}
        answer = await post_form(
            self._http, server.token_endpoint, {**form, **proof}, headers, self._limits
        )
        if answer.get("issued_token_type") != ID_JAG:
            raise BadReply(
                f'the identity provider "{render_origin(server.token_endpoint)}" issued no ID-JAG'
            )
        answer.setdefault("token_type", "N_A")
        return read_token(answer, server.token_endpoint, kinds=("n_a",)).access_token

    async def _find_provider(self) -> ServerMetadata:
        provider = self._settings.identity_provider
        if provider.token_endpoint:
            url = self._discovery.check(provider.token_endpoint, "the identity provider at")
            return ServerMetadata(provider.issuer or url, token_endpoint=url)
        if not provider.issuer:
            raise ConfigError(
                f'"{self._name}": grant = "id_jag" needs the issuer or token_endpoint of '
                "identity_provider in its oauth settings"
            )
        return await self._discovery.find_server(provider.issuer)

    async def _find_subject_token(self, holder: str) -> str:
        if self._find_subject is not None:
            return await self._find_subject(holder)
        reference = self._settings.identity_provider.subject_token
        if holder != SHARED:
            # One configured token would let every user act as its owner.
            raise ConfigError(
                f'"{self._name}": grant = "{self._settings.grant}" has one token for all callers, '
                'so it needs credentials = "shared"'
            )
        if not reference:
            raise ConfigError(
                f'"{self._name}": grant = "{self._settings.grant}" needs subject_token of '
                "identity_provider in its oauth settings"
            )
        return await self._resolve_one(reference)

    async def _find_keys(self, client: ClientIdentity) -> ClientKeys:
        if client.source != "configured":
            return ClientKeys(secret=client.secret)
        settings = self._settings
        if client.method == "private_key_jwt":
            key = await self._resolve_one(settings.private_key)
            return ClientKeys("", key, settings.private_key_alg, settings.private_key_id)
        if client.method == "none":
            return ClientKeys()
        return ClientKeys(secret=await self._resolve_one(settings.client_secret))

    async def _resolve_one(self, reference: str) -> str:
        return await self._resolve(reference, SecretUse(Author.OWNER, self._name))


def read_token(
    answer: dict[str, Any], url: str, kinds: tuple[str, ...] = ("bearer",)
) -> IssuedToken:
    """Reads the answer of a token endpoint (RFC 6749, section 5.1)."""
    value: Any = answer.get("access_token")
    refresh: Any = answer.get("refresh_token")
    kind, scope = answer.get("token_type", "bearer"), answer.get("scope")
    origin = render_origin(url)
    if not _is_token(value) or not (refresh in (None, "") or _is_token(refresh)):
        raise BadReply(f'"{origin}" sent no valid access token')
    if not isinstance(kind, str) or kind.lower() not in kinds:
        raise BadReply(f'"{origin}" sent a token of a kind that is not supported')
    return IssuedToken(
        value,
        refresh or "",
        _read_expiry(answer.get("expires_in")),
        parse_scopes(scope) if isinstance(scope, str) and scope.strip() else None,
    )


def _is_token(value: object) -> bool:
    return isinstance(value, str) and len(value) <= MAX_TOKEN and bool(_VISIBLE.fullmatch(value))


def _read_expiry(value: object) -> float:
    """Some servers send a string; what is not a sensible number counts as not said."""
    try:
        seconds = float(value) if isinstance(value, int | float | str) else float("inf")
    except ValueError:
        return float("inf")
    return time.time() + seconds if 0 <= seconds <= LONGEST_SECONDS else float("inf")


def build_token(
    server: ServerMetadata,
    resource: str,
    client: ClientIdentity,
    issued: IssuedToken,
    wanted: tuple[str, ...],
) -> StoredToken:
    """Builds the record of tokens that were just issued."""
    return StoredToken(
        issued.access_token,
        issued.refresh_token,
        finite_expiry(issued.expires_at),
        time.time(),
        wanted if issued.scopes is None else issued.scopes,
        wanted,
        server.issuer,
        resource,
        server.token_endpoint,
        server.revocation_endpoint,
        client,
    )


def finite_expiry(at: float) -> float | None:
    """JSON has no infinity."""
    return None if at == float("inf") else at
