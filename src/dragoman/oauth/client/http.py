"""Puts a holder's token into the requests to the resource that it was issued for."""

from __future__ import annotations

from collections.abc import Mapping

from dragoman.core.errors import Unreachable
from dragoman.oauth.client.challenges import parse_challenge
from dragoman.oauth.client.records import AccessToken
from dragoman.oauth.client.tokens import TokenManager
from dragoman.oauth.client.urls import get_origin
from dragoman.wire.http import NO_HEADERS, AddressFinder, FixedHeaders, HttpClient, HttpReply
from dragoman.wire.masked_replies import mask_reply

MAX_URLS = 256
HEADER = "authorization"


class OAuthHttpClient:
    """Implements `wire.http.HttpClient` for one holder. A request that is rejected with 401 is sent
    once more, with another token: it was not executed."""

    def __init__(self, http: HttpClient, tokens: TokenManager, holder: str) -> None:
        self._http = http
        self._tokens = tokens
        self._holder = holder
        self._origin = get_origin(tokens.resource_url)
        self._is_ours: dict[str, bool] = {}
        """Whether each URL is of the resource's origin."""
        self._token: AccessToken | None = None
        self._accepted: AccessToken | None = None
        """The token that the server has accepted last."""
        self._template: Mapping[str, str] = NO_HEADERS
        self._filled = FixedHeaders(NO_HEADERS)
        self._secrets: tuple[str, ...] = ()
        """The headers that were sent last, made of this token and this template."""

    async def request(
        self,
        method: str,
        url: str,
        headers: Mapping[str, str],
        body: bytes = b"",
        *,
        timeout: float,
        extra_headers: Mapping[str, str] = NO_HEADERS,
    ) -> HttpReply:
        ours = self._is_ours.get(url)
        if not (self._check_origin(url) if ours is None else ours):
            return await self._http.request(
                method, url, headers, body, timeout=timeout, extra_headers=extra_headers
            )
        token = self._tokens.peek(self._holder)
        if token is None:
            token = await self._tokens.find_token(self._holder)
        if extra_headers and HEADER in extra_headers:
            extra_headers = _without(extra_headers)
        filled, secrets = self._fill(token, headers)
        reply = await self._http.request(
            method, url, filled, body, timeout=timeout, extra_headers=extra_headers
        )
        if reply.status == 401 or (reply.status == 403 and _lacks_scope(reply)):
            challenge = reply.headers.get("www-authenticate", "")
            reply.body.close()
            token = await self._tokens.note_rejected(self._holder, token, challenge)
            filled, secrets = self._fill(token, headers)
            reply = await self._http.request(
                method, url, filled, body, timeout=timeout, extra_headers=extra_headers
            )
            if reply.status == 401 or (reply.status == 403 and _lacks_scope(reply)):
                reply.body.close()
                challenge = reply.headers.get("www-authenticate", "")
                await self._tokens.note_rejected(self._holder, token, challenge)
                raise Unreachable(f'"{self._tokens.name}" rejected two tokens in a row', sent=False)
        if token is not self._accepted and reply.status < 400:
            self._accepted = token
            self._tokens.note_accepted(self._holder, token)
        return mask_reply(reply, secrets)

    def _fill(
        self, token: AccessToken, headers: Mapping[str, str]
    ) -> tuple[FixedHeaders, tuple[str, ...]]:
        """Returns the headers, and the secrets in them: while the reply is awaited, another request
        may be sent with another token."""
        if token is not self._token or headers is not self._template:
            self._filled = FixedHeaders({**_without(headers), HEADER: token.header})
            self._token = token
            self._secrets = (token.header, token.value)
            # Only these do not change from one request to the next.
            self._template = headers if isinstance(headers, FixedHeaders) else NO_HEADERS
        return self._filled, self._secrets

    def _check_origin(self, url: str) -> bool:
        if len(self._is_ours) >= MAX_URLS:
            self._is_ours.clear()
        try:
            ours = get_origin(url) == self._origin
        except ValueError:
            ours = False
        self._is_ours[url] = ours
        return ours

    async def find_addresses(self, url: str, timeout: float) -> list[str]:
        """Implements `wire.http.AddressFinder`."""
        if not isinstance(self._http, AddressFinder):
            raise Unreachable("this client supports no gRPC", sent=False)
        return await self._http.find_addresses(url, timeout)

    async def fill(self, url: str, headers: Mapping[str, str]) -> dict[str, str]:
        """Adds the token if `url` is of the resource's origin: a card may name any other."""
        if not self._check_origin(url):
            return dict(headers)
        token = await self._tokens.find_token(self._holder)
        return {**_without(headers), HEADER: token.header}


def _without(headers: Mapping[str, str]) -> dict[str, str]:
    """The headers without a credential of another kind."""
    return {name: value for name, value in headers.items() if name.lower() != HEADER}


def _lacks_scope(reply: HttpReply) -> bool:
    return parse_challenge(reply.headers.get("www-authenticate", "")).lacks_scope
