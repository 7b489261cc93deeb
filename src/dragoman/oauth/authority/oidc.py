"""Sign-in at an identity provider in front of the hub's own users, by OpenID Connect.

The hub is a client of the provider: code flow with PKCE and a nonce, `state` bound to the browser,
the ID token verified by the provider's keys. All requests go through the guarded HTTP client.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import re
import secrets
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import quote, urlencode

from dragoman.core.cluster import Ownership, find_mark
from dragoman.core.errors import BadReply, InvalidInput, Refused
from dragoman.core.secret_rules import Author, SecretUse
from dragoman.core.urls import parse_query
from dragoman.core.users import UserRecord, Users, render_subject
from dragoman.oauth.authority.config import OidcSettings
from dragoman.oauth.authority.protocol import FindBase, OAuthError, reply_redirect
from dragoman.oauth.authority.sign_in import STALE, Browsers, SignIn, find_next
from dragoman.wire.http import HttpClient, HttpRequest
from dragoman.wire.json import Malformed, decode

ALGORITHMS = ("RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "EdDSA")
LEEWAY_SECONDS = 30.0
LOGIN_SECONDS = 600.0
MAX_LOGINS = 1_000
FETCH_SECONDS = 10.0
KEEP_SECONDS = 3_600.0
"""How long metadata and keys of the provider are kept."""
AGAIN_SECONDS = 30.0
"""How often an unknown key id makes the hub fetch the keys again."""
MAX_BYTES = 256 * 1024
_ROLE = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:-]{0,63}", re.ASCII)

USE = SecretUse(Author.OWNER, "[auth.server.oidc]")
ResolveSecret = Callable[[str, SecretUse], Awaitable[str]]
"""Reads the secret that a reference names, for an owner."""


@dataclass(frozen=True, slots=True)
class _PendingLogin:
    browser: str = field(repr=False)
    verifier: str = field(repr=False)
    nonce: str
    next: str
    until: float


class OidcSignIn:
    def __init__(
        self,
        settings: OidcSettings,
        users: Users,
        browsers: Browsers,
        sign_in: SignIn,
        http: HttpClient,
        resolve_secret: ResolveSecret,
        find_base: FindBase,
        note_failed: Callable[[str], None],
        scopes: Sequence[str],
        ownership: Ownership,
    ) -> None:
        """`scopes` are those of users that are added."""
        self._ownership = ownership
        self._settings = settings
        self._users = users
        self._browsers = browsers
        self._sign_in = sign_in
        self._http = http
        self._resolve_secret = resolve_secret
        self._find_base = find_base
        self._note_failed = note_failed
        self._scopes = scopes
        self._logins: dict[str, _PendingLogin] = {}
        self._metadata: tuple[Mapping[str, Any], float] | None = None
        self._keys: tuple[list[Any], float] | None = None

    async def start(self, request: HttpRequest) -> None:
        """Sends the browser to the provider."""
        next = find_next(parse_query(request.query.decode("latin-1")).get("next", ""))
        metadata = await self._find_metadata()
        browser, headers = self._browsers.identify(request)
        verifier, nonce, state = (secrets.token_urlsafe(32) for _ in range(3))
        state = self._ownership.mark + state
        now = time.monotonic()
        self._logins = {key: one for key, one in self._logins.items() if one.until > now}
        while len(self._logins) >= MAX_LOGINS:
            del self._logins[next_key(self._logins)]
        self._logins[state] = _PendingLogin(browser, verifier, nonce, next, now + LOGIN_SECONDS)
        challenge = base64.urlsafe_b64encode(hashlib.sha256(verifier.encode()).digest())
        query = {
            "response_type": "code",
            "client_id": self._settings.client_id,
            "redirect_uri": self._find_callback(),
            "scope": " ".join(self._settings.scopes),
            "state": state,
            "nonce": nonce,
            "code_challenge": challenge.rstrip(b"=").decode(),
            "code_challenge_method": "S256",
        }
        url = metadata["authorization_endpoint"]
        mark = "&" if "?" in url else "?"
        reply_redirect(request, f"{url}{mark}{urlencode(query)}", headers)

    async def finish(self, request: HttpRequest, address: str) -> None:
        """Takes the provider's answer and signs the user in. Raises `OwnedElsewhere` if the sign-in
        has begun at another hub."""
        given = parse_query(request.query.decode("latin-1"))
        state = given.get("state", "")
        login = self._logins.pop(state, None)
        if login is None:
            self._ownership.check(find_mark(state))
        browser = self._browsers.find_browser(request)
        if login is None or login.until <= time.monotonic():
            raise OAuthError("invalid_request", STALE, 403)
        if not hmac.compare_digest(login.browser, browser):
            raise OAuthError("invalid_request", STALE, 403)
        metadata = await self._find_metadata()
        has_iss = metadata.get("authorization_response_iss_parameter_supported") is True
        if given.get("iss", self._settings.issuer if not has_iss else "") != self._settings.issuer:
            raise OAuthError("invalid_request", "the answer is not your provider's", 403)
        name = self._settings.name
        if "code" not in given:
            problem = f"{name} did not sign you in ({given.get('error', 'no code')[:80]})."
            return self._sign_in.show(request, login.next, problem=problem, status=403)
        try:
            claims = await self._redeem(given["code"], login, metadata)
            user = self._find_user(claims)
        except Refused as error:
            self._note_failed(address)
            return self._sign_in.show(request, login.next, problem=f"{error}.", status=403)
        return self._sign_in.finish(request, user, "oidc", login.next)

    # --- the provider ----------------------------------------------------------------------------

    async def _redeem(
        self, code: str, login: _PendingLogin, metadata: Mapping[str, Any]
    ) -> Mapping[str, Any]:
        """Exchanges the code for an ID token and verifies it."""
        settings = self._settings
        form = {
            "grant_type": "authorization_code",
            "code": code,
            "redirect_uri": self._find_callback(),
            "client_id": settings.client_id,
            "code_verifier": login.verifier,
        }
        headers = {
            "content-type": "application/x-www-form-urlencoded",
            "accept": "application/json",
        }
        if settings.client_secret:
            secret = await self._resolve_secret(settings.client_secret, USE)
            methods = metadata.get("token_endpoint_auth_methods_supported")
            if isinstance(methods, list) and "client_secret_basic" not in methods:
                form["client_secret"] = secret
            else:
                both = f"{quote(settings.client_id, safe='')}:{quote(secret, safe='')}"
                headers["authorization"] = f"Basic {base64.b64encode(both.encode()).decode()}"
        reply = await self._http.request(
            "POST",
            metadata["token_endpoint"],
            headers,
            urlencode(form).encode(),
            timeout=FETCH_SECONDS,
        )
        answer = await _read_object(reply.body, "the token endpoint")
        token = answer.get("id_token")
        if reply.status != 200 or not isinstance(token, str):
            why = answer.get("error")
            why = why if isinstance(why, str) else f"status {reply.status}"
            raise Refused(f"{settings.name} did not confirm the sign-in ({why[:80]})")
        return await self._verify(token, login.nonce)

    async def _verify(self, token: str, nonce: str) -> Mapping[str, Any]:
        """Verifies an ID token (OpenID Connect Core, section 3.1.3.7)."""
        import jwt

        settings = self._settings
        try:
            head = jwt.get_unverified_header(token)
            key = await self._find_key(head.get("kid"), head.get("alg"))
            claims: Mapping[str, Any] = jwt.decode(
                token,
                key=key.key,
                algorithms=[key.algorithm_name],
                audience=settings.client_id,
                issuer=settings.issuer,
                leeway=LEEWAY_SECONDS,
                options={"require": ["exp", "iat", "aud", "iss", "sub"]},
            )
        except jwt.PyJWTError as error:
            raise Refused(f"the ID token of {settings.name} is not valid: {error}") from None
        if not hmac.compare_digest(str(claims.get("nonce", "")).encode(), nonce.encode()):
            raise Refused(f"the ID token of {settings.name} is not valid: wrong nonce")
        if claims.get("azp", settings.client_id) != settings.client_id:
            raise Refused(f"the ID token of {settings.name} is for another client")
        return claims

    async def _find_key(self, kid: object, algorithm: object) -> Any:
        """Finds the key of the provider that signed a token; the algorithm must be the key's."""
        import jwt

        for again in (False, True):
            for raw in await self._find_keys(again):
                if kid is not None and raw.get("kid") != kid:
                    continue
                if raw.get("use", "sig") != "sig" or algorithm not in ALGORITHMS:
                    continue
                try:
                    found = jwt.PyJWK(raw, algorithm=raw.get("alg") or algorithm)
                except jwt.PyJWTError:
                    continue
                if found.algorithm_name == algorithm:
                    return found
        raise Refused(f"{self._settings.name} has no key that signed the ID token")

    async def _find_keys(self, again: bool) -> list[Any]:
        now = time.monotonic()
        keep = AGAIN_SECONDS if again else KEEP_SECONDS
        if self._keys is None or now - self._keys[1] >= keep:
            metadata = await self._find_metadata()
            found = await self._get(metadata["jwks_uri"], "the keys")
            keys = found.get("keys")
            if not isinstance(keys, list):
                raise BadReply(f"the keys of {self._settings.name} are invalid")
            self._keys = [key for key in keys if isinstance(key, dict)][:100], now
        return self._keys[0]

    async def _find_metadata(self) -> Mapping[str, Any]:
        now = time.monotonic()
        if self._metadata is None or now - self._metadata[1] >= KEEP_SECONDS:
            issuer = self._settings.issuer
            url = f"{issuer.rstrip('/')}/.well-known/openid-configuration"
            found = await self._get(url, "the metadata")
            if found.get("issuer") != issuer:
                raise BadReply(f"the metadata at {issuer} is another issuer's")
            for name in ("authorization_endpoint", "token_endpoint", "jwks_uri"):
                value = found.get(name)
                if not isinstance(value, str) or not is_safe_url(value, issuer):
                    raise BadReply(f"the metadata at {issuer} has no valid {name}")
            self._metadata = found, now
        return self._metadata[0]

    async def _get(self, url: str, what: str) -> Mapping[str, Any]:
        headers = {"accept": "application/json"}
        reply = await self._http.request("GET", url, headers, timeout=FETCH_SECONDS)
        if reply.status != 200:
            reply.body.close()
            raise BadReply(f"{what} of {self._settings.name}: status {reply.status}")
        return await _read_object(reply.body, what)

    def _find_callback(self) -> str:
        return f"{self._find_base()}/oauth/oidc/callback"

    # --- users -----------------------------------------------------------------------------------

    def _find_user(self, claims: Mapping[str, Any]) -> UserRecord:
        """Finds or adds the user of an identity. Raises `Refused`."""
        settings = self._settings
        self._check_claims(claims)
        subject = render_subject(settings.issuer, str(claims["sub"])[:255])
        if (user := self._users.find_by_subject(subject)) is not None:
            return user
        name = claims.get(settings.name_claim)
        if not isinstance(name, str) or not name:
            raise Refused(f"{settings.name} did not tell your {settings.name_claim}")
        try:
            if self._users.find(name) is not None:
                # Added without a password, for this. Any other user would be taken over.
                self._users.bind_subject(name.strip().lower(), subject)
            elif not settings.create_users:
                raise Refused(f"{name[:80]} is not a user of this hub; ask the person who runs it")
            else:
                self._users.add(
                    name,
                    org=settings.org,
                    roles=[*settings.roles, *self._find_roles(claims)],
                    scopes=self._scopes,
                    subject=subject,
                    by="oidc",
                )
        except InvalidInput as error:
            raise Refused(f"you cannot sign in: {error}") from None
        found = self._users.find_by_subject(subject)
        if found is None:
            raise Refused("you cannot sign in")
        return found

    def _check_claims(self, claims: Mapping[str, Any]) -> None:
        settings = self._settings
        email = claims.get("email")
        is_verified = claims.get("email_verified") is True
        if settings.name_claim == "email" or settings.allowed_domains:
            if not isinstance(email, str) or not is_verified:
                raise Refused(f"{settings.name} has not verified your email address")
            domain = email.rpartition("@")[2].lower()
            allowed = {one.lower() for one in settings.allowed_domains}
            if allowed and domain not in allowed:
                raise Refused(f"users of {domain[:80]} may not sign in here")
        for name, wanted in settings.required_claims.items():
            value = claims.get(name)
            values = value if isinstance(value, list) else [value]
            if wanted not in [str(one) for one in values]:
                raise Refused(f"your account at {settings.name} lacks {name} = {wanted}")

    def _find_roles(self, claims: Mapping[str, Any]) -> list[str]:
        """A provider's groups become roles. The role owner comes from the hub's operator alone."""
        value = claims.get(self._settings.roles_claim) if self._settings.roles_claim else None
        values = value if isinstance(value, list) else [value]
        names = [one for one in values if isinstance(one, str) and _ROLE.fullmatch(one)]
        return [one for one in names if one != "owner"][:50]


def is_safe_url(url: str, issuer: str) -> bool:
    """Whether an endpoint of a provider can be used: https, or http where its issuer is."""
    schemes = ("https://", "http://") if issuer.startswith("http://") else ("https://",)
    return url.startswith(schemes) and url.isascii() and url.isprintable() and " " not in url


def next_key(entries: Mapping[str, Any]) -> str:
    """Returns the oldest key."""
    return next(iter(entries))


async def _read_object(body: Any, what: str) -> Mapping[str, Any]:
    try:
        found = decode(await body.read(MAX_BYTES))
    except Malformed as error:
        raise BadReply(f"{what}: {error}") from None
    if not isinstance(found, dict):
        raise BadReply(f"{what}: not an object")
    return found
