"""Checks the URLs that servers name: https, or http on this machine. Pure.

No URL of a metadata document is fetched, shown or handed to a browser before it has passed here.
The HTTP client checks the addresses behind the names.
"""

from __future__ import annotations

import hashlib
from ipaddress import ip_address
from urllib.parse import urlsplit, urlunsplit

from dragoman.core.errors import BadReply
from dragoman.core.urls import render_origin

MAX_LENGTH = 2048
MARK_LENGTH = 32
LOOPBACK = frozenset({"localhost", "127.0.0.1", "::1"})
_PORTS = {"http": 80, "https": 443}


class OriginKey(tuple[str, str, int]):
    """Scheme, host and port, in lower case and with the default port filled in."""

    __slots__ = ()


def check_url(url: object, what: str, *, allow_loopback: bool) -> str:
    """Returns `url` if it may be used. `allow_loopback`: whether it may lead to this machine, by
    http too; only a server on this machine may send the hub or a browser there."""
    problem = _find_problem(url, allow_loopback)
    if problem:
        shown = render_origin(url) if isinstance(url, str) else ""
        raise BadReply(f'{what} "{shown[:300]}" is refused: {problem}')
    assert isinstance(url, str)
    return url


def _find_problem(url: object, allow_loopback: bool) -> str:
    if not isinstance(url, str) or not url:
        return "it is missing"
    if len(url) > MAX_LENGTH:
        return f"it is longer than {MAX_LENGTH} characters"
    if not url.isascii() or not url.isprintable() or any(one in url for one in ' \\"<>^`{|}'):
        return "it has characters that are not allowed in a URL"
    if not url.lower().startswith(("https://", "http://")):
        return "only https is supported"
    try:
        parts = urlsplit(url)
        host, _ = parts.hostname, parts.port
    except ValueError:
        return "it is not a URL"
    if not host or "@" in parts.netloc:
        return "it has no valid host"
    if "#" in url:
        return "it has a fragment"
    if is_loopback(url) and not allow_loopback:
        return "it leads to this machine"
    if parts.scheme == "http" and not is_loopback(url):
        return "only https is supported, except on this machine"
    return ""


def is_loopback(url: str) -> bool:
    host = urlsplit(url).hostname or ""
    try:
        address = ip_address(host)
    except ValueError:
        return host in LOOPBACK or host.endswith(".localhost")
    mapped = getattr(address, "ipv4_mapped", None)
    return bool((mapped or address).is_loopback)


def get_origin(url: str) -> OriginKey:
    parts = urlsplit(url)
    port = parts.port or _PORTS.get(parts.scheme, 0)
    return OriginKey((parts.scheme, parts.hostname or "", port))


def render_base(url: str) -> str:
    """Scheme, host and port, as a URL without a path."""
    parts = urlsplit(url)
    return f"{parts.scheme}://{parts.netloc.lower()}"


def build_resource(url: str) -> str:
    """Builds the canonical URI of a resource (RFC 8707, section 2): scheme and host in lower case,
    no path of a slash alone, and no query, which may have a key."""
    parts = urlsplit(url)
    path = "" if parts.path == "/" else parts.path
    return urlunsplit((parts.scheme, parts.netloc.lower(), path, "", ""))


def covers(resource: str, url: str) -> bool:
    """Whether a token for `resource` is meant for `url`: the same origin, and the same path or one
    below it. `/api` does not cover `/api2`."""
    if get_origin(resource) != get_origin(url):
        return False
    above, below = urlsplit(resource), urlsplit(url)
    if above.query and above.query != below.query:
        return False
    return f"{below.path.rstrip('/')}/".startswith(f"{above.path.rstrip('/')}/")


def insert_well_known(url: str, name: str) -> str:
    """Puts `/.well-known/NAME` between the host and the path (RFC 8414, section 3.1)."""
    parts = urlsplit(url)
    path = parts.path.rstrip("/")
    return urlunsplit((parts.scheme, parts.netloc, f"/.well-known/{name}{path}", "", ""))


def mark_issuer(issuer: str) -> str:
    """Builds the part of a redirect URI that tells one issuer from all others: a code that arrives
    at the redirect URI of another issuer is sent nowhere (RFC 9700, section 4.4.2.2)."""
    return hashlib.sha256(issuer.encode()).hexdigest()[:MARK_LENGTH]


def is_mark(text: str) -> bool:
    return len(text) == MARK_LENGTH and not text.strip("0123456789abcdef")


def add_query(url: str, query: str) -> str:
    """Adds parameters to an endpoint, which may have some already (RFC 6749, section 3.1)."""
    return f"{url}{'&' if urlsplit(url).query else '?'}{query}"
