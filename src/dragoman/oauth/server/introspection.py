"""Opaque access tokens, about which the hub asks their issuer (RFC 7662, `[auth.introspection]`).

An answer counts for a short time. Tokens with open streams are asked about again after that time,
so that a revocation at the issuer ends them too.
"""

from __future__ import annotations

import asyncio
import base64
import logging
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from time import time
from typing import Any
from urllib.parse import quote_plus, urlencode

from dragoman.core.access import HUB_PREFIXES, SETTINGS_CHANGED, TOKEN_EXPIRED, TokenRejected
from dragoman.core.background import Background
from dragoman.core.errors import BadReply, HubError, Overloaded, Unreachable
from dragoman.core.principal import Principal
from dragoman.core.secret_rules import Author, SecretUse
from dragoman.oauth.server.claims import (
    IsOwnResource,
    build_principal,
    list_orgs,
    select_audiences,
)
from dragoman.oauth.server.config import IntrospectionSettings, find_issuer_name
from dragoman.oauth.server.jwt_tokens import (
    MAX_TOKEN,
    OpenHttp,
    check_expiry,
    mark_rules,
)
from dragoman.oauth.server.verified_tokens import (
    TokenCredential,
    VerifiedTokens,
    hash_token,
    parse_credential,
)
from dragoman.wire.http import HttpClient
from dragoman.wire.json import Malformed, decode

log = logging.getLogger(__name__)

ASK_SECONDS = 5.0
MAX_REPLY = 64 * 1024
MAX_ASKING = 32
"""Requests to the issuer at once."""
REJECTED_SECONDS = 10.0
"""How long a token that the issuer does not know is refused without asking again."""
MAX_REMEMBERED = 10_000

USE = SecretUse(Author.OWNER, "[auth.introspection]")
ResolveSecret = Callable[[str, SecretUse], Awaitable[str]]
"""Resolves a reference to a secret for its owner. Raises `ConfigError`."""


class IntrospectedTokens:
    """Implements `web.auth.TokenFinder`."""

    def __init__(
        self, open_http: OpenHttp, is_own: IsOwnResource, resolve_secret: ResolveSecret
    ) -> None:
        self._open_http = open_http
        self._is_own = is_own
        self._resolve_secret = resolve_secret
        self._settings: IntrospectionSettings | None = None
        self._http: HttpClient | None = None
        self._mark = ""
        self._known = VerifiedTokens(MAX_REMEMBERED)
        self._rejected: dict[bytes, float] = {}
        """Until when a token is refused without asking."""
        self._asking: dict[bytes, asyncio.Task[Principal | Exception]] = {}
        self._tokens: dict[str, tuple[str, float]] = {}
        """The tokens by their digest, and when to ask about each again, to follow streams. They
        are in memory only."""
        self._ended: dict[str, float] = {}
        """The digests of tokens that the issuer has revoked, and when that was noticed."""
        self._background = Background("token introspection")
        self._was_active = False
        self.version = 0

    def apply(self, settings: IntrospectionSettings | None) -> None:
        if settings == self._settings:
            return
        self._settings = settings
        self._known.clear()
        self._rejected.clear()
        self._mark = mark_rules(settings) if settings is not None else ""
        self._http = (
            self._open_http(settings.url, settings.allow_private) if settings is not None else None
        )
        self._was_active = self._was_active or settings is not None
        self.version += 1

    # --- TokenFinder -----------------------------------------------------------------------------

    def is_active(self) -> bool:
        return self._was_active

    def list_issuers(self, base: str) -> Sequence[str]:
        return [self._settings.issuer] if self._settings is not None else []

    def find(self, token: str) -> Principal | Callable[[], Awaitable[Principal]] | None:
        # The issuer is not told them: a key may be another hub's, and a client may send its refresh
        # token by mistake.
        if self._settings is None or token.startswith(HUB_PREFIXES):
            return None
        if len(token) > MAX_TOKEN:
            raise TokenRejected(f"the token is longer than {MAX_TOKEN} characters")
        digest = hash_token(token)
        if (principal := self._known.find(digest)) is not None:
            return principal
        if self._rejected.get(digest, 0.0) > time():
            raise TokenRejected("the issuer of the token does not accept it")
        return partial(self._ask, token, digest)

    def refresh(self) -> None:
        pass

    def find_next_expiry(self, now: float) -> float:
        return self._known.find_next_expiry(now)

    def explain_invalid(self, principal: Principal) -> str | None:
        settings = self._settings
        name, slash, _ = principal.id.partition("/")
        if settings is None or not slash or name != find_issuer_name(settings):
            return None
        if principal.org not in list_orgs(settings):
            return "the org of the user is not accepted any more"
        if not principal.credential:
            return ""
        credential = parse_credential(principal.credential)
        if credential is None or credential.rules != self._mark:
            return SETTINGS_CHANGED
        if credential.digest in self._ended:
            return "the access token was revoked"
        if 0 < credential.expires_at <= time():
            return TOKEN_EXPIRED
        self._follow(credential.digest)
        return ""

    def close(self) -> None:
        self._background.cancel()

    # --- asking the issuer -----------------------------------------------------------------------

    def _follow(self, digest: str) -> None:
        """Asks about a token again whose streams are open, if its answer is no longer fresh."""
        token, due = self._tokens.get(digest, ("", float("inf")))
        if due <= time() and len(self._asking) < MAX_ASKING:
            self._tokens[digest] = token, time() + max(self._cache_secs, 1.0)
            self._known.note_expiry(time() + max(self._cache_secs, 1.0))
            self._background.spawn(self._ask_again(token, digest))

    async def _ask_again(self, token: str, digest: str) -> None:
        try:
            await self._ask(token, hash_token(token))
        except TokenRejected:
            self._known.forget(hash_token(token))
            _bound(self._ended)
            self._ended[digest] = time()
            self.version += 1
        except HubError as error:
            log.warning("a token with open streams could not be checked again: %s", error)

    @property
    def _cache_secs(self) -> float:
        return self._settings.cache_secs if self._settings is not None else 0.0

    async def _ask(self, token: str, digest: bytes) -> Principal:
        """One request for all that ask about the same token."""
        if (flight := self._asking.get(digest)) is None:
            if len(self._asking) >= MAX_ASKING or self._settings is None:
                raise Overloaded("too many access tokens are being checked; try again shortly")
            flight = self._background.spawn(self._introspect(self._settings, token, digest))
            self._asking[digest] = flight
            flight.add_done_callback(lambda done: self._asking.pop(digest, None))
        found = await asyncio.shield(flight)
        if isinstance(found, Exception):
            raise found
        return found

    async def _introspect(
        self, settings: IntrospectionSettings, token: str, digest: bytes
    ) -> Principal | Exception:
        """Returns what it finds, and why not: a failed request is no failure of the task."""
        try:
            async with asyncio.timeout(ASK_SECONDS):
                claims = await self._request(settings, token)
        except (HubError, TimeoutError) as error:
            log.warning('introspection at "%s" failed: %s', settings.url, error or "timed out")
            return Unreachable(
                f'access tokens of "{settings.issuer}" cannot be checked at the moment: it does '
                "not answer; see the hub's log",
                sent=False,
            )
        try:
            return self._accept(settings, token, digest, claims)
        except TokenRejected as problem:
            _bound(self._rejected)
            self._rejected[digest] = time() + REJECTED_SECONDS
            return problem

    def _accept(
        self, settings: IntrospectionSettings, token: str, digest: bytes, claims: dict[str, Any]
    ) -> Principal:
        if claims.get("active") is not True:
            raise TokenRejected("the issuer of the token does not accept it")
        if settings is not self._settings:
            raise TokenRejected("the settings of the issuer have changed; try again")
        if claims.get("iss", settings.issuer) != settings.issuer:
            raise TokenRejected("the token is of another issuer")
        own = select_audiences(settings, claims.get("aud"), self._is_own)
        expires_at = check_expiry(claims["exp"], settings) if "exp" in claims else 0.0
        short = digest.hex()[:32]
        credential = TokenCredential(find_issuer_name(settings), expires_at, "", self._mark, short)
        principal = build_principal(settings, credential.issuer, claims, credential.render(), own)
        again = time() + settings.cache_secs
        self._known.keep(digest, principal, min(again, expires_at) if expires_at else again)
        if expires_at:
            self._known.note_expiry(expires_at)
        _bound(self._tokens)
        self._tokens[short] = token, again
        self._ended.pop(short, None)
        return principal

    async def _request(self, settings: IntrospectionSettings, token: str) -> dict[str, Any]:
        secret = await self._resolve_secret(settings.client_secret, USE)
        pair = f"{quote_plus(settings.client_id)}:{quote_plus(secret)}"
        headers = {
            "accept": "application/json",
            "authorization": f"Basic {base64.b64encode(pair.encode()).decode()}",
            "content-type": "application/x-www-form-urlencoded",
        }
        body = urlencode({"token": token, "token_type_hint": "access_token"}).encode()
        assert self._http is not None
        reply = await self._http.request("POST", settings.url, headers, body, timeout=ASK_SECONDS)
        if reply.status != 200:
            reply.body.close()
            raise BadReply(f"status {reply.status}")
        try:
            found = decode(await reply.body.read(MAX_REPLY))
        except Malformed as problem:
            raise BadReply(str(problem)) from None
        if not isinstance(found, dict):
            raise BadReply("the answer is no JSON object")
        return found


def _bound(table: dict[Any, Any]) -> None:
    """Makes room in a table whose oldest entries come first."""
    if len(table) >= MAX_REMEMBERED:
        for key in list(table)[: MAX_REMEMBERED // 10]:
            del table[key]
