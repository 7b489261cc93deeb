"""Finds the authorization server of a resource and its endpoints.

RFC 9728 from the challenge or the well-known paths, then RFC 8414 or OpenID Connect discovery, in
the order of the MCP specification. A server of the 2025-03-26 revision has no resource metadata: it
is its own authorization server, if need be at default paths.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

from msgspec import Struct

from dragoman.core.errors import BadReply, HubError, TimedOut, Unreachable
from dragoman.core.urls import render_origin
from dragoman.oauth.client.challenges import BearerChallenge, parse_scopes
from dragoman.oauth.client.exchanges import fetch_document
from dragoman.oauth.client.limits import OAuthLimits
from dragoman.oauth.client.urls import (
    build_resource,
    check_url,
    covers,
    insert_well_known,
    is_loopback,
    render_base,
)
from dragoman.wire.http import HttpClient

RESOURCE = "oauth-protected-resource"
OAUTH, OPENID = "oauth-authorization-server", "openid-configuration"
S256 = "S256"
OFFLINE = "offline_access"
MAX_SERVERS = 20


class ProtectedResource(Struct, frozen=True):
    """What a resource says about itself (RFC 9728)."""

    resource: str
    servers: tuple[str, ...] = ()
    scopes: tuple[str, ...] = ()
    is_published: bool = True
    """False if the resource publishes nothing, as before revision 2025-06-18."""


class ServerMetadata(Struct, frozen=True):
    """What an authorization server says about itself (RFC 8414)."""

    issuer: str
    authorization_endpoint: str = ""
    token_endpoint: str = ""
    registration_endpoint: str = ""
    revocation_endpoint: str = ""
    device_endpoint: str = ""
    challenge_methods: tuple[str, ...] = ()
    auth_methods: tuple[str, ...] | None = None
    """None: not said, which means `client_secret_basic`."""
    scopes: tuple[str, ...] = ()
    sends_issuer: bool = False
    """Whether its redirects have `iss` (RFC 9207)."""
    reads_client_documents: bool = False
    """Whether a client may be named by the URL of its metadata document."""


class Discovered(Struct, frozen=True):
    resource: ProtectedResource
    server: ServerMetadata


_ENDPOINTS = {
    "authorization_endpoint": "authorization_endpoint",
    "token_endpoint": "token_endpoint",
    "registration_endpoint": "registration_endpoint",
    "revocation_endpoint": "revocation_endpoint",
    "device_authorization_endpoint": "device_endpoint",
}


class Discovery:
    """Discovers for one resource."""

    def __init__(self, http: HttpClient, url: str, limits: OAuthLimits) -> None:
        self._http = http
        self._url = url
        self._limits = limits
        self._allow_loopback = is_loopback(url)

    async def discover(self, challenge: BearerChallenge, issuer: str = "") -> Discovered:
        """Finds the resource's metadata and that of its authorization server. With `issuer`, it
        must be that server."""
        try:
            async with asyncio.timeout(self._limits.discovery_seconds):
                resource = await self.find_resource(challenge)
                return Discovered(resource, await self._choose_server(resource, issuer))
        except TimeoutError:
            raise TimedOut(
                f'the OAuth metadata of "{render_origin(self._url)}" was not found within '
                f"{self._limits.discovery_seconds:g} s"
            ) from None

    async def find_resource(self, challenge: BearerChallenge) -> ProtectedResource:
        own = insert_well_known(self._url, RESOURCE)
        root = insert_well_known(render_base(self._url), RESOURCE)
        failure: HubError | None = None
        candidates = list(dict.fromkeys((own, root)))
        if challenge.resource_metadata:
            candidates = [self.check(challenge.resource_metadata, "the resource metadata at")]
        for url in candidates:
            try:
                found = await self._fetch(url)
            except Unreachable as error:
                # A failure does not tell whether there is metadata: the next path may have it, but
                # the way of the older revision is not taken.
                failure = error
                continue
            if found is not None:
                return self._read_resource(found, url)
        if failure is not None:
            raise failure
        if challenge.resource_metadata:
            raise BadReply(
                f'"{render_origin(self._url)}" names resource metadata at '
                f'"{render_origin(candidates[0])}", and there is none'
            )
        return ProtectedResource(build_resource(self._url), is_published=False)

    def _read_resource(self, found: dict[str, Any], url: str) -> ProtectedResource:
        resource = found.get("resource")
        what = f'the resource in the metadata of "{render_origin(url)}",'
        resource = self.check(resource, what)
        if not covers(resource, self._url):
            raise BadReply(
                f'the metadata at "{render_origin(url)}" is that of "{render_origin(resource)}", '
                f'not of "{render_origin(self._url)}"; no token is asked for'
            )
        servers = found.get("authorization_servers")
        named = [one for one in servers if isinstance(one, str)] if type(servers) is list else []
        return ProtectedResource(
            resource, tuple(named[:MAX_SERVERS]), parse_scopes(found.get("scopes_supported"))
        )

    async def _choose_server(self, resource: ProtectedResource, issuer: str) -> ServerMetadata:
        if issuer:
            if resource.servers and issuer not in resource.servers:
                named = ", ".join(f'"{render_origin(one)}"' for one in resource.servers[:3])
                raise BadReply(
                    f'"{render_origin(self._url)}" accepts tokens of {named}, and not of the '
                    f'issuer "{render_origin(issuer)}" in its settings; correct `issuer`'
                )
            return await self.find_server(issuer)
        if not resource.servers:
            return await self._find_own_server()
        failure: HubError | None = None
        for named in resource.servers[: self._limits.servers]:
            try:
                return await self.find_server(named)
            except HubError as error:
                failure = failure or error
        assert failure is not None
        raise failure

    def check(self, url: object, what: str) -> str:
        """Returns a URL that may be used; raises `BadReply`."""
        return check_url(url, what, allow_loopback=self._allow_loopback)

    async def find_server(self, issuer: str) -> ServerMetadata:
        """Finds the metadata of an authorization server, which must name that very issuer."""
        self.check(issuer, "the authorization server")
        paths = [insert_well_known(issuer, OAUTH), insert_well_known(issuer, OPENID)]
        appended = f"{issuer.rstrip('/')}/.well-known/{OPENID}"
        found = await self._fetch_first(list(dict.fromkeys((*paths, appended))))
        if found is None:
            raise BadReply(f'the authorization server "{render_origin(issuer)}" has no metadata')
        return self._read_server(found, (issuer,))

    async def _find_own_server(self) -> ServerMetadata:
        """As revision 2025-03-26 has it: the resource's own origin, if need be default paths."""
        base = render_base(self._url)
        found = await self._fetch_first([insert_well_known(base, OAUTH)])
        if found is not None:
            # Many render an issuer without a path with a slash.
            hint = "; if it is meant, set issuer in the oauth settings"
            return self._read_server(found, (base, f"{base}/"), hint)
        return ServerMetadata(
            base,
            authorization_endpoint=f"{base}/authorize",
            token_endpoint=f"{base}/token",
            registration_endpoint=f"{base}/register",
            challenge_methods=(S256,),  # that revision requires PKCE of every server
            auth_methods=("none", "client_secret_post", "client_secret_basic"),
        )

    def _read_server(
        self, found: dict[str, Any], expected: tuple[str, ...], hint: str = ""
    ) -> ServerMetadata:
        issuer = found.get("issuer")
        if not isinstance(issuer, str) or issuer not in expected:
            shown = render_origin(issuer)[:300] if isinstance(issuer, str) else ""
            raise BadReply(
                f'the metadata of the authorization server "{render_origin(expected[0])}" names '
                f'another issuer, "{shown}", so no token is asked for{hint}'
            )
        endpoints = {
            field: self.check(found[name], f"the {name}")
            for name, field in _ENDPOINTS.items()
            if found.get(name) is not None
        }
        if "token_endpoint" not in endpoints:
            raise BadReply(
                f'the authorization server "{render_origin(issuer)}" has no token_endpoint'
            )
        methods = found.get("token_endpoint_auth_methods_supported")
        return ServerMetadata(
            issuer,
            **endpoints,
            challenge_methods=_read_names(found.get("code_challenge_methods_supported")),
            auth_methods=_read_names(methods) if type(methods) is list else None,
            scopes=parse_scopes(found.get("scopes_supported")),
            sends_issuer=found.get("authorization_response_iss_parameter_supported") is True,
            reads_client_documents=found.get("client_id_metadata_document_supported") is True,
        )

    async def _fetch_first(self, urls: Sequence[str]) -> dict[str, Any] | None:
        """Fetches the first document that there is. Raises if there is none and one failed."""
        failure: Unreachable | None = None
        for url in urls:
            try:
                found = await self._fetch(url)
            except Unreachable as error:
                failure = error
                continue
            if found is not None:
                return found
        if failure is not None:
            raise failure
        return None

    async def _fetch(self, url: str) -> dict[str, Any] | None:
        return await fetch_document(
            self._http, url, self._limits, allow_loopback=self._allow_loopback
        )


def _read_names(value: object) -> tuple[str, ...]:
    return tuple(one for one in value if isinstance(one, str)) if type(value) is list else ()
