"""One session with one server, in the era it speaks: finding that out, opening, listing, calling.

One that is shared by everyone who calls the server declares no client features; one that is a
client's own declares what that client can be asked.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from typing import Any

from dragoman import __version__
from dragoman.core.call import LEVELS, NOTHING
from dragoman.core.errors import BadReply, HubError, TimedOut, Unreachable, WorkFailed
from dragoman.core.trace import new_trace
from dragoman.mcp.client.jsonrpc_channel import Wire
from dragoman.mcp.client.notification_stream import NotificationStream
from dragoman.mcp.client.notifications import SEVERITY, RequestListener
from dragoman.mcp.client.streamable_http import HttpWire, SessionExpired, UpstreamHttpError
from dragoman.mcp.protocol.revisions import (
    CAPABILITIES_KEY,
    CLIENT_KEY,
    HANDSHAKE,
    LATEST_HANDSHAKE,
    LOG_LEVEL_KEY,
    MODERN,
    MODERN_KEY,
    NAMES,
    R2607,
    REVISIONS,
    SERVER_KEY,
)

log = logging.getLogger(__name__)

MAX_PAGES = 1_000
MAX_ENTRIES = 20_000
MAX_LIST_BYTES = 32 * 1024 * 1024
"""All pages of a list together."""
SECOND_SECONDS = 2.0
"""How long a server that has answered in the modern era may take over the other greeting."""
PROBE_SECONDS = 2.0
"""How long a child may keep silent on `server/discover` before it is greeted the old way as well:
some old servers never answer a method that they do not know."""
OPEN_SECONDS = 30.0
MODERN_ERRORS = (-32020, -32021, -32022)
"""Codes that only a server of the new era uses."""

CLIENT_INFO = {"name": "dragoman", "title": "Dragoman", "version": __version__}
MODERN_META: dict[str, Any] = {
    MODERN_KEY: MODERN[-1],
    CAPABILITIES_KEY: {},
    CLIENT_KEY: CLIENT_INFO,
}


class BothErasAnswered(BadReply):
    """A server of both eras has taken a greeting of each. It is to be started again, in the modern
    era alone."""

    kind = BadReply.__name__


class UpstreamSession:
    """Made over a wire that is connected; `open` before use."""

    meta = MODERN_META
    """What each request of the new era says of its sender, where nobody in particular asks."""

    def __init__(
        self,
        server: str,
        wire: Wire,
        missed: Callable[[], None],
        declared: Mapping[str, Any] = NOTHING,
        listens: bool = True,
    ) -> None:
        self.server = server
        self.wire = wire
        self.declared = declared
        """What it says that it can be asked."""
        self.listens = listens
        """Whether it wants to hear what comes on no request's stream."""
        self.revision = R2607
        self.features: dict[str, Any] = {}
        self.server_info: dict[str, Any] = {}
        self.instructions = ""
        self.ttls: dict[str, float] = {}
        """Seconds that lists hold, by method, as the server said when it gave them."""
        self.sizes: dict[str, int] = {}
        """Bytes of the lists that were read last, by method."""
        self.openings = 0
        """How often the server had to be greeted again."""
        self.notifications = NotificationStream(self, missed)
        self._missed = missed
        self._level = len(LEVELS)
        self._reopening: asyncio.Task[None] | None = None

    @property
    def modern(self) -> bool:
        return self.revision == R2607

    # --- opening -----------------------------------------------------------------------------

    async def open(self, timeout: float, *, modern: bool | None) -> None:
        """`modern` is the era found earlier, or None to find out."""
        if modern is None and not isinstance(self.wire, HttpWire):
            await self._detect_era(timeout)
        elif modern is False or not await self._discover(timeout / 2):
            await self._initialize(timeout)
        self.notifications.start()
        await self.notifications.wait_open()

    async def _detect_era(self, timeout: float) -> None:
        """Asks the new way first. A server that keeps silent, since it is still starting or never
        answers what it does not know, is greeted the old way as well; the first good answer counts.
        Raises `BothErasAnswered` where both succeed: the server may then speak either era.
        """
        loop = asyncio.get_running_loop()
        discovering = loop.create_task(self._discover(timeout))
        greeting: asyncio.Task[None] | None = None
        try:
            await asyncio.wait([discovering], timeout=min(PROBE_SECONDS, timeout))
            if discovering.done() and discovering.result():
                return
            greeting = loop.create_task(self._initialize(timeout))
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

    async def _discover(self, timeout: float) -> bool:
        """Whether the server is of the new era."""
        if isinstance(self.wire, HttpWire):
            self.wire.set_revision(R2607)
        try:
            params = {"_meta": {**MODERN_META, **new_trace().carried()}}
            result, _ = await self.wire.request("server/discover", params, timeout)
        except WorkFailed as error:
            if not _is_modern(error):
                return False
            result = {"supportedVersions": MODERN}
        except (UpstreamHttpError, TimedOut):
            return False
        versions = result.get("supportedVersions") if isinstance(result, dict) else None
        # Some of the old era answer anything with an empty result: that discovers nothing.
        if not isinstance(versions, list | tuple) or MODERN[-1] not in versions:
            return False
        self.revision = R2607
        meta = result.get("_meta")
        self._read_server_info(result, meta.get(SERVER_KEY) if isinstance(meta, dict) else None)
        return True

    async def _initialize(self, timeout: float) -> None:
        params = {
            "protocolVersion": NAMES[LATEST_HANDSHAKE],
            "capabilities": dict(self.declared),
            "clientInfo": CLIENT_INFO,
        }
        trace, headers = new_trace(), None
        if isinstance(self.wire, HttpWire):
            self.wire.forget_session()
            # Servers of both eras take a request without a session that has `_meta` for a modern
            # one.
            headers = trace.headers()
        else:
            params["_meta"] = trace.carried()
        result, _ = await self.wire.request("initialize", params, timeout, None, headers)
        if not isinstance(result, dict):
            raise BadReply(f'server "{self.server}" answered "initialize" with no object')
        version = result.get("protocolVersion")
        if version not in HANDSHAKE:
            raise BadReply(
                f'server "{self.server}" speaks revision {version!r:.60}, which is unknown; '
                f"the hub speaks {NAMES[0]} to {NAMES[-1]}"
            )
        self.revision = REVISIONS[version]
        if isinstance(self.wire, HttpWire):
            self.wire.set_revision(self.revision)
        self._read_server_info(result, result.get("serverInfo"))
        self._level = len(LEVELS)
        await self.wire.notify("notifications/initialized")

    def _read_server_info(self, result: dict[str, Any], info: Any) -> None:
        features = result.get("capabilities")
        self.features = features if isinstance(features, dict) else {}
        self.server_info = info if isinstance(info, dict) else {}
        instructions = result.get("instructions")
        self.instructions = instructions if isinstance(instructions, str) else ""

    # --- using -------------------------------------------------------------------------------

    async def request(
        self,
        method: str,
        params: dict[str, Any],
        timeout: float,
        listener: RequestListener | None = None,
        headers: Mapping[str, str] | None = None,
        meta: Mapping[str, Any] = MODERN_META,
    ) -> tuple[Any, int]:
        """Asks in the era's own way. An expired session is opened again, and the request repeated:
        a server that has forgotten the session has done nothing with it."""
        if self._reopening is not None:
            await self._reopen(timeout)
        given = params.get("_meta")
        if given is None:  # it is the hub's own affair
            given = params["_meta"] = new_trace().carried()
        if self.modern:
            params["_meta"] = {**given, **meta}
        opening = self.openings
        try:
            return await self.wire.request(method, params, timeout, listener, headers)
        except SessionExpired:
            if opening == self.openings:  # else another request has seen to it meanwhile
                await self._reopen(timeout)
            return await self.wire.request(method, params, timeout, listener, headers)

    def build_meta(self, features: Mapping[str, Any], notes: str | None) -> Mapping[str, Any]:
        """What a request of the new era says where it is made for somebody: what that one can be
        asked, and which lines of the log it wants. Extensions that the server does not know are
        left out: nobody could carry them on."""
        if not features and notes is None:
            return MODERN_META
        meta = {**MODERN_META, CAPABILITIES_KEY: self._select_features(features)}
        if notes is not None:
            meta[LOG_LEVEL_KEY] = notes
        return meta

    def _select_features(self, features: Mapping[str, Any]) -> dict[str, Any]:
        known = dict(features)
        if known.pop("extensions", None) is not None:
            shared = self.find_shared_extensions(features)
            if shared:
                known["extensions"] = shared
        return known

    def find_shared_extensions(self, features: Mapping[str, Any]) -> dict[str, Any]:
        """Those that both this caller and the server have declared."""
        theirs, ours = self.features.get("extensions"), features.get("extensions")
        if not isinstance(theirs, dict) or not isinstance(ours, dict):
            return {}
        return {name: value for name, value in ours.items() if name in theirs}

    async def request_log_level(self, level: str, timeout: float) -> None:
        """Has the server send such lines of its log, in the old era; said once. What a single call
        does not want of them is kept from it later."""
        gravity = SEVERITY[level]
        if self.modern or gravity >= self._level or "logging" not in self.features:
            return
        self._level = gravity
        try:
            await self.request("logging/setLevel", {"level": level}, timeout)
        except HubError as error:
            log.debug("%s: %s", self.server, error)

    async def _reopen(self, timeout: float) -> None:
        """Once, however many requests found the session expired at the same time."""
        if self._reopening is None:
            log.info('server "%s" ended the session; opening a new one', self.server)
            self._reopening = asyncio.get_running_loop().create_task(self._initialize(timeout))
            self._reopening.add_done_callback(self._note_reopened)
        opening = self._reopening
        await asyncio.wait([opening])
        if opening.cancelled():
            raise Unreachable(f'server "{self.server}" was stopped', sent=False)
        if error := opening.exception():
            raise Unreachable(
                f'server "{self.server}" has ended the session and opens no other: {error}',
                sent=False,
            )
        await self.notifications.wait_open()

    def _note_reopened(self, task: asyncio.Task[None]) -> None:
        self._reopening = None
        if task.cancelled():
            return
        if error := task.exception():
            if isinstance(self.wire, HttpWire):
                self.wire.mark_lost(f"it ended the session and opens no other: {error}")
            return
        self.openings += 1
        self.notifications.start()
        self._missed()

    async def list_entries(
        self,
        method: str,
        member: str,
        timeout: float,
        meta: Mapping[str, Any] = MODERN_META,
    ) -> list[Any]:
        """All pages, as the server put them."""
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
                raise BadReply(f'server "{self.server}" answered "{method}" with no list')
            found += page
            self._note_ttl(method, result.get("ttlMs"))
            following = result.get("nextCursor")
            if not isinstance(following, str):
                return found[:MAX_ENTRIES]
            if following in seen or len(found) > MAX_ENTRIES or total > MAX_LIST_BYTES:
                break
            seen.add(following)
            cursor = following
        log.warning(
            'the list of %s of server "%s" does not end, or is longer than %d entries or %d '
            "bytes; the rest is left out",
            member,
            self.server,
            MAX_ENTRIES,
            MAX_LIST_BYTES,
        )
        return found[:MAX_ENTRIES]

    def _note_ttl(self, method: str, ttl: Any) -> None:
        """2026-07-28, caching: the shortest of all pages."""
        if self.modern and isinstance(ttl, int | float) and not isinstance(ttl, bool) and ttl >= 0:
            self.ttls[method] = min(ttl / 1000, self.ttls.get(method, ttl / 1000))

    async def is_alive(self) -> bool:
        """Whether the server still knows the session. If not, that opens another, whose stream is
        followed instead."""
        try:
            await self.request("ping", {}, OPEN_SECONDS)
        except (Unreachable, TimedOut):
            return False
        except HubError:
            pass
        return True

    async def close(self) -> None:
        await self.notifications.close()
        if self._reopening is not None:
            self._reopening.cancel()
            await asyncio.gather(self._reopening, return_exceptions=True)
        await self.wire.close()


def _is_modern(error: WorkFailed) -> bool:
    return error.native is not None and error.native.get("code") in MODERN_ERRORS
