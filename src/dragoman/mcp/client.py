"""One session with one server, in the era it speaks: finding that out, opening, listing, calling.

Declares no client features: the session is shared by everyone who calls the server.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable
from typing import Any

from dragoman import __version__
from dragoman.core.call import NOTHING, Updates, discard
from dragoman.core.errors import (
    BadReply,
    HubError,
    TargetFailed,
    TimedOut,
    Unreachable,
    WorkFailed,
)
from dragoman.mcp.client_http import HttpStatus, HttpWire, SessionExpired
from dragoman.mcp.duplex import Wire
from dragoman.mcp.revisions import (
    CAPABILITIES_KEY,
    CLIENT_KEY,
    HANDSHAKE,
    LATEST_HANDSHAKE,
    MODERN,
    MODERN_KEY,
    NAMES,
    NUMBERS,
    R2607,
    SERVER_KEY,
)

log = logging.getLogger(__name__)

MAX_PAGES = 1_000
MAX_TOOLS = 20_000
MAX_LIST_BYTES = 32 * 1024 * 1024
"""All pages of a list together."""
FIRST_PAUSE, LONGEST_PAUSE = 1.0, 30.0
STEADY_SECONDS = 10.0
"""A stream that lasted so long was a good one: it is opened again soon."""
LOST_AFTER = 3
"""A server that cannot be reached so often in a row is lost."""
PROBE_SECONDS = 2.0
"""How long a child may keep silent on `server/discover` before it is greeted the old way as well:
some old servers never answer a method that they do not know."""
OPEN_SECONDS = 30.0
FOR_EVER = 10.0**9
MODERN_ERRORS = frozenset({-32020, -32021, -32022})
"""Codes that only a server of the new era uses."""

CLIENT_INFO = {"name": "dragoman", "title": "Dragoman", "version": __version__}
MODERN_META = {MODERN_KEY: MODERN[-1], CAPABILITIES_KEY: {}, CLIENT_KEY: CLIENT_INFO}


class Session:
    """Made over a wire that is connected; `open` before use."""

    def __init__(self, server: str, wire: Wire, tools_changed: Callable[[], None]) -> None:
        self.server = server
        self.wire = wire
        self.revision = R2607
        self.features: dict[str, Any] = {}
        self.server_info: dict[str, Any] = {}
        self._tools_changed = tools_changed
        self._follower: asyncio.Task[None] | None = None
        self._reopening: asyncio.Task[None] | None = None
        self._openings = 0

    @property
    def modern(self) -> bool:
        return self.revision == R2607

    # --- opening -----------------------------------------------------------------------------

    async def open(self, timeout: float, *, modern: bool | None) -> None:
        """`modern` is the era found earlier, or None to find out."""
        if modern is None and not isinstance(self.wire, HttpWire):
            await self._find_out(timeout)
        elif modern is False or not await self._discover(timeout / 2):
            await self._initialize(timeout)
        self._follow()

    async def _find_out(self, timeout: float) -> None:
        """Asks the new way first. A server that keeps silent, since it is still starting or never
        answers what it does not know, is greeted the old way as well; the first good answer counts.
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
                if greeting.done() and greeting.exception() is None:
                    return
                if await discovering:
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
            self.wire.speak(R2607)
        try:
            result, _ = await self.wire.request("server/discover", {"_meta": MODERN_META}, timeout)
        except WorkFailed as error:
            if not _is_modern(error):
                return False
            result = {}
        except (HttpStatus, TimedOut):
            return False
        if not isinstance(result, dict):
            return False
        versions = result.get("supportedVersions")
        if isinstance(versions, list) and MODERN[-1] not in versions:
            return False
        self.revision = R2607
        meta = result.get("_meta")
        self._introduce(result, meta.get(SERVER_KEY) if isinstance(meta, dict) else None)
        return True

    async def _initialize(self, timeout: float) -> None:
        if isinstance(self.wire, HttpWire):
            self.wire.forget_session()
        params = {
            "protocolVersion": NAMES[LATEST_HANDSHAKE],
            "capabilities": {},
            "clientInfo": CLIENT_INFO,
        }
        result, _ = await self.wire.request("initialize", params, timeout)
        if not isinstance(result, dict):
            raise BadReply(f'server "{self.server}" answered "initialize" with no object')
        version = result.get("protocolVersion")
        if version not in HANDSHAKE:
            raise BadReply(f'server "{self.server}" speaks revision {version!r}, which is unknown')
        self.revision = NUMBERS[version]
        if isinstance(self.wire, HttpWire):
            self.wire.speak(self.revision)
        self._introduce(result, result.get("serverInfo"))
        await self.wire.notify("notifications/initialized")

    def _introduce(self, result: dict[str, Any], info: Any) -> None:
        features = result.get("capabilities")
        self.features = features if isinstance(features, dict) else {}
        self.server_info = info if isinstance(info, dict) else {}

    # --- using -------------------------------------------------------------------------------

    async def request(
        self,
        method: str,
        params: dict[str, Any],
        timeout: float,
        updates: Updates = discard,
    ) -> tuple[Any, int]:
        """Asks in the era's own way. An expired session is opened again, and the request repeated:
        a server that has forgotten the session has done nothing with it."""
        if self._reopening is not None:
            await self._reopen(timeout)
        if self.modern:
            params["_meta"] = {**params.get("_meta", NOTHING), **MODERN_META}
        opening = self._openings
        try:
            return await self.wire.request(method, params, timeout, updates)
        except SessionExpired:
            if opening == self._openings:  # else another request has seen to it meanwhile
                await self._reopen(timeout)
            return await self.wire.request(method, params, timeout, updates)

    async def _reopen(self, timeout: float) -> None:
        """Once, however many requests found the session expired at the same time."""
        if self._reopening is None:
            log.info('server "%s" ended the session; opening a new one', self.server)
            self._reopening = asyncio.get_running_loop().create_task(self._initialize(timeout))
            self._reopening.add_done_callback(self._reopened)
        opening = self._reopening
        await asyncio.wait([opening])
        if opening.cancelled():
            raise Unreachable(f'server "{self.server}" was stopped', sent=False)
        if error := opening.exception():
            raise Unreachable(
                f'server "{self.server}" has ended the session and opens no other: {error}',
                sent=False,
            )

    def _reopened(self, task: asyncio.Task[None]) -> None:
        self._reopening = None
        if task.cancelled():
            return
        if error := task.exception():
            if isinstance(self.wire, HttpWire):
                self.wire.lose(f"it ended the session and opens no other: {error}")
            return
        self._openings += 1
        self._follow()
        self._tools_changed()

    async def list_tools(self, timeout: float) -> list[Any]:
        """All pages, as the server put them."""
        tools: list[Any] = []
        cursor: Any = None
        seen: set[str] = set()
        total = 0
        for _ in range(MAX_PAGES):
            params: dict[str, Any] = {} if cursor is None else {"cursor": cursor}
            result, size = await self.request("tools/list", params, timeout)
            total += size
            page = result.get("tools") if isinstance(result, dict) else None
            if not isinstance(page, list):
                raise BadReply(f'server "{self.server}" answered "tools/list" with no list')
            tools += page
            following = result.get("nextCursor")
            if not isinstance(following, str):
                return tools[:MAX_TOOLS]
            if following in seen or len(tools) > MAX_TOOLS or total > MAX_LIST_BYTES:
                break
            seen.add(following)
            cursor = following
        log.warning(
            'the list of tools of server "%s" does not end, or is longer than %d tools or %d '
            "bytes; the rest is left out",
            self.server,
            MAX_TOOLS,
            MAX_LIST_BYTES,
        )
        return tools[:MAX_TOOLS]

    async def close(self) -> None:
        for task in (self._follower, self._reopening):
            if task is not None:
                task.cancel()
                await asyncio.gather(task, return_exceptions=True)
        await self.wire.close()

    # --- hearing of changes --------------------------------------------------------------------

    def _follow(self) -> None:
        """Keeps a stream open for what a server says unasked, where one is needed and offered."""
        if self._follower is not None:
            self._follower.cancel()
            self._follower = None
        tools = self.features.get("tools")
        changes = isinstance(tools, dict) and tools.get("listChanged") is True
        if not changes:
            return
        if isinstance(self.wire, HttpWire):
            work = self._follow_http(self.wire)
        elif self.modern:
            work = self._follow_duplex()
        else:
            return  # the one stream carries it unasked
        self._follower = asyncio.get_running_loop().create_task(work)

    def _listen_params(self) -> dict[str, Any]:
        return {"notifications": {"toolsListChanged": True}, "_meta": MODERN_META}

    async def _follow_http(self, wire: HttpWire) -> None:
        """Opens the stream again and again. After each opening the tools are listed: something may
        have been said while nobody listened."""
        loop = asyncio.get_running_loop()
        pause, failures = FIRST_PAUSE, 0
        while True:
            begun = loop.time()
            try:
                if self.modern:
                    params = self._listen_params()
                    await wire.listen("subscriptions/listen", params, self._tools_changed)
                else:
                    await wire.listen("", None, self._tools_changed)
                failures = 0
            except SessionExpired:
                # The more often it forgets, the later it is asked; calls do not wait for this.
                await asyncio.sleep(min(LONGEST_PAUSE, self._openings))
                if await self._knows_session():
                    return  # there is none: 404 is also what a framework says of a missing route
                if wire.lost.done():
                    return
            except HttpStatus as error:
                if error.status in (400, 404, 405, 406, 501):
                    return  # there is none
                failures = 0
            except TargetFailed as error:
                log.debug("%s: %s", self.server, error)
                lasted = loop.time() - begun > STEADY_SECONDS
                failures = 0 if lasted else failures + 1
                if failures >= LOST_AFTER:
                    wire.lose(f"it cannot be reached: {error}")
                    return
            if loop.time() - begun > STEADY_SECONDS:
                pause = FIRST_PAUSE
            await asyncio.sleep(pause)
            pause = min(pause * 2, LONGEST_PAUSE)

    async def _knows_session(self) -> bool:
        """Whether the server still does. If not, that opens another, which is followed instead."""
        try:
            await self.request("ping", {}, OPEN_SECONDS)
        except (Unreachable, TimedOut):
            return False
        except HubError:
            pass
        return True

    async def _follow_duplex(self) -> None:
        while True:
            with contextlib.suppress(HubError):
                await self.wire.request("subscriptions/listen", self._listen_params(), FOR_EVER)
                await asyncio.sleep(FIRST_PAUSE)  # it ended the listen; the connection lives
                self._tools_changed()
                continue
            return


def _is_modern(error: WorkFailed) -> bool:
    return error.native is not None and error.native.get("code") in MODERN_ERRORS
