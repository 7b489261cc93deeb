"""The stream on which a server says what nobody asked: that a list or a resource has changed.

In the old era a GET over HTTP, and nothing to be done where there is one stream for everything; in
the new one a `subscriptions/listen`, which says what is wanted and is opened anew for all else.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from dragoman.core.errors import BadReply, HubError, InvalidInput, TargetFailed, TimedOut
from dragoman.core.trace import new_trace
from dragoman.mcp.client.notifications import LISTEN, RequestListener
from dragoman.mcp.client.streamable_http import HttpWire, SessionExpired, UpstreamHttpError

if TYPE_CHECKING:
    from dragoman.mcp.client.session import UpstreamSession

log = logging.getLogger(__name__)

FIRST_PAUSE, LONGEST_PAUSE = 1.0, 30.0
STEADY_SECONDS = 10.0
"""A stream that lasted so long was a good one: it is opened again soon."""
LOST_AFTER = 3
"""A server that cannot be reached so often in a row is lost."""
OPEN_SECONDS = 1.0
"""How long a session waits for its stream before it is used."""
FOR_EVER = 10.0**9
NO_STREAM = frozenset({400, 404, 405, 406, 501})
"""What a server says that has no such stream."""
LISTS = {
    "tools": "toolsListChanged",
    "prompts": "promptsListChanged",
    "resources": "resourcesListChanged",
}


def announces_resources(session: UpstreamSession) -> bool:
    """Whether the server may be asked to tell of changes of resources. One of the modern era that
    serves `subscriptions/listen` may do so without having declared any resources: what it will tell
    of it says when the stream begins."""
    resources = session.features.get("resources")
    if resources is None:
        return session.modern and bool(find_announced_lists(session.features))
    return isinstance(resources, dict) and resources.get("subscribe") is True


def find_announced_lists(features: Mapping[str, Any]) -> dict[str, bool]:
    """The lists that a server says it tells the changes of, as members of a listen."""
    found = {}
    for feature, member in LISTS.items():
        offered = features.get(feature)
        if isinstance(offered, dict) and offered.get("listChanged") is True:
            found[member] = True
    return found


class NotificationStream:
    def __init__(self, session: UpstreamSession, missed: Callable[[], None]) -> None:
        self._session = session
        self._missed = missed
        """Called where something may have been said while nobody listened."""
        self._keeper: asyncio.Task[None] | None = None
        self._wanted: frozenset[str] = frozenset()
        self._streams = 0
        """Over HTTP, those that are open."""
        self._tried = asyncio.Event()
        """Whether the server has answered the first request for a stream."""

    @property
    def is_open(self) -> bool:
        """Whether what the server says unasked would be heard at this moment."""
        if isinstance(self._session.wire, HttpWire):
            return self._streams > 0
        return not self._session.modern or self._keeper is not None

    def start(self) -> None:
        """Opens the stream where one is needed and offered."""
        self.stop()
        if self._is_needed(self._wanted):
            self._keeper = self._keep(self._wanted, None)

    async def wait_open(self) -> None:
        """Until the server has opened the stream of a handshake session over HTTP, or has refused
        to. What it would say there is lost before that."""
        session = self._session
        if self._keeper is None or session.modern or not isinstance(session.wire, HttpWire):
            return
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(OPEN_SECONDS):
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

    def expect(self, uris: frozenset[str]) -> None:
        """What the next start asks for, too."""
        self._wanted = uris

    async def subscribe(self, uris: frozenset[str], timeout: float) -> None:
        """Listens to what becomes of these resources instead of those before, without a gap: the
        new stream is there before the old one ends. The new era only."""
        if uris == self._wanted and self._keeper is not None and not self._keeper.done():
            return
        if not self._is_needed(uris):
            self._wanted = uris
            self.stop()
            return
        ready: asyncio.Future[frozenset[str]] = asyncio.get_running_loop().create_future()
        keeper = self._keep(uris, ready)
        try:
            either: list[asyncio.Future[Any]] = [ready, keeper]
            await asyncio.wait(either, timeout=timeout, return_when=asyncio.FIRST_COMPLETED)
            server = self._session.server
            if not ready.done():
                problem = f'server "{server}" does not say whether it tells of its resources'
                raise BadReply(problem) if keeper.done() else TimedOut(problem)
            refused = uris - ready.result() - self._wanted
            if refused:
                raise InvalidInput(
                    f'server "{server}" does not tell of changes of "{min(refused)[:200]}"'
                )
        except BaseException:
            keeper.cancel()
            raise
        old, self._keeper, self._wanted = self._keeper, keeper, uris
        if old is not None:
            old.cancel()

    # --- keeping it open -----------------------------------------------------------------------

    def _is_needed(self, uris: frozenset[str]) -> bool:
        session = self._session
        if not session.listens:
            return False
        duplex = not isinstance(session.wire, HttpWire)
        if not session.modern:
            # Where everything comes on one stream there is nothing to open. Over HTTP servers say
            # more there than they declare: lines of their log, questions, changes of lists.
            return not duplex
        return bool(uris) or bool(self._lists())

    def _lists(self) -> dict[str, bool]:
        return find_announced_lists(self._session.features)

    def _keep(
        self, uris: frozenset[str], ready: asyncio.Future[frozenset[str]] | None
    ) -> asyncio.Task[None]:
        wire = self._session.wire
        if isinstance(wire, HttpWire):
            work = self._keep_http(wire, uris, ready)
        else:
            work = self._keep_duplex(uris, ready)
        return asyncio.get_running_loop().create_task(work)

    def _params(self, uris: frozenset[str]) -> dict[str, Any]:
        wanted: dict[str, Any] = dict(self._lists())
        if uris:
            wanted["resourceSubscriptions"] = sorted(uris)
        meta = {**self._session.meta, **new_trace().carried()}
        return {"notifications": wanted, "_meta": meta}

    def _listener(self, ready: asyncio.Future[frozenset[str]] | None) -> RequestListener:
        def acknowledged(params: Mapping[str, Any]) -> None:
            granted = params.get("notifications")
            uris = granted.get("resourceSubscriptions") if isinstance(granted, dict) else None
            told = [uri for uri in uris if isinstance(uri, str)] if isinstance(uris, list) else []
            if ready is not None and not ready.done():
                ready.set_result(frozenset(told))

        return RequestListener(acknowledged=acknowledged)

    async def _keep_http(
        self, wire: HttpWire, uris: frozenset[str], ready: asyncio.Future[frozenset[str]] | None
    ) -> None:
        """Opens the stream again and again. After each opening all is looked at anew; but one that
        takes another's place has missed nothing."""
        session, loop = self._session, asyncio.get_running_loop()
        pause, failures = FIRST_PAUSE, 0
        while True:
            begun = loop.time()
            try:
                await self._listen(wire, uris, ready)
                failures = 0
            except SessionExpired:
                # The more often it forgets, the later it is asked; calls do not wait for this.
                await asyncio.sleep(min(LONGEST_PAUSE, session.openings))
                if await session.is_alive() or wire.lost.done():
                    return  # there is none: 404 is also what a framework says of a missing route
            except UpstreamHttpError as error:
                if error.status in NO_STREAM or error.status < 400:  # or it shows a page there
                    return
                failures = 0
            except TargetFailed as error:
                log.debug("%s: %s", session.server, error)
                lasted = loop.time() - begun > STEADY_SECONDS
                failures = 0 if lasted else failures + 1
                if failures >= LOST_AFTER:
                    if not await session.is_alive():
                        wire.mark_lost(f"it cannot be reached: {error}")
                    return  # else it has no such stream, and only breaks off where it should say so
            if loop.time() - begun > STEADY_SECONDS:
                pause = FIRST_PAUSE
            await asyncio.sleep(pause)
            pause = min(pause * 2, LONGEST_PAUSE)

    async def _listen(
        self, wire: HttpWire, uris: frozenset[str], ready: asyncio.Future[frozenset[str]] | None
    ) -> None:
        announces = announces_resources(self._session) or bool(self._lists())

        is_open, tried = False, self._tried

        def opened() -> None:
            nonlocal is_open
            is_open = True
            self._streams += 1
            tried.set()
            if announces and (ready is None or ready.done()):
                self._missed()

        try:
            if self._session.modern:
                await wire.listen(LISTEN, self._params(uris), opened, self._listener(ready))
            else:
                await wire.listen("", None, opened)
        finally:
            self._streams -= is_open
            tried.set()

    async def _keep_duplex(
        self, uris: frozenset[str], ready: asyncio.Future[frozenset[str]] | None
    ) -> None:
        while True:
            with contextlib.suppress(HubError):
                await self._session.wire.request(
                    LISTEN, self._params(uris), FOR_EVER, self._listener(ready)
                )
                await asyncio.sleep(FIRST_PAUSE)  # it ended the listen; the connection lives
                self._missed()
                continue
            return
