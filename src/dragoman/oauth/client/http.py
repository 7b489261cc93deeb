"""Puts a holder's token into the requests to the resource that it was issued for."""

from __future__ import annotations

from collections.abc import Mapping

from dragoman.oauth.client.tokens import TokenManager
from dragoman.wire.http import NO_HEADERS, HttpClient, HttpReply


class OAuthHttpClient:
    """Implements `wire.http.HttpClient` for one holder."""

    def __init__(self, http: HttpClient, tokens: TokenManager, holder: str) -> None:
        self._http = http
        self._tokens = tokens
        self._holder = holder

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
        raise NotImplementedError
