"""Parses queries, and renders URLs without secrets. Pure.

Many hosted servers put a key into the path or query of their address. Everything but an
administrator's view names the origin only; administrators see the path with key-like segments
masked. User names, passwords, query values and fragments are never shown.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import NamedTuple
from urllib.parse import parse_qsl, unquote, urlsplit

from dragoman.core.errors import InvalidInput

HIDDEN = "…"
MAX_LENGTH = 300
MIN_SECRET = 6
"""Shorter values of headers and queries are not searched for in texts: they are words."""

_PARTS = re.compile(
    r"([A-Za-z][A-Za-z0-9+._-]*)://([^/?#\\]*)([^?#]*)(\??)[^#]*(?:#.*)?", re.DOTALL
)
_AUTHORITY = re.compile(r"(\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9._~-]+)(:[0-9]{1,5})?")
_WORD = re.compile(r"[A-Za-z0-9]+")
_PLAIN_WORD = re.compile(
    r"[A-Za-z0-9]{1,5}|[0-9]{1,7}|[A-Z]?[a-z]{1,20}[0-9]{0,3}|[A-Z]{1,12}"
    r"|[A-Za-z]?[a-z]+(?:[A-Z][a-z]+){1,3}"
)
_SECRET_OPTION = re.compile(r"(?i)key|token|secret|pass|auth|credential|header|^-[Hpu]$")
LONGEST_SEGMENT = 48
MAX_MASKED = 2_000
"""Characters of an address that are masked; the rest is hidden: an address has a segment in each
second character if its author wants it to, and to judge one takes a microsecond."""
MAX_SEARCHED = 8_192
"""Characters of an address whose parts are searched for in texts."""
MAX_PARAMETERS = 100
MAX_ESCAPES = 10_000
"""Percent signs of a query, each of which is decoded in turn."""


def parse_query(query: str) -> dict[str, str]:
    """Parses a query. Raises `InvalidInput` for a repeated parameter, which is ambiguous."""
    if query.count("%") > MAX_ESCAPES:
        raise InvalidInput("invalid query: it has too many escaped characters")
    try:
        pairs = parse_qsl(
            query, keep_blank_values=True, max_num_fields=MAX_PARAMETERS, errors="strict"
        )
    except ValueError:
        raise InvalidInput("invalid query") from None
    found: dict[str, str] = {}
    for name, value in pairs:
        if name in found:
            raise InvalidInput(f'repeated query parameter "{name[:100]}": pass it once')
        found[name] = value
    return found


class WebOrigin(NamedTuple):
    scheme: str
    host: str
    port: int


def parse_origin(url: str) -> WebOrigin | None:
    """Parses the origin of a URL; None for an invalid one, which matches no origin."""
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError:
        return None
    scheme, host = parts.scheme.lower(), (parts.hostname or "").lower()
    if scheme not in ("http", "https") or not host or "@" in parts.netloc or "\\" in url:
        return None
    return WebOrigin(scheme, host, port or (443 if scheme == "https" else 80))


def render_full_origin(url: str) -> str:
    """Scheme, host and port of `url`, the usual port too: equal for one and the same origin."""
    origin = parse_origin(url)
    if origin is None:
        return render_origin(url)
    host = f"[{origin.host}]" if ":" in origin.host else origin.host
    return f"{origin.scheme}://{host}:{origin.port}"


def render_origin(url: str) -> str:
    """Scheme, host and port of `url`, and `/…` if more follows."""
    parts = _PARTS.fullmatch(url)
    if parts is None:
        return _render_bare(url)
    rest = f"/{HIDDEN}" if parts[3].strip("/") or parts[4] else parts[3][:1]
    authority = _render_authority(parts[2])
    if "@" in parts[2] and "@" in parts[3]:
        authority = HIDDEN  # a password that contains a slash: the host may be a part of it
    return f"{parts[1].lower()}://{authority}{rest}"


def render_url(url: str) -> str:
    """For administrators: with the path, key-like segments masked."""
    url = _cut(url)
    parts = _PARTS.fullmatch(url)
    if parts is None:
        return _render_bare(url)
    authority = _render_authority(parts[2])
    if authority == HIDDEN:
        return render_origin(url)  # a password may contain a slash
    query = f"?{HIDDEN}" if parts[4] else ""
    return f"{parts[1].lower()}://{authority}{_mask_segments(parts[3])}{query}"[:MAX_LENGTH]


def render_uri(uri: str) -> str:
    """The address of a resource for logs and records, possibly prefixed with its server: resources
    stay distinguishable, key-like parts are masked, a query keeps its names."""
    bare, mark, query = _cut(uri).partition("#")[0].partition("?")
    parts = _PARTS.fullmatch(bare)
    if parts is not None:
        authority = parts[2].rpartition("@")[2]
        bare = f"{parts[1]}://{_mask_segments(authority)}{_mask_segments(parts[3])}"
    else:
        scheme, colon, rest = bare.rpartition(":")
        bare = f"{scheme}{colon}{_mask_segments(rest.rpartition('@')[2])}"
    if mark:
        names = [_mask_segments(pair.partition("=")[0]) for pair in query.split("&") if pair]
        bare += "?" + "&".join(f"{name}={HIDDEN}" for name in names[:16])
    return bare


def render_arguments(arguments: Sequence[str]) -> list[str]:
    """The arguments of a program, key-like ones and those after a secret option masked."""
    rendered: list[str] = []
    secret_next = False
    for argument in map(_cut, arguments):
        option, equals, value = argument.partition("=")
        secret = _SECRET_OPTION.search(option) is not None
        if secret_next:
            rendered.append(HIDDEN)
        elif equals and "://" not in option:
            rendered.append(f"{option}={HIDDEN if secret else _render_argument(value)}")
        else:
            rendered.append(_render_argument(argument))
        secret_next = secret and not equals and option.startswith("-")
    return rendered


def _render_argument(argument: str) -> str:
    return render_url(argument) if "://" in argument else _mask_segments(argument)


def hide_secrets(text: str, url: str, headers: Iterable[str] = ()) -> str:
    """Removes from `text`, written by the server at `url`, the secrets of the address and the
    values of `headers`: frameworks and proxies repeat both in error pages. A text from a longer
    address than any server has is not shown at all."""
    if len(url) > MAX_SEARCHED:
        return HIDDEN
    hidden = {word for value in headers for word in (value, *value.split())}
    parts = _PARTS.fullmatch(url)
    if parts is not None:
        target = url[url.index(parts[2], len(parts[1]) + 3) + len(parts[2]) :].partition("#")[0]
        path, _, query = target.partition("?")
        hidden |= {target, path, parts[2].rpartition("@")[0]}
        hidden |= {pair.partition("=")[2] for pair in query.split("&")}
        hidden |= {segment for segment in path.split("/") if is_secret_like(segment)}
    hidden |= {unquote(value) for value in hidden}
    for value in sorted(hidden, key=len, reverse=True):
        if len(value) >= MIN_SECRET:
            text = text.replace(value, f"/{HIDDEN}" if value.startswith("/") else HIDDEN)
    return text


def is_secret_like(text: str) -> bool:
    """Whether a piece of an address may be a key: long, or not made of words and numbers."""
    if len(text) > LONGEST_SEGMENT or not text.isprintable():
        return True
    if "%" in text:
        text = unquote(text)
    return not all(map(_PLAIN_WORD.fullmatch, _WORD.findall(text)))


def _cut(text: str) -> str:
    """Cuts after a whole segment: a part of a key may look like a word."""
    if len(text) <= MAX_MASKED:
        return text
    whole, slash, _ = text[:MAX_MASKED].rpartition("/")
    return f"{whole}{slash}{HIDDEN}"


def _mask_segments(path: str) -> str:
    segments = path.split("/")
    return "/".join(HIDDEN if is_secret_like(segment) else segment for segment in segments)


def _render_authority(authority: str) -> str:
    """Without user name and password; empty if it names no host."""
    host = authority.rpartition("@")[2]
    return host if _AUTHORITY.fullmatch(host) and len(host) <= 260 else HIDDEN


def _render_bare(text: str) -> str:
    """What may be a host in something that is not a URL."""
    host = re.split(r"[/?#\\]", text, maxsplit=1)[0]
    shown = _render_authority(host)
    if is_secret_like(shown):
        return HIDDEN
    return shown if len(host) == len(text) or shown == HIDDEN else f"{shown}/{HIDDEN}"
