"""The console's pages, files and sign-in. Loaded when the console is opened for the first time.

A page reads its data by the API, with the rights of its session. Does not know what the data means:
`screens` says which members are shown.
"""

from __future__ import annotations

import hmac
import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Protocol
from urllib.parse import quote, urlencode

from dragoman.core.background import Work
from dragoman.core.errors import HubError, InvalidInput
from dragoman.core.principal import LOCAL, OWNER, SERVER, Principal
from dragoman.core.urls import parse_query
from dragoman.web.api import Api, build_error
from dragoman.web.console import render
from dragoman.web.console.screens import BY_PATH, Screen, Source, find_screen
from dragoman.web.console.sessions import ConsoleSession, ConsoleSessions
from dragoman.web.console.static_files import StaticFiles
from dragoman.wire.http import HttpRequest

Header = tuple[bytes, bytes]

PAGE = 100
"""Rows of a table on one page."""
MAX_FORM = 8_192
LOGIN = "/console/login"
_NEXT = re.compile(r"/console/[A-Za-z0-9/_.~%?=&+-]*", re.ASCII)

LINK_USED = (
    "this link does not work here: it was used, is older than a minute, or is for a browser of the "
    "hub's own user. For one that works in any browser, run: dragoman console --link"
)
WRONG_KEY = (
    "this key is not accepted: it is wrong, was revoked or has expired; dragoman keys list shows "
    "those that are good"
)
FOREIGN = "the form was sent by another site; open /console/login in this browser"


class ConsoleSignIn(Protocol):
    """How browsers become principals, besides links."""

    def find_key(self, key: str, address: str) -> Principal | None:
        """Finds the principal of an API key; notes the address of a wrong one."""

    def find_user(self, request: HttpRequest) -> Principal | None:
        """Finds the user who has signed in at the hub itself, in this browser."""

    def find_sender(self, request: HttpRequest) -> Principal | None:
        """Finds who sent the request: `LOCAL` for a program of the hub's own user on this machine,
        a server for a process that it started; None for others, and if it is unknown."""


@dataclass(frozen=True, slots=True)
class DataRequest:
    """A request to the API that a page makes."""

    path: str
    query: bytes = b""
    method: str = "GET"
    fields: Mapping[bytes, bytes] = field(default_factory=dict)
    body: bytes = b""


class ConsoleSite:
    def __init__(
        self,
        api: Api,
        sign_in: ConsoleSignIn,
        build_cookie: Callable[[str], Header],
        is_same_origin: Callable[[HttpRequest], bool],
        note: Callable[[str, Principal], None],
        sessions: ConsoleSessions | None = None,
    ) -> None:
        """`is_same_origin` says whether a page of the hub sent a form; `note` records that a
        session was opened or closed."""
        self._api = api
        self._sign_in = sign_in
        self._build_cookie = build_cookie
        self._is_same_origin = is_same_origin
        self._note = note
        self.sessions = sessions or ConsoleSessions()
        self._files = StaticFiles()

    def serve(self, request: HttpRequest, principal: Principal | None) -> Work[None] | None:
        session = None
        if principal is not None and principal.credential:
            session = self.sessions.find_by_credential(principal.credential)
        path = request.path
        if path.startswith("/console/static/"):
            self._serve_file(request)
        elif path == LOGIN:
            self._serve_login(request)
        elif path == "/console/logout":
            self._serve_logout(request, session)
        elif request.method not in ("GET", "HEAD"):
            _reply_error(request, 405, "use GET", (b"allow", b"GET, HEAD"))
        elif path == "/console":
            _redirect(request, "/console/")
        elif session is None:
            query = request.query.decode("latin-1")
            here = f"{path}?{query}" if query else path
            if request.fields.get(b"sec-fetch-site") == b"cross-site":
                _reply_page(request, render.render_return(self._files.base, here))
            else:
                to = f"{LOGIN}?{urlencode({'next': here})}" if path != "/console/" else LOGIN
                _redirect(request, to)
        else:
            return self._serve_page(request, session)
        return None

    def renew_user(self, request: HttpRequest, session: ConsoleSession) -> ConsoleSession | None:
        """Gives a user's session the rights that the user has now. Ends it with the session of the
        browser that it was opened by: with a sign-out, a new password or its time."""
        user, held = self._sign_in.find_user(request), session.principal
        if user != held:
            self.sessions.close(held.credential)
            return None
        session.principal = replace(user, credential=held.credential)
        return session

    # --- files -----------------------------------------------------------------------------------

    def _serve_file(self, request: HttpRequest) -> None:
        found = self._files.find(request.path)
        if found is None:
            return _reply_error(request, 404, "there is no such file; reload the page")
        if request.method not in ("GET", "HEAD"):
            return _reply_error(request, 405, "use GET", (b"allow", b"GET, HEAD"))
        headers = [
            (b"etag", found.etag),
            (b"cache-control", b"public, max-age=31536000, immutable"),
            *render.SECURITY_HEADERS,
        ]
        if request.fields.get(b"if-none-match") == found.etag:
            return request.reply(304, headers, b"")
        request.reply(200, [(b"content-type", found.content_type.encode()), *headers], found.body)

    # --- signing in and out ----------------------------------------------------------------------

    def _serve_login(self, request: HttpRequest) -> None:
        try:
            self._sign_in_or_show(request)
        except HubError as error:  # the keys or the audit log cannot be used now
            self._show_login(request, problem=str(error), status=503)

    def _sign_in_or_show(self, request: HttpRequest) -> None:
        if request.method in ("GET", "HEAD"):
            query = _parse_form(request.query)
            return self._show_login(request, query.get("code", ""), query.get("next", ""))
        if request.method != "POST":
            return _reply_error(request, 405, "use GET or POST", (b"allow", b"GET, HEAD, POST"))
        if not self._is_same_origin(request):
            return self._show_login(request, problem=FOREIGN, status=403)
        form = _parse_form(request.body)
        next_path, sender = form.get("next", ""), self._sign_in.find_sender(request)
        if "code" in form:
            is_server = sender is not None and sender.kind == SERVER
            if is_server or not self.sessions.use_link(form["code"], is_local=sender == LOCAL):
                return self._show_login(request, "", next_path, LINK_USED, 403)
            principal: Principal | None = OWNER
        elif "user" in form:
            principal = self._sign_in.find_user(request)
        else:
            principal = self._sign_in.find_key(form.get("key", ""), request.address)
        if principal is None:
            return self._show_login(request, "", next_path, WRONG_KEY, 403)
        self._note("console.login", principal)
        cookie = self.sessions.open(principal, is_local=sender == LOCAL)
        where = next_path if _NEXT.fullmatch(next_path) else "/console/"
        _redirect(request, where, self._build_cookie(cookie))

    def _show_login(
        self,
        request: HttpRequest,
        code: str = "",
        next_path: str = "",
        problem: str = "",
        status: int = 200,
    ) -> None:
        user = self._sign_in.find_user(request)
        name = user.label if user is not None else ""
        page = render.render_login(self._files.base, code[:100], next_path[:2_000], problem, name)
        _reply_page(request, page, status)

    def _serve_logout(self, request: HttpRequest, session: ConsoleSession | None) -> None:
        if request.method != "POST":
            return _reply_error(request, 405, "use POST", (b"allow", b"POST"))
        if session is not None:
            form = _parse_form(request.body)
            given = form.get("csrf", "").encode("utf-8", "replace")
            is_own = hmac.compare_digest(given, session.csrf.encode())
            if not is_own or not self._is_same_origin(request):
                return _reply_error(request, 403, FOREIGN)
            self.sessions.close(session.principal.credential)
            self._note("console.logout", session.principal)
        _redirect(request, LOGIN, self._build_cookie(""))

    # --- pages -----------------------------------------------------------------------------------

    async def _serve_page(self, request: HttpRequest, session: ConsoleSession) -> None:
        path = request.path.removeprefix("/console")
        files = self._files
        who = session.principal
        how = render.Rendering(files.base, files.list_screens(), session.csrf, who.label)
        found = find_screen(path)
        if found is None:
            body = render.render_problem(BY_PATH["/help"], "There is no such page.")
            return _reply_page(request, render.render_page(how, BY_PATH["/help"], "?", body), 404)
        screen, name = found
        query = _parse_form(request.query)
        body = await self._render_body(screen, name, query, who, request.path)
        title = f"{name} · {screen.title}" if name else screen.title
        _reply_page(request, render.render_page(how, screen, title, body))

    async def _render_body(
        self, screen: Screen, name: str, query: Mapping[str, str], who: Principal, here: str
    ) -> str:
        if not screen.api:
            return render.render_help(screen)
        if screen.is_slow and "read" not in query:
            return render.render_link(screen, f"{here}?read=1")
        search, cursor = query.get("q", "")[:200], query.get("cursor", "")[:500]
        asks = "{q}" in screen.api
        if asks and not search:
            return render.render_table(screen, _cut_page(screen, [], "", ""), here)
        asked = ""
        if screen.pages_by == "cursor":
            given = {"q": search, "cursor": cursor, "limit": str(PAGE)}
            asked = urlencode({name: value for name, value in given.items() if value})
        status, data = await self._read(screen.api, name, search, asked, who)
        if screen.also is not None and (status < 400 if screen.rows else status == 404):
            status, data = await self._read_also(screen, screen.also, name, data, who)
        if status >= 400:
            return render.render_problem(screen, str(data["error"]["message"]))
        if not screen.rows:
            return render.render_members(screen, name, data)
        rows = [row for row in data.get(screen.rows, ()) if isinstance(row, dict)]
        if screen.pages_by == "cursor":
            more = data.get("nextCursor")
            later = render.build_query(q=search, cursor=more) if more else None
            page = render.TablePage(rows, data.get("total"), search, None, later)
        else:
            page = _cut_page(screen, rows, search, query.get("page", ""), filters=not asks)
        return render.render_table(screen, page, here)

    async def _read_also(
        self, screen: Screen, source: Source, name: str, data: Any, who: Principal
    ) -> tuple[int, Any]:
        """Reads the second source. Returns `data` with its rows, or its first row if the first
        source does not know the name."""
        status, more = await self._read(source.api, name, "", "", who)
        if status >= 400:
            return status, more
        rows = more.get(source.rows, [])
        if screen.rows:
            return status, {**data, screen.rows: [*data[screen.rows], *rows]}
        return (status, rows[0]) if rows else (404, data)

    async def _read(
        self, api: str, name: str, search: str, query: str, who: Principal
    ) -> tuple[int, Any]:
        """Asks the API; returns the status and the data. `query` replaces the one of `api`."""
        path, _, asked = api.replace("{name}", quote(name, safe="")).partition("?")
        asked = query or asked.replace("{q}", quote(search, safe=""))
        response = await self._api.respond(DataRequest(path, asked.encode("ascii")), who)
        return response.status, json.loads(response.body)


def _parse_form(text: bytes) -> dict[str, str]:
    """Parses a query or the body of a form; an invalid one has no members."""
    try:
        return parse_query(text[:MAX_FORM].decode("latin-1"))
    except InvalidInput:
        return {}


def _cut_page(
    screen: Screen, rows: list[dict[str, Any]], search: str, page: str, filters: bool = True
) -> render.TablePage:
    if search and filters:
        wanted = search.casefold()
        members = [column.member for column in screen.columns]
        rows = [
            row
            for row in rows
            if any(wanted in str(render.find_member(row, one)).casefold() for one in members)
        ]
    number = int(page) if page.isascii() and page.isdigit() and len(page) < 6 else 0
    start = number * PAGE
    earlier = render.build_query(q=search, page=number - 1) if number else None
    later = render.build_query(q=search, page=number + 1) if start + PAGE < len(rows) else None
    return render.TablePage(rows[start : start + PAGE], len(rows), search, earlier, later)


def _reply_page(request: HttpRequest, page: bytes, status: int = 200) -> None:
    headers = [
        (b"content-type", b"text/html; charset=utf-8"),
        (b"cache-control", b"no-store"),
        *render.SECURITY_HEADERS,
    ]
    request.reply(status, headers, page)


def _reply_error(request: HttpRequest, status: int, message: str, *headers: Header) -> None:
    body = build_error(status, message).body
    more = [(b"content-type", b"application/json"), *headers, *render.SECURITY_HEADERS]
    request.reply(status, more, body)


def _redirect(request: HttpRequest, where: str, *headers: Header) -> None:
    more = [
        (b"location", where.encode("ascii", "replace")),
        (b"cache-control", b"no-store"),
        *headers,
        *render.SECURITY_HEADERS,
    ]
    request.reply(303, more, b"")
