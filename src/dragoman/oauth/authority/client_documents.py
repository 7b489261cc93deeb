"""Client ID metadata documents: a client whose id is the https URL of its metadata.

Only for a signed-in user the hub fetches one, by the guarded HTTP client and without redirects, and
keeps it as long as its headers allow (draft-ietf-oauth-client-id-metadata-document).
"""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Callable
from dataclasses import dataclass
from urllib.parse import urlsplit

from dragoman.core.background import start_task
from dragoman.core.errors import HubError
from dragoman.oauth.authority.clients import (
    MAX_REDIRECTS,
    InvalidClient,
    OAuthClient,
    explain_redirect,
    parse_metadata,
)
from dragoman.oauth.authority.config import AuthServerSettings
from dragoman.wire.http import HttpClient
from dragoman.wire.json import Malformed, decode

MAX_BYTES = 16 * 1024
MAX_KEPT = 256
MAX_FETCHES = 8
FETCH_SECONDS = 10.0
KEEP_SECONDS = (60.0, 86_400.0)
"""How long a document is kept at least and at most."""
FAILED_SECONDS = 15.0
_HEADERS = {"accept": "application/json"}
_URL = re.compile(r"https://[A-Za-z0-9.-]+(?::[0-9]{1,5})?/[A-Za-z0-9._~!$&'()*+,;=:@%/?-]+")
_MAX_AGE = re.compile(r"(?:^|[\s,])max-age=([0-9]{1,9})")


@dataclass(frozen=True, slots=True)
class _Kept:
    found: OAuthClient | InvalidClient
    until: float


def is_document_url(id: str) -> bool:
    """Whether a client id is the URL of a document: https, with a path, without user names, dot
    segments and fragments."""
    if len(id) > 2_000 or not _URL.fullmatch(id):
        return False
    path = urlsplit(id).path
    return not {".", ".."} & set(path.split("/"))


class ClientDocuments:
    def __init__(
        self,
        http: HttpClient,
        settings: AuthServerSettings,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._http = http
        self._settings = settings
        self._clock = clock
        self._kept: dict[str, _Kept] = {}
        self._running: dict[str, asyncio.Task[_Kept]] = {}

    async def find(self, id: str, charge: Callable[[], None]) -> OAuthClient:
        """Finds the client; calls `charge` before a fetch, which may raise. Raises
        `InvalidClient`."""
        kept = self._kept.get(id)
        if kept is None or kept.until <= self._clock():
            task = self._running.get(id)
            if task is None:
                charge()
                if len(self._running) >= MAX_FETCHES:
                    raise InvalidClient("temporarily_unavailable", "try again in a moment")
                task = self._running[id] = start_task(self._fetch(id))
                task.add_done_callback(lambda _: self._running.pop(id, None))
            # Another request may wait for the same document: one that leaves must not end it.
            kept = await asyncio.shield(task)
        if isinstance(kept.found, InvalidClient):
            raise kept.found
        return kept.found

    async def _fetch(self, id: str) -> _Kept:
        try:
            found, seconds = await self._read(id)
            kept = _Kept(found, self._clock() + seconds)
        except InvalidClient as error:
            kept = _Kept(error, self._clock() + FAILED_SECONDS)
        except HubError as error:
            problem = InvalidClient("invalid_client", f"the client's metadata: {error}")
            kept = _Kept(problem, self._clock() + FAILED_SECONDS)
        self._kept.pop(id, None)
        while len(self._kept) >= MAX_KEPT:
            del self._kept[next(iter(self._kept))]
        self._kept[id] = kept
        return kept

    async def _read(self, id: str) -> tuple[OAuthClient, float]:
        reply = await self._http.request("GET", id, _HEADERS, timeout=FETCH_SECONDS)
        if reply.status != 200:
            reply.body.close()
            raise InvalidClient("invalid_client", f"its metadata answers with {reply.status}")
        try:
            raw = decode(await reply.body.read(MAX_BYTES))
        except Malformed as error:
            raise InvalidClient("invalid_client", f"its metadata is invalid: {error}") from None
        if not isinstance(raw, dict) or raw.get("client_id") != id:
            raise InvalidClient("invalid_client", "its metadata does not contain its own URL")
        if "client_secret" in raw or raw.get("token_endpoint_auth_method", "none") != "none":
            raise InvalidClient("invalid_client", "only public clients can be identified by a URL")
        # A document serves many hubs: a redirect that is not allowed here is left out.
        listed = raw.get("redirect_uris")
        listed = listed if isinstance(listed, list) else []
        uris = [uri for uri in listed if not explain_redirect(uri, self._settings)]
        usable = {"redirect_uris": uris[:MAX_REDIRECTS], "token_endpoint_auth_method": "none"}
        metadata = parse_metadata({**raw, **usable}, self._settings)
        host = urlsplit(id).hostname or ""
        client = OAuthClient(id, metadata.name or host, metadata.redirect_uris, host=host)
        return client, _find_lifetime(reply.headers.get("cache-control", ""))


def _find_lifetime(cache_control: str) -> float:
    least, most = KEEP_SECONDS
    if "no-store" in cache_control or "no-cache" in cache_control:
        return least
    age = _MAX_AGE.search(cache_control)
    return min(max(float(age[1]), least), most) if age else least
