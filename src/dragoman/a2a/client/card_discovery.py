"""Finds agent cards and verifies their signatures.

A card is searched at the well-known paths of 1.0 and of earlier dialects, below the given path and
then at the origin. It is cached as long as its server allows, within bounds, and revalidated by its
ETag; for a watched agent, only cards that the watch adopts are used.
"""

from __future__ import annotations

import asyncio
import logging
import re
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from math import inf
from time import monotonic
from typing import Any
from urllib.parse import urlsplit

from dragoman.a2a.cards.parse import MAX_CARD_BYTES, InvalidCard, decode_card, parse_card
from dragoman.a2a.cards.signing import check_signatures
from dragoman.a2a.protocol.headers import USER_AGENT
from dragoman.core.errors import BadReply, ConfigError, InvalidInput, TargetFailed, Unreachable
from dragoman.core.structs import Struct
from dragoman.core.urls import WebOrigin, parse_origin, render_origin
from dragoman.wire.http import HttpClient, HttpReply
from dragoman.wire.json import encode

log = logging.getLogger(__name__)

PLACES = ("/.well-known/agent-card.json", "/.well-known/agent.json")
SECONDS = 30.0
MAX_KEPT = 256
SHORTEST, USUAL, LONGEST = 30.0, 300.0, 86_400.0
"""Bounds of the seconds that a card is cached, and the default."""

IGNORE, PREFER, REQUIRE = "ignore", "prefer", "require"
POLICIES = (IGNORE, PREFER, REQUIRE)


LOOPBACK = frozenset({"localhost", "127.0.0.1", "::1"})


def is_same_origin(one: WebOrigin | None, other: WebOrigin | None) -> bool:
    """Treats all loopback names alike: cards say `localhost` where 127.0.0.1 was registered."""
    if one is None or other is None:
        return False
    return one == other or (
        one.host in LOOPBACK
        and other.host in LOOPBACK
        and (one.scheme, one.port) == (other.scheme, other.port)
    )


class CardTrust:
    """Verifies signatures of cards. Keys are pinned to an origin: a key URL in the card itself
    (`jku`) proves nothing and is never fetched."""

    def __init__(
        self, policy: str = IGNORE, pinned: Mapping[WebOrigin, Sequence[Any]] | None = None
    ) -> None:
        if policy not in POLICIES:
            raise ConfigError(f'invalid signatures = "{policy}": use {", ".join(POLICIES)}')
        self.policy = policy
        self._keys = dict(pinned or {})

    def verify_card(self, url: str, raw: Mapping[str, Any]) -> tuple[Mapping[str, Any], str | None]:
        """Returns the trusted part of the card found at `url`, and a finding. Raises `BadReply` for
        a card that is refused."""
        if self.policy == IGNORE:
            return raw, None
        origin = parse_origin(url)
        keys = self._keys.get(origin, ()) if origin is not None else ()
        signed, problem = bool(raw.get("signatures")), None
        if keys and signed:
            checked = check_signatures(raw, keys)
            if checked.why is None:
                return checked.covered, None
            problem = why = f"its signature is invalid: {checked.why}"
        elif signed:
            why = f'it is signed, but no key is pinned for "{render_origin(url)}"'
        else:
            why = "it is not signed"
        if self.policy == REQUIRE or problem is not None:
            raise BadReply(
                f'the card at "{render_origin(url)}" is refused: {why} (signatures = '
                f'"{self.policy}"); '
                "add the agent's public key to its keys, or ask its operator"
            )
        return raw, f"its card is used though {why}"


class FoundCard(Struct, frozen=True, kw_only=True):
    """An agent's card, and where it was found."""

    asked: str
    """The requested URL without the name of a card file: the agent's base."""
    url: str
    raw: Mapping[str, Any]
    """As received."""
    card: Mapping[str, Any]
    """In the form of 1.0."""
    findings: tuple[str, ...] = ()
    data: bytes = b""
    """The bytes as received."""
    signed: bool = False
    """Whether a key that is pinned to its origin signed it."""


class _CachedCard:
    __slots__ = ("etag", "expires", "found", "lock", "seen")

    def __init__(self) -> None:
        self.lock = asyncio.Lock()
        self.found: FoundCard | None = None
        """The card that is used."""
        self.seen: FoundCard | None = None
        """The latest card of a watched agent: used once it is adopted."""
        self.etag = ""
        self.expires = 0.0


class CardDiscovery:
    """Fetches and caches cards. Sends `headers` to the origin of `registered` alone."""

    def __init__(
        self,
        http: HttpClient,
        headers: Mapping[str, str],
        registered: str,
        timeout: float = SECONDS,
        trust: CardTrust | None = None,
        clock: Callable[[], float] = monotonic,
    ) -> None:
        self._http = http
        self._clock = clock
        self._headers = dict(headers)
        self._origin = parse_origin(registered)
        self._timeout = timeout
        self._trust = trust or CardTrust()
        self._cache: OrderedDict[str, _CachedCard] = OrderedDict()

    async def __call__(self, url: str) -> FoundCard:
        """Finds the card of the agent at `url`, which may be the address of the card itself."""
        kept = self._find_entry(url)
        async with kept.lock:
            if kept.found is None:
                if kept.seen is not None:
                    raise Unreachable(
                        f'the card of "{render_origin(url)}" was not accepted', sent=False
                    )
                found, reply = await self._search(url)
                self._store(kept, found, reply)
                return found
            if self._clock() >= kept.expires:
                await self._refresh(url, kept, kept.found)
            return kept.found

    async def refetch(self, url: str) -> FoundCard:
        """Fetches the card by its ETag; raises if it is unavailable. After this, only cards passed
        to `adopt` are used: a changed card is reviewed first."""
        kept = self._find_entry(url)
        async with kept.lock:
            before = kept.seen or kept.found
            kept.expires = inf
            try:
                found, reply = await self._refetch(url, kept, before)
            except _CardGone:  # it may have moved
                found, reply = await self._search(url)
            kept.seen, kept.etag = (
                found,
                _read_etag(reply) or (kept.etag if found is before else ""),
            )
            return found

    def adopt(self, url: str, found: FoundCard) -> None:
        kept = self._find_entry(url)
        kept.found, kept.expires = found, inf

    def parse_extended(self, found: FoundCard, raw: dict[str, Any]) -> FoundCard:
        """Parses the extended card of an agent with the card `found`. Raises `BadReply`."""
        data = encode(raw)
        try:
            return self._parse_card(found.asked, found.url, data)
        except InvalidCard as problem:
            raise BadReply(f"its extended card is invalid: {problem}") from None

    def _find_entry(self, url: str) -> _CachedCard:
        kept = self._cache.get(url)
        if kept is None:
            kept = self._cache[url] = _CachedCard()
            while len(self._cache) > MAX_KEPT:
                self._cache.popitem(last=False)
        return kept

    def forget(self, url: str) -> None:
        self._cache.pop(url, None)

    # --- searching -------------------------------------------------------------------------------

    async def _search(self, url: str) -> tuple[FoundCard, HttpReply]:
        tried: list[str] = []
        wants_key = 0
        for place in list_card_urls(url):
            reply = await self._fetch(place, "")
            if reply.status != 200:
                reply.body.close()
                tried.append(f'"{_render_card_url(place)}" was answered with HTTP {reply.status}')
                wants_key = wants_key or (reply.status if reply.status in (401, 403) else 0)
                continue
            try:
                return self._parse_card(url, place, await reply.body.read(MAX_CARD_BYTES)), reply
            except InvalidCard as problem:
                tried.append(f'"{_render_card_url(place)}" is not an agent card: {problem}')
        hint = ""
        if wants_key:
            held = "its credentials were rejected" if self._headers else "it needs credentials"
            hint = f"; {held}: set its token or headers"
        raise BadReply(
            f'no agent card was found for "{render_origin(url)}": {"; ".join(tried)}{hint}'
        )

    async def _refresh(self, url: str, kept: _CachedCard, before: FoundCard) -> None:
        """Revalidates the card; keeps it while the server is unreachable."""
        try:
            self._store(kept, *await self._refetch(url, kept, before))
        except _CardRefused:
            kept.found = None
            raise
        except TargetFailed as error:
            place = render_origin(before.url)
            log.warning('the card at "%s" could not be fetched again: %s', place, error)
            kept.expires = self._clock() + SHORTEST

    async def _refetch(
        self, url: str, kept: _CachedCard, before: FoundCard | None
    ) -> tuple[FoundCard, HttpReply]:
        """Returns the same object if nothing changed: others cache what they derived from it."""
        if before is None:
            return await self._search(url)
        place = before.url
        reply = await self._fetch(place, kept.etag)
        if reply.status == 304:
            reply.body.close()
            return before, reply
        if reply.status != 200:
            reply.body.close()
            kind = _CardGone if reply.status in (404, 410) else BadReply
            raise kind(f'"{_render_card_url(place)}" was answered with HTTP {reply.status}')
        try:
            found = self._parse_card(url, place, await reply.body.read(MAX_CARD_BYTES))
        except InvalidCard as problem:
            raise BadReply(f'"{_render_card_url(place)}" is not an agent card: {problem}') from None
        return (before if found.data == before.data else found), reply

    async def _fetch(self, place: str, etag: str) -> HttpReply:
        own = is_same_origin(parse_origin(place), self._origin)
        headers = {
            **(self._headers if own else {}),
            "user-agent": USER_AGENT,
            "accept": "application/json, application/a2a+json",
        }
        if etag:
            headers["if-none-match"] = etag
        return await self._http.request("GET", place, headers, timeout=self._timeout)

    def _parse_card(self, asked: str, place: str, data: bytes) -> FoundCard:
        odd: list[str] = []
        raw = decode_card(data)
        if not isinstance(raw.get("name"), str):
            raise InvalidCard("it has no name")
        believed, finding = self._verify(place, raw)
        card = parse_card(believed, place, odd)
        findings = [f"its card: {what}" for what in odd] + ([finding] if finding else [])
        base = strip_card_path(asked)
        if strip_card_path(place) != base:
            findings.append(
                f'its card was not under "{render_origin(base)}" but at the origin, and may '
                "belong to another agent"
            )
        return FoundCard(
            asked=base,
            url=place,
            raw=raw,
            card=card,
            findings=tuple(findings),
            data=data,
            signed=self._trust.policy != IGNORE and finding is None,
        )

    def _verify(self, place: str, raw: Mapping[str, Any]) -> tuple[Mapping[str, Any], str | None]:
        try:
            return self._trust.verify_card(place, raw)
        except BadReply as problem:
            raise _CardRefused(str(problem)) from None

    def _store(self, kept: _CachedCard, found: FoundCard, reply: HttpReply) -> None:
        if reply.status != 304:
            kept.etag = _read_etag(reply)
        kept.expires = self._clock() + _parse_lifetime(reply)
        kept.found = found


class _CardRefused(BadReply):
    """A card that was found and refused: other paths are not tried."""


class _CardGone(BadReply):
    """There is no card at its address any more."""


# --- addresses ------------------------------------------------------------------------------


def list_card_urls(url: str) -> list[str]:
    """Lists the addresses where the agent's card may be, the likeliest first."""
    if parse_origin(url) is None:
        raise InvalidInput(
            f'invalid agent address "{render_origin(url)}": use http:// or https://, a host and, '
            "if needed, a path"
        )
    parts = urlsplit(url)
    if parts.path.endswith(".json"):
        return [url]
    root = f"{parts.scheme}://{parts.netloc}"
    bases = dict.fromkeys([root + parts.path.rstrip("/"), root])
    return [base + place for base in bases for place in PLACES]


def strip_card_path(url: str) -> str:
    """Removes the name of a card file from an agent's address."""
    parts = urlsplit(url)
    path = parts.path.rstrip("/")
    if path.endswith(".json"):
        path = path.rpartition("/")[0].removesuffix("/.well-known")
    return f"{parts.scheme}://{parts.netloc}{path}"


_MAX_AGE = re.compile(r"(?:^|[\s,])max-age\s*=\s*\"?([0-9]{1,9})", re.IGNORECASE)


def _parse_lifetime(reply: HttpReply) -> float:
    said = reply.headers.get("cache-control", "").lower()
    if "no-cache" in said or "no-store" in said:
        return SHORTEST
    found = _MAX_AGE.search(said)
    return min(max(float(found[1]), SHORTEST), LONGEST) if found else USUAL


def _read_etag(reply: HttpReply) -> str:
    tag = reply.headers.get("etag", "")
    return tag if len(tag) <= 200 and tag.isascii() and tag.isprintable() else ""


def _render_card_url(place: str) -> str:
    """Renders the address of a card with its well-known path only."""
    known = next((end for end in PLACES if place.endswith(end)), "")
    return render_origin(place.removesuffix(known)) + known
