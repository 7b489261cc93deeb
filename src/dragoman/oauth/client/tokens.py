"""The tokens for one server or agent, one per holder: obtained, kept, refreshed, revoked.

A token is refreshed before it expires, by one request however many callers wait. A refresh token
that the authorization server rejects ends in one state, *needs login*; failures that pass leave the
tokens as they are. A new refresh token is on the disk before the access token beside it is used.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Literal

from msgspec.structs import replace

from dragoman.core.background import Background
from dragoman.core.backoff import Backoff, add_jitter
from dragoman.core.errors import (
    BadReply,
    ConfigError,
    Declined,
    HubError,
    LoginRequired,
    StorageFailed,
    TargetFailed,
    Unreachable,
)
from dragoman.core.logs import STORAGE_OUTAGE
from dragoman.core.ports import CredentialStore
from dragoman.core.urls import render_origin
from dragoman.oauth.client.challenges import BearerChallenge, join_scopes, parse_challenge
from dragoman.oauth.client.discovery import Discovery
from dragoman.oauth.client.exchanges import EndpointRefused, quote_text
from dragoman.oauth.client.grants import (
    FindSubject,
    StoredToken,
    TokenClient,
    build_token,
    finite_expiry,
)
from dragoman.oauth.client.limits import LIMITS, OAuthLimits
from dragoman.oauth.client.login_flows import LoginFlows
from dragoman.oauth.client.records import (
    AccessToken,
    CredentialStatus,
    DeviceLogin,
    ForgottenLogin,
    Grant,
    LoginDestination,
    LoginRequest,
    ResolveSecret,
)
from dragoman.oauth.client.registration import UNKNOWN_CLIENT, ClientRegistration
from dragoman.oauth.client.server_finder import ServerFinder
from dragoman.oauth.client.token_vault import TokenVault
from dragoman.oauth.client.urls import check_url
from dragoman.oauth.config import OAuthSettings
from dragoman.wire.http import HttpClient

log = logging.getLogger(__name__)

NO_LOGIN = "there was no login yet"
INTERACTIVE = frozenset({"authorization_code", "device_code"})
_DEAD = frozenset(
    (
        "invalid_grant", "invalid_client", "unauthorized_client", "unsupported_grant_type",
        "invalid_scope", "invalid_target", "access_denied", "login_required",
        "interaction_required", "consent_required",
    )
)  # fmt: skip
"""Errors of a token endpoint that trying again does not change."""
MAX_WANTED = 200
"""How many scopes are asked for, however many a server challenges with."""
_MAX_STEP_UPS = 32

Notify = Callable[[str, CredentialStatus], None]
"""Gets a holder and its new status."""


class _Slot:
    """A holder's token in memory."""

    __slots__ = (
        "backoff",
        "blocked_until",
        "failure",
        "flight",
        "forced_at",
        "generation",
        "holder",
        "refresh_at",
        "retry_at",
        "step_ups",
        "stored",
        "token",
        "unstored",
        "wanted",
    )

    def __init__(self, holder: str, limits: OAuthLimits) -> None:
        self.holder = holder
        self.stored: StoredToken | None = None
        self.unstored: StoredToken | None = None
        """What could not be stored, and is stored later."""
        self.token: AccessToken | None = None
        self.refresh_at = 0.0
        """Until then the token is used without further checks."""
        self.flight: asyncio.Task[None] | None = None
        self.failure: tuple[Literal["login", "passing"], str] | None = None
        """How the last refresh failed."""
        self.retry_at = 0.0
        self.backoff = Backoff(limits.retry_first, limits.retry_longest)
        self.forced_at = float("-inf")
        """When the token replaced a rejected one, until the server has accepted it."""
        self.blocked_until = 0.0
        """The server rejects what the authorization server issues."""
        self.generation = 0
        """Changes with each login and logout: a refresh that began before is void."""
        self.wanted: tuple[str, ...] = ()
        """Scopes that the server has asked for since."""
        self.step_ups: dict[frozenset[str], int] = {}
        """How often each set of missing scopes was asked for and then logged in for."""

    @property
    def is_idle(self) -> bool:
        return self.flight is None and not self.wanted


class TokenManager:
    """Each holder's token for one resource. Only the event loop's thread uses it."""

    def __init__(
        self,
        resource_url: str,
        settings: OAuthSettings,
        http: HttpClient,
        store: CredentialStore,
        resolve_secret: ResolveSecret,
        redirect_uri: Callable[[str], str],
        client_metadata_url: Callable[[str], str],
        name: str,
        *,
        notify: Notify | None = None,
        find_subject: FindSubject | None = None,
        limits: OAuthLimits = LIMITS,
    ) -> None:
        """`http` must not follow redirects, and reaches no address that the server itself may not
        have: `OutboundHttp.open_configured(url, allow_private=..., follow=False)`. `redirect_uri`
        and `client_metadata_url` get the mark of an issuer, and are asked at each login, since the
        port of a hub is known after its start; the latter is empty unless the hub has a public
        https URL. Raises `ConfigError`
        for a server that tokens would reach unencrypted."""
        try:
            check_url(resource_url.partition("#")[0], "the URL", allow_loopback=True)
        except BadReply as problem:
            raise ConfigError(f'"{name}" cannot use OAuth: {problem}') from None
        self.name = name
        self.resource_url = resource_url
        self.settings = settings
        self._notify = notify
        self._limits = limits
        self._vault = TokenVault(name, resource_url, settings, store)
        self._discovery = Discovery(http, resource_url, limits)
        self._finder = ServerFinder(resource_url, settings, http, self._discovery, limits)
        self._registration = ClientRegistration(name, settings, http, store, limits)
        self._endpoint = TokenClient(
            name, settings, http, resolve_secret, self._discovery, limits, find_subject
        )
        self._flows = LoginFlows(
            name,
            settings,
            self._discovery,
            self._finder,
            self._registration,
            self._endpoint,
            redirect_uri,
            client_metadata_url,
            limits,
            self._keep_login,
            self._list_wanted,
        )
        self._slots: dict[str, _Slot] = {}
        self._background = Background(f'tokens of "{name}"')
        self._storing = Background(f'tokens of "{name}" that are not stored')

    @property
    def is_interactive(self) -> bool:
        """Whether a person has to log in."""
        return self.settings.grant in INTERACTIVE

    # --- tokens ----------------------------------------------------------------------------------

    def peek(self, holder: str) -> AccessToken | None:
        """Returns the token if it can be used without waiting."""
        slot = self._slots.get(holder)
        return slot.token if slot is not None and time.time() < slot.refresh_at else None

    async def find_token(self, holder: str) -> AccessToken:
        """Returns a valid token, refreshed if necessary. Raises `LoginRequired`, `Declined` where a
        login cannot help, or `Unreachable` while the authorization server does not answer."""
        slot = self._find_slot(holder)
        now = time.time()
        if slot.token is not None and now < slot.refresh_at:
            return slot.token
        if now < slot.blocked_until:
            raise self._build_error(slot)
        if slot.token is not None and now < self._get_last_use(slot.token):
            if self._can_renew(slot) and now >= slot.retry_at:
                self._start_flight(slot, None)
            return slot.token
        if not self._can_renew(slot):
            raise self._build_error(slot)
        return await self._renew(slot, None)

    def note_accepted(self, holder: str, token: AccessToken) -> None:
        """The server has accepted a token: if it rejects that one later, another one may help."""
        slot = self._slots.get(holder)
        if slot is not None and slot.token is token:
            slot.forced_at = float("-inf")

    async def note_rejected(
        self, holder: str, token: AccessToken | None, www_authenticate: str
    ) -> AccessToken:
        """Returns another token after the server has rejected this one. Raises `LoginRequired` if
        only a login can help; its `scopes` are those that the login will ask for."""
        challenge = parse_challenge(www_authenticate)
        slot = self._find_slot(holder)
        now = time.time()
        current = slot.token
        is_usable = current is not None and slot.blocked_until <= now < self._get_last_use(current)
        if current is not None and is_usable and (token is None or token.value != current.value):
            return current  # replaced while the request was running
        if challenge.lacks_scope:
            return await self._step_up(slot, challenge)
        self._finder.note_challenge(challenge)
        if not self._can_renew(slot):
            if slot.stored is not None and not slot.stored.problem:
                self._end(slot, "the server rejected the token, and it cannot be refreshed")
            raise self._build_error(slot)
        if now - slot.forced_at < self._limits.fresh_seconds:
            slot.blocked_until = now + self._limits.fresh_seconds
            slot.refresh_at = 0.0
            slot.failure = ("login", "the server rejects the tokens that were issued for it")
            self._report(slot)
            raise self._build_error(slot)
        slot.refresh_at = 0.0
        return await self._renew(slot, challenge)

    async def _step_up(self, slot: _Slot, challenge: BearerChallenge) -> AccessToken:
        """The server needs more scopes: the union of those asked for before and these."""
        missing = frozenset(challenge.scopes)
        had = slot.stored.wanted if slot.stored is not None else ()
        tried = slot.step_ups.get(missing, 0)
        shown = quote_text(" ".join(challenge.scopes)) or "it does not say which"
        if tried >= self._limits.step_ups:
            raise Declined(
                f'"{self.name}" needs scopes that its authorization server does not give '
                f"({shown}), although they were asked for"
            )
        if len(slot.step_ups) >= _MAX_STEP_UPS:
            slot.step_ups.clear()
        slot.step_ups.setdefault(missing, 0)
        slot.wanted = join_scopes(challenge.scopes, had, slot.wanted)[:MAX_WANTED]
        if self.is_interactive:
            raise LoginRequired(
                f'"{self.name}" needs a login with more scopes ({shown})',
                server=self.name,
                scopes=slot.wanted,
            )
        slot.step_ups[missing] = tried + 1
        slot.refresh_at = 0.0
        return await self._renew(slot, challenge)

    def _can_renew(self, slot: _Slot) -> bool:
        if not self.is_interactive:
            return True
        stored = slot.stored
        return stored is not None and bool(stored.refresh_token) and not stored.problem

    def _get_last_use(self, token: AccessToken) -> float:
        life = max(token.expires_at - token.issued_at, 0.0)
        return token.expires_at - min(self._limits.leeway_seconds, life / 10)

    # --- refreshing ------------------------------------------------------------------------------

    async def _renew(self, slot: _Slot, challenge: BearerChallenge | None) -> AccessToken:
        """Waits for a new token, together with all others who need it. The challenge is that of a
        server which has rejected the old one."""
        if slot.flight is None and time.time() < slot.retry_at:
            raise self._build_error(slot)
        flight = self._start_flight(slot, challenge)
        try:
            await asyncio.shield(flight)
        except asyncio.CancelledError:
            caller = asyncio.current_task()
            if not flight.cancelled() or (caller is not None and caller.cancelling()):
                raise
            raise Unreachable(f'no token for "{self.name}": the hub stops', sent=False) from None
        if slot.failure is not None or slot.token is None:
            raise self._build_error(slot)
        return slot.token

    def _start_flight(self, slot: _Slot, challenge: BearerChallenge | None) -> asyncio.Task[None]:
        if slot.flight is None:
            slot.flight = self._background.spawn(self._fly(slot, challenge))
        return slot.flight

    async def _fly(self, slot: _Slot, challenge: BearerChallenge | None) -> None:
        generation, was = slot.generation, slot.stored
        try:
            if self.is_interactive:
                await self._refresh(slot, challenge, generation)
            else:
                await self._obtain(slot, challenge, generation)
        except EndpointRefused as error:
            if generation != slot.generation:
                return
            if error.code in _DEAD:
                self._end_refused(slot, was, error)
            else:
                self._postpone(slot, f"its authorization server answered with {error}")
        except HubError as error:
            if generation == slot.generation:
                self._postpone(slot, str(error))
        finally:
            slot.flight = None

    async def _refresh(
        self, slot: _Slot, challenge: BearerChallenge | None, generation: int
    ) -> None:
        stored = slot.stored
        assert stored is not None
        if challenge is not None and not await self._is_still_accepted(stored, challenge):
            if generation == slot.generation:
                self._end(slot, "the server now accepts tokens of another authorization server")
            return
        try:
            issued = await self._endpoint.refresh(stored)
        except BadReply:
            moved = await self._find_new_endpoint(stored)
            if moved is None:
                raise
            stored = moved
            issued = await self._endpoint.refresh(stored)
        renewed = replace(
            stored,
            access_token=issued.access_token,
            refresh_token=issued.refresh_token or stored.refresh_token,
            expires_at=finite_expiry(issued.expires_at),
            issued_at=time.time(),
            scopes=stored.scopes if issued.scopes is None else issued.scopes,
        )
        if generation != slot.generation:  # logged out, or in again, meanwhile
            await self._revoke(renewed)
            return
        self._keep(slot, renewed)
        if challenge is not None:
            slot.forced_at = renewed.issued_at

    async def _find_new_endpoint(self, stored: StoredToken) -> StoredToken | None:
        """After an answer that is not OAuth: the endpoints of the issuer may have moved."""
        try:
            server = await self._discovery.find_server(stored.issuer)
        except HubError:
            return None
        if server.token_endpoint == stored.token_endpoint:
            return None
        return replace(
            stored,
            token_endpoint=server.token_endpoint,
            revocation_endpoint=server.revocation_endpoint,
        )

    async def _is_still_accepted(self, stored: StoredToken, challenge: BearerChallenge) -> bool:
        """Whether the resource still names the issuer of a token that it has rejected."""
        try:
            resource = await self._discovery.find_resource(challenge)
        except HubError:
            return True  # the authorization server decides
        return not resource.servers or stored.issuer in resource.servers

    async def _obtain(
        self, slot: _Slot, challenge: BearerChallenge | None, generation: int
    ) -> None:
        found = await self._finder.find()
        if self.settings.client_id:
            self._registration.check_issuer(found.server.issuer)
        scopes = join_scopes(self._finder.choose_scopes(found), slot.wanted)
        client, issued = await self._endpoint.obtain(found, slot.holder, scopes)
        self._registration.bind_issuer(found.server.issuer)
        if generation == slot.generation:
            token = build_token(found.server, found.resource.resource, client, issued, scopes)
            self._keep(slot, token, store=False)
            if challenge is not None and not challenge.lacks_scope:
                slot.forced_at = token.issued_at

    def _keep(self, slot: _Slot, stored: StoredToken, *, store: bool = True) -> None:
        """Stores tokens, then uses them. Those of machines are obtained again after a restart."""
        was_stored, slot.unstored = slot.unstored is None, None
        if store:
            try:
                self._vault.save(slot.holder, stored)
            except StorageFailed as error:
                # The old refresh token may be void already: memory has the only valid one.
                STORAGE_OUTAGE.note(f'the new tokens of "{self.name}" are stored later: {error}')
                slot.unstored = stored
                if was_stored:
                    self._storing.spawn(self._keep_storing(slot))
        has_changed = slot.failure is not None or slot.token is None or bool(stored.problem)
        self._use(slot, stored)
        if has_changed:
            self._report(slot)

    async def _keep_storing(self, slot: _Slot) -> None:
        pauses = Backoff(self._limits.retry_first, self._limits.retry_longest)
        while slot.unstored is not None:
            await asyncio.sleep(pauses.next_delay())
            with suppress(StorageFailed):  # it was logged
                self._store_again(slot)

    def _store_again(self, slot: _Slot) -> None:
        """Stores what could not be stored, unless the holder has logged in or out since. Raises
        `StorageFailed`."""
        if (stored := slot.unstored) is None:
            return
        there = self._vault.load(slot.holder)
        if there is not None and there.logged_in_at == stored.logged_in_at:
            self._vault.save(slot.holder, stored)
        slot.unstored = None

    def _use(self, slot: _Slot, stored: StoredToken) -> None:
        slot.stored = stored
        slot.failure = ("login", stored.problem) if stored.problem else None
        slot.retry_at = slot.blocked_until = 0.0
        slot.backoff.reset()
        if stored.problem:
            slot.token, slot.refresh_at = None, 0.0
            return
        expiry = stored.expiry
        slot.token = AccessToken(stored.access_token, expiry, stored.scopes, stored.issued_at)
        margin = min(self._limits.margin_seconds, max(expiry - stored.issued_at, 0.0) / 5)
        # The jitter keeps the tokens of many users from being refreshed at once.
        slot.refresh_at = min(expiry - add_jitter(margin), self._get_last_use(slot.token))

    def _end_refused(self, slot: _Slot, was: StoredToken | None, error: EndpointRefused) -> None:
        if was is not None and self.is_interactive:
            # Another manager of the same server (a hub that reloads its configuration) may have
            # refreshed it in between.
            now = self._vault.load(slot.holder)
            if now is not None and not now.problem and now.refresh_token != was.refresh_token:
                self._use(slot, now)
                return
            if error.code in UNKNOWN_CLIENT and was.client.source == "registered":
                self._registration.forget_client(was.issuer, was.client)
        self._end(slot, f"its authorization server refused to issue a token ({error})")

    def _end(self, slot: _Slot, problem: str) -> None:
        """Marks the credential as unusable, in the store too, without its tokens."""
        log.warning('"%s" needs a login: %s', self.name, problem)
        stored = slot.stored
        if stored is not None and self.is_interactive:
            self._keep(slot, stored.end(problem))
            return
        slot.token, slot.refresh_at = None, 0.0
        slot.failure = ("login", problem)
        slot.retry_at = time.time() + slot.backoff.next_delay()
        self._report(slot)

    def _postpone(self, slot: _Slot, problem: str) -> None:
        """Keeps the tokens after a failure that may pass."""
        slot.retry_at = time.time() + slot.backoff.next_delay()
        slot.failure = ("passing", problem)
        log.warning('the token of "%s" was not refreshed: %s', self.name, problem)

    def _build_error(self, slot: _Slot) -> TargetFailed:
        """Builds a new error for each caller."""
        kind, problem = slot.failure or ("login", self._explain_missing(slot))
        if kind == "passing":
            return Unreachable(f'no token for "{self.name}": {problem}', sent=False)
        if not self.is_interactive:
            return Declined(f'no token for "{self.name}": {problem}')
        stored = slot.stored
        scopes = join_scopes(stored.wanted if stored is not None else (), slot.wanted)
        return LoginRequired(
            f'"{self.name}" needs a login: {problem}', server=self.name, scopes=scopes
        )

    def _explain_missing(self, slot: _Slot) -> str:
        if slot.stored is None:
            return NO_LOGIN
        return "the last login has expired and cannot be refreshed"

    # --- logging in and out -----------------------------------------------------------------------

    async def begin_login(self, holder: str, scopes: tuple[str, ...] = ()) -> LoginRequest:
        """Starts an authorization code flow; `scopes` are asked for besides the usual ones."""
        self._check_interactive()
        return await self._flows.begin(holder, scopes)

    async def find_destination(self) -> LoginDestination:
        """Finds where `begin_login` would send a person."""
        self._check_interactive()
        return await self._flows.find_destination()

    async def finish_login(self, state: str, query: Mapping[str, str], mark: str) -> Grant:
        """Ends it with the query of the redirect, which has come to the redirect URI with `mark`.
        Raises `InvalidInput` for an unknown, used or expired `state`, `Declined` if consent was
        denied, `BadReply` for anything suspicious."""
        return await self._flows.finish(state, query, mark)

    async def begin_device_login(self, holder: str, scopes: tuple[str, ...] = ()) -> DeviceLogin:
        """Starts a device flow (RFC 8628)."""
        self._check_interactive()
        return await self._flows.begin_device(holder, scopes)

    async def poll_device_login(self, id: str) -> Grant | None:
        """Asks once; None while the person has not decided. Before the interval is over, nothing is
        asked."""
        return await self._flows.poll_device(id)

    def _check_interactive(self) -> None:
        if not self.is_interactive:
            raise Declined(
                f'"{self.name}" needs no login: the hub gets its tokens itself, by '
                f'grant = "{self.settings.grant}"'
            )

    def _keep_login(self, holder: str, stored: StoredToken) -> None:
        slot = self._find_slot(holder)
        stored = replace(stored, logged_in_at=stored.issued_at)
        self._note_login(slot, stored)
        self._vault.save(holder, stored)
        self._keep(slot, stored, store=False)
        # Only the newest login counts: its issuer may be another one than before.
        self._vault.delete(holder, but=stored)

    def _note_login(self, slot: _Slot, stored: StoredToken) -> None:
        slot.generation += 1
        slot.forced_at = float("-inf")
        for missing in slot.step_ups:
            slot.step_ups[missing] += missing <= set(stored.wanted)
        slot.wanted = ()

    def reload(self) -> list[str]:
        """Uses what other hubs have stored meanwhile. Returns the holders who have logged in or out
        there. Raises `StorageFailed`."""
        if not self.is_interactive:
            return []
        changed = []
        for slot in list(self._slots.values()):
            self._store_again(slot)  # what is stored is older
            was, now = slot.stored, self._vault.load(slot.holder)
            if now is None:
                if was is None:
                    continue
                slot.generation += 1  # a refresh that is running is void
                slot.stored = slot.token = None
                slot.refresh_at = 0.0
                del self._slots[slot.holder]
            elif was is None or now.logged_in_at != was.logged_in_at or now.problem != was.problem:
                self._note_login(slot, now)
                self._use(slot, now)
            else:
                if now != was and slot.flight is None:
                    self._use(slot, now)
                continue
            changed.append(slot.holder)
        return changed

    def _list_wanted(self, holder: str, issuer: str) -> tuple[str, ...]:
        slot = self._find_slot(holder)
        stored = slot.stored
        had = stored.wanted if stored is not None and stored.issuer == issuer else ()
        return join_scopes(had, slot.wanted)

    async def forget(self, holder: str) -> ForgottenLogin:
        """Deletes the holder's tokens, and revokes them at the authorization server."""
        slot = self._find_slot(holder)
        stored = slot.stored
        slot.generation += 1
        slot.stored = slot.unstored = slot.token = None
        slot.refresh_at = 0.0
        self._flows.drop(holder)
        self._vault.delete(holder)
        del self._slots[holder]
        if stored is None:
            return ForgottenLogin(False, False)
        self._report(self._find_slot(holder))
        problem = await self._revoke(stored)
        return ForgottenLogin(True, not problem, problem)

    async def _revoke(self, stored: StoredToken) -> str:
        """Revokes tokens (RFC 7009); returns what went wrong."""
        origin = render_origin(stored.issuer)
        if not stored.access_token and not stored.refresh_token:
            return ""
        if not stored.revocation_endpoint:
            return f'the authorization server "{origin}" has no revocation'
        # A server that revokes the refresh token should revoke its access tokens; not all do.
        tokens = {"refresh_token": stored.refresh_token, "access_token": stored.access_token}
        for hint, token in tokens.items():
            if not token:
                continue
            form = {"token": token, "token_type_hint": hint}
            try:
                await self._endpoint.post(
                    stored.revocation_endpoint, stored.issuer, stored.client, form
                )
            except EndpointRefused as error:
                if error.code != "unsupported_token_type":
                    return f'the authorization server "{origin}" did not revoke it ({error})'
            except HubError as error:
                return f'the authorization server "{origin}" did not revoke it ({error})'
        return ""

    # --- status ----------------------------------------------------------------------------------

    def get_status(self, holder: str) -> CredentialStatus:
        slot = self._find_slot(holder)
        stored, now = slot.stored, time.time()
        problem = slot.failure[1] if slot.failure is not None else ""
        issuer = stored.issuer if stored is not None else ""
        if slot.failure is not None and slot.failure[0] == "login":
            scopes = stored.wanted if stored is not None else ()
            return CredentialStatus("needs_login", scopes, 0.0, problem, issuer)
        if stored is None or slot.token is None:
            return CredentialStatus("none", problem=problem)
        scopes, expiry = stored.scopes, stored.expiry
        if now < self._get_last_use(slot.token):
            return CredentialStatus("valid", scopes, expiry, problem, issuer)
        if self._can_renew(slot):
            return CredentialStatus("expired", scopes, expiry, problem, issuer)
        why = self._explain_missing(slot)
        return CredentialStatus("needs_login", stored.wanted, expiry, why, issuer)

    def list_holders(self) -> list[str]:
        """Lists the holders that have a stored credential."""
        return self._vault.list_holders()

    async def close(self) -> None:
        """Waits for running refreshes: their answers may have the only valid refresh tokens."""
        await self._background.close(grace=self._limits.request_seconds)
        await self._storing.close()
        for slot in self._slots.values():
            try:
                self._store_again(slot)
            except StorageFailed as error:
                log.error('the new tokens of "%s" are lost: %s', self.name, error)

    def _report(self, slot: _Slot) -> None:
        if self._notify is not None:
            self._notify(slot.holder, self.get_status(slot.holder))

    # --- stored tokens ---------------------------------------------------------------------------

    def _find_slot(self, holder: str) -> _Slot:
        slot = self._slots.get(holder)
        if slot is None:
            if len(self._slots) >= self._limits.max_holders:
                self._evict()
            slot = _Slot(holder, self._limits)
            if self.is_interactive and (stored := self._vault.load(holder)) is not None:
                self._use(slot, stored)
            self._slots[holder] = slot
        return slot

    def _evict(self) -> None:
        idle = [holder for holder, slot in self._slots.items() if slot.is_idle]
        for holder in idle[: max(len(idle) // 10, 1)]:
            del self._slots[holder]
