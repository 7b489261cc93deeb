"""Parses URLs strictly: what two programs could read differently is refused.

Only the result is dialled and sent; no other parser ever sees the text.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from ipaddress import IPv6Address, ip_address
from typing import NamedTuple
from urllib.parse import urljoin

from dragoman.core.urls import render_origin

LONGEST = 8192

_PARTS = re.compile(r"(https?)://([^/?#]*)([^#]*)", re.IGNORECASE)
_AUTHORITY = re.compile(r"(\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9._-]+)(?::([0-9]{1,5}))?")
_LABEL = re.compile(r"[a-z0-9_](?:[a-z0-9_-]{0,61}[a-z0-9_])?")
# The WHATWG rule: a host whose last label reads as a number is an IPv4 address, and getaddrinfo
# agrees: 2130706433, 0x7f000001, 127.1 and 0177.0.0.1 all lead to 127.0.0.1.
_NUMBER = re.compile(r"[0-9]+|0x[0-9a-f]*")
LOOPBACK = frozenset({"localhost", "127.0.0.1", "::1"})
"""The names that programs use interchangeably for this machine."""
_PORTS = {"http": 80, "https": 443}


class BadUrl(ValueError):
    """The message says what is wrong, and fits after `"…": `."""


class UrlOrigin(NamedTuple):
    scheme: str
    host: str
    """Lower case; an IP address in its usual spelling, without brackets."""
    port: int


@dataclass(frozen=True, slots=True)
class Url:
    origin: UrlOrigin
    literal: bool
    """The host is an IP address and needs no lookup."""
    authority: str
    """For the Host header."""
    target: str
    """Path and query."""

    @property
    def rendered(self) -> str:
        """For messages: without path and query, which may hold a key."""
        return render_origin(self.full)

    @property
    def full(self) -> str:
        return f"{self.origin.scheme}://{self.authority}{self.target}"


def parse_url(text: str) -> Url:
    if len(text) > LONGEST:
        raise BadUrl(f"it is longer than {LONGEST} characters")
    if not text.isascii() or not text.isprintable() or " " in text or "\\" in text:
        raise BadUrl(
            "it has characters that are not allowed in a URL; "
            "write names as xn--… and everything else percent-encoded"
        )
    parts = _PARTS.fullmatch(text.partition("#")[0])
    if parts is None:
        raise BadUrl("only http:// and https:// URLs are supported")
    scheme, authority, target = parts[1].lower(), parts[2], parts[3]
    if "@" in authority:
        raise BadUrl("a user name or password in a URL is not accepted; use headers")
    match = _AUTHORITY.fullmatch(authority)
    if match is None:
        raise BadUrl("it has no valid host")
    host, literal = _normalize_host(match[1].lower())
    port = int(match[2]) if match[2] else _PORTS[scheme]
    if not 0 < port < 65536:
        raise BadUrl(f"invalid port {port}")
    shown = f"[{host}]" if ":" in host else host
    if port != _PORTS[scheme]:
        shown = f"{shown}:{port}"
    if not target.startswith("/"):
        target = "/" + target
    return Url(UrlOrigin(scheme, host, port), literal, shown, target)


def _normalize_host(host: str) -> tuple[str, bool]:
    """The host in its canonical spelling, and whether it is an IP address."""
    if host.startswith("["):
        try:
            return str(IPv6Address(host[1:-1])), True
        except ValueError:
            raise BadUrl(f"invalid IPv6 address {host}") from None
    labels = host.split(".")
    if _NUMBER.fullmatch(labels[-1]):
        try:
            return str(ip_address(host)), True
        except ValueError:
            raise BadUrl(
                f'invalid IPv4 address "{host}": write it as four decimal numbers'
            ) from None
    if len(host) > 253 or not all(map(_LABEL.fullmatch, labels)):
        raise BadUrl(f'invalid host name "{host}"')
    return host, False


def join_url(base: Url, location: str) -> Url:
    """Resolves a redirect. `urljoin` drops control characters, so they are refused before."""
    if not location.isascii() or not location.isprintable() or len(location) > LONGEST:
        raise BadUrl("it has characters that are not allowed in a URL")
    try:
        joined = urljoin(base.full, location)
    except ValueError as error:
        raise BadUrl(str(error)) from None
    return parse_url(joined)
