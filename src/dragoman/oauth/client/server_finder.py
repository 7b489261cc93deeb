"""Finds the authorization server of a resource, and remembers for a while what was found."""

from __future__ import annotations

import time

from dragoman.oauth.client.challenges import NO_CHALLENGE, BearerChallenge, parse_challenge
from dragoman.oauth.client.discovery import Discovered, Discovery
from dragoman.oauth.client.limits import OAuthLimits
from dragoman.oauth.config import OAuthSettings
from dragoman.wire.http import HttpClient

_PROBE = b'{"jsonrpc":"2.0","id":1,"method":"ping"}'


class ServerFinder:
    def __init__(
        self,
        resource_url: str,
        settings: OAuthSettings,
        http: HttpClient,
        discovery: Discovery,
        limits: OAuthLimits,
    ) -> None:
        self._url = resource_url
        self._settings = settings
        self._http = http
        self._discovery = discovery
        self._limits = limits
        self._challenge: BearerChallenge | None = None
        """The last one of the server; None before it was asked."""
        self._found: tuple[float, Discovered] | None = None

    async def find(self) -> Discovered:
        now = time.time()
        if self._found is not None and 0 <= now - self._found[0] < self._limits.metadata_seconds:
            return self._found[1]
        if self._challenge is None:
            self._challenge = await self._probe()
        found = await self._discovery.discover(self._challenge, self._settings.issuer)
        self._found = (now, found)
        return found

    def choose_scopes(self, found: Discovered) -> tuple[str, ...]:
        """Chooses the scopes of a login: those of the settings, of the server's challenge, or of
        its metadata."""
        if self._settings.scopes:
            return tuple(self._settings.scopes)
        if self._challenge is not None and self._challenge.scopes:
            return self._challenge.scopes
        return found.resource.scopes

    def note_challenge(self, challenge: BearerChallenge) -> None:
        self._challenge = challenge
        self._found = None  # the authorization server may have changed

    async def _probe(self) -> BearerChallenge:
        """Asks the server for its challenge, which has the scopes, with a request that does
        nothing."""
        headers = {"accept": "application/json, text/event-stream"}
        with_type = {**headers, "content-type": "application/json"}
        for method, sent, body in (("POST", with_type, _PROBE), ("GET", headers, b"")):
            reply = await self._http.request(
                method, self._url, sent, body, timeout=self._limits.request_seconds
            )
            reply.body.close()
            if reply.status == 401:
                return parse_challenge(reply.headers.get("www-authenticate", ""))
        return NO_CHALLENGE
