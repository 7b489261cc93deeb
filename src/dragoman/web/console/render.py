"""Renders the pages of the console as HTML: all text escaped, no inline script, no inline style."""

from __future__ import annotations

import html
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any
from urllib.parse import quote, urlencode

from dragoman.core.event_payloads import EVENT_NAMES
from dragoman.web.console.screens import BY_PATH, NAVIGATION, Column, Screen

Header = tuple[bytes, bytes]

POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; "
    "media-src data:; "
    "connect-src 'self'; form-action 'self'; frame-ancestors 'none'; base-uri 'none'; "
    "require-trusted-types-for 'script'; trusted-types 'none'"
)
SECURITY_HEADERS: Sequence[Header] = (
    (b"content-security-policy", POLICY.encode("ascii")),
    (b"x-frame-options", b"DENY"),
    (b"x-content-type-options", b"nosniff"),
    # With no-referrer, browsers would send forms with the Origin null.
    (b"referrer-policy", b"same-origin"),
    (b"cross-origin-opener-policy", b"same-origin"),
    (b"cross-origin-resource-policy", b"same-origin"),
)
MAX_CELL = 300
"""Characters of a cell of a table; its own page shows all."""


@dataclass(frozen=True, slots=True)
class Rendering:
    """What every page of a session needs."""

    base: str
    """The path of the static files."""
    screens: Sequence[str]
    """The screens that have a module."""
    csrf: str
    who: str


@dataclass(frozen=True, slots=True)
class TablePage:
    """The rows of one page of a table, and how to get to the others."""

    rows: Sequence[Mapping[str, Any]]
    total: int | None
    query: str
    earlier: str | None
    """The query of the page before; None if this is the first."""
    later: str | None


def render_page(how: Rendering, screen: Screen, title: str, body: str) -> bytes:
    head = _render_head(
        how.base,
        title,
        f'<meta name="csrf" content="{_e(how.csrf)}">'
        f'<meta name="base" content="{_e(how.base)}">'
        f'<meta name="screens" content="{_e(" ".join(how.screens))}">'
        f'<meta name="events" content="{_e(" ".join(EVENT_NAMES.values()))}">'
        f'<script type="module" src="{_e(how.base)}/app.js"></script>',
    )
    return (
        f'{head}<body data-screen="{_e(screen.module)}">'
        '<a class="skip" href="#main">Skip to the content</a>'
        '<header class="bar"><a class="brand" href="/console/">Dragoman</a>'
        '<span id="live" class="live" role="status" aria-live="polite"></span>'
        f'<span class="grow"></span><span id="tools-of-page"></span>'
        f'<span class="who" id="who">{_e(how.who)}</span>'
        '<form method="post" action="/console/logout">'
        f'<input type="hidden" name="csrf" value="{_e(how.csrf)}">'
        '<button class="quiet">Sign out</button></form></header>'
        f'<div class="frame">{_render_navigation(screen)}'
        f'<main id="main" tabindex="-1">{body}</main></div></body></html>'
    ).encode()


def render_table(screen: Screen, page: TablePage, here: str) -> str:
    parts = [_render_title(screen.title, screen.question), _render_search(here, page)]
    if not page.rows:
        said = "Nothing matches the search." if page.query else screen.empty or "Nothing here."
        if page.later is not None:
            said = "Nothing matches among the newest; search further with More."
        return "".join([*parts, f'<p class="empty">{_e(said)}</p>', _render_pager(page, here)])
    head = "".join(f'<th scope="col">{_e(column.label)}</th>' for column in screen.columns)
    rows = "".join(_render_row(screen, row) for row in page.rows)
    parts.append(
        f'<div class="scroll" tabindex="0" role="region" aria-label="{_e(screen.title)}">'
        f"<table><thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table></div>"
    )
    return "".join([*parts, _render_pager(page, here)])


def _render_pager(page: TablePage, here: str) -> str:
    links = [
        f'<a class="button" rel="{rel}" href="{_e(here + query)}">{label}</a>'
        for rel, query, label in (("prev", page.earlier, "Earlier"), ("next", page.later, "More"))
        if query is not None
    ]
    total = f"<span>{page.total:,} in all</span>" if page.total is not None else ""
    return f'<p class="pager">{total}{"".join(links)}</p>'


def render_members(screen: Screen, name: str, data: Any) -> str:
    """Renders an object member by member: nested ones as JSON."""
    title = _render_title(name or screen.title, screen.question)
    if not isinstance(data, dict):
        data = {"value": data}
    items = "".join(
        f"<dt>{_e(key)}</dt><dd>{_render_value(value)}</dd>" for key, value in data.items()
    )
    return f'{title}<dl class="facts">{items}</dl>'


def render_problem(screen: Screen, message: str) -> str:
    return f'{_render_title(screen.title, screen.question)}<p class="problem">{_e(message)}</p>'


def render_link(screen: Screen, where: str) -> str:
    """A link to data that takes seconds; a module reads it by itself."""
    return (
        f"{_render_title(screen.title, screen.question)}"
        f'<noscript><p class="empty"><a href="{_e(where)}">Look now: this takes a few seconds</a>'
        "</p></noscript>"
    )


def render_help(screen: Screen) -> str:
    items = "".join(
        f'<dt><a href="/console{_e(path)}">{_e(BY_PATH[path].title)}</a></dt>'
        f"<dd>{_e(BY_PATH[path].question)}</dd>"
        for _, paths in NAVIGATION
        for path in paths
    )
    return f'{_render_title(screen.title, screen.question)}<dl class="facts">{items}</dl>'


def render_login(base: str, code: str, next_path: str, problem: str, user: str) -> bytes:
    """The page that signs in: by the code of a link, which a module sends at once, or by a key.
    `user` has signed in at the hub itself."""
    said = f'<p class="problem" role="alert">{_e(problem)}</p>' if problem else ""
    hidden = f'<input type="hidden" name="next" value="{_e(next_path)}">'
    script = ""
    if code:
        script = f'<script type="module" src="{_e(base)}/login.js"></script>'
        forms = (
            '<form method="post" action="/console/login" id="open">'
            f'<input type="hidden" name="code" value="{_e(code)}">{hidden}'
            "<p>This link opens the console of your hub in this browser, once.</p>"
            '<button class="main">Open the console</button></form>'
        )
    else:
        forms = (
            "<p>On the machine of the hub, run this command. It opens the console in the "
            "browser:</p><p><code>dragoman console</code></p>"
        )
        if user:
            forms += (
                f'<form method="post" action="/console/login">{hidden}'
                '<input type="hidden" name="user" value="1">'
                f'<button class="main">Continue as {_e(user)}</button></form>'
            )
        forms += (
            f'<form method="post" action="/console/login">{hidden}'
            '<label for="key">Or sign in with an API key</label>'
            '<input id="key" name="key" type="password" autocomplete="off" required>'
            "<button>Sign in</button></form>"
        )
    head = _render_head(base, "Sign in", script)
    return (
        f'{head}<body class="login"><main id="main"><h1>Dragoman</h1>{said}{forms}</main>'
        "</body></html>"
    ).encode()


def render_return(base: str, where: str) -> bytes:
    """A page that opens `where` at once. Browsers do not send the cookie with a link on a page of
    another site, as in a mail or a chat, but they do from here."""
    refresh = f'<meta http-equiv="refresh" content="0;url={_e(where)}">'
    return (
        f'{_render_head(base, "Opening", refresh)}<body class="login"><main id="main">'
        f'<h1>Dragoman</h1><p><a href="{_e(where)}">Open the console</a></p></main></body></html>'
    ).encode()


def _render_head(base: str, title: str, more: str) -> str:
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        '<meta name="color-scheme" content="light dark">'
        f"<title>{_e(title)} · Dragoman</title>"
        f'<link rel="icon" href="{_e(base)}/icon.svg">'
        f'<link rel="stylesheet" href="{_e(base)}/style.css">'
        f'<script src="{_e(base)}/theme.js"></script>{more}</head>'
    )


def _render_navigation(screen: Screen) -> str:
    groups = []
    for label, paths in NAVIGATION:
        links = []
        for path in paths:
            one = BY_PATH[path]
            current = ' aria-current="page"' if one.module == screen.module else ""
            links.append(
                f'<li><a href="/console{_e(path)}" data-screen="{_e(one.module)}"{current}>'
                f"{_e(one.title)}</a></li>"
            )
        groups.append(f"<p>{_e(label)}</p><ul>{''.join(links)}</ul>")
    return f'<nav id="nav" aria-label="Screens">{"".join(groups)}</nav>'


def _render_title(title: str, question: str) -> str:
    return f'<div class="title"><h1>{_e(title)}</h1><p class="question">{_e(question)}</p></div>'


def _render_search(here: str, page: TablePage) -> str:
    return (
        f'<form class="search" role="search" method="get" action="{_e(here)}">'
        f'<input type="search" name="q" value="{_e(page.query)}" aria-label="Search">'
        "<button>Search</button></form>"
    )


def _render_row(screen: Screen, row: Mapping[str, Any]) -> str:
    cells = []
    for index, column in enumerate(screen.columns):
        value = find_member(row, column.member)
        text = _render_cell(column, value)
        if index == 0 and screen.link and value not in (None, ""):
            target = screen.link.format(quote(str(value), safe=""))
            text = f'<a href="/console{_e(target)}">{text}</a>'
        kind = f' class="{column.kind}"' if column.kind != "text" else ""
        cells.append(f"<td{kind}>{text}</td>")
    return f"<tr>{''.join(cells)}</tr>"


def _render_cell(column: Column, value: Any) -> str:
    if value is None or value == "":
        return ""
    if column.kind == "time":
        shown = _render_time(value)
        return f'<time datetime="{_e(shown)}">{_e(shown)}</time>'
    text = value if isinstance(value, str) else _render_plain(value)
    if column.kind == "trace":
        link = quote(text, safe="")
        return f'<a class="code" href="/console/traces/{_e(link)}">{_e(text[:8])}</a>'
    shown = text if len(text) <= MAX_CELL else f"{text[:MAX_CELL]}…"
    return f"<code>{_e(shown)}</code>" if column.kind == "code" else _e(shown)


def _render_value(value: Any) -> str:
    if isinstance(value, dict) or (
        isinstance(value, list) and any(isinstance(one, dict | list) for one in value)
    ):
        return f"<pre>{_e(json.dumps(value, indent=2, ensure_ascii=False))}</pre>"
    text = _render_plain(value)
    return f"<pre>{_e(text)}</pre>" if "\n" in text else _e(text)


def _render_plain(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int | float):
        return f"{value:,}"
    if isinstance(value, list):
        return ", ".join(map(_render_plain, value))
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def _render_time(value: Any) -> str:
    if isinstance(value, int | float) and 0 <= value < 1e11:
        return datetime.fromtimestamp(value, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    return str(value)


def find_member(row: Mapping[str, Any], path: str) -> Any:
    found: Any = row
    for step in path.split("."):
        found = found.get(step) if isinstance(found, dict) else None
    return found


def build_query(**members: str | int) -> str:
    given = {name: value for name, value in members.items() if value not in ("", 0)}
    return f"?{urlencode(given)}" if given else ""


def _e(text: str) -> str:
    """Escapes text for HTML; characters that it cannot contain are replaced."""
    return html.escape(text.encode("utf-8", "replace").decode().replace("\0", "\ufffd"))
