"""OAuth clients: what their metadata may say, and which redirect URIs they may use. Pure.

A registration (RFC 7591) and a client ID metadata document have the same fields and the same rules.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from dragoman.core.safe_text import escape_line
from dragoman.oauth.authority.config import AuthServerSettings

MAX_REDIRECTS = 10
MAX_URI = 2_000
MAX_NAME = 80
LOOPBACK = frozenset({"localhost", "127.0.0.1", "[::1]"})
AUTH_METHODS = ("none", "client_secret_basic", "client_secret_post")
GRANTS = frozenset({"authorization_code", "refresh_token"})

_WEB = re.compile(
    r"(https?)://([A-Za-z0-9](?:[A-Za-z0-9.-]*[A-Za-z0-9])?|\[[0-9A-Fa-f:.]+\])(?::([0-9]{1,5}))?"
    r"((?:/[A-Za-z0-9._~!$&'()*+,;=:@%/-]*)?(?:\?[A-Za-z0-9._~!$&'()*+,;=:@%/?-]*)?)"
)
"""http and https, without user names and fragments."""
_PRIVATE = re.compile(r"([a-z][a-z0-9+.-]{1,60}):[A-Za-z0-9._~!$&'()*+,;=:@%/?-]{1,1900}")
"""A scheme of a program on the user's machine (RFC 8252, section 7.1)."""
KNOWN_SCHEMES = frozenset(
    {
        *("amp", "chatwise", "cherrystudio", "claude", "cline", "code-oss", "codex", "cursor"),
        *("cursor-nightly", "goose", "jetbrains", "kiro", "librechat", "lmstudio", "msty"),
        *("opencode", "positron", "raycast", "roo", "trae", "vscode", "vscode-insiders"),
        *("vscodium", "void", "warp", "windsurf", "windsurf-next", "witsy", "zed", "zed-preview"),
    }
)
"""Schemes of MCP clients without a dot. Others of that form may belong to the system or to a
browser, which act on them themselves (`ms-msdt:`, `search-ms:`, `javascript:`)."""
MAX_PORT = 65_535


class InvalidClient(Exception):
    """The metadata of a client is not acceptable. `error` is the code of RFC 7591."""

    def __init__(self, error: str, message: str) -> None:
        super().__init__(message)
        self.error = error


@dataclass(frozen=True, slots=True)
class ClientMetadata:
    name: str
    redirect_uris: tuple[str, ...]
    auth_method: str


@dataclass(frozen=True, slots=True)
class OAuthClient:
    id: str
    name: str
    redirect_uris: tuple[str, ...]
    auth_method: str = "none"
    secret: bytes = field(default=b"", repr=False)
    """The hash of its secret."""
    host: str = ""
    """The host that vouches for its name, if its id is a URL there."""

    def allows(self, redirect_uri: str) -> bool:
        return any(is_same_redirect(one, redirect_uri) for one in self.redirect_uris)


def parse_metadata(raw: Mapping[str, Any], settings: AuthServerSettings) -> ClientMetadata:
    """Checks the metadata of a client. Raises `InvalidClient`."""
    uris = raw.get("redirect_uris")
    if not isinstance(uris, list) or not 1 <= len(uris) <= MAX_REDIRECTS:
        raise InvalidClient("invalid_redirect_uri", f"give 1 to {MAX_REDIRECTS} redirect_uris")
    for uri in uris:
        if why := explain_redirect(uri, settings):
            raise InvalidClient("invalid_redirect_uri", why)
    for key, known in (("grant_types", GRANTS), ("response_types", {"code"})):
        given = raw.get(key, [])
        if not isinstance(given, list) or not all(isinstance(one, str) for one in given):
            raise InvalidClient("invalid_client_metadata", f"{key} must be a list of texts")
        if given and not known & set(given):
            wanted = ", ".join(sorted(known))
            raise InvalidClient("invalid_client_metadata", f"of {key} the hub supports {wanted}")
    method = raw.get("token_endpoint_auth_method")
    if method is None:
        method = "client_secret_basic"  # RFC 7591, section 2
    if method not in AUTH_METHODS:
        known_methods = ", ".join(AUTH_METHODS)
        raise InvalidClient(
            "invalid_client_metadata", f"token_endpoint_auth_method: choose one of {known_methods}"
        )
    name = raw.get("client_name", "")
    if not isinstance(name, str):
        raise InvalidClient("invalid_client_metadata", "client_name must be a text")
    return ClientMetadata(clean_name(name), tuple(uris), method)


def clean_name(name: str) -> str:
    """Shortens the name of a client and makes invisible characters visible."""
    cut = " ".join(escape_line(name.strip()[: 2 * MAX_NAME]).split())
    return cut if len(cut) <= MAX_NAME else f"{cut[:MAX_NAME]}…"


def explain_redirect(uri: object, settings: AuthServerSettings) -> str:
    """Explains why a client must not use this redirect URI; empty if it may."""
    if not isinstance(uri, str) or not uri.isascii() or len(uri) > MAX_URI:
        return "a redirect URI is a URL of at most 2000 ASCII characters"
    if web := _WEB.fullmatch(uri):
        scheme, host, hosts = web[1], web[2].lower(), settings.redirect_hosts
        if int(web[3] or 0) > MAX_PORT:
            return "a redirect URI has an invalid port"
        if host in LOOPBACK:
            return ""
        if scheme == "http":
            return "a redirect URI needs https, except on loopback"
        if hosts and not any(_matches_host(host, one) for one in hosts):
            return f"redirects to {host} are not allowed; see [auth.server] redirect_hosts"
        return ""
    private = _PRIVATE.fullmatch(uri)
    if private is None or private[1] in ("http", "https"):
        return "a redirect URI is an https URL, an http URL on loopback, or has a program's scheme"
    scheme = private[1]
    if "." in scheme or scheme in KNOWN_SCHEMES or scheme in settings.redirect_schemes:
        return ""  # RFC 8252, section 7.1: the reverse of a domain name, or a known program
    return f"the scheme {scheme}: is not known; see [auth.server] redirect_schemes"


def _matches_host(host: str, allowed: str) -> bool:
    allowed = allowed.lower()
    if allowed.startswith("*."):
        return host.endswith(allowed[1:])
    return host == allowed


def is_same_redirect(registered: str, given: str) -> bool:
    """Whether the URIs are equal: character by character, but any port on loopback, since programs
    listen on a free one (RFC 8252, section 7.3)."""
    if registered == given:
        return True
    one, two = _WEB.fullmatch(registered), _WEB.fullmatch(given)
    if one is None or two is None or one[1] != "http" or one[2] not in LOOPBACK:
        return False
    return (one[1], one[2], one[4]) == (two[1], two[2], two[4])


def is_loopback_redirect(uri: str) -> bool:
    web = _WEB.fullmatch(uri)
    return web is not None and web[2].lower() in LOOPBACK


def is_web_redirect(uri: str) -> bool:
    """Whether only the owner of a host can receive it: it is https, and not on loopback."""
    return uri.startswith("https://") and not is_loopback_redirect(uri)


def describe_redirect(uri: str) -> str:
    """Names where a redirect leads, for users."""
    web = _WEB.fullmatch(uri)
    if web is None:
        return f"the program on this device that opens {uri.partition(':')[0]}: links"
    if web[2].lower() in LOOPBACK:
        return "a program on this device"
    return web[2].lower() + (f":{web[3]}" if web[3] else "")


def find_form_source(uri: str) -> str:
    """Returns the CSP source of a redirect: browsers apply form-action to redirects of forms."""
    web = _WEB.fullmatch(uri)
    if web is None:
        return f"{uri.partition(':')[0]}:"
    return f"{web[1]}://{web[2]}" + (f":{web[3]}" if web[3] else "")
