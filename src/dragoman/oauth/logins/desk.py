"""The login desk: hands out links to people who have to log in, and ends what waits for a login.

A link is a page of the hub. It has 128 bits of chance, is valid once and for a while, and belongs
to one holder. The desk knows neither HTTP nor HTML; `pages` shows the links.
"""

from __future__ import annotations

import asyncio
import hmac
import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from itertools import islice
from secrets import token_urlsafe
from time import time
from typing import TYPE_CHECKING, Any

from dragoman.core.access import USER_REMOVED, WhyEnded
from dragoman.core.background import Background, resolve
from dragoman.core.bus import Bus
from dragoman.core.call import Call
from dragoman.core.cluster import SINGLE_HUB, Ownership, find_mark
from dragoman.core.errors import (
    BadReply,
    Denied,
    HubError,
    InvalidInput,
    LoginRequired,
    NotFound,
    Overloaded,
    TimedOut,
    Unreachable,
)
from dragoman.core.events import LoginChanged, LoginNeeded
from dragoman.core.holders import (
    SHARED,
    find_holder_of,
    find_root,
    principal_from_holder,
    render_holder,
)
from dragoman.core.logins import LoginLink
from dragoman.core.principal import USER, Principal
from dragoman.oauth.logins.accounts import LoginAccount

if TYPE_CHECKING:
    from dragoman.oauth.client.records import CredentialStatus, LoginDestination

log = logging.getLogger(__name__)

LINK_SECONDS = 900.0
LEAST_SECONDS = 300.0
"""A link with less time left is not handed out again."""
MAX_LINKS = 2_000
MAX_LINKS_EACH = 20
"""Open links of one holder."""
KEPT_SECONDS = 600.0
"""How long the outcome of a login can be asked for."""

KEY = "key"
"""The kind of principals with a key of their own."""
LEAST_POLL = 0.1
"""Seconds between two polls of a device flow, whatever the server says."""

OPEN, STARTED, DONE, FAILED = "open", "started", "done", "failed"


@dataclass(eq=False, slots=True)
class Login:
    """A login that a person was asked for."""

    id: str
    account: LoginAccount
    holder: str
    by: Principal
    """Who asked for it."""
    scopes: tuple[str, ...]
    expires_at: float
    done: asyncio.Future[str]
    state: str = OPEN
    problem: str = ""
    granted: tuple[str, ...] = ()
    token: str = field(default_factory=lambda: token_urlsafe(24))
    """What the form of the page brings back."""
    cookie: str = field(default_factory=lambda: token_urlsafe(24))
    """What the browser that has started it brings back."""
    destination: LoginDestination | None = None
    """Where the page has said that the person will be sent."""

    @property
    def is_open(self) -> bool:
        return self.state == OPEN and time() < self.expires_at

    @property
    def is_pending(self) -> bool:
        """Whether it is open, or a person is logging in."""
        return self.state in (OPEN, STARTED) and time() < self.expires_at

    def render(self) -> dict[str, Any]:
        """For the API; without anything that could be used to log in."""
        return {
            "id": self.id,
            "name": self.account.name,
            "for": render_holder(self.holder),
            "state": FAILED if self.state != DONE and time() >= self.expires_at else self.state,
            "scopes": list(self.granted),
            "problem": self.problem,
        }


class HubLoginDesk:
    """Implements `core.logins.LoginDesk`."""

    def __init__(
        self,
        bus: Bus,
        find_base: Callable[[], str | None],
        may_administer: Callable[[Principal], bool],
        note_login: Callable[[LoginAccount, str], None],
        ownership: Ownership = SINGLE_HUB,
    ) -> None:
        """`find_base` returns the address at which browsers reach the hub, if it has one;
        `note_login` is called when the credential of a holder is new or was removed."""
        self._bus = bus
        self.find_base = find_base
        self.may_administer = may_administer
        self._note_login = note_login
        self._ownership = ownership
        self._accounts: dict[str, LoginAccount] = {}
        self._logins: dict[str, Login] = {}
        self._states: dict[str, Login] = {}
        """By the `state` of their authorization requests."""
        self._background = Background("logins")

    # --- accounts --------------------------------------------------------------------------------

    def add_account(self, account: LoginAccount) -> None:
        self.remove_account(account.name)
        self._accounts[account.name] = account

    def remove_account(self, name: str) -> None:
        account = self._accounts.pop(name, None)
        if account is not None:
            self._background.spawn(account.close())

    def get_account(self, name: str) -> LoginAccount:
        account = self._accounts.get(name)
        if account is None:
            raise build_no_account(name)
        return account

    def find_holder(self, account: LoginAccount, by: Principal, *, shared: bool = False) -> str:
        """Finds the holder that a principal logs in for. Raises `Denied`."""
        if shared or not account.is_per_user:
            if not self.may_administer(by):
                raise Denied(
                    f'"{by.label}" may not log in at {account.label} for all users: an '
                    'administrator may, by a policy that permits the action "admin"'
                )
            return SHARED
        holder = find_holder_of(by)
        if holder is None:
            raise Denied(f'"{by.label}" has no credentials of its own')
        return holder

    # --- links for callers -----------------------------------------------------------------------

    def open_link(self, call: Call, error: LoginRequired) -> LoginLink | None:
        account, root, base = self._accounts.get(error.server), find_root(call), self.find_base()
        if account is None or root is None or base is None or account.is_machine:
            return None
        try:
            holder = self.find_holder(account, root)
            login = self._find_login(account, holder, root, error.scopes)
        except (Denied, Overloaded):
            return None
        return LoginLink(login.id, self.build_url(base, login), login.done)

    def explain(self, error: LoginRequired) -> LoginRequired:
        account = self._accounts.get(error.server)
        return account.explain(error) if account is not None else error

    def find_link(self, id: str) -> LoginLink | None:
        login, base = self._logins.get(id), self.find_base()
        if login is None or base is None:
            return None
        return LoginLink(login.id, self.build_url(base, login), login.done)

    @staticmethod
    def build_url(base: str, login: Login) -> str:
        return f"{base}/oauth/connect/{login.id}"

    def begin(
        self, account: LoginAccount, by: Principal, scopes: tuple[str, ...] = (), *, shared: bool
    ) -> Login:
        """Opens a login for the API and the command line."""
        holder = self.find_holder(account, by, shared=shared)
        if account.is_machine:
            raise InvalidInput(
                f"{account.label} needs no person to log in: its `grant` is "
                f'"{account.spec.settings.grant if account.spec.settings else ""}"'
            )
        return self._find_login(account, holder, by, scopes)

    def _find_login(
        self, account: LoginAccount, holder: str, by: Principal, scopes: tuple[str, ...]
    ) -> Login:
        """Returns the open login for the same purpose, or opens one."""
        now = time()
        mine = [one for one in self._logins.values() if one.holder == holder and one.is_open]
        for one in mine:
            is_same = one.account is account and one.by == by and set(scopes) <= set(one.scopes)
            if is_same and one.expires_at - now > LEAST_SECONDS:
                return one
        self._sweep(now)
        self._check_room(holder)
        done: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        id = self._ownership.mark + token_urlsafe(24)
        login = Login(id, account, holder, by, scopes, now + LINK_SECONDS, done)
        self._logins[login.id] = login
        self._bus.emit(LoginNeeded(account.name, render_holder(holder), " ".join(scopes)))
        return login

    def _check_room(self, holder: str) -> None:
        """Raises `Overloaded` if the holder, or all holders together, have too many logins that may
        still end well."""
        mine = [one for one in self._logins.values() if one.holder == holder and one.is_pending]
        if len(self._logins) >= MAX_LINKS:  # first those whose outcome is known
            ended = (id for id, one in self._logins.items() if not one.is_pending)
            for id in list(islice(ended, MAX_LINKS // 10)):
                del self._logins[id]
        if len(mine) >= MAX_LINKS_EACH or len(self._logins) >= MAX_LINKS:
            raise Overloaded("too many logins are open; finish some first, or wait until they end")

    def _sweep(self, now: float) -> None:
        for id, login in list(self._logins.items()):
            if now > login.expires_at + KEPT_SECONDS:
                del self._logins[id]
        self._states = {
            state: login for state, login in self._states.items() if login.id in self._logins
        }

    def find_login(self, id: str) -> Login | None:
        """Raises `OwnedElsewhere` for a login of another hub, as the next two do."""
        if id not in self._logins:
            self._ownership.check(find_mark(id))
        return self._logins.get(id)

    def get_own_login(self, id: str, by: Principal) -> Login:
        """Finds a login of the principal; raises `NotFound`."""
        login = self.find_login(id)
        if login is None or login.by.key != by.key:
            raise NotFound(f'there is no login "{id[:60]}"')
        return login

    # --- the flow in the browser -----------------------------------------------------------------

    async def find_destination(self, login: Login) -> LoginDestination:
        """Finds where the person will be sent, for the page; `start` sends nowhere else."""
        login.destination = await login.account.tokens.find_destination()
        return login.destination

    async def start(self, login: Login, token: str) -> tuple[str, str]:
        """Starts the login of a person who has confirmed the page; valid once. Returns the URL of
        the authorization server and the `state`."""
        if not login.is_open or not hmac.compare_digest(login.token.encode(), token.encode()):
            raise InvalidInput("this link has expired or was used already; ask for another one")
        login.state = STARTED
        try:
            request = await login.account.tokens.begin_login(login.holder, login.scopes)
            if login.destination is None or not login.destination.is_reached_by(request.url):
                raise BadReply(
                    f"{login.account.label} has changed where people log in since the page was "
                    "opened; ask for another link"
                )
        except HubError as error:
            self._fail(login, str(error))
            raise
        self._states[request.state] = login
        return request.url, request.state

    def find_started(self, state: str) -> Login | None:
        login = self._states.get(state)
        if login is None:
            self._ownership.check(find_mark(state))
        return login if login is not None and login.state == STARTED else None

    async def finish(self, login: Login, state: str, query: Mapping[str, str], mark: str) -> None:
        """Ends a login with what the authorization server has sent to the redirect URI with
        `mark`. Raises why it failed."""
        self._states.pop(state, None)
        try:
            grant = await login.account.tokens.finish_login(state, query, mark)
        except HubError as error:
            self._fail(login, str(error))
            raise
        self._succeed(login, grant.scopes)

    def _fail(self, login: Login, problem: str) -> None:
        login.state, login.problem = FAILED, problem[:1_000]
        resolve(login.done, login.problem or "it failed")
        log.warning("a login at %s failed: %s", login.account.label, login.problem)

    def _succeed(self, login: Login, scopes: tuple[str, ...]) -> None:
        login.state, login.granted = DONE, tuple(scopes)
        account, holder = login.account, login.holder
        log.info("%s: %s has logged in", account.label, render_holder(holder))
        self._note_change(account, holder)
        for one in self._logins.values():  # those of other calls of the same holder, too
            if one.account is account and one.holder == holder:
                resolve(one.done, "")
        self._bus.emit(LoginChanged(account.name, render_holder(holder), "login"))

    # --- devices ---------------------------------------------------------------------------------

    async def begin_device(
        self, account: LoginAccount, by: Principal, scopes: tuple[str, ...] = (), *, shared: bool
    ) -> tuple[Login, dict[str, Any]]:
        """Starts a device flow; returns the login, and what the person enters where."""
        holder = self.find_holder(account, by, shared=shared)
        self._sweep(time())
        self._check_room(holder)
        device = await account.tokens.begin_device_login(holder, scopes)
        done: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        login = Login(
            self._ownership.mark + token_urlsafe(24),
            account,
            holder,
            by,
            scopes,
            device.expires_at,
            done,
            STARTED,
        )
        self._logins[login.id] = login
        self._background.spawn(self._poll_device(login, device.id, device.interval))
        return login, {
            "user_code": device.user_code,
            "verification_uri": device.verification_uri,
            "verification_uri_complete": device.verification_uri_complete,
        }

    async def _poll_device(self, login: Login, id: str, interval: float) -> None:
        while time() < login.expires_at:
            await asyncio.sleep(max(interval, LEAST_POLL))
            if login.state != STARTED:
                return
            try:
                grant = await login.account.tokens.poll_device_login(id)
            except (Unreachable, TimedOut) as error:
                log.debug("a device login at %s: %s", login.account.label, error)
                continue
            except HubError as error:
                self._fail(login, str(error))
                return
            if grant is not None:
                self._succeed(login, grant.scopes)
                return
        self._fail(login, "the code was not entered in time")

    # --- logging out -----------------------------------------------------------------------------

    async def forget(self, account: LoginAccount, holder: str) -> dict[str, Any] | None:
        """Removes a login; returns what was done, None if there was none."""
        forgotten = await account.forget(holder)
        self._note_change(account, holder)
        if forgotten is None:
            return None
        who = render_holder(holder)
        log.info("%s: the login of %s was removed", account.label, who)
        self._bus.emit(LoginChanged(account.name, who, "logout"))
        return {"holder": who, "revoked": forgotten.is_revoked, "problem": forgotten.problem}

    async def reload(self) -> None:
        """Takes note of logins that were made or removed at other hubs. Raises `StorageFailed`."""
        for account in list(self._accounts.values()):
            for holder in account.reload():
                self._note_change(account, holder)

    def _note_change(self, account: LoginAccount, holder: str) -> None:
        account.note_login(holder)
        self._note_login(account, holder)

    def note_status(self, account: LoginAccount, holder: str, status: CredentialStatus) -> None:
        """A credential can no longer be refreshed: what used it fails from here on."""
        if status.state == "needs_login" and self._accounts.get(account.name) is account:
            self._note_change(account, holder)
            self._bus.emit(LoginChanged(account.name, render_holder(holder), "expired"))

    def end_principals(self, why_ended: WhyEnded) -> None:
        """Removes the logins of keys that were revoked or have expired and of users who were
        removed, which are of no further use, and revokes them. A user whose session ends keeps the
        logins."""
        ended: set[tuple[LoginAccount, str]] = set()
        for login in self._logins.values():
            if login.state in (OPEN, STARTED) and (why := _explain_over(why_ended, login.by)):
                self._fail(login, f"it was for {login.by.label}: {why}")
                if login.holder != SHARED:  # a device may be about to confirm it
                    ended.add((login.account, login.holder))
        for account in self._accounts.values():
            for holder in account.list_holders():
                principal = principal_from_holder(holder)
                if principal is not None and _explain_over(why_ended, principal):
                    ended.add((account, holder))
        for account, holder in ended:
            self._background.spawn(self._forget_ended(account, holder))

    async def _forget_ended(self, account: LoginAccount, holder: str) -> None:
        try:
            await self.forget(account, holder)
        except HubError as error:
            log.error("%s: a login was not removed: %s", account.label, error)

    def describe(self, account: LoginAccount, holder: str) -> dict[str, Any]:
        """Describes the login of a holder, without any token."""
        found: dict[str, Any] = {"credentials": "user" if account.is_per_user else "shared"}
        if not account.needs_token(holder):
            return {**found, "state": "not needed"}
        status = account.get_status(holder)
        state = "needs_login" if status.state == "none" and not account.is_machine else status.state
        found |= {"state": state, "for": render_holder(holder)}
        if status.scopes:
            found["scopes"] = list(status.scopes)
        if status.issuer:
            found["issuer"] = status.issuer
        if status.problem:
            found["problem"] = status.problem
        return found

    def summarize(self, name: str) -> dict[str, Any] | None:
        """Describes the logins at a server or agent for lists; None if it needs none."""
        account = self._accounts.get(name)
        if account is None:
            return None
        if account.is_per_user:
            return {"credentials": "user", "logins": len(account.list_holders())}
        return self.describe(account, SHARED) if account.needs_token(SHARED) else None

    async def close(self) -> None:
        await self._background.close()
        for account in self._accounts.values():
            await account.close()


def build_no_account(name: str) -> NotFound:
    return NotFound(
        f'there is nothing to log in to at "{name[:200]}": it is unknown or disabled, is no HTTP '
        "server or agent, or has its credentials in the configuration"
    )


def _explain_over(why_ended: WhyEnded, principal: Principal) -> str:
    """Explains why the logins of a principal are of no further use; empty while they are."""
    why = why_ended(principal) if principal.kind in (KEY, USER) else ""
    return why if principal.kind == KEY or why == USER_REMOVED else ""
