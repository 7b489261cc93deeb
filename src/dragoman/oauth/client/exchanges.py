"""Requests to metadata documents and OAuth endpoints: bounded, never redirected elsewhere."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from urllib.parse import urlencode, urljoin

from dragoman.core.errors import BadReply, Unreachable
from dragoman.core.safe_text import escape_line
from dragoman.core.urls import hide_secrets, render_origin
from dragoman.oauth.client.limits import OAuthLimits
from dragoman.oauth.client.urls import check_url, get_origin
from dragoman.wire.http import HttpClient, HttpReply
from dragoman.wire.json import Malformed, decode

MAX_SAID = 200
"""Characters of a server's own text in a message."""
MAX_READ = 8192
SECRET_FIELDS = (
    "assertion",
    "client_assertion",
    "client_secret",
    "code",
    "code_verifier",
    "device_code",
    "refresh_token",
    "subject_token",
    "token",
)
_MOVED = frozenset((301, 302, 303, 307, 308))
_JSON = {"accept": "application/json"}
_FORM = {"accept": "application/json", "content-type": "application/x-www-form-urlencoded"}
_POST_JSON = {"accept": "application/json", "content-type": "application/json"}


class EndpointRefused(Exception):
    """An OAuth endpoint answered with an error of its own (RFC 6749, section 5.2)."""

    def __init__(self, code: str, said: str, status: int) -> None:
        super().__init__(f"{code}: {said}" if said else code)
        self.code = code
        self.status = status


def quote_text(text: object, most: int = MAX_SAID) -> str:
    """Makes text of a server safe for a message."""
    return escape_line(text)[:most] if isinstance(text, str) else ""


async def fetch_document(
    http: HttpClient, url: str, limits: OAuthLimits, *, allow_loopback: bool
) -> dict[str, Any] | None:
    """Fetches a metadata document; None if there is none: some servers answer every path with a
    page. Raises `Unreachable` for a server error, `BadReply` for a redirect to another origin and
    for a document that is too large."""
    for _ in range(limits.redirects + 1):
        reply = await http.request("GET", url, _JSON, timeout=limits.request_seconds)
        if reply.status in _MOVED:
            reply.body.close()
            url = _follow(url, reply, allow_loopback)
            continue
        if reply.status >= 500 or reply.status == 429:
            reply.body.close()
            raise Unreachable(f'"{render_origin(url)}" answered with HTTP {reply.status}')
        if reply.status != 200:
            reply.body.close()
            return None
        body = await reply.body.read(limits.max_bytes)
        try:
            return decode_object(body, url)
        except BadReply:
            return None
    raise BadReply(f'"{render_origin(url)}" redirects more than {limits.redirects} times')


def _follow(url: str, reply: HttpReply, allow_loopback: bool) -> str:
    moved = urljoin(url, reply.headers.get("location", "").strip())
    check_url(moved, "the redirect to", allow_loopback=allow_loopback)
    if get_origin(moved) != get_origin(url):
        raise BadReply(
            f'"{render_origin(url)}" redirects its metadata to another origin, '
            f'"{render_origin(moved)}", which is refused'
        )
    return moved


def decode_object(body: bytes, url: str) -> dict[str, Any]:
    try:
        found = decode(body)
    except Malformed as problem:
        raise BadReply(f'"{render_origin(url)}" sent no JSON: {problem}') from None
    if not isinstance(found, dict):
        raise BadReply(f'"{render_origin(url)}" sent no JSON object')
    return found


async def post_form(
    http: HttpClient,
    url: str,
    form: Mapping[str, str],
    headers: Mapping[str, str],
    limits: OAuthLimits,
) -> dict[str, Any]:
    """Posts to an endpoint. Raises `EndpointRefused` for an error of OAuth, `Unreachable` if the
    server is overloaded or has failed, `BadReply` for anything that is not OAuth."""
    body = urlencode(form).encode("ascii")
    reply = await http.request(
        "POST", url, {**_FORM, **headers}, body, timeout=limits.request_seconds
    )
    secrets = [form[name] for name in SECRET_FIELDS if name in form]
    return await _read_answer(reply, url, limits, (*secrets, *headers.values()))


async def post_json(http: HttpClient, url: str, body: bytes, limits: OAuthLimits) -> dict[str, Any]:
    """Posts JSON to an endpoint; raises as `post_form` does."""
    reply = await http.request("POST", url, _POST_JSON, body, timeout=limits.request_seconds)
    return await _read_answer(reply, url, limits)


async def _read_answer(
    reply: HttpReply, url: str, limits: OAuthLimits, secrets: tuple[str, ...] = ()
) -> dict[str, Any]:
    origin = render_origin(url)
    if reply.status in _MOVED:
        reply.body.close()
        raise BadReply(f'"{origin}" redirects an OAuth request, which is refused')
    if reply.status >= 500 or reply.status == 429:
        reply.body.close()
        raise Unreachable(f'"{origin}" answered with HTTP {reply.status}')
    body = await reply.body.read(limits.max_bytes)
    if not body and reply.status == 200:
        return {}  # RFC 7009: a revocation has no content
    try:
        found = decode_object(body, url)
    except BadReply:
        if reply.status < 400:
            raise
        raise BadReply(f'"{origin}" answered with HTTP {reply.status}') from None
    code = found.get("error")
    if isinstance(code, str) and code:  # some servers send errors with status 200
        said = found.get("error_description")
        if isinstance(said, str):  # which may repeat what was sent
            said = hide_secrets(said[:MAX_READ], url, secrets)
        code = hide_secrets(code[:MAX_READ], url, secrets)
        raise EndpointRefused(quote_text(code, 64), quote_text(said), reply.status)
    if reply.status not in (200, 201):
        raise BadReply(f'"{origin}" answered with HTTP {reply.status}')
    return found
