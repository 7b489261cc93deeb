"""The account of the hub at one server or agent: an HTTP client for each holder of a credential.

A server that is not known to need a login gets requests without a token, until it answers one with
a challenge (HTTP 401). The OAuth client is loaded only then, or where a credential or settings are
there.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from dragoman.core.errors import LoginRequired, Unreachable
from dragoman.core.holders import SHARED
from dragoman.core.ports import CredentialStore
from dragoman.oauth.config import GRANTS_BY_PERSONS, OAuthSettings
from dragoman.wire.http import NO_HEADERS, AddressFinder, HttpClient, HttpReply

if TYPE_CHECKING:
    from dragoman.oauth.client.http import OAuthHttpClient
    from dragoman.oauth.client.records import CredentialStatus, ForgottenLogin, ResolveSecret
    from dragoman.oauth.client.tokens import TokenManager

SERVER, AGENT = "server", "agent"
MAX_CLIENTS = 10_000
"""Holders whose clients are kept."""
COMMANDS = {SERVER: "dragoman servers login", AGENT: "dragoman agents login"}


@dataclass(frozen=True, slots=True, kw_only=True)
class AccountSpec:
    name: str
    kind: str
    """SERVER or AGENT."""
    url: str
    allow_private: bool = False
    settings: OAuthSettings | None = None
    is_per_user: bool = False


@dataclass(frozen=True, slots=True)
class OAuthServices:
    """What all accounts need of the hub."""

    open_http: Callable[[str, bool, bool], HttpClient]
    """Opens a client for a URL: whether it may lead to private addresses, whether it follows
    redirects."""
    open_store: Callable[[], CredentialStore]
    has_store: Callable[[], bool]
    """Whether any credential was ever stored."""
    resolve_secret: ResolveSecret
    redirect_uri: Callable[[str], str]
    client_metadata_url: Callable[[str], str]
    mark: str = ""
    """How the ids of logins begin, where there are several hubs."""


class LoginAccount:
    """Implements `wire.http.HolderClients`."""

    def __init__(
        self,
        spec: AccountSpec,
        services: OAuthServices,
        note_status: Callable[[LoginAccount, str, CredentialStatus], None],
    ) -> None:
        """`note_status` gets the new status of a holder's credential."""
        self.spec = spec
        self._note_status = note_status
        self.name = spec.name
        self.is_per_user = spec.is_per_user
        self._services = services
        self._tokens: TokenManager | None = None
        self._clients: dict[str, AccountClient | OAuthHttpClient] = {}
        self._challenged: set[str] = set()
        """Holders whose requests without a token were rejected."""
        self._holders: list[str] | None = None
        """Holders with a stored credential; None until they are asked for."""
        grant = spec.settings.grant if spec.settings is not None else "authorization_code"
        self.is_machine = grant not in GRANTS_BY_PERSONS

    @cached_property
    def http(self) -> HttpClient:
        """Raises `ConfigError` for an unusable URL: one such server does not stop the hub."""
        return self._services.open_http(self.spec.url, self.spec.allow_private, True)

    @property
    def tokens(self) -> TokenManager:
        if self._tokens is None:
            # Imported here: most hubs have no server that needs a login.
            from dragoman.oauth.client.limits import LIMITS
            from dragoman.oauth.client.tokens import TokenManager

            spec, services = self.spec, self._services
            self._tokens = TokenManager(
                spec.url,
                spec.settings or OAuthSettings(),
                services.open_http(spec.url, spec.allow_private, False),
                services.open_store(),
                services.resolve_secret,
                services.redirect_uri,
                services.client_metadata_url,
                spec.name,
                notify=lambda holder, status: self._note_status(self, holder, status),
                limits=replace(LIMITS, mark=services.mark),
            )
        return self._tokens

    @property
    def label(self) -> str:
        return f'{self.spec.kind} "{self.name}"'

    # --- whose credential ------------------------------------------------------------------------

    def get_client(self, holder: str) -> AccountClient | OAuthHttpClient:
        client = self._clients.get(holder)
        if client is None:
            if len(self._clients) >= MAX_CLIENTS:
                self._clients.clear()
            # A user's calls to a server always need a token. Agents may also be reached by gRPC.
            is_user = self.is_per_user and holder != SHARED and self.spec.kind == SERVER
            client = self.build_client(holder) if is_user else AccountClient(self, holder)
            self._clients[holder] = client
        return client

    def build_client(self, holder: str) -> OAuthHttpClient:
        from dragoman.oauth.client.http import OAuthHttpClient

        return OAuthHttpClient(self.http, self.tokens, holder)

    def get_list_client(self) -> HttpClient:
        # Calls use it too: without users of its own, an account has one holder.
        return ListClient(self) if self.is_per_user else self.get_client(SHARED)

    def find_list_holder(self) -> str:
        if not self.is_per_user or self.is_machine:
            return SHARED
        holders = sorted(self.list_holders(), key=lambda holder: holder != SHARED)
        return next((one for one in holders if self.has_login(one)), SHARED)

    def has_login(self, holder: str) -> bool:
        if not self.needs_token(holder):
            return True
        if self.is_machine and holder == SHARED:
            return self.get_status(holder).state != "needs_login"
        return self.get_status(holder).state in ("valid", "expired")

    def get_status(self, holder: str) -> CredentialStatus:
        return self.tokens.get_status(holder)

    def list_holders(self) -> list[str]:
        """Lists the holders with a stored credential. Every list request asks for them."""
        if self._holders is None:
            self._holders = self.tokens.list_holders() if self._has_credentials() else []
        return self._holders

    def note_login(self, holder: str) -> None:
        """The credential of a holder is new, was removed, or can no longer be used."""
        self._holders = None
        client = self._clients.get(holder)
        if isinstance(client, AccountClient):
            client.reset()

    def reload(self) -> list[str]:
        """Reads again what other hubs have stored; returns the holders whose login has changed."""
        self._holders = None
        return self._tokens.reload() if self._tokens is not None else []

    def needs_token(self, holder: str) -> bool:
        """Whether requests of the holder need a token, as far as known."""
        if self.is_per_user and holder != SHARED:
            return True
        if holder in self._challenged or self.is_machine:
            return True
        if self.spec.settings is not None and not self.is_per_user:
            return True
        return holder in self.list_holders()

    def _has_credentials(self) -> bool:
        return self._tokens is not None or self._services.has_store()

    def note_challenged(self, holder: str) -> None:
        self._challenged.add(holder)

    async def forget(self, holder: str) -> ForgottenLogin | None:
        """Deletes and revokes a credential; None if there was none."""
        if not self._has_credentials():
            return None
        forgotten = await self.tokens.forget(holder)
        return forgotten if forgotten.found else None

    async def close(self) -> None:
        if self._tokens is not None:
            await self._tokens.close()

    def explain(self, error: LoginRequired) -> LoginRequired:
        """Returns the error with the command that helps."""
        command = f"{COMMANDS[self.spec.kind]} {_quote(self.name)}"
        message = str(error)
        if command not in message:
            message = f"{message.rstrip('.')} (run: {command})"
        return LoginRequired(message, server=self.name, scopes=error.scopes)


class AccountClient:
    """Implements `wire.http.HttpClient` for one holder."""

    def __init__(self, account: LoginAccount, holder: str) -> None:
        self._account = account
        self._holder = holder
        self._client: OAuthHttpClient | None = None
        self._is_bare: bool | None = None
        """Whether requests are sent without a token; None until that is found out."""

    def reset(self) -> None:
        self._is_bare = None

    async def request(
        self,
        method: str,
        url: str,
        headers: Mapping[str, str],
        body: bytes = b"",
        *,
        timeout: float,
        extra_headers: Mapping[str, str] = NO_HEADERS,
    ) -> HttpReply:
        account, is_bare = self._account, self._is_bare
        if is_bare is None:
            is_bare = self._is_bare = not account.needs_token(self._holder)
        if is_bare:
            reply = await account.http.request(
                method, url, headers, body, timeout=timeout, extra_headers=extra_headers
            )
            if reply.status != 401:  # as nearly always
                return reply
            challenge = reply.headers.get("www-authenticate", "")
            if not _is_bearer(challenge):
                return reply
            reply.body.close()  # it was not executed
            account.note_challenged(self._holder)
            self._is_bare = False
            await self._note_rejected(challenge)
        client = self._client
        if client is None:
            client = self._client = account.build_client(self._holder)
        try:
            return await client.request(
                method, url, headers, body, timeout=timeout, extra_headers=extra_headers
            )
        except LoginRequired as error:
            raise account.explain(error) from error

    async def _note_rejected(self, challenge: str) -> None:
        """Has the challenge remembered: it says where to log in and which scopes to ask for."""
        try:
            await self._account.tokens.note_rejected(self._holder, None, challenge)
        except LoginRequired as error:
            raise self._account.explain(error) from error

    # --- gRPC (wire.http.AddressFinder) ----------------------------------------------------------

    async def find_addresses(self, url: str, timeout: float) -> list[str]:
        http = self._account.http
        if not isinstance(http, AddressFinder):
            raise Unreachable("this client supports no gRPC", sent=False)
        return await http.find_addresses(url, timeout)

    async def fill(self, url: str, headers: Mapping[str, str]) -> dict[str, str]:
        """gRPC has a port of its own: there the host must be the same, as for fixed tokens."""
        account = self._account
        if not account.needs_token(self._holder) or not _is_same_host(url, account.spec.url):
            return dict(headers)
        try:
            token = await account.tokens.find_token(self._holder)
        except LoginRequired as error:
            raise account.explain(error) from error
        return {**headers, "authorization": token.header}


class ListClient:
    """Implements `wire.http.HttpClient`: sends the credential that lists are read with."""

    def __init__(self, account: LoginAccount) -> None:
        self._account = account

    async def request(
        self,
        method: str,
        url: str,
        headers: Mapping[str, str],
        body: bytes = b"",
        *,
        timeout: float,
        extra_headers: Mapping[str, str] = NO_HEADERS,
    ) -> HttpReply:
        return await self._find_client().request(
            method, url, headers, body, timeout=timeout, extra_headers=extra_headers
        )

    def _find_client(self) -> AccountClient | OAuthHttpClient:
        return self._account.get_client(self._account.find_list_holder())

    async def find_addresses(self, url: str, timeout: float) -> list[str]:
        """Implements `wire.http.AddressFinder`."""
        return await self._find_client().find_addresses(url, timeout)

    async def fill(self, url: str, headers: Mapping[str, str]) -> dict[str, str]:
        return await self._find_client().fill(url, headers)


_LOOPBACK = frozenset({"localhost", "127.0.0.1", "::1"})


def _is_same_host(url: str, own: str) -> bool:
    other, mine = urlsplit(url), urlsplit(own)
    if other.hostname in _LOOPBACK and mine.hostname in _LOOPBACK:
        return True
    return other.hostname == mine.hostname and other.scheme == mine.scheme == "https"


def _is_bearer(challenge: str) -> bool:
    return "bearer" in challenge.lower()


def _quote(name: str) -> str:
    return name if all(one.isalnum() or one in "_-" for one in name) else f"'{name}'"
