"""Sign-in of users in a browser: with a password or a passkey, after enrolment by a link."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Sequence
from typing import Protocol
from urllib.parse import urlencode

from dragoman.core.errors import HubError, InvalidInput, RateLimited
from dragoman.core.urls import parse_query
from dragoman.core.users import BrowserSession, UserGrants, UserRecord, Users
from dragoman.oauth.authority import pages
from dragoman.oauth.authority.attempts import Attempts
from dragoman.oauth.authority.passkeys import Passkeys
from dragoman.oauth.authority.passwords import PasswordChecker, check_password
from dragoman.oauth.authority.protocol import (
    Header,
    OAuthError,
    parse_form,
    reply_redirect,
)
from dragoman.wire.http import HttpRequest

_NEXT = re.compile(
    r"/oauth/(?:account|authorize\?[!-~]{1,8000}|connect/[A-Za-z0-9_-]{1,200})", re.ASCII
)
"""Where a sign-in may lead: pages of the hub that need one."""
ACCOUNT = "/oauth/account"
WRONG = "The user name or the password is wrong."
FRESH_SECONDS = 300.0
"""How long after a sign-in its browser may add a passkey, which outlives the session."""
STALE = "This page is too old, or your browser blocks cookies. Please try again."


class Browsers(Protocol):
    """The browser sessions, from `web`."""

    def find(self, request: HttpRequest) -> BrowserSession | None: ...

    def open(self, request: HttpRequest, user: UserRecord) -> list[Header]: ...

    def find_known(self, request: HttpRequest, user: str) -> str: ...

    def close(self, request: HttpRequest) -> list[Header]: ...

    def identify(self, request: HttpRequest) -> tuple[str, list[Header]]: ...

    def find_browser(self, request: HttpRequest) -> str: ...

    def build_form_token(self, id: str, purpose: str) -> str: ...

    def is_form_token(self, token: str, id: str, purpose: str) -> bool: ...


class SignIn:
    def __init__(
        self,
        users: Users,
        grants: UserGrants,
        browsers: Browsers,
        attempts: Attempts,
        passwords: PasswordChecker,
        passkeys: Passkeys,
        provider: str,
        note_failed: Callable[[str], None],
    ) -> None:
        """`provider` is the name of the identity provider, or empty; `note_failed` gets the address
        of a failed sign-in."""
        self._users = users
        self._grants = grants
        self._browsers = browsers
        self._attempts = attempts
        self._passwords = passwords
        self._passkeys = passkeys
        self._provider = provider
        self._note_failed = note_failed

    # --- the sign-in page ------------------------------------------------------------------------

    def show(
        self,
        request: HttpRequest,
        next: str,
        *,
        client: str = "",
        problem: str = "",
        user: str = "",
        status: int = 200,
    ) -> None:
        """Sends the sign-in page, which leads to `next`."""
        browser, headers = self._browsers.identify(request)
        page = pages.render_sign_in(
            self._browsers.build_form_token(browser, "login"),
            next,
            problem=problem,
            user=user,
            client=client,
            provider=self._provider,
            provider_url=f"/oauth/oidc/start?{urlencode({'next': next})}",
            passkey_options=self._passkeys.build_sign_in_options(browser),
            status=status,
        )
        reply_page(request, page, headers)

    async def serve_login(self, request: HttpRequest, address: str) -> None:
        if request.method != "POST":
            next = parse_query(request.query.decode("latin-1")).get("next", ACCOUNT)
            return self.show(request, find_next(next))
        form = parse_form(request)
        next = find_next(form.get("next", ""))
        name = form.get("user", "")[:200]
        browser = self._browsers.find_browser(request)
        if not self._browsers.is_form_token(form.get("token", ""), browser, "login"):
            return self.show(request, next, problem=STALE, user=name, status=403)
        try:
            folded = name.strip().lower()
            known = self._browsers.find_known(request, folded)
            self._attempts.take_sign_in(address, folded, known)
            user = self._users.find(name)
            hashed = user.password if user is not None else ""
            right = await self._passwords.verify(hashed, form.get("password", ""))
        except HubError as error:
            status = 429 if isinstance(error, RateLimited) else 503
            return self.show(request, next, problem=f"{error}.", user=name, status=status)
        if user is None or not right:
            self._note_failed(address)
            return self.show(request, next, problem=WRONG, user=name, status=401)
        return self.finish(request, user, "password", next)

    def serve_passkey(self, request: HttpRequest, address: str) -> None:
        """Signs a user in with a passkey."""
        form = parse_form(request)
        next = find_next(form.get("next", ""))
        browser = self._browsers.find_browser(request)
        if not self._browsers.is_form_token(form.get("token", ""), browser, "login"):
            return self.show(request, next, problem=STALE, status=403)
        try:
            self._attempts.take_passkey(address)
            user = self._passkeys.verify_sign_in(form.get("credential", ""), browser)
        except InvalidInput:
            self._note_failed(address)
            problem = "This passkey is not known here."
            return self.show(request, next, problem=problem, status=401)
        except RateLimited as error:
            return self.show(request, next, problem=f"{error}.", status=429)
        return self.finish(request, user, "passkey", next)

    def finish(self, request: HttpRequest, user: UserRecord, how: str, next: str) -> None:
        """Opens a browser session for the user and goes on."""
        self._users.note_sign_in(user.name, how)
        self._browsers.close(request)  # the session of another user
        reply_redirect(request, find_next(next), self._browsers.open(request, user))

    # --- enrolment -------------------------------------------------------------------------------

    async def serve_enrolment(self, request: HttpRequest) -> None:
        """Lets the holder of an enrolment link choose a password. Looking at the link does not use
        it up: programs preview links."""
        browser, headers = self._browsers.identify(request)
        token = self._browsers.build_form_token(browser, "enroll")
        if request.method != "POST":
            code = parse_query(request.query.decode("latin-1")).get("code", "")
            user = self._users.find_enrolment(code)
            if user is None:
                return reply_page(request, _EXPIRED)
            return reply_page(request, pages.render_enrolment(token, code, user.name), headers)
        form = parse_form(request)
        code, password = form.get("code", ""), form.get("password", "")
        user = self._users.find_enrolment(code)
        if user is None:
            return reply_page(request, _EXPIRED)
        problem = ""
        if not self._browsers.is_form_token(form.get("token", ""), browser, "enroll"):
            problem = STALE
        elif form.get("again") != password:
            problem = "The two passwords differ."
        else:
            try:
                check_password(password, user.name)
            except InvalidInput as error:
                problem = f"Please choose another one: {error}."
        if problem:
            page = pages.render_enrolment(token, code, user.name, problem)
            return reply_page(request, page, headers)
        hashed = await self._passwords.hash(password)
        done = self._users.finish_enrolment(code, hashed)
        if done is None:
            return reply_page(request, _EXPIRED)
        return self.finish(request, done, "enrolment", ACCOUNT)

    # --- the account -----------------------------------------------------------------------------

    def serve_account(self, request: HttpRequest) -> None:
        """Shows the signed-in user their connected apps and passkeys, and changes them."""
        session = self._browsers.find(request)
        if session is None:
            return self.show(request, ACCOUNT)
        problem = ""
        if request.method == "POST":
            form = parse_form(request)
            if not self._browsers.is_form_token(form.get("token", ""), session.id, "account"):
                raise OAuthError("invalid_request", STALE, 403)
            try:
                self._change_account(session, form)
                return reply_redirect(request, ACCOUNT)
            except InvalidInput as error:
                problem = f"{error}."
        user = session.user
        page = pages.render_account(
            self._browsers.build_form_token(session.id, "account"),
            user.name,
            self._grants.list(user.name),
            len(self._users.list_passkeys(user.name)),
            self._passkeys.build_options(user, session.id),
            problem,
            is_fresh=_is_fresh(session),
        )
        return reply_page(request, page)

    def _change_account(self, session: BrowserSession, form: dict[str, str]) -> None:
        user, what = session.user, form.get("do")
        if what == "disconnect":
            mine = [grant.id for grant in self._grants.list(user.name)]
            if (id := form.get("grant", "")) in mine:
                self._grants.revoke(id, "by the user")
        elif what == "remove-passkeys":
            self._users.remove_passkeys(user.name)
        elif what == "add-passkey":
            if not _is_fresh(session):
                raise InvalidInput("Please sign in again to add a passkey")
            self._passkeys.add(user, form.get("credential", ""), session.id)

    def serve_logout(self, request: HttpRequest) -> None:
        if request.method != "POST":
            return reply_redirect(request, ACCOUNT)
        form = parse_form(request)
        session = self._browsers.find(request)
        if session is not None and not self._browsers.is_form_token(
            form.get("token", ""), session.id, "account"
        ):
            raise OAuthError("invalid_request", STALE, 403)
        headers = self._browsers.close(request)
        if next := form.get("next"):
            return reply_redirect(request, find_next(next), headers)
        page = pages.render_message("Signed out", "You have signed out of the hub.")
        return reply_page(request, page, headers)


def _is_fresh(session: BrowserSession) -> bool:
    return 0 <= time.time() - session.record.created_at < FRESH_SECONDS


def find_next(given: str) -> str:
    """Returns `given` if it is a page of the hub that a sign-in may lead to, else the account."""
    return given if _NEXT.fullmatch(given) else ACCOUNT


def reply_page(request: HttpRequest, page: pages.Page, headers: Sequence[Header] = ()) -> None:
    request.reply(page.status, [*page.list_headers(), *headers], page.body)


_EXPIRED = pages.render_problem(
    404, "This link is not valid any more. Ask the person who runs the hub for another one."
)
