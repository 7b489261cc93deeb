"""Tokens that were verified: found again by their hash until they expire, and when they do."""

from __future__ import annotations

import hashlib
from heapq import heappop, heappush
from math import ceil
from time import time
from typing import NamedTuple

from dragoman.core.principal import Principal

MAX_TOKENS = 10_000
_SEPARATOR = "|"


class TokenCredential(NamedTuple):
    """What a credential id says of its token. It needs no table: streams may outlive the cache."""

    issuer: str
    expires_at: float
    """0 if the token does not say."""
    key: str
    """The mark of the key that signed it; empty without one."""
    rules: str
    """The mark of the settings by which it was accepted."""
    digest: str

    def render(self) -> str:
        name, expires_at, *marks = self
        return _SEPARATOR.join([name, f"{expires_at:.0f}", *marks])


def parse_credential(credential: str) -> TokenCredential | None:
    match credential.split(_SEPARATOR):
        case [issuer, expires_at, key, rules, digest] if expires_at.isdigit():
            return TokenCredential(issuer, float(expires_at), key, rules, digest)
    return None


def hash_token(token: str) -> bytes:
    return hashlib.sha256(token.encode()).digest()


class VerifiedTokens:
    """Bounded; the oldest are verified again."""

    def __init__(self, most: int = MAX_TOKENS) -> None:
        self._most = most
        self._known: dict[bytes, tuple[Principal, float]] = {}
        self._expiries: list[int] = []
        """A heap of whole seconds, each once: as many as tokens expire at different times."""
        self._listed: set[int] = set()

    def __len__(self) -> int:
        return len(self._known)

    def find(self, digest: bytes) -> Principal | None:
        found = self._known.get(digest)
        if found is None:
            return None
        if found[1] > time():
            return found[0]
        del self._known[digest]
        return None

    def keep(self, digest: bytes, principal: Principal, until: float) -> None:
        if len(self._known) >= self._most:
            self._forget_some()
        self._known[digest] = principal, until
        self.note_expiry(until)

    def forget(self, digest: bytes) -> None:
        self._known.pop(digest, None)

    def note_expiry(self, at: float) -> None:
        second = ceil(at)
        if second not in self._listed:
            self._listed.add(second)
            heappush(self._expiries, second)

    def find_next_expiry(self, now: float) -> float:
        """Returns the next second in which a token expires, whether or not it is still kept."""
        while self._expiries and self._expiries[0] <= now:
            self._listed.discard(heappop(self._expiries))
        return self._expiries[0] if self._expiries else float("inf")

    def clear(self) -> None:
        self._known.clear()

    def _forget_some(self) -> None:
        """Forgets those that have expired, and a tenth of the others, the oldest."""
        now = time()
        self._known = {digest: one for digest, one in self._known.items() if one[1] > now}
        for digest in list(self._known)[: max(0, len(self._known) - self._most * 9 // 10)]:
            del self._known[digest]
