"""Signed access tokens (RFC 9068) of the issuers in `[auth.jwt]`, verified by PyJWT.

The configuration decides everything: which issuers, which algorithms, which keys, which audiences.
What a token says of its own key (`jku`, `x5u`, `jwk`, `x5c`) is not read.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import logging
import re
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from functools import partial
from time import time
from typing import Any

import msgspec

from dragoman.core.access import SETTINGS_CHANGED, TOKEN_EXPIRED, TokenRejected
from dragoman.core.principal import Principal
from dragoman.oauth.server.claims import (
    IsOwnResource,
    build_principal,
    list_orgs,
    select_audiences,
)
from dragoman.oauth.server.config import (
    ClaimRules,
    JwtIssuer,
    JwtSettings,
    find_issuer_name,
)
from dragoman.oauth.server.key_sets import KeyLimits, KeySet, SigningKey
from dragoman.oauth.server.verified_tokens import (
    TokenCredential,
    VerifiedTokens,
    hash_token,
    parse_credential,
)
from dragoman.wire.http import HttpClient
from dragoman.wire.json import Malformed, decode

log = logging.getLogger(__name__)

MAX_TOKEN = 16 * 1024
"""Characters of a token; a longer one is refused unread."""
MAX_KEY_ID = 512
MAX_EXPIRY = 253_402_300_799
"""The last second that a date can have."""
_REQUIRED = ["exp", "aud", "iss", "sub"]
_TYPES = frozenset({"jwt", "at+jwt", "application/at+jwt"})
_SHAPE = re.compile(r"[A-Za-z0-9_-]+\.[A-Za-z0-9_-]+\.[A-Za-z0-9_-]*", re.ASCII)

OpenHttp = Callable[[str, bool], HttpClient]
"""Opens a client for an issuer by its URL; the flag allows private addresses."""


@dataclass(frozen=True, slots=True)
class TrustedIssuer:
    name: str
    rules: JwtIssuer
    keys: KeySet
    orgs: frozenset[str]
    mark: str
    """Identifies the settings."""


class JwtTokens:
    """Implements `web.auth.TokenFinder`."""

    def __init__(
        self, open_http: OpenHttp, is_own: IsOwnResource, limits: KeyLimits | None = None
    ) -> None:
        self._open_http = open_http
        self._is_own = is_own
        self._limits = limits or KeyLimits()
        self._issuers: dict[str, TrustedIssuer] = {}
        """By the `iss` of their tokens."""
        self._by_name: dict[str, TrustedIssuer] = {}
        self._known = VerifiedTokens()
        self._was_active = False
        self.version = 0

    def apply(self, settings: JwtSettings) -> None:
        """Puts settings in force. Tokens are verified again by them; the keys of an issuer stay."""
        before = dict(self._issuers)
        self._issuers = {
            rules.issuer: self._trust(rules, before.get(rules.issuer)) for rules in settings.issuers
        }
        self._by_name = {one.name: one for one in self._issuers.values()}
        for issuer, one in before.items():
            if issuer not in self._issuers or self._issuers[issuer].keys is not one.keys:
                one.keys.close()
        self._was_active = self._was_active or bool(self._issuers)
        self._forget()
        if self._issuers:
            import jwt  # noqa: F401  now, rather than while the first request waits

    def _trust(self, rules: JwtIssuer, before: TrustedIssuer | None) -> TrustedIssuer:
        name, orgs = find_issuer_name(rules), frozenset(list_orgs(rules))
        if before is not None and _find_place(before.rules) == _find_place(rules):
            keys = before.keys
        else:
            http = self._open_http(rules.jwks_url or rules.issuer, rules.allow_private)
            keys = KeySet(rules.issuer, rules.jwks_url, http, self._forget, self._limits)
        return TrustedIssuer(name, rules, keys, orgs, mark_rules(rules))

    def _forget(self) -> None:
        self._known.clear()
        self.version += 1

    # --- TokenFinder -----------------------------------------------------------------------------

    def is_active(self) -> bool:
        return self._was_active

    def list_issuers(self, base: str) -> Sequence[str]:
        return list(self._issuers)

    def find(self, token: str) -> Principal | Callable[[], Awaitable[Principal]] | None:
        if not self._issuers or token.count(".") != 2:
            return None
        if len(token) > MAX_TOKEN:
            raise TokenRejected(f"the token is longer than {MAX_TOKEN} characters")
        digest = hash_token(token)
        return self._known.find(digest) or self._verify(token, digest)

    def refresh(self) -> None:
        for issuer in self._issuers.values():
            issuer.keys.refresh()

    def find_next_expiry(self, now: float) -> float:
        return self._known.find_next_expiry(now)

    def explain_invalid(self, principal: Principal) -> str | None:
        name, slash, _ = principal.id.partition("/")
        issuer = self._by_name.get(name) if slash else None
        if issuer is None:
            return None
        if principal.org not in issuer.orgs:
            return "the org of the user is not accepted any more"
        if not principal.credential:
            return ""
        credential = parse_credential(principal.credential)
        if credential is None or credential.rules != issuer.mark:
            return SETTINGS_CHANGED
        if credential.key not in issuer.keys.marks:
            return "the key that signed the access token was withdrawn"
        return TOKEN_EXPIRED if credential.expires_at <= time() else ""

    def close(self) -> None:
        for issuer in self._issuers.values():
            issuer.keys.close()

    # --- verification ----------------------------------------------------------------------------

    def _verify(self, token: str, digest: bytes) -> Callable[[], Awaitable[Principal]] | None:
        if not _SHAPE.fullmatch(token):
            return None
        head, body, _ = token.split(".")
        header, claims = _parse_part(head), _parse_part(body)
        iss = claims.get("iss") if claims is not None else None
        issuer = self._issuers.get(iss) if isinstance(iss, str) else None
        if issuer is None:  # perhaps an opaque token, or one of another finder
            return None
        if header is None:
            raise TokenRejected("the token cannot be read")
        algorithm, id = check_header(header, issuer.rules)
        return partial(self._check_later, token, digest, issuer, algorithm, id)

    async def _check_later(
        self, token: str, digest: bytes, issuer: TrustedIssuer, algorithm: str, id: str | None
    ) -> Principal:
        key = issuer.keys.find(id, algorithm)
        if key is not None and not isinstance(key, SigningKey):
            key = await key
        if self._issuers.get(issuer.rules.issuer) is not issuer:
            raise TokenRejected("the settings of the issuer have changed; try again")
        return self._check(token, digest, issuer, algorithm, key)

    def _check(
        self,
        token: str,
        digest: bytes,
        issuer: TrustedIssuer,
        algorithm: str,
        key: SigningKey | None,
    ) -> Principal:
        if key is None:
            raise TokenRejected("the token is signed by a key that its issuer does not have")
        rules = issuer.rules
        claims = _decode_verified(token, key, algorithm, rules)
        own = select_audiences(rules, claims["aud"], self._is_own)
        until = check_expiry(claims.get("exp"), rules)
        credential = TokenCredential(issuer.name, until, key.mark, issuer.mark, digest.hex()[:32])
        principal = build_principal(rules, issuer.name, claims, credential.render(), own)
        self._known.keep(digest, principal, until)
        return principal


def check_header(header: dict[str, Any], rules: JwtIssuer) -> tuple[str, str | None]:
    """Returns the algorithm and the id of the key. Raises `TokenRejected` for a header that is not
    that of an access token."""
    algorithm, id, kind = header.get("alg"), header.get("kid"), header.get("typ", "JWT")
    if algorithm not in rules.algorithms:
        raise TokenRejected("the token is signed with an algorithm that is not accepted")
    if "crit" in header or "b64" in header:
        raise TokenRejected("the token needs an extension that the hub does not know")
    if not isinstance(kind, str) or kind.lower() not in _TYPES:
        raise TokenRejected("the token is no access token")
    if id is not None and not (isinstance(id, str) and len(id) <= MAX_KEY_ID):
        raise TokenRejected("the token names its key in a way that cannot be read")
    return algorithm, id


def check_expiry(exp: Any, rules: ClaimRules) -> float:
    """Returns until when a token counts, the leeway included."""
    if isinstance(exp, bool) or not isinstance(exp, int | float) or not 0 <= exp <= MAX_EXPIRY:
        raise TokenRejected("the token does not say when it expires")
    until = int(exp + rules.leeway_secs)
    if until <= time():
        raise TokenRejected("the token has expired")
    return float(until)


def mark_rules(rules: ClaimRules) -> str:
    encoded = msgspec.json.encode(rules)
    return hashlib.sha256(encoded).hexdigest()[:16]


def _find_place(rules: JwtIssuer) -> tuple[str, str | None, bool]:
    return rules.issuer, rules.jwks_url, rules.allow_private


def _decode_verified(
    token: str, key: SigningKey, algorithm: str, rules: JwtIssuer
) -> dict[str, Any]:
    import jwt

    options: Any = {"require": _REQUIRED, "enforce_minimum_key_length": True, "verify_aud": False}
    try:
        claims: dict[str, Any] = jwt.decode(
            token,
            key.key,
            algorithms=[algorithm],
            issuer=rules.issuer,
            leeway=rules.leeway_secs,
            options=options,
        )
    except jwt.PyJWTError as error:
        raise TokenRejected(_explain(error)) from None
    except Exception:
        log.exception("an access token could not be verified")
        raise TokenRejected("the token cannot be verified") from None
    return claims


def _explain(error: Exception) -> str:
    """Explains a refusal by the name of PyJWT's class, whose text may repeat the token."""
    return {
        "ExpiredSignatureError": "the token has expired",
        "ImmatureSignatureError": "the token is not valid yet",
        "InvalidSignatureError": "the signature of the token is wrong",
        "InvalidIssuerError": "the token is of another issuer",
        "MissingRequiredClaimError": "the token lacks one of: " + ", ".join(_REQUIRED),
    }.get(type(error).__name__, "the token is not valid")


def _parse_part(part: str) -> dict[str, Any] | None:
    try:
        found = decode(base64.urlsafe_b64decode(part + "=" * (-len(part) % 4)))
    except (binascii.Error, ValueError, Malformed):
        return None
    return found if isinstance(found, dict) else None
