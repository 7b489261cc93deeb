"""One session with one server: negotiating the era, opening, requests, lists and notifications.

The session that all clients share declares no client features; a client's own session declares
what that client can be asked.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from typing import Any, NamedTuple

from dragoman import __version__
from dragoman.core import errors
from dragoman.core.background import start_task
from dragoman.core.backoff import Backoff
from dragoman.core.call import LEVELS, NOTHING
from dragoman.core.trace import new_trace
from dragoman.mcp.client.jsonrpc_channel import Wire
from dragoman.mcp.client.notifications import LISTEN, SEVERITY, NotificationSink, RequestListener
from dragoman.mcp.client.streamable_http import SessionExpired, UpstreamHttpError
from dragoman.mcp.protocol import revisions
from dragoman.mcp.protocol.elicitation import select_carried

log = logging.getLogger(__name__)

MAX_PAGES = 1_000
MAX_ENTRIES = 20_000
MAX_LIST_BYTES = 32 * 1024 * 1024
"""All pages of a list together."""
SECOND_SECONDS = 2.0
"""How long a server that answered `server/discover` may take to answer `initialize` as well."""
PROBE_SECONDS = 2.0
"""How long a child may leave `server/discover` unanswered before `initialize` is sent as well: some
servers of the handshake era never answer an unknown method."""
PING_SECONDS = 30.0
UNSUPPORTED_VERSION = -32022
MODERN_ERRORS = (-32020, -32021, UNSUPPORTED_VERSION)
"""Codes that only servers of the modern era use."""

STREAM_SECONDS = 1.0
"""How long opening a session waits for its push stream."""
FIRST_PAUSE, LONGEST_PAUSE = 1.0, 30.0
STEADY_SECONDS = 10.0
"""A push stream that lasted this long was stable: it is reopened soon."""
MAX_FAILURES = 3
"""A server that is unreachable this often in a row is lost."""
NO_STREAM = frozenset({400, 404, 405, 406, 501})
"""Statuses of servers that offer no push stream."""

CLIENT_INFO = {"name": "dragoman", "title": "Dragoman", "version": __version__}
OWN_META: dict[str, dict[str, Any]] = {
    name: {
        revisions.MODERN_KEY: name,
        revisions.CAPABILITIES_KEY: {},
        revisions.CLIENT_KEY: CLIENT_INFO,
    }
    for name in revisions.MODERN
}
"""By version: in the `_meta` of each request of the modern era that the hub sends for itself."""


class BothErasAnswered(errors.BadReply):
    """A server of both eras has accepted the greetings of both. It must be restarted and greeted
    in the modern era alone."""


class SessionSpec(NamedTuple):
    """How to open a session with a server, and what it is for."""

    sink: NotificationSink
    """Receives notifications that belong to no request."""
    missed: Callable[[], None] = lambda: None
    """Called when notifications may have been missed."""
    declared: Mapping[str, Any] = NOTHING
    """The client features that a handshake declares."""
    listens: bool = True
    """Whether to open a stream for notifications."""
    questions: RequestListener | None = None
    """Receives questions that belong to no call."""
    is_main: bool = False
    """Whether it is the shared session in the era that was configured or detected. All others are
    opened by a handshake."""
    holder: str = ""
    """Whose credential it uses; empty for that which lists are read with."""


class UpstreamSession:
    """Built over a connected wire; `open` before use."""

    def __init__(self, server: str, wire: Wire, spec: SessionSpec) -> None:
        self.server = server
        self.wire = wire
        self.spec = spec
        if spec.questions is not None:
            wire.set_session_listener(spec.questions)
        self.revision: revisions.Revision = revisions.LATEST
        self.own_meta: Mapping[str, Any] = OWN_META[revisions.LATEST.name]
        self.modern = True
        """Whether it is of the modern era, in which requests carry their revision."""
        self.features: dict[str, Any] = {}
        """The server's capabilities."""
        self.server_info: dict[str, Any] = {}
        self.instructions = ""
        self.ttls: dict[str, float] = {}
        """Seconds that lists are valid, by method, as the server declared with them."""
        self.sizes: dict[str, int] = {}
        """Bytes of the lists that were read last, by method."""
        self.openings = 0
        """How often the session had to be opened again."""
        self.notifications = NotificationStream(self)
        self._level = len(LEVELS)
        self._reopening: asyncio.Task[None] | None = None

    # --- opening -------------------------------------------------------------------------------

    async def open(self, timeout: float, *, modern: bool | None) -> None:
        """Opens it in the era that `modern` says; None detects the era."""
        if modern is None and not self.wire.supports_sessions:
            await self._detect_era(timeout)
        elif modern is False or not await self._discover(timeout / 2):
            await self._initialize(timeout)
        self.notifications.start()
        await self.notifications.wait_open()

    async def _detect_era(self, timeout: float) -> None:
        """Sends `server/discover`, and `initialize` as well to a server that stays silent: it may
        be starting, or never answer unknown methods. The first valid response decides. Raises
        `BothErasAnswered` if both succeed: such a server may then speak either era."""
        discovering = start_task(self._discover(timeout))
        greeting: asyncio.Task[None] | None = None
        try:
            await asyncio.wait([discovering], timeout=min(PROBE_SECONDS, timeout))
            if discovering.done() and discovering.result():
                return
            greeting = start_task(self._initialize(timeout))
            if not discovering.done():
                await asyncio.wait([discovering, greeting], return_when=asyncio.FIRST_COMPLETED)
                if greeting.done() and greeting.exception() is None and not discovering.done():
                    return
                if await discovering:
                    await asyncio.wait([greeting], timeout=min(SECOND_SECONDS, timeout))
                    if greeting.done() and greeting.exception() is None:
                        raise BothErasAnswered(f'server "{self.server}" was greeted in both eras')
                    return
            await greeting
        finally:
            for task in (discovering, greeting):
                if task is not None and not task.done():
                    task.cancel()
                    await asyncio.gather(task, return_exceptions=True)
                elif task is not None and not task.cancelled():
                    task.exception()

    async def _discover(self, timeout: float, named: revisions.Revision | None = None) -> bool:
        """Returns whether the server is of the modern era. Asks it in the latest revision, or in
        `named`, which the server has named when it refused the latest."""
        asked = named or revisions.LATEST
        self.wire.set_revision(asked)
        result: Any = {}
        revision: revisions.Revision | None = asked
        try:
            params = {"_meta": {**OWN_META[asked.name], **new_trace().build_context()}}
            result, _ = await self.wire.request("server/discover", params, timeout)
            supported = result.get("supportedVersions") if isinstance(result, dict) else None
            # Some servers of the handshake era answer any method with an empty result.
            revision = revisions.choose_modern(supported)
        except errors.WorkFailed as error:
            native = error.native or {}
            if native.get("code") not in MODERN_ERRORS:
                return False
            data = native.get("data")
            supported = data.get("supported") if isinstance(data, dict) else None
            if native["code"] == UNSUPPORTED_VERSION and isinstance(supported, list):
                revision = revisions.choose_modern(supported)
                if revision is not None and named is None and revision != asked:
                    return await self._discover(timeout, revision)
        except (UpstreamHttpError, errors.TimedOut):
            return False
        if revision is None:
            return False
        self._set_revision(revision)
        meta = result.get("_meta")
        self._read_server_info(
            result, meta.get(revisions.SERVER_KEY) if isinstance(meta, dict) else None
        )
        return True

    async def _initialize(self, timeout: float) -> None:
        params = {
            "protocolVersion": revisions.LATEST_HANDSHAKE.name,
            "capabilities": dict(self.spec.declared),
            "clientInfo": CLIENT_INFO,
        }
        trace, headers = new_trace(), None
        self.wire.set_revision(None)
        if self.wire.sends_headers:
            # Servers of both eras take a request with `_meta` and no session for a modern one.
            headers = trace.build_headers()
        else:
            params["_meta"] = trace.build_context()
        result, _ = await self.wire.request("initialize", params, timeout, None, headers)
        if not isinstance(result, dict):
            raise errors.BadReply(f'server "{self.server}" answered "initialize" without an object')
        version = result.get("protocolVersion")
        revision = revisions.REVISIONS.get(version) if isinstance(version, str) else None
        if revision is None or not revision.has_sessions:
            raise errors.BadReply(
                f'server "{self.server}" speaks revision {version!r:.60}, which is unknown; '
                f"the hub speaks {revisions.NAMES[0]} to {revisions.NAMES[-1]}"
            )
        self._set_revision(revision)
        self._read_server_info(result, result.get("serverInfo"))
        self._level = len(LEVELS)
        await self.wire.notify("notifications/initialized")

    def _set_revision(self, revision: revisions.Revision) -> None:
        self.revision = revision
        self.modern = not revision.has_sessions
        if self.modern:
            self.own_meta = OWN_META[revision.name]
        self.wire.set_revision(revision)

    def _read_server_info(self, result: dict[str, Any], info: Any) -> None:
        features = result.get("capabilities")
        self.features = features if isinstance(features, dict) else {}
        self.server_info = info if isinstance(info, dict) else {}
        instructions = result.get("instructions")
        self.instructions = instructions if isinstance(instructions, str) else ""

    def share(self, wire: Wire) -> UpstreamSession:
        """Returns the session as the user of another wire uses it, without notifications."""
        other = UpstreamSession(self.server, wire, self.spec)
        other.revision, other.own_meta, other.modern = self.revision, self.own_meta, self.modern
        other.features, other.server_info = self.features, self.server_info
        other.instructions = self.instructions
        return other

    # --- requests ------------------------------------------------------------------------------

    def request(
        self,
        method: str,
        params: dict[str, Any],
        timeout: float,
        listener: RequestListener | None = None,
        headers: Mapping[str, str] | None = None,
        meta: Mapping[str, Any] | None = None,
    ) -> Awaitable[tuple[Any, int]]:
        """Sends a request in the session's era; returns the result and its size in bytes. `meta`
        (by default the hub's own) is added in the modern era."""
        given = params.get("_meta")
        if given is None:  # a request of the hub's own
            given = params["_meta"] = new_trace().build_context()
        if self.modern:
            params["_meta"] = {**given, **(meta or self.own_meta)}
        elif self.wire.supports_sessions:
            send = partial(self.wire.request, method, params, timeout, listener, headers)
            return self._request_in_session(send, timeout)
        return self.wire.request(method, params, timeout, listener, headers)

    async def _request_in_session(
        self, send: Callable[[], Awaitable[tuple[Any, int]]], timeout: float
    ) -> tuple[Any, int]:
        """Opens an expired session again and repeats the request: a server that has forgotten the
        session has not executed it."""
        if self._reopening is not None:
            await self._reopen(timeout)
        opening = self.openings
        try:
            return await send()
        except SessionExpired:
            if opening == self.openings:  # else another request has opened it meanwhile
                await self._reopen(timeout)
            return await send()

    def build_meta(self, features: Mapping[str, Any], log_level: str | None) -> Mapping[str, Any]:
        """Builds the `_meta` of a modern request for a client with these features that wants log
        messages from level `log_level` up. Omits extensions that the server does not declare, but
        for those that any server may know of."""
        if not features and log_level is None:
            return self.own_meta
        declared = dict(features)
        if declared.pop("extensions", None) is not None:
            known = self.find_shared_extensions(features) | select_carried(features)
            if known:
                declared["extensions"] = known
        meta = {**self.own_meta, revisions.CAPABILITIES_KEY: declared}
        if log_level is not None:
            meta[revisions.LOG_LEVEL_KEY] = log_level
        return meta

    def find_shared_extensions(self, features: Mapping[str, Any]) -> dict[str, Any]:
        """Returns the client's extensions that the server declares as well."""
        theirs, ours = self.features.get("extensions"), features.get("extensions")
        if not isinstance(theirs, dict) or not isinstance(ours, dict):
            return {}
        return {name: value for name, value in ours.items() if name in theirs}

    async def request_log_level(self, level: str, timeout: float) -> None:
        """Has a server of the handshake era send log messages from this level up; sent once. What a
        single call does not want of them is filtered later."""
        severity = SEVERITY[level]
        if self.modern or severity >= self._level or "logging" not in self.features:
            return
        self._level = severity
        try:
            await self.request("logging/setLevel", {"level": level}, timeout)
        except errors.HubError as error:
            log.debug("%s: %s", self.server, error)

    async def _reopen(self, timeout: float) -> None:
        """Opens the session once, however many requests found it expired."""
        if self._reopening is None:
            log.info('server "%s" ended the session; opening a new one', self.server)
            self._reopening = start_task(self._initialize(timeout))
            self._reopening.add_done_callback(self._note_reopened)
        opening = self._reopening
        await asyncio.wait([opening])
        if opening.cancelled():
            raise errors.Unreachable(f'server "{self.server}" was stopped', sent=False)
        if error := opening.exception():
            raise errors.Unreachable(
                f'server "{self.server}" ended the session and opens no other: {error}', sent=False
            )
        await self.notifications.wait_open()

    def _note_reopened(self, task: asyncio.Task[None]) -> None:
        self._reopening = None
        if task.cancelled():
            return
        if error := task.exception():
            self.wire.mark_lost(f"it ended the session and opens no other: {error}")
            return
        self.openings += 1
        self.notifications.start()
        self.spec.missed()

    async def list_entries(
        self, method: str, member: str, timeout: float, meta: Mapping[str, Any] | None = None
    ) -> list[Any]:
        """Reads all pages of a list, unchanged."""
        found: list[Any] = []
        cursor: Any = None
        seen: set[str] = set()
        total = 0
        self.ttls.pop(method, None)
        for _ in range(MAX_PAGES):
            params: dict[str, Any] = {} if cursor is None else {"cursor": cursor}
            result, size = await self.request(method, params, timeout, meta=meta)
            total += size
            self.sizes[method] = total
            page = result.get(member) if isinstance(result, dict) else None
            if not isinstance(page, list):
                raise errors.BadReply(f'server "{self.server}" answered "{method}" without a list')
            found += page
            self._note_ttl(method, result.get("ttlMs"))
            following = result.get("nextCursor")
            if not isinstance(following, str):
                return found[:MAX_ENTRIES]
            if following in seen or len(found) > MAX_ENTRIES or total > MAX_LIST_BYTES:
                break
            seen.add(following)
            cursor = following
        limits = f"{MAX_ENTRIES} entries or {MAX_LIST_BYTES} bytes"
        problem = f"does not end, or has more than {limits}; the rest is ignored"
        log.warning('the list of %s of server "%s" %s', member, self.server, problem)
        return found[:MAX_ENTRIES]

    def _note_ttl(self, method: str, ttl: Any) -> None:
        """2026-07-28, caching: the shortest of all pages."""
        is_number = isinstance(ttl, int | float) and not isinstance(ttl, bool)
        if self.revision.has_cache_hints and is_number and ttl >= 0:
            self.ttls[method] = min(ttl / 1000, self.ttls.get(method, ttl / 1000))

    async def is_alive(self) -> bool:
        """Pings the server. An expired session is opened again by that, with a new stream."""
        try:
            await self.request("ping", {}, PING_SECONDS)
        except (errors.Unreachable, errors.TimedOut):
            return False
        except errors.HubError:
            pass
        return True

    async def close_quietly(self) -> None:
        with contextlib.suppress(errors.HubError):
            await self.close()

    async def close(self) -> None:
        await self.notifications.close()
        if self._reopening is not None:
            self._reopening.cancel()
            await asyncio.gather(self._reopening, return_exceptions=True)
        await self.wire.close()


LISTS = {
    "tools": "toolsListChanged",
    "prompts": "promptsListChanged",
    "resources": "resourcesListChanged",
}


def announces_resources(session: UpstreamSession) -> bool:
    """Whether the server may be asked to announce changes of resources. A server of the modern era
    with `subscriptions/listen` may do so without declaring resources: what it will announce it says
    when the stream begins."""
    resources = session.features.get("resources")
    if resources is None:
        return session.modern and bool(find_announced_lists(session.features))
    return isinstance(resources, dict) and resources.get("subscribe") is True


def find_announced_lists(features: Mapping[str, Any]) -> dict[str, bool]:
    """Returns the lists whose changes a server announces, as members of a listen request."""
    found = {}
    for feature, member in LISTS.items():
        offered = features.get(feature)
        if isinstance(offered, dict) and offered.get("listChanged") is True:
            found[member] = True
    return found


class NotificationStream:
    """Keeps open what brings the notifications of a session that belong to no request.

    In the handshake era that is a GET over Streamable HTTP, and nothing where one stream carries
    all messages; in the modern era a `subscriptions/listen`, replaced when its resources change.
    """

    def __init__(self, session: UpstreamSession) -> None:
        self._session = session
        self._keeper: asyncio.Task[None] | None = None
        self._uris: frozenset[str] = frozenset()
        self._streams = 0
        """Open push streams."""
        self._tried = asyncio.Event()
        """Set when the server has answered the first request for a stream."""

    @property
    def is_open(self) -> bool:
        """Whether a notification that the server sends now would arrive."""
        if self._session.wire.has_push_streams:
            return self._streams > 0
        return not self._session.modern or self._keeper is not None

    def start(self) -> None:
        """Opens the stream where one is needed and offered."""
        self.stop()
        if self._is_needed(self._uris):
            self._keeper = self._keep(self._uris, None)

    async def wait_open(self) -> None:
        """Waits until the server has opened or refused the push stream of a handshake session:
        earlier notifications on it are lost."""
        session = self._session
        if self._keeper is None or session.modern or not session.wire.has_push_streams:
            return
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(STREAM_SECONDS):
                await self._tried.wait()

    def stop(self) -> None:
        self._tried = asyncio.Event()
        if self._keeper is not None:
            self._keeper.cancel()
            self._keeper = None

    async def close(self) -> None:
        keeper = self._keeper
        self.stop()
        if keeper is not None:
            await asyncio.gather(keeper, return_exceptions=True)

    async def subscribe(self, uris: frozenset[str], timeout: float) -> None:
        """Subscribes to these resources instead of the previous ones, without a gap: the new stream
        is open before the old one ends. Modern era only."""
        if uris == self._uris and self._keeper is not None and not self._keeper.done():
            return
        if not self._is_needed(uris):
            self._uris = uris
            self.stop()
            return
        ready: asyncio.Future[frozenset[str]] = asyncio.get_running_loop().create_future()
        keeper = self._keep(uris, ready)
        try:
            either: list[asyncio.Future[Any]] = [ready, keeper]
            await asyncio.wait(either, timeout=timeout, return_when=asyncio.FIRST_COMPLETED)
            server = self._session.server
            if not ready.done():
                problem = f'server "{server}" did not acknowledge the resource subscription'
                raise errors.BadReply(problem) if keeper.done() else errors.TimedOut(problem)
            refused = uris - ready.result() - self._uris
            if refused:
                raise errors.InvalidInput(
                    f'server "{server}" does not announce changes of "{min(refused)[:200]}"'
                )
        except BaseException:
            keeper.cancel()
            raise
        old, self._keeper, self._uris = self._keeper, keeper, uris
        if old is not None:
            old.cancel()

    def _is_needed(self, uris: frozenset[str]) -> bool:
        session = self._session
        if not session.spec.listens:
            return False
        if not session.modern:
            # Servers send more on a push stream than they declare: logs, questions, list changes.
            return session.wire.has_push_streams
        return bool(uris) or bool(find_announced_lists(session.features))

    def _keep(
        self, uris: frozenset[str], ready: asyncio.Future[frozenset[str]] | None
    ) -> asyncio.Task[None]:
        has_push = self._session.wire.has_push_streams
        keep = self._keep_push_stream if has_push else self._keep_listen_request
        return start_task(keep(uris, ready))

    async def _keep_push_stream(
        self, uris: frozenset[str], ready: asyncio.Future[frozenset[str]] | None
    ) -> None:
        """Opens the stream again and again."""
        session, loop = self._session, asyncio.get_running_loop()
        backoff, failures = Backoff(FIRST_PAUSE, LONGEST_PAUSE), 0
        while True:
            begun = loop.time()
            try:
                await self._listen(uris, ready)
                failures = 0
            except SessionExpired:
                # The more often the server forgets, the later it is pinged; calls do not wait.
                await asyncio.sleep(min(LONGEST_PAUSE, session.openings))
                if await session.is_alive() or session.wire.lost.done():
                    return  # no stream: frameworks answer 404 for a missing route, too
            except UpstreamHttpError as error:
                if error.status in NO_STREAM or error.status < 400:  # or it serves a web page
                    return
                failures = 0
            except errors.TargetFailed as error:
                log.debug("%s: %s", session.server, error)
                lasted = loop.time() - begun > STEADY_SECONDS
                failures = 0 if lasted else failures + 1
                if failures >= MAX_FAILURES:
                    if not await session.is_alive():
                        session.wire.mark_lost(f"it is unreachable: {error}")
                    return  # else it has no such stream and breaks off instead of saying so
            if loop.time() - begun > STEADY_SECONDS:
                backoff.reset()
            await asyncio.sleep(backoff.next_delay())

    async def _keep_listen_request(
        self, uris: frozenset[str], ready: asyncio.Future[frozenset[str]] | None
    ) -> None:
        while True:
            with contextlib.suppress(errors.HubError):
                await self._listen(uris, ready)
                await asyncio.sleep(FIRST_PAUSE)  # the request ended, the connection did not
                self._session.spec.missed()
                continue
            return

    async def _listen(
        self, uris: frozenset[str], ready: asyncio.Future[frozenset[str]] | None
    ) -> None:
        session = self._session
        lists = find_announced_lists(session.features)
        announces = announces_resources(session) or bool(lists)
        is_open, tried = False, self._tried

        def note_opened() -> None:
            nonlocal is_open
            is_open = True
            self._streams += 1
            tried.set()
            if announces and (ready is None or ready.done()):  # a replacement has missed nothing
                session.spec.missed()

        def acknowledge(params: Mapping[str, Any]) -> None:
            granted = params.get("notifications")
            found = granted.get("resourceSubscriptions") if isinstance(granted, dict) else None
            accepted = found if isinstance(found, list) else []
            if ready is not None and not ready.done():
                ready.set_result(frozenset(uri for uri in accepted if isinstance(uri, str)))

        try:
            if session.modern:
                wanted: dict[str, Any] = {**lists}
                if uris:
                    wanted["resourceSubscriptions"] = sorted(uris)
                meta = {**session.own_meta, **new_trace().build_context()}
                params = {"notifications": wanted, "_meta": meta}
                listener = RequestListener(acknowledged=acknowledge)
                await session.wire.listen(LISTEN, params, note_opened, listener)
            else:
                await session.wire.listen("", None, note_opened)
        finally:
            self._streams -= is_open
            tried.set()
