"""Sessions of MCP clients over HTTP.

A session's id is sealed: it contains the revision, the client's capabilities and name, and a MAC
under the home's key binds it to the principal. So a session survives a restart of the hub, and an
id can be neither forged nor used by another principal. It names the hub that owns the session:
where there are several, requests of the session are forwarded to that one. Sessions are small,
bounded in number, and dropped when idle.
"""

from __future__ import annotations

import hmac
import json
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from hashlib import sha256
from itertools import islice
from time import monotonic
from typing import Any, Protocol

from dragoman.core.access import WhyEnded, explain_lost_access
from dragoman.core.call import NOTHING
from dragoman.core.cluster import MARK_CHARS, SINGLE_HUB, Ownership, find_mark, make_id
from dragoman.core.ports import Handover
from dragoman.core.principal import Principal
from dragoman.core.tool_filter import EVERYTHING, View
from dragoman.mcp.protocol.elicitation import add_task_support, select_carried
from dragoman.mcp.protocol.revisions import APP_TYPE, APPS, ORDERED, Revision
from dragoman.mcp.server.client_state import ClientState
from dragoman.mcp.server.replay_streams import EventStream, ReplayBuffer, ReplayStore, ReplayStream
from dragoman.wire import rpc
from dragoman.wire.http import HttpRequest

MAX_SESSIONS = 10_000
IDLE_SECONDS = 1_800
MAX_ENDED = 10_000
MAX_STREAMS = 4
MAX_RUNNING = 256
"""Running requests of one session."""
MAX_UNSENT = 16
UNSENT_SECONDS = 60.0
"""How long a notification waits for the next stream while none is open."""
MAX_REQUEST_ID = 40
"""Characters of a request's id that the id of its stream may contain."""
MAX_NAME = 64
"""Bytes of a client's name that its session's id contains."""
_REVISIONS = "0123"
"""The first character of an id: the number of a revision with sessions."""
_NONCE, _SEAL = 35, 32
_PASSED_OVER = 16
"""How many busy sessions are passed over before one of them is dropped."""

Order = OrderedDict[str, "HttpSession"]
"""By id, the least recently used first."""
SessionState = Mapping[str, Any]
"""The resources that a session is subscribed to (`uris`), and the level of its log messages
(`log_level`). Other versions of the hub may have more."""


class HttpSession(ClientState):
    __slots__ = ("id", "replay", "running", "siblings", "streams", "unsent", "used")

    def __init__(
        self, id: str, principal: Principal, endpoint: View, revision: Revision, store: ReplayStore
    ) -> None:
        # `client` is known to others, so it must not contain what proves possession of the id.
        super().__init__(principal, "mcp-http", endpoint, revision, client=id[3:_NONCE])
        self.id = id
        self.used = monotonic()
        self.streams: list[EventStream] = []
        """Its open GET streams."""
        self.replay = ReplayBuffer(store, self.client)
        self.running: dict[Any, Callable[[], None]] = {}
        """How to cancel each running request, by the key of its id."""
        self.unsent: list[tuple[float, bytes]] = []
        self.siblings: Order = OrderedDict()
        """All sessions of its principal."""

    @property
    def is_reachable(self) -> bool:
        return any(not stream.request.lost for stream in self.streams)

    @property
    def is_busy(self) -> bool:
        return bool(self.streams or self.running)

    def notify(self, message: bytes) -> None:
        """Sends to one stream only (2025-11-25, multiple connections): the first that is open."""
        for stream in tuple(self.streams):
            if stream.request.lost:
                continue
            if stream.send(message):
                return
            stream.end()  # its client does not read
        if self.revision.has_resumable_streams and all(
            message != waiting for _, waiting in self.unsent
        ):
            self.unsent.append((monotonic(), message))
            del self.unsent[:-MAX_UNSENT]

    def send_unsent(self, stream: EventStream) -> None:
        """Sends the notifications that came while no stream was open."""
        unsent, self.unsent = self.unsent, []
        for since, message in unsent:
            if monotonic() - since < UNSENT_SECONDS:
                stream.send(message)

    def create_stream(
        self, request: HttpRequest, kind: str, ownership: Ownership = SINGLE_HUB, id: rpc.Id = None
    ) -> EventStream:
        """Creates a stream that can be resumed, if the revision has those. `id` is that of the
        request that it answers."""
        if not self.revision.has_resumable_streams:
            return EventStream(request)
        if ownership.mark:
            kind = build_stream_kind(kind, ownership.mark, id)
        return ReplayStream(request, self.replay, kind, self.revision.has_priming_events)


def build_stream_kind(kind: str, mark: str, id: rpc.Id) -> str:
    """The beginning of a stream's id that tells an heir of the hub with that mark which request the
    stream was to answer."""
    kind += mark
    if id is not None and len(text := json.dumps(id)) <= MAX_REQUEST_ID:
        kind += f"{text.encode().hex()}."
    return kind


def parse_stream_id(id: str) -> tuple[str, rpc.Id]:
    """Returns the mark and the id of the request; the latter is None if it is unknown. The client
    may have made them up."""
    mark, (request, dot, _) = id[1 : 1 + MARK_CHARS], id[1 + MARK_CHARS :].partition(".")
    try:
        found = json.loads(bytes.fromhex(request)) if dot else None
    except (ValueError, RecursionError):
        found = None
    return mark, found if isinstance(found, str | int | float) else None


class SessionObserver(Protocol):
    """Learns of sessions that begin and end: `Subscriptions`."""

    def join(self, client: ClientState) -> None: ...

    def resume(self, client: ClientState, uris: Sequence[str]) -> None:
        """Subscribes a restored session to resources again. Its client has missed notifications."""

    def leave(self, client: ClientState) -> None: ...


class HttpSessions:
    def __init__(
        self,
        key: bytes,
        observer: SessionObserver,
        ownership: Ownership = SINGLE_HUB,
        handover: Handover | None = None,
    ) -> None:
        self._key = key
        self._ownership = ownership
        self._observer = observer
        self._store = ReplayStore(handover)
        self._open: Order = OrderedDict()
        self._by_principal: dict[Principal, Order] = {}
        self._ended: OrderedDict[str, None] = OrderedDict()
        self._adopted: OrderedDict[str, SessionState] = OrderedDict()
        """The states of sessions that other hubs have handed over, until they are restored."""

    def __len__(self) -> int:
        return len(self._open)

    def list_open(self) -> list[HttpSession]:
        return [*self._open.values()]

    def begin(self, client: ClientState) -> HttpSession:
        """Creates the session of a client that has completed `initialize`."""
        nonce = f"{int(client.revision)}{pack_capabilities(client.features):02x}"
        nonce += make_id(self._ownership)
        name = client.client_name.encode("utf-8", "replace")[:MAX_NAME].hex()
        id = nonce + self._seal(nonce + name, client.principal, client.endpoint) + name
        session = HttpSession(id, client.principal, client.endpoint, client.revision, self._store)
        session.view = client.view
        session.features = client.features
        session.client_name = client.client_name
        return self._keep(session)

    def find(
        self, id: str, principal: Principal, endpoint: View = EVERYTHING
    ) -> HttpSession | None:
        """Finds a session of the principal there; one from before a restart is restored."""
        session = self._open.get(id)
        if session is not None:
            if session.principal != principal or session.endpoint is not endpoint:
                return None
            session.principal = principal  # its token and its roles may be others now
            session.used = monotonic()
            self._open.move_to_end(id)
            session.siblings.move_to_end(id)
            return session
        if id in self._ended or not 0 <= len(id) - _NONCE - _SEAL <= 2 * MAX_NAME:
            return None
        nonce, seal, name = id[:_NONCE], id[_NONCE : _NONCE + _SEAL], id[_NONCE + _SEAL :]
        own = self._seal(nonce + name, principal, endpoint)
        if not hmac.compare_digest(own.encode(), seal.encode()):
            return None
        if id[0] not in _REVISIONS:
            return None
        self._ownership.check(find_mark(id[3:]))
        session = HttpSession(id, principal, endpoint, ORDERED[int(id[0])], self._store)
        session.features = add_task_support(unpack_capabilities(int(id[1:3], 16)))
        session.client_name = bytes.fromhex(name).decode("utf-8", "ignore")
        self._keep(session)
        if self._ownership.mark:
            state = self._adopted.pop(_digest(id), NOTHING)
            session.log_level = state.get("log_level")
            self._observer.resume(session, state.get("uris", ()))
        return session

    def end(self, session: HttpSession) -> None:
        """Ends a session and cancels its requests."""
        for cancel in tuple(session.running.values()):
            cancel()
        self._drop(session)
        self._ended[session.id] = None
        while len(self._ended) > MAX_ENDED:
            self._ended.popitem(last=False)

    def abandon(self) -> None:
        """Another hub owns the sessions: cancels their requests, and forgets them here."""
        for session in list(self._open.values()):
            for cancel in tuple(session.running.values()):
                cancel()
            self._drop(session)

    def export(self) -> dict[str, SessionState]:
        """Returns what the heir of this hub needs to know of its sessions, which their ids do not
        tell, by the digests of the ids."""
        found = dict(self._adopted)
        for id, session in self._open.items():
            if session.subscribed or session.log_level:
                uris = [*session.subscribed.values()]
                found[_digest(id)] = {"uris": uris, "log_level": session.log_level}
        return found

    def adopt(self, states: Mapping[str, SessionState]) -> None:
        """Takes what another hub has exported."""
        self._adopted.update(states)
        while len(self._adopted) > MAX_SESSIONS:
            self._adopted.popitem(last=False)

    def end_principals(self, why_ended: WhyEnded) -> None:
        for session in list(self._open.values()):
            if explain_lost_access(why_ended, session.principal):
                self.end(session)

    def close(self) -> None:
        """Ends the streams. Running requests may still need their sessions."""
        for session in self._open.values():
            for stream in tuple(session.streams):
                stream.end()

    def _keep(self, session: HttpSession) -> HttpSession:
        self._open[session.id] = session
        session.siblings = self._by_principal.setdefault(session.principal, session.siblings)
        session.siblings[session.id] = session
        self._observer.join(session)
        self._make_room()
        return session

    def _make_room(self) -> None:
        while monotonic() - (oldest := next(iter(self._open.values()))).used > IDLE_SECONDS:
            if oldest.is_busy:
                oldest.used = monotonic()
                self._open.move_to_end(oldest.id)
            else:
                self._drop(oldest)
        while len(self._open) > MAX_SESSIONS:  # the principal with the most sessions loses one
            largest = max(self._by_principal.values(), key=len)
            oldest_ones = list(
                islice(largest.values(), min(_PASSED_OVER, max(1, len(largest) - 1)))
            )
            self._drop(next((one for one in oldest_ones if not one.is_busy), oldest_ones[0]))

    def _drop(self, session: HttpSession) -> None:
        if self._open.pop(session.id, None) is None:
            return
        del session.siblings[session.id]
        if not session.siblings:
            del self._by_principal[session.principal]
        for stream in tuple(session.streams):
            stream.end()
        session.replay.clear(all=True)
        self._observer.leave(session)

    def _seal(self, sealed: str, principal: Principal, endpoint: View) -> str:
        bound = f"{sealed}\n{principal.kind}\n{principal.org}\n{principal.id}"
        if endpoint.name:
            bound += f"\n\n{endpoint.name}"
        return hmac.digest(self._key, bound.encode(), "sha256").hex()[:_SEAL]


def _digest(id: str) -> str:
    """Of an id, which is a secret of its client."""
    return sha256(id.encode()).hexdigest()


# --- capabilities in a few bits -------------------------------------------------------------------

_FORM, _URL, _SAMPLING, _SAMPLING_TOOLS, _SAMPLING_CONTEXT, _ROOTS, _ROOTS_CHANGES, _APPS = (
    1 << n for n in range(8)
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
        bits |= _FORM if "form" in elicitation or not url else 0  # an empty object means forms
    if isinstance(sampling, dict):
        bits |= _SAMPLING
        bits |= _SAMPLING_TOOLS if "tools" in sampling else 0
        bits |= _SAMPLING_CONTEXT if "context" in sampling else 0
    apps = select_carried(features).get(APPS)
    types = apps.get("mimeTypes") if isinstance(apps, dict) else None
    return bits | (_APPS if isinstance(types, list) and APP_TYPE in types else 0)


def unpack_capabilities(bits: int) -> dict[str, Any]:
    features: dict[str, Any] = {}
    if bits & (_FORM | _URL):
        modes = {"form": _FORM, "url": _URL}
        features["elicitation"] = {mode: {} for mode, bit in modes.items() if bits & bit}
    if bits & _SAMPLING:
        options = {"tools": _SAMPLING_TOOLS, "context": _SAMPLING_CONTEXT}
        features["sampling"] = {name: {} for name, bit in options.items() if bits & bit}
    if bits & _ROOTS:
        features["roots"] = {"listChanged": True} if bits & _ROOTS_CHANGES else {}
    if bits & _APPS:
        features["extensions"] = {APPS: {"mimeTypes": [APP_TYPE]}}
    return features
