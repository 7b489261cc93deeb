"""The pages of the authorization server: plain HTML, escaped, without external resources."""

from __future__ import annotations

import base64
import hashlib
import html
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from dragoman.core.scopes import MEANINGS
from dragoman.core.users import GrantRecord

Header = tuple[bytes, bytes]

_STYLE = """
:root{color-scheme:light dark}
body{font:16px/1.5 system-ui,sans-serif;max-width:26rem;margin:12vh auto 2rem;padding:0 1.2rem}
h1{font-size:1.35rem;margin:0 0 1rem}
label{display:block;margin:.8rem 0 .2rem}
input{font:inherit;width:100%;box-sizing:border-box;padding:.5rem;border:1px solid #888;
border-radius:6px}
button,a.button{font:inherit;display:block;width:100%;box-sizing:border-box;margin:.8rem 0 0;
padding:.6rem;border:1px solid #888;border-radius:6px;background:none;color:inherit;
text-align:center;text-decoration:none;cursor:pointer}
button.main{background:#1a5fb4;border-color:#1a5fb4;color:#fff}
.problem{border-left:4px solid #c01c28;padding:.3rem .8rem;margin:0 0 1rem}
.note{opacity:.75;font-size:.9rem}
ul{padding-left:1.2rem}
li form{display:inline}
li button{display:inline;width:auto;padding:.1rem .6rem;margin:0 0 0 .4rem}
strong{overflow-wrap:anywhere}
hr{border:0;border-top:1px solid #8884;margin:1.5rem 0}
"""
_STYLE_HASH = base64.b64encode(hashlib.sha256(_STYLE.encode()).digest()).decode()


@dataclass(frozen=True, slots=True)
class Page:
    body: bytes
    status: int = 200
    form_sources: tuple[str, ...] = ()
    """Where the page's forms lead, besides the hub."""
    has_script: bool = False

    def list_headers(self) -> list[Header]:
        script = "script-src 'self'; " if self.has_script else ""
        actions = " ".join(("'self'", *self.form_sources))
        policy = (
            f"default-src 'none'; style-src 'sha256-{_STYLE_HASH}'; {script}"
            f"form-action {actions}; frame-ancestors 'none'; base-uri 'none'"
        )
        return [
            (b"content-type", b"text/html; charset=utf-8"),
            (b"content-security-policy", policy.encode("ascii")),
            (b"x-frame-options", b"DENY"),
            (b"x-content-type-options", b"nosniff"),
            # With no-referrer, browsers would send forms with the Origin null.
            (b"referrer-policy", b"same-origin"),
            (b"cache-control", b"no-store"),
        ]


@dataclass(frozen=True, slots=True)
class ConsentView:
    """What the consent page says."""

    action: str
    form_token: str
    sign_out_token: str
    user: str
    client: str
    vouched_by: str
    """The host that vouches for the client's name; empty if the client chose it itself."""
    leads_to: str
    form_source: str
    scopes: Sequence[str]
    is_local: bool
    """Whether programs on the user's device get the answer."""


def render_problem(status: int, message: str, back: str = "", back_to: str = "") -> Page:
    """`back` is a link that returns to the client with an error."""
    link = ""
    if back:
        link = f'<a class="button" href="{_escape(back)}">Go back to {_escape(back_to)}</a>'
    return _render("This did not work", f'<p class="problem">{_escape(message)}</p>{link}', status)


def render_message(title: str, message: str) -> Page:
    return _render(title, f"<p>{_escape(message)}</p>")


def render_sign_in(
    form_token: str,
    next: str,
    *,
    problem: str = "",
    user: str = "",
    client: str = "",
    provider: str = "",
    provider_url: str = "",
    has_passwords: bool = True,
    passkey_options: str = "",
    status: int = 200,
) -> Page:
    parts = []
    if client:
        parts.append(f"<p>to continue to <strong>{_escape(client)}</strong></p>")
    if problem:
        parts.append(f'<p class="problem">{_escape(problem)}</p>')
    if provider:
        parts.append(
            f'<a class="button" href="{_escape(provider_url)}">Sign in with {_escape(provider)}'
            "</a><hr>"
        )
    hidden = _hide(token=form_token, next=next)
    if has_passwords:
        parts.append(
            f'<form method="post" action="/oauth/login">{hidden}'
            '<label for="user">User name</label>'
            f'<input id="user" name="user" value="{_escape(user)}" autocapitalize="none" '
            'autocomplete="username webauthn" spellcheck="false" required autofocus>'
            '<label for="password">Password</label>'
            '<input id="password" name="password" type="password" autocomplete="current-password" '
            'required><button class="main">Sign in</button></form>'
        )
    if passkey_options:
        parts.append(
            f'<form method="post" action="/oauth/passkeys" data-passkey="get" '
            f'data-options="{_escape(passkey_options)}" hidden>{hidden}'
            '<input type="hidden" name="credential">'
            '<button>Sign in with a passkey</button><p class="note" data-problem></p></form>'
        )
    return _render("Sign in", "".join(parts), status, has_script=bool(passkey_options))


def render_consent(view: ConsentView) -> Page:
    scopes = "".join(
        f"<li>{_escape(MEANINGS.get(scope, f'the scope {scope}'))}</li>" for scope in view.scopes
    )
    if view.vouched_by:
        source = f"Its name comes from <strong>{_escape(view.vouched_by)}</strong>."
    else:
        source = "The app chose this name itself; the hub cannot check it."
    leads = f"You will be sent to <strong>{_escape(view.leads_to)}</strong>."
    warning = ""
    if view.is_local:
        warning = (
            "<p>Go on only if you have just started this yourself, in a program that you trust.</p>"
        )
    body = (
        f"<p>You are signed in as <strong>{_escape(view.user)}</strong>.</p>"
        f"<p>This app will be able to:</p><ul>{scopes}</ul>"
        f'<p>{leads}</p>{warning}<p class="note">{source}</p>'
        f'<form method="post" action="{_escape(view.action)}">{_hide(token=view.form_token)}'
        '<button class="main" name="decision" value="allow">Allow</button>'
        '<button name="decision" value="deny">Cancel</button></form>'
        f'<form method="post" action="/oauth/logout">'
        f"{_hide(token=view.sign_out_token, next=view.action)}"
        "<button>Sign in as another user</button></form>"
    )
    title = f"Let {_quote(view.client)} use the hub as you?"
    return _render(title, body, form_sources=(view.form_source,))


def render_enrolment(form_token: str, code: str, user: str, problem: str = "") -> Page:
    told = f'<p class="problem">{_escape(problem)}</p>' if problem else ""
    body = (
        f"<p>Hello <strong>{_escape(user)}</strong>. Choose the password with which you sign in."
        f'</p>{told}<form method="post" action="/oauth/enroll">'
        f"{_hide(token=form_token, code=code)}"
        f'<input type="hidden" name="user" value="{_escape(user)}" autocomplete="username">'
        '<label for="password">New password (10 characters or more)</label>'
        '<input id="password" name="password" type="password" minlength="10" '
        'autocomplete="new-password" required autofocus>'
        '<label for="again">The same again</label>'
        '<input id="again" name="again" type="password" autocomplete="new-password" required>'
        '<button class="main">Set password</button></form>'
    )
    return _render("Welcome", body, 400 if problem else 200)


def render_account(
    form_token: str,
    user: str,
    grants: Iterable[GrantRecord],
    passkeys: int,
    passkey_options: str = "",
    problem: str = "",
    *,
    is_fresh: bool,
) -> Page:
    """`is_fresh` says that the user has signed in a moment ago."""
    hidden = _hide(token=form_token)
    listed = "".join(
        f"<li>{_escape(_quote(grant.client_name))}"
        f'<form method="post" action="/oauth/account">{hidden}'
        f'<input type="hidden" name="grant" value="{_escape(grant.id)}">'
        '<button name="do" value="disconnect">Disconnect</button></form></li>'
        for grant in grants
    )
    parts = [f'<p class="problem">{_escape(problem)}</p>' if problem else ""]
    parts.append(f"<p>You are signed in as <strong>{_escape(user)}</strong>.</p>")
    parts.append(
        f"<p>Connected apps:</p><ul>{listed}</ul>" if listed else "<p>No app is connected.</p>"
    )
    if passkeys:
        parts.append(
            f"<p>Passkeys: {passkeys}</p>"
            f'<form method="post" action="/oauth/account">{hidden}'
            '<button name="do" value="remove-passkeys">Remove all passkeys</button></form>'
        )
    if passkey_options and not is_fresh:
        parts.append(
            f'<form method="post" action="/oauth/logout">{hidden}{_hide(next="/oauth/account")}'
            "<button>Sign in again to add a passkey</button></form>"
        )
    elif passkey_options:
        parts.append(
            '<form method="post" action="/oauth/account" data-passkey="create" '
            f'data-options="{_escape(passkey_options)}" hidden>{hidden}'
            '<input type="hidden" name="credential">'
            '<button name="do" value="add-passkey">Add a passkey</button>'
            '<p class="note" data-problem></p></form>'
        )
    parts.append(
        f'<hr><form method="post" action="/oauth/logout">{hidden}<button>Sign out</button></form>'
    )
    return _render("Your account", "".join(parts), has_script=bool(passkey_options) and is_fresh)


def _render(
    title: str,
    body: str,
    status: int = 200,
    form_sources: tuple[str, ...] = (),
    has_script: bool = False,
) -> Page:
    script = '<script src="/oauth/passkeys.js" defer></script>' if has_script else ""
    text = (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width,initial-scale=1">'
        f'<meta name="robots" content="noindex"><title>{_escape(title)} · Dragoman</title>'
        f"<style>{_STYLE}</style>{script}</head><body><h1>{_escape(title)}</h1>{body}"
        "</body></html>\n"
    )
    return Page(text.encode(), status, form_sources, has_script)


def _hide(**fields: str) -> str:
    return "".join(
        f'<input type="hidden" name="{name}" value="{_escape(value)}">'
        for name, value in fields.items()
    )


def _quote(name: str) -> str:
    return f"“{name}”" if name else "an app without a name"


def _escape(text: str) -> str:
    return html.escape(text, quote=True)
