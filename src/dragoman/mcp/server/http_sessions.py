"""Sessions of clients that shake hands over HTTP.

A session's id is sealed: it holds the revision, what the client can be asked and what it calls
itself, and is bound to the caller by a MAC under the home's key. So a session outlives a restart of
the hub: an id that is sealed rightly is taken up again, and nobody else's id can be used or made
up. Few bytes each, bounded in number, forgotten when idle.
"""

from __future__ import annotations

import hmac
from collections import OrderedDict
from collections.abc import Callable, Mapping
from itertools import islice
from secrets import token_hex
from time import monotonic
from typing import Any, Protocol

from dragoman.core.access import WhyEnded
from dragoman.core.principal import Principal
from dragoman.core.tool_filter import View
from dragoman.mcp.protocol.elicitation import add_task_support
from dragoman.mcp.protocol.revisions import ORDERED, Revision
from dragoman.mcp.server.client_state import ClientState
from dragoman.mcp.server.replay_streams import EventStream, ReplayBuffer, ReplayStore

MAX_SESSIONS = 10_000
IDLE_SECONDS = 1_800
MAX_ENDED = 10_000
MAX_STREAMS = 4
MAX_RUNNING = 256
"""Requests of one session under way."""
MAX_UNSENT = 16
UNSENT_SECONDS = 60.0
"""What is said while no stream is open waits so long for the next one."""
MAX_NAME = 64
"""Bytes of a client's name that its session's id holds."""
_REVISIONS = "0123"
"""Those that shake hands, as an id begins."""
_NONCE, _SEAL = 35, 32
_PASSED_OVER = 16
"""So many sessions that are in use are passed over before one of them has to go."""


Order = OrderedDict[str, "HttpSession"]
"""By their ids, the one that was used longest ago first."""


class HttpSession(ClientState):
    __slots__ = ("id", "replay", "running", "siblings", "streams", "unsent", "used")

    def __init__(
        self, id: str, principal: Principal, view: View, revision: Revision, store: ReplayStore
    ) -> None:
        # What others know it by is no part of what proves that one is it.
        super().__init__(principal, "mcp-http", view, revision, client=id[3:_NONCE])
        self.id = id
        self.used = monotonic()
        self.streams: list[EventStream] = []
        """Its open GET streams."""
        self.replay = ReplayBuffer(store)
        self.running: dict[Any, Callable[[], None]] = {}
        """Each request under way by its id, and how to cancel it."""
        self.unsent: list[tuple[float, bytes]] = []
        self.siblings: Order = OrderedDict()
        """All sessions of its principal."""

    @property
    def resumable(self) -> bool:
        return self.revision.has_resumable_streams

    @property
    def primed(self) -> bool:
        """Older clients fail at an event without data."""
        return self.revision.has_priming_events

    @property
    def is_reachable(self) -> bool:
        return any(not stream.request.lost for stream in self.streams)

    @property
    def is_busy(self) -> bool:
        return bool(self.streams or self.running)

    def notify(self, message: bytes) -> None:
        """To one stream only (2025-11-25, multiple connections): the first that is open."""
        for stream in tuple(self.streams):
            if stream.request.lost:
                continue
            if stream.send(message):
                return
            stream.end()  # its client does not read
        if self.resumable and all(message != waiting for _, waiting in self.unsent):
            self.unsent.append((monotonic(), message))
            del self.unsent[:-MAX_UNSENT]

    def send_unsent(self, stream: EventStream) -> None:
        """What was said while no stream was open."""
        unsent, self.unsent = self.unsent, []
        for since, message in unsent:
            if monotonic() - since < UNSENT_SECONDS:
                stream.send(message)


class Audience(Protocol):
    """Who tells sessions of what has changed."""

    def join(self, peer: ClientState) -> None: ...

    def leave(self, peer: ClientState) -> None: ...


class HttpSessions:
    def __init__(self, key: bytes, view: View, audience: Audience) -> None:
        self._key = key
        self._view = view
        self._audience = audience
        self._store = ReplayStore()
        self._open: Order = OrderedDict()
        self._of: dict[Principal, Order] = {}
        self._ended: OrderedDict[str, None] = OrderedDict()

    def __len__(self) -> int:
        return len(self._open)

    def begin(self, peer: ClientState) -> HttpSession:
        """The session of a client that has just shaken hands."""
        nonce = f"{int(peer.revision)}{pack_capabilities(peer.features):02x}{token_hex(16)}"
        name = peer.client_name.encode("utf-8", "replace")[:MAX_NAME].hex()
        id = nonce + self._seal(nonce + name, peer.principal) + name
        session = HttpSession(id, peer.principal, self._view, peer.revision, self._store)
        session.features = peer.features
        session.client_name = peer.client_name
        return self._keep(session)

    def find(self, id: str, principal: Principal) -> HttpSession | None:
        """The caller's own session; one of before a restart is taken up again."""
        session = self._open.get(id)
        if session is not None:
            if session.principal != principal:
                return None
            session.used = monotonic()
            self._open.move_to_end(id)
            session.siblings.move_to_end(id)
            return session
        if id in self._ended or not 0 <= len(id) - _NONCE - _SEAL <= 2 * MAX_NAME:
            return None
        nonce, seal, name = id[:_NONCE], id[_NONCE : _NONCE + _SEAL], id[_NONCE + _SEAL :]
        if not hmac.compare_digest(self._seal(nonce + name, principal).encode(), seal.encode()):
            return None
        if id[0] not in _REVISIONS:
            return None
        session = HttpSession(id, principal, self._view, ORDERED[int(id[0])], self._store)
        session.features = add_task_support(unpack_capabilities(int(id[1:3], 16)))
        session.client_name = bytes.fromhex(name).decode("utf-8", "ignore")
        return self._keep(session)

    def end(self, session: HttpSession) -> None:
        """Its client has said so, and wants no answers any more."""
        for cancel in tuple(session.running.values()):
            cancel()
        self._drop(session)
        self._ended[session.id] = None
        while len(self._ended) > MAX_ENDED:
            self._ended.popitem(last=False)

    def end_principals(self, why_ended: WhyEnded) -> None:
        for principal, sessions in list(self._of.items()):
            if why_ended(principal):
                for session in list(sessions.values()):
                    self.end(session)

    def close(self) -> None:
        """Ends the streams. What is under way may still need its session."""
        for session in self._open.values():
            for stream in tuple(session.streams):
                stream.end()

    def _keep(self, session: HttpSession) -> HttpSession:
        self._open[session.id] = session
        session.siblings = self._of.setdefault(session.principal, session.siblings)
        session.siblings[session.id] = session
        self._audience.join(session)
        self._make_room()
        return session

    def _make_room(self) -> None:
        while monotonic() - (oldest := next(iter(self._open.values()))).used > IDLE_SECONDS:
            if oldest.is_busy:
                oldest.used = monotonic()
                self._open.move_to_end(oldest.id)
            else:
                self._drop(oldest)
        while len(self._open) > MAX_SESSIONS:  # whoever has the most has one less
            most = max(self._of.values(), key=len)
            some = list(islice(most.values(), min(_PASSED_OVER, max(1, len(most) - 1))))
            self._drop(next((one for one in some if not one.is_busy), some[0]))

    def _drop(self, session: HttpSession) -> None:
        if self._open.pop(session.id, None) is None:
            return
        del session.siblings[session.id]
        if not session.siblings:
            del self._of[session.principal]
        for stream in tuple(session.streams):
            stream.end()
        session.replay.clear(all=True)
        self._audience.leave(session)

    def _seal(self, sealed: str, principal: Principal) -> str:
        bound = f"{sealed}\n{principal.kind}\n{principal.org}\n{principal.id}".encode()
        return hmac.digest(self._key, bound, "sha256").hex()[:_SEAL]


# --- what a client can be asked, in a few bits ----------------------------------------------------

_FORM, _URL, _SAMPLING, _SAMPLING_TOOLS, _SAMPLING_CONTEXT, _ROOTS, _ROOTS_CHANGES = (
    1 << n for n in range(7)
)


def pack_capabilities(features: Mapping[str, Any]) -> int:
    elicitation, sampling = features.get("elicitation"), features.get("sampling")
    roots = features.get("roots")
    bits = _ROOTS if isinstance(roots, dict) else 0
    if isinstance(roots, dict) and roots.get("listChanged") is True:
        bits |= _ROOTS_CHANGES
    if isinstance(elicitation, dict):
        url = "url" in elicitation
        bits |= _URL if url else 0
        bits |= _FORM if "form" in elicitation or not url else 0  # bare means forms
    if isinstance(sampling, dict):
        bits |= _SAMPLING
        bits |= _SAMPLING_TOOLS if "tools" in sampling else 0
        bits |= _SAMPLING_CONTEXT if "context" in sampling else 0
    return bits


def unpack_capabilities(bits: int) -> dict[str, Any]:
    features: dict[str, Any] = {}
    if bits & (_FORM | _URL):
        ways = {"form": _FORM, "url": _URL}
        features["elicitation"] = {way: {} for way, bit in ways.items() if bits & bit}
    if bits & _SAMPLING:
        more = {"tools": _SAMPLING_TOOLS, "context": _SAMPLING_CONTEXT}
        features["sampling"] = {what: {} for what, bit in more.items() if bits & bit}
    if bits & _ROOTS:
        features["roots"] = {"listChanged": True} if bits & _ROOTS_CHANGES else {}
    return features
