"""Obtains the hub's client id at an authorization server, in the order of the MCP specification: a
client that the operator registered, the hub's metadata document, dynamic registration (RFC 7591).
"""

from __future__ import annotations

import asyncio
import time
from typing import Any
from urllib.parse import urlsplit

import msgspec

from dragoman.core.errors import BadReply, Declined
from dragoman.core.ports import CredentialId, CredentialStore
from dragoman.core.urls import render_origin
from dragoman.oauth.client.challenges import join_scopes
from dragoman.oauth.client.client_auth import (
    ClientIdentity,
    choose_method,
    choose_registered_method,
)
from dragoman.oauth.client.discovery import Discovered, ServerMetadata
from dragoman.oauth.client.exchanges import EndpointRefused, post_json
from dragoman.oauth.client.limits import OAuthLimits
from dragoman.oauth.client.urls import LOOPBACK
from dragoman.oauth.config import OAuthSettings
from dragoman.wire.http import HttpClient
from dragoman.wire.json import encode

CLIENT_NAME = "Dragoman"
DEVICE_CODE = "urn:ietf:params:oauth:grant-type:device_code"
UNKNOWN_CLIENT = frozenset(("invalid_client", "unauthorized_client"))
"""Errors of an authorization server that does not know the client any more."""
_METHODS = ("none", "client_secret_basic", "client_secret_post")


def build_client_document(client_id: str, redirect_uri: str) -> dict[str, object]:
    """Builds the hub's client metadata document, which it serves at the URL `client_id`."""
    return {
        "client_id": client_id,
        "client_name": CLIENT_NAME,
        "client_uri": f"https://{urlsplit(client_id).netloc}/",
        "redirect_uris": [redirect_uri],
        "grant_types": ["authorization_code", "refresh_token", DEVICE_CODE],
        "response_types": ["code"],
        "token_endpoint_auth_method": "none",
        "application_type": "web",
    }


def can_use_document(url: str) -> bool:
    """Whether a client may be named by that URL: https, a path, and not this machine."""
    parts = urlsplit(url)
    has_path = parts.path not in ("", "/")
    return parts.scheme == "https" and has_path and (parts.hostname or "") not in LOOPBACK


class ClientRegistration:
    """The clients of one server or agent; dynamically registered ones are kept per issuer."""

    def __init__(
        self,
        name: str,
        settings: OAuthSettings,
        http: HttpClient,
        store: CredentialStore,
        limits: OAuthLimits,
    ) -> None:
        self._name = name
        self._settings = settings
        self._http = http
        self._store = store
        self._limits = limits
        self._lock = asyncio.Lock()
        self._unanswered: set[str] = set()
        """Registered clients whose last login has not returned: an authorization server that has
        forgotten a client shows an error page and redirects nowhere."""

    async def find_client(
        self,
        found: Discovered,
        redirect_uri: str,
        document_url: str,
        scopes: tuple[str, ...],
    ) -> ClientIdentity:
        """Finds or registers a client for a login that asks for `scopes`."""
        settings, server = self._settings, found.server
        if settings.client_id:
            self.check_issuer(server.issuer)
            return ClientIdentity(settings.client_id, choose_method(settings, server))
        if server.reads_client_documents and can_use_document(document_url):
            return ClientIdentity(document_url, source="document")
        if not server.registration_endpoint:
            raise Declined(
                f'"{self._name}" needs a client id: the authorization server '
                f'"{render_origin(server.issuer)}" registers no clients by itself. Register the '
                f"hub there, with the redirect URI {redirect_uri}, and set client_id and "
                'callback = "issuer" in its oauth settings. See: dragoman docs oauth'
            )
        async with self._lock:
            kept = self._load(server.issuer)
            if kept is None or self._is_outdated(kept, redirect_uri, scopes):
                wanted = join_scopes(scopes, found.resource.scopes)
                kept = await self._register(server, redirect_uri, wanted)
            return kept

    def check_issuer(self, issuer: str) -> None:
        """Raises `BadReply` if the configured client was used with another issuer before: its
        secret must not go to a server that the resource has named since."""
        if self._settings.issuer:
            return
        known = self._store.load(self._bound_id())
        if known is not None and known.decode() != issuer:
            raise BadReply(
                f'"{self._name}" now names the authorization server "{render_origin(issuer)}", '
                f'but its client_id was used with "{render_origin(known.decode())}". If that is '
                f"intended, set issuer in its oauth settings"
            )

    def bind_issuer(self, issuer: str) -> None:
        """Remembers the issuer that has accepted the configured client."""
        if self._settings.client_id and self._store.load(self._bound_id()) is None:
            self._store.save(self._bound_id(), issuer.encode())

    def note_begun(self, client: ClientIdentity) -> None:
        if client.source == "registered":
            self._unanswered.add(client.client_id)

    def note_returned(self, client: ClientIdentity) -> None:
        """The authorization server knows the client."""
        self._unanswered.discard(client.client_id)

    def forget_client(self, issuer: str, client: ClientIdentity) -> None:
        """Forgets a registered client that the authorization server does not know any more."""
        kept = self._load(issuer)
        if kept is not None and kept.client_id == client.client_id:
            self._store.delete(self._client_id(issuer))

    def _is_outdated(
        self, client: ClientIdentity, redirect_uri: str, scopes: tuple[str, ...]
    ) -> bool:
        now = time.time()
        if client.redirect_uri != redirect_uri or not set(scopes) <= set(client.scopes):
            return True
        if client.expires_at and client.expires_at <= now + self._limits.login_seconds:
            return True
        is_old = now - client.registered_at >= self._limits.register_seconds
        return client.client_id in self._unanswered and is_old

    async def _register(
        self, server: ServerMetadata, redirect_uri: str, scopes: tuple[str, ...]
    ) -> ClientIdentity:
        is_local = (urlsplit(redirect_uri).hostname or "") in LOOPBACK
        wanted: dict[str, object] = {
            "client_name": CLIENT_NAME,
            "redirect_uris": [redirect_uri],
            "grant_types": ["authorization_code", "refresh_token"],
            "response_types": ["code"],
            "token_endpoint_auth_method": choose_registered_method(server),
            "application_type": "native" if is_local else "web",
        }
        if server.device_endpoint:
            wanted["grant_types"] = ["authorization_code", "refresh_token", DEVICE_CODE]
        if scopes:
            wanted["scope"] = " ".join(scopes)
        origin = render_origin(server.issuer)
        try:
            answer = await post_json(
                self._http, server.registration_endpoint, encode(wanted), self._limits
            )
        except EndpointRefused as error:
            raise Declined(
                f'the authorization server "{origin}" did not register the hub as a client of '
                f'"{self._name}" ({error}). Register it there with the redirect URI '
                f'{redirect_uri} and set client_id and callback = "issuer" in its oauth settings'
            ) from None
        id: Any = answer.get("client_id")
        secret: Any = answer.get("client_secret")
        method: Any = answer.get("token_endpoint_auth_method")
        if method is None:  # RFC 7591, section 2
            method = "client_secret_basic" if secret else "none"
        if not _is_text(id) or not (secret is None or _is_text(secret)) or method not in _METHODS:
            raise BadReply(f'the authorization server "{origin}" sent an invalid registration')
        if method != "none" and not secret:
            raise BadReply(
                f'the authorization server "{origin}" registered a client without secret'
            )
        expires = answer.get("client_secret_expires_at")
        client = ClientIdentity(
            id,
            method,
            secret or "",
            "registered",
            redirect_uri,
            scopes,
            time.time(),
            float(expires) if isinstance(expires, int | float) and secret else 0.0,
        )
        self._store.save(self._client_id(server.issuer), msgspec.json.encode(client))
        return client

    def _load(self, issuer: str) -> ClientIdentity | None:
        kept = self._store.load(self._client_id(issuer))
        try:
            return None if kept is None else msgspec.json.decode(kept, type=ClientIdentity)
        except msgspec.DecodeError:
            return None

    def _client_id(self, issuer: str) -> CredentialId:
        return CredentialId("client", self._name, "", issuer, "")

    def _bound_id(self) -> CredentialId:
        return CredentialId("issuer", self._name, "", "", self._settings.client_id)


def _is_text(value: object) -> bool:
    return isinstance(value, str) and 0 < len(value) <= 4096 and value.isprintable()
