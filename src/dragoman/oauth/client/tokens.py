"""The tokens for one server or agent, one per holder: obtained, kept, refreshed, revoked."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from dragoman.core.ports import CredentialStore
from dragoman.oauth.client.records import (
    AccessToken,
    CredentialStatus,
    DeviceLogin,
    Grant,
    LoginRequest,
    ResolveSecret,
)
from dragoman.oauth.config import OAuthSettings
from dragoman.wire.http import HttpClient


class TokenManager:
    """Each holder's token for one resource. Only the event loop's thread uses it."""

    def __init__(
        self,
        resource_url: str,
        settings: OAuthSettings,
        http: HttpClient,
        store: CredentialStore,
        resolve_secret: ResolveSecret,
        redirect_uri: Callable[[], str],
        client_metadata_url: Callable[[], str],
        name: str,
    ) -> None:
        """`http` must not follow redirects, and reaches no address that the server itself may not
        have: `OutboundHttp.open_configured(url, allow_private=..., follow=False)`. `redirect_uri`
        and `client_metadata_url` are asked at each login, since the port of a hub is known after
        its start; the latter is empty unless the hub has a public https URL."""
        self.name = name
        self.resource_url = resource_url

    def peek(self, holder: str) -> AccessToken | None:
        """Returns the token if it can be used without waiting."""
        raise NotImplementedError

    async def find_token(self, holder: str) -> AccessToken:
        """Returns a valid token, refreshed if necessary. Raises `LoginRequired`, or `Unreachable`
        while the authorization server does not answer."""
        raise NotImplementedError

    async def note_rejected(
        self, holder: str, token: AccessToken | None, www_authenticate: str
    ) -> AccessToken:
        """Returns another token after the server has rejected this one. Raises `LoginRequired` if
        only a login can help; its `scopes` are those that the login will ask for."""
        raise NotImplementedError

    async def begin_login(self, holder: str, scopes: tuple[str, ...] = ()) -> LoginRequest:
        """Starts an authorization code flow; `scopes` are asked for besides the usual ones."""
        raise NotImplementedError

    async def finish_login(self, state: str, query: Mapping[str, str]) -> Grant:
        """Ends it with the query of the redirect. Raises `InvalidInput` for an unknown, used or
        expired `state`, `Declined` if consent was denied, `BadReply` for anything suspicious."""
        raise NotImplementedError

    async def begin_device_login(self, holder: str, scopes: tuple[str, ...] = ()) -> DeviceLogin:
        """Starts a device flow (RFC 8628)."""
        raise NotImplementedError

    async def poll_device_login(self, id: str) -> Grant | None:
        """Asks once; None while the person has not decided. At most once per interval."""
        raise NotImplementedError

    async def forget(self, holder: str) -> bool:
        """Deletes the holder's tokens and revokes them at the authorization server; returns whether
        there were any."""
        raise NotImplementedError

    def get_status(self, holder: str) -> CredentialStatus:
        raise NotImplementedError

    def list_holders(self) -> list[str]:
        """Lists the holders that have a stored credential."""
        raise NotImplementedError

    async def close(self) -> None: ...
