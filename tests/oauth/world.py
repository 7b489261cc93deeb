"""A resource, its authorization server and the hub's OAuth client, connected by real sockets."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from tests.oauth.authlib_authority import AuthlibAuthority
from tests.oauth.protected_resource import Resource
from tests.oauth.sdk_authority import SdkAuthority
from tests.oauth.served import Browser, bind, serve

from dragoman.core.secret_rules import SecretUse
from dragoman.net.client import OutboundHttp
from dragoman.oauth.client.http import OAuthHttpClient
from dragoman.oauth.client.limits import OAuthLimits
from dragoman.oauth.client.records import SHARED, CredentialStatus, Grant
from dragoman.oauth.client.tokens import TokenManager
from dragoman.oauth.config import OAuthSettings
from dragoman.stores.credentials import DatabaseCredentials
from dragoman.wire.http import FixedHeaders, HttpReply

REDIRECT = "http://127.0.0.1:4150/oauth/callback"
KEY = bytes(range(32))
LIMITS = OAuthLimits(request_seconds=5.0, poll_seconds=0.0, retry_first=0.05, retry_longest=0.05)
HEADERS = FixedHeaders({"content-type": "application/json", "accept": "application/json"})
Authority = SdkAuthority | AuthlibAuthority


@dataclass
class World:
    """`secrets` are the values of references."""

    home: Path
    authority: Authority
    resource: Resource
    outbound: OutboundHttp
    store: DatabaseCredentials
    allow_private: bool = True
    limits: OAuthLimits = LIMITS
    document_url: str = ""
    secrets: dict[str, str] = field(default_factory=dict)
    changes: list[tuple[str, CredentialStatus]] = field(default_factory=list)
    redirect_uri: str = REDIRECT
    made: list[TokenManager] = field(default_factory=list)

    def manage(self, settings: OAuthSettings | None = None, **changes: Any) -> TokenManager:
        """A new manager, as after a restart."""
        http = self.outbound.open_configured(
            self.resource.url, allow_private=self.allow_private, follow=False
        )
        manager = TokenManager(
            self.resource.url,
            settings or OAuthSettings(),
            http,
            self.store,
            self._resolve,
            lambda mark: "/".join(filter(None, (self.redirect_uri, mark))),
            self._build_document_url,
            "files",
            notify=lambda holder, status: self.changes.append((holder, status)),
            limits=replace(self.limits, **changes),
        )
        self.made.append(manager)
        return manager

    def _build_document_url(self, mark: str) -> str:
        return f"{self.document_url}/{mark}" if self.document_url and mark else self.document_url

    def open(self, tokens: TokenManager, holder: str = SHARED) -> OAuthHttpClient:
        http = self.outbound.open_configured(self.resource.url, allow_private=self.allow_private)
        return OAuthHttpClient(http, tokens, holder)

    async def log_in(
        self, tokens: TokenManager, holder: str = SHARED, press: str = "approve"
    ) -> Grant:
        login = await tokens.begin_login(holder)
        browser = Browser(self.redirect_uri, press)
        query = await browser.log_in(login.url)
        return await tokens.finish_login(login.state, query, browser.mark)

    async def call(self, client: OAuthHttpClient, path: str = "") -> HttpReply:
        url = f"{self.resource.url}{path}"
        return await client.request("POST", url, HEADERS, b"{}", timeout=60)

    def reopen(self, key: bytes = KEY) -> None:
        self.store.close()
        self.store = DatabaseCredentials(self.home, key)

    async def _resolve(self, reference: str, use: SecretUse) -> str:
        return self.secrets[reference]


@asynccontextmanager
async def build_world(home: Path, kind: str = "authlib", **options: Any) -> AsyncIterator[World]:
    async with AsyncExitStack() as stack:
        outbound = OutboundHttp()
        stack.push_async_callback(outbound.close)
        listener, base = bind()
        authority: Authority = (
            SdkAuthority(base, **options) if kind == "sdk" else AuthlibAuthority(base, **options)
        )
        await stack.enter_async_context(serve(authority.app, listener))
        listener, base = bind()
        resource = Resource(f"{base}/mcp", authority.find, [authority.issuer], scopes=["read"])
        await stack.enter_async_context(serve(resource.app, listener))
        world = World(home, authority, resource, outbound, DatabaseCredentials(home, KEY))
        yield world
        for manager in world.made:
            await manager.close()
        world.store.close()
