"""One configured server as a target: connected in the background, kept connected, healed by itself.

However many clients there are, there is one connection or child a server. Its tools stay in the
catalog while it is being reached again, so that they do not come and go; a call then waits for the
attempt under way, or is told the reason.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Awaitable, Callable
from time import monotonic
from typing import Any

from dragoman.core.bus import Bus
from dragoman.core.call import Call, Result
from dragoman.core.catalog import Catalog
from dragoman.core.errors import ConfigError, HubError, TimedOut, Unreachable
from dragoman.core.events import ServerChanged
from dragoman.core.ports import SchemaCompiler
from dragoman.core.tool import Tool
from dragoman.mcp.client import Session
from dragoman.mcp.client_http import HttpWire
from dragoman.mcp.config import ServerEntry, StdioTransport
from dragoman.mcp.revisions import NAMES
from dragoman.mcp.spawn import Ring
from dragoman.mcp.translate import BadTool, result_from_mcp, tool_from_definition

log = logging.getLogger(__name__)

START_SECONDS = 60.0
"""The least time a child gets to start: the first run of `npx` fetches what it runs."""
FIRST_PAUSE, LONGEST_PAUSE = 1.0, 60.0
STEADY_SECONDS = 30.0
"""A connection that lasted so long was a good one: the next attempt comes at once again."""
FRESH_FAILURE = 1.0
"""A call this soon after a failed attempt is told its reason rather than making another."""
LOSSES = 5
"""A server that is lost more often than this, one time after the other, has failed: until then a
call starts it again at once."""
MAX_PROBLEMS = 20
TURN_SECONDS = 0.005
"""How long a list of tools may be worked on before others have their turn."""

Connect = Callable[["Upstream", float], Awaitable[Session]]
"""Makes an open session with a server, within so many seconds; told apart by transport."""


class Upstream:
    def __init__(
        self,
        entry: ServerEntry,
        connect: Connect,
        catalog: Catalog,
        bus: Bus,
        compile_schema: SchemaCompiler,
    ) -> None:
        self.entry = entry
        self.name = entry.name
        self.state = "starting"
        self.reason = ""
        self.problems: list[str] = []
        """Tools left out, and why."""
        self.stderr = Ring()
        self.session: Session | None = None
        self.modern: bool | None = None
        self.way: str | None = None
        """What was found out about it the last time: the era, and which HTTP transport."""
        self.restarts = -1
        self._connect = connect
        self._catalog = catalog
        self._bus = bus
        self._compile = compile_schema
        self._task: asyncio.Task[None] | None = None
        self._wake = asyncio.Event()
        self._changed = asyncio.Event()
        self._settled: asyncio.Future[None] | None = None
        self._failed_at = float("-inf")
        self._definitions: list[Any] | None = None
        self._in_flight = 0
        self._used_at = monotonic()

    # --- what the hub sees -------------------------------------------------------------------

    def start(self) -> None:
        self._settled = asyncio.get_running_loop().create_future()
        self._task = asyncio.get_running_loop().create_task(self._supervise())

    async def stop(self) -> None:
        """Its tools are gone at once; the server itself may take a while to end."""
        if self._task is not None:
            self._task.cancel()
        self._catalog.withdraw(self.name)
        self._become("stopped", "it was stopped")
        self._settle()
        if self._task is not None:
            await asyncio.gather(self._task, return_exceptions=True)

    async def run(self, call: Call) -> Result:
        session = self.session or await self._wait()
        try:
            return await self._ask(session, call)
        except Unreachable as error:
            self._suspect(session, error)
            if error.sent or not session.wire.lost.done():
                raise
        # Nothing has left: that the server is gone was found out only now.
        again = self.session if self.session is not session else None
        return await self._ask(again or await self._wait(), call)

    async def _ask(self, session: Session, call: Call) -> Result:
        params: dict[str, Any] = {"name": call.tool.remote_name, "arguments": call.arguments}
        if meta := call.extra.get("_meta"):
            params["_meta"] = meta
        self._in_flight += 1
        try:
            value, size = await session.request(
                "tools/call", params, self.entry.timeout_secs, call.updates
            )
        finally:
            self._in_flight -= 1
            self._used_at = monotonic()
        return result_from_mcp(value, size, self.name)

    async def tried(self) -> None:
        """Until the attempt under way has come to something."""
        if self._settled is not None:
            await asyncio.wait([self._settled])

    def tools_changed(self) -> None:
        self._changed.set()

    @property
    def revision(self) -> str | None:
        return NAMES[self.session.revision] if self.session else None

    # --- waiting for a connection --------------------------------------------------------------

    async def _wait(self) -> Session:
        """The session of the attempt under way, or of one made now."""
        if self.state == "stopped":
            raise self._unreachable()
        if self.state == "failed" and monotonic() - self._failed_at < FRESH_FAILURE:
            raise self._unreachable()
        if self._settled is None or self._settled.done():
            self._settled = asyncio.get_running_loop().create_future()
        self._wake.set()
        try:
            async with asyncio.timeout(self.entry.timeout_secs):
                await asyncio.shield(self._settled)
        except TimeoutError:
            raise TimedOut(
                f'server "{self.name}" is still starting after {self.entry.timeout_secs:g} s; '
                "try again, or see: dragoman servers logs " + self.name
            ) from None
        if self.session is None:
            raise self._unreachable()
        return self.session

    def _unreachable(self) -> Unreachable:
        return Unreachable(f'server "{self.name}" is not connected: {self.reason}', sent=False)

    def _settle(self) -> None:
        """The attempt has come to something: whoever waits looks for the session, or the reason."""
        if self._settled is not None and not self._settled.done():
            self._settled.set_result(None)

    def _suspect(self, session: Session, error: Unreachable) -> None:
        """A call found nobody there: the connection is made again. One that was lost on the way
        says nothing of the server: the next call will tell."""
        if not error.sent and self.session is session and isinstance(session.wire, HttpWire):
            session.wire.lose(str(error))

    # --- keeping it connected -------------------------------------------------------------------

    async def _supervise(self) -> None:
        failures = 0
        while True:
            self._become("starting", "")
            begun = monotonic()
            try:
                session = await self._open()
            except HubError as error:
                failures += 1
                await self._pause(str(error), failures)
                continue
            except Exception as error:
                log.exception('server "%s" could not be connected', self.name)
                failures += 1
                await self._pause(repr(error), failures)
                continue
            try:
                reason = await self._serve(session)
                if reason is not None:
                    log.warning('server "%s" was lost: %s', self.name, reason)
            except Exception as error:  # or nobody would look after it any more
                log.exception('server "%s" could not be kept connected', self.name)
                reason = repr(error)
            finally:
                self.session = None
                await session.close()
            if reason is None:
                failures = 0
                await self._rest()
                continue
            failures = 0 if monotonic() - begun > STEADY_SECONDS else failures + 1
            wanted = self._wake.is_set() and failures <= LOSSES
            if failures > 1 and not wanted:
                await self._pause(reason, failures - 1, tried=failures > LOSSES)

    async def _open(self) -> Session:
        seconds = self.entry.timeout_secs
        if isinstance(self.entry.transport, StdioTransport):
            seconds = max(seconds, START_SECONDS)
        session: Session | None = None
        try:
            async with asyncio.timeout(seconds):
                session = await self._connect(self, seconds)
                self._changed.clear()
                await self._refresh(session)
        except BaseException as error:
            if session is not None:
                await session.close()
            self.modern = self.way = None  # what was known of it may be what is wrong
            if isinstance(error, TimeoutError):
                raise TimedOut(f"it did not answer within {seconds:g} s") from None
            raise
        self.modern = session.modern
        self.session = session
        self._wake.clear()
        self.restarts += 1
        self._become("connected", "")
        self._settle()
        log.info(
            'server "%s" is connected: %s, %d tools; %d tools in all',
            self.name,
            self.revision,
            len(self._catalog.offered_by(self.name)),
            len(self._catalog),
        )
        return session

    async def _serve(self, session: Session) -> str | None:
        """Until it is lost (the reason in words) or has been idle for long enough (None)."""
        idle = self.entry.idle_secs if isinstance(self.entry.transport, StdioTransport) else 0
        self._used_at = monotonic()
        lost: asyncio.Future[Any] = session.wire.lost
        changed: asyncio.Future[Any] = self._change()
        try:
            while True:
                await asyncio.wait(
                    [lost, changed],
                    timeout=max(0.05, self._used_at + idle - monotonic()) if idle else None,
                    return_when=asyncio.FIRST_COMPLETED,
                )
                if session.wire.lost.done():
                    return session.wire.lost.result()
                if changed.done():
                    self._changed.clear()
                    changed = self._change()
                    await self._follow_change(session)
                if idle and not self._in_flight and monotonic() - self._used_at >= idle:
                    return None
        finally:
            changed.cancel()

    def _change(self) -> asyncio.Task[Any]:
        return asyncio.get_running_loop().create_task(self._changed.wait())

    async def _follow_change(self, session: Session) -> None:
        try:
            await self._refresh(session)
        except HubError as error:
            log.warning(
                'server "%s" changed its tools but does not list them: %s', self.name, error
            )
        await asyncio.sleep(0.05)  # a server that says so all the time is asked 20 times a second

    async def _refresh(self, session: Session) -> None:
        """Lists the tools and offers them; a bad one is left out alone."""
        definitions: list[Any] = []
        if session.features.get("tools") is not None or not session.features:
            definitions = await session.list_tools(self.entry.timeout_secs)
        if definitions == self._definitions:
            return  # so that nobody is told of a change that is none
        tools: list[Tool] = []
        problems: list[str] = []
        taken: dict[str, str] = {}
        begun = monotonic()
        for position, definition in enumerate(definitions):
            if monotonic() - begun > TURN_SECONDS:
                await asyncio.sleep(0)
                begun = monotonic()
            try:
                tool = tool_from_definition(
                    definition, self, taken, self._compile, self.entry.prefix
                )
            except BadTool as error:
                problems.append(f"tool {position + 1} is left out: {error}")
                continue
            taken[tool.name] = tool.remote_name
            tools.append(tool)
        known, self.problems = self.problems, problems[:MAX_PROBLEMS]
        for problem in self.problems:
            if problem not in known:  # said once, however often it is listed
                log.warning('server "%s": %s', self.name, problem)
        self._definitions = definitions
        try:
            self._catalog.offer(self.name, tools)
        except ConfigError as error:
            self.problems.append(str(error))

    async def _pause(self, reason: str, failures: int, *, tried: bool = True) -> None:
        """Waits longer after each failure, with jitter; a call cuts the wait short."""
        if tried:
            self._failed_at = monotonic()
        self._become("failed", reason)
        self._settle()
        pause = min(LONGEST_PAUSE, FIRST_PAUSE * 2 ** min(failures - 1, 10))
        self._wake.clear()
        try:
            async with asyncio.timeout(pause * random.uniform(0.8, 1.2)):
                await self._wake.wait()
        except TimeoutError:
            pass

    async def _rest(self) -> None:
        """Stopped for want of use, until somebody calls; perhaps somebody has already."""
        self._become("idle", f"unused for {self.entry.idle_secs:g} s; a call starts it again")
        await self._wake.wait()

    def _become(self, state: str, reason: str) -> None:
        if (state, reason) == (self.state, self.reason):
            return
        self.state, self.reason = state, reason
        if state == "failed":
            log.warning('server "%s" is not connected: %s', self.name, reason)
        self._bus.emit(ServerChanged(self.name, state, reason))
