"""The pages of logins: `/oauth/connect/ID`, `/oauth/callback` and `/oauth/client.json`. The
latter two exist for each issuer as well, with the mark of the issuer below them.

A page says where, for whom and with which scopes a person is about to log in, and needs a click.
The click sets a cookie for the browser; the redirect of the authorization server is accepted from
that browser alone, so that no link makes a person log in for another user unnoticed. Pages have no
script, load nothing and cannot be framed.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
from collections.abc import Callable, Mapping
from html import escape
from typing import TYPE_CHECKING
from urllib.parse import quote, urlsplit

from dragoman.core.background import Work
from dragoman.core.errors import HubError, InvalidInput
from dragoman.core.holders import render_holder
from dragoman.core.principal import Principal
from dragoman.core.urls import parse_query, render_origin
from dragoman.oauth.client.urls import is_mark
from dragoman.oauth.logins.desk import DONE, HubLoginDesk, Login
from dragoman.wire.http import HttpRequest
from dragoman.wire.json import encode

if TYPE_CHECKING:
    from dragoman.oauth.client.records import LoginDestination

CONNECT, CALLBACK, CLIENT = "/oauth/connect", "/oauth/callback", "/oauth/client.json"
MAX_QUERY = 16 * 1024
COOKIE = "dragoman-login"
COOKIE_SECONDS = 900
LOOPBACK = frozenset({"localhost", "127.0.0.1", "::1"})

FindBrowserUser = Callable[[HttpRequest], Principal | None]
"""Finds the user who is signed in at the hub with this browser."""
FindSignIn = Callable[[Principal, str], str | None]
"""Returns where the principal signs in at the hub to come back to a path; None for one that signs
in nowhere."""

STYLE = (
    "body{font:17px/1.5 system-ui,sans-serif;max-width:34rem;margin:8vh auto;padding:0 1.2rem;"
    "color:#222;background:#fff}h1{font-size:1.4rem}dt{color:#666}dd{margin:0 0 .8rem;"
    "font-weight:600;overflow-wrap:anywhere}button{font:inherit;padding:.6rem 1.4rem;border:0;"
    "border-radius:.4rem;background:#1a5fb4;color:#fff;cursor:pointer}"
    "@media(prefers-color-scheme:dark){body{color:#ddd;background:#1b1b1b}dt{color:#999}}"
)
_STYLE_HASH = base64.b64encode(hashlib.sha256(STYLE.encode()).digest()).decode()
_POLICY = (
    f"default-src 'none'; style-src 'sha256-{_STYLE_HASH}'; base-uri 'none'; "
    # Browsers apply it to the redirect to the authorization server as well.
    "form-action 'self' https: http://127.0.0.1:* http://localhost:*; frame-ancestors 'none'"
)
HEADERS = [
    (b"content-type", b"text/html; charset=utf-8"),
    (b"content-security-policy", _POLICY.encode()),
    (b"x-frame-options", b"DENY"),
    (b"x-content-type-options", b"nosniff"),
    (b"cache-control", b"no-store"),
    # Not no-referrer: browsers would send `Origin: null` with the form.
    (b"referrer-policy", b"same-origin"),
]


class LoginPages:
    def __init__(
        self,
        desk: HubLoginDesk,
        build_client_document: Callable[[str], Mapping[str, object]],
        find_browser_user: FindBrowserUser = lambda request: None,
        find_sign_in: FindSignIn = lambda principal, path: None,
    ) -> None:
        self._desk = desk
        self._build_client_document = build_client_document
        self._find_browser_user = find_browser_user
        self._find_sign_in = find_sign_in

    def serve(self, request: HttpRequest, principal: Principal | None) -> Work[None] | None:
        """Serves all paths of this module; none needs a key: a link is its own proof."""
        path = request.path
        if (mark := _find_mark(path, CLIENT)) is not None and request.method in ("GET", "HEAD"):
            self._serve_client(request, mark)
            return None
        if (mark := _find_mark(path, CALLBACK)) is not None and request.method == "GET":
            return self._serve_callback(request, mark)
        if path.startswith(f"{CONNECT}/") and request.method in ("GET", "POST"):
            return self._serve_connect(request, path.removeprefix(f"{CONNECT}/"))
        _reply(request, 404, "Not found", "There is no such page.")
        return None

    def _serve_client(self, request: HttpRequest, mark: str) -> None:
        headers = [(b"content-type", b"application/json"), (b"cache-control", b"max-age=300")]
        request.reply(200, headers, encode(self._build_client_document(mark)))

    # --- the link --------------------------------------------------------------------------------

    def _serve_connect(self, request: HttpRequest, id: str) -> Work[None] | None:
        login = self._desk.find_login(id)
        if login is None or not login.is_open:
            _reply_used(request, login)
        elif (refuse := self._check_user(request, login)) is not None:
            refuse()
        elif request.method == "GET":
            return self._ask(request, login)
        else:
            return self._start(request, login)
        return None

    async def _ask(self, request: HttpRequest, login: Login) -> None:
        try:
            destination = await self._desk.find_destination(login)
        except HubError as error:
            return _reply(request, 502, "The login could not be started", str(error))
        return _reply_question(request, login, destination)

    def _check_user(self, request: HttpRequest, login: Login) -> Callable[[], None] | None:
        """Returns what answers a browser whose user is not the one who has to log in. A principal
        that does not sign in at the hub has nothing but the link."""
        sign_in = self._find_sign_in(login.by, request.path)
        if sign_in is None:
            return None
        user = self._find_browser_user(request)
        if user is None:
            return lambda: request.reply(303, [(b"location", sign_in.encode()), *HEADERS], b"")
        if user.key == login.by.key:
            return None
        return lambda: _reply(
            request,
            403,
            "This link is for another user",
            f"You are signed in as {user.label}. The link was made for {login.by.label}.",
        )

    async def _start(self, request: HttpRequest, login: Login) -> None:
        token = _parse_query(request).get("token", "")
        try:
            url, state = await self._desk.start(login, token)
        except HubError as error:
            return _reply(request, 400, "The login could not be started", str(error))
        if not _is_safe(url):
            return _reply(
                request,
                502,
                "The login could not be started",
                f"{login.account.label} names an address to log in at that is not https.",
            )
        cookie = f"{self._name_cookie(state)}={login.cookie}; Max-Age={COOKIE_SECONDS}; HttpOnly; "
        cookie += "SameSite=Lax; "
        cookie += "Secure; Path=/" if self._is_secure else f"Path={CALLBACK}"
        headers = [(b"location", url.encode("ascii", "ignore")), (b"set-cookie", cookie.encode())]
        request.reply(303, [*headers, *HEADERS], b"")

    @property
    def _is_secure(self) -> bool:
        return (self._desk.find_base() or "").startswith("https://")

    def _name_cookie(self, state: str) -> str:
        """One cookie for each login: a browser may have several open."""
        prefix = "__Host-" if self._is_secure else ""
        return f"{prefix}{COOKIE}-{hashlib.sha256(state.encode()).hexdigest()[:16]}"

    # --- the redirect ----------------------------------------------------------------------------

    async def _serve_callback(self, request: HttpRequest, mark: str) -> None:
        query = _parse_query(request)
        state = query.get("state", "")
        login = self._desk.find_started(state) if state else None
        if login is None:
            return _reply(
                request,
                400,
                "There is no such login",
                "It is unknown, was finished already, or the hub was restarted meanwhile. Start "
                "the login again.",
            )
        given = _parse_cookies(request).get(self._name_cookie(state), "")
        if not hmac.compare_digest(given.encode(), login.cookie.encode()):
            return _reply(
                request,
                403,
                "This login was started in another browser",
                "Open the link of the hub in this browser, and log in again.",
            )
        try:
            await self._desk.finish(login, state, query, mark)
        except HubError as error:
            return _reply(request, 400, "The login has failed", str(error))
        return _reply_done(request, login)


# --- HTML ----------------------------------------------------------------------------------------


def _reply_question(request: HttpRequest, login: Login, destination: LoginDestination) -> None:
    account = login.account
    issuer, login_at = destination.issuer_base, destination.base
    asked = " ".join(login.scopes) or "what the server asks for"
    rows = (
        (f"The {account.spec.kind}", account.name),
        ("At", render_origin(account.spec.url)),
        ("You log in at", login_at),
        ("Permissions", asked),
        ("For", render_holder(login.holder)),
    )
    listed = "".join(f"<dt>{escape(name)}</dt><dd>{escape(text)}</dd>" for name, text in rows)
    warning = (
        f"Take care: the authorization server of this {account.spec.kind} is {issuer}, but sends "
        f"you to {login_at}. Continue only if you know that both belong together: otherwise a "
        f"login at {login_at} may be used by {issuer}."
    )
    warned = f"<p><strong>{escape(warning)}</strong></p>" if destination.is_foreign else ""
    action = f"{CONNECT}/{quote(login.id)}?token={quote(login.token)}"
    _reply(
        request,
        200,
        f"Log in to {account.name}",
        f"Dragoman needs your consent to use this {account.spec.kind}. Continue only if you have "
        f"just asked for it: the login will be used for {render_holder(login.holder)}.",
        f'<dl>{listed}</dl>{warned}<form method="post" action="{escape(action, quote=True)}">'
        "<button>Continue</button></form>",
    )


def _reply_used(request: HttpRequest, login: Login | None) -> None:
    if login is not None and login.state == DONE:
        return _reply_done(request, login)
    _reply(
        request,
        410,
        "This link is no longer valid",
        "It has expired or was used already. Make the call again, or run the command again, to get "
        "another one.",
    )


def _reply_done(request: HttpRequest, login: Login) -> None:
    granted = f" Permissions: {' '.join(login.granted)}." if login.granted else ""
    _reply(
        request,
        200,
        "You are logged in",
        f"Dragoman can now use {login.account.label} for {render_holder(login.holder)}.{granted} "
        "You can close this window; a call that waits continues by itself.",
    )


def _reply(request: HttpRequest, status: int, title: str, text: str, more: str = "") -> None:
    """Sends a page; `more` is HTML, all else is text."""
    page = (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width,initial-scale=1">'
        f"<title>{escape(title)}</title><style>{STYLE}</style></head>"
        f"<body><h1>{escape(title)}</h1><p>{escape(text)}</p>{more}</body></html>"
    )
    request.reply(status, HEADERS, page.encode("utf-8", "replace"))


# --- requests ------------------------------------------------------------------------------------


def _find_mark(path: str, page: str) -> str | None:
    """Finds the mark of an issuer below the path of a page, empty if there is none; None for other
    paths."""
    if path == page:
        return ""
    mark = path.removeprefix(f"{page}/")
    return mark if mark != path and is_mark(mark) else None


def _parse_query(request: HttpRequest) -> dict[str, str]:
    """Parses the query; one that is ambiguous or too long counts as empty."""
    if len(request.query) > MAX_QUERY:
        return {}
    try:
        return parse_query(request.query.decode("latin-1"))
    except InvalidInput:
        return {}


def _parse_cookies(request: HttpRequest) -> dict[str, str]:
    text = request.fields.get(b"cookie", b"")[:MAX_QUERY].decode("latin-1")
    pairs = (pair.strip().partition("=") for pair in text.split(";"))
    return {name: value for name, _, value in pairs}


def _is_safe(url: str) -> bool:
    """https, or http on this machine. Whatever else a server names is not opened."""
    try:
        parts = urlsplit(url)
        host = parts.hostname
    except ValueError:
        return False
    return parts.scheme == "https" or (parts.scheme == "http" and host in LOOPBACK)
