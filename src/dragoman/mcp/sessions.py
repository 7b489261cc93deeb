"""Sessions of clients that shake hands over HTTP.

A session's id is sealed: it holds the revision and is bound to the caller by a MAC under the home's
key. So a session outlives a restart of the hub: an id that is sealed rightly is taken up again,
and nobody else's id can be used or made up. Few bytes each, bounded in number, forgotten when idle.
"""

from __future__ import annotations

import hmac
from collections import OrderedDict
from collections.abc import Callable
from secrets import token_hex
from time import monotonic
from typing import Any

from dragoman.core.principal import Principal
from dragoman.core.view import View
from dragoman.mcp.server import LIST_CHANGED, Peer

MAX_SESSIONS = 10_000
IDLE_SECONDS = 1_800
MAX_ENDED = 10_000
MAX_STREAMS = 4
_REVISIONS = "0123"
"""Those that shake hands, as an id begins."""


class Session(Peer):
    __slots__ = ("id", "running", "streams", "used")

    def __init__(self, id: str, principal: Principal, view: View, revision: int) -> None:
        super().__init__(principal, "mcp-http", view, revision)
        self.id = id
        self.used = monotonic()
        self.streams: list[Callable[[bytes | None], None]] = []
        """Each open GET stream's way to be sent a message; None ends it."""
        self.running: dict[Any, Callable[[], None]] = {}
        """Each call under way by its id, and how to cancel it."""


class Sessions:
    def __init__(self, key: bytes, view: View) -> None:
        self._key = key
        self._view = view
        self._open: OrderedDict[str, Session] = OrderedDict()
        self._ended: OrderedDict[str, None] = OrderedDict()

    def __len__(self) -> int:
        return len(self._open)

    def begin(self, principal: Principal, revision: int) -> Session:
        nonce = f"{revision}{token_hex(16)}"
        return self._keep(
            Session(nonce + self._seal(nonce, principal), principal, self._view, revision)
        )

    def find(self, id: str, principal: Principal) -> Session | None:
        """The caller's own session; one of before a restart is taken up again."""
        session = self._open.get(id)
        if session is not None:
            if session.principal != principal:
                return None
            session.used = monotonic()
            self._open.move_to_end(id)
            return session
        if id in self._ended or len(id) != 65 or id[0] not in _REVISIONS:
            return None
        nonce, seal = id[:33], id[33:]
        if not hmac.compare_digest(self._seal(nonce, principal).encode(), seal.encode()):
            return None
        return self._keep(Session(id, principal, self._view, int(id[0])))

    def end(self, session: Session) -> None:
        self._drop(session)
        self._ended[session.id] = None
        while len(self._ended) > MAX_ENDED:
            self._ended.popitem(last=False)

    def tell_changed(self) -> None:
        """The list of tools has changed: everyone who listens hears of it."""
        for session in self._open.values():
            for stream in session.streams[:1]:  # a message goes to one stream of a session only
                stream(LIST_CHANGED)

    def close(self) -> None:
        for session in tuple(self._open.values()):
            self._drop(session)

    def _keep(self, session: Session) -> Session:
        self._open[session.id] = session
        oldest = next(iter(self._open.values()))
        while len(self._open) > MAX_SESSIONS or monotonic() - oldest.used > IDLE_SECONDS:
            self._drop(oldest)
            oldest = next(iter(self._open.values()))
        return session

    def _drop(self, session: Session) -> None:
        self._open.pop(session.id, None)
        for stream in tuple(session.streams):
            stream(None)

    def _seal(self, nonce: str, principal: Principal) -> str:
        bound = f"{nonce}\n{principal.kind}\n{principal.org}\n{principal.id}".encode()
        return hmac.digest(self._key, bound, "sha256").hex()[:32]
