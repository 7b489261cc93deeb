"""Watches keys and access tokens, and ends the requests, streams and sessions of a revoked or
expired one.

Checks periodically, whether or not requests arrive. Everything opened with a key that another
process revokes ends within `KEY_SECONDS` and the `ENDING_SECONDS` of a request: within a second.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Sequence
from dataclasses import replace
from typing import Protocol

from dragoman.core.access import SESSION, SESSION_ENDED, ServesPrincipals, WhyEnded
from dragoman.core.errors import HubError, StorageFailed
from dragoman.core.logs import STORAGE_OUTAGE
from dragoman.core.principal import LOCAL, OWNER, SERVER, USER, WORKFLOW, Principal
from dragoman.web.auth import API_KEY, Authenticator

log = logging.getLogger(__name__)

KEY_SECONDS = 0.25
"""How often the keys are checked."""
AGAIN_SECONDS = (0.25, 5.0)
"""When the parts are notified again: a request authenticated before the change may start its work a
few seconds after it."""


class RevocableKeys(Protocol):
    version: int
    """Changes when the keys may have changed."""

    def refresh(self) -> None: ...

    def find_next_expiry(self, now: float) -> float: ...

    def explain_invalid(self, name: str, org: str) -> str: ...


class RevocableSessions(Protocol):
    """The sessions of the console: their principals have a credential with the prefix."""

    @property
    def version(self) -> int:
        """Changes when a session has ended."""

    def refresh(self) -> None:
        """Ends the sessions that have expired."""

    def explain_ended(self, credential: str) -> str:
        """Why the session with this credential is over; empty while it is not."""


class AccessWatch:
    def __init__(self, keys: RevocableKeys, auth: Authenticator) -> None:
        self._keys = keys
        self._auth = auth
        self._sessions: RevocableSessions | None = None
        self._parts: Sequence[ServesPrincipals] = ()
        self._versions = self._list_versions()
        self._checked = time.time()
        self._expiry = self._find_next_expiry(self._checked)
        self._again: list[asyncio.TimerHandle] = []

    def explain_ended(self, principal: Principal) -> str:
        """Explains why a principal is no longer served; empty while it is (`WhyEnded`)."""
        if principal.credential.startswith(SESSION):
            sessions = self._sessions
            ended = sessions.explain_ended(principal.credential) if sessions else SESSION_ENDED
            if ended:
                return ended
            principal = replace(principal, credential="")
        if principal.kind == OWNER.kind:
            return ""  # uses a socket that only the owner can open
        if principal.kind == WORKFLOW:
            return ""  # has no credential that could end; policies decide about each call
        if principal == LOCAL or principal.kind == SERVER:
            return "a key is needed now" if self._auth.requires_key() else ""
        if principal == API_KEY:
            return "" if self._auth.has_api_key else "api_key is no longer set"
        if principal.kind == API_KEY.kind:
            return self._keys.explain_invalid(principal.id, principal.org)
        if principal.kind == USER:
            for finder in self._auth.finders:
                if (why := finder.explain_invalid(principal)) is not None:
                    return why
            return "the hub accepts no more tokens of this user"
        return "it has no key"

    def follow_sessions(self, sessions: RevocableSessions) -> None:
        self._sessions = sessions
        self._versions = self._list_versions()

    async def watch(self, parts: Sequence[ServesPrincipals]) -> None:
        """Ends what revoked callers have open in `parts`: all that serve callers."""
        self._parts = parts
        while True:
            await asyncio.sleep(KEY_SECONDS)
            try:
                self._check_keys()
            except HubError as error:
                STORAGE_OUTAGE.note(str(error))  # new requests are refused meanwhile
            except Exception:  # the watch must go on
                log.exception("the keys could not be checked")

    def _list_versions(self) -> list[int]:
        sessions = [self._sessions.version] if self._sessions is not None else []
        return [self._keys.version, *(finder.version for finder in self._auth.finders), *sessions]

    def _find_next_expiry(self, now: float) -> float:
        expiries = [one.find_next_expiry(now) for one in self._auth.finders]
        return min([self._keys.find_next_expiry(now), *expiries])

    def _check_keys(self) -> None:
        self._keys.refresh()
        for finder in self._auth.finders:
            finder.refresh()
        if self._sessions is not None:
            self._sessions.refresh()
        now, versions = time.time(), self._list_versions()
        # A token that was verified since may expire before the others, or have expired already.
        expiries = [one.find_next_expiry(self._checked) for one in self._auth.finders]
        self._expiry, self._checked = min([self._expiry, *expiries]), now
        if versions == self._versions and now < self._expiry:
            return
        self._versions, self._expiry = versions, self._find_next_expiry(now)
        self._end_revoked()
        loop = asyncio.get_running_loop()
        self.close()
        self._again = [loop.call_later(seconds, self._end_revoked) for seconds in AGAIN_SECONDS]

    def _end_revoked(self) -> None:
        why_ended = _remember(self.explain_ended)
        for part in self._parts:
            try:
                part.end_principals(why_ended)
            except StorageFailed as error:
                STORAGE_OUTAGE.note(f"requests of revoked keys are ended later: {error}")
                self._expiry = 0.0  # the next check ends them
            except Exception:  # the other parts must end them too
                log.exception("not all requests of revoked keys could be ended")

    def close(self) -> None:
        for timer in self._again:
            timer.cancel()


def _remember(explain: WhyEnded) -> WhyEnded:
    """Explains once for a credential: a principal may have many streams. Two tokens of one user are
    equal principals, and only one of them may have ended."""
    known: dict[tuple[str, str], str] = {}

    def why_ended(principal: Principal) -> str:
        key = principal.key, principal.credential
        if (why := known.get(key)) is None:
            why = known[key] = explain(principal)
        return why

    return why_ended
