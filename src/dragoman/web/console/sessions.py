"""Sessions of the console: login links, cookies and what each session may do.

All of it is in memory and ends with the process. A session is stored under the hash of its cookie,
and its principal carries the id of the session as its credential, so that everything the session
opened ends with it. Does not know HTTP.
"""

from __future__ import annotations

import hmac
import secrets
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, replace
from hashlib import sha256
from typing import NamedTuple

from dragoman.core.access import SESSION, SESSION_ENDED
from dragoman.core.cluster import SINGLE_HUB, Ownership, find_mark
from dragoman.core.principal import OWNER, Principal

COOKIE_CHARS = 43


@dataclass(frozen=True, slots=True)
class SessionLimits:
    link_secs: float = 60.0
    idle_secs: float = 12 * 3600.0
    absolute_secs: float = 7 * 86_400.0
    links: int = 16
    """Unused links at once; a further one replaces the oldest."""
    sessions: int = 128
    """Sessions at once; a further one ends the one that was idle for the longest time, of the
    principal that has the most: no principal ends the sessions of others by opening many."""


@dataclass(slots=True)
class ConsoleSession:
    principal: Principal
    """Its credential is the id of the session."""
    csrf: str
    """What every change must carry, in the header `x-csrf-token`."""
    created_at: float
    used_at: float
    is_local: bool
    """Whether it was opened by a program of the hub's own user on this machine. Then only such a
    program may use it: cookies do not know ports, and another user's server may have seen it."""


class _Link(NamedTuple):
    until: float
    is_local: bool


class ConsoleSessions:
    def __init__(
        self,
        limits: SessionLimits | None = None,
        clock: Callable[[], float] = time.time,
        ownership: Ownership = SINGLE_HUB,
    ) -> None:
        """A link and a cookie name the hub that knows them, where there are several."""
        self._ownership = ownership
        self.limits = limits or SessionLimits()
        self._clock = clock
        self._links: dict[bytes, _Link] = {}
        """By the hash of their codes."""
        self._sessions: dict[bytes, ConsoleSession] = {}
        self._by_id: dict[str, bytes] = {}
        self.version = 0
        """Increases whenever a session has ended."""

    # --- links -----------------------------------------------------------------------------------

    def create_link(self, *, is_local: bool = False) -> str:
        """Returns the code of a new link, by which one browser becomes the owner's. A local one
        serves only a browser of the hub's own user on this machine."""
        now = self._clock()
        self._links = {code: link for code, link in self._links.items() if link.until > now}
        while len(self._links) >= self.limits.links:
            del self._links[next(iter(self._links))]
        code = self._ownership.mark + secrets.token_urlsafe(32)
        self._links[_hash(code)] = _Link(now + self.limits.link_secs, is_local)
        return code

    def use_link(self, code: str, *, is_local: bool) -> bool:
        """Whether the code is good for this browser; it is not good a second time. Who may not use
        it does not use it up. Raises `OwnedElsewhere` for a link of another hub."""
        link = self._links.get(_hash(code))
        if link is None:
            self._ownership.check(find_mark(code))
        if link is None or (link.is_local and not is_local):
            return False
        del self._links[_hash(code)]
        return link.until > self._clock()

    # --- sessions --------------------------------------------------------------------------------

    def open(self, principal: Principal = OWNER, *, is_local: bool) -> str:
        """Begins a session; returns the value of its cookie."""
        while len(self._sessions) >= self.limits.sessions:
            self._end(self._find_dispensable(principal))
        cookie = (self._ownership.mark + secrets.token_urlsafe(32))[:COOKIE_CHARS]
        now = self._clock()
        key = _hash(cookie)
        id = f"{SESSION}{key.hex()[:16]}"
        csrf = hmac.new(cookie.encode(), b"csrf", "sha256").hexdigest()
        holder = replace(principal, credential=id)
        self._sessions[key] = ConsoleSession(holder, csrf, now, now, is_local)
        self._by_id[id] = key
        return cookie

    def _find_dispensable(self, opener: Principal) -> bytes:
        counts = Counter([opener, *(one.principal for one in self._sessions.values())])

        def rank(key: bytes) -> tuple[int, float]:
            session = self._sessions[key]
            return -counts[session.principal], session.used_at

        return min(self._sessions, key=rank)

    def find(self, cookie: str) -> ConsoleSession | None:
        """Finds the session of a cookie and notes that it is in use."""
        session = self._sessions.get(_hash(cookie))
        if session is None or self._has_expired(session):
            return None
        session.used_at = self._clock()
        return session

    def find_by_credential(self, credential: str) -> ConsoleSession | None:
        key = self._by_id.get(credential)
        return self._sessions.get(key) if key is not None else None

    def list_sessions(self) -> list[ConsoleSession]:
        return [*self._sessions.values()]

    def close(self, credential: str) -> None:
        if (key := self._by_id.get(credential)) is not None:
            self._end(key)

    def close_all(self) -> int:
        count = len(self._sessions)
        for key in [*self._sessions]:
            self._end(key)
        return count

    def find_end(self, session: ConsoleSession) -> float:
        limits = self.limits
        return min(session.used_at + limits.idle_secs, session.created_at + limits.absolute_secs)

    # --- for the watch of access -----------------------------------------------------------------

    def refresh(self) -> None:
        """Ends the sessions that have expired."""
        for key in [key for key, one in self._sessions.items() if self._has_expired(one)]:
            self._end(key)

    def explain_ended(self, credential: str) -> str:
        """Why the session is over; empty while it is not."""
        return "" if credential in self._by_id else SESSION_ENDED

    def _has_expired(self, session: ConsoleSession) -> bool:
        return self.find_end(session) <= self._clock()

    def _end(self, key: bytes) -> None:
        ended = self._sessions.pop(key)
        del self._by_id[ended.principal.credential]
        self.version += 1


def _hash(secret: str) -> bytes:
    return sha256(secret.encode("utf-8", "replace")).digest()
