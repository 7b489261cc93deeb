"""Builds what authenticates requests: keys, and the access tokens of identity providers."""

from __future__ import annotations

from dataclasses import dataclass

from dragoman.app.build_stores import Stores
from dragoman.app.config_watch import LiveConfig
from dragoman.app.policy_admin import known_ids
from dragoman.app.run_state import RunState
from dragoman.config import AuthSettings
from dragoman.core.principal import Principal
from dragoman.core.secret_references import SecretResolver
from dragoman.net.client import OutboundHttp
from dragoman.oauth.server.introspection import IntrospectedTokens
from dragoman.oauth.server.jwt_tokens import JwtTokens
from dragoman.web.auth import Authenticator, TokenFinder, list_own_hosts
from dragoman.web.resource_metadata import ResourceMetadata
from dragoman.wire.http import HttpClient


@dataclass(frozen=True, slots=True)
class AuthParts:
    authenticator: Authenticator
    metadata: ResourceMetadata
    state: RunState
    jwt: JwtTokens
    introspected: IntrospectedTokens
    secrets: SecretResolver

    def apply(self, settings: AuthSettings) -> None:
        self.jwt.apply(settings.jwt)
        self.introspected.apply(settings.introspection)

    def close(self) -> None:
        self.jwt.close()
        self.introspected.close()


def build_auth(
    mode: str, live: LiveConfig, stores: Stores, net: OutboundHttp, api_key: str | None
) -> AuthParts:
    """`api_key` is the value of the key in the configuration."""
    config, keys = live.config, stores.keys

    def find_key(key: str) -> Principal | None:
        record = keys.find(key)
        return known_ids.principal_from_key(record) if record else None

    def open_http(url: str, allow_private: bool) -> HttpClient:
        return net.open_configured(url, allow_private=allow_private)

    def is_own(url: str) -> bool:
        """Whether tokens for `url` are for this hub: the URL of one of its endpoints, by the name
        that it has in public, or by the names of its listener if it has none."""
        public = config.server.public_url
        bases = [public.rstrip("/")] if public else []
        if not public and state.url is not None:
            port = state.url.rpartition(":")[2]
            names = list_own_hosts(config.server.host, config.server.allowed_hosts)
            bases = [f"http://{name}:{port}" for name in names]
        paths = [url.removeprefix(base) for base in bases if url.startswith(base)]
        return any(path == "/" or metadata.is_resource(path) for path in paths)

    jwt = JwtTokens(open_http, is_own)
    introspected = IntrospectedTokens(open_http, is_own, live.secrets.resolve)
    finders: list[TokenFinder] = [jwt, introspected]
    if stores.users is not None:
        stores.users.grants.set_issuer(lambda: state.base)
        # First: no token of the hub is sent to a provider for introspection.
        finders.insert(0, stores.users.grants)
    authenticator = Authenticator(api_key, find_key, keys.has_keys, finders)
    state = RunState(mode, config.server.public_url, authenticator.requires_key)
    metadata = ResourceMetadata(
        authenticator.finders,
        state.find_base,
        lambda: live.config.auth.required_scopes,
        config.a2a.listen_path,
    )
    parts = AuthParts(authenticator, metadata, state, jwt, introspected, live.secrets)
    parts.apply(config.auth)
    return parts
