"""Watches the keys and ends what a caller has open as soon as its key is revoked or expires.

Looks by itself, whether or not requests come in. A key that another process revokes is refused, and
what it has open ends, after `KEY_SECONDS` and the `ENDING_SECONDS` that a request may take to end
properly: within a second in all.
"""

from __future__ import annotations

import asyncio
import logging
import time
from functools import lru_cache
from typing import Protocol

from dragoman.core.access import ServesPrincipals
from dragoman.core.errors import HubError
from dragoman.core.principal import LOCAL, OWNER, SERVER, Principal
from dragoman.web.auth import API_KEY, Authenticator

log = logging.getLogger(__name__)

KEY_SECONDS = 0.25
"""How often the keys are looked at."""
AGAIN_SECONDS = (0.25, 5.0)
"""When the parts are told again: a request that was authenticated before the change may begin its
work after it, after some seconds at the latest."""


class RevocableKeys(Protocol):
    version: int
    """Moves when they may have changed."""

    def refresh(self) -> None: ...

    def find_next_expiry(self, now: float) -> float: ...

    def explain_invalid(self, name: str, org: str) -> str: ...


class AccessWatch:
    def __init__(self, keys: RevocableKeys, auth: Authenticator) -> None:
        self._keys = keys
        self._auth = auth
        self.parts: list[ServesPrincipals] = []
        """All that serve callers."""
        self._version = keys.version
        self._expiry = keys.find_next_expiry(time.time())
        self._again: list[asyncio.TimerHandle] = []
        self._unreadable = False

    def explain_ended(self, principal: Principal) -> str:
        """Why that principal is not served any more; empty while it is (`WhyEnded`)."""
        if principal.kind == OWNER.kind:
            return ""  # comes by a socket that only the owner can open
        if principal == LOCAL or principal.kind == SERVER:
            return "a key is needed now" if self._auth.is_required else ""
        if principal == API_KEY:
            return "" if self._auth.has_api_key else "api_key is not set any more"
        if principal.kind != API_KEY.kind:
            return "it shows no key"
        return self._keys.explain_invalid(principal.id, principal.org)

    async def watch(self) -> None:
        while True:
            await asyncio.sleep(KEY_SECONDS)
            try:
                self._check_keys()
                self._unreadable = False
            except HubError as error:
                if not self._unreadable:  # new requests are refused meanwhile
                    log.error("%s", error)
                self._unreadable = True
            except Exception:  # or no further change would be seen
                log.exception("the keys could not be looked at")

    def _check_keys(self) -> None:
        self._keys.refresh()
        now = time.time()
        if self._keys.version == self._version and now < self._expiry:
            return
        self._version, self._expiry = self._keys.version, self._keys.find_next_expiry(now)
        self._end_revoked()
        loop = asyncio.get_running_loop()
        self.close()
        self._again = [loop.call_later(seconds, self._end_revoked) for seconds in AGAIN_SECONDS]

    def _end_revoked(self) -> None:
        why_ended = lru_cache(maxsize=None)(self.explain_ended)  # many things are of one caller
        for part in self.parts:
            try:
                part.end_principals(why_ended)
            except Exception:  # or the other parts would go on serving them
                log.exception("what revoked callers have open could not be ended in full")

    def close(self) -> None:
        for timer in self._again:
            timer.cancel()
