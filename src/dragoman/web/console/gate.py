"""The console as the web application sees it: which requests are the console's, and whose they are.

Loads the rest of the console when it is opened for the first time. A session serves the paths of
the console and of the API, never those of MCP and A2A.
"""

from __future__ import annotations

import hmac
import re
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from dragoman.core.access import SESSION_ENDED, WhyEnded
from dragoman.core.background import Work
from dragoman.core.cluster import SINGLE_HUB, Ownership, find_mark
from dragoman.core.principal import LOCAL, USER, Principal
from dragoman.web.api import ApiResponse, build_error
from dragoman.web.http.request import ServerRequest
from dragoman.wire.http import HttpRequest

if TYPE_CHECKING:
    from dragoman.web.console.site import ConsoleSite

PREFIX = "/console"
METRICS = "/metrics"
"""Is not below `/api`, and drawn by the console."""
CSRF_HEADER = b"x-csrf-token"
NO_STORE = (b"cache-control", b"no-store")
MAX_BODY = 4_096
"""Of a form that is sent before the sign-in."""
_COOKIE = re.compile(r"[A-Za-z0-9_-]{43}", re.ASCII)

FindPeer = Callable[[Any], Principal | None]


class ConsoleGate:
    def __init__(self, find_base: Callable[[], str], ownership: Ownership = SINGLE_HUB) -> None:
        """`find_base` returns the URL of the hub as browsers see it."""
        self._ownership = ownership
        self._find_base = find_base
        self._open_site: Callable[[], ConsoleSite] | None = None
        self._site: ConsoleSite | None = None

    def connect(self, open_site: Callable[[], ConsoleSite]) -> None:
        self._open_site = open_site

    @property
    def site(self) -> ConsoleSite:
        if self._site is None:
            assert self._open_site is not None
            self._site = self._open_site()
        return self._site

    def admit(
        self, request: ServerRequest, identify: FindPeer
    ) -> tuple[Principal | None, ApiResponse | None] | None:
        """Returns the principal of a session, or the response that refuses the request; None if the
        request is not the console's. Raises `OwnedElsewhere` for a session of another hub."""
        path, fields = request.path, request.fields
        if path == "/":
            wants_page = b"text/html" in fields.get(b"accept", b"")
            return (None, _TO_CONSOLE) if wants_page and request.method == "GET" else None
        is_api = path.startswith("/api/") or path == METRICS
        if not is_api and not path.startswith(PREFIX):
            return None
        cookie = self.read_cookie(fields)
        if cookie is None and CSRF_HEADER not in fields:
            return None
        session = self._site.sessions.find(cookie) if self._site is not None and cookie else None
        if session is None and cookie:
            self._ownership.check(find_mark(cookie))
        if session is not None and session.is_local and request.find_peer(identify) != LOCAL:
            session = None
        if session is not None and session.principal.kind == USER:
            session = self.site.renew_user(request, session)
        if session is None:
            return None, (_ENDED if is_api else None)
        if is_api and (why := self._find_forgery(request, session.csrf)):
            return None, build_error(403, why)
        if is_api:  # pages say so themselves
            request.extra = [*request.extra, NO_STORE]
        return session.principal, None

    def serve(self, request: HttpRequest, principal: Principal | None) -> Work[None] | None:
        return self.site.serve(request, principal)

    # --- forged requests -------------------------------------------------------------------------

    def is_same_origin(self, request: HttpRequest) -> bool:
        """Whether a page of the hub itself sent a request that changes something. A proxy may
        replace the Host, but not the Origin."""
        fields = request.fields
        host = fields.get(b"host", b"").lower()
        origin = fields.get(b"origin", b"").lower()
        site = fields.get(b"sec-fetch-site", b"same-origin")
        base = urlsplit(self._find_base())
        own = f"{base.scheme}://{base.netloc}".lower().encode("latin-1", "replace")
        return origin in (b"http://" + host, b"https://" + host, own) and site == b"same-origin"

    def _find_forgery(self, request: ServerRequest, csrf: str) -> str:
        """Why a request with the cookie of a session may not be the console's own; empty if it
        is."""
        fields = request.fields
        if request.method in ("GET", "HEAD"):
            if fields.get(b"sec-fetch-site", b"none") not in (b"same-origin", b"none"):
                return "pages of another origin may not use the session of the console"
            return ""
        if not self.is_same_origin(request):
            return "pages of another origin may not use the session of the console"
        given = fields.get(CSRF_HEADER, b"")
        if not hmac.compare_digest(given, csrf.encode()):
            return "the CSRF token is missing or wrong; reload the page"
        return ""

    # --- cookies ---------------------------------------------------------------------------------

    def _name(self) -> str:
        """The name of the cookie. `__Host-` binds it to this host over https. Without https the hub
        is on loopback, where all ports share cookies, so that the name has the port."""
        base = urlsplit(self._find_base())
        if base.scheme == "https":
            return "__Host-dragoman-console"
        return f"dragoman-console-{base.port or 80}"

    def read_cookie(self, fields: Mapping[bytes, bytes]) -> str | None:
        """Returns the cookie of the console; None if there is none, empty if it is invalid or there
        twice: another program on this host may have set one of them."""
        if (text := fields.get(b"cookie")) is None:
            return None
        name = self._name()
        pairs = (pair.partition("=") for pair in text.decode("latin-1").split(";"))
        values = [value.strip() for key, _, value in pairs if key.strip() == name]
        if not values:
            return None
        return values[0] if len(values) == 1 and _COOKIE.fullmatch(values[0]) else ""

    def build_cookie(self, value: str) -> tuple[bytes, bytes]:
        """Builds the header that sets the cookie, until the browser is closed; empty deletes it."""
        name = self._name()
        text = f"{name}={value}; Path=/; HttpOnly; SameSite=Strict"
        if not value:
            text += "; Max-Age=0"
        if name.startswith("__Host-"):
            text += "; Secure"
        return b"set-cookie", text.encode("ascii")

    # --- for the watch of access -----------------------------------------------------------------

    @property
    def version(self) -> int:
        return self._site.sessions.version if self._site is not None else 0

    def refresh(self) -> None:
        if self._site is not None:
            self._site.sessions.refresh()

    def end_principals(self, why_ended: WhyEnded) -> None:
        """Ends the sessions whose key was revoked or whose user was removed."""
        if self._site is not None:
            for session in self._site.sessions.list_sessions():
                if why_ended(session.principal):
                    self._site.sessions.close(session.principal.credential)

    def explain_ended(self, credential: str) -> str:
        return self._site.sessions.explain_ended(credential) if self._site else SESSION_ENDED


_TO_CONSOLE = ApiResponse(302, b"", "text/plain", headers=[(b"location", b"/console/")])
_ENDED = build_error(
    401, "the session of the console has ended; open it again with: dragoman console"
)
