"""Logins of a person: the authorization code flow, and the device flow (RFC 8628)."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from urllib.parse import urlencode

from dragoman.core.errors import BadReply, Declined, HubError, InvalidInput, Unreachable
from dragoman.core.urls import render_origin
from dragoman.oauth.client.challenges import join_scopes
from dragoman.oauth.client.client_auth import ClientIdentity
from dragoman.oauth.client.discovery import OFFLINE, S256, Discovered, Discovery, ServerMetadata
from dragoman.oauth.client.exchanges import EndpointRefused, quote_text
from dragoman.oauth.client.grants import StoredToken, TokenClient, build_token
from dragoman.oauth.client.limits import OAuthLimits
from dragoman.oauth.client.logins import (
    PendingDevice,
    PendingLogin,
    PendingLogins,
    make_verifier,
)
from dragoman.oauth.client.records import DeviceLogin, Grant, LoginDestination, LoginRequest
from dragoman.oauth.client.registration import (
    DEVICE_CODE,
    UNKNOWN_CLIENT,
    ClientRegistration,
)
from dragoman.oauth.client.server_finder import ServerFinder
from dragoman.oauth.client.urls import add_query, get_origin, mark_issuer
from dragoman.oauth.config import OAuthSettings

Keep = Callable[[str, StoredToken], None]
"""Keeps the tokens of a holder."""
ListWanted = Callable[[str, str], tuple[str, ...]]
"""Lists the scopes that a holder has asked for at an issuer, and those that it was asked for."""


class LoginFlows:
    """The logins for one server or agent."""

    def __init__(
        self,
        name: str,
        settings: OAuthSettings,
        discovery: Discovery,
        finder: ServerFinder,
        registration: ClientRegistration,
        endpoint: TokenClient,
        redirect_uri: Callable[[str], str],
        document_url: Callable[[str], str],
        limits: OAuthLimits,
        keep: Keep,
        list_wanted: ListWanted,
    ) -> None:
        self._name = name
        self._settings = settings
        self._discovery = discovery
        self._finder = finder
        self._registration = registration
        self._endpoint = endpoint
        self._redirect_uri = redirect_uri
        self._document_url = document_url
        self._limits = limits
        self._keep = keep
        self._list_wanted = list_wanted
        self._logins: PendingLogins[PendingLogin] = PendingLogins(limits)
        self._devices: PendingLogins[PendingDevice] = PendingLogins(limits)

    def drop(self, holder: str) -> None:
        """Drops the logins of a holder that have begun."""
        self._logins.drop(holder)
        self._devices.drop(holder)

    async def begin(self, holder: str, scopes: tuple[str, ...] = ()) -> LoginRequest:
        """Starts an authorization code flow; `scopes` are asked for besides the usual ones."""
        found = await self._finder.find()
        server = found.server
        if not server.authorization_endpoint:
            raise BadReply(
                f'the authorization server of "{self._name}" has no authorization endpoint'
            )
        if S256 not in server.challenge_methods:
            raise BadReply(
                f'the authorization server "{render_origin(server.issuer)}" of "{self._name}" does '
                "not support PKCE with S256, without which a code could be stolen; no login is made"
            )
        wanted = self._collect_scopes(holder, found, scopes)
        mark = self._choose_mark(server)
        redirect_uri = self._redirect_uri(mark)
        client = await self._find_client(found, mark, wanted)
        verifier, challenge = make_verifier()
        expires_at = time.time() + self._limits.login_seconds
        pending = PendingLogin(
            holder, server, client, found.resource.resource, wanted, redirect_uri, mark,
            verifier, expires_at,
        )  # fmt: skip
        state = self._logins.add(pending)
        query = {
            "response_type": "code",
            "client_id": client.client_id,
            "redirect_uri": redirect_uri,
            "code_challenge": challenge,
            "code_challenge_method": S256,
            "state": state,
            "resource": pending.resource,
        }
        if wanted:
            query["scope"] = " ".join(wanted)
        if OFFLINE in wanted:
            query["prompt"] = "consent"  # OpenID Connect Core, section 11
        if self._settings.audience:
            query["audience"] = self._settings.audience
        self._registration.note_begun(client)
        url = add_query(server.authorization_endpoint, urlencode(query))
        return LoginRequest(url, state, expires_at, server.issuer, wanted)

    async def find_destination(self) -> LoginDestination:
        """Finds where `begin` would send a person."""
        server = (await self._finder.find()).server
        return LoginDestination(server.issuer, server.authorization_endpoint)

    def _choose_mark(self, server: ServerMetadata) -> str:
        """Chooses the mark of the redirect URI: that of the issuer, or none for a client that the
        operator has registered with the plain one. Raises `Declined` where the plain one could
        bring the code of another authorization server."""
        mark = mark_issuer(server.issuer)
        if not self._settings.client_id or self._settings.callback == "issuer":
            return mark
        origin = get_origin(server.authorization_endpoint)
        own = (get_origin(server.issuer), get_origin(server.token_endpoint))
        if server.sends_issuer or origin in own:
            return ""
        raise Declined(
            f'no login is made for "{self._name}": its authorization server '
            f'"{render_origin(server.issuer)}" sends people to '
            f'"{render_origin(server.authorization_endpoint)}", and the answer would not say '
            f"whose it is. Register the redirect URI {self._redirect_uri(mark)} there and "
            'set callback = "issuer" in its oauth settings. See: dragoman docs oauth'
        )

    async def _find_client(
        self, found: Discovered, mark: str, scopes: tuple[str, ...]
    ) -> ClientIdentity:
        return await self._registration.find_client(
            found, self._redirect_uri(mark), self._document_url(mark), scopes
        )

    async def finish(self, state: str, query: Mapping[str, str], mark: str) -> Grant:
        """Ends it with the query of the redirect, which has come to the redirect URI with `mark`.
        Raises `InvalidInput` for an unknown, used or expired `state`, `Declined` if consent was
        denied, `BadReply` for anything suspicious."""
        pending = self._logins.take(state)
        server = pending.server
        if mark != pending.mark:
            raise BadReply(
                f'the login for "{self._name}" was refused: its answer came to the redirect URI of '
                "another authorization server; no code was sent. Start the login again"
            )
        if query.get("state") != state:
            raise InvalidInput("the redirect has another state; start the login again")
        self._check_response_issuer(server, query.get("iss"))
        self._registration.note_returned(pending.client)
        if "error" in query:
            raise self._build_denial(query)
        code = query.get("code", "")
        if not code or len(code) > 8192:
            raise BadReply(f'the login for "{self._name}" returned without a code; start it again')
        form = {
            "grant_type": "authorization_code",
            "code": code,
            "redirect_uri": pending.redirect_uri,
            "code_verifier": pending.verifier,
            "resource": pending.resource,
        }
        return await self._redeem(pending, form)

    def _check_response_issuer(self, server: ServerMetadata, iss: str | None) -> None:
        """RFC 9207, section 2.4: byte for byte, and before anything else in the answer is used."""
        if iss is None and not server.sends_issuer:
            return
        if iss != server.issuer:
            how = "does not say which" if iss is None else "names another"
            raise BadReply(
                f'the login for "{self._name}" was refused: its answer {how} authorization server; '
                "no code was sent. Start the login again"
            )

    def _build_denial(self, query: Mapping[str, str]) -> HubError:
        code = quote_text(query["error"], 64)
        said = quote_text(query.get("error_description"))
        why = f"{code}: {said}" if said else code
        if code == "access_denied":
            return Declined(f'the login for "{self._name}" was declined ({why})')
        return Declined(f'the authorization server of "{self._name}" refused the login ({why})')

    async def _redeem(self, pending: PendingLogin | PendingDevice, form: dict[str, str]) -> Grant:
        server, client = pending.server, pending.client
        try:
            issued = await self._endpoint.request(
                server.token_endpoint, server.issuer, client, form
            )
        except EndpointRefused as error:
            if error.code in UNKNOWN_CLIENT and client.source == "registered":
                self._registration.forget_client(server.issuer, client)
            if isinstance(pending, PendingDevice):
                raise
            raise Declined(
                f'the authorization server of "{self._name}" issued no token ({error}); start the '
                "login again"
            ) from None
        self._registration.bind_issuer(server.issuer)
        stored = build_token(server, pending.resource, client, issued, pending.scopes)
        self._keep(pending.holder, stored)
        return Grant(
            pending.holder, server.issuer, stored.scopes, stored.expiry, bool(issued.refresh_token)
        )

    async def begin_device(self, holder: str, scopes: tuple[str, ...] = ()) -> DeviceLogin:
        """Starts a device flow (RFC 8628)."""
        found = await self._finder.find()
        server = found.server
        if not server.device_endpoint:
            raise Declined(
                f'the authorization server of "{self._name}" has no login by code; log in with a '
                "browser"
            )
        wanted = self._collect_scopes(holder, found, scopes)
        client = await self._find_client(found, mark_issuer(server.issuer), wanted)
        form = {"client_id": client.client_id, "resource": found.resource.resource}
        if wanted:
            form["scope"] = " ".join(wanted)
        if self._settings.audience:
            form["audience"] = self._settings.audience
        try:
            answer = await self._endpoint.post(server.device_endpoint, server.issuer, client, form)
        except EndpointRefused as error:
            if error.code in UNKNOWN_CLIENT and client.source == "registered":
                self._registration.forget_client(server.issuer, client)
            raise Declined(
                f'the authorization server of "{self._name}" refused a login by code ({error})'
            ) from None
        code, user_code = answer.get("device_code"), answer.get("user_code")
        if not isinstance(code, str) or not isinstance(user_code, str) or not code or not user_code:
            raise BadReply(f'the authorization server of "{self._name}" sent no device code')
        uri = self._discovery.check(answer.get("verification_uri"), "the verification_uri")
        complete = answer.get("verification_uri_complete")
        if complete is not None:
            complete = self._discovery.check(complete, "the verification_uri_complete")
        now = time.time()
        life = min(_read_number(answer.get("expires_in"), 600.0), 3600.0)
        least = self._limits.poll_seconds
        interval = min(max(_read_number(answer.get("interval"), 5.0), least), 60.0)
        pending = PendingDevice(
            holder, server, client, found.resource.resource, wanted, code, now + life, interval,
            now + interval,
        )  # fmt: skip
        id = self._devices.add(pending)
        return DeviceLogin(
            id, quote_text(user_code, 64), uri, complete or "", now + life, interval,
            server.issuer, wanted,
        )  # fmt: skip

    async def poll_device(self, id: str) -> Grant | None:
        """Asks once; None while the person has not decided. Before the interval is over, nothing is
        asked."""
        pending = self._devices.take(id)
        now = time.time()
        if now < pending.next_at:
            self._devices.put_back(id, pending)
            return None
        form = {
            "grant_type": DEVICE_CODE,
            "device_code": pending.device_code,
            "resource": pending.resource,
        }
        try:
            return await self._redeem(pending, form)
        except EndpointRefused as error:
            if error.code == "slow_down":
                pending.interval += 5.0
            elif error.code != "authorization_pending":
                raise Declined(f'the login for "{self._name}" was declined ({error})') from None
        except Unreachable:
            pending.interval *= 2  # RFC 8628, section 3.5
        pending.next_at = time.time() + pending.interval
        self._devices.put_back(id, pending)
        return None

    def _collect_scopes(
        self, holder: str, found: Discovered, more: tuple[str, ...]
    ) -> tuple[str, ...]:
        """The scopes of a login: what the server asks for, what it asked for later, and what an
        earlier login at the same issuer had."""
        had = self._list_wanted(holder, found.server.issuer)
        scopes = join_scopes(self._finder.choose_scopes(found), had, more)
        if scopes and OFFLINE in found.server.scopes:
            scopes = join_scopes(scopes, (OFFLINE,))
        return scopes


def _read_number(value: object, default: float) -> float:
    return float(value) if isinstance(value, int | float) and 0 <= value < 1e9 else default
