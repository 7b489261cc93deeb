"""Builds the logins at servers and agents: the desk, its pages, and the account of each."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from dragoman.a2a.config import ExternalAgent
from dragoman.app.build_authority import Authority
from dragoman.app.config_watch import LiveConfig
from dragoman.app.run_state import RunState
from dragoman.app.store_place import has_store
from dragoman.core.bus import Bus
from dragoman.core.cluster import Ownership
from dragoman.core.errors import Unreachable
from dragoman.core.ports import CredentialStore
from dragoman.core.principal import Principal
from dragoman.mcp.config import ServerEntry, StdioTransport, parse_headers
from dragoman.net.client import OutboundHttp
from dragoman.oauth.logins.accounts import (
    AGENT,
    SERVER,
    AccountSpec,
    LoginAccount,
    OAuthServices,
)
from dragoman.oauth.logins.desk import HubLoginDesk
from dragoman.oauth.logins.pages import CALLBACK, CLIENT, CONNECT, LoginPages
from dragoman.stores.database import StorePlace
from dragoman.web.app import PathMount
from dragoman.wire.http import HttpClient

if TYPE_CHECKING:
    from dragoman.stores.credentials import DatabaseCredentials

AUTHORIZATION = "authorization"


@dataclass(frozen=True, slots=True)
class LoginParts:
    desk: HubLoginDesk
    pages: LoginPages
    services: OAuthServices
    stores: list[DatabaseCredentials]
    """The store of credentials, once it is open."""

    async def close(self) -> None:
        await self.desk.close()
        for store in self.stores:
            store.close()

    def read_version(self) -> int:
        """Differs after a change of the stored credentials by another hub."""
        return self.stores[0].read_version() if self.stores else 0

    @property
    def mounts(self) -> list[PathMount]:
        """No path needs a key: a browser has none."""
        return [
            PathMount(path, self.pages.serve, lambda _: True)
            for path in (CALLBACK, CONNECT, CLIENT)
        ]

    def open_server_account(self, entry: ServerEntry) -> LoginAccount | None:
        """Returns the account at a server; None for one that cannot ask for a login, or whose
        credentials are in the configuration."""
        transport = entry.transport
        if isinstance(transport, StdioTransport) or _has_authorization(transport.headers):
            return None
        return self._add(
            AccountSpec(
                name=entry.name,
                kind=SERVER,
                url=transport.url,
                allow_private=transport.allow_private,
                settings=entry.oauth,
                is_per_user=entry.credentials == "user",
            )
        )

    def open_agent_account(self, entry: ExternalAgent) -> LoginAccount | None:
        if entry.token is not None or _has_authorization(entry.headers):
            return None
        return self._add(
            AccountSpec(
                name=entry.name,
                kind=AGENT,
                url=entry.url,
                allow_private=entry.allow_private,
                settings=entry.oauth,
                is_per_user=entry.credentials == "user",
            )
        )

    def _add(self, spec: AccountSpec) -> LoginAccount:
        account = LoginAccount(spec, self.services, self.desk.note_status)
        self.desk.add_account(account)
        return account


def build_logins(
    home: Path,
    place: StorePlace,
    live: LiveConfig,
    state: RunState,
    net: OutboundHttp,
    bus: Bus,
    shared_key: bytes | None,
    may_administer: Callable[[Principal], bool],
    note_login: Callable[[LoginAccount, str], None],
    authority: Authority | None,
    ownership: Ownership,
) -> LoginParts:
    """`authority` knows the users who sign in at the hub itself: only the browser of such a user
    may use a link that was made for that user. `shared_key` is that of all hubs of a cluster."""
    stores: list[DatabaseCredentials] = []

    def open_store() -> CredentialStore:
        if not stores:
            # Imported here: most hubs have no server that needs a login.
            from dragoman.stores.credential_key import find_key, find_older_key
            from dragoman.stores.credentials import DatabaseCredentials

            setting = live.config.oauth.credential_key
            key = find_key(home, setting, live.variables, shared=shared_key)
            store = DatabaseCredentials(place, key)
            if shared_key is not None:
                store.adopt(find_older_key(home, live.variables))
            stores.append(store)
        return stores[0]

    def open_http(url: str, allow_private: bool, follow: bool) -> HttpClient:
        return net.open_configured(url, allow_private=allow_private, follow=follow)

    def find_base() -> str | None:
        return state.base if state.url is not None else None

    def build_redirect_uri(mark: str) -> str:
        base = find_base()
        if base is None:
            raise Unreachable(
                "this hub has no address that a browser can return to: start it with dragoman up",
                sent=False,
            )
        return f"{base}{CALLBACK}/{mark}" if mark else f"{base}{CALLBACK}"

    def build_client_url(mark: str) -> str:
        base = find_base() or ""
        if not base.startswith("https://"):
            return ""
        return f"{base}{CLIENT}/{mark}" if mark else f"{base}{CLIENT}"

    services = OAuthServices(
        open_http,
        open_store,
        lambda: bool(stores) or has_store(place, "credentials.db"),
        live.secrets.resolve,
        build_redirect_uri,
        build_client_url,
        ownership.mark,
    )

    def build_client_document(mark: str) -> dict[str, object]:
        from dragoman.oauth.client.registration import build_client_document

        return build_client_document(build_client_url(mark), build_redirect_uri(mark))

    desk = HubLoginDesk(bus, find_base, may_administer, note_login, ownership)
    pages = LoginPages(desk, build_client_document)
    if authority is not None:
        pages = LoginPages(
            desk, build_client_document, authority.find_browser_user, authority.find_sign_in
        )
    return LoginParts(desk, pages, services, stores)


def _has_authorization(headers: dict[str, str] | list[str]) -> bool:
    return any(name.lower() == AUTHORIZATION for name, _ in parse_headers(headers))
