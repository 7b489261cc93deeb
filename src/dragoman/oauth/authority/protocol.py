"""What the endpoints of the authorization server share: settings of a run, errors, replies. Pure.

RFC 6749 and OAuth 2.1 with the profile of MCP: authorization code with PKCE S256, `resource`
(RFC 8707), `iss` in the response (RFC 9207).
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import unquote_plus, urlencode, urlsplit

from dragoman.core.errors import InvalidInput
from dragoman.core.scopes import ADMIN, ADMIN_RIGHTS, APPROVE
from dragoman.core.urls import parse_query
from dragoman.wire.http import HttpRequest
from dragoman.wire.json import encode

Header = tuple[bytes, bytes]
NO_STORE: Header = (b"cache-control", b"no-store")
NO_SNIFF: Header = (b"x-content-type-options", b"nosniff")
LOOPBACK = ("localhost", "127.0.0.1", "[::1]")
MAX_STATE = 4_000
MAX_BODY = 32 * 1024

_CHALLENGE = re.compile(r"[A-Za-z0-9_-]{43}", re.ASCII)
_VERIFIER = re.compile(r"[A-Za-z0-9._~-]{43,128}", re.ASCII)
_SCOPE = re.compile(r"[\x21\x23-\x5b\x5d-\x7e]{1,200}")
_FORM = b"application/x-www-form-urlencoded"


class OAuthError(Exception):
    """An error of RFC 6749; `status` is that of a direct response."""

    def __init__(self, error: str, message: str, status: int = 400) -> None:
        super().__init__(message)
        self.error = error
        self.status = status


_ONLY_IF_ASKED = frozenset((ADMIN, APPROVE, *ADMIN_RIGHTS))
"""Scopes that no app gets without asking for them."""


@dataclass(frozen=True, slots=True)
class AuthorizationRequest:
    """A request at the authorization endpoint, before its client is known."""

    query: str
    client_id: str
    redirect_uri: str
    parameters: Mapping[str, str]

    @property
    def state(self) -> str:
        return self.parameters.get("state", "")


@dataclass(frozen=True, slots=True)
class CheckedRequest:
    """What a valid authorization request asks for."""

    scopes: tuple[str, ...]
    resource: str
    challenge: str


def parse_authorization_request(query: bytes) -> AuthorizationRequest:
    """Raises `OAuthError` if it does not name a client and a redirect URI."""
    text = query.decode("latin-1")
    try:
        parameters = parse_query(text)
    except InvalidInput as error:
        raise OAuthError("invalid_request", str(error)) from None
    client_id = parameters.get("client_id", "")
    redirect_uri = parameters.get("redirect_uri", "")
    if not client_id or not redirect_uri:
        missing = "redirect_uri" if client_id else "client_id"
        raise OAuthError("invalid_request", f"the request of the app has no {missing}")
    return AuthorizationRequest(text, client_id, redirect_uri, parameters)


def check_authorization_request(
    asked: AuthorizationRequest, base: str, allowed: Sequence[str]
) -> CheckedRequest:
    """Checks what a known client asks for; `allowed` are the scopes that the user can give. Raises
    `OAuthError`."""
    given = asked.parameters
    if given.get("response_type") != "code":
        raise OAuthError("unsupported_response_type", 'response_type must be "code"')
    if len(asked.state) > MAX_STATE:
        raise OAuthError("invalid_request", "state is too long")
    challenge = given.get("code_challenge", "")
    if not challenge:
        raise OAuthError("invalid_request", "code_challenge is missing: PKCE is required")
    if given.get("code_challenge_method") != "S256" or not _CHALLENGE.fullmatch(challenge):
        raise OAuthError("invalid_request", 'code_challenge_method must be "S256"')
    if given.get("response_mode", "query") != "query":
        raise OAuthError("invalid_request", 'response_mode must be "query"')
    if "request" in given or "request_uri" in given:
        raise OAuthError("request_not_supported", "request objects are not supported")
    resource = resolve_resource(given.get("resource", ""), base)
    return CheckedRequest(choose_scopes(given.get("scope", ""), allowed), resource, challenge)


def choose_scopes(asked: str, allowed: Sequence[str]) -> tuple[str, ...]:
    """Returns the scopes of those asked for that the user has; if none was asked for, all of them
    but those by which others are affected, which an app has to ask for. Unknown ones are ignored,
    as RFC 6749 section 3.3 permits."""
    scopes = asked.split()
    if not all(map(_SCOPE.fullmatch, scopes)):
        raise OAuthError("invalid_scope", "a scope has invalid characters")
    if not scopes or set(scopes) == {"offline_access"}:
        scopes = [scope for scope in allowed if scope not in _ONLY_IF_ASKED]
    chosen = tuple(scope for scope in allowed if scope in scopes)
    if not chosen:
        raise OAuthError("invalid_scope", "you may use none of the scopes that the app asks for")
    return chosen


def resolve_resource(given: str, base: str) -> str:
    """Returns the resource that tokens are for. Raises `OAuthError` if it is not this hub. On
    loopback the hub has several names."""
    if not given:
        return base
    try:
        one, own = urlsplit(given), urlsplit(base)
        same = _find_origin(one.scheme, one.netloc) == _find_origin(own.scheme, own.netloc)
    except ValueError:
        same = False
    if not same or "#" in given or "@" in given or "\\" in given or len(given) > 2_000:
        raise OAuthError("invalid_target", f"the resource must be this hub, {base}")
    return given


def _find_origin(scheme: str, netloc: str) -> tuple[str, str, int]:
    parts = urlsplit(f"//{netloc}")
    host = (parts.hostname or "").lower()
    if ":" in host:
        host = f"[{host}]"
    if scheme == "http" and host in LOOPBACK:
        host = "loopback"
    return scheme, host, parts.port or (443 if scheme == "https" else 80)


def is_right_verifier(verifier: str, challenge: str) -> bool:
    """Whether the verifier belongs to the challenge (RFC 7636, S256)."""
    if not _VERIFIER.fullmatch(verifier):
        return False
    digest = hashlib.sha256(verifier.encode()).digest()
    return base64.urlsafe_b64encode(digest).rstrip(b"=").decode() == challenge


def build_redirect(asked: AuthorizationRequest, base: str, **parameters: str) -> str:
    """Builds the redirect to the client, with `state` and `iss`."""
    if "state" in asked.parameters:
        parameters["state"] = asked.state
    parameters["iss"] = base
    mark = "&" if "?" in asked.redirect_uri else "?"
    return f"{asked.redirect_uri}{mark}{urlencode(parameters)}"


def parse_form(request: HttpRequest) -> dict[str, str]:
    """Parses the body of a form. Raises `OAuthError`."""
    kind = request.fields.get(b"content-type", b"").partition(b";")[0].strip().lower()
    if kind != _FORM:
        raise OAuthError("invalid_request", f"send {_FORM.decode()}", 400)
    if len(request.body) > MAX_BODY:
        raise OAuthError("invalid_request", "the body is too large", 413)
    try:
        return parse_query(request.body.decode("ascii"))
    except (InvalidInput, UnicodeDecodeError):
        raise OAuthError("invalid_request", "invalid or repeated parameters") from None


def read_basic(request: HttpRequest) -> tuple[str, str] | None:
    """Returns client id and secret of HTTP Basic (RFC 6749, section 2.3.1), if it is used. Raises
    `OAuthError`."""
    scheme, _, encoded = request.fields.get(b"authorization", b"").partition(b" ")
    if scheme.lower() != b"basic":
        return None
    try:
        id, colon, secret = base64.b64decode(encoded.strip(), validate=True).decode().partition(":")
    except (binascii.Error, UnicodeDecodeError):
        colon = id = secret = ""
    if not colon:
        raise OAuthError("invalid_client", "invalid Authorization header", 401)
    return unquote_plus(id), unquote_plus(secret)


def reply_json(
    request: HttpRequest, status: int, value: Mapping[str, Any], *headers: Header
) -> None:
    fixed = [(b"content-type", b"application/json"), NO_STORE, NO_SNIFF]
    request.reply(status, [*fixed, *headers], encode(value))


def reply_redirect(request: HttpRequest, url: str, headers: Sequence[Header] = ()) -> None:
    """Redirects with 303: the browser must not send a form with a password on (RFC 9700, 4.12)."""
    fixed = [(b"location", url.encode("ascii")), NO_STORE, (b"referrer-policy", b"no-referrer")]
    request.reply(303, [*fixed, *headers], b"")


FindBase = Callable[[], str]
"""Returns the URL of the hub, which is the issuer."""
