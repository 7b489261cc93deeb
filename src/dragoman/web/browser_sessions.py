"""Browser sessions: which user has signed in in the browser that sent a request.

The id of a session is a random cookie; the hub stores its hash. Forms carry a token that is derived
from the cookie, so that a page of another site cannot submit them. Does not know how users sign in.
"""

from __future__ import annotations

import hmac
import re
import secrets
from collections.abc import Callable
from urllib.parse import urlsplit

from dragoman.core.principal import Principal
from dragoman.core.users import BrowserSession, BrowserSessionStore, UserRecord
from dragoman.wire.http import HttpRequest

Header = tuple[bytes, bytes]

KNOWN_SECONDS = 365 * 86_400.0
"""How long a browser is recognised after a sign-in."""
_ID = re.compile(r"[A-Za-z0-9_-]{43}", re.ASCII)


class BrowserSessions:
    def __init__(
        self, store: BrowserSessionStore, find_base: Callable[[], str], seconds: float
    ) -> None:
        """`find_base` returns the URL of the hub as browsers see it. A session lasts for `seconds`
        and is not extended."""
        self._store = store
        self._find_base = find_base
        self._seconds = seconds

    # --- sessions --------------------------------------------------------------------------------

    def find(self, request: HttpRequest) -> BrowserSession | None:
        """Finds the session of the browser; None if no user has signed in there."""
        id = self._read_cookie(request, "session")
        record = self._store.find_session(id) if id else None
        user = self._store.find(record.user) if record is not None else None
        if record is None or user is None:
            return None
        return BrowserSession(id, user, record)

    def find_user(self, request: HttpRequest) -> Principal | None:
        found = self.find(request)
        return found.user.build_principal() if found is not None else None

    def open(self, request: HttpRequest, user: UserRecord) -> list[Header]:
        """Begins a session; returns the headers that tell the browser. An earlier id is not used
        again: a page may have planted it."""
        id = self._store.open_session(user.name, self._seconds)
        headers = [self._set_cookie("session", id, self._seconds)]
        if not self.find_known(request, user.name):
            known = self._store.remember_browser(user.name)
            headers.append(self._set_cookie("known", known, KNOWN_SECONDS))
        return headers

    def find_known(self, request: HttpRequest, user: str) -> str:
        """Returns the id of a browser that the user has signed in with before; empty if this is
        none."""
        id = self._read_cookie(request, "known")
        return id if id and self._store.is_known_browser(id, user) else ""

    def close(self, request: HttpRequest) -> list[Header]:
        """Ends the session of the browser, if it has one."""
        if id := self._read_cookie(request, "session"):
            self._store.close_session(id)
        return [self._set_cookie("session", "", 0), self._set_cookie("browser", "", 0)]

    # --- browsers without a session --------------------------------------------------------------

    def identify(self, request: HttpRequest) -> tuple[str, list[Header]]:
        """Returns the random id of the browser before a user signs in, and the headers that set it
        if it is new."""
        if id := self.find_browser(request):
            return id, []
        id = secrets.token_urlsafe(32)
        return id, [self._set_cookie("browser", id, None)]

    def find_browser(self, request: HttpRequest) -> str:
        """Returns the id that `identify` has set; empty if it has not."""
        return self._read_cookie(request, "browser")

    # --- forms -----------------------------------------------------------------------------------

    def build_form_token(self, id: str, purpose: str) -> str:
        """Builds the token of a form: only a page for the browser or session with this id can
        contain it, and it is good for one purpose."""
        return hmac.new(id.encode(), f"form\0{purpose}".encode(), "sha256").hexdigest()

    def is_form_token(self, token: str, id: str, purpose: str) -> bool:
        expected = self.build_form_token(id, purpose).encode()
        return bool(id) and hmac.compare_digest(token.encode("utf-8", "replace"), expected)

    # --- cookies ---------------------------------------------------------------------------------

    def _name(self, what: str) -> str:
        """The name of a cookie. `__Host-` binds it to this host over https. Without https the hub
        is on loopback, where all ports share cookies, so that the name has the port."""
        base = urlsplit(self._find_base())
        if base.scheme == "https":
            return f"__Host-dragoman-{what}"
        return f"dragoman-{what}-{base.port or 80}"

    def _read_cookie(self, request: HttpRequest, what: str) -> str:
        """Returns a cookie of ours; empty if it is missing, invalid or there twice: another program
        on this host may have set one of them."""
        name = self._name(what)
        pairs = request.fields.get(b"cookie", b"").decode("latin-1").split(";")
        values = [
            value.strip() for key, _, value in (pair.partition("=") for pair in pairs)
            if key.strip() == name
        ]  # fmt: skip
        return values[0] if len(values) == 1 and _ID.fullmatch(values[0]) else ""

    def _set_cookie(self, what: str, value: str, seconds: float | None) -> Header:
        """Builds the header. Lax, not Strict: an authorization begins with a link from the page of
        a client. Without `seconds` the cookie ends with the browser."""
        name = self._name(what)
        text = f"{name}={value}; Path=/; HttpOnly; SameSite=Lax"
        if seconds is not None:
            text += f"; Max-Age={seconds:.0f}"
        if name.startswith("__Host-"):
            text += "; Secure"
        return b"set-cookie", text.encode("ascii")
